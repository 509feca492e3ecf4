//! What it takes to run a command under a lock, beside `flock` and beside the bare command: all of it, from the start of the
//! process to its end.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tenure_tests::process::Folder;
use tenure_tests::{Server, ServerKind};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: usize = 300;

/// Prints the median of each, measured in turns.
pub(crate) fn compare(kind: ServerKind) -> Outcome<()> {
    let tenure = built()?;
    let folder = Folder::new()?;
    let server = Server::start(kind, &[])?;
    let file = folder.path().join("lock").display().to_string();
    let store = format!("sqlite://{}", folder.path().join("locks.db").display());
    let run = |store: &str| {
        let mut command = Command::new(&tenure);
        command
            .args(["run", "a", "true"])
            .env("TENURE_STORE", store);
        command
    };
    let mut flock = Command::new("flock");
    flock.args([&file, "true"]);
    let mut contenders = [
        ("the bare command".to_owned(), Command::new("true")),
        ("flock".to_owned(), flock),
        ("tenure run, a file".to_owned(), run(&store)),
        (format!("tenure run, {kind}"), run(&server.url())),
    ];
    let mut took: [Vec<Duration>; 4] = Default::default();
    for round in 0..ROUNDS + 10 {
        for ((who, command), took) in contenders.iter_mut().zip(&mut took) {
            let began = Instant::now();
            let status = command.stdin(Stdio::null()).status()?;
            if !status.success() {
                return Err(format!("{who}: {status}").into());
            }
            // The first are to warm up.
            if round >= 10 {
                took.push(began.elapsed());
            }
        }
    }
    let medians = took.map(|mut took| {
        took.sort_unstable();
        took[took.len() / 2].as_secs_f64() * 1e3
    });
    let [bare, flock, ..] = medians;
    println!("`true` from start to end, the median of {ROUNDS}, each in its turn:");
    println!("{:<28} {:>8} {:>10} {:>10}", "", "ms", "x bare", "x flock");
    for ((who, _), median) in contenders.iter().zip(medians) {
        let (to_bare, to_flock) = (median / bare, median / flock);
        println!("{who:<28} {median:>8.2} {to_bare:>10.2} {to_flock:>10.2}");
    }
    Ok(())
}

/// The command, from the folder in which this program is.
fn built() -> Outcome<PathBuf> {
    let me = std::env::current_exe()?;
    let tenure = me.parent().unwrap_or(Path::new(".")).join("tenure");
    match tenure.exists() {
        true => Ok(tenure),
        false => Err("build it first: cargo build --release -p tenure-cli".into()),
    }
}
