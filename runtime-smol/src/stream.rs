//! TCP and Unix sockets on the reactor of `async-io`.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_io::Async;
use socket2::SockRef;
use tenure_client::binding::{Endpoint, Stream};

/// An open socket.
#[derive(Debug)]
pub struct SmolStream(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(Async<TcpStream>),
    #[cfg(unix)]
    Unix(Async<UnixStream>),
}

impl SmolStream {
    pub(crate) async fn dial(endpoint: Endpoint) -> io::Result<SmolStream> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = dial_any(resolve(host, port).await?).await?;
                stream.get_ref().set_nodelay(true)?;
                Ok(SmolStream(Socket::Tcp(stream)))
            }
            #[cfg(unix)]
            Endpoint::Unix { path } => {
                let stream = Async::<UnixStream>::connect(path).await?;
                Ok(SmolStream(Socket::Unix(stream)))
            }
            _ => Err(io::Error::new(
                ErrorKind::Unsupported,
                "this kind of address is not supported here",
            )),
        }
    }
}

impl Stream for SmolStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let read = match &self.0 {
                Socket::Tcp(stream) => stream.get_ref().read(bytes),
                #[cfg(unix)]
                Socket::Unix(stream) => stream.get_ref().read(bytes),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => return Poll::Ready(read),
            }
            ready!(match &self.0 {
                Socket::Tcp(stream) => stream.poll_readable(cx),
                #[cfg(unix)]
                Socket::Unix(stream) => stream.poll_readable(cx),
            })?;
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The socket itself does not block: neither a task nor the reactor is asked.
        match &self.0 {
            Socket::Tcp(stream) => stream.get_ref().write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.get_ref().write(bytes),
        }
    }

    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            Socket::Tcp(stream) => stream.poll_writable(cx),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.poll_writable(cx),
        }
    }

    fn abort(self) {
        // A Unix socket delivers at once and has nothing to forget.
        if let Socket::Tcp(stream) = &self.0 {
            reset_on_close(stream.get_ref());
        }
    }
}

/// A reset instead of an orderly end: the kernel forgets what it has not delivered.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    // If it cannot be set, the connection ends in order, and only a key may live on for one TTL.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// All addresses of a host. The system looks names up while a thread waits: one of a pool, not the executor's.
async fn resolve(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    blocking::unblock(move || Ok((host, port).to_socket_addrs()?.collect())).await
}

/// The first one that answers.
async fn dial_any(addresses: Vec<SocketAddr>) -> io::Result<Async<TcpStream>> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match Async::<TcpStream>::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
