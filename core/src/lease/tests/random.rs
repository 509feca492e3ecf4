//! Random inputs: what must be true of any sequence, and that every cell of the table is met.

use core::time::Duration;

use proptest::prelude::*;
use std::vec::Vec;

use super::super::table::{RULES, cells};
use super::super::{Cause, Event, Lease, Op, OpKind, Outcome, State, Vanished};
use crate::config::{LeaseConfig, Wait};
use crate::error::{Failure, LinkFault, ServerError};
use crate::rng::Rng;
use crate::time::{Deadline, Tick};

const MS: Duration = Duration::from_millis(1);

/// A lease, and what has been seen of it.
struct Watched {
    lease: Lease,
    now: Tick,
    op: Option<Op>,
    superseded: Vec<Op>,
    /// Held, lost, over: as the caller was told.
    acquired: u32,
    refused: u32,
    ended: u32,
    lost: bool,
    /// The guard or the future is gone.
    dropped: bool,
    /// The caller let go, or was told of the end.
    silent: bool,
    dead: Vec<u32>,
    written: u32,
    ops: u32,
}

impl Watched {
    fn new(wait: Wait, renew: bool, max_hold: bool, rotate: bool, seed: u64) -> Watched {
        let mut config = LeaseConfig::new(MS * 1_000);
        if !renew {
            config = config.no_renew();
        }
        if max_hold {
            config = config.max_hold(MS * 2_500);
        }
        let now = Tick::from_micros(5_000_000);
        let terms = config.build().unwrap();
        Watched {
            lease: Lease::new(now, terms, wait, MS * 400, seed).with_rotation(rotate),
            now,
            op: None,
            superseded: Vec::new(),
            acquired: 0,
            refused: 0,
            ended: 0,
            lost: false,
            dropped: false,
            silent: false,
            dead: Vec::new(),
            written: 0,
            ops: 0,
        }
    }

    fn outcome(&self, op: Op, kind: u64, arg: u64) -> Outcome {
        let failure = [
            Failure::Server(ServerError::Loading),
            Failure::Server(ServerError::NoPerm),
            Failure::Link(LinkFault::Closed),
            Failure::Server(ServerError::OutOfMemory),
        ][(arg / 16 % 4) as usize];
        let maybe_executed = arg & 4 == 0;
        match (kind % 12, op.kind) {
            (0..=3, OpKind::Look { .. }) => Outcome::Seen,
            (7..=11, OpKind::Rotate { .. }) if arg % 2 == 0 => Outcome::NoReply {
                failure,
                maybe_executed: true,
            },
            (0..=5, OpKind::Clear) => Outcome::Cleared { mine: arg % 2 == 0 },
            (0..=3, _) => Outcome::Granted {
                handed_out: self.now - MS * [0, 1, 300, 600, 700, 2_000][(arg % 6) as usize],
            },
            (4..=6, _) => Outcome::Refused {
                own: match arg % 6 {
                    0 => Some(1 + (arg / 6 % u64::from(self.lease.attempt().max(1))) as u32),
                    3..=5 => self.lease.doubt(),
                    _ => None,
                },
                remaining: [None, Some(MS * 3), Some(Duration::ZERO)][(arg / 8 % 3) as usize],
                watched: arg % 2 == 0,
            },
            (7, _) => Outcome::Gone,
            (8 | 9, _) => Outcome::Failed {
                failure,
                maybe_executed,
            },
            _ => Outcome::NoReply {
                failure,
                maybe_executed,
            },
        }
    }

