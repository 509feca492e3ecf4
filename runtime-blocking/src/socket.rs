//! The socket, shared by whoever waits on it.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use mio::Interest;
use mio::net::TcpStream;
#[cfg(unix)]
use mio::net::UnixStream;
use socket2::SockRef;
use tenure_client::binding::Stream;

#[cfg(unix)]
use crate::bell::Bells;
use crate::hub::Hub;

/// A non-blocking socket. It is closed when the last of those who wait on it lets go, so that its number cannot become
/// that of another file under a thread in poll(2). It has the bells for such threads, which go with it.
#[derive(Debug)]
pub(crate) struct Socket {
    kind: Kind,
    #[cfg(unix)]
    bells: Bells,
    /// The client has let go of it.
    is_over: AtomicBool,
    /// The driver's poller has it.
    watched: AtomicBool,
    /// It took everything that it was offered last, or has become writable since.
    writable: AtomicBool,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// Begins to connect, watched by the driver's poller.
    pub(crate) fn connect(address: SocketAddr, hub: &Hub) -> io::Result<Socket> {
        Socket::watched(Kind::Tcp(TcpStream::connect(address)?), hub)
    }

    #[cfg(unix)]
    pub(crate) fn connect_unix(path: &std::path::Path, hub: &Hub) -> io::Result<Socket> {
        Socket::watched(Kind::Unix(UnixStream::connect(path)?), hub)
    }

    fn watched(mut kind: Kind, hub: &Hub) -> io::Result<Socket> {
        hub.in_poller(|registry| match &mut kind {
            Kind::Tcp(stream) => registry.register(stream, hub.token(), INTEREST),
            #[cfg(unix)]
            Kind::Unix(stream) => registry.register(stream, hub.token(), INTEREST),
        })?;
        Ok(Socket {
            kind,
            #[cfg(unix)]
            bells: Bells::default(),
            is_over: AtomicBool::new(false),
            watched: AtomicBool::new(true),
            writable: AtomicBool::new(true),
        })
    }

    /// Whether it is connected by now.
    ///
    /// # Errors
    /// It will not be.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match &self.kind {
            Kind::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
            #[cfg(unix)]
            Kind::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(drop)),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => match &self.kind {
                Kind::Tcp(stream) => stream.set_nodelay(true).map(|()| true),
                #[cfg(unix)]
                Kind::Unix(_) => Ok(true),
            },
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, Err(error)) => Err(error),
        }
    }

    /// The driver's poller is to have it, or not. Where callers cannot wait on it, it always has. An event that was missed
    /// in between comes when it is taken in again.
    pub(crate) fn watch(&self, watched: bool, hub: &Hub) {
        #[cfg(unix)]
        {
            use mio::unix::SourceFd;
            use std::os::fd::{AsFd, AsRawFd};

            if self.watched.swap(watched, Ordering::AcqRel) == watched {
                return;
            }
            let fd = self.as_fd().as_raw_fd();
            // It fails for want of memory only. Then the driver sees what happens when its timer fires.
            let _ = hub.in_poller(|registry| match watched {
                true => registry.register(&mut SourceFd(&fd), hub.token(), INTEREST),
                false => registry.deregister(&mut SourceFd(&fd)),
            });
        }
        #[cfg(not(unix))]
        let _ = (watched, hub, &self.watched);
    }

    /// Whoever waits on it is to stop: only then is it closed.
    pub(crate) fn let_go(&self) {
        self.is_over.store(true, Ordering::Release);
        #[cfg(unix)]
        self.bells.ring_out();
    }

    #[cfg(unix)]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    #[cfg(unix)]
    pub(crate) fn bells(&self) -> &Bells {
        &self.bells
    }

    /// The poller says that it takes something again.
    pub(crate) fn set_writable(&self) {
        self.writable.store(true, Ordering::Release);
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match &self.kind {
                Kind::Tcp(stream) => (&mut &*stream).read(bytes),
                #[cfg(unix)]
                Kind::Unix(stream) => (&mut &*stream).read(bytes),
            };
            match read {
                // A signal says nothing of the connection.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.kind {
            Kind::Tcp(stream) => (&mut &*stream).write(bytes),
            #[cfg(unix)]
            Kind::Unix(stream) => (&mut &*stream).write(bytes),
        }
    }

    /// A reset instead of an orderly end, once it is closed.
    fn abort(&self) {
        match &self.kind {
            Kind::Tcp(stream) => {
                // If it cannot be set, the connection ends in order, and only a key may live on for one TTL.
                let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
                // At once, whoever else has it open: a thread that is on its way out of its wait, or a process that was forked
                // off, which would keep alive what was written and has not arrived.
                #[cfg(any(target_os = "linux", target_os = "android"))]
                let _ = rustix::net::connect_unspec(stream);
            }
            #[cfg(unix)]
            Kind::Unix(_) => {}
        }
    }
}

const INTEREST: Interest = Interest::READABLE.add(Interest::WRITABLE);

#[cfg(unix)]
impl std::os::fd::AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match &self.kind {
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        }
    }
}

/// The socket as the client has it.
#[derive(Debug)]
pub struct BlockingStream {
    socket: Arc<Socket>,
    hub: Arc<Hub>,
}

impl BlockingStream {
    /// Of a connected socket, which callers may wait on from now on.
    pub(crate) fn new(socket: Socket, hub: Arc<Hub>) -> BlockingStream {
        let socket = Arc::new(socket);
        hub.set_socket(&socket);
        BlockingStream { socket, hub }
    }
}

impl Drop for BlockingStream {
    fn drop(&mut self) {
        self.hub.forget(&self.socket);
    }
}

impl Stream for BlockingStream {
    fn poll_read(&mut self, _cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        // The driver's thread polls again whenever its poller has an event: nobody is registered.
        match self.socket.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            read => Poll::Ready(read),
        }
    }

    #[cfg(unix)]
    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.read(bytes)
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let would_block = |written: &io::Result<usize>| matches!(written, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let written = self.socket.write(bytes);
        if !would_block(&written) {
            return written;
        }
        // Tried once more after it is noted: an event in between is then not overwritten.
        self.socket.writable.store(false, Ordering::Release);
        let written = self.socket.write(bytes);
        if !would_block(&written) {
            self.socket.set_writable();
        }
        written
    }

    fn poll_write_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.socket.writable.load(Ordering::Acquire) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    fn abort(self) {
        self.socket.abort();
    }
}
