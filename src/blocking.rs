//! Locks without `async`, for threads: the same verbs, driven by one small thread. The crate `tenure-blocking`.
//!
//! ```
//! # fn main() -> Result<(), tenure::Error> {
//! let locks = tenure::blocking::memory();
//! let sum = locks.lock("ledger").run(|held| if held.is_held() { 42 } else { 0 })?;
//! assert_eq!(sum, 42);
//! # Ok(()) }
//! ```

pub use tenure_blocking::*;

/// Connects to the lock server, or opens the file, that `url` names. The schemes are those of `tenure::connect`, `memory:` among them.
///
/// # Errors
/// Why the first try to connect failed; [`Error::Misconfigured`] for a malformed URL, and for a system that starts no thread.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// let locks = tenure::blocking::connect("memory:")?;
/// assert!(locks.try_acquire("a")?.acquired().is_some());
/// # Ok(()) }
/// ```
pub fn connect(url: &str) -> Result<Locks, Error> {
    if matches!(url, "memory:" | "memory://") {
        return memory_config(&Config::in_memory());
    }
    connect_config(&Config::from_url(url)?)
}

/// As [`connect`], with settings.
///
/// # Errors
/// As [`connect`].
pub fn connect_config(config: &Config) -> Result<Locks, Error> {
    let locks = connect_lazily(config)?;
    locks.ready()?;
    Ok(locks)
}

/// As [`connect_config`], without waiting for the server: for programs that start whether or not it is there.
///
/// # Errors
/// [`Error::Misconfigured`] for settings that cannot work, or a system that starts no thread.
pub fn connect_lazily(config: &Config) -> Result<Locks, Error> {
    #[cfg(feature = "sqlite")]
    if config.file().is_some() {
        return open_with(config, tenure_sqlite::open);
    }
    tenure_blocking::connect_lazily(config)
}
