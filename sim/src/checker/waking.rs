//! S9: whoever waits or holds is told by the server, in histories whose network is well.
//!
//! - When a name gets free, for whatever reason, each process in which a request waits for it makes an attempt a few round
//!   trips later, or sees that it is taken again; after a new connection it makes one in any case.
//! - A hold whose key was deleted or replaced is told as soon.
//! - Nobody believes that something was not told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::time::Tick;

use super::ledger::Request;
use super::wire::Wire;
use super::{Checker, State, Unwatched, Wait};
use crate::keys::{How, Left, Reply};
use crate::machine::Client;
use crate::tap::Command;

/// Eight round trips on a link that is well: the push, a look at a hold and at who forced it, and the attempt of the next in
/// its process, with room for an answer that crosses.
const PROMPT: Duration = Duration::from_micros(12_800);
/// What callers that are threads may add: one that does not run though its answer has come, a driver that looks away.
const THREADS: Duration = Duration::from_millis(75);
/// How late a server comes across a key that has expired.
const SWEEP: Duration = Duration::from_millis(135);
/// How long a connection that was cut takes to be there again, though others were cut before.
const RECONNECT: Duration = Duration::from_millis(200);

/// What is known of who has to be told.
#[derive(Default)]
pub(super) struct Waking {
    /// Requests that wait, or did a moment ago.
    waiting: BTreeMap<u64, Waiting>,
    /// Values that are not under their key any more, since when.
    left: BTreeMap<Vec<u8>, Tick>,
    promises: Vec<Promise>,
    /// When the connections of a client were last cut.
    cuts: BTreeMap<usize, Tick>,
    /// Clients whose callers are threads.
    threads: BTreeSet<usize>,
}

struct Waiting {
    client: usize,
    key: Vec<u8>,
    begun: Tick,
    over: Option<Tick>,
}

/// An attempt of a process for a name that has to come.
struct Promise {
    client: usize,
    key: Vec<u8>,
    since: Tick,
    due: Tick,
    /// It follows from a new connection.
    by_cut: bool,
}

impl Checker {
    /// In this history the network and the server are well but for what is said here. From then on nobody waits for a name
    /// that is free, and whoever has lost one is told.
    pub fn only_waking(&self) {
        self.world.tap_keys();
        self.lock().waking = Some(Waking::default());
    }

    /// The connections of this client are about to be cut.
    pub fn cuts(&self, client: &Client) {
        self.take_in();
        let now = self.world.true_time();
        if let Some(waking) = &mut self.lock().waking {
            waking.cut(client.id(), now);
        }
    }

    /// The callers of this client are threads.
    pub fn has_threads(&self, client: &Client) {
        if let Some(waking) = &mut self.lock().waking {
            waking.threads.insert(client.id());
        }
    }

    /// A client does not believe any more that it is told.
    pub(super) fn unwatched(&self, client: &Client, why: &Unwatched) {
        let wrong = self.lock().waking.is_some();
        if wrong {
            let id = client.id();
            self.violation(format!("S9 client {id} believes that {why}"));
        }
    }
}

impl Waking {
    /// The future of a request is polled for the first time.
    pub(super) fn begun(&mut self, id: u64, request: &Request, now: Tick) {
        // What is not polled when it is woken proves nothing, and a single try waits for nobody.
        if request.lazy || request.want.wait == Wait::Now {
            return;
        }
        let waiting = Waiting {
            client: request.client,
            key: request.key.clone().into_bytes(),
            begun: now,
            over: None,
        };
        self.waiting.insert(id, waiting);
    }

