//! Whether the store's clock goes as fast as the client's.

use std::fmt;
use std::time::Duration;

use tenure_core::time::Tick;

/// The store's clock was set: it has gone further, or less far, than this client's, which counts every suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// By how much at least.
    pub by: Duration,
    /// Forwards: leases end early by this clock. Backwards: they end late.
    pub forwards: bool,
}

impl fmt::Display for ClockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClockStep { by, forwards } = self;
        match forwards {
            true => write!(
                f,
                "the store's clock was set forwards by {by:?}: a lease may have ended early"
            ),
            false => write!(
                f,
                "the store's clock was set back by {by:?}: what nobody renews stays taken for longer"
            ),
        }
    }
}

/// No lease has a shorter one.
const LEAST_MARGIN: Duration = Duration::from_millis(1);

/// How far the store's clock is ahead of the client's, in microseconds. It follows what is slewed.
#[derive(Debug, Default)]
pub(super) struct Wall(Option<i128>);

impl Wall {
    /// Compares a reading of the store's clock with the client's clock read before and behind it. A difference of more than
    /// `margin` to what it was is a step. That is not asked for a difference that is none's: with many locks it takes its time.
    pub(super) fn compare(
        &mut self,
        (before, wall_us, behind): (Tick, u64, Tick),
        margin: impl FnOnce() -> Duration,
    ) -> Option<ClockStep> {
        let ahead_of = |tick: Tick| i128::from(wall_us) - i128::from(tick.as_micros());
        let (least, most) = (ahead_of(behind), ahead_of(before));
        let was = *self.0.get_or_insert(most);
        self.0 = Some(was.clamp(least, most));
        let step = |by: i128, forwards| {
            let by = Duration::from_micros(u64::try_from(by).unwrap_or(u64::MAX));
            (by > LEAST_MARGIN && by > margin()).then_some(ClockStep { by, forwards })
        };
        match () {
            () if least > was => step(least - was, true),
            () if most < was => step(was - most, false),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;
    const MARGIN: Duration = Duration::from_millis(10);

    fn tick(us: u64) -> Tick {
        Tick::from_micros(us)
    }

    #[test]
    fn s12_a_step_over_the_margin_is_told_once_with_its_size() {
        for (set_to, forwards) in [(3 * HOUR, true), (HOUR, false)] {
            let mut wall = Wall::default();
            assert_eq!(wall.compare((tick(0), 2 * HOUR, tick(5)), || MARGIN), None);
            let step = wall.compare((tick(1_000), set_to, tick(1_005)), || MARGIN);
            let step = step.expect("an hour is more than the margin");
            assert_eq!(step.forwards, forwards);
            assert!(step.by.abs_diff(Duration::from_secs(3600)) < MARGIN);
            let again = (tick(2_000), set_to + 1_000, tick(2_005));
            assert_eq!(wall.compare(again, || MARGIN), None);
        }
    }

    #[test]
    fn s12_a_clock_that_is_slewed_or_read_slowly_has_not_been_set() {
        let mut wall = Wall::default();
        for second in 0..10_000 {
            // Half a millisecond in each second: five seconds in the end.
            let at = second * 1_000_000;
            let shown = HOUR + at + second * 500;
            assert_eq!(
                wall.compare((tick(at), shown, tick(at + 1)), || MARGIN),
                None
            );
        }
        let at = 10_000 * 1_000_000;
        let slow = (
            tick(at),
            HOUR + at + 5_000_000 + 900_000,
            tick(at + 1_000_000),
        );
        assert_eq!(wall.compare(slow, || MARGIN), None);
    }

    #[test]
    fn the_margin_is_asked_for_only_where_it_can_matter() {
        let never = || panic!("of many locks that takes its time");
        let mut wall = Wall::default();
        for at in (0..100_000).step_by(1_000) {
            // What is read may be off by some microseconds.
            let shown = HOUR + at + at / 1_000 % 7 * 10;
            let _ = wall.compare((tick(at), shown, tick(at + 1)), never);
        }
    }
}
