//! A single-threaded executor that polls its ready tasks in an order drawn from the seed.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use tenure_core::rng::Rng;

/// Which client a task belongs to: it does not run while that client is paused.
pub(crate) type Owner = Option<usize>;
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Default)]
pub(crate) struct Executor {
    tasks: Vec<Option<Running>>,
    ready: Arc<Mutex<Vec<usize>>>,
}

struct Running {
    owner: Owner,
    task: Task,
    waker: Waker,
}

struct Wakeup {
    task: usize,
    ready: Arc<Mutex<Vec<usize>>>,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

impl Executor {
    pub(crate) fn spawn(&mut self, owner: Owner, task: Task) {
        let number = self.tasks.len();
        let wakeup = Arc::new(Wakeup {
            task: number,
            ready: Arc::clone(&self.ready),
        });
        self.tasks.push(Some(Running {
            owner,
            task,
            waker: Waker::from(wakeup),
        }));
        self.ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(number);
    }

    /// Takes one ready task whose owner may run.
    pub(crate) fn pick(&mut self, rng: &mut Rng, runs: impl Fn(Owner) -> bool) -> Option<usize> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = &self.tasks;
        ready.retain(|task| tasks[*task].is_some());
        let may = |task: &usize| tasks[*task].as_ref().is_some_and(|task| runs(task.owner));
        let candidates = ready.iter().filter(|task| may(task)).count();
        if candidates == 0 {
            return None;
        }
        let chosen = (rng.next_u64() % candidates as u64) as usize;
        let place = (0..ready.len()).filter(|at| may(&ready[*at])).nth(chosen)?;
        Some(ready.remove(place))
    }

    /// Polls a task that was picked.
    pub(crate) fn poll(&mut self, number: usize) {
        let Some(mut running) = self.tasks[number].take() else {
            return;
        };
        let mut cx = Context::from_waker(&running.waker);
        if running.task.as_mut().poll(&mut cx).is_pending() {
            self.tasks[number] = Some(running);
        }
    }

    /// Drops the tasks of a client: its process has died.
    pub(crate) fn kill(&mut self, client: usize) {
        let dead = self
            .tasks
            .iter_mut()
            .filter(|task| task.as_ref().is_some_and(|task| task.owner == Some(client)));
        // Dropped outside the iteration's borrow of a single task: a drop may wake others.
        let dead: Vec<_> = dead.map(Option::take).collect();
        drop(dead);
    }
}
