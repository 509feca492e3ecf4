//! One machine, a network and a server in virtual time.

use core::time::Duration;
use std::collections::VecDeque;
use std::string::String;
use std::vec::Vec;

use super::server::{Server, take_command};
use crate::ask::{Answer, AskId, Known, Question};
use crate::config::{LeaseConfig, Terms, Wait};
use crate::leases::{Fault, LeaseId, Notice, Options, Request};
use crate::mux::{LinkEvent, Mux, MuxConfig, Output};
use crate::names::Names;
use crate::rng::Rng;
use crate::time::{Deadline, Tick};

pub(super) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(super) fn terms(lease: Duration) -> Terms {
    LeaseConfig::new(lease).build().expect("terms")
}

/// How a dial ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Dial {
    Works,
    Refused,
    Hangs,
    /// It works, after this time.
    Slow(Duration),
}

/// How well the driver does what it should.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Manner {
    Exact,
    /// It calls more often than it was asked to.
    Fussy,
    /// It forgets some of its turns.
    Forgetful,
}

#[derive(Default)]
struct Wire {
    to_server: VecDeque<(Tick, Vec<u8>)>,
    to_client: VecDeque<(Tick, Vec<u8>)>,
    arrived: Vec<u8>,
    /// Until then the server waits, and does nothing more on this connection.
    blocked: Option<Tick>,
    /// Nothing passes any more: an outage swallowed some of it.
    broken: bool,
}

/// How a server answers on a connection.
struct Answers {
    latency: Duration,
    mute: bool,
    one_by_one: bool,
}

impl Answers {
    /// To whatever has arrived, until the server waits for something.
    fn give(&self, wire: &mut Wire, server: &mut Server, tick: Tick) {
        let mut replies = Vec::new();
        while let Some(args) = take_command(&mut wire.arrived) {
            let reply = server.serve(tick.as_micros(), &args);
            let blocks = core::mem::take(&mut server.blocks);
            if blocks > 0 {
                // What it has answered before is on its way.
                self.send(wire, tick, core::mem::take(&mut replies));
                let until = tick + Duration::from_micros(blocks);
                wire.blocked = Some(until);
                self.send(wire, until, reply);
                return;
            }
            if !self.mute || args[0] == b"HELLO" {
                replies.extend(reply);
            }
            if self.one_by_one {
                self.send(wire, tick, core::mem::take(&mut replies));
            }
        }
        self.send(wire, tick, replies);
    }

    fn send(&self, wire: &mut Wire, tick: Tick, reply: Vec<u8>) {
        if !reply.is_empty() {
            wire.to_client.push_back((tick + self.latency, reply));
        }
    }
}

pub(super) struct World {
    pub(super) now: Tick,
    pub(super) mux: Mux,
    pub(super) server: Server,
    /// One way.
    pub(super) latency: Duration,
    pub(super) dial: Dial,
    /// Bytes in either direction vanish, and the connection with them.
    pub(super) black_hole: bool,
    /// The server greets and executes, but its answers vanish.
    pub(super) mute: bool,
    /// Each reply arrives by itself.
    pub(super) one_by_one: bool,
    /// The transport takes no more than this at once, and nothing while it is zero.
    pub(super) takes: usize,
    /// What was written on a connection that was given up arrives this much later all the same.
    pub(super) zombies: Option<Duration>,
    pub(super) notices: Vec<(Tick, LeaseId, Notice)>,
    pub(super) answers: Vec<(Tick, Answer)>,
    pub(super) links: Vec<(Tick, LinkEvent)>,
    pub(super) dials: u32,
    pub(super) manner: Manner,
    whim: Rng,
    /// Where the entropy for rotations comes from; nowhere for none.
    pub(super) entropy: Option<Rng>,
    /// A turn was forgotten: there is something to do.
    owes: bool,
    wire: Option<Wire>,
    late: VecDeque<(Tick, Vec<u8>)>,
    dialling: Option<(Tick, bool)>,
    secrets: u8,
}

