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
//! use tenure_core::leases::{Leases, Notice, Request};
//! use tenure_core::names::Names;
//! use tenure_core::time::Tick;
//!
//! let mut leases = Leases::new(Names::new("lock:", "doc")?, 1);
//! let now = Tick::from_micros(0);
//! let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
//! let request = Request { name: b"order:42", terms, wait: Wait::Now, secret: [7; 16], since_ms: 0 };
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
mod queue;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::config::{REPLY_LIMIT, Terms, Wait};
use crate::error::{ConfigError, Failure};
use crate::lease::{self, Cause, Lease, Lost, OpKind, Outcome, Seq, State};
use crate::names::{Names, Value, escape_text};
use crate::rng::Rng;
use crate::time::{Deadline, Tick};
use heap::Heap;
use queue::{Link, NONE, Queues};

/// A single try fails when it has no answer after this: time for a dial and a reply.
const PATIENCE: Duration = Duration::from_secs(2 * REPLY_LIMIT.as_secs());
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
    /// 128 bits that nobody can guess, drawn anew for every request from the system's entropy.
    pub secret: [u8; 16],
    /// Unix time in milliseconds. It is shown to people, nothing depends on it.
    pub since_ms: u64,
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
}

/// Something to tell the caller of a request or the holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which lease.
    pub id: LeaseId,
    /// What.
    pub notice: Notice,
}

/// What there is to tell. See [`lease::Event`] for what ends a request and a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The hold begins.
    Acquired {
        /// The end of validity, if nothing is renewed.
        valid_until: Tick,
    },
    /// Somebody else holds the name.
    Held(Holder),
    /// The wait is over; this is who was seen last.
    TimedOut(Holder),
    /// The request failed.
    Failed(Fault),
    /// The hold goes on.
    Renewed {
        /// The new end of validity.
        valid_until: Tick,
    },
    /// A renewal did not count; the hold goes on until it is given up.
    RenewalFailed(Fault),
    /// The hold is lost.
    Lost {
        /// Why, and until when the work should end.
        lost: Lost,
        /// Who replaced it, if that is known.
        by: Option<Box<str>>,
    },
    /// The hold was released by its holder.
    Released {
        /// Whether the server confirmed it. If not, the clean-up goes on.
        confirmed: bool,
    },
    /// The hold was left to its TTL.
    Abandoned,
}

/// Who holds a name, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The label of the holder, escaped; `None` for a foreign value or one that may not be read.
    pub label: Option<Box<str>>,
    /// How long the holder's lease runs on if it is not renewed.
    pub remaining: Option<Duration>,
}

/// Why something failed, with the server's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// Why.
    pub failure: Failure,
    /// The text of the error reply, escaped.
    pub text: Option<Box<str>>,
}

/// What was last seen of a name: only refusals and errors make one.
#[derive(Debug, Default)]
struct Note {
    label: Option<Box<str>>,
    text: Option<Box<str>>,
}

#[derive(Debug)]
struct Slot {
    lease: Lease,
    /// Kept when the slot is free, so that the next lease need not allocate.
    key: Vec<u8>,
    secret: [u8; 16],
    since_ms: u64,
    link: Link,
    generation: u32,
    live: bool,
    /// In `wanting`.
    wants: bool,
    /// Counted in `held`.
    held: bool,
    note: Option<Box<Note>>,
}

