//! The table and the local queues, without any bytes.

use core::time::Duration;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::config::{LeaseConfig, Wait};
use crate::error::LinkFault;

const MS: Duration = Duration::from_millis(1);
const START: Tick = Tick::from_micros(1_000_000);

fn leases() -> Leases {
    Leases::new(Names::new("lock:", "me").unwrap(), 1)
}

fn ask(leases: &mut Leases, now: Tick, name: &[u8], wait: Wait) -> LeaseId {
    let terms = LeaseConfig::new(MS * 1_000).build().unwrap();
    let request = Request {
        name,
        terms,
        wait,
        secret: [3; 16],
        options: Options::default(),
        since_ms: 0,
    };
    leases.acquire(now, &request).unwrap()
}

fn grant(leases: &mut Leases, now: Tick) -> Vec<LeaseId> {
    let mut ids = Vec::new();
    while let Some(op) = leases.poll_op(now) {
        let outcome = match op.kind {
            OpKind::Clear => Outcome::Cleared { mine: true },
            _ => Outcome::Granted { handed_out: now },
        };
        leases.handle_outcome(now, op.id, op.seq, outcome);
        ids.push(op.id);
    }
    ids
}

fn drain(leases: &mut Leases) -> Vec<Event> {
    core::iter::from_fn(|| leases.poll_event()).collect()
}

#[test]
fn n_a_place_that_is_used_again_has_another_id() {
    let mut leases = leases();
    let first = ask(&mut leases, START, b"a", Wait::Forever);
    let op = leases.poll_op(START).unwrap();
    leases.drop_guard(START, first);
    while let Some(op) = leases.poll_superseded() {
        leases.handle_purged(START, op);
    }
    assert!(leases.is_empty());
    let second = ask(&mut leases, START, b"b", Wait::Forever);
    assert_eq!(first.index(), second.index());
    assert_ne!(first, second);
    assert_eq!(LeaseId::from_bits(second.to_bits()), second);
    // Whatever still comes for the first one does nothing to the second.
    leases.handle_outcome(START, first, op.seq, Outcome::Granted { handed_out: START });
    leases.note_text(first, b"ERR");
    leases.note_holder(first, b"x");
    leases.release(START, first);
    assert!(leases.lease(first).is_none() && leases.key(first).is_empty());
    assert!(drain(&mut leases).is_empty());
    assert_eq!(grant(&mut leases, START), [second]);
}

#[test]
fn events_that_nobody_waits_for_are_forgotten() {
    let mut leases = leases();
    let (a, b) = (
        ask(&mut leases, START, b"a", Wait::Forever),
        ask(&mut leases, START, b"b", Wait::Forever),
    );
    grant(&mut leases, START);
    leases.drop_guard(START, a);
    let events = drain(&mut leases);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].id, b);
}

#[test]
fn after_close_a_request_fails_at_once() {
    let mut leases = leases();
    leases.close(START);
    let id = ask(&mut leases, START, b"a", Wait::Forever);
    let events = drain(&mut leases);
    assert!(
        matches!(&events[..], [Event { id: told, notice: Notice::Failed(fault) }] if *told == id && fault.failure == Failure::Closed)
    );
    assert!(leases.is_empty() && leases.poll_op(START).is_none());
}

#[test]
fn o_a_release_and_a_loss_end_the_hold_at_once() {
    let mut leases = leases();
    let (a, b) = (
        ask(&mut leases, START, b"a", Wait::Forever),
        ask(&mut leases, START, b"b", Wait::Forever),
    );
    grant(&mut leases, START);
    assert!(leases.holds_at(a, START) && leases.holds_any());
    leases.release(START, a);
    assert!(!leases.holds_at(a, START) && leases.holds_at(b, START));
    leases.handle_timeout(START + MS * 700);
    assert!(!leases.holds_at(b, START) && !leases.holds_any());
}

#[test]
fn the_shortest_limit_is_that_of_the_holds() {
    let mut leases = leases();
    assert_eq!(leases.shortest_reply_limit(), Duration::MAX);
    let id = ask(&mut leases, START, b"a", Wait::Forever);
    assert_eq!(leases.shortest_reply_limit(), Duration::MAX);
    grant(&mut leases, START);
    assert_eq!(
        leases.shortest_reply_limit(),
        leases.lease(id).unwrap().terms().reply_limit()
    );
}

#[test]
fn s10_debug_shows_no_secret() {
    let mut leases = leases();
    ask(&mut leases, START, b"a", Wait::Forever);
    let shown = std::format!("{leases:?}");
    assert!(
        !shown.contains("3, 3, 3") && !shown.contains("0303"),
        "{shown}"
    );
}

