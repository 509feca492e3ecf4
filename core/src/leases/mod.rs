//! Many leases: their table, the earliest deadline, one local queue per name, their events.
//!
//! No bytes of any protocol: typed operations come out, typed outcomes go in, so that any store can
//! carry them out - a connection ([`mux`](crate::mux)), an SQL engine, a map in memory. Time, calls
//! and outputs follow the rules of [`lease`](crate::lease).
//!
//! Of all requests of one process for one name only the first in the queue makes attempts; a single
//! try passes the queue by. A name that is held here is refused here, without an operation.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::config::{LeaseConfig, Wait};
//! use tenure_core::lease::{OpKind, Outcome};
//! use tenure_core::leases::{Leases, Notice, Options, Request};
//! use tenure_core::names::Names;
//! use tenure_core::time::Tick;
//!
//! let mut leases = Leases::new(Names::new("lock:", "doc")?, 1);
//! let now = Tick::from_micros(0);
//! let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
//! let request = Request { name: b"order:42", terms, wait: Wait::Now, options: Options::default(), secret: [7; 16], since_ms: 0 };
//! let id = leases.acquire(now, &request)?;
//!
//! // Carry out what is wanted. This store grants everything.
//! while let Some(op) = leases.poll_op(now) {
//!     assert_eq!(leases.key(op.id), b"lock:order:42");
//!     leases.handle_outcome(now, op.id, op.seq, Outcome::Granted { handed_out: now });
//! }
//! let event = leases.poll_event().unwrap();
//! assert_eq!(event.id, id);
//! assert!(matches!(event.notice, Notice::Acquired { .. }));
//! assert!(leases.holds_at(id, now));
//! # Ok::<(), tenure_core::error::ConfigError>(())
//! ```

mod heap;
mod notice;
mod queue;
mod rotation;
mod settle;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::{MAX_LEASE, MIN_WAITER_LEASE, POLL_LIMIT, REPLY_LIMIT, Terms, Wait};
use crate::error::{ConfigError, Failure};
use crate::fence::MAX_FENCE;
use crate::lease::{Lease, OpKind, Outcome, Seq, State, Vanished};
use crate::names::{Mark, Names, Value, escape_text, forced_by};
use crate::replicas::Replicas;
use crate::rng::Rng;
use crate::time::{Deadline, Tick, micros};
use heap::Heap;
pub use notice::{Event, Fault, Holder, Notice};
use queue::{Link, NONE, Queues};
use rotation::Rotation;

/// Error texts of a server are cut to this.
const MAX_TEXT: usize = 200;

/// A lease in the table. Stays unique when its place is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId {
    index: u32,
    generation: u32,
}

impl LeaseId {
    /// Its place in the table: small, and free for another lease once this one is over.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// The id as one number.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The id that [`to_bits`](LeaseId::to_bits) gave.
    pub fn from_bits(bits: u64) -> LeaseId {
        LeaseId {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The name of the lock: 1 to 1,024 bytes, any.
    pub name: &'a [u8],
    /// The checked times.
    pub terms: Terms,
    /// How long to wait.
    pub wait: Wait,
    /// What else is asked for.
    pub options: Options,
    /// 128 bits that nobody can guess, drawn anew for every request from the system's entropy.
    pub secret: [u8; 16],
    /// Unix time in milliseconds. It is shown to people, nothing depends on it.
    pub since_ms: u64,
}

/// What can be asked for with a lock; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether the grant comes with a [fence](crate::fence), and above what: zero for no floor.
    pub fence: Option<u64>,
    /// Whether it is first come, first served, and for how long at least who waits is taken for alive without a word of it.
    pub fair: Option<Duration>,
    /// With [`fair`](Options::fair): how many may wait at most, itself included; each process counts as one in the store, and in a
    /// process each request. Whoever would be one more fails with [`Failure::QueueFull`].
    pub max_waiters: Option<u32>,
    /// Whether [replicas](crate::replicas) have to confirm every write.
    pub replicas: Option<Replicas>,
    /// Whether every renewal [writes a new value](crate::lease::Lease::with_rotation). [`Leases::stir`] says from what.
    pub rotate: bool,
}

/// An operation to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Whose.
    pub id: LeaseId,
    /// Give it back with the outcome.
    pub seq: Seq,
    /// What to do.
    pub kind: OpKind,
    /// Whether a fence is minted with what is acquired or adopted: above [`Leases::floor`].
    pub fenced: bool,
    /// Whether the lock is fair: [`TAKE`](crate::plan::TAKE) and [`PASS`](crate::plan::PASS) say what that means.
    pub fair: bool,
    /// The replicas that have to confirm it, if it is a write.
    pub replicas: Option<Replicas>,
    /// Whether what stands for the hold is not cleared but left as [`Leases::cooling`] for the [rest](Leases::rest).
    pub cools: bool,
}

