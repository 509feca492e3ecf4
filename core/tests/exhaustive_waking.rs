//! Every interleaving, to a bound, of being woken: two processes with three requests for one name, a server that tells of changes
//! to keys that were read, somebody who deletes and replaces the key, and connections that die. No timer wakes anybody: the
//! asking from time to time is switched off, and the server says of no lease when it ends.
//!
//! Wherever nothing is on its way any more, nobody may wait for a free name, and nobody may hold what is not his on the server.
//! That the search would find it is shown by faults that are planted in the server and the driver here.
//!
//! As in `exhaustive_leases.rs` a state is the steps that lead to it, and is told from others by what it prints.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::time::Duration;

use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::conn::{Reply, ServerInfo};
use tenure_core::error::{Failure, LinkFault};
use tenure_core::lease::State;
use tenure_core::leases::{LeaseId, Leases, Options, Request};
use tenure_core::names::Names;
use tenure_core::plan::{Call, Dialect, Partial};
use tenure_core::resp::{Arg, Value};
use tenure_core::time::{Deadline, Reason, Tick};

const KEY: &[u8] = b"lock:a";
const CLOSED: Failure = Failure::Link(LinkFault::Closed);
/// A retry that is due this soon is made; one that is due later does not count.
const SOON: Duration = Duration::from_millis(10);
/// The process of each request.
const ASKING: [usize; 3] = [0, 1, 1];

#[derive(Clone, Copy, Debug)]
struct Bounds {
    name: &'static str,
    depth: usize,
    /// Somebody else deletes or replaces the key.
    meddles: u8,
    deaths: u8,
    /// The server is older: it answers a refusal with nothing.
    old: bool,
    bug: Option<Bug>,
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The server does not take the read behind an attempt for a wish to be told.
    ReadDoesNotCount,
    /// The driver takes no notice of what it is told.
    Deaf,
    /// The driver does not say that it has connected again.
    SilentReconnect,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Serve(usize),
    Hear(usize),
    Retry(usize),
    Release(usize),
    Drop(usize),
    Delete,
    Replace,
    Free,
    Die(usize),
    Reconnect(usize),
}

#[derive(Clone, Debug)]
enum Answer {
    Null,
    Ok,
    Int(i64),
    Bulk(Vec<u8>),
    SyntaxError,
}

#[derive(Debug)]
enum Message {
    Answer(Call, u8, Answer),
    Changed,
}

/// A command, the call that it belongs to, and how many more of that follow.
type Command = (Vec<Vec<u8>>, Call, u8);

struct Process {
    leases: Leases,
    dialect: Dialect,
    partial: Partial,
    up: bool,
    /// Calls without an answer, in order.
    calls: VecDeque<Call>,
    to_server: VecDeque<Command>,
    to_client: VecDeque<Message>,
    /// The server tells it of the next change.
    told: bool,
}

struct World {
    now: Tick,
    processes: [Process; 2],
    requests: [LeaseId; 3],
    released: [bool; 3],
    key: Option<Vec<u8>>,
    meddles: u8,
    deaths: u8,
    /// A name was found free of which nothing had been told.
    missed: bool,
    bounds: Bounds,
}

