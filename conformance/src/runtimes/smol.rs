//! The binding to smol, on smol's global executor and on that of async-std.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_client::{Config, Driver, Error, connect_with, memory_with};
use tenure_smol::SmolBinding;

use crate::party::Verbs;
use crate::runtime::{Play, Runtime};
use crate::{Boxed, Outcome};

pub(super) fn on_smol(play: Play) -> Outcome {
    let runtime = Spawning::new(|task| smol::spawn(task).detach());
    // As a task, so that it is polled by the executor's thread.
    smol::block_on(smol::spawn(async { play(runtime).await }))
}

pub(super) fn on_async_std(play: Play) -> Outcome {
    let runtime = Spawning::new(|task| drop(async_std::task::spawn(task)));
    async_std::task::block_on(async_std::task::spawn(async { play(runtime).await }))
}

struct Spawning {
    spawn: fn(Boxed<()>),
    began: Instant,
    /// Each task has one.
    token: Arc<()>,
}

impl Spawning {
    fn new(spawn: fn(Boxed<()>)) -> Arc<Spawning> {
        let (began, token) = (Instant::now(), Arc::new(()));
        Arc::new(Spawning {
            spawn,
            began,
            token,
        })
    }

    fn drive(&self, driver: Driver) {
        let token = Arc::clone(&self.token);
        (self.spawn)(Box::pin(async {
            let _token = token;
            driver.await;
        }));
    }
}

impl Runtime for Spawning {
    fn open(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        let open = match config.file() {
            Some(_) => tenure_sqlite::open,
            None => connect_with,
        };
        let (locks, driver) = open(SmolBinding::new(), config)?;
        self.drive(driver);
        Ok(Box::new(locks))
    }

    fn memory(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        let (locks, driver) = memory_with(SmolBinding::new(), config)?;
        self.drive(driver);
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

    fn tasks(&self) -> Option<usize> {
        Some(Arc::strong_count(&self.token) - 1)
    }
}
