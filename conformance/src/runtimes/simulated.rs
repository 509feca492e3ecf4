//! The simulated world: a runtime, and the store with it.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Config, Error, connect_with, memory_with};
use tenure_sim::{Client, Dialect, Sim, World};

use crate::party::Verbs;
use crate::runtime::Runtime;
use crate::stage::Stage;
use crate::stages::{Memory, Simulated};
use crate::{Boxed, Outcome};

/// Runs a scenario in a world of its own: on a server of this dialect, or in memory.
///
/// # Errors
/// Those of the scenario.
pub fn simulate(
    seed: u64,
    dialect: Option<Dialect>,
    play: impl FnOnce(Arc<dyn Runtime>, Arc<dyn Stage>) -> Boxed<Outcome>,
) -> Outcome {
    let mut sim = Sim::new(seed);
    let world = sim.world();
    let stage: Arc<dyn Stage> = match dialect {
        None => Arc::new(Memory::default()),
        Some(dialect) => Arc::new(Simulated {
            world: world.clone(),
            server: world.server("db", dialect),
        }),
    };
    let host = world.client();
    let runtime = Arc::new(Simulation { world, host });
    let scenario = play(runtime, stage);
    sim.block_on(scenario)
}

struct Simulation {
    world: World,
    host: Client,
}

impl Runtime for Simulation {
    fn open(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        let (locks, driver) = connect_with(self.host.binding(), config)?;
        self.host.spawn(driver);
        Ok(Box::new(locks))
    }

    fn memory(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        let (locks, driver) = memory_with(self.host.binding(), config)?;
        self.host.spawn(driver);
        Ok(Box::new(locks))
    }

    fn sleep(&self, span: Duration) -> Boxed<()> {
        Box::pin(self.world.sleep(span))
    }

    fn now(&self) -> Duration {
        self.world.now()
    }
}