impl World {
    fn after(steps: &[Step], bounds: Bounds) -> World {
        let mut processes = [1, 2].map(|seed| {
            let names = Names::new("lock:", "p").expect("names");
            let mut dialect = Dialect::of(&ServerInfo::default());
            dialect.ask_to_watch();
            dialect.set_watched(true);
            Process {
                leases: Leases::new(names, seed).with_poll_limit(Duration::MAX),
                dialect,
                partial: Partial::default(),
                up: true,
                calls: VecDeque::new(),
                to_server: VecDeque::new(),
                to_client: VecDeque::new(),
                told: false,
            }
        });
        let now = Tick::from_micros(1_000_000);
        let lease = LeaseConfig::new(Duration::from_secs(3_600));
        let terms = lease.build().expect("terms");
        let mut secret = 0;
        let requests = ASKING.map(|process| {
            secret += 1;
            let request = Request {
                name: b"a",
                terms,
                wait: Wait::Forever,
                secret: [secret; 16],
                options: Options::default(),
                since_ms: 0,
            };
            let leases = &mut processes[process].leases;
            leases.acquire(now, &request).expect("a good name")
        });
        let mut world = World {
            now,
            processes,
            requests,
            released: [false; 3],
            key: None,
            meddles: bounds.meddles,
            deaths: bounds.deaths,
            missed: false,
            bounds,
        };
        world.settle();
        steps.iter().for_each(|step| world.take(*step));
        world
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, process) in self.processes.iter().enumerate() {
            if !process.to_server.is_empty() {
                steps.push(Step::Serve(index));
            }
            if !process.to_client.is_empty() {
                steps.push(Step::Hear(index));
            }
            if self.retry(index).is_some() {
                steps.push(Step::Retry(index));
            }
            if process.up && self.deaths > 0 {
                steps.push(Step::Die(index));
            }
            if !process.up {
                steps.push(Step::Reconnect(index));
            }
        }
        for request in 0..ASKING.len() {
            match self.state(request) {
                Some(state) if state.is_held() && !self.released[request] => {
                    steps.push(Step::Release(request));
                }
                Some(State::Backoff | State::Acquiring) if self.meddles > 0 => {
                    steps.push(Step::Drop(request));
                }
                _ => {}
            }
        }
        if self.meddles > 0 && self.key.is_some() {
            steps.extend([Step::Delete, Step::Replace]);
        }
        if self.key.as_deref() == Some(b"theirs") {
            steps.push(Step::Free);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Serve(index) => self.serve(index),
            Step::Hear(index) => self.hear(index),
            Step::Retry(index) => {
                self.now = self.retry(index).expect("one was due");
                self.processes[index].leases.handle_timeout(self.now);
            }
            Step::Release(request) => {
                self.released[request] = true;
                let process = &mut self.processes[ASKING[request]];
                process.leases.release(self.now, self.requests[request]);
            }
            Step::Drop(request) => {
                self.meddles -= 1;
                let process = &mut self.processes[ASKING[request]];
                process.leases.drop_guard(self.now, self.requests[request]);
            }
            Step::Delete => {
                self.meddles -= 1;
                self.write(None);
            }
            Step::Replace => {
                self.meddles -= 1;
                self.write(Some(b"theirs".to_vec()));
            }
            // What they have taken they give back, at any time.
            Step::Free => self.write(None),
            Step::Die(index) => {
                self.deaths -= 1;
                let now = self.now;
                let process = &mut self.processes[index];
                (process.up, process.told) = (false, false);
                process.to_server.clear();
                process.to_client.clear();
                let Process {
                    leases,
                    partial,
                    calls,
                    ..
                } = process;
                for call in calls.drain(..) {
                    call.handle_no_reply(now, leases, partial, true, CLOSED);
                }
                *partial = Partial::default();
                process.leases.handle_link_down(now);
            }
            Step::Reconnect(index) => {
                let process = &mut self.processes[index];
                process.up = true;
                if self.bounds.bug != Some(Bug::SilentReconnect) {
                    process.leases.handle_link_up(self.now);
                }
            }
        }
        self.settle();
    }

    /// Hands out what is wanted, as a driver does at once.
    fn settle(&mut self) {
        let now = self.now;
        for process in &mut self.processes {
            while process.leases.poll_superseded().is_some() {}
            while process.leases.poll_event().is_some() {}
            self.missed |= process.leases.take_missed();
            while process.up {
                let Some(op) = process.leases.poll_op(now) else {
                    break;
                };
                let call = Call::new(&process.dialect, op);
                process.send(call);
            }
        }
        // A loss is the end of the work.
        for (request, process) in ASKING.into_iter().enumerate() {
            if self.state(request) == Some(State::Lost) {
                let process = &mut self.processes[process];
                process.leases.drop_guard(now, self.requests[request]);
            }
        }
    }

    fn serve(&mut self, index: usize) {
        let (words, call, more) = self.processes[index]
            .to_server
            .pop_front()
            .expect("a command");
        let value = |at: usize| words[at].clone();
        let held = |key: &Option<Vec<u8>>| key.clone().map_or(Answer::Null, Answer::Bulk);
        let is = |word: &[u8]| words.iter().any(|other| other == word);
        let answer = match &words[0][..] {
            b"SET" if self.bounds.old && (is(b"GET") || is(b"IFEQ")) => Answer::SyntaxError,
            b"SET" if is(b"NX") => {
                let was = held(&self.key);
                if self.key.is_none() {
                    self.write(Some(value(2)));
                }
                match (is(b"GET"), was) {
                    (true, was) => was,
                    (false, Answer::Null) => Answer::Ok,
                    (false, _) => Answer::Null,
                }
            }
            b"SET" => {
                let was = held(&self.key);
                if self.key.as_ref() == Some(&words[4]) {
                    self.write(Some(value(2)));
                }
                was
            }
            // The scripts of an older server: compare, and renew, replace or delete.
            b"EVAL" | b"EVALSHA" => match self.key.clone() {
                Some(key) if key == words[4] => {
                    let renews = words.len() == 6;
                    let adopts = words.len() == 7;
                    let new = if adopts {
                        Some(value(6))
                    } else {
                        renews.then(|| value(4))
                    };
                    self.write(new);
                    Answer::Int(1)
                }
                _ if words.len() == 5 => Answer::Int(0),
                key => held(&key),
            },
            b"DELEX" => {
                let mine = self.key.as_ref() == Some(&words[3]);
                if mine {
                    self.write(None);
                }
                Answer::Int(i64::from(mine))
            }
            // No lease says when it ends.
            b"PTTL" if self.key.is_some() => self.read(index, Answer::Int(-1)),
            b"PTTL" => self.read(index, Answer::Int(-2)),
            b"GET" if words[1] == KEY => {
                let key = held(&self.key);
                self.read(index, key)
            }
            b"GET" => Answer::Null,
            other => panic!("{}", other.escape_ascii()),
        };
        let process = &mut self.processes[index];
        let answer = Message::Answer(call, more, answer);
        // What the command itself has caused follows its answer.
        match process.to_client.back() {
            Some(Message::Changed) if words[0] != b"PTTL" && words[0] != b"GET" => {
                let caused = process.to_client.pop_back();
                process.to_client.push_back(answer);
                process.to_client.extend(caused);
            }
            _ => process.to_client.push_back(answer),
        }
    }

    fn read(&mut self, index: usize, answer: Answer) -> Answer {
        self.processes[index].told |= self.bounds.bug != Some(Bug::ReadDoesNotCount);
        answer
    }

    fn write(&mut self, value: Option<Vec<u8>>) {
        self.key = value;
        for process in &mut self.processes {
            if std::mem::take(&mut process.told) {
                process.to_client.push_back(Message::Changed);
            }
        }
    }

    fn hear(&mut self, index: usize) {
        let (now, bug) = (self.now, self.bounds.bug);
        let process = &mut self.processes[index];
        match process.to_client.pop_front().expect("a message") {
            Message::Changed if bug == Some(Bug::Deaf) => {}
            Message::Changed => process.leases.handle_changed(now, KEY),
            Message::Answer(call, more, answer) => {
                let value = match &answer {
                    Answer::Null => Value::Null,
                    Answer::Ok => Value::Simple(b"OK"),
                    Answer::Int(n) => Value::Int(*n),
                    Answer::Bulk(bytes) => Value::Bulk(bytes),
                    Answer::SyntaxError => Value::Error(b"ERR syntax error"),
                };
                let reply = Reply {
                    tag: call,
                    value,
                    handed_out: now,
                    more,
                };
                if more == 0 {
                    process.calls.pop_front();
                }
                let again = Call::handle_reply(
                    &reply,
                    now,
                    &mut process.leases,
                    &mut process.dialect,
                    &mut process.partial,
                );
                if let Some(call) = again {
                    process.send(call);
                }
            }
        }
    }

    /// When the next retry of this process is due, if that is soon.
    fn retry(&self, index: usize) -> Option<Tick> {
        match self.processes[index].leases.timer() {
            Deadline::At(at, Reason::Retry | Reason::CleanUpRetry) if at <= self.now + SOON => {
                Some(at)
            }
            _ => None,
        }
    }

    fn state(&self, request: usize) -> Option<State> {
        let lease = self.processes[ASKING[request]]
            .leases
            .lease(self.requests[request])?;
        Some(lease.state())
    }

    fn is_quiet(&self) -> bool {
        (0..2).all(|index| {
            let process = &self.processes[index];
            let empty = process.to_server.is_empty() && process.to_client.is_empty();
            process.up && empty && self.retry(index).is_none()
        })
    }

    /// What must be true wherever nothing is on its way.
    fn check(&self) -> Result<(), String> {
        if !self.is_quiet() {
            return Ok(());
        }
        for (request, process) in ASKING.into_iter().enumerate() {
            let id = self.requests[request];
            let leases = &self.processes[process].leases;
            match self.state(request) {
                Some(State::Backoff) if self.key.is_none() => {
                    return Err(format!("request {request} waits for a free name"));
                }
                Some(state) if state.is_held() => {
                    let key = self.key.as_deref().unwrap_or_default();
                    if leases.own_attempt(id, key).is_none() {
                        return Err(format!("request {request} holds what is not its own"));
                    }
                }
                _ => {}
            }
        }
        if self.missed {
            return Err("a wake-up is said to have been missed".to_owned());
        }
        Ok(())
    }

    fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint(DefaultHasher::new());
        for process in &self.processes {
            let Process {
                leases,
                partial,
                up,
                calls,
                to_server,
                to_client,
                told,
                dialect,
            } = process;
            write!(
                hash,
                "{leases:?}{partial:?}{up}{calls:?}{to_server:?}{to_client:?}{told}{dialect:?}"
            )
            .expect("hashing");
        }
        let World {
            released,
            key,
            meddles,
            deaths,
            ..
        } = self;
        write!(hash, "{released:?}{key:?}{meddles}{deaths}").expect("hashing");
        hash.0.finish()
    }
}

