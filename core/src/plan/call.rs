//! One operation on its way: its commands, the replies to it, or that none will come.

use super::{Dialect, Form, Partial, ReplyTo, Verdict, commands, expected, replies};
use crate::conn::Reply;
use crate::error::Failure;
use crate::lease::{OpKind, Outcome};
use crate::leases::{Leases, Op};
use crate::resp::Arg;
use crate::time::Tick;

/// An operation, and the form in which it is put to the server.
///
/// Whoever has a connection already - through a client library, say - takes operations out of [`Leases`], sends the
/// commands of each, and gives every reply back, in the order of the commands:
///
/// ```
/// use core::time::Duration;
/// use tenure_core::config::{LeaseConfig, Wait};
/// use tenure_core::conn::{Reply, ServerInfo};
/// use tenure_core::leases::{Leases, Notice, Request};
/// use tenure_core::names::Names;
/// use tenure_core::plan::{Call, Dialect, Partial};
/// use tenure_core::resp::{Arg, Value};
/// use tenure_core::time::Tick;
///
/// let now = Tick::from_micros(0);
/// let mut leases = Leases::new(Names::new("lock:", "doc")?, 1);
/// let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
/// leases.acquire(now, &Request { name: b"a", terms, wait: Wait::Now, secret: [7; 16], since_ms: 0 })?;
/// // Both for as long as the connection lasts.
/// let (mut dialect, mut partial) = (Dialect::of(&ServerInfo::default()), Partial::default());
///
/// let op = leases.poll_op(now).expect("the first attempt");
/// let mut next = Some(Call::new(&dialect, op));
/// // A server that does not know what it is asked first, and grants what it is asked then.
/// let mut values = [Value::Error(b"ERR syntax error"), Value::Simple(b"OK")].into_iter();
/// while let Some(call) = next.take() {
///     let replies = call.replies(&leases);
///     call.commands(&leases, |args| assert!(matches!(args, [Arg::Bytes(b"SET"), ..])));
///     for more in (0..replies).rev() {
///         let value = values.next().unwrap();
///         let reply = Reply { tag: call, value, handed_out: now, more };
///         next = Call::handle_reply(&reply, now, &mut leases, &mut dialect, &mut partial);
///     }
/// }
/// assert!(matches!(leases.poll_event().unwrap().notice, Notice::Acquired { .. }));
/// # Ok::<(), tenure_core::error::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// How it is put.
    pub form: Form,
}

impl Call {
    /// The operation in the form that this server speaks.
    pub fn new(dialect: &Dialect, op: Op) -> Call {
        let form = dialect.form(op.kind);
        Call { op, form }
    }

    /// How many replies there will be, one for each command; none when the lease is over. Ask before sending: what is
    /// left to clear may change.
    pub fn replies(self, leases: &Leases) -> u8 {
        replies(self.form, leases, self.op.id)
    }