    fn step(&mut self, kind: u64, arg: u64) {
        let now = self.now;
        let lease = &mut self.lease;
        match kind % 34 {
            0 | 1 => lease.turn(now),
            2 => lease.demote(now),
            3 if arg % 3 == 0 => {
                self.silent |= !matches!(
                    lease.state(),
                    State::Queued
                        | State::Ready
                        | State::Acquiring
                        | State::Backoff
                        | State::Adopting
                        | State::Confirming
                );
                lease.release(now);
                assert!(!lease.holds_at(now));
            }
            4 if arg % 4 == 0 => {
                self.silent |= lease.state().is_held();
                lease.abandon(now);
                assert!(!lease.holds_at(now));
            }
            5 if arg % 5 == 0 => {
                lease.drop_guard(now);
                (self.dropped, self.silent) = (true, true);
                assert!(!lease.holds_at(now));
            }
            6 if arg % 6 == 0 => {
                lease.close(now);
                self.silent = true;
            }
            7 => lease.handle_link_up(now),
            8 => lease.handle_link_down(now),
            9 => {
                let failure = [LinkFault::Dial, LinkFault::Handshake(ServerError::NoAuth)]
                    [(arg % 2) as usize];
                lease.handle_link_failed(now, Failure::Link(failure));
            }
            10 => lease.renew_now(now),
            11 => lease.handle_round_trip(MS * (arg % 200) as u32),
            12 => {
                if let Some(op) = self.superseded.pop() {
                    lease.handle_purged(now, op.kind);
                }
            }
            13..=15 => self.now = now + MS * (arg % 50) as u32,
            16 => self.now = now + MS * (arg % 1_500) as u32,
            17..=20 => {
                if let Deadline::At(at, _) = lease.deadline() {
                    self.now = at.max(now);
                    lease.handle_timeout(self.now);
                }
            }
            32 => lease.handle_changed(now),
            33 if arg % 8 == 0 => {
                lease.handle_vanished([Vanished::Gone, Vanished::Replaced][(arg / 8 % 2) as usize]);
                assert!(!lease.holds_at(now));
            }
            // A stale answer.
            21 => lease.handle_outcome(now, (arg % 5) as u32, Outcome::Gone),
            22..=25 => {
                if let Some(op) = lease.poll_op() {
                    self.handed_out(op);
                }
            }
            _ => {
                if let Some(op) = self.op.take() {
                    let outcome = self.outcome(op, kind / 32, arg);
                    self.lease.handle_outcome(now, op.seq, outcome);
                }
            }
        }
        self.check();
    }

    fn handed_out(&mut self, op: Op) {
        self.op = Some(op);
        self.ops += 1;
        match op.kind {
            OpKind::Clear => {
                self.silent = true;
                self.dead.extend(self.lease.leftovers().as_slice());
                assert!(
                    !self.lost || self.dropped,
                    "S4: cleared before the guard was gone"
                );
            }
            OpKind::Acquire { attempt }
            | OpKind::Adopt { attempt, .. }
            | OpKind::Rotate { attempt, .. } => {
                assert!(attempt > self.written, "a value is written once");
                self.written = attempt;
                assert!(!self.silent, "S4: {op:?}");
            }
            OpKind::Renew { attempt } | OpKind::Look { attempt } => {
                assert!(self.lease.own_attempts().any(|own| own == attempt));
                assert!(!self.dead.contains(&attempt), "S5b");
                assert!(!self.silent, "S4: {op:?}");
            }
        }
    }

    fn check(&mut self) {
        while let Some(op) = self.lease.poll_superseded() {
            self.superseded.push(op);
        }
        while let Some(event) = self.lease.poll_event() {
            assert!(!self.dropped, "told after the drop: {event:?}");
            match event {
                Event::Acquired { .. } => self.acquired += 1,
                Event::Held { .. } | Event::TimedOut | Event::Failed(_) => {
                    self.refused += 1;
                    self.silent = true;
                }
                Event::Renewed { .. } | Event::RenewalFailed(_) => {
                    assert_eq!((self.acquired, self.ended), (1, 0), "{event:?}");
                }
                Event::Vanished => {
                    assert_eq!((self.acquired, self.ended), (1, 0), "{event:?}");
                    assert!(!self.lease.holds_at(Tick::ZERO));
                }
                Event::Lost(lost) => {
                    self.ended += 1;
                    self.lost = self.lease.state() == State::Lost;
                    self.silent = true;
                    assert!(
                        lost.stop_by >= self.now
                            || !matches!(lost.cause, Cause::Gone | Cause::Replaced)
                    );
                }
                Event::Released { .. } | Event::Abandoned => {
                    self.ended += 1;
                    self.silent = true;
                }
            }
        }
        assert!(
            self.acquired + self.refused <= 1 && self.ended <= self.acquired,
            "one end"
        );
        if self.ended > 0 {
            assert!(!self.lease.holds_at(Tick::ZERO) && self.lease.valid_until().is_none());
        }
        if self.lease.state() != State::Lost {
            self.lost = false;
        }
        assert!(self.lease.leftovers().as_slice().len() <= 8);
        if self.lease.state() == State::Done {
            assert!(
                self.dropped || self.refused + self.ended == 1,
                "over without a word"
            );
            assert!(!self.lease.wants_op());
        }
        // What is due is done in one call, and early calls change nothing.
        let mut early = self.lease.clone();
        early.handle_timeout(self.now);
        assert!(
            !early.deadline().is_due(self.now),
            "{:?} {:?}",
            early.state(),
            early.deadline()
        );
    }
}

