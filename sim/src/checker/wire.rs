//! What a command on the wire does to a lock, read by the checker on its own.

use tenure_core::plan;

use crate::keys::Reply;

/// A command of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    /// Writes `value` if there is no key.
    Acquire {
        key: &'a [u8],
        value: &'a [u8],
        ms: u64,
        minted: bool,
    },
    /// Writes `new` if the key has `old`: a renewal when they are equal, else an adoption.
    Swap {
        key: &'a [u8],
        old: &'a [u8],
        new: &'a [u8],
        ms: u64,
        minted: bool,
    },
    /// Deletes the key if it has `value`.
    Clear { key: &'a [u8], value: &'a Vec<u8> },
    /// As an acquire, but in turn: who comes before it is passed the key, and who is refused waits with this entry.
    Take {
        key: &'a [u8],
        value: &'a [u8],
        ms: u64,
        entry: &'a [u8],
        age: u64,
        minted: bool,
    },
    /// Leaves the queue, names who waits in the same process, and passes the key on if it has one of these values.
    Pass {
        key: &'a [u8],
        entry: &'a [u8],
        next: &'a [u8],
        age: u64,
        values: &'a [Vec<u8>],
    },
    /// Lets go of the key if it has one of these values: the first ones stand for a hold and are replaced for so long, the
    /// others are deleted.
    Cool {
        key: &'a [u8],
        ms: u64,
        values: &'a [Vec<u8>],
    },
    /// Waits until so many replicas have confirmed what the connection has written.
    Wait { count: u64 },
    /// Looks, or belongs to the handshake.
    Harmless,
    /// Nothing that the library has any business sending.
    Unknown,
}

impl<'a> Wire<'a> {
    pub(super) fn of(words: &'a [Vec<u8>]) -> Wire<'a> {
        let Some((name, args)) = words.split_first() else {
            return Wire::Unknown;
        };
        match (name.as_slice(), args) {
            (b"HELLO" | b"AUTH" | b"SELECT" | b"CLIENT" | b"PING" | b"INFO", _) => Wire::Harmless,
            (b"WAIT", [count, _]) => Wire::Wait {
                count: number(count),
            },
            (b"GET" | b"GETRANGE" | b"PTTL" | b"SCAN", _) => Wire::Harmless,
            (b"SET", [key, value, options @ ..]) => Wire::set(key, value, options),
            (b"DELEX", [key, ifeq, value]) if ifeq == b"IFEQ" => Wire::Clear { key, value },
            (b"DELIFEQ", [key, value]) => Wire::Clear { key, value },
            (b"EVAL", [text, one, args @ ..]) if one == b"1" => Wire::script(text, args),
            (b"EVALSHA", [sha, one, args @ ..]) if one == b"1" => Wire::script(sha, args),
            (b"EVAL" | b"EVALSHA", [script, two, key, counter, args @ ..]) if two == b"2" => {
                Wire::mint(script, key, counter, args)
            }
            (b"EVAL" | b"EVALSHA", [script, four, key, queue, alive, counter, args @ ..])
                if four == b"4" && is_script(script, &plan::TAKE) =>
            {
                let own = is_helper(queue, key, "queue") && is_helper(alive, key, "alive");
                match args {
                    [value, ms, entry, age, floor, ..]
                        if own && is_helper(counter, key, "fence") =>
                    {
                        Wire::Take {
                            key,
                            value,
                            ms: number(ms),
                            entry,
                            age: number(age),
                            minted: !floor.is_empty(),
                        }
                    }
                    _ => Wire::Unknown,
                }
            }
            (b"EVAL" | b"EVALSHA", [script, three, key, queue, alive, args @ ..])
                if three == b"3" && is_script(script, &plan::PASS) =>
            {
                let own = is_helper(queue, key, "queue") && is_helper(alive, key, "alive");
                match args {
                    [entry, next, age, _, values @ ..] if own => Wire::Pass {
                        key,
                        entry,
                        next,
                        age: number(age),
                        values,
                    },
                    _ => Wire::Unknown,
                }
            }
            _ => Wire::Unknown,
        }
    }

    fn set(key: &'a [u8], value: &'a [u8], options: &'a [Vec<u8>]) -> Wire<'a> {
        let mut words: [&[u8]; 5] = [b""; 5];
        let Some(known) = words.get_mut(..options.len()) else {
            return Wire::Unknown;
        };
        for (to, from) in known.iter_mut().zip(options) {
            *to = from;
        }
        match &*known {
            [b"NX", b"GET", b"PX", ms] | [b"NX", b"PX", ms] => Wire::Acquire {
                key,
                value,
                ms: number(ms),
                minted: false,
            },
            [b"IFEQ", old, b"GET", b"PX", ms] | [b"IFEQ", old, b"PX", ms] => Wire::Swap {
                key,
                old,
                new: value,
                ms: number(ms),
                minted: false,
            },
            _ => Wire::Unknown,
        }
    }

    fn script(script: &'a [u8], args: &'a [Vec<u8>]) -> Wire<'a> {
        let is = |known: &plan::Script| {
            script == known.text.as_bytes() || script == known.sha.as_bytes()
        };
        match args {
            [key, value, ms] if is(&plan::RENEW) => Wire::Swap {
                key,
                old: value,
                new: value,
                ms: number(ms),
                minted: false,
            },
            [key, old, ms, new] if is(&plan::ADOPT) => Wire::Swap {
                key,
                old,
                new,
                ms: number(ms),
                minted: false,
            },
            [key, value] if is(&plan::CLEAR) => Wire::Clear { key, value },
            [key, _, ms, _, values @ ..] if is(&plan::COOL) => Wire::Cool {
                key,
                ms: number(ms),
                values,
            },
            _ => Wire::Unknown,
        }
    }

    /// As an acquire or a take-over, with a fence.
    fn mint(script: &'a [u8], key: &'a [u8], counter: &'a [u8], args: &'a [Vec<u8>]) -> Wire<'a> {
        let is = [plan::MINT.text, plan::MINT.sha]
            .iter()
            .any(|one| one.as_bytes() == script);
        let own = [b"lock:{", key, b"}:fence"].concat() == counter;
        match args {
            [value, ms, _] if is && own => Wire::Acquire {
                key,
                value,
                ms: number(ms),
                minted: true,
            },
            [new, ms, _, old] if is && own => Wire::Swap {
                key,
                old,
                new,
                ms: number(ms),
                minted: true,
            },
            _ => Wire::Unknown,
        }
    }

