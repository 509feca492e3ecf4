//! Waiters and holders that are told by the server, and what happens when they are not.

use core::time::Duration;
use std::format;
use std::vec::Vec;

use super::server::{Server, Stored};
use super::world::{World, ms, terms};
use crate::config::{LeaseConfig, Wait};
use crate::lease::Cause;
use crate::leases::{LeaseId, Notice};
use crate::mux::{LinkEvent, MuxConfig, Unwatched};
use crate::names::{Names, Value};
use crate::time::Tick;

const LEASE: Duration = ms(30_000);
const KEY: &str = "lock:a";

fn theirs() -> Vec<u8> {
    Value::new("them", 1, &[9; 16], 1).as_bytes().to_vec()
}

/// Somebody else holds the name for a long time.
fn taken(server: &mut Server, until: Tick) {
    server.put(KEY, &theirs(), Some(until.as_micros()));
}

/// A world in which a waiter has been refused and nothing asks again by itself.
fn waiting() -> (World, LeaseId) {
    let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
    config.poll_limit = Duration::MAX;
    let mut world = World::with(config, Server::redis(), 1);
    let until = world.now + LEASE * 100;
    taken(&mut world.server, until);
    let id = world.acquire("a", terms(LEASE), Wait::Forever);
    world.run(ms(1_000));
    assert!(world.told(id).is_empty());
    (world, id)
}

/// When it was acquired.
fn acquired(world: &World, id: LeaseId) -> Option<Tick> {
    let of = world.notices.iter().filter(|(_, other, _)| *other == id);
    let mut acquired = of.filter(|(.., notice)| matches!(notice, Notice::Acquired { .. }));
    acquired.next().map(|(tick, ..)| *tick)
}

fn unwatched(world: &World) -> Vec<&Unwatched> {
    let told = world.links.iter().filter_map(|(_, event)| match event {
        LinkEvent::Unwatched(why) => Some(why),
        _ => None,
    });
    told.collect()
}

#[test]
fn s9_a_waiter_that_was_refused_is_woken_and_has_the_name_a_trip_and_a_half_later() {
    let (mut world, id) = waiting();
    let freed = world.now;
    world.server.remove(KEY);
    world.run(ms(100));
    assert_eq!(acquired(&world, id), Some(freed + world.latency * 3));
}

#[test]
fn s9_a_name_that_is_freed_between_the_attempt_and_the_watch_is_not_waited_for() {
    for verb in ["SET", "GET", "PTTL"] {
        let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
        config.poll_limit = Duration::MAX;
        let mut world = World::with(config, Server::redis(), 1);
        let until = world.now + LEASE * 100;
        taken(&mut world.server, until);
        world.run(ms(5));
        world.server.vanishes_after = Some((verb, KEY));
        let id = world.acquire("a", terms(LEASE), Wait::Forever);
        world.run(ms(20));
        assert!(acquired(&world, id).is_some(), "freed after {verb}");
    }
}

#[test]
fn s9_on_an_old_server_too_nothing_lies_between_the_attempt_and_the_watch() {
    for verb in ["SET", "GET", "PTTL"] {
        let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
        config.poll_limit = Duration::MAX;
        let server = Server {
            nx_get: false,
            ifeq: false,
            ..Server::redis()
        };
        let mut world = World::with(config, server, 1);
        let first = world.hold("b", terms(LEASE));
        world.release(first);
        world.run(ms(5));
        let until = world.now + LEASE * 100;
        taken(&mut world.server, until);
        world.server.vanishes_after = Some((verb, KEY));
        let id = world.acquire("a", terms(LEASE), Wait::Forever);
        world.run(ms(20));
        assert!(acquired(&world, id).is_some(), "freed after {verb}");
    }
}

#[test]
fn s9_somebody_who_comes_first_is_waited_for_in_turn() {
    let (mut world, id) = waiting();
    for _ in 0..5 {
        // Freed, and taken again before the waiter's attempt arrives.
        world.server.remove(KEY);
        world.run(world.latency * 3 / 2);
        let until = world.now + LEASE * 100;
        world.server.meddle(|server| taken(server, until));
        world.run(ms(200));
        assert_eq!(acquired(&world, id), None);
    }
    let freed = world.now;
    world.server.remove(KEY);
    world.run(ms(100));
    assert_eq!(acquired(&world, id), Some(freed + world.latency * 3));
}

