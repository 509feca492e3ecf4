//! Somebody else has the lock.

use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};

use tenure::blocking::Locks;
use tenure::{Holder, Inspection};

use super::Verdict;
use super::events::Events;
use super::messages::Messages;
use crate::args::RunArgs;
use crate::exit::{Ending, Failure, UNAVAILABLE};
use crate::output::{Date, roughly};

/// How long the store is asked who has it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// Who has it, as far as it is known.
pub(super) struct Who {
    pub(super) label: Option<Box<str>>,
    since: Option<SystemTime>,
    left: Option<Duration>,
    cooling: bool,
}

/// As the message has it.
const ADVISED_WAIT: Duration = Duration::from_secs(30);

/// Why somebody else has it and we do not.
pub(super) enum Refusal {
    Held(Holder),
    TimedOut(Holder),
    /// As many wait as may.
    QueueFull,
}

impl Refusal {
    /// Says who has it, and since when.
    pub(super) fn tell(
        &self,
        args: &RunArgs,
        locks: &Locks,
        messages: &Messages,
        events: &Events,
    ) -> Result<Verdict, Failure> {
        let holder = match self {
            Refusal::Held(holder) | Refusal::TimedOut(holder) => holder,
            Refusal::QueueFull => &Holder::UNKNOWN,
        };
        let answer = look(args, locks);
        if let (Refusal::TimedOut(Holder::UNKNOWN), None) = (self, &answer) {
            // It may be free: nobody has been heard of, and then it is no refusal that a policy may pass over.
            let text = "the store has not answered in time";
            return Err(Failure::new(UNAVAILABLE, "unavailable", text));
        }
        // It may be free again by now; then there is only what the refusal said.
        let found = answer.flatten();
        let who = found.map_or_else(|| holder.into(), |found| Who::from(&found));
        let held_for = who.since.and_then(|since| since.elapsed().ok());
        let held_for = held_for.unwrap_or_default();
        let stale = args.stale_after.is_some_and(|limit| held_for > limit);
        let name = args.name.as_bytes().escape_ascii();
        let next = match self {
            // A wait that ends before that would be no help.
            Refusal::Held(_) if who.cooling && who.left > Some(ADVISED_WAIT) => String::new(),
            Refusal::Held(_) => "; --wait 30s waits for it".to_owned(),
            Refusal::TimedOut(_) => "; given up waiting".to_owned(),
            Refusal::QueueFull => {
                let most = args.max_waiters.unwrap_or_default();
                format!("; --max-waiters {most} is reached")
            }
        };
        let text = format!("`{name}` {who}{next}");
        if stale {
            messages.warn(&format!("warning: held for {}: {text}", roughly(held_for)));
        } else {
            tell_people(args, messages, &text);
        }
        events.tell("refused", |object| {
            let object = match &who.label {
                Some(label) => object.text("holder", label),
                None => object,
            };
            let object = match who.since {
                Some(since) => object.text("since", &format!("{:#}", Date(since))),
                None => object,
            };
            let object = match who.left.map(|left| u64::try_from(left.as_millis())) {
                Some(Ok(ms)) => object.number("lease_left_ms", ms),
                _ => object,
            };
            let object = match self {
                Refusal::QueueFull => object.flag("queue_full", true),
                _ => object,
            };
            match stale {
                true => object.flag("stale", true),
                false => object,
            }
        });
        Ok(verdict(args))
    }
}

/// This process runs under the lock that it asks for.
pub(super) fn nested(args: &RunArgs, messages: &Messages, events: &Events) -> Verdict {
    let name = args.name.as_bytes().escape_ascii();
    let text = format!("this process already runs under `{name}`");
    tell_people(args, messages, &text);
    events.tell("refused", |object| object.flag("nested", true));
    verdict(args)
}

/// Who has it, if anybody; nothing if the store does not say so soon: it may be that which keeps us from the lock, and signals wait.
fn look(args: &RunArgs, locks: &Locks) -> Option<Option<Inspection>> {
    let (sender, answer) = channel();
    let (name, locks) = (args.name.clone(), locks.clone());
    let looking = thread::Builder::new().name("tenure-look".to_owned());
    let ask = move || drop(sender.send(locks.inspect(name.as_bytes())));
    looking.spawn(ask).ok()?;
    answer.recv_timeout(LOOK_LIMIT).ok()?.ok()
}

/// Nothing, where a refusal counts as success and nobody asked for more.
fn tell_people(args: &RunArgs, messages: &Messages, text: &str) {
    if args.conflict_exit_code != 0 || args.verbose {
        messages.say(text);
    }
}

fn verdict(args: &RunArgs) -> Verdict {
    Verdict {
        ending: Ending::Status(args.conflict_exit_code),
        reason: "refused",
    }
}

impl From<&Inspection> for Who {
    fn from(found: &Inspection) -> Who {
        Who {
            label: found.label.clone(),
            since: found.since,
            left: found.remaining,
            cooling: found.cooling,
        }
    }
}

impl From<&Holder> for Who {
    fn from(holder: &Holder) -> Who {
        Who {
            label: holder.label.clone(),
            since: None,
            left: holder.remaining,
            cooling: holder.cooling,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.label.as_deref().unwrap_or("somebody unknown");
        match self.cooling {
            true => {
                write!(f, "was last run by {label}, is kept by --at-least")?;
                return match self.left.map(roughly) {
                    Some(left) => write!(f, ", and is free in {left}"),
                    None => Ok(()),
                };
            }
            false => write!(f, "is held by {label}")?,
        }
        if let Some(since) = self.since {
            let ago = roughly(since.elapsed().unwrap_or_default());
            write!(f, " since {} ({ago} ago)", Date(since))?;
        }
        match self.left.map(roughly) {
            Some(left) => write!(f, ", {left} of its lease left"),
            None => Ok(()),
        }
    }
}
