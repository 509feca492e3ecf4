//! What a pair takes by the clock, on one core: the blocking client beside a raw socket that sends the same.

use std::error::Error;
use std::time::{Duration, Instant};

use tenure_blocking::Locks;
use tenure_tests::{Server, ServerKind};

use crate::pair::{Raw, blocking};

/// Rounds of each; one of the one is followed by one of the other, so that whatever else the machine does meets both.
const ROUNDS: usize = 41;
const PAIRS: u32 = 500;

/// The median times of a pair: of the raw socket, and of the blocking client.
pub(crate) fn medians(
    kind: ServerKind,
) -> Result<(Duration, Duration), Box<dyn Error + Send + Sync>> {
    pin()?;
    // After that: it stays on the same core, as does the driver's thread.
    let server = Server::start(kind, &[])?;
    let address = server.addr().to_string();
    let mut raw = Raw::connect(&address)?;
    let locks: Locks = tenure_blocking::connect(&server.url())?;
    let mut took = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let began = Instant::now();
        for _ in 0..PAIRS {
            raw.pair()?;
        }
        let middle = Instant::now();
        for _ in 0..PAIRS {
            blocking(&locks)?;
        }
        // The first is to warm up.
        if round > 0 {
            took.0.push((middle - began) / PAIRS);
            took.1.push(middle.elapsed() / PAIRS);
        }
    }
    locks.close();
    Ok((median(took.0), median(took.1)))
}

pub(crate) fn median(mut of: Vec<Duration>) -> Duration {
    of.sort();
    of[of.len() / 2]
}

/// Everything that is started from here on runs on one core.
#[cfg(target_os = "linux")]
pub(crate) fn pin() -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let allowed = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu));
    one.set(last.unwrap_or(0));
    Ok(sched_setaffinity(None, &one)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin() -> std::io::Result<()> {
    Ok(())
}
