//! How a resource uses a fence: what to send with each write, so that a holder that comes too late changes nothing.
//!
//! A lock cannot stop a holder that looked at [`is_held`](crate::Held::is_held), was paused, and writes after that. The
//! resource can: it remembers the highest [fence](crate::Held::fence) that it has seen and refuses a lower one.
//! `docs/fencing.md` says what remains without that.
//!
//! - a table: `UPDATE .. WHERE id = .. AND fence <= ..`, see the example `fenced_update`;
//! - keys on the lock's own server: [`Guarded`];
//! - a service: the header [`HEADER`], which the service compares as above.
//!
//! The first write of a holder should be one that carries its fence, also if there is nothing to change yet: then whoever was
//! before can change nothing from that moment on.

use tenure_core::error::ConfigError;
use tenure_core::names::{FENCE, Names};

/// The header in which to give a service the fence, as decimal digits: `Fence: 1796000000000000`. There is no standard one. A
/// service that refuses a fence lower than the highest it has seen should answer 409 Conflict, or 412 Precondition Failed.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// let lock = locks.lock("ledger").fenced().acquire().await?;
/// let fence = lock.fence().expect("it was asked for");
/// let request = format!("PUT /ledger HTTP/1.1\r\n{}: {fence}\r\n\r\n", tenure::fence::HEADER);
/// # let _ = request;
/// # Ok(()) }
/// ```
pub const HEADER: &str = "Fence";

/// A script for the server that keeps the lock: it writes a value if the lock is still held with this fence, and nothing newer has
/// written. Compared and written in one step, so that nobody comes in between: where the resource is on this very server,
/// this is exclusion whatever pauses or clocks do.
///
/// The data is a hash of two fields, `value` and `fence`. To be sent through any client, as
/// `EVAL text 3 keys.. arguments..`; its answer is the integer that [`Written::of`] reads.
///
/// ```
/// use tenure_client::fence::{Guarded, Written};
///
/// let fence = 1_796_000_000_000_000; // Held::fence()
/// let write = Guarded::write("lock:", b"ledger", fence, b"{lock:ledger}:total", b"42")?;
/// let mut words: Vec<&[u8]> = vec![b"EVAL", write.text.as_bytes(), b"3"];
/// words.extend(write.keys.iter().map(Vec::as_slice));
/// words.extend(write.arguments.iter().map(Vec::as_slice));
/// assert_eq!(words[3], b"lock:ledger");
/// // The server answers
/// assert_eq!(Written::of(1), Some(Written::Done));
/// # Ok::<(), tenure_client::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarded {
    /// The text of the script.
    pub text: &'static str,
    /// The lock, its counter of fences, the data.
    pub keys: [Vec<u8>; 3],
    /// The fence, the value.
    pub arguments: [Vec<u8>; 2],
}

/// What a server has answered to a [`Guarded`] write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Written {
    /// It is written.
    Done,
    /// Nothing is written: the lock is not held with this fence any more, or has been for longer than a day.
    NotHeld,
    /// Nothing is written: a newer holder has written.
    Newer,
}

/// Whoever minted the newest fence of a key holds it for as long as the key has a value that is marked as fenced: another holder
/// with a fence would have minted a newer one, one without would have left another mark.
const WRITE: &str = "\
local v=redis.call('GET',KEYS[1]) \
if not v or string.sub(v,1,6)~='tn1:f:' or redis.call('GET',KEYS[2])~=ARGV[1] then return 0 end \
local seen=redis.call('HGET',KEYS[3],'fence') \
if seen and tonumber(seen)>tonumber(ARGV[1]) then return -1 end \
redis.call('HSET',KEYS[3],'fence',ARGV[1],'value',ARGV[2]) return 1";

impl Guarded {
    /// A write of `value` to the hash `data` by the holder of `name` with this fence. `prefix` is that of the lock's keys,
    /// `lock:` unless another was set. On a cluster `data` has to be in the slot of the lock: begin it with its key in
    /// braces, as in `{lock:ledger}:total`.
    ///
    /// # Errors
    /// [`ConfigError::Prefix`], [`ConfigError::Name`].
    pub fn write(
        prefix: &str,
        name: &[u8],
        fence: u64,
        data: &[u8],
        value: &[u8],
    ) -> Result<Guarded, ConfigError> {
        let names = Names::new(prefix, "")?;
        let mut key = Vec::new();
        names.key_into(name, &mut key)?;
        let counter = names.helper_key(&key, FENCE);
        Ok(Guarded {
            text: WRITE,
            keys: [key, counter, data.to_vec()],
            arguments: [fence.to_string().into_bytes(), value.to_vec()],
        })
    }
}

impl Written {
    /// What the integer says; `None` for one that the script does not answer.
    pub const fn of(answer: i64) -> Option<Written> {
        match answer {
            1 => Some(Written::Done),
            0 => Some(Written::NotHeld),
            -1 => Some(Written::Newer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_of_the_lock() {
        let write = Guarded::write("app:", b"a{b}", 7, b"data", b"x").unwrap();
        assert_eq!(write.keys[0], b"app:a%7Bb%7D");
        assert_eq!(write.keys[1], b"app:{app:a%7Bb%7D}:fence");
        assert_eq!(write.arguments, [b"7".to_vec(), b"x".to_vec()]);
        assert!(Guarded::write("a{b", b"a", 7, b"data", b"x").is_err());
        assert!(Guarded::write("lock:", b"", 7, b"data", b"x").is_err());
    }
}
