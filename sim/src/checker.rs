//! Watches a history and says which promise was broken.
//!
//! It knows nothing of the machine inside the client. It sees what users see - futures, guards, the observer - and what
//! is on the wire: the commands as they are handed out and as the server executes them. From these it checks the
//! rules of `docs/safety.md`. What is assumed of the world is a parameter: a fault that breaks an assumption which is
//! given up excuses what it must, and no more; the same fault with the assumption kept is reported when it does harm.
//!
//! Every request goes through [`Checker::ask`], which gives it a lease length that no other request of the history has:
//! by it the checker finds the request's commands on the wire.

mod ask;
mod cooling;
mod fair;
mod fences;
mod holds;
mod ledger;
mod outages;
mod traffic;
mod waking;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::machine::{Client, ServerHandle};
use crate::tap::Seen;
use crate::world::World;
pub use ask::{Ask, Guard, Mark};
use holds::Hold;
pub(crate) use ledger::{Ledger, overlaps};
use tenure_client::{Event, Observer, Unwatched, Wait};
pub(crate) use wire::secret;

/// What is told within this time counts as told at once.
const AT_ONCE: Duration = Duration::from_millis(1);
/// A single try is answered within this time at the latest.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is assumed of the world: the rows of the table in `docs/safety.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assumption {
    /// The server's clock does not step forward.
    A1,
    /// Clock rates differ by less than the margin.
    A2,
    /// The server forgets nothing.
    A3,
    /// The client's clock counts every pause.
    A4,
    /// One process, one memory. Only the machine alone can be copied here: see [`core_level`](crate::core_level).
    A5,
    /// Nobody else writes the key.
    A6,
    /// Commands of a dead connection execute soon or never.
    A7,
}

/// A set of assumptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions(u8);

impl Assumptions {
    /// All of them.
    pub const ALL: Assumptions = Assumptions(0x7f);

    /// Without this one.
    #[must_use]
    pub const fn without(self, assumption: Assumption) -> Assumptions {
        Assumptions(self.0 & !(1 << assumption as u8))
    }

    /// Whether this one is made.
    pub const fn has(self, assumption: Assumption) -> bool {
        self.0 & (1 << assumption as u8) != 0
    }
}

/// What a fault reaches.
#[derive(Clone)]
pub enum Scope<'a> {
    /// Every key of the server.
    Server,
    /// One lock.
    Name(&'a str),
    /// The holds of one client.
    Client(&'a Client),
}

/// What a request wants.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// About this lease; the checker makes it unique.
    pub lease: Duration,
    /// How long to wait; [`Wait::Now`] is a single try.
    pub wait: Wait,
    /// Whether it is renewed.
    pub renew: bool,
    /// The longest hold, at least one lease and a second.
    pub max_hold: Option<Duration>,
    /// Whether it is to have a fence.
    pub fenced: bool,
    /// Whether it is first come, first served, and for how long its places are kept.
    pub fair: Option<Duration>,
    /// Whether every renewal writes a new value.
    pub rotate: bool,
    /// The shortest hold; zero for none.
    pub at_least: Duration,
    /// How many may wait at most, of a fair one.
    pub max_waiters: Option<u32>,
    /// How many replicas have to confirm each write, and within what time.
    pub replicas: Option<(u8, Duration)>,
}

impl Want {
    /// A single try.
    pub fn a_try(lease: Duration) -> Want {
        Want {
            lease,
            wait: Wait::Now,
            renew: true,
            max_hold: None,
            fenced: false,
            fair: None,
            rotate: false,
            at_least: Duration::ZERO,
            max_waiters: None,
            replicas: None,
        }
    }

    /// A request that waits.
    pub fn wait(lease: Duration, wait: impl Into<Wait>) -> Want {
        Want {
            wait: wait.into(),
            ..Want::a_try(lease)
        }
    }
}

/// Checks one history in one world with one server. Cheap to clone.
#[derive(Clone)]
pub struct Checker {
    world: World,
    server: ServerHandle,
    shared: Arc<Mutex<State>>,
}

