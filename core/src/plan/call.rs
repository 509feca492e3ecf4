//! One operation on its way: its commands, the replies to it, or that none will come.

use super::{
    Dialect, Form, Partial, ReplyTo, Step, Verdict, Watched, commands, confirm, expected, replies,
};
use crate::conn::Reply;
use crate::error::Failure;
use crate::lease::{OpKind, Outcome, Vanished};
use crate::leases::{Leases, Op};
use crate::replicas::Replicas;
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
/// use tenure_core::leases::{Leases, Notice, Options, Request};
/// use tenure_core::names::Names;
/// use tenure_core::plan::{Call, Dialect, Partial};
/// use tenure_core::resp::{Arg, Value};
/// use tenure_core::time::Tick;
///
/// let now = Tick::from_micros(0);
/// let mut leases = Leases::new(Names::new("lock:", "doc")?, 1);
/// let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
/// leases.acquire(now, &Request { name: b"a", terms, wait: Wait::Now, options: Options::default(), secret: [7; 16], since_ms: 0 })?;
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
    /// Whether a read of the key follows, so that the server tells when it changes.
    pub watch: bool,
    /// Whether the server is asked behind it how many replicas have confirmed it.
    pub wait: Option<Replicas>,
}

impl Call {
    /// The operation in the form that this server speaks.
    pub fn new(dialect: &Dialect, op: Op) -> Call {
        let form = match op.kind {
            OpKind::Acquire { .. } if op.fair => dialect.taking(),
            // Who waits in the queue has its turn when that is over.
            OpKind::Clear if op.cools => dialect.cooling(),
            OpKind::Clear if op.fair => dialect.passing(),
            OpKind::Acquire { .. } | OpKind::Adopt { .. } if op.fenced => dialect.minting(),
            kind => dialect.form(kind),
        };
        Call::put(dialect, op, form)
    }

    /// How many replies there will be, one for each command; none when the lease is over. Ask before sending: what is
    /// left to clear may change.
    pub fn replies(self, leases: &Leases) -> u8 {
        match replies(self.form, leases, self.op.id) {
            0 => 0,
            own => own + self.behind(),
        }
    }

    /// How many of the replies come after those to the operation itself.
    pub fn behind(self) -> u8 {
        u8::from(self.watch) + u8::from(self.wait.is_some())
    }

