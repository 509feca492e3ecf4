//! Waiting, and the local queue of a name: S9, S10.

use core::time::Duration;
use std::vec::Vec;

use super::server::Server;
use super::world::{Dial, World, ms, terms};
use crate::config::{LeaseConfig, Wait};
use crate::error::{Failure, LinkFault, ServerError};
use crate::lease::State;
use crate::leases::{Fault, Holder, Notice, Options};

const OTHER: &[u8] = b"tn1:p:1:you.0123456789abcdef0123456789abcdef.1";

/// A name that another client holds for good.
fn taken(latency: Duration) -> World {
    let mut world = World::new(Server::redis());
    world.latency = latency;
    world.server.put("lock:a", OTHER, None);
    world.run(latency * 4);
    world
}

fn attempts(world: &World) -> Vec<u64> {
    let sets = world
        .server
        .log
        .iter()
        .filter(|(_, line)| line.starts_with("SET lock:a"));
    sets.map(|(tick, _)| *tick).collect()
}

#[test]
fn s9_a_try_makes_exactly_one_attempt() {
    for wait in [
        Wait::Now,
        Wait::For(Duration::ZERO),
        Wait::For(Duration::from_nanos(1)),
    ] {
        let mut world = taken(ms(1));
        let id = world.acquire("a", terms(ms(3_000)), wait);
        world.run(ms(5_000));
        assert_eq!(
            world.told(id),
            [&Notice::Held(Holder::labelled("you", None))]
        );
        assert_eq!(attempts(&world).len(), 1);
        assert!(world.mux.leases().is_empty());
    }
}

#[test]
fn s9_a_try_that_gets_no_answer_fails_and_is_cleared() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    world.mute = true;
    let id = world.acquire("a", terms(ms(30_000)), Wait::Now);
    world.run(ms(100));
    world.mute = false;
    world.cut();
    assert!(
        matches!(world.end(id).1, Notice::Failed(fault) if fault.failure == Failure::Link(LinkFault::Closed))
    );
    world.run(ms(100));
    assert_eq!(world.key("a"), None);
    assert_eq!(attempts(&world).len(), 1);
}

#[test]
fn s9_a_try_without_a_connection_fails_at_the_first_failed_dial_and_not_before() {
    let mut world = World::new(Server::redis());
    world.dial = Dial::Refused;
    world.run(ms(400));
    let id = world.acquire("a", terms(ms(3_000)), Wait::Now);
    let waiting = world.acquire("b", terms(ms(3_000)), Wait::Forever);
    let dials = world.dials;
    while world.told(id).is_empty() {
        world.run(ms(1));
    }
    assert!(world.dials <= dials + 1);
    let Notice::Failed(fault) = world.end(id).1 else {
        panic!()
    };
    assert_eq!(
        (fault.failure, &fault.text),
        (Failure::Link(LinkFault::Dial), &None)
    );
    // A wait goes on.
    assert!(world.told(waiting).is_empty());
    world.dial = Dial::Works;
    world.run(ms(2_000));
    assert!(world.holds(waiting));
}

#[test]
fn s9_a_try_whose_dial_hangs_ends_with_the_connect_limit() {
    let mut world = World::new(Server::redis());
    world.dial = Dial::Hangs;
    let id = world.acquire("a", terms(ms(3_000)), Wait::Now);
    world.run(ms(4_999));
    assert!(world.told(id).is_empty());
    world.run(ms(2));
    assert!(
        matches!(world.end(id).1, Notice::Failed(fault) if fault.failure == Failure::Link(LinkFault::DialTimedOut))
    );
}

#[test]
fn s9_the_last_attempt_leaves_room_for_its_answer() {
    for (latency, wait, lead) in [
        (1, 1_000, 8),
        (10, 1_000, 80),
        (50, 1_000, 400),
        (50, 300, 150),
        (1, 8, 4),
    ] {
        let mut world = taken(ms(latency));
        let asked = world.now;
        let id = world.acquire("a", terms(ms(3_000)), Wait::For(ms(wait)));
        world.run(ms(wait + 100));
        assert_eq!(world.end(id).0, asked + ms(wait));
        let last = Duration::from_micros(attempts(&world).pop().unwrap()) - ms(latency);
        let due = Duration::from_micros((asked + ms(wait - lead)).as_micros());
        assert!(
            last >= due && last <= due + ms(2 * latency),
            "{latency} {wait}: {last:?} {due:?}"
        );
    }
}

