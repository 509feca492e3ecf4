//! Callbacks for a loss.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use tenure_client::{Lost, WaitLost};

use crate::hub::Hub;

type Callback = Box<dyn FnOnce(Lost) + Send>;

/// The callbacks of one lock. They go with it, unless it is lost by then.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Vec<Arc<Watch>>>);

/// One callback, and the loss it waits for. It is its own waker.
pub(crate) struct Watch {
    /// On whose thread it is called; on that which hears of the loss if there is none.
    hub: Weak<Hub>,
    process: u32,
    stage: Mutex<Stage>,
}

enum Stage {
    Waiting(WaitLost, Callback),
    /// It was woken and has not looked.
    Woken(WaitLost, Callback),
    Lost(Lost, Callback),
    Done,
}

impl Watches {
    pub(crate) fn add(&self, hub: Weak<Hub>, lost: WaitLost, callback: Callback) {
        let watch = Arc::new(Watch {
            hub,
            process: std::process::id(),
            stage: Mutex::new(Stage::Woken(lost, callback)),
        });
        if watch.is_lost() {
            // Told, and nothing to be cancelled later; a copy that was forked off gets here without any lock of the client.
            return watch.hand_over();
        }
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(watch);
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        // Not locked: in a copy that was forked off it may never be given back.
        let list = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for watch in list.drain(..) {
            watch.cancel();
        }
    }
}

impl Watch {
    /// Calls the callback if the lock is lost. No lock of ours is held then.
    pub(crate) fn tell(self: &Arc<Self>) {
        if !self.is_lost() {
            return;
        }
        let stage = std::mem::replace(&mut *self.stage(), Stage::Done);
        if let Stage::Lost(lost, callback) = stage {
            // A panic has been printed by then; it must not take the driver down.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(lost)));
        }
    }

    /// Looks if it was woken.
    fn is_lost(self: &Arc<Self>) -> bool {
        let waker = Waker::from(Arc::clone(self));
        let mut cx = Context::from_waker(&waker);
        let mut stage = self.stage();
        *stage = match std::mem::replace(&mut *stage, Stage::Done) {
            Stage::Woken(mut wait, callback) => match Pin::new(&mut wait).poll(&mut cx) {
                Poll::Ready(lost) => Stage::Lost(lost, callback),
                Poll::Pending => Stage::Waiting(wait, callback),
            },
            other => other,
        };
        matches!(*stage, Stage::Lost(..))
    }

    fn hand_over(self: &Arc<Self>) {
        let handed_over = self.hub.upgrade().is_some_and(|hub| hub.fire(self));
        if !handed_over {
            self.tell();
        }
    }

    /// The lock has ended otherwise.
    fn cancel(&self) {
        // The locks of a copy that was forked off may never be given back.
        if std::process::id() != self.process {
            return;
        }
        let mut stage = self.stage();
        let ended = match &*stage {
            Stage::Waiting(..) => std::mem::replace(&mut *stage, Stage::Done),
            _ => Stage::Done,
        };
        drop(stage);
        drop(ended);
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        {
            let mut stage = self.stage();
            *stage = match std::mem::replace(&mut *stage, Stage::Done) {
                Stage::Waiting(lost, callback) => Stage::Woken(lost, callback),
                other => other,
            };
            if !matches!(*stage, Stage::Woken(..)) {
                return;
            }
        }
        self.hand_over();
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
