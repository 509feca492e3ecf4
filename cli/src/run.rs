//! `tenure run`: a command under a lock.
//!
//! Everything that happens - signals, the answer of the store, the loss - comes through one channel, and this thread decides.

mod command;
mod events;
mod group;
pub(crate) mod guard;
mod messages;
mod nested;
mod refusal;
mod signals;
mod supervise;
mod terminal;
mod waiting;

use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use tenure::blocking::{Attempt, Locks};
use tenure::{Error, Inspection, LockOptions, Lost, Wait};

use crate::args::{Patience, RunArgs};
use crate::exit::{self, Ending, Failure};
use crate::store::Store;
use events::Events;
use messages::Messages;
use nested::Held;
use supervise::Supervisor;
use waiting::Answer;

/// What this thread hears of.
enum Event {
    Signal(i32),
    /// The store has answered the request.
    Answered(Result<Attempt, Error>),
    /// Who holds the lock that we wait for.
    Seen(Inspection),
    /// The client is closed: nothing of ours is left on the store.
    Closed,
    Lost(Lost),
}

/// How a run ended, and one word why.
struct Verdict {
    ending: Ending,
    reason: &'static str,
}

/// How long the end waits for whoever reads our output.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// How long the end waits for clean-up on the store that needs no answer: what remains goes with its TTL.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &RunArgs) -> Ending {
    let messages = Messages::start(args);
    let verdict = Events::open(args).map(|events| {
        let verdict = under_lock(args, &messages, &events).unwrap_or_else(|failure| {
            messages.failure(&failure);
            failure.into()
        });
        events.exit(&verdict);
        if let Err(error) = events.flush() {
            messages.warn(&format!("the events are not complete: {error}"));
        }
        verdict
    });
    let verdict = verdict.unwrap_or_else(|failure| {
        messages.failure(&failure);
        failure.into()
    });
    messages.flush();
    verdict.ending
}

fn under_lock(args: &RunArgs, messages: &Messages, events: &Events) -> Result<Verdict, Failure> {
    let (sender, inbox) = channel();
    signals::watch(sender.clone()).map_err(|error| no_process(&error))?;
    let store = Store::find(&args.store)?;
    let held = Held::of(&store.identity(), args.name.as_bytes());
    if held.is_ours() {
        return Ok(refusal::nested(args, messages, events));
    }
    let locks = store.open(args.label.as_deref())?;
    let request = locks.lock(args.name.as_bytes()).options(options(args));
    let answer = waiting::wait(args, &locks, request, &sender, &inbox, messages)?;
    let verdict = match answer {
        Answer::Granted(lock) => {
            let on_lost = sender.clone();
            lock.on_lost(move |lost| drop(on_lost.send(Event::Lost(lost))));
            drop(sender);
            let supervisor = Supervisor {
                args,
                messages,
                events,
                inbox: &inbox,
                lock,
            };
            supervisor.run(&store, &held)
        }
        Answer::Refused(refusal) => refusal.tell(args, &locks, messages, events),
        Answer::Failed(error) => Err(error.into()),
        Answer::Interrupted(signal) => {
            return Ok(Verdict {
                ending: Ending::Signal(signal),
                reason: "signal",
            });
        }
    };
    close(&locks, CLOSE_LIMIT);
    verdict
}

fn options(args: &RunArgs) -> LockOptions {
    let mut options = LockOptions::new().lease(args.lease);
    options = match args.patience() {
        Patience::None => options,
        Patience::For(limit) => options.wait(limit),
        Patience::Forever => options.wait(Wait::Forever),
    };
    if args.fair {
        options = options.fair();
    }
    if let Some(count) = args.max_waiters {
        options = options.max_waiters(count);
    }
    if args.fenced {
        options = options.fenced();
    }
    if let Some(at_least) = args.at_least {
        options = options.at_least(at_least);
    }
    options
}

/// Closes the client, and waits for that up to the limit.
fn close(locks: &Locks, limit: Duration) {
    let (sender, closed) = channel();
    if close_and_tell(locks, move || drop(sender)).is_ok() {
        // Nothing is ever sent: the end of the thread is what is waited for.
        let _: Result<(), _> = closed.recv_timeout(limit);
    }
}

fn close_and_tell(locks: &Locks, tell: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let locks = locks.clone();
    let closing = thread::Builder::new().name("tenure-close".to_owned());
    closing.spawn(move || {
        locks.close();
        tell();
    })?;
    Ok(())
}

fn tell_closed(locks: &Locks, sender: &Sender<Event>) -> std::io::Result<()> {
    let sender = sender.clone();
    close_and_tell(locks, move || drop(sender.send(Event::Closed)))
}

fn no_process(error: &std::io::Error) -> Failure {
    let text = format!("the system starts no process or thread: {error}");
    Failure::new(exit::NO_PROCESS, "no-process", text)
}

impl From<Failure> for Verdict {
    fn from(failure: Failure) -> Verdict {
        Verdict {
            ending: Ending::Status(failure.status),
            reason: failure.reason,
        }
    }
}