#[test]
fn s9_timed_out_comes_at_the_wait_and_knows_the_holder() {
    let mut world = taken(ms(1));
    let asked = world.now;
    let first = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    let behind = world.acquire("a", terms(ms(3_000)), Wait::For(ms(250)));
    let alone = world.acquire("b", terms(ms(3_000)), Wait::Now);
    world.run(ms(1_000));
    let you = Notice::TimedOut(Holder::labelled("you", None));
    assert_eq!(world.end(behind), (asked + ms(250), &you));
    assert!(world.told(first).is_empty() && world.holds(alone));
}

#[test]
fn s9_who_was_seen_before_a_refusal_that_showed_nobody_is_not_named_at_the_end_of_the_wait() {
    let mut world = taken(ms(1));
    let id = world.acquire("a", terms(ms(3_000)), Wait::For(ms(250)));
    world.run(ms(100));
    // From here on values may not be read: it may be anybody.
    world.server.may_read = false;
    world.run(ms(200));
    assert_eq!(world.told(id), [&Notice::TimedOut(Holder::UNKNOWN)]);
}

#[test]
fn s9_those_behind_a_hold_time_out_with_what_it_knows() {
    let mut world = World::new(Server::redis());
    let first = world.hold("a", terms(ms(30_000)));
    let asked = world.now;
    let behind = world.acquire("a", terms(ms(3_000)), Wait::For(ms(250)));
    let log = world.server.log.len();
    world.run(ms(250));
    let until = world
        .mux
        .leases()
        .lease(first)
        .unwrap()
        .valid_until()
        .unwrap();
    let remaining = until.saturating_since(asked + ms(250));
    let me = Notice::TimedOut(Holder::labelled("me", Some(remaining)));
    assert_eq!(world.end(behind), (asked + ms(250), &me));
    assert_eq!(world.server.log.len(), log);
}

#[test]
fn s9_a_win_after_the_wait_is_released() {
    // The wait is shorter than a round trip.
    let mut world = World::new(Server::redis());
    world.latency = ms(20);
    world.run(ms(200));
    let asked = world.now;
    let id = world.acquire("a", terms(ms(30_000)), Wait::For(ms(3)));
    world.run(ms(21));
    assert!(world.key("a").is_some());
    world.run(ms(50));
    // Nobody knows that somebody else had it.
    let fault = Fault {
        failure: Failure::NoReply,
        text: None,
    };
    assert_eq!(world.end(id), (asked + ms(3), &Notice::Failed(fault)));
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s9_m6_a_late_grant_is_renewed_before_it_is_handed_over() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let id = world.acquire("a", terms(ms(1_000)), Wait::Forever);
    // 600 of 900 ms are gone when the answer is read.
    world.pause(ms(600));
    world.pump();
    assert!(world.told(id).is_empty() && !world.holds(id));
    let awake = world.now;
    world.run(ms(10));
    assert_eq!(
        world.told(id),
        [&Notice::Acquired {
            valid_until: awake + ms(900),
            fence: None,
        }]
    );
}

#[test]
fn s9_m6_the_confirmation_of_a_late_grant_may_take_longer_than_a_renewal() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let terms = terms(ms(3_000));
    let id = world.acquire("a", terms, Wait::Forever);
    world.pause(ms(1_600));
    // Nothing is held yet that a slow connection could lose.
    world.latency = ms(200);
    assert!(world.latency * 2 > terms.reply_limit());
    let awake = world.now;
    world.run(ms(410));
    assert_eq!(
        world.told(id),
        [&Notice::Acquired {
            valid_until: awake + ms(2_700),
            fence: None,
        }]
    );
    assert_eq!(world.dials, 1);
}

#[test]
fn s9_m6_a_grant_that_stays_late_is_released() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let id = world.acquire("a", terms(ms(1_000)), Wait::Forever);
    world.pause(ms(600));
    world.pump();
    world.pause(ms(800));
    world.pump();
    assert!(
        matches!(world.end(id).1, Notice::Failed(fault) if fault.failure == Failure::SlowReplies)
    );
    world.run(ms(10));
    assert_eq!(world.key("a"), None);
}

