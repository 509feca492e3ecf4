//! The one hook to watch what happens.

use std::time::Duration;

use tenure_core::conn::ServerInfo;
use tenure_core::error::LinkFault;
use tenure_core::leases::Holder;
use tenure_core::mux::Unwatched;
use tenure_core::plan::Risk;

use crate::engine::ClockStep;
use crate::error::Error;
use crate::lock::Lost;

/// Is told of everything worth a log line or a counter.
///
/// Called after the change, with no lock held. Events of one lock come in order, so one thread tells at a time: the
/// event of a call may be told by another thread, after the call has returned. It may call
/// [`Locks`](crate::Locks) but should not keep one, which would keep the client alive; it must not block. A
/// panic in it is caught. A client with [replicas](crate::LockOptions::replicas) has two connections, and tells of both alike.
///
/// ```
/// # use tenure_client as tenure;
/// use tenure::{Event, Observer};
///
/// struct Log;
///
/// impl Observer for Log {
///     fn event(&self, event: &Event<'_>) {
///         if let Event::Lost { name, lost, .. } = event {
///             eprintln!("lost {}: {lost}", name.escape_ascii());
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event<'_>);
}

/// What happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Connected, the handshake is done.
    Connected(&'a ServerInfo),
    /// A try to connect failed; another follows.
    #[non_exhaustive]
    ConnectFailed {
        /// Why.
        fault: LinkFault,
        /// The server's own words, escaped.
        text: Option<&'a str>,
    },
    /// The connection was lost; another is on its way.
    Disconnected(LinkFault),
    /// The server does not tell when a name gets free: waiters ask again and again, a few times a second. Told once for as
    /// long as it stays so.
    Unwatched(&'a Unwatched),
    /// Something about the server endangers locks: it deletes them when its memory is full, or forgets them when it
    /// restarts. Told once for as long as it stays so, and nothing is told where the user may not look: see
    /// [`Config::strict_server`](crate::Config::strict_server) for more.
    Risk(&'a Risk),
    /// The clock by which the store ends leases was set by more than the margin of a lock that is held here: only of stores
    /// that go by the clock of this machine, such as a file. Every lock that is held is renewed at once.
    ClockStepped(&'a ClockStep),
    /// A lock was acquired.
    #[non_exhaustive]
    Acquired {
        /// Its name.
        name: &'a [u8],
        /// How long it took.
        waited: Duration,
    },
    /// A single try found the name taken.
    #[non_exhaustive]
    Held {
        /// Its name.
        name: &'a [u8],
        /// By whom.
        holder: &'a Holder,
    },
    /// A request failed, or timed out.
    #[non_exhaustive]
    Failed {
        /// Its name.
        name: &'a [u8],
        /// Why.
        error: &'a Error,
        /// How long it had waited.
        waited: Duration,
    },
    /// A renewal was confirmed.
    #[non_exhaustive]
    Renewed {
        /// Its name.
        name: &'a [u8],
    },
    /// A renewal did not count; the hold goes on until it is given up.
    #[non_exhaustive]
    RenewalFailed {
        /// Its name.
        name: &'a [u8],
        /// Why.
        error: &'a Error,
    },
    /// A hold was lost.
    #[non_exhaustive]
    Lost {
        /// Its name.
        name: &'a [u8],
        /// Why.
        lost: &'a Lost,
        /// How long it had been held.
        held: Duration,
    },
    /// A hold was released by its holder, who is told so.
    #[non_exhaustive]
    Released {
        /// Its name.
        name: &'a [u8],
        /// Whether the server confirmed it; if not, the clean-up goes on in the background.
        confirmed: bool,
        /// How long it was held.
        held: Duration,
    },
    /// A hold was left to its TTL.
    #[non_exhaustive]
    Abandoned {
        /// Its name.
        name: &'a [u8],
    },
    /// A guard was dropped: its release is on its way.
    #[non_exhaustive]
    Dropped {
        /// Its name.
        name: &'a [u8],
        /// How long it was held.
        held: Duration,
    },
    /// A request was cancelled: its future was dropped.
    #[non_exhaustive]
    Cancelled {
        /// Its name.
        name: &'a [u8],
        /// How long it had waited.
        waited: Duration,
    },
}
