//! S7: what an outage may cost, in histories where nothing else goes wrong.

use std::time::Duration;

use tenure_client::Cause;
use tenure_core::time::Tick;

use super::holds::Hold;
use super::{Checker, State};
use crate::machine::Client;

/// Shorter leases leave too little for a new connection on the latencies of a link that is well.
const LEAST_LEASE: Duration = Duration::from_millis(600);
/// What measuring from outside may be off by.
const SLACK: Duration = Duration::from_millis(2);

/// The outages of a history that has nothing but those.
#[derive(Default)]
pub(super) struct Outages(Vec<Outage>);

struct Outage {
    /// Whom it hits; everybody, if nobody is named.
    client: Option<usize>,
    began: Tick,
    ended: Option<Tick>,
}

impl Checker {
    /// In this history nothing goes wrong but what is said here, one after another. From then on a loss has to be worth its
    /// outage: none that takes up to a third of the lease costs a lock, all over two thirds do.
    pub fn only_outages(&self) {
        self.lock().outages = Some(Outages::default());
    }

    /// Nothing reaches the server from this client, or from all, or no answer comes back.
    pub fn outage_begins(&self, client: Option<&Client>) {
        let began = self.world.true_time();
        if let Some(outages) = &mut self.lock().outages {
            outages.0.push(Outage {
                client: client.map(Client::id),
                began,
                ended: None,
            });
        }
    }

    /// The last outage is over.
    pub fn outage_ends(&self) {
        self.probe();
        let now = self.world.true_time();
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(Outages(outages)) = &mut state.outages else {
            return;
        };
        let Some(outage) = outages.last_mut() else {
            return;
        };
        outage.ended = Some(now);
        let (client, began) = (outage.client, outage.began);
        let mut found = Vec::new();
        for hold in &state.holds {
            // Nothing can have been granted or renewed meanwhile.
            let survives = hold.is_believed() && hold.confirmed().is_some();
            let Some((by, lease)) = judged(state, hold).filter(|_| survives) else {
                continue;
            };
            let lasted = by_client(state, by, now.saturating_since(began));
            if client.is_none_or(|client| client == by) && lasted > lease * 2 / 3 + SLACK {
                let id = hold.request;
                found.push(format!(
                    "S7 an outage of {lasted:?} did not end the hold of request {id}, a lease of {lease:?}"
                ));
            }
        }
        drop(guard);
        found.into_iter().for_each(|text| self.violation(text));
    }
}

/// What is wrong with a loss that was told.
pub(super) fn judge(state: &State, hold: &Hold, cause: &Cause, now: Tick) -> Option<String> {
    let Outages(outages) = state.outages.as_ref()?;
    let (client, lease) = judged(state, hold)?;
    let confirmed = hold.confirmed()?;
    if !matches!(cause, Cause::Expired { .. }) {
        return None;
    }
    let lasted = |outage: &Outage| {
        let span = outage.ended.unwrap_or(now).saturating_since(outage.began);
        by_client(state, client, span)
    };
    let mut since = outages.iter().filter(|outage| {
        outage.client.is_none_or(|hit| hit == client)
            && outage.ended.is_none_or(|ended| ended >= confirmed)
    });
    let longest = since.next().map_or(Duration::ZERO, lasted);
    // Several short ones may add up.
    (since.next().is_none() && longest <= lease / 3)
        .then(|| format!("S7 an outage of {longest:?} ended a hold with a lease of {lease:?}"))
}

/// Whose hold it is and its lease, if the rule says something about it.
fn judged(state: &State, hold: &Hold) -> Option<(usize, Duration)> {
    let request = state.ledger.requests.get(&hold.request)?;
    let want = &request.want;
    let plain = want.renew && want.max_hold.is_none() && want.lease >= LEAST_LEASE;
    plain.then_some((request.client, want.lease))
}

/// So long by the clock of a client.
fn by_client(state: &State, client: usize, span: Duration) -> Duration {
    let ppm = state.clients.get(&client).map_or(0, Client::drift_ppm);
    span.mul_f64(1.0 + ppm as f64 / 1e6)
}
