//! Time as the core sees it: a [`Tick`] is handed in, a [`Deadline`] is handed out.
//!
//! Nothing here reads a clock. The binding chooses an epoch and must use a clock that never goes
//! back and that counts the time the machine was suspended; every call of the core that depends on
//! time takes the current `Tick` as its `now`.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::time::{Deadline, Reason, Tick};
//!
//! let start = Tick::from_micros(0);
//! let due = start + Duration::from_millis(3);
//! assert_eq!(due.saturating_since(start), Duration::from_millis(3));
//!
//! let deadline = Deadline::At(due, Reason::RenewDue).or_earlier(Deadline::Never);
//! assert!(!deadline.is_due(start));
//! assert!(deadline.is_due(due));
//! ```

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: microseconds since an epoch that the binding chose.
///
/// Opaque on purpose: ticks of two bindings must not be compared, and there is no conversion from a
/// clock type of `std`, whose `Instant` does not count suspension everywhere. `Option<Tick>` takes
/// eight bytes. Arithmetic saturates: the far end of time is a legal tick, never a panic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(NonZeroU64);

impl Tick {
    /// The earliest tick, the epoch itself.
    pub const ZERO: Tick = Tick(NonZeroU64::MIN);
    /// The latest tick, some 584,000 years after the epoch.
    pub const MAX: Tick = Tick(NonZeroU64::MAX);

    /// The tick `micros` microseconds after the epoch; zero is legal.
    pub const fn from_micros(micros: u64) -> Tick {
        // Stored plus one, so that the niche of `NonZeroU64` makes `Option<Tick>` eight bytes.
        match NonZeroU64::new(micros.saturating_add(1)) {
            Some(n) => Tick(n),
            None => Tick::MAX,
        }
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0.get() - 1
    }

    /// How long after `earlier` this tick is; zero if it is not after it.
    pub const fn saturating_since(self, earlier: Tick) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;

    fn add(self, span: Duration) -> Tick {
        Tick::from_micros(self.as_micros().saturating_add(micros(span)))
    }
}

impl Sub<Duration> for Tick {
    type Output = Tick;

    fn sub(self, span: Duration) -> Tick {
        Tick::from_micros(self.as_micros().saturating_sub(micros(span)))
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.as_micros();
        write!(f, "{}.{:06}s", micros / 1_000_000, micros % 1_000_000)
    }
}

/// Whole microseconds of a span, saturating.
pub(crate) const fn micros(span: Duration) -> u64 {
    // Not `as_micros`: that is 128 bits wide.
    span.as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(span.subsec_micros() as u64)
}

/// When the machine wants to be called again, and why.
///
/// After a drain at `now` a deadline is `Never` or later than `now`; output that is still queued
/// makes it `Now`. Sleeping past a deadline delays, it never corrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// Output is waiting: drain before sleeping.
    Now,
    /// Call `handle_timeout` at this tick.
    At(Tick, Reason),
    /// Nothing is due until the next input.
    Never,
}

impl Deadline {
    /// The earlier of the two; this one when they are equal.
    #[must_use]
    pub fn or_earlier(self, other: Deadline) -> Deadline {
        match (self, other) {
            (Deadline::Now, _) | (_, Deadline::Never) => self,
            (_, Deadline::Now) | (Deadline::Never, _) => other,
            (Deadline::At(a, _), Deadline::At(b, _)) => {
                if b < a {
                    other
                } else {
                    self
                }
            }
        }
    }

    /// Whether it is `Now`, or at or before `now`.
    pub fn is_due(self, now: Tick) -> bool {
        match self {
            Deadline::Now => true,
            Deadline::At(at, _) => at <= now,
            Deadline::Never => false,
        }
    }

    /// The tick to sleep until, if there is one; `Now` gives `now`.
    pub fn at(self, now: Tick) -> Option<Tick> {
        match self {
            Deadline::Now => Some(now),
            Deadline::At(at, _) => Some(at),
            Deadline::Never => None,
        }
    }
}

/// What a deadline is for. For logs and tests: a binding needs only the tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The next renewal of a hold.
    RenewDue,
    /// A hold without a confirmed renewal is given up.
    GiveUp,
    /// A look at the key of a hold that was put off.
    LookDue,
    /// The next attempt of a waiting request.
    Retry,
    /// A waiting request times out.
    WaitEnds,
    /// A release is answered as unconfirmed.
    ReleaseOverdue,
    /// A clean-up is sent again.
    CleanUpRetry,
    /// A clean-up is forgotten: the key has expired by itself.
    CleanUpForgotten,
    /// A reply is overdue: the connection is declared dead.
    ReplyOverdue,
    /// The next try to connect.
    Reconnect,
}
