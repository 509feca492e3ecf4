//! `connect` by the scheme of a URL.

use tenure_client::{Config, Error, Locks};

/// Connects to the lock server that `url` names and spawns the driver on the current tokio runtime.
///
/// | scheme | store |
/// |---|---|
/// | `redis://`, `valkey://`, `redis+unix://` | Redis or Valkey |
/// | `rediss://`, `valkeys://` | the same over TLS, with the feature `tls` |
/// | `sqlite:path`, `sqlite:///path` | a file, for the processes of one machine, with the feature `sqlite` |
/// | `memory:` | this process, for tests |
///
/// User, password and database go into the URL, percent-encoded, and parameters behind a `?`: [`Config::from_url`] has the
/// list.
///
/// # Errors
/// Why the first try to connect failed; [`Error::Misconfigured`] for a malformed URL. Dropping the future gives up.
///
/// # Panics
/// Outside a tokio runtime with its IO and time drivers enabled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let locks = tenure::connect("memory:").await?;
/// let lock = locks.acquire("report").await?;
/// assert!(lock.is_held());
/// lock.release().await?;
/// # Ok(()) }
/// ```
pub async fn connect(url: &str) -> Result<Locks, Error> {
    if matches!(url, "memory:" | "memory://") {
        return memory_config(&Config::in_memory());
    }
    connect_config(&Config::from_url(url)?).await
}

/// As [`connect`], with settings made by [`Config::from_url`].
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

/// As [`memory`], with settings.
///
/// # Errors
/// [`Error::Misconfigured`] for a prefix, label or default that is refused.
///
/// # Panics
/// As [`memory`].
#[track_caller]
pub fn memory_config(config: &Config) -> Result<Locks, Error> {
    tenure_tokio::memory_config(config)
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
    #[cfg(feature = "sqlite")]
    if config.file().is_some() {
        return tenure_tokio::open_with(config, tenure_sqlite::open);
    }
    tenure_tokio::connect_lazily(config)
}

/// Locks in the memory of this process: what tests pass to code that takes a [`Locks`].
///
/// # Panics
/// Outside a tokio runtime with its time driver enabled.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let locks = tenure::memory();
/// let first = locks.try_acquire("a").await?.acquired().expect("free");
/// assert!(locks.try_acquire("a").await?.acquired().is_none());
/// first.release().await?;
/// # Ok(()) }
/// ```
#[track_caller]
pub fn memory() -> Locks {
    tenure_tokio::memory()
}
