//! Every interleaving, to a bound: the leases of two clients, one key on a server, and a network that may do anything.
//!
//! A state is everything there is: both leases as they are, the key, what is on the way, the time. From each state every step
//! that can come next is taken: a command or a reply is delivered, a connection dies (with what was on it lost, or delivered
//! at any later time), a command is executed twice, a process sleeps through a deadline, the server forgets its data, the
//! transport takes nothing for a while, a holder releases or drops, or time goes on to the next instant at which anything can
//! happen. States that were met before are not gone through again. The bounds - attempts, faults, time - are those of each
//! [`Bounds`] below; within them nothing is left out.
//!
//! What must be true is in `World::check` and `World::finishes`. That the search would find it if it were not is shown by
//! faults that are planted in the driver and the server here, never in the lease.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::time::{Duration, Instant};

use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::error::{Failure, LinkFault};
use tenure_core::lease::{Event, Lease, OpKind, Outcome, Seq, State};
use tenure_core::time::{Deadline, Tick};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(1_000);
/// For the answer to a single try.
const PATIENCE: Duration = Duration::from_millis(300);
const START: Tick = Tick::from_micros(1_000_000);
const CLOSED: Failure = Failure::Link(LinkFault::Closed);

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    name: &'static str,
    waits: [Wait; 2],
    /// The most steps one after the other. From wherever they lead, it is tried whether all comes to an end.
    depth: u16,
    /// A lease that makes more attempts is not followed further.
    attempts: u32,
    /// Nor is anything after this time.
    horizon: Duration,
    /// Connections that die, or cannot be made.
    deaths: u8,
    /// What was on a connection that died may arrive later.
    late: bool,
    /// Commands that are executed twice.
    duplicates: u8,
    /// How often time may go on while something is on its way: slow replies, slow commands, a connection that is down.
    delays: u8,
    /// Deadlines that a process sleeps through.
    pauses: u8,
    /// Restarts that lose the data.
    losses: u8,
    /// The transport takes bytes when it likes.
    slow_transport: bool,
    bug: Option<Bug>,
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Validity counts from the reply.
    FromReply,
    /// A refusal that shows the request's own value counts as a grant.
    BelievesItsOwn,
    /// The server deletes whatever value the key has.
    DeletesBlindly,
    /// The server sets the TTL of whatever value the key has.
    RenewsBlindly,
    /// Commands of which bytes have left are said to be withdrawn.
    WithdrawsSent,
    /// A command without a reply is said not to have been executed.
    NeverMaybe,
}

#[derive(Clone, Debug)]
struct Command {
    client: usize,
    seq: Seq,
    kind: OpKind,
    /// What a clean-up deletes.
    values: Vec<u32>,
    handed_out: Tick,
}

#[derive(Clone, Debug)]
struct Client {
    lease: Lease,
    begun: bool,
    up: bool,
    /// Not a byte has left.
    buffered: Vec<Command>,
    /// On the way to the server.
    sent: VecDeque<Command>,
    /// On the way back.
    replies: VecDeque<(Command, Outcome)>,
    acquired: u8,
    refused: u8,
    ended: u8,
    dropped: bool,
    released: bool,
    /// Clean-ups for these attempts were handed out.
    cleared: Vec<u32>,
    /// Something of it was executed after its connection had died, or twice.
    zombie: bool,
}

#[derive(Clone, Debug)]
struct Key {
    client: usize,
    attempt: u32,
    expires: Tick,
}

#[derive(Clone, Debug)]
struct World {
    now: Tick,
    clients: [Client; 2],
    key: Option<Key>,
    /// Commands of dead connections, and second copies.
    late: Vec<Command>,
    deaths: u8,
    duplicates: u8,
    delays: u8,
    pauses: u8,
    losses: u8,
    /// The server has forgotten something.
    forgot: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(usize),
    Flush(usize),
    Deliver(usize),
    DeliverTwice(usize),
    DeliverLate(usize),
    Reply(usize),
    Die(usize),
    DieLate(usize),
    DialFails(usize),
    Reconnect(usize),
    Wake(usize),
    Release(usize),
    Drop(usize),
    LoseData,
    Advance,
}

type Check = Result<(), String>;

