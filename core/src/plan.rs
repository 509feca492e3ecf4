//! Operation to command, reply to outcome. The only place that knows the commands of the servers.
//!
//! | step | Redis >= 8.4 | Valkey >= 9.0 | anything older, from 6.2 up |
//! |---|---|---|---|
//! | acquire | `SET key value NX GET PX ms` | same | `SET .. NX PX`, then look |
//! | renew | `SET key value IFEQ value GET PX ms` | same (Valkey 8.1+) | script: compare, PEXPIRE |
//! | adopt, rotate | `SET key new IFEQ old GET PX ms` | same (8.1+) | script: compare, SET PX |
//! | acquire or adopt with a fence | script: compare, mint, SET PX | same | same |
//! | acquire, clear in a fair queue | script | same | same |
//! | clear before the shortest hold is over | script: compare, SET PX or DEL | same | same |
//! | clear | `DELEX key IFEQ value` | `DELIFEQ key value` | script: compare, DEL |
//!
//! Which of them a server speaks is found out by trying and remembered in a [`Dialect`] for as long as
//! the connection lasts. The greeting only says where to begin, so a proxy that greets for somebody else
//! costs a round trip and nothing more. A server that does not say what it is gets the script to delete by: a
//! release may be the last thing a process sends, and no place to try. Of an error reply only the first word is looked at.
//!
//! Behind each write of a lease with [replicas](crate::replicas) comes `WAIT n ms`, or `WAITAOF 1 n ms`.
//!
//! A user that may not read gets the forms without `GET`: then nobody can say who holds a name, and a hold
//! that was replaced looks like one that is gone.
//!
//! A [`Call`] is an operation on its way: a program that has a connection of its own sends its commands and gives
//! it the replies. [`mux`](crate::mux) does the same on a connection that it reads and writes by itself.

mod about;
mod call;
mod confirm;
mod cool;
mod fair;
mod info;
mod mint;
mod probe;
mod script;

use alloc::vec::Vec;
use core::time::Duration;

use crate::conn::{Flavour, ServerInfo};
use crate::error::{Failure, ServerError};
use crate::lease::{OpKind, Outcome, Vanished};
use crate::leases::{LeaseId, Leases};
use crate::names::{ALIVE, FENCE, FORCED, QUEUE, Value as LeaseValue};
use crate::resp::{Arg, Value};
use crate::time::Tick;
pub use call::Call;
pub use cool::COOL;
pub use fair::{PASS, TAKE};
pub use info::{Info, Risk};
pub use mint::MINT;
pub use probe::Probe;
pub use script::{ADOPT, CLEAR, REMOVE, RENEW, Script, Sent};
use script::{call, script_may_have_run};

/// How an operation is put to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `SET key value NX GET PX ms`
    AcquireGet,
    /// `SET key value NX PX ms`
    Acquire,
    /// `GET key` and `PTTL key`, after a refusal that showed nothing.
    LookValue,
    /// `PTTL key`, after a refusal that showed the value.
    LookTtl,
    /// `GET key`, and `GET` of the helper key that says who forced it, to see whether a hold goes on.
    LookHeld,
    /// `GET` of the helper key that says who forced it, after the key was found to be gone.
    LookForced,
    /// The same, after the key was found to have another value.
    LookReplaced,
    /// `SET key new IFEQ old GET PX ms`; a renewal is the case of equal values.
    SwapGet,
    /// `SET key new IFEQ old PX ms`
    Swap,
    /// The script that does the same.
    SwapScript(Sent),
    /// The script that acquires or adopts with a fence.
    Mint(Sent),
    /// The script that takes a fair lock, or waits for its turn.
    Take(Sent),
    /// The script that gives one up to whoever waits for it.
    Pass(Sent),
    /// `DELEX key IFEQ value`, once for each value.
    Delex,
    /// `DELIFEQ key value`, once for each value.
    Delifeq,
    /// The script that does the same.
    ClearScript(Sent),
    /// The script that leaves the key taken for the rest of a shortest hold.
    Cool(Sent),
}

