//! A5: of two copies of a process that hold the same lock one is told, and harms nothing of the other's.

use core::time::Duration;
use std::string::String;
use std::vec::Vec;

use super::server::Server;
use super::world::{World, ms, terms};
use crate::config::Wait;
use crate::lease::Cause;
use crate::leases::{LeaseId, Notice, Options};

const ROTATES: Options = Options {
    fence: None,
    fair: None,
    max_waiters: None,
    rotate: true,
    replicas: None,
};

fn hold(world: &mut World) -> LeaseId {
    hold_with(world, ROTATES)
}

fn hold_with(world: &mut World, options: Options) -> LeaseId {
    let id = world.acquire_with(options, "a", terms(ms(3_000)), Wait::Forever);
    world.run(ms(30));
    assert!(world.holds(id), "{:?}", world.told(id));
    id
}

fn value(world: &mut World) -> String {
    world.key("a").expect("a value")
}

/// Loses the answers to what is sent from now on, for so long.
fn unanswered(world: &mut World, span: Duration) {
    world.mute = true;
    world.run(span);
    world.mute = false;
    world.cut();
}

fn renew(world: &mut World, id: LeaseId) {
    world.mux.renew_now(world.now, id);
    world.run(ms(5));
}

/// Both run on the one server that there is.
fn both(a: &mut World, b: &mut World, span: Duration) {
    let end = a.now.max(b.now) + span;
    while a.now < end {
        a.run(ms(1));
        core::mem::swap(&mut a.server, &mut b.server);
        b.run_until(a.now);
        core::mem::swap(&mut a.server, &mut b.server);
    }
}

fn cause(world: &World, id: LeaseId) -> Cause {
    match world.told(id).last() {
        Some(Notice::Lost { lost, .. }) => lost.cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a5_every_renewal_writes_a_new_value_on_every_server() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut world = World::new(server);
        let id = hold(&mut world);
        let mut seen = Vec::new();
        for _ in 0..10 {
            let value = value(&mut world);
            assert!(!seen.contains(&value));
            // Not derived from what a copy of the process knows as well.
            seen.push(value);
            renew(&mut world, id);
        }
        let secret = |value: &String| value.rsplit('.').nth(1).map(String::from);
        assert_ne!(secret(&seen[1]), secret(&seen[2]));
        assert!(world.holds(id));
        world.release(id);
        world.run(ms(50));
        assert_eq!(world.key("a"), None);
        let told = world.told(id);
        assert_eq!(told.last(), Some(&&Notice::Released { confirmed: true }));
    }
}

#[test]
fn a5_a_lock_that_does_not_rotate_keeps_its_value() {
    let mut world = World::new(Server::redis());
    let id = hold_with(&mut world, Options::default());
    let before = value(&mut world);
    world.run(ms(10_000));
    assert!(world.holds(id));
    assert_eq!(value(&mut world), before);
}

#[test]
fn a5_of_two_copies_one_is_told_at_its_first_renewal() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut a = World::new(server);
        let id = hold(&mut a);
        a.run(ms(2_000));
        let mut b = a.copy();
        // Until then both do.
        assert!(a.holds(id) && b.holds(id));
        both(&mut a, &mut b, ms(700));
        assert_ne!(a.holds(id), b.holds(id));
        let (winner, loser) = if a.holds(id) { (&a, &b) } else { (&b, &a) };
        assert_eq!(cause(loser, id), Cause::Replaced);
        let over = |notice: &&Notice| !matches!(notice, Notice::Acquired { .. });
        assert_eq!(winner.told(id).into_iter().find(over), None);
        // Which removes nothing of the other's when it lets go.
        let b_lost = a.holds(id);
        match b_lost {
            true => b.mux.drop_guard(b.now, id),
            false => a.drop_guard(id),
        }
        both(&mut a, &mut b, ms(5_000));
        assert!(a.key("a").is_some());
        assert!(if b_lost { a.holds(id) } else { b.holds(id) });
    }
}

