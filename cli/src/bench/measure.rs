//! What is measured, on names of our own.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tenure::Error;

use super::Measured;
use super::histogram::Histogram;
use crate::exit::Failure;
use crate::store::Store;

/// Who waits for a hand-over has asked, and was refused, within this.
const ASKED: Duration = Duration::from_millis(5);
/// A hand-over takes no longer, or something is wrong.
const LONGEST: Duration = Duration::from_secs(10);

/// Each client takes and frees a name of its own, again and again.
pub(super) fn acquire_and_release(
    store: &Store,
    clients: u8,
    lease: Duration,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Measured, Failure> {
    let mut ready = Vec::new();
    for _ in 0..clients {
        ready.push((store.reach()?, name()));
    }
    let begun = Instant::now();
    let took = thread::scope(|scope| {
        let running = ready.iter().map(|(locks, name)| {
            scope.spawn(move || {
                let mut took = Histogram::default();
                while begun.elapsed() < limit && !stop.load(Relaxed) {
                    let from = Instant::now();
                    let lock = locks.lock(name).lease(lease).wait(LONGEST).acquire()?;
                    lock.release()?;
                    took.record(from.elapsed());
                }
                Ok::<Histogram, Error>(took)
            })
        });
        // All of them are started before the first is waited for.
        let running: Vec<_> = running.collect();
        let mut all = Histogram::default();
        for client in running {
            all.add(&client.join().unwrap_or(Err(Error::Closed))?);
        }
        Ok::<Histogram, Error>(all)
    })?;
    Ok(Measured {
        names: ("acquire and release", "acquire_release"),
        took,
        within: begun.elapsed(),
    })
}

/// From the release by one client to the grant to another that waits.
pub(super) fn hand_over(
    store: &Store,
    lease: Duration,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Measured, Failure> {
    let (one, other, name) = (store.reach()?, store.reach()?, name());
    let begun = Instant::now();
    let mut took = Histogram::default();
    thread::scope(|scope| {
        let (go, told) = channel::<()>();
        let (granted, grants) = channel::<Result<Instant, Error>>();
        let request = other.lock(&name).lease(lease).wait(LONGEST);
        scope.spawn(move || {
            for () in told {
                let grant = request.clone().acquire().and_then(|lock| {
                    let at = Instant::now();
                    lock.release().map(|_| at)
                });
                if granted.send(grant).is_err() {
                    return;
                }
            }
        });
        let request = one.lock(&name).lease(lease).wait(LONGEST);
        while begun.elapsed() < limit && !stop.load(Relaxed) {
            let lock = request.clone().acquire()?;
            let _ = go.send(());
            thread::sleep(ASKED);
            let from = Instant::now();
            lock.release()?;
            match grants.recv_timeout(LONGEST * 2) {
                Ok(at) => took.record(at?.saturating_duration_since(from)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok::<(), Error>(())
    })?;
    Ok(Measured {
        names: ("hand-over to who waits", "hand_over"),
        took,
        within: begun.elapsed(),
    })
}

/// How long a loop that does nothing but look at the clock is kept from it: any lock may take that much longer here.
pub(super) fn noise(limit: Duration, stop: &AtomicBool) -> Measured {
    let begun = Instant::now();
    let mut took = Histogram::default();
    let mut last = begun;
    while last - begun < limit && !stop.load(Relaxed) {
        let now = Instant::now();
        took.record(now - last);
        last = now;
    }
    Measured {
        names: ("this host's own noise", "noise"),
        took,
        within: begun.elapsed(),
    }
}

/// One that nobody else uses.
fn name() -> String {
    format!(
        "tenure-bench:{:016x}",
        RandomState::new().build_hasher().finish()
    )
}
