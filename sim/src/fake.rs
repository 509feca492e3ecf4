//! The simulated server by itself, so that it can be compared with real ones.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::time::Tick;

use crate::clock::Clock;
use crate::encode::{encode, encode_push};
use crate::keys::Dialect;
use crate::server::Server;
use crate::tracking::Push;

/// A simulated server outside of any world: it is handed commands and gives what connections get for them.
///
/// What a [`World`](crate::World) answers its clients with is this; a test that sends the same commands to a real
/// server and compares shows that the two agree.
///
/// ```
/// use std::time::Duration;
/// use tenure_sim::{Dialect, FakeServer};
///
/// let mut server = FakeServer::new(Dialect::Valkey9);
/// assert_eq!(server.execute(&["SET", "k", "mine", "NX", "PX", "50"]), b"+OK\r\n");
/// assert_eq!(server.execute(&["DELIFEQ", "k", "yours"]), b":0\r\n");
/// server.advance(Duration::from_millis(50));
/// assert_eq!(server.execute(&["GET", "k"]), b"$-1\r\n");
///
/// // A second connection, which is told of what happens to the keys that it has read.
/// for command in [&["HELLO", "3"][..], &["CLIENT", "TRACKING", "ON"], &["GET", "k"]] {
///     server.send(1, command);
/// }
/// server.received(1);
/// server.execute(&["SET", "k", "mine"]);
/// assert_eq!(server.received(1), b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n");
/// ```
pub struct FakeServer {
    server: Server,
    now: Tick,
    connections: BTreeMap<usize, Line>,
}

#[derive(Default)]
struct Line {
    resp3: bool,
    /// What was sent to it and is not taken.
    down: Vec<u8>,
}

impl FakeServer {
    /// An empty server. Every connection speaks RESP2 until `HELLO 3`.
    pub fn new(dialect: Dialect) -> FakeServer {
        FakeServer {
            server: Server::new(dialect, Clock::new(Tick::ZERO, Duration::from_secs(1), 0)),
            now: Tick::ZERO,
            connections: BTreeMap::new(),
        }
    }

    /// Sets its wall clock, which is at one second otherwise: what expires at a time by it does so by the new one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure_sim::{Dialect, FakeServer};
    ///
    /// let mut server = FakeServer::new(Dialect::Valkey9);
    /// server.set_clock(Duration::from_secs(1_796_000_000));
    /// assert_eq!(server.execute(&["TIME"]), b"*2\r\n$10\r\n1796000000\r\n$1\r\n0\r\n");
    /// ```
    pub fn set_clock(&mut self, unix: Duration) {
        self.server.clock = Clock::new(self.now, unix, 0);
    }

    /// Lets time pass. Keys expire; who is to be told of it is told when they are come across, or by
    /// [`find_expired`](FakeServer::find_expired).
    pub fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Executes a command and gives the bytes of the reply, with everything else that connection 0 was told.
    pub fn execute<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Vec<u8> {
        self.send(0, words);
        self.received(0)
    }

    /// Executes a command that comes on this connection, which is new if no other has come on it.
    pub fn send<A: AsRef<[u8]>>(&mut self, connection: usize, words: &[A]) {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_ref().to_vec()).collect();
        let line = self.connections.entry(connection).or_default();
        let (now, resp3) = (self.now, &mut line.resp3);
        let reply = self.server.execute(now, connection, &words, resp3);
        let late = self.server.keys.tracking.take_late();
        self.tell();
        let line = self.connections.entry(connection).or_default();
        line.down.extend(encode(&reply, line.resp3));
        self.send_pushes(late);
    }

    /// What this connection was sent since the last time: replies and pushes, in order.
    pub fn received(&mut self, connection: usize) -> Vec<u8> {
        let line = self.connections.get_mut(&connection);
        line.map(|line| std::mem::take(&mut line.down))
            .unwrap_or_default()
    }

    /// A connection ends.
    pub fn close(&mut self, connection: usize) {
        self.connections.remove(&connection);
        self.server.keys.tracking.turn_off(connection);
    }

    /// The server looks for keys that have expired, as real ones do ten times a second.
    pub fn find_expired(&mut self) {
        let now_ms = self.server.now_ms(self.now);
        self.server.keys.sweep(now_ms);
        self.tell();
    }

    /// What `CONFIG GET` gives for this name.
    pub fn configure(&mut self, name: &str, value: &str) {
        let settings = &mut self.server.settings;
        settings.insert(name.to_owned(), value.to_owned());
    }

    fn tell(&mut self) {
        let pushes = self.server.keys.tracking.take_early();
        self.send_pushes(pushes);
    }

    fn send_pushes(&mut self, pushes: Vec<Push>) {
        for push in pushes {
            if let Some(line) = self.connections.get_mut(&push.to)
                && line.resp3
            {
                line.down.extend(encode_push(&push));
            }
        }
    }
}

impl std::fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeServer")
            .field("dialect", &self.server.dialect)
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}
