//! The network between clients and servers: byte streams that are slow, split, silent, cut and late.

use crate::replicas::Wait;
use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::tap::Written;

/// How the way between one client and one server behaves.
#[derive(Clone, Debug)]
pub struct Link {
    /// Bounds of the time that bytes are under way, drawn anew for each piece.
    pub latency: (Duration, Duration),
    /// Pieces are at most this long: 1 delivers byte by byte.
    pub piece: usize,
    /// What the client's socket takes before it says that it would block.
    pub window: usize,
    /// Nothing arrives, in neither direction, until it is set back: then it arrives after all.
    pub silent: bool,
    /// As `silent`, in one direction: what the client sends arrives, and no answer comes back.
    pub deaf: bool,
    /// Connections are refused.
    pub refuses: bool,
    /// What a client had sent on a connection that it aborted still arrives, this much later: a kernel or a proxy that
    /// goes on delivering. Without it an abort takes back what is under way.
    pub zombies: Option<Duration>,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            latency: (Duration::from_micros(200), Duration::from_micros(800)),
            piece: usize::MAX,
            window: 64 * 1024,
            silent: false,
            deaf: false,
            refuses: false,
            zombies: None,
        }
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    /// Delivered and not read.
    pub(crate) inbox: VecDeque<u8>,
    /// Pieces that wait for the link to speak again.
    pub(crate) stuck: VecDeque<Vec<u8>>,
    /// The writer has closed, behind the pieces that are stuck.
    pub(crate) ends_after_stuck: bool,
    /// Bytes sent and not delivered.
    pub(crate) in_flight: usize,
    /// Bytes do not overtake each other: the last arrival, in microseconds.
    pub(crate) last_arrival: u64,
    /// The writer has closed; the reader sees it after the last byte.
    pub(crate) closed: bool,
    /// The reader's task; one, as sockets have it.
    pub(crate) reader: Option<Waker>,
    /// A caller that waits beside it, or in its place.
    pub(crate) caller: Option<Waker>,
    /// The writer's task, while the window is full.
    pub(crate) writer: Option<Waker>,
}

impl Pipe {
    /// What has arrived, 0 at the end; `None` when nothing has.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Option<usize> {
        if self.inbox.is_empty() {
            return self.closed.then_some(0);
        }
        let n = bytes.len().min(self.inbox.len());
        for (to, from) in bytes.iter_mut().zip(self.inbox.drain(..n)) {
            *to = from;
        }
        Some(n)
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: usize,
    pub(crate) server: usize,
    /// Client to server.
    pub(crate) up: Pipe,
    /// Server to client.
    pub(crate) down: Pipe,
    /// The client has aborted it, or its process died.
    pub(crate) aborted: bool,
    /// The server has forgotten it.
    pub(crate) dropped: bool,
    /// The protocol version that HELLO has set.
    pub(crate) resp3: bool,
    /// What the client has written on it.
    pub(crate) written: Written,
    /// The last change of the server's keys that was made on it.
    pub(crate) changed: u64,
    /// What the server waits for before it does anything else on it.
    pub(crate) waits: Option<Wait>,
}
