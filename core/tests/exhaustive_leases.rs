//! As `exhaustive.rs`, a floor higher: the tables of two processes, of which one has two requests for the same name, so that its
//! queue is in play; a server that answers errors, fails scripts after they have written, and restarts; and callers that
//! release, drop, abandon and close at any moment.
//!
//! A table cannot be copied, as nothing that holds locks can. A state is therefore kept as the steps that lead to it, and played
//! again from the beginning; it is told from others by everything that it prints.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::time::{Duration, Instant};

use tenure_core::config::{LeaseConfig, Terms, Wait};
use tenure_core::error::{Failure, LinkFault, ServerError};
use tenure_core::lease::{OpKind, Outcome};
use tenure_core::leases::{Event, LeaseId, Leases, Notice, Op, Options, Request};
use tenure_core::names::Names;
use tenure_core::time::{Deadline, Tick};

const MS: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_millis(1_000);
/// For opening a connection, and for an answer.
const LIMITS: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(100)];
const START: Tick = Tick::from_micros(1_000_000);
const CLOSED: Failure = Failure::Link(LinkFault::Closed);
/// The process of each request, and how long it waits.
const ASKING: [(usize, Wait); 3] = [(0, Wait::Forever), (0, Wait::Forever), (1, Wait::Forever)];

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    name: &'static str,
    /// The most steps one after the other. From wherever they lead, it is tried whether all comes to an end.
    depth: u16,
    /// Connections that die; what was on them may arrive later.
    deaths: u8,
    /// Commands that are executed twice.
    duplicates: u8,
    /// How often time may go on while something is on its way.
    delays: u8,
    /// Deadlines that a process sleeps through.
    pauses: u8,
    /// Commands that are answered by an error, before they did anything or after.
    errors: u8,
    /// Restarts of the server, with its data and without.
    restarts: u8,
    /// What callers do besides releasing and dropping: abandoning, renewing by hand, closing.
    whims: u8,
    bug: Option<Bug>,
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A script that failed after it had written is said not to have been executed.
    FailedIsUndone,
    /// The table is not told that a connection died.
    DeathIsNotTold,
    /// The server deletes whatever value the key has.
    DeletesBlindly,
    /// Commands of which bytes have left are said to be withdrawn.
    WithdrawsSent,
}

#[derive(Clone, Debug)]
struct Command {
    request: usize,
    op: Op,
    /// What a clean-up deletes.
    values: Vec<u32>,
    handed_out: Tick,
}

#[derive(Debug, Default)]
struct Caller {
    id: Option<LeaseId>,
    acquired: u8,
    refused: u8,
    ended: u8,
    dropped: bool,
    released: bool,
    abandoned: bool,
    /// Something of it was executed after its connection had died, or twice.
    zombie: bool,
}

#[derive(Debug)]
struct Process {
    leases: Leases,
    up: bool,
    closed: bool,
    sent: VecDeque<Command>,
    replies: VecDeque<(Command, Outcome)>,
}

#[derive(Clone, Debug)]
struct Key {
    request: usize,
    attempt: u32,
    expires: Tick,
}

#[derive(Debug)]
struct World {
    now: Tick,
    processes: [Process; 2],
    callers: [Caller; 3],
    key: Option<Key>,
    /// Commands of dead connections, and second copies.
    late: Vec<Command>,
    left: Bounds,
    /// The server has forgotten something.
    forgot: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(usize),
    Deliver(usize),
    DeliverTwice(usize),
    DeliverLate(usize),
    /// It is answered by an error, and was not executed.
    Refuse(usize),
    /// It was executed, and is answered by an error.
    FailAfter(usize),
    Reply(usize),
    Die(usize),
    DieLate(usize),
    Reconnect(usize),
    Wake(usize),
    Release(usize),
    Drop(usize),
    Abandon(usize),
    RenewNow(usize),
    Close(usize),
    Restart {
        with_data: bool,
    },
    Advance,
}

type Check = Result<(), String>;

impl World {
    /// The world after these steps.
    fn after(steps: &[Step], bounds: &Bounds) -> Result<World, String> {
        let process = |seed| {
            let names = Names::new("lock:", "me").map_err(|error| error.to_string())?;
            Ok::<_, String>(Process {
                leases: Leases::new(names, seed).with_limits(LIMITS[0], LIMITS[1]),
                up: true,
                closed: false,
                sent: VecDeque::new(),
                replies: VecDeque::new(),
            })
        };
        let mut world = World {
            now: START,
            processes: [process(1)?, process(2)?],
            callers: Default::default(),
            key: None,
            late: Vec::new(),
            left: *bounds,
            forgot: false,
        };
        world.take(Step::Begin(0))?;
        for step in steps {
            world.take(*step)?;
        }
        Ok(world)
    }

