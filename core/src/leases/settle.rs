//! What follows after anything happened to a lease: events, operations, the queue, the deadline.

use super::queue::NONE;
use super::{Event, Fault, Holder, LeaseId, Leases, Notice, Op};
use crate::error::Failure;
use crate::lease::{self, Cause, State};
use crate::time::Tick;

impl Leases {
    pub(super) fn is_held(&self, index: u32) -> bool {
        let lease = &self.slots[index as usize].lease;
        lease.holds_at(self.now)
    }

    /// A single try for a name that is held in this process.
    pub(super) fn refuse_here(&mut self, now: Tick, id: LeaseId, front: u32) {
        let notice = Notice::Held(self.holder_here(now, front));
        self.events.push_back(Event { id, notice });
        self.slots[id.index()].lease.drop_guard(now);
        self.settle(now, id.index);
    }

    pub(super) fn holder_here(&self, now: Tick, front: u32) -> Holder {
        let valid_until = self.slots[front as usize].lease.valid_until();
        Holder {
            label: Some(self.names.label().into()),
            remaining: valid_until.map(|until| until.saturating_since(now)),
            cooling: false,
        }
    }

    /// After anything happened to a lease: its events, its operation, its place in the queue, its deadline.
    pub(super) fn settle(&mut self, now: Tick, index: u32) {
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
                    fenced: slot.fence().is_some(),
                    fair: slot.lease.is_fair(),
                    replicas: slot.replicas(),
                    cools: false,
                });
            }
            self.missed |= slot.lease.take_missed();
            let held = slot.lease.state().is_held();
            if held != core::mem::replace(&mut slot.held, held) {
                self.held = if held { self.held + 1 } else { self.held - 1 };
            }
            let waits = slot.lease.state() == State::Backoff;
            if waits != core::mem::replace(&mut slot.waits, waits) {
                self.waiting = if waits {
                    self.waiting + 1
                } else {
                    self.waiting - 1
                };
            }
            if slot.lease.wants_op() && !slot.wants {
                slot.wants = true;
                self.wanting.push_back(id);
            }
            if slot.lease.state() == State::Done && slot.live {
                slot.live = false;
                slot.note = None;
                self.rotating -= usize::from(slot.lease.rotates());
                slot.extras = None;
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
        let note = self.slots[index as usize].note.as_deref();
        let label = || note.and_then(|note| note.label.clone());
        let fault = |failure| Fault {
            failure,
            text: match failure {
                Failure::Server(_) | Failure::Link(_) | Failure::Replicas(_) => {
                    note.and_then(|note| note.text.clone())
                }
                _ => None,
            },
        };
        match event {
            lease::Event::Acquired { valid_until } => {
                // Who held it before is of no interest any more.
                let slot = &mut self.slots[index as usize];
                slot.note = None;
                Notice::Acquired {
                    valid_until,
                    fence: slot.fence(),
                }
            }
            lease::Event::Held { remaining } => Notice::Held(Holder {
                label: label(),
                remaining,
                cooling: note.is_some_and(|note| note.cooling),
            }),
            lease::Event::TimedOut => Notice::TimedOut(self.seen_last(now, index)),
            lease::Event::Failed(failure) => Notice::Failed(fault(failure)),
            lease::Event::Renewed { valid_until } => Notice::Renewed { valid_until },
            lease::Event::RenewalFailed(failure) => Notice::RenewalFailed(fault(failure)),
            lease::Event::Lost(mut lost) => {
                let forced = note.and_then(|note| note.forced.clone());
                if matches!(lost.cause, Cause::Gone | Cause::Replaced) && forced.is_some() {
                    lost.cause = Cause::Forced;
                }
                let by = match lost.cause {
                    Cause::Replaced => label(),
                    Cause::Forced => forced,
                    _ => None,
                };
                Notice::Lost { lost, by }
            }
            lease::Event::Vanished => Notice::Vanished,
            lease::Event::Released { confirmed } => Notice::Released { confirmed },
            lease::Event::Abandoned => Notice::Abandoned,
        }
    }

    /// Who has the name, for a request that times out: those behind the first in the queue know what that
    /// one knows.
    fn seen_last(&self, now: Tick, index: u32) -> Holder {
        let key = &self.slots[index as usize].key;
        let front = self.queues.front(&self.slots, key).unwrap_or(index);
        if front != index && self.is_held(front) {
            return self.holder_here(now, front);
        }
        let note = self.slots[front as usize].note.as_deref();
        Holder {
            label: note.and_then(|note| note.label.clone()),
            remaining: None,
            cooling: note.is_some_and(|note| note.cooling),
        }
    }

    /// Keeps the local queue in step with the state. Gives the lease whose turn has come, if any.
    fn requeue(&mut self, now: Tick, index: u32) -> Option<u32> {
        let place = self.slots[index as usize].link;
        match self.slots[index as usize].lease.state() {
            // Only when it has just been granted: one that was here before and does not know yet that it
            // lost the key to this one stays behind.
            state if state.is_held() && !place.is_front && !self.slots[index as usize].held => {
                // A single try that won, or a grant that overtook: the holder stands first.
                self.queues.move_to_front(&mut self.slots, index);
                let behind = self.slots[index as usize].link.next;
                (behind != NONE).then(|| {
                    let lease = &mut self.slots[behind as usize].lease;
                    lease.demote(now);
                    // If that one is held, too, somebody removed its key: a renewal finds it out.
                    lease.renew_now(now);
                    behind
                })
            }
            State::Ready | State::Backoff if place.queued && !place.is_front => {
                self.slots[index as usize].lease.demote(now);
                None
            }
            State::Releasing | State::Lost | State::Ending | State::Done if place.queued => {
                let promoted = self.queues.leave(&mut self.slots, index)?;
                // Whom it has seen the next one knows, too: it may time out before it has an answer of its own.
                let seen = self.slots[index as usize].note.as_deref();
                let seen = seen.map(|note| (note.label.clone(), note.cooling));
                if let Some((Some(label), cooling)) = seen {
                    let note = self.slots[promoted as usize].note.get_or_insert_default();
                    if note.label.is_none() {
                        (note.label, note.cooling) = (Some(label), cooling);
                    }
                }
                self.slots[promoted as usize].lease.turn(now);
                Some(promoted)
            }
            _ => None,
        }
    }
}
