//! `docs/runtimes.md`: what runs on what.

use std::fmt::Write as _;

use crate::{Need, matrix, scenarios};

const HEAD: &str = "\
# Runtimes and stores

<!-- made by `cargo run -p tenure-conformance --bin runtimes` from what the last run has passed; every check compares -->

Every runtime keeps the same promises on every store. The scenarios that show it are written once
(`conformance/src/scenarios`) and run on all of them; a number in the last table says on how many runtimes it has passed. `cargo xtask
test redis` runs them all, fails if one fails, and compares the results with this page. There is no list of exceptions: what a store cannot do, or cannot have done to it,
is in the second table, and the scenarios that need it are not for that store.

| runtime | binding |
|---|---|
";

/// Runtimes and where their binding lives.
const BINDINGS: &[(&str, &str)] = &[
    ("tokio, threads", "`tenure-tokio`, several worker threads"),
    (
        "tokio, one thread",
        "`tenure-tokio`, the current-thread runtime",
    ),
    ("smol", "`tenure-smol`, smol's global executor"),
    (
        "async-std",
        "`tenure-smol`, async-std's executor, for those who have not left it yet",
    ),
    (
        "threads",
        "`tenure-blocking`, each verb called on a thread of its own",
    ),
    (
        "simulated",
        "`tenure-sim`, the simulated world with its own server and clocks",
    ),
];

/// The page, from what each field has passed.
///
/// # Errors
/// When one has not been run, or a scenario has passed in none.
pub fn page() -> Result<String, String> {
    let fields = matrix::all();
    let mut passed = Vec::new();
    for field in &fields {
        let results = field.passed();
        passed.push(results.map_err(|_| format!("{} has not been run", field.name()))?);
    }
    let mut page = HEAD.to_owned();
    let mut runtimes: Vec<&str> = fields.iter().map(matrix::Field::runtime).collect();
    runtimes.dedup();
    for runtime in runtimes {
        let binding = BINDINGS.iter().find(|(name, _)| *name == runtime);
        line(
            &mut page,
            &[runtime, binding.map_or("", |(_, binding)| binding)],
        );
    }

    let mut stores: Vec<String> = Vec::new();
    for field in &fields {
        if !stores.contains(&field.store()) {
            stores.push(field.store());
        }
    }
    page.push('\n');
    let mut head = vec!["store"];
    head.extend(Need::ALL.map(Need::words));
    table(&mut page, &head);
    for store in &stores {
        let field = fields.iter().find(|field| field.store() == *store);
        let mut cells = vec![store.as_str()];
        let can = |need| field.is_some_and(|field| field.can(need));
        cells.extend(Need::ALL.map(|need| if can(need) { "yes" } else { "no" }));
        line(&mut page, &cells);
    }

    page.push('\n');
    let mut head = vec!["scenario"];
    head.extend(stores.iter().map(String::as_str));
    table(&mut page, &head);
    for scenario in scenarios::all() {
        if !passed.iter().flatten().any(|name| name == scenario.name) {
            return Err(format!(
                "{} has passed nowhere: run the suite again, its results are older than it",
                scenario.name
            ));
        }
        let mut cells = vec![scenario.name.replace('_', " ")];
        for store in &stores {
            let has_passed = |(field, passed): &(&matrix::Field, &Vec<String>)| {
                field.store() == *store && passed.iter().any(|name| name == scenario.name)
            };
            cells.push(
                match fields.iter().zip(&passed).filter(has_passed).count() {
                    0 => "-".to_owned(),
                    runtimes => runtimes.to_string(),
                },
            );
        }
        line(
            &mut page,
            &cells.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
    Ok(page)
}

fn table(page: &mut String, head: &[&str]) {
    line(page, head);
    line(page, &vec!["---"; head.len()]);
}

fn line(page: &mut String, cells: &[&str]) {
    let _ = writeln!(page, "| {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_scenario_has_a_name_of_its_own_and_there_are_enough() {
        let mut names: Vec<_> = crate::scenarios::all()
            .iter()
            .map(|each| each.name)
            .collect();
        assert!(names.len() >= 40, "{}", names.len());
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
