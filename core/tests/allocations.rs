//! Core allocates nothing in steady state, and a held lease costs little memory.

use std::alloc::System;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::lease::Lease;
use tenure_core::leases::{LeaseId, Notice, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::time::Tick;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A server that grants everything: it looks only at the first words of a command.
struct World {
    mux: Mux,
    now: Tick,
    acquired: u64,
    renewed: u64,
    released: u64,
    /// What was written last, with its length in front.
    written: ([u8; 256], usize),
}

impl World {
    fn new() -> World {
        World {
            mux: Mux::new(MuxConfig::new(Names::new("lock:", "me").unwrap()), 1),
            now: Tick::from_micros(1),
            acquired: 0,
            renewed: 0,
            released: 0,
            written: ([0; 256], 0),
        }
    }

    fn acquire(&mut self, name: u32) -> LeaseId {
        let mut bytes = [b'n'; 16];
        bytes[..4].copy_from_slice(&name.to_be_bytes());
        let terms = LeaseConfig::new(Duration::from_secs(30)).build().unwrap();
        let request = Request {
            name: &bytes,
            terms,
            wait: Wait::Forever,
            secret: [5; 16],
            options: Options::default(),
            since_ms: 1_700_000_000_000,
        };
        self.mux.acquire(self.now, &request).unwrap()
    }

    fn pump(&mut self) {
        loop {
            match self.mux.poll_output(self.now) {
                Output::Lease(event) => match event.notice {
                    Notice::Acquired { .. } => self.acquired += 1,
                    Notice::Renewed { .. } => self.renewed += 1,
                    Notice::Released { confirmed: true } => self.released += 1,
                    other => panic!("{other:?}"),
                },
                Output::Connect => self.mux.handle_connected(self.now),
                Output::Transmit(bytes) => {
                    let mut replies = [0; 8 * 1024];
                    let (mut taken, mut len) = (0, 0);
                    while taken < bytes.len() && len + 256 < replies.len() {
                        let (used, reply) = answer(&bytes[taken..], &mut self.written);
                        for part in reply {
                            replies[len..len + part.len()].copy_from_slice(part);
                            len += part.len();
                        }
                        taken += used;
                    }
                    self.mux.transmitted(self.now, taken);
                    let mut rest = &replies[..len];
                    while !rest.is_empty() {
                        let space = self.mux.recv_space();
                        let n = space.len().min(rest.len());
                        space[..n].copy_from_slice(&rest[..n]);
                        self.mux.received(self.now, n);
                        rest = &rest[n..];
                    }
                }
                Output::Link(_) => {}
                Output::Answer(_) => {}
                Output::Disconnect => panic!("no reason to"),
                Output::Idle(_) => break,
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        self.pump();
        while let Some(next) = self.mux.deadline().at(self.now).filter(|next| *next <= end) {
            self.now = next.max(self.now);
            self.mux.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
    }
}

/// The length of the first command, and its reply in three parts.
fn answer<'a>(bytes: &'a [u8], written: &'a mut ([u8; 256], usize)) -> (usize, [&'a [u8]; 3]) {
    let number = |at: usize| {
        let end = bytes[at..].iter().position(|byte| *byte == b'\r').unwrap() + at;
        let digits = &bytes[at + 1..end];
        let n = digits
            .iter()
            .fold(0, |n, digit| n * 10 + usize::from(digit - b'0'));
        (n, end + 2)
    };
    let (count, mut at) = number(0);
    let mut third: &[u8] = b"";
    let (mut first, mut fourth): (&[u8], &[u8]) = (b"", b"");
    for arg in 0..count {
        let (len, start) = number(at);
        match arg {
            0 => first = &bytes[start..start + len],
            2 => third = &bytes[start - 2 - (start - at - 2)..start + len],
            3 => fourth = &bytes[start..start + len],
            _ => {}
        }
        at = start + len + 2;
    }
    if first == b"SET" {
        written.0[..third.len()].copy_from_slice(third);
        written.1 = third.len();
    }
    let reply: [&[u8]; 3] = match (first, fourth) {
        (b"CLIENT", _) => [b"+OK\r\n", b"", b""],
        // The read behind a write.
        (b"GET", _) => [b"", &written.0[..written.1], b"\r\n"],
        (b"HELLO", _) => [b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n", b"", b""],
        (b"SET", b"NX") => [b"_\r\n", b"", b""],
        // The value as it came, with its length in front.
        (b"SET", _) => [b"", third, b"\r\n"],
        _ => [b":1\r\n", b"", b""],
    };
    (at, reply)
}

/// One test, so that no other thread allocates while it counts.
#[test]
fn core_allocates_nothing_in_steady_state_and_a_lease_is_small() {
    nothing_is_allocated_after_the_first_round();
    ten_thousand_held_leases_are_small();
}

fn nothing_is_allocated_after_the_first_round() {
    let mut world = World::new();
    let mut ids = Vec::with_capacity(100);
    let mut counted = 0;
    for round in 0..4 {
        let before = ALLOCATOR.stats();
        for name in 0..100 {
            ids.push(world.acquire(name));
        }
        world.run(Duration::from_secs(120));
        for id in ids.drain(..) {
            world.mux.release(world.now, id);
        }
        world.run(Duration::from_secs(1));
        assert!(world.mux.leases().is_empty());
        let after = ALLOCATOR.stats();
        counted =
            (after.allocations - before.allocations) + (after.reallocations - before.reallocations);
        println!("round {round}: {counted} allocations");
    }
    assert_eq!((world.acquired, world.released), (400, 400));
    assert!(world.renewed > 4 * 100 * 19);
    assert_eq!(counted, 0);
}

fn ten_thousand_held_leases_are_small() {
    let in_use = || {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    };
    let before = in_use();
    let mut world = World::new();
    for name in 0..10_000 {
        world.acquire(name);
    }
    world.run(Duration::from_secs(60));
    assert_eq!(world.acquired, 10_000);
    let each = (in_use() - before) / 10_000;
    println!(
        "Lease: {} bytes; a held lease in the table: {each} bytes",
        size_of::<Lease>()
    );
    // Buffers that grow by doubling are half empty at worst.
    assert!(each < 900, "{each} bytes for each");
}