/// What was last seen of a name: only refusals and errors make one.
#[derive(Clone, Debug, Default)]
struct Note {
    label: Option<Box<str>>,
    /// Nobody holds it any more: its minimum is not over.
    cooling: bool,
    text: Option<Box<str>>,
    /// Who removed the value of the hold by force.
    forced: Option<Box<str>>,
}

/// Of a lease that rotates, has replicas or counts who waits.
#[derive(Clone, Default)]
struct Extras {
    max_waiters: Option<u32>,
    replicas: Option<Replicas>,
    rotation: Rotation,
}

/// Higher than any fence.
const UNFENCED: u64 = u64::MAX;

#[derive(Clone)]
struct Slot {
    lease: Lease,
    /// Kept when the slot is free, so that the next lease need not allocate.
    key: Vec<u8>,
    secret: [u8; 16],
    since_ms: u64,
    /// With a fence: what it has to be above until it is granted, and what it is from then on. Else [`UNFENCED`], since an
    /// `Option` is eight bytes more for every lease.
    fence: u64,
    /// When it was asked for.
    asked: Tick,
    link: Link,
    generation: u32,
    live: bool,
    /// In `wanting`.
    wants: bool,
    /// Counted in `held`.
    held: bool,
    /// Counted in `waiting`.
    waits: bool,
    note: Option<Box<Note>>,
    /// What few ask for, so that no other lease carries it.
    extras: Option<Box<Extras>>,
}

/// The table. See the [module](self).
#[derive(Clone, Debug)]
pub struct Leases {
    names: Names,
    slots: Vec<Slot>,
    free: Vec<u32>,
    queues: Queues,
    heap: Heap,
    wanting: VecDeque<LeaseId>,
    events: VecDeque<Event>,
    superseded: Vec<Op>,
    rng: Rng,
    /// How many are held.
    held: usize,
    /// How many were refused and wait for the next attempt.
    waiting: usize,
    /// How many rotate.
    rotating: usize,
    now: Tick,
    regressions: u64,
    closed: bool,
    /// A single try fails when it has no answer after this: time for a dial and a reply.
    patience: Duration,
    reply_limit: Duration,
    poll_limit: Duration,
    /// A change was not told though it was said that it would be.
    missed: bool,
}

impl Leases {
    /// An empty table. `seed` feeds the jitter.
    pub fn new(names: Names, seed: u64) -> Leases {
        Leases {
            names,
            slots: Vec::new(),
            free: Vec::new(),
            queues: Queues::default(),
            heap: Heap::default(),
            wanting: VecDeque::new(),
            events: VecDeque::new(),
            superseded: Vec::new(),
            rng: Rng::new(seed),
            held: 0,
            waiting: 0,
            rotating: 0,
            now: Tick::ZERO,
            regressions: 0,
            closed: false,
            patience: REPLY_LIMIT * 2,
            reply_limit: REPLY_LIMIT,
            poll_limit: POLL_LIMIT,
            missed: false,
        }
    }

    /// With other limits than 5 s each: for opening a connection, and for a reply to anything but a renewal.
    #[must_use]
    pub fn with_limits(mut self, connect_limit: Duration, reply_limit: Duration) -> Leases {
        self.patience = connect_limit + reply_limit;
        self.reply_limit = reply_limit;
        self
    }

    /// With another longest delay than 10 s between two attempts of a waiter while the store tells of changes.
    #[must_use]
    pub fn with_poll_limit(mut self, limit: Duration) -> Leases {
        self.poll_limit = limit;
        self
    }

    // ---- getters ----

    /// Whether the lock is held at a freshly read `now`.
    pub fn holds_at(&self, id: LeaseId, now: Tick) -> bool {
        self.slot(id).is_some_and(|slot| slot.lease.holds_at(now))
    }

