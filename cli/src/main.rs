//! `tenure`: runs a command under a distributed lock.
//!
//! ```text
//! tenure run nightly-report --store redis://db1/ --wait 30s -- ./report.sh
//! ```
//!
//! `docs/command-line.md` says what each exit status means and what happens to the command when the lock is lost.

#![forbid(unsafe_code)]

mod args;
mod exit;
mod output;
mod run;
mod store;

use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::Parser as _;

use args::{Args, Verb};
use exit::Ending;

fn main() {
    run::guard::become_if_asked();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("tenure: a bug: {panic}");
    }));
    let ending = catch_unwind(AssertUnwindSafe(tenure));
    ending.unwrap_or(Ending::Status(exit::BUG)).leave()
}

fn tenure() -> Ending {
    match Args::try_parse() {
        Ok(args) => match args.verb {
            Verb::Run(args) => run::run(&args),
        },
        Err(error) => {
            // Nobody is left to be told if that fails.
            let _ = error.print();
            match error.use_stderr() {
                true => Ending::Status(exit::USAGE),
                false => Ending::Status(exit::DONE),
            }
        }
    }
}
