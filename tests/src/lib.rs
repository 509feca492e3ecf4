//! The test harness: real servers, an independent client, a proxy that misbehaves, a scripted server, and the
//! scenarios behind the table of outcomes.
//!
//! Nothing here shares code with what it tests; only `tenure` and `rows` use it, as a program would. Everything may run in parallel: no fixed ports, no shared
//! folders, and what a test starts ends with it.

#![forbid(unsafe_code)]

pub mod certificates;
pub mod client;
pub mod fake;
pub mod frames;
pub mod model;
pub mod monitor;
pub mod outcomes;
pub mod process;
pub mod proxy;
pub mod replica;
pub mod rows;
pub mod server;
pub mod tenure;
pub mod trouble;

pub use certificates::{Authority, Pair};
pub use client::{Client, Reply};
pub use fake::{Answer, Call, Handshake, Hello, ScriptedServer};
pub use model::Model;
pub use monitor::{Monitor, Seen};
pub use proxy::{Cut, Proxy, Side};
pub use server::Server;
pub use tenure::{Recorder, Tenure, Told, Watch, key_of};
pub use xtask::servers::ServerKind;

/// Whatever went wrong in a test, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Polls until the condition holds; whether it did within the time.
pub fn eventually(within: std::time::Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = std::time::Instant::now() + within;
    loop {
        if condition() {
            return true;
        }
        if std::time::Instant::now() >= until {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
