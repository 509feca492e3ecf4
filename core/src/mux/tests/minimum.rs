//! S6: what is let go of before its shortest hold is over stays taken for the rest of it, and no longer.

use core::time::Duration;

use super::server::Server;
use super::world::{World, ms, terms};
use crate::ask::{Known, Question};
use crate::config::{LeaseConfig, MAX_LEASE, Terms, Wait};
use crate::error::ConfigError;
use crate::leases::{LeaseId, Notice, Options};

const PERIOD: Duration = ms(60_000);

fn period(lease: Duration) -> Terms {
    LeaseConfig::new(lease).at_least(PERIOD).build().unwrap()
}

fn each(show: impl Fn(World)) {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        show(World::new(server));
    }
}

/// How long the key lives on.
fn left(world: &World) -> Duration {
    let until = world.server.keys[&b"lock:a"[..]].1.expect("a TTL");
    Duration::from_micros(until - world.now.as_micros())
}

fn is_cooling(world: &mut World) -> bool {
    world.key("a").is_some_and(|key| key.starts_with("tn1:c:"))
}

fn told(world: &World, id: LeaseId) -> Notice {
    world.told(id).last().copied().expect("told").clone()
}

#[test]
fn s6_a_release_leaves_the_key_cooling_for_the_rest_of_the_minimum() {
    each(|mut world| {
        let id = world.hold("a", period(ms(3_000)));
        world.run(ms(9_970));
        world.release(id);
        world.run(ms(50));
        assert_eq!(told(&world, id), Notice::Released { confirmed: true });
        assert!(is_cooling(&mut world) && world.mux.leases().is_empty());
        // Counted from the grant, which was up to 30 ms after it was asked for. Longer than the lease.
        let left = left(&world);
        assert!(left > ms(49_900) && left < ms(50_000), "{left:?}");
        world.run(ms(50_000));
        assert_eq!(world.key("a"), None);
    });
}

#[test]
fn s6_a_dropped_guard_leaves_it_as_well_and_a_later_one_nothing() {
    each(|mut world| {
        let id = world.hold("a", period(ms(3_000)));
        world.drop_guard(id);
        world.run(ms(50));
        assert!(is_cooling(&mut world));
        world.server.keys.clear();
        let id = world.hold("a", period(ms(3_000)));
        world.run(PERIOD);
        world.drop_guard(id);
        world.run(ms(50));
        assert_eq!(world.key("a"), None);
    });
}

#[test]
fn s6_whoever_asks_is_told_that_it_cools_and_whoever_waits_gets_it_then() {
    each(|mut world| {
        let id = world.hold("a", period(ms(3_000)));
        world.release(id);
        world.run(ms(50));
        let tries = world.acquire("a", period(ms(3_000)), Wait::Now);
        world.run(ms(50));
        let Notice::Held(holder) = told(&world, tries) else {
            panic!("{:?}", world.told(tries))
        };
        assert!(holder.cooling && holder.label.as_deref() == Some("me"));
        assert!(holder.remaining > Some(ms(59_000)));
        assert!(std::format!("{holder}").ends_with("(cooling down, 60 s left)"));
        let asked = world.ask(&Question::Inspect { name: b"a" });
        let waits = world.acquire("a", period(ms(3_000)), Wait::Forever);
        world.run(ms(50_000));
        let Ok(Known::Inspected(Some(found))) = world.answer(asked).1 else {
            panic!("nothing")
        };
        assert!(found.cooling && found.label.as_deref() == Some("me"));
        assert!(!world.holds(waits));
        world.run(ms(10_000));
        assert!(world.holds(waits));
    });
}

#[test]
fn s6_a_hold_that_was_given_up_cools_when_its_guard_goes() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", period(ms(3_000)));
    world.black_hole = true;
    world.run(ms(2_300));
    assert!(matches!(told(&world, id), Notice::Lost { .. }));
    world.black_hole = false;
    world.cut();
    world.run(ms(100));
    world.drop_guard(id);
    world.run(ms(50));
    assert!(is_cooling(&mut world));
}

