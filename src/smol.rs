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

use tenure_client::{Config, Error, Locks};
pub use tenure_smol::{
    OverStream, SmolBinding, SmolOver, SmolStream, SmolTimer, connect_config, connect_lazily,
    connect_on, memory, memory_config,
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
    tenure_smol::connect(url).await
}
