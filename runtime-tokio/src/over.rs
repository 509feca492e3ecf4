//! Locks over a transport that the caller dials.

use std::any::Any;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tenure_client::binding::{Binding, Endpoint, Stream};
use tenure_client::{Config, Error, Locks, Tick, connect_with};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::{TokioBinding, TokioTimer, spawn, stream};

/// As [`connect_config`](crate::connect_config), over transports that `dial` opens: a tunnel, a proxy, a socket with options
/// of its own, the network of a simulation.
///
/// `dial` is called for every connection, with where the server is by the settings. It may take as long as the connect
/// limit and is dropped after that. TLS, if the settings ask for it, goes over what it gives.
///
/// A connection that is declared dead must not deliver later what it was given before. A [`TcpStream`] of tokio is closed
/// by a reset; any other transport is dropped, and what it had not delivered by then should be lost. If it is not,
/// only availability suffers: a key that was released may be there once more, for one lease.
///
/// `dial` is polled while the client is locked: it must not use the client. Writing must not make the transport forget who waits
/// to read.
///
/// # Errors
/// As [`connect`](crate::connect); an error of `dial` is [`Error::Unavailable`], with its text. Dropping the future gives up.
///
/// # Panics
/// Outside a tokio runtime with its time driver enabled.
///
/// ```no_run
/// # async fn f() -> Result<(), tenure_client::Error> {
/// use tenure_client::Config;
/// use tenure_client::binding::Endpoint;
/// use tokio::net::TcpStream;
///
/// let config = Config::from_url("redis://db.example/")?;
/// let locks = tenure_tokio::connect_over(&config, |endpoint| async move {
///     let Endpoint::Tcp { host, port } = endpoint else { unreachable!("the URL is none of a Unix socket") };
///     // Whatever there is to do with it.
///     TcpStream::connect((host, port)).await
/// })
/// .await?;
/// # Ok(()) }
/// ```
pub async fn connect_over<D, F, T>(config: &Config, dial: D) -> Result<Locks, Error>
where
    D: Fn(Endpoint) -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (locks, driver) = connect_with(TokioBinding::new().over(dial), config)?;
    spawn(driver);
    locks.ready().await?;
    Ok(locks)
}

/// A [`TokioBinding`] whose transports the caller dials: [`TokioBinding::over`].
#[derive(Clone, Debug)]
pub struct TokioOver<D> {
    binding: TokioBinding,
    dial: D,
}

impl<D> TokioOver<D> {
    pub(crate) fn new(binding: TokioBinding, dial: D) -> TokioOver<D> {
        TokioOver { binding, dial }
    }
}

impl<D, F, T> Binding for TokioOver<D>
where
    D: Fn(Endpoint) -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = OverStream<T>;
    type Timer = TokioTimer;

    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<OverStream<T>>> + Send + 'static {
        let dial = (self.dial)(endpoint.clone());
        async move { Ok(OverStream::new(dial.await?)) }
    }

    fn timer(&self) -> TokioTimer {
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
        let mut buf = ReadBuf::new(bytes);
        match Pin::new(&mut self.io).poll_read(cx, &mut buf) {
            Poll::Ready(read) => Poll::Ready(read.map(|()| buf.filled().len())),
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
        if let Some(socket) = (&self.io as &dyn Any).downcast_ref::<TcpStream>() {
            stream::reset_on_close(socket);
        }
    }
}
