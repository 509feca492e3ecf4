//! One lease: the policy of a single lock, without bytes, without allocation.
//!
//! A [`Lease`] says which [operation](Op) it wants next, is told its [`Outcome`], and tells the
//! [events](Event) that follow. Who carries the operations out is not its business: a RESP
//! connection ([`mux`](crate::mux)), an SQL engine, a test.
//!
//! Its methods are of four kinds, and none of them reads a clock:
//!
//! - *getters* take `&self`: [`holds_at`](Lease::holds_at), [`valid_until`](Lease::valid_until), [`deadline`](Lease::deadline);
//! - *inputs* are facts from outside: [`handle_outcome`](Lease::handle_outcome), [`handle_timeout`](Lease::handle_timeout), ...;
//! - *requests* are what the caller wants: [`release`](Lease::release), [`abandon`](Lease::abandon), ...;
//! - *outputs* are taken until they are empty: [`poll_op`](Lease::poll_op), [`poll_event`](Lease::poll_event).
//!
//! After an input or a request take all outputs, then read the deadline. Forgetting one delays, it
//! never corrupts; calls that do not fit the state change nothing.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::config::{LeaseConfig, Wait};
//! use tenure_core::lease::{Event, Lease, OpKind, Outcome};
//! use tenure_core::time::Tick;
//!
//! let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
//! let start = Tick::from_micros(0);
//! let mut lease = Lease::new(start, terms, Wait::Now, Duration::from_secs(10), 1);
//! lease.turn(start);
//!
//! let op = lease.poll_op().unwrap();
//! assert_eq!(op.kind, OpKind::Acquire { attempt: 1 });
//!
//! // The store answers after 3 ms; the first byte of the command was handed out at `start`.
//! let now = start + Duration::from_millis(3);
//! lease.handle_outcome(now, op.seq, Outcome::Granted { handed_out: start });
//! assert!(matches!(lease.poll_event(), Some(Event::Acquired { .. })));
//!
//! // Validity counts from the hand-out, less the margin.
//! assert!(lease.holds_at(start + Duration::from_secs(26)));
//! assert!(!lease.holds_at(start + Duration::from_secs(27)));
//! # Ok::<(), tenure_core::error::ConfigError>(())
//! ```

mod leftovers;
pub mod table;

use core::time::Duration;

use crate::config::{REPLY_LIMIT, Terms, Wait};
use crate::error::Failure;
use crate::rng::Rng;
use crate::time::{Deadline, Reason, Tick};

pub use leftovers::Leftovers;
pub use table::State;
use table::{Act, Input};

/// Backoff between attempts: the first bound, doubled up to the last.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
const BACKOFF_LAST: Duration = Duration::from_millis(400);
/// No retry comes sooner than this, whatever the jitter.
const BACKOFF_LEAST: Duration = Duration::from_millis(2);
/// The last attempt of a wait leaves at least this much time for its reply.
const LAST_ATTEMPT_LEAD: Duration = Duration::from_millis(5);

/// The number an operation is known by; only the newest one of a lease counts.
pub type Seq = u32;

/// An operation that the lease wants carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Give it back with the outcome.
    pub seq: Seq,
    /// What to do.
    pub kind: OpKind,
}

/// What an operation does. Every attempt writes a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Write the value of `attempt` with the lease as its TTL if the key is free.
    Acquire {
        /// The attempt whose value is written.
        attempt: u32,
    },
    /// Replace the value of attempt `old` by that of `attempt`, with a fresh TTL.
    Adopt {
        /// The attempt whose value is written.
        attempt: u32,
        /// The unanswered attempt whose value the key showed.
        old: u32,
    },
    /// Set the TTL anew if the key still has the value of `attempt`.
    Renew {
        /// The attempt whose value the key has.
        attempt: u32,
    },
    /// Delete the key if it has one of the values in [`Lease::leftovers`], the first one first.
    Clear,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acquired, adopted or renewed.
    Granted {
        /// When the first byte of the command was handed out.
        handed_out: Tick,
    },
    /// The key has another value.
    Refused {
        /// The attempt of this same request whose value is shown, byte for byte.
        own: Option<u32>,
        /// How long the other's lease runs on, if it is known.
        remaining: Option<Duration>,
    },
    /// The key does not exist.
    Gone,
    /// The clean-up is done.
    Cleared {
        /// Whether the key had the first of the values until then.
        mine: bool,
    },
    /// An error was answered.
    Failed {
        /// Which.
        failure: Failure,
        /// Whether the operation may have been executed all the same: a script failed midway.
        maybe_executed: bool,
    },
    /// No reply will come.
    NoReply {
        /// Whether the operation may have been executed: its first byte was handed out.
        maybe_executed: bool,
        /// Why.
        failure: Failure,
    },
}

