//! Who carries out the jobs: one worker thread, or a caller's thread that waits anyhow.
//!
//! Whoever has the engine takes the jobs in the order in which they came, so that those of one lease are done in order,
//! whichever thread does them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use tenure_core::ask::AskId;
use tenure_core::error::StoreFault;
use tenure_core::leases::Op;
use tenure_core::time::Tick;

use super::{Bytes, Done, Engine, Job, Trouble};
use crate::host::Work;
use crate::waiters;

/// The clock of the binding.
pub(super) type Clock = Box<dyn Fn() -> Tick + Send + Sync>;

/// Whose job it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whose {
    Lease(Op),
    Ask(AskId),
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Task {
    Open,
    /// See whether anything has changed.
    Watch,
    Job(Whose, Job),
}

/// What came of a task.
#[derive(Debug)]
pub(super) enum Answer {
    Opened(Result<(), Trouble>),
    Watched(Result<Option<Vec<Bytes>>, Trouble>),
    Done(Whose, Result<Done, Trouble>),
}

/// An answer, and when its task was begun.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) answer: Answer,
    /// Read before the task was begun.
    pub(super) handed_out: Tick,
    /// The store's clock, and the binding's read right behind it.
    pub(super) wall: (u64, Tick),
}

/// The queue of jobs, and the engine.
pub(super) struct Jobs<E> {
    /// None once everything is over.
    engine: Mutex<Option<E>>,
    desk: Mutex<Desk>,
    bell: Condvar,
    clock: Clock,
    process: u32,
}

/// Locked for moments only.
#[derive(Default)]
struct Desk {
    tasks: VecDeque<(Task, Duration)>,
    answers: VecDeque<Answered>,
    driver: Option<Waker>,
    /// There is a worker.
    worker: bool,
    over: bool,
}

impl<E: Engine> Jobs<E> {
    pub(super) fn new(engine: E, clock: Clock) -> Arc<Jobs<E>> {
        Arc::new(Jobs {
            engine: Mutex::new(Some(engine)),
            desk: Mutex::default(),
            bell: Condvar::new(),
            clock,
            process: std::process::id(),
        })
    }

    pub(super) fn now(&self) -> Tick {
        (self.clock)()
    }

    pub(super) fn push(&self, task: Task, limit: Duration) {
        lock(&self.desk).tasks.push_back((task, limit));
    }

    /// Takes tasks back that nobody has begun.
    pub(super) fn withdraw(&self, which: impl Fn(&Whose) -> bool) -> Vec<Whose> {
        let mut withdrawn = Vec::new();
        lock(&self.desk).tasks.retain(|(task, _)| match task {
            Task::Job(whose, _) if which(whose) => {
                withdrawn.push(*whose);
                false
            }
            _ => true,
        });
        withdrawn
    }

    pub(super) fn next_answer(&self) -> Option<Answered> {
        lock(&self.desk).answers.pop_front()
    }

    /// The driver is woken for the next answer of the worker.
    pub(super) fn wake_for_answers(&self, cx: &mut Context<'_>) {
        let old = waiters::set(&mut lock(&self.desk).driver, cx);
        drop(old);
    }

    /// What there is to do is still done; then the engine goes.
    pub(super) fn stop(&self) {
        if self.is_copy() {
            return;
        }
        let worker = {
            let mut desk = lock(&self.desk);
            desk.over = true;
            self.bell.notify_all();
            desk.worker
        };
        if !worker {
            self.finish();
        }
    }

    fn finish(&self) {
        let mut engine = lock(&self.engine);
        if let Some(engine) = &mut *engine {
            while self.carry_out_next(engine).is_some() {}
        }
        let engine = engine.take();
        drop(engine);
    }

    fn work(&self) {
        loop {
            loop {
                let done = lock(&self.engine)
                    .as_mut()
                    .and_then(|engine| self.carry_out_next(engine));
                match done {
                    Some(driver) => driver.into_iter().for_each(Waker::wake),
                    None => break,
                }
            }
            let mut desk = lock(&self.desk);
            while desk.tasks.is_empty() && !desk.over {
                desk = self.bell.wait(desk).unwrap_or_else(PoisonError::into_inner);
            }
            if desk.over {
                desk.worker = false;
                drop(desk);
                return self.finish();
            }
        }
    }

