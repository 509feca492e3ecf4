//! tokio, on several threads and on one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_client::{Config, Error};
use tenure_tokio::{connect_lazily, memory_config, open_with};
use tokio::runtime::{Builder, Handle};

use crate::party::Verbs;
use crate::runtime::{Play, Runtime};
use crate::{Boxed, Outcome};

pub(super) fn on_threads(play: Play) -> Outcome {
    let executor = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    // As a task, so that it is polled by one of the threads.
    executor.block_on(async { tokio::spawn(async { play(Tokio::new()).await }).await })?
}

pub(super) fn on_one_thread(play: Play) -> Outcome {
    let executor = Builder::new_current_thread().enable_all().build()?;
    executor.block_on(async { play(Tokio::new()).await })
}

struct Tokio(Instant);

impl Tokio {
    fn new() -> Arc<Tokio> {
        Arc::new(Tokio(Instant::now()))
    }
}

impl Runtime for Tokio {
    fn open(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        Ok(Box::new(match config.file() {
            Some(_) => open_with(config, tenure_sqlite::open)?,
            None => connect_lazily(config)?,
        }))
    }

    fn memory(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        Ok(Box::new(memory_config(config)?))
    }

    fn sleep(&self, span: Duration) -> Boxed<()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn tasks(&self) -> Option<usize> {
        Some(Handle::current().metrics().num_alive_tasks())
    }
}
