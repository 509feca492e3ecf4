//! Clocks that run at their own rate, jump, and stand still.

use std::time::Duration;

use tenure_core::time::Tick;

/// A clock over the world's true time.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// True time and local time of the last change, in microseconds.
    anchor: (u64, u64),
    /// Parts per million that it runs fast, or slow.
    drift_ppm: i64,
    /// True time at which it was stopped.
    stopped: Option<u64>,
}

impl Clock {
    /// Starts at `local` at true time `now`.
    pub(crate) fn new(now: Tick, local: Duration, drift_ppm: i64) -> Clock {
        Clock {
            anchor: (now.as_micros(), local.as_micros() as u64),
            drift_ppm,
            stopped: None,
        }
    }

    /// What it shows at true time `now`.
    pub(crate) fn read(&self, now: Tick) -> u64 {
        let now = self.stopped.unwrap_or(now.as_micros());
        let passed = now.saturating_sub(self.anchor.0);
        let drift = match (passed as i64).checked_mul(self.drift_ppm) {
            // Years, for any drift that is met: much faster than with twice as many bits.
            Some(product) => product / 1_000_000,
            None => (i128::from(passed) * i128::from(self.drift_ppm) / 1_000_000) as i64,
        };
        self.anchor.1 + passed.saturating_add_signed(drift)
    }

    /// How many parts per million it runs fast.
    pub(crate) fn drift_ppm(&self) -> i64 {
        self.drift_ppm
    }

    /// The true time at which it will show `local`, at its present rate; not before `now`.
    pub(crate) fn when(&self, now: Tick, local: u64) -> Tick {
        let ahead = local.saturating_sub(self.read(now));
        let rate = (1_000_000 + self.drift_ppm).max(1) as u64;
        let passed = match ahead.checked_mul(1_000_000) {
            Some(product) => product.div_ceil(rate),
            None => (u128::from(ahead) * 1_000_000).div_ceil(u128::from(rate)) as u64,
        };
        now + Duration::from_micros(passed)
    }

    /// Jumps forward, or back but never below zero.
    pub(crate) fn step(&mut self, now: Tick, micros: i64) {
        let local = self.read(now);
        self.anchor = (now.as_micros(), local.saturating_add_signed(micros));
    }

    /// Stands still until it is started again: a virtual machine that is paused.
    pub(crate) fn stop(&mut self, now: Tick) {
        self.stopped.get_or_insert(now.as_micros());
    }

    pub(crate) fn start(&mut self, now: Tick) {
        if self.stopped.is_some() {
            let local = self.read(now);
            self.stopped = None;
            self.anchor = (now.as_micros(), local);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_drifts_steps_and_stands_still() {
        let at = |micros| Tick::from_micros(micros);
        let mut clock = Clock::new(at(100), Duration::from_micros(5), 100_000);
        assert_eq!(clock.read(at(100)), 5);
        assert_eq!(clock.read(at(1_100)), 1_105);
        assert!(clock.read(clock.when(at(100), 1_105)) >= 1_105);
        clock.step(at(1_100), -1_000);
        assert_eq!(clock.read(at(1_100)), 105);
        clock.stop(at(1_100));
        assert_eq!(clock.read(at(9_000)), 105);
        clock.start(at(9_000));
        assert_eq!(clock.read(at(10_000)), 105 + 1_100);
    }
}
