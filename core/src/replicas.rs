//! Writes that count only once replicas have confirmed them.
//!
//! Behind every write of such a lease, on the connection that made it, comes `WAIT n ms`, or `WAITAOF 1 n ms` if the write
//! has to be on disk. Fewer than `n`, an error, or no answer at all: the write does not count. It may be there all the
//! same, so an attempt is taken back, and a renewal tried again.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::replicas::Replicas;
//!
//! let two = Replicas { count: 2, within_ms: 500, on_disk: false };
//! assert!(two.check(Duration::from_secs(30)).is_ok());
//! // A quarter of the lease is too long to wait for each renewal.
//! assert!(two.check(Duration::from_secs(2)).is_err());
//! ```

use core::fmt;
use core::time::Duration;

use crate::error::ConfigError;

/// How many replicas have to confirm every write of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// So many, from 1 to 15.
    pub count: u8,
    /// How long the server waits for them: at least a millisecond, and less than a quarter of the lease.
    pub within_ms: u32,
    /// Whether they, and the server itself, must have it on disk.
    pub on_disk: bool,
}

/// How many replicas have confirmed a write, of those that had to. One byte, since it is in every lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Confirmed(u8);

/// Why a server cannot say what its replicas have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicasFault {
    /// The user may not ask.
    NotPermitted,
    /// The server does not know the command.
    Unknown,
    /// It keeps no append-only file, so nothing of it is on disk.
    NoAppendOnlyFile,
}

impl Confirmed {
    /// So many of so many; what is more than 15 counts as 15.
    pub const fn new(confirmed: u8, of: u8) -> Confirmed {
        let confirmed = if confirmed > MOST { MOST } else { confirmed };
        let of = if of > MOST { MOST } else { of };
        Confirmed(confirmed << 4 | of)
    }

    /// How many have.
    pub const fn confirmed(self) -> u8 {
        self.0 >> 4
    }

    /// How many had to.
    pub const fn of(self) -> u8 {
        self.0 & MOST
    }
}

impl fmt::Display for Confirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.confirmed(), self.of())
    }
}

impl fmt::Debug for Confirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The most replicas that can be asked for.
const MOST: u8 = 15;

impl Replicas {
    /// How long the server waits for them.
    pub const fn within(self) -> Duration {
        Duration::from_millis(self.within_ms as u64)
    }

    /// Whether it can work with a lease of this length.
    ///
    /// # Errors
    /// [`ConfigError::Replicas`].
    pub fn check(self, lease: Duration) -> Result<(), ConfigError> {
        if self.count == 0 || self.count > MOST || self.within_ms == 0 || self.within() >= lease / 4
        {
            return Err(ConfigError::Replicas {
                replicas: self,
                lease,
            });
        }
        Ok(())
    }
}

impl ReplicasFault {
    /// What an error reply to `WAIT` or `WAITAOF` says, unless it is of the moment: a server that has just become a replica
    /// ends every wait, too.
    pub(crate) fn of(text: &[u8]) -> Option<ReplicasFault> {
        if text.starts_with(b"NOPERM") {
            Some(ReplicasFault::NotPermitted)
        } else if text.starts_with(b"ERR unknown command") {
            Some(ReplicasFault::Unknown)
        } else if text.starts_with(b"ERR WAITAOF cannot be used when") {
            Some(ReplicasFault::NoAppendOnlyFile)
        } else {
            None
        }
    }
}

impl fmt::Display for ReplicasFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReplicasFault::NotPermitted => {
                "the user may not ask what replicas have confirmed; permit WAIT, and WAITAOF for on_disk()"
            }
            ReplicasFault::Unknown => {
                "the server cannot say what replicas have confirmed; WAITAOF takes Redis 7.2 or Valkey, and a proxy may know neither it nor WAIT"
            }
            ReplicasFault::NoAppendOnlyFile => {
                "on_disk() takes a server with an append-only file; set its appendonly to yes"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s11_what_replicas_cannot_confirm_in_time_is_refused() {
        let lease = Duration::from_secs(2);
        let check = |count, within_ms| {
            let replicas = Replicas {
                count,
                within_ms,
                on_disk: false,
            };
            replicas.check(lease).is_ok()
        };
        assert!(check(1, 1) && check(15, 499));
        assert!(
            !check(0, 1) && !check(16, 1) && !check(1, 0) && !check(1, 500) && !check(1, u32::MAX)
        );
    }

    #[test]
    fn s16_only_what_will_not_pass_is_told_apart() {
        for (text, fault) in [
            (
                &b"NOPERM User default has no permissions to run the 'wait' command"[..],
                Some(ReplicasFault::NotPermitted),
            ),
            (
                b"ERR unknown command 'WAITAOF', with args beginning with: '1' '1' '100' ",
                Some(ReplicasFault::Unknown),
            ),
            (
                b"ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
                Some(ReplicasFault::NoAppendOnlyFile),
            ),
            (
                b"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
                None,
            ),
            (b"ERR WAIT cannot be used with replica instances.", None),
            (b"ERR WAITAOF cannot be used with replica instances.", None),
        ] {
            assert_eq!(ReplicasFault::of(text), fault);
        }
    }
}