    /// Gives the arguments of each command to `each`, in the order in which they are to be sent: for
    /// [`encode`](crate::resp::encode), or for the command type of another client.
    pub fn commands(self, leases: &Leases, each: impl FnMut(&[Arg<'_>])) {
        commands(self.form, leases, self.op.id, self.op.kind, each);
    }

    /// Takes in a reply to the call that is its tag. A call that comes back is to be sent next: the same operation,
    /// put another way, or a look at who was in the way.
    ///
    /// `partial` is for what the replies to one call have to do with each other: keep one for each connection.
    #[must_use = "the operation has no outcome before the call that comes back has one"]
    pub fn handle_reply(
        reply: &Reply<'_, Call>,
        now: Tick,
        leases: &mut Leases,
        dialect: &mut Dialect,
        partial: &mut Partial,
    ) -> Option<Call> {
        let Call { op, form } = reply.tag;
        if let Some(text) = reply.value.error() {
            leases.note_text(op.id, text);
        }
        leases.handle_round_trip(op.id, now.saturating_since(reply.handed_out));
        let expected = expected(leases, op.id, op.kind);
        let to = ReplyTo {
            value: reply.value,
            expected: expected.as_ref().map_or(&[], |value| value.as_bytes()),
            handed_out: reply.handed_out,
            more: reply.more,
        };
        let verdict = dialect.judge(form, op.kind, &to, partial);
        let again = reply.tag.obey(now, leases, partial, verdict);
        if reply.more == 0 {
            *partial = Partial::default();
        }
        let form = again?;
        // Not for an operation that nobody wants any more: silence after the end.
        let wanted = leases.lease(op.id)?.awaits(op.seq);
        wanted.then_some(Call { op, form })
    }

    /// No reply will come, since the connection is dead; `maybe_executed` unless not a byte was handed out. The end of
    /// the connection itself is told after this, by [`Leases::handle_link_down`].
    pub fn handle_no_reply(
        self,
        now: Tick,
        leases: &mut Leases,
        maybe_executed: bool,
        failure: Failure,
    ) {
        let Call { op, form } = self;
        let outcome = match form {
            // The refusal itself was answered; only who it was stays unknown.
            Form::LookTtl | Form::LookValue => Outcome::Refused {
                own: None,
                remaining: None,
            },
            _ => Outcome::NoReply {
                maybe_executed,
                failure,
            },
        };
        leases.note_text(op.id, &[]);
        leases.handle_outcome(now, op.id, op.seq, outcome);
    }

    /// Carries a verdict to the lease, or says in which other form the operation is to be put.
    fn obey(
        self,
        now: Tick,
        leases: &mut Leases,
        partial: &mut Partial,
        verdict: Verdict<'_>,
    ) -> Option<Form> {
        let Call { op, form } = self;
        match verdict {
            Verdict::More => None,
            Verdict::Done(outcome) => {
                let refused = matches!(outcome, Outcome::Refused { .. });
                if refused && form != Form::LookTtl && !partial.has_shown() {
                    leases.forget_holder(op.id);
                }
                leases.handle_outcome(now, op.id, op.seq, outcome);
                None
            }
            Verdict::Again(form) => Some(form),
            Verdict::Shown(shown) => {
                let own = leases.own_attempt(op.id, shown);
                if own.is_none() {
                    leases.note_holder(op.id, shown);
                }
                let refused = Outcome::Refused {
                    own,
                    remaining: None,
                };
                match (form, op.kind, own) {
                    // The PTTL is still to come.
                    (Form::LookValue, ..) => partial.note_shown(own),
                    // How long the other's lease runs on is worth a look; one's own is taken over.
                    (_, OpKind::Acquire { .. } | OpKind::Adopt { .. }, None) => {
                        return Some(Form::LookTtl);
                    }
                    _ => leases.handle_outcome(now, op.id, op.seq, refused),
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::vec::Vec;

    use super::*;
    use crate::config::{LeaseConfig, Wait};
    use crate::conn::ServerInfo;
    use crate::error::LinkFault;
    use crate::leases::{Holder, LeaseId, Notice, Request};
    use crate::names::Names;
    use crate::resp::Value;

    /// A connection of somebody else, with the calls that are on their way.
    struct Theirs {
        leases: Leases,
        dialect: Dialect,
        partial: Partial,
        calls: Vec<Call>,
    }

    const NOW: Tick = Tick::ZERO;

    impl Theirs {
        fn asking(wait: Wait) -> (Theirs, LeaseId) {
            let mut leases = Leases::new(Names::new("lock:", "me").unwrap(), 1);
            let terms = LeaseConfig::new(Duration::from_secs(30)).build().unwrap();
            let request = Request {
                name: b"a",
                terms,
                wait,
                secret: [7; 16],
                since_ms: 0,
            };
            let id = leases.acquire(NOW, &request).unwrap();
            let mut theirs = Theirs {
                leases,
                dialect: Dialect::of(&ServerInfo::default()),
                partial: Partial::default(),
                calls: Vec::new(),
            };
            theirs.send();
            (theirs, id)
        }

        fn send(&mut self) {
            while let Some(op) = self.leases.poll_op(NOW) {
                self.calls.push(Call::new(&self.dialect, op));
            }
        }

        /// Answers the only call with these values; the words of its commands.
        fn answer(&mut self, values: &[Value<'_>]) -> Vec<Vec<u8>> {
            let call = self.calls.pop().expect("a call");
            assert!(self.calls.is_empty());
            assert_eq!(usize::from(call.replies(&self.leases)), values.len());
            let mut words = Vec::new();
            call.commands(&self.leases, |args| {
                let Some(Arg::Bytes(word)) = args.first() else {
                    panic!("{args:?}")
                };
                words.push(word.to_vec());
            });
            for (at, value) in values.iter().enumerate() {
                let reply = Reply {
                    tag: call,
                    value: *value,
                    handed_out: NOW,
                    more: (values.len() - 1 - at) as u8,
                };
                self.calls.extend(Call::handle_reply(
                    &reply,
                    NOW,
                    &mut self.leases,
                    &mut self.dialect,
                    &mut self.partial,
                ));
            }
            self.send();
            words
        }
    }

    #[test]
    fn an_older_server_is_asked_who_it_was() {
        let (mut theirs, _) = Theirs::asking(Wait::Now);
        theirs.answer(&[Value::Error(b"ERR syntax error")]);
        theirs.answer(&[Value::Null]);
        let words = theirs.answer(&[Value::Bulk(b"foreign"), Value::Int(1500)]);
        assert_eq!(words, [&b"GET"[..], b"PTTL"]);
        let holder = Holder {
            label: None,
            remaining: Some(Duration::from_millis(1500)),
        };
        assert_eq!(
            theirs.leases.poll_event().unwrap().notice,
            Notice::Held(holder)
        );
    }

    #[test]
    fn what_nobody_wants_any_more_is_not_put_another_way() {
        let (mut theirs, id) = Theirs::asking(Wait::Forever);
        theirs.leases.drop_guard(NOW, id);
        theirs.answer(&[Value::Error(b"ERR syntax error")]);
        let kinds: Vec<_> = theirs.calls.iter().map(|call| call.op.kind).collect();
        assert_eq!(kinds, [OpKind::Clear]);
        theirs.answer(&[Value::Int(0)]);
        assert!(theirs.leases.is_empty() && theirs.calls.is_empty());
    }

    #[test]
    fn an_attempt_without_a_reply_is_cleared_if_it_may_have_been_executed() {
        let dead = Failure::Link(LinkFault::Closed);
        for maybe_executed in [false, true] {
            let (mut theirs, id) = Theirs::asking(Wait::Now);
            let call = theirs.calls.pop().unwrap();
            call.handle_no_reply(NOW, &mut theirs.leases, maybe_executed, dead);
            theirs.leases.handle_link_down(NOW);
            theirs.leases.drop_guard(NOW, id);
            let clean_up = theirs.leases.poll_op(NOW).map(|op| op.kind);
            assert_eq!(clean_up, maybe_executed.then_some(OpKind::Clear));
        }
    }
}
