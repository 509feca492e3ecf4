//! What wakes threads that are in poll(2).

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bells of the threads that wait on a socket. Each has one for itself: a ring is heard once. A thread that has lost
/// the waiting to the driver may still be on its way out of it when the next one begins.
#[derive(Debug, Default)]
pub(crate) struct Bells(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Vec<Arc<Bell>>,
    idle: Vec<Arc<Bell>>,
    over: bool,
}

impl Bells {
    /// One for a thread that begins to wait.
    ///
    /// # Errors
    /// There is none to be had, or nothing to wait for any more.
    pub(crate) fn take(&self) -> io::Result<Arc<Bell>> {
        let mut inner = self.inner();
        if inner.over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if let Some(bell) = inner.idle.pop() {
            return Ok(bell);
        }
        let bell = Arc::new(Bell::new()?);
        inner.all.push(Arc::clone(&bell));
        Ok(bell)
    }

    /// A thread waits no more.
    pub(crate) fn give_back(&self, bell: Arc<Bell>) {
        self.inner().idle.push(bell);
    }

    /// Wakes all that wait, for the last time.
    pub(crate) fn ring_out(&self) {
        let mut inner = self.inner();
        inner.over = true;
        inner.all.iter().for_each(|bell| bell.ring());
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pair of sockets: every unix has them.
#[derive(Debug)]
pub(crate) struct Bell {
    ring: UnixStream,
    hear: UnixStream,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let (ring, hear) = UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        hear.set_nonblocking(true)?;
        Ok(Bell { ring, hear })
    }

    /// Whoever waits for it wakes. If it takes no more, it rings already.
    pub(crate) fn ring(&self) {
        let _ = (&self.ring).write(&[1]);
    }

    pub(crate) fn silence(&self) {
        while (&self.hear).read(&mut [0; 64]).is_ok_and(|n| n == 64) {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hear.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(bell: &Bell) -> bool {
        (&bell.hear).read(&mut [0]).is_ok()
    }

    #[test]
    fn two_that_wait_have_a_bell_each() {
        let bells = Bells::default();
        let (one, two) = (bells.take().unwrap(), bells.take().unwrap());
        one.ring();
        two.silence();
        assert!(rings(&one) && !rings(&two));
        // No more of them than wait at once.
        bells.give_back(two);
        let three = bells.take().unwrap();
        assert_eq!(bells.inner().all.len(), 2);
        bells.ring_out();
        assert!(rings(&one) && rings(&three));
        assert!(bells.take().is_err());
    }
}
