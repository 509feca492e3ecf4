//! Counted comparisons: what one acquire and release costs over tokio, beside a raw socket and a hand-written pair on
//! the `redis` crate; the same on a thread that blocks, by the clock, too; and what a held lease weighs.
//!
//! `cargo run --release -p tenure-bench` prints the table, `-- hand-over` only how long a hand-over takes, `-- features` only
//! what the options of a lock cost, `-- start-up` only what `tenure run` does beside `flock`; with `-- --check` it fails when a budget is exceeded.
//! Instructions and system calls are counted by valgrind, as the difference between a long and a short run, so that
//! start-up and warm-up cancel out; they do not depend on how busy the machine is.

mod features;
mod handover;
mod held;
mod pair;
mod startup;
mod valgrind;
mod wall;

use std::error::Error;
use std::process::ExitCode;

use tenure_tests::{Server, ServerKind};

/// What a pair may cost, by contender, and what a held lease may weigh: a little more than it does now, so that no change
/// makes it dearer unseen. The aims are 9,000 instructions and 500 bytes; by the clock, 1.1 times the raw socket.
const BUDGETS: [Budget; 2] = [
    Budget {
        who: "tenure",
        instructions: 25_000,
        allocations: 2,
        system_calls: 9,
    },
    Budget {
        who: "tenure-blocking",
        instructions: 21_800,
        allocations: 2,
        system_calls: 10,
    },
];
const BYTES_PER_LEASE: u64 = 720;

struct Budget {
    who: &'static str,
    instructions: u64,
    allocations: u64,
    system_calls: u64,
}

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => table(false),
        ["--check"] => table(true),
        ["hand-over"] => on_the_newest(handover::compare),
        ["features"] => on_the_newest(features::compare),
        ["start-up"] => on_the_newest(startup::compare),
        // How valgrind starts this program again.
        ["pairs", who, pairs, address] => pair::run(who, pairs, address),
        // The other process of a hand-over.
        ["wait", who, address] => handover::wait(who, address),
        _ => Err("usage: tenure-bench [--check | hand-over | features | start-up]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tenure-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn table(check: bool) -> Result<(), Box<dyn Error + Send + Sync>> {
    let kind = [ServerKind::Redis86, ServerKind::Valkey91]
        .into_iter()
        .find(|kind| ServerKind::all_found().contains(kind))
        .ok_or("no Redis 8.6 or Valkey 9.1: run `cargo xtask servers`")?;
    let server = Server::start(kind, &[])?;
    let address = server.addr().to_string();
    let mut over = Vec::new();
    let over_tokio = "one task, tokio current-thread";
    let tables = [
        (over_tokio, pair::CONTENDERS),
        ("one thread that blocks", pair::BLOCKING),
    ];
    for (how, contenders) in tables {
        println!("one acquire and release, {how}, {kind} over TCP on loopback\n");
        pairs(contenders, &address, &mut over)?;
    }
    let bytes = held::bytes_per_lease(&address)?;
    println!(
        "bytes of heap per held lease, at {} held: {bytes}",
        held::LEASES
    );
    if bytes > BYTES_PER_LEASE {
        over.push(format!(
            "{bytes} bytes per held lease, allowed are {BYTES_PER_LEASE}"
        ));
    }
    let (raw, blocking) = wall::medians(kind)?;
    println!(
        "a pair on a thread that blocks, with the server on one core, median: {:.1} us, a raw socket {:.1} us: x {:.2}",
        blocking.as_secs_f64() * 1e6,
        raw.as_secs_f64() * 1e6,
        blocking.as_secs_f64() / raw.as_secs_f64()
    );
    if !check {
        on_the_newest(handover::compare)?;
    }
    if over.is_empty() || !check {
        return Ok(());
    }
    Err(format!("over budget: {}", over.join("; ")).into())
}

/// On each of the newest servers that are there.
fn on_the_newest(
    compare: impl FnMut(ServerKind) -> Result<(), Box<dyn Error + Send + Sync>>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let found = ServerKind::all_found();
    let kinds = [ServerKind::Redis86, ServerKind::Valkey91];
    kinds
        .into_iter()
        .filter(|kind| found.contains(kind))
        .try_for_each(compare)
}

/// Prints what a pair costs each of them, the first being the measure, and notes what is over budget.
fn pairs(
    contenders: &[&str],
    address: &str,
    over: &mut Vec<String>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    println!(
        "| client | user instructions | x raw | allocations | bytes allocated | system calls |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    let mut raw = None;
    for who in contenders {
        let cost = valgrind::count(who, address)?;
        let raw = *raw.get_or_insert(cost.instructions);
        println!(
            "| {who} | {} | {:.2} | {:.2} | {:.0} | {:.2} |",
            cost.instructions,
            cost.instructions as f64 / raw as f64,
            cost.allocations,
            cost.bytes,
            cost.system_calls
        );
        for budget in BUDGETS.iter().filter(|budget| budget.who == *who) {
            let counts = [
                (
                    "instructions",
                    cost.instructions as f64,
                    budget.instructions as f64,
                ),
                (
                    "allocations",
                    cost.allocations,
                    budget.allocations as f64 + 0.05,
                ),
                (
                    "system calls",
                    cost.system_calls,
                    budget.system_calls as f64 + 0.05,
                ),
            ];
            for (what, count, allowed) in counts {
                if count > allowed {
                    over.push(format!(
                        "{who}: {count:.2} {what} a pair, allowed are {allowed}"
                    ));
                }
            }
        }
    }
    println!();
    Ok(())
}
