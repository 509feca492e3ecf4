//! How long a hold lasts at least, and at most.

use core::time::Duration;

use super::Lease;
use crate::time::Tick;

impl Lease {
    /// How much of the [shortest hold](crate::config::LeaseConfig::at_least) is left at `now`; `None` when it is over, none was
    /// asked for, or nothing was granted. A clean-up that comes before leaves the key taken for so long, instead of deleting
    /// it, where the key has a value that [stands for the hold](super::Leftovers::of_hold).
    pub fn rest(&self, now: Tick) -> Option<Duration> {
        if self.granted == Tick::MAX || self.leftovers.of_hold().is_empty() {
            return None;
        }
        let rest = (self.granted + self.terms.at_least()).saturating_since(now);
        (!rest.is_zero()).then_some(rest)
    }

    /// As [`drop_guard`](Lease::drop_guard), of a request whose lock was never handed to anybody: granted or not, nothing was done
    /// under it, and nothing has to stay taken.
    pub fn cancel(&mut self, now: Tick) {
        self.granted = Tick::MAX;
        self.drop_guard(now);
    }

    /// The hold ends by then; `Tick::MAX` for never.
    pub(super) fn max_end(&self) -> Tick {
        match self.terms.max_hold() {
            Some(max_hold) => self.granted + max_hold,
            None => Tick::MAX,
        }
    }
}
