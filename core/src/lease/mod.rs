//! One lease: the policy of a single lock, without bytes, without allocation.
//!
//! A [`Lease`] says which [operation](Op) it wants next, is told its [`Outcome`], and tells the
//! [events](Event) that follow. Who carries the operations out is not its business: a RESP
//! connection (`mux`), an SQL engine, a test.
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

mod act;
mod leftovers;
mod minimum;
mod rotation;
pub mod table;
#[cfg(test)]
mod tests;
mod types;

use core::time::Duration;

use crate::config::{POLL_LIMIT, REPLY_LIMIT, Terms, Wait};
use crate::error::Failure;
use crate::rng::Rng;
use crate::time::{Deadline, Reason, Tick};

pub use leftovers::Leftovers;
use rotation::Rotation;
use table::Input;
pub use table::State;
pub use types::{Cause, Event, Lost, Op, OpKind, Outcome, Seq, Vanished};

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
    vanished: bool,
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
    /// When the grant was told; `Tick::MAX` for never.
    granted: Tick,
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
    /// Attempts so far.
    attempt: u32,
    /// The attempt whose value was last known to be on the key: granted, or shown by a refusal.
    current: u32,
    /// The last round trip in microseconds, saturating.
    round_trip: u32,
    /// The general reply limit in milliseconds.
    reply_limit_ms: u32,
    refusals: u8,
    /// The longest delay between two attempts while the store tells of changes, in milliseconds.
    poll_limit_ms: u32,
    /// The store tells of changes to the key: since the last refusal.
    watched: bool,
    /// For how long who waits is taken for alive, in milliseconds; zero if the lock is not fair.
    waiter_ms: u32,
    /// The store was asked to have it wait for its turn, and has not given it since.
    queued: bool,
    /// The attempt under way was made though nothing was told and the other's lease was not over.
    unprompted: bool,
    /// Such an attempt found the key free.
    missed: bool,
    /// The key was seen to be gone, or another's; the outcome that says so with everything is still to come.
    vanished: Option<Vanished>,
    /// The look under way is at a server that may not know of the hold: the first after a connection was made anew.
    unsure: bool,
    /// When something that the store told was last acted upon.
    prompted: Tick,
    /// Something more was told right after that, and is put off for a moment.
    put_off: bool,
    /// The last attempt that the wait allows was made.
    last_attempt_made: bool,
    /// `max_hold` leaves no room for another renewal.
    renewals_over: bool,
    /// A clean-up may already have been executed, so that a second one finds nothing.
    clear_ambiguous: bool,
    rotation: Rotation,
    state: State,
}

impl Lease {
    /// A request, queued until its [`turn`](Lease::turn).
    ///
    /// `patience` bounds a [single try](Wait::is_single_try): without an answer by then it fails, and
    /// what it may have left is cleared. `seed` feeds the jitter; it is no secret.
    pub fn new(now: Tick, terms: Terms, wait: Wait, patience: Duration, seed: u64) -> Lease {
        let until = match wait {
            _ if wait.is_single_try() => Until::Once(now + patience),
            Wait::Now => Until::Once(now + patience),
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
            granted: Tick::MAX,
            forget: None,
            dead_since: None,
            last_failure: None,
            telling: Telling {
                acquired: false,
                renewed: false,
                vanished: false,
                renewal_failed: None,
                end: None,
            },
            leftovers: Leftovers::new(),
            rng: Rng::new(seed),
            slot: Slot::Idle,
            superseded: None,
            seq: 0,
            attempt: 0,
            current: 0,
            round_trip: 0,
            reply_limit_ms: REPLY_LIMIT.as_millis() as u32,
            refusals: 0,
            poll_limit_ms: POLL_LIMIT.as_millis() as u32,
            watched: false,
            waiter_ms: 0,
            queued: false,
            unprompted: false,
            missed: false,
            vanished: None,
            unsure: false,
            prompted: Tick::ZERO,
            put_off: false,
            last_attempt_made: false,
            renewals_over: false,
            clear_ambiguous: false,
            rotation: Rotation::Off,
            state: State::Queued,
        }
    }

    /// With another general reply limit than 5 s: how long a release, and any operation but a renewal, may
    /// stay unanswered.
    #[must_use]
    pub fn with_reply_limit(mut self, limit: Duration) -> Lease {
        self.reply_limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        self
    }

