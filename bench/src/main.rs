//! Counted comparisons: what one acquire and release costs over tokio, beside a raw socket and a hand-written pair on
//! the `redis` crate; and what a held lease weighs.
//!
//! `cargo run --release -p tenure-bench` prints the table, with `-- --check` it fails when a budget is exceeded.
//! Instructions and system calls are counted by valgrind, as the difference between a long and a short run, so that
//! start-up and warm-up cancel out; they do not depend on how busy the machine is.

mod held;
mod pair;
mod valgrind;

use std::error::Error;
use std::process::ExitCode;

use tenure_tests::{Server, ServerKind};

/// What a pair over tokio may cost, and what a held lease may weigh: a little more than it does now, so that no change
/// makes it dearer unseen. The aims are 9,000 instructions and 500 bytes.
const BUDGET: Budget = Budget {
    instructions: 19_500,
    allocations: 2,
    bytes_per_lease: 700,
};

struct Budget {
    instructions: u64,
    allocations: u64,
    bytes_per_lease: u64,
}

#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => table(false),
        ["--check"] => table(true),
        // How valgrind starts this program again.
        ["pairs", who, pairs, address] => pair::run(who, pairs, address),
        _ => Err("usage: tenure-bench [--check]".into()),
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
    println!(
        "one acquire and release, one task, tokio current-thread, {kind} over TCP on loopback\n"
    );
    println!(
        "| client | user instructions | x raw | allocations | bytes allocated | system calls |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    let mut raw = None;
    let mut over = Vec::new();
    for who in pair::CONTENDERS {
        let cost = valgrind::count(who, &address)?;
        let raw = *raw.get_or_insert(cost.instructions);
        println!(
            "| {who} | {} | {:.2} | {:.2} | {:.0} | {:.2} |",
            cost.instructions,
            cost.instructions as f64 / raw as f64,
            cost.allocations,
            cost.bytes,
            cost.system_calls
        );
        if *who == "tenure" {
            if cost.instructions > BUDGET.instructions {
                over.push(format!(
                    "{} instructions a pair, allowed are {}",
                    cost.instructions, BUDGET.instructions
                ));
            }
            if cost.allocations > BUDGET.allocations as f64 + 0.05 {
                over.push(format!(
                    "{:.2} allocations a pair, allowed are {}",
                    cost.allocations, BUDGET.allocations
                ));
            }
        }
    }
    let bytes = held::bytes_per_lease(&address)?;
    println!(
        "\nbytes of heap per held lease, at {} held: {bytes}",
        held::LEASES
    );
    if bytes > BUDGET.bytes_per_lease {
        over.push(format!(
            "{bytes} bytes per held lease, allowed are {}",
            BUDGET.bytes_per_lease
        ));
    }
    if over.is_empty() || !check {
        return Ok(());
    }
    Err(format!("over budget: {}", over.join("; ")).into())
}
