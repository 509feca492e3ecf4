//! A file that was open when the process was forked must not be opened by the copy.
//!
//! SQLite knows within a process which of its files are locked, and asks the system only for the first lock. A copy believes in
//! the locks of the process it was copied from, which the system has not given it: it would take none of its own, and the other
//! one would remove the log that it writes to. Two could hold a lock then.

use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use tenure_client::StoreFault;
use tenure_client::engine::Trouble;

use crate::file::Identity;

/// The files that are open, each with the process that has opened it.
static OPEN: Mutex<Vec<(Identity, u32)>> = Mutex::new(Vec::new());

/// A file that this process has open, while this lives.
#[derive(Debug)]
pub(crate) struct Opened(Identity, u32);

impl Opened {
    /// Before the file is opened.
    pub(crate) fn new(identity: Identity, limit: Duration) -> Result<Opened, Trouble> {
        let process = std::process::id();
        with_open(limit, |open| {
            if open
                .iter()
                .any(|(file, whose)| *file == identity && *whose != process)
            {
                return Err(copied());
            }
            open.push((identity, process));
            Ok(Opened(identity, process))
        })?
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Opened(identity, process) = *self;
        // If it stays there, that is only of interest to a copy.
        let _ = with_open(Duration::from_secs(1), |open| {
            let at = open.iter().position(|file| *file == (identity, process));
            at.map(|at| open.swap_remove(at))
        });
    }
}

/// In a copy the lock may never be given back.
fn with_open<T>(
    limit: Duration,
    change: impl FnOnce(&mut Vec<(Identity, u32)>) -> T,
) -> Result<T, Trouble> {
    let until = Instant::now() + limit;
    loop {
        match OPEN.try_lock() {
            Ok(mut open) => return Ok(change(&mut open)),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(change(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::yield_now(),
            Err(TryLockError::WouldBlock) => return Err(copied()),
        }
    }
}

fn copied() -> Trouble {
    let text = "open it before the fork in none, or after it in both: it was open when this process was forked off, and \
        SQLite cannot use it here";
    Trouble::new(StoreFault::Unusable, text)
}