    /// The fence that a server minted which answered so.
    pub(super) fn fence(&self, reply: &Reply) -> Option<u64> {
        match (self, reply) {
            (
                Wire::Acquire { minted: true, .. }
                | Wire::Take { minted: true, .. }
                | Wire::Swap { minted: true, .. },
                Reply::Int(fence @ 1..),
            ) => Some(fence.unsigned_abs()),
            _ => None,
        }
    }

    /// Whether a server that answered so has written the value.
    pub(super) fn wrote(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (_, Reply::Ok | Reply::Int(1)) => true,
            _ if self.fence(reply).is_some() => true,
            (Wire::Take { .. }, _) => false,
            (Wire::Acquire { minted: true, .. } | Wire::Swap { minted: true, .. }, _) => false,
            (Wire::Acquire { .. }, Reply::Null) => true,
            (Wire::Swap { old, .. }, Reply::Bulk(shown)) => shown == old,
            // A script that fails behind its write.
            (Wire::Swap { old, new, .. }, Reply::Error(text)) if old != new => {
                text.starts_with("ERR Error running script")
            }
            _ => false,
        }
    }
}

fn is_script(given: &[u8], script: &plan::Script) -> bool {
    given == script.text.as_bytes() || given == script.sha.as_bytes()
}

fn is_helper(helper: &[u8], key: &[u8], suffix: &str) -> bool {
    [b"lock:{", key, b"}:", suffix.as_bytes()].concat() == helper
}

/// A value of ours without the number of the attempt: what all attempts of a request share.
pub(crate) fn secret(value: &[u8]) -> &[u8] {
    let end = value.iter().rposition(|byte| *byte == b'.');
    &value[..end.unwrap_or(value.len())]
}

/// What nobody can guess of a [`secret`]: it is the same in an entry of a queue.
pub(super) fn random(secret: &[u8]) -> &[u8] {
    secret.rsplit(|byte| *byte == b'.').next().unwrap_or(secret)
}

/// The label in a value of ours.
pub(super) fn label(value: &[u8]) -> &[u8] {
    let owner = value.splitn(4, |byte| *byte == b':').nth(3);
    let owner = owner.unwrap_or_default();
    let end = owner.iter().position(|byte| *byte == b'.');
    &owner[..end.unwrap_or(owner.len())]
}

/// The number of the attempt.
pub(super) fn attempt(value: &[u8]) -> u64 {
    let start = value
        .iter()
        .rposition(|byte| *byte == b'.')
        .map_or(0, |at| at + 1);
    number(&value[start..])
}

fn number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(u64::MAX)
}
