//! Every runtime on every store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use tenure_sim::Dialect;
use tenure_tests::ServerKind;

use crate::runtime::Kind;
use crate::scenarios;
use crate::scene::Scene;
use crate::stage::Stage;
use crate::stages::{InFile, Memory, Real};
use crate::{Need, Outcome, Scenario, report, runtimes};

/// A runtime and a store.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// On a real server.
    Server(Kind, ServerKind),
    /// In memory.
    Memory(Kind),
    /// In a file, by SQLite.
    File(Kind),
    /// In the simulated world, on a server of a dialect or in memory.
    Simulated(Option<Dialect>),
}

/// The servers of the matrix: the newest of each kind, and the oldest that is worth having.
const SERVERS: [ServerKind; 3] = [
    ServerKind::Redis86,
    ServerKind::Valkey91,
    ServerKind::Redis70,
];
const DIALECTS: [Dialect; 3] = [Dialect::Redis8, Dialect::Valkey9, Dialect::Redis7];

/// What each has passed, for the page.
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/conformance");

/// All there are.
#[must_use]
pub fn all() -> Vec<Field> {
    let mut fields: Vec<Field> = Vec::new();
    for runtime in runtimes::REAL {
        fields.extend(SERVERS.map(|server| Field::Server(runtime, server)));
        fields.push(Field::Memory(runtime));
        fields.push(Field::File(runtime));
    }
    fields.extend(DIALECTS.map(|dialect| Field::Simulated(Some(dialect))));
    fields.push(Field::Simulated(None));
    fields
}

impl Field {
    /// The runtime and the store, as a path.
    #[must_use]
    pub fn name(&self) -> String {
        let (runtime, store) = (self.runtime(), self.store());
        format!("{runtime}::{store}")
            .replace(", ", "-")
            .replace(' ', "-")
    }

    /// The name of the runtime.
    #[must_use]
    pub fn runtime(&self) -> &'static str {
        match self {
            Field::Server(kind, _) | Field::Memory(kind) | Field::File(kind) => kind.name,
            Field::Simulated(_) => "simulated",
        }
    }

    /// The name of the store.
    #[must_use]
    pub fn store(&self) -> String {
        match self {
            Field::Server(_, kind) => kind.to_string(),
            Field::Memory(_) | Field::Simulated(None) => "memory".to_owned(),
            Field::File(_) => "SQLite".to_owned(),
            Field::Simulated(Some(dialect)) => format!("{dialect:?}"),
        }
    }

    /// Whether it is left out, as somebody asked who has no such server.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        match self {
            Field::Server(_, kind) => !ServerKind::all_required().contains(kind),
            Field::Memory(_) | Field::File(_) | Field::Simulated(_) => false,
        }
    }

    /// What the store can do, or have done to it.
    #[must_use]
    pub const fn can(&self, need: Need) -> bool {
        match self {
            Field::Server(..) | Field::Simulated(Some(_)) => true,
            Field::File(_) => matches!(need, Need::Keys),
            Field::Memory(_) | Field::Simulated(None) => false,
        }
    }

    /// Runs every scenario that the store can show and whose name has this in it.
    ///
    /// # Errors
    /// What failed, with reasons.
    pub fn run(&self, only: &str) -> Result<(), String> {
        // What an earlier run has passed counts no more.
        let _ = fs::remove_file(self.results());
        let mut scenarios = scenarios::all();
        scenarios.retain(|scenario| scenario.name.contains(only) && self.shows(scenario));
        // Most scenarios can share a server; those that do something to it have their own.
        let shared = match self {
            Field::Server(_, kind) => Some(Real::start(*kind).map_err(|why| why.to_string())?),
            _ => None,
        };
        report::run(&scenarios, |scenario| self.show(scenario, shared.as_ref()))?;
        let passed: Vec<&str> = scenarios.iter().map(|scenario| scenario.name).collect();
        self.note(&passed)
            .map_err(|error| format!("the results cannot be noted: {error}"))
    }

    /// Whether the store has all that the scenario needs.
    #[must_use]
    pub fn shows(&self, scenario: &Scenario) -> bool {
        scenario.needs.iter().all(|need| self.can(*need))
    }

    /// The scenarios that its last run has passed.
    ///
    /// # Errors
    /// When there was none.
    pub fn passed(&self) -> io::Result<Vec<String>> {
        let text = fs::read_to_string(self.results())?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn note(&self, passed: &[&str]) -> io::Result<()> {
        fs::create_dir_all(RESULTS)?;
        fs::write(self.results(), passed.join("\n"))
    }

    fn results(&self) -> PathBuf {
        Path::new(RESULTS).join(self.name().replace("::", "-on-"))
    }

    fn show(&self, scenario: &Scenario, shared: Option<&Real>) -> Outcome {
        let Scenario { name, show, .. } = *scenario;
        let play = move |runtime, stage| {
            show(Scene {
                scenario: name,
                runtime,
                stage,
            })
        };
        let (kind, stage): (_, Arc<dyn Stage>) = match (*self, shared) {
            (Field::Simulated(dialect), _) => {
                let seed = name.bytes().map(u64::from).sum();
                return runtimes::simulate(seed, dialect, play);
            }
            (Field::Memory(kind), _) => (kind, Arc::new(Memory::default())),
            (Field::File(kind), _) => (kind, Arc::new(InFile::new()?)),
            (Field::Server(kind, _), Some(shared)) if !scenario.needs.contains(&Need::Server) => {
                (kind, Arc::new(shared.share()))
            }
            (Field::Server(kind, server), _) => (kind, Arc::new(Real::start(server)?)),
        };
        (kind.play)(Box::new(move |runtime| play(runtime, stage)))
    }
}
