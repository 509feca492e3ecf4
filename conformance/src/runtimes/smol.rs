//! The binding to smol, on smol's global executor and on that of async-std.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_client::{Config, Driver, Error, connect_with, memory_with};
use tenure_smol::SmolBinding;

use crate::party::Verbs;
use crate::runtime::{Play, Runtime};
use crate::{Boxed, Outcome};

pub(super) fn on_smol(play: Play) -> Outcome {
    let runtime = Spawning::new(|driver| smol::spawn(driver).detach());
    // As a task, so that it is polled by the executor's thread.
    smol::block_on(smol::spawn(async { play(runtime).await }))
}

pub(super) fn on_async_std(play: Play) -> Outcome {
    let runtime = Spawning::new(|driver| drop(async_std::task::spawn(driver)));
    async_std::task::block_on(async_std::task::spawn(async { play(runtime).await }))
}

struct Spawning {
    spawn: fn(Driver),
    began: Instant,
}

impl Spawning {
    fn new(spawn: fn(Driver)) -> Arc<Spawning> {
        let began = Instant::now();
        Arc::new(Spawning { spawn, began })
    }
}

impl Runtime for Spawning {
    fn open(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        let (locks, driver) = connect_with(SmolBinding::new(), config)?;
        (self.spawn)(driver);
        Ok(Box::new(locks))
    }

    fn memory(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        let (locks, driver) = memory_with(SmolBinding::new(), config)?;
        (self.spawn)(driver);
        Ok(Box::new(locks))
    }

    fn sleep(&self, span: Duration) -> Boxed<()> {
        Box::pin(async move {
            async_io::Timer::after(span).await;
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}
