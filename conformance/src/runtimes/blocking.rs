//! Threads without `async`: each verb waits on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_blocking::{Attempt, Lock, Locks, connect_lazily, memory_config, open_with};
use tenure_client::{
    Config, Error, Held, Inspection, Listed, LockOptions, Lost, OwnerToken, Released, Removed,
};
use tokio::runtime::{Builder, Handle};

use super::off_thread;
use crate::party::{Guard, Keeps, Tried, Verbs, Work};
use crate::runtime::{Play, Runtime};
use crate::{Boxed, Outcome};

/// The scenario itself is a future; whatever it calls is not.
pub(super) fn on_threads(play: Play) -> Outcome {
    let executor = Builder::new_current_thread().enable_all().build()?;
    let runtime = Arc::new(Threads {
        began: Instant::now(),
        scenario: executor.handle().clone(),
    });
    executor.block_on(async { play(runtime).await })
}

struct Threads {
    began: Instant,
    scenario: Handle,
}

impl Threads {
    fn client(&self, locks: Locks) -> Box<dyn Verbs> {
        Box::new(Blocking {
            locks,
            scenario: self.scenario.clone(),
        })
    }
}

impl Runtime for Threads {
    fn open(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        Ok(self.client(match config.file() {
            Some(_) => open_with(config, tenure_sqlite::open)?,
            None => connect_lazily(config)?,
        }))
    }

    fn memory(&self, config: &Config) -> Result<Box<dyn Verbs>, Error> {
        Ok(self.client(memory_config(config)?))
    }

    fn sleep(&self, span: Duration) -> Boxed<()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Calls it on another thread from the first poll on; a panic comes back.
fn call<T: Send + 'static>(verb: impl FnOnce() -> T + Send + 'static) -> Boxed<T> {
    Box::pin(async {
        let called = off_thread(|| catch_unwind(AssertUnwindSafe(verb))).await;
        called.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[derive(Clone)]
struct Blocking {
    locks: Locks,
    scenario: Handle,
}

impl Verbs for Blocking {
    fn acquire(&self, name: &[u8], options: LockOptions) -> Boxed<Result<Guard, Error>> {
        let request = self.locks.lock(name).options(options);
        call(|| Ok(Box::new(request.acquire()?) as Guard))
    }

    fn attempt(&self, name: &[u8], options: LockOptions) -> Boxed<Result<Tried, Error>> {
        let request = self.locks.lock(name).options(options);
        call(|| {
            Ok(match request.try_acquire()? {
                Attempt::Acquired(lock) => Tried::Acquired(Box::new(lock)),
                Attempt::Held(holder) => Tried::Held(holder),
            })
        })
    }

    fn run(&self, name: &[u8], options: LockOptions, work: Work) -> Boxed<Result<u32, Error>> {
        let request = self.locks.lock(name).options(options);
        let scenario = self.scenario.clone();
        call(move || {
            request.run(|held| {
                // A thread is not cancelled: the work looks by itself whether it still holds the lock.
                let held = held.into_async();
                scenario.block_on(async {
                    tokio::select! { biased;
                        _ = held.lost() => 0,
                        result = work(held.clone()) => result,
                    }
                })
            })
        })
    }

    fn inspect(&self, name: &[u8]) -> Boxed<Result<Option<Inspection>, Error>> {
        let (locks, name) = (self.locks.clone(), name.to_vec());
        call(move || locks.inspect(name))
    }

    fn list(&self, start: &[u8]) -> Boxed<Result<Listed, Error>> {
        let (locks, start) = (self.locks.clone(), start.to_vec());
        call(move || locks.list(start))
    }

    fn force_release(&self, name: &[u8]) -> Boxed<Result<Option<Removed>, Error>> {
        let (locks, name) = (self.locks.clone(), name.to_vec());
        call(move || locks.force_release(name))
    }

    fn release_by_token(
        &self,
        name: &[u8],
        token: &OwnerToken,
    ) -> Boxed<Result<Option<Removed>, Error>> {
        let (locks, name, token) = (self.locks.clone(), name.to_vec(), token.clone());
        call(move || locks.release_by_token(name, &token))
    }

    fn ready(&self) -> Boxed<Result<(), Error>> {
        let locks = self.locks.clone();
        call(move || locks.ready())
    }

    fn close(&self) -> Boxed<()> {
        let locks = self.locks.clone();
        call(move || locks.close())
    }

    fn locks(&self) -> tenure_client::Locks {
        self.locks.clone().into_async()
    }

    fn another(&self) -> Box<dyn Verbs> {
        Box::new(self.clone())
    }
}

impl Keeps for Lock {
    fn held(&self) -> Held {
        Lock::held(self).into_async()
    }

    fn lost_within(&self, span: Duration, _: Boxed<()>) -> Boxed<Option<Lost>> {
        let held = Lock::held(self);
        call(move || held.lost_timeout(span))
    }

    fn renew_now(&self) -> Boxed<Result<(), Error>> {
        let held = Lock::held(self);
        call(move || held.renew_now())
    }

    fn release(self: Box<Self>) -> Boxed<Result<Released, Error>> {
        call(|| Lock::release(*self))
    }

    fn abandon(self: Box<Self>) {
        Lock::abandon(*self);
    }
}
