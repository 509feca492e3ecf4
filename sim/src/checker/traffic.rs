//! What is on the wire: S3, S4, S5 and S9 as far as commands show them.

use std::collections::BTreeMap;

use tenure_core::time::Tick;

use super::ledger::Ledger;
use super::wire::{Wire, attempt, label, random, secret};
use super::{Assumption, Wait};
use crate::keys::Reply;
use crate::tap::Command;

/// What the checker remembers of the wire.
#[derive(Default)]
pub(super) struct Traffic {
    /// Requests that are over, by client, with when: what they have left on the server must be cleared.
    pub(super) debts: BTreeMap<usize, Vec<Debt>>,
    /// Some write was taken in parts, so that commands of one turn have different times.
    pub(super) in_parts: bool,
    /// Values that were handed out.
    values: BTreeMap<Vec<u8>, Known>,
    /// The secret of each request, and how many attempts it made.
    secrets: BTreeMap<u64, (Vec<u8>, u64)>,
    /// Writes that were handed out, by request: when by the client's clock, when by true time, and whether the
    /// server carried it out.
    pub(super) writes: BTreeMap<u64, Vec<Write>>,
    /// The last write on each connection, if it was carried out: what a `WAIT` behind it is about.
    made: BTreeMap<usize, (u64, u64)>,
    /// Writes that all replicas have confirmed that had to, and those they have not.
    pub(super) confirmed_and_not: (u64, u64),
}

/// A request that is over.
pub(super) struct Debt {
    pub(super) request: u64,
    pub(super) over: Tick,
    /// When another command was handed out, and the clean-up with it at the latest.
    pub(super) chance: Option<Tick>,
}

struct Known {
    request: u64,
    client: usize,
    /// A clear of it was handed out.
    cleared: bool,
}

/// A write of a request.
pub(super) struct Write {
    stamp: u64,
    pub(super) by_client: Tick,
    pub(super) at: Tick,
    pub(super) value: Vec<u8>,
    pub(super) done: bool,
    /// As many replicas as its request wants have received it.
    pub(super) confirmed: bool,
}

impl Traffic {
    /// The request that a value was written for.
    pub(super) fn request_of(&self, value: &[u8]) -> Option<u64> {
        self.values.get(value).map(|known| known.request)
    }

    /// The request that has the secret of a value or of an entry in a queue, as far as that was ever seen whole.
    fn made_for(&self, value: &[u8]) -> Option<u64> {
        let mut secrets = self.secrets.iter();
        let found = secrets.find(|(_, (own, _))| random(own) == random(secret(value)));
        found.map(|(ms, _)| *ms).or_else(|| self.request_of(value))
    }

    /// A script was not known, so nothing of it was executed: the same attempt is put another way.
    fn not_executed(&mut self, request: u64, stamp: u64, value: &[u8]) {
        let writes = self.writes.entry(request).or_default();
        let before = writes.len();
        writes.retain(|write| write.stamp != stamp);
        if writes.len() < before {
            self.values.remove(value);
            if let Some((_, attempts)) = self.secrets.get_mut(&request) {
                *attempts -= 1;
            }
        }
    }
}

/// A whole command was handed out.
pub(super) fn sent(ledger: &mut Ledger, command: &Command) {
    let broken = handed_out(ledger, command).and_then(|()| pays(ledger, command));
    if let Err(broken) = broken {
        let at = command.at;
        ledger
            .violations
            .push(format!("{at:?} {broken}: {command}"));
    }
}

/// A server has carried out a command, or refused it.
pub(super) fn executed(ledger: &mut Ledger, command: &Command, reply: &Reply) {
    let wire = Wire::of(&command.words);
    if let Wire::Wait { count } = wire {
        return confirmed(ledger, command, reply, count);
    }
    let (Wire::Acquire { key, ms, .. } | Wire::Take { key, ms, .. } | Wire::Swap { key, ms, .. }) =
        wire
    else {
        return;
    };
    if let (Wire::Acquire { value, .. } | Wire::Take { value, .. }, Reply::Error(text)) =
        (wire, reply)
        && text.starts_with("NOSCRIPT")
        // Of two copies the other may have written it.
        && !ledger.requests.get(&ms).is_some_and(|request| request.cloned)
    {
        ledger.traffic.not_executed(ms, command.stamp, value);
    }
    if let Some(fence) = wire.fence(reply)
        && let Err(broken) = ledger.fences.minted(ms, key, fence)
    {
        let at = command.at;
        ledger
            .violations
            .push(format!("{at:?} {broken}: {command}"));
    }
    // One that is carried out twice is made once.
    let made = &mut ledger.traffic.made;
    if made.get(&command.connection) != Some(&(ms, command.stamp)) {
        made.remove(&command.connection);
    }
    if wire.wrote(reply)
        && let Some(writes) = ledger.traffic.writes.get_mut(&ms)
    {
        let write = writes
            .iter_mut()
            .rev()
            .find(|write| write.stamp == command.stamp);
        if let Some(write) = write {
            write.done = true;
            let made = (ms, command.stamp);
            ledger.traffic.made.insert(command.connection, made);
        }
    }
}