    /// The lease itself, while it is in the table.
    pub fn lease(&self, id: LeaseId) -> Option<&Lease> {
        self.slot(id).map(|slot| &slot.lease)
    }

    /// The key of a lease; empty when it is no longer in the table.
    pub fn key(&self, id: LeaseId) -> &[u8] {
        self.slot(id).map_or(&[], |slot| &slot.key)
    }

    /// The value that an attempt of this lease writes.
    pub fn value(&self, id: LeaseId, attempt: u32) -> Option<Value> {
        let slot = self.slot(id)?;
        let mark = match slot.fence().is_some() {
            true => Mark::Fenced,
            false => Mark::Plain,
        };
        Some(self.marked(mark, slot, attempt))
    }

    /// The value that stands for what is held, and does so to its end: by it whoever knows it may release the lock. None of a lease
    /// that rotates.
    pub fn token(&self, id: LeaseId) -> Option<Value> {
        let lease = self.lease(id)?;
        let lasts = lease.valid_until().is_some() && !lease.rotates();
        self.value(id, lease.attempt()).filter(|_| lasts)
    }

    fn marked(&self, mark: Mark, slot: &Slot, attempt: u32) -> Value {
        Value::marked(
            mark,
            self.names.label(),
            slot.since_ms,
            slot.secret_of(attempt),
            attempt,
        )
    }

    /// The attempt of this lease that wrote `shown`, compared byte for byte.
    pub fn own_attempt(&self, id: LeaseId, shown: &[u8]) -> Option<u32> {
        let attempt = Value::attempt_of(shown)?;
        let lease = self.lease(id)?;
        let own = attempt <= lease.attempt() && self.value(id, attempt)?.as_bytes() == shown;
        own.then_some(attempt)
    }

    /// What a fence of this lease has to be above: the floor that was asked for, and any fence that it had before.
    pub fn floor(&self, id: LeaseId) -> u64 {
        self.slot(id).and_then(Slot::fence).unwrap_or(0)
    }

    /// Whether a fence comes with this lease.
    pub fn is_fenced(&self, id: LeaseId) -> bool {
        self.slot(id).is_some_and(|slot| slot.fence().is_some())
    }

    /// The entry of a fair lease in the queue of its lock: its waiter's lease in milliseconds, a blank, and the value under
    /// which the key is passed on to it.
    pub fn entry(&self, id: LeaseId) -> Option<Vec<u8>> {
        let slot = self.slot(id)?;
        let waiter_lease = slot.lease.waiter_lease()?;
        let value = self.marked(Mark::Waiting, slot, 0);
        let mut entry = waiter_lease.as_millis().to_string().into_bytes();
        entry.push(b' ');
        entry.extend_from_slice(value.as_bytes());
        Some(entry)
    }

    /// How long ago a lease was asked for, in microseconds.
    pub fn age_us(&self, id: LeaseId) -> u64 {
        let asked = self.slot(id).map_or(self.now, |slot| slot.asked);
        micros(self.now.saturating_since(asked))
    }

    /// The fair lease of this process that waits for the same lock and is next in turn, once this one has left.
    pub fn next_in_turn(&self, id: LeaseId) -> Option<LeaseId> {
        let index = self.queues.front(&self.slots, self.key(id))?;
        let slot = &self.slots[index as usize];
        let waits = slot.lease.is_fair() && slot.lease.is_waiting();
        let generation = slot.generation;
        (waits && index != id.index).then_some(LeaseId { index, generation })
    }

    /// Whether it is a single try for a lock that others of this process wait for.
    pub fn overtakes(&self, id: LeaseId) -> bool {
        let tries = self.lease(id).is_some_and(Lease::is_single_try);
        let front = self.queues.front(&self.slots, self.key(id));
        let waits = |index: u32| self.slots[index as usize].lease.is_waiting();
        tries && front.is_some_and(waits)
    }

    /// How many may wait at most, where that is limited.
    pub fn max_waiters(&self, id: LeaseId) -> Option<u32> {
        self.slot(id)?.extras.as_ref()?.max_waiters
    }

    /// Whether so many wait in a queue of this process already.
    fn is_full(&self, front: u32, most: Option<u32>) -> bool {
        let Some(most) = most else { return false };
        let next =
            |index: &u32| Some(self.slots[*index as usize].link.next).filter(|next| *next != NONE);
        let queue = core::iter::successors(Some(front), next);
        let waits = |index: &u32| self.slots[*index as usize].lease.is_waiting();
        queue.filter(waits).nth(most as usize - 1).is_some()
    }

