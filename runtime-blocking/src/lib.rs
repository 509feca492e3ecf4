//! Tenure for threads: the same locks, with the same verbs, without `async`.
//!
//! ```
//! use std::time::Duration;
//! use tenure_blocking::Attempt;
//!
//! # fn main() -> Result<(), tenure_blocking::Error> {
//! // `connect("redis://127.0.0.1/")` for a server; this one is in memory.
//! let locks = tenure_blocking::memory();
//!
//! // One try: taken is a value.
//! match locks.try_acquire("nightly-report")? {
//!     Attempt::Acquired(lock) => lock.release().map(drop)?,
//!     Attempt::Held(holder) => println!("held by {holder}"),
//! }
//!
//! // Or wait, with options; and look at it between the steps of the work.
//! let request = locks.lock("order:42").lease(Duration::from_secs(10)).wait(Duration::from_secs(5));
//! let lock = request.acquire()?;
//! lock.check()?;
//! lock.release()?;
//! locks.close();
//! # Ok(()) }
//! ```
//!
//! # Threads
//!
//! Each client has one small thread, `tenure-driver`: it connects, renews, keeps the time and reconnects, and it ends when
//! the last handle is gone, or with [`Locks::close`]. Many threads may use a client at once, on its one connection. A
//! request that is alone on it is written and read by the thread that makes it (on unix); otherwise the driver reads. While a
//! host name is resolved there is a second thread, `tenure-resolve`, because the system may take its time for that.
//!
//! # Forks
//!
//! A client works in the process that made it. In a process that was forked off every verb gives [`Error::Forked`], locks
//! are not held, and nothing is written, neither by a verb nor by a drop: connect anew there. A future of `into_async` that
//! was polled before the fork may never be ready there.
//!
//! # Time
//!
//! The clock of the standard library, plus the time the machine was suspended, as with the other bindings.

#[cfg(unix)]
mod bell;
mod client;
mod dial;
mod hub;
mod lock;
mod locks;
mod on_lost;
mod parker;
#[cfg(unix)]
mod reader;
mod socket;

pub use hub::{BlockingBinding, BlockingTimer};
pub use lock::{Held, Lock};
pub use locks::{Attempt, Locks, Request};
pub use socket::BlockingStream;
#[cfg(feature = "tls")]
pub use tenure_client::Tls;
pub use tenure_client::{
    Cause, Config, ConfigError, Error, Event, Examination, Failure, Holder, Inspection, Listed,
    LockOptions, Lost, Observer, OwnerToken, Reason, Released, Removed, Risk, Wait, Warning,
};

/// Connects to the server that `url` names.
///
/// `redis://`, `valkey://`, `redis+unix://`, and with the feature `tls` `rediss://` and `valkeys://`; with user, password,
/// database and parameters: see [`Config::from_url`].
///
/// # Errors
/// Why the first try to connect failed: [`Error::Unavailable`], [`Error::Denied`], [`Error::Protocol`] or
/// [`Error::Misconfigured`], which also stands for a malformed URL and for a system that starts no thread.
///
/// ```no_run
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// let locks = tenure_blocking::connect("redis://127.0.0.1/")?;
/// let lock = locks.acquire("nightly-report")?;
/// // ... work while lock.is_held() ...
/// lock.release()?;
/// locks.close();
/// # Ok(()) }
/// ```
pub fn connect(url: &str) -> Result<Locks, Error> {
    connect_config(&Config::from_url(url)?)
}

/// As [`connect`], with settings.
///
/// # Errors
/// As [`connect`].
///
/// ```no_run
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// use tenure_blocking::Config;
///
/// let config = Config::from_url("redis://127.0.0.1/")?.label("worker 7");
/// let locks = tenure_blocking::connect_config(&config)?;
/// # Ok(()) }
/// ```
pub fn connect_config(config: &Config) -> Result<Locks, Error> {
    let locks = connect_lazily(config)?;
    locks.ready()?;
    Ok(locks)
}

/// As [`connect_config`], without waiting for the server: for programs that start whether or not it is there.
///
/// Requests wait for it as their options say; [`Locks::ready`] tells whether it was reached.
///
/// # Errors
/// [`Error::Misconfigured`] for settings that cannot work, or a system that starts no thread.
///
/// ```
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// use std::time::Duration;
/// use tenure_blocking::{Config, Error};
///
/// // Nobody listens there.
/// let locks = tenure_blocking::connect_lazily(&Config::from_url("redis://127.0.0.1:1/")?)?;
/// let request = locks.lock("order:42").wait(Duration::from_millis(20));
/// assert!(matches!(request.acquire(), Err(Error::Unavailable(_))));
/// # Ok(()) }
/// ```
pub fn connect_lazily(config: &Config) -> Result<Locks, Error> {
    open_with(config, tenure_client::connect_with)
}

/// As [`connect_lazily`], over a store of another crate: its `open`, say, of which `tenure-sqlite` has one.
///
/// # Errors
/// Those of `open`, and [`Error::Misconfigured`] for a system that starts no thread.
///
/// ```
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// use tenure_blocking::Config;
///
/// let locks = tenure_blocking::open_with(&Config::in_memory(), tenure_client::memory_with)?;
/// assert!(locks.try_acquire("a")?.acquired().is_some());
/// # Ok(()) }
/// ```
pub fn open_with(
    config: &Config,
    open: impl FnOnce(
        BlockingBinding,
        &Config,
    ) -> Result<(tenure_client::Locks, tenure_client::Driver), Error>,
) -> Result<Locks, Error> {
    Locks::start(config, open)
}

/// Locks in the memory of this process: for tests, and for code that wants "some lock" before there is a server. Each call
/// is a store of its own; clones share it.
///
/// # Panics
/// When the system starts no thread or has no entropy.
///
/// ```
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// let locks = tenure_blocking::memory();
/// let lock = locks.try_acquire("a")?.acquired().expect("nobody else is here");
/// assert!(locks.try_acquire("a")?.acquired().is_none());
/// lock.release()?;
/// # Ok(()) }
/// ```
#[track_caller]
pub fn memory() -> Locks {
    match memory_config(&Config::in_memory()) {
        Ok(locks) => locks,
        // The defaults are always accepted.
        Err(error) => panic!("{error}"),
    }
}

/// As [`memory`], with settings.
///
/// # Errors
/// [`Error::Misconfigured`] for a prefix, label or default that is refused, or a system that starts no thread.
///
/// ```
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// let locks = tenure_blocking::memory_config(&tenure_blocking::Config::in_memory().label("me"))?;
/// let lock = locks.acquire("a")?;
/// assert_eq!(locks.try_acquire("a")?.holder().unwrap().label.as_deref(), Some("me"));
/// # drop(lock);
/// # Ok(()) }
/// ```
pub fn memory_config(config: &Config) -> Result<Locks, Error> {
    open_with(config, tenure_client::memory_with)
}
