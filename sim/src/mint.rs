//! The script that grants with a fence, as its text says: written anew and not with what the client has for it, since the one is
//! compared with the other.

use tenure_core::time::Tick;

use crate::keys::{Dialect, Held, Reply, number};
use crate::server::{Mood, Server};

const DAY_MS: u64 = 86_400_000;
/// The highest that a double counts exactly, less one.
const LAST: u64 = 9_007_199_254_740_991;

/// A fence, and until when its counter is kept.
pub(crate) struct Minting {
    pub(crate) fence: u64,
    pub(crate) kept: u64,
}

impl Server {
    pub(crate) fn mint(&mut self, now: Tick, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let ([key, counter, ..], [value, ms, floor, replaced @ ..]) = (keys, arguments) else {
            return Reply::Error("ERR the simulated server wants all of it".to_owned());
        };
        self.keys.note_read(key);
        if self.dialect == Dialect::Redis7 {
            // There whatever a script reads counts as all of its keys.
            self.keys.tracking.remember(counter);
        }
        let present = match self.keys.text(key) {
            Ok(present) => present.cloned(),
            Err(_) => return Reply::Int(0),
        };
        if present.as_ref() != replaced.first() {
            return present.map_or(Reply::Null, Reply::Bulk);
        }
        let now_us = self.clock.read(now);
        self.keys.note_read(counter);
        let Minting { fence, kept } = match self.minting(now_us, counter, floor) {
            Ok(minting) => minting,
            Err(refused) => return refused,
        };
        if self.mood == Mood::OutOfMemory {
            return Reply::Error(
                "OOM command not allowed when used memory > 'maxmemory'.".to_owned(),
            );
        }
        let digits = fence.to_string().into_bytes();
        self.keys.put(counter, Held::Text(digits), Some(kept));
        let set = [key.clone(), value.clone(), b"PX".to_vec(), ms.clone()];
        let now_ms = self.now_ms(now);
        let reply = match self.keys.set(self.dialect, &set, now_ms) {
            Reply::Ok => Reply::Int(i64::try_from(fence).unwrap_or(i64::MAX)),
            other => other,
        };
        self.after_a_write(reply)
    }

    /// The fence that is next, or why there is none.
    pub(crate) fn minting(
        &self,
        now_us: u64,
        counter: &[u8],
        floor: &[u8],
    ) -> Result<Minting, Reply> {
        let last = match self.keys.text(counter) {
            Ok(None) => 0,
            Ok(Some(text)) if !text.is_empty() && text.iter().all(u8::is_ascii_digit) => {
                let digits = String::from_utf8_lossy(text);
                // Longer than any that counts.
                digits.parse().unwrap_or(u64::MAX)
            }
            Ok(Some(_)) | Err(_) => return Err(Reply::Int(-3)),
        };
        let floor = number(floor).unwrap_or(0).unsigned_abs();
        let most = (now_us + DAY_MS * 1_000).min(LAST - 1);
        if floor > most {
            return Err(Reply::Int(-1));
        }
        if last > most || now_us > LAST {
            return Err(Reply::Int(-2));
        }
        let fence = now_us.max(last + 1).max(floor + 1);
        Ok(Minting {
            fence,
            kept: fence.div_ceil(1_000) + DAY_MS,
        })
    }
}
