//! S14: fences grow.

use core::time::Duration;
use std::string::String;
use std::vec::Vec;

use super::server::{Server, Stored};
use super::world::{World, ms, terms};
use crate::config::Wait;
use crate::error::{ConfigError, Failure, ServerError};
use crate::fence::{DAY, FenceFault, MAX_FENCE};
use crate::leases::{LeaseId, Notice};
use crate::mux::MuxConfig;
use crate::names::Names;

const COUNTER: &str = "lock:{lock:a}:fence";
const HOUR: u64 = 3_600_000_000;

/// Acquires with a fence above the floor, and runs until it is told what came of it.
fn ask(world: &mut World, floor: u64) -> LeaseId {
    let id = world.acquire_above(Some(floor), "a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(300));
    id
}

fn fence_of(world: &World, id: LeaseId) -> u64 {
    match world.told(id).first() {
        Some(Notice::Acquired {
            fence: Some(fence), ..
        }) => *fence,
        other => panic!("{other:?}"),
    }
}

/// Acquires, and releases.
fn fence(world: &mut World, floor: u64) -> u64 {
    let id = ask(world, floor);
    let fence = fence_of(world, id);
    world.release(id);
    world.run(ms(50));
    fence
}

fn failure(world: &World, id: LeaseId) -> Failure {
    match world.told(id).last() {
        Some(Notice::Failed(fault)) => fault.failure,
        other => panic!("{other:?}"),
    }
}

/// The texts of the scripts that were sent, and the commands of one word.
fn verbs(world: &World, from: usize) -> Vec<String> {
    let line = |(_, line): &(u64, String)| line.split(' ').next().unwrap_or_default().into();
    world.server.log[from..].iter().map(line).collect()
}

#[test]
fn s14_each_holder_has_more_than_the_one_before_on_every_server() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut world = World::new(server);
        let mut last = 0;
        for _ in 0..5 {
            let next = fence(&mut world, 0);
            assert!(next > last && next > world.server.epoch);
            last = next;
        }
    }
}

#[test]
fn s14_the_fence_comes_in_one_step_with_the_grant_and_renewals_leave_it() {
    let mut world = World::watching(Server::redis(), 1);
    world.run(ms(30));
    let from = world.server.log.len();
    let id = ask(&mut world, 0);
    // The read behind it is the wish to be told.
    assert_eq!(verbs(&world, from), ["EVAL", "GET"]);
    assert!(world.key("a").unwrap().starts_with("tn1:f:"));
    let counter = world.server.get(world.now.as_micros(), COUNTER);
    world.run(ms(60_000));
    assert!(world.holds(id));
    assert_eq!(counter, world.server.get(world.now.as_micros(), COUNTER));
    let digits = String::from_utf8(counter.unwrap()).unwrap();
    assert_eq!(digits.parse(), Ok(fence_of(&world, id)));
    world.release(id);
    world.run(ms(50));
    // By its SHA from then on.
    let from = world.server.log.len();
    ask(&mut world, 0);
    assert_eq!(verbs(&world, from), ["EVALSHA", "GET"]);
}

#[test]
fn s14_fenced_and_unfenced_holders_exclude_each_other() {
    let mut world = World::new(Server::redis());
    for first in [None, Some(0)] {
        for second in [None, Some(0)] {
            let holds = world.acquire_above(first, "a", terms(ms(3_000)), Wait::Forever);
            world.run(ms(50));
            // Another process: not through the local queue.
            let value = world.key("a").unwrap();
            world.server.put("lock:b", value.as_bytes(), Some(1 << 40));
            let tries = world.acquire_above(second, "b", terms(ms(3_000)), Wait::Now);
            world.run(ms(50));
            let Some(Notice::Held(holder)) = world.told(tries).first().copied() else {
                panic!("{:?}", world.told(tries))
            };
            assert_eq!(holder.label.as_deref(), Some("me"));
            assert!(holder.remaining.is_some());
            assert_eq!(world.key("b"), Some(value));
            world.release(holds);
            world.run(ms(50));
        }
    }
}

#[test]
fn s14_a_clock_that_steps_back_lowers_nothing() {
    let mut world = World::new(Server::redis());
    let before = fence(&mut world, 0);
    world.server.step_back(HOUR);
    let after = fence(&mut world, 0);
    assert!(after > before && world.server.epoch < before);
    // Also when the counter has been forgotten, a day after the time that it says.
    let now = world.now.as_micros();
    let kept = world.server.keys[COUNTER.as_bytes()].1.unwrap() - now;
    assert!(kept > DAY + HOUR - 60_000_000);
    world.server.keys.remove(COUNTER.as_bytes());
    world.server.epoch += kept;
    assert!(fence(&mut world, 0) > after);
}

#[test]
fn s14_a_server_that_has_forgotten_all_goes_on_from_its_clock() {
    let mut world = World::new(Server::redis());
    let before = fence(&mut world, 0);
    world.server.flush();
    world.run(ms(50));
    let after = fence(&mut world, 0);
    assert!(after > before);
    // With its clock behind as well, only a floor helps: what the resource has seen.
    world.server.step_back(HOUR);
    world.server.flush();
    assert!(fence(&mut world, 0) < after);
    assert!(fence(&mut world, after) > after);
}