    /// Every step that can come next.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, caller) in self.callers.iter().enumerate() {
            let Some(id) = caller.id else {
                steps.push(Step::Begin(index));
                continue;
            };
            if caller.dropped || !self.lives(id, index) {
                continue;
            }
            steps.push(Step::Drop(index));
            let holding = caller.acquired == 1 && caller.ended == 0;
            if holding && !caller.released && !caller.abandoned {
                steps.push(Step::Release(index));
                if self.left.whims > 0 {
                    steps.extend([Step::Abandon(index), Step::RenewNow(index)]);
                }
            }
        }
        for (index, process) in self.processes.iter().enumerate() {
            if !process.sent.is_empty() {
                steps.push(Step::Deliver(index));
                if self.left.duplicates > 0 {
                    steps.push(Step::DeliverTwice(index));
                }
                if self.left.errors > 0 {
                    steps.extend([Step::Refuse(index), Step::FailAfter(index)]);
                }
            }
            if !process.replies.is_empty() {
                steps.push(Step::Reply(index));
            }
            // One that has nothing to say or to hear can wait with dying.
            if process.up && self.left.deaths > 0 && !process.leases.is_empty() {
                steps.push(Step::Die(index));
                if !process.sent.is_empty() {
                    steps.push(Step::DieLate(index));
                }
            }
            if !process.up && !process.leases.is_empty() {
                steps.push(Step::Reconnect(index));
            }
            if process.is_due(self.now) {
                steps.push(Step::Wake(index));
            }
            if self.left.whims > 0 && !process.closed && !process.leases.is_empty() {
                steps.push(Step::Close(index));
            }
        }
        steps.extend((0..self.late.len()).map(Step::DeliverLate));
        if self.left.restarts > 0 && self.key.is_some() {
            steps.extend([true, false].map(|with_data| Step::Restart { with_data }));
        }
        let due = self
            .processes
            .iter()
            .filter(|process| process.is_due(self.now));
        let awake = due.count() <= usize::from(self.left.pauses.min(1));
        let delayed = self.processes.iter().any(Process::is_waiting);
        if awake && (self.left.delays > 0 || !delayed) && self.next_instant().is_some() {
            steps.push(Step::Advance);
        }
        steps
    }

    fn lives(&self, id: LeaseId, request: usize) -> bool {
        self.processes[ASKING[request].0].leases.lease(id).is_some()
    }

    /// When something can happen by itself.
    fn next_instant(&self) -> Option<Tick> {
        let timers = self
            .processes
            .iter()
            .filter_map(|process| match process.leases.timer() {
                Deadline::At(at, _) => Some(at),
                _ => None,
            });
        let expiry = self.key.as_ref().map(|key| key.expires);
        timers.chain(expiry).filter(|at| *at > self.now).min()
    }

    fn take(&mut self, step: Step) -> Check {
        let now = self.now;
        match step {
            Step::Begin(index) => {
                let (process, wait) = ASKING[index];
                let request = Request {
                    name: b"n",
                    terms: terms()?,
                    wait,
                    secret: [index as u8 + 1; 16],
                    options: Options::default(),
                    since_ms: 0,
                };
                let id = self.processes[process].leases.acquire(now, &request);
                self.callers[index].id = Some(id.map_err(|error| error.to_string())?);
                self.settle(process)
            }
            Step::Deliver(index) | Step::DeliverTwice(index) => {
                let Some(command) = self.processes[index].sent.pop_front() else {
                    return Ok(());
                };
                if matches!(step, Step::DeliverTwice(_)) {
                    self.left.duplicates -= 1;
                    self.late.push(command.clone());
                }
                let outcome = self.execute(&command);
                self.processes[index].replies.push_back((command, outcome));
                Ok(())
            }
            Step::Refuse(index) | Step::FailAfter(index) => {
                self.left.errors -= 1;
                let Some(command) = self.processes[index].sent.pop_front() else {
                    return Ok(());
                };
                let executed = matches!(step, Step::FailAfter(_));
                let failure = match executed {
                    true => ServerError::Other,
                    false => ServerError::Loading,
                };
                if executed {
                    let _ = self.execute(&command);
                }
                let outcome = Outcome::Failed {
                    failure: Failure::Server(failure),
                    maybe_executed: executed && self.left.bug != Some(Bug::FailedIsUndone),
                };
                self.processes[index].replies.push_back((command, outcome));
                Ok(())
            }
            Step::DeliverLate(at) => {
                let command = self.late.remove(at);
                self.callers[command.request].zombie = true;
                let _ = self.execute(&command);
                Ok(())
            }
            Step::Reply(index) => {
                let process = &mut self.processes[index];
                let Some((command, outcome)) = process.replies.pop_front() else {
                    return Ok(());
                };
                let Op { id, seq, .. } = command.op;
                let trip = now.saturating_since(command.handed_out);
                process.leases.handle_round_trip(id, trip);
                process.leases.handle_outcome(now, id, seq, outcome);
                self.settle(index)
            }
            Step::Die(index) | Step::DieLate(index) => {
                self.left.deaths -= 1;
                self.die(index, matches!(step, Step::DieLate(_)))
            }
            Step::Reconnect(index) => {
                self.processes[index].up = true;
                self.processes[index].leases.handle_link_up(now);
                self.settle(index)
            }
            Step::Wake(index) => {
                self.processes[index].leases.handle_timeout(now);
                match self.processes[index].is_due(now) {
                    true => Err("a timeout left something due".to_owned()),
                    false => self.settle(index),
                }
            }
            Step::Release(_) | Step::Drop(_) | Step::Abandon(_) | Step::RenewNow(_) => {
                self.call(step)
            }
            Step::Close(index) => {
                self.left.whims -= 1;
                self.processes[index].closed = true;
                self.processes[index].leases.close(now);
                self.settle(index)
            }
            Step::Restart { with_data } => {
                self.left.restarts -= 1;
                if !with_data {
                    self.key = None;
                    self.forgot = true;
                }
                // What was on its way to the old one never arrives.
                self.late.clear();
                for index in 0..2 {
                    if self.processes[index].up {
                        self.die(index, false)?;
                    }
                }
                Ok(())
            }
            Step::Advance => {
                let waiting = self.processes.iter().any(Process::is_waiting);
                let asleep = self.processes.iter().any(|process| process.is_due(now));
                // Not when all is well at the end.
                self.left.delays = self.left.delays.saturating_sub(u8::from(waiting));
                self.left.pauses = self.left.pauses.saturating_sub(u8::from(asleep));
                self.now = self.next_instant().unwrap_or(now);
                if self.key.as_ref().is_some_and(|key| key.expires <= self.now) {
                    self.key = None;
                }
                Ok(())
            }
        }
    }

    /// What a caller does.
    fn call(&mut self, step: Step) -> Check {
        let now = self.now;
        let (Step::Release(index)
        | Step::Drop(index)
        | Step::Abandon(index)
        | Step::RenewNow(index)) = step
        else {
            return Ok(());
        };
        let (process, _) = ASKING[index];
        let caller = &mut self.callers[index];
        let Some(id) = caller.id else {
            return Ok(());
        };
        let leases = &mut self.processes[process].leases;
        match step {
            Step::Release(_) => {
                caller.released = true;
                leases.release(now, id);
            }
            Step::Abandon(_) => {
                self.left.whims -= 1;
                caller.abandoned = true;
                leases.abandon(now, id);
            }
            Step::RenewNow(_) => {
                self.left.whims -= 1;
                leases.renew_now(now, id);
            }
            _ => {
                caller.dropped = true;
                leases.drop_guard(now, id);
            }
        }
        self.settle(process)
    }

    fn die(&mut self, index: usize, late: bool) -> Check {
        let now = self.now;
        let process = &mut self.processes[index];
        process.up = false;
        if late {
            self.late.extend(process.sent.iter().cloned());
        }
        let mut orphans: Vec<Command> = Vec::new();
        orphans.extend(process.replies.drain(..).map(|(command, _)| command));
        orphans.extend(process.sent.drain(..));
        if self.left.bug != Some(Bug::DeathIsNotTold) {
            for Command { op, .. } in orphans {
                let outcome = Outcome::NoReply {
                    maybe_executed: true,
                    failure: CLOSED,
                };
                process.leases.handle_outcome(now, op.id, op.seq, outcome);
            }
            process.leases.handle_link_down(now);
        }
        self.settle(index)
    }

    /// The server. Each command is one step.
    fn execute(&mut self, command: &Command) -> Outcome {
        let (me, now) = (command.request, self.now);
        let granted = Outcome::Granted {
            handed_out: command.handed_out,
        };
        let write = |attempt| Key {
            request: me,
            attempt,
            expires: now + LEASE,
        };
        let is = |key: &Key, attempt: u32| key.request == me && key.attempt == attempt;
        let refused = |key: &Key| Outcome::Refused {
            own: (key.request == me).then_some(key.attempt),
            remaining: Some(key.expires.saturating_since(now)),
            watched: false,
        };
        match (command.op.kind, &mut self.key) {
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
            (OpKind::Renew { attempt }, Some(key)) if is(key, attempt) => {
                key.expires = now + LEASE;
                granted
            }
            (OpKind::Adopt { .. } | OpKind::Rotate { .. } | OpKind::Renew { .. }, Some(key)) => {
                refused(key)
            }
            (OpKind::Clear, key) => {
                let shown = key.as_ref();
                let found =
                    shown.and_then(|key| command.values.iter().position(|value| is(key, *value)));
                if found.is_some() || self.left.bug == Some(Bug::DeletesBlindly) {
                    *key = None;
                }
                Outcome::Cleared {
                    mine: found == Some(0),
                }
            }
        }
    }

    /// What a driver does after anything happened to a table.
    fn settle(&mut self, index: usize) -> Check {
        let now = self.now;
        let World {
            processes,
            callers,
            left,
            ..
        } = self;
        let Process {
            leases, up, sent, ..
        } = &mut processes[index];
        // Ids are unique within a table only.
        let whose = |callers: &[Caller; 3], id: Option<LeaseId>| {
            (0..callers.len()).find(|at| ASKING[*at].0 == index && callers[*at].id == id)
        };
        loop {
            while let Some(Event { id, notice }) = leases.poll_event() {
                // What a request is told before it has come back with its name is told to the newest one.
                let request = whose(callers, Some(id)).or_else(|| whose(callers, None));
                let request = request.ok_or("told to nobody")?;
                callers[request].told(&notice)?;
            }
            if let Some(op) = leases.poll_superseded() {
                // Everything handed out has left here; a driver that says otherwise lies.
                if left.bug == Some(Bug::WithdrawsSent) {
                    leases.handle_purged(now, op);
                }
                continue;
            }
            if !*up {
                return Ok(());
            }
            let Some(op) = leases.poll_op(now) else {
                return Ok(());
            };
            let request = whose(callers, Some(op.id)).ok_or("an operation of nobody")?;
            let values = match op.kind {
                OpKind::Clear => {
                    let lease = leases.lease(op.id).ok_or("an operation of no lease")?;
                    lease.leftovers().as_slice().to_vec()
                }
                _ => Vec::new(),
            };
            callers[request].hands_out(op.kind)?;
            if let OpKind::Acquire { .. } = op.kind {
                let others = sent.iter().any(|command| {
                    let acquires = matches!(command.op.kind, OpKind::Acquire { .. });
                    acquires
                        && command.request != request
                        && leases
                            .lease(command.op.id)
                            .is_some_and(|lease| lease.awaits(command.op.seq))
                });
                if others {
                    return Err("two of one process make attempts at once".to_owned());
                }
            }
            sent.push_back(Command {
                request,
                op,
                values,
                handed_out: now,
            });
        }
    }

    /// What is true in every state.
    fn check(&self) -> Check {
        if self.forgot {
            // What the server forgot, nobody can keep.
            return Ok(());
        }
        let held = self
            .callers
            .iter()
            .enumerate()
            .filter_map(|(index, caller)| {
                let leases = &self.processes[ASKING[index].0].leases;
                let id = caller.id.filter(|id| leases.holds_at(*id, self.now))?;
                Some((index, leases.lease(id)?.valid_until()?))
            });
        let held: Vec<(usize, Tick)> = held.collect();
        if held.len() > 1 {
            return Err(format!("held by {held:?}"));
        }
        for (index, until) in held {
            match &self.key {
                Some(key) if key.request != index => {
                    return Err(format!("{index} holds the key of {}", key.request));
                }
                Some(key) if key.expires < until => {
                    return Err(format!("{index} holds longer than the key"));
                }
                Some(_) => {}
                None => return Err(format!("{index} holds what is gone")),
            }
        }
        for (index, caller) in self.callers.iter().enumerate() {
            let Some(id) = caller.id else { continue };
            if self.lives(id, index) {
                continue;
            }
            let process = &self.processes[ASKING[index].0];
            let mine = |command: &Command| command.request == index;
            let quiet = !process.sent.iter().any(mine) && !self.late.iter().any(mine);
            let left = self.key.as_ref().is_some_and(|key| key.request == index);
            if quiet && !caller.zombie && !caller.abandoned && left {
                return Err(format!("{index} is done and left its key behind"));
            }
            if !caller.dropped && caller.refused + caller.ended != 1 {
                return Err(format!("{index} is done without a word"));
            }
        }
        Ok(())
    }

    /// From here on everything is well, and nobody wants the lock any more: it all comes to an end.
    fn finishes(mut self) -> Check {
        let began = self.now;
        while !self.late.is_empty() {
            self.take(Step::DeliverLate(0))?;
        }
        for index in 0..self.callers.len() {
            if self.callers[index].id.is_some() && !self.callers[index].dropped {
                self.take(Step::Drop(index))?;
            }
        }
        loop {
            for index in 0..2 {
                if !self.processes[index].up {
                    self.take(Step::Reconnect(index))?;
                }
                if self.processes[index].is_due(self.now) {
                    self.take(Step::Wake(index))?;
                }
                while self.processes[index].is_waiting() {
                    self.take(Step::Deliver(index))?;
                    self.take(Step::Reply(index))?;
                }
            }
            if self
                .processes
                .iter()
                .all(|process| process.leases.is_empty())
            {
                let odd = |caller: &Caller| caller.zombie || caller.abandoned;
                let excused = self.callers.iter().any(odd);
                return match self.key {
                    Some(key) if !excused => Err(format!("{key:?} is left when everybody is done")),
                    _ => Ok(()),
                };
            }
            // A clean-up is forgotten one lease and one margin after its connection died.
            let long = self.now.saturating_since(began) > LEASE * 11 / 10 + MS * 2;
            if long || self.next_instant().is_none() {
                return Err("no end within a lease, though everything is well".to_owned());
            }
            self.take(Step::Advance)?;
        }
    }

    fn is_over(&self) -> bool {
        let done = |process: &Process| process.leases.is_empty();
        let begun = |caller: &Caller| caller.id.is_some();
        self.late.is_empty() && self.callers.iter().all(begun) && self.processes.iter().all(done)
    }

    fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint(DefaultHasher::new());
        let _ = write!(hash, "{self:?}");
        hash.0.finish()
    }
}

