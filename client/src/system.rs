//! What the operating system gives to every runtime alike: a clock that counts suspension, and entropy.
//!
//! For bindings; may change before 1.0.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure_core::time::Tick;

/// Smaller changes of the offset are noise of reading clocks one after the other.
const NOISE: u64 = 1_000;

/// A clock of a runtime, plus what it does not count: the time the machine was suspended. It never goes back.
///
/// ```
/// use std::time::Duration;
/// use tenure_client::system::Clock;
///
/// let clock = Clock::new();
/// let before = clock.now();
/// std::thread::sleep(Duration::from_millis(2));
/// assert!(clock.now().saturating_since(before) >= Duration::from_millis(2));
/// ```
pub struct Clock<R = Instant> {
    running: R,
    /// How long the machine was suspended, since some fixed moment.
    suspended: Box<dyn Fn() -> Duration + Send + Sync>,
    /// What that was at the epoch, in microseconds.
    suspended_at_epoch: u64,
    /// Microseconds suspended since the epoch, as last taken over. Never falls.
    offset: AtomicU64,
    /// The latest tick that was handed out, in microseconds.
    latest: AtomicU64,
}

/// Where a [`Clock`] reads the time that passes while the machine runs: of the standard library, or of a runtime whose
/// time can be paused.
pub trait Running: fmt::Debug + Send + Sync + 'static {
    /// How much has passed since a moment that stays the same.
    fn elapsed(&self) -> Duration;
}

impl Running for Instant {
    fn elapsed(&self) -> Duration {
        Instant::elapsed(self)
    }
}

impl Clock {
    /// On the clock of the standard library, from now on.
    pub fn new() -> Clock {
        Clock::over(Instant::now(), suspended())
    }

    /// As [`new`](Clock::new), with the suspended time from `suspended` instead of the system: how long the machine was
    /// suspended since some fixed moment. For tests of what a suspension does.
    pub fn with_suspended(suspended: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock::over(Instant::now(), suspended)
    }

    /// When the standard library's clock will show this tick, if nothing more is suspended.
    pub fn instant(&self, tick: Tick) -> Instant {
        // A far deadline is as good as a month.
        let month = Duration::from_secs(30 * 24 * 3600);
        let instant = self.running.checked_add(self.running_at(tick));
        instant.unwrap_or_else(|| Instant::now() + month)
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

impl<R: Running> Clock<R> {
    /// On the clock of a runtime.
    pub fn over(running: R, suspended: impl Fn() -> Duration + Send + Sync + 'static) -> Clock<R> {
        Clock {
            running,
            suspended_at_epoch: micros(suspended()),
            suspended: Box::new(suspended),
            offset: AtomicU64::new(0),
            latest: AtomicU64::new(0),
        }
    }

    /// The time, suspension counted to this moment.
    pub fn now(&self) -> Tick {
        // The runtime's clock first: what passes between the readings then counts, and does not vanish.
        let since = micros(self.running.elapsed());
        let read = micros((self.suspended)()).saturating_sub(self.suspended_at_epoch);
        let known = self.offset.load(Ordering::Relaxed);
        let offset = if read >= known + NOISE {
            self.offset.fetch_max(read, Ordering::Relaxed).max(read)
        } else {
            known
        };
        self.never_back(since + offset)
    }

    /// The time, suspension counted to the last full reading: for [`Binding::now_for_sending`](crate::Binding::now_for_sending).
    pub fn now_for_sending(&self) -> Tick {
        let since = micros(self.running.elapsed());
        self.never_back(since + self.offset.load(Ordering::Relaxed))
    }

    /// Threads may read out of step with each other; time handed out does not fall.
    fn never_back(&self, now: u64) -> Tick {
        let latest = self.latest.load(Ordering::Relaxed);
        if now > latest {
            self.latest.fetch_max(now, Ordering::Relaxed);
        }
        Tick::from_micros(now.max(latest))
    }

    /// What the runtime's clock will have counted at this tick, if nothing more is suspended. A timer that is set by it may
    /// fire early, never late.
    pub fn running_at(&self, tick: Tick) -> Duration {
        let offset = self.offset.load(Ordering::Relaxed);
        Duration::from_micros(tick.as_micros().saturating_sub(offset))
    }

    /// The runtime's clock.
    pub fn running(&self) -> &R {
        &self.running
    }
}

impl<R: Running> fmt::Debug for Clock<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

/// Fills `bytes` with what nobody can guess: for [`Binding::entropy`](crate::Binding::entropy).
///
/// # Errors
/// The system has no entropy.
pub fn entropy(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(io::Error::from)
}

fn micros(span: Duration) -> u64 {
    span.as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(u64::from(span.subsec_micros()))
}

/// What the monotonic clock has not counted since this was called: suspension, and the slewing of the clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn suspended() -> impl Fn() -> Duration + Send + Sync + 'static {
    let start = Clocks::read();
    move || Clocks::read().uncounted_since(&start)
}

/// Elsewhere the monotonic clock of the standard library is all there is: it counts suspension on Windows, and on Apple
/// systems it does not.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub fn suspended() -> impl Fn() -> Duration + Send + Sync + 'static {
    || Duration::ZERO
}

