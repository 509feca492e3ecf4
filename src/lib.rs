//! *A lease you know you hold*: distributed locks on Redis, on Valkey and in files, around one pure state machine.
//!
//! ```
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::Error> {
//! // "redis://:password@host:6379/0" for a server, "sqlite:path" for a file; this one is in memory.
//! let locks = tenure::connect("memory:").await?;
//!
//! let lock = locks.lock("order:42").lease(Duration::from_secs(10)).wait(Duration::from_secs(5)).acquire().await?;
//! assert!(lock.is_held());
//! lock.release().await?;
//!
//! locks.close().await;
//! # Ok(()) }
//! ```
//!
//! Begin with [`connect`] and [`Locks`]. What is promised, and under which assumptions, is in `docs/safety.md` of the
//! repository; what happens in each of some seventy situations in `docs/outcomes.md`. [`binding`], [`store`] and [`hold`]
//! are for those who bring a runtime or an engine of their own, and may change before 1.0.

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "tokio")]
mod connect;
#[cfg(feature = "smol")]
pub mod smol;

#[cfg(feature = "tokio")]
pub use connect::{connect, connect_config, connect_lazily, memory, memory_config};
#[cfg(feature = "tls")]
pub use tenure_client::Tls;
pub use tenure_client::{
    Acquiring, Attempt, Cause, ClockStep, Closing, Config, ConfigError, Driver, Error, Event,
    Examination, Examining, Failure, FenceFault, Flavour, Forcing, Held, Holder, Inspecting,
    Inspection, LinkFault, Listed, Listing, Lock, LockOptions, Locks, Lost, Observer, OwnerToken,
    ProtocolError, Ready, Reason, Release, Released, Removed, Request, Risk, ServerError,
    ServerInfo, StoreFault, Tick, Trying, Unfit, Unwatched, Wait, WaitLost, Warning, asking,
    binding, engine, fence, hold, store,
};
pub use tenure_client::{Pump, Room, connect_with, memory_with};
/// Locks in a file: the crate `tenure-sqlite`, for a binding of your own.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite:{}/state/locks.db?label=nightly", folder.path().display());
/// # let url = &url;
/// # #[cfg(feature = "blocking")] {
/// // Each process of this machine that names the same file shares its locks.
/// // "sqlite:state/locks.db?label=nightly", say.
/// let locks = tenure::blocking::connect(url)?;
/// let lock = locks.acquire("report")?;
/// assert_eq!(locks.inspect("report")?.unwrap().label.as_deref(), Some("nightly"));
/// lock.release()?;
/// # }
/// # #[cfg(feature = "tokio")]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = tenure::connect(url).await?;
/// assert!(locks.try_acquire("report").await?.acquired().is_some());
/// # locks.close().await; Ok::<(), tenure::Error>(()) })?;
/// # #[cfg(feature = "smol")]
/// # smol::block_on(async {
/// let locks = tenure::smol::connect(url).await?;
/// assert!(locks.try_acquire("report").await?.acquired().is_some());
/// # locks.close().await; Ok::<(), tenure::Error>(()) })?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[cfg(feature = "sqlite")]
pub use tenure_sqlite as sqlite;
#[cfg(feature = "tokio")]
pub use tenure_tokio::{
    OverStream, TokioBinding, TokioOver, TokioStream, TokioTimer, connect_over, open_with,
};

/// The README's code is compiled and run with the tests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// So is that of the page about fences.
#[cfg(doctest)]
#[doc = include_str!("../docs/fencing.md")]
struct Fencing;
