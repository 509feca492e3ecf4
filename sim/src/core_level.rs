//! Random histories of the machine alone: `Mux` against a server in the same thread, without futures, tasks or a network.
//!
//! An order of magnitude faster than a history of whole clients, and closer to the edge: bytes are given and taken in any
//! portion, at any time, and nothing is ever polled before it must be. What goes over the wire is checked by the same
//! rules; and here a process can be copied with all it remembers.

mod harm;
mod machine;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use tenure_core::config::{MIN_WAITER_LEASE, Wait};
use tenure_core::lease::Cause;
use tenure_core::leases::{LeaseId, Notice, Options, Request};
use tenure_core::mux::Output;
use tenure_core::names::{Names, Value};
use tenure_core::rng::Rng;
use tenure_core::time::Tick;

use crate::checker::{Assumption, Assumptions, Ledger, Want, overlaps, secret};
use crate::clock::Clock;
use crate::encode::{encode, encode_push};
use crate::history::{Fault, LEAST_EVENTS, Report};
use crate::keys::Dialect;
use crate::server::Server;
use crate::tap::Written;
use crate::tracking::Push;
use machine::Machine;

pub use harm::FAULTS;

/// One history in so many has ten times as many steps.
const LONG: u64 = 100;
const NAMES: [&str; 2] = ["a", "b"];
/// Leases are between these, in milliseconds.
const LEASES: (u64, u64) = (50, 2_050);

struct Play {
    rng: Rng,
    now: Tick,
    server: Server,
    nodes: Vec<Node>,
    /// What was written on dead connections and is still under way.
    zombies: Vec<(Written, usize)>,
    /// Values that both of two copies of a process know to be theirs.
    shared: BTreeSet<Vec<u8>>,
    ledger: Ledger,
    assumed: Assumptions,
    calm: bool,
    /// Orders what leaves and what callers do.
    stamp: u64,
    connections: usize,
    /// How far the server's clock was stepped back, in milliseconds.
    behind: i64,
    report: Report,
    recording: bool,
    /// Room for what a transport has taken.
    taken: Vec<u8>,
}

struct Node {
    /// By which its requests are known; copies of a process share it.
    client: usize,
    machine: Machine,
    clock: Clock,
    connection: Option<Connection>,
    dialling: bool,
    leases: BTreeMap<u64, Live>,
}

struct Connection {
    number: usize,
    /// What the machine has written.
    up: Written,
    down: VecDeque<u8>,
    resp3: bool,
}

#[derive(Clone)]
struct Live {
    id: LeaseId,
    /// As the ledger knows it.
    request: u64,
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

/// Runs the history of a seed on the machine alone. With `record` it writes down what happens.
pub fn run(seed: u64, record: bool) -> Report {
    let mut rng = Rng::new(seed ^ 0xc0de_1e7e_1000);
    let dialect = Dialect::ALL[(rng.next_u64() % Dialect::ALL.len() as u64) as usize];
    let start = Tick::from_micros(0);
    let epoch = Duration::from_secs(1_700_000_000);
    let assumed = harm::draw_assumptions(&mut rng);
    // What the margin allows, or far more.
    let most: i64 = match assumed.has(Assumption::A2) {
        true => 40_000,
        false => 400_000,
    };
    let nodes = 2 + rng.next_u64() % 2;
    let nodes = (0..nodes as usize).map(|client| {
        let names = Names::new("lock:", &format!("c{client}")).expect("a good label");
        let drift = (rng.next_u64() % (2 * most as u64 + 1)) as i64 - most;
        Node {
            client,
            machine: Machine::new(names, rng.next_u64(), !assumed.has(Assumption::A5)),
            clock: Clock::new(start, Duration::ZERO, drift),
            connection: None,
            dialling: false,
            leases: BTreeMap::new(),
        }
    });
    let mut play = Play {
        nodes: nodes.collect(),
        now: start,
        server: Server::new(dialect, Clock::new(start, epoch, 0)),
        zombies: Vec::new(),
        shared: BTreeSet::new(),
        ledger: Ledger::new(assumed, 0),
        assumed,
        calm: false,
        stamp: 0,
        connections: 0,
        behind: 0,
        report: Report::default(),
        recording: record,
        taken: Vec::new(),
        rng,
    };
    play.ledger.in_parts();
    if !assumed.has(Assumption::A2) {
        play.met(Fault::Drift);
    }
    play.play();
    play.report
}

impl Play {
    fn play(&mut self) {
        self.report.clients = self.nodes.len();
        let steps = LEAST_EVENTS + self.below(40);
        let steps = steps * if self.below(LONG) == 0 { 10 } else { 1 };
        while self.report.events < steps || self.report.faults.is_empty() {
            self.step();
            if self.is_broken() {
                return;
            }
        }
        self.wind_up();
        self.is_broken();
    }

