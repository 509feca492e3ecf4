//! The machine over an engine: what leases want is handed on as jobs, and answers become outcomes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::ask::{AskId, Asks, Question, Removed, Step, Ttl};
use tenure_core::conn::ServerInfo;
use tenure_core::error::{ConfigError, Failure, LinkFault, StoreFault};
use tenure_core::lease::{OpKind, Outcome};
use tenure_core::leases::{LeaseId, Leases, Op, Request};
use tenure_core::mux::{LinkEvent, MuxConfig};
use tenure_core::time::Tick;

use super::jobs::{Answer, Answered, Jobs, Task, Whose};
use super::making;
use super::wall::Wall;
use super::{Done, Engine, Found, Trouble};
use crate::host::{Arrived, Machine, Signal, Work};
use crate::store::End;

/// While somebody waits, so often is looked whether others have changed anything: the longest a name that is released
/// elsewhere stays free, apart from what the look itself takes.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// While locks are held and nobody waits: the longest until a holder is told that its lock was released by force.
const LOOK_WHILE_HELD: Duration = Duration::from_millis(500);
/// The least time to open it.
const LEAST_OPEN: Duration = Duration::from_millis(100);
/// The pause before the store is opened anew: the first, doubled up to the reconnect limit.
const REOPEN_FIRST: Duration = Duration::from_millis(20);

/// Leases, and the jobs that keep their rows.
pub(super) struct Rows<E: Engine> {
    leases: Leases,
    asks: Asks,
    jobs: Arc<Jobs<E>>,
    open_limit: Duration,
    reply_limit: Duration,
    reopen_limit: Duration,
    link: Link,
    /// Times in a row that it could not be opened, or did not work once it was.
    failures: u32,
    told: VecDeque<Signal>,
    watch: Watch,
    wall: Wall,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Not open; the next try is at this tick.
    Closed(Tick),
    Opening,
    Open,
}

/// The look-out for what others change.
struct Watch {
    on: bool,
    /// Those that were refused since it was last told.
    waiting: HashSet<LeaseId>,
    last: Tick,
    /// A look is under way.
    looking: bool,
}

impl<E: Engine> Rows<E> {
    pub(super) fn new(settings: &MuxConfig, seed: u64, jobs: Arc<Jobs<E>>) -> Rows<E> {
        let patience = settings.connect_limit + settings.reply_limit;
        Rows {
            leases: Leases::new(settings.names.clone(), seed)
                .with_limits(settings.connect_limit, settings.reply_limit)
                .with_poll_limit(settings.poll_limit),
            asks: Asks::new(settings.names.clone(), patience),
            jobs,
            open_limit: settings.connect_limit,
            reply_limit: settings.reply_limit,
            reopen_limit: settings.reconnect_limit,
            link: Link::Closed(Tick::ZERO),
            failures: 0,
            told: VecDeque::new(),
            watch: Watch {
                on: settings.watch,
                waiting: HashSet::new(),
                last: Tick::ZERO,
                looking: false,
            },
            wall: Wall::default(),
        }
    }

    /// Makes jobs of what is wanted, and takes those back that nobody wants any more.
    fn submit(&mut self, now: Tick) {
        match self.link {
            Link::Closed(at) if now >= at && !self.leases.is_finished() => {
                self.link = Link::Opening;
                // Whoever waits may not want it for longer, and a caller's thread may be carrying it out.
                let due = self.leases.timer().at(now);
                let wanted = due.map_or(Duration::MAX, |due| due.saturating_since(now));
                let limit = self.open_limit.min(wanted.max(LEAST_OPEN));
                self.jobs.push(Task::Open, limit);
            }
            Link::Open => {}
            Link::Closed(_) | Link::Opening => return self.purge(now),
        }
        loop {
            self.purge(now);
            let Some(op) = self.leases.poll_op(now) else {
                break;
            };
            if let Some((job, limit)) = making::job(&self.leases, op, now) {
                let task = Task::Job(Whose::Lease(op), job);
                self.jobs.push(task, limit.min(self.reply_limit));
            }
        }
        while let Some(id) = self.asks.poll_step() {
            if let Some(job) = making::question(&self.asks, id) {
                let task = Task::Job(Whose::Ask(id), job);
                self.jobs.push(task, self.reply_limit);
            }
        }
        if self.watch_due().is_some_and(|due| due <= now) {
            self.watch.looking = true;
            self.jobs.push(Task::Watch, self.reply_limit);
        }
    }