    /// Gives the arguments of each command to `each`, in the order in which they are to be sent: for
    /// [`encode`](crate::resp::encode), or for the command type of another client.
    pub fn commands(self, leases: &Leases, mut each: impl FnMut(&[Arg<'_>])) {
        let Call {
            op,
            form,
            watch,
            wait,
        } = self;
        commands(form, leases, op.id, op.kind, &mut each);
        if watch {
            each(&["GET".into(), Arg::Bytes(leases.key(op.id))]);
        }
        // Last: it holds up whatever comes after it on its connection.
        if let Some(replicas) = wait {
            confirm::command(replicas, each);
        }
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
        let call = reply.tag;
        let op = call.op;
        leases.handle_round_trip(op.id, now.saturating_since(reply.handed_out));
        let again = call.take(reply, now, leases, dialect, partial);
        if reply.more == 0 {
            *partial = Partial::default();
        }
        let form = again?;
        // Not for an operation that nobody wants any more: silence after the end.
        let wanted = leases.lease(op.id)?.awaits(op.seq);
        wanted.then(|| Call::put(dialect, op, form))
    }

    /// No reply will come, or no other, since the connection is dead; `maybe_executed` unless not a byte was handed out. The
    /// first call without its replies is asked first: what it has of them is in `partial`. The end of the connection
    /// itself is told after this, by [`Leases::handle_link_down`].
    pub fn handle_no_reply(
        self,
        now: Tick,
        leases: &mut Leases,
        partial: &mut Partial,
        maybe_executed: bool,
        failure: Failure,
    ) {
        let Call { op, form, wait, .. } = self;
        let refused = |own| Outcome::Refused {
            own,
            remaining: None,
            watched: false,
        };
        let answered = match core::mem::take(partial).step {
            // It was made, and nobody will say whether replicas have it: that is no grant.
            Some(Step::Done(Outcome::Granted { .. })) if wait.is_some() => None,
            answered => answered,
        };
        let outcome = match (answered, form) {
            // It was answered; only the read behind it was not.
            (Some(Step::Done(outcome)), _) => outcome,
            (Some(Step::Shown(own)), _) => refused(own),
            // The refusal itself was answered; only who it was stays unknown, or why.
            (Some(Step::Again(Form::LookValue)), _) => refused(None),
            (None, Form::LookTtl | Form::LookValue | Form::LookReplaced) => refused(None),
            // The same of what was gone.
            (None, Form::LookForced) if op.kind == OpKind::Clear => {
                Outcome::Cleared { mine: false }
            }
            (None, Form::LookForced) => Outcome::Gone,
            (again, _) => Outcome::NoReply {
                // What was to be put another way was not executed.
                maybe_executed: maybe_executed && again.is_none(),
                failure,
            },
        };
        if answered.is_none() {
            leases.note_text(op.id, &[]);
        }
        leases.handle_outcome(now, op.id, op.seq, outcome);
    }

    fn put(dialect: &Dialect, op: Op, form: Form) -> Call {
        let writes = match form {
            Form::AcquireGet | Form::Acquire => true,
            Form::SwapGet | Form::Swap | Form::SwapScript(_) => true,
            Form::LookValue | Form::LookTtl | Form::LookHeld => false,
            Form::LookForced | Form::LookReplaced => false,
            Form::Delex | Form::Delifeq | Form::ClearScript(_) | Form::Cool(_) => false,
            Form::Mint(_) | Form::Take(_) => true,
            Form::Pass(_) => false,
        };
        // A write ends the watch of its key, and a refused one does not begin it.
        let watch = writes && dialect.is_watching();
        let wait = op.replicas.filter(|_| writes);
        Call {
            op,
            form,
            watch,
            wait,
        }
    }

    /// Takes a reply apart. Gives the form in which the operation is to be put next.
    fn take(
        self,
        reply: &Reply<'_, Call>,
        now: Tick,
        leases: &mut Leases,
        dialect: &mut Dialect,
        partial: &mut Partial,
    ) -> Option<Form> {
        let Call { op, form, .. } = self;
        // What was asked for is answered; this reply belongs to the read that follows, or to the confirmation.
        if let Some(step) = partial.step.take() {
            if self.watch && reply.more == u8::from(self.wait.is_some()) {
                let value = leases.value(op.id, written(op.kind)?)?;
                let mut watched = dialect.judge_watch(&reply.value, value.as_bytes());
                if let Step::Done(Outcome::Refused { .. }) = step {
                    // It may have been freed, or passed on, before the server began to tell.
                    let shown = reply.value.as_bytes();
                    let own = shown.is_some_and(|shown| leases.is_own(op.id, shown));
                    watched.is_doubtful &= own || reply.value.is_null();
                }
                partial.watched = Some(watched);
            }
            if reply.more > 0 {
                partial.step = Some(step);
                return None;
            }
            let step = match (self.wait, step) {
                // Of a write that was not made its answer says nothing, whatever it is.
                (Some(replicas), Step::Done(Outcome::Granted { .. })) => {
                    leases.note_text(op.id, reply.value.error().unwrap_or_default());
                    confirm::judge(replicas, &reply.value).map_or(step, Step::Done)
                }
                _ => step,
            };
            let watched = partial.watched.take();
            return self.obey(now, leases, dialect, partial, step, watched);
        }
        if let Some(text) = reply.value.error() {
            leases.note_text(op.id, text);
        }
        // Who forced it is asked first: then nothing happens to the key unheard behind the look at it.
        let asks_who = form == Form::LookHeld && reply.more == 1;
        if asks_who || matches!(form, Form::LookForced | Form::LookReplaced) {
            leases.note_forced(op.id, reply.value.as_bytes().unwrap_or_default());
        }
        if asks_who {
            return None;
        }
        let expected = expected(leases, op.id, op.kind);
        let to = ReplyTo {
            value: reply.value,
            expected: expected.as_ref().map_or(&[], |value| value.as_bytes()),
            handed_out: reply.handed_out,
            more: reply.more.saturating_sub(self.behind()),
            of_hold: leases
                .lease(op.id)
                .map_or(0, |lease| lease.leftovers().of_hold().len() as u8),
        };
        let step = match dialect.judge(form, op.kind, &to, partial) {
            Verdict::More => return None,
            // Not told what the key has instead: what was not answered is tried, one after the other.
            Verdict::Done(Outcome::Gone) if form == Form::Swap && self.doubt(leases).is_some() => {
                Step::Shown(self.doubt(leases))
            }
            Verdict::Done(outcome) => Step::Done(outcome),
            Verdict::Minted(fence) => {
                if op.fenced {
                    leases.handle_fence(op.id, op.seq, fence);
                }
                Step::Done(to.grant())
            }
            Verdict::Full(shown, _) if leases.own_attempt(op.id, shown).is_none() => {
                leases.note_holder(op.id, shown);
                Step::Done(Outcome::Failed {
                    failure: Failure::QueueFull,
                    maybe_executed: false,
                })
            }
            Verdict::Refused(shown, remaining) | Verdict::Full(shown, remaining) => {
                let own = leases.own_attempt(op.id, shown);
                if own.is_none() {
                    leases.note_holder(op.id, shown);
                }
                Step::Done(Outcome::Refused {
                    own,
                    remaining,
                    watched: false,
                })
            }
            Verdict::Again(form) => Step::Again(form),
            Verdict::Shown(shown) => {
                let own = leases.own_attempt(op.id, shown);
                if own.is_none() {
                    leases.note_holder(op.id, shown);
                }
                if form == Form::LookValue {
                    // The PTTL is still to come.
                    partial.note_shown(own);
                    return None;
                }
                Step::Shown(own)
            }
        };
        if reply.more > 0 {
            // What is known to be lost is not held until the rest is known.
            if let (true, Some(how)) = (renews(op.kind), step.vanished()) {
                if leases.holds(op.id) && !self.shows_own(leases, step) {
                    leases.handle_vanished(now, op.id, how);
                }
            }
            partial.step = Some(step);
            return None;
        }
        self.obey(now, leases, dialect, partial, step, None)
    }

    /// What a renewal may find where the value that it compared with is not.
    fn doubt(self, leases: &Leases) -> Option<u32> {
        let lease = leases.lease(self.op.id)?;
        lease.doubt().filter(|_| renews(self.op.kind))
    }

    /// Whether a value was shown that stands for the hold.
    fn shows_own(self, leases: &Leases, step: Step) -> bool {
        let (Step::Shown(Some(shown)), Some(lease)) = (step, leases.lease(self.op.id)) else {
            return false;
        };
        lease.stands_for_hold(self.op.kind, shown)
    }

    /// Carries what the replies lead to to the lease, or says in which other form the operation is to be put.
    fn obey(
        self,
        now: Tick,
        leases: &mut Leases,
        dialect: &Dialect,
        partial: &Partial,
        step: Step,
        watched: Option<Watched>,
    ) -> Option<Form> {
        let Call { op, form, .. } = self;
        let asks = matches!(op.kind, OpKind::Acquire { .. } | OpKind::Adopt { .. });
        let mut outcome = match step {
            Step::Again(form) => return Some(form),
            // How long the other's lease runs on is worth a look; one's own is taken over.
            Step::Shown(None) if asks => return Some(Form::LookTtl),
            Step::Shown(own) => Outcome::Refused {
                own,
                remaining: None,
                watched: false,
            },
            Step::Done(outcome) => outcome,
        };
        if let Outcome::Refused {
            own: None,
            watched: told,
            ..
        } = &mut outcome
        {
            let looked = matches!(form, Form::LookTtl | Form::LookReplaced | Form::Take(_));
            let keeps = looked || partial.has_shown();
            if !keeps && !matches!(step, Step::Shown(_)) {
                leases.forget_holder(op.id);
            }
            if let Some(watched) = watched {
                *told = watched.is_told;
            }
        }
        // Why it is gone is worth a look, too: somebody else may have it already.
        let renewed = renews(op.kind) && leases.holds(op.id);
        let why = match outcome {
            Outcome::Gone => renewed.then_some(Form::LookForced),
            Outcome::Refused { own: None, .. } => renewed.then_some(Form::LookReplaced),
            Outcome::Cleared { mine: false } => {
                leases.awaits_release(op.id).then_some(Form::LookForced)
            }
            _ => None,
        };
        let looked = matches!(form, Form::LookForced | Form::LookReplaced);
        if let (Some(why), false, true) = (why, looked, dialect.may_read) {
            let how = match why {
                Form::LookReplaced => Vanished::Replaced,
                _ => Vanished::Gone,
            };
            leases.handle_vanished(now, op.id, how);
            return Some(why);
        }
        leases.handle_outcome(now, op.id, op.seq, outcome);
        let doubtful = watched.is_some_and(|watched| watched.is_doubtful);
        if doubtful && matches!(outcome, Outcome::Granted { .. } | Outcome::Refused { .. }) {
            leases.handle_changed_of(now, op.id);
        }
        None
    }
}

fn renews(kind: OpKind) -> bool {
    matches!(kind, OpKind::Renew { .. } | OpKind::Rotate { .. })
}

/// The attempt whose value is on the key when the operation was granted.
fn written(kind: OpKind) -> Option<u32> {
    match kind {
        OpKind::Acquire { attempt }
        | OpKind::Adopt { attempt, .. }
        | OpKind::Rotate { attempt, .. }
        | OpKind::Renew { attempt } => Some(attempt),
        OpKind::Look { .. } | OpKind::Clear => None,
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
    use crate::leases::{Holder, LeaseId, Notice, Options, Request};
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
                options: Options::default(),
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
            cooling: false,
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
            let (leases, partial) = (&mut theirs.leases, &mut theirs.partial);
            call.handle_no_reply(NOW, leases, partial, maybe_executed, dead);
            theirs.leases.handle_link_down(NOW);
            theirs.leases.drop_guard(NOW, id);
            let clean_up = theirs.leases.poll_op(NOW).map(|op| op.kind);
            assert_eq!(clean_up, maybe_executed.then_some(OpKind::Clear));
        }
    }

    #[test]
    fn s5_what_was_answered_counts_though_the_read_behind_it_was_not() {
        let (mut theirs, _) = Theirs::asking(Wait::Now);
        theirs.dialect.ask_to_watch();
        let op = theirs.calls.pop().unwrap().op;
        let call = Call::new(&theirs.dialect, op);
        assert_eq!(call.replies(&theirs.leases), 2);
        let granted = Reply {
            tag: call,
            value: Value::Null,
            handed_out: NOW,
            more: 1,
        };
        let (leases, partial) = (&mut theirs.leases, &mut theirs.partial);
        let again = Call::handle_reply(&granted, NOW, leases, &mut theirs.dialect, partial);
        assert_eq!(again, None);
        assert!(leases.poll_event().is_none());
        let dead = Failure::Link(LinkFault::Closed);
        call.handle_no_reply(NOW, leases, partial, true, dead);
        let event = leases.poll_event().expect("the answer");
        assert!(matches!(event.notice, Notice::Acquired { .. }), "{event:?}");
    }
}