    /// With another longest delay than 10 s between two attempts while the store tells of changes to the key:
    /// [`POLL_LIMIT`].
    #[must_use]
    pub fn with_poll_limit(mut self, limit: Duration) -> Lease {
        let limit = limit.max(act::BACKOFF_LAST);
        self.poll_limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        self
    }

    /// First come, first served: who waits has a place in a queue at the store, and keeps it for so long after each attempt.
    /// [`OpKind::Acquire`] is to take its turn or ask for it, [`OpKind::Clear`] to give up both.
    #[must_use]
    pub fn with_fair(mut self, waiter_lease: Option<Duration>) -> Lease {
        let ms = waiter_lease.map_or(0, |lease| lease.as_millis());
        self.waiter_ms = u32::try_from(ms).unwrap_or(u32::MAX);
        self
    }

    // ---- getters ----

    /// Whether it is first come, first served.
    pub fn is_fair(&self) -> bool {
        self.waiter_ms > 0
    }

    /// For how long who waits keeps its place after an attempt, where it is first come, first served.
    pub fn waiter_lease(&self) -> Option<Duration> {
        let lease = Duration::from_millis(u64::from(self.waiter_ms));
        self.is_fair().then_some(lease)
    }

    /// Whether it makes one attempt only.
    pub fn is_single_try(&self) -> bool {
        matches!(self.until, Until::Once(_))
    }

    /// Whether it waits for its turn, or is about to.
    pub fn is_waiting(&self) -> bool {
        let waits = matches!(
            self.state,
            State::Queued | State::Ready | State::Acquiring | State::Backoff
        );
        waits && !self.is_single_try()
    }

    /// Where the lease stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the lock is held at `now`. Exact for a freshly read `now`, whatever else was called.
    ///
    /// False from the moment a release is asked for, and for good once the loss was told.
    pub fn holds_at(&self, now: Tick) -> bool {
        self.state.is_held() && self.vanished.is_none() && now < self.valid_until
    }

    /// The end of validity while the lock is held.
    pub fn valid_until(&self) -> Option<Tick> {
        (self.state.is_held() && self.vanished.is_none()).then_some(self.valid_until)
    }

