//! Four event loops that drive the core without a runtime: see `docs/event-loops.md` of the repository.
//!
//! Each is one program, `src/bin/poll.rs` the simplest of them. Here is only what all of them need beside their loop.
//!
//! ```
//! use tenure_event_loops::secret;
//!
//! assert_ne!(secret()?, secret()?);
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_client::system::entropy;

/// The arguments of the program, if they are as many as asked for.
///
/// # Errors
/// The usage.
pub fn arguments<const N: usize>(usage: &str) -> Result<[String; N], String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    arguments
        .try_into()
        .map_err(|_| format!("what is asked for: {usage}"))
}

/// What makes the value of a request one's own: drawn anew for every request, from what nobody can guess.
///
/// # Errors
/// The system has no entropy: then no lock may be asked for.
pub fn secret() -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    entropy(&mut secret)?;
    Ok(secret)
}

/// Unix time in milliseconds, for people who look at a key.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Closes a socket by a reset: the kernel forgets what it has not delivered, so that no command of a connection that was
/// declared dead arrives after one of its successor.
pub fn abort(socket: impl AsFd) {
    // If it cannot be set, the connection ends in order, and only a key may live on for one TTL.
    let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
}
