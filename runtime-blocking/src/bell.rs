//! What wakes a thread that is in poll(2).

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

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