#[test]
fn an_incurable_link_error_ends_every_wait_with_its_text() {
    let mut leases = leases();
    for wait in [Wait::Forever, Wait::Forever, Wait::Now] {
        ask(&mut leases, START, b"a", wait);
    }
    let failure = Failure::Link(LinkFault::Handshake(crate::error::ServerError::WrongPass));
    leases.handle_link_failed(START, failure, b"WRONGPASS no\n");
    let events = drain(&mut leases);
    assert_eq!(events.len(), 3);
    for event in events {
        let Notice::Failed(fault) = event.notice else {
            panic!()
        };
        assert_eq!(
            (fault.failure, fault.text.as_deref()),
            (failure, Some("WRONGPASS no%0A"))
        );
    }
    assert!(leases.is_empty());
}

#[test]
fn a_renewal_that_failed_does_not_show_the_text_of_an_earlier_dial() {
    let mut leases = leases();
    let id = ask(&mut leases, START, b"a", Wait::Forever);
    grant(&mut leases, START);
    drain(&mut leases);
    leases.handle_link_failed(START, Failure::Link(LinkFault::Dial), b"refused");
    leases.renew_now(START, id);
    let op = leases.poll_op(START).unwrap();
    let failure = Failure::Server(crate::error::ServerError::Loading);
    let outcome = Outcome::Failed {
        failure,
        maybe_executed: false,
    };
    leases.handle_outcome(START, id, op.seq, outcome);
    let fault = Fault {
        failure,
        text: None,
    };
    assert_eq!(
        leases.poll_event().map(|event| event.notice),
        Some(Notice::RenewalFailed(fault))
    );
}

#[test]
fn whoever_has_outputs_to_take_does_not_sleep() {
    let mut leases = leases();
    assert_eq!(leases.deadline(), Deadline::Never);
    // An operation, and nothing to tell,
    ask(&mut leases, START, b"a", Wait::Forever);
    assert_eq!(leases.deadline(), Deadline::Now);
    assert_eq!(leases.timer(), Deadline::Never);
    // something to tell, and no operation,
    grant(&mut leases, START);
    assert_eq!(leases.deadline(), Deadline::Now);
    // or neither.
    drain(&mut leases);
    assert!(matches!(leases.deadline(), Deadline::At(..)));
    assert_eq!(leases.deadline(), leases.timer());
}

#[test]
fn s12_a_clock_that_falls_back_makes_nothing_be_forgotten_early() {
    let mut leases = leases();
    let id = ask(&mut leases, START, b"a", Wait::Forever);
    grant(&mut leases, START);
    leases.handle_timeout(START + MS * 500);
    // The connection dies by a clock that lies behind; from then on it takes one lease and a margin.
    leases.handle_link_down(START + MS * 100);
    assert_eq!(leases.clock_regressions(), 1);
    leases.release(START + MS * 500, id);
    leases.handle_timeout(START + MS * 1_450);
    assert!(!leases.is_empty());
    leases.handle_timeout(START + MS * 1_602);
    assert!(leases.is_empty());
}

#[test]
fn a_request_that_is_overtaken_by_a_try_of_its_own_process_waits_in_line() {
    let mut leases = leases();
    let first = ask(&mut leases, START, b"a", Wait::Forever);
    let quick = ask(&mut leases, START, b"a", Wait::Now);
    let ops = [
        leases.poll_op(START).unwrap(),
        leases.poll_op(START).unwrap(),
    ];
    assert_eq!((ops[0].id, ops[1].id), (first, quick));
    let refused = Outcome::Refused {
        own: None,
        remaining: None,
        watched: false,
    };
    leases.handle_outcome(
        START,
        quick,
        ops[1].seq,
        Outcome::Granted { handed_out: START },
    );
    leases.handle_outcome(START, first, ops[0].seq, refused);
    // No attempts at a name that is held here.
    leases.handle_timeout(START + MS * 150);
    assert_eq!(leases.poll_op(START + MS * 150), None);
    leases.release(START + MS * 150, quick);
    assert_eq!(grant(&mut leases, START + MS * 150), [quick, first]);
}

#[test]
fn s15_a_hold_whose_validity_has_ended_refuses_nobody_here() {
    let mut leases = leases();
    ask(&mut leases, START, b"a", Wait::Forever);
    grant(&mut leases, START);
    drain(&mut leases);
    // The process slept; nobody has told the loss yet.
    let late = START + MS * 900;
    let quick = ask(&mut leases, late, b"a", Wait::Now);
    assert!(drain(&mut leases).is_empty());
    let op = leases.poll_op(late).unwrap();
    assert_eq!((op.id, op.kind), (quick, OpKind::Acquire { attempt: 1 }));
}

