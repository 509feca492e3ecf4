//! `tenure bench`: how long locks take here, beside what this host adds by itself.

mod histogram;
mod measure;

use std::io::{IsTerminal as _, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::args::{StoreArgs, parse_duration};
use crate::exit::{self, Failure};
use crate::interrupt::on_interrupt;
use crate::print::{print, print_json};
use crate::store::Store;
use histogram::Histogram;
use measure::{acquire_and_release, hand_over, noise};

/// Measure how long locks take on a store
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure bench --seconds 10 --clients 4")]
#[command(max_term_width = 80)]
#[command(
    after_help = "Takes locks of its own only, below `tenure-bench`. INT or TERM ends it, with \
        what was measured until then. Exit status: 0; 69 no store, 77 refused by it, \
        64 usage."
)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// How long to acquire and release
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_duration)]
    seconds: Duration,

    /// So many at once, each with its own name and connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    clients: u8,

    /// Of each lock
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    lease: Duration,

    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// One thing that was measured.
struct Measured {
    /// For people and for programs.
    names: (&'static str, &'static str),
    took: Histogram,
    /// How long it was measured.
    within: Duration,
}

pub(crate) fn bench(args: &BenchArgs) -> Result<u8, Failure> {
    let store = Store::find(&args.store)?;
    store.reach()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    on_interrupt(move || stopping.store(true, Relaxed))?;
    let aside = args.seconds / 5;
    let all = [
        acquire_and_release(&store, args.clients, args.lease, args.seconds, &stop)?,
        hand_over(&store, args.lease, aside, &stop)?,
        noise(aside, &stop),
    ];
    if args.json {
        let mut map: Map<String, Value> = all.iter().map(Measured::json).collect();
        map.insert("clients".into(), args.clients.into());
        map.insert("interrupted".into(), stop.load(Relaxed).into());
        print_json(&Value::Object(map))?;
    } else {
        let bars = stdout().is_terminal();
        let texts: Vec<String> = all.iter().map(|measured| measured.text(bars)).collect();
        print(&texts.join("\n"))?;
        if stop.load(Relaxed) {
            eprintln!("tenure: interrupted; this is what was measured until then");
        }
    }
    Ok(exit::DONE)
}

impl Measured {
    fn per_second(&self) -> f64 {
        match self.within.is_zero() {
            true => 0.0,
            false => self.took.count() as f64 / self.within.as_secs_f64(),
        }
    }

    fn text(&self, bars: bool) -> String {
        let head = format!(
            "{}: {} in {:.1} s, {:.0} a second\n",
            self.names.0,
            self.took.count(),
            self.within.as_secs_f64(),
            self.per_second()
        );
        if self.took.count() == 0 {
            return head;
        }
        let shares = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];
        let shares = shares.map(|(name, share)| format!("{name} {}", ms(self.took.at(share))));
        format!("{head}  {}\n{}", shares.join("  "), self.took.rows(bars))
    }

    fn json(&self) -> (String, Value) {
        let ms = |share| self.took.at(share).as_secs_f64() * 1_000.0;
        let value = match self.took.count() {
            0 => json!({"count": 0}),
            count => json!({
                "count": count,
                "seconds": self.within.as_secs_f64(),
                "per_second": self.per_second(),
                "p50_ms": ms(0.5),
                "p90_ms": ms(0.9),
                "p99_ms": ms(0.99),
                "max_ms": ms(1.0),
            }),
        };
        (self.names.1.to_owned(), value)
    }
}

/// In milliseconds, to the microsecond.
fn ms(took: Duration) -> String {
    format!("{:.3} ms", took.as_secs_f64() * 1_000.0)
}
