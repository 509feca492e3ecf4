//! A host beside another one, for the locks that replicas have to confirm: a server that waits for replicas serves nothing
//! else on that connection meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::pump::{Borrowed, Pumped, Room};
use crate::store::Store;

/// The store beside another one. Nothing of it is looked at before it is used.
pub(super) struct Beside {
    store: Arc<dyn Store>,
    used: Arc<AtomicBool>,
}

impl Beside {
    pub(super) fn new(store: Arc<dyn Store>, used: &Arc<AtomicBool>) -> Beside {
        Beside {
            store,
            used: Arc::clone(used),
        }
    }

    /// The store, which will be used.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.used.store(true, Ordering::Release);
        Arc::clone(&self.store)
    }

    /// Closes it with the other one.
    pub(super) fn close(&self) {
        self.store.close();
    }

    /// Ready once it is over. The one `watcher` of a future that waits for both says with whom it is.
    pub(super) fn poll_closed(&self, watcher: &mut Option<u32>, cx: &mut Context<'_>) -> Poll<()> {
        let mut own = watcher.and_then(of_beside);
        let poll = self.store.poll_closed(&mut own, cx);
        *watcher = own.map(|id| id | BESIDE);
        poll
    }

    /// True if that is whom the watcher is with; it is with nobody then.
    pub(super) fn unwatch(&self, watcher: Option<u32>) -> bool {
        let own = watcher.and_then(of_beside);
        self.store.unwatch(own);
        own.is_some()
    }
}

/// Set in the watcher of a future that waits for the store beside.
const BESIDE: u32 = 1 << 31;

fn of_beside(watcher: u32) -> Option<u32> {
    (watcher & BESIDE != 0).then_some(watcher & !BESIDE)
}

/// The future of its driver, polled only when it was woken itself.
pub(super) struct Driving {
    /// None once it has ended.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    bell: Arc<Bell>,
    waker: Waker,
    /// The task that the bell wakes.
    task: Option<Waker>,
}

/// Wakes the task of both drivers, and remembers that it was this one.
struct Bell {
    rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Driving {
    pub(super) fn new(future: Pin<Box<dyn Future<Output = ()> + Send>>) -> Driving {
        let bell = Arc::new(Bell {
            // To be polled once: then it can be woken.
            rung: AtomicBool::new(true),
            task: Mutex::new(None),
        });
        Driving {
            future: Some(future),
            waker: Waker::from(Arc::clone(&bell)),
            bell,
            task: None,
        }
    }

    /// Polls it if it was woken. Ready once it has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(());
        };
        if !self
            .task
            .as_ref()
            .is_some_and(|task| task.will_wake(cx.waker()))
        {
            self.task = Some(cx.waker().clone());
            let old = self.bell.set_task(cx.waker().clone());
            drop(old);
        }
        if !self.bell.rung.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let poll = future.as_mut().poll(&mut Context::from_waker(&self.waker));
        if poll.is_ready() {
            self.future = None;
        }
        poll
    }
}

impl Bell {
    fn set_task(&self, task: Waker) -> Option<Waker> {
        let mut slot = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        slot.replace(task)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let task = task.clone();
        task.into_iter().for_each(Waker::wake);
    }
}

/// Callers read by themselves on the one connection only. The driver, which has both, looks away from it no more once the
/// other one is used.
pub(super) struct PumpBeside {
    pub(super) pump: Arc<dyn Pumped>,
    pub(super) used: Arc<AtomicBool>,
}

impl Pumped for PumpBeside {
    fn goes_on(&self, borrowed: Borrowed) -> bool {
        self.pump.goes_on(borrowed)
    }

    fn turn(&self, borrowed: Borrowed, room: &mut Room) -> bool {
        self.pump.turn(borrowed, room)
    }

    fn borrow(&self) -> Option<Borrowed> {
        self.pump.borrow()
    }

    fn give_back(&self, borrowed: Borrowed) {
        self.pump.give_back(borrowed);
    }

    fn look_away(&self) -> bool {
        !self.used.load(Ordering::Acquire) && self.pump.look_away()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_driver_that_was_not_woken_is_not_polled() {
        let polls = Arc::new(AtomicUsize::new(0));
        let waker = Arc::new(Mutex::new(None::<Waker>));
        let future = {
            let (polls, waker) = (Arc::clone(&polls), Arc::clone(&waker));
            std::future::poll_fn(move |cx| {
                *waker.lock().unwrap() = Some(cx.waker().clone());
                match polls.fetch_add(1, Ordering::Relaxed) {
                    2 => Poll::Ready(()),
                    _ => Poll::Pending,
                }
            })
        };
        let mut driving = Driving::new(Box::pin(future));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            assert!(driving.poll(&mut cx).is_pending());
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        for ready in [false, true] {
            let wake = waker.lock().unwrap().take().unwrap();
            wake.wake();
            assert_eq!(driving.poll(&mut cx).is_ready(), ready);
        }
        assert!(driving.poll(&mut cx).is_ready());
        assert_eq!(polls.load(Ordering::Relaxed), 3);
    }
}
