//! Your own code under tokio's paused time, on the store in memory: no server, no waiting, no simulated world.
//!
//! Copy from here. `sleep` lives through every renewal on the way; `advance` jumps over them, as a process does that
//! stood still.

use std::time::Duration;

use tenure_client::{Error, Locks};

const HOUR: Duration = Duration::from_secs(3600);

/// The code under test.
async fn nightly(locks: &Locks) -> Result<&'static str, Error> {
    let Some(lock) = locks.try_acquire("nightly").await?.acquired() else {
        return Ok("somebody else does it");
    };
    tokio::time::sleep(5 * HOUR).await;
    lock.check()?;
    lock.release().await?;
    Ok("done")
}

#[tokio::test(start_paused = true)]
async fn five_hours_pass_at_once() {
    let locks = tenure_tokio::memory();
    let (first, second) = tokio::join!(nightly(&locks), nightly(&locks));
    assert_eq!((first, second), (Ok("done"), Ok("somebody else does it")));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_knows_it() {
    let locks = tenure_tokio::memory();
    let lock = locks.acquire("nightly").await.unwrap();
    tokio::time::advance(HOUR).await;
    assert!(!lock.is_held());
    assert!(matches!(lock.check(), Err(Error::Lost(_))));
}