impl Process {
    fn is_waiting(&self) -> bool {
        let down = !self.up && !self.leases.is_empty();
        down || !self.sent.is_empty() || !self.replies.is_empty()
    }

    fn is_due(&self, now: Tick) -> bool {
        self.leases.timer().is_due(now)
    }
}

impl Caller {
    fn told(&mut self, notice: &Notice) -> Check {
        if self.dropped {
            return Err(format!("told after the drop: {notice:?}"));
        }
        match notice {
            Notice::Acquired { .. } => self.acquired += 1,
            Notice::Held(_) | Notice::TimedOut(_) | Notice::Failed(_) => self.refused += 1,
            Notice::Lost { .. } | Notice::Released { .. } | Notice::Abandoned => self.ended += 1,
            Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished => {}
        }
        match self.acquired + self.refused > 1 || self.ended > self.acquired {
            true => Err(format!("a second end: {notice:?}")),
            false => Ok(()),
        }
    }

    fn hands_out(&self, kind: OpKind) -> Check {
        let silent = self.dropped || self.released || self.refused + self.ended > 0;
        match kind {
            _ if self.abandoned => Err(format!("{kind:?} for what was abandoned")),
            OpKind::Clear if self.ended == 1 && !self.dropped && !self.released => {
                Err("cleared before the guard was gone".to_owned())
            }
            OpKind::Clear => Ok(()),
            _ if silent => Err(format!("{kind:?} after the end")),
            _ => Ok(()),
        }
    }
}

