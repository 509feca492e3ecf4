//! What is known of requests and of what they put on the wire, whoever makes them: whole clients, or the machine alone.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::config::{LeaseConfig, Terms};
use tenure_core::time::Tick;

use super::cooling;
use super::cooling::Cooling;
use super::fair::Fair;
use super::fences::Fences;
use super::traffic::{self, Traffic};
use super::wire::{Wire, secret};
use super::{Assumption, Assumptions, Want};
use crate::keys::Reply;
use crate::tap::Command;

/// A server counts whole milliseconds, from the beginning of each.
const SERVER_TICK: Duration = Duration::from_millis(1);

/// The books of one history with one server.
pub(crate) struct Ledger {
    pub(super) assumed: Assumptions,
    /// How many parts per million the server's clock runs fast.
    server_ppm: i64,
    /// By the length of their lease in milliseconds.
    pub(super) requests: BTreeMap<u64, Request>,
    pub(super) traffic: Traffic,
    pub(super) fences: Fences,
    pub(super) fair: Fair,
    pub(super) cooling: Cooling,
    /// When an assumption that is not made was last broken: for a key, a client, or all.
    broken: BTreeMap<(Option<String>, Option<usize>), Tick>,
    /// When a replica was last promoted, with what it had received.
    promoted: Option<Tick>,
    pub(crate) violations: Vec<String>,
}

/// A request, from being asked for to the last of what it left.
pub(super) struct Request {
    pub(super) client: usize,
    pub(super) name: String,
    pub(super) key: String,
    pub(super) want: Want,
    pub(super) terms: Terms,
    /// By the client's clock.
    pub(super) begun: Option<Tick>,
    /// The caller keeps its future unpolled for a while.
    pub(super) lazy: bool,
    /// Stamp after which nothing but clean-ups may leave.
    pub(super) over: Option<u64>,
    /// As `over`, and no clean-up either.
    pub(super) silent: Option<u64>,
    /// True time at which its caller was seen to have it.
    pub(super) granted: Option<Tick>,
    /// The value of its hold, while the guard lives.
    pub(super) guarded: Option<Vec<u8>>,
    /// Two processes believe that it is theirs: what they do is not that of one any more.
    pub(super) cloned: bool,
}

/// What a hold counts from.
pub(crate) struct Confirmed {
    /// True time of the hand-out.
    pub(crate) at: Tick,
    /// The value that is on the server.
    pub(crate) value: Vec<u8>,
    /// Whether nothing excuses that the server may have something else by now.
    pub(crate) strict: bool,
}

impl Ledger {
    pub(crate) fn new(assumed: Assumptions, server_ppm: i64) -> Ledger {
        Ledger {
            assumed,
            server_ppm,
            requests: BTreeMap::new(),
            traffic: Traffic::default(),
            fences: Fences::default(),
            fair: Fair::default(),
            cooling: Cooling::default(),
            broken: BTreeMap::new(),
            promoted: None,
            violations: Vec::new(),
        }
    }

    /// Enters a request of a client under a lease length that no other has: that is its number, by which its commands are
    /// known. Gives the request as it is to be made.
    pub(crate) fn enter(&mut self, client: usize, name: &str, want: Want) -> (u64, Want, Terms) {
        let mut id = want.lease.as_millis() as u64;
        while self.requests.contains_key(&id) {
            id += 1;
        }
        let mut want = Want {
            lease: Duration::from_millis(id),
            ..want
        };
        want.max_hold = want
            .max_hold
            .map(|most| most.max(want.lease + Duration::from_secs(1)));
        let mut lease = LeaseConfig::new(want.lease).at_least(want.at_least);
        if !want.renew {
            lease = lease.no_renew();
        }
        let terms = lease
            .build()
            .expect("the checker asks for leases that can be had");
        let request = Request {
            client,
            name: name.to_owned(),
            key: format!("lock:{name}"),
            want,
            terms,
            begun: None,
            lazy: false,
            over: None,
            silent: None,
            granted: None,
            guarded: None,
            cloned: false,
        };
        self.requests.insert(id, request);
        (id, want, terms)
    }