    /// Carries out the first task, if there is one. Gives whom to wake for the answer.
    fn carry_out_next(&self, engine: &mut E) -> Option<Option<Waker>> {
        let (task, limit) = lock(&self.desk).tasks.pop_front()?;
        // Before anything of the step is begun: a lease never counts from later than that.
        let handed_out = self.now();
        let wall = (engine.wall_us(), self.now());
        let answer = match task {
            Task::Open => Answer::Opened(guarded(|| engine.open(limit))),
            Task::Watch => Answer::Watched(guarded(|| engine.changes())),
            Task::Job(whose, job) => Answer::Done(whose, guarded(|| engine.carry_out(&job, limit))),
        };
        let mut desk = lock(&self.desk);
        desk.answers.push_back(Answered {
            answer,
            handed_out,
            wall,
        });
        Some(desk.driver.clone())
    }
}

impl<E: Engine> Work for Jobs<E> {
    fn hand_over(self: Arc<Self>) {
        let mut desk = lock(&self.desk);
        if desk.tasks.is_empty() {
            return;
        }
        if desk.worker {
            self.bell.notify_one();
            return;
        }
        if desk.over {
            return;
        }
        desk.worker = true;
        drop(desk);
        let jobs = Arc::clone(&self);
        let thread = thread::Builder::new().name("tenure-store".to_owned());
        if thread.spawn(move || jobs.work()).is_err() {
            // Without a thread it is done here and now.
            lock(&self.desk).worker = false;
            let mut done = false;
            while self.carry_out(true) {
                done = true;
            }
            if done {
                let driver = lock(&self.desk).driver.clone();
                driver.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn carry_out(&self, wait: bool) -> bool {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if wait => lock(&self.engine),
            Err(TryLockError::WouldBlock) => return false,
        };
        let done = engine
            .as_mut()
            .and_then(|engine| self.carry_out_next(engine));
        done.is_some()
    }
}

impl<E> Jobs<E> {
    /// Whether this process was forked off from that of the client: its locks may never be given back.
    fn is_copy(&self) -> bool {
        self.process != std::process::id()
    }
}

impl<E> Drop for Jobs<E> {
    fn drop(&mut self) {
        // It is not its own: it must not even be closed.
        if self.is_copy() {
            let engine = self
                .engine
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(engine.take());
        }
    }
}

/// A panic of the engine has been printed by then. It is trouble like any other: what it was about may have been done.
fn guarded<T>(call: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        Err(Trouble {
            maybe_executed: true,
            ..Trouble::new(
                StoreFault::Io,
                "it has panicked, which is a bug of the store",
            )
        })
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tenure_core::ask::{Asks, Question};
    use tenure_core::names::Names;

    use super::*;

    /// Every step takes a second.
    struct Slow(Arc<AtomicU64>);

    impl Engine for Slow {
        fn open(&mut self, _: Duration) -> Result<(), Trouble> {
            Ok(())
        }

        fn carry_out(&mut self, _: &Job, _: Duration) -> Result<Done, Trouble> {
            self.0.fetch_add(1_000_000, Ordering::Relaxed);
            Ok(Done::Granted { fence: None })
        }

        fn changes(&mut self) -> Result<Option<Vec<Bytes>>, Trouble> {
            Ok(None)
        }

        fn wall_us(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn s1_a_grant_counts_from_before_its_step_however_long_that_takes() {
        let clock = Arc::new(AtomicU64::new(7));
        let read = Arc::clone(&clock);
        let now = move || Tick::from_micros(read.load(Ordering::Relaxed));
        let jobs = Jobs::new(Slow(clock), Box::new(now));
        let mut asks = Asks::new(Names::new("lock:", "me").unwrap(), Duration::MAX);
        let question = Question::Inspect { name: b"a" };
        let whose = Whose::Ask(asks.ask(Tick::ZERO, &question).unwrap());
        let keys = Vec::new();
        jobs.push(Task::Job(whose, Job::Inspect { keys }), Duration::MAX);
        assert!(jobs.carry_out(true));
        let answered = jobs.next_answer().unwrap();
        assert_eq!(answered.handed_out, Tick::from_micros(7));
        assert_eq!(jobs.now(), Tick::from_micros(1_000_007));
    }
}
