//! A simulated world for Tenure: the real client, under a virtual clock, with a network and a server that misbehave on cue.
//!
//! A [`Sim`] runs a [`World`] of clients and servers in one thread. Time is virtual: it jumps to whatever comes next, so an hour of
//! renewals passes at once. Everything that is left to chance - the order of tasks, latencies, secrets, jitter - comes from the
//! seed: the same seed gives the same run, to the byte.
//!
//! Test your own code with it: give it the [`Locks`](tenure_client::Locks) of a simulated client, and take the key away, freeze the
//! server, cut the network, pause the process at the moment you choose.
//!
//! ```
//! use std::time::Duration;
//! use tenure_client::Cause;
//! use tenure_sim::{Dialect, Sim};
//!
//! let mut sim = Sim::new(1);
//! let world = sim.world();
//! let server = world.server("db", Dialect::Valkey9);
//! let client = world.client();
//! sim.block_on(async move {
//!     let locks = client.connect(&server).await.unwrap();
//!     let lock = locks.lock("job").lease(Duration::from_secs(30)).acquire().await.unwrap();
//!
//!     // The network goes silent. At two thirds of the lease the loss is told, with time left to stop in.
//!     client.link(&server, |link| link.silent = true);
//!     let lost = lock.lost().await;
//!     assert!(matches!(lost.cause, Cause::Expired { .. }));
//!     assert!(lock.stop_window(&lost) > Duration::from_secs(5));
//! });
//! ```

mod about;
mod binding;
pub mod checker;
mod clock;
mod cool;
pub mod core_level;
mod encode;
mod executor;
mod fair;
mod fake;
pub mod history;
mod keys;
mod machine;
mod mint;
mod net;
mod network;
mod replicas;
mod scan;
mod server;
mod tap;
mod thread;
mod tracking;
mod world;

pub use binding::{SimBinding, SimStream, SimTimer};
pub use fake::FakeServer;
pub use keys::Dialect;
pub use machine::{Client, ServerHandle, Snapshot};
pub use net::Link;
pub use server::{Executed, Mood};
pub use thread::Threads;
pub use world::{Counts, Sim, Sleep, World};
