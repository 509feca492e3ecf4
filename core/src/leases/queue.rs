//! One queue per name within the process. The one in front holds the name or tries for it.

use alloc::vec::Vec;

use super::Slot;

/// No lease.
pub(super) const NONE: u32 = u32::MAX;

/// A lease's place in the queue of its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) queued: bool,
    pub(super) is_front: bool,
    pub(super) next: u32,
    prev: u32,
    /// Of the front: the last in the queue.
    tail: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            queued: false,
            is_front: false,
            next: NONE,
            prev: NONE,
            tail: NONE,
        }
    }
}

/// The fronts, sorted by key. A sorted list and not a map: no hashing of names that strangers choose,
/// no allocation once it has grown, and finding one is a handful of comparisons.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    fronts: Vec<u32>,
}

impl Queues {
    /// The front of the queue for this key.
    pub(super) fn front(&self, slots: &[Slot], key: &[u8]) -> Option<u32> {
        self.find(slots, key).ok().map(|at| self.fronts[at])
    }

    /// Begins the queue of a name.
    pub(super) fn found(&mut self, slots: &mut [Slot], index: u32) {
        if let Err(at) = self.find(slots, &slots[index as usize].key) {
            self.fronts.insert(at, index);
            slots[index as usize].link = Link {
                queued: true,
                is_front: true,
                tail: index,
                ..Link::default()
            };
        }
    }

    /// Joins a queue at its end.
    pub(super) fn join(&mut self, slots: &mut [Slot], front: u32, index: u32) {
        let tail = slots[front as usize].link.tail;
        slots[tail as usize].link.next = index;
        slots[front as usize].link.tail = index;
        slots[index as usize].link = Link {
            queued: true,
            prev: tail,
            ..Link::default()
        };
    }

    /// Makes a lease the front of its queue, wherever it stood before.
    pub(super) fn move_to_front(&mut self, slots: &mut [Slot], index: u32) {
        if slots[index as usize].link.queued {
            self.leave(slots, index);
        }
        match self.find(slots, &slots[index as usize].key) {
            Err(_) => self.found(slots, index),
            Ok(at) => {
                let old = self.fronts[at];
                self.fronts[at] = index;
                let tail = slots[old as usize].link.tail;
                slots[index as usize].link = Link {
                    queued: true,
                    is_front: true,
                    next: old,
                    prev: NONE,
                    tail,
                };
                let link = &mut slots[old as usize].link;
                link.is_front = false;
                link.prev = index;
                link.tail = NONE;
            }
        }
    }

    /// Leaves the queue. Gives the new front if it was the front that left.
    pub(super) fn leave(&mut self, slots: &mut [Slot], index: u32) -> Option<u32> {
        let link = slots[index as usize].link;
        let mut promoted = None;
        if link.is_front {
            if let Ok(at) = self.find(slots, &slots[index as usize].key) {
                if link.next == NONE {
                    self.fronts.remove(at);
                } else {
                    self.fronts[at] = link.next;
                    let next = &mut slots[link.next as usize].link;
                    next.is_front = true;
                    next.prev = NONE;
                    next.tail = link.tail;
                    promoted = Some(link.next);
                }
            }
        } else {
            slots[link.prev as usize].link.next = link.next;
            if link.next == NONE {
                if let Some(front) = self.front(slots, &slots[index as usize].key) {
                    slots[front as usize].link.tail = link.prev;
                }
            } else {
                slots[link.next as usize].link.prev = link.prev;
            }
        }
        slots[index as usize].link = Link::default();
        promoted
    }

    fn find(&self, slots: &[Slot], key: &[u8]) -> Result<usize, usize> {
        self.fronts
            .binary_search_by(|front| slots[*front as usize].key.as_slice().cmp(key))
    }
}
