//! The fuzz targets as plain functions over bytes. Each panics when something is not as it must be.
//!
//! | target | what the bytes are | what must be true |
//! |---|---|---|
//! | [`decode`] | what a peer sends | no panic, no runaway, what is read lies in the bytes |
//! | [`chunks`] | how it is cut, and what a peer sends | the same frames and the same error in whatever pieces |
//! | [`conn_ops`] | calls of a connection | every request gets its replies in order or an end, once; offered bytes are never changed once one of them has left |
//! | [`lease_ops`] | calls of many leases and their times | a lock is held as a model of ten lines says; every request and every hold ends once |
//! | [`world`] | a history of the simulated world | the checker has nothing to say |

mod conn;
mod decode;
mod lease;
mod world;

pub use conn::conn_ops;
pub use decode::{chunks, decode};
pub use lease::lease_ops;
pub use world::world;

/// Takes bytes off the front; zeros when there are no more.
pub(crate) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Bytes<'a> {
        Bytes(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn slice(&mut self, len: usize) -> &'a [u8] {
        let (slice, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        slice
    }
}