/// S16: a write is confirmed by the `WAIT` right behind it, on its own connection and by no other.
fn confirmed(ledger: &mut Ledger, command: &Command, reply: &Reply, count: u64) {
    let traffic = &mut ledger.traffic;
    let Some((ms, stamp)) = traffic.made.remove(&command.connection) else {
        return;
    };
    let wanted = ledger.requests[&ms].want.replicas;
    let enough = wanted.is_some_and(|(n, _)| count == u64::from(n))
        && matches!(reply, Reply::Int(n) if n.unsigned_abs() >= count);
    match enough {
        true => traffic.confirmed_and_not.0 += 1,
        false => traffic.confirmed_and_not.1 += 1,
    }
    let writes = traffic.writes.get_mut(&ms).into_iter().flatten();
    for write in writes.filter(|write| write.stamp == stamp) {
        write.confirmed |= enough;
    }
}

fn handed_out(ledger: &mut Ledger, command: &Command) -> Result<(), String> {
    match Wire::of(&command.words) {
        Wire::Wait { .. } | Wire::Harmless => Ok(()),
        Wire::Unknown => Err("S3 a command that can write over somebody else's key".to_owned()),
        Wire::Acquire { key, value, ms, .. } | Wire::Take { key, value, ms, .. } => {
            writes(ledger, command, key, value, ms)?;
            let (_, attempts) = &ledger.traffic.secrets[&ms];
            let single = matches!(ledger.requests[&ms].want.wait, Wait::Now);
            if single && *attempts > 1 && !ledger.requests[&ms].cloned {
                return Err("S9 a single try makes a second attempt".to_owned());
            }
            Ok(())
        }
        Wire::Swap {
            key, old, new, ms, ..
        } => {
            owned(ledger, command.client, old)?;
            writes(ledger, command, key, new, ms)
        }
        Wire::Clear { key, value } => clears(ledger, command, key, value),
        Wire::Pass { key, values, .. } => {
            let mut values = values.iter();
            values.try_for_each(|value| clears(ledger, command, key, value))
        }
        Wire::Cool { key, values, .. } => values
            .iter()
            .try_for_each(|value| clears(ledger, command, key, value)),
    }
}

/// A write of `value`, by NX or in place of a value of one's own.
fn writes(
    ledger: &mut Ledger,
    command: &Command,
    key: &[u8],
    value: &[u8],
    ms: u64,
) -> Result<(), String> {
    let Some(request) = ledger.requests.get(&ms) else {
        return Err("S5c a lease length that nobody asked for".to_owned());
    };
    if request.client != command.client || request.key.as_bytes() != key {
        return Err("S5c the lease length of another request".to_owned());
    }
    let cloned = request.cloned;
    if !cloned && request.over.is_some_and(|over| command.stamp > over) {
        return Err("S4 a write after the end of its request or hold".to_owned());
    }
    let first = !ledger.traffic.values.contains_key(value);
    let known = ledger
        .traffic
        .values
        .entry(value.to_vec())
        .or_insert_with(|| Known {
            request: ms,
            client: command.client,
            cleared: false,
        });
    if known.request != ms {
        return Err("S5c a value with two lease lengths".to_owned());
    }
    if known.cleared && !cloned {
        return Err("S5b a value is written again after its clean-up was handed out".to_owned());
    }
    let (own, attempts) = ledger
        .traffic
        .secrets
        .entry(ms)
        .or_insert_with(|| (secret(value).to_vec(), 0));
    let rotates =
        ledger.requests[&ms].want.rotate && matches!(Wire::of(&command.words), Wire::Swap { .. });
    if own != secret(value) && !rotates {
        return Err("S5 a request with two secrets".to_owned());
    }
    let renews = matches!(Wire::of(&command.words), Wire::Swap { old, new, .. } if old == new);
    let wire = Wire::of(&command.words);
    let acquires = matches!(wire, Wire::Acquire { .. } | Wire::Take { .. });
    if acquires {
        *attempts += 1;
        if !first && !cloned {
            return Err("S5 two attempts with one value".to_owned());
        }
    }
    if first && !renews && !cloned {
        let newer = attempt(value);
        let newest = ledger
            .traffic
            .writes
            .get(&ms)
            .and_then(|writes| writes.last());
        if newest.is_some_and(|write| attempt(&write.value) >= newer) {
            return Err("S5 attempts do not count up".to_owned());
        }
    }
    if renews && first && !cloned {
        return Err("S3 a renewal of a value that was never an attempt".to_owned());
    }
    let write = Write {
        stamp: command.stamp,
        by_client: command.by_client,
        at: command.at,
        value: value.to_vec(),
        done: false,
        confirmed: false,
    };
    ledger.traffic.writes.entry(ms).or_default().push(write);
    Ok(())
}