#[test]
fn s14_a_floor_or_a_counter_far_ahead_is_refused_and_nothing_is_written() {
    for (floor, counter, expected) in [
        (DAY * 2, None, FenceFault::Floor),
        (
            0,
            Some(Stored::Text(b"9007199254740991".to_vec())),
            FenceFault::Counter,
        ),
        (0, Some(Stored::Text(b"12x".to_vec())), FenceFault::Foreign),
        (0, Some(Stored::List), FenceFault::Foreign),
    ] {
        let mut world = World::new(Server::redis());
        if let Some(counter) = counter {
            world.server.keys.insert(COUNTER.into(), (counter, None));
        }
        let keys = world.server.keys.clone();
        let floor = match floor {
            0 => 0,
            ahead => world.server.epoch + ahead,
        };
        let id = ask(&mut world, floor);
        assert_eq!(failure(&world, id), Failure::Fence(expected));
        // At once, with nothing to clear: one attempt.
        assert_eq!(world.server.count("EVAL"), 1);
        assert_eq!(world.server.keys, keys);
        assert!(world.mux.leases().is_empty());
    }
}

#[test]
fn s14_a_floor_that_leaves_no_room_is_refused_before_any_command() {
    let mut world = World::new(Server::redis());
    let request = crate::leases::Request {
        name: b"a",
        terms: terms(ms(3_000)),
        wait: Wait::Now,
        options: crate::leases::Options {
            fence: Some(MAX_FENCE),
            ..crate::leases::Options::default()
        },
        secret: [1; 16],
        since_ms: 0,
    };
    let refused = world.mux.acquire(world.now, &request);
    assert_eq!(refused, Err(ConfigError::Floor(MAX_FENCE)));
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s14_a_leftover_is_taken_over_with_a_new_fence() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    world.mute = true;
    let id = world.acquire_above(Some(0), "a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(800));
    let now = world.now.as_micros();
    let left = String::from_utf8(world.server.get(now, COUNTER).unwrap()).unwrap();
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("1"));
    world.mute = false;
    world.cut();
    world.run(ms(100));
    assert!(world.holds(id));
    // Refused by what it had left itself, taken over by the same script with the value to replace.
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("3"));
    let fence = fence_of(&world, id);
    assert!(fence > left.parse().unwrap());
    let now = world.now.as_micros();
    let counter = String::from_utf8(world.server.get(now, COUNTER).unwrap());
    assert_eq!(counter.unwrap().parse(), Ok(fence));
}

#[test]
fn s14_a_late_grant_keeps_its_fence_when_it_is_confirmed() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let id = world.acquire_above(Some(0), "a", terms(ms(1_000)), Wait::Forever);
    // 600 of 900 ms are gone when the answer is read.
    world.pause(ms(600));
    world.pump();
    assert!(world.told(id).is_empty());
    let now = world.now.as_micros();
    let counter = world.server.get(now, COUNTER).unwrap();
    world.run(ms(10));
    let counter = String::from_utf8(counter).unwrap();
    assert_eq!(counter.parse(), Ok(fence_of(&world, id)));
    assert_eq!(world.server.count("IFEQ"), 1);
}

#[test]
fn s14b_a_script_that_failed_after_it_wrote_is_cleared_and_its_fence_is_nobodys() {
    let mut world = World::new(Server::redis());
    world.server.script_fails = Some("ERR a fault after the write");
    let id = ask(&mut world, 0);
    assert_eq!(failure(&world, id), Failure::Server(ServerError::Other));
    assert_eq!(world.key("a"), None);
    let now = world.now.as_micros();
    let wasted = String::from_utf8(world.server.get(now, COUNTER).unwrap()).unwrap();
    assert!(fence(&mut world, 0) > wasted.parse().unwrap());
    // The same of an error that comes before anything is executed: it is cleared all the same.
    let mut world = World::new(Server::redis());
    world.server.may_read = false;
    let id = ask(&mut world, 0);
    assert_eq!(failure(&world, id), Failure::Server(ServerError::NoPerm));
    assert_eq!(world.server.count("DELEX"), 1);
}

#[test]
fn s14_a_script_that_is_not_cached_any_more_is_sent_in_full() {
    let mut world = World::watching(Server::redis(), 1);
    let first = fence(&mut world, 0);
    world.server.cached.clear();
    let from = world.server.log.len();
    let id = ask(&mut world, 0);
    assert_eq!(verbs(&world, from), ["EVALSHA", "GET", "EVAL", "GET"]);
    assert!(fence_of(&world, id) > first);
}

#[test]
fn s14_whoever_waits_with_a_fence_is_woken() {
    // No timer of its own would do it.
    let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
    config.poll_limit = Duration::MAX;
    let mut world = World::with(config, Server::redis(), 1);
    let other = String::from("tn1:p:1:them.09090909090909090909090909090909.1");
    world.server.put("lock:a", other.as_bytes(), Some(1 << 40));
    let id = world.acquire_above(Some(0), "a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(50));
    let asked = world.server.count("EVAL");
    world.server.remove("lock:a");
    world.run(ms(5));
    assert!(world.holds(id));
    assert_eq!(world.server.count("EVAL"), asked + 1);
}