    /// Whether a value read from a server is one of this lease's: that of an attempt, or the one under which the key is passed on
    /// to it.
    pub(crate) fn is_own(&self, id: LeaseId, shown: &[u8]) -> bool {
        let passed_on = self.entry(id).is_some_and(|entry| entry.ends_with(shown));
        passed_on || self.own_attempt(id, shown).is_some()
    }

    /// How long what stands for the hold has to stay taken when it is let go, in whole milliseconds, rounded up: what is left of
    /// its [shortest hold](crate::config::LeaseConfig::at_least) at the latest `now`; zero for not at all.
    pub fn rest(&self, id: LeaseId) -> u64 {
        let rest = self.lease(id).and_then(|lease| lease.rest(self.now));
        rest.map_or(0, |rest| crate::time::micros(rest).div_ceil(1000))
    }

    /// What stands under the key of a lease for the [rest](Leases::rest): nobody's hold any more.
    pub fn cooling(&self, id: LeaseId) -> Option<Value> {
        let slot = self.slot(id)?;
        Some(self.marked(Mark::Cooling, slot, 0))
    }

    /// The helper key of a lease with this suffix, in the same slot of a cluster.
    pub fn helper_key(&self, id: LeaseId, suffix: &str) -> Vec<u8> {
        self.names.helper_key(self.key(id), suffix)
    }

    /// Whether it is a hold that has not been told to be over.
    pub(crate) fn holds(&self, id: LeaseId) -> bool {
        self.lease(id).is_some_and(|lease| lease.state().is_held())
    }

    /// Whether somebody waits for the answer to a release.
    pub(crate) fn awaits_release(&self, id: LeaseId) -> bool {
        let state = self.lease(id).map(Lease::state);
        state == Some(State::Releasing)
    }

    /// The number of leases that are not over, clean-ups included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether it was closed, and every lease is over and cleared.
    pub fn is_finished(&self) -> bool {
        self.closed && self.is_empty()
    }

    /// Whether every lease is over and cleared.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any lock is held: then the caller re-reads its clock at least every second.
    pub fn holds_any(&self) -> bool {
        self.held > 0
    }

    /// Whether any request was refused and waits for a change to its key: whoever reads what a server tells does so at once
    /// then.
    pub fn awaits_change(&self) -> bool {
        self.waiting > 0
    }

