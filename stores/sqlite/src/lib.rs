//! Tenure in a file: leases among the processes of one machine, over SQLite, without a server.
//!
//! ```
//! use tenure_client::Config;
//! use tenure_tokio::TokioBinding;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_client::Error> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("locks.db");
//! let (locks, driver) = tenure_sqlite::open(TokioBinding::new(), &Config::in_file(path))?;
//! tokio::spawn(driver);
//! let lock = locks.acquire("nightly-report").await?;
//! // ... work while lock.is_held() ...
//! lock.release().await?;
//! locks.close().await;
//! # Ok(()) }
//! ```
//!
//! Most programs use `tenure::connect("sqlite:path")` instead, with the feature `sqlite` of the crate `tenure`.
//!
//! # The file
//!
//! It is made when it is not there, for its owner alone, and so is its folder; no more than that. It belongs on a disk of this machine: on a
//! network file system the processes of several machines would not see each other's locks. Beside it SQLite keeps `-wal` and `-shm`. Whoever
//! deletes or replaces it while locks are held takes them away: that is noticed at the next renewal.
//!
//! # Time
//!
//! Leases end by this machine's wall clock, which every process of it shares. When it is set, what is held may end early or late by
//! as much; [`Event::ClockStepped`](tenure_client::Event::ClockStepped) says so.
//!
//! # Forks
//!
//! A client works in the process that made it. In one that was forked off while the file was open it cannot be opened anew, either: SQLite
//! cannot do that, and it is refused. A program that is started by it (`exec`) may.
//!
//! # Waiting
//!
//! SQLite tells nobody of a change. While somebody waits it is looked for one 40 times a second, which costs some microseconds each;
//! so a name that another client frees is had by the next one within about 25 ms, and among those who wait at one client at once.
//! While locks are held it is looked twice a second whether one was released by force.

mod clock;
mod facts;
mod file;
mod forks;
mod queue;
mod store;
mod table;
mod trouble;

use std::time::{SystemTime, UNIX_EPOCH};

use tenure_client::engine::open_with;
use tenure_client::{Binding, Config, Driver, Error, Locks, Reason};

use clock::Uptime;
use store::{Sqlite, WallClock};

/// Locks in the file that `config` names, driven by whatever runs the returned driver.
///
/// Nothing is opened before the driver is polled: [`Locks::ready`] says what came of it.
///
/// # Errors
/// [`Error::Misconfigured`] for settings that name no file, and for a prefix, label, limit or default that is refused.
pub fn open<B: Binding>(binding: B, config: &Config) -> Result<(Locks, Driver), Error> {
    let wall = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        })
    };
    open_by(binding, config, (Box::new(wall), Uptime::read))
}

/// As [`open`], by another wall clock than the system's: Unix time in microseconds. For tests of what happens when it is set; all who
/// share a file have to share its clock.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tenure_client::Config;
/// use tenure_tokio::TokioBinding;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_client::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("locks.db");
/// let wall = Arc::new(AtomicU64::new(1_800_000_000_000_000));
/// let clock = Arc::clone(&wall);
/// let clock = move || clock.load(Ordering::Relaxed);
/// let (locks, driver) = tenure_sqlite::open_by_clock(TokioBinding::new(), &Config::in_file(path), clock)?;
/// tokio::spawn(driver);
/// let lock = locks.lock("a").fenced().acquire().await?;
/// assert_eq!(lock.fence(), Some(1_800_000_000_000_000));
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`open`].
pub fn open_by_clock<B: Binding>(
    binding: B,
    config: &Config,
    clock: impl Fn() -> u64 + Send + 'static,
) -> Result<(Locks, Driver), Error> {
    open_by(binding, config, (Box::new(clock), || None))
}

fn open_by<B: Binding>(
    binding: B,
    config: &Config,
    clocks: (WallClock, fn() -> Option<Uptime>),
) -> Result<(Locks, Driver), Error> {
    let Some(path) = config.file() else {
        let text =
            "these settings name no file: use Config::in_file, or a URL such as sqlite:locks.db";
        return Err(Error::Misconfigured(Reason::Input(text.into())));
    };
    let engine = Sqlite::new(path, config.table(), clocks);
    open_with(binding, config, engine)
}
