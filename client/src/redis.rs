//! The store on Redis and Valkey: one connection, which callers write to and the driver reads from. Another one beside it,
//! made when it is needed, for the locks that replicas have to confirm.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tenure_core::ask::{AskId, Question};
use tenure_core::error::ConfigError;
use tenure_core::leases::{LeaseId, Leases, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::time::Tick;

use crate::binding::{Binding, Endpoint, Stream};
use crate::config::Config;
use crate::error::{Error, is_of_tls};
use crate::host::{Arrived, Driver, Machine, Signal, open_two};
use crate::locks::Locks;
use crate::store::End;

/// Reads of one round before deadlines are looked at.
const READS: usize = 16;

/// Locks on the server that `config` names, driven by whatever runs the returned driver.
///
/// Nothing is sent before the driver is polled. Most programs use the `connect` of a binding crate, which spawns it.
///
/// # Errors
/// [`Error::Misconfigured`] for a prefix, label, client name, limit or default that is refused, or a file for TLS that cannot
/// be used.
pub fn connect_with<B: Binding>(binding: B, config: &Config) -> Result<(Locks, Driver), Error> {
    if config.file().is_some() {
        return Err(Error::input(
            "these settings name a file: add the feature `sqlite` of the crate tenure and use its connect, or open it with tenure-sqlite",
        ));
    }
    let Some(endpoint) = config.endpoint().cloned() else {
        return Err(Error::input(
            "these settings are for the store in memory and name no server; use memory_with, or Config::from_url",
        ));
    };
    #[cfg(feature = "tls")]
    if let Some(tls) = config.tls_settings() {
        let connector = Arc::new(crate::tls::Connector::new(tls, &endpoint)?);
        return open_on(crate::tls::Secured { binding, connector }, config, endpoint);
    }
    open_on(binding, config, endpoint)
}

fn open_on<B: Binding>(
    binding: B,
    config: &Config,
    endpoint: Endpoint,
) -> Result<(Locks, Driver), Error> {
    let beside = binding.beside().map(Arc::new);
    let binding = Arc::new(binding);
    let beside = beside.unwrap_or_else(|| Arc::clone(&binding));
    let machine = |mux: MuxConfig, binding: &Arc<B>, seed| Redis {
        mux: Mux::new(mux, seed),
        endpoint: endpoint.clone(),
        binding: Arc::clone(binding),
        transport: Transport::Closed,
        blocked: false,
    };
    let plain = |seed| Ok(machine(config.mux()?, &binding, seed));
    let replicated = |seed| {
        let mut mux = config.mux()?;
        mux.on_demand = true;
        // What there is to say of the server is said already.
        mux.check = false;
        Ok(machine(mux, &beside, seed))
    };
    let bindings = [Arc::clone(&binding), Arc::clone(&beside)];
    open_two(bindings, config, [&plain, &replicated])
}

/// The machine, and its transport.
pub(crate) struct Redis<B: Binding> {
    mux: Mux,
    endpoint: Endpoint,
    binding: Arc<B>,
    transport: Transport<B::Stream>,
    /// The transport took less than it was offered, or has not let all of it out.
    blocked: bool,
}

type Dial<S> = Pin<Box<dyn Future<Output = io::Result<S>> + Send>>;

enum Transport<S> {
    Closed,
    /// The machine wants a connection; the driver dials.
    Wanted,
    Dialling(Dial<S>),
    Open(S),
}

impl<B: Binding> Redis<B> {
    /// Reads until the transport has no more, or for so long that others must have a turn.
    fn read(&mut self, cx: &mut Context<'_>) -> Arrived {
        let mut at = None;
        for _ in 0..READS {
            let Transport::Open(stream) = &mut self.transport else {
                return Arrived { at, more: false };
            };
            let Poll::Ready(read) = stream.poll_read(cx, self.mux.recv_space()) else {
                return Arrived { at, more: false };
            };
            let (now, open) = self.received(read);
            at = Some(now);
            if !open {
                return Arrived { at, more: false };
            }
        }
        Arrived { at, more: true }
    }

    /// Hands over what a read gave. The time, read after the bytes: what has expired by now, no OK among them revives. And
    /// whether the transport is still open.
    #[inline(always)]
    fn received(&mut self, read: io::Result<usize>) -> (Tick, bool) {
        let now = self.binding.now();
        match read {
            Ok(0) | Err(_) => {
                if let Err(error) = &read {
                    self.failed(now, error);
                }
                self.mux.handle_disconnected(now);
                (now, false)
            }
            Ok(n) => {
                self.mux.received(now, n);
                (now, true)
            }
        }
    }

    /// In TLS 1.3 a server refuses a certificate of ours when the handshake is over for us. As long as it has answered nothing
    /// that is a failure of the dial all the same, with words that say what to do.
    fn failed(&mut self, now: Tick, error: &io::Error) {
        let why = format!("{}: {error}", self.endpoint);
        if is_of_tls(&why)
            && let Transport::Open(stream) =
                std::mem::replace(&mut self.transport, Transport::Closed)
        {
            stream.abort();
            self.mux.handle_dial_failed(now, &why);
        }
    }

    fn write(&mut self, now: Tick, signals: &mut Vec<Signal>) {
        self.blocked = false;
        loop {
            match self.mux.poll_output(now) {
                Output::Lease(event) => signals.push(Signal::Lease(event)),
                Output::Answer(answer) => signals.push(Signal::Answer(answer)),
                Output::Link(event) => signals.push(Signal::Link(event)),
                Output::Disconnect => {
                    if let Transport::Open(stream) =
                        std::mem::replace(&mut self.transport, Transport::Closed)
                    {
                        stream.abort();
                    }
                }
                Output::Connect => self.transport = Transport::Wanted,
                Output::Transmit(bytes) => {
                    let written = match &mut self.transport {
                        Transport::Open(stream) => stream.try_write(bytes),
                        _ => Err(io::ErrorKind::NotConnected.into()),
                    };
                    match written {
                        // Nothing, for a write of something: as good as closed.
                        Ok(0) => self.mux.handle_disconnected(now),
                        Ok(n) => self.mux.transmitted(now, n),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            self.blocked = true;
                            return;
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => self.mux.handle_disconnected(now),
                    }
                }
                Output::Idle(_) => {
                    // Taken, but not out: only the driver can go on with it.
                    self.blocked =
                        matches!(&self.transport, Transport::Open(stream) if !stream.is_flushed());
                    return;
                }
            }
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl<B: Binding> Machine for Redis<B> {
    fn leases(&self) -> &Leases {
        self.mux.leases()
    }

    fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError> {
        self.mux.acquire(now, request)
    }

    fn end(&mut self, now: Tick, id: LeaseId, how: End) {
        match how {
            End::Release => self.mux.release(now, id),
            End::Abandon => self.mux.abandon(now, id),
            End::Drop => self.mux.drop_guard(now, id),
            End::Cancel => self.mux.cancel(now, id),
        }
    }

    fn renew_now(&mut self, now: Tick, id: LeaseId) {
        self.mux.renew_now(now, id);
    }

    fn ask(&mut self, now: Tick, question: &Question<'_>) -> Result<AskId, ConfigError> {
        self.mux.ask(now, question)
    }

    fn forget(&mut self, id: AskId) {
        self.mux.forget(id);
    }

    fn wants_stirring(&self) -> bool {
        self.mux.wants_stirring()
    }

    fn stir(&mut self, fresh: Option<[u8; 16]>) {
        self.mux.stir(fresh);
    }

    fn close(&mut self, now: Tick) {
        self.mux.close(now);
    }

    fn handle_timeout(&mut self, now: Tick) {
        self.mux.handle_timeout(now);
    }

    fn deadline(&self, now: Tick) -> Option<Tick> {
        self.mux.deadline().at(now)
    }

    fn flush(&mut self, now: Tick, signals: &mut Vec<Signal>) {
        self.write(now, signals);
    }

    fn poll_in(&mut self, cx: &mut Context<'_>) -> Arrived {
        if let Transport::Wanted = self.transport {
            self.transport = Transport::Dialling(Box::pin(self.binding.dial(&self.endpoint)));
        }
        if let Transport::Dialling(dial) = &mut self.transport {
            let Poll::Ready(dialled) = dial.as_mut().poll(cx) else {
                return Arrived::default();
            };
            let now = self.binding.now();
            match dialled {
                Ok(stream) => {
                    self.transport = Transport::Open(stream);
                    self.mux.handle_connected(now);
                }
                Err(error) => {
                    self.transport = Transport::Closed;
                    let why = format!("{}: {error}", self.endpoint);
                    self.mux.handle_dial_failed(now, &why);
                }
            }
        }
        self.read(cx)
    }

    fn take_in(&mut self) -> Arrived {
        let mut at = None;
        for _ in 0..READS {
            let Transport::Open(stream) = &mut self.transport else {
                return Arrived { at, more: false };
            };
            let space = self.mux.recv_space();
            let (room, read) = (space.len(), stream.try_read(space));
            if matches!(&read, Err(error) if would_block(error)) {
                return Arrived { at, more: false };
            }
            // As good as empty then; the end of the stream, if it is next, is seen by the next wait.
            let short = matches!(read, Ok(n) if n < room);
            let (now, open) = self.received(read);
            at = Some(now);
            if short || !open {
                return Arrived { at, more: false };
            }
        }
        Arrived { at, more: true }
    }

    fn in_flight(&self) -> Option<usize> {
        match self.transport {
            Transport::Open(_) => Some(self.mux.unanswered()),
            _ => None,
        }
    }

    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.transport {
            // A dial was asked for in this very round.
            Transport::Wanted => Poll::Ready(()),
            Transport::Open(stream) if self.blocked => {
                // An error shows when the write is tried again.
                stream.poll_write_ready(cx).map(|_| ())
            }
            _ => Poll::Pending,
        }
    }

    fn needs_driver(&self) -> bool {
        self.blocked || matches!(self.transport, Transport::Wanted)
    }

    fn shut_down(&mut self) {
        // In order: what was written before still arrives.
        self.transport = Transport::Closed;
    }
}
