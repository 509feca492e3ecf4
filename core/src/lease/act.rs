//! What the transitions do: an outcome is sorted into an input, the table says what follows, and it is
//! done here.

use core::time::Duration;

use super::table::{self, Act, Input, State};
use super::{Cause, Event, Lease, Lost, OpKind, Outcome, Slot, Until, Vanished};
use crate::error::Failure;
use crate::time::{Deadline, Reason, Tick};

/// Backoff between attempts: the first bound, doubled up to the last.
const BACKOFF_FIRST: Duration = Duration::from_millis(20);
pub(super) const BACKOFF_LAST: Duration = Duration::from_millis(400);
/// No retry comes sooner than this, whatever the jitter.
pub(super) const BACKOFF_LEAST: Duration = Duration::from_millis(2);
/// The last attempt of a wait leaves at least this much time for its reply.
const LAST_ATTEMPT_LEAD: Duration = Duration::from_millis(5);

impl Lease {
    pub(super) fn wait_end(&self) -> Tick {
        match self.until {
            Until::Once(end) | Until::Tick { end, .. } => end,
            Until::Forever => Tick::MAX,
        }
    }

    pub(super) fn give_up(&self) -> Tick {
        self.confirmed + self.terms.give_up_after()
    }

    pub(super) fn clearing(&self) -> Deadline {
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
    pub(super) fn check_expiry(&mut self, now: Tick) {
        if self.state.is_held() && now >= self.valid_until {
            self.run(Input::GiveUp, now);
        }
    }

    /// Whether a renewal handed out now would outlast `max_hold`.
    pub(super) fn outlasts(&self, now: Tick) -> bool {
        now + self.terms.validity() > self.max_end()
    }

    /// Sorts an outcome into an input that decides the next state.
    pub(super) fn classify(&mut self, now: Tick, kind: OpKind, outcome: Outcome) -> Input {
        let once = matches!(self.until, Until::Once(_));
        let lost = matches!(outcome, Outcome::Gone | Outcome::Refused { .. });
        if let Some(input) = self.classify_rotation(kind, outcome) {
            return input;
        }
        if lost && self.unsure && self.state == State::Checking {
            // A replica that lags behind: what it does not know may still be there.
            self.leftovers.push_first(self.current);
        }
        match outcome {
            Outcome::Granted { handed_out } => {
                self.handle_round_trip(now.saturating_since(handed_out));
                self.count_from(handed_out);
                let left = self.valid_until.saturating_since(now);
                let validity = self.terms.validity();
                // A change would have been told before this answer.
                self.missed |= core::mem::take(&mut self.unprompted);
                self.queued = false;
                if let OpKind::Adopt { old, .. } = kind {
                    self.leftovers.remove(old);
                }
                self.confirm(kind);
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
                self.current = shown;
                // What shows every take-over of it again, as something that repeats each command does, never ends.
                let too_many = self.leftovers.is_full() && !self.leftovers.has(shown);
                // It is on the server, whatever becomes of the take-over.
                self.leftovers.push(shown);
                if too_many {
                    self.last_failure = Some(Failure::TooManyUnanswered);
                    return Input::FailedLast;
                }
                Input::RefusedByOwn
            }
            Outcome::Refused {
                own,
                remaining,
                watched,
            } => {
                // To a hold that rotates it may be another copy of this very process that wrote it.
                if let Some(shown) = own.filter(|_| !(self.rotates() && self.state.is_held())) {
                    self.leftovers.push(shown);
                }
                self.watched = watched;
                self.queued |= self.is_fair() && !once && matches!(kind, OpKind::Acquire { .. });
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
                // A take-over that finds nothing does not say that somebody holds the name.
                self.last_failure = Some(Failure::NoReply);
                self.refused(Input::Gone)
            }
            Outcome::Seen => {
                self.unsure = false;
                Input::Seen
            }
            Outcome::Cleared { mine: true } => Input::Cleared,
            // A clean-up that may have been executed before finds nothing: that is no loss.
            Outcome::Cleared { mine: false } if self.clear_ambiguous => Input::Cleared,
            Outcome::Cleared { mine: false } => Input::ClearedNothing,
            Outcome::Failed {
                failure,
                maybe_executed,
            } => {
                self.watched = false;
                self.last_failure = Some(failure);
                self.clear_ambiguous |= maybe_executed && kind == OpKind::Clear;
                let writes = matches!(kind, OpKind::Acquire { .. } | OpKind::Adopt { .. });
                if let (OpKind::Adopt { old, .. }, true) = (kind, failure.was_written()) {
                    // It was replaced; what took its place is remembered instead.
                    self.leftovers.remove(old);
                }
                // An attempt that may have been written, or a grant that could not be confirmed.
                if self.state == State::Confirming || (maybe_executed && writes) {
                    let too_many = self.leftovers.is_full();
                    self.leftovers.push(self.attempt);
                    if too_many {
                        self.last_failure = Some(Failure::TooManyUnanswered);
                        return Input::FailedLast;
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
                let harmless = matches!(
                    kind,
                    OpKind::Clear
                        | OpKind::Renew { .. }
                        | OpKind::Rotate { .. }
                        | OpKind::Look { .. }
                );
                if harmless && self.state != State::Confirming {
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
            State::Held | State::Renewing | State::Checking => held,
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
        // What `max_hold` does not allow does not count, so that the hold ends by then.
        let handed_out = handed_out.min(self.max_end() - self.terms.validity());
        let valid_until = handed_out + self.terms.validity();
        let fresh = !self.state.is_held();
        if fresh || valid_until > self.valid_until {
            self.valid_until = valid_until;
            self.confirmed = handed_out;
        }
    }

    /// How long after its last write a key has surely expired: the margin more than the lease, since this clock may run
    /// faster than the server's, and one millisecond, since the server rounds its TTL up.
    fn outlived(&self) -> Duration {
        let margin = self.terms.lease() - self.terms.validity();
        self.terms.lease() + margin + Duration::from_millis(1)
    }

    pub(super) fn set_forget(&mut self) {
        if matches!(self.state, State::Releasing | State::Ending) && self.forget.is_none() {
            // One lease after the connection died, the key has expired by itself.
            self.forget = self.dead_since.map(|dead| dead + self.outlived());
        }
    }

    pub(super) fn run(&mut self, input: Input, now: Tick) {
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
            if let OpKind::Rotate { attempt, .. } = kind {
                self.leftovers.push_of_hold(attempt);
            }
            self.superseded = Some((seq, kind));
        }
        self.slot = Slot::Idle;
    }

    /// Over: either something is left to clear, or nothing.
    fn end(&mut self, now: Tick) {
        self.set_forget();
        if self.forget.is_some_and(|at| at <= now) {
            self.run(Input::Forget, now);
        } else if self.leftovers.is_empty() && !self.queued {
            self.run(Input::NothingLeft, now);
        } else if self.slot == Slot::Idle && self.next == Tick::MAX {
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
                    old: self.current,
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
                self.slot = Slot::Due(self.renewal());
            }
            Act::Look => {
                self.put_off = false;
                self.slot = Slot::Due(OpKind::Look {
                    attempt: self.current,
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
                self.leftovers.push_first(self.current);
                let limit = Duration::from_millis(u64::from(self.reply_limit_ms));
                self.overdue = now + limit.min(self.terms.lease());
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
                let expired = now + self.outlived();
                self.forget.get_or_insert(expired);
            }
            Act::TellReleased => self.finish(Event::Released { confirmed: true }),
            Act::TellUnconfirmed => {
                self.telling.end = Some(match self.vanished {
                    None => Event::Released { confirmed: false },
                    Some(_) => Event::Lost(Lost {
                        cause: Cause::Gone,
                        stop_by: now,
                    }),
                })
            }
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
        let bound = if self.watched {
            Duration::from_millis(u64::from(self.poll_limit_ms))
        } else {
            (BACKOFF_FIRST * (1 << self.refusals.min(5))).min(BACKOFF_LAST)
        };
        self.refusals = self.refusals.saturating_add(1);
        let poll = now + self.rng.up_to(bound).max(BACKOFF_LEAST);
        // The other's lease may end sooner; a little jitter keeps waiters apart then, too.
        let expiry = match self.next {
            Tick::MAX => Tick::MAX,
            expiry => expiry + self.rng.up_to(BACKOFF_LEAST) + BACKOFF_LEAST,
        };
        let next = poll.min(expiry).min(self.last_attempt());
        let next = match self.waiter_lease() {
            // Its place is kept with each attempt: two of them may fail.
            Some(lease) => next.min(now + lease / 3 - self.rng.up_to(lease / 12)),
            None => next,
        };
        self.next = next.max(now + Duration::from_micros(1));
        // By a server's clock that runs ahead the lease may be over a little sooner.
        let left = expiry.saturating_since(now);
        self.unprompted = self.watched && self.next.saturating_since(now) < left / 2;
    }

    fn hold(&mut self, now: Tick) {
        self.telling.acquired = true;
        self.last_failure = None;
        self.granted = now;
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
            _ if self.vanished == Some(Vanished::Gone) => Cause::Gone,
            _ if self.vanished == Some(Vanished::Replaced) => Cause::Replaced,
            Input::Close => Cause::Closed,
            _ if self.renewals_over => Cause::MaxHold,
            _ => Cause::Expired {
                late_by: now.saturating_since(self.give_up()),
            },
        };
        if !matches!(cause, Cause::Gone | Cause::Replaced) {
            self.leftovers.push_first(self.current);
        } else if !self.unsure {
            // What was to replace the value of the hold finds it no more.
            self.leftovers.forget_of_hold();
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
