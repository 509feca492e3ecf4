//! The terminal, which only one process group may read at a time.

use std::io::stdin;

use nix::sys::signal::{SigSet, Signal as Mask};
use rustix::process::{Pid, getpgid, getpgrp, getsid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal on standard input, if that is the one of our session.
pub(super) struct Terminal {
    handed_over: bool,
}

impl Terminal {
    pub(super) fn on_stdin() -> Option<Terminal> {
        tcgetpgrp(stdin()).ok()?;
        Some(Terminal { handed_over: false })
    }

    /// Gives it to the group if it is ours to give: whoever runs in the background has none.
    pub(super) fn hand_over(&mut self, group: Pid) {
        if !self.handed_over && self.is_ours() {
            self.handed_over = tcsetpgrp(stdin(), group).is_ok();
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
    }

    pub(super) fn take_back(&mut self) {
        if !self.handed_over {
            return;
        }
        self.handed_over = false;
        // Who does this from the background is stopped, unless the signal for it is blocked.
        let mask = SigSet::from(Mask::SIGTTOU);
        let _ = mask.thread_block();
        let _ = tcsetpgrp(stdin(), getpgrp());
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