#[test]
fn a5_copies_made_in_the_middle_of_a_renewal_do_not_take_each_others_values() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut a = World::new(server);
        let id = hold(&mut a);
        // A rotation is written and not answered: both copies know of it, and will draw the next number.
        a.mute = true;
        a.mux.renew_now(a.now, id);
        a.run(ms(5));
        a.mute = false;
        let mut b = a.copy();
        a.cut();
        both(&mut a, &mut b, ms(900));
        assert_ne!(a.holds(id), b.holds(id));
        let loser = if a.holds(id) { &mut b } else { &mut a };
        assert_eq!(cause(loser, id), Cause::Replaced);
        loser.mux.drop_guard(loser.now, id);
        both(&mut a, &mut b, ms(3_000));
        assert!(a.holds(id) || b.holds(id));
        assert!(a.key("a").is_some());
    }
}

#[test]
fn a5_a_rotation_without_an_answer_is_found_again_and_counts_from_the_next_write() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut world = World::new(server);
        let id = hold(&mut world);
        renew(&mut world, id);
        let before = value(&mut world);
        world.mute = true;
        renew(&mut world, id);
        let written = value(&mut world);
        assert_ne!(written, before);
        let until = world.mux.leases().lease(id).unwrap().valid_until();
        world.mute = false;
        world.cut();
        world.run(ms(50));
        assert!(world.holds(id));
        assert_ne!(value(&mut world), written);
        assert!(world.mux.leases().lease(id).unwrap().valid_until() > until);
        world.run(ms(5_000));
        assert!(world.holds(id));
    }
}

#[test]
fn a5_an_unanswered_rotation_that_was_not_executed_costs_nothing() {
    let mut world = World::new(Server::redis());
    let id = hold(&mut world);
    world.black_hole = true;
    world.mux.renew_now(world.now, id);
    world.run(ms(5));
    world.black_hole = false;
    world.cut();
    world.run(ms(5_000));
    assert!(world.holds(id));
}

#[test]
fn s3_a_value_that_is_nobodys_rotation_is_another_holder() {
    let mut world = World::new(Server::redis());
    let id = hold(&mut world);
    renew(&mut world, id);
    // One that this hold had before: it can only be somebody's who copied it.
    let old = value(&mut world);
    renew(&mut world, id);
    world.server.put("lock:a", old.as_bytes(), Some(1 << 40));
    renew(&mut world, id);
    assert_eq!(cause(&world, id), Cause::Replaced);
    world.drop_guard(id);
    world.run(ms(50));
    assert_eq!(world.key("a"), Some(old));
}

#[test]
fn s6_a_release_clears_whichever_value_the_key_has_and_is_confirmed() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        for how in 0..4 {
            let mut world = World::new(server.clone());
            let id = hold(&mut world);
            match how {
                // A rotation is on its way and will be executed,
                0 => world.mux.renew_now(world.now, id),
                // or was executed without an answer,
                1 => {
                    world.mute = true;
                    renew(&mut world, id);
                    world.mute = false;
                    world.mux.handle_disconnected(world.now);
                }
                // several times,
                2 => {
                    unanswered(&mut world, ms(900));
                    world.mute = true;
                    world.run(ms(100));
                    world.mute = false;
                    world.mux.handle_disconnected(world.now);
                }
                // or has not left yet.
                _ => {
                    world.takes = 0;
                    world.mux.renew_now(world.now, id);
                }
            }
            world.pump();
            world.takes = usize::MAX;
            world.release(id);
            world.run(ms(600));
            assert_eq!(world.key("a"), None, "{how}");
            let end = world.told(id);
            let released = Notice::Released { confirmed: true };
            assert_eq!(end.last(), Some(&&released), "{how}");
            assert!(world.mux.leases().is_empty());
        }
    }
}

