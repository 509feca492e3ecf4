//! What a lease wants, is told and tells.

use core::time::Duration;

use crate::error::Failure;
use crate::time::Tick;

/// The number an operation is known by; only the newest one of a lease counts.
pub type Seq = u32;

/// An operation that the lease wants carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Give it back with the outcome.
    pub seq: Seq,
    /// What to do.
    pub kind: OpKind,
}

/// What an operation does. Every attempt writes a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Write the value of `attempt` with the lease as its TTL if the key is free.
    Acquire {
        /// The attempt whose value is written.
        attempt: u32,
    },
    /// Replace the value of attempt `old` by that of `attempt`, with a fresh TTL.
    Adopt {
        /// The attempt whose value is written.
        attempt: u32,
        /// The unanswered attempt whose value the key showed.
        old: u32,
    },
    /// Replace the value of attempt `old` by that of `attempt`, with a fresh TTL: the renewal of a hold that
    /// [rotates](super::Lease::with_rotation).
    Rotate {
        /// The attempt whose value is written.
        attempt: u32,
        /// The attempt whose value the key has.
        old: u32,
    },
    /// Set the TTL anew if the key still has the value of `attempt`.
    Renew {
        /// The attempt whose value the key has.
        attempt: u32,
    },
    /// See whether the key still has the value of `attempt`.
    Look {
        /// The attempt whose value the key has.
        attempt: u32,
    },
    /// Delete the key if it has one of the values in [`Lease::leftovers`](super::Lease::leftovers), the first one first.
    Clear,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acquired, adopted or renewed.
    Granted {
        /// When the first byte of the command was handed out.
        handed_out: Tick,
    },
    /// The key has another value.
    Refused {
        /// The attempt of this same request whose value is shown, byte for byte.
        own: Option<u32>,
        /// How long the other's lease runs on, if it is known.
        remaining: Option<Duration>,
        /// Whether the store tells when anything happens to the key from here on, by
        /// [`handle_changed`](super::Lease::handle_changed).
        watched: bool,
    },
    /// The key was looked at: it has the value of the hold.
    Seen,
    /// The key does not exist.
    Gone,
    /// The clean-up is done.
    Cleared {
        /// Whether the key had the value of the hold until then: one of [`Leftovers::of_hold`](super::Leftovers::of_hold).
        mine: bool,
    },
    /// An error was answered.
    Failed {
        /// Which.
        failure: Failure,
        /// Whether the operation may have been executed all the same: a script failed midway.
        maybe_executed: bool,
    },
    /// No reply will come.
    NoReply {
        /// Whether the operation may have been executed: its first byte was handed out.
        maybe_executed: bool,
        /// Why.
        failure: Failure,
    },
}

impl Outcome {
    /// Whether it can be the outcome of such an operation. Any other is ignored.
    pub(super) fn fits(&self, kind: OpKind) -> bool {
        match self {
            Outcome::Granted { .. } => !matches!(kind, OpKind::Clear | OpKind::Look { .. }),
            Outcome::Refused { .. } | Outcome::Gone => kind != OpKind::Clear,
            Outcome::Seen => matches!(kind, OpKind::Look { .. }),
            Outcome::Cleared { .. } => kind == OpKind::Clear,
            Outcome::Failed { .. } | Outcome::NoReply { .. } => true,
        }
    }
}

/// What there is to tell.
///
/// A request ends with exactly one of `Acquired`, `Held`, `TimedOut`, `Failed`; a hold, which begins
/// with `Acquired`, ends with exactly one of `Lost`, `Released`, `Abandoned`. A future or guard that
/// was dropped is told nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hold begins.
    Acquired {
        /// The end of validity, if nothing is renewed.
        valid_until: Tick,
    },
    /// Somebody else holds the name.
    Held {
        /// How long their lease runs on, if it is known.
        remaining: Option<Duration>,
    },
    /// The wait is over, and the name is still taken.
    TimedOut,
    /// The request failed.
    Failed(Failure),
    /// The hold goes on.
    Renewed {
        /// The new end of validity.
        valid_until: Tick,
    },
    /// A renewal did not count; the hold goes on until it is given up.
    RenewalFailed(Failure),
    /// Nothing is held any more: the key is gone or another's. Why follows, as `Lost`.
    Vanished,
    /// The hold is lost.
    Lost(Lost),
    /// The hold was released by its holder.
    Released {
        /// Whether the server confirmed it. If not, the clean-up goes on.
        confirmed: bool,
    },
    /// The hold was left to its TTL.
    Abandoned,
}

/// The end of a hold that its holder did not want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub cause: Cause,
    /// Until then the key still excludes others, if nobody removed it: the work should end by then.
    pub stop_by: Tick,
}

/// How a key was found not to be the hold's any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vanished {
    /// It was gone.
    Gone,
    /// It had another value.
    Replaced,
}

/// Why a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// No renewal was confirmed in time.
    Expired {
        /// How long after it was due this was noticed: a paused process is told late.
        late_by: Duration,
    },
    /// The longest hold that was asked for is over.
    MaxHold,
    /// The key has somebody else's value.
    Replaced,
    /// The key is gone: deleted, evicted or flushed; the server does not say which.
    Gone,
    /// Somebody removed it by force.
    Forced,
    /// The client was closed while the guard still lived.
    Closed,
}

impl core::fmt::Display for Cause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Cause::Expired { late_by } if *late_by < Duration::from_millis(50) => {
                f.write_str("no renewal was confirmed in time")
            }
            Cause::Expired { late_by } => write!(
                f,
                "no renewal was confirmed in time, which was noticed {late_by:?} late: was the process paused?"
            ),
            Cause::MaxHold => f.write_str("the longest hold is over"),
            Cause::Replaced => f.write_str("somebody else has it"),
            Cause::Gone => f.write_str("its key is gone: deleted, evicted or flushed"),
            Cause::Forced => f.write_str("somebody released it by force"),
            Cause::Closed => f.write_str("the client was closed, or its runtime has ended"),
        }
    }
}