#[test]
fn s9_a_renewal_of_the_holder_costs_a_waiter_three_commands() {
    let (mut world, id) = waiting();
    for _ in 0..10 {
        let before = world.server.log.len();
        let until = world.now + LEASE * 200;
        world.server.meddle(|server| taken(server, until));
        world.run(ms(1_000));
        assert_eq!(world.server.log.len() - before, 3);
    }
    world.server.remove(KEY);
    world.run(ms(100));
    assert!(acquired(&world, id).is_some());
}

#[test]
fn s9_a_name_that_was_freed_while_the_connection_was_down_is_had_at_once() {
    let (mut world, id) = waiting();
    world.cut();
    world.server.remove(KEY);
    let cut = world.now;
    world.run(ms(500));
    assert!(acquired(&world, id).unwrap() < cut + ms(50));
}

#[test]
fn s9_after_a_reconnect_the_name_is_watched_again() {
    let (mut world, id) = waiting();
    for _ in 0..3 {
        world.cut();
        world.run(ms(500));
    }
    assert_eq!(acquired(&world, id), None);
    let freed = world.now;
    world.server.remove(KEY);
    world.run(ms(100));
    assert_eq!(acquired(&world, id), Some(freed + world.latency * 3));
}

#[test]
fn s9_a_flush_wakes_everybody() {
    let (mut world, id) = waiting();
    let flushed = world.now;
    world.server.flush();
    world.run(ms(100));
    assert_eq!(acquired(&world, id), Some(flushed + world.latency * 3));
}

#[test]
fn s9_an_expiry_wakes_and_is_waited_for_besides() {
    for told in [true, false] {
        let mut world = World::watching(Server::redis(), 1);
        let until = world.now + ms(900);
        taken(&mut world.server, until);
        let id = world.acquire("a", terms(LEASE), Wait::Forever);
        world.run(ms(100));
        if !told {
            world.server.watched.clear();
        }
        world.run(ms(2_000));
        let after = acquired(&world, id).unwrap().saturating_since(until);
        assert!(after <= ms(10), "{after:?}");
    }
}

#[test]
fn s9_only_the_first_in_the_queue_is_woken() {
    let (mut world, first) = waiting();
    let others: Vec<_> = (0..50)
        .map(|_| world.acquire("a", terms(LEASE), Wait::Forever))
        .collect();
    world.run(ms(1_000));
    let before = world.server.log.len();
    world.server.remove(KEY);
    world.run(ms(100));
    assert_eq!(world.server.log.len() - before, 2);
    assert!(acquired(&world, first).is_some());
    assert!(others.iter().all(|id| world.told(*id).is_empty()));
}

#[test]
fn s9_what_is_not_told_is_found_by_asking_and_from_then_on_asked_for_more_often() {
    let mut world = World::watching(Server::redis(), 1);
    let until = world.now + LEASE * 100;
    taken(&mut world.server, until);
    let id = world.acquire("a", terms(LEASE), Wait::Forever);
    world.run(ms(1_000));
    // Something in between forgets what it had promised.
    world.server.watched.clear();
    let freed = world.now;
    world.server.remove(KEY);
    world.run(ms(11_000));
    assert!(acquired(&world, id).unwrap() <= freed + ms(10_010));
    assert_eq!(unwatched(&world), [&Unwatched::Missed]);
    world.release(id);
    world.run(ms(10));
    let until = world.now + LEASE * 100;
    taken(&mut world.server, until);
    let id = world.acquire("a", terms(LEASE), Wait::Forever);
    world.run(ms(3_000));
    let freed = world.now;
    world.server.remove(KEY);
    world.run(ms(1_000));
    assert!(acquired(&world, id).unwrap() <= freed + ms(410));
    assert_eq!(unwatched(&world), [&Unwatched::Missed]);
}

#[test]
fn s9_a_wake_up_that_crosses_with_the_asking_was_not_missed() {
    for seed in 0..200 {
        let mut world = World::watching(Server::redis(), seed);
        let until = world.now + LEASE * 100;
        taken(&mut world.server, until);
        let id = world.acquire("a", terms(LEASE), Wait::Forever);
        // Freed while an attempt is on its way that nobody had prompted.
        while world.server.count("SET") < 2 {
            let asked = world.server.count("PTTL");
            world.run(world.latency / 4);
            if world.mux.unanswered() > 0 && asked == 1 && world.server.count("SET") == 1 {
                world.server.remove(KEY);
                break;
            }
            assert!(world.now < until);
        }
        world.run(ms(1_000));
        assert!(acquired(&world, id).is_some());
        assert!(unwatched(&world).is_empty(), "seed {seed}");
    }
}

