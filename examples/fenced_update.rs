//! A table that refuses whoever comes too late: `cargo run --example fenced_update`.
//!
//! Two workers, one after the other, each with the lock and a fence. The first is paused for longer than its lease between its look
//! at the lock and its write; by then the second has the lock and has written. A lock cannot stop the first one's write,
//! and the table does, by a condition in the statement:
//!
//! ```sql
//! UPDATE ledger SET total = ?, fence = ? WHERE id = ? AND fence <= ?
//! ```
//!
//! With any SQL engine: the fence in a column of 64 bits, 0 at first; no row changed means that somebody newer was here. The table is a
//! stand-in in memory here, so that this runs anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Error;

/// `CREATE TABLE ledger (id TEXT PRIMARY KEY, total BIGINT, fence BIGINT NOT NULL DEFAULT 0)`
#[derive(Default)]
struct Ledger(BTreeMap<&'static str, Row>);

#[derive(Default)]
struct Row {
    total: i64,
    fence: u64,
}

impl Ledger {
    /// `UPDATE ledger SET total = ?, fence = ? WHERE id = ? AND fence <= ?`: how many rows were changed.
    fn update(&mut self, id: &str, total: i64, fence: u64) -> usize {
        match self.0.get_mut(id) {
            Some(row) if row.fence <= fence => {
                *row = Row { total, fence };
                1
            }
            _ => 0,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let locks = tenure::connect("memory:").await?;
    let mut ledger = Ledger::default();
    ledger.0.insert("2026", Row::default());

    // A lease that is not renewed, as that of a process which stands still.
    let paused = locks.lock("ledger").lease(Duration::from_millis(200));
    let paused = paused.no_renew().fenced().acquire().await?;
    let old = paused.fence().expect("it was asked for");
    assert!(paused.is_held(), "it looks, and is paused");

    let next = locks.lock("ledger").fenced().acquire().await?;
    let new = next.fence().expect("it was asked for");
    println!("the fences are {old} and {new}");
    println!(
        "the second writes: {} row changed",
        ledger.update("2026", 42, new)
    );

    // It goes on where it was, without another look.
    let changed = ledger.update("2026", 13, old);
    println!("the first writes, too late: {changed} rows changed");

    assert!(new > old && changed == 0);
    assert_eq!(ledger.0["2026"].total, 42);
    next.release().await?;
    locks.close().await;
    Ok(())
}