/// What the server has been found to speak, for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Values may be read.
    may_read: bool,
    /// `SET .. NX GET` is spoken.
    acquire_get: bool,
    /// `SET .. IFEQ` is spoken.
    swap: bool,
    clear: Form,
    watch: Watch,
    /// Which scripts the server has answered on this connection: they go by their SHA from then on. Before
    /// that they go in full, or the last release of a process would be answered with NOSCRIPT when
    /// nobody is left to repeat it.
    known: Known,
}

/// Whether the server tells when a key that was read changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Watch {
    #[default]
    No,
    /// It was asked to; its answer comes before that to anything asked later.
    Asked,
    Yes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    renew: bool,
    adopt: bool,
    mint: bool,
    take: bool,
    pass: bool,
    clear: bool,
    cool: bool,
    remove: bool,
}

/// What a reply leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Done.
    Done(Outcome),
    /// Granted, with this fence.
    Minted(u64),
    /// Put the same operation another way.
    Again(Form),
    /// Refused, and this is the value of the key.
    Shown(&'a [u8]),
    /// Refused, and this is the value of the key, with its TTL if that is known.
    Refused(&'a [u8], Option<Duration>),
    /// As `Refused`, and as many wait as may: it is not waited for.
    Full(&'a [u8], Option<Duration>),
    /// More replies belong to it.
    More,
}

/// What the earlier replies of an operation with several of them said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    replies: u8,
    mine: bool,
    error: Option<ServerError>,
    /// A look showed a value,
    shown: bool,
    /// which this attempt of the same request had written.
    own: Option<u32>,
    gone: bool,
    /// What the first reply led to, while the second is awaited.
    step: Option<Step>,
    /// What the read behind a write said, while its confirmation is awaited.
    watched: Option<Watched>,
}

/// What the replies to an operation's own commands lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Done(Outcome),
    Again(Form),
    /// A value was shown; this attempt of the same request had written it, if any.
    Shown(Option<u32>),
}

impl Step {
    /// How a key was found not to be the hold's any more, if it was.
    fn vanished(self) -> Option<Vanished> {
        match self {
            Step::Done(Outcome::Gone) => Some(Vanished::Gone),
            Step::Done(Outcome::Refused { .. }) | Step::Shown(_) => Some(Vanished::Replaced),
            Step::Done(_) | Step::Again(_) => None,
        }
    }
}

impl Dialect {
    /// Where to begin with this server.
    pub fn of(info: &ServerInfo) -> Dialect {
        let at_least = |major, minor| info.version.is_none_or(|version| version >= (major, minor));
        let (swap, clear) = match info.flavour {
            Flavour::Redis => (
                at_least(8, 4),
                if at_least(8, 4) {
                    Form::Delex
                } else {
                    SCRIPT_CLEAR
                },
            ),
            Flavour::Valkey => (
                at_least(8, 1),
                if at_least(9, 0) {
                    Form::Delifeq
                } else {
                    SCRIPT_CLEAR
                },
            ),
            // A release may be the last thing a process sends: it is no place to try what is not known.
            Flavour::Unknown => (true, SCRIPT_CLEAR),
        };
        Dialect {
            may_read: true,
            acquire_get: true,
            swap,
            clear,
            watch: Watch::No,
            known: Known::default(),
        }
    }

    /// The server has been asked to tell of changes, by `CLIENT TRACKING ON`: from here on whatever may wait or hold is
    /// followed by a read of its key, which is what the server takes for the wish to be told.
    pub fn ask_to_watch(&mut self) {
        self.watch = Watch::Asked;
    }

    /// Whether it does, by its answer, or by what is found out later.
    pub fn set_watched(&mut self, yes: bool) {
        self.watch = if yes { Watch::Yes } else { Watch::No };
    }

    /// Whether the server was asked to tell of changes and has not refused.
    pub fn is_watching(&self) -> bool {
        self.watch != Watch::No
    }

