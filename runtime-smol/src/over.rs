//! Locks over a transport that the caller dials.

use std::any::Any;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use async_io::Async;
use futures_io::{AsyncRead, AsyncWrite};
use tenure_client::Tick;
use tenure_client::binding::{Binding, Endpoint, Stream};

use crate::{SmolBinding, SmolTimer, stream};

/// A [`SmolBinding`] whose transports the caller dials: [`SmolBinding::over`].
#[derive(Clone, Debug)]
pub struct SmolOver<D> {
    binding: SmolBinding,
    dial: D,
}

impl<D> SmolOver<D> {
    pub(crate) fn new(binding: SmolBinding, dial: D) -> SmolOver<D> {
        SmolOver { binding, dial }
    }
}

impl<D, F, T> Binding for SmolOver<D>
where
    D: Fn(Endpoint) -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = OverStream<T>;
    type Timer = SmolTimer;

    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<OverStream<T>>> + Send + 'static {
        let dial = (self.dial)(endpoint.clone());
        async move { Ok(OverStream::new(dial.await?)) }
    }

    fn timer(&self) -> SmolTimer {
        self.binding.timer()
    }

    fn now(&self) -> Tick {
        self.binding.now()
    }

    fn now_for_sending(&self) -> Tick {
        self.binding.now_for_sending()
    }

    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.binding.entropy(bytes)
    }
}

/// The most that is kept of one write.
const MOST: usize = 64 * 1024;

/// A transport of the caller's.
///
/// A caller of the client writes without a task to be woken, and there is no way to ask such a transport whether it takes
/// something: so what it does not take is kept, and the driver writes it when it is woken.
#[derive(Debug)]
pub struct OverStream<T> {
    io: T,
    /// Taken, from `sent` on not yet by the transport.
    unsent: Vec<u8>,
    sent: usize,
    /// The transport may keep something back until it is flushed.
    unflushed: bool,
    /// What went wrong where it could not be said: reading says it.
    failed: Option<io::Error>,
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> OverStream<T> {
    fn new(io: T) -> OverStream<T> {
        OverStream {
            io,
            unsent: Vec::new(),
            sent: 0,
            unflushed: false,
            failed: None,
        }
    }

    /// Brings out what was taken.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                n => self.sent += n,
            }
        }
        self.unsent.clear();
        self.sent = 0;
        if self.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// As `poll_out`, where an error has to wait.
    fn poll_out_quietly(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_out(cx).map(|out| {
            if let Err(error) = out {
                self.failed.get_or_insert(error);
            }
        })
    }
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for OverStream<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.io).poll_read(cx, bytes) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => match self.failed.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nobody is woken: whatever is left here, the driver is told of, and asks with its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        match self.poll_out(&mut cx) {
            Poll::Ready(out) => out?,
            Poll::Pending => return Err(ErrorKind::WouldBlock.into()),
        }
        self.unflushed = true;
        match Pin::new(&mut self.io).poll_write(&mut cx, bytes) {
            Poll::Ready(Ok(n)) => {
                // From here on it counts as written.
                let _ = self.poll_out_quietly(&mut cx);
                Ok(n)
            }
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => {
                let taken = bytes.len().min(MOST);
                self.unsent.extend_from_slice(&bytes[..taken]);
                Ok(taken)
            }
        }
    }

    fn is_flushed(&self) -> bool {
        self.unsent.is_empty() && !self.unflushed && self.failed.is_none()
    }

    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_out_quietly(cx).map(Ok)
    }

    fn abort(self) {
        if let Some(socket) = (&self.io as &dyn Any).downcast_ref::<Async<TcpStream>>() {
            stream::reset_on_close(socket.get_ref());
        }
    }
}
