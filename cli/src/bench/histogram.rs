//! Durations in buckets that grow with them, so that any number of them fits.

use std::fmt::Write as _;
use std::time::Duration;

use super::ms;

/// Eight buckets for each power of two of nanoseconds: a value is known to an eighth.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

const BUCKETS: usize = 496;
/// The longest bar: with what stands before and behind it a row fits 80 columns.
const BAR: u64 = 50;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: vec![0; BUCKETS],
            count: 0,
            max: 0,
        }
    }
}

impl Histogram {
    pub(super) fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    pub(super) fn add(&mut self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// What this share of all took at most; zero if there is none.
    pub(super) fn at(&self, share: f64) -> Duration {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Duration::from_nanos(start(at + 1).min(self.max));
            }
        }
        Duration::ZERO
    }

    /// A row for each power of two: up to how long, how many, and a bar.
    pub(super) fn rows(&self, bars: bool) -> String {
        let parts = self.buckets.chunks(8);
        let mut sums: Vec<u64> = parts.map(|part| part.iter().sum()).collect();
        // What is below a microsecond is one row.
        let least = bucket(1_023) / 8;
        sums[least] = sums[..=least].iter().sum();
        sums[..least].fill(0);
        let first = sums.iter().position(|sum| *sum > 0);
        let last = sums.iter().rposition(|sum| *sum > 0);
        let most = sums.iter().max().copied().unwrap_or_default().max(1);
        let mut text = String::new();
        let (Some(first), Some(last)) = (first, last) else {
            return text;
        };
        for (at, sum) in sums.iter().enumerate().take(last + 1).skip(first) {
            let until = ms(Duration::from_nanos(start((at + 1) * 8)));
            let percent = *sum as f64 * 100.0 / self.count as f64;
            let _ = write!(text, "  <{until:>12} {percent:5.1}%");
            if bars && *sum > 0 {
                // What is there is seen.
                let long = (sum * BAR / most).max(1);
                let _ = write!(text, " {}", "#".repeat(long.try_into().unwrap_or_default()));
            }
            text.push('\n');
        }
        text
    }
}

/// The bucket of a number.
fn bucket(ns: u64) -> usize {
    match ns {
        0..8 => ns as usize,
        _ => {
            let power = ns.ilog2();
            let eighth = (ns >> (power - 3)) & 7;
            (power as usize - 2) * 8 + eighth as usize
        }
    }
}

/// The first number of a bucket.
fn start(bucket: usize) -> u64 {
    match bucket {
        0..8 => bucket as u64,
        BUCKETS.. => u64::MAX,
        _ => (8 + bucket as u64 % 8) << (bucket / 8 - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_in_the_bucket_that_begins_at_or_before_it() {
        for at in 0..BUCKETS {
            assert_eq!(bucket(start(at)), at);
            assert_eq!(bucket(start(at + 1) - 1), at);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_share_is_never_understated_and_at_most_an_eighth_overstated() {
        let mut took = Histogram::default();
        for us in 1..=1_000 {
            took.record(Duration::from_micros(us));
        }
        for (share, us) in [(0.5, 500), (0.9, 900), (0.99, 990)] {
            let (exact, said) = (Duration::from_micros(us), took.at(share));
            assert!(said >= exact && said <= exact * 9 / 8, "{share}: {said:?}");
        }
        assert_eq!(took.at(1.0), Duration::from_millis(1));
        assert_eq!(Histogram::default().at(0.5), Duration::ZERO);
    }

    #[test]
    fn what_is_below_a_microsecond_is_one_row() {
        let mut took = Histogram::default();
        for ns in [0, 7, 30, 1_023] {
            took.record(Duration::from_nanos(ns));
        }
        assert_eq!(took.rows(false), "  <    0.001 ms 100.0%\n");
    }

    #[test]
    fn a_row_fits_a_terminal_and_has_a_bar_only_there() {
        let mut took = Histogram::default();
        for _ in 0..1_000 {
            took.record(Duration::from_micros(100));
        }
        took.record(Duration::from_secs(100));
        let rows = took.rows(true);
        assert!(rows.lines().all(|row| row.len() <= 80), "{rows}");
        assert_eq!(
            rows.lines().next().map(|row| row.matches('#').count()),
            Some(50)
        );
        assert!(rows.lines().last().is_some_and(|row| row.ends_with('#')));
        assert!(!took.rows(false).contains('#'));
        assert_eq!(rows.lines().count(), took.rows(false).lines().count());
    }
}