    fn purge(&mut self, now: Tick) {
        while let Some(op) = self.leases.poll_superseded() {
            let is_it = |whose: &Whose| matches!(whose, Whose::Lease(other) if other.id == op.id && other.seq == op.seq);
            if !self.jobs.withdraw(is_it).is_empty() {
                self.leases.handle_purged(now, op);
            }
        }
    }

    fn watch_due(&self) -> Option<Tick> {
        if !self.watch.on || self.watch.looking || self.link != Link::Open {
            return None;
        }
        let every = match (self.leases.awaits_change(), self.leases.holds_any()) {
            (true, _) => LOOK_EVERY,
            (false, true) => LOOK_WHILE_HELD,
            (false, false) => return None,
        };
        Some(self.watch.last + every)
    }

    /// Takes in what was answered.
    fn take_answers(&mut self) -> Arrived {
        let mut at = None;
        while let Some(answered) = self.jobs.next_answer() {
            let now = self.jobs.now();
            at = Some(now);
            self.take(now, answered);
        }
        Arrived { at, more: false }
    }

    fn take(&mut self, now: Tick, answered: Answered) {
        let Answered {
            answer,
            handed_out,
            wall: (wall_us, behind),
        } = answered;
        let margin = || self.leases.shortest_margin();
        if let Some(step) = self.wall.compare((handed_out, wall_us, behind), margin) {
            self.told.push_back(Signal::Clock(step));
            // What is held is counted anew by the clock as it is.
            self.leases.handle_link_up(now);
        }
        match answer {
            Answer::Opened(Ok(())) => {
                self.link = Link::Open;
                self.told
                    .push_back(Signal::Link(LinkEvent::Up(ServerInfo::default())));
                self.leases.handle_link_up(now);
                self.asks.handle_link_up();
            }
            Answer::Opened(Err(trouble)) => self.fault(now, trouble, Link::Opening),
            Answer::Watched(changed) => {
                self.watch.looking = false;
                self.watch.last = now;
                match changed {
                    Ok(Some(removed)) => {
                        for id in std::mem::take(&mut self.watch.waiting) {
                            self.leases.handle_changed_of(now, id);
                        }
                        for key in removed {
                            self.leases.handle_changed(now, &key);
                        }
                    }
                    Ok(None) => {}
                    Err(trouble) if trouble.fault == StoreFault::Busy => {}
                    Err(trouble) => self.fault(now, trouble, Link::Open),
                }
            }
            Answer::Done(whose, Ok(done)) => {
                self.failures = 0;
                match whose {
                    Whose::Lease(op) => {
                        self.leases
                            .handle_round_trip(op.id, now.saturating_since(handed_out));
                        let outcome = self.judge(op, done, handed_out);
                        self.leases.handle_outcome(now, op.id, op.seq, outcome);
                    }
                    Whose::Ask(id) => self.answer(now, id, done),
                }
            }
            Answer::Done(whose, Err(trouble)) => {
                let failure = failure(trouble.fault);
                match whose {
                    Whose::Lease(op) => {
                        self.leases.note_text(op.id, trouble.text.as_bytes());
                        let outcome = match trouble.maybe_executed {
                            true => Outcome::NoReply {
                                maybe_executed: true,
                                failure,
                            },
                            false => Outcome::Failed {
                                failure,
                                maybe_executed: false,
                            },
                        };
                        self.leases.handle_outcome(now, op.id, op.seq, outcome);
                    }
                    Whose::Ask(id) if trouble.maybe_executed => {
                        self.asks
                            .handle_no_reply(id, true, link_fault(trouble.fault));
                    }
                    Whose::Ask(id) => {
                        self.asks
                            .handle_failed(id, failure, trouble.text.as_bytes());
                    }
                }
                match trouble.fault {
                    // It is well, and somebody else is at it. From here on a clean-up is forgotten when its row has ended.
                    StoreFault::Busy => self.leases.handle_link_down(now),
                    _ => self.fault(now, trouble, Link::Open),
                }
            }
        }
    }

