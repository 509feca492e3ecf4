//! The lease machine of Tenure: no sockets, no clock, no randomness inside.
//!
//! Data flows one way: bytes -> [`conn`] -> [`plan`] -> [`leases`] -> [`lease`] -> event. The
//! current time is an argument of every call that depends on it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`time`] | `Tick`, `Deadline` |
//! | [`config`], [`error`], [`rng`] | checked times; what can go wrong; jitter |
//! | [`lease`] | the policy of one lock; no bytes, no allocation |
//! | [`resp`] | the codec of RESP2 and RESP3; no allocation |
//! | [`names`] | keys and values on the server |
//! | [`leases`] | many leases: table, deadlines, local queue; any store executes their operations |
//! | [`ask`] | questions that belong to no lease: inspect, list, remove by force |
//! | [`conn`] | one connection: handshake, replies in order, pushes |
//! | [`plan`] | operation to command, reply to outcome: the only place that knows Redis commands |
//! | [`mux`] | the three composed: many leases on one connection |
//!
//! Without the feature `alloc` (on by default) only `time`, `config`, `error`, `rng`, `lease` and
//! `resp` remain, and nothing allocates.
//!
//! No input bytes and no `now` make it panic.
#![no_std]
// Without `alloc` half of what the pages link to is not there.
#![cfg_attr(not(feature = "alloc"), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(feature = "alloc")]
pub mod ask;
pub mod config;
#[cfg(feature = "alloc")]
pub mod conn;
pub mod error;
pub mod fence;
pub mod lease;
#[cfg(feature = "alloc")]
pub mod leases;
#[cfg(feature = "alloc")]
pub mod mux;
#[cfg(feature = "alloc")]
pub mod names;
#[cfg(feature = "alloc")]
pub mod plan;
pub mod replicas;
pub mod resp;
pub mod rng;
pub mod time;
