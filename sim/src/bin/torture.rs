//! Runs random histories and says what they broke: `torture --seeds A..B`, or `--seed N` for one with its
//! trace; with `--level core` of the machine alone. `--minutes M` stops after that time, wherever it is.
//! With `--complete` the run fails if a kind of fault or a cell of the lease table was never met.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "cells")]
use tenure_core::lease::table::{Input, RULES, State, cells};
use tenure_sim::history::{self, Fault, Report};
use tenure_sim::{Counts, core_level};

/// How much of a trace is shown.
const LINES: usize = 120;

fn main() -> ExitCode {
    match Options::parse() {
        Ok(options) => torture(&options),
        Err(text) => {
            eprintln!(
                "{text}\n\ntorture --seeds A..B [--minutes M] [--complete] | --seed N [--all] [--level client|core]"
            );
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
    /// Everything must have been met.
    complete: bool,
    /// No history is begun after this.
    limit: Option<Duration>,
}

impl Options {
    fn parse() -> Result<Options, String> {
        let mut options = Options {
            seeds: 0..1_000,
            replay: false,
            all: false,
            core: false,
            complete: false,
            limit: None,
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
                "--complete" => options.complete = true,
                "--minutes" => {
                    let minutes: f64 = value()?.parse().map_err(|_| "--minutes takes a number")?;
                    options.limit = Some(Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0));
                }
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
    turns: u64,
    overtakings: u64,
    confirmed: u64,
    unconfirmed: u64,
    faults: BTreeMap<Fault, u64>,
    counts: Counts,
    bad: Vec<u64>,
}

/// So many seeds that broke something end a run.
const ENOUGH: usize = 20;

fn torture(options: &Options) -> ExitCode {
    // A panic is a violation like any other, and is shown as one.
    std::panic::set_hook(Box::new(|_| {}));
    let begun = Instant::now();
    let (sum, next) = (
        Mutex::new(Sum::default()),
        AtomicU64::new(options.seeds.start),
    );
    // A history is one thread; as many run at once as there are processors.
    let threads = match options.replay {
        true => 1,
        false => std::thread::available_parallelism().map_or(1, usize::from),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let late = options.limit.is_some_and(|limit| begun.elapsed() >= limit);
                    if late || seed >= options.seeds.end {
                        return;
                    }
                    let report = match options.core {
                        true => core_level::run(seed, options.replay),
                        false => history::run(seed, options.replay),
                    };
                    let mut sum = sum.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    sum.add(seed, &report);
                    if options.replay {
                        show(&report.trace, options.all);
                    }
                    if sum.bad.len() >= ENOUGH {
                        next.store(u64::MAX - 1_000, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let sum = sum
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let end = options.seeds.start + sum.histories;
    println!(
        "seeds {}..{end}, all of them up to a few at the end",
        options.seeds.start
    );
    sum.print(begun.elapsed().as_secs_f64());
    let kinds = match options.core {
        true => core_level::FAULTS.to_vec(),
        false => history::faults().collect(),
    };
    let mut never = sum.faults_never_met(&kinds);
    let (elsewhere, cells) = cells(options.core);
    never.extend(cells);
    if !elsewhere.is_empty() {
        println!("left to the machine alone: {}", elsewhere.join(", "));
    }
    match never.as_slice() {
        [] => println!("everything else was met"),
        never => println!("NEVER MET: {}", never.join(", ")),
    }
    sum.print_verdict();
    let incomplete = options.complete && !never.is_empty();
    ExitCode::from(u8::from(!sum.bad.is_empty() || incomplete))
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
    fn add(&mut self, seed: u64, report: &Report) {
        self.histories += 1;
        self.events += report.events;
        self.commands += report.commands;
        self.requests += report.requests;
        self.grants += report.grants;
        self.losses += report.losses;
        self.turns += report.turns_and_overtakings.0;
        self.overtakings += report.turns_and_overtakings.1;
        self.confirmed += report.confirmed_and_not.0;
        self.unconfirmed += report.confirmed_and_not.1;
        self.counts.zombies += report.counts.zombies;
        self.counts.repeated += report.counts.repeated;
        self.counts.failed_scripts += report.counts.failed_scripts;
        self.counts.partial_writes += report.counts.partial_writes;
        for (fault, n) in &report.faults {
            *self.faults.entry(*fault).or_default() += n;
        }
        // A history that is too small shows nothing, which nobody would notice.
        let lacks = report.lacks();
        let violations: Vec<_> = report.violations.iter().chain(&lacks).collect();
        if !violations.is_empty() {
            self.bad.push(seed);
            println!("seed {seed}: {} violations", violations.len());
            for violation in violations.iter().take(5) {
                println!("    {violation}");
            }
        }
    }

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
        println!(
            "{} grants were in turn; {} times somebody who does not queue came in between",
            self.turns, self.overtakings
        );
        println!(
            "{} writes were confirmed by all replicas that had to, {} were not",
            self.confirmed, self.unconfirmed
        );
        let met = self.faults.iter();
        let met: Vec<_> = met.map(|(fault, n)| format!("{fault:?} {n}")).collect();
        println!("faults: {}", met.join(", "));
        println!("{:?}", self.counts);
    }

    fn faults_never_met(&self, kinds: &[Fault]) -> Vec<String> {
        let never = kinds
            .iter()
            .filter(|fault| !self.faults.contains_key(fault));
        never.map(|fault| format!("the fault {fault:?}")).collect()
    }

    fn print_verdict(&self) {
        match self.bad.as_slice() {
            [] => println!("no violation"),
            bad => println!("violations in seeds {bad:?}"),
        }
    }
}

/// Cells that whole clients are not expected to meet; the machine alone meets them every few thousand histories.
///
/// A hold that is being released has no guard any more that could be dropped: the client drops its release, and that goes
/// on. The others are met a few times in a hundred thousand histories, or not: a take-over, a confirmation or a look must be on
/// its way, which takes a fraction of a millisecond, and within that somebody else must write the key right behind a repeated
/// command, or a socket that takes no more bytes must be cut, or the take-over must take half a lease.
#[cfg(feature = "cells")]
const ELSEWHERE: &[(State, Input)] = &[
    (State::Releasing, Input::Drop),
    (State::Adopting, Input::RefusedLast),
    (State::Adopting, Input::GrantedLate),
    (State::Adopting, Input::Unsent),
    (State::Confirming, Input::Unsent),
    (State::Checking, Input::Unsent),
];

/// Shows how many cells of the lease table were met, and how often the rarest. Gives those that were not: first those that
/// are not expected, then the others.
#[cfg(feature = "cells")]
fn cells(core: bool) -> (Vec<String>, Vec<String>) {
    let met: Vec<u64> = (0..RULES.len()).map(cells::met).collect();
    let reached = met.iter().filter(|met| **met > 0).count();
    println!("cells met: {reached} of {}", RULES.len());
    let (mut elsewhere, mut never) = (Vec::new(), Vec::new());
    for (rule, met) in RULES.iter().zip(&met) {
        let cell = format!("the cell {:?} {:?}", rule.state, rule.input);
        match met {
            0 if !core && ELSEWHERE.contains(&(rule.state, rule.input)) => elsewhere.push(cell),
            0 => never.push(cell),
            1..10 => println!("    {:?} {:?}: {met}", rule.state, rule.input),
            _ => {}
        }
    }
    (elsewhere, never)
}

#[cfg(not(feature = "cells"))]
fn cells(_core: bool) -> (Vec<String>, Vec<String>) {
    (Vec::new(), Vec::new())
}
