//! Tokio's clock, plus what it does not count.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_client::Tick;
use tokio::time::Instant;

/// Smaller changes of the offset are noise of reading clocks one after the other.
const NOISE: u64 = 1_000;

pub(crate) struct Clock {
    epoch: Instant,
    /// How long the machine was suspended, since some fixed moment.
    suspended: Box<dyn Fn() -> Duration + Send + Sync>,
    suspended_at_epoch: Duration,
    /// Microseconds suspended since the epoch, as last taken over. Never falls.
    offset: AtomicU64,
    /// The latest tick that was handed out, in microseconds.
    latest: AtomicU64,
}

impl Clock {
    pub(crate) fn new(suspended: Box<dyn Fn() -> Duration + Send + Sync>) -> Clock {
        let suspended_at_epoch = suspended();
        Clock {
            epoch: Instant::now(),
            suspended,
            suspended_at_epoch,
            offset: AtomicU64::new(0),
            latest: AtomicU64::new(0),
        }
    }

    /// The time, suspension counted to this moment.
    pub(crate) fn now(&self) -> Tick {
        // Tokio's clock first: what passes between the readings then counts, and does not vanish.
        let since = self.since_epoch();
        let read = micros((self.suspended)().saturating_sub(self.suspended_at_epoch));
        let known = self.offset.load(Ordering::Relaxed);
        let offset = if read >= known + NOISE {
            self.offset.fetch_max(read, Ordering::Relaxed).max(read)
        } else {
            known
        };
        self.never_back(since + offset)
    }

    /// The time, suspension counted to the last full reading.
    pub(crate) fn now_without_looking(&self) -> Tick {
        self.never_back(self.since_epoch() + self.offset.load(Ordering::Relaxed))
    }

    fn since_epoch(&self) -> u64 {
        micros(Instant::now().saturating_duration_since(self.epoch))
    }

    /// Threads may read out of step with each other; time handed out does not fall.
    fn never_back(&self, now: u64) -> Tick {
        let latest = self.latest.load(Ordering::Relaxed);
        if now > latest {
            self.latest.fetch_max(now, Ordering::Relaxed);
        }
        Tick::from_micros(now.max(latest))
    }

    /// When tokio's clock will show this tick, if nothing more is suspended. A timer may fire early, never late.
    pub(crate) fn instant(&self, tick: Tick) -> Instant {
        let offset = self.offset.load(Ordering::Relaxed);
        let since = Duration::from_micros(tick.as_micros().saturating_sub(offset));
        // A far deadline is as good as a month.
        let month = Duration::from_secs(30 * 24 * 3600);
        self.epoch
            .checked_add(since)
            .unwrap_or_else(|| Instant::now() + month)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

fn micros(span: Duration) -> u64 {
    span.as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(span.subsec_micros()))
}

/// What tokio's monotonic clock has not counted: suspension, and the slewing of the clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn suspended() -> Duration {
    use rustix::time::{ClockId, Timespec, clock_gettime};

    let read = |clock| {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
        Duration::new(
            u64::try_from(tv_sec).unwrap_or(0),
            u32::try_from(tv_nsec).unwrap_or(0),
        )
    };
    // The monotonic clock first: a pause between the readings then counts, and does not vanish.
    let monotonic = read(ClockId::Monotonic);
    let ahead = read(ClockId::Boottime).max(read(ClockId::MonotonicRaw));
    ahead.saturating_sub(monotonic)
}

/// Elsewhere the monotonic clock of the standard library is all there is: it counts suspension on Windows, and on Apple
/// systems it does not.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn suspended() -> Duration {
    Duration::ZERO
}