    /// How long a dial that begins at `now` may take for the locks that are held: for each of them half of what is left
    /// until it is given up, so that a second dial fits, and never less than its reply limit.
    pub fn dial_limit(&self, now: Tick) -> Duration {
        let held = self.slots.iter().filter(|slot| slot.held);
        held.map(|slot| slot.lease.dial_limit(now))
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// The shortest reply limit of the locks that are held.
    pub fn shortest_reply_limit(&self) -> Duration {
        let held = self.slots.iter().filter(|slot| slot.held);
        held.map(|slot| slot.lease.terms().reply_limit())
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// The shortest margin of the locks that are held.
    pub fn shortest_margin(&self) -> Duration {
        let held = self.slots.iter().filter(|slot| slot.held);
        held.map(|slot| slot.lease.terms().lease() - slot.lease.terms().validity())
            .min()
            .unwrap_or(Duration::MAX)
    }

    /// How often a `now` lay before an earlier one. Such a `now` counts as no change.
    pub fn clock_regressions(&self) -> u64 {
        self.regressions
    }

    /// When to call [`handle_timeout`](Leases::handle_timeout); `Now` while outputs are waiting.
    ///
    /// A store that cannot be reached leaves operations waiting; ask
    /// [`timer`](Leases::timer) then.
    pub fn deadline(&self) -> Deadline {
        if self.events.is_empty() && self.wanting.is_empty() {
            self.timer()
        } else {
            Deadline::Now
        }
    }

    /// As [`deadline`](Leases::deadline), without regard to outputs.
    pub fn timer(&self) -> Deadline {
        match self.heap.first() {
            Some((_, index)) => self.slots[index as usize].lease.deadline(),
            None => Deadline::Never,
        }
    }

    // ---- outputs ----

    /// The next operation to carry out. Take it only when it can be handed over.
    pub fn poll_op(&mut self, now: Tick) -> Option<Op> {
        let _ = self.clock(now);
        while let Some(id) = self.wanting.pop_front() {
            if self.slot(id).is_none() {
                continue;
            }
            let slot = &mut self.slots[id.index()];
            slot.wants = false;
            let Some(op) = slot.lease.poll_op() else {
                continue;
            };
            slot.note_rotation(op.kind);
            let cools = op.kind == OpKind::Clear && slot.lease.rest(self.now).is_some();
            return Some(Op {
                id,
                seq: op.seq,
                kind: op.kind,
                fenced: slot.fence().is_some(),
                fair: slot.lease.is_fair(),
                replicas: slot.replicas(),
                cools,
            });
        }
        None
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// An operation that is not wanted any more. If none of its bytes has left, drop it and call
    /// [`handle_purged`](Leases::handle_purged).
    pub fn poll_superseded(&mut self) -> Option<Op> {
        self.superseded.pop()
    }

    // ---- requests ----

    /// Asks for a lock. After [`close`](Leases::close) the request fails at once, which is told as any other end.
    ///
    /// # Errors
    /// [`ConfigError::Name`], [`ConfigError::Floor`], [`ConfigError::WaiterLease`], [`ConfigError::MaxWaiters`],
    /// [`ConfigError::Replicas`]: nothing was begun.
    pub fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError> {
        let now = self.clock(now);
        if let Some(floor @ MAX_FENCE..) = request.options.fence {
            return Err(ConfigError::Floor(floor));
        }
        if let Some(waiter_lease) = request.options.fair {
            if !(MIN_WAITER_LEASE..=MAX_LEASE).contains(&waiter_lease) {
                return Err(ConfigError::WaiterLease(waiter_lease));
            }
        }
        if request.options.max_waiters == Some(0) {
            return Err(ConfigError::MaxWaiters);
        }
        if let Some(replicas) = request.options.replicas {
            replicas.check(request.terms.lease())?;
        }
        let seed = self.rng.next_u64();
        let lease = Lease::new(now, request.terms, request.wait, self.patience, seed)
            .with_reply_limit(self.reply_limit)
            .with_poll_limit(self.poll_limit)
            .with_fair(request.options.fair)
            .with_rotation(request.options.rotate);
        let index = self.take_slot(lease, request)?;
        let id = LeaseId {
            index,
            generation: self.slots[index as usize].generation,
        };
        if self.closed {
            self.slots[index as usize].lease.close(now);
            self.settle(now, index);
            return Ok(id);
        }
        let single = request.wait.is_single_try();
        let front = self
            .queues
            .front(&self.slots, &self.slots[index as usize].key);
        match front {
            Some(front) if single && self.is_held(front) => {
                self.refuse_here(now, id, front);
                return Ok(id);
            }
            Some(front) if !single && self.is_full(front, request.options.max_waiters) => {
                let full = Failure::QueueFull;
                self.slots[index as usize]
                    .lease
                    .handle_link_failed(now, full);
            }
            Some(front) if !single => self.queues.join(&mut self.slots, front, index),
            Some(_) => self.slots[index as usize].lease.turn(now),
            None if single => self.slots[index as usize].lease.turn(now),
            None => {
                self.queues.found(&mut self.slots, index);
                self.slots[index as usize].lease.turn(now);
            }
        }
        self.settle(now, index);
        Ok(id)
    }

    /// Renew as soon as possible.
    pub fn renew_now(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::renew_now);
    }

    /// Release; the answer is an event.
    pub fn release(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::release);
    }

    /// Stop renewing and leave the key to its TTL.
    pub fn abandon(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::abandon);
    }

