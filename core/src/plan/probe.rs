//! One step of a question on its way: its commands, the replies to it, or that none will come.

use super::{Dialect, REMOVE, Sent, about, call};
use crate::ask::{AskId, Asks, Removed, Step, Ttl, Warning};
use crate::conn::Reply;
use crate::error::{Failure, LinkFault, ServerError};
use crate::resp::{Arg, Value};
use crate::time::Tick;

/// Of a value no more is read than one of ours can have: whatever else lies there may be of any size.
const READ: u64 = 255;
/// And of a counter no more than a number can have digits.
const READ_COUNTER: u64 = 19;

/// A step of a question, and how it is put to the server. Sent and answered as a [`Call`](super::Call) is.
///
/// ```
/// use core::time::Duration;
/// use tenure_core::ask::{Asks, Known, Question};
/// use tenure_core::conn::{Reply, ServerInfo};
/// use tenure_core::names::Names;
/// use tenure_core::plan::{Dialect, Probe};
/// use tenure_core::resp::{Arg, Value};
/// use tenure_core::time::Tick;
///
/// let now = Tick::from_micros(0);
/// let mut asks = Asks::new(Names::new("lock:", "doc")?, Duration::from_secs(10));
/// let mut dialect = Dialect::of(&ServerInfo::default());
/// asks.ask(now, &Question::Remove { name: b"a" })?;
///
/// while let Some(id) = asks.poll_step() {
///     let probe = Probe::new(&dialect, id);
///     assert_eq!(probe.replies(&asks), 1);
///     probe.commands(&asks, |args| assert!(matches!(args, [Arg::Bytes(b"EVAL"), ..])));
///     // There was nothing.
///     let reply = Reply { tag: probe, value: Value::Int(0), handed_out: now, more: 0 };
///     Probe::handle_reply(&reply, now, &mut asks, &mut dialect);
/// }
/// assert_eq!(asks.poll_answer().unwrap().result, Ok(Known::Removed(None)));
/// # Ok::<(), tenure_core::error::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The question.
    pub id: AskId,
    /// How its script is sent, if it is one.
    sent: Sent,
}

impl Probe {
    /// A question that wants a step, in the form that this server speaks.
    pub fn new(dialect: &Dialect, id: AskId) -> Probe {
        let sent = match dialect.known.remove {
            true => Sent::Sha,
            false => Sent::Text,
        };
        Probe { id, sent }
    }

    /// How many replies there will be, one for each command; none when nobody wants to know any more.
    pub fn replies(self, asks: &Asks) -> u8 {
        match asks.step(self.id) {
            None => 0,
            Some(Step::Look { keys }) => u8::try_from(keys.len() * 3).unwrap_or(0),
            Some(Step::Scan { .. } | Step::Remove { .. }) => 1,
            Some(Step::Examine) => about::REPLIES,
        }
    }

