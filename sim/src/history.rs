//! Random histories: clients that do everything a user can, while a nemesis does everything that can go wrong.
//!
//! A history is its seed: world, clients, faults and what every task does are drawn from it, so that a violation is
//! replayed by its number.

mod clients;
mod nemesis;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::rng::Rng;

use crate::checker::{Assumption, Assumptions, Checker, Want};
use crate::keys::Dialect;
use crate::machine::{Client, ServerHandle};
use crate::world::{Counts, Sim, World};
pub use nemesis::{Fault, faults};

/// The least number of events of a history, without those of the checker itself.
pub const LEAST_EVENTS: u64 = 200;
/// The least number of clients.
pub const LEAST_CLIENTS: usize = 2;
/// One history in so many is a long one.
const LONG: u64 = 50;
/// One in so many has nothing but outages, so that what they cost can be judged; another one nothing that could delay or lose
/// what the server tells, so that this can.
const MEASURED: u64 = 12;
/// Of so many histories one has a server with one replica, and one with two.
const REPLICATED: u64 = 6;
/// How long these take to receive what is written, in milliseconds of a long history.
const LAG: u64 = 40;
/// What a fresh client may need more than one lease to get a name once everything is well.
const GRACE: Duration = Duration::from_secs(3);
/// No task of a history can be busy for so long.
const STUCK: Duration = Duration::from_secs(60);

/// What a history led to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// What was broken, if anything.
    pub violations: Vec<String>,
    /// What happened in the world: deliveries, timers, polls. The checker's own looks are not counted.
    pub events: u64,
    /// Machines that a client ran on.
    pub clients: usize,
    /// Commands that the server executed or refused.
    pub commands: u64,
    /// Requests that were made.
    pub requests: u64,
    /// Requests that were granted.
    pub grants: u64,
    /// Holds that were lost.
    pub losses: u64,
    /// Grants of fair requests in their turn, and of others while fair ones stood in the queue.
    pub turns_and_overtakings: (u64, u64),
    /// Writes that all replicas have confirmed that had to, and writes they have not.
    pub confirmed_and_not: (u64, u64),
    /// How often each fault was injected.
    pub faults: BTreeMap<Fault, u64>,
    /// What the faults led to in the network and the server.
    pub counts: Counts,
    /// Everything that happened, if it was recorded.
    pub trace: String,
}

impl Report {
    /// What a history lacks that shows anything, if it was played to its end.
    pub fn lacks(&self) -> Option<String> {
        let small = self.clients < LEAST_CLIENTS || self.events < LEAST_EVENTS;
        ((small || self.faults.is_empty()) && self.violations.is_empty()).then(|| {
            let (clients, events) = (self.clients, self.events);
            let faults: u64 = self.faults.values().sum();
            format!("too little: {clients} clients, {events} events, {faults} faults")
        })
    }
}

/// What the tasks of a history share.
#[derive(Clone)]
struct Stage {
    world: World,
    server: ServerHandle,
    checker: Checker,
    kind: Kind,
    /// How many replicas the server has.
    replicas: u8,
    /// Nothing goes wrong that can lose what a server tells, and nobody notice.
    told: bool,
    names: usize,
    pace: Pace,
    clients: Arc<Mutex<Vec<Client>>>,
    running: Arc<Mutex<Running>>,
    /// How far the server's clock was stepped back, in milliseconds.
    behind: Arc<Mutex<i64>>,
    /// How often the checker looked.
    looks: Arc<AtomicU64>,
    /// Until when faults go on; then everything is well.
    until: Arc<Mutex<Duration>>,
}

/// What goes wrong in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Anything.
    Any,
    /// Nothing but outages.
    Outages,
    /// Nothing that could delay or lose what a server tells.
    Waking,
}

/// How fast a history lives: everything that takes time is drawn in proportion.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Of the times of a long history, which has leases of up to four seconds.
    percent: u32,
    leases: (Duration, Duration),
    until: Duration,
}

impl Pace {
    /// Most histories are short, so that many can be run: a few leases one after another show almost everything. What
    /// shows only in the long run is left to the few long ones.
    fn draw(below: &mut impl FnMut(u64) -> u64) -> Pace {
        let long = below(LONG) == 0;
        let percent = if long { 100 } else { 10 + below(31) as u32 };
        let (least, most, until) = match (long, below(3)) {
            (true, 0) => (300, 900, 4_000 + below(8_000)),
            (true, _) => (500, 4_000, 4_000 + below(8_000)),
            (false, 0) => (300, 900, 1_000 + below(1_500)),
            (false, _) => (500, 3_000, 1_000 + below(1_500)),
        };
        let pace = Pace {
            percent,
            leases: (Duration::ZERO, Duration::ZERO),
            until: Duration::ZERO,
        };
        Pace {
            leases: (pace.ms(least), pace.ms(most)),
            until: pace.ms(until),
            ..pace
        }
    }

    /// With leases that last long enough for something to be measured by them.
    fn measured(below: &mut impl FnMut(u64) -> u64) -> Pace {
        Pace {
            percent: 50,
            leases: (
                Duration::from_millis(600),
                Duration::from_millis(601 + below(1_500)),
            ),
            until: Duration::from_millis(1_500 + below(3_000)),
        }
    }

