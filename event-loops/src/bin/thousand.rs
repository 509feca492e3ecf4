//! A thousand leases on one connection, kept by one thread over `mio`.
//!
//! Teaches that what is due in one turn leaves in one write, so that a loop may act a little late to act less often; that a
//! dial need not block; and what edge-triggered readiness asks for: read and write until the socket says no.
//!
//! `cargo run -p tenure-event-loops --bin thousand -- 127.0.0.1:6379` ends when each lease was renewed five times.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use tenure_client::system::Clock;
use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::leases::{LeaseId, Notice, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::time::Tick;
use tenure_event_loops::{abort, arguments, secret, unix_ms};

const LEASES: usize = 1000;
const RENEWALS: usize = 5 * LEASES;
const LEASE: Duration = Duration::from_secs(3);
/// Renewals are spread a little by jitter: so many of them are put together by acting on time only so often. It is short
/// beside the margin, a tenth of the lease: acting late delays, it never corrupts.
const TURN: Duration = Duration::from_millis(10);
/// While anything is held the clock is read at least this often: a timeout does not count a suspension.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

fn main() -> Result<(), Box<dyn Error>> {
    let [address] = arguments("ADDRESS")?;
    let config = MuxConfig::new(Names::new("lock:", "the mio example")?);
    let mut many = Many {
        address: address.parse()?,
        clock: Clock::new(),
        mux: Mux::new(config, unix_ms()),
        poll: Poll::new()?,
        transport: Transport::Closed,
        next_turn: Tick::ZERO,
        ids: Vec::new(),
        writes: 0,
        renewed: 0,
        released: 0,
        lost: 0,
    };
    for number in 0..LEASES {
        let name = format!("thousand:{number}");
        let request = Request {
            name: name.as_bytes(),
            terms: LeaseConfig::new(LEASE).build()?,
            wait: Wait::Now,
            secret: secret()?,
            options: Options::default(),
            since_ms: unix_ms(),
        };
        // Nothing is sent before the loop runs.
        many.mux.acquire(many.clock.now(), &request)?;
    }
    let mut events = Events::with_capacity(8);
    let mut writes_when_held = None;
    loop {
        many.open();
        many.read();
        many.turn();
        many.write()?;
        if writes_when_held.is_none() && many.ids.len() == LEASES {
            writes_when_held = Some(many.writes);
            println!("{LEASES} held after {} writes", many.writes);
        }
        if let Some(before) = writes_when_held.take_if(|_| many.renewed >= RENEWALS) {
            let writes = many.writes - before;
            println!("{} renewals in {writes} writes", many.renewed);
            let now = many.clock.now();
            many.ids.drain(..).for_each(|id| many.mux.release(now, id));
            many.mux.close(now);
            // What that leads to goes out now: sleep only when the machine has nothing to say.
            continue;
        }
        if many.mux.is_finished() {
            println!("{} released, {} lost", many.released, many.lost);
            return Ok(());
        }
        many.sleep(&mut events)?;
    }
}

struct Many {
    address: SocketAddr,
    clock: Clock,
    mux: Mux,
    poll: Poll,
    transport: Transport,
    next_turn: Tick,
    /// Those that are held.
    ids: Vec<LeaseId>,
    writes: usize,
    renewed: usize,
    released: usize,
    lost: usize,
}

enum Transport {
    Closed,
    /// Ready, or failed, when the socket becomes writable.
    Dialling(TcpStream),
    Open(TcpStream),
}

impl Many {
    /// Looks whether a dial has come to its end. If the machine gives it up before that, it says `Disconnect`.
    fn open(&mut self) {
        let Transport::Dialling(socket) = &self.transport else {
            return;
        };
        let failed = match (socket.take_error(), socket.peer_addr()) {
            (Ok(None), Ok(_)) => None,
            (Ok(None), Err(error)) if error.kind() == ErrorKind::NotConnected => return,
            (Ok(Some(error)) | Err(error), _) | (_, Err(error)) => Some(error),
        };
        let now = self.clock.now();
        match (
            failed,
            std::mem::replace(&mut self.transport, Transport::Closed),
        ) {
            (None, Transport::Dialling(socket)) => {
                self.transport = Transport::Open(socket);
                self.mux.handle_connected(now);
            }
            (Some(error), _) => self.mux.handle_dial_failed(now, &error.to_string()),
            _ => {}
        }
    }

    /// Until the socket has no more: only then will it report again.
    fn read(&mut self) {
        while let Transport::Open(socket) = &mut self.transport {
            let read = socket.read(self.mux.recv_space());
            let now = self.clock.now();
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return self.mux.handle_disconnected(now),
                Ok(n) => self.mux.received(now, n),
            }
        }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        if now >= self.next_turn {
            self.mux.handle_timeout(now);
            self.next_turn = now + TURN;
        }
    }

    fn write(&mut self) -> io::Result<()> {
        loop {
            let now = self.clock.now();
            match self.mux.poll_output(now) {
                Output::Idle(_) => return Ok(()),
                Output::Transmit(bytes) => {
                    let Transport::Open(socket) = &mut self.transport else {
                        self.mux.handle_disconnected(now);
                        continue;
                    };
                    match socket.write(bytes) {
                        // It reports when it takes more.
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Ok(0) | Err(_) => self.mux.handle_disconnected(now),
                        Ok(n) => {
                            self.writes += 1;
                            self.mux.transmitted(now, n);
                        }
                    }
                }
                Output::Connect => match self.dial() {
                    Ok(socket) => self.transport = Transport::Dialling(socket),
                    Err(error) => self.mux.handle_dial_failed(now, &error.to_string()),
                },
                Output::Disconnect => {
                    match std::mem::replace(&mut self.transport, Transport::Closed) {
                        Transport::Dialling(socket) | Transport::Open(socket) => abort(socket),
                        Transport::Closed => {}
                    }
                }
                Output::Lease(event) => match event.notice {
                    Notice::Acquired { .. } => self.ids.push(event.id),
                    Notice::Renewed { .. } => self.renewed += 1,
                    Notice::Released { .. } => self.released += 1,
                    Notice::Lost { .. } => self.lost += 1,
                    notice => return Err(io::Error::other(format!("{notice:?}"))),
                },
                Output::Answer(answer) => eprintln!("{answer:?}"),
                Output::Link(event) => eprintln!("{event:?}"),
            }
        }
    }

    fn dial(&mut self) -> io::Result<TcpStream> {
        let mut socket = TcpStream::connect(self.address)?;
        socket.set_nodelay(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut socket, Token(0), interest)?;
        Ok(socket)
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let now = self.clock.now();
        let until = self.mux.deadline().at(now);
        let mut timeout = until.map(|until| until.max(self.next_turn).saturating_since(now));
        if self.mux.leases().holds_any() {
            timeout = Some(timeout.unwrap_or(CLOCK_CHECK).min(CLOCK_CHECK));
        }
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }
}