struct State {
    ledger: Ledger,
    clients: BTreeMap<usize, Client>,
    holds: Vec<Hold>,
    /// Requests and holds of a client for a name that have no end yet, as its observer counts.
    open: BTreeMap<(usize, Vec<u8>), Open>,
    /// Nothing else goes wrong, if there are any.
    outages: Option<outages::Outages>,
    /// Nothing goes wrong that could delay or lose what a server tells, but what is said here.
    waking: Option<waking::Waking>,
    /// The server may refuse who a client is.
    may_deny: bool,
    grants: u64,
    losses: u64,
    seen: Vec<Seen>,
}

#[derive(Default)]
struct Open {
    begun: u64,
    /// Answered with `Closed`, or refused as misconfigured: the observer need not be told.
    unseen: u64,
    ended: u64,
    holds: i64,
}

impl Checker {
    /// A checker for everything that `server` and its clients do from now on.
    pub fn new(world: &World, server: &ServerHandle, assumed: Assumptions) -> Checker {
        world.tap();
        let state = State {
            ledger: Ledger::new(assumed, server.drift_ppm()),
            clients: BTreeMap::new(),
            holds: Vec::new(),
            open: BTreeMap::new(),
            outages: None,
            waking: None,
            may_deny: false,
            grants: 0,
            losses: 0,
            seen: Vec::new(),
        };
        Checker {
            world: world.clone(),
            server: server.clone(),
            shared: Arc::new(Mutex::new(state)),
        }
    }

    /// The observer that a client must be given.
    pub fn observer(&self, client: &Client) -> Arc<dyn Observer> {
        self.lock().clients.insert(client.id(), client.clone());
        Arc::new(Watching {
            checker: self.clone(),
            client: client.clone(),
        })
    }

    /// A request of a client. Use its [`options`](Ask::options), and tell it what comes of it.
    pub fn ask(&self, client: &Client, name: &str, want: Want) -> Ask {
        let (id, ..) = self.lock().ledger.enter(client.id(), name, want);
        Ask {
            checker: self.clone(),
            id,
            answered: false,
        }
    }

    /// A fault broke an assumption just now.
    pub fn broke(&self, assumption: Assumption, scope: Scope<'_>) {
        self.take_in();
        let (name, client) = match scope {
            Scope::Server => (None, None),
            Scope::Name(name) => (Some(name), None),
            Scope::Client(client) => (None, Some(client.id())),
        };
        let now = self.world.true_time();
        self.lock().ledger.broke(assumption, name, client, now);
    }

    /// A replica was promoted just now, with what it had received: what nobody has waited for may be gone.
    pub fn promoted(&self) {
        self.take_in();
        let now = self.world.true_time();
        self.lock().ledger.promoted(now);
    }

    /// The server's clock was set forward to where it was before it was set back.
    pub fn clock_is_right(&self) {
        self.take_in();
        self.lock().ledger.clock_is_right();
    }

    /// From now on a request may fail because the server does not let a client in.
    pub fn may_deny(&self) {
        self.lock().may_deny = true;
    }

    /// Looks at everything, now. To be called at random instants.
    pub fn probe(&self) {
        self.take_in();
        let mut guard = self.lock();
        let state = &mut *guard;
        // What a hold keeps alive may end with it, and ends call back: dropped without the lock.
        let gone = holds::probe(state, &self.world, &self.server);
        waking::judge(state, self.world.true_time());
        drop(guard);
        drop(gone);
    }

    /// What was found to be broken.
    pub fn violations(&self) -> Vec<String> {
        self.take_in();
        self.lock().ledger.violations.clone()
    }

    /// Something that a history found out by itself.
    pub fn violation(&self, text: String) {
        let now = self.world.true_time();
        self.world.note(|| format!("VIOLATION {text}"));
        let text = format!("{now:?} {text}");
        self.lock().ledger.violations.push(text);
    }

    /// Whether all of these are assumed.
    pub fn assumes(&self, assumptions: &[Assumption]) -> bool {
        let assumed = self.lock().ledger.assumed;
        assumptions.iter().all(|one| assumed.has(*one))
    }

