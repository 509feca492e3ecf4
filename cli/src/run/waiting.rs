//! From the request to the grant, or to whatever ends the wait.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGCHLD, SIGCONT, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;
use tenure::Error;
use tenure::blocking::{Attempt, Lock, Locks, Request};

use super::messages::Messages;
use super::refusal::{Refusal, Who};
use super::terminal::somebody_resumes_us;
use super::{Event, no_process, tell_closed};
use crate::args::{Patience, RunArgs};
use crate::exit::Failure;

/// What a wait ended with.
pub(super) enum Answer {
    Granted(Lock),
    Refused(Refusal),
    Failed(Error),
    /// By this signal. Nothing of ours is left on the store, if that can be reached.
    Interrupted(i32),
}

/// Until somebody at a terminal is told that this takes time.
const FIRST_WORD: Duration = Duration::from_millis(50);
/// Between two looks at who has it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a signal waits for the clean-up on the store.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(5);

pub(super) fn wait(
    args: &RunArgs,
    locks: &Locks,
    request: Request,
    sender: &Sender<Event>,
    inbox: &Receiver<Event>,
    messages: &Messages,
) -> Result<Answer, Failure> {
    ask(args.patience(), request, sender.clone()).map_err(|error| no_process(&error))?;
    // Ends when it is dropped.
    let mut looking = None;
    let mut first_word = (messages.is_talkative() && args.patience() != Patience::None)
        .then(|| Instant::now() + FIRST_WORD);
    let mut seen = None;
    let name = args.name.as_bytes().escape_ascii();
    loop {
        let event = match first_word {
            Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => inbox.recv().map_err(RecvTimeoutError::from),
        };
        match event {
            Err(RecvTimeoutError::Timeout) => {
                first_word = None;
                messages.note(&format!("waiting for `{name}`"));
                looking = look(args, locks, sender.clone());
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Answer::Failed(Error::Closed)),
            Ok(Event::Seen(found)) => {
                let who = Who::from(&found);
                if seen.as_ref() != Some(&who.label) {
                    messages.note(&format!("`{name}` {who}"));
                    seen = Some(who.label);
                }
            }
            Ok(Event::Answered(answer)) => {
                drop(looking);
                return Ok(match answer {
                    Ok(Attempt::Acquired(lock)) => Answer::Granted(lock),
                    Ok(Attempt::Held(holder)) => Answer::Refused(Refusal::Held(holder)),
                    Err(Error::TimedOut { holder }) => Answer::Refused(Refusal::TimedOut(holder)),
                    Err(Error::QueueFull) => Answer::Refused(Refusal::QueueFull),
                    Err(error) => Answer::Failed(error),
                });
            }
            Ok(Event::Signal(SIGCHLD | SIGCONT)) => {}
            Ok(Event::Signal(SIGTSTP)) => {
                // As if it had no handler.
                if somebody_resumes_us() {
                    let _ = emulate_default_handler(SIGTSTP);
                }
            }
            Ok(Event::Signal(signal)) => {
                withdraw(locks, sender, inbox);
                return Ok(Answer::Interrupted(signal));
            }
            Ok(Event::Closed | Event::Lost(_)) => {}
        }
    }
}

/// Ends the wait, or lets go of what was granted meanwhile. A second signal ends this.
pub(super) fn withdraw(locks: &Locks, sender: &Sender<Event>, inbox: &Receiver<Event>) {
    let until = Instant::now() + WITHDRAW_LIMIT;
    if tell_closed(locks, sender).is_err() {
        return;
    }
    loop {
        match inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
            // Dropped, and so released.
            Ok(Event::Answered(_) | Event::Seen(_) | Event::Lost(_)) => {}
            Ok(Event::Signal(SIGCHLD | SIGCONT | SIGTSTP)) => {}
            Ok(Event::Closed | Event::Signal(_)) | Err(_) => return,
        }
    }
}

fn ask(patience: Patience, request: Request, sender: Sender<Event>) -> std::io::Result<()> {
    let asking = thread::Builder::new().name("tenure-request".to_owned());
    asking.spawn(move || {
        let answer = match patience {
            Patience::None => request.try_acquire(),
            _ => request.acquire().map(Attempt::Acquired),
        };
        // If nobody listens any more the lock goes with the message.
        let _ = sender.send(Event::Answered(answer));
    })?;
    Ok(())
}

/// Looks who has it, for as long as what is returned lives.
fn look(args: &RunArgs, locks: &Locks, sender: Sender<Event>) -> Option<Sender<()>> {
    let (alive, end) = channel();
    let (name, locks) = (args.name.clone(), locks.clone());
    let looking = thread::Builder::new().name("tenure-look".to_owned());
    let started = looking.spawn(move || {
        loop {
            if let Ok(Some(found)) = locks.inspect(name.as_bytes()) {
                let _ = sender.send(Event::Seen(found));
            }
            if end.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    started.is_ok().then_some(alive)
}
