//! How holds end, and what names are: S8, S9, S13, S15.

use std::vec;

use super::server::Server;
use super::world::{Dial, World, ms, terms};
use crate::config::{LeaseConfig, Wait};

use crate::lease::Cause;
use crate::leases::{Holder, Notice};

#[test]
fn s8_m5_a_release_answers_within_the_limit_and_the_driver_goes_on() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(30_000)));
    world.black_hole = true;
    let asked = world.now;
    world.release(id);
    world.run(ms(6_000));
    assert_eq!(
        world.end(id),
        (asked + ms(5_000), &Notice::Released { confirmed: false })
    );
    world.black_hole = false;
    world.run(ms(12_000));
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s8_m5_a_release_that_was_executed_without_an_answer_is_no_loss() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(30_000)));
    world.mute = true;
    world.release(id);
    world.run(ms(5));
    assert_eq!(world.key("a"), None);
    world.mute = false;
    world.cut();
    world.run(ms(50));
    assert_eq!(
        world.told(id).last(),
        Some(&&Notice::Released { confirmed: true })
    );
}

#[test]
fn s8_a_release_that_finds_the_key_gone_says_so() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(30_000)));
    world.server.keys.clear();
    world.release(id);
    world.run(ms(5));
    assert!(matches!(world.end(id).1, Notice::Lost { lost, .. } if lost.cause == Cause::Gone));
}

#[test]
fn s8_a_release_that_finds_only_a_late_attempt_of_its_own_says_that_the_key_was_gone() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    // Attempt 1 is under way when its connection dies; it arrives three seconds later.
    world.zombies = Some(ms(3_000));
    world.latency = ms(2);
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.cut();
    world.run(ms(50));
    assert!(world.holds(id));
    // Somebody deletes the key, and anybody may have had the name before attempt 1 took it.
    world.server.keys.clear();
    world.run(ms(3_000));
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("1"));
    world.release(id);
    world.run(ms(10));
    assert!(matches!(world.end(id).1, Notice::Lost { lost, .. } if lost.cause == Cause::Gone));
    assert_eq!(world.key("a"), None);
}

#[test]
fn s8_a_replaced_hold_says_by_whom() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    let other = world.key("a").unwrap().replace(":me.", ":you.");
    world.server.put("lock:a", other.as_bytes(), None);
    world.run(ms(700));
    let Notice::Lost { by, .. } = world.end(id).1 else {
        panic!()
    };
    assert_eq!(by.as_deref(), Some("you"));
}

#[test]
fn s8_who_was_seen_before_the_grant_is_not_blamed_for_the_loss() {
    let mut world = World::new(Server::redis());
    let now = world.now.as_micros();
    let other = b"tn1:p:1:you.0123456789abcdef0123456789abcdef.1";
    world.server.put("lock:a", other, Some(now + 100_000));
    let id = world.acquire("a", terms(ms(3_000)), Wait::Forever);
    world.run(ms(300));
    assert!(world.holds(id));
    world.server.put("lock:a", b"foreign", None);
    world.run(ms(700));
    assert!(matches!(world.end(id).1, Notice::Lost { by: None, .. }));
}

#[test]
fn s8_a_release_after_the_end_of_validity_is_told_as_the_loss_and_cleared() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.pause(ms(2_900));
    world.mux.release(world.now, id);
    world.run(ms(50));
    assert!(matches!(world.end(id).1, Notice::Lost { .. }));
    // The guard went with the release: nothing is kept for it.
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s13_bytes_of_a_name_stay_apart() {
    let mut world = World::new(Server::redis());
    let names = ["a", "{a}", "%7Ba%7D", "a\r\nDEL x", " ", "\u{0}", "lock:a"];
    let ids: vec::Vec<_> = names
        .iter()
        .map(|name| world.acquire(name, terms(ms(30_000)), Wait::Now))
        .collect();
    world.run(ms(10));
    assert!(ids.into_iter().all(|id| world.holds(id)));
    assert_eq!(world.server.keys.len(), names.len());
    assert!(world.server.keys.contains_key(&b"lock:%7Ba%7D"[..]));
}

#[test]
fn s15_the_same_name_is_refused_here_without_a_command() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(30_000)));
    let log = world.server.log.len();
    let again = world.acquire("a", terms(ms(30_000)), Wait::Now);
    let remaining = world
        .mux
        .leases()
        .lease(id)
        .unwrap()
        .valid_until()
        .unwrap()
        .saturating_since(world.now);
    assert_eq!(
        world.told(again),
        [&Notice::Held(Holder::labelled("me", Some(remaining)))]
    );
    world.run(ms(10));
    assert_eq!(world.server.log.len(), log);
}

#[test]
fn s9_max_hold_ends_the_hold_even_if_the_last_renewal_had_to_wait_for_a_connection() {
    let bounded = LeaseConfig::new(ms(3_000))
        .max_hold(ms(10_000))
        .build()
        .unwrap();
    let mut world = World::new(Server::redis());
    let id = world.acquire("a", bounded, Wait::Forever);
    world.run(ms(30));
    let granted = world.notices[0].0;
    // A renewal is due at 7.2 s, allowed until 7.3 s, and can be sent only at 7.5 s.
    world.run_until(granted + ms(6_900));
    world.dial = Dial::Refused;
    world.cut();
    world.run_until(granted + ms(7_500));
    world.dial = Dial::Works;
    world.run_until(granted + ms(10_001));
    assert!(!world.holds(id));
    let (_, notice) = world.end(id);
    assert!(
        matches!(notice, Notice::Lost { lost, .. } if lost.stop_by <= granted + ms(10_000)),
        "{notice:?}"
    );
}
