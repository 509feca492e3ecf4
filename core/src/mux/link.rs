//! What there is to tell of the connection, and what the server tells unasked.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;

use crate::conn::ServerInfo;
use crate::error::LinkFault;
use crate::leases::Leases;
use crate::plan::Risk;
use crate::resp::Value;
use crate::time::Tick;

/// Something about the connection that is worth a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// Connected, the handshake is done.
    Up(ServerInfo),
    /// The connection was lost.
    Down(LinkFault),
    /// The server does not tell when a name gets free: waiters ask again and again. Told once for as long as it stays so.
    Unwatched(Unwatched),
    /// Something about the server endangers locks. Told once for as long as it stays so.
    Risk(Risk),
    /// A try to connect failed.
    Failed {
        /// Why.
        fault: LinkFault,
        /// The error reply, escaped.
        text: Option<Box<str>>,
    },
}

/// Why a server does not tell when a name gets free.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unwatched {
    /// It does not speak RESP3.
    Protocol,
    /// It refused, with this text, escaped.
    Refused(Box<str>),
    /// The user may not read the keys, or not ask for their TTL.
    NoPermission,
    /// It said that it would, and then a name was found free without a word of it: something between it and here keeps
    /// what it tells.
    Missed,
}

impl fmt::Display for Unwatched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unwatched::Protocol => f.write_str("the server does not speak RESP3"),
            Unwatched::Refused(text) => write!(f, "the server refused CLIENT TRACKING: {text}"),
            Unwatched::NoPermission => {
                f.write_str("the user may not read the keys, or not use PTTL")
            }
            Unwatched::Missed => {
                f.write_str("a name was found free of which nothing was told; is there a proxy?")
            }
        }
    }
}

/// Why a server tells nothing is told once for as long as it stays so.
pub(super) fn tell_unwatched(
    told: &mut Option<Unwatched>,
    events: &mut VecDeque<LinkEvent>,
    why: Unwatched,
) {
    if told.as_ref() != Some(&why) {
        *told = Some(why.clone());
        events.push_back(LinkEvent::Unwatched(why));
    }
}

/// `invalidate` with the keys that have changed, or with a null: all of them have. False for any other push.
pub(super) fn take_push(push: &Value<'_>, now: Tick, leases: &mut Leases) -> bool {
    let mut items = push.as_items().into_iter().flat_map(|items| items.iter());
    if items.next().and_then(|kind| kind.as_bytes()) != Some(b"invalidate") {
        return false;
    }
    match items.next() {
        Some(Value::Null) => leases.handle_all_changed(now),
        Some(Value::Array(keys)) => {
            let keys = keys.iter().filter_map(|key| key.as_bytes());
            keys.for_each(|key| leases.handle_changed(now, key));
        }
        _ => {}
    }
    true
}