#[test]
fn s9_the_last_attempt_of_a_wait_is_made_though_nothing_was_told() {
    let mut world = World::watching(Server::redis(), 1);
    let until = world.now + LEASE * 100;
    taken(&mut world.server, until);
    let asked = world.now;
    let id = world.acquire("a", terms(LEASE), Wait::For(ms(5_000)));
    world.run(ms(6_000));
    let (at, notice) = world.end(id);
    assert_eq!(at, asked + ms(5_000));
    assert!(matches!(notice, Notice::TimedOut(holder) if holder.label.as_deref() == Some("them")));
    let last = world
        .server
        .log
        .iter()
        .rev()
        .find(|(_, line)| line.starts_with("SET"));
    assert!(last.unwrap().0 > (asked + ms(4_900)).as_micros());
}

#[test]
fn a_server_that_refuses_to_watch_is_told_of_once_and_asked() {
    for (server, why) in [
        (
            Server {
                refuses_to_watch: Some("ERR unknown subcommand 'TRACKING'"),
                ..Server::redis()
            },
            Unwatched::Refused("ERR unknown subcommand 'TRACKING'".into()),
        ),
        (Server::old(), Unwatched::Protocol),
        (
            Server {
                may_read: false,
                ..Server::redis()
            },
            Unwatched::NoPermission,
        ),
    ] {
        let mut world = World::watching(server, 1);
        let until = world.now + LEASE * 100;
        taken(&mut world.server, until);
        let id = world.acquire("a", terms(LEASE), Wait::Forever);
        world.run(ms(3_000));
        world.cut();
        world.run(ms(3_000));
        assert_eq!(unwatched(&world), [&why]);
        let freed = world.now;
        world.server.remove(KEY);
        world.run(ms(500));
        assert!(acquired(&world, id).unwrap() <= freed + ms(410), "{why}");
    }
}

#[test]
fn whoever_does_not_want_to_be_told_is_told_nothing_of_it() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(LEASE));
    world.run(ms(7_000));
    assert!(world.holds(id) && unwatched(&world).is_empty());
    assert_eq!(world.server.count("CLIENT") + world.server.count("PTTL"), 0);
}

// ---- holders ----

/// When and why it was lost, and by whom.
fn lost(world: &World, id: LeaseId) -> (Tick, Cause, Option<&str>) {
    match world.end(id) {
        (at, Notice::Lost { lost, by }) => (at, lost.cause, by.as_deref()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hold_whose_key_is_deleted_is_told_two_trips_later() {
    for renewals in 0..3 {
        for renews in [true, false] {
            let mut world = World::watching(Server::redis(), 1);
            let mut config = LeaseConfig::new(LEASE);
            if !renews {
                config = config.no_renew();
            }
            let id = world.hold("a", config.build().unwrap());
            world.run(ms(6_000 * renewals));
            let deleted = world.now;
            world.server.remove(KEY);
            world.run(ms(100));
            assert_eq!(
                lost(&world, id),
                (deleted + world.latency * 3, Cause::Gone, None)
            );
        }
    }
}

#[test]
fn a_hold_whose_key_is_replaced_is_told_by_whom() {
    let mut world = World::watching(Server::valkey(), 1);
    let id = world.hold("a", terms(LEASE));
    let replaced = world.now;
    world
        .server
        .meddle(|server| taken(server, replaced + LEASE));
    world.run(ms(100));
    let told = replaced + world.latency * 3;
    assert_eq!(lost(&world, id), (told, Cause::Replaced, Some("them")));
}

#[test]
fn m9_a_renewal_ends_the_watch_and_begins_it_again() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", terms(LEASE));
    for _ in 0..5 {
        world.mux.renew_now(world.now, id);
        world.run(ms(10));
    }
    assert!(world.server.watched.contains(KEY.as_bytes()));
    // Its own writes do not make it look.
    assert_eq!(world.server.count("forced"), 0);
    world.server.remove(KEY);
    world.run(ms(10));
    assert_eq!(lost(&world, id).1, Cause::Gone);
}

#[test]
fn m10_a_push_is_a_hint_and_not_the_verdict() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", terms(LEASE));
    for _ in 0..5 {
        // Somebody lengthens the key: it is still ours.
        world.server.meddle(|server| {
            let entry = server.keys.get_mut(KEY.as_bytes()).unwrap();
            entry.1 = entry.1.map(|until| until + 1_000_000);
        });
        world.run(ms(10));
        assert!(world.holds(id));
    }
    assert_eq!(world.server.count("SET"), 1);
    // Renewals go on, and so does the watch.
    world.run(ms(7_000));
    assert_eq!(world.server.count("SET"), 2);
    world.server.remove(KEY);
    world.run(ms(10));
    assert_eq!(lost(&world, id).1, Cause::Gone);
}

#[test]
fn a_key_of_another_type_is_not_ours() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", terms(LEASE));
    world.server.meddle(|server| {
        server.keys.insert(KEY.into(), (Stored::List, None));
    });
    world.run(ms(10));
    assert_eq!(lost(&world, id).1, Cause::Replaced);
}