#[test]
fn s6_what_was_never_granted_to_anybody_is_deleted() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    let id = world.acquire("a", period(ms(3_000)), Wait::Forever);
    world.drop_guard(id);
    world.run(ms(50));
    assert_eq!(world.key("a"), None);
}

#[test]
fn s6_a_grant_that_nobody_was_handed_is_deleted() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", period(ms(3_000)));
    world.mux.cancel(world.now, id);
    world.run(ms(50));
    assert_eq!(world.key("a"), None);
}

#[test]
fn s3_what_is_somebody_elses_does_not_cool() {
    each(|mut world| {
        let id = world.hold("a", period(ms(3_000)));
        world.server.put("lock:a", b"theirs", Some(1 << 40));
        world.release(id);
        world.run(ms(50));
        assert!(matches!(told(&world, id), Notice::Lost { .. }));
        assert_eq!(world.key("a").as_deref(), Some("theirs"));
    });
}

#[test]
fn s6_a_full_server_leaves_the_value_of_the_hold_for_so_long() {
    each(|mut world| {
        let id = world.hold("a", period(ms(3_000)));
        world.server.oom = true;
        world.release(id);
        world.run(ms(50));
        assert_eq!(told(&world, id), Notice::Released { confirmed: true });
        assert!(!is_cooling(&mut world) && left(&world) > ms(59_000));
    });
}

#[test]
fn s5_a_cooling_whose_answer_was_lost_is_repeated_and_confirmed() {
    each(|mut world| {
        let id = world.hold("a", period(ms(3_000)));
        world.mute = true;
        world.release(id);
        world.run(ms(5));
        assert!(is_cooling(&mut world));
        world.mute = false;
        world.cut();
        world.run(ms(100));
        assert_eq!(told(&world, id), Notice::Released { confirmed: true });
        assert!(is_cooling(&mut world) && left(&world) > ms(59_000));
    });
}

#[test]
fn s5_a_rotation_without_an_answer_cools_as_the_hold_does() {
    each(|mut world| {
        let options = Options {
            rotate: true,
            ..Options::default()
        };
        let id = world.acquire_with(options, "a", period(ms(3_000)), Wait::Forever);
        world.run(ms(30));
        for _ in 0..2 {
            world.mux.renew_now(world.now, id);
            world.run(ms(5));
            world.mute = true;
        }
        world.mute = false;
        world.mux.handle_disconnected(world.now);
        world.release(id);
        world.run(ms(300));
        assert_eq!(told(&world, id), Notice::Released { confirmed: true });
        assert!(is_cooling(&mut world));
    });
}

#[test]
fn s6_a_script_that_is_not_cached_any_more_is_sent_in_full() {
    each(|mut world| {
        for _ in 0..2 {
            let id = world.hold("a", period(ms(3_000)));
            world.server.cached.clear();
            world.release(id);
            world.run(ms(50));
            assert!(is_cooling(&mut world));
            world.server.keys.clear();
        }
    });
}

#[test]
fn s11_a_minimum_longer_than_a_lease_can_be_is_refused() {
    let long = LeaseConfig::new(ms(3_000)).at_least(MAX_LEASE + ms(1));
    assert_eq!(long.build(), Err(ConfigError::AtLeast(MAX_LEASE + ms(1))));
    let most = LeaseConfig::new(ms(3_000)).at_least(MAX_LEASE).build();
    assert_eq!(most.map(|terms| terms.at_least()), Ok(MAX_LEASE));
    assert_eq!(terms(ms(3_000)).at_least(), Duration::ZERO);
}

#[test]
fn s6_an_abandoned_hold_is_left_to_its_lease() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", period(ms(3_000)));
    world.mux.abandon(world.now, id);
    world.run(ms(50));
    assert!(!is_cooling(&mut world) && left(&world) <= ms(3_000));
}