/// What there is to tell.
///
/// A request ends with exactly one of `Acquired`, `Held`, `TimedOut`, `Failed`; a hold, which begins
/// with `Acquired`, ends with exactly one of `Lost`, `Released`, `Abandoned`. A future or guard that
/// was dropped is told nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hold begins.
    Acquired {
        /// The end of validity, if nothing is renewed.
        valid_until: Tick,
    },
    /// Somebody else holds the name.
    Held {
        /// How long their lease runs on, if it is known.
        remaining: Option<Duration>,
    },
    /// The wait is over, and the name is still taken.
    TimedOut,
    /// The request failed.
    Failed(Failure),
    /// The hold goes on.
    Renewed {
        /// The new end of validity.
        valid_until: Tick,
    },
    /// A renewal did not count; the hold goes on until it is given up.
    RenewalFailed(Failure),
    /// The hold is lost.
    Lost(Lost),
    /// The hold was released by its holder.
    Released {
        /// Whether the server confirmed it. If not, the clean-up goes on.
        confirmed: bool,
    },
    /// The hold was left to its TTL.
    Abandoned,
}

/// The end of a hold that its holder did not want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub cause: Cause,
    /// Until then the key still excludes others, if nobody removed it: the work should end by then.
    pub stop_by: Tick,
}

/// Why a hold was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// No renewal was confirmed in time.
    Expired {
        /// How long after it was due this was noticed: a paused process is told late.
        late_by: Duration,
    },
    /// The longest hold that was asked for is over.
    MaxHold,
    /// The key has somebody else's value.
    Replaced,
    /// The key is gone: deleted, evicted or flushed; the server does not say which.
    Gone,
    /// The client was closed while the guard still lived.
    Closed,
}

/// The wait, resolved to ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// One attempt; without an answer it fails then.
    Once(Tick),
    /// Attempts until then, the last one no earlier than half-way.
    Tick { half: Tick, end: Tick },
    /// Attempts without an end.
    Forever,
}

/// The one operation of a lease: wanted, or with the store.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Idle,
    Due(OpKind),
    Out(Seq, OpKind),
}

/// What is still to be told.
#[derive(Clone, Copy, Debug)]
struct Telling {
    acquired: bool,
    renewed: bool,
    renewal_failed: Option<Failure>,
    end: Option<Event>,
}

/// One request for a lock and the hold it may become. See the [module](self).
#[derive(Clone, Debug)]
pub struct Lease {
    terms: Terms,
    until: Until,
    /// The end of validity of the last confirmed hand-out.
    valid_until: Tick,
    /// The hand-out that counts.
    confirmed: Tick,
    /// The next renewal, attempt or clean-up; `Tick::MAX` for none.
    next: Tick,
    /// When an unanswered release is told as unconfirmed; `Tick::MAX` for never.
    overdue: Tick,
    /// The hold ends by then; `Tick::MAX` for never.
    max_end: Tick,
    /// When what may be left has surely expired.
    forget: Option<Tick>,
    /// When the connection of the last acquire or renewal was declared dead.
    dead_since: Option<Tick>,
    last_failure: Option<Failure>,
    telling: Telling,
    leftovers: Leftovers,
    rng: Rng,
    slot: Slot,
    superseded: Option<(Seq, OpKind)>,
    seq: Seq,
    /// Attempts so far; the value of the newest one is the value of the hold.
    attempt: u32,
    /// The attempt shown by a refusal.
    shown: u32,
    /// The last round trip in microseconds, saturating.
    round_trip: u32,
    refusals: u8,
    /// The last attempt that the wait allows was made.
    last_attempt_made: bool,
    /// `max_hold` leaves no room for another renewal.
    renewals_over: bool,
    /// A clean-up may already have been executed, so that a second one finds nothing.
    clear_ambiguous: bool,
    state: State,
}

