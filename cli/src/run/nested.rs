//! Runs inside a run of the same name: they would wait for themselves.

use std::env;
use std::fs;

use rustix::process::getpid;

/// For the environment of the command.
pub(super) const VARIABLE: &str = "TENURE_HELD";

/// One name on one store, as the environment tells it to what runs under it: a number, and nothing of either.
pub(super) struct Held(String);

impl Held {
    pub(super) fn of(store: &str, name: &[u8]) -> Held {
        let bytes = store.bytes().chain([0]).chain(name.iter().copied());
        // FNV-1a, which gives the same in every version of this program.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Held(format!("{hash:016x}"))
    }

    /// Whether this process runs under it. Not if the run that said so has ended: a service that was started under a lock has
    /// that in its environment for ever.
    pub(super) fn is_ours(&self) -> bool {
        let list = env::var(VARIABLE).unwrap_or_default();
        list.split(' ').any(|entry| {
            let mut parts = entry.split(':');
            parts.next() == Some(&self.0)
                && match (parts.next(), parts.next()) {
                    (Some(process), Some(start)) => start_of(process).is_some_and(|s| s == start),
                    _ => false,
                }
        })
    }

    /// The variable for a command that runs under this too.
    pub(super) fn variable(&self) -> String {
        let process = getpid().to_string();
        let start = start_of(&process).unwrap_or_default();
        let mut list = env::var(VARIABLE).unwrap_or_default();
        if !list.is_empty() {
            list.push(' ');
        }
        format!("{list}{}:{process}:{start}", self.0)
    }
}

/// When a process that still runs was started: with its number, that names it.
fn start_of(process: &str) -> Option<String> {
    let is_number = process.bytes().all(|byte| byte.is_ascii_digit());
    let stat = is_number.then(|| fs::read_to_string(format!("/proc/{process}/stat")).ok())??;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_from_others_and_from_other_stores() {
        let one = Held::of("localhost:6379 ", b"a").0;
        assert_eq!(one, Held::of("localhost:6379 ", b"a").0);
        assert_ne!(one, Held::of("localhost:6379 ", b"b").0);
        assert_ne!(one, Held::of("localhost:6380 ", b"a").0);
    }

    #[test]
    fn a_process_has_a_start() {
        let me = getpid().to_string();
        assert!(start_of(&me).is_some_and(|start| start.parse::<u64>().is_ok()));
        assert_eq!(start_of("self"), None);
        assert_eq!(start_of("999999999"), None);
    }
}
