//! What the table tells, in words for callers.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::LeaseId;
use crate::error::Failure;
use crate::lease::Lost;
use crate::time::Tick;

/// Something to tell the caller of a request or the holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which lease.
    pub id: LeaseId,
    /// What.
    pub notice: Notice,
}

/// What there is to tell. See [`crate::lease::Event`] for what ends a request and a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The hold begins.
    Acquired {
        /// The end of validity, if nothing is renewed.
        valid_until: Tick,
        /// The fence, if one was asked for.
        fence: Option<u64>,
    },
    /// Somebody else holds the name.
    Held(Holder),
    /// The wait is over; this is who was seen last.
    TimedOut(Holder),
    /// The request failed.
    Failed(Fault),
    /// The hold goes on.
    Renewed {
        /// The new end of validity.
        valid_until: Tick,
    },
    /// A renewal did not count; the hold goes on until it is given up.
    RenewalFailed(Fault),
    /// Nothing is held any more: the key is gone or another's. Why follows, as `Lost`.
    Vanished,
    /// The hold is lost.
    Lost {
        /// Why, and until when the work should end.
        lost: Lost,
        /// Who replaced it, or removed it by force, if that is known.
        by: Option<Box<str>>,
    },
    /// The hold was released by its holder.
    Released {
        /// Whether the server confirmed it. If not, the clean-up goes on.
        confirmed: bool,
    },
    /// The hold was left to its TTL.
    Abandoned,
}

/// Who holds a name, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The label of the holder, escaped; `None` for a foreign value or one that may not be read.
    pub label: Option<Box<str>>,
    /// How long the holder's lease runs on if it is not renewed; `None` when it is not known, as at the end of a wait.
    pub remaining: Option<Duration>,
    /// Whether nobody holds it any more: the last hold, of this label, was released before its
    /// [minimum](crate::config::LeaseConfig::at_least) was over, and the name stays taken until then.
    pub cooling: bool,
}

/// Why something failed, with the server's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// Why.
    pub failure: Failure,
    /// The text of the error reply, escaped.
    pub text: Option<Box<str>>,
}

impl Holder {
    /// A holder of whom nothing is known.
    pub const UNKNOWN: Holder = Holder {
        label: None,
        remaining: None,
        cooling: false,
    };

    /// A holder with this label.
    pub fn labelled(label: &str, remaining: Option<Duration>) -> Holder {
        Holder {
            label: Some(label.into()),
            remaining,
            cooling: false,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => f.write_str(label)?,
            None => f.write_str("an unknown holder")?,
        }
        match self.remaining {
            Some(remaining) if self.cooling => {
                write!(f, " (cooling down, {} s left)", seconds(remaining))
            }
            None if self.cooling => f.write_str(" (cooling down)"),
            Some(remaining) => write!(f, " (lease runs out in {} s)", seconds(remaining)),
            None => Ok(()),
        }
    }
}

/// Rounded up: what is left is never said to be nothing.
pub(crate) fn seconds(left: Duration) -> u64 {
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}
