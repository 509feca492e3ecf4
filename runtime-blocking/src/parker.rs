//! The waiting of one thread: for a waker, and on unix for a socket beside it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

#[cfg(unix)]
use crate::bell::Bell;

/// The thread does something; it looks at its future before it waits.
const RUNNING: u8 = 0;
/// It was woken and has not looked yet.
const NOTIFIED: u8 = 1;
/// It is parked.
const PARKED: u8 = 2;
/// It is in poll(2), on a socket and its bell.
#[cfg(unix)]
const POLLING: u8 = 3;

thread_local! {
    static PARKER: Arc<Parker> = Arc::new(Parker::new());
}

/// Wakes one thread, however it waits.
pub(crate) struct Parker {
    state: AtomicU8,
    thread: Thread,
    /// The bell that the thread hears while it polls; locked for a moment only. It ends with its socket, not with the thread.
    #[cfg(unix)]
    bell: std::sync::Mutex<std::sync::Weak<Bell>>,
}

impl Parker {
    /// That of this thread.
    pub(crate) fn current() -> Arc<Parker> {
        // In the destructors of a thread's variables there may be none any more.
        PARKER
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Arc::new(Parker::new()))
    }

    fn new() -> Parker {
        Parker {
            state: AtomicU8::new(RUNNING),
            thread: thread::current(),
            #[cfg(unix)]
            bell: std::sync::Mutex::default(),
        }
    }

    /// Parks until woken, at once if that has happened, and no longer than `until`.
    pub(crate) fn park(&self, until: Option<Instant>) {
        if self.begin(PARKED) {
            // Others may use the thread's own token: it says nothing by itself.
            while self.state.load(Ordering::Acquire) == PARKED {
                let Some(until) = until else {
                    thread::park();
                    continue;
                };
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                thread::park_timeout(left);
            }
        }
        self.end();
    }

    /// Waits until the socket can be read, or this thread is woken. Whether it is the socket.
    ///
    /// # Errors
    /// There is no waiting on it.
    #[cfg(unix)]
    pub(crate) fn wait_on(
        &self,
        socket: &impl std::os::fd::AsFd,
        bell: &Arc<Bell>,
    ) -> std::io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, poll};

        self.hear(bell);
        let mut readable = false;
        let mut polled = Ok(());
        if self.begin(POLLING) {
            let mut fds = [
                PollFd::new(socket, PollFlags::IN),
                PollFd::new(&**bell, PollFlags::IN),
            ];
            polled = poll(&mut fds, None).map(drop);
            readable = !fds[0].revents().is_empty();
            if !fds[1].revents().is_empty() {
                bell.silence();
            }
        }
        self.end();
        match polled {
            // A signal: as good as woken, the future is looked at.
            Ok(()) | Err(rustix::io::Errno::INTR) => Ok(readable),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(unix)]
    fn hear(&self, bell: &Arc<Bell>) {
        let mut heard = self.bell.lock().unwrap_or_else(|lock| lock.into_inner());
        if heard.as_ptr() != Arc::as_ptr(bell) {
            *heard = Arc::downgrade(bell);
        }
    }

    /// Whether to wait: not if woken already.
    fn begin(&self, how: u8) -> bool {
        let begun = self
            .state
            .compare_exchange(RUNNING, how, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    fn end(&self) {
        self.state.swap(RUNNING, Ordering::AcqRel);
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            PARKED => self.thread.unpark(),
            #[cfg(unix)]
            POLLING => {
                let bell = self.bell.lock().unwrap_or_else(|lock| lock.into_inner());
                bell.upgrade().iter().for_each(|bell| bell.ring());
            }
            _ => {}
        }
    }
}

/// Waits for a future, parked in between.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let parker = Parker::current();
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        parker.park(None);
    }
}

/// Waits for a future until then; polls it at least once.
pub(crate) fn wait_until<F: Future>(mut future: Pin<&mut F>, until: Instant) -> Option<F::Output> {
    let parker = Parker::current();
    let waker = Waker::from(Arc::clone(&parker));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        if Instant::now() >= until {
            return None;
        }
        parker.park(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wake_before_the_wait_is_not_missed() {
        let parker = Parker::current();
        Waker::from(Arc::clone(&parker)).wake();
        parker.park(None);
    }

    #[test]
    fn a_token_of_somebody_else_is_no_wake() {
        let parker = Parker::current();
        let until = Instant::now() + Duration::from_millis(30);
        thread::current().unpark();
        parker.park(Some(until));
        assert!(Instant::now() >= until);
    }

    #[test]
    fn a_parked_thread_is_woken_once_for_each_wake() {
        let parker = Parker::current();
        let waker = Waker::from(Arc::clone(&parker));
        for _ in 0..200 {
            let waker = waker.clone();
            let other = thread::spawn(move || waker.wake());
            parker.park(None);
            other.join().unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_polling_thread_hears_its_bell_and_its_socket() {
        use std::io::Write;
        use std::os::unix::net::UnixStream;

        let bell = Arc::new(Bell::new().unwrap());
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let parker = Parker::current();
        let waker = Waker::from(Arc::clone(&parker));
        for _ in 0..200 {
            let waker = waker.clone();
            let other = thread::spawn(move || waker.wake());
            // It may be woken once more by a bell that was rung when it had already seen the wake.
            assert!(!parker.wait_on(&socket, &bell).unwrap());
            other.join().unwrap();
        }
        peer.write_all(b"x").unwrap();
        let mut tries = 0;
        while !parker.wait_on(&socket, &bell).unwrap() {
            tries += 1;
            assert!(tries < 3, "the bell goes on ringing");
        }
    }
}