    /// What an answer means for the lease.
    fn judge(&mut self, op: Op, done: Done, handed_out: Tick) -> Outcome {
        let is_full = matches!(done, Done::Full(_));
        let found = match done {
            Done::Granted { fence } => {
                if let Some(fence) = fence {
                    self.leases.handle_fence(op.id, op.seq, fence);
                }
                return Outcome::Granted { handed_out };
            }
            Done::Unminted(fault) => {
                return Outcome::Failed {
                    failure: Failure::Fence(fault),
                    maybe_executed: false,
                };
            }
            Done::Cleared { mine, found } => {
                self.note_forced(op.id, &found);
                return Outcome::Cleared { mine };
            }
            Done::Refused(found) | Done::Full(found) => found,
            // No answer to such a question: nobody knows what was done.
            Done::Inspected(_) | Done::Listed(_) | Done::Removed(_) | Done::Examined(_) => {
                return Outcome::NoReply {
                    maybe_executed: true,
                    failure: failure(StoreFault::Unusable),
                };
            }
        };
        let own = found
            .value
            .as_deref()
            .and_then(|value| self.leases.own_attempt(op.id, value));
        match op.kind {
            OpKind::Look { attempt } if own == Some(attempt) => return Outcome::Seen,
            OpKind::Acquire { .. } => {
                self.watch.waiting.insert(op.id);
            }
            _ => {}
        }
        self.note_forced(op.id, &found);
        match (&found.value, own) {
            (None, _) if !matches!(op.kind, OpKind::Acquire { .. }) => return Outcome::Gone,
            (Some(value), None) => self.leases.note_holder(op.id, value),
            _ => {}
        }
        if is_full && own.is_none() {
            return Outcome::Failed {
                failure: Failure::QueueFull,
                maybe_executed: false,
            };
        }
        Outcome::Refused {
            own,
            remaining: found.remaining,
            watched: self.watch.on,
        }
    }

    fn note_forced(&mut self, id: LeaseId, found: &Found) {
        if let Some(note) = &found.forced {
            self.leases.note_forced(id, note);
        }
    }

    fn answer(&mut self, now: Tick, id: AskId, done: Done) {
        match done {
            Done::Inspected(found) => {
                for found in found {
                    let value = found.value.as_deref();
                    let counter = found.fence.map(|fence| fence.to_string());
                    self.asks.handle_value(id, Some(value.unwrap_or_default()));
                    self.asks
                        .handle_counter(id, counter.as_deref().map(str::as_bytes));
                    let ttl = match (value, found.remaining) {
                        (None, _) => Ttl::Gone,
                        (Some(_), None) => Ttl::Endless,
                        (Some(_), Some(left)) => Ttl::Left(left),
                    };
                    self.asks.handle_ttl(now, id, ttl);
                }
            }
            Done::Listed(keys) => {
                self.asks
                    .handle_page(now, id, 0, keys.iter().map(|key| &**key));
            }
            Done::Removed(value) => {
                if let (Some(_), Some(Step::Remove { key, .. })) = (&value, self.asks.step(id)) {
                    // Whoever waits here for it, or holds it, hears of it at once.
                    self.leases.handle_changed(now, key);
                }
                self.asks
                    .handle_removed(id, value.as_deref().map(Removed::of));
            }
            Done::Examined(facts) => {
                let facts = facts.iter().map(|(name, value)| (&**name, &**value));
                self.asks.handle_facts(id, facts);
                self.asks.handle_examined(id);
            }
            _ => self
                .asks
                .handle_failed(id, failure(StoreFault::Unusable), &[]),
        }
    }

    /// The store does not do: it is to be opened anew. Unless it has been by now, which what was said `when` does not know.
    fn fault(&mut self, now: Tick, trouble: Trouble, when: Link) {
        if self.link != when {
            return;
        }
        let was_open = self.link == Link::Open;
        let (fault, text) = (link_fault(trouble.fault), trouble.text);
        let delay = REOPEN_FIRST * (1 << self.failures.min(10));
        self.failures += 1;
        self.link = Link::Closed(now + delay.min(self.reopen_limit));
        for whose in self.jobs.withdraw(|_| true) {
            match whose {
                Whose::Lease(op) => {
                    let outcome = Outcome::NoReply {
                        maybe_executed: false,
                        failure: Failure::Link(fault),
                    };
                    self.leases.handle_outcome(now, op.id, op.seq, outcome);
                }
                Whose::Ask(id) => self.asks.handle_no_reply(id, false, fault),
            }
        }
        if was_open {
            self.leases.handle_link_down(now);
        }
        let failure = Failure::Link(fault);
        self.asks.handle_link_failed(failure, text.as_bytes());
        if !was_open || !fault.waiting_may_cure() {
            self.leases
                .handle_link_failed(now, failure, text.as_bytes());
        }
        self.told.push_back(Signal::Link(match was_open {
            true => LinkEvent::Down(fault),
            false => LinkEvent::Failed {
                fault,
                text: Some(text.into()),
            },
        }));
    }