#[test]
fn a_hold_that_is_never_renewed_is_looked_at_after_a_reconnect() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", LeaseConfig::new(LEASE).no_renew().build().unwrap());
    world.cut();
    world.run(ms(500));
    assert!(world.holds(id));
    world.server.remove(KEY);
    world.run(ms(10));
    assert_eq!(lost(&world, id).1, Cause::Gone);
}

#[test]
fn a_renewal_that_is_asked_for_during_a_look_is_made() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", terms(LEASE));
    world.server.meddle(|server| {
        let entry = server.keys.get_mut(KEY.as_bytes()).unwrap();
        entry.1 = entry.1.map(|until| until + 1_000_000);
    });
    world.run(world.latency * 3 / 2);
    world.mux.renew_now(world.now, id);
    let renewals = world.notices.len();
    world.run(ms(10));
    assert!(world.holds(id));
    let told = &world.notices[renewals..];
    assert!(matches!(told, [(.., Notice::Renewed { .. })]), "{told:?}");
}

// ---- force ----

/// Removes the key and says who did it, as the script does.
fn force(server: &mut Server, by: &str) {
    let (Stored::Text(value), until) = server.keys[KEY.as_bytes()].clone() else {
        panic!("no text");
    };
    let helper = [by.as_bytes(), b".", &value].concat();
    server.put(&format!("lock:{{{KEY}}}:forced"), &helper, until);
    server.remove(KEY);
}

#[test]
fn a_hold_that_was_removed_by_force_is_told_by_whom() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", terms(LEASE));
    force(&mut world.server, "admin");
    let forced = world.now;
    world.run(ms(10));
    let told = forced + world.latency * 3;
    assert_eq!(lost(&world, id), (told, Cause::Forced, Some("admin")));
}

#[test]
fn force_is_found_by_a_renewal_and_by_a_release_too() {
    for releases in [false, true] {
        for server in [Server::redis(), Server::old()] {
            let mut world = World::new(server);
            let id = world.hold("a", terms(LEASE));
            force(&mut world.server, "admin");
            let until = world.now + ms(7_000);
            if releases {
                world.release(id);
            }
            let mut doubted = None;
            while world.now < until && world.told(id).len() < 2 {
                world.run(world.latency / 2);
                if !world.holds(id) {
                    doubted.get_or_insert(world.now);
                }
            }
            let (at, cause, by) = lost(&world, id);
            assert_eq!((cause, by), (Cause::Forced, Some("admin")));
            // Nothing is held from the moment on at which it is known to be gone.
            assert!(doubted.unwrap() < at);
        }
    }
}

#[test]
fn what_was_forced_before_is_not_what_happened_now() {
    let mut world = World::watching(Server::redis(), 1);
    let first = world.hold("a", terms(LEASE));
    force(&mut world.server, "admin");
    world.run(ms(10));
    world.drop_guard(first);
    let second = world.hold("a", terms(LEASE));
    world.server.remove(KEY);
    world.run(ms(10));
    assert_eq!(lost(&world, second).1, Cause::Gone);
}

#[test]
fn why_it_is_gone_is_not_waited_for_for_ever() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(LEASE));
    world.server.remove(KEY);
    world.mux.renew_now(world.now, id);
    // The renewal is answered, and the connection ends before the look is.
    world.run(world.latency * 5 / 2);
    assert!(!world.holds(id) && world.told(id).len() == 1);
    world.cut();
    assert_eq!(lost(&world, id).1, Cause::Gone);
}

