//! What goes wrong around the machine.

use std::time::Duration;

use tenure_core::rng::Rng;

use super::{NAMES, Node, Play};
use crate::checker::{Assumption, Assumptions};
use crate::history::Fault;
use crate::keys::{Entries, Held};
use crate::server::Mood;

/// The faults of this level. Bytes in any portion and late replies belong to it and are not counted.
pub const FAULTS: &[Fault] = &[
    Fault::Cut,
    Fault::Refuse,
    Fault::Zombies,
    Fault::Repeat,
    Fault::PauseProcess,
    Fault::PauseMachine,
    Fault::Clone,
    Fault::Drift,
    Fault::RestartEmpty,
    Fault::Flush,
    Fault::Delete,
    Fault::Replace,
    Fault::MakeList,
    Fault::Password,
    Fault::ReadOnly,
    Fault::Loading,
    Fault::Busy,
    Fault::MasterDown,
    Fault::NoReplicas,
    Fault::OutOfMemory,
    Fault::TryAgain,
    Fault::ForgetScripts,
    Fault::FailScript,
    Fault::StepForward,
    Fault::StepBack,
    Fault::LoseTracking,
    Fault::RefuseTracking,
    Fault::CrowdOut,
];

/// The most machines there are, copies among them.
const MOST: usize = 5;

/// Half of the histories keep every assumption but the one about zombies, so that nothing is excused.
pub(super) fn draw_assumptions(rng: &mut Rng) -> Assumptions {
    let mut assumed = Assumptions::ALL.without(Assumption::A7);
    let bits = rng.next_u64();
    let loose = [
        Assumption::A1,
        Assumption::A2,
        Assumption::A3,
        Assumption::A4,
        Assumption::A5,
        Assumption::A6,
    ];
    for (at, assumption) in loose.into_iter().enumerate() {
        if bits & 1 == 0 && bits >> (2 * at + 1) & 3 == 0 {
            assumed = assumed.without(assumption);
        }
    }
    assumed
}

impl Play {
    /// Something goes wrong, perhaps for this one.
    pub(super) fn harm(&mut self, node: usize) {
        match self.below(16) {
            0..=2 => self.cut(node),
            3..=5 => self.one_zombie(),
            6 => {
                self.server.forget_scripts();
                self.met(Fault::ForgetScripts);
            }
            7 => {
                self.server.script_fails = true;
                self.met(Fault::FailScript);
            }
            8 | 9 => self.mood(),
            10 => {
                self.server.repeats = 1 + self.below(6) as u32;
                self.met(Fault::Repeat);
            }
            11 if self.below(10) == 0 => {
                let now = self.local(node);
                self.nodes[node].machine.close(now);
            }
            12 if self.below(3) == 0 => {
                self.server.password = match self.server.password {
                    None => Some("changed".to_owned()),
                    Some(_) => None,
                };
                self.met(Fault::Password);
            }
            12 if self.below(3) == 0 => {
                self.server.keys.tracking.refused ^= true;
                self.met(Fault::RefuseTracking);
            }
            13..=15 => self.break_an_assumption(node),
            // Nobody looks after the machine for a while.
            _ => {
                self.pass_up_to(2_000);
                self.met(Fault::PauseProcess);
            }
        }
    }

    pub(super) fn met(&mut self, fault: Fault) {
        self.note(|| format!("FAULT {fault:?}"));
        *self.report.faults.entry(fault).or_default() += 1;
    }