    fn step(&mut self) {
        self.report.events += 1;
        let node = self.below(self.nodes.len() as u64) as usize;
        match self.below(100) {
            0..=24 => self.pass_up_to(3),
            25..=29 => self.pass_up_to(300),
            30..=34 => {
                // Exactly to the deadline.
                let clock = &self.nodes[node].clock;
                let due = self.nodes[node].machine.mux().deadline();
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

    /// A stamp later than that of every command that has begun to leave.
    fn stamp(&mut self) -> u64 {
        self.stamp += 1 << 16;
        self.stamp
    }

    /// A turn of the driver: some of what has arrived, what is due, some of what is to be sent.
    fn drive(&mut self, node: usize) {
        let now = self.local(node);
        let calm = self.calm;
        if std::mem::take(&mut self.nodes[node].dialling) {
            if calm || self.below(5) > 0 {
                self.connections += 1;
                let this = &mut self.nodes[node];
                this.connection = Some(Connection {
                    number: self.connections,
                    up: Written::default(),
                    down: VecDeque::new(),
                    resp3: false,
                });
                this.machine.connected(now);
            } else {
                self.met(Fault::Refuse);
                self.nodes[node].machine.dial_failed(now);
            }
        }
        let whole = calm || self.below(2) == 0;
        let part = 1 + self.below(200) as usize;
        let this = &mut self.nodes[node];
        if let Some(connection) = &mut this.connection {
            let mut left = if whole { usize::MAX } else { part };
            while left > 0 && !connection.down.is_empty() {
                left -= this.machine.receive(now, &mut connection.down, left);
            }
        }
        this.machine.timeout(now);
        self.flush(node, whole, true);
    }

    /// Does what the machine says. Once it was given the time nothing is due any more when it says that it is idle.
    fn flush(&mut self, node: usize, whole: bool, timely: bool) {
        let now = self.local(node);
        let part = 1 + self.below(100) as usize;
        loop {
            if self.nodes[node].machine.mux().wants_stirring() {
                let halves = [self.rng.next_u64(), self.rng.next_u64()];
                let fresh = u128::from(halves[0]) << 64 | u128::from(halves[1]);
                // Now and then the system has none.
                let fresh = (self.below(10) > 0).then_some(fresh.to_le_bytes());
                self.nodes[node].machine.stir(fresh);
            }
            match self.nodes[node].machine.poll(now) {
                Output::Lease(event) => self.told(node, event.id, &event.notice),
                Output::Answer(_) => {}
                Output::Link(event) => self.note(|| format!("node {node} link {event:?}")),
                Output::Disconnect => self.abort(node),
                Output::Connect => self.nodes[node].dialling = true,
                Output::Transmit(bytes) => {
                    let n = if whole {
                        bytes.len()
                    } else {
                        bytes.len().min(part)
                    };
                    let mut taken = std::mem::take(&mut self.taken);
                    taken.clear();
                    taken.extend_from_slice(&bytes[..n]);
                    self.hand_out(node, &taken);
                    self.taken = taken;
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

    /// Bytes leave: they are cut into commands for the server and the rules.
    fn hand_out(&mut self, node: usize, bytes: &[u8]) {
        let (now, by_client, stamp) = (self.now, self.local(node), self.stamp());
        self.note(|| format!("node {node} writes {}", bytes.escape_ascii()));
        let this = &mut self.nodes[node];
        let Some(connection) = &mut this.connection else {
            this.machine.disconnected(by_client);
            return;
        };
        let from = (this.client, connection.number);
        let ledger = &mut self.ledger;
        let up = &mut connection.up;
        up.write(from, bytes, (stamp, now, by_client), |command| {
            ledger.sent(command);
        });
        up.arrived += bytes.len() as u64;
        this.machine.transmitted(by_client, bytes.len());
    }

    fn abort(&mut self, node: usize) {
        let Some(connection) = self.nodes[node].connection.take() else {
            return;
        };
        self.server.keys.tracking.turn_off(connection.number);
        if !self.calm && self.below(2) == 0 {
            self.zombies.push((connection.up, node));
        }
    }

    fn told(&mut self, node: usize, id: LeaseId, notice: &Notice) {
        let (now, stamp) = (self.local(node), self.stamp());
        self.note(|| format!("node {node} lease {} is told {notice:?}", id.to_bits()));
        let Some(live) = self.nodes[node].leases.get_mut(&id.to_bits()) else {
            // Dropped before it was told.
            return;
        };
        let (request, stage) = (live.request, live.stage);
        let fits = match (notice, stage) {
            (Notice::Acquired { fence, .. }, Stage::Asked) => {
                live.stage = Stage::Held;
                self.report.grants += 1;
                self.ledger.granted(request, self.now);
                if let Err(broken) = self.ledger.fenced(request, *fence) {
                    self.say(broken);
                }
                self.check();
                return;
            }
            (Notice::Held(_) | Notice::TimedOut(_) | Notice::Failed(_), Stage::Asked) => {
                self.ledger.end(request, stamp, self.now);
                self.nodes[node].leases.remove(&id.to_bits());
                return;
            }
            (Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished, Stage::Held) => {
                true
            }
            (Notice::Lost { lost, .. }, Stage::Held) => {
                live.stage = Stage::Lost;
                self.ledger.lose(request, stamp);
                self.report.losses += 1;
                if matches!(lost.cause, Cause::Expired { .. }) {
                    let left = lost.stop_by.saturating_since(now);
                    let given_up = self.ledger.given_up(request, left);
                    given_up.unwrap_or_else(|text| self.say(text));
                }
                true
            }
            (Notice::Released { .. } | Notice::Lost { .. }, Stage::Releasing) => {
                self.nodes[node].leases.remove(&id.to_bits());
                return;
            }
            // On its way when the release was asked for.
            (
                Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished,
                Stage::Releasing,
            ) => true,
            _ => false,
        };
        if !fits {
            self.say(format!("S8 {notice:?} told to {stage:?}"));
        }
    }

    /// The server takes some of what has come on a connection, and answers.
    fn serve(&mut self, node: usize) {
        if !self.calm && self.below(6) == 0 {
            return;
        }
        let most = if self.calm {
            u64::MAX
        } else {
            // An attempt is two commands, and the first on a connection is another.
            1 + self.below(8)
        };
        for _ in 0..most {
            let Some(mut connection) = self.nodes[node].connection.take() else {
                return;
            };
            let answered = self.execute(&mut connection.up, &mut connection.resp3);
            self.nodes[node].connection = Some(connection);
            let late = self.server.keys.tracking.take_late();
            self.tell();
            let Some(answered) = answered else {
                return;
            };
            if let Some(connection) = &mut self.nodes[node].connection {
                connection.down.extend(answered);
            }
            self.send_pushes(late);
        }
    }

    /// What the server has to say to connections that are tracked. Some time it finds what has expired, too; it may push
    /// without a change, as one whose table is full, and forget who is tracked.
    fn tell(&mut self) {
        if self.server.keys.tracking.is_idle() {
            return;
        }
        match self.below(64) {
            0..16 => {
                let now_ms = self.server.now_ms(self.now);
                self.server.keys.sweep(now_ms);
            }
            16..22 if !self.calm => {
                self.server.keys.tracking.crowd_out();
                self.met(Fault::CrowdOut);
            }
            22 if !self.calm => {
                self.server.keys.tracking.lose();
                self.met(Fault::LoseTracking);
            }
            _ => {}
        }
        let pushes = self.server.keys.tracking.take_early();
        self.send_pushes(pushes);
    }

    fn send_pushes(&mut self, pushes: Vec<Push>) {
        for push in pushes {
            self.note(|| format!("push {push:?}"));
            let mut connections = self
                .nodes
                .iter_mut()
                .filter_map(|node| node.connection.as_mut());
            if let Some(to) = connections.find(|to| to.number == push.to && to.resp3) {
                to.down.extend(encode_push(&push));
            }
        }
    }

    /// Executes the next command that was written on a connection; gives the bytes of the answer.
    fn execute(&mut self, up: &mut Written, resp3: &mut bool) -> Option<Vec<u8>> {
        let command = up.next()?;
        let (now, ledger) = (self.now, &mut self.ledger);
        let counts = &mut self.report.counts;
        let reply = self
            .server
            .answer(now, &command, resp3, counts, |command, reply| {
                ledger.executed(command, reply, now, now);
            });
        self.report.commands += 1;
        self.note(|| format!("{command} -> {reply:?}"));
        Some(encode(&reply, *resp3))
    }

    fn ask(&mut self, node: usize) {
        let now = self.local(node);
        let name = NAMES[self.below(NAMES.len() as u64) as usize];
        let lease = Duration::from_millis(LEASES.0 + self.below(LEASES.1 - LEASES.0));
        let renew = self.below(10) > 0;
        let wait = match self.below(5) {
            0 | 1 => Wait::Now,
            2 | 3 => Wait::For(Duration::from_micros(1 + self.below(1_500_000))),
            _ => Wait::Forever,
        };
        let want = Want {
            lease,
            wait,
            renew,
            max_hold: None,
            fenced: lease.as_millis().is_multiple_of(3),
            fair: (lease.as_millis() / 3)
                .is_multiple_of(3)
                .then_some((lease / 2).max(MIN_WAITER_LEASE)),
            rotate: self.below(3) == 0,
            at_least: match self.below(5) {
                0 => lease * 3 / 2,
                _ => Duration::ZERO,
            },
            max_waiters: (lease.as_millis() / 9)
                .is_multiple_of(2)
                .then_some(1)
                .filter(|_| (lease.as_millis() / 3).is_multiple_of(3)),
            // Its servers have none.
            replicas: None,
        };
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&self.rng.next_u64().to_le_bytes());
        let client = self.nodes[node].client;
        let (request, _, terms) = self.ledger.enter(client, name, want);
        self.report.requests += 1;
        self.report.turns_and_overtakings = self.ledger.turns_and_overtakings();
        let asked = Request {
            name: name.as_bytes(),
            terms,
            wait,
            secret,
            options: Options {
                fence: want.fenced.then_some(0),
                fair: want.fair,
                max_waiters: want.max_waiters,
                replicas: None,
                rotate: want.rotate,
            },
            since_ms: 0,
        };
        if let Some(id) = self.nodes[node].machine.acquire(now, &asked) {
            self.note(|| {
                let lease = id.to_bits();
                format!("node {node} asks for {name} as lease {lease}, request {request}: {wait:?}")
            });
            let live = Live {
                id,
                request,
                stage: Stage::Asked,
            };
            self.nodes[node].leases.insert(id.to_bits(), live);
        }
        self.flush_sometimes(node);
    }

    /// A caller does something with one of its requests or holds.
    fn use_one(&mut self, node: usize) {
        let (now, true_now, stamp) = (self.local(node), self.now, self.stamp());
        let count = self.nodes[node].leases.len() as u64;
        if count == 0 {
            return;
        }
        let (at, what) = (self.below(count) as usize, self.below(10));
        let this = &mut self.nodes[node];
        let Some((bits, live)) = this.leases.iter_mut().nth(at) else {
            return;
        };
        let (bits, id, request) = (*bits, live.id, live.request);
        let done = match (live.stage, what) {
            (Stage::Held, 0..=3) => {
                live.stage = Stage::Releasing;
                self.ledger.let_go(request, false, stamp, true_now);
                this.machine.release(now, id);
                if this.machine.mux().leases().holds_at(id, now) {
                    self.say("S4 held after its release was asked for".to_owned());
                }
                "releases"
            }
            (Stage::Held, 4) => {
                this.leases.remove(&bits);
                self.ledger.let_go(request, true, stamp, true_now);
                this.machine.abandon(now, id);
                "abandons"
            }
            (Stage::Held, 5 | 6) => {
                this.machine.renew_now(now, id);
                "renews"
            }
            (Stage::Held | Stage::Asked | Stage::Releasing, 7) | (Stage::Lost, _) => {
                this.leases.remove(&bits);
                self.ledger.let_go(request, false, stamp, true_now);
                this.machine.drop_guard(now, id);
                "drops"
            }
            _ => return,
        };
        self.note(|| format!("node {node} {done} lease {bits}"));
        self.flush_sometimes(node);
    }

    fn flush_sometimes(&mut self, node: usize) {
        if self.below(2) == 0 {
            self.flush(node, true, false);
        }
    }

    /// S1: one holder of a name at most, and its key outlasts it.
    fn check(&mut self) {
        let mut held = Vec::new();
        let mut rotated = BTreeMap::new();
        let mut broken = Vec::new();
        let now_ms = self.server.now_ms(self.now);
        for (number, node) in self.nodes.iter().enumerate() {
            let now = Tick::from_micros(node.clock.read(self.now));
            let leases = node.machine.mux().leases();
            for live in node.leases.values() {
                if !leases.holds_at(live.id, now) {
                    continue;
                }
                if live.stage != Stage::Held && live.stage != Stage::Asked {
                    broken.push(format!("S1 held by {number} though {:?}", live.stage));
                }
                let valid_until = leases.lease(live.id).and_then(|lease| lease.valid_until());
                let valid_until = valid_until.unwrap_or(now);
                let request = live.request;
                if self.ledger.rotates(request) {
                    let own = leases
                        .lease(live.id)
                        .and_then(|lease| lease.own_attempts().next());
                    let value = own.and_then(|own| leases.value(live.id, own));
                    // One that was acquired is no renewal, though copies of a request each wrote one.
                    let acquired = leases.value(live.id, 1);
                    let secret = |value: &Value| secret(value.as_bytes()).to_vec();
                    let fresh = value.filter(|value| {
                        acquired.as_ref().map(secret) != Some(secret(value))
                            && !self.shared.contains(value.as_bytes())
                    });
                    if fresh.is_some() && rotated.insert(request, number).is_some() {
                        broken.push(format!(
                            "A5 two copies hold by request {request} after each has renewed"
                        ));
                    }
                }
                let key = leases.key(live.id);
                self.server.keys.expire(now_ms);
                let there = self.server.keys.text(key).ok().flatten();
                // By true time, with the millisecond that is begun.
                let ends = self.server.keys.expires(key);
                let ends = ends.map(|at| self.server.clock.when(self.now, at * 1_000));
                let over = node.clock.when(self.now, valid_until.as_micros());
                let lasts = ends.is_none_or(|ends| ends + Duration::from_micros(2) >= over);
                let looked = self.ledger.confirm(request, valid_until, self.now);
                let looked = looked.and_then(|confirmed| {
                    if confirmed.strict {
                        let there = there.map(Vec::as_slice);
                        self.ledger.outlasts(request, &confirmed, there, lasts)?;
                    }
                    Ok(confirmed.strict)
                });
                match looked {
                    Ok(strict) => held.push((key.to_vec(), strict, request)),
                    Err(text) => broken.push(format!("{text} (node {number})")),
                }
            }
        }
        broken.extend(overlaps(&mut held));
        broken.into_iter().for_each(|text| self.say(text));
    }

    /// Everything is dropped and well: every machine must end, and leave nothing.
    fn wind_up(&mut self) {
        self.note(|| "everything is dropped and well".to_owned());
        self.heal();
        for node in 0..self.nodes.len() {
            let (now, true_now, stamp) = (self.local(node), self.now, self.stamp());
            let this = &mut self.nodes[node];
            for live in std::mem::take(&mut this.leases).into_values() {
                self.ledger.let_go(live.request, false, stamp, true_now);
                this.machine.drop_guard(now, live.id);
            }
            this.machine.close(now);
        }
        // Longer than every lease, in turns that miss no deadline by much.
        for _ in 0..1_500 {
            for node in 0..self.nodes.len() {
                self.drive(node);
                self.serve(node);
            }
            if self
                .nodes
                .iter()
                .all(|node| node.machine.mux().is_finished())
            {
                break;
            }
            self.pass(Duration::from_millis(5));
        }
        for node in 0..self.nodes.len() {
            let mux = self.nodes[node].machine.mux();
            if !mux.is_finished() {
                let left = mux.leases().len();
                self.say(format!("S6 {left} leases of node {node} do not end"));
            }
        }
        // The longest, with what made it the only one of its length.
        self.pass(Duration::from_millis(LEASES.1 + self.report.requests) * 3 / 2);
        let now_ms = self.server.now_ms(self.now);
        self.server.keys.expire(now_ms);
        // Counters of fences stay for a day.
        let counts = |key: &[u8]| key.ends_with(b"}:fence");
        if self.server.keys.iter().any(|(key, _)| !counts(key)) {
            self.say("S6 a key is left a lease after everything ended".to_owned());
        }
    }

    /// Whether a rule was broken, here or on the wire.
    fn is_broken(&mut self) -> bool {
        for text in std::mem::take(&mut self.ledger.violations) {
            self.say(text);
        }
        !self.report.violations.is_empty()
    }

    fn say(&mut self, text: String) {
        self.note(|| format!("VIOLATION {text}"));
        let now = self.now;
        self.report.violations.push(format!("{now:?} {text}"));
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.recording {
            let _ = writeln!(self.report.trace, "{:?} {}", self.now, line());
        }
    }
}
