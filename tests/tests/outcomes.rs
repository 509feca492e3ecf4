//! Runs the table of outcomes: see `tenure_tests::outcomes`.

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tenure_tests::outcomes::plan;
use tenure_tests::{ServerKind, rows};
use xtask::outcomes::Table;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let trials = match Table::load(&root) {
        // Servers that are required but missing have trials too: they fail and say what to do.
        Ok(table) => plan(&table, &rows::registry(), &ServerKind::all_required())
            .into_iter()
            .map(|plan| {
                let name = plan.name.clone();
                Trial::test(name, move || {
                    plan.run().map_err(|why| Failed::from(why.to_string()))
                })
            })
            .collect(),
        Err(why) => vec![Trial::test("table", move || Err(Failed::from(why)))],
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
