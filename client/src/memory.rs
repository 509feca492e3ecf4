//! The store in memory: real leases without a server, for tests and for a single process.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::ask::{AskId, Asks, Question, Removed, Step, Ttl};
use tenure_core::error::{ConfigError, Failure};
use tenure_core::fence;
use tenure_core::lease::{OpKind, Outcome};
use tenure_core::leases::{LeaseId, Leases, Op, Request};
use tenure_core::names::{Names, Value};
use tenure_core::time::Tick;

use crate::binding::Binding;
use crate::config::Config;
use crate::error::Error;
use crate::host::{Arrived, Driver, Machine, Signal, open};
use crate::locks::Locks;
use crate::store::End;

/// Locks in the memory of this process, on the clock of `binding`.
///
/// Everything behaves as with a server that answers at once: names, leases, renewals, waiting, `max_hold`. The driver
/// keeps the time.
///
/// # Errors
/// [`Error::Misconfigured`] for a prefix, label or default that is refused.
pub fn memory_with<B: Binding>(binding: B, config: &Config) -> Result<(Locks, Driver), Error> {
    open(Arc::new(binding), config, |seed| {
        Ok(Memory::new(config.names()?, seed))
    })
}

/// Expired keys are swept out when there are so many, and again at twice what was left.
const SWEEP: usize = 1024;

/// Leases, and the keys a server would have.
#[derive(Debug)]
pub(crate) struct Memory {
    leases: Leases,
    asks: Asks,
    keys: HashMap<Box<[u8]>, (Value, Tick)>,
    /// Who removed the value of a key by force, and until when that is of interest.
    forced: HashMap<Box<[u8]>, Note>,
    /// The last fence of a key.
    counters: HashMap<Box<[u8]>, u64>,
    /// Unix time at the start of the clock, in microseconds: as it was when a lock was first asked for. Steps of the wall
    /// clock change nothing from then on.
    epoch_us: Option<u64>,
    sweep_at: usize,
    greeted: bool,
}

/// What a removal by force leaves behind, and until when.
type Note = (Box<[u8]>, Tick);

impl Memory {
    fn new(names: Names, seed: u64) -> Memory {
        Memory {
            // A question is answered at once.
            asks: Asks::new(names.clone(), Duration::MAX),
            leases: Leases::new(names, seed),
            keys: HashMap::new(),
            forced: HashMap::new(),
            counters: HashMap::new(),
            epoch_us: None,
            sweep_at: SWEEP,
            greeted: false,
        }
    }

    fn sweep(&mut self, now: Tick) {
        self.forced.retain(|_, (_, until)| *until > now);
        if self.keys.len() >= self.sweep_at {
            self.keys.retain(|_, (_, expiry)| *expiry > now);
            // This clock does not go back: once it is past a fence, the next one is more without a counter.
            let (now_us, keys) = (self.unix_us(now), &self.keys);
            self.counters
                .retain(|key, fence| *fence >= now_us || keys.contains_key(key));
            self.sweep_at = SWEEP.max(self.keys.len() * 2);
        }
    }

    fn unix_us(&self, now: Tick) -> u64 {
        self.epoch_us.unwrap_or(0) + now.as_micros()
    }

    /// Mints a fence if one was asked for, in the same step as the grant that follows.
    fn mint(&mut self, now: Tick, op: Op) -> Result<(), Outcome> {
        if !op.fenced {
            return Ok(());
        }
        let key = self.leases.key(op.id);
        let counter = self.counters.get(key).copied();
        match fence::mint(self.unix_us(now), counter, self.leases.floor(op.id)) {
            Ok(fence) => {
                self.counters.insert(key.into(), fence);
                self.leases.handle_fence(op.id, op.seq, fence);
                Ok(())
            }
            Err(fault) => Err(Outcome::Failed {
                failure: Failure::Fence(fault),
                maybe_executed: false,
            }),
        }
    }

