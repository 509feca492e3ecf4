//! `cargo xtask test`: everything that has to hold before a change is taken.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use xtask::servers::{Manifest, ServerKind, WITHOUT_VARIABLE};

use crate::core_rules;
use crate::fetch;
use crate::freestanding;
use crate::fuzz;
use crate::mutants;
use crate::steps::Steps;

/// Mutants are played in this many parts, one a day: a part takes about four minutes on two cores, half of it for
/// building what the tests depend on.
const MUTANT_PARTS: u64 = 4;

/// How much to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Core,
    Redis,
    All,
}

impl Scope {
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        match words {
            [] | ["all"] => Ok(Self::All),
            ["core"] => Ok(Self::Core),
            ["redis"] => Ok(Self::Redis),
            _ => Err(format!("test {}: no such part", words.join(" "))),
        }
    }
}

pub(crate) fn run(root: &Path, scope: Scope, without: &BTreeSet<ServerKind>) -> Result<(), String> {
    let mut steps = Steps::new(root);
    let nextest = has_nextest();
    if !nextest {
        println!("cargo-nextest is not installed; using cargo test");
    }
    if scope != Scope::Redis {
        core(root, &mut steps, nextest)?;
    }
    if scope != Scope::Core {
        redis(&mut steps, nextest, without)?;
    }
    if scope == Scope::All {
        rest(root, &mut steps)?;
    }
    steps.summary();
    announce(without);
    Ok(())
}

/// Everything that needs no server.
fn core(root: &Path, steps: &mut Steps, nextest: bool) -> Result<(), String> {
    steps.command("format", &[], "cargo fmt --all --check")?;
    steps.command(
        "clippy",
        &[],
        "cargo clippy --workspace --all-targets -- -D warnings",
    )?;
    steps.command(
        "documentation",
        &[("RUSTDOCFLAGS", "-Dwarnings")],
        "cargo doc --workspace --no-deps",
    )?;
    if nextest {
        steps.command(
            "unit and property tests",
            &[],
            "cargo nextest run --config-file tests/nextest.toml --workspace -E 'not (package(/^tenure-(tests|conformance|event-loops|cli)$/) and kind(test))'",
        )?;
    } else {
        steps.command(
            "unit and property tests",
            &[],
            "cargo test --workspace --exclude tenure-tests --exclude tenure-conformance --exclude tenure-event-loops --exclude tenure-cli --lib --bins --tests",
        )?;
        steps.command(
            "unit tests beside real servers",
            &[],
            "cargo test -p tenure-tests -p tenure-conformance -p tenure-event-loops -p tenure-cli --lib --bins",
        )?;
    }
    steps.command("doctests", &[], "cargo test --workspace --doc")?;
    // What nothing else turns on or off.
    steps.command(
        "facade with smol, threads and files",
        &[],
        "cargo test -p tenure --features smol,blocking,sqlite --doc",
    )?;
    steps.command(
        "facade with smol alone",
        &[],
        "cargo clippy -p tenure --no-default-features --features smol -- -D warnings",
    )?;
    steps.command(
        "any executor without smol",
        &[],
        "cargo clippy -p tenure-smol --no-default-features -- -D warnings",
    )?;
    // Everything together has TLS, because its tests do.
    steps.command(
        "client without TLS",
        &[],
        "cargo test -p tenure-client --lib",
    )?;
    steps.command(
        "client without TLS: clippy",
        &[],
        "cargo clippy -p tenure-client -p tenure-blocking --all-targets -- -D warnings",
    )?;
    steps.command(
        "facade with everything",
        &[],
        "cargo clippy -p tenure --all-features -- -D warnings",
    )?;
    steps.command(
        "core alone: build",
        &[],
        "cargo build -p tenure-core --no-default-features",
    )?;
    steps.command(
        "core alone: tests",
        &[],
        match nextest {
            true => {
                "cargo nextest run --config-file tests/nextest.toml -p tenure-core --no-default-features --no-tests=pass"
            }
            false => "cargo test -p tenure-core --no-default-features --lib --tests",
        },
    )?;
    steps.step("core rules", "cargo xtask core-rules", || {
        core_rules::check(root)
    })?;
    steps.step(
        "core without a standard library",
        "cargo xtask freestanding",
        || freestanding::check(root),
    )?;
    steps.step("fuzz corpus", "cargo xtask fuzz-replay", || {
        fuzz::replay(root)
    })?;
    steps.step("outcome table", "cargo xtask outcomes --check", || {
        crate::outcomes(root, true)
    })?;
    steps.step("list of mutants", "cargo xtask mutants --check", || {
        mutants::run(root, &["--check"])
    })
}