    /// Everything is well again.
    pub(super) fn heal(&mut self) {
        self.calm = true;
        self.server.mood = Mood::Well;
        self.server.script_fails = false;
        self.server.repeats = 0;
        self.server.password = None;
        self.server.keys.tracking.refused = false;
        while !self.zombies.is_empty() {
            self.one_zombie();
        }
        let foreign = |key: &[u8], held: &Held| match held {
            // Counters of fences stay.
            _ if key.ends_with(b"}:fence") => false,
            Held::Text(value) => !value.starts_with(b"tn1:"),
            // Queues end by themselves.
            Held::Sorted(_) => false,
            Held::List(_) => true,
        };
        let keys = self.server.keys.iter();
        let keys = keys.filter(|(key, entry)| foreign(key, &entry.held));
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| _ = self.server.keys.remove(key));
        // What was set back is set forward, or keys would live longer than their lease.
        let behind = std::mem::take(&mut self.behind);
        self.server.clock.step(self.now, behind * 1_000);
        self.ledger.clock_is_right();
    }

    fn cut(&mut self, node: usize) {
        let now = self.local(node);
        let this = &mut self.nodes[node];
        if this.connection.is_some() {
            // What was sent may still arrive.
            this.machine.disconnected(now);
            self.abort(node);
            self.met(Fault::Cut);
        }
    }

    fn mood(&mut self) {
        let moods = [
            (Fault::ReadOnly, Mood::ReadOnly),
            (Fault::Loading, Mood::Loading),
            (Fault::Busy, Mood::Busy),
            (Fault::MasterDown, Mood::MasterDown),
            (Fault::NoReplicas, Mood::NoReplicas),
            (Fault::OutOfMemory, Mood::OutOfMemory),
            (Fault::TryAgain, Mood::TryAgain),
        ];
        self.server.mood = Mood::Well;
        if let Some((fault, mood)) = moods.get(self.below(11) as usize) {
            self.server.mood = *mood;
            self.met(*fault);
        }
    }

    /// Everything that was sent on one dead connection arrives.
    fn one_zombie(&mut self) {
        if self.zombies.is_empty() {
            return;
        }
        let at = self.below(self.zombies.len() as u64) as usize;
        let (mut written, node) = self.zombies.swap_remove(at);
        let before = self.report.counts.zombies;
        while self.execute(&mut written, &mut false).is_some() {
            self.report.counts.zombies += 1;
        }
        if self.report.counts.zombies > before {
            self.note(|| format!("that was of a dead connection of node {node}"));
            self.met(Fault::Zombies);
        }
    }

    /// One of those that this history does not make.
    fn break_an_assumption(&mut self, node: usize) {
        let all = [
            Assumption::A1,
            Assumption::A3,
            Assumption::A4,
            Assumption::A5,
            Assumption::A6,
        ];
        let broken = all[self.below(all.len() as u64) as usize];
        if self.assumed.has(broken) {
            return;
        }
        let client = self.nodes[node].client;
        match broken {
            Assumption::A1 => {
                let (fault, millis) = match self.below(2) {
                    0 => (Fault::StepForward, 1 + self.below(2_000) as i64),
                    _ => (Fault::StepBack, -1 - self.below(300) as i64),
                };
                self.ledger.broke(broken, None, None, self.now);
                self.behind += (-millis).max(0);
                self.server.clock.step(self.now, millis * 1_000);
                self.met(fault);
            }
            Assumption::A3 => {
                self.ledger.broke(broken, None, None, self.now);
                match self.below(2) {
                    0 => {
                        self.server.keys.flush(false);
                        self.met(Fault::Flush);
                    }
                    _ => {
                        self.server.keys.restart(Entries::new());
                        self.server.forget_scripts();
                        (0..self.nodes.len()).for_each(|node| self.cut(node));
                        self.met(Fault::RestartEmpty);
                    }
                }
            }
            Assumption::A4 => {
                let now = self.now;
                self.nodes[node].clock.stop(now);
                self.pass_up_to(2_000);
                let now = self.now;
                self.nodes[node].clock.start(now);
                self.ledger.broke(broken, None, Some(client), now);
                self.met(Fault::PauseMachine);
            }
            Assumption::A5 => self.copy(node),
            _ => self.write_as_somebody_else(),
        }
    }

    /// The process of a node exists twice: a machine is restored from a snapshot while the original runs on. The copy finds
    /// its connection dead.
    fn copy(&mut self, node: usize) {
        let now = self.local(node);
        let original = &self.nodes[node];
        if self.nodes.len() == MOST {
            return;
        }
        let Some(mut machine) = original.machine.copy() else {
            return;
        };
        if original.connection.is_some() {
            machine.disconnected(now);
        }
        let copy = Node {
            client: original.client,
            machine,
            clock: original.clock.clone(),
            connection: None,
            dialling: original.dialling,
            leases: original.leases.clone(),
        };
        let leases = copy.machine.mux().leases();
        for live in copy.leases.values() {
            let Some(lease) = leases.lease(live.id) else {
                continue;
            };
            let known = lease.own_attempts().chain([lease.attempt()]);
            let values = known.filter_map(|own| leases.value(live.id, own));
            self.shared
                .extend(values.map(|value| value.as_bytes().to_vec()));
        }
        self.ledger.cloned(copy.client);
        self.nodes.push(copy);
        let last = self.nodes.len() - 1;
        self.note(|| format!("node {last} is a copy of node {node}"));
        self.met(Fault::Clone);
    }

    fn write_as_somebody_else(&mut self) {
        let name = NAMES[self.below(NAMES.len() as u64) as usize];
        self.ledger
            .broke(Assumption::A6, Some(name), None, self.now);
        let key = format!("lock:{name}").into_bytes();
        let now_ms = self.server.now_ms(self.now);
        match self.below(3) {
            0 => {
                self.server.keys.remove(&key);
                self.met(Fault::Delete);
            }
            1 => {
                let ends = now_ms + Duration::from_millis(1 + self.below(500)).as_millis() as u64;
                let value = Held::Text(b"somebody".to_vec());
                self.server.keys.put(&key, value, Some(ends));
                self.met(Fault::Replace);
            }
            _ => {
                let ends = now_ms + 1 + self.below(300);
                self.server.keys.put(&key, Held::List(1), Some(ends));
                self.met(Fault::MakeList);
            }
        }
    }
}
