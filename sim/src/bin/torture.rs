//! Runs random histories and says what they broke: `torture --seeds A..B`, or `--seed N` for one with its
//! trace; with `--level core` of the machine alone.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use tenure_sim::history::{self, Fault};
use tenure_sim::{Counts, core_level};

/// How much of a trace is shown.
const LINES: usize = 120;

fn main() -> ExitCode {
    match Options::parse() {
        Ok(options) => torture(&options),
        Err(text) => {
            eprintln!("{text}\n\ntorture --seeds A..B | --seed N [--all] [--level client|core]");
            ExitCode::from(64)
        }
    }
}

struct Options {
    seeds: std::ops::Range<u64>,
    /// One seed, with its trace.
    replay: bool,
    /// The whole trace.
    all: bool,
    /// The machine alone.
    core: bool,
}

impl Options {
    fn parse() -> Result<Options, String> {
        let mut options = Options {
            seeds: 0..1_000,
            replay: false,
            all: false,
            core: false,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--seeds" => {
                    let range = value()?;
                    let (from, to) = range.split_once("..").ok_or("--seeds takes A..B")?;
                    options.seeds = number(from)?..number(to)?;
                }
                "--seed" => {
                    let seed = number(&value()?)?;
                    options.seeds = seed..seed + 1;
                    options.replay = true;
                }
                "--all" => options.all = true,
                "--level" => match value()?.as_str() {
                    "core" => options.core = true,
                    "client" => options.core = false,
                    other => return Err(format!("{other} is no level: client or core")),
                },
                other => return Err(format!("{other} is not known")),
            }
        }
        Ok(options)
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

#[derive(Default)]
struct Sum {
    histories: u64,
    events: u64,
    commands: u64,
    requests: u64,
    grants: u64,
    losses: u64,
    faults: BTreeMap<Fault, u64>,
    counts: Counts,
    bad: Vec<u64>,
}

fn torture(options: &Options) -> ExitCode {
    // A panic is a violation like any other, and is shown as one.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let mut sum = Sum::default();
    for seed in options.seeds.clone() {
        let report = if options.core {
            core_level::run(seed)
        } else {
            history::run(seed, options.replay)
        };
        sum.histories += 1;
        sum.events += report.events;
        sum.commands += report.commands;
        sum.requests += report.requests;
        sum.grants += report.grants;
        sum.losses += report.losses;
        sum.counts.zombies += report.counts.zombies;
        sum.counts.repeated += report.counts.repeated;
        sum.counts.failed_scripts += report.counts.failed_scripts;
        sum.counts.partial_writes += report.counts.partial_writes;
        for (fault, n) in report.faults {
            *sum.faults.entry(fault).or_default() += n;
        }
        if options.replay {
            show(&report.trace, options.all);
        }
        if !report.violations.is_empty() {
            sum.bad.push(seed);
            println!("seed {seed}: {} violations", report.violations.len());
            for violation in report.violations.iter().take(5) {
                println!("    {violation}");
            }
            if sum.bad.len() >= 20 {
                break;
            }
        }
    }
    sum.print(begun.elapsed().as_secs_f64());
    ExitCode::from(u8::from(!sum.bad.is_empty()))
}

/// The last lines of a trace, up to its first violation.
fn show(trace: &str, all: bool) {
    let lines: Vec<&str> = trace.lines().collect();
    let end = lines.iter().position(|line| line.contains("VIOLATION"));
    let end = end.map_or(lines.len(), |at| (at + 4).min(lines.len()));
    let (start, end) = if all {
        (0, lines.len())
    } else {
        (end.saturating_sub(LINES), end)
    };
    for line in &lines[start..end] {
        println!("{line}");
    }
}

impl Sum {
    fn print(&self, seconds: f64) {
        println!(
            "{} histories in {seconds:.1} s, {:.0} a second: {} events, {} commands, {} requests, {} grants, {} losses",
            self.histories,
            self.histories as f64 / seconds,
            self.events,
            self.commands,
            self.requests,
            self.grants,
            self.losses
        );
        let met: Vec<_> = Fault::ALL
            .iter()
            .map(|fault| format!("{fault:?} {}", self.faults.get(fault).unwrap_or(&0)))
            .collect();
        println!("faults: {}", met.join(", "));
        println!("{:?}", self.counts);
        cells();
        match self.bad.as_slice() {
            [] => println!("no violation"),
            bad => println!("violations in seeds {bad:?}"),
        }
    }
}

#[cfg(feature = "cells")]
fn cells() {
    use tenure_core::lease::table::{RULES, cells};

    let met: Vec<u64> = (0..RULES.len()).map(cells::met).collect();
    let reached = met.iter().filter(|met| **met > 0).count();
    println!("cells met: {reached} of {}", RULES.len());
    for (rule, met) in RULES.iter().zip(&met) {
        if *met < 10 {
            println!("    {:?} {:?}: {met}", rule.state, rule.input);
        }
    }
}

#[cfg(not(feature = "cells"))]
fn cells() {}