    /// Takes one step of a question, as a server would.
    fn answer(&mut self, now: Tick, id: AskId) {
        let Memory {
            asks,
            keys,
            forced,
            leases,
            counters,
            ..
        } = self;
        match asks.step(id) {
            None => {}
            Some(Step::Look { keys: wanted }) => {
                let wanted = wanted.to_vec();
                for key in wanted {
                    let value = keys.get(&*key);
                    asks.handle_value(id, Some(value.map_or(&[], |(value, _)| value.as_bytes())));
                    let counter = counters.get(&*key).map(u64::to_string);
                    asks.handle_counter(id, counter.as_deref().map(str::as_bytes));
                    asks.handle_ttl(now, id, ttl(value, now));
                }
            }
            Some(Step::Scan { start, .. }) => {
                let start = start.to_vec();
                let keys = keys.keys().filter(|key| key.starts_with(&start));
                asks.handle_page(now, id, 0, keys.map(|key| &**key));
            }
            // There is nothing to say of it.
            Some(Step::Examine) => asks.handle_examined(id),
            Some(Step::Remove { key, by, only, .. }) => {
                let key = key.to_vec();
                let wanted = |(value, until): &(Value, Tick)| {
                    *until > now && only.is_none_or(|only| value.as_bytes() == only)
                };
                let removed = match keys.get(&*key).is_some_and(wanted) {
                    true => keys.remove(&*key),
                    false => None,
                };
                if let Some((value, until)) = &removed {
                    let note = [by.as_bytes(), b".", value.as_bytes()].concat();
                    forced.insert(key.clone().into(), (note.into(), *until));
                    leases.handle_changed(now, &key);
                }
                asks.handle_removed(id, removed.map(|(value, _)| Removed::of(value.as_bytes())));
            }
        }
    }

    /// Carries an operation out, as a server would in one step.
    fn execute(&mut self, now: Tick, op: Op) -> Option<Outcome> {
        let lease = self.leases.lease(op.id)?;
        let expiry = now + lease.terms().lease();
        let key = self.leases.key(op.id);
        if self.keys.get(key).is_some_and(|(_, expiry)| *expiry <= now) {
            self.keys.remove(key);
        }
        let present = self.keys.get_mut(key);
        let granted = Outcome::Granted { handed_out: now };
        Some(match (op.kind, present) {
            // What is freed is passed on to whoever waits first; a fair try does not come in between.
            (OpKind::Acquire { .. }, None) if op.fair && self.leases.overtakes(op.id) => {
                Outcome::Refused {
                    own: None,
                    remaining: None,
                    watched: false,
                }
            }
            (OpKind::Acquire { attempt }, None) => {
                let value = self.leases.value(op.id, attempt)?;
                let key = key.into();
                if let Err(refused) = self.mint(now, op) {
                    return Some(refused);
                }
                self.keys.insert(key, (value, expiry));
                self.sweep(now);
                granted
            }
            (OpKind::Acquire { .. }, Some((value, until))) => Outcome::Refused {
                own: self.leases.own_attempt(op.id, value.as_bytes()),
                remaining: Some(until.saturating_since(now)),
                watched: false,
            },
            (OpKind::Clear, present) => {
                let own = present
                    .as_ref()
                    .and_then(|(value, _)| self.leases.own_attempt(op.id, value.as_bytes()));
                let own = own.filter(|own| lease.leftovers().as_slice().contains(own));
                let mine = own.is_some_and(|own| lease.leftovers().of_hold().contains(&own));
                if let (true, true, Some(present)) = (mine, op.cools, present) {
                    let rest = Duration::from_millis(self.leases.rest(op.id));
                    *present = (self.leases.cooling(op.id)?, now + rest);
                } else if own.is_some() {
                    self.keys.remove(key);
                }
                Outcome::Cleared { mine }
            }
            (
                OpKind::Adopt { .. }
                | OpKind::Rotate { .. }
                | OpKind::Renew { .. }
                | OpKind::Look { .. },
                None,
            ) => Outcome::Gone,
            (OpKind::Look { attempt }, Some((value, until))) => {
                match self.leases.own_attempt(op.id, value.as_bytes()) {
                    Some(own) if own == attempt => Outcome::Seen,
                    own => Outcome::Refused {
                        own,
                        remaining: Some(until.saturating_since(now)),
                        watched: false,
                    },
                }
            }
            (OpKind::Adopt { attempt, old }, Some((value, _))) => {
                let key: Box<[u8]> = key.into();
                if self.leases.own_attempt(op.id, value.as_bytes()) == Some(old)
                    && let Err(refused) = self.mint(now, op)
                {
                    return Some(refused);
                }
                let present = self.keys.get_mut(&key)?;
                swap(&self.leases, op.id, present, (attempt, old), (now, expiry))?
            }
            (OpKind::Rotate { attempt, old }, Some(present)) => {
                swap(&self.leases, op.id, present, (attempt, old), (now, expiry))?
            }
            (OpKind::Renew { attempt }, Some(present)) => swap(
                &self.leases,
                op.id,
                present,
                (attempt, attempt),
                (now, expiry),
            )?,
        })
    }
}

