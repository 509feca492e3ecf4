//! Writes `docs/runtimes.md` from what the last run of every field has passed; with `--check` it compares.

use std::fs;
use std::process::ExitCode;

use tenure_conformance::{matrix, page};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runtimes.md");

fn main() -> ExitCode {
    match run(std::env::args().any(|argument| argument == "--check")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("docs/runtimes.md: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(check: bool) -> Result<(), String> {
    if matrix::all().iter().any(matrix::Field::is_left_out) {
        println!("docs/runtimes.md is neither made nor compared: a server is left out, as asked");
        return Ok(());
    }
    let page = page::page()?;
    if !check {
        return fs::write(PAGE, page).map_err(|error| error.to_string());
    }
    match fs::read_to_string(PAGE).unwrap_or_default() == page {
        true => Ok(()),
        false => Err(
            "the results are others; run this without --check and look at the difference"
                .to_owned(),
        ),
    }
}