impl World {
    pub(super) fn new(server: Server) -> World {
        World::seeded(server, 1)
    }

    pub(super) fn seeded(server: Server, seed: u64) -> World {
        let mut config = MuxConfig::new(Names::new("lock:", "me").expect("names"));
        config.watch = false;
        World::with(config, server, seed)
    }

    /// One in which the server is asked to tell of changes.
    pub(super) fn watching(server: Server, seed: u64) -> World {
        let config = MuxConfig::new(Names::new("lock:", "me").expect("names"));
        World::with(config, server, seed)
    }

    pub(super) fn with(config: MuxConfig, server: Server, seed: u64) -> World {
        World {
            now: Tick::from_micros(1_000_000),
            mux: Mux::new(config, seed),
            server,
            latency: Duration::from_micros(500),
            dial: Dial::Works,
            black_hole: false,
            mute: false,
            one_by_one: false,
            takes: usize::MAX,
            zombies: None,
            notices: Vec::new(),
            answers: Vec::new(),
            links: Vec::new(),
            dials: 0,
            manner: Manner::Exact,
            whim: Rng::new(seed),
            entropy: Some(Rng::new(seed + 0x5eed)),
            owes: false,
            wire: None,
            late: VecDeque::new(),
            dialling: None,
            secrets: 0,
        }
    }

    pub(super) fn acquire(&mut self, name: &str, terms: Terms, wait: Wait) -> LeaseId {
        self.acquire_with(Options::default(), name, terms, wait)
    }

    /// With a fence above this, if any.
    pub(super) fn acquire_above(
        &mut self,
        fence: Option<u64>,
        name: &str,
        terms: Terms,
        wait: Wait,
    ) -> LeaseId {
        let options = Options {
            fence,
            ..Options::default()
        };
        self.acquire_with(options, name, terms, wait)
    }

    pub(super) fn acquire_with(
        &mut self,
        options: Options,
        name: &str,
        terms: Terms,
        wait: Wait,
    ) -> LeaseId {
        self.secrets += 1;
        let request = Request {
            name: name.as_bytes(),
            terms,
            wait,
            secret: [self.secrets; 16],
            options,
            since_ms: 7,
        };
        let id = self.mux.acquire(self.now, &request).expect("a good name");
        self.pump();
        id
    }

    /// The same process once more, with its connection gone and its entropy its own.
    pub(super) fn copy(&self) -> World {
        let config = MuxConfig::new(Names::new("lock:", "me").expect("names"));
        let mut copy = World::with(config, self.server.clone(), 2);
        copy.now = self.now;
        copy.mux = self.mux.clone();
        copy.secrets = self.secrets;
        copy.mux.handle_disconnected(copy.now);
        copy
    }

    pub(super) fn ask(&mut self, question: &Question<'_>) -> AskId {
        let id = self.mux.ask(self.now, question).expect("a good name");
        self.pump();
        id
    }

    /// When a question was answered, and how; it must have been, once.
    pub(super) fn answer(&self, id: AskId) -> (Tick, &Result<Known, Fault>) {
        let mut of = self.answers.iter().filter(|(_, answer)| answer.id == id);
        let (tick, answer) = of.next().expect("an answer");
        assert_eq!(of.next(), None);
        (*tick, &answer.result)
    }

    /// Acquires, and runs until it is held.
    pub(super) fn hold(&mut self, name: &str, terms: Terms) -> LeaseId {
        let id = self.acquire(name, terms, Wait::Forever);
        self.run(ms(30));
        assert!(self.holds(id), "{:?}", self.told(id));
        id
    }

    pub(super) fn holds(&self, id: LeaseId) -> bool {
        self.mux.leases().holds_at(id, self.now)
    }

    pub(super) fn release(&mut self, id: LeaseId) {
        self.mux.release(self.now, id);
        self.pump();
    }