/// How long the key of a value lives on.
fn ttl(value: Option<&(Value, Tick)>, now: Tick) -> Ttl {
    match value {
        Some((_, until)) if *until > now => Ttl::Left(until.saturating_since(now)),
        _ => Ttl::Gone,
    }
}

/// Compare with the value of one attempt, then write that of another with a fresh TTL.
fn swap(
    leases: &Leases,
    id: LeaseId,
    present: &mut (Value, Tick),
    (new, old): (u32, u32),
    (now, expiry): (Tick, Tick),
) -> Option<Outcome> {
    let own = leases.own_attempt(id, present.0.as_bytes());
    if own != Some(old) {
        let remaining = Some(present.1.saturating_since(now));
        return Some(Outcome::Refused {
            own,
            remaining,
            watched: false,
        });
    }
    *present = (leases.value(id, new)?, expiry);
    Some(Outcome::Granted { handed_out: now })
}

impl Machine for Memory {
    fn leases(&self) -> &Leases {
        &self.leases
    }

    fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError> {
        if request.options.replicas.is_some() {
            return Err(ConfigError::NoReplicas);
        }
        let unix_us = request.since_ms.saturating_mul(1_000);
        self.epoch_us
            .get_or_insert(unix_us.saturating_sub(now.as_micros()));
        self.leases.acquire(now, request)
    }

    fn end(&mut self, now: Tick, id: LeaseId, how: End) {
        match how {
            End::Release => self.leases.release(now, id),
            End::Abandon => self.leases.abandon(now, id),
            End::Drop => self.leases.drop_guard(now, id),
            End::Cancel => self.leases.cancel(now, id),
        }
    }

    fn renew_now(&mut self, now: Tick, id: LeaseId) {
        self.leases.renew_now(now, id);
    }

    fn ask(&mut self, now: Tick, question: &Question<'_>) -> Result<AskId, ConfigError> {
        self.asks.ask(now, question)
    }

    fn forget(&mut self, id: AskId) {
        self.asks.forget(id);
    }

    fn wants_stirring(&self) -> bool {
        self.leases.wants_stirring()
    }

    fn stir(&mut self, fresh: Option<[u8; 16]>) {
        self.leases.stir(fresh);
    }

    fn close(&mut self, now: Tick) {
        self.leases.close(now);
    }

    fn handle_timeout(&mut self, now: Tick) {
        self.leases.handle_timeout(now);
    }

    fn deadline(&self, now: Tick) -> Option<Tick> {
        self.leases.timer().at(now)
    }