    /// Gives the arguments of each command to `each`, in the order in which they are to be sent.
    pub fn commands(self, asks: &Asks, mut each: impl FnMut(&[Arg<'_>])) {
        match asks.step(self.id) {
            None => {}
            Some(Step::Look { keys }) => {
                for name in keys {
                    let key = Arg::Bytes(name);
                    each(&["GETRANGE".into(), key, Arg::Int(0), Arg::Int(READ)]);
                    let counter = asks.counter_key(name);
                    let (counter, end) = (Arg::Bytes(&counter), Arg::Int(READ_COUNTER));
                    each(&["GETRANGE".into(), counter, Arg::Int(0), end]);
                    each(&["PTTL".into(), key]);
                }
            }
            Some(Step::Examine) => about::commands(each),
            Some(Step::Scan {
                cursor,
                pattern,
                count,
                ..
            }) => each(&[
                "SCAN".into(),
                Arg::Int(cursor),
                "MATCH".into(),
                pattern.into(),
                "COUNT".into(),
                Arg::Int(count),
            ]),
            Some(Step::Remove {
                key,
                helper,
                by,
                only,
            }) => {
                let [verb, script] = call(&REMOVE, self.sent);
                let (key, helper) = (Arg::Bytes(key), Arg::Bytes(helper));
                let args = [verb, script, Arg::Int(2), key, helper, by.into()];
                match only {
                    None => each(&args),
                    Some(only) => {
                        let [verb, script, two, key, helper, by] = args;
                        each(&[verb, script, two, key, helper, by, only.into()]);
                    }
                }
            }
        }
    }

    /// Takes in a reply to the probe that is its tag.
    pub fn handle_reply(
        reply: &Reply<'_, Probe>,
        now: Tick,
        asks: &mut Asks,
        dialect: &mut Dialect,
    ) {
        let Probe { id, sent } = reply.tag;
        match asks.step(id) {
            None => {}
            Some(Step::Look { .. }) if reply.more % 3 == 2 => take_value(id, &reply.value, asks),
            // Whatever is wrong with it: then the fence is not known.
            Some(Step::Look { .. }) if reply.more % 3 == 1 => {
                asks.handle_counter(id, reply.value.as_bytes());
            }
            Some(Step::Look { .. }) => match ttl(&reply.value) {
                Ok(ttl) => asks.handle_ttl(now, id, ttl),
                Err(text) => failed(id, text, asks),
            },
            Some(Step::Scan { .. }) => take_page(id, &reply.value, now, asks),
            Some(Step::Examine) => about::take_reply(id, &reply.value, reply.more, asks),
            Some(Step::Remove { .. }) => {
                let error = reply.value.error().map(ServerError::of);
                dialect.known.remove = error.is_none();
                if (error, sent) == (Some(ServerError::NoScript), Sent::Sha) {
                    return asks.handle_again(id);
                }
                take_removed(id, &reply.value, asks);
            }
        }
    }

    /// No reply will come, since the connection is dead; `maybe_executed` unless not a byte was handed out.
    pub fn handle_no_reply(self, asks: &mut Asks, maybe_executed: bool, dead: LinkFault) {
        asks.handle_no_reply(self.id, maybe_executed, dead);
    }
}

fn take_value(id: AskId, value: &Value<'_>, asks: &mut Asks) {
    match (value.error(), value.as_bytes()) {
        (None, shown @ Some(_)) => asks.handle_value(id, shown),
        (Some(text), _) if ServerError::of(text) == ServerError::WrongType => {
            asks.handle_value(id, None);
        }
        (error, _) => failed(id, error.unwrap_or_default(), asks),
    }
}

/// A PTTL: -2 for a key that is gone, -1 for one without an expiry.
fn ttl<'a>(value: &Value<'a>) -> Result<Ttl, &'a [u8]> {
    match (value.error(), value.as_int()) {
        (None, Some(-2)) => Ok(Ttl::Gone),
        (None, Some(ms)) => Ok(u64::try_from(ms).map_or(Ttl::Endless, |ms| {
            Ttl::Left(core::time::Duration::from_millis(ms))
        })),
        (error, _) => Err(error.unwrap_or_default()),
    }
}

/// The cursor to go on with, and an array of keys.
fn take_page(id: AskId, value: &Value<'_>, now: Tick, asks: &mut Asks) {
    let mut items = value.as_items().into_iter().flat_map(|items| items.iter());
    let cursor = items.next().and_then(|cursor| cursor.as_bytes());
    let cursor = cursor.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
    match (cursor, items.next()) {
        (Some(cursor), Some(Value::Array(keys))) => {
            let keys = keys.iter().filter_map(|key| key.as_bytes());
            asks.handle_page(now, id, cursor, keys);
        }
        _ => failed(id, value.error().unwrap_or_default(), asks),
    }
}

fn take_removed(id: AskId, value: &Value<'_>, asks: &mut Asks) {
    match value {
        Value::Int(0) => asks.handle_removed(id, None),
        Value::Int(1) => asks.handle_removed(id, Some(Removed::other(Warning::Foreign))),
        Value::Int(2) => asks.handle_removed(id, Some(Removed::other(Warning::OtherType))),
        Value::Bulk(value) => asks.handle_removed(id, Some(Removed::of(value))),
        other => failed(id, other.error().unwrap_or_default(), asks),
    }
}

/// An error reply, or, where there is none, one of the wrong shape.
fn failed(id: AskId, text: &[u8], asks: &mut Asks) {
    asks.handle_failed(id, Failure::Server(ServerError::of(text)), text);
}
