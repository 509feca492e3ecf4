//! Runs every scenario on every runtime and store: a test each, which runs its scenarios side by side.
//!
//! `TENURE_SCENARIO=part-of-a-name` runs those alone.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tenure_conformance::matrix;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // A line for a panic: some are on purpose, and the others are told again in the report.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let only = std::env::var("TENURE_SCENARIO").unwrap_or_default();
    let trials = matrix::all()
        .into_iter()
        .filter(|field| !field.is_left_out());
    let trials = trials.map(|field| {
        let only = only.clone();
        Trial::test(field.name(), move || field.run(&only).map_err(Failed::from))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