    fn flush(&mut self, now: Tick, signals: &mut Vec<Signal>) {
        if !std::mem::replace(&mut self.greeted, true) {
            signals.push(Signal::Link(tenure_core::mux::LinkEvent::Up(
                Default::default(),
            )));
        }
        loop {
            while let Some(op) = self.leases.poll_op(now) {
                if let Some(outcome) = self.execute(now, op) {
                    let gone = !matches!(outcome, Outcome::Granted { .. } | Outcome::Seen);
                    if let Some((note, _)) = self.forced.get(self.leases.key(op.id))
                        && gone
                    {
                        self.leases.note_forced(op.id, note);
                    }
                    // Who it is, and whether it is a hold at all.
                    if let Outcome::Refused { own: None, .. } = outcome
                        && let Some((value, _)) = self.keys.get(self.leases.key(op.id))
                    {
                        self.leases.note_holder(op.id, value.as_bytes());
                    }
                    self.leases.handle_outcome(now, op.id, op.seq, outcome);
                }
            }
            // Whatever was superseded has been executed: nothing waits in between.
            while self.leases.poll_superseded().is_some() {}
            if let Some(id) = self.asks.poll_step() {
                self.answer(now, id);
                continue;
            }
            while let Some(answer) = self.asks.poll_answer() {
                signals.push(Signal::Answer(answer));
            }
            let Some(event) = self.leases.poll_event() else {
                break;
            };
            signals.push(Signal::Lease(event));
        }
    }

    fn poll_in(&mut self, _cx: &mut Context<'_>) -> Arrived {
        Arrived::default()
    }

    fn take_in(&mut self) -> Arrived {
        Arrived::default()
    }

    fn in_flight(&self) -> Option<usize> {
        None
    }

    fn poll_out(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn needs_driver(&self) -> bool {
        false
    }

    fn shut_down(&mut self) {
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::config::{LeaseConfig, Wait};
    use tenure_core::leases::Options;

    use super::*;

    #[test]
    fn names_that_nobody_asks_for_again_are_forgotten() {
        let mut memory = Memory::new(Names::new("lock:", "me").unwrap(), 1);
        let terms = LeaseConfig::new(Duration::from_millis(20)).build().unwrap();
        let (mut now, mut signals) = (Tick::ZERO, Vec::new());
        for index in 0..10 * SWEEP {
            let name = format!("name {index}");
            let (wait, secret) = (Wait::Now, [0; 16]);
            let request = Request {
                name: name.as_bytes(),
                terms,
                wait,
                secret,
                options: Options::default(),
                since_ms: 0,
            };
            let id = memory.acquire(now, &request).unwrap();
            memory.flush(now, &mut signals);
            assert!(memory.leases.holds_at(id, now));
            memory.end(now, id, End::Abandon);
            memory.flush(now, &mut signals);
            signals.clear();
            now = now + Duration::from_millis(1);
        }
        assert!(memory.keys.len() <= SWEEP, "{} keys", memory.keys.len());
    }

    /// The name is free for a moment: who held it has not renewed, and who waits has not looked yet.
    #[test]
    fn s19_a_try_gets_nothing_that_others_wait_for() {
        let mut memory = Memory::new(Names::new("lock:", "me").unwrap(), 1);
        let (mut now, mut signals) = (Tick::ZERO, Vec::new());
        let mut secret = [0; 16];
        let mut ask = |memory: &mut Memory, now, wait| {
            secret[0] += 1;
            let lease = Duration::from_millis(100);
            let request = Request {
                name: b"a",
                terms: LeaseConfig::new(lease).build().unwrap(),
                wait,
                secret,
                options: Options {
                    fair: Some(lease),
                    ..Options::default()
                },
                since_ms: 0,
            };
            let id = memory.acquire(now, &request).unwrap();
            memory.flush(now, &mut signals);
            id
        };
        let held = ask(&mut memory, now, Wait::Now);
        memory.end(now, held, End::Abandon);
        let waits = ask(&mut memory, now, Wait::Forever);
        now = now + Duration::from_millis(100);
        let tries = ask(&mut memory, now, Wait::Now);
        assert!(!memory.leases.holds_at(tries, now));
        now = now + Duration::from_millis(100);
        memory.handle_timeout(now);
        memory.flush(now, &mut Vec::new());
        assert!(memory.leases.holds_at(waits, now));
        let tries = ask(&mut memory, now, Wait::Now);
        assert!(!memory.leases.holds_at(tries, now));
    }
}
