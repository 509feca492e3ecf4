//! The seam for a runtime: four things a driver needs, and no `spawn`.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use tenure_core::time::Tick;

/// What a runtime gives: a transport, timers, a clock, entropy.
///
/// The clock must never go back and must count the time the machine was suspended. May change before 1.0.
pub trait Binding: Send + Sync + 'static {
    /// An open transport.
    type Stream: Stream;
    /// A timer that can be set again and again.
    type Timer: Timer;

    /// Opens a transport. Resolves names anew at every call. Dropping the future gives the dial up. The future is polled
    /// under the client's lock: it must not use the client.
    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send + 'static;

    /// A new timer, not set.
    fn timer(&self) -> Self::Timer;

    /// The current time, suspension counted to this moment.
    fn now(&self) -> Tick;

    /// The current time where an earlier one is as safe: when a command is handed out. It may miss a suspension that ended
    /// just now, if that makes it cheaper to read.
    fn now_for_sending(&self) -> Tick {
        self.now()
    }

    /// The binding for another connection of the same client, where it is not this one: if each has only one connection and
    /// one timer. The same driver polls both.
    fn beside(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Fills `bytes` with what nobody can guess.
    ///
    /// # Errors
    /// The system has no entropy: then no lock is asked for.
    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// The process that made this binding, if it is not the running one: a fork has copied it. A copy sends nothing, reads
    /// nothing and holds nothing. `None` where nobody looks, which is cheaper.
    fn forked_from(&self) -> Option<u32> {
        None
    }

    /// Whether the calling thread may wait for a store that takes its time, such as a file: it does then by itself what it asked
    /// for, instead of leaving that to another thread. No task of an executor may.
    fn may_block(&self) -> bool {
        false
    }

    /// Unix time in milliseconds. It is only shown to people.
    fn unix_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

/// An open transport, owned by one driver; writes may come from any thread that holds it.
pub trait Stream: Send + 'static {
    /// Reads what has arrived, or registers the task; 0 is the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Reads what has arrived, without waiting and without registering anybody: for a [`Pump`](crate::Pump).
    ///
    /// # Errors
    /// `WouldBlock` when nothing has, or when only the driver can read.
    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let _ = bytes;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Writes what the transport takes without waiting; needs no task and no runtime context.
    ///
    /// # Errors
    /// `WouldBlock`, never a count of zero, when it takes nothing now: the driver waits for
    /// [`poll_write_ready`](Stream::poll_write_ready) and writes.
    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Whether nothing that was taken waits inside for the transport below: for streams that encrypt, or buffer. As long as
    /// something does, the driver sees to it with [`poll_write_ready`](Stream::poll_write_ready). `false` as well when an
    /// error is to be told by reading.
    fn is_flushed(&self) -> bool {
        true
    }

    /// Ready when all that was taken is out, and [`try_write`](Stream::try_write) may take something; registers the task
    /// otherwise. Ready as well when there was an error.
    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Closes abortively: nothing that was written and has not arrived may arrive later.
    fn abort(self);
}

/// A timer of the runtime.
pub trait Timer: Send + 'static {
    /// Sets it to fire at `deadline`, instead of whatever was set before.
    fn set(self: Pin<&mut Self>, deadline: Tick);

    /// Ready once the deadline has passed. A timer that fires early is asked again.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Endpoint {
    /// A host name or address, and a port.
    Tcp {
        /// Name, IPv4 address, or IPv6 address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}"),
            Endpoint::Unix { path } => write!(f, "{}", path.display()),
        }
    }
}