    /// Whether a value was left by a hold that asked for a shortest one.
    pub fn may_cool(&self, value: &str) -> bool {
        self.lock().ledger.may_cool(value.as_bytes())
    }

    /// How many requests were made.
    pub fn requests(&self) -> u64 {
        self.lock().ledger.requests.len() as u64
    }

    /// How many holds were left to their TTL.
    pub fn abandoned(&self) -> usize {
        let state = self.lock();
        let requests = state.ledger.requests.values();
        requests.filter(|one| one.silent.is_some()).count()
    }

    /// Grants and losses so far.
    pub fn grants_and_losses(&self) -> (u64, u64) {
        let state = self.lock();
        (state.grants, state.losses)
    }

    /// How often a fair request had its turn, and how often one that is not fair came in between.
    pub fn turns_and_overtakings(&self) -> (u64, u64) {
        self.lock().ledger.turns_and_overtakings()
    }

    /// How many writes all replicas have confirmed that had to, and how many they have not.
    pub fn confirmed_and_not(&self) -> (u64, u64) {
        self.lock().ledger.confirmed_and_not()
    }

    /// Every task is over and every guard is gone: requests and holds must have had exactly one end. Lets go of all it holds.
    pub fn finish(&self) {
        self.probe();
        let mut state = self.lock();
        let holds = std::mem::take(&mut state.holds);
        let mut found = Vec::new();
        for ((client, name), open) in &state.open {
            if state.clients[client].is_killed() {
                continue;
            }
            let name = name.escape_ascii();
            if open.ended > open.begun || open.ended + open.unseen < open.begun {
                found.push(format!(
                    "S8 client {client} asked {} times for {name} and was told {} ends",
                    open.begun, open.ended
                ));
            }
            if open.holds != 0 {
                found.push(format!(
                    "S8 client {client} has {} holds of {name} without an end",
                    open.holds
                ));
            }
        }
        drop(state);
        drop(holds);
        found.into_iter().for_each(|text| self.violation(text));
    }

    /// What the tap saw since the last time.
    fn take_in(&self) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut seen = std::mem::take(&mut state.seen);
        self.world.tapped(&mut seen);
        if self.world.counts().partial_writes > 0 {
            state.ledger.in_parts();
        }
        let now = self.world.true_time();
        for seen in seen.drain(..) {
            match seen {
                Seen::HandedOut(command) => state.ledger.sent(&command),
                Seen::Executed(command, reply, at) => {
                    state.ledger.executed(&command, &reply, now, at);
                    if let Some(waking) = &mut state.waking {
                        waking.executed(&command, &reply, at);
                    }
                }
                Seen::Left(left, at) => {
                    if let Some(waking) = &mut state.waking {
                        waking.left(left, at);
                    }
                }
            }
        }
        state.seen = seen;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one client is told.
struct Watching {
    checker: Checker,
    client: Client,
}

impl Observer for Watching {
    fn event(&self, event: &Event<'_>) {
        if self.client.is_killed() {
            return;
        }
        self.checker
            .world
            .note(|| format!("client {} is told {event:?}", self.client.id()));
        if let Event::Unwatched(why) = event {
            self.checker.unwatched(&self.client, why);
        }
        let (name, ends, holds) = match event {
            Event::Acquired { name, .. } => (name, 1, 1),
            Event::Held { name, .. }
            | Event::Failed { name, .. }
            | Event::Cancelled { name, .. } => (name, 1, 0),
            Event::Lost { name, .. }
            | Event::Released { name, .. }
            | Event::Dropped { name, .. }
            | Event::Abandoned { name, .. } => (name, 0, -1),
            _ => return,
        };
        let place = (self.client.id(), name.to_vec());
        let below = {
            let mut state = self.checker.lock();
            state.losses += u64::from(matches!(event, Event::Lost { .. }));
            let open = state.open.entry(place).or_default();
            open.ended += ends;
            open.holds += holds;
            open.holds < 0
        };
        if below {
            self.checker.violation(format!(
                "S8 client {} was told a second end: {event:?}",
                self.client.id()
            ));
        }
    }
}