fn terms() -> Result<Terms, String> {
    LeaseConfig::new(LEASE)
        .renew_every(MS * 450)
        .give_up_after(MS * 800)
        .build()
        .map_err(|error| error.to_string())
}

/// Hashes what is printed, without keeping it.
struct Fingerprint(DefaultHasher);

impl std::fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// What was broken, and the steps that led there.
type Violation = (String, Vec<Step>);

fn search(bounds: &Bounds) -> Option<Violation> {
    let began = Instant::now();
    let (mut transitions, mut cut, mut over) = (0_u64, 0_u64, 0_u64);
    let mut met = HashSet::new();
    let mut waiting: VecDeque<Vec<Step>> = VecDeque::from([Vec::new()]);
    let mut violation = None;
    'search: while let Some(path) = waiting.pop_front() {
        let world = match World::after(&path, bounds) {
            Ok(world) => world,
            Err(why) => {
                violation = Some((why, path));
                break;
            }
        };
        for step in world.steps() {
            transitions += 1;
            let mut next = path.clone();
            next.push(step);
            let broken = match World::after(&next, bounds).and_then(|world| {
                world.check()?;
                Ok(world)
            }) {
                Err(why) => Some(why),
                Ok(world) if !met.insert(world.fingerprint()) => continue,
                Ok(world) if world.is_over() => {
                    over += 1;
                    world.finishes().err()
                }
                Ok(world) => {
                    if next.len() < usize::from(bounds.depth) {
                        waiting.push_back(next.clone());
                    } else {
                        cut += 1;
                    }
                    world.finishes().err()
                }
            };
            if let Some(why) = broken {
                violation = Some((why, next));
                break 'search;
            }
        }
    }
    println!(
        "{}{}: {} states, {transitions} transitions, {over} ends, {cut} at the bounds, {:.1} s",
        bounds.name,
        bounds
            .bug
            .map_or(String::new(), |bug| format!(" with {bug:?}")),
        met.len(),
        began.elapsed().as_secs_f64()
    );
    violation
}

