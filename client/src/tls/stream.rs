//! The stream: rustls, which does no input or output by itself, between the client and the stream of a binding.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::task::{Context, Poll, ready};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::explain;
use crate::binding::Stream;

/// An open TLS connection.
///
/// What was taken from the client counts as written, though it may still be in here, encrypted, because the stream below took
/// no more. [`Stream::is_flushed`] tells, and then the driver waits for the stream below; nothing else is taken until it
/// is out. So at most one write, 64 KiB, lies here.
///
/// It is closed without the goodbye of TLS: whatever closes it, a copy in a forked process among them, must not write.
/// That tells the server nothing it has to know: there are no half commands.
pub(crate) struct TlsStream<S> {
    stream: S,
    tls: ClientConnection,
    /// What went wrong where it could not be said. Reading says it, once all is read that has come.
    failed: Option<io::Error>,
}

impl<S: Stream> TlsStream<S> {
    /// Makes the handshake on a stream that is open. It is over when the certificate was found good and our last word is out.
    pub(super) async fn open(
        stream: S,
        tls: ClientConnection,
        name: &ServerName<'_>,
    ) -> io::Result<TlsStream<S>> {
        let mut opening = TlsStream {
            stream,
            tls,
            failed: None,
        };
        poll_fn(|cx| opening.poll_handshake(cx, name)).await?;
        Ok(opening)
    }

    fn poll_handshake(
        &mut self,
        cx: &mut Context<'_>,
        name: &ServerName<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            // A server that refuses says why and closes: what it has said is read, to its end, though it takes no more.
            if self.failed.is_none() {
                self.failed = ready!(self.poll_flush(cx)).err();
            }
            if self.failed.is_none() && !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            let mut source = Source::new(|room| self.stream.poll_read(cx, room));
            let read = self.tls.read_tls(&mut source);
            if source.pending {
                return Poll::Pending;
            }
            match (read, self.failed.take()) {
                (Ok(1..), failed) => self.failed = failed,
                (_, Some(failed)) => return Poll::Ready(Err(failed)),
                (Ok(0), None) => {
                    return Poll::Ready(Err(explain::failed(
                        "the server has closed the connection in the handshake: is this a port for TLS?",
                    )));
                }
                (Err(error), None) => return Poll::Ready(Err(error)),
            }
            if let Err(error) = self.tls.process_new_packets() {
                // The server is told why, if it can be told at once.
                let _ = self.flush();
                return Poll::Ready(Err(explain::error(&error, Some(name))));
            }
        }
    }

    /// Until all is out of here and of the stream below; or that has an error, which reading tells.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut asked = false;
        loop {
            match self.flush() {
                Ok(()) if asked || self.stream.is_flushed() => return Poll::Ready(Ok(())),
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
            ready!(self.stream.poll_write_ready(cx))?;
            asked = true;
        }
    }

    /// Writes what is encrypted, as far as the stream below takes it.
    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Sink(&mut self.stream)) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As `flush`, where an error has to wait.
    fn flush_quietly(&mut self) {
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                self.failed.get_or_insert(error);
            }
            _ => {}
        }
    }

    /// Fills `bytes` as far as there is something: whoever waits for more waits for the stream below, and would not hear of
    /// a record that lies here. An error that comes after something was read is kept for the next time.
    fn fill(
        &mut self,
        bytes: &mut [u8],
        mut read: impl FnMut(&mut S, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        loop {
            match self.tls.reader().read(&mut bytes[filled..]) {
                // The end, or no more room.
                Ok(0) => return Poll::Ready(Ok(filled)),
                Ok(n) => {
                    filled += n;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // An end without a goodbye stays one.
                Err(_) if filled > 0 => return Poll::Ready(Ok(filled)),
                Err(error) => return Poll::Ready(Err(error)),
            }
            let error = match self.take_in(&mut read) {
                Poll::Ready(Ok(())) => continue,
                Poll::Ready(Err(error)) => Some(error),
                Poll::Pending if filled == 0 => self.failed.take(),
                Poll::Pending => None,
            };
            // What came in one piece with something bad, and before it.
            filled += self.tls.reader().read(&mut bytes[filled..]).unwrap_or(0);
            return match error {
                None if filled == 0 => Poll::Pending,
                Some(error) if filled == 0 => Poll::Ready(Err(error)),
                error => {
                    self.failed = self.failed.take().or(error);
                    Poll::Ready(Ok(filled))
                }
            };
        }
    }

    /// Takes in what the stream below has, at most one read.
    fn take_in(
        &mut self,
        read: &mut impl FnMut(&mut S, &mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        let mut source = Source::new(|room| read(&mut self.stream, room));
        let taken = self.tls.read_tls(&mut source);
        if source.pending {
            return Poll::Pending;
        }
        taken?;
        let processed = self.tls.process_new_packets();
        // What the protocol itself has to answer leaves at once; what does not is the driver's.
        self.flush_quietly();
        match processed {
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(explain::error(&error, None))),
        }
    }
}

impl<S: Stream> Stream for TlsStream<S> {
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        self.fill(bytes, |stream, room| stream.poll_read(cx, room))
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let filled = self.fill(bytes, |stream, room| match stream.try_read(room) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
            read => Poll::Ready(read),
        });
        match filled {
            Poll::Ready(filled) => filled,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let taken = self.tls.writer().write(bytes)?;
        // From here on it counts as written, whatever happens: a part may have left.
        self.flush_quietly();
        Ok(taken)
    }

    fn is_flushed(&self) -> bool {
        // An error is told by reading, and the driver reads.
        !self.tls.wants_write() && self.failed.is_none() && self.stream.is_flushed()
    }

    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.poll_flush(cx));
        if let Err(error) = flushed {
            self.failed.get_or_insert(error);
        }
        Poll::Ready(Ok(()))
    }

    fn abort(self) {
        self.stream.abort();
    }
}

/// The stream below, as rustls reads from it.
struct Source<F> {
    read: F,
    /// It had nothing. An error of the same kind that it gave by itself is an error.
    pending: bool,
}

impl<F: FnMut(&mut [u8]) -> Poll<io::Result<usize>>> Source<F> {
    fn new(read: F) -> Source<F> {
        Source {
            read,
            pending: false,
        }
    }
}

impl<F: FnMut(&mut [u8]) -> Poll<io::Result<usize>>> Read for Source<F> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match (self.read)(room) {
            Poll::Ready(read) => read,
            Poll::Pending => {
                self.pending = true;
                Err(ErrorKind::WouldBlock.into())
            }
        }
    }
}

/// The stream below, as rustls writes to it.
struct Sink<'a, S>(&'a mut S);

impl<S: Stream> Write for Sink<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    /// Records that are due leave in one write, as the client's bytes do.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if let [one] = parts {
            return self.0.try_write(one);
        }
        let mut joined = Vec::new();
        parts.iter().for_each(|part| joined.extend_from_slice(part));
        self.0.try_write(&joined)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