#[test]
fn s9_a_confirmation_that_was_not_sent_is_no_second_attempt() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let id = world.acquire("a", terms(ms(1_000)), Wait::Now);
    world.pause(ms(600));
    world.takes = 0;
    world.pump();
    assert_eq!(
        world.mux.leases().lease(id).unwrap().state(),
        State::Confirming
    );
    world.takes = usize::MAX;
    world.cut();
    world.run(ms(100));
    assert!(world.holds(id), "{:?}", world.told(id));
    assert_eq!(
        attempts(&world).len(),
        2,
        "the attempt and the renewal: {:?}",
        world.server.log
    );
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("1"));
}

#[test]
fn s9_polls_are_bounded_and_polite() {
    let mut world = taken(ms(1));
    world.acquire("a", terms(ms(3_000)), Wait::Forever);
    world.run(ms(60_000));
    let sets = attempts(&world);
    assert!((150..1_000).contains(&sets.len()), "{}", sets.len());
    assert!(sets.windows(2).all(|pair| pair[1] - pair[0] <= 410_000));
}

#[test]
fn s9_those_who_wait_in_other_processes_keep_apart() {
    let times = |seed| {
        let mut world = World::seeded(Server::redis(), seed);
        world.server.put("lock:a", OTHER, None);
        world.acquire("a", terms(ms(3_000)), Wait::Forever);
        world.run(ms(20_000));
        attempts(&world)
    };
    let (one, other) = (times(1), times(2));
    let near = |at: &&u64| one.iter().any(|tick| tick.abs_diff(**at) < 2_000);
    let together = other.iter().filter(near).count();
    assert!(together * 10 < other.len(), "{together} of {}", other.len());
}

#[test]
fn s9_the_end_of_the_others_lease_is_not_slept_through() {
    let mut world = World::new(Server::redis());
    let until = world.now + ms(700);
    world.server.put("lock:a", OTHER, Some(until.as_micros()));
    let id = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    world.run_until(until + ms(10));
    assert!(world.holds(id));
}

#[test]
fn p_the_next_in_the_queue_tries_right_behind_the_release() {
    let mut world = World::new(Server::redis());
    let first = world.hold("a", terms(ms(30_000)));
    let second = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    let third = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(500));
    let log = world.server.log.len();
    world.release(first);
    world.run(ms(1));
    assert!(world.holds(second) && !world.holds(third));
    let lines: Vec<&str> = world.server.log[log..]
        .iter()
        .map(|(_, line)| &line[..5])
        .collect();
    assert_eq!(lines, ["DELEX", "SET l"]);
    world.drop_guard(second);
    world.run(ms(1));
    assert!(world.holds(third));
}

#[test]
fn p_a_lost_hold_lets_the_next_one_try_at_once() {
    let mut world = World::new(Server::redis());
    let first = world.hold("a", terms(ms(3_000)));
    let second = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    world.server.keys.clear();
    world.run(ms(700));
    assert!(matches!(world.end(first).1, Notice::Lost { .. }));
    assert!(world.holds(second));
}

#[test]
fn the_hold_after_a_lost_one_is_renewed_like_any_other() {
    let mut world = World::new(Server::redis());
    for outage in [true, false] {
        let lost = world.hold("a", terms(ms(3_000)));
        if outage {
            world.mute = true;
            world.run(ms(2_500));
            world.mute = false;
        } else {
            world.server.keys.clear();
            world.run(ms(1_000));
        }
        assert!(matches!(world.end(lost).1, Notice::Lost { .. }));
        world.drop_guard(lost);
        world.run(ms(100));
        let next = world.hold("a", terms(ms(3_000)));
        for _ in 0..100 {
            world.run(ms(100));
            let (_, until) = &world.server.keys[&b"lock:a"[..]];
            // Due at a fifth of the lease at the latest, and on its way for half a millisecond.
            assert!(until.unwrap() + 601_000 >= world.now.as_micros() + 3_000_000);
        }
        assert!(world.holds(next) && !world.holds(lost));
        world.release(next);
        world.run(ms(10));
    }
}