#[test]
fn s15_a_name_that_is_granted_twice_here_is_found_out_at_once() {
    // Both were under way; somebody deleted the key of the first grant before the second.
    let mut leases = leases();
    let first = ask(&mut leases, START, b"a", Wait::Forever);
    let quick = ask(&mut leases, START, b"a", Wait::Now);
    let behind = ask(&mut leases, START, b"a", Wait::Forever);
    assert_eq!(grant(&mut leases, START), [first, quick, first]);
    leases.renew_now(START, first);
    let op = leases.poll_op(START).unwrap();
    assert_eq!((op.id, op.kind), (first, OpKind::Renew { attempt: 1 }));
    let replaced = Outcome::Refused {
        own: None,
        remaining: None,
        watched: false,
    };
    leases.handle_outcome(START, op.id, op.seq, replaced);
    assert!(leases.holds_at(quick, START) && !leases.holds_at(first, START));
    // The queue is whole: the next one has its turn when the winner is done.
    leases.drop_guard(START, first);
    leases.release(START, quick);
    assert_eq!(grant(&mut leases, START), [quick, behind]);
    assert!(leases.holds_at(behind, START));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// At most one hold per name, one end for each, the order of the queue kept, and an empty table when
    /// everybody has gone.
    #[test]
    fn queues_are_exact(steps in prop::collection::vec((0u8..10, 0u16..200), 1..150)) {
        let (mut leases, mut now) = (leases(), START);
        let mut live: Vec<(LeaseId, u8)> = Vec::new();
        let mut ops: Vec<Op> = Vec::new();
        let mut owner: [Option<LeaseId>; 3] = [None; 3];
        for (kind, arg) in steps {
            let pick = |live: &Vec<(LeaseId, u8)>| live.get(arg as usize % live.len().max(1)).copied();
            match kind {
                0..=2 => {
                    let name = (arg % 3) as u8;
                    let wait = [Wait::Forever, Wait::For(MS * 50), Wait::Now][(arg / 3 % 3) as usize];
                    live.push((ask(&mut leases, now, &[b'a' + name], wait), name));
                }
                3 => if let Some((id, _)) = pick(&live) { leases.release(now, id) },
                4 => if let Some((id, _)) = pick(&live) {
                    leases.drop_guard(now, id);
                    live.retain(|(other, _)| *other != id);
                },
                5 => now = now + MS * u32::from(arg),
                6 => leases.handle_timeout(now),
                _ => if let Some(op) = leases.poll_op(now) { ops.push(op) },
            }
            // A store that executes in order, a little behind.
            while ops.len() > usize::from(arg % 3) {
                let op = ops.remove(0);
                let Some(name) = leases.key(op.id).last().map(|byte| usize::from(byte - b'a')) else { continue };
                let outcome = match op.kind {
                    OpKind::Acquire { .. } if owner[name].is_none() => {
                        owner[name] = Some(op.id);
                        Outcome::Granted { handed_out: now }
                    }
                    OpKind::Acquire { .. } | OpKind::Adopt { .. } => Outcome::Refused { own: None, remaining: None, watched: false },
                    OpKind::Renew { .. } | OpKind::Rotate { .. } => Outcome::Granted { handed_out: now },
                    OpKind::Look { .. } => Outcome::Seen,
                    OpKind::Clear => {
                        let mine = owner[name] == Some(op.id);
                        if mine { owner[name] = None; }
                        Outcome::Cleared { mine }
                    }
                };
                leases.handle_outcome(now, op.id, op.seq, outcome);
            }
            leases.handle_timeout(now);
            while leases.poll_superseded().is_some() {}
            drain(&mut leases);
            for name in 0..3u8 {
                let held = live.iter().filter(|(id, of)| *of == name && leases.holds_at(*id, now));
                prop_assert!(held.count() <= 1);
            }
            prop_assert!(!leases.timer().is_due(now));
            prop_assert_eq!(leases.holds_any(), live.iter().any(|(id, _)| leases.lease(*id).is_some_and(|lease| lease.valid_until().is_some())));
        }
        for (id, _) in live {
            leases.drop_guard(now, id);
        }
        for op in ops {
            leases.handle_outcome(now, op.id, op.seq, Outcome::Cleared { mine: true });
        }
        for _ in 0..4 {
            grant(&mut leases, now);
            while leases.poll_superseded().is_some() {}
        }
        prop_assert!(leases.is_empty(), "{:?}", leases);
    }
}
