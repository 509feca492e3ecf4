//! `connect` and `memory` on smol, and on any executor beside `async-io`: the crate `tenure-smol`.
//!
//! ```
//! # smol::block_on(async {
//! let locks = tenure::smol::connect("memory:").await?;
//! let lock = locks.acquire("report").await?;
//! assert!(lock.is_held());
//! lock.release().await?;
//! # Ok::<(), tenure::Error>(()) }).unwrap();
//! ```
//!
//! On an executor of your own, and on that of async-std, which is no longer developed: [`connect_on`].

use tenure_client::{Config, Driver, Error, Locks};
pub use tenure_smol::{
    OverStream, SmolBinding, SmolOver, SmolStream, SmolTimer, memory, memory_config, open_with,
    spawn,
};

/// Connects to the lock server that `url` names and spawns the driver on smol's global executor. The schemes are those of
/// `tenure::connect`, `memory:` among them.
///
/// # Errors
/// Why the first try to connect failed; [`Error::Misconfigured`] for a malformed URL. Dropping the future gives up.
///
/// ```
/// # smol::block_on(async {
/// let locks = tenure::smol::connect("memory:").await?;
/// assert!(locks.try_acquire("a").await?.acquired().is_some());
/// # Ok::<(), tenure::Error>(()) }).unwrap();
/// ```
pub async fn connect(url: &str) -> Result<Locks, Error> {
    if matches!(url, "memory:" | "memory://") {
        return memory_config(&Config::in_memory());
    }
    connect_config(&Config::from_url(url)?).await
}

/// As [`connect`], with settings.
///
/// # Errors
/// As [`connect`].
pub async fn connect_config(config: &Config) -> Result<Locks, Error> {
    connect_on(config, spawn).await
}

/// As [`connect_config`], without waiting for the server: for programs that start whether or not it is there.
///
/// # Errors
/// [`Error::Misconfigured`] for settings that cannot work.
pub fn connect_lazily(config: &Config) -> Result<Locks, Error> {
    open_on(config, spawn)
}

/// As [`connect_config`], on an executor of your own: `spawn` gets the driver and lets it run. See
/// [`tenure_smol::connect_on`].
///
/// # Errors
/// As [`connect`].
pub async fn connect_on(config: &Config, spawn: impl FnOnce(Driver)) -> Result<Locks, Error> {
    let locks = open_on(config, spawn)?;
    locks.ready().await?;
    Ok(locks)
}

fn open_on(config: &Config, spawn: impl FnOnce(Driver)) -> Result<Locks, Error> {
    #[cfg(feature = "sqlite")]
    if config.file().is_some() {
        return open_with(config, tenure_sqlite::open, spawn);
    }
    open_with(config, tenure_client::connect_with, spawn)
}
