//! What the options of a lock cost by the clock, each beside the same without it, on a primary with one replica.

use std::error::Error;
use std::time::{Duration, Instant};

use tenure_client::{Config, Lock, LockOptions, Locks};
use tenure_tests::{Server, ServerKind};
use tokio::runtime::Builder;

use crate::{valgrind, wall};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Rounds of each; in a round each has its turn, so that whatever else the machine does meets all.
const ROUNDS: usize = 41;
const TIMES: u32 = 200;

/// What is measured, and beside which of them: pairs first, then renewals.
pub(crate) const ALL: [(&str, &str); 6] = [
    ("plain", "plain"),
    ("fenced", "plain"),
    ("fair", "plain"),
    ("replicas", "plain"),
    ("renewal", "renewal"),
    ("rotation", "renewal"),
];

/// What is done over and over: an acquire and release with these options, or a renewal of what is held.
struct Feature {
    locks: Locks,
    options: LockOptions,
    held: Option<Lock>,
}

impl Feature {
    async fn start(who: &str, address: &str) -> Outcome<Feature> {
        let config = Config::from_url(&format!("redis://{address}"))?;
        let locks = tenure_tokio::connect_config(&config).await?;
        let plain = LockOptions::new();
        let (options, renews) = match who {
            "plain" => (plain, false),
            "fenced" => (plain.fenced(), false),
            "fair" => (plain.fair(), false),
            "replicas" => (plain.replicas(1, Duration::from_secs(1)), false),
            "renewal" => (plain, true),
            "rotation" => (plain.rotate(), true),
            _ => return Err("no such feature".into()),
        };
        let request = locks.lock(format!("bench:{who}")).options(options.clone());
        let held = match renews {
            true => Some(request.acquire().await?),
            false => None,
        };
        Ok(Feature {
            locks,
            options,
            held,
        })
    }

    async fn times(&self, times: u64) -> Outcome<()> {
        for _ in 0..times {
            match &self.held {
                Some(lock) => lock.renew_now().await?,
                None => {
                    let request = self.locks.lock("bench:pair").options(self.options.clone());
                    assert!(request.acquire().await?.release().await?.confirmed);
                }
            }
        }
        Ok(())
    }
}

/// Does one of them that often, and nothing else: for what counts instructions.
pub(crate) async fn run(who: &str, times: u64, address: &str) -> Outcome<()> {
    Feature::start(who, address).await?.times(times).await
}

/// Prints the medians, and the instructions where they can be counted.
pub(crate) fn compare(kind: ServerKind) -> Outcome<()> {
    wall::pin()?;
    // After that: all of it runs on the same core.
    let primary = Server::start(kind, &[])?;
    let _replica = primary.start_replica()?;
    let address = primary.addr().to_string();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let took = runtime.block_on(rounds(&address))?;
    println!("{kind} with one replica, all on one core, median of {ROUNDS} rounds of {TIMES}\n");
    println!("| what | us | x | user instructions | x |");
    println!("|---|--:|--:|--:|--:|");
    let counted = ALL.map(|(who, _)| valgrind::instructions_of(who, &address).ok());
    for (at, (who, beside)) in ALL.iter().enumerate() {
        let base = ALL.iter().position(|(who, _)| who == beside).unwrap_or(at);
        let counts = match (counted[at], counted[base]) {
            (Some(count), Some(base)) => format!("{count:.0} | {:.2}", count / base),
            _ => "- | -".to_owned(),
        };
        println!(
            "| {who} | {:.1} | {:.2} | {counts} |",
            took[at].as_secs_f64() * 1e6,
            took[at].as_secs_f64() / took[base].as_secs_f64()
        );
    }
    println!();
    Ok(())
}

/// The median times, in the order of [`ALL`].
async fn rounds(address: &str) -> Outcome<Vec<Duration>> {
    let mut features = Vec::new();
    for (who, _) in ALL {
        features.push((Feature::start(who, address).await?, Vec::new()));
    }
    for round in 0..=ROUNDS {
        for (feature, took) in &mut features {
            let began = Instant::now();
            feature.times(TIMES.into()).await?;
            // The first is to warm up.
            if round > 0 {
                took.push(began.elapsed() / TIMES);
            }
        }
    }
    let medians = features.into_iter().map(|(_, took)| wall::median(took));
    Ok(medians.collect())
}
