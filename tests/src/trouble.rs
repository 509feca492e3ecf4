//! Real servers in a state in which they refuse: what the errors of the table of outcomes need.
//!
//! None of it depends on what the server holds. All of it works on every kind of server.

use std::time::Duration;

use crate::client::Closer;
use crate::server::free_port;
use crate::{Client, Failure, Server, ServerKind, eventually};

/// A state to be entered and left on a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// `OOM` for what needs memory: above `maxmemory` with nothing to evict.
    OutOfMemory,
    /// `READONLY` for writes: a replica of a primary that is not there, serving what it has.
    ReadOnly,
    /// `MASTERDOWN` for nearly everything: the same, not serving what it has.
    PrimaryDown,
    /// `NOREPLICAS` for writes: one replica is asked for and there is none.
    NoReplicas,
}

impl Trouble {
    /// Puts the server into it.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn enter(self, server: &Server) -> Result<(), Failure> {
        let mut client = server.client()?;
        match self {
            Self::OutOfMemory => client.config_set("maxmemory", "1"),
            Self::NoReplicas => client.config_set("min-replicas-to-write", "1"),
            Self::ReadOnly | Self::PrimaryDown => {
                // A replica that may not be written says READONLY before it looks for its primary.
                let answer = if self == Self::ReadOnly { "yes" } else { "no" };
                client.config_set("replica-serve-stale-data", answer)?;
                client.config_set("replica-read-only", answer)?;
                let nobody = free_port()?.to_string();
                client.ok(&["REPLICAOF", "127.0.0.1", &nobody]).map(drop)
            }
        }
    }

    /// Takes it out again, with all its keys.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn leave(self, server: &Server) -> Result<(), Failure> {
        let mut client = server.client()?;
        match self {
            Self::OutOfMemory => client.config_set("maxmemory", "0"),
            Self::NoReplicas => client.config_set("min-replicas-to-write", "0"),
            Self::ReadOnly | Self::PrimaryDown => client.ok(&["REPLICAOF", "NO", "ONE"]).map(drop),
        }
    }
}

/// `BUSY` for nearly everything, from now until this is dropped: a script that does not end.
#[derive(Debug)]
pub struct Busy {
    closer: Closer,
    killer: Client,
}

impl Busy {
    /// Starts the script and waits until the server says so.
    ///
    /// # Errors
    /// When it does not come to it.
    pub fn start(server: &Server) -> Result<Self, Failure> {
        let mut killer = server.client()?;
        killer.config_set("busy-reply-threshold", "1")?;
        let mut script = server.client()?;
        script.send(&["EVAL", "while true do end", "0"])?;
        let closer = script.closer()?;
        let busy = Self { closer, killer };
        let mut looker = server.client()?;
        let is_busy = || matches!(looker.cmd(&["GET", "x"]), Ok(reply) if reply.is_error("BUSY"));
        match eventually(Duration::from_secs(10), is_busy) {
            true => Ok(busy),
            false => Err("the server does not say BUSY".into()),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.killer.cmd(&["SCRIPT", "KILL"]).ok();
        self.closer.close();
    }
}

/// `LOADING` for nearly everything: restarts a server with all its keys and a slow load that takes about this
/// long. Returns while it loads. TTLs run on; a key that has none left is not loaded.
///
/// # Errors
/// When it does not come to it.
pub fn load_slowly(server: &mut Server, about: Duration) -> Result<(), Failure> {
    let mut client = server.client()?;
    // Uncompressed, and each key larger than the interval at which a loading server answers anybody.
    client.config_set("rdbcompression", "no")?;
    let keys = (about.as_millis() / 2).max(10).to_string();
    client.ok(&["DEBUG", "POPULATE", &keys, "ballast", "1100"])?;
    client.ok(&["SAVE"])?;
    let slowly = [
        "--appendonly",
        "no",
        "--key-load-delay",
        "2000",
        "--loading-process-events-interval-bytes",
        "1024",
    ];
    server.rerun(&slowly)?;
    match server.client()?.cmd(&["GET", "x"])? {
        reply if reply.is_error("LOADING") => Ok(()),
        reply => Err(format!("a loading server answered {reply:?}").into()),
    }
}

/// `MOVED` for every key: a cluster node that owns no slot and knows one that owns them all, at an address
/// where nobody is.
///
/// # Errors
/// When it does not come to it.
pub fn moved_away(kind: ServerKind) -> Result<Server, Failure> {
    let nobody = free_port()?;
    let (me, other) = ("1".repeat(40), "2".repeat(40));
    let nodes = format!(
        "{me} 127.0.0.1:0@0 myself,master - 0 0 1 connected\n\
         {other} 127.0.0.1:{nobody}@{} master - 0 0 2 connected 0-16383\n\
         vars currentEpoch 2 lastVoteEpoch 0\n",
        nobody + 10_000
    );
    // Nobody notices within this time that the other one is not there.
    let patient = ["--cluster-node-timeout", "600000"];
    let server = Server::setup(kind)
        .arguments(&["--cluster-enabled", "yes", "--cluster-config-file", "nodes"])
        .arguments(&patient)
        .file("nodes", &nodes)
        .start()?;
    let mut client = server.client()?;
    let moved = || matches!(client.cmd(&["GET", "x"]), Ok(reply) if reply.is_error("MOVED"));
    match eventually(Duration::from_secs(10), moved) {
        true => Ok(server),
        false => Err("the server does not say MOVED".into()),
    }
}
