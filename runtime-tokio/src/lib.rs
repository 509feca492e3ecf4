//! Tenure on tokio: [`connect`], and the binding behind it.
//!
//! ```no_run
//! # async fn f() -> Result<(), tenure_client::Error> {
//! let locks = tenure_tokio::connect("redis://127.0.0.1/").await?;
//! let lock = locks.acquire("nightly-report").await?;
//! // ... work while lock.is_held() ...
//! lock.release().await?;
//! locks.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Time
//!
//! Time is tokio's clock, so a test under paused time lives through a lease without waiting; plus what the machine was
//! suspended for, which tokio's clock does not count on Linux: see [`TokioBinding`]. On a thread outside the runtime
//! tokio's clock cannot be paused; there `is_held` of a paused test sees the real time.

mod over;
mod stream;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_client::binding::{Binding, Endpoint, Timer};
use tenure_client::system::{self, Clock, Running};
use tenure_client::{Config, Driver, Error, Locks, Tick, connect_with, memory_with};
use tokio::time::Instant;

pub use over::{OverStream, TokioOver, connect_over};
pub use stream::TokioStream;

/// Connects to the server that `url` names and spawns the driver on the current runtime.
///
/// `redis://`, `valkey://`, `redis+unix://`, and with the feature `tls` `rediss://` and `valkeys://`; with user, password,
/// database and parameters: see [`Config::from_url`].
///
/// # Errors
/// Why the first try to connect failed: [`Error::Unavailable`], [`Error::Denied`], [`Error::Protocol`] or
/// [`Error::Misconfigured`], which also stands for a malformed URL. Dropping the future gives up.
///
/// # Panics
/// Outside a tokio runtime with its IO and time drivers enabled, as everything of tokio.
pub async fn connect(url: &str) -> Result<Locks, Error> {
    connect_config(&Config::from_url(url)?).await
}

/// As [`connect`], with settings.
///
/// # Errors
/// As [`connect`].
///
/// # Panics
/// As [`connect`].
pub async fn connect_config(config: &Config) -> Result<Locks, Error> {
    let locks = connect_lazily(config)?;
    locks.ready().await?;
    Ok(locks)
}

/// As [`connect_config`], without waiting for the server: for programs that start whether or not it is there.
///
/// Requests wait for it as their options say; [`Locks::ready`] tells whether it was reached.
///
/// # Errors
/// [`Error::Misconfigured`] for settings that cannot work.
///
/// # Panics
/// As [`connect`].
#[track_caller]
pub fn connect_lazily(config: &Config) -> Result<Locks, Error> {
    open_with(config, connect_with)
}

/// As [`connect_lazily`], over a store of another crate: its `open`, say, of which `tenure-sqlite` has one.
///
/// # Errors
/// Those of `open`.
///
/// # Panics
/// Outside a tokio runtime with its time driver enabled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_client::Error> {
/// use tenure_client::{Config, memory_with};
///
/// let locks = tenure_tokio::open_with(&Config::in_memory(), memory_with)?;
/// assert!(locks.try_acquire("a").await?.acquired().is_some());
/// # Ok(()) }
/// ```
#[track_caller]
pub fn open_with(
    config: &Config,
    open: impl FnOnce(TokioBinding, &Config) -> Result<(Locks, Driver), Error>,
) -> Result<Locks, Error> {
    let (locks, driver) = open(TokioBinding::new(), config)?;
    spawn(driver);
    Ok(locks)
}

/// Locks in the memory of this process, driven on the current runtime: for tests, and for code that wants "some lock"
/// before there is a server. Each call is a store of its own; clones share it.
///
/// Under paused time `tokio::time::sleep` lives through every renewal on the way, while `tokio::time::advance` jumps over them,
/// as a process does that slept: its locks are lost. To take a key away from a holder, or to cut it off, there is the
/// simulated world of `tenure-sim`.
///
/// # Panics
/// Outside a tokio runtime with its time driver enabled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_client::Error> {
/// let locks = tenure_tokio::memory();
/// let lock = locks.try_acquire("a").await?.acquired().expect("nobody else is here");
/// assert!(locks.try_acquire("a").await?.acquired().is_none());
/// lock.release().await?;
/// # Ok(()) }
/// ```
#[track_caller]
pub fn memory() -> Locks {
    match memory_config(&Config::in_memory()) {
        Ok(locks) => locks,
        // The defaults are always accepted; what is left is a system without entropy.
        Err(error) => panic!("{error}"),
    }
}

