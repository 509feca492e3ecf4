//! The scenarios that show the rows of `outcomes.toml` on real servers, in files by group.
//!
//! Each file has one `SCENARIOS` with a line `("id", function)` for each row; the ids are also read from these
//! lines when the page of outcomes is made.

mod asked_for;
mod caller;
mod confirmed;
mod connection;
mod held;
mod key_changes;
mod operator;
mod refuses;
mod server_stops;
mod who_may;

use crate::outcomes::Scenario;

/// Every scenario there is.
#[must_use]
pub fn registry() -> Vec<(&'static str, Scenario)> {
    let groups: &[&[(&'static str, Scenario)]] = &[
        held::SCENARIOS,
        key_changes::SCENARIOS,
        operator::SCENARIOS,
        server_stops::SCENARIOS,
        connection::SCENARIOS,
        refuses::SCENARIOS,
        who_may::SCENARIOS,
        asked_for::SCENARIOS,
        confirmed::SCENARIOS,
        caller::SCENARIOS,
    ];
    groups.concat()
}