const BASE: Bounds = Bounds {
    name: "calm",
    depth: 8,
    deaths: 0,
    duplicates: 0,
    delays: 1,
    pauses: 0,
    errors: 0,
    restarts: 0,
    whims: 0,
    bug: None,
};

const SEARCHES: &[Bounds] = &[
    BASE,
    Bounds {
        name: "one death",
        depth: 7,
        deaths: 1,
        ..BASE
    },
    Bounds {
        name: "executed twice",
        depth: 7,
        duplicates: 1,
        ..BASE
    },
    Bounds {
        name: "one restart",
        depth: 7,
        restarts: 1,
        ..BASE
    },
    Bounds {
        name: "two errors",
        depth: 7,
        errors: 2,
        ..BASE
    },
    Bounds {
        name: "slept through",
        depth: 7,
        pauses: 1,
        ..BASE
    },
    Bounds {
        name: "abandoned, renewed by hand, closed",
        depth: 7,
        whims: 2,
        ..BASE
    },
    Bounds {
        name: "a death, an error and a whim",
        depth: 6,
        deaths: 1,
        errors: 1,
        whims: 1,
        ..BASE
    },
];

fn holds(bounds: &Bounds) {
    if let Some((why, steps)) = search(bounds) {
        panic!("{}: {why}, after {steps:#?}", bounds.name);
    }
}

#[test]
fn every_interleaving_of_two_tables_keeps_the_rules() {
    for bounds in SEARCHES {
        holds(bounds);
    }
}

/// The same, deeper: `cargo test --release -p tenure-core --test exhaustive_leases -- --ignored --nocapture`
#[test]
#[ignore = "minutes, in a release build"]
fn every_interleaving_of_two_tables_keeps_the_rules_deeper() {
    for bounds in SEARCHES {
        holds(&Bounds {
            depth: bounds.depth + 2,
            ..*bounds
        });
    }
}

/// A search that finds nothing shows nothing.
#[test]
fn planted_faults_in_what_is_around_the_tables_are_found() {
    for (bug, bounds) in [
        (Bug::FailedIsUndone, Bounds { errors: 1, ..BASE }),
        (Bug::DeathIsNotTold, Bounds { deaths: 1, ..BASE }),
        (Bug::DeletesBlindly, BASE),
        (Bug::WithdrawsSent, BASE),
    ] {
        let bounds = Bounds {
            bug: Some(bug),
            ..bounds
        };
        match search(&bounds) {
            Some((why, steps)) => println!("{bug:?}: {why}, after {steps:?}"),
            None => panic!("{bug:?} is not found"),
        }
    }
}
