//! The earliest deadline of many leases: a binary heap that knows where each lease stands in it.

use alloc::vec::Vec;

use crate::time::Tick;

const ABSENT: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    entries: Vec<(Tick, u32)>,
    /// The place of each lease in `entries`.
    places: Vec<u32>,
}

impl Heap {
    pub(super) fn first(&self) -> Option<(Tick, u32)> {
        self.entries.first().copied()
    }

    /// Sets, moves or removes the deadline of a lease.
    pub(super) fn set(&mut self, lease: u32, deadline: Option<Tick>) {
        let index = lease as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, ABSENT);
        }
        match (self.places[index], deadline) {
            (ABSENT, None) => {}
            (ABSENT, Some(tick)) => {
                let at = self.entries.len();
                self.entries.push((tick, lease));
                self.places[index] = at as u32;
                self.up(at);
            }
            (at, Some(tick)) => {
                let at = at as usize;
                if self.entries[at].0 != tick {
                    self.entries[at].0 = tick;
                    self.up(at);
                    self.down(self.places[index] as usize);
                }
            }
            (at, None) => {
                let at = at as usize;
                self.places[index] = ABSENT;
                self.entries.swap_remove(at);
                if let Some(&(_, moved)) = self.entries.get(at) {
                    self.places[moved as usize] = at as u32;
                    self.up(at);
                    self.down(self.places[moved as usize] as usize);
                }
            }
        }
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.entries[parent] <= self.entries[at] {
                break;
            }
            self.swap(parent, at);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            let Some(mut least) = self.entries.get(left).map(|_| left) else {
                break;
            };
            if self
                .entries
                .get(left + 1)
                .is_some_and(|right| *right < self.entries[left])
            {
                least = left + 1;
            }
            if self.entries[at] <= self.entries[least] {
                break;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        self.places[self.entries[a].1 as usize] = a as u32;
        self.places[self.entries[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn it_agrees_with_a_sorted_map() {
        let (mut heap, mut model, mut rng) = (Heap::default(), BTreeMap::new(), Rng::new(3));
        for _ in 0..20_000 {
            let lease = (rng.next_u64() % 50) as u32;
            let deadline = match rng.next_u64() % 4 {
                0 => None,
                _ => Some(Tick::from_micros(rng.next_u64() % 100)),
            };
            heap.set(lease, deadline);
            match deadline {
                Some(tick) => model.insert(lease, tick),
                None => model.remove(&lease),
            };
            let least = model.iter().map(|(lease, tick)| (*tick, *lease)).min();
            assert_eq!(heap.first(), least);
        }
    }
}