    pub(super) fn drop_guard(&mut self, id: LeaseId) {
        self.mux.drop_guard(self.now, id);
        self.pump();
    }

    /// What was told of a lease, renewals left out.
    pub(super) fn told(&self, id: LeaseId) -> Vec<&Notice> {
        let of = self.notices.iter().filter(|(_, other, _)| *other == id);
        of.map(|(.., notice)| notice)
            .filter(|notice| {
                !matches!(
                    notice,
                    Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished
                )
            })
            .collect()
    }

    /// When the last notice that is no renewal was told, and what.
    pub(super) fn end(&self, id: LeaseId) -> (Tick, &Notice) {
        let mut of = self.notices.iter().filter(|(_, other, notice)| {
            *other == id
                && !matches!(
                    notice,
                    Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished
                )
        });
        let (tick, _, notice) = of.next_back().expect("something was told");
        (*tick, notice)
    }

    pub(super) fn key(&mut self, name: &str) -> Option<String> {
        let now = self.now.as_micros();
        let value = self.server.get(now, &std::format!("lock:{name}"))?;
        Some(String::from_utf8_lossy(&value).into_owned())
    }

    /// The transport breaks; the peer saw everything that was on its way.
    pub(super) fn cut(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.to_client.clear();
        }
        self.forsake();
        self.mux.handle_disconnected(self.now);
        self.pump();
    }

    pub(super) fn run(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    pub(super) fn run_until(&mut self, end: Tick) {
        self.pump();
        while let Some(mut next) = self.next().filter(|next| *next <= end) {
            if self.owes {
                next = next.max(self.now + Duration::from_micros(100)).min(end);
            }
            if next <= self.now && self.owes {
                self.owes = false;
            } else if self.manner == Manner::Fussy && next > self.now {
                let ahead = next.saturating_since(self.now) - Duration::from_micros(1);
                let between = self.now + self.whim.up_to(ahead);
                self.mux.handle_timeout(between);
                self.mux.handle_timeout(between);
                assert!(matches!(self.mux.poll_output(between), Output::Idle(_)));
            }
            self.now = self.now.max(next);
            self.pump();
        }
        self.now = self.now.max(end);
        self.pump();
    }

    /// Sleeps through it: nothing is read, nothing is called. Then all of it at once.
    pub(super) fn pause(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(next) = self.next_on_the_wire().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.serve();
            if self
                .wire
                .as_ref()
                .is_none_or(|wire| wire.to_server.is_empty())
            {
                break;
            }
        }
        self.now = end;
        self.serve();
    }

    fn next_on_the_wire(&self) -> Option<Tick> {
        self.wire.as_ref()?.to_server.front().map(|(tick, _)| *tick)
    }

    fn next(&self) -> Option<Tick> {
        let wire = self.wire.as_ref();
        [
            self.mux.deadline().at(self.now),
            self.dialling.map(|(tick, _)| tick),
            self.late.front().map(|(tick, _)| *tick),
            wire.and_then(|wire| wire.to_server.front().map(|(tick, _)| *tick)),
            wire.and_then(|wire| wire.blocked),
            wire.and_then(|wire| wire.to_client.front().map(|(tick, _)| *tick)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What the server does by now.
    fn serve(&mut self) {
        while let Some((tick, bytes)) = self.late.front().cloned() {
            if tick > self.now {
                break;
            }
            self.late.pop_front();
            let mut bytes = bytes;
            while let Some(args) = take_command(&mut bytes) {
                self.server.execute(tick.as_micros(), &args);
            }
        }
        let (now, black_hole) = (self.now, self.black_hole);
        let Some(wire) = &mut self.wire else { return };
        let answers = Answers {
            latency: self.latency,
            mute: self.mute,
            one_by_one: self.one_by_one,
        };
        let (latency, mute) = (answers.latency, answers.mute);
        if let Some(until) = wire.blocked.take_if(|until| *until <= now) {
            answers.give(wire, &mut self.server, until);
        }
        while wire.to_server.front().is_some_and(|(tick, _)| *tick <= now) {
            let Some((tick, bytes)) = wire.to_server.pop_front() else {
                break;
            };
            wire.broken |= black_hole;
            if wire.broken {
                continue;
            }
            wire.arrived.extend(bytes);
            if wire.blocked.is_none() {
                answers.give(wire, &mut self.server, tick);
            }
        }
        self.server.expire(now.as_micros());
        let pushes = core::mem::take(&mut self.server.pushes);
        if !pushes.is_empty() && !mute && !wire.broken {
            wire.to_client.push_back((now + latency, pushes));
        }
    }

    /// Everything a driver does at one instant.
    pub(super) fn pump(&mut self) {
        self.serve();
        if let Some((tick, works)) = self.dialling {
            if tick <= self.now {
                self.dialling = None;
                if works {
                    self.wire = Some(Wire::default());
                    self.mux.handle_connected(self.now);
                } else {
                    self.mux.handle_dial_failed(self.now, "");
                }
            }
        }
        while let Some(wire) = &mut self.wire {
            if wire
                .to_client
                .front()
                .is_none_or(|(tick, _)| *tick > self.now)
            {
                break;
            }
            let Some((_, bytes)) = wire.to_client.pop_front() else {
                break;
            };
            wire.broken |= self.black_hole;
            if !wire.broken {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let space = self.mux.recv_space();
                    let n = rest.len().min(space.len());
                    space[..n].copy_from_slice(&rest[..n]);
                    self.mux.received(self.now, n);
                    rest = &rest[n..];
                }
            }
        }
        self.mux.handle_timeout(self.now);
        if self.manner == Manner::Forgetful && !self.owes && self.whim.next_u64() % 4 == 0 {
            self.owes = true;
            return;
        }
        self.owes = false;
        loop {
            self.stir();
            match self.mux.poll_output(self.now) {
                Output::Lease(event) => self.notices.push((self.now, event.id, event.notice)),
                Output::Answer(answer) => self.answers.push((self.now, answer)),
                Output::Link(event) => self.links.push((self.now, event)),
                Output::Disconnect => {
                    self.dialling = None;
                    self.forsake();
                }
                Output::Connect => {
                    self.dials += 1;
                    let trip = self.now + self.latency * 2;
                    self.dialling = match self.dial {
                        _ if self.black_hole => None,
                        Dial::Hangs => None,
                        Dial::Works => Some((trip, true)),
                        Dial::Slow(after) => Some((self.now + after, true)),
                        Dial::Refused => Some((trip, false)),
                    };
                }
                Output::Transmit(bytes) => {
                    let n = bytes.len().min(self.takes);
                    if n == 0 {
                        return;
                    }
                    let bytes = bytes[..n].to_vec();
                    if let Some(wire) = &mut self.wire {
                        wire.to_server.push_back((self.now + self.latency, bytes));
                    }
                    self.mux.transmitted(self.now, n);
                }
                Output::Idle(deadline) => {
                    // After a drain a deadline is never or later than now.
                    assert!(!deadline.is_due(self.now), "{deadline:?} at {:?}", self.now);
                    assert_eq!(deadline, self.mux.deadline());
                    assert_ne!(deadline, Deadline::Now);
                    return;
                }
            }
        }
    }

    fn stir(&mut self) {
        if self.mux.wants_stirring() {
            let fresh = self.entropy.as_mut().map(|rng| {
                let halves = [rng.next_u64(), rng.next_u64()];
                core::array::from_fn(|at| halves[at / 8].to_le_bytes()[at % 8])
            });
            self.mux.stir(fresh);
        }
    }

    fn forsake(&mut self) {
        if let (Some(delay), Some(wire)) = (self.zombies, self.wire.take()) {
            let later = self.now + delay;
            let bytes = wire.to_server.into_iter().map(|(_, bytes)| (later, bytes));
            self.late.extend(bytes);
        }
        self.wire = None;
    }
}