#[test]
fn those_who_wait_together_all_end_on_time() {
    let mut world = taken(ms(1));
    let asked = world.now;
    let ids: Vec<_> = (0..20)
        .map(|_| world.acquire("a", terms(ms(3_000)), Wait::For(ms(500))))
        .collect();
    world.run(ms(1_000));
    for id in ids {
        let you = Notice::TimedOut(Holder::labelled("you", None));
        assert_eq!(world.end(id), (asked + ms(500), &you));
    }
}

#[test]
fn the_queue_keeps_its_order_and_those_who_leave_it_cost_nothing() {
    let mut world = World::new(Server::redis());
    let first = world.hold("a", terms(ms(30_000)));
    let ids: Vec<_> = (0..6)
        .map(|_| world.acquire("a", terms(ms(30_000)), Wait::Forever))
        .collect();
    let log = world.server.log.len();
    // From the middle, from the end.
    world.drop_guard(ids[2]);
    world.drop_guard(ids[5]);
    world.run(ms(5));
    assert_eq!(world.server.log.len(), log);
    world.release(first);
    for id in [ids[0], ids[1], ids[3], ids[4]] {
        world.run(ms(2));
        assert!(world.holds(id));
        world.release(id);
    }
    world.run(ms(5));
    assert!(world.mux.leases().is_empty());
    assert!(world.told(ids[2]).is_empty() && world.told(ids[5]).is_empty());
}

#[test]
fn a_try_passes_the_queue_and_a_winner_moves_to_the_front() {
    let mut world = taken(ms(1));
    let first = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    let second = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(2_000));
    // The key gets free while the first one sleeps, and a single try is quicker.
    world.server.keys.clear();
    let quick = world.acquire("a", terms(ms(30_000)), Wait::Now);
    world.run(ms(3));
    assert!(world.holds(quick), "{:?}", world.told(quick));
    let log = world.server.log.len();
    world.run(ms(3_000));
    // Those behind send nothing as long as it is held here.
    assert_eq!(world.server.log.len(), log);
    let again = world.acquire("a", terms(ms(30_000)), Wait::Now);
    assert!(matches!(world.end(again).1, Notice::Held(_)));
    world.release(quick);
    world.run(ms(3));
    assert!(world.holds(first) && !world.holds(second));
}

#[test]
fn s10_what_waiting_cannot_cure_ends_the_wait_at_once() {
    for (error, expected) in [
        ("NOPERM no", ServerError::NoPerm),
        ("NOAUTH Authentication required.", ServerError::NoAuth),
        ("MOVED 1 10.0.0.1:6379", ServerError::Moved),
    ] {
        let mut world = World::new(Server::redis());
        world.server.ails = Some(error);
        let id = world.acquire("a", terms(ms(3_000)), Wait::Forever);
        let behind = world.acquire("a", terms(ms(3_000)), Wait::Forever);
        world.run(ms(30));
        for id in [id, behind] {
            let Notice::Failed(fault) = world.end(id).1 else {
                panic!("{error}")
            };
            assert_eq!(fault.failure, Failure::Server(expected));
            assert_eq!(fault.text.as_deref(), Some(error));
        }
    }
}

#[test]
fn s10_a_curable_error_is_waited_out_and_named_at_the_end_of_the_wait() {
    let mut world = World::new(Server::redis());
    world.server.ails = Some("LOADING the dataset");
    let cured = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    let ends = world.acquire("b", terms(ms(3_000)), Wait::For(ms(200)));
    world.run(ms(300));
    assert!(
        matches!(world.end(ends).1, Notice::Failed(fault) if fault.failure == Failure::Server(ServerError::Loading))
    );
    world.server.ails = None;
    world.run(ms(500));
    assert!(world.holds(cured));
}

#[test]
fn r_a_failure_shows_its_own_text_and_no_older_one() {
    let mut world = World::new(Server::redis());
    world.server.ails = Some("LOADING the dataset");
    let id = world.acquire("a", terms(ms(3_000)), Wait::For(ms(500)));
    world.run(ms(100));
    world.dial = Dial::Refused;
    world.cut();
    world.run(ms(500));
    let Notice::Failed(fault) = world.end(id).1 else {
        panic!()
    };
    assert_eq!(
        (fault.failure, fault.text.as_deref()),
        (Failure::Link(LinkFault::Dial), None)
    );
}