    /// Its times.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The attempts whose values may still be on the server: what [`OpKind::Clear`] deletes.
    pub fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    /// The newest attempt: none has a higher number.
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
            OpKind::Rotate { .. } | OpKind::Renew { .. } | OpKind::Look { .. }
                if self.state != State::Confirming =>
            {
                self.terms.reply_limit()
            }
            _ => Duration::from_millis(u64::from(self.reply_limit_ms)),
        }
    }

    /// How long a dial that begins at `now` may take: half of what is left until the hold is given up, at least the
    /// reply limit of its renewals.
    pub fn dial_limit(&self, now: Tick) -> Duration {
        let half = self.give_up().saturating_since(now) / 2;
        half.max(self.terms.reply_limit())
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
            State::Held | State::Checking => at(self.give_up(), Reason::GiveUp)
                .or_earlier(at(self.next, Reason::RenewDue))
                .or_earlier(match self.state {
                    State::Held if self.put_off => {
                        at(self.prompted + act::BACKOFF_LEAST, Reason::LookDue)
                    }
                    _ => Deadline::Never,
                }),
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
            OpKind::Acquire { .. }
            | OpKind::Adopt { .. }
            | OpKind::Rotate { .. }
            | OpKind::Renew { .. } => self.dead_since = None,
            OpKind::Look { .. } | OpKind::Clear => {}
        }
        // An attempt takes its number when it is handed out, so that numbers are never used twice.
        let kind = match kind {
            OpKind::Acquire { .. } => {
                if self.attempt == 0 {
                    // Until it is answered nobody knows that somebody holds the name.
                    self.last_failure.get_or_insert(Failure::NoReply);
                }
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
            OpKind::Rotate { old, .. } => {
                self.attempt += 1;
                OpKind::Rotate {
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
        if core::mem::take(&mut telling.vanished) && telling.end.is_none() {
            return Some(Event::Vanished);
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
        self.unprompted = false;
        self.run(Input::Turn, now);
    }

    /// Another lease of the same name in this process came first: no attempts until the next turn.
    pub fn demote(&mut self, now: Tick) {
        self.run(Input::Demoted, now);
    }

    /// Renew as soon as possible.
    pub fn renew_now(&mut self, now: Tick) {
        self.check_expiry(now);
        if matches!(self.state, State::Held | State::Checking) && self.outlasts(now) {
            // Not silence: somebody may wait for the answer.
            self.telling.renewal_failed = Some(Failure::MaxHold);
        } else {
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
            vanished: false,
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
        if out != seq || !outcome.fits(kind) {
            return;
        }
        self.slot = Slot::Idle;
        let input = self.classify(now, kind, outcome);
        self.run(input, now);
    }

    /// A superseded operation was dropped before any byte of it had left.
    pub fn handle_purged(&mut self, now: Tick, kind: OpKind) {
        if let OpKind::Acquire { attempt }
        | OpKind::Adopt { attempt, .. }
        | OpKind::Rotate { attempt, .. } = kind
        {
            self.leftovers.remove(attempt);
            if self.state == State::Ending && self.leftovers.is_empty() && !self.queued {
                self.run(Input::NothingLeft, now);
            }
        }
    }

    /// How long the store took for the last answer, counted from the hand-out. It decides how long
    /// before the end of its wait a request makes its last attempt.
    pub fn handle_round_trip(&mut self, trip: Duration) {
        self.round_trip = u32::try_from(crate::time::micros(trip)).unwrap_or(u32::MAX);
    }

    /// The store can be reached again: renew at once, or look where nothing is renewed; a waiter makes its attempt.
    pub fn handle_link_up(&mut self, now: Tick) {
        self.check_expiry(now);
        if matches!(self.last_failure, Some(Failure::Link(_))) {
            // It is over: a wait that ends later did not fail of it, but an attempt has still to be answered.
            self.last_failure = (self.attempt > 0).then_some(Failure::NoReply);
        }
        self.watched = false;
        self.unprompted = false;
        let renewed = self.terms.renew_every().is_some() && !self.outlasts(now);
        if !self.state.is_held() || renewed {
            self.run(Input::LinkUp, now);
        } else {
            self.unsure = true;
            self.run(Input::Changed, now);
        }
    }

    /// Something happened to the key, or may have: a waiter makes its attempt, a holder looks.
    ///
    /// What is with the store at this moment comes after the change, so that its outcome knows of it.
    pub fn handle_changed(&mut self, now: Tick) {
        self.check_expiry(now);
        self.unprompted = false;
        // What changes over and over is not followed step by step.
        let soonest = self.prompted + act::BACKOFF_LEAST;
        if self.prompted == Tick::ZERO || now >= soonest {
            self.prompted = now;
            self.run(Input::Changed, now);
        } else if self.state == State::Backoff {
            self.put_off = true;
            self.next = self.next.min(soonest);
        } else if self.state == State::Held {
            self.put_off = true;
        }
    }

    /// The key was seen to be gone or another's, and it is still being asked why: nothing is held from here on, which is told.
    /// The outcome that follows tells the loss; without one it is told when the hold would have been given up.
    pub fn handle_vanished(&mut self, how: Vanished) {
        if self.state.is_held() || self.state == State::Releasing {
            self.telling.vanished |= self.state.is_held() && self.vanished.is_none();
            self.vanished.get_or_insert(how);
        }
    }

    /// Whether a change to the key was not told though it was said that it would be: asked once.
    pub fn take_missed(&mut self) -> bool {
        core::mem::take(&mut self.missed)
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
        // A hold goes on until it is given up, a clean-up until it is answered or forgotten; what is
        // with the store gets its own outcome.
        let waits = match self.state {
            State::Queued | State::Ready | State::Backoff => true,
            State::Adopting | State::Confirming => self.wants_op(),
            _ => false,
        };
        if !waits {
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
                Deadline::At(_, Reason::LookDue) => Input::Changed,
                Deadline::At(_, Reason::GiveUp) => Input::GiveUp,
                Deadline::At(_, Reason::ReleaseOverdue) => Input::ReleaseOverdue,
                Deadline::At(_, Reason::CleanUpForgotten) => Input::Forget,
                _ => return,
            };
            if matches!(input, Input::RetryDue | Input::Changed)
                && core::mem::take(&mut self.put_off)
            {
                self.prompted = now;
            }
            self.run(input, now);
        }
    }
}