    /// Takes the step of a question back; false if it was begun.
    fn withdraw(&self, id: AskId) -> bool {
        let is_it = |whose: &Whose| matches!(whose, Whose::Ask(other) if *other == id);
        !self.jobs.withdraw(is_it).is_empty()
    }

    fn close_asks(&mut self) {
        while let Some(id) = self.asks.first() {
            let unsent = self.withdraw(id);
            self.asks.handle_closed(id, unsent);
        }
    }
}

fn failure(fault: StoreFault) -> Failure {
    Failure::Link(link_fault(fault))
}

fn link_fault(fault: StoreFault) -> LinkFault {
    LinkFault::Store(fault)
}

impl<E: Engine> Machine for Rows<E> {
    fn leases(&self) -> &Leases {
        &self.leases
    }

    fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError> {
        if request.options.replicas.is_some() {
            return Err(ConfigError::NoReplicas);
        }
        self.leases.acquire(now, request)
    }

    fn end(&mut self, now: Tick, id: LeaseId, how: End) {
        match how {
            End::Release => self.leases.release(now, id),
            End::Abandon => self.leases.abandon(now, id),
            End::Drop => self.leases.drop_guard(now, id),
            End::Cancel => self.leases.cancel(now, id),
        }
    }

    fn renew_now(&mut self, now: Tick, id: LeaseId) {
        self.leases.renew_now(now, id);
    }

    fn ask(&mut self, now: Tick, question: &Question<'_>) -> Result<AskId, ConfigError> {
        let id = self.asks.ask(now, question)?;
        if self.leases.is_closed() {
            self.close_asks();
        }
        Ok(id)
    }

    fn forget(&mut self, id: AskId) {
        self.withdraw(id);
        self.asks.forget(id);
    }

    fn wants_stirring(&self) -> bool {
        self.link == Link::Open && self.leases.wants_stirring()
    }

    fn stir(&mut self, fresh: Option<[u8; 16]>) {
        self.leases.stir(fresh);
    }

    fn close(&mut self, now: Tick) {
        self.leases.close(now);
        self.close_asks();
    }

    fn handle_timeout(&mut self, now: Tick) {
        self.leases.handle_timeout(now);
        while let Some(id) = self.asks.poll_overdue(now) {
            let unsent = self.withdraw(id);
            self.asks.handle_overdue(id, unsent);
        }
    }

    fn deadline(&self, now: Tick) -> Option<Tick> {
        let opens = match self.link {
            Link::Closed(at) if !self.leases.is_finished() => Some(at),
            _ => None,
        };
        let leases = self.leases.timer().at(now);
        let asks = self.asks.timer().at(now);
        [opens, self.watch_due(), leases, asks]
            .into_iter()
            .flatten()
            .min()
    }

    fn flush(&mut self, now: Tick, signals: &mut Vec<Signal>) {
        self.submit(now);
        while let Some(event) = self.leases.poll_event() {
            signals.push(Signal::Lease(event));
        }
        while let Some(answer) = self.asks.poll_answer() {
            signals.push(Signal::Answer(answer));
        }
        signals.extend(self.told.drain(..));
    }

    fn poll_in(&mut self, cx: &mut Context<'_>) -> Arrived {
        self.jobs.wake_for_answers(cx);
        self.take_answers()
    }

    fn take_in(&mut self) -> Arrived {
        self.take_answers()
    }

    fn in_flight(&self) -> Option<usize> {
        None
    }

    fn poll_out(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn needs_driver(&self) -> bool {
        false
    }

    fn shut_down(&mut self) {
        self.jobs.stop();
    }

    fn work(&self) -> Option<Arc<dyn Work>> {
        Some(Arc::clone(&self.jobs) as Arc<dyn Work>)
    }
}

impl<E: Engine> Drop for Rows<E> {
    fn drop(&mut self) {
        self.jobs.stop();
    }
}
