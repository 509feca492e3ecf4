//! From the table of outcomes to tests: every row that real servers can show, on every one of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use xtask::outcomes::Table;

use crate::{Failure, Server, ServerKind};

/// Shows one row on one server.
pub type Scenario = fn(&mut Context) -> Result<(), Failure>;

/// What a scenario works with.
#[derive(Debug)]
pub struct Context {
    kind: ServerKind,
    server: Option<Server>,
}

impl Context {
    /// The context of a scenario on this kind of server.
    #[must_use]
    pub const fn new(kind: ServerKind) -> Self {
        Self { kind, server: None }
    }

    /// The kind of server to use.
    #[must_use]
    pub const fn kind(&self) -> ServerKind {
        self.kind
    }

    /// The server, started without further arguments when it is first asked for.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn server(&mut self) -> Result<&mut Server, Failure> {
        self.server_with(&[])
    }

    /// The server, started with these arguments when it is first asked for.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn server_with(&mut self, arguments: &[&str]) -> Result<&mut Server, Failure> {
        let server = match self.server.take() {
            Some(server) => server,
            None => Server::start(self.kind, arguments)?,
        };
        Ok(self.server.insert(server))
    }

    /// The server, started so that it keeps its data when it is first asked for.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn server_with_data(&mut self) -> Result<&mut Server, Failure> {
        let server = match self.server.take() {
            Some(server) => server,
            None => Server::start_with_data(self.kind, &[])?,
        };
        Ok(self.server.insert(server))
    }
}

/// One test of the run.
#[derive(Debug)]
pub struct Plan {
    /// `id::server`, or the id alone when something is wrong with it.
    pub name: String,
    /// What to run, or why that cannot be.
    pub what: Result<(ServerKind, Scenario), String>,
}

/// Makes the tests: one for each row and server, and one that fails for each row without a scenario and each
/// scenario without a row.
#[must_use]
pub fn plan(
    table: &Table,
    scenarios: &[(&'static str, Scenario)],
    kinds: &[ServerKind],
) -> Vec<Plan> {
    let broken = |id: &str, why: &str| Plan {
        name: id.to_owned(),
        what: Err(why.to_owned()),
    };
    let mut plans = Vec::new();
    let mut left: BTreeMap<&str, Scenario> = BTreeMap::new();
    for (id, scenario) in scenarios {
        match left.entry(id) {
            Entry::Vacant(entry) => drop(entry.insert(*scenario)),
            Entry::Occupied(_) => plans.push(broken(id, "two scenarios have this id")),
        }
    }
    for row in &table.rows {
        match (row.real, left.remove(row.id.as_str())) {
            (true, Some(scenario)) => plans.extend(kinds.iter().map(|kind| Plan {
                name: format!("{}::{kind}", row.id),
                what: Ok((*kind, scenario)),
            })),
            (true, None) => plans.push(broken(&row.id, "no scenario shows this row")),
            (false, Some(_)) => plans.push(broken(
                &row.id,
                "there is a scenario, but the row says that real servers cannot show it",
            )),
            (false, None) => {}
        }
    }
    plans.extend(
        left.keys()
            .map(|id| broken(id, "the table has no row for this scenario")),
    );
    plans
}

impl Plan {
    /// Runs it.
    ///
    /// # Errors
    /// When the scenario fails, or there is none.
    pub fn run(&self) -> Result<(), Failure> {
        match &self.what {
            Ok((kind, scenario)) => scenario(&mut Context::new(*kind)),
            Err(why) => Err(why.clone().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |id: &str, real: bool| {
            format!(
                "[[row]]\ngroup='g'\nid='{id}'\nevent='e'\ncaller='c'\nwait='n/a'\nserver='s'\nreal={real}\n\
                 reason='r'\n"
            )
        };
        Table::parse(&format!(
            "{}{}{}",
            row("a", true),
            row("b", true),
            row("c", false)
        ))
        .unwrap()
    }

    fn good(_: &mut Context) -> Result<(), Failure> {
        Ok(())
    }

    const TWO: [ServerKind; 2] = [ServerKind::Redis70, ServerKind::Valkey91];

    fn names(plans: &[Plan], good: bool) -> Vec<&str> {
        plans
            .iter()
            .filter(|plan| plan.run().is_ok() == good)
            .map(|plan| plan.name.as_str())
            .collect()
    }

    #[test]
    fn every_real_row_is_run_on_every_server() {
        let plans = plan(&table(), &[("a", good), ("b", good)], &TWO);
        assert_eq!(
            names(&plans, true),
            [
                "a::redis-7.0",
                "a::valkey-9.1",
                "b::redis-7.0",
                "b::valkey-9.1"
            ]
        );
        assert!(names(&plans, false).is_empty());
    }

    #[test]
    fn a_row_without_a_scenario_fails() {
        let plans = plan(&table(), &[("a", good)], &TWO);
        assert_eq!(names(&plans, false), ["b"]);
    }

    #[test]
    fn a_scenario_without_a_row_fails() {
        let plans = plan(&table(), &[("a", good), ("b", good), ("d", good)], &TWO);
        assert_eq!(names(&plans, false), ["d"]);
    }

    #[test]
    fn a_scenario_for_a_row_that_is_not_real_or_twice_fails() {
        let plans = plan(
            &table(),
            &[("a", good), ("b", good), ("c", good), ("a", good)],
            &TWO,
        );
        assert_eq!(names(&plans, false), ["a", "c"]);
    }
}