impl Process {
    fn send(&mut self, call: Call) {
        let mut commands = Vec::new();
        call.commands(&self.leases, |args| {
            let words = args.iter().map(|arg| match arg {
                Arg::Bytes(bytes) => bytes.to_vec(),
                Arg::Int(n) => n.to_string().into_bytes(),
                Arg::Parts(parts) => parts.concat(),
            });
            commands.push(words.collect::<Vec<_>>());
        });
        if commands.is_empty() {
            return;
        }
        self.calls.push_back(call);
        let last = commands.len() - 1;
        for (at, words) in commands.into_iter().enumerate() {
            self.to_server.push_back((words, call, (last - at) as u8));
        }
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

/// What was broken, and the steps that led there.
type Violation = (String, Vec<Step>);

fn search(bounds: Bounds) -> Option<Violation> {
    let (mut transitions, mut quiet) = (0_u64, 0_u64);
    let mut met = HashSet::new();
    let mut waiting: VecDeque<Vec<Step>> = VecDeque::from([Vec::new()]);
    let mut violation = None;
    'search: while let Some(path) = waiting.pop_front() {
        for step in World::after(&path, bounds).steps() {
            transitions += 1;
            let mut next = path.clone();
            next.push(step);
            let world = World::after(&next, bounds);
            if !met.insert(world.fingerprint()) {
                continue;
            }
            if let Err(why) = world.check() {
                violation = Some((why, next));
                break 'search;
            }
            quiet += u64::from(world.is_quiet());
            if next.len() < bounds.depth {
                waiting.push_back(next);
            }
        }
    }
    let Bounds { name, bug, .. } = bounds;
    println!(
        "{name} {bug:?}: {} states, of which {quiet} with nothing on its way, {transitions} transitions",
        met.len()
    );
    violation
}

const BASE: Bounds = Bounds {
    name: "calm",
    depth: 60,
    meddles: 0,
    deaths: 0,
    old: false,
    bug: None,
};

const SEARCHES: &[Bounds] = &[
    BASE,
    Bounds {
        name: "an older server",
        depth: 24,
        old: true,
        ..BASE
    },
    Bounds {
        name: "one death",
        depth: 15,
        deaths: 1,
        ..BASE
    },
    Bounds {
        name: "meddled with",
        depth: 14,
        meddles: 1,
        ..BASE
    },
    Bounds {
        name: "a death, and meddled with twice",
        depth: 9,
        meddles: 2,
        deaths: 1,
        ..BASE
    },
];

#[test]
fn s9_in_every_interleaving_nobody_waits_for_a_free_name() {
    for bounds in SEARCHES {
        if let Some((why, steps)) = search(*bounds) {
            panic!("{}: {why}, after {steps:#?}", bounds.name);
        }
    }
}

/// The same, deeper: `cargo test --release -p tenure-core --test exhaustive_waking -- --ignored --nocapture`
#[test]
#[ignore = "minutes, in a release build"]
fn s9_in_every_interleaving_nobody_waits_for_a_free_name_deeper() {
    for bounds in SEARCHES {
        let deeper = Bounds {
            depth: bounds.depth + 4,
            ..*bounds
        };
        if let Some((why, steps)) = search(deeper) {
            panic!("{}: {why}, after {steps:#?}", bounds.name);
        }
    }
}

#[test]
fn planted_faults_in_what_wakes_are_found() {
    for (bug, meddles, deaths) in [
        (Bug::ReadDoesNotCount, 0, 0),
        (Bug::Deaf, 0, 0),
        (Bug::SilentReconnect, 0, 1),
    ] {
        let bounds = Bounds {
            bug: Some(bug),
            meddles,
            deaths,
            ..BASE
        };
        assert!(search(bounds).is_some(), "{bug:?} was not found");
    }
}