    /// So many milliseconds of a long history.
    fn ms(self, long: u64) -> Duration {
        Duration::from_millis(long) * self.percent / 100
    }

    /// The longest lease there can be: the checker makes each one unique, if need be by making it longer.
    fn longest(self) -> Duration {
        self.leases.1 + Duration::from_secs(1)
    }
}

/// Tasks that have not ended.
#[derive(Default)]
struct Running {
    tasks: BTreeMap<u64, &'static str>,
    next: u64,
}

/// Says that a task has ended, also when its process was killed.
struct Busy {
    stage: Stage,
    id: u64,
}

/// Runs the history of a seed. With `record` it writes down what happens.
pub fn run(seed: u64, record: bool) -> Report {
    let mut sim = Sim::new(seed);
    if record {
        sim.record();
    }
    let result = catch_unwind(AssertUnwindSafe(|| play(&mut sim, seed)));
    let mut report = match result {
        Ok(report) => report,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            Report {
                violations: vec![format!("a panic: {text}")],
                events: sim.happened(),
                ..Report::default()
            }
        }
    };
    report.trace = sim.trace();
    report
}

fn play(sim: &mut Sim, seed: u64) -> Report {
    // Not the world's: that one goes on while tasks run.
    let mut rng = Rng::new(seed ^ 0x5eed_0f7e_5700);
    let mut below = |bound: u64| rng.next_u64() % bound;
    let world = sim.world();
    let dialect = [Dialect::Redis8, Dialect::Valkey9, Dialect::Redis7][below(3) as usize];
    let server = world.server_with_drift("db", dialect, below(40_001) as i64 - 20_000);
    // Half of the histories keep every assumption but the one about zombies, so that nothing is excused.
    let mut assumed = Assumptions::ALL.without(Assumption::A7);
    let kind = match below(MEASURED) {
        0 => Kind::Outages,
        1 => Kind::Waking,
        _ => Kind::Any,
    };
    let loose = below(2) == 0 && kind == Kind::Any;
    for assumption in [
        Assumption::A1,
        Assumption::A2,
        Assumption::A3,
        Assumption::A4,
        Assumption::A6,
    ] {
        if loose && below(2) == 0 {
            assumed = assumed.without(assumption);
        }
    }
    if kind == Kind::Waking {
        // Keys are deleted and replaced, and everybody is told.
        assumed = assumed.without(Assumption::A3).without(Assumption::A6);
    }
    let checker = Checker::new(&world, &server, assumed);
    let pace = match kind {
        Kind::Any => Pace::draw(&mut below),
        Kind::Outages | Kind::Waking => Pace::measured(&mut below),
    };
    match kind {
        Kind::Any => {}
        Kind::Outages => checker.only_outages(),
        Kind::Waking => checker.only_waking(),
    }
    let replicas = match (kind, seed % REPLICATED) {
        (Kind::Any, extra @ 1..=2) => extra as u8,
        _ => 0,
    };
    for replica in 0..u64::from(replicas) {
        server.add_replica(pace.ms(1 + (seed / REPLICATED + 30 * replica) % LAG));
    }
    let kinds = nemesis::choose(assumed, replicas > 0, &mut below);
    let stage = Stage {
        world: world.clone(),
        server: server.clone(),
        checker: checker.clone(),
        kind,
        replicas,
        told: kind != Kind::Any || !kinds.contains(&Fault::LoseTracking),
        names: 1 + below(3) as usize,
        pace,
        clients: Arc::default(),
        running: Arc::default(),
        behind: Arc::default(),
        looks: Arc::default(),
        until: Arc::new(Mutex::new(pace.until)),
    };
    for _ in 0..LEAST_CLIENTS as u64 + below(3) {
        clients::start(&stage);
    }
    let played = stage.clone();
    let faults: Arc<Mutex<BTreeMap<Fault, u64>>> = Arc::default();
    if !assumed.has(Assumption::A2) {
        lock(&faults).insert(Fault::Drift, 1);
    }
    let counted = Arc::clone(&faults);
    sim.block_on(async move {
        match kind {
            Kind::Outages => nemesis::start_outages(&stage, &counted),
            Kind::Waking => nemesis::start(&stage, nemesis::THAT_WAKE.to_vec(), &counted),
            Kind::Any => {
                for _ in 0..1 + stage.world.below(2) {
                    nemesis::start(&stage, kinds.clone(), &counted);
                }
            }
        }
        watch(&stage);
        stage.all_done().await;
        while stage.events() < LEAST_EVENTS {
            // Nothing but silence so far, or everybody has closed.
            stage.prolong();
            clients::start(&stage);
            stage.all_done().await;
        }
        nemesis::heal(&stage);
        if clients::within(&stage.world, STUCK, aftermath(&stage))
            .await
            .is_none()
        {
            stage
                .checker
                .violation("a fresh client is stuck though everything is well".to_owned());
        }
        stage.checker.finish();
    });
    let (grants, losses) = checker.grants_and_losses();
    Report {
        violations: checker.violations(),
        events: played.events(),
        clients: played.clients().len(),
        commands: server.executed_count(),
        requests: checker.requests(),
        grants,
        losses,
        turns_and_overtakings: checker.turns_and_overtakings(),
        confirmed_and_not: checker.confirmed_and_not(),
        faults: lock(&faults).clone(),
        counts: world.counts(),
        ..Report::default()
    }
}

