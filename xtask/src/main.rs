//! Developer commands: `cargo xtask help` lists them.

#![forbid(unsafe_code)]

mod apt;
mod core_rules;
mod fetch;
mod freestanding;
mod fuzz;
mod mutants;
mod steps;
mod test;
mod thumb;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use xtask::outcomes::{Proofs, Table};
use xtask::servers::{self, ServerKind};

const HELP: &str = "\
Usage: cargo xtask COMMAND

  test [core|redis|all] [--without KIND]...
                        run the checks and tests; `core` needs no server, `redis` is the real servers, `all`
                        (the default) is everything
  servers [--without KIND]...
                        find or fetch the real servers and say which they are
  outcomes [--check]    make docs/outcomes.md from tests/outcomes.toml, or say what is wrong with either
  fuzz-replay           run every input that fuzzing has found worth keeping through its target
  freestanding          build and run the core in a program without a standard library
  thumbv7em             build the core for a microcontroller; needs nightly and the source of its library
  mutants [--part N/M] [NAME]...
                        break the rules of safety one by one in a copy, and see that the tests notice: all of
                        tests/mutants, those with NAME in their name, every M-th of them
  mutants --check       see that the patches apply, their tests exist, and docs/verification.md lists them
  mutants --table       make that list
  core-rules            check that the core depends on nothing and names no clock, runtime or randomness

KIND is redis-7.0, redis-8.6, valkey-8.1 or valkey-9.1. The servers are kept in the folder TENURE_SERVERS,
by default tenure-servers in the user's cache folder.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("\nxtask: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let root = workspace();
    let (without, rest) = options(arguments)?;
    match rest.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["test", what @ ..] => test::run(&root, test::Scope::parse(what)?, &without),
        ["servers"] => fetch::servers(&without),
        ["outcomes"] => outcomes(&root, false),
        ["outcomes", "--check"] => outcomes(&root, true),
        ["mutants", arguments @ ..] => mutants::run(&root, arguments),
        ["core-rules"] => core_rules::check(&root),
        ["fuzz-replay"] => fuzz::replay(&root),
        ["freestanding"] => freestanding::check(&root),
        ["thumbv7em"] => thumb::check(&root),
        _ => Err(format!("unknown: {}\n\n{HELP}", rest.join(" "))),
    }
}

/// Takes every `--without KIND` out of the arguments; the environment may name more.
fn options(arguments: &[String]) -> Result<(BTreeSet<ServerKind>, Vec<&str>), String> {
    let mut without = servers::excluded();
    let mut rest = Vec::new();
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        if argument == "--without" {
            let id = arguments.next().unwrap_or_default();
            let kind = ServerKind::from_id(id);
            without.insert(kind.ok_or_else(|| format!("--without {id}: no such kind of server"))?);
        } else {
            rest.push(argument);
        }
    }
    Ok((without, rest))
}

fn outcomes(root: &Path, check: bool) -> Result<(), String> {
    let table = Table::load(root)?;
    let proofs = Proofs::collect(root).map_err(|error| format!("reading the sources: {error}"))?;
    let complaints = table.complaints(&proofs);
    if !complaints.is_empty() {
        return Err(format!(
            "tests/outcomes.toml\n  {}",
            complaints.join("\n  ")
        ));
    }
    let page = table.render(&proofs);
    let path = root.join("docs/outcomes.md");
    if !check {
        fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    } else if fs::read_to_string(&path).unwrap_or_default() != page {
        return Err("docs/outcomes.md is out of date; run `cargo xtask outcomes`".into());
    }
    let unproven = table.unproven(&proofs);
    if check && !unproven.is_empty() {
        let ids: Vec<&str> = unproven.iter().map(|row| row.id.as_str()).collect();
        return Err(format!(
            "no test shows these rows of tests/outcomes.toml: {}; write a scenario, or name a test and a reason",
            ids.join(", ")
        ));
    }
    println!(
        "  {} rows, {} of them not shown by a test yet",
        table.rows.len(),
        unproven.len()
    );
    Ok(())
}

fn workspace() -> PathBuf {
    // Cargo says where the manifest lies when it runs this; the compiled-in place serves for a direct call.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map_or(manifest.clone(), Path::to_path_buf)
}
