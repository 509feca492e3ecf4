//! Tenure on smol: [`connect`], and the binding behind it, which goes with any executor.
//!
//! ```no_run
//! # async fn f() -> Result<(), tenure_client::Error> {
//! let locks = tenure_smol::connect("redis://127.0.0.1/").await?;
//! let lock = locks.acquire("nightly-report").await?;
//! // ... work while lock.is_held() ...
//! lock.release().await?;
//! locks.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Executors
//!
//! Sockets and timers are those of the crate `async-io`, which belong to no executor: a thread of that crate wakes whoever waits.
//! So nothing here panics for want of a runtime, and the driver may run anywhere:
//!
//! | where the driver runs | how |
//! |---|---|
//! | smol's global executor | [`connect`], [`connect_config`], [`connect_lazily`], [`memory`] (feature `smol`, on by default) |
//! | an executor of your own | [`connect_on`] |
//! | wherever you poll it | [`connect_with`] and [`memory_with`] with a [`SmolBinding`] |
//! | async-std's executor | [`connect_on`]; async-std is no longer developed and points to smol, so it is only tested here, not depended on |
//!
//! # Time
//!
//! Time is the clock of the standard library, plus what the machine was suspended for, which that clock does not count on
//! Linux: see [`SmolBinding`].

#![forbid(unsafe_code)]

mod over;
mod stream;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_client::binding::{Binding, Endpoint, Timer};
#[cfg(feature = "smol")]
use tenure_client::memory_with;
use tenure_client::system::{self, Clock};
use tenure_client::{Config, Driver, Error, Locks, Tick, connect_with};

pub use over::{OverStream, SmolOver};
pub use stream::SmolStream;

/// Connects to the server that `url` names and spawns the driver on smol's global executor.
///
/// `redis://`, `valkey://`, `redis+unix://`, and with the feature `tls` `rediss://` and `valkeys://`; with user, password,
/// database and parameters: see [`Config::from_url`]. It need not be
/// called on that executor: any `block_on` will do.
///
/// # Errors
/// Why the first try to connect failed: [`Error::Unavailable`], [`Error::Denied`], [`Error::Protocol`] or
/// [`Error::Misconfigured`], which also stands for a malformed URL. Dropping the future gives up.
///
/// ```no_run
/// # fn main() -> Result<(), tenure_client::Error> {
/// smol::block_on(async {
///     let locks = tenure_smol::connect("redis://127.0.0.1/").await?;
///     let sum = locks.lock("ledger").run(|_held| async { 1 + 1 }).await?;
///     assert_eq!(sum, 2);
///     locks.close().await;
///     Ok(())
/// })
/// # }
/// ```
#[cfg(feature = "smol")]
pub async fn connect(url: &str) -> Result<Locks, Error> {
    connect_config(&Config::from_url(url)?).await
}

/// As [`connect`], with settings.
///
/// # Errors
/// As [`connect`].
#[cfg(feature = "smol")]
pub async fn connect_config(config: &Config) -> Result<Locks, Error> {
    connect_on(config, spawn).await
}

/// As [`connect_config`], without waiting for the server: for programs that start whether or not it is there.
///
/// Requests wait for it as their options say; [`Locks::ready`] tells whether it was reached.
///
/// # Errors
/// [`Error::Misconfigured`] for settings that cannot work.
#[cfg(feature = "smol")]
pub fn connect_lazily(config: &Config) -> Result<Locks, Error> {
    open_with(config, connect_with, spawn)
}

/// As [`connect_config`], on an executor of your own: `spawn` gets the driver and lets it run.
///
/// The driver must outlive `spawn`. Executors differ in what becomes of a task whose handle is dropped: smol cancels it
/// unless it is detached, async-std lets it run. So the handle must not be returned, but detached or kept.
///
/// # Errors
/// As [`connect`].
///
/// ```no_run
/// # async fn f() -> Result<(), tenure_client::Error> {
/// use tenure_client::Config;
///
/// let config = Config::from_url("redis://127.0.0.1/")?;
/// # let executor = smol::Executor::new();
/// let locks = tenure_smol::connect_on(&config, |driver| executor.spawn(driver).detach()).await?;
/// // async-std:
/// let locks = tenure_smol::connect_on(&config, |driver| drop(async_std::task::spawn(driver))).await?;
/// # Ok(()) }
/// ```
pub async fn connect_on(config: &Config, spawn: impl FnOnce(Driver)) -> Result<Locks, Error> {
    let locks = open_with(config, connect_with, spawn)?;
    locks.ready().await?;
    Ok(locks)
}

/// As [`connect_on`], over a store of another crate: its `open`, say, of which `tenure-sqlite` has one. It does not wait.
///
/// # Errors
/// Those of `open`.
///
/// ```
/// # smol::block_on(async {
/// use tenure_client::{Config, memory_with};
///
/// let spawn = |driver| smol::spawn(driver).detach();
/// let locks = tenure_smol::open_with(&Config::in_memory(), memory_with, spawn)?;
/// assert!(locks.try_acquire("a").await?.acquired().is_some());
/// # Ok::<(), tenure_client::Error>(()) }).unwrap();
/// ```
pub fn open_with(
    config: &Config,
    open: impl FnOnce(SmolBinding, &Config) -> Result<(Locks, Driver), Error>,
    spawn: impl FnOnce(Driver),
) -> Result<Locks, Error> {
    let (locks, driver) = open(SmolBinding::new(), config)?;
    spawn(driver);
    Ok(locks)
}

