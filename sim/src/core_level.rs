//! Random histories of the machine alone: `Mux` against a server in the same thread, without futures, tasks or a network.
//!
//! Two orders of magnitude faster than a history of whole clients, and closer to the edge: bytes are given and taken in
//! any portion, at any time, and nothing is ever polled before it must be.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::leases::{LeaseId, Notice, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::rng::Rng;
use tenure_core::time::Tick;

use crate::clock::Clock;
use crate::history::{Fault, LEAST_EVENTS, Report};
use crate::keys::Dialect;
use crate::server::{Mood, Server, encode};

/// One history in so many has ten times as many steps.
const LONG: u64 = 100;
/// The faults of this level. Bytes in any portion and late replies belong to it and are not counted.
pub const FAULTS: &[Fault] = &[
    Fault::Cut,
    Fault::Refuse,
    Fault::Zombies,
    Fault::PauseProcess,
    Fault::ReadOnly,
    Fault::Loading,
    Fault::Busy,
    Fault::OutOfMemory,
    Fault::TryAgain,
    Fault::ForgetScripts,
    Fault::FailScript,
];
const NAMES: [&[u8]; 2] = [b"a", b"b"];

struct Play {
    rng: Rng,
    now: Tick,
    server: Server,
    nodes: Vec<Node>,
    /// Commands of dead connections that are still under way.
    zombies: Vec<Vec<u8>>,
    calm: bool,
    report: Report,
}

struct Node {
    mux: Mux,
    clock: Clock,
    connection: Option<Connection>,
    dialling: bool,
    leases: BTreeMap<u64, Live>,
    closed: bool,
}

#[derive(Default)]
struct Connection {
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    resp3: bool,
}

struct Live {
    id: LeaseId,
    name: usize,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Asked,
    Held,
    Releasing,
    /// Told its end; the guard lives.
    Lost,
}

/// Runs the history of a seed on the machine alone.
pub fn run(seed: u64) -> Report {
    let mut rng = Rng::new(seed ^ 0xc0de_1e7e_1000);
    let dialect =
        [Dialect::Redis8, Dialect::Valkey9, Dialect::Redis7][(rng.next_u64() % 3) as usize];
    let start = Tick::from_micros(0);
    let epoch = Duration::from_secs(1_700_000_000);
    let nodes = 2 + rng.next_u64() % 2;
    let nodes = (0..nodes).map(|number| {
        let names = Names::new("lock:", &format!("c{number}")).expect("a good label");
        let drift = (rng.next_u64() % 80_001) as i64 - 40_000;
        Node {
            mux: Mux::new(MuxConfig::new(names), rng.next_u64()),
            clock: Clock::new(start, Duration::ZERO, drift),
            connection: None,
            dialling: false,
            leases: BTreeMap::new(),
            closed: false,
        }
    });
    let mut play = Play {
        nodes: nodes.collect(),
        now: start,
        server: Server::new(dialect, Clock::new(start, epoch, 0)),
        zombies: Vec::new(),
        calm: false,
        report: Report::default(),
        rng,
    };
    play.report.clients = play.nodes.len();
    let steps = LEAST_EVENTS + play.below(40);
    let steps = steps * if play.below(LONG) == 0 { 10 } else { 1 };
    while play.report.events < steps || play.report.faults.is_empty() {
        play.step();
        if !play.report.violations.is_empty() {
            return play.report;
        }
    }
    play.wind_up();
    play.report
}