    /// A request has its answer, or nobody wants it any more.
    pub(super) fn over(&mut self, id: u64, now: Tick) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.over = Some(now);
        }
    }

    /// A value left its key.
    pub(super) fn left(&mut self, left: Left, at: Tick) {
        let Left { key, value, how } = left;
        if let Some(value) = value.filter(|_| how != How::Lapsed) {
            self.left.entry(value).or_insert(at);
        }
        let more = match how {
            How::Freed => Duration::ZERO,
            How::Lapsed => SWEEP,
            How::Replaced => return,
        };
        let waiting = self.waiting_at(at).filter(|one| one.key == key);
        let clients: BTreeSet<usize> = waiting.map(|one| one.client).collect();
        for client in clients {
            let due = at + self.prompt(client) + more;
            self.promises.push(Promise {
                client,
                key: key.clone(),
                since: at,
                due,
                by_cut: false,
            });
        }
    }

    /// A server has carried out a command, or refused it.
    pub(super) fn executed(&mut self, command: &Command, reply: &Reply, at: Tick) {
        let key = match Wire::of(&command.words) {
            Wire::Acquire { key, .. } | Wire::Take { key, .. } | Wire::Swap { key, .. } => key,
            // Whoever was just refused, and sees that the name is taken again, waits for that one.
            Wire::Harmless if !matches!(reply, Reply::Null | Reply::Int(-2)) => {
                match command.words.as_slice() {
                    [verb, key] if verb == b"GET" || verb == b"PTTL" => key,
                    _ => return,
                }
            }
            _ => return,
        };
        self.promises.retain(|promise| {
            promise.client != command.client
                || promise.key != key
                || !(promise.since..=promise.due).contains(&at)
        });
    }

    fn cut(&mut self, client: usize, now: Tick) {
        self.cuts.insert(client, now);
        // What was promised before may have been told on that connection.
        self.promises.retain(|promise| promise.client != client);
        let waiting = self.waiting_at(now).filter(|one| one.client == client);
        let keys: BTreeSet<Vec<u8>> = waiting.map(|one| one.key.clone()).collect();
        let due = now + RECONNECT + self.prompt(client);
        self.promises.extend(keys.into_iter().map(|key| Promise {
            client,
            key,
            since: now,
            due,
            by_cut: true,
        }));
    }

    fn waiting_at(&self, then: Tick) -> impl Iterator<Item = &Waiting> {
        let all = self.waiting.values();
        all.filter(move |one| one.begun < then && one.over.is_none_or(|over| over > then))
    }

    fn prompt(&self, client: usize) -> Duration {
        match self.threads.contains(&client) {
            true => PROMPT + THREADS,
            false => PROMPT,
        }
    }

    /// Whether a client was connecting at that time.
    fn connects(&self, client: usize, then: Tick) -> bool {
        let cut = self.cuts.get(&client);
        cut.is_some_and(|cut| *cut <= then && then < *cut + RECONNECT)
    }
}

/// Looks whether what was promised came.
pub(super) fn judge(state: &mut State, now: Tick) {
    let Some(mut waking) = state.waking.take() else {
        return;
    };
    let mut found = Vec::new();
    for promise in std::mem::take(&mut waking.promises) {
        let Promise {
            client,
            key,
            since,
            due,
            by_cut,
        } = &promise;
        if *due >= now {
            waking.promises.push(promise);
            continue;
        }
        if state.clients[client].is_killed() || (!by_cut && waking.connects(*client, *since)) {
            continue;
        }
        // One in its own process may have it: those behind that make no attempt.
        let held = state.holds.iter().any(|hold| {
            let request = &state.ledger.requests[&hold.request];
            hold.is_believed() && request.client == *client && request.key.as_bytes() == key
        });
        let waits = waking
            .waiting_at(*since)
            .filter(|one| one.client == *client && one.key == *key)
            .any(|one| one.over.is_none_or(|over| over > *due));
        if waits && !(*by_cut && held) {
            let what = match by_cut {
                true => "connected anew",
                false => "got free",
            };
            found.push(format!(
                "S9 client {client} waits for {}, {what} at {since:?}, and makes no attempt by {due:?}",
                key.escape_ascii()
            ));
        }
    }
    for hold in state.holds.iter().filter(|hold| hold.is_believed()) {
        let request = &state.ledger.requests[&hold.request];
        let client = request.client;
        let left = request
            .guarded
            .as_ref()
            .and_then(|value| waking.left.get(value));
        // One that rotates leaves its value by itself.
        let tells = !state.clients[&client].is_killed() && !request.want.rotate;
        let Some(left) = left.filter(|_| tells) else {
            continue;
        };
        let cut = waking.cuts.get(&client).map(|cut| *cut + RECONNECT);
        let begins = cut.map_or(*left, |cut| cut.max(*left));
        if now > begins + waking.prompt(client) {
            found.push(format!(
                "S9 the hold of request {} is not told at {now:?}, though its value left the key at {left:?}",
                hold.request
            ));
        }
    }
    let old = now - RECONNECT * 3;
    waking
        .waiting
        .retain(|_, one| one.over.is_none_or(|over| over > old));
    state.waking = Some(waking);
    let texts = found.into_iter().map(|text| format!("{now:?} {text}"));
    state.ledger.violations.extend(texts);
}
