//! The processes of the command.

use std::fs;

use rustix::process::{Pid, Signal, getpgid, getpid, kill_process, kill_process_group};

/// Whom our signals reach.
#[derive(Clone, Copy, Debug)]
pub(super) enum Group {
    /// The command and what it has started, in a group that the guard leads.
    Whole(Pid),
    /// The command alone, with `--foreground`.
    Process,
}

impl Group {
    /// The command is given until its end was taken note of: from then on its number may be another's.
    pub(super) fn signal(self, command: Option<Pid>, signal: Signal) {
        // Whoever is gone needs none.
        if let Group::Whole(group) = self {
            let _ = kill_process_group(group, signal);
        }
        let Some(command) = command else { return };
        let own = getpgid(Some(command)).ok();
        let _ = match self {
            Group::Whole(group) if own == Some(group) => return,
            // It has left, as `setsid` does, with what it starts from then on.
            Group::Whole(_) if own == Some(command) => kill_process_group(command, signal),
            _ => kill_process(command, signal),
        };
    }

    /// Whether only the guard is left; `None` where the system does not say.
    pub(super) fn is_empty(self) -> Option<bool> {
        let Group::Whole(group) = self else {
            return None;
        };
        // The list must be that of our own numbers.
        let me = fs::read_link("/proc/self").ok()?;
        if me.to_str() != Some(&getpid().to_string()) {
            return None;
        }
        let leader = group.to_string();
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let name = entry.file_name();
            let is_process = name
                .as_encoded_bytes()
                .first()
                .is_some_and(u8::is_ascii_digit);
            if !is_process || name == *leader {
                continue;
            }
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            if runs_in(&stat, &leader) {
                return Some(false);
            }
        }
        Some(true)
    }
}

/// Whether a line of /proc/PID/stat is of a process of this group that has not ended.
fn runs_in(stat: &str, group: &str) -> bool {
    // The name of the program stands in brackets and may hold anything.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let mut fields = fields.split(' ');
    let state = fields.next();
    !matches!(state, None | Some("" | "Z" | "X")) && fields.nth(1) == Some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_its_group_until_it_ends() {
        assert!(runs_in("7 (sh) S 1 42 42 0 -1", "42"));
        assert!(runs_in("7 (a) Z 1 9 (b) D 1 42 42 0 -1", "42"));
        assert!(!runs_in("7 (sh) Z 1 42 42 0 -1", "42"));
        assert!(!runs_in("7 (sh) S 42 43 42 0 -1", "42"));
        assert!(!runs_in("", "42"));
    }
}