    /// How to put an operation to this server, if no fence comes with it.
    pub fn form(&self, kind: OpKind) -> Form {
        match kind {
            OpKind::Acquire { .. } if self.acquire_get && self.may_read => Form::AcquireGet,
            OpKind::Acquire { .. } => Form::Acquire,
            OpKind::Adopt { .. } | OpKind::Rotate { .. } | OpKind::Renew { .. } => {
                match (self.swap, self.may_read) {
                    (true, true) => Form::SwapGet,
                    (true, false) => Form::Swap,
                    (false, _) => self.script(kind),
                }
            }
            OpKind::Look { .. } => Form::LookHeld,
            OpKind::Clear => match self.clear {
                Form::ClearScript(_) => self.script(kind),
                native => native,
            },
        }
    }

    /// What `reply` to an operation put in this `form` leads to.
    ///
    /// `expected` is the value that the operation compared with; `partial` is kept from one reply of the
    /// operation to the next. Learns what the server does not speak.
    pub fn judge<'a>(
        &mut self,
        form: Form,
        kind: OpKind,
        reply: &ReplyTo<'a, '_>,
        partial: &mut Partial,
    ) -> Verdict<'a> {
        match form {
            Form::AcquireGet | Form::Acquire => self.judge_acquire(form, reply),
            Form::LookValue => self.judge_look(reply, partial),
            Form::LookTtl => Verdict::Done(Outcome::Refused {
                own: None,
                remaining: remaining(&reply.value),
                watched: self.is_watched_by(&reply.value),
            }),
            Form::LookHeld => self.judge_look_held(reply),
            Form::LookForced if kind == OpKind::Clear => {
                Verdict::Done(Outcome::Cleared { mine: false })
            }
            Form::LookForced => Verdict::Done(Outcome::Gone),
            Form::LookReplaced => refused(None),
            Form::SwapGet | Form::Swap => self.judge_swap(form, kind, reply),
            Form::SwapScript(sent) => {
                self.learn_script(kind, reply);
                judge_swap_script(sent, reply)
            }
            Form::Mint(sent) => self.judge_mint(sent, kind, reply),
            Form::Take(sent) => self.judge_take(sent, reply),
            Form::Pass(sent) => self.judge_pass(sent, reply),
            Form::Delex | Form::Delifeq | Form::ClearScript(_) => {
                self.judge_clear(form, reply, partial)
            }
            Form::Cool(sent) => self.judge_cool(sent, reply),
        }
    }

    /// The script for an operation, in full until the server has answered it once.
    fn script(&self, kind: OpKind) -> Form {
        match kind {
            OpKind::Clear => Form::ClearScript(self.sent(self.known.clear)),
            OpKind::Adopt { .. } | OpKind::Rotate { .. } => {
                Form::SwapScript(self.sent(self.known.adopt))
            }
            OpKind::Acquire { .. } | OpKind::Renew { .. } | OpKind::Look { .. } => {
                Form::SwapScript(self.sent(self.known.renew))
            }
        }
    }

    fn sent(&self, known: bool) -> Sent {
        if known { Sent::Sha } else { Sent::Text }
    }

    fn learn_script(&mut self, kind: OpKind, reply: &ReplyTo<'_, '_>) {
        let known = match kind {
            OpKind::Clear => &mut self.known.clear,
            OpKind::Adopt { .. } | OpKind::Rotate { .. } => &mut self.known.adopt,
            OpKind::Acquire { .. } | OpKind::Renew { .. } | OpKind::Look { .. } => {
                &mut self.known.renew
            }
        };
        match reply.value.error().map(ServerError::of) {
            None => *known = true,
            Some(ServerError::NoScript) => *known = false,
            Some(_) => {}
        }
    }

    fn judge_acquire<'a>(&mut self, form: Form, reply: &ReplyTo<'a, '_>) -> Verdict<'a> {
        if let Some(text) = reply.value.error() {
            let error = ServerError::of(text);
            return match (form, error) {
                (Form::AcquireGet, ServerError::NoPerm) => {
                    self.may_read = false;
                    Verdict::Again(Form::Acquire)
                }
                (Form::Acquire, ServerError::NoPerm) => {
                    // Not the reading, the key is not permitted: others may be, to be read as well.
                    self.may_read = true;
                    failed(error, false)
                }
                (Form::AcquireGet, ServerError::Other) => {
                    self.acquire_get = false;
                    Verdict::Again(Form::Acquire)
                }
                _ => failed(error, false),
            };
        }
        match (form, &reply.value) {
            (Form::AcquireGet, Value::Null) | (Form::Acquire, Value::Simple(b"OK")) => {
                reply.granted()
            }
            (Form::Acquire, Value::Null) if self.may_read => Verdict::Again(Form::LookValue),
            (Form::Acquire, Value::Null) => refused(None),
            (Form::AcquireGet, Value::Bulk(shown)) => Verdict::Shown(shown),
            // No answer to this command: nobody knows what was executed.
            _ => failed(ServerError::Other, true),
        }
    }

    /// `GET`, then `PTTL`.
    fn judge_look<'a>(&mut self, reply: &ReplyTo<'a, '_>, partial: &mut Partial) -> Verdict<'a> {
        partial.replies += 1;
        if partial.replies == 1 {
            match reply.value.error().map(ServerError::of) {
                Some(ServerError::NoPerm) => self.may_read = false,
                Some(error) => partial.error = Some(error),
                None => {
                    partial.gone = reply.value.is_null();
                    if let Some(shown) = reply.value.as_bytes() {
                        return Verdict::Shown(shown);
                    }
                }
            }
            return Verdict::More;
        }
        match partial.error {
            Some(error) => failed(error, false),
            None if partial.gone => refused(Some(Duration::ZERO)),
            None => Verdict::Done(Outcome::Refused {
                own: partial.own,
                remaining: remaining(&reply.value),
                watched: self.is_watched_by(&reply.value),
            }),
        }
    }

    /// Whether changes are told from this last read of the key on: those before it were not heeded. Without it nothing can be
    /// relied upon.
    fn is_watched_by(&mut self, ttl: &Value<'_>) -> bool {
        if ttl.error().map(ServerError::of) == Some(ServerError::NoPerm) {
            self.watch = Watch::No;
        }
        ttl.error().is_none() && self.watch == Watch::Yes
    }

    fn judge_look_held<'a>(&mut self, reply: &ReplyTo<'a, '_>) -> Verdict<'a> {
        match (
            reply.value.error().map(ServerError::of),
            reply.value.as_bytes(),
        ) {
            // Another type: not ours.
            (Some(ServerError::WrongType), _) => refused(None),
            // Not permitted says nothing of the forms that read while they write.
            (Some(error), _) => failed(error, false),
            (None, Some(shown)) if shown == reply.expected => Verdict::Done(Outcome::Seen),
            (None, Some(shown)) => Verdict::Shown(shown),
            (None, None) if reply.value.is_null() => Verdict::Done(Outcome::Gone),
            (None, None) => failed(ServerError::Other, false),
        }
    }

    /// The read that follows a write of `value`.
    fn judge_watch(&mut self, reply: &Value<'_>, value: &[u8]) -> Watched {
        match reply.error().map(ServerError::of) {
            Some(ServerError::NoPerm) => {
                // Whoever may not read is not told.
                self.watch = Watch::No;
                Watched::default()
            }
            Some(_) => Watched::default(),
            None => Watched {
                is_told: self.watch == Watch::Yes,
                is_doubtful: reply.as_bytes() != Some(value),
            },
        }
    }

    fn judge_swap<'a>(&mut self, form: Form, kind: OpKind, reply: &ReplyTo<'a, '_>) -> Verdict<'a> {
        if let Some(text) = reply.value.error() {
            let error = ServerError::of(text);
            return match error {
                ServerError::NoPerm if form == Form::SwapGet => {
                    self.may_read = false;
                    Verdict::Again(Form::Swap)
                }
                ServerError::NoPerm => {
                    // Not the reading, the key is not permitted: others may be, to be read as well.
                    self.may_read = true;
                    failed(error, false)
                }
                // Not known here: nothing was executed.
                ServerError::Other => {
                    self.swap = false;
                    Verdict::Again(self.script(kind))
                }
                // A full server refuses SET, but lets a script set a TTL.
                ServerError::OutOfMemory if matches!(kind, OpKind::Renew { .. }) => {
                    Verdict::Again(self.script(kind))
                }
                // The key has another type: it is not ours.
                ServerError::WrongType => refused(None),
                error => failed(error, false),
            };
        }
        match (form, &reply.value) {
            (Form::Swap, Value::Simple(b"OK")) => reply.granted(),
            (_, Value::Null) => Verdict::Done(Outcome::Gone),
            (Form::SwapGet, Value::Bulk(shown)) if *shown == reply.expected => reply.granted(),
            (Form::SwapGet, Value::Bulk(shown)) => Verdict::Shown(shown),
            _ => failed(ServerError::Other, true),
        }
    }

    /// One reply for each value; the first ones stand for the hold.
    fn judge_clear<'a>(
        &mut self,
        form: Form,
        reply: &ReplyTo<'a, '_>,
        partial: &mut Partial,
    ) -> Verdict<'a> {
        if let Form::ClearScript(_) = form {
            self.learn_script(OpKind::Clear, reply);
        }
        match (reply.value.error(), reply.value.as_int()) {
            (None, Some(n)) => partial.mine |= partial.replies < reply.of_hold && n > 0,
            (Some(text), _) => partial.error = Some(ServerError::of(text)),
            (None, None) => partial.error = Some(ServerError::Other),
        }
        partial.replies += 1;
        if reply.more > 0 {
            return Verdict::More;
        }
        match (partial.error, form) {
            (None, _) => Verdict::Done(Outcome::Cleared { mine: partial.mine }),
            // The other type is not ours to delete.
            (Some(ServerError::WrongType), _) => Verdict::Done(Outcome::Cleared { mine: false }),
            (Some(ServerError::NoScript), Form::ClearScript(Sent::Sha)) => {
                Verdict::Again(Form::ClearScript(Sent::Text))
            }
            (Some(error), Form::ClearScript(_)) => failed(error, script_may_have_run(error)),
            // Not known here, not permitted, or (Redis) the key has another type: the script.
            (Some(ServerError::Other | ServerError::NoPerm), _) => {
                self.clear = SCRIPT_CLEAR;
                Verdict::Again(self.form(OpKind::Clear))
            }
            // What was deleted before the error came is not found by the next clean-up.
            (Some(error), _) => failed(error, partial.mine),
        }
    }
}