impl World {
    fn new(bounds: &Bounds) -> Result<World, String> {
        let terms = LeaseConfig::new(LEASE)
            .renew_every(MS * 450)
            .give_up_after(MS * 800)
            .build()
            .map_err(|error| error.to_string())?;
        let client = |wait, seed| Client {
            lease: Lease::new(START, terms, wait, PATIENCE, seed),
            begun: false,
            up: true,
            buffered: Vec::new(),
            sent: VecDeque::new(),
            replies: VecDeque::new(),
            acquired: 0,
            refused: 0,
            ended: 0,
            dropped: false,
            released: false,
            cleared: Vec::new(),
            zombie: false,
        };
        let [a, b] = bounds.waits;
        let mut world = World {
            now: START,
            clients: [client(a, 1), client(b, 2)],
            key: None,
            late: Vec::new(),
            deaths: bounds.deaths,
            duplicates: bounds.duplicates,
            delays: bounds.delays,
            pauses: bounds.pauses,
            losses: bounds.losses,
            forgot: false,
        };
        world.take(Step::Begin(0), bounds)?;
        Ok(world)
    }

    /// Every step that can come next.
    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            if !client.begun {
                steps.push(Step::Begin(index));
                continue;
            }
            if !client.buffered.is_empty() {
                steps.push(Step::Flush(index));
            }
            if !client.sent.is_empty() {
                steps.push(Step::Deliver(index));
                if self.duplicates > 0 {
                    steps.push(Step::DeliverTwice(index));
                }
            }
            if !client.replies.is_empty() {
                steps.push(Step::Reply(index));
            }
            // One that has nothing to say or to hear can wait with dying.
            let over = client.lease.state() == State::Done;
            if client.up && self.deaths > 0 && !over {
                steps.push(Step::Die(index));
                if bounds.late && !client.sent.is_empty() {
                    steps.push(Step::DieLate(index));
                }
            }
            if !client.up && !over {
                steps.push(Step::Reconnect(index));
                if self.deaths > 0 {
                    steps.push(Step::DialFails(index));
                }
            }
            if client.is_due(self.now) {
                steps.push(Step::Wake(index));
            }
            if !client.dropped && !over {
                steps.push(Step::Drop(index));
                if client.acquired == 1 && !client.released && client.ended == 0 {
                    steps.push(Step::Release(index));
                }
            }
        }
        for index in 0..self.late.len() {
            steps.push(Step::DeliverLate(index));
        }
        if self.losses > 0 && self.key.is_some() {
            steps.push(Step::LoseData);
        }
        let due = self.clients.iter().filter(|client| client.is_due(self.now));
        let awake = due.count() <= usize::from(self.pauses.min(1));
        let delayed = self.clients.iter().any(Client::is_waiting);
        if awake && (self.delays > 0 || !delayed) && self.next_instant().is_some() {
            steps.push(Step::Advance);
        }
        steps
    }

    /// When something can happen by itself.
    fn next_instant(&self) -> Option<Tick> {
        let begun = self.clients.iter().filter(|client| client.begun);
        let deadlines = begun.filter_map(|client| match client.lease.deadline() {
            Deadline::At(at, _) => Some(at),
            _ => None,
        });
        let expiry = self.key.as_ref().map(|key| key.expires);
        deadlines.chain(expiry).filter(|at| *at > self.now).min()
    }

    fn take(&mut self, step: Step, bounds: &Bounds) -> Check {
        let now = self.now;
        match step {
            Step::Begin(index) => {
                let client = &mut self.clients[index];
                client.begun = true;
                let terms = *client.lease.terms();
                let seed = index as u64;
                client.lease = Lease::new(now, terms, bounds.waits[index], PATIENCE, seed);
                client.lease.turn(now);
                self.settle(index, bounds)
            }
            Step::Flush(index) => {
                let client = &mut self.clients[index];
                for mut command in client.buffered.drain(..) {
                    command.handed_out = now;
                    client.sent.push_back(command);
                }
                Ok(())
            }
            Step::Deliver(index) | Step::DeliverTwice(index) => {
                let Some(command) = self.clients[index].sent.pop_front() else {
                    return Ok(());
                };
                if matches!(step, Step::DeliverTwice(_)) {
                    self.duplicates -= 1;
                    self.late.push(command.clone());
                }
                let outcome = self.execute(&command, bounds.bug);
                self.clients[index].replies.push_back((command, outcome));
                Ok(())
            }
            Step::DeliverLate(at) => {
                let command = self.late.remove(at);
                self.clients[command.client].zombie = true;
                let _ = self.execute(&command, bounds.bug);
                Ok(())
            }
            Step::Reply(index) => {
                let client = &mut self.clients[index];
                let Some((command, mut outcome)) = client.replies.pop_front() else {
                    return Ok(());
                };
                match (bounds.bug, outcome, command.kind) {
                    (Some(Bug::FromReply), Outcome::Granted { .. }, _) => {
                        outcome = Outcome::Granted { handed_out: now };
                    }
                    (
                        Some(Bug::BelievesItsOwn),
                        Outcome::Refused { own: Some(own), .. },
                        OpKind::Acquire { .. },
                    ) if !client.cleared.contains(&own) => {
                        outcome = Outcome::Granted {
                            handed_out: command.handed_out,
                        };
                    }
                    _ => {}
                }
                client
                    .lease
                    .handle_round_trip(now.saturating_since(command.handed_out));
                client.lease.handle_outcome(now, command.seq, outcome);
                self.settle(index, bounds)
            }
            Step::Die(index) | Step::DieLate(index) => {
                self.deaths -= 1;
                self.die(index, matches!(step, Step::DieLate(_)), bounds)
            }
            Step::DialFails(index) => {
                self.deaths -= 1;
                let dial = Failure::Link(LinkFault::Dial);
                self.clients[index].lease.handle_link_failed(now, dial);
                self.settle(index, bounds)
            }
            Step::Reconnect(index) => {
                self.clients[index].up = true;
                self.clients[index].lease.handle_link_up(now);
                self.settle(index, bounds)
            }
            Step::Wake(index) => {
                self.clients[index].lease.handle_timeout(now);
                self.settle(index, bounds)?;
                match self.clients[index].lease.deadline().is_due(now) {
                    true => Err("a timeout left something due".to_owned()),
                    false => Ok(()),
                }
            }
            Step::Release(index) => {
                let client = &mut self.clients[index];
                client.released = true;
                client.lease.release(now);
                self.settle(index, bounds)
            }
            Step::Drop(index) => {
                let client = &mut self.clients[index];
                client.lease.drop_guard(now);
                client.dropped = true;
                self.settle(index, bounds)
            }
            Step::LoseData => {
                self.losses -= 1;
                self.key = None;
                self.forgot = true;
                for index in 0..2 {
                    if self.clients[index].up {
                        self.die(index, false, bounds)?;
                    }
                }
                Ok(())
            }
            Step::Advance => {
                let waiting = self.clients.iter().any(Client::is_waiting);
                // Not when all is well at the end.
                self.delays = self.delays.saturating_sub(u8::from(waiting));
                self.pauses -= u8::from(self.clients.iter().any(|client| client.is_due(now)));
                self.now = self.next_instant().unwrap_or(now);
                if self.key.as_ref().is_some_and(|key| key.expires <= self.now) {
                    self.key = None;
                }
                Ok(())
            }
        }
    }

    fn die(&mut self, index: usize, late: bool, bounds: &Bounds) -> Check {
        let now = self.now;
        let client = &mut self.clients[index];
        client.up = false;
        let maybe = |command: Command| (command, bounds.bug != Some(Bug::NeverMaybe));
        let mut orphans: Vec<(Command, bool)> = Vec::new();
        orphans.extend(client.replies.drain(..).map(|(command, _)| maybe(command)));
        if late {
            self.late.extend(client.sent.iter().cloned());
        }
        orphans.extend(client.sent.drain(..).map(maybe));
        orphans.extend(client.buffered.drain(..).map(|command| (command, false)));
        for (command, maybe_executed) in orphans {
            let outcome = Outcome::NoReply {
                maybe_executed,
                failure: CLOSED,
            };
            client.lease.handle_outcome(now, command.seq, outcome);
        }
        client.lease.handle_link_down(now);
        self.settle(index, bounds)
    }

    /// The server. Each command is one step.
    fn execute(&mut self, command: &Command, bug: Option<Bug>) -> Outcome {
        let (me, now) = (command.client, self.now);
        let granted = Outcome::Granted {
            handed_out: command.handed_out,
        };
        let write = |attempt| Key {
            client: me,
            attempt,
            expires: now + LEASE,
        };
        let is = |key: &Key, attempt: u32| key.client == me && key.attempt == attempt;
        let refused = |key: &Key| Outcome::Refused {
            own: (key.client == me).then_some(key.attempt),
            remaining: Some(key.expires.saturating_since(now)),
            watched: false,
        };
        match (command.kind, &mut self.key) {
            (OpKind::Acquire { attempt }, key @ None) => {
                *key = Some(write(attempt));
                granted
            }
            (OpKind::Acquire { .. }, Some(key)) => refused(key),
            (
                OpKind::Adopt { .. }
                | OpKind::Rotate { .. }
                | OpKind::Renew { .. }
                | OpKind::Look { .. },
                None,
            ) => Outcome::Gone,
            (OpKind::Look { attempt }, Some(key)) => match refused(key) {
                Outcome::Refused { own, .. } if own == Some(attempt) => Outcome::Seen,
                refused => refused,
            },
            (OpKind::Adopt { attempt, old } | OpKind::Rotate { attempt, old }, Some(key))
                if is(key, old) =>
            {
                *key = write(attempt);
                granted
            }
            (OpKind::Renew { attempt }, Some(key))
                if is(key, attempt) || bug == Some(Bug::RenewsBlindly) =>
            {
                key.expires = now + LEASE;
                granted
            }
            (OpKind::Adopt { .. } | OpKind::Rotate { .. } | OpKind::Renew { .. }, Some(key)) => {
                refused(key)
            }
            (OpKind::Clear, key) => {
                let found = key
                    .as_ref()
                    .and_then(|key| command.values.iter().position(|value| is(key, *value)));
                if found.is_some() || bug == Some(Bug::DeletesBlindly) {
                    *key = None;
                }
                Outcome::Cleared {
                    mine: found == Some(0),
                }
            }
        }
    }

    /// What a driver does after anything happened to a lease.
    fn settle(&mut self, index: usize, bounds: &Bounds) -> Check {
        let now = self.now;
        let client = &mut self.clients[index];
        loop {
            while let Some(event) = client.lease.poll_event() {
                client.told(event)?;
            }
            if let Some(op) = client.lease.poll_superseded() {
                let before = client.buffered.len();
                client.buffered.retain(|command| command.seq != op.seq);
                if client.buffered.len() < before || bounds.bug == Some(Bug::WithdrawsSent) {
                    client.lease.handle_purged(now, op.kind);
                }
                continue;
            }
            if !client.up {
                break;
            }
            let Some(op) = client.lease.poll_op() else {
                break;
            };
            let values = match op.kind {
                OpKind::Clear => client.lease.leftovers().as_slice().to_vec(),
                _ => Vec::new(),
            };
            client.handed_out(op.kind, &values)?;
            let command = Command {
                client: index,
                seq: op.seq,
                kind: op.kind,
                values,
                handed_out: now,
            };
            match bounds.slow_transport {
                true => client.buffered.push(command),
                false => client.sent.push_back(command),
            }
        }
        Ok(())
    }

    /// What is true in every state.
    fn check(&self) -> Check {
        let holds = |client: &Client| client.lease.holds_at(self.now);
        if self.forgot {
            // What the server forgot, nobody can keep.
            return Ok(());
        }
        if self.clients.iter().all(holds) {
            return Err("held twice".to_owned());
        }
        for (index, client) in self.clients.iter().enumerate() {
            if let Some(until) = client.lease.valid_until().filter(|_| holds(client)) {
                match &self.key {
                    Some(key) if key.client != index => {
                        return Err(format!("{index} holds the other's key"));
                    }
                    Some(key) if key.expires < until => {
                        return Err(format!("{index} holds longer than the key"));
                    }
                    Some(_) => {}
                    None => return Err(format!("{index} holds what is gone")),
                }
            }
            let mine = |key: &Key| key.client == index;
            let on_the_way = self.late.iter().any(|command| command.client == index);
            if client.lease.state() == State::Done {
                let quiet = client.sent.is_empty() && client.buffered.is_empty() && !on_the_way;
                if quiet && !client.zombie && self.key.as_ref().is_some_and(mine) {
                    return Err(format!("{index} is done and left its key behind"));
                }
                if !client.dropped && client.refused + client.ended != 1 {
                    return Err(format!("{index} is done without a word"));
                }
            }
        }
        match &self.key {
            Some(key) if key.expires > self.now + LEASE => Err("a key outlives a lease".to_owned()),
            _ => Ok(()),
        }
    }

    /// From here on everything is well, and nobody wants the lock any more: it all comes to an end.
    fn finishes(mut self, bounds: &Bounds) -> Check {
        let began = self.now;
        while !self.late.is_empty() {
            self.take(Step::DeliverLate(0), bounds)?;
        }
        for index in 0..2 {
            if !self.clients[index].begun {
                self.take(Step::Begin(index), bounds)?;
            }
            if !self.clients[index].dropped {
                self.take(Step::Drop(index), bounds)?;
            }
        }
        loop {
            for index in 0..2 {
                if !self.clients[index].up {
                    self.take(Step::Reconnect(index), bounds)?;
                }
                if self.clients[index].lease.deadline().is_due(self.now) {
                    self.take(Step::Wake(index), bounds)?;
                }
                // Delivered and answered until there is no more.
                while !self.clients[index].buffered.is_empty()
                    || !self.clients[index].sent.is_empty()
                    || !self.clients[index].replies.is_empty()
                {
                    self.take(Step::Flush(index), bounds)?;
                    self.take(Step::Deliver(index), bounds)?;
                    self.take(Step::Reply(index), bounds)?;
                }
            }
            if self
                .clients
                .iter()
                .all(|client| client.lease.state() == State::Done)
            {
                let zombies = self.clients.iter().any(|client| client.zombie);
                return match self.key {
                    Some(key) if !zombies => Err(format!("{key:?} is left when everybody is done")),
                    _ => Ok(()),
                };
            }
            if self.now.saturating_since(began) > LEASE + MS * 2 || self.next_instant().is_none() {
                return Err("no end within a lease, though everything is well".to_owned());
            }
            self.take(Step::Advance, bounds)?;
        }
    }

    fn is_within(&self, bounds: &Bounds) -> bool {
        self.now <= START + bounds.horizon
            && self
                .clients
                .iter()
                .all(|client| client.lease.attempt() <= bounds.attempts)
    }

    fn is_over(&self) -> bool {
        self.late.is_empty()
            && self
                .clients
                .iter()
                .all(|client| client.lease.state() == State::Done)
    }

    fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint(DefaultHasher::new());
        let _ = write!(hash, "{self:?}");
        hash.0.finish()
    }
}