/// One reading of the clocks that tell what happened to a machine.
#[cfg(any(target_os = "linux", target_os = "android", test))]
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// Stands still while the machine is suspended, and is slewed.
    monotonic: Duration,
    /// As `monotonic`, and goes on while the machine is suspended.
    boot: Duration,
    /// Stands still while the machine is suspended, and is not slewed.
    raw: Duration,
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
impl Clocks {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn read() -> Clocks {
        use rustix::time::{ClockId, Timespec, clock_gettime};

        let read = |clock| {
            let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
            Duration::new(
                u64::try_from(tv_sec).unwrap_or(0),
                u32::try_from(tv_nsec).unwrap_or(0),
            )
        };
        // The monotonic clock last: that this thread had to wait between the readings must not pass for a suspension. A
        // suspension in between is seen by the next reading.
        let (boot, raw) = (read(ClockId::Boottime), read(ClockId::MonotonicRaw));
        Clocks {
            monotonic: read(ClockId::Monotonic),
            boot,
            raw,
        }
    }

    /// How much further than the monotonic clock whichever of the others has come that came furthest. Progress is compared, not
    /// readings: before the start, one of them may have got far ahead.
    fn uncounted_since(&self, start: &Clocks) -> Duration {
        let boot = self.boot.saturating_sub(start.boot);
        let raw = self.raw.saturating_sub(start.raw);
        boot.max(raw)
            .saturating_sub(self.monotonic.saturating_sub(start.monotonic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn clocks(monotonic: u64, boot: u64, raw: u64) -> Clocks {
        let secs = Duration::from_secs;
        Clocks {
            monotonic: secs(monotonic),
            boot: secs(boot),
            raw: secs(raw),
        }
    }

    #[test]
    fn a_suspension_counts_whatever_was_before() {
        // The raw clock is 50 s ahead from long ago; then 40 s of suspension while 10 s are counted.
        let start = clocks(1_000, 1_000, 1_050);
        assert_eq!(
            clocks(1_010, 1_050, 1_060).uncounted_since(&start),
            Duration::from_secs(40)
        );
        // The machine was suspended for hours before; the monotonic clock is slewed, and falls behind the raw one.
        let start = clocks(1_000, 9_000, 1_000);
        assert_eq!(
            clocks(1_090, 9_090, 1_100).uncounted_since(&start),
            Duration::from_secs(10)
        );
        assert_eq!(
            clocks(1_000, 9_000, 1_000).uncounted_since(&start),
            Duration::ZERO
        );
    }

    #[test]
    fn the_clocks_of_this_machine_agree_while_it_runs() {
        let uncounted = suspended();
        assert!(uncounted() < Duration::from_secs(1));
    }
}