    /// A request ended without a hold: only clean-ups may leave for it from this stamp on, and they must.
    pub(crate) fn end(&mut self, id: u64, stamp: u64, now: Tick) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.over = Some(stamp);
        }
        self.owe(id, now);
    }

    /// The loss of a hold was told; its guard lives.
    pub(crate) fn lose(&mut self, id: u64, stamp: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.over.get_or_insert(stamp);
        }
    }

    /// S7: a hold that is given up for want of a renewal has no more than its stop window left. Nothing but the key gone or
    /// changed ends it sooner, and an error reply least of all.
    pub(crate) fn given_up(&self, id: u64, left: Duration) -> Result<(), String> {
        let terms = &self.requests[&id].terms;
        let window = terms.validity() - terms.give_up_after();
        match left <= window {
            true => Ok(()),
            false => Err(format!(
                "S7 request {id} is given up with {left:?} left, of a stop window of {window:?}"
            )),
        }
    }

    /// The guard of a hold is gone. An abandoned hold is not even cleared.
    pub(crate) fn let_go(&mut self, id: u64, abandoned: bool, stamp: u64, now: Tick) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.guarded = None;
            request.over.get_or_insert(stamp);
            if abandoned {
                request.silent = Some(stamp);
            }
        }
        self.owe(id, now);
    }

    /// An assumption was broken just now, for a key, a client, or all. It excuses something if it is not made.
    pub(crate) fn broke(
        &mut self,
        assumption: Assumption,
        name: Option<&str>,
        client: Option<usize>,
        now: Tick,
    ) {
        self.fair.forgotten();
        match assumption {
            Assumption::A1 => self.fences.clock_was_set(),
            Assumption::A3 => self.fences.forgotten(),
            _ => {}
        }
        if !self.assumed.has(assumption) {
            let key = name.map(|name| format!("lock:{name}"));
            self.broken.insert((key, client), now);
        }
    }

    /// A replica was promoted just now: whatever nobody has waited for may be forgotten, helper keys included.
    pub(super) fn promoted(&mut self, now: Tick) {
        self.fair.forgotten();
        self.fences.forgotten();
        self.cooling = Cooling::default();
        self.promoted = Some(now);
    }

    /// The process of a client, with all its memory, exists twice from now on.
    pub(crate) fn cloned(&mut self, client: usize) {
        let requests = self.requests.values_mut();
        requests
            .filter(|request| request.client == client)
            .for_each(|request| request.cloned = true);
    }

    /// Checks a command that was handed out.
    pub(crate) fn sent(&mut self, command: &Command) {
        traffic::sent(self, command);
    }

    /// Takes in what a server has carried out by now, at this true time, or refused.
    pub(crate) fn executed(&mut self, command: &Command, reply: &Reply, now: Tick, at: Tick) {
        let requests = &self.requests;
        let want = |ms| requests.get(&ms).map(|request: &Request| request.want);
        let judged = self.fair.executed(command, reply, at, want);
        if let (Err(broken), true) = (judged, self.assumed.has(Assumption::A2)) {
            self.violations
                .push(format!("{at:?} fair {broken}: {command}"));
        }
        let (key, values) = match Wire::of(&command.words) {
            Wire::Clear { key, value } => (key, std::slice::from_ref(value)),
            Wire::Pass { key, values, .. } | Wire::Cool { key, values, .. } => (key, values),
            _ => (&[][..], &[][..]),
        };
        let mut requests = values
            .iter()
            .filter_map(|value| self.traffic.request_of(value));
        if requests.any(|id| self.requests[&id].cloned) {
            // One copy has released what the other still believes in.
            let key = String::from_utf8_lossy(key).into_owned();
            self.broken.insert((Some(key), Some(command.client)), now);
        }
        cooling::executed(self, command, reply, at);
        traffic::executed(self, command, reply);
    }

    /// Whether replicas have to confirm what a request writes.
    pub(super) fn is_replicated(&self, id: u64) -> bool {
        self.requests[&id].want.replicas.is_some()
    }

    /// Whether the renewals of a request write new values.
    pub(crate) fn rotates(&self, id: u64) -> bool {
        self.requests[&id].want.rotate
    }

    /// S14: a request was granted, with this fence.
    pub(crate) fn fenced(&self, id: u64, fence: Option<u64>) -> Result<(), String> {
        let asked = self.requests[&id].want.fenced;
        self.fences.told(id, asked, fence)
    }

    /// Grants of fair requests in their turn, and of others while fair ones stood in the queue.
    pub(crate) fn turns_and_overtakings(&self) -> (u64, u64) {
        (self.fair.turns, self.fair.overtaken)
    }

    /// How many writes all replicas have confirmed that had to, and how many they have not.
    pub(super) fn confirmed_and_not(&self) -> (u64, u64) {
        self.traffic.confirmed_and_not
    }

    /// The server's clock is right again after it was set back: whatever ends ends sooner.
    pub(crate) fn clock_is_right(&mut self) {
        self.fair.forgotten();
        self.cooling = Cooling::default();
    }

    /// Commands of one turn may have different times from now on.
    pub(crate) fn in_parts(&mut self) {
        self.traffic.in_parts = true;
    }

    /// Finds the hand-out that a hold counts from, if it is valid until then by its client's clock.
    pub(crate) fn confirm(
        &mut self,
        id: u64,
        valid_until: Tick,
        now: Tick,
    ) -> Result<Confirmed, String> {
        let request = &self.requests[&id];
        let from = valid_until - request.terms.validity();
        let writes = self.traffic.writes.get(&id);
        let counts = |write: &&traffic::Write| match request.want.replicas {
            Some(_) => write.confirmed,
            None => write.done,
        };
        let mut done = writes.into_iter().flatten().rev().filter(counts);
        // What `max_hold` cuts off makes a hand-out count as an earlier one.
        let write = match request.want.max_hold {
            Some(_) => done.find(|write| write.by_client >= from),
            None => done.find(|write| write.by_client == from),
        };
        let Some(write) = write else {
            return Err(match request.want.replicas {
                Some(_) => format!(
                    "S16 valid from {from:?}, when no write was handed out that replicas confirmed"
                ),
                None => format!(
                    "S1 valid from {from:?}, when no write was handed out that the server carried out"
                ),
            });
        };
        let changed = request
            .guarded
            .as_ref()
            .is_some_and(|value| *value != write.value);
        if changed && !request.cloned && !request.want.rotate {
            return Err("S5 a hold changed its value".to_owned());
        }
        let confirmed = Confirmed {
            at: write.at,
            value: write.value.clone(),
            strict: !self.excused(id, write.at, now),
        };
        if let Some(request) = self.requests.get_mut(&id)
            && (request.guarded.is_none() || request.want.rotate)
        {
            request.guarded = Some(confirmed.value.clone());
        }
        Ok(confirmed)
    }

    /// S1: the server has what a hold counts on, and `lasts` for as long as the hold is valid. Only where nothing excuses it.
    pub(crate) fn outlasts(
        &self,
        id: u64,
        confirmed: &Confirmed,
        there: Option<&[u8]>,
        lasts: bool,
    ) -> Result<(), String> {
        let request = &self.requests[&id];
        let same = match there {
            // Each copy may have taken it over from the other.
            // So may a rotation that was not answered, or the other copy.
            Some(there) if request.want.rotate => self.traffic.request_of(there) == Some(id),
            Some(there) if request.cloned => secret(there) == secret(&confirmed.value),
            there => there == Some(confirmed.value.as_slice()),
        };
        if same && (lasts || !self.assumed.has(Assumption::A2)) {
            return Ok(());
        }
        let there = there.map(|value| value.escape_ascii().to_string());
        Err(match same {
            true => format!(
                "S1 {} is gone before request {id} stops to be valid",
                request.key
            ),
            false => format!(
                "S1 request {id} is valid, while the server has {there:?} of {}",
                request.key
            ),
        })
    }

    /// Whether something excuses that the server has lost what was written by a hand-out at `then`.
    pub(super) fn excused(&self, id: u64, then: Tick, now: Tick) -> bool {
        let request = &self.requests[&id];
        // Clocks that run apart: before the lease is over by its own clock the server has no excuse.
        let expired = !self.assumed.has(Assumption::A2)
            && self.by_server(now.saturating_since(then)) + SERVER_TICK >= request.want.lease;
        // S16: what replicas have confirmed outlives their promotion.
        let forgotten = request.want.replicas.is_none() && self.promoted_since(then);
        expired || forgotten || self.broken_since(&request.key, request.client, then)
    }

    pub(super) fn promoted_since(&self, then: Tick) -> bool {
        self.promoted.is_some_and(|at| at >= then)
    }

    pub(super) fn broken_since(&self, key: &str, client: usize, then: Tick) -> bool {
        self.broken.iter().any(|((of, by), at)| {
            *at >= then
                && of.as_deref().is_none_or(|of| of == key)
                && by.is_none_or(|by| by == client)
        })
    }

    /// As `broken_since`, of a client's clock and process alone.
    pub(super) fn broken_since_for(&self, client: usize, then: Tick) -> bool {
        let mut broken = self.broken.iter();
        broken.any(|((_, by), at)| *at >= then && *by == Some(client))
    }

    /// So long by the server's clock.
    fn by_server(&self, span: Duration) -> Duration {
        span.mul_f64(1.0 + self.server_ppm as f64 / 1e6)
    }

    /// From now on what the request has left must be cleared.
    fn owe(&mut self, id: u64, now: Tick) {
        if let Some(request) = self.requests.get(&id) {
            let debts = self.traffic.debts.entry(request.client).or_default();
            debts.push(traffic::Debt {
                request: id,
                over: now,
                chance: None,
            });
        }
    }
}

/// S1: no two requests hold one key, where nothing excuses it: key, whether that is so, request.
pub(crate) fn overlaps<K: Ord + AsRef<[u8]>>(held: &mut [(K, bool, u64)]) -> Vec<String> {
    held.sort();
    let pairs = held.windows(2).filter(|pair| {
        let [a, b] = pair else { return false };
        // A process that exists twice holds twice.
        a.0 == b.0 && a.1 && b.1 && a.2 != b.2
    });
    let texts = pairs.map(|pair| {
        let key = pair[0].0.as_ref().escape_ascii();
        let (one, other) = (pair[0].2, pair[1].2);
        format!("S1 {key} is held twice, by requests {one} and {other}")
    });
    texts.collect()
}