impl Play {
    fn step(&mut self) {
        self.report.events += 1;
        let node = self.below(self.nodes.len() as u64) as usize;
        match self.below(100) {
            0..=24 => self.pass_up_to(3),
            25..=29 => self.pass_up_to(300),
            30..=34 => {
                // Exactly to the deadline.
                let clock = &self.nodes[node].clock;
                let due = self.nodes[node].mux.deadline();
                if let Some(due) = due.at(self.local(node)) {
                    let at = clock.when(self.now, due.as_micros());
                    self.now = self.now.max(at.min(self.now + Duration::from_secs(1)));
                }
            }
            35..=59 => self.drive(node),
            60..=74 => self.serve(node),
            75..=84 => self.ask(node),
            85..=94 => self.use_one(node),
            _ => self.harm(node),
        }
        if self.report.events.is_multiple_of(4) {
            self.check();
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    fn pass_up_to(&mut self, millis: u64) {
        let micros = self.below(millis * 1_000);
        self.pass(Duration::from_micros(micros));
    }

    fn local(&self, node: usize) -> Tick {
        Tick::from_micros(self.nodes[node].clock.read(self.now))
    }

    /// A turn of the driver: some of what has arrived, what is due, some of what is to be sent.
    fn drive(&mut self, node: usize) {
        let now = self.local(node);
        let calm = self.calm;
        if std::mem::take(&mut self.nodes[node].dialling) {
            if calm || self.below(5) > 0 {
                self.nodes[node].connection = Some(Connection::default());
                self.nodes[node].mux.handle_connected(now);
            } else {
                self.met(Fault::Refuse);
                self.nodes[node].mux.handle_dial_failed(now, "refused");
            }
        }
        let whole = calm || self.below(2) == 0;
        let part = 1 + self.below(200) as usize;
        let this = &mut self.nodes[node];
        if let Some(connection) = &mut this.connection {
            let mut left = if whole { usize::MAX } else { part };
            while left > 0 && !connection.down.is_empty() {
                let space = this.mux.recv_space();
                let n = space.len().min(connection.down.len()).min(left);
                for (to, from) in space.iter_mut().zip(connection.down.drain(..n)) {
                    *to = from;
                }
                left -= n;
                this.mux.received(now, n);
            }
        }
        this.mux.handle_timeout(now);
        self.flush(node, whole, true);
    }

    /// Does what the machine says. Once it was given the time nothing is due any more when it says that it is idle.
    fn flush(&mut self, node: usize, whole: bool, timely: bool) {
        let now = self.local(node);
        let part = 1 + self.below(100) as usize;
        loop {
            match self.nodes[node].mux.poll_output(now) {
                Output::Lease(event) => self.told(node, event.id, &event.notice),
                Output::Link(_) => {}
                Output::Disconnect => self.abort(node),
                Output::Connect => self.nodes[node].dialling = true,
                Output::Transmit(bytes) => {
                    let n = if whole {
                        bytes.len()
                    } else {
                        bytes.len().min(part)
                    };
                    let bytes = bytes[..n].to_vec();
                    let this = &mut self.nodes[node];
                    match &mut this.connection {
                        Some(connection) => {
                            connection.up.extend(bytes);
                            this.mux.transmitted(now, n);
                        }
                        None => this.mux.handle_disconnected(now),
                    }
                    if !whole {
                        return;
                    }
                }
                Output::Idle(deadline) => {
                    if timely && deadline.is_due(now) {
                        self.say(format!("idle at {now:?} with a deadline of {deadline:?}"));
                    }
                    return;
                }
            }
        }
    }

    fn abort(&mut self, node: usize) {
        if let Some(connection) = self.nodes[node].connection.take()
            && !self.calm
            && self.below(2) == 0
        {
            self.zombies.push(connection.up.into());
        }
    }

    fn told(&mut self, node: usize, id: LeaseId, notice: &Notice) {
        let Some(live) = self.nodes[node].leases.get_mut(&id.to_bits()) else {
            // Dropped before it was told.
            return;
        };
        let fits = match (notice, live.stage) {
            (Notice::Acquired { .. }, Stage::Asked) => {
                live.stage = Stage::Held;
                self.report.grants += 1;
                self.check();
                return;
            }
            (Notice::Held(_) | Notice::TimedOut(_) | Notice::Failed(_), Stage::Asked) => {
                self.nodes[node].leases.remove(&id.to_bits());
                return;
            }
            (Notice::Renewed { .. } | Notice::RenewalFailed(_), Stage::Held) => true,
            (Notice::Lost { .. }, Stage::Held) => {
                live.stage = Stage::Lost;
                self.report.losses += 1;
                true
            }
            (Notice::Released { .. } | Notice::Lost { .. }, Stage::Releasing) => {
                self.nodes[node].leases.remove(&id.to_bits());
                return;
            }
            // On its way when the release was asked for.
            (Notice::Renewed { .. } | Notice::RenewalFailed(_), Stage::Releasing) => true,
            _ => false,
        };
        if !fits {
            let stage = live.stage;
            self.say(format!("S8 {notice:?} told to {stage:?}"));
        }
    }

    /// The server takes some of what has come on a connection, and answers.
    fn serve(&mut self, node: usize) {
        if !self.calm && self.below(6) == 0 {
            return;
        }
        let now = self.now;
        let most = if self.calm {
            u64::MAX
        } else {
            1 + self.below(4)
        };
        for _ in 0..most {
            let Some(connection) = &mut self.nodes[node].connection else {
                return;
            };
            let bytes = connection.up.make_contiguous();
            let Some((words, len)) = Server::parse(bytes) else {
                return;
            };
            connection.up.drain(..len);
            let reply = self.server.execute(now, &words, &mut connection.resp3);
            self.report.commands += 1;
            connection.down.extend(encode(&reply, connection.resp3));
        }
    }

    fn ask(&mut self, node: usize) {
        let now = self.local(node);
        let name = self.below(NAMES.len() as u64) as usize;
        let lease = Duration::from_millis(50 + self.below(2_000));
        let mut lease = LeaseConfig::new(lease);
        if self.below(10) == 0 {
            lease = lease.no_renew();
        }
        let wait = match self.below(5) {
            0 | 1 => Wait::Now,
            2 | 3 => Wait::For(Duration::from_micros(1 + self.below(1_500_000))),
            _ => Wait::Forever,
        };
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        let request = Request {
            name: NAMES[name],
            terms: lease.build().expect("a lease that can be had"),
            wait,
            secret,
            since_ms: 0,
        };
        self.report.requests += 1;
        let this = &mut self.nodes[node];
        if let Ok(id) = this.mux.acquire(now, &request) {
            let live = Live {
                id,
                name,
                stage: Stage::Asked,
            };
            this.leases.insert(id.to_bits(), live);
        }
        self.flush_sometimes(node);
    }

    /// A caller does something with one of its requests or holds.
    fn use_one(&mut self, node: usize) {
        let now = self.local(node);
        let count = self.nodes[node].leases.len() as u64;
        if count == 0 {
            return;
        }
        let (at, what) = (self.below(count) as usize, self.below(10));
        let this = &mut self.nodes[node];
        let Some((bits, live)) = this.leases.iter_mut().nth(at) else {
            return;
        };
        let (bits, id) = (*bits, live.id);
        match (live.stage, what) {
            (Stage::Held, 0..=3) => {
                live.stage = Stage::Releasing;
                this.mux.release(now, id);
                if this.mux.leases().holds_at(id, now) {
                    self.say("S4 held after its release was asked for".to_owned());
                }
            }
            (Stage::Held, 4) => {
                this.leases.remove(&bits);
                this.mux.abandon(now, id);
            }
            (Stage::Held, 5 | 6) => this.mux.renew_now(now, id),
            (Stage::Held | Stage::Asked | Stage::Releasing, 7) | (Stage::Lost, _) => {
                this.leases.remove(&bits);
                this.mux.drop_guard(now, id);
            }
            _ => return,
        }
        self.flush_sometimes(node);
    }

    fn flush_sometimes(&mut self, node: usize) {
        if self.below(2) == 0 {
            self.flush(node, true, false);
        }
    }

    fn harm(&mut self, node: usize) {
        let now = self.local(node);
        match self.below(12) {
            0..=2 => {
                let this = &mut self.nodes[node];
                if this.connection.is_some() {
                    // What was sent may still arrive.
                    this.mux.handle_disconnected(now);
                    self.abort(node);
                    self.met(Fault::Cut);
                }
            }
            3..=5 => self.one_zombie(),
            6 => {
                self.server.forget_scripts();
                self.met(Fault::ForgetScripts);
            }
            7 => {
                self.server.script_fails = true;
                self.met(Fault::FailScript);
            }
            8 | 9 => {
                let moods = [
                    (Fault::ReadOnly, Mood::ReadOnly),
                    (Fault::Loading, Mood::Loading),
                    (Fault::Busy, Mood::Busy),
                    (Fault::OutOfMemory, Mood::OutOfMemory),
                    (Fault::TryAgain, Mood::TryAgain),
                ];
                self.server.mood = Mood::Well;
                if let Some((fault, mood)) = moods.get(self.below(9) as usize) {
                    self.server.mood = *mood;
                    self.met(*fault);
                }
            }
            10 if self.below(10) == 0 => {
                let this = &mut self.nodes[node];
                this.closed = true;
                this.mux.close(now);
            }
            // Nobody looks after the machine for a while.
            _ => {
                self.pass_up_to(2_000);
                self.met(Fault::PauseProcess);
            }
        }
    }

    fn met(&mut self, fault: Fault) {
        *self.report.faults.entry(fault).or_default() += 1;
    }

    /// Everything that was sent on one dead connection arrives.
    fn one_zombie(&mut self) {
        if self.zombies.is_empty() {
            return;
        }
        let at = self.below(self.zombies.len() as u64) as usize;
        let bytes = self.zombies.swap_remove(at);
        let mut rest = bytes.as_slice();
        while let Some((words, len)) = Server::parse(rest) {
            rest = &rest[len..];
            self.server.execute(self.now, &words, &mut false);
            self.report.counts.zombies += 1;
        }
        if rest.len() < bytes.len() {
            self.met(Fault::Zombies);
        }
    }

    /// S1: one holder of a name at most, and its key outlasts it.
    fn check(&mut self) {
        let mut holders: BTreeMap<usize, usize> = BTreeMap::new();
        let mut broken = Vec::new();
        let now_ms = self.server.now_ms(self.now);
        for (number, node) in self.nodes.iter().enumerate() {
            let now = Tick::from_micros(node.clock.read(self.now));
            for live in node.leases.values() {
                let holds = node.mux.leases().holds_at(live.id, now);
                if holds && live.stage != Stage::Held && live.stage != Stage::Asked {
                    broken.push(format!("S1 held by {number} though {:?}", live.stage));
                }
                if !holds {
                    continue;
                }
                if let Some(other) = holders.insert(live.name, number) {
                    broken.push(format!("S1 held by {other} and {number}"));
                }
                let lease = node.mux.leases().lease(live.id);
                let value =
                    lease.and_then(|lease| node.mux.leases().value(live.id, lease.attempt()));
                self.server.keys.expire(now_ms);
                let key = node.mux.leases().key(live.id);
                let on_server = self.server.keys.text(key).ok().flatten();
                if on_server.map(Vec::as_slice) != value.as_ref().map(|value| value.as_bytes()) {
                    broken.push(format!(
                        "S1 held by {number} without its key: {:?}",
                        on_server.map(|value| value.escape_ascii().to_string())
                    ));
                }
            }
        }
        broken.into_iter().for_each(|text| self.say(text));
    }

    /// Everything is dropped and well: every machine must end, and leave nothing.
    fn wind_up(&mut self) {
        self.calm = true;
        self.server.mood = Mood::Well;
        self.server.script_fails = false;
        while !self.zombies.is_empty() {
            self.one_zombie();
        }
        for node in 0..self.nodes.len() {
            let now = self.local(node);
            let this = &mut self.nodes[node];
            for live in std::mem::take(&mut this.leases).into_values() {
                this.mux.drop_guard(now, live.id);
            }
            this.mux.close(now);
        }
        // Longer than every lease, in turns that miss no deadline by much.
        for _ in 0..1_500 {
            for node in 0..self.nodes.len() {
                self.drive(node);
                self.serve(node);
            }
            if self.nodes.iter().all(|node| node.mux.is_finished()) {
                break;
            }
            self.pass(Duration::from_millis(5));
        }
        for node in 0..self.nodes.len() {
            if !self.nodes[node].mux.is_finished() {
                let left = self.nodes[node].mux.leases().len();
                self.say(format!("S6 {left} leases do not end"));
            }
        }
        self.pass(Duration::from_millis(2_100));
        let now_ms = self.server.now_ms(self.now);
        self.server.keys.expire(now_ms);
        if self.server.keys.iter().next().is_some() {
            self.say("S6 a key is left a lease after everything ended".to_owned());
        }
    }

    fn say(&mut self, text: String) {
        let now = self.now;
        self.report.violations.push(format!("{now:?} {text}"));
    }
}