#[test]
fn r_a_link_error_that_is_over_is_not_what_a_wait_failed_of() {
    let mut world = World::new(Server::redis());
    world.server.put("lock:a", OTHER, None);
    world.dial = Dial::Refused;
    let _first = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    let behind = world.acquire("a", terms(ms(3_000)), Wait::For(ms(3_000)));
    world.run(ms(100));
    world.dial = Dial::Works;
    world.run(ms(3_000));
    assert_eq!(
        world.end(behind).1,
        &Notice::TimedOut(Holder::labelled("you", None))
    );
}

#[test]
fn l_a_dropped_future_is_told_nothing() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let held = world.hold("a", terms(ms(3_000)));
    let refused = world.mux.acquire(
        world.now,
        &crate::leases::Request {
            name: b"a",
            terms: terms(ms(3_000)),
            wait: Wait::Now,
            secret: [9; 16],
            options: Options::default(),
            since_ms: 0,
        },
    );
    // Its answer is there, but not taken.
    let refused = refused.unwrap();
    world.mux.drop_guard(world.now, refused);
    world.pump();
    assert!(world.told(refused).is_empty());
    world.pause(ms(2_500));
    world.mux.handle_timeout(world.now);
    world.drop_guard(held);
    assert_eq!(world.told(held).len(), 1);
}

#[test]
fn j_no_renew_is_one_fixed_lease_unless_a_renewal_is_asked_for() {
    let fixed = LeaseConfig::new(ms(3_000)).no_renew().build().unwrap();
    let mut world = World::new(Server::redis());
    let id = world.acquire("a", fixed, Wait::Forever);
    world.run(ms(1_000));
    world.cut();
    world.run(ms(500));
    assert_eq!(world.server.count("IFEQ"), 0);
    world.mux.renew_now(world.now, id);
    let asked = world.now;
    world.run(ms(100));
    assert_eq!(
        world.mux.leases().lease(id).unwrap().valid_until(),
        Some(asked + ms(2_700))
    );
    world.run(ms(4_000));
    assert_eq!(world.server.count("IFEQ"), 1);
    assert_eq!(world.end(id).0, asked + ms(2_400));
}

#[test]
fn j_max_hold_ends_a_hold_in_time() {
    let bounded = LeaseConfig::new(ms(3_000))
        .max_hold(ms(10_000))
        .build()
        .unwrap();
    let mut world = World::new(Server::redis());
    let id = world.acquire("a", bounded, Wait::Forever);
    world.run(ms(12_000));
    let granted = world.notices[0].0;
    let (when, notice) = world.end(id);
    let Notice::Lost { lost, .. } = notice else {
        panic!()
    };
    assert_eq!(lost.cause, crate::lease::Cause::MaxHold);
    assert!(when < lost.stop_by && lost.stop_by <= granted + ms(10_000));
    assert!(when > granted + ms(8_000));
}

#[test]
fn k_a_close_ends_everything_within_a_lease() {
    let mut world = World::new(Server::redis());
    let held = world.hold("a", terms(ms(3_000)));
    let behind = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    let releasing = world.hold("b", terms(ms(3_000)));
    world.server.put("lock:c", OTHER, None);
    let waiting = world.acquire("c", terms(ms(3_000)), Wait::Forever);
    world.run(ms(50));
    world.mux.release(world.now, releasing);
    world.mux.close(world.now);
    world.pump();
    let late = world.acquire("d", terms(ms(3_000)), Wait::Forever);
    let closed = |notice: &Notice| matches!(notice, Notice::Failed(fault) if fault.failure == Failure::Closed);
    assert!(
        closed(world.end(behind).1) && closed(world.end(waiting).1) && closed(world.end(late).1)
    );
    assert!(
        matches!(world.end(held).1, Notice::Lost { lost, .. } if lost.cause == crate::lease::Cause::Closed)
    );
    world.run(ms(10));
    assert_eq!(
        world.end(releasing).1,
        &Notice::Released { confirmed: true }
    );
    assert!(!world.mux.is_finished());
    // The guard of the lost one lives on, for ever.
    world.run(ms(3_000));
    assert!(world.mux.is_finished());
    world.cut();
    assert_eq!(world.mux.deadline(), crate::time::Deadline::Never);
}
