//! `docs/lease-states.md` is drawn from the table. `TENURE_BLESS=1` writes it anew.

use std::collections::BTreeMap;
use std::format;
use std::path::Path;
use std::string::{String, ToString};
use std::vec::Vec;

use super::super::table::RULES;

fn page() -> String {
    let mut page = String::from(
        "# The states of a lease\n\n\
         Generated from the transition table in `core/src/lease/table.rs`, which is what runs. Do not edit:\n\
         `TENURE_BLESS=1 cargo test -p tenure-core --lib diagram` writes this page anew, and a test fails when it is stale.\n\n\
         A pair of state and input that is not listed is ignored: it can only be a late or repeated call.\n\n\
         ```mermaid\nstateDiagram-v2\n    [*] --> Queued\n",
    );
    let mut edges: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
    for rule in RULES {
        let inputs = edges
            .entry((rule.state as usize, rule.next as usize))
            .or_default();
        inputs.push(format!("{:?}", rule.input));
    }
    for ((from, to), inputs) in edges {
        let name = |state: usize| {
            RULES
                .iter()
                .find_map(|rule| {
                    [rule.state, rule.next]
                        .into_iter()
                        .find(|other| *other as usize == state)
                })
                .map_or_else(String::new, |state| format!("{state:?}"))
        };
        page += &format!(
            "    {} --> {}: {}\n",
            name(from),
            name(to),
            inputs.join(", ")
        );
    }
    page += "    Done --> [*]\n```\n\n| state | input | what is done | next state |\n|---|---|---|---|\n";
    let mut last = String::new();
    for rule in RULES {
        let state = format!("{:?}", rule.state);
        let shown = if state == last {
            String::new()
        } else {
            format!("**{state}**")
        };
        let next = if rule.next == rule.state {
            "-".to_string()
        } else {
            format!("{:?}", rule.next)
        };
        page += &format!(
            "| {shown} | {:?} | {} | {next} |\n",
            rule.input,
            words(&format!("{:?}", rule.act))
        );
        last = state;
    }
    page
}

/// `TellTimedOut` -> `tell timed out`
fn words(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push(' ');
        }
        out.extend(letter.to_lowercase());
    }
    if out == "nothing" {
        "-".to_string()
    } else {
        out
    }
}

#[test]
fn the_diagram_is_not_stale() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/lease-states.md");
    // A packaged crate comes without the docs.
    if !path.parent().is_some_and(Path::exists) {
        return;
    }
    let page = page();
    if std::env::var_os("TENURE_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &page).expect("the docs can be written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == page,
        "docs/lease-states.md is stale: run with TENURE_BLESS=1"
    );
}
