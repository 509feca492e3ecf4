//! The simulated server by itself, so that it can be compared with real ones.

use std::time::Duration;

use tenure_core::time::Tick;

use crate::clock::Clock;
use crate::keys::Dialect;
use crate::server::{Server, encode};

/// A simulated server with one connection, outside of any world: it is handed a command and gives the reply.
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
/// ```
pub struct FakeServer {
    server: Server,
    now: Tick,
    resp3: bool,
}

impl FakeServer {
    /// An empty server. The connection speaks RESP2 until `HELLO 3`.
    pub fn new(dialect: Dialect) -> FakeServer {
        FakeServer {
            server: Server::new(dialect, Clock::new(Tick::ZERO, Duration::from_secs(1), 0)),
            now: Tick::ZERO,
            resp3: false,
        }
    }

    /// Lets time pass.
    pub fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Executes a command and gives the bytes of the reply.
    pub fn execute<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Vec<u8> {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_ref().to_vec()).collect();
        let reply = self.server.execute(self.now, &words, &mut self.resp3);
        encode(&reply, self.resp3)
    }
}

impl std::fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeServer")
            .field("dialect", &self.server.dialect)
            .field("resp3", &self.resp3)
            .finish_non_exhaustive()
    }
}