/// As [`memory`], with settings.
///
/// # Errors
/// [`Error::Misconfigured`] for a prefix, label or default that is refused.
///
/// # Panics
/// As [`memory`].
#[track_caller]
pub fn memory_config(config: &Config) -> Result<Locks, Error> {
    open_with(config, memory_with)
}

#[track_caller]
fn spawn(driver: Driver) {
    tokio::spawn(driver);
}

/// What tokio gives a driver. For [`connect_with`] on an executor or `LocalSet` of your own.
///
/// Its clock is tokio's, plus the progress of the boot-time clock or of the raw monotonic clock, whichever is ahead,
/// beyond that of the monotonic clock: a suspended machine and a slewed clock both count. It never goes back.
#[derive(Clone, Debug)]
pub struct TokioBinding {
    clock: Arc<Clock<Epoch>>,
}

impl TokioBinding {
    /// A binding whose time begins now.
    pub fn new() -> TokioBinding {
        TokioBinding::with_suspended(system::suspended())
    }

    /// A binding whose suspended time comes from `suspended` instead of the system: how long the machine was suspended
    /// since some fixed moment. For tests of what a suspension does.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use std::time::Duration;
    /// use tenure_client::binding::Binding;
    ///
    /// let suspended = Arc::new(AtomicU64::new(0));
    /// let binding = tenure_tokio::TokioBinding::with_suspended({
    ///     let suspended = Arc::clone(&suspended);
    ///     move || Duration::from_secs(suspended.load(Ordering::Relaxed))
    /// });
    /// let before = binding.now();
    /// suspended.store(3600, Ordering::Relaxed);
    /// assert!(binding.now().saturating_since(before) >= Duration::from_secs(3600));
    /// ```
    pub fn with_suspended(
        suspended: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> TokioBinding {
        TokioBinding {
            clock: Arc::new(Clock::over(Epoch(Instant::now()), suspended)),
        }
    }
}

impl TokioBinding {
    /// The same time and timers, over transports that `dial` opens: for [`connect_with`], where [`connect_over`] does too
    /// much. For the simulation of a network, together with [`with_suspended`](TokioBinding::with_suspended): what this
    /// machine was suspended for is no part of its time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure_client::{Config, connect_with};
    /// use tenure_tokio::TokioBinding;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_client::Error> {
    /// let binding = TokioBinding::with_suspended(|| Duration::ZERO);
    /// let binding = binding.over(|_endpoint| async {
    ///     let (mine, _theirs) = tokio::io::duplex(1024);
    ///     Ok(mine)
    /// });
    /// let (locks, driver) = connect_with(binding, &Config::from_url("redis://simulated/")?)?;
    /// # drop((locks, driver));
    /// # Ok(()) }
    /// ```
    pub fn over<D>(self, dial: D) -> TokioOver<D> {
        TokioOver::new(self, dial)
    }
}

impl Default for TokioBinding {
    fn default() -> TokioBinding {
        TokioBinding::new()
    }
}

impl Binding for TokioBinding {
    type Stream = TokioStream;
    type Timer = TokioTimer;

    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<TokioStream>> + Send + 'static {
        TokioStream::dial(endpoint.clone())
    }

    fn timer(&self) -> TokioTimer {
        TokioTimer {
            clock: Arc::clone(&self.clock),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    fn now_for_sending(&self) -> Tick {
        self.clock.now_for_sending()
    }

    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()> {
        system::entropy(bytes)
    }
}

/// Where tokio's clock stood when a binding's time began.
#[derive(Debug)]
struct Epoch(Instant);

impl Running for Epoch {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A timer on tokio's clock.
#[derive(Debug)]
pub struct TokioTimer {
    clock: Arc<Clock<Epoch>>,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Timer for TokioTimer {
    fn set(mut self: Pin<&mut Self>, deadline: Tick) {
        // A far deadline is as good as a month.
        let month = Duration::from_secs(30 * 24 * 3600);
        let Epoch(epoch) = self.clock.running();
        let instant = epoch.checked_add(self.clock.running_at(deadline));
        let instant = instant.unwrap_or_else(|| Instant::now() + month);
        self.sleep.as_mut().reset(instant);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.sleep.as_mut().poll(cx)
    }
}