/// The table. See the [module](self).
#[derive(Debug)]
pub struct Leases {
    names: Names,
    slots: Vec<Slot>,
    free: Vec<u32>,
    queues: Queues,
    heap: Heap,
    wanting: VecDeque<u32>,
    events: VecDeque<Event>,
    superseded: Vec<Op>,
    rng: Rng,
    /// How many are held.
    held: usize,
    now: Tick,
    regressions: u64,
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
            now: Tick::ZERO,
            regressions: 0,
        }
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
        Some(Value::new(
            self.names.label(),
            slot.since_ms,
            &slot.secret,
            attempt,
        ))
    }

    /// The attempt of this lease that wrote `shown`, compared byte for byte.
    pub fn own_attempt(&self, id: LeaseId, shown: &[u8]) -> Option<u32> {
        let attempt = Value::attempt_of(shown)?;
        let lease = self.lease(id)?;
        let own = attempt <= lease.attempt() && self.value(id, attempt)?.as_bytes() == shown;
        own.then_some(attempt)
    }

    /// The number of leases that are not over, clean-ups included.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether every lease is over and cleared.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any lock is held: then the caller re-reads its clock at least every second.
    pub fn holds_any(&self) -> bool {
        self.held > 0
    }

    /// The shortest reply limit of the locks that are held: what a dial or a delay may take at most.
    pub fn shortest_reply_limit(&self) -> Duration {
        let held = self.slots.iter().filter(|slot| slot.held);
        held.map(|slot| slot.lease.terms().reply_limit())
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
        while let Some(index) = self.wanting.pop_front() {
            let slot = &mut self.slots[index as usize];
            slot.wants = false;
            let id = LeaseId {
                index,
                generation: slot.generation,
            };
            let Some(op) = slot.lease.poll_op() else {
                continue;
            };
            return Some(Op {
                id,
                seq: op.seq,
                kind: op.kind,
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

    /// Asks for a lock.
    ///
    /// # Errors
    /// [`ConfigError::Name`]: nothing was begun.
    pub fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError> {
        let now = self.clock(now);
        let seed = self.rng.next_u64();
        let lease = Lease::new(now, request.terms, request.wait, PATIENCE, seed);
        let index = self.take_slot(lease, request)?;
        let id = LeaseId {
            index,
            generation: self.slots[index as usize].generation,
        };
        let single = matches!(request.wait, Wait::Now) || request.wait == Wait::For(Duration::ZERO);
        let front = self
            .queues
            .front(&self.slots, &self.slots[index as usize].key);
        match front {
            Some(front) if single && self.is_held(front) => {
                self.refuse_here(now, id, front);
                return Ok(id);
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

    /// Nobody waits for this lease any more.
    pub fn drop_guard(&mut self, now: Tick, id: LeaseId) {
        self.with(now, id, Lease::drop_guard);
    }

    /// The client is being closed: every request fails, every hold is told. What is left to clear goes
    /// on until [`is_empty`](Leases::is_empty).
    pub fn close(&mut self, now: Tick) {
        self.for_all(now, Lease::close);
    }

    // ---- inputs ----

    /// What became of an operation.
    pub fn handle_outcome(&mut self, now: Tick, id: LeaseId, seq: Seq, outcome: Outcome) {
        self.with(now, id, |lease, now| {
            lease.handle_outcome(now, seq, outcome)
        });
    }

    /// A superseded operation was dropped before any of its bytes had left.
    pub fn handle_purged(&mut self, now: Tick, op: Op) {
        self.with(now, op.id, |lease, now| lease.handle_purged(now, op.kind));
    }

    /// Remembers whose value the key showed, for the refusal or loss that follows.
    pub fn note_holder(&mut self, id: LeaseId, shown: &[u8]) {
        let label = Value::label_of(shown).map(Box::from);
        if let Some(note) = self.note(id) {
            note.label = label;
        }
    }

    /// Remembers the text of an error reply, for the failure that follows.
    pub fn note_text(&mut self, id: LeaseId, text: &[u8]) {
        let text = escape_text(text, MAX_TEXT);
        if let Some(note) = self.note(id) {
            note.text = Some(text.into_boxed_str());
        }
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
            let id = LeaseId {
                index,
                generation: self.slots[index as usize].generation,
            };
            let state = self.slots[index as usize].lease.state();
            if self.slots[index as usize].live
                && !text.is_empty()
                && matches!(state, State::Queued | State::Ready | State::Backoff)
            {
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
        let slot = &mut self.slots[id.index()];
        Some(slot.note.get_or_insert_default())
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
                self.slots.push(Slot {
                    lease: lease.clone(),
                    key: Vec::new(),
                    secret: [0; 16],
                    since_ms: 0,
                    link: Link::default(),
                    generation: 0,
                    live: false,
                    wants: false,
                    held: false,
                    note: None,
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
        slot.generation = slot.generation.wrapping_add(1);
        slot.live = true;
        slot.wants = false;
        slot.note = None;
        Ok(index)
    }

    fn is_held(&self, index: u32) -> bool {
        let lease = &self.slots[index as usize].lease;
        matches!(lease.state(), State::Held | State::Renewing) && lease.holds_at(self.now)
    }

    /// A single try for a name that is held in this process.
    fn refuse_here(&mut self, now: Tick, id: LeaseId, front: u32) {
        let notice = Notice::Held(self.holder_here(now, front));
        self.events.push_back(Event { id, notice });
        self.slots[id.index()].lease.drop_guard(now);
        self.settle(now, id.index);
    }

    fn holder_here(&self, now: Tick, front: u32) -> Holder {
        let valid_until = self.slots[front as usize].lease.valid_until();
        Holder {
            label: Some(self.names.label().into()),
            remaining: valid_until.map(|until| until.saturating_since(now)),
        }
    }

    /// After anything happened to a lease: its events, its operation, its place in the queue, its deadline.
    fn settle(&mut self, now: Tick, index: u32) {
        let mut next = Some(index);
        while let Some(index) = next {
            self.tell(now, index);
            next = self.requeue(now, index);
            let slot = &mut self.slots[index as usize];
            let id = LeaseId {
                index,
                generation: slot.generation,
            };
            if let Some(op) = slot.lease.poll_superseded() {
                self.superseded.push(Op {
                    id,
                    seq: op.seq,
                    kind: op.kind,
                });
            }
            let held = matches!(slot.lease.state(), State::Held | State::Renewing);
            if held != core::mem::replace(&mut slot.held, held) {
                self.held = if held { self.held + 1 } else { self.held - 1 };
            }
            if slot.lease.wants_op() && !slot.wants {
                slot.wants = true;
                self.wanting.push_back(index);
            }
            if slot.lease.state() == State::Done && slot.live {
                slot.live = false;
                slot.note = None;
                self.free.push(index);
                self.heap.set(index, None);
            } else {
                self.heap.set(index, slot.lease.deadline().at(now));
            }
        }
    }

    fn tell(&mut self, now: Tick, index: u32) {
        while let Some(event) = self.slots[index as usize].lease.poll_event() {
            let notice = self.notice(now, index, event);
            let generation = self.slots[index as usize].generation;
            self.events.push_back(Event {
                id: LeaseId { index, generation },
                notice,
            });
        }
    }

    fn notice(&mut self, now: Tick, index: u32, event: lease::Event) -> Notice {
        let front = self
            .queues
            .front(&self.slots, &self.slots[index as usize].key);
        let note = self.slots[index as usize].note.as_deref();
        let label = || note.and_then(|note| note.label.clone());
        let fault = |failure| Fault {
            failure,
            text: match failure {
                Failure::Server(_) | Failure::Link(_) => note.and_then(|note| note.text.clone()),
                _ => None,
            },
        };
        match event {
            lease::Event::Acquired { valid_until } => Notice::Acquired { valid_until },
            lease::Event::Held { remaining } => Notice::Held(Holder {
                label: label(),
                remaining,
            }),
            // Those behind the first in the queue time out with what that one knows.
            lease::Event::TimedOut => Notice::TimedOut(match front {
                Some(front) if front != index && self.is_held(front) => {
                    self.holder_here(now, front)
                }
                Some(front) if front != index => {
                    let note = self.slots[front as usize].note.as_deref();
                    Holder {
                        label: note.and_then(|note| note.label.clone()),
                        remaining: None,
                    }
                }
                _ => Holder {
                    label: label(),
                    remaining: None,
                },
            }),
            lease::Event::Failed(failure) => Notice::Failed(fault(failure)),
            lease::Event::Renewed { valid_until } => Notice::Renewed { valid_until },
            lease::Event::RenewalFailed(failure) => Notice::RenewalFailed(fault(failure)),
            lease::Event::Lost(lost) => Notice::Lost {
                lost,
                by: if lost.cause == Cause::Replaced {
                    label()
                } else {
                    None
                },
            },
            lease::Event::Released { confirmed } => Notice::Released { confirmed },
            lease::Event::Abandoned => Notice::Abandoned,
        }
    }

    /// Keeps the local queue in step with the state. Gives the lease whose turn has come, if any.
    fn requeue(&mut self, now: Tick, index: u32) -> Option<u32> {
        let place = self.slots[index as usize].link;
        match self.slots[index as usize].lease.state() {
            State::Held | State::Renewing if !place.is_front => {
                // A single try that won, or a grant that overtook: the holder stands first.
                self.queues.move_to_front(&mut self.slots, index);
                let behind = self.slots[index as usize].link.next;
                (behind != NONE).then(|| {
                    self.slots[behind as usize].lease.demote(now);
                    behind
                })
            }
            State::Ready | State::Backoff if place.queued && !place.is_front => {
                self.slots[index as usize].lease.demote(now);
                None
            }
            State::Releasing | State::Lost | State::Ending | State::Done if place.queued => {
                let promoted = self.queues.leave(&mut self.slots, index)?;
                self.slots[promoted as usize].lease.turn(now);
                Some(promoted)
            }
            _ => None,
        }
    }
}

impl Holder {
    /// A holder of whom nothing is known.
    pub const UNKNOWN: Holder = Holder {
        label: None,
        remaining: None,
    };

    /// A holder with this label.
    pub fn labelled(label: &str, remaining: Option<Duration>) -> Holder {
        Holder {
            label: Some(label.into()),
            remaining,
        }
    }
}

impl core::fmt::Display for Holder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.label {
            Some(label) => f.write_str(label)?,
            None => f.write_str("an unknown holder")?,
        }
        match self.remaining {
            Some(remaining) => write!(f, " (lease runs out in {remaining:?})"),
            None => Ok(()),
        }
    }
}

impl core::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request")
            .field("name", &String::from_utf8_lossy(self.name))
            .field("terms", &self.terms)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
