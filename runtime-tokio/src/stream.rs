//! TCP and Unix sockets of tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tenure_client::binding::{Endpoint, Stream};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// An open socket.
#[derive(Debug)]
pub struct TokioStream(Socket);

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl TokioStream {
    pub(crate) async fn dial(endpoint: Endpoint) -> io::Result<TokioStream> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host, port)).await?;
                stream.set_nodelay(true)?;
                Ok(TokioStream(Socket::Tcp(stream)))
            }
            #[cfg(unix)]
            Endpoint::Unix { path } => {
                Ok(TokioStream(Socket::Unix(UnixStream::connect(path).await?)))
            }
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kind of address is not supported here",
            )),
        }
    }
}

impl Stream for TokioStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(bytes);
        let read = match &mut self.0 {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buf),
            #[cfg(unix)]
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buf),
        };
        read.map_ok(|()| buf.filled().len())
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Socket::Tcp(stream) => stream.try_write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            Socket::Tcp(stream) => stream.poll_write_ready(cx),
            #[cfg(unix)]
            Socket::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    fn abort(self) {
        // A Unix socket delivers at once and has nothing to forget.
        if let Socket::Tcp(stream) = &self.0 {
            reset_on_close(stream);
        }
    }
}

/// A reset instead of an orderly end: the kernel forgets what it has not delivered.
pub(crate) fn reset_on_close(stream: &TcpStream) {
    // If it cannot be set, the connection ends in order, and only a key may live on for one TTL.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