impl Lease {
    /// A request, queued until its [`turn`](Lease::turn).
    ///
    /// `patience` bounds a [`Wait::Now`], and a wait of zero, which is the same: without an answer by then it fails, and what it may have
    /// left is cleared. `seed` feeds the jitter; it is no secret.
    pub fn new(now: Tick, terms: Terms, wait: Wait, patience: Duration, seed: u64) -> Lease {
        let until = match wait {
            Wait::Now => Until::Once(now + patience),
            Wait::For(wait) if wait.is_zero() => Until::Once(now + patience),
            Wait::For(wait) => Until::Tick {
                half: now + wait / 2,
                end: now + wait,
            },
            Wait::Forever => Until::Forever,
        };
        Lease {
            terms,
            until,
            valid_until: Tick::ZERO,
            confirmed: Tick::ZERO,
            next: Tick::MAX,
            overdue: Tick::MAX,
            max_end: Tick::MAX,
            forget: None,
            dead_since: None,
            last_failure: None,
            telling: Telling {
                acquired: false,
                renewed: false,
                renewal_failed: None,
                end: None,
            },
            leftovers: Leftovers::new(),
            rng: Rng::new(seed),
            slot: Slot::Idle,
            superseded: None,
            seq: 0,
            attempt: 0,
            shown: 0,
            round_trip: 0,
            refusals: 0,
            last_attempt_made: false,
            renewals_over: false,
            clear_ambiguous: false,
            state: State::Queued,
        }
    }

    // ---- getters ----

    /// Where the lease stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the lock is held at `now`. Exact for a freshly read `now`, whatever else was called.
    ///
    /// False from the moment a release is asked for, and for good once the loss was told.
    pub fn holds_at(&self, now: Tick) -> bool {
        matches!(self.state, State::Held | State::Renewing) && now < self.valid_until
    }

    /// The end of validity while the lock is held.
    pub fn valid_until(&self) -> Option<Tick> {
        matches!(self.state, State::Held | State::Renewing).then_some(self.valid_until)
    }

    /// Its times.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The attempts whose values may still be on the server: what [`OpKind::Clear`] deletes.
    pub fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// The attempt whose value is the newest one written.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether outputs are waiting to be taken.
    pub fn wants_op(&self) -> bool {
        matches!(self.slot, Slot::Due(_))
    }

    /// Whether the outcome of operation `seq` is still awaited.
    pub fn awaits(&self, seq: Seq) -> bool {
        matches!(self.slot, Slot::Out(out, _) if out == seq)
    }

    /// How long the operation that is due may stay unanswered before its connection is declared dead:
    /// the lease's own limit for renewals, the general one for the rest.
    pub fn reply_limit(&self, kind: OpKind) -> Duration {
        match kind {
            OpKind::Renew { .. } => self.terms.reply_limit(),
            _ => REPLY_LIMIT,
        }
    }

    /// When to call [`handle_timeout`](Lease::handle_timeout).
    pub fn deadline(&self) -> Deadline {
        let at = |tick: Tick, reason| match tick {
            Tick::MAX => Deadline::Never,
            tick => Deadline::At(tick, reason),
        };
        match self.state {
            State::Queued
            | State::Ready
            | State::Acquiring
            | State::Adopting
            | State::Confirming => at(self.wait_end(), Reason::WaitEnds),
            State::Backoff => {
                at(self.next, Reason::Retry).or_earlier(at(self.wait_end(), Reason::WaitEnds))
            }
            State::Held => {
                at(self.give_up(), Reason::GiveUp).or_earlier(at(self.next, Reason::RenewDue))
            }
            State::Renewing => at(self.give_up(), Reason::GiveUp),
            State::Releasing => {
                at(self.overdue, Reason::ReleaseOverdue).or_earlier(self.clearing())
            }
            State::Lost => at(self.forget.unwrap_or(Tick::MAX), Reason::CleanUpForgotten),
            State::Ending => self.clearing(),
            State::Done => Deadline::Never,
        }
    }