#[test]
fn s7_m11_a_replica_for_a_while_loses_nothing() {
    let mut world = World::watching(Server::redis(), 1);
    world.one_by_one = true;
    let ids: Vec<_> = ["a", "b", "c"]
        .map(|name| world.hold(name, terms(LEASE)))
        .into();
    world.server.ails = Some("READONLY You can't write against a read only replica.");
    world.mux.renew_now(world.now, ids[0]);
    for _ in 0..10 {
        world.run(ms(1_000));
    }
    let failed = world
        .notices
        .iter()
        .any(|(.., notice)| matches!(notice, Notice::RenewalFailed(_)));
    assert!(failed);
    world.server.ails = None;
    world.run(ms(3_000));
    for id in ids {
        let lease = world.mux.leases().lease(id).unwrap();
        assert!(world.holds(id), "{lease:?} {:?}", world.mux.deadline());
        let until = lease.valid_until().unwrap();
        assert!(until > world.now + LEASE * 8 / 10);
    }
}

#[test]
fn a_reply_to_what_was_not_sent_grants_nothing() {
    let mut world = World::watching(Server::redis(), 1);
    world.run(ms(50));
    // The transport takes nothing: not a byte of the attempt leaves.
    world.takes = 0;
    let id = world.acquire("a", terms(LEASE), Wait::Forever);
    // One reply too many.
    world.mux.recv_space()[..3].copy_from_slice(b"_\r\n");
    world.mux.received(world.now, 3);
    world.pump();
    assert!(!world.mux.is_up());
    world.mux.handle_disconnected(world.now);
    world.pump();
    assert!(!world.holds(id) && world.told(id).is_empty());
}

#[test]
fn max_hold_holds_during_a_look_too() {
    let mut world = World::watching(Server::redis(), 1);
    let config = LeaseConfig::new(LEASE).max_hold(ms(40_000));
    let id = world.hold("a", config.build().unwrap());
    world.run(ms(24_000));
    let renewals = world.server.count("SET");
    world.server.meddle(|server| {
        let entry = server.keys.get_mut(KEY.as_bytes()).unwrap();
        entry.1 = entry.1.map(|until| until + 1_000);
    });
    world.run(world.latency * 3 / 2);
    world.mux.renew_now(world.now, id);
    world.run(ms(10));
    assert_eq!(world.server.count("SET"), renewals);
    let last = &world.notices.last().unwrap().2;
    assert!(matches!(last, Notice::RenewalFailed(_)), "{last:?}");
}

#[test]
fn s7_m11_a_replica_that_answers_reads_is_left_at_a_growing_pace_too() {
    for (watch, check) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
        (config.watch, config.check) = (watch, check);
        let server = Server {
            read_only: true,
            ..Server::redis()
        };
        let mut world = World::with(config, server, 1);
        world.acquire("a", terms(LEASE), Wait::Forever);
        world.run(ms(30_000));
        assert!(world.dials < 100, "{} dials", world.dials);
    }
}

#[test]
fn s9_who_may_not_ask_for_the_ttl_is_not_told_and_says_so() {
    for seed in 0..50 {
        let server = Server {
            pttl_denied: true,
            ..Server::redis()
        };
        let mut world = World::watching(server, seed);
        let until = world.now + LEASE * 100;
        taken(&mut world.server, until);
        world.run(ms(5));
        let id = world.acquire("a", terms(LEASE), Wait::Forever);
        while world.server.count("GET lock") < 1 {
            world.run(world.latency / 4);
        }
        world.run(world.latency);
        let freed = world.now;
        world.server.remove(KEY);
        world.run(ms(15_000));
        assert!(acquired(&world, id).unwrap() <= freed + ms(410));
        assert_eq!(unwatched(&world), [&Unwatched::NoPermission]);
    }
}

#[test]
fn a_look_that_is_not_permitted_changes_nothing_for_others() {
    let mut world = World::new(Server {
        get_denied: true,
        ..Server::redis()
    });
    let id = world.hold("a", LeaseConfig::new(LEASE).no_renew().build().unwrap());
    world.cut();
    world.run(ms(500));
    assert!(world.holds(id));
    let until = world.now + LEASE;
    world
        .server
        .put("lock:b", &theirs(), Some(until.as_micros()));
    let tried = world.acquire("b", terms(LEASE), Wait::Now);
    world.run(ms(100));
    let (_, notice) = world.end(tried);
    assert!(matches!(notice, Notice::Held(holder) if holder.label.as_deref() == Some("them")));
}