    /// Nobody waits for this lease any more. What was not taken of its events is forgotten.
    pub fn drop_guard(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::drop_guard);
        self.events.retain(|event| event.id != id);
    }

    /// As [`drop_guard`](Leases::drop_guard), of a request whose lock was never handed to anybody: [`Lease::cancel`].
    pub fn cancel(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::cancel);
        self.events.retain(|event| event.id != id);
    }

    /// The client is being closed: every request fails, every hold is told. What is left to clear goes
    /// on until [`is_empty`](Leases::is_empty).
    pub fn close(&mut self, now: Tick) {
        self.closed = true;
        self.for_all(now, Lease::close);
    }

    // ---- inputs ----

    /// What became of an operation.
    pub fn handle_outcome(&mut self, now: Tick, id: LeaseId, seq: Seq, outcome: Outcome) {
        self.with(now, id, |lease, now| {
            lease.handle_outcome(now, seq, outcome)
        });
    }

    /// The fence that comes with the grant that this operation has for its outcome. Told before that.
    pub fn handle_fence(&mut self, id: LeaseId, seq: Seq, fence: u64) {
        if self.lease(id).is_some_and(|lease| lease.awaits(seq)) && self.is_fenced(id) {
            self.slots[id.index()].fence = fence;
        }
    }

    /// A superseded operation was dropped before any of its bytes had left.
    pub fn handle_purged(&mut self, now: Tick, op: Op) {
        self.with(now, op.id, |lease, now| lease.handle_purged(now, op.kind));
    }

    /// How long the store took for an answer, counted from the hand-out.
    pub fn handle_round_trip(&mut self, id: LeaseId, trip: Duration) {
        if self.slot(id).is_some() {
            self.slots[id.index()].lease.handle_round_trip(trip);
        }
    }

    /// Remembers whose value the key showed, for the refusal or loss that follows.
    pub fn note_holder(&mut self, id: LeaseId, shown: &[u8]) {
        let label = Value::label_of(shown).map(Box::from);
        let cooling = Value::mark_of(shown) == Some(Mark::Cooling);
        if let Some(note) = self.note(id) {
            note.label = label;
            note.cooling = cooling;
        }
    }

    /// Forgets whose value the key showed: it has been refused since, without showing one.
    pub fn forget_holder(&mut self, id: LeaseId) {
        if self.slot(id).is_some() {
            if let Some(note) = &mut self.slots[id.index()].note {
                note.label = None;
                note.cooling = false;
            }
        }
    }

    /// Remembers who removed the value of this hold by force, if that is what the helper key says.
    pub fn note_forced(&mut self, id: LeaseId, helper: &[u8]) {
        let Some(lease) = self.lease(id) else {
            return;
        };
        let values = lease.own_attempts().filter_map(|own| self.value(id, own));
        let by = values
            .filter_map(|value| forced_by(helper, value.as_bytes()).map(Box::from))
            .next();
        if let (Some(by), Some(note)) = (by, self.note(id)) {
            note.forced = Some(by);
        }
    }

    /// Remembers the text of an error reply, for the failure that follows; an empty text forgets it.
    pub fn note_text(&mut self, id: LeaseId, text: &[u8]) {
        if self.slot(id).is_none() {
            return;
        }
        let note = &mut self.slots[id.index()].note;
        if text.is_empty() {
            if let Some(note) = note {
                note.text = None;
            }
        } else {
            let text = escape_text(text, MAX_TEXT).into_boxed_str();
            note.get_or_insert_default().text = Some(text);
        }
    }

    /// Something happened to this key, or may have: who waits for it makes an attempt, who holds it looks. A hint that comes
    /// too often costs a command, one that never comes a delay.
    pub fn handle_changed(&mut self, now: Tick, key: &[u8]) {
        let now = self.clock(now);
        if let Some(front) = self.queues.front(&self.slots, key) {
            self.slots[front as usize].lease.handle_changed(now);
            self.settle(now, front);
        }
    }

    /// As [`handle_changed`](Leases::handle_changed), for every key: the store was flushed.
    pub fn handle_all_changed(&mut self, now: Tick) {
        self.for_all(now, Lease::handle_changed);
    }

    /// As [`handle_changed`](Leases::handle_changed), for the key of this lease.
    pub fn handle_changed_of(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::handle_changed);
    }

    /// The key was seen to be gone, and why is still being asked: nothing is held from here on. The outcome follows.
    pub fn handle_vanished(&mut self, now: Tick, id: LeaseId, how: Vanished) {
        self.with(now, id, |lease, _| lease.handle_vanished(how));
    }

    /// Whether a waiter found a name free of which it had not been told, though it was said that it would be: asked once.
    pub fn take_missed(&mut self) -> bool {
        core::mem::take(&mut self.missed)
    }

    /// The store can be reached (again): every hold is renewed at once.
    pub fn handle_link_up(&mut self, now: Tick) {
        self.for_all(now, Lease::handle_link_up);
    }

    /// The connection was declared dead, after every operation on it got its outcome.
    pub fn handle_link_down(&mut self, now: Tick) {
        self.for_all(now, Lease::handle_link_down);
    }

    /// No connection can be had: ends single tries, and every wait if waiting cannot cure it.
    pub fn handle_link_failed(&mut self, now: Tick, failure: Failure, text: &[u8]) {
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            let id = LeaseId {
                index,
                generation: slot.generation,
            };
            if slot.live && !slot.lease.state().is_held() {
                self.note_text(id, text);
            }
        }
        self.for_all(now, |lease, now| lease.handle_link_failed(now, failure));
    }

    /// Does what is due. Early and repeated calls change nothing.
    pub fn handle_timeout(&mut self, now: Tick) {
        let now = self.clock(now);
        while let Some((tick, index)) = self.heap.first() {
            if tick > now {
                break;
            }
            self.slots[index as usize].lease.handle_timeout(now);
            self.settle(now, index);
        }
    }

    // ---- helpers ----

    /// Time never goes back.
    fn clock(&mut self, now: Tick) -> Tick {
        if now < self.now {
            self.regressions += 1;
        } else {
            self.now = now;
        }
        self.now
    }

    fn slot(&self, id: LeaseId) -> Option<&Slot> {
        let slot = self.slots.get(id.index())?;
        (slot.live && slot.generation == id.generation).then_some(slot)
    }

    fn note(&mut self, id: LeaseId) -> Option<&mut Note> {
        self.slot(id)?;
        Some(self.slots[id.index()].note.get_or_insert_default())
    }

    fn with(&mut self, now: Tick, id: LeaseId, input: impl FnOnce(&mut Lease, Tick)) {
        let now = self.clock(now);
        if self.slot(id).is_some() {
            input(&mut self.slots[id.index()].lease, now);
            self.settle(now, id.index);
        }
    }

    fn for_all(&mut self, now: Tick, mut input: impl FnMut(&mut Lease, Tick)) {
        let now = self.clock(now);
        for index in 0..self.slots.len() {
            if self.slots[index].live {
                input(&mut self.slots[index].lease, now);
                self.settle(now, index as u32);
            }
        }
    }

    fn take_slot(&mut self, lease: Lease, request: &Request<'_>) -> Result<u32, ConfigError> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => {
                if self.slots.len() == self.slots.capacity() {
                    // By an eighth, not twofold: a slot is big, and thousands of them are what memory is spent on.
                    self.slots.reserve_exact(self.slots.len() / 8 + 8);
                }
                self.slots.push(Slot {
                    lease: lease.clone(),
                    key: Vec::new(),
                    secret: [0; 16],
                    since_ms: 0,
                    fence: UNFENCED,
                    asked: Tick::ZERO,
                    link: Link::default(),
                    generation: 0,
                    live: false,
                    wants: false,
                    held: false,
                    waits: false,
                    note: None,
                    extras: None,
                });
                let index = (self.slots.len() - 1) as u32;
                self.free.push(index);
                index
            }
        };
        let slot = &mut self.slots[index as usize];
        self.names.key_into(request.name, &mut slot.key)?;
        self.free.pop();
        slot.lease = lease;
        slot.secret = request.secret;
        slot.since_ms = request.since_ms;
        slot.fence = request.options.fence.unwrap_or(UNFENCED);
        slot.asked = self.now;
        slot.generation = slot.generation.wrapping_add(1);
        slot.live = true;
        slot.wants = false;
        slot.note = None;
        let Options {
            max_waiters,
            replicas,
            rotate,
            ..
        } = request.options;
        slot.extras = (rotate || replicas.is_some() || max_waiters.is_some()).then(|| {
            Box::new(Extras {
                max_waiters,
                replicas,
                rotation: Rotation::default(),
            })
        });
        self.rotating += usize::from(rotate);
        Ok(index)
    }
}

impl core::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request")
            .field("name", &String::from_utf8_lossy(self.name))
            .field("terms", &self.terms)
            .field("wait", &self.wait)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Slot {
    /// The floor or the fence, if one was asked for.
    fn fence(&self) -> Option<u64> {
        (self.fence != UNFENCED).then_some(self.fence)
    }

    fn replicas(&self) -> Option<Replicas> {
        self.extras.as_ref().and_then(|extras| extras.replicas)
    }
}

// Without the secret.
impl core::fmt::Debug for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slot")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("generation", &self.generation)
            .field("live", &self.live)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