    // ---- outputs ----

    /// The operation to carry out now, if there is one. It counts as handed to the store from here on.
    pub fn poll_op(&mut self) -> Option<Op> {
        let Slot::Due(kind) = self.slot else {
            return None;
        };
        self.seq = self.seq.wrapping_add(1);
        match kind {
            OpKind::Acquire { .. } | OpKind::Adopt { .. } | OpKind::Renew { .. } => {
                self.dead_since = None
            }
            OpKind::Clear => {}
        }
        // An attempt takes its number when it is handed out, so that numbers are never used twice.
        let kind = match kind {
            OpKind::Acquire { .. } => {
                self.attempt += 1;
                OpKind::Acquire {
                    attempt: self.attempt,
                }
            }
            OpKind::Adopt { old, .. } => {
                self.attempt += 1;
                OpKind::Adopt {
                    attempt: self.attempt,
                    old,
                }
            }
            other => other,
        };
        self.slot = Slot::Out(self.seq, kind);
        if self.state == State::Ready {
            self.run(Input::Sent, Tick::ZERO);
        }
        Some(Op {
            seq: self.seq,
            kind,
        })
    }

    /// The next thing to tell. Call until it is `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        let telling = &mut self.telling;
        if core::mem::take(&mut telling.acquired) {
            return Some(Event::Acquired {
                valid_until: self.valid_until,
            });
        }
        if core::mem::take(&mut telling.renewed) {
            return Some(Event::Renewed {
                valid_until: self.valid_until,
            });
        }
        if let Some(failure) = telling.renewal_failed.take() {
            return Some(Event::RenewalFailed(failure));
        }
        telling.end.take()
    }

    /// An operation that was handed out and is not wanted any more.
    ///
    /// If none of its bytes has left, drop it and say so with [`handle_purged`](Lease::handle_purged).
    pub fn poll_superseded(&mut self) -> Option<Op> {
        self.superseded.take().map(|(seq, kind)| Op { seq, kind })
    }

    // ---- requests ----

    /// Its turn in the local queue: an attempt may be made.
    pub fn turn(&mut self, now: Tick) {
        self.run(Input::Turn, now);
    }

    /// Another lease of the same name in this process came first: no attempts until the next turn.
    pub fn demote(&mut self, now: Tick) {
        self.run(Input::Demoted, now);
    }

    /// Renew as soon as possible.
    pub fn renew_now(&mut self, now: Tick) {
        self.check_expiry(now);
        if !self.outlasts(now) {
            self.run(Input::RenewDue, now);
        }
    }

    /// Release: [`holds_at`](Lease::holds_at) is false from here on, then the clean-up is handed out.
    pub fn release(&mut self, now: Tick) {
        self.check_expiry(now);
        self.run(Input::Release, now);
    }

    /// Stop renewing and leave the key to its TTL.
    pub fn abandon(&mut self, now: Tick) {
        self.check_expiry(now);
        self.run(Input::Abandon, now);
    }

    /// Nobody waits any more: the future was cancelled, or the guard was dropped.
    ///
    /// What was granted or may have been granted is cleared. After a loss this is the signal that the
    /// work has ended, and only now its clean-up may be sent.
    pub fn drop_guard(&mut self, now: Tick) {
        self.check_expiry(now);
        self.run(Input::Drop, now);
        // There is nobody to tell.
        self.telling = Telling {
            acquired: false,
            renewed: false,
            renewal_failed: None,
            end: None,
        };
    }

    /// The client is being closed: requests fail, holds are told that they are lost.
    pub fn close(&mut self, now: Tick) {
        self.check_expiry(now);
        self.run(Input::Close, now);
        if self.state == State::Lost && self.forget.is_none() {
            // `close` must come to an end even if the guard lives on: by then the key has expired.
            self.forget = Some(now + self.terms.lease());
        }
    }

    // ---- inputs ----

    /// The store's answer to operation `seq`. An answer to any but the newest operation is ignored.
    pub fn handle_outcome(&mut self, now: Tick, seq: Seq, outcome: Outcome) {
        // Expiry first: an OK that lay in a buffer while the process slept revives nothing.
        self.check_expiry(now);
        let Slot::Out(out, kind) = self.slot else {
            return;
        };
        if out != seq {
            return;
        }
        self.slot = Slot::Idle;
        let input = self.classify(now, kind, outcome);
        self.run(input, now);
    }

    /// A superseded operation was dropped before any byte of it had left.
    pub fn handle_purged(&mut self, now: Tick, kind: OpKind) {
        if let OpKind::Acquire { attempt } | OpKind::Adopt { attempt, .. } = kind {
            self.leftovers.remove(attempt);
            if self.state == State::Ending && self.leftovers.is_empty() {
                self.slot = Slot::Idle;
                self.run(Input::NothingLeft, now);
            }
        }
    }

    /// The store can be reached again: renew at once.
    pub fn handle_link_up(&mut self, now: Tick) {
        self.check_expiry(now);
        if self.terms.renew_every().is_some() && !self.outlasts(now) {
            self.run(Input::LinkUp, now);
        }
    }

    /// The connection was declared dead. Operations that were out get their own outcome.
    pub fn handle_link_down(&mut self, now: Tick) {
        if self.dead_since.is_none() {
            self.dead_since = Some(now);
        }
        self.set_forget();
    }

    /// No connection can be had. Ends a single try, and any wait if waiting cannot cure it.
    pub fn handle_link_failed(&mut self, now: Tick, failure: Failure) {
        // A hold goes on until it is given up, a clean-up until it is answered or forgotten.
        if !matches!(self.state, State::Queued | State::Ready | State::Backoff) {
            return;
        }
        self.last_failure = Some(failure);
        if matches!(self.until, Until::Once(_)) || !failure.waiting_may_cure() {
            self.run(Input::FailedLast, now);
        }
    }

    /// Does what is due at `now`. Early and repeated calls change nothing.
    pub fn handle_timeout(&mut self, now: Tick) {
        while self.deadline().is_due(now) {
            let input = match self.deadline() {
                Deadline::At(_, Reason::WaitEnds) => Input::WaitOver,
                Deadline::At(_, Reason::Retry | Reason::CleanUpRetry) => Input::RetryDue,
                Deadline::At(_, Reason::RenewDue) if self.outlasts(now) => {
                    self.next = Tick::MAX;
                    self.renewals_over = true;
                    continue;
                }
                Deadline::At(_, Reason::RenewDue) => Input::RenewDue,
                Deadline::At(_, Reason::GiveUp) => Input::GiveUp,
                Deadline::At(_, Reason::ReleaseOverdue) => Input::ReleaseOverdue,
                Deadline::At(_, Reason::CleanUpForgotten) => Input::Forget,
                _ => return,
            };
            self.run(input, now);
        }
    }

    // ---- helpers ----

    fn wait_end(&self) -> Tick {
        match self.until {
            Until::Once(end) | Until::Tick { end, .. } => end,
            Until::Forever => Tick::MAX,
        }
    }

    fn give_up(&self) -> Tick {
        self.confirmed + self.terms.give_up_after()
    }

    fn clearing(&self) -> Deadline {
        let forget = match self.forget {
            Some(at) => Deadline::At(at, Reason::CleanUpForgotten),
            None => Deadline::Never,
        };
        match self.next {
            Tick::MAX => forget,
            next => forget.or_earlier(Deadline::At(next, Reason::CleanUpRetry)),
        }
    }

    /// A hold whose validity has ended is lost, whatever else arrives.
    fn check_expiry(&mut self, now: Tick) {
        if matches!(self.state, State::Held | State::Renewing) && now >= self.valid_until {
            self.run(Input::GiveUp, now);
        }
    }

    /// Whether a renewal handed out now would outlast `max_hold`.
    fn outlasts(&self, now: Tick) -> bool {
        now + self.terms.validity() > self.max_end
    }

    /// Sorts an outcome into an input that decides the next state.
    fn classify(&mut self, now: Tick, kind: OpKind, outcome: Outcome) -> Input {
        let once = matches!(self.until, Until::Once(_));
        match outcome {
            Outcome::Granted { handed_out } => {
                let trip = crate::time::micros(now.saturating_since(handed_out));
                self.round_trip = u32::try_from(trip).unwrap_or(u32::MAX);
                self.count_from(handed_out);
                let left = self.valid_until.saturating_since(now);
                let validity = self.terms.validity();
                if let OpKind::Adopt { old, .. } = kind {
                    self.leftovers.remove(old);
                }
                match self.state {
                    State::Renewing => Input::Renewed,
                    State::Confirming if left < validity / 4 => Input::ConfirmedLate,
                    State::Confirming => Input::Granted,
                    _ if left < validity / 2 => Input::GrantedLate,
                    _ => Input::Granted,
                }
            }
            Outcome::Refused {
                own: Some(shown), ..
            } if self.takes_over() => {
                self.shown = shown;
                Input::RefusedByOwn
            }
            Outcome::Refused { remaining, .. } => {
                self.note_refusal(now, remaining);
                self.refused(Input::Replaced)
            }
            // A take-over that finds nothing: nobody holds the name, but the one attempt is spent.
            Outcome::Gone if once && self.state == State::Adopting => {
                self.last_failure = Some(Failure::NoReply);
                Input::FailedLast
            }
            Outcome::Gone => {
                self.note_refusal(now, Some(Duration::ZERO));
                self.refused(Input::Gone)
            }
            Outcome::Cleared { mine: true } => Input::Cleared,
            // A clean-up that may have been executed before finds nothing: that is no loss.
            Outcome::Cleared { mine: false } if self.clear_ambiguous => Input::Cleared,
            Outcome::Cleared { mine: false } => Input::ClearedNothing,
            Outcome::Failed {
                failure,
                maybe_executed,
            } => {
                self.last_failure = Some(failure);
                if maybe_executed {
                    self.clear_ambiguous |= kind == OpKind::Clear;
                    if matches!(kind, OpKind::Adopt { .. }) {
                        self.leftovers.push(self.attempt);
                    }
                }
                if once || !failure.waiting_may_cure() {
                    Input::FailedLast
                } else {
                    Input::Failed
                }
            }
            Outcome::NoReply {
                maybe_executed: false,
                ..
            } => Input::Unsent,
            Outcome::NoReply { failure, .. } => {
                self.last_failure = Some(failure);
                self.clear_ambiguous |= kind == OpKind::Clear;
                if matches!(kind, OpKind::Clear | OpKind::Renew { .. })
                    && self.state != State::Confirming
                {
                    Input::Ambiguous
                } else if self.leftovers.is_full() {
                    self.last_failure = Some(Failure::TooManyUnanswered);
                    Input::AmbiguousLast
                } else if once {
                    Input::AmbiguousLast
                } else {
                    Input::Ambiguous
                }
            }
        }
    }

    fn takes_over(&self) -> bool {
        matches!(self.state, State::Acquiring | State::Adopting)
    }

    /// What "not mine" means depends on whether the hold was handed over.
    fn refused(&self, held: Input) -> Input {
        match self.state {
            State::Held | State::Renewing => held,
            _ if matches!(self.until, Until::Once(_)) => Input::RefusedLast,
            _ => Input::Refused,
        }
    }

    /// Remembers when the other's lease ends: the next attempt need not come later than that.
    fn note_refusal(&mut self, now: Tick, remaining: Option<Duration>) {
        self.last_failure = None;
        self.next = remaining.map_or(Tick::MAX, |remaining| now + remaining);
    }

    /// Moves the end of validity to that of this hand-out; never back.
    fn count_from(&mut self, handed_out: Tick) {
        let valid_until = handed_out + self.terms.validity();
        let fresh = !matches!(self.state, State::Held | State::Renewing);
        if fresh || valid_until > self.valid_until {
            self.valid_until = valid_until;
            self.confirmed = handed_out;
        }
    }

    fn set_forget(&mut self) {
        if matches!(self.state, State::Releasing | State::Ending) && self.forget.is_none() {
            // One lease after the connection died, the key has expired by itself. One millisecond
            // more, since the server rounds its TTL up.
            self.forget = self
                .dead_since
                .map(|dead| dead + self.terms.lease() + Duration::from_millis(1));
        }
    }

    fn run(&mut self, input: Input, now: Tick) {
        let Some((_index, rule)) = table::rule(self.state, input) else {
            return;
        };
        #[cfg(any(test, feature = "_cells"))]
        table::cells::count(_index);
        self.supersede(input, rule.next);
        self.state = rule.next;
        self.act(rule.act, input, now);
        if self.state == State::Ending {
            self.end(now);
        }
    }

    /// A step that leaves an operation behind hands it back for purging. A clean-up goes on until
    /// the lease is done.
    fn supersede(&mut self, input: Input, next: State) {
        let clearing = matches!(
            self.slot,
            Slot::Due(OpKind::Clear) | Slot::Out(_, OpKind::Clear)
        );
        if input == Input::Sent || (clearing && next == State::Ending) {
            return;
        }
        if let Slot::Out(seq, kind) = self.slot {
            self.superseded = Some((seq, kind));
        }
        self.slot = Slot::Idle;
    }

    /// Over: either something is left to clear, or nothing.
    fn end(&mut self, now: Tick) {
        self.set_forget();
        if self.slot != Slot::Idle || self.next != Tick::MAX {
            return;
        }
        if self.leftovers.is_empty() {
            self.run(Input::NothingLeft, now);
        } else {
            self.slot = Slot::Due(OpKind::Clear);
        }
    }

    fn act(&mut self, act: Act, input: Input, now: Tick) {
        match act {
            Act::Nothing => {
                if self.state == State::Ending {
                    self.next = Tick::MAX;
                }
            }
            Act::Attempt => self.attempt_due(now),
            Act::Adopt => {
                self.slot = Slot::Due(OpKind::Adopt {
                    attempt: 0,
                    old: self.shown,
                });
            }
            Act::Confirm => {
                self.slot = Slot::Due(OpKind::Renew {
                    attempt: self.attempt,
                })
            }
            Act::Hold => self.hold(now),
            Act::Renew => {
                self.next = Tick::MAX;
                self.slot = Slot::Due(OpKind::Renew {
                    attempt: self.attempt,
                });
            }
            Act::Extend => {
                self.telling.renewed = true;
                self.schedule_renewal();
            }
            Act::RetryRenewal => {
                self.telling.renewal_failed = self.last_failure;
                self.next = now + self.short_delay();
            }
            Act::BackOff => self.back_off(now),
            Act::Remember => self.leftovers.push(self.attempt),
            Act::RememberAttempt => {
                self.leftovers.push(self.attempt);
                self.attempt_due(now);
            }
            Act::RememberBackOff => {
                self.leftovers.push(self.attempt);
                self.back_off(now);
            }
            Act::TellHeld => {
                let remaining = (self.next != Tick::MAX).then(|| self.next.saturating_since(now));
                self.finish(Event::Held { remaining });
            }
            Act::TellTimedOut => self.time_out(),
            Act::RememberTimedOut => {
                self.leftovers.push(self.attempt);
                self.time_out();
            }
            Act::TellFailed => self.fail(),
            Act::RememberFailed => {
                self.leftovers.push(self.attempt);
                self.fail();
            }
            Act::TellSlow => {
                self.leftovers.push(self.attempt);
                self.finish(Event::Failed(Failure::SlowReplies));
            }
            Act::TellClosed => self.finish(Event::Failed(Failure::Closed)),
            Act::RememberClosed => {
                self.leftovers.push(self.attempt);
                self.finish(Event::Failed(Failure::Closed));
            }
            Act::TellLost => self.lose(input, now),
            Act::Clear => {
                self.leftovers.push_first(self.attempt);
                self.overdue = now + REPLY_LIMIT.min(self.terms.lease());
                self.next = Tick::MAX;
                self.slot = Slot::Due(OpKind::Clear);
                self.set_forget();
            }
            Act::ClearAgain => {
                self.next = Tick::MAX;
                self.slot = Slot::Due(OpKind::Clear);
                self.set_forget();
            }
            Act::RetryClear => {
                self.next = now + self.short_delay();
                // An error that nothing cures must not keep the clean-up for ever.
                let expired = now + self.terms.lease() + Duration::from_millis(1);
                self.forget.get_or_insert(expired);
            }
            Act::TellReleased => self.finish(Event::Released { confirmed: true }),
            Act::TellUnconfirmed => self.telling.end = Some(Event::Released { confirmed: false }),
            Act::TellAlreadyLost => self.finish(Event::Lost(Lost {
                cause: Cause::Gone,
                stop_by: now,
            })),
            Act::TellAbandoned => self.finish(Event::Abandoned),
        }
    }

    fn attempt_due(&mut self, now: Tick) {
        self.next = Tick::MAX;
        if let Until::Tick { .. } = self.until {
            self.last_attempt_made = now >= self.last_attempt();
        }
        self.slot = Slot::Due(OpKind::Acquire { attempt: 0 });
    }

    /// When the last attempt of a wait is made: late enough to count, early enough to be answered.
    fn last_attempt(&self) -> Tick {
        match self.until {
            Until::Once(_) | Until::Forever => Tick::MAX,
            Until::Tick { half, end } => {
                let lead = Duration::from_micros(u64::from(self.round_trip)) * 4;
                (end - lead.max(LAST_ATTEMPT_LEAD)).max(half)
            }
        }
    }

    fn back_off(&mut self, now: Tick) {
        if self.last_attempt_made {
            self.next = Tick::MAX;
            return;
        }
        let bound = BACKOFF_FIRST * (1 << self.refusals.min(5));
        self.refusals = self.refusals.saturating_add(1);
        let delay = self.rng.up_to(bound.min(BACKOFF_LAST)).max(BACKOFF_LEAST);
        // The other's lease may end sooner; a little jitter keeps waiters apart then, too.
        let expiry = match self.next {
            Tick::MAX => Tick::MAX,
            expiry => expiry + self.rng.up_to(BACKOFF_LEAST) + BACKOFF_LEAST,
        };
        self.next = (now + delay)
            .min(expiry)
            .min(self.last_attempt())
            .max(now + Duration::from_micros(1));
    }

    fn hold(&mut self, now: Tick) {
        self.telling.acquired = true;
        self.last_failure = None;
        if let Some(max_hold) = self.terms.max_hold() {
            self.max_end = now + max_hold;
        }
        self.schedule_renewal();
    }

    fn schedule_renewal(&mut self) {
        self.next = match self.terms.renew_every() {
            // Only ever earlier: many leases taken together do not renew together for ever.
            Some(every) => self.confirmed + every - self.rng.up_to(every / 10),
            None => Tick::MAX,
        };
    }

    /// Between two tries of a renewal or a clean-up.
    fn short_delay(&mut self) -> Duration {
        let most = self.terms.reply_limit() / 2;
        most / 2 + self.rng.up_to(most / 2) + Duration::from_micros(1)
    }

    fn time_out(&mut self) {
        match (self.until, self.last_failure) {
            (Until::Once(_), failure) => {
                self.finish(Event::Failed(failure.unwrap_or(Failure::NoReply)))
            }
            // The last thing known is an error, not that somebody holds the name.
            (_, Some(failure)) => self.finish(Event::Failed(failure)),
            (_, None) => self.finish(Event::TimedOut),
        }
    }

    fn fail(&mut self) {
        let failure = self.last_failure.unwrap_or(Failure::NoReply);
        self.finish(Event::Failed(failure));
    }

    fn lose(&mut self, input: Input, now: Tick) {
        let cause = match input {
            Input::Gone => Cause::Gone,
            Input::Replaced => Cause::Replaced,
            Input::Close => Cause::Closed,
            _ if self.renewals_over => Cause::MaxHold,
            _ => Cause::Expired {
                late_by: now.saturating_since(self.give_up()),
            },
        };
        if !matches!(cause, Cause::Gone | Cause::Replaced) {
            self.leftovers.push_first(self.attempt);
        }
        let stop_by = match cause {
            Cause::Gone | Cause::Replaced => now,
            _ => self.valid_until,
        };
        self.finish(Event::Lost(Lost { cause, stop_by }));
    }

    fn finish(&mut self, event: Event) {
        self.next = Tick::MAX;
        self.telling.end = Some(event);
    }
}
