//! What people are told, on standard error.

use std::io::{IsTerminal as _, stderr};

use super::FLUSH_LIMIT;
use crate::args::RunArgs;
use crate::exit::Failure;
use crate::output::Lines;

/// Success says nothing: cron sends every word by mail.
pub(super) struct Messages {
    /// `None` if the system starts no thread; then nothing is said.
    lines: Option<Lines>,
    quiet: bool,
    talkative: bool,
}

impl Messages {
    pub(super) fn start(args: &RunArgs) -> Messages {
        Messages {
            lines: Lines::start(stderr()).ok(),
            quiet: args.quiet,
            talkative: !args.quiet && (args.verbose || stderr().is_terminal()),
        }
    }

    /// Whether somebody looks on.
    pub(super) fn is_talkative(&self) -> bool {
        self.talkative
    }

    /// For those who look on.
    pub(super) fn note(&self, text: &str) {
        if self.talkative {
            self.warn(text);
        }
    }

    /// For everybody, but with `--quiet`.
    pub(super) fn say(&self, text: &str) {
        if !self.quiet {
            self.warn(text);
        }
    }

    /// For everybody.
    pub(super) fn warn(&self, text: &str) {
        if let Some(lines) = &self.lines {
            lines.line(format!("tenure: {text}"));
        }
    }

    pub(super) fn failure(&self, failure: &Failure) {
        self.say(&failure.text);
    }

    pub(super) fn flush(&self) {
        if let Some(lines) = &self.lines {
            // There is nobody to tell of an error.
            let _ = lines.flush(FLUSH_LIMIT);
        }
    }
}
