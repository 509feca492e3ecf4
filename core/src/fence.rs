//! Fences: numbers that only grow, by which a resource tells a holder from one that was before it.
//!
//! A fence is minted in the same step in which a lock is granted. What a store has to do is this, in one transaction with the
//! grant: read the lock's counter, [`mint`] by the store's own clock, write the fence back as the counter, grant. The counter
//! may be forgotten at [`kept_until_ms`], since by then the clock alone gives more; a store that forgets nothing need not.
//! Then the fence is told by [`Leases::handle_fence`](crate::leases::Leases::handle_fence), before the outcome.
//!
//! ```
//! use tenure_core::fence::{DAY, FenceFault, mint};
//!
//! let now = 1_796_000_000_000_000;
//! // The first of a lock is the time,
//! assert_eq!(mint(now, None, 0), Ok(now));
//! // the next one is more, also where the clock has stepped back,
//! assert_eq!(mint(now - 3_600_000_000, Some(now), 0), Ok(now + 1));
//! // and more than whatever the resource has seen.
//! assert_eq!(mint(now, Some(now), now + 7), Ok(now + 8));
//! // Far ahead of the clock nothing could follow that the clock gives: somebody has made a mistake.
//! assert_eq!(mint(now, None, now + DAY + 1), Err(FenceFault::Floor));
//! assert_eq!(mint(now, Some(now + DAY + 1), 0), Err(FenceFault::Counter));
//! ```

/// A day in microseconds: how far fences may be ahead of the clock, and how long after its own time a counter is kept.
pub const DAY: u64 = 86_400_000_000;

/// Fences stay below 2^53, so that every number type counts them exactly: a double, JSON, Lua.
pub const MAX_FENCE: u64 = (1 << 53) - 1;

/// Why no fence was minted. Nothing was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FenceFault {
    /// The floor is more than a day ahead of the store's clock.
    Floor,
    /// The counter is more than a day ahead of the store's clock.
    Counter,
    /// What is in the counter's place is no counter.
    Foreign,
}

/// The fence of a grant at `now_us`, Unix time in microseconds by the store's clock: more than the lock's `counter`, more than
/// `floor`, and never less than the time.
///
/// # Errors
/// [`FenceFault::Floor`] and [`FenceFault::Counter`] where the one or the other is more than a day ahead of the clock, or at
/// the end of what fences can be.
pub const fn mint(now_us: u64, counter: Option<u64>, floor: u64) -> Result<u64, FenceFault> {
    let counter = match counter {
        Some(counter) => counter,
        None => 0,
    };
    let day_ahead = now_us.saturating_add(DAY);
    let most = if day_ahead < MAX_FENCE {
        day_ahead
    } else {
        MAX_FENCE - 1
    };
    if floor > most {
        return Err(FenceFault::Floor);
    }
    if counter > most || now_us > MAX_FENCE {
        return Err(FenceFault::Counter);
    }
    let above = if counter > floor { counter } else { floor } + 1;
    Ok(if above > now_us { above } else { now_us })
}

/// Until when a counter with this fence has to be kept, in Unix milliseconds by the store's clock: an absolute time, computed
/// from the fence itself. Whatever the clock does in between, when it shows that time it is past the fence.
pub const fn kept_until_ms(fence: u64) -> u64 {
    fence.div_ceil(1_000) + DAY / 1_000
}

impl core::fmt::Display for FenceFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            FenceFault::Floor => {
                "fence_from is more than a day ahead of the server's clock, so no later fence could follow from it; use a floor that is a fence of this lock, or correct the server's clock"
            }
            FenceFault::Counter => {
                "the last fence of this lock is more than a day ahead of the server's clock; correct that clock, or delete the lock's helper key `..:fence` and give the highest fence that was used to fence_from"
            }
            FenceFault::Foreign => {
                "what is in the lock's helper key `..:fence` is no fence; delete that key"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s14_a_fence_is_more_than_any_before_it() {
        let now = 1_796_000_000_000_000;
        for counter in [None, Some(0), Some(now - 1), Some(now), Some(now + DAY)] {
            for floor in [0, 1, now - 1, now, now + 5, now + DAY] {
                let fence = mint(now, counter, floor).unwrap();
                assert!(fence >= now && fence > floor && counter.is_none_or(|it| fence > it));
            }
        }
    }

    #[test]
    fn s14_a_counter_outlives_every_time_at_which_it_is_needed() {
        let now = 1_796_000_000_000_123;
        let fence = mint(now, None, 0).unwrap();
        let forgotten_at = kept_until_ms(fence) * 1_000;
        assert!(mint(forgotten_at, None, 0).unwrap() > fence);
        // An hour back: the counter is kept an hour longer by that clock.
        assert!(kept_until_ms(mint(now - 3_600_000_000, Some(fence), 0).unwrap()) > now / 1_000);
    }

    #[test]
    fn s14_what_is_far_ahead_is_refused() {
        let now = 1_796_000_000_000_000;
        assert_eq!(mint(now, None, now + DAY), Ok(now + DAY + 1));
        assert_eq!(mint(now, None, now + DAY + 1), Err(FenceFault::Floor));
        assert_eq!(mint(now, Some(now + DAY), 0), Ok(now + DAY + 1));
        let far = mint(now, Some(now + DAY + 1), 0);
        assert_eq!(far, Err(FenceFault::Counter));
        // The end of what a double counts.
        assert_eq!(mint(MAX_FENCE, None, 0), Ok(MAX_FENCE));
        assert_eq!(mint(MAX_FENCE, Some(MAX_FENCE - 1), 0), Ok(MAX_FENCE));
        for now in [MAX_FENCE, u64::MAX - 5] {
            assert_eq!(mint(now, Some(MAX_FENCE), 0), Err(FenceFault::Counter));
            assert_eq!(mint(now, None, u64::MAX), Err(FenceFault::Floor));
        }
        assert_eq!(mint(MAX_FENCE + 1, None, 0), Err(FenceFault::Counter));
    }
}
