//! Runs scenarios, and says what became of them.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::{Outcome, Scenario};

/// Scenarios that run at once: they mostly wait.
const AT_ONCE: usize = 6;
/// Further runs of one that failed, alone: on a busy machine a short lease may be lost for no fault of anybody's.
const AGAIN: usize = 2;

/// Runs these scenarios, several at once, and those that fail again, one at a time.
///
/// # Errors
/// What failed, with reasons.
pub fn run(
    scenarios: &[Scenario],
    show: impl Fn(&Scenario) -> Outcome + Sync,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(scenarios.len()) {
            scope.spawn(|| {
                while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = one(scenario, &show) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        failed.push((*scenario, why));
                    }
                }
            });
        }
    });
    let mut report = String::new();
    for (scenario, why) in failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let again = (0..AGAIN).find_map(|_| one(&scenario, &show).ok());
        match again {
            Some(()) => println!("FLAKY {}: {why}", scenario.name),
            None => drop(writeln!(report, "{}: {why}", scenario.name)),
        }
    }
    match report.is_empty() {
        true => Ok(()),
        false => Err(report),
    }
}

fn one(scenario: &Scenario, show: &impl Fn(&Scenario) -> Outcome) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(|| show(scenario))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(why.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(text.unwrap_or("a panic").to_owned())
        }
    }
}
