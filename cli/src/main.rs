//! `tenure`: runs a command under a distributed lock.
//!
//! ```text
//! tenure run nightly-report --store redis://db1/ --wait 30s -- ./report.sh
//! ```
//!
//! `docs/command-line.md` says what each exit status means and what happens to the command when the lock is lost.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod completions;
mod doctor;
mod exit;
mod interrupt;
mod list;
mod output;
mod print;
mod release;
mod run;
mod shown;
mod status;
mod store;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};

use args::{Args, Verb};
use exit::{Ending, Failure};

fn main() {
    run::guard::become_if_asked();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("tenure: a bug: {panic}");
    }));
    let ending = catch_unwind(AssertUnwindSafe(tenure));
    ending.unwrap_or(Ending::Status(exit::BUG)).leave()
}

fn tenure() -> Ending {
    let words: Vec<_> = std::env::args_os().collect();
    match Args::of(&words) {
        Ok(args) => match args.verb {
            Verb::Run(args) => run::run(&args),
            Verb::Status(args) => ended(status::status(&args)),
            Verb::List(args) => ended(list::list(&args)),
            Verb::Release(args) => ended(release::release(&args)),
            Verb::Watch(args) => ended(watch::watch(&args)),
            Verb::Doctor(args) => ended(doctor::doctor(&args)),
            Verb::Bench(args) => ended(bench::bench(&args)),
            Verb::Completions(args) => ended(completions::completions(&args)),
            Verb::Man(args) => ended(completions::man(&args)),
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

/// For all that run no command: a status, or a word on standard error why there is none.
fn ended(result: Result<u8, Failure>) -> Ending {
    Ending::Status(result.unwrap_or_else(|failure| {
        eprintln!("tenure: {failure}");
        failure.status
    }))
}