/// What the read that follows a write says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watched {
    /// Changes from here on are told.
    is_told: bool,
    /// It does not show what was written: something happened in between.
    is_doubtful: bool,
}

/// A reply, and what is known of its request.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo<'a, 'e> {
    /// The reply.
    pub value: Value<'a>,
    /// The value the operation compared with.
    pub expected: &'e [u8],
    /// When the request was handed out.
    pub handed_out: Tick,
    /// How many replies to it are still to come.
    pub more: u8,
    /// Of a clean-up, how many of its replies are to values of the hold: the first ones.
    pub of_hold: u8,
}

impl ReplyTo<'_, '_> {
    fn granted(&self) -> Verdict<'static> {
        Verdict::Done(self.grant())
    }

    fn grant(&self) -> Outcome {
        Outcome::Granted {
            handed_out: self.handed_out,
        }
    }
}

impl Partial {
    /// A look showed a value; this attempt of the same request had written it, if any.
    pub fn note_shown(&mut self, own: Option<u32>) {
        self.shown = true;
        self.own = own;
    }

    /// Whether a look showed a value.
    pub fn has_shown(&self) -> bool {
        self.shown
    }
}

/// How many replies an operation in this form gets.
fn replies(form: Form, leases: &Leases, id: LeaseId) -> u8 {
    match form {
        Form::LookValue | Form::LookHeld => 2,
        Form::Delex | Form::Delifeq | Form::ClearScript(_) => leases
            .lease(id)
            .map_or(0, |lease| lease.leftovers().as_slice().len() as u8),
        _ => 1,
    }
}

