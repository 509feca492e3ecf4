//! What a held lease weighs.

use std::error::Error;
use std::time::Duration;

use stats_alloc::Region;
use tenure_client::Config;

/// How many locks are held.
pub(crate) const LEASES: usize = 10_000;

/// Bytes of heap that one held lock takes, everything of this process included: the guard, its hold, its lease, its
/// key, its place in the heap of deadlines. The vector that keeps the guards is not.
pub(crate) fn bytes_per_lease(address: &str) -> Result<u64, Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let locks =
            tenure_tokio::connect_config(&Config::from_url(&format!("redis://{address}"))?).await?;
        let mut held = Vec::with_capacity(LEASES);
        let region = Region::new(crate::ALLOCATOR);
        for index in 0..LEASES {
            let lock = locks
                .lock(format!("bench:held:{index}"))
                .lease(Duration::from_secs(600))
                .acquire()
                .await?;
            held.push(lock);
        }
        let change = region.change();
        let bytes = (change.bytes_allocated - change.bytes_deallocated) / LEASES;
        drop(held);
        locks.close().await;
        Ok(bytes as u64)
    })
}