#[test]
fn what_a_replica_did_not_know_of_is_cleared_all_the_same() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", LeaseConfig::new(LEASE).no_renew().build().unwrap());
    world.cut();
    // The next connection leads to a replica that has not got the key yet.
    let keys = core::mem::take(&mut world.server.keys);
    world.server.read_only = true;
    world.run(ms(500));
    assert_eq!(lost(&world, id).1, Cause::Gone);
    world.cut();
    world.server.keys = keys;
    world.server.read_only = false;
    world.run(ms(500));
    world.drop_guard(id);
    world.run(ms(500));
    assert_eq!(world.key("a"), None);
}

#[test]
fn any_label_may_force() {
    let mut world = World::watching(Server::redis(), 1);
    let id = world.hold("a", terms(LEASE));
    force(&mut world.server, "ops.tn1:x");
    world.run(ms(10));
    assert_eq!(lost(&world, id).1, Cause::Forced);
    assert_eq!(lost(&world, id).2, Some("ops.tn1:x"));
}

#[test]
fn s9_no_poll_limit_makes_a_hot_loop() {
    let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
    config.poll_limit = Duration::ZERO;
    let mut world = World::with(config, Server::redis(), 1);
    let until = world.now + LEASE * 100;
    taken(&mut world.server, until);
    world.acquire("a", terms(LEASE), Wait::Forever);
    world.run(ms(10_000));
    assert!(world.server.log.len() < 300, "{}", world.server.log.len());
}

#[test]
fn s9_a_server_that_tells_without_end_is_followed_at_a_pace() {
    // It remembers one key only: whatever is read drives out the other, which is told as a change.
    for holds in [false, true] {
        let mut world = World::watching(Server::redis(), 1);
        world.latency = Duration::from_micros(50);
        if holds {
            world.hold("a", terms(LEASE));
            world.hold("b", terms(LEASE));
        } else {
            let until = (world.now + LEASE * 100).as_micros();
            world.server.put("lock:a", &theirs(), Some(until));
            world.server.put("lock:b", &theirs(), Some(until));
            world.acquire("a", terms(LEASE), Wait::Forever);
            world.acquire("b", terms(LEASE), Wait::Forever);
        }
        world.server.remembers = 1;
        let before = world.server.log.len();
        world.server.meddle(|server| {
            let entry = server.keys.get_mut(KEY.as_bytes()).unwrap();
            entry.1 = entry.1.map(|until| until + 1_000);
        });
        world.run(ms(1_000));
        let sent = world.server.log.len() - before;
        // Two names, once in 2 ms each, three commands at most.
        assert!(sent <= 2 * 510 * 3, "{sent}");
    }
}

#[test]
fn nothing_is_held_from_the_moment_it_is_known_to_be_lost() {
    let mut world = World::watching(Server::redis(), 1);
    world.one_by_one = true;
    let id = world.hold("a", terms(LEASE));
    world.server.watched.clear();
    world.server.remove(KEY);
    world.mux.renew_now(world.now, id);
    world.run(world.latency * 2);
    // The renewal is answered; why it is gone is not.
    let vanished = |notice: &Notice| matches!(notice, Notice::Vanished);
    assert_eq!(
        world
            .notices
            .iter()
            .filter(|(.., notice)| vanished(notice))
            .count(),
        1
    );
    assert!(!world.holds(id) && world.told(id).len() == 1);
    world.run(ms(10));
    assert_eq!(lost(&world, id).1, Cause::Gone);
}

#[test]
fn a_foreign_value_of_any_size_is_foreign_and_nothing_else() {
    for server in [Server::redis(), Server::old()] {
        let mut world = World::watching(server, 1);
        let hold = world.hold("a", terms(ms(6_000)));
        world.server.put(KEY_C, &theirs(), None);
        world
            .server
            .put("lock:b", &std::vec![b'x'; 3_000_000], None);
        let waiter = world.acquire("c", terms(LEASE), Wait::Forever);
        let tried = world.acquire("b", terms(LEASE), Wait::Now);
        world.run(ms(20_000));
        let (_, notice) = world.end(tried);
        assert!(
            matches!(notice, Notice::Held(holder) if holder.label.is_none()),
            "{notice:?}"
        );
        assert!(world.holds(hold) && world.told(waiter).is_empty());
        assert_eq!(world.dials, 1);
        // A held key is replaced by a big one.
        let id = world.hold("d", terms(LEASE));
        world
            .server
            .meddle(|server| server.put("lock:d", &std::vec![b'x'; 300_000], None));
        world.mux.renew_now(world.now, id);
        world.run(ms(100));
        assert_eq!(lost(&world, id).1, Cause::Replaced);
    }
}

const KEY_C: &str = "lock:c";