fn clears(ledger: &mut Ledger, command: &Command, key: &[u8], value: &[u8]) -> Result<(), String> {
    let Some(known) = ledger.traffic.values.get_mut(value) else {
        // Of an attempt that began to leave and never was whole nothing is known but whose it is.
        let mut secrets = ledger.traffic.secrets.iter();
        return match secrets.find(|(_, (own, _))| own == secret(value)) {
            Some((ms, _)) if ledger.requests[ms].client != command.client => {
                Err("S3 a value of another client".to_owned())
            }
            _ => Ok(()),
        };
    };
    if known.client != command.client {
        return Err("S3 a value of another client".to_owned());
    }
    known.cleared = true;
    let request = &ledger.requests[&known.request];
    if request.cloned {
        return Ok(());
    }
    if request.key.as_bytes() != key {
        return Err("S3 a clean-up of another key".to_owned());
    }
    if request.silent.is_some_and(|silent| command.stamp > silent) {
        return Err("S4 a command after the hold was abandoned".to_owned());
    }
    // Whoever lost it may still be working while the guard lives.
    if request.guarded.as_deref() == Some(value) {
        return Err("S4 a clean-up before the guard is gone".to_owned());
    }
    Ok(())
}

/// S6: whoever can send a command later than a request was over can send the clean-up of that request, and does so in the same turn.
///
/// Whoever that is: one client of the library, which its label tells from another one on the same machine.
fn pays(ledger: &mut Ledger, command: &Command) -> Result<(), String> {
    let value = match Wire::of(&command.words) {
        Wire::Acquire { value, .. } | Wire::Take { value, .. } => value,
        Wire::Swap { new: value, .. } => value,
        Wire::Clear { value, .. } => value,
        Wire::Pass { entry, .. } => entry,
        Wire::Cool {
            values: [value, ..],
            ..
        } => value,
        Wire::Cool { .. } | Wire::Wait { .. } | Wire::Harmless | Wire::Unknown => return Ok(()),
    };
    if ledger.traffic.in_parts {
        return Ok(());
    }
    let Some(mut debts) = ledger.traffic.debts.remove(&command.client) else {
        return Ok(());
    };
    let of = ledger.traffic.made_for(value);
    let mut unpaid = None;
    debts.retain_mut(|debt| {
        let writes = ledger.traffic.writes.get(&debt.request);
        let Some(write) = writes.and_then(|writes| writes.last()) else {
            return false;
        };
        // What replicas confirm has a connection of its own.
        let beside =
            of.is_none_or(|of| ledger.is_replicated(debt.request) != ledger.is_replicated(of));
        if debt.over >= command.at || label(&write.value) != label(value) || beside {
            return true;
        }
        // What is due in one turn leaves together, in any order.
        if *debt.chance.get_or_insert(command.at) == command.at {
            return true;
        }
        unpaid = unpaid
            .take()
            .or_else(|| owes(ledger, debt.request, command.at));
        false
    });
    ledger.traffic.debts.insert(command.client, debts);
    unpaid.map_or(Ok(()), |(ms, value)| {
        let value = value.escape_ascii();
        Err(format!(
            "S6 request {ms} is over, and {value} was not cleared before"
        ))
    })
}

/// A value that a request has surely left on the server, if there is one.
fn owes(ledger: &Ledger, ms: u64, now: Tick) -> Option<(u64, Vec<u8>)> {
    let request = &ledger.requests[&ms];
    if request.cloned {
        return None;
    }
    // A clock that is too fast makes a client believe that what it left has expired.
    if request.silent.is_some() || !ledger.assumed.has(Assumption::A2) {
        return None;
    }
    let writes = ledger.traffic.writes.get(&ms)?;
    // The last write that was carried out is the one that is there.
    let write = writes.iter().rev().find(|write| write.done)?;
    let there = now < write.at + request.want.lease
        && !ledger.traffic.values[&write.value].cleared
        && !ledger.promoted_since(write.at)
        && !ledger.broken_since(&request.key, request.client, write.at);
    there.then(|| (ms, write.value.clone()))
}

/// S3: only values that this client has written are compared with.
fn owned(ledger: &Ledger, client: usize, value: &[u8]) -> Result<(), String> {
    match ledger.traffic.values.get(value) {
        Some(known) if known.client == client => Ok(()),
        Some(_) => Err("S3 a value of another client".to_owned()),
        None => Err("S3 a value that was never written".to_owned()),
    }
}
