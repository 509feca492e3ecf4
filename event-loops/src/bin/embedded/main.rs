//! How a microcontroller holds a lease: a loop over the traits of `embedded-io`, with no type of the standard library.
//!
//! Teaches what a board has to give: a socket, a clock, a source of entropy, and a way to sleep. `#![no_std]` holds for this
//! whole file; only `main` and what is below it, which plays the board, says `std::` and needs an operating system.
//! The core needs an allocator for many leases on a connection; a board without one drives `tenure_core::lease`.
//!
//! `cargo run -p tenure-event-loops --bin embedded -- 127.0.0.1:6379 NAME` opens the valve until its input ends.

#![no_std]
#![forbid(unsafe_code)]

extern crate std;
#[cfg(test)]
mod tests;

use core::time::Duration;

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};
use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::error::ConfigError;
use tenure_core::leases::{LeaseId, Notice, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::time::Tick;

/// What the loop needs of a board.
trait Board {
    type Socket: Read + ReadReady + Write + WriteReady;
    /// A counter that never goes back, and runs on in every sleep mode that is used.
    fn now(&mut self) -> Tick;
    /// From the hardware's generator: nobody must be able to guess it.
    fn entropy(&mut self, bytes: &mut [u8]);
    /// Opens the connection, in less than `limit`.
    fn dial(&mut self, limit: Duration) -> Option<Self::Socket>;
    /// Resets the connection, so that nothing of it arrives later.
    fn abort(&mut self, socket: Self::Socket);
    /// Sleeps until the tick, or until the socket or the switch has something new. It may wake early.
    fn wait(&mut self, socket: Option<&mut Self::Socket>, sending: bool, until: Tick);
    /// The switch that a person turns.
    fn is_wanted(&mut self) -> bool;
    /// What only one board at a time may open.
    fn valve(&mut self, open: bool);
}

/// The longest sleep while nothing is due.
const NAP: Duration = Duration::from_secs(1);
/// Reads of one round, so that a peer that never stops sending does not keep the deadlines waiting.
const READS: usize = 16;

/// Waits for the lease, and keeps the valve open for as long as the switch says so and the lease is held.
fn run<B: Board>(board: B, name: &[u8], lease: Duration) -> Result<(), ConfigError> {
    let mut device = Device::new(board, name, lease)?;
    while !device.mux.is_finished() {
        device.read();
        let now = device.board.now();
        device.mux.handle_timeout(now);
        if !device.board.is_wanted() && !device.is_over {
            device.finish();
        }
        let blocked = device.write();
        // Freshly read, in every round: a board that was late closes before it does anything else.
        let now = device.board.now();
        let held = device.mux.leases().holds_at(device.lease, now);
        device.board.valve(held);
        let due = device.mux.deadline().at(now).unwrap_or(now + NAP);
        let socket = device.socket.as_mut();
        device.board.wait(socket, blocked, due.min(now + NAP));
    }
    Ok(())
}

struct Device<B: Board> {
    board: B,
    mux: Mux,
    lease: LeaseId,
    socket: Option<B::Socket>,
    is_over: bool,
}

impl<B: Board> Device<B> {
    fn new(mut board: B, name: &[u8], lease: Duration) -> Result<Device<B>, ConfigError> {
        let (mut secret, mut seed) = ([0; 16], [0; 8]);
        board.entropy(&mut secret);
        board.entropy(&mut seed);
        let names = Names::new("lock:", "the board example")?;
        let mut mux = Mux::new(MuxConfig::new(names), u64::from_le_bytes(seed));
        let request = Request {
            name,
            terms: LeaseConfig::new(lease).build()?,
            wait: Wait::Forever,
            secret,
            // No calendar here: it is only shown to people.
            options: Options::default(),
            since_ms: 0,
        };
        let lease = mux.acquire(board.now(), &request)?;
        Ok(Device {
            board,
            mux,
            lease,
            socket: None,
            is_over: false,
        })
    }

    /// Takes in what has arrived. These reads would block: so it is asked first.
    fn read(&mut self) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        for _ in 0..READS {
            let read = match socket.read_ready() {
                Ok(false) => return,
                Ok(true) => socket.read(self.mux.recv_space()),
                Err(error) => Err(error),
            };
            let now = self.board.now();
            match read {
                Ok(0) | Err(_) => return self.mux.handle_disconnected(now),
                Ok(n) => self.mux.received(now, n),
            }
        }
    }

    /// Does what the machine says; true if the socket takes no more.
    fn write(&mut self) -> bool {
        loop {
            // Before the bytes are looked at: validity counts from here.
            let now = self.board.now();
            match self.mux.poll_output(now) {
                Output::Idle(_) => return false,
                Output::Transmit(bytes) => {
                    let socket = self.socket.as_mut();
                    match socket.map(|socket| send(socket, bytes)) {
                        Some(Ok(0)) => return true,
                        Some(Ok(n)) => self.mux.transmitted(now, n),
                        Some(Err(_)) | None => self.mux.handle_disconnected(now),
                    }
                }
                Output::Connect => {
                    let until = self.mux.deadline().at(now).unwrap_or(now + NAP);
                    self.socket = self.board.dial(until.saturating_since(now));
                    let now = self.board.now();
                    match self.socket {
                        Some(_) => self.mux.handle_connected(now),
                        None => self.mux.handle_dial_failed(now, ""),
                    }
                }
                Output::Disconnect => {
                    if let Some(socket) = self.socket.take() {
                        self.board.abort(socket);
                    }
                }
                Output::Lease(event) => match event.notice {
                    Notice::Acquired { .. }
                    | Notice::Renewed { .. }
                    | Notice::RenewalFailed(_)
                    | Notice::Vanished => {}
                    // Lost, for one.
                    _ => self.finish(),
                },
                Output::Answer(_) | Output::Link(_) => {}
            }
        }
    }

    /// Releases what is held, or gives up asking; the loop ends when that is confirmed, or has expired.
    fn finish(&mut self) {
        // In this order: the key must not be free while the valve is open.
        self.board.valve(false);
        self.is_over = true;
        let now = self.board.now();
        self.mux.drop_guard(now, self.lease);
        self.mux.close(now);
    }
}

