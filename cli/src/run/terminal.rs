//! The terminal, which only one process group may read at a time.

use std::fs::File;
use std::io::{IsTerminal as _, stdin, stdout};

use nix::sys::signal::{SigSet, Signal as Mask};
use rustix::process::{Pid, getpgid, getpgrp, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal of our session.
pub(super) struct Terminal {
    device: File,
    handed_over: bool,
}

impl Terminal {
    pub(super) fn of_session() -> Option<Terminal> {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Terminal {
            device,
            handed_over: false,
        })
    }

    /// Whether a command is likely to need it. In a pipe somebody beside us, such as a pager, may need it more; then the command
    /// gets it when it first asks.
    pub(super) fn is_on_both_ends() -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// Gives it to the group if it is ours to give: whoever runs in the background has none.
    pub(super) fn hand_over(&mut self, group: Pid) {
        if !self.handed_over && self.is_ours() {
            self.handed_over = tcsetpgrp(&self.device, group).is_ok();
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.device).is_ok_and(|group| group == getpgrp())
    }

    pub(super) fn take_back(&mut self) {
        if !self.handed_over {
            return;
        }
        self.handed_over = false;
        // Who does this from the background is stopped, unless the signal for it is blocked.
        let mask = SigSet::from(Mask::SIGTTOU);
        let _ = mask.thread_block();
        let _ = tcsetpgrp(&self.device, getpgrp());
        let _ = mask.thread_unblock();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Whether a shell with job control is there to let us go on after a stop: it leads the session, in another group.
pub(super) fn somebody_resumes_us() -> bool {
    getsid(None).is_ok_and(|shell| shell != getpgrp() && getpgid(Some(shell)).is_ok())
}
