//! S6: what is let go of before its shortest hold is over stays taken for the rest of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::time::Tick;

use super::Assumption;
use super::ledger::Ledger;
use super::wire::Wire;
use crate::keys::Reply;
use crate::tap::Command;

/// Clocks run apart by less than this part of a span,
const DRIFT: f64 = 0.1;
/// and what was done at one instant is seen a little later.
const SEEN: Duration = Duration::from_millis(5);

/// Keys that stay taken: after which request, since when, and until when at least.
#[derive(Default)]
pub(super) struct Cooling(BTreeMap<Vec<u8>, (u64, Tick, Tick)>);

impl Ledger {
    /// A caller has a lock: its shortest hold counts from before that, and not from before it was asked for.
    pub(crate) fn granted(&mut self, id: u64, now: Tick) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.granted.get_or_insert(now);
        }
    }

    /// Whether a value was left by a hold that asked for a shortest one.
    pub(crate) fn may_cool(&self, value: &[u8]) -> bool {
        let of = self.traffic.request_of(value);
        let asked = of.is_some_and(|id| !self.requests[&id].want.at_least.is_zero());
        asked || value.starts_with(b"tn1:c:")
    }
}

/// A server has carried out a command, or refused it.
pub(super) fn executed(ledger: &mut Ledger, command: &Command, reply: &Reply, now: Tick) {
    if !ledger.assumed.has(Assumption::A2) {
        return;
    }
    let wire = Wire::of(&command.words);
    let broken = match (wire, reply) {
        (Wire::Clear { key, value }, Reply::Int(1)) => lets_go(ledger, key, value, now, 0),
        (Wire::Cool { key, ms, values }, Reply::Int(1)) => values
            .first()
            .and_then(|value| lets_go(ledger, key, value, now, ms)),
        (Wire::Acquire { key, .. } | Wire::Take { key, .. }, _) if wire.wrote(reply) => {
            takes(ledger, key, command, now)
        }
        _ => None,
    };
    if let Some(broken) = broken {
        let violation = format!("{now:?} {broken}: {command}");
        ledger.violations.push(violation);
    }
}

fn lets_go(ledger: &mut Ledger, key: &[u8], value: &[u8], now: Tick, ms: u64) -> Option<String> {
    let id = ledger.traffic.request_of(value)?;
    let request = &ledger.requests[&id];
    request.granted?;
    // Its caller may have come late to see it.
    let mut done = ledger
        .traffic
        .writes
        .get(&id)?
        .iter()
        .filter(|write| write.done);
    let first = done.next()?;
    let (granted, last) = (first.at, done.next_back().unwrap_or(first));
    let cloned = request.cloned;
    // By whatever clock.
    let over = granted
        + request
            .want
            .at_least
            .mul_f64(1.0 - DRIFT)
            .saturating_sub(SEEN);
    let least = over.saturating_since(now);
    let taken = Duration::from_millis(ms);
    let until = over.min(now + taken.mul_f64(1.0 - DRIFT).saturating_sub(SEEN));
    let client = request.client;
    // What cools already is left as it is.
    let before = ledger.cooling.0.get(key);
    if before.is_none_or(|(of, ..)| *of != id) {
        ledger.cooling.0.insert(key.to_vec(), (id, now, until));
    }
    // A server that has forgotten the hold may have an older attempt of the same request.
    let forgotten = last.value != value
        && (ledger.promoted_since(last.at) || ledger.broken_since(&request.key, client, last.at));
    let excused = cloned || forgotten || ledger.broken_since_for(client, granted);
    (taken < least && !excused).then(|| {
        format!("S6 request {id} is let go of for {taken:?}, with {least:?} of its minimum left")
    })
}

fn takes(ledger: &Ledger, key: &[u8], command: &Command, now: Tick) -> Option<String> {
    let (_, since, until) = *ledger.cooling.0.get(key)?;
    let name = String::from_utf8_lossy(key);
    let excused = ledger.broken_since(&name, command.client, since);
    (now < until && !excused)
        .then(|| format!("S6 {name} is granted while it cools until {until:?}"))
}