/// Sends what is taken without blocking.
fn send<S: Write + WriteReady>(socket: &mut S, bytes: &[u8]) -> Result<usize, S::Error> {
    match socket.write_ready()? {
        true => socket.write(bytes),
        false => Ok(0),
    }
}

// From here on an operating system plays the board.

fn main() -> Result<(), std::boxed::Box<dyn core::error::Error>> {
    let [address, name] = tenure_event_loops::arguments("ADDRESS NAME")?;
    let board = Desk {
        address: address.parse()?,
        clock: tenure_client::system::Clock::new(),
        is_wanted: true,
        is_open: false,
    };
    run(board, name.as_bytes(), Duration::from_secs(3))?;
    Ok(())
}

struct Desk {
    address: std::net::SocketAddr,
    clock: tenure_client::system::Clock,
    is_wanted: bool,
    is_open: bool,
}

impl Board for Desk {
    type Socket = Wire;

    fn now(&mut self) -> Tick {
        self.clock.now()
    }

    fn entropy(&mut self, bytes: &mut [u8]) {
        tenure_client::system::entropy(bytes).expect("the system has entropy");
    }

    fn dial(&mut self, limit: Duration) -> Option<Wire> {
        let limit = limit.max(Duration::from_millis(1));
        let socket = std::net::TcpStream::connect_timeout(&self.address, limit).ok()?;
        socket.set_nodelay(true).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(Wire(socket))
    }

    fn abort(&mut self, Wire(socket): Wire) {
        tenure_event_loops::abort(socket);
    }

    fn wait(&mut self, socket: Option<&mut Wire>, sending: bool, until: Tick) {
        use rustix::event::{PollFd, PollFlags, poll};

        let (stdin, now) = (std::io::stdin(), self.clock.now());
        let mut sources = std::vec::Vec::new();
        if let Some(Wire(socket)) = &socket {
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, sending);
            sources.push(PollFd::new(socket, wanted));
        }
        if self.is_wanted {
            sources.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let timeout = rustix::event::Timespec::try_from(until.saturating_since(now)).ok();
        // Woken early or not: the loop looks for itself.
        let _ = poll(&mut sources, timeout.as_ref());
        let turned = sources.pop().is_some_and(|last| !last.revents().is_empty());
        drop(sources);
        if self.is_wanted && turned {
            self.is_wanted =
                std::io::Read::read(&mut std::io::stdin(), &mut [0; 512]).unwrap_or(0) > 0;
        }
    }

    fn is_wanted(&mut self) -> bool {
        self.is_wanted
    }

    fn valve(&mut self, open: bool) {
        if core::mem::replace(&mut self.is_open, open) != open {
            std::println!("{}", if open { "open" } else { "closed" });
        }
    }
}

/// A socket that does not block: the loop has always asked before.
struct Wire(std::net::TcpStream);

impl Wire {
    fn is_ready(&self, wanted: rustix::event::PollFlags) -> std::io::Result<bool> {
        let mut sources = [rustix::event::PollFd::new(&self.0, wanted)];
        Ok(rustix::event::poll(&mut sources, Some(&Default::default()))? > 0)
    }
}

impl ErrorType for Wire {
    type Error = std::io::Error;
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        std::io::Read::read(&mut self.0, bytes)
    }
}

impl ReadReady for Wire {
    fn read_ready(&mut self) -> std::io::Result<bool> {
        self.is_ready(rustix::event::PollFlags::IN)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::Write::write(&mut self.0, bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl WriteReady for Wire {
    fn write_ready(&mut self) -> std::io::Result<bool> {
        self.is_ready(rustix::event::PollFlags::OUT)
    }
}