/// The value that an operation compares with.
fn expected(leases: &Leases, id: LeaseId, kind: OpKind) -> Option<LeaseValue> {
    match kind {
        OpKind::Adopt { old, .. } | OpKind::Rotate { old, .. } => leases.value(id, old),
        OpKind::Renew { attempt } | OpKind::Look { attempt } => leases.value(id, attempt),
        OpKind::Acquire { .. } | OpKind::Clear => None,
    }
}

/// Gives the arguments of each command of an operation to `each`.
fn commands(
    form: Form,
    leases: &Leases,
    id: LeaseId,
    kind: OpKind,
    mut each: impl FnMut(&[Arg<'_>]),
) {
    let Some(lease) = leases.lease(id) else {
        return;
    };
    let key = Arg::Bytes(leases.key(id));
    let ms = Arg::Int(lease.terms().lease_ms());
    let (new, old) = match kind {
        OpKind::Acquire { attempt } => (attempt, attempt),
        OpKind::Adopt { attempt, old } | OpKind::Rotate { attempt, old } => (attempt, old),
        OpKind::Renew { attempt } => (attempt, attempt),
        OpKind::Look { .. } | OpKind::Clear => (0, 0),
    };
    let bytes = |attempt| leases.value(id, attempt);
    match form {
        Form::AcquireGet | Form::Acquire => {
            let Some(value) = bytes(new) else { return };
            let value = Arg::Bytes(value.as_bytes());
            match form {
                Form::AcquireGet => {
                    each(&[
                        "SET".into(),
                        key,
                        value,
                        "NX".into(),
                        "GET".into(),
                        "PX".into(),
                        ms,
                    ]);
                }
                _ => each(&["SET".into(), key, value, "NX".into(), "PX".into(), ms]),
            }
        }
        Form::LookValue => {
            each(&["GET".into(), key]);
            each(&["PTTL".into(), key]);
        }
        Form::LookTtl => each(&["PTTL".into(), key]),
        Form::LookHeld | Form::LookForced | Form::LookReplaced => {
            let forced = leases.helper_key(id, FORCED);
            each(&["GET".into(), Arg::Bytes(&forced)]);
            if form == Form::LookHeld {
                each(&["GET".into(), key]);
            }
        }
        Form::SwapGet | Form::Swap | Form::SwapScript(_) => {
            let (Some(new), Some(old)) = (bytes(new), bytes(old)) else {
                return;
            };
            let (new, old) = (Arg::Bytes(new.as_bytes()), Arg::Bytes(old.as_bytes()));
            let (set, ifeq, px) = ("SET".into(), "IFEQ".into(), "PX".into());
            match form {
                Form::SwapGet => each(&[set, key, new, ifeq, old, "GET".into(), px, ms]),
                Form::SwapScript(sent) if matches!(kind, OpKind::Renew { .. }) => {
                    let [verb, script] = call(&RENEW, sent);
                    each(&[verb, script, Arg::Int(1), key, old, ms]);
                }
                Form::SwapScript(sent) => {
                    let [verb, script] = call(&ADOPT, sent);
                    each(&[verb, script, Arg::Int(1), key, old, ms, new]);
                }
                _ => each(&[set, key, new, ifeq, old, px, ms]),
            }
        }
        Form::Mint(sent) => {
            let (Some(value), Some(replaced)) = (bytes(new), bytes(old)) else {
                return;
            };
            let (counter, floor) = (leases.helper_key(id, FENCE), leases.floor(id));
            let [verb, script] = call(&MINT, sent);
            let args = [
                verb,
                script,
                Arg::Int(2),
                key,
                Arg::Bytes(&counter),
                Arg::Bytes(value.as_bytes()),
                ms,
                Arg::Int(floor),
                Arg::Bytes(replaced.as_bytes()),
            ];
            match kind {
                OpKind::Adopt { .. } => each(&args),
                _ => each(&args[..args.len() - 1]),
            }
        }
        Form::Take(sent) => {
            let Some(value) = bytes(new) else { return };
            let key_of = |suffix| leases.helper_key(id, suffix);
            let (queue, alive, counter) = (key_of(QUEUE), key_of(ALIVE), key_of(FENCE));
            let waits = !lease.is_single_try();
            let entry = if waits { leases.entry(id) } else { None };
            let [verb, script] = call(&TAKE, sent);
            let most = leases.max_waiters(id).filter(|_| waits);
            let args = [
                verb,
                script,
                Arg::Int(4),
                key,
                Arg::Bytes(&queue),
                Arg::Bytes(&alive),
                Arg::Bytes(&counter),
                Arg::Bytes(value.as_bytes()),
                ms,
                Arg::Bytes(entry.as_deref().unwrap_or_default()),
                Arg::Int(leases.age_us(id)),
                match leases.is_fenced(id) {
                    true => Arg::Int(leases.floor(id)),
                    false => "".into(),
                },
                Arg::Int(most.unwrap_or(0).into()),
            ];
            // What comes last is left out where nobody counts.
            each(&args[..args.len() - usize::from(most.is_none())]);
        }
        Form::Pass(sent) => {
            let (queue, alive) = (leases.helper_key(id, QUEUE), leases.helper_key(id, ALIVE));
            let entry = leases.entry(id).unwrap_or_default();
            let next = leases.next_in_turn(id);
            let next_entry = next.and_then(|next| leases.entry(next)).unwrap_or_default();
            let values: Vec<_> = lease
                .leftovers()
                .as_slice()
                .iter()
                .filter_map(|a| bytes(*a))
                .collect();
            let [verb, script] = call(&PASS, sent);
            let mut args = Vec::from([
                verb,
                script,
                Arg::Int(3),
                key,
                Arg::Bytes(&queue),
                Arg::Bytes(&alive),
                Arg::Bytes(&entry),
                Arg::Bytes(&next_entry),
                Arg::Int(next.map_or(0, |next| leases.age_us(next))),
                Arg::Int(lease.leftovers().of_hold().len() as u64),
            ]);
            args.extend(values.iter().map(|value| Arg::Bytes(value.as_bytes())));
            each(&args);
        }
        Form::Cool(sent) => cool::commands(sent, leases, id, key, each),
        Form::Delex | Form::Delifeq | Form::ClearScript(_) => {
            for attempt in lease.leftovers().as_slice() {
                let Some(value) = bytes(*attempt) else { return };
                let value = Arg::Bytes(value.as_bytes());
                match form {
                    Form::Delex => each(&["DELEX".into(), key, "IFEQ".into(), value]),
                    Form::ClearScript(sent) => {
                        let [verb, script] = call(&CLEAR, sent);
                        each(&[verb, script, Arg::Int(1), key, value]);
                    }
                    _ => each(&["DELIFEQ".into(), key, value]),
                }
            }
        }
    }
}

const SCRIPT_CLEAR: Form = Form::ClearScript(Sent::Text);

fn judge_swap_script<'a>(sent: Sent, reply: &ReplyTo<'a, '_>) -> Verdict<'a> {
    if let Some(text) = reply.value.error() {
        let error = ServerError::of(text);
        return match (error, sent) {
            (ServerError::NoScript, Sent::Sha) => Verdict::Again(Form::SwapScript(Sent::Text)),
            (error, _) => failed(error, script_may_have_run(error)),
        };
    }
    match reply.value {
        Value::Int(1) => reply.granted(),
        Value::Int(_) => refused(None),
        Value::Bulk(shown) => Verdict::Shown(shown),
        // RESP2 answers a Lua false with a null, RESP3 may answer it with false.
        Value::Null | Value::Bool(false) => Verdict::Done(Outcome::Gone),
        _ => failed(ServerError::Other, true),
    }
}

fn failed(error: ServerError, maybe_executed: bool) -> Verdict<'static> {
    Verdict::Done(Outcome::Failed {
        failure: Failure::Server(error),
        maybe_executed,
    })
}

fn refused(remaining: Option<Duration>) -> Verdict<'static> {
    Verdict::Done(Outcome::Refused {
        own: None,
        remaining,
        watched: false,
    })
}

/// A PTTL: -2 for a key that is gone, -1 for one without an expiry, an error where it is not permitted.
fn remaining(reply: &Value<'_>) -> Option<Duration> {
    match reply.as_int() {
        Some(-2) => Some(Duration::ZERO),
        Some(ms) => u64::try_from(ms).ok().map(Duration::from_millis),
        None => None,
    }
}
