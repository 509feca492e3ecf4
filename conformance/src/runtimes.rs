//! The runtimes there are. A new one is a file here and a line in [`REAL`].

mod blocking;
mod simulated;
mod smol;
mod tokio;

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

pub use simulated::simulate;

use crate::runtime::{Kind, Play};
use crate::{Boxed, Outcome};

/// Every runtime on real sockets and clocks.
pub const REAL: [Kind; 5] = [
    kind("tokio, threads", tokio::on_threads),
    kind("tokio, one thread", tokio::on_one_thread),
    kind("smol", smol::on_smol),
    kind("async-std", smol::on_async_std),
    kind("threads", blocking::on_threads),
];

const fn kind(name: &'static str, play: fn(Play) -> Outcome) -> Kind {
    Kind { name, play }
}

/// Runs something that blocks on a thread of its own.
pub(crate) fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Boxed<T> {
    struct Slot<T>(Option<T>, Option<Waker>);

    let slot = Arc::new(Mutex::new(Slot(None, None)));
    let theirs = Arc::clone(&slot);
    std::thread::spawn(move || {
        let value = work();
        let mut slot = theirs.lock().unwrap_or_else(PoisonError::into_inner);
        slot.0 = Some(value);
        if let Some(waker) = slot.1.take() {
            waker.wake();
        }
    });
    Box::pin(std::future::poll_fn(move |cx| {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }))
}
