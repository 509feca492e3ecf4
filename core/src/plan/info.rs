//! What a server says of itself that endangers locks: `INFO memory` and `INFO persistence`.

use alloc::boxed::Box;
use core::fmt;

use crate::names::escape;
use crate::resp::{Arg, Value};

/// A section of `INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info {
    /// How much memory it may use, and what it does when that is full.
    Memory,
    /// Whether it keeps what it has acknowledged.
    Persistence,
}

/// What about a server endangers locks. Neither is an error: locks work, until it happens.
///
/// ```
/// use tenure_core::plan::{Info, Risk};
/// use tenure_core::resp::Value;
///
/// let reply = b"# Memory\r\nmaxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n";
/// let risk = Info::Memory.risk(&Value::Bulk(reply)).expect("it says so").expect("it is one");
/// assert!(matches!(&risk, Risk::Evicts { policy, .. } if &**policy == "allkeys-lru"));
/// assert!(risk.to_string().contains("noeviction"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Risk {
    /// When its memory is full it deletes keys that expire, and every lock is one: two may hold the same name then, until the
    /// first one's next renewal finds out.
    #[non_exhaustive]
    Evicts {
        /// Its `maxmemory-policy`, escaped.
        policy: Box<str>,
    },
    /// It keeps no append-only file: when it restarts it has forgotten the locks that were granted since its last snapshot,
    /// all of them if there is none.
    Forgets,
}

impl Info {
    /// The arguments of the command.
    pub fn command(self) -> [Arg<'static>; 2] {
        let section = match self {
            Info::Memory => "memory",
            Info::Persistence => "persistence",
        };
        ["INFO".into(), section.into()]
    }

    /// What the reply says: a risk, none, or, with the outer `None`, nothing about it. Servers that somebody else manages
    /// may refuse, or leave a field out.
    pub fn risk(self, reply: &Value<'_>) -> Option<Option<Risk>> {
        let text = match reply.error() {
            None => reply.as_bytes()?,
            Some(_) => return None,
        };
        match self {
            Info::Memory => {
                let max: u64 = number(field(text, b"maxmemory")?)?;
                let policy = field(text, b"maxmemory_policy")?;
                let evicts = max > 0 && policy != b"noeviction";
                Some(evicts.then(|| Risk::Evicts {
                    policy: escape(policy, 40).into(),
                }))
            }
            Info::Persistence => {
                let kept: u64 = number(field(text, b"aof_enabled")?)?;
                Some((kept == 0).then_some(Risk::Forgets))
            }
        }
    }
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Risk::Evicts { policy } => write!(
                f,
                "the server deletes locks when its memory is full (maxmemory-policy {policy}); set it to noeviction, or maxmemory to 0"
            ),
            Risk::Forgets => f.write_str(
                "the server forgets locks when it restarts; turn its append-only file on (appendonly yes)",
            ),
        }
    }
}

/// What follows `name:` on its line.
fn field<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(b":")?;
        Some(value.trim_ascii())
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_is_bounded_and_evicts_is_a_risk() {
        let risk = |text: &str| Info::Memory.risk(&Value::Bulk(text.as_bytes()));
        let evicts = risk("maxmemory:1\r\nmaxmemory_policy:volatile-ttl\r\n");
        assert!(matches!(evicts, Some(Some(Risk::Evicts { .. }))));
        assert_eq!(
            risk("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"),
            Some(None)
        );
        assert_eq!(risk("maxmemory:1\nmaxmemory_policy:noeviction"), Some(None));
        // Not `maxmemory`, or no policy: nothing is known.
        assert_eq!(risk("maxmemory_human:1\r\nmaxmemory_policy:x"), None);
        assert_eq!(risk("maxmemory:1\r\n"), None);
        assert_eq!(risk("maxmemory:many\r\nmaxmemory_policy:x\r\n"), None);
        assert_eq!(Info::Memory.risk(&Value::Error(b"NOPERM no")), None);
        assert_eq!(Info::Memory.risk(&Value::Null), None);
    }

    #[test]
    fn a_server_that_keeps_no_append_only_file_forgets() {
        let risk = |text: &str| Info::Persistence.risk(&Value::Bulk(text.as_bytes()));
        assert_eq!(
            risk("# Persistence\r\naof_enabled:0\r\n"),
            Some(Some(Risk::Forgets))
        );
        assert_eq!(risk("aof_enabled:1\r\n"), Some(None));
        assert_eq!(risk("rdb_saves:1\r\n"), None);
    }

    #[test]
    fn a_policy_that_nobody_should_print_is_escaped() {
        let text = b"maxmemory:1\nmaxmemory_policy:\x1b[31m";
        let Some(Some(risk)) = Info::Memory.risk(&Value::Bulk(text)) else {
            panic!("a risk")
        };
        assert_eq!(
            risk,
            Risk::Evicts {
                policy: "%1B[31m".into()
            }
        );
    }
}
