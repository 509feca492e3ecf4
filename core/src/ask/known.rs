//! What is known when a question is answered.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::names::{Mark, Value, escape_text};

/// What a question has found out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Known {
    /// Who holds the name; nobody for `None`.
    Inspected(Option<Found>),
    /// Which names are held.
    Listed(Listed),
    /// What was removed; `None` when there was nothing.
    Removed(Option<Removed>),
    /// What the store says of itself.
    Examined(Examined),
}

/// What is under the key of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The label of the holder, escaped; `None` for what is none of this library's.
    pub label: Option<Box<str>>,
    /// When it was asked for, in ms of Unix time by the clock of whoever asked: for people.
    pub since_ms: Option<u64>,
    /// How long the lease runs on if it is not renewed; `None` when it does not end.
    pub remaining: Option<Duration>,
    /// The fence of the holder, where the value says that there is one and the store still knows it.
    pub fence: Option<u64>,
    /// Whether nobody holds it any more: the last hold was released before its minimum was over.
    pub cooling: bool,
    /// What is odd about it.
    pub warnings: Vec<Warning>,
}

/// What is odd about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// The key does not expire: if its holder is gone, nothing frees the name but a removal.
    Endless,
    /// The value is none of this library's. None of its bytes are shown.
    Foreign,
    /// The key is of another type than a string: whoever asks for the lock is refused.
    OtherType,
}

/// The names that are held, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Each with who holds it.
    pub names: Vec<(Box<[u8]>, Found)>,
    /// Whether there are more than were asked for.
    pub more: bool,
}

/// What was removed by force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The label of whoever held it, escaped; `None` for what is none of this library's.
    pub label: Option<Box<str>>,
    /// When it was asked for, in ms of Unix time by the clock of whoever asked: for people.
    pub since_ms: Option<u64>,
    /// What was odd about it: [`Warning::Foreign`] or [`Warning::OtherType`].
    pub warning: Option<Warning>,
}

/// What a store says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examined {
    /// Names and values in the store's own words and order; escaped.
    pub facts: Vec<(Box<str>, Box<str>)>,
    /// Its clock, in microseconds of Unix time.
    pub clock_us: Option<u64>,
    /// What it does not say, and its words for why; escaped.
    pub refused: Vec<(Box<str>, Box<str>)>,
}

/// So many facts are kept of a store, and each is cut to so many bytes.
const MAX_FACTS: usize = 1_000;
const MAX_FACT: usize = 200;

impl Examined {
    pub(super) fn take_facts<'a>(&mut self, facts: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
        let room = MAX_FACTS.saturating_sub(self.facts.len());
        let escaped = |text| escape_text(text, MAX_FACT).into();
        let facts = facts.map(|(name, value)| (escaped(name), escaped(value)));
        self.facts.extend(facts.take(room));
    }
}

impl Found {
    /// What a value says, of which no more than 256 bytes need to be there; nothing for a key of another type.
    pub fn of(value: Option<&[u8]>) -> Found {
        let Removed {
            label,
            since_ms,
            warning,
        } = match value {
            Some(value) => Removed::of(value),
            None => Removed::other(Warning::OtherType),
        };
        Found {
            label,
            since_ms,
            remaining: None,
            // Known to be there, not yet what it is.
            fence: (value.and_then(Value::mark_of) == Some(Mark::Fenced)).then_some(0),
            cooling: value.and_then(Value::mark_of) == Some(Mark::Cooling),
            warnings: warning.into_iter().collect(),
        }
    }

    /// What the helper key says that counts fences, if there is a fence to know.
    pub(super) fn take_counter(&mut self, counter: Option<&[u8]>) {
        let digits = counter.and_then(|digits| core::str::from_utf8(digits).ok());
        let counter = digits.and_then(|digits| digits.parse().ok());
        self.fence = self.fence.and(counter);
    }
}

impl Removed {
    /// The removal of this value.
    pub fn of(value: &[u8]) -> Removed {
        let Some(label) = Value::label_of(value) else {
            return Removed::other(Warning::Foreign);
        };
        Removed {
            label: Some(label.into()),
            since_ms: Value::since_ms_of(value),
            warning: None,
        }
    }

    /// The removal of what is none of this library's.
    pub fn other(warning: Warning) -> Removed {
        Removed {
            warning: Some(warning),
            ..Removed::default()
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Warning::Endless => "the key does not expire: remove it if its holder is gone",
            Warning::Foreign => "the value is not one of Tenure's: another program uses this key",
            Warning::OtherType => {
                "the key is not a string: another program uses it, and no lock can be had under it"
            }
        })
    }
}
