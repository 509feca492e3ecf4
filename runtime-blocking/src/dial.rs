//! Dialling without blocking: names are resolved on a thread of their own, addresses are tried in turn.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use tenure_client::binding::Endpoint;

use crate::hub::Hub;
use crate::socket::{BlockingStream, Socket};

/// How long an address may take while there is another one to be tried. The limit of the dial, which the client keeps, is
/// longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A dial under way.
pub(crate) struct Dial {
    hub: Arc<Hub>,
    stage: Stage,
}

enum Stage {
    Begin(Endpoint),
    Resolving(Arc<Resolution>),
    Connecting {
        left: VecDeque<SocketAddr>,
        socket: Option<Socket>,
        error: Option<io::Error>,
    },
}

impl Dial {
    pub(crate) fn new(hub: Arc<Hub>, endpoint: Endpoint) -> Dial {
        let stage = Stage::Begin(endpoint);
        Dial { hub, stage }
    }

    fn begin(&self, endpoint: Endpoint) -> io::Result<Stage> {
        let (left, socket) = match endpoint {
            Endpoint::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => ([(ip, port).into()].into(), None),
                Err(_) => {
                    return Resolution::of(&self.hub, host, port).map(Stage::Resolving);
                }
            },
            #[cfg(unix)]
            Endpoint::Unix { path } => {
                let socket = Socket::connect_unix(&path, &self.hub)?;
                (VecDeque::new(), Some(socket))
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kind of address is not supported here",
                ));
            }
        };
        let error = None;
        Ok(Stage::Connecting {
            left,
            socket,
            error,
        })
    }

    /// Goes on with the addresses that are left.
    fn connect(&mut self) -> Poll<io::Result<Socket>> {
        let Stage::Connecting {
            left,
            socket,
            error,
        } = &mut self.stage
        else {
            return Poll::Pending;
        };
        loop {
            if let Some(open) = socket.take() {
                match open.is_connected() {
                    Ok(true) => return Poll::Ready(Ok(open)),
                    Ok(false) if left.is_empty() || !self.hub.is_out_of_patience() => {
                        *socket = Some(open);
                        return Poll::Pending;
                    }
                    Ok(false) => *error = Some(io::ErrorKind::TimedOut.into()),
                    Err(why) => *error = Some(why),
                }
                open.watch(false, &self.hub);
            }
            let Some(address) = left.pop_front() else {
                let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                return Poll::Ready(Err(error.take().unwrap_or_else(none)));
            };
            self.hub
                .have_patience((!left.is_empty()).then_some(PATIENCE));
            match Socket::connect(address, &self.hub) {
                Ok(begun) => *socket = Some(begun),
                Err(why) => *error = Some(why),
            }
        }
    }
}

impl Future for Dial {
    type Output = io::Result<BlockingStream>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::Begin(endpoint) = &this.stage {
            this.stage = match this.begin(endpoint.clone()) {
                Ok(stage) => stage,
                Err(error) => return Poll::Ready(Err(error)),
            };
        }
        if let Stage::Resolving(resolution) = &this.stage {
            let addresses = match resolution.take() {
                None => return Poll::Pending,
                Some(addresses) => addresses?,
            };
            this.stage = Stage::Connecting {
                left: addresses,
                socket: None,
                error: None,
            };
        }
        this.connect()
            .map_ok(|socket| BlockingStream::new(socket, Arc::clone(&this.hub)))
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.hub.have_patience(None);
        if let Stage::Connecting {
            socket: Some(socket),
            ..
        } = &self.stage
        {
            socket.watch(false, &self.hub);
        }
    }
}

/// A name that is being resolved. The system may take longer for that than a dial may: then the next dial waits for the
/// same answer, and there is never more than one thread that asks.
#[derive(Debug, Default)]
pub(crate) struct Resolution {
    answer: Mutex<Answer>,
}

#[derive(Debug, Default)]
enum Answer {
    #[default]
    Asked,
    Came(io::Result<VecDeque<SocketAddr>>),
    Taken,
}

impl Resolution {
    fn of(hub: &Arc<Hub>, host: String, port: u16) -> io::Result<Arc<Resolution>> {
        let mut resolving = hub.resolving();
        if let Some(resolution) = &*resolving
            && resolution.is_open()
        {
            return Ok(Arc::clone(resolution));
        }
        let resolution = Arc::new(Resolution::default());
        let (asked, weak) = (Arc::clone(&resolution), Arc::downgrade(hub));
        thread::Builder::new()
            .name("tenure-resolve".to_owned())
            .spawn(move || {
                let addresses = (host.as_str(), port)
                    .to_socket_addrs()
                    .map(Iterator::collect);
                *asked.answer() = Answer::Came(addresses);
                if let Some(hub) = weak.upgrade() {
                    hub.wake();
                }
            })?;
        *resolving = Some(Arc::clone(&resolution));
        Ok(resolution)
    }

    /// Whether its answer has not been used.
    fn is_open(&self) -> bool {
        !matches!(*self.answer(), Answer::Taken)
    }

    fn take(&self) -> Option<io::Result<VecDeque<SocketAddr>>> {
        let mut answer = self.answer();
        match std::mem::replace(&mut *answer, Answer::Taken) {
            Answer::Came(addresses) => Some(addresses),
            other => {
                *answer = other;
                None
            }
        }
    }

    fn answer(&self) -> std::sync::MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
