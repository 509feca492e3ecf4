//! Futures that wait for the same thing, each with one waker.

use std::task::{Context, Waker};

/// What a future waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// The answer to a renewal, or the end.
    Renewal,
    /// The end.
    End,
}

/// The wakers of the waiting futures. Whatever is taken out of here is dropped or woken by the caller, after it has given its
/// lock back: with a waker may go a whole task, and with that a guard.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    list: Vec<(u32, For, Waker)>,
    last: u32,
}

impl Waiters {
    /// Remembers who waits; `id` identifies the future from one poll to the next. Gives the waker it had before.
    #[must_use = "drop it after the lock is given back"]
    pub(crate) fn watch(
        &mut self,
        id: &mut Option<u32>,
        what: For,
        cx: &mut Context<'_>,
    ) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| {
            self.last = self.last.wrapping_add(1);
            self.last
        });
        match self.list.iter_mut().find(|(other, ..)| *other == id) {
            Some((.., waker)) if waker.will_wake(cx.waker()) => None,
            Some((.., waker)) => Some(std::mem::replace(waker, cx.waker().clone())),
            None => {
                self.list.push((id, what, cx.waker().clone()));
                None
            }
        }
    }

    /// The future was dropped.
    #[must_use = "drop it after the lock is given back"]
    pub(crate) fn remove(&mut self, id: Option<u32>) -> Option<Waker> {
        let at = self
            .list
            .iter()
            .position(|(other, ..)| Some(*other) == id)?;
        Some(self.list.swap_remove(at).2)
    }

    /// It has happened: everybody is to be woken, or those only who wait for a renewal.
    pub(crate) fn take(&mut self, what: For, wakers: &mut Vec<Waker>) {
        let mut at = 0;
        while at < self.list.len() {
            if what == For::End || self.list[at].1 == For::Renewal {
                wakers.push(self.list.swap_remove(at).2);
            } else {
                at += 1;
            }
        }
    }
}

/// Sets the one waker of a slot. Gives the one that was there.
#[must_use = "drop it after the lock is given back"]
pub(crate) fn set(slot: &mut Option<Waker>, cx: &mut Context<'_>) -> Option<Waker> {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => None,
        _ => slot.replace(cx.waker().clone()),
    }
}
