//! (being built)
#![no_std]
#[cfg(feature = "alloc")]
extern crate alloc;
pub mod resp;