/// Looks at everything at random instants, until nobody else knows the stage any more.
fn watch(stage: &Stage) {
    let (world, checker) = (stage.world.clone(), stage.checker.clone());
    let (pace, looks) = (stage.pace, Arc::clone(&stage.looks));
    let running = Arc::downgrade(&stage.running);
    stage.world.clone().spawn(async move {
        while let Some(running) = running.upgrade() {
            // In the end there is little to be seen.
            let busy = !lock(&running).tasks.is_empty();
            drop(running);
            let most = pace.ms(if busy { 40 } else { 800 });
            world.sleep(world.up_to(most)).await;
            looks.fetch_add(1, Ordering::Relaxed);
            checker.probe();
        }
    });
}

/// Everything is dropped and well: nothing may be left, and whoever comes gets every name.
async fn aftermath(stage: &Stage) {
    let world = &stage.world;
    world.note(|| "everything is well".to_owned());
    world.sleep(GRACE).await;
    // Asked now: what lingered has arrived.
    let clocks = [Assumption::A1, Assumption::A2, Assumption::A3];
    if stage.checker.assumes(&clocks) && nothing_lingers(stage) {
        for (key, value, left) in ours(stage) {
            if stage.checker.may_cool(&value) {
                continue;
            }
            stage.checker.violation(format!(
                "S6 {key} still has {value} for {left:?}, {GRACE:?} after everything was well"
            ));
        }
    }
    let client = world.client();
    let Ok((locks, _)) = clients::connect(stage, &client).await else {
        stage
            .checker
            .violation("nobody can connect though everything is well".to_owned());
        return;
    };
    let lease = Duration::from_secs(1);
    let longest = stage.pace.longest() + stage.pace.ms(nemesis::LATEST);
    for name in 0..stage.names {
        let name = clients::name(name);
        let ask = stage
            .checker
            .ask(&client, &name, Want::wait(lease, longest + GRACE));
        ask.begun(false);
        match locks.lock(&name).options(ask.options()).acquire().await {
            Ok(lock) => {
                let guard = ask.acquired(lock);
                if let Err(error) = guard.release().await {
                    stage
                        .checker
                        .violation(format!("the release of a fresh client failed: {error}"));
                }
            }
            Err(error) => {
                let left = stage.server.keys();
                ask.failed(&error);
                stage.checker.violation(format!(
                    "liveness: {name} cannot be had though everything is well: {error}; {left:?}"
                ));
            }
        }
    }
    drop(locks);
    world.sleep(longest + Duration::from_secs(1)).await;
    for (key, value, left) in ours(stage) {
        stage.checker.violation(format!(
            "S6 {key} still has {value} for {left:?}, a lease after everything was well"
        ));
    }
}

fn ours(stage: &Stage) -> impl Iterator<Item = (String, String, Option<Duration>)> {
    let keys = stage.server.keys().into_iter();
    keys.filter(|(_, value, _)| value.starts_with("tn1:"))
}

/// Whether every key has somebody left who would clear it.
fn nothing_lingers(stage: &Stage) -> bool {
    stage.world.counts().zombies == 0
        && stage.checker.abandoned() == 0
        && stage.clients().iter().all(|client| !client.is_killed())
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    fn clients(&self) -> Vec<Client> {
        lock(&self.clients).clone()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        lock(&self.running)
    }

    /// A span of up to so many milliseconds of a long history.
    fn up_to(&self, long: u64) -> Duration {
        self.world.up_to(self.pace.ms(long))
    }

    fn until(&self) -> Duration {
        *lock(&self.until)
    }

    /// Whether faults go on and requests are made.
    fn goes_on(&self) -> bool {
        self.world.now() < self.until()
    }

    fn prolong(&self) {
        *lock(&self.until) = self.world.now() + self.pace.until;
    }

    /// What has happened, without the looks of the checker: each was woken and polled.
    fn events(&self) -> u64 {
        let looks = self.looks.load(Ordering::Relaxed);
        self.world.happened().saturating_sub(2 * looks)
    }

    /// A number that no other has.
    fn number(&self) -> u64 {
        let mut running = self.running();
        running.next += 1;
        running.next
    }

    fn busy(&self, what: &'static str) -> Busy {
        let id = self.number();
        self.running().tasks.insert(id, what);
        Busy {
            stage: self.clone(),
            id,
        }
    }

    /// Waits until every task has ended.
    async fn all_done(&self) {
        let limit = self.world.now() + STUCK;
        loop {
            let busy: Vec<_> = self.running().tasks.values().copied().collect();
            if busy.is_empty() {
                return;
            }
            if self.world.now() > limit {
                self.checker.violation(format!("tasks are stuck: {busy:?}"));
                return;
            }
            self.world.sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stage.running().tasks.remove(&self.id);
    }
}