/// Locks in the memory of this process, driven on smol's global executor: for tests, and for code that wants "some
/// lock" before there is a server. Each call is a store of its own; clones share it.
///
/// # Panics
/// When the system has no entropy.
///
/// ```
/// # smol::block_on(async {
/// let locks = tenure_smol::memory();
/// let lock = locks.try_acquire("a").await?.acquired().expect("nobody else is here");
/// assert!(locks.try_acquire("a").await?.acquired().is_none());
/// lock.release().await?;
/// # Ok::<(), tenure_client::Error>(()) }).unwrap();
/// ```
#[cfg(feature = "smol")]
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
#[cfg(feature = "smol")]
pub fn memory_config(config: &Config) -> Result<Locks, Error> {
    open_with(config, memory_with, spawn)
}

/// Lets a driver run on smol's global executor.
///
/// ```
/// # smol::block_on(async {
/// use tenure_client::{Config, memory_with};
///
/// let (locks, driver) = memory_with(tenure_smol::SmolBinding::new(), &Config::in_memory())?;
/// tenure_smol::spawn(driver);
/// assert!(locks.try_acquire("a").await?.acquired().is_some());
/// # Ok::<(), tenure_client::Error>(()) }).unwrap();
/// ```
#[cfg(feature = "smol")]
pub fn spawn(driver: Driver) {
    smol::spawn(driver).detach();
}

/// What `async-io` gives a driver. For [`connect_with`] and [`memory_with`], wherever the driver is to be polled.
///
/// Its clock is that of the standard library, plus the progress of the boot-time clock or of the raw monotonic clock,
/// whichever is ahead, beyond that of the monotonic clock: a suspended machine and a slewed clock both count. It never
/// goes back.
///
/// ```
/// use tenure_client::{Config, memory_with};
/// use tenure_smol::SmolBinding;
///
/// let (locks, driver) = memory_with(SmolBinding::new(), &Config::in_memory())?;
/// let executor = smol::LocalExecutor::new();
/// let driving = executor.spawn(driver);
/// smol::block_on(executor.run(async {
///     locks.acquire("a").await?.release().await?;
///     locks.close().await;
///     driving.await;
///     Ok::<(), tenure_client::Error>(())
/// }))?;
/// # Ok::<(), tenure_client::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SmolBinding {
    clock: Arc<Clock>,
}

impl SmolBinding {
    /// A binding whose time begins now.
    pub fn new() -> SmolBinding {
        SmolBinding::default()
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
    /// let binding = tenure_smol::SmolBinding::with_suspended({
    ///     let suspended = Arc::clone(&suspended);
    ///     move || Duration::from_secs(suspended.load(Ordering::Relaxed))
    /// });
    /// let before = binding.now();
    /// suspended.store(3600, Ordering::Relaxed);
    /// assert!(binding.now().saturating_since(before) >= Duration::from_secs(3600));
    /// ```
    pub fn with_suspended(suspended: impl Fn() -> Duration + Send + Sync + 'static) -> SmolBinding {
        SmolBinding {
            clock: Arc::new(Clock::with_suspended(suspended)),
        }
    }
}

impl SmolBinding {
    /// The same time and timers, over transports that `dial` opens: a tunnel, a proxy, a socket with options of its own.
    ///
    /// `dial` is called for every connection, with where the server is by the settings. It may take as long as the connect
    /// limit and is dropped after that; its error is [`Error::Unavailable`], with its text. TLS, if the settings ask for it,
    /// goes over what it gives.
    ///
    /// A connection that is declared dead must not deliver later what it was given before. An `Async<TcpStream>` of `async-io` is
    /// closed by a reset; any other transport is dropped, and what it had not delivered by then should be lost. If it is not,
    /// only availability suffers: a key that was released may be there once more, for one lease.
    ///
    /// ```no_run
    /// use std::net::TcpStream;
    /// use async_io::Async;
    /// use tenure_client::{Config, connect_with};
    /// use tenure_smol::SmolBinding;
    ///
    /// let binding = SmolBinding::new().over(|_endpoint| Async::<TcpStream>::connect(([127, 0, 0, 1], 7000)));
    /// let (locks, driver) = connect_with(binding, &Config::from_url("redis://db.example/")?)?;
    /// smol::spawn(driver).detach();
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    pub fn over<D>(self, dial: D) -> SmolOver<D> {
        SmolOver::new(self, dial)
    }
}

impl Binding for SmolBinding {
    type Stream = SmolStream;
    type Timer = SmolTimer;

    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<SmolStream>> + Send + 'static {
        SmolStream::dial(endpoint.clone())
    }

    fn timer(&self) -> SmolTimer {
        SmolTimer {
            clock: Arc::clone(&self.clock),
            timer: async_io::Timer::never(),
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

/// A timer of `async-io`.
#[derive(Debug)]
pub struct SmolTimer {
    clock: Arc<Clock>,
    timer: async_io::Timer,
}

impl Timer for SmolTimer {
    fn set(mut self: Pin<&mut Self>, deadline: Tick) {
        let instant = self.clock.instant(deadline);
        self.timer.set_at(instant);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.timer).poll(cx).map(drop)
    }
}
