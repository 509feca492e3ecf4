//! How `tenure` ends, and what its exit statuses mean.

use std::fmt;

use rustix::process::{Resource, Rlimit, getpid, setrlimit};
use signal_hook::consts::SIGKILL;
use signal_hook::low_level::emulate_default_handler;
use tenure::{Error, Reason};

pub(crate) const DONE: u8 = 0;
/// A bad option, URL, duration or name.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be reached, does not serve, or is none.
pub(crate) const UNAVAILABLE: u8 = 69;
/// A bug of ours.
pub(crate) const BUG: u8 = 70;
/// The system starts no process.
pub(crate) const NO_PROCESS: u8 = 71;
/// The file of the default store cannot be made.
pub(crate) const NO_FILE: u8 = 73;
/// The events cannot be written.
pub(crate) const NO_EVENTS: u8 = 74;
/// Somebody else has the lock.
pub(crate) const REFUSED: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The store refuses us.
pub(crate) const DENIED: u8 = 77;
/// The command was found and cannot run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// How `tenure` is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With this exit status.
    Status(u8),
    /// Of this signal, as the command did or as we were asked to.
    Signal(i32),
}

/// Why nothing was run, or what went wrong afterwards.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    /// One word for the events.
    pub(crate) reason: &'static str,
    pub(crate) text: String,
}

impl Ending {
    /// The status that `$?` shows.
    pub(crate) fn status(self) -> u8 {
        match self {
            Ending::Status(status) => status,
            Ending::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }

    pub(crate) fn leave(self) -> ! {
        if let Ending::Signal(signal) = self {
            die_of(signal);
        }
        std::process::exit(self.status().into())
    }
}

/// Dies of the signal, for those who look at the difference, such as systemd. Returns where that does not work: the first
/// process of a container is not killed by its own signals, and KILL says that somebody else killed us.
fn die_of(signal: i32) {
    if getpid().is_init() || signal == SIGKILL {
        return;
    }
    // The core, if one is wanted, is the command's.
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let _ = emulate_default_handler(signal);
}

impl Failure {
    pub(crate) fn new(status: u8, reason: &'static str, text: impl Into<String>) -> Failure {
        let text = text.into();
        Failure {
            status,
            reason,
            text,
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure::new(USAGE, "usage", text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (status, reason) = match &error {
            Error::TimedOut { .. } => (REFUSED, "refused"),
            Error::Denied(_) => (DENIED, "denied"),
            // A limit of this command or of the URL; all else is how the server is set.
            Error::Misconfigured(Reason::Config(_) | Reason::Input(_)) => (USAGE, "usage"),
            Error::Misconfigured(_)
            | Error::Unavailable(_)
            | Error::Protocol(_)
            | Error::MaybeDone(_) => (UNAVAILABLE, "unavailable"),
            Error::Lost(_) => (LOST, "lost"),
            _ => (BUG, "bug"),
        };
        Failure::new(status, reason, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_128_and_its_number_where_one_cannot_die_of_it() {
        assert_eq!(Ending::Signal(15).status(), 143);
        assert_eq!(Ending::Signal(SIGKILL).status(), 137);
        assert_eq!(Ending::Status(3).status(), 3);
    }
}