/// Every cell has a meaning that can be reached, and is.
#[test]
fn every_cell_of_the_table_is_met() {
    let mut rng = Rng::new(42);
    for seed in 0..60_000 {
        let wait = [
            Wait::Now,
            Wait::For(MS * 300),
            Wait::Forever,
            Wait::For(MS * 3),
        ][(rng.next_u64() % 4) as usize];
        let (renew, max_hold) = (rng.next_u64() % 5 > 0, rng.next_u64() % 4 == 0);
        let mut watched = Watched::new(wait, renew, max_hold, seed % 3 > 0, seed);
        if rng.next_u64() % 8 > 0 {
            watched.lease.turn(watched.now);
        }
        for _ in 0..rng.next_u64() % 80 {
            watched.step(rng.next_u64() >> 8, rng.next_u64() >> 8);
        }
    }
    let missing: Vec<_> = (0..RULES.len())
        .filter(|rule| cells::met(*rule) == 0)
        .map(|rule| &RULES[rule])
        .collect();
    assert!(missing.is_empty(), "not met: {missing:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn one_end_for_every_request_and_every_hold(
        wait in prop_oneof![Just(Wait::Now), Just(Wait::Forever), (0u64..400).prop_map(|n| Wait::For(Duration::from_millis(n)))],
        renew: bool,
        max_hold: bool,
        rotate: bool,
        steps in prop::collection::vec((any::<u64>(), any::<u64>()), 0..120),
    ) {
        let mut watched = Watched::new(wait, renew, max_hold, rotate, 7);
        watched.lease.turn(watched.now);
        for (kind, arg) in steps {
            watched.step(kind >> 8, arg >> 8);
        }
        // Nobody waits any more, the store is gone for good: it comes to an end by itself.
        watched.lease.drop_guard(watched.now);
        (watched.dropped, watched.silent) = (true, true);
        watched.lease.handle_link_down(watched.now);
        if let Some(op) = watched.op.take() {
            let outcome = Outcome::NoReply { maybe_executed: true, failure: Failure::Link(LinkFault::Closed) };
            watched.lease.handle_outcome(watched.now, op.seq, outcome);
        }
        for _ in 0..3 {
            if let Deadline::At(at, _) = watched.lease.deadline() {
                watched.now = at.max(watched.now);
                watched.lease.handle_timeout(watched.now);
            }
        }
        prop_assert_eq!(watched.lease.state(), State::Done);
    }

    #[test]
    fn a_timeout_that_is_not_due_changes_nothing(
        steps in prop::collection::vec((any::<u64>(), any::<u64>()), 0..60),
        early in 0u64..2_000,
    ) {
        let mut watched = Watched::new(Wait::Forever, true, false, true, 7);
        watched.lease.turn(watched.now);
        for (kind, arg) in steps {
            watched.step(kind >> 8, arg >> 8);
        }
        watched.lease.handle_timeout(watched.now);
        let before = std::format!("{:?}", watched.lease);
        let at = watched.lease.deadline().at(watched.now).unwrap_or(Tick::MAX);
        let then = (watched.now + Duration::from_millis(early)).min(at - Duration::from_micros(1));
        watched.lease.handle_timeout(then.max(watched.now));
        prop_assert_eq!(before, std::format!("{:?}", watched.lease));
    }
}
