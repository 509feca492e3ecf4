//! Counts what one pair costs: instructions and system calls by valgrind, allocations by the allocator.

use std::error::Error;
use std::process::Command;

/// The two lengths of run whose difference is taken.
const SHORT: u64 = 300;
const LONG: u64 = 1_300;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
/// Counts something over a run: who, how many pairs, on which server.
type Counter = fn(&str, u64, &str) -> Outcome<f64>;

/// What one pair costs.
pub(crate) struct Cost {
    pub(crate) instructions: u64,
    pub(crate) allocations: f64,
    pub(crate) bytes: f64,
    pub(crate) system_calls: f64,
}

pub(crate) fn count(who: &str, address: &str) -> Outcome<Cost> {
    let per_pair = |counter: Counter| per_pair(counter, who, address);
    Ok(Cost {
        instructions: per_pair(instructions)?.round() as u64,
        allocations: per_pair(|who, pairs, address| allocator(who, pairs, address, "allocations"))?,
        bytes: per_pair(|who, pairs, address| allocator(who, pairs, address, "bytes"))?,
        system_calls: per_pair(system_calls)?,
    })
}

/// The instructions alone.
pub(crate) fn instructions_of(who: &str, address: &str) -> Outcome<f64> {
    per_pair(instructions, who, address)
}

fn per_pair(counter: Counter, who: &str, address: &str) -> Outcome<f64> {
    let (long, short) = (counter(who, LONG, address)?, counter(who, SHORT, address)?);
    Ok((long - short) / (LONG - SHORT) as f64)
}

fn instructions(who: &str, pairs: u64, address: &str) -> Outcome<f64> {
    let log = valgrind(
        &["--tool=callgrind", "--callgrind-out-file=/dev/null"],
        who,
        pairs,
        address,
    )?;
    let line = log
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .ok_or("callgrind printed no count")?;
    Ok(line.1.trim().parse::<u64>()? as f64)
}

fn system_calls(who: &str, pairs: u64, address: &str) -> Outcome<f64> {
    let log = valgrind(
        &["--tool=none", "--trace-syscalls=yes"],
        who,
        pairs,
        address,
    )?;
    // A call that waits has a second line, without its name. Reading a clock is a call only under valgrind: natively the
    // kernel lends the page it is read from.
    let is_call = |line: &&str| line.contains(" sys_") && !line.contains("sys_clock_gettime");
    Ok(log.lines().filter(is_call).count() as f64)
}

fn valgrind(tool: &[&str], who: &str, pairs: u64, address: &str) -> Outcome<String> {
    let output = Command::new("valgrind")
        .args(tool)
        .arg(std::env::current_exe()?)
        .args(["pairs", who, &pairs.to_string(), address])
        .output()
        .map_err(|error| format!("valgrind cannot be started ({error}): install it, on Debian `apt-get install valgrind`"))?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{who} under valgrind: {}\n{log}", output.status).into());
    }
    Ok(log)
}

/// The run itself prints what its allocator counted.
fn allocator(who: &str, pairs: u64, address: &str, what: &str) -> Outcome<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args(["pairs", who, &pairs.to_string(), address])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let counted = text
        .lines()
        .find_map(|line| line.strip_prefix(what))
        .ok_or("the run printed no count")?;
    Ok(counted.trim().parse::<u64>()? as f64)
}
