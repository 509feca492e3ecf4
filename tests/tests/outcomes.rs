//! Outcomes.
fn main() {}
