//! One lease over plain `poll(2)`: a socket of the standard library, two descriptors to wait for, nothing else.
//!
//! Teaches the four steps of the run loop, a function each: read, time out, write, sleep. Begin here.
//!
//! `cargo run -p tenure-event-loops --bin poll -- 127.0.0.1:6379 NAME` holds until a line, or the end, of its input.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tenure_client::system::Clock;
use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::leases::{LeaseId, Notice, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_event_loops::{abort, arguments, secret, unix_ms};

const LEASE: Duration = Duration::from_secs(3);
/// While anything is held the clock is read at least this often: the timeout of `poll` does not count a suspension.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// Reads of one round, so that a peer that never stops sending does not keep the deadlines waiting.
const READS: usize = 16;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let [address, name] = arguments("ADDRESS NAME")?;
    let clock = Clock::new();
    let config = MuxConfig::new(Names::new("lock:", "the poll example")?);
    // The seed only spreads retries.
    let mut mux = Mux::new(config, unix_ms());
    let request = Request {
        name: name.as_bytes(),
        terms: LeaseConfig::new(LEASE).build()?,
        wait: Wait::Forever,
        secret: secret()?,
        options: Options::default(),
        since_ms: unix_ms(),
    };
    let lease = mux.acquire(clock.now(), &request)?;
    let mut one = OneLease {
        address: address.parse()?,
        clock,
        mux,
        lease,
        socket: None,
        blocked: false,
        ended: None,
    };
    let mut listening = true;
    loop {
        one.read();
        // After the reading: an answer that has arrived counts before anything is given up.
        one.mux.handle_timeout(one.clock.now());
        one.write();
        if let Some(status) = one.ended.filter(|_| one.mux.is_finished()) {
            return Ok(ExitCode::from(status));
        }
        if one.sleep(listening)? {
            listening = false;
            one.finish();
        }
    }
}

struct OneLease {
    address: SocketAddr,
    clock: Clock,
    mux: Mux,
    lease: LeaseId,
    socket: Option<TcpStream>,
    /// The socket took less than it was offered.
    blocked: bool,
    /// The exit status, once the hold has ended.
    ended: Option<u8>,
}

impl OneLease {
    /// Takes in what has arrived.
    fn read(&mut self) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        for _ in 0..READS {
            let read = socket.read(self.mux.recv_space());
            // Freshly, after the bytes: what has expired by now, no OK among them revives.
            let now = self.clock.now();
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The end of the stream is an input as well.
                Ok(0) | Err(_) => return self.mux.handle_disconnected(now),
                Ok(n) => self.mux.received(now, n),
            }
        }
    }

    /// Does what the machine says, until it says that there is nothing to do or the socket takes no more.
    fn write(&mut self) {
        self.blocked = false;
        loop {
            // Before the bytes are looked at, never after they were written: from here on validity counts.
            let now = self.clock.now();
            match self.mux.poll_output(now) {
                Output::Idle(_) => return,
                Output::Transmit(bytes) => {
                    let Some(socket) = &mut self.socket else {
                        return self.mux.handle_disconnected(now);
                    };
                    match socket.write(bytes) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            self.blocked = true;
                            return;
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Ok(0) | Err(_) => self.mux.handle_disconnected(now),
                        // It may be a part of them: the rest is offered again.
                        Ok(n) => self.mux.transmitted(now, n),
                    }
                }
                Output::Connect => self.dial(),
                Output::Disconnect => {
                    if let Some(socket) = self.socket.take() {
                        abort(socket);
                    }
                }
                Output::Lease(event) => self.tell(&event.notice),
                Output::Answer(answer) => eprintln!("{answer:?}"),
                Output::Link(event) => eprintln!("{event:?}"),
            }
        }
    }

    /// Dials, for no longer than the machine can wait: there may be a hold to give up.
    fn dial(&mut self) {
        let now = self.clock.now();
        let until = self.mux.deadline().at(now).unwrap_or(now + LEASE);
        let limit = until.saturating_since(now).max(Duration::from_millis(1));
        let dialled = TcpStream::connect_timeout(&self.address, limit).and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            Ok(socket)
        });
        let now = self.clock.now();
        match dialled {
            Ok(socket) => {
                self.socket = Some(socket);
                self.mux.handle_connected(now);
            }
            Err(error) => self.mux.handle_dial_failed(now, &error.to_string()),
        }
    }

    fn tell(&mut self, notice: &Notice) {
        let now = self.clock.now();
        let status = match notice {
            Notice::Acquired { .. } => return println!("held"),
            Notice::Renewed { .. } => return println!("renewed"),
            Notice::Released { confirmed } => {
                println!("released, confirmed: {confirmed}");
                0
            }
            // The work would end here, by `lost.stop_by` at the latest: until then the key still excludes others.
            Notice::Lost { lost, .. } => {
                println!("lost: {}", lost.cause);
                1
            }
            Notice::Failed(fault) => {
                println!("failed: {:?}", fault.failure);
                1
            }
            _ => return,
        };
        self.ended = Some(status);
        // No work is left that the key must protect, and nothing else is wanted.
        self.mux.drop_guard(now, self.lease);
        self.mux.close(now);
    }

    /// Releases, or gives up asking.
    fn finish(&mut self) {
        let now = self.clock.now();
        if self.mux.leases().holds_at(self.lease, now) {
            self.mux.release(now, self.lease);
        } else {
            self.ended.get_or_insert(1);
            self.mux.drop_guard(now, self.lease);
            self.mux.close(now);
        }
    }

    /// Sleeps until something is due, arrives, or can be written; whether there is input.
    fn sleep(&self, listening: bool) -> io::Result<bool> {
        let now = self.clock.now();
        let mut until = self.mux.deadline().at(now);
        if self.mux.leases().holds_any() {
            until = Some(until.unwrap_or(now + CLOCK_CHECK).min(now + CLOCK_CHECK));
        }
        let timeout = until.and_then(|until| Timespec::try_from(until.saturating_since(now)).ok());
        let stdin = io::stdin();
        let mut sources = Vec::new();
        if let Some(socket) = &self.socket {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, self.blocked);
            sources.push(PollFd::new(socket, wanted));
        }
        // Not even with nothing wanted of it: that the other end has gone is always told, and the loop would never sleep.
        if listening {
            sources.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match poll(&mut sources, timeout.as_ref()) {
            Ok(_) => Ok(listening
                && sources
                    .last()
                    .is_some_and(|last| !last.revents().is_empty())),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