impl Client {
    fn is_waiting(&self) -> bool {
        let down = !self.up && self.lease.state() != State::Done;
        down || !self.sent.is_empty() || !self.replies.is_empty() || !self.buffered.is_empty()
    }

    fn is_due(&self, now: Tick) -> bool {
        self.begun && self.lease.deadline().is_due(now)
    }

    fn told(&mut self, event: Event) -> Check {
        if self.dropped {
            return Err(format!("told after the drop: {event:?}"));
        }
        match event {
            Event::Acquired { .. } => self.acquired += 1,
            Event::Held { .. } | Event::TimedOut | Event::Failed(_) => self.refused += 1,
            Event::Lost(_) | Event::Released { .. } | Event::Abandoned => self.ended += 1,
            Event::Renewed { .. } | Event::RenewalFailed(_) | Event::Vanished => {}
        }
        match self.acquired + self.refused > 1 || self.ended > self.acquired {
            true => Err(format!("a second end: {event:?}")),
            false => Ok(()),
        }
    }

    fn handed_out(&mut self, kind: OpKind, values: &[u32]) -> Check {
        let silent = self.dropped || self.released || self.refused + self.ended > 0;
        match kind {
            OpKind::Clear if self.ended == 1 && !self.dropped && !self.released => {
                return Err("cleared before the guard was gone".to_owned());
            }
            OpKind::Clear => self.cleared.extend(values),
            _ if silent => return Err(format!("{kind:?} after the end")),
            OpKind::Renew { attempt }
            | OpKind::Acquire { attempt }
            | OpKind::Adopt { attempt, .. }
            | OpKind::Rotate { attempt, .. }
                if self.cleared.contains(&attempt) =>
            {
                return Err(format!("{kind:?} writes what was cleared"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Hashes what is printed, without keeping it.
struct Fingerprint(DefaultHasher);

impl std::fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// What a search has found.
struct Found {
    states: usize,
    transitions: u64,
    /// States at the bounds, and states in which everything was over.
    cut: usize,
    over: usize,
    /// What was broken, and the steps that led there.
    violation: Option<(String, Vec<Step>)>,
}

fn search(bounds: &Bounds) -> Found {
    let began = Instant::now();
    let mut found = Found {
        states: 0,
        transitions: 0,
        cut: 0,
        over: 0,
        violation: None,
    };
    let start = match World::new(bounds) {
        Ok(world) => world,
        Err(why) => {
            found.violation = Some((why, Vec::new()));
            return found;
        }
    };
    let mut met = HashSet::from([start.fingerprint()]);
    // Where each state was reached from: the steps to it are read off backwards.
    let mut origins: Vec<(usize, Step)> = vec![(0, Step::Advance)];
    let mut waiting = VecDeque::from([(0, 0, start)]);
    'search: while let Some((from, depth, world)) = waiting.pop_front() {
        for step in world.steps(bounds) {
            let mut next = world.clone();
            let taken = next.take(step, bounds);
            found.transitions += 1;
            let broken = match taken.and_then(|()| next.check()) {
                Ok(()) if !met.insert(next.fingerprint()) => continue,
                Ok(()) => next.clone().finishes(bounds).err(),
                Err(why) => Some(why),
            };
            origins.push((from, step));
            let at = origins.len() - 1;
            if let Some(why) = broken {
                found.violation = Some((why, path(&origins, at)));
                break 'search;
            }
            if next.is_over() {
                found.over += 1;
            } else if depth + 1 < bounds.depth && next.is_within(bounds) {
                waiting.push_back((at, depth + 1, next));
            } else {
                found.cut += 1;
            }
        }
    }
    found.states = met.len();
    println!(
        "{}{}: {} states, {} transitions, {} ends, {} at the bounds, {:.1} s",
        bounds.name,
        bounds
            .bug
            .map_or(String::new(), |bug| format!(" with {bug:?}")),
        found.states,
        found.transitions,
        found.over,
        found.cut,
        began.elapsed().as_secs_f64()
    );
    found
}

fn path(origins: &[(usize, Step)], mut at: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while at > 0 {
        steps.push(origins[at].1);
        at = origins[at].0;
    }
    steps.reverse();
    steps
}

const BASE: Bounds = Bounds {
    name: "calm",
    waits: [Wait::Forever, Wait::Now],
    depth: 11,
    attempts: 3,
    horizon: Duration::from_millis(2_100),
    deaths: 0,
    late: false,
    duplicates: 0,
    delays: 2,
    pauses: 0,
    losses: 0,
    slow_transport: false,
    bug: None,
};

const SEARCHES: &[Bounds] = &[
    BASE,
    Bounds {
        name: "one death",
        depth: 9,
        deaths: 1,
        late: true,
        ..BASE
    },
    Bounds {
        name: "two deaths",
        depth: 8,
        deaths: 2,
        late: true,
        ..BASE
    },
    Bounds {
        name: "executed twice",
        depth: 9,
        duplicates: 1,
        ..BASE
    },
    Bounds {
        name: "slept through",
        depth: 10,
        pauses: 1,
        ..BASE
    },
    Bounds {
        name: "data lost",
        depth: 10,
        losses: 1,
        ..BASE
    },
    Bounds {
        name: "slow transport",
        depth: 11,
        slow_transport: true,
        ..BASE
    },
    Bounds {
        name: "two that wait",
        depth: 9,
        waits: [Wait::Forever, Wait::For(Duration::from_millis(200))],
        deaths: 1,
        ..BASE
    },
];

fn holds(bounds: &Bounds) {
    let found = search(bounds);
    if let Some((why, steps)) = found.violation {
        panic!("{}: {why}, after {steps:#?}", bounds.name);
    }
    assert!(found.over > 0, "{}: nothing ever ended", bounds.name);
}

#[test]
fn every_interleaving_keeps_the_rules() {
    for bounds in SEARCHES.iter().filter(|bounds| bounds.deaths == 0) {
        holds(bounds);
    }
}

#[test]
fn every_interleaving_keeps_the_rules_when_connections_die() {
    for bounds in SEARCHES.iter().filter(|bounds| bounds.deaths > 0) {
        holds(bounds);
    }
}

/// The same, two steps deeper: millions of states. `cargo test --release -p tenure-core --test exhaustive -- --ignored --nocapture`
#[test]
#[ignore = "more than a minute, in a release build"]
fn every_interleaving_keeps_the_rules_deeper() {
    for bounds in SEARCHES {
        holds(&Bounds {
            depth: bounds.depth + 2,
            ..*bounds
        });
    }
}

/// A search that finds nothing shows nothing.
#[test]
fn planted_faults_are_found() {
    for (bug, bounds) in [
        (Bug::FromReply, BASE),
        (
            Bug::BelievesItsOwn,
            Bounds {
                deaths: 1,
                waits: [Wait::Forever, Wait::Now],
                ..BASE
            },
        ),
        (Bug::DeletesBlindly, BASE),
        (Bug::RenewsBlindly, BASE),
        (Bug::WithdrawsSent, BASE),
        (Bug::NeverMaybe, Bounds { deaths: 1, ..BASE }),
    ] {
        let bounds = Bounds {
            bug: Some(bug),
            ..bounds
        };
        match search(&bounds).violation {
            Some((why, steps)) => println!("{bug:?}: {why}, after {steps:?}"),
            None => panic!("{bug:?} is not found"),
        }
    }
}
