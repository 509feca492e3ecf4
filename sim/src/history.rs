//! Random histories: clients that do everything a user can, while a nemesis does everything that can go wrong.
//!
//! A history is its seed: world, clients, faults and what every task does are drawn from it, so that a violation is
//! replayed by its number.

mod clients;
mod nemesis;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::rng::Rng;

use crate::checker::{Assumption, Assumptions, Checker, Want};
use crate::keys::Dialect;
use crate::machine::{Client, ServerHandle};
use crate::world::{Counts, Sim, World};
pub use nemesis::Fault;

/// The longest lease that a history uses.
const LONGEST: Duration = Duration::from_secs(5);
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
    /// What happened in the world: deliveries, timers, polls.
    pub events: u64,
    /// Commands that the server executed or refused.
    pub commands: u64,
    /// Requests that were made.
    pub requests: u64,
    /// Requests that were granted.
    pub grants: u64,
    /// Holds that were lost.
    pub losses: u64,
    /// How often each fault was injected.
    pub faults: BTreeMap<Fault, u64>,
    /// What the faults led to in the network and the server.
    pub counts: Counts,
    /// Everything that happened, if it was recorded.
    pub trace: String,
}

/// What the tasks of a history share.
#[derive(Clone)]
struct Stage {
    world: World,
    server: ServerHandle,
    checker: Checker,
    names: usize,
    leases: (Duration, Duration),
    clients: Arc<Mutex<Vec<Client>>>,
    running: Arc<Mutex<Running>>,
    /// How far the server's clock was stepped back, in milliseconds.
    behind: Arc<Mutex<i64>>,
    /// Faults go on; then everything is well.
    until: Duration,
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
                ..Report::default()
            }
        }
    };
    report.events = sim.happened();
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
    let loose = below(2) == 0;
    for assumption in [
        Assumption::A1,
        Assumption::A3,
        Assumption::A4,
        Assumption::A6,
    ] {
        if loose && below(2) == 0 {
            assumed = assumed.without(assumption);
        }
    }
    let checker = Checker::new(&world, &server, assumed);
    let short = below(3) == 0;
    let stage = Stage {
        world: world.clone(),
        server: server.clone(),
        checker: checker.clone(),
        names: 1 + below(3) as usize,
        leases: if short {
            (Duration::from_millis(300), Duration::from_millis(900))
        } else {
            (Duration::from_millis(500), LONGEST - Duration::from_secs(1))
        },
        clients: Arc::default(),
        running: Arc::default(),
        behind: Arc::default(),
        until: Duration::from_millis(4_000 + below(8_000)),
    };
    let first = 2 + below(3);
    for _ in 0..first {
        clients::start(&stage);
    }
    let faults: Arc<Mutex<BTreeMap<Fault, u64>>> = Arc::default();
    let kinds = nemesis::choose(assumed, &mut below);
    let counted = Arc::clone(&faults);
    sim.block_on(async move {
        for _ in 0..1 + stage.world.below(2) {
            nemesis::start(&stage, kinds.clone(), &counted);
        }
        watch(&stage);
        stage.all_done().await;
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
        commands: server.executed_count(),
        requests: checker.requests(),
        grants,
        losses,
        faults: faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone(),
        counts: world.counts(),
        ..Report::default()
    }
}

/// Looks at everything at random instants, until nobody else knows the stage any more.
fn watch(stage: &Stage) {
    let (world, checker) = (stage.world.clone(), stage.checker.clone());
    let running = Arc::downgrade(&stage.running);
    stage.world.clone().spawn(async move {
        while running.upgrade().is_some() {
            world.sleep(world.up_to(Duration::from_millis(20))).await;
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
    if stage.checker.assumes(&[Assumption::A1, Assumption::A3]) && nothing_lingers(stage) {
        for (key, value, left) in ours(stage) {
            stage.checker.violation(format!(
                "S6 {key} still has {value} for {left:?}, {GRACE:?} after everything was well"
            ));
        }
    }
    let client = world.client();
    let Ok(locks) = clients::connect(stage, &client).await else {
        stage
            .checker
            .violation("nobody can connect though everything is well".to_owned());
        return;
    };
    let lease = Duration::from_secs(1);
    let longest = LONGEST + nemesis::LATEST;
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

impl Stage {
    fn clients(&self) -> Vec<Client> {
        self.clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
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
