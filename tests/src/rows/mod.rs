//! The scenarios that show the rows of `outcomes.toml` on real servers, in files by group.
//!
//! Each file has one `SCENARIOS` with a line `("id", function)` for each row; the ids are also read from these
//! lines when the page of outcomes is made.

use crate::outcomes::Scenario;

/// Every scenario there is.
#[must_use]
pub fn registry() -> Vec<(&'static str, Scenario)> {
    let groups: [&[(&'static str, Scenario)]; 0] = [];
    groups.concat()
}
