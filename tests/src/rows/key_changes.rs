use crate::outcomes::Scenario;

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[];