/// The real servers.
fn redis(steps: &mut Steps, nextest: bool, without: &BTreeSet<ServerKind>) -> Result<(), String> {
    announce(without);
    steps.step("servers", "cargo xtask servers", || fetch::servers(without))?;
    let ids: Vec<&str> = without.iter().map(|kind| kind.id()).collect();
    let ids = ids.join(",");
    let variables: &[(&str, &str)] = match ids.is_empty() {
        true => &[],
        false => &[(WITHOUT_VARIABLE, &ids)],
    };
    steps.command(
        "real servers",
        variables,
        match nextest {
            true => {
                "cargo nextest run --config-file tests/nextest.toml -p tenure-tests -p tenure-event-loops -p tenure-cli -E 'kind(test)'"
            }
            false => "cargo test -p tenure-tests -p tenure-event-loops -p tenure-cli --tests",
        },
    )?;
    steps.command(
        "conformance of every runtime on every store",
        variables,
        match nextest {
            true => {
                "cargo nextest run --config-file tests/nextest.toml -p tenure-conformance -E 'kind(test)'"
            }
            false => "cargo test -p tenure-conformance --tests -- --test-threads 1",
        },
    )?;
    steps.command(
        "results of the conformance",
        variables,
        "cargo run -p tenure-conformance --bin runtimes -- --check",
    )
}

/// What shows that it all fits together: the examples a reader meets first, the counted budgets, new histories, and
/// today's part of the mutants.
fn rest(root: &Path, steps: &mut Steps) -> Result<(), String> {
    if root.join("examples/quickstart.rs").exists() {
        let server = Spare::start()?;
        steps.command(
            "quickstart example",
            &[("TENURE_URL", &server.url)],
            "cargo run --example quickstart",
        )?;
    }
    // It needs no server.
    steps.command(
        "example of a table that compares fences",
        &[],
        "cargo run --example fenced_update",
    )?;
    let bench = root.join("bench/src/main.rs");
    if bench.exists() {
        steps.command(
            "counted budgets",
            &[],
            "cargo run --release -p tenure-bench -- --check",
        )?;
    }
    torture(steps)?;
    let part = format!("{}/{MUTANT_PARTS}", mutants::part_of_today(MUTANT_PARTS));
    steps.step(
        &format!("mutants, part {part}"),
        &format!("cargo xtask mutants --part {part}"),
        || mutants::run(root, &["--part", &part]),
    )
}

/// Histories nobody has seen yet: three minutes of them in CI, a taste elsewhere. The seeds are printed; one that breaks
/// something is replayed with `--seed`.
fn torture(steps: &mut Steps) -> Result<(), String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A second apart is a million seeds apart: more than any run gets through.
    let from = since.map_or(0, |since| since.as_secs()) * 1_000_000;
    let minutes = if env::var_os("CI").is_some() {
        [2.0, 1.0]
    } else {
        [0.3, 0.2]
    };
    for (level, minutes) in ["client", "core"].into_iter().zip(minutes) {
        let to = from + 1_000_000;
        steps.command(
            &format!("torture of the {level}"),
            &[],
            &format!(
                "cargo run --release -p tenure-sim --features cells --bin torture -- --level {level} --seeds {from}..{to} --minutes {minutes}"
            ),
        )?;
    }
    Ok(())
}

fn announce(without: &BTreeSet<ServerKind>) {
    for kind in without {
        println!(
            "\n*** {kind} IS LEFT OUT, as asked: nothing here says anything about {} ***",
            kind.wanted()
        );
    }
}

fn has_nextest() -> bool {
    Command::new("cargo")
        .args(["nextest", "--version"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

/// A server for the example, with nothing kept.
struct Spare {
    child: std::process::Child,
    folder: std::path::PathBuf,
    url: String,
}

impl Spare {
    fn start() -> Result<Self, String> {
        let say = |error: std::io::Error| format!("starting a server: {error}");
        let manifest = Manifest::load_default().map_err(say)?;
        let entry = manifest.servers.last().ok_or("no server to start")?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(say)?;
        let port = listener.local_addr().map_err(say)?.port();
        drop(listener);
        let folder = env::temp_dir().join(format!("tenure-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(say)?;
        let child = Command::new(&entry.argv[0])
            .args(&entry.argv[1..])
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(say)?;
        let spare = Self {
            child,
            folder,
            url: format!("redis://127.0.0.1:{port}/"),
        };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if Instant::now() > until {
                return Err("the server for the example does not answer".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(spare)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.folder).ok();
    }
}
