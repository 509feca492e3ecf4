//! Why something did not work, and whether trying again may help.

use std::fmt;

use tenure_core::error::{ConfigError, Failure, LinkFault, ServerError, StoreFault};
use tenure_core::leases::{Fault, Holder};
use tenure_core::replicas::ReplicasFault;

use crate::lock::Lost;

/// Why a lock was not had, or did not stay.
///
/// That somebody else holds a name is no error: [`Attempt::Held`](crate::Attempt::Held). Cancelling is
/// dropping the future, and needs none. No message shows a password or the secret of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The wait is over and somebody else still holds the name. An attempt that is still under way is cleared.
    TimedOut {
        /// Who was seen last.
        holder: Holder,
    },
    /// The server cannot be reached, does not answer, or does not serve writes now. Trying again may help.
    /// What an unanswered command may have left is cleared as soon as the server is reachable.
    Unavailable(Reason),
    /// The user or password is wrong, or lacks a permission. Trying again does not help.
    Denied(Reason),
    /// Something set here, or on the server, cannot work. Trying again does not help.
    Misconfigured(Reason),
    /// The peer does not speak the protocol: another service, TLS on a plain port or the reverse.
    Protocol(Reason),
    /// A lock was to be released by force, and the answer did not come: it may have been or not. It is not tried again by
    /// itself, since by now somebody else may hold the name: inspect it first.
    MaybeDone(Reason),
    /// The lock was held and is lost.
    Lost(Lost),
    /// The lock was released or abandoned before.
    NotHeld,
    /// The client was closed, or the runtime that drove it has ended.
    Closed,
    /// So many wait already that this request was not to join them: [`max_waiters`](crate::LockOptions::max_waiters).
    QueueFull,
    /// The client was made before this process was forked off: it works on in the process that made it. Connect anew.
    Forked {
        /// The process that made it.
        process: u32,
    },
}

/// What lies behind an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A value that cannot work; nothing was sent.
    Config(ConfigError),
    /// A malformed URL or option; the text says what is wrong and what is allowed.
    Input(Box<str>),
    /// What the machine saw, with the words of the server, or of the system for a dial, if there were any.
    Failure {
        /// What.
        failure: Failure,
        /// The text of the error reply, or of the system's error; escaped.
        text: Option<Box<str>>,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing a setting.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::TimedOut { .. } | Error::QueueFull | Error::Unavailable(_) | Error::Lost(_)
        )
    }

    pub(crate) fn input(text: impl Into<Box<str>>) -> Error {
        Error::Misconfigured(Reason::Input(text.into()))
    }
}

/// How a failure of TLS begins that another try does not cure: through the machine comes only its text.
pub(crate) const TLS_REFUSED: &str = "TLS refused: ";
/// And one that another try may cure.
pub(crate) const TLS_FAILED: &str = "TLS failed: ";

fn is_tls_refusal(text: &str) -> bool {
    text.contains(TLS_REFUSED)
}

pub(crate) fn is_of_tls(text: &str) -> bool {
    is_tls_refusal(text) || text.contains(TLS_FAILED)
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Misconfigured(Reason::Config(error))
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let Fault { failure, text, .. } = fault;
        Error::of_failure(failure, text)
    }
}

impl Error {
    pub(crate) fn of_failure(failure: Failure, text: Option<Box<str>>) -> Error {
        let refused = text.as_deref().is_some_and(is_tls_refusal);
        let reason = Reason::Failure { failure, text };
        match failure {
            Failure::Closed => Error::Closed,
            Failure::QueueFull => Error::QueueFull,
            Failure::MaxHold | Failure::Fence(_) | Failure::Link(LinkFault::Unfit(_)) => {
                Error::Misconfigured(reason)
            }
            Failure::Link(LinkFault::Store(StoreFault::Denied)) => Error::Denied(reason),
            Failure::Link(LinkFault::Store(StoreFault::Unusable)) => Error::Misconfigured(reason),
            Failure::MaybeDone => Error::MaybeDone(reason),
            Failure::Replicas(ReplicasFault::NotPermitted) => Error::Denied(reason),
            Failure::Replicas(_) => Error::Misconfigured(reason),
            Failure::Server(error) | Failure::Link(LinkFault::Handshake(error)) => match error {
                ServerError::WrongPass
                | ServerError::NoAuth
                | ServerError::NoPerm
                | ServerError::Denied => Error::Denied(reason),
                error if error.waiting_may_cure() => Error::Unavailable(reason),
                _ => Error::Misconfigured(reason),
            },
            // Of a certificate, mostly. The client goes on trying all the same: it may be renewed.
            Failure::Link(LinkFault::Dial) if refused => Error::Misconfigured(reason),
            Failure::Link(LinkFault::Protocol(_) | LinkFault::UnexpectedReply) => {
                Error::Protocol(reason)
            }
            _ => Error::Unavailable(reason),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::TimedOut { holder } => write!(f, "timed out: the lock is held by {holder}"),
            Error::Unavailable(reason) => write!(f, "{} is unavailable: {reason}", reason.whose()),
            Error::Denied(reason) => write!(f, "{} denies access: {reason}", reason.whose()),
            Error::Misconfigured(reason) => write!(f, "misconfigured: {reason}"),
            Error::Protocol(reason) => write!(f, "the peer is no lock server: {reason}"),
            Error::MaybeDone(reason) => write!(f, "not known: {reason}"),
            Error::Lost(lost) => write!(f, "the lock is lost: {lost}"),
            Error::QueueFull => f.write_str("queue full: as many as may already wait for the lock"),
            Error::NotHeld => f.write_str("the lock was released or abandoned before"),
            Error::Closed => {
                f.write_str("closed: the client was closed, or the runtime that drove it has ended")
            }
            Error::Forked { process } => write!(
                f,
                "forked: this client was made in process {process} and works there only; connect anew in process {}",
                std::process::id()
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Misconfigured(Reason::Config(error)) => Some(error),
            _ => None,
        }
    }
}

impl Reason {
    /// Who it is that does not serve.
    fn whose(&self) -> &'static str {
        match self {
            Reason::Failure {
                failure: Failure::Link(LinkFault::Store(_)),
                ..
            } => "the store",
            _ => "the lock server",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Config(error) => error.fmt(f),
            Reason::Input(text) => f.write_str(text),
            Reason::Failure {
                failure: Failure::Link(LinkFault::Dial),
                text: Some(text),
            } if is_of_tls(text) => write!(f, "no connection to {text}"),
            Reason::Failure { failure, text } => {
                failure.fmt(f)?;
                match (failure, text) {
                    (_, None) => Ok(()),
                    // Those are the words of the system.
                    (Failure::Link(LinkFault::Dial | LinkFault::Store(_)), Some(text)) => {
                        write!(f, " ({text})")
                    }
                    (_, Some(text)) => write!(f, " (the server says: {text})"),
                }
            }
        }
    }
}
