//! Signals, as events.

use std::fs;
use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use nix::sys::signal::{SigSet, Signal as Mask};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;

use super::Event;

/// Those that ask for something of the command. While there is none they end us.
const PASSED_ON: [i32; 7] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP];

/// Sends every signal from now on. What we were started to ignore stays ignored, by us and by the command: that is how
/// `nohup` works.
pub(super) fn watch(sender: Sender<Event>) -> io::Result<()> {
    let ignored = ignored();
    let wanted = PASSED_ON
        .into_iter()
        .filter(|signal| !ignored.contains(signal));
    let wanted: Vec<i32> = wanted.chain([SIGCHLD, SIGCONT]).collect();
    let mut signals = Signals::new(&wanted)?;
    // Whoever started us may have blocked them, for all threads to come: then we would never hear of the command's end.
    let wanted = wanted
        .into_iter()
        .filter_map(|signal| Mask::try_from(signal).ok());
    wanted.collect::<SigSet>().thread_unblock()?;
    thread::Builder::new()
        .name("tenure-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

/// For people: `TERM`, not `SIGTERM`.
pub(super) fn name(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => name.trim_start_matches("SIG").to_owned(),
        None => signal.to_string(),
    }
}

/// Where the system does not say, none.
fn ignored() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.unwrap_or_default();
    let is_set = |signal: &i32| mask >> (signal - 1) & 1 == 1;
    PASSED_ON.into_iter().filter(is_set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_that_people_know() {
        assert_eq!(name(SIGTERM), "TERM");
        assert_eq!(name(40), "40");
    }
}