#[test]
fn s7_a_full_server_does_not_cost_the_hold() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut world = World::new(server);
        let id = hold(&mut world);
        world.run(ms(1_000));
        world.server.oom = true;
        let before = value(&mut world);
        world.run(ms(8_000));
        assert!(world.holds(id));
        // There is room for no other value.
        if world.server.ifeq {
            assert_eq!(value(&mut world), before);
        }
        world.server.oom = false;
        world.run(ms(2_000));
        assert!(world.holds(id));
        assert_ne!(value(&mut world), before);
    }
}

#[test]
fn s7_without_entropy_a_renewal_is_a_plain_one() {
    let mut world = World::new(Server::redis());
    let id = hold(&mut world);
    world.run(ms(1_000));
    let entropy = world.entropy.take();
    let before = value(&mut world);
    world.run(ms(5_000));
    assert!(world.holds(id));
    assert_eq!(value(&mut world), before);
    world.entropy = entropy;
    world.run(ms(1_000));
    assert_ne!(value(&mut world), before);
}

#[test]
fn s7_a_long_outage_leaves_no_more_behind_than_can_be_cleared() {
    let mut world = World::new(Server::redis());
    let id = world.acquire_with(ROTATES, "a", terms(ms(300_000)), Wait::Forever);
    world.run(ms(30));
    for _ in 0..20 {
        world.mute = true;
        renew(&mut world, id);
        world.mute = false;
        world.mux.handle_disconnected(world.now);
        world.mute = true;
        world.run(ms(1_500));
        let left = world.mux.leases().lease(id).unwrap().leftovers().as_slice();
        assert!(left.len() <= 6, "{left:?}");
        world.mute = false;
        world.mux.handle_disconnected(world.now);
    }
    world.run(ms(3_000));
    assert!(world.holds(id));
    world.release(id);
    world.run(ms(50));
    assert_eq!(world.key("a"), None);
}

#[test]
fn a5_a_user_who_may_not_read_finds_the_rotation_again_by_trying() {
    let mut world = World::new(Server::redis());
    world.server.may_read = false;
    let id = hold(&mut world);
    renew(&mut world, id);
    for _ in 0..3 {
        world.mute = true;
        renew(&mut world, id);
        world.mute = false;
        world.cut();
        world.run(ms(100));
        assert!(world.holds(id));
    }
    world.run(ms(3_000));
    assert!(world.holds(id));
    world.server.remove("lock:a");
    renew(&mut world, id);
    assert_eq!(cause(&world, id), Cause::Gone);
}

#[test]
fn a5_a_look_that_shows_an_unanswered_rotation_sees_the_hold() {
    let mut world = World::watching(Server::redis(), 1);
    let id = hold(&mut world);
    world.mute = true;
    renew(&mut world, id);
    world.mute = false;
    world.cut();
    world.run(ms(20));
    assert!(world.holds(id));
    let now = world.now;
    world.mux.renew_now(now, id);
    world.run(ms(20));
    assert!(world.holds(id));
    assert_eq!(world.told(id).len(), 1);
}

#[test]
fn s14_a_rotation_keeps_the_fence_and_its_mark() {
    let mut world = World::new(Server::redis());
    let options = Options {
        fence: Some(0),
        ..ROTATES
    };
    let id = hold_with(&mut world, options);
    let counter = "lock:{lock:a}:fence";
    let minted = world.server.get(world.now.as_micros(), counter);
    for _ in 0..3 {
        let before = value(&mut world);
        renew(&mut world, id);
        let value = value(&mut world);
        assert!(value.starts_with("tn1:f:") && value != before);
    }
    assert_eq!(world.server.get(world.now.as_micros(), counter), minted);
}

#[test]
fn s8_who_removed_a_rotated_value_by_force_is_told() {
    use crate::ask::Question;
    let mut a = World::new(Server::redis());
    let id = hold(&mut a);
    renew(&mut a, id);
    a.ask(&Question::Remove { name: b"a" });
    a.run(ms(1_000));
    assert_eq!(cause(&a, id), Cause::Forced);
}
