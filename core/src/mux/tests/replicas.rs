//! S16: what replicas have not confirmed does not count.

use std::string::String;
use std::vec::Vec;

use super::server::Server;
use super::world::{World, ms, terms};
use crate::config::Wait;
use crate::error::{ConfigError, Failure};
use crate::leases::{LeaseId, Notice, Options, Request};
use crate::mux::{MuxConfig, Output};
use crate::names::Names;
use crate::replicas::{Confirmed, Replicas, ReplicasFault};
use crate::time::Deadline;

const ONE: Replicas = Replicas {
    count: 1,
    within_ms: 500,
    on_disk: false,
};
const NONE_OF_ONE: Failure = Failure::Unconfirmed(Confirmed::new(0, 1));

fn server(replicas: u8) -> Server {
    Server {
        replicas,
        ..Server::redis()
    }
}

fn ask_for(world: &mut World, replicas: Replicas, wait: Wait) -> LeaseId {
    let options = Options {
        replicas: Some(replicas),
        ..Options::default()
    };
    world.acquire_with(options, "a", terms(ms(30_000)), wait)
}

fn ask(world: &mut World, wait: Wait) -> LeaseId {
    ask_for(world, ONE, wait)
}

fn hold(world: &mut World) -> LeaseId {
    let id = ask(world, Wait::Forever);
    world.run(ms(30));
    assert!(world.holds(id), "{:?}", world.told(id));
    id
}

fn lines(world: &World, from: usize) -> Vec<String> {
    let words = |line: &String| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    world.server.log[from..]
        .iter()
        .map(|(_, line)| words(line))
        .collect()
}

fn failure(world: &World, id: LeaseId) -> Failure {
    match world.told(id).last() {
        Some(Notice::Failed(fault)) => fault.failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn s16_every_write_is_followed_by_its_confirmation_and_nothing_else_is() {
    for (servers, on_disk) in [
        (server(1), false),
        (Server::valkey(), true),
        (Server::old(), false),
    ] {
        let mut world = World::watching(
            Server {
                replicas: 1,
                ..servers
            },
            1,
        );
        world.run(ms(30));
        let id = ask_for(&mut world, Replicas { on_disk, ..ONE }, Wait::Forever);
        world.run(ms(30_000));
        assert!(world.holds(id));
        world.release(id);
        world.run(ms(50));
        let log: Vec<&str> = world.server.log.iter().map(|(_, line)| &**line).collect();
        let asked = match on_disk {
            false => "WAIT 1 500",
            true => "WAITAOF 1 1 500",
        };
        let mut writes = 0;
        for (at, line) in log.iter().enumerate() {
            let clears = line.starts_with("DEL") || line.contains("'DEL'");
            let write = line.starts_with("SET") || (line.starts_with("EVAL") && !clears);
            // The read by which the server is asked to tell may be in between.
            if write {
                let behind = at + 1 + usize::from(log[at + 1].starts_with("GET"));
                assert_eq!(log[behind], asked, "{log:?}");
                writes += 1;
            }
        }
        assert!(writes >= 5, "{log:?}");
        assert_eq!(world.server.count("WAIT"), writes);
    }
}

#[test]
fn s16_a_grant_is_told_when_it_is_confirmed_and_counts_from_its_hand_out() {
    let mut world = World::new(server(1));
    world.run(ms(30));
    let (asked, from) = (world.now, world.server.log.len());
    world.one_by_one = true;
    let id = ask(&mut world, Wait::Forever);
    world.run(ms(5));
    assert_eq!(lines(&world, from), ["SET lock:a", "WAIT 1"]);
    let Some(Notice::Acquired { valid_until, .. }) = world.told(id).first().copied() else {
        panic!("{:?}", world.told(id))
    };
    assert_eq!(*valid_until, asked + ms(27_000));
}

#[test]
fn s16_a_single_try_that_is_not_confirmed_fails_and_is_taken_back() {
    let mut world = World::new(server(0));
    world.run(ms(30));
    let id = ask(&mut world, Wait::Now);
    world.run(ms(400));
    assert!(world.key("a").is_some() && world.told(id).is_empty());
    world.run(ms(200));
    assert_eq!(failure(&world, id), NONE_OF_ONE);
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s16_whoever_waits_is_granted_by_a_new_write_once_the_replicas_are_back() {
    let mut world = World::new(server(0));
    let id = ask(&mut world, Wait::Forever);
    // Many attempts, none of which is too many: each takes the place of the one before.
    world.run(ms(60_000));
    assert!(world.told(id).is_empty(), "{:?}", world.told(id));
    let unconfirmed = world.key("a").expect("an attempt");
    world.server.replicas = 1;
    world.run(ms(2_000));
    assert!(world.holds(id));
    let confirmed = world.key("a").expect("the key");
    assert_ne!(unconfirmed, confirmed);
    world.release(id);
    world.run(ms(50));
    assert_eq!(world.key("a"), None);
}

#[test]
fn s16_whoever_stops_waiting_leaves_nothing_unconfirmed_behind() {
    let mut world = World::new(server(0));
    let id = ask(&mut world, Wait::For(ms(5_000)));
    world.run(ms(7_000));
    assert_eq!(failure(&world, id), NONE_OF_ONE);
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s16_h2_renewals_that_nobody_confirms_do_not_keep_a_lock() {
    let mut world = World::new(server(1));
    world.run(ms(30));
    let asked = world.now;
    let id = hold(&mut world);
    let until = |world: &World| world.mux.leases().lease(id).unwrap().valid_until();
    let valid_until = until(&world);
    // Before the first renewal is due.
    world.run(ms(4_000));
    world.server.replicas = 0;
    world.run_until(asked + ms(19_990));
    let failed = world
        .notices
        .iter()
        .filter(|(_, _, notice)| matches!(notice, Notice::RenewalFailed(fault) if fault.failure == NONE_OF_ONE));
    assert!(failed.count() >= 3);
    // The server goes on to let the key live: only what is confirmed counts.
    assert!(world.holds(id) && until(&world) == valid_until);
    world.run_until(asked + ms(20_001));
    let (told, Notice::Lost { lost, .. }) = world.end(id) else {
        panic!("{:?}", world.told(id))
    };
    assert_eq!(told, asked + ms(20_000));
    assert_eq!(Some(lost.stop_by), valid_until);
    assert!(!world.holds(id));
}

#[test]
fn s16_a_renewal_that_is_confirmed_in_the_end_keeps_the_lock() {
    let mut world = World::new(server(1));
    world.run(ms(30));
    let id = hold(&mut world);
    world.server.replicas = 0;
    world.run(ms(15_000));
    world.server.replicas = 1;
    world.run(ms(30_000));
    assert!(world.holds(id));
    assert_eq!(world.told(id).len(), 1);
    assert_eq!(world.dials, 1);
}

#[test]
fn s16_h3_a_connection_that_dies_before_the_confirmation_has_confirmed_nothing() {
    let mut world = World::new(server(0));
    world.run(ms(30));
    let id = ask(&mut world, Wait::Forever);
    // The write is answered, and the server waits.
    world.run(ms(100));
    let made = world.key("a").expect("the write");
    let from = world.server.log.len();
    world.cut();
    world.run(ms(700));
    // Its value is found by another connection, on which nothing has been written: there the server would confirm at once.
    assert!(world.told(id).is_empty());
    let sent = lines(&world, from);
    let waits = |lines: &[String]| lines.iter().filter(|line| **line == "WAIT 1").count();
    assert!(world.server.count("IFEQ") >= 1, "{sent:?}");
    assert_ne!(world.key("a"), Some(made));
    world.run(ms(10_000));
    assert!(world.told(id).is_empty());
    assert!(waits(&lines(&world, from)) >= 4);
    world.server.replicas = 1;
    world.run(ms(2_000));
    assert!(world.holds(id));
}

#[test]
fn s16_h3_what_was_granted_before_a_reconnect_is_confirmed_by_a_new_write_only() {
    let mut world = World::new(server(1));
    world.run(ms(30));
    let id = hold(&mut world);
    let until = |world: &World| world.mux.leases().lease(id).unwrap().valid_until();
    let valid_until = until(&world);
    world.server.replicas = 0;
    world.run(ms(1_000));
    world.cut();
    world.run(ms(3_000));
    assert!(world.dials == 2 && world.holds(id) && until(&world) == valid_until);
}

#[test]
fn s16_a_refused_write_ignores_what_is_said_of_the_replicas() {
    for refused in [None, Some("NOPERM no"), Some("UNBLOCKED no")] {
        let mut world = World::new(Server {
            wait_refused: refused,
            ..server(1)
        });
        world.run(ms(30));
        world.server.put("lock:a", b"foreign", Some(1 << 40));
        let id = ask(&mut world, Wait::Now);
        world.run(ms(100));
        assert!(
            matches!(world.told(id)[..], [Notice::Held(_)]),
            "{refused:?}"
        );
    }
}

#[test]
fn s16_a_server_that_waits_for_replicas_is_not_taken_for_dead() {
    // The usual limit is a fraction of what it waits.
    let mut world = World::new(server(0));
    let replicas = Replicas {
        within_ms: 2_000,
        ..ONE
    };
    let lease = terms(ms(9_000));
    let options = Options {
        replicas: Some(replicas),
        ..Options::default()
    };
    world.server.replicas = 1;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(world.acquire_with(options, name, lease, Wait::Forever));
    }
    world.run(ms(30));
    assert!(ids.iter().all(|id| world.holds(*id)));
    world.server.replicas = 0;
    world.run(ms(5_900));
    assert_eq!(world.dials, 1);
}

#[test]
fn s16_an_error_of_the_moment_is_unconfirmed_and_another_is_told_at_once() {
    for (text, expected) in [
        (
            "NOPERM User me has no permissions to run the 'wait' command",
            Failure::Replicas(ReplicasFault::NotPermitted),
        ),
        (
            "ERR unknown command 'WAIT'",
            Failure::Replicas(ReplicasFault::Unknown),
        ),
        (
            "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
            Failure::Replicas(ReplicasFault::NoAppendOnlyFile),
        ),
    ] {
        let mut world = World::new(Server {
            wait_refused: Some(text),
            ..server(1)
        });
        let id = ask(&mut world, Wait::Forever);
        world.run(ms(100));
        assert_eq!(failure(&world, id), expected);
        let Some(Notice::Failed(fault)) = world.told(id).last().copied() else {
            panic!()
        };
        assert_eq!(fault.text.as_deref(), Some(text));
        // The write was made: it is taken back.
        assert_eq!(world.key("a"), None);
    }
    let mut world = World::new(Server {
        wait_refused: Some("UNBLOCKED force unblock from blocking operation"),
        ..server(1)
    });
    let id = ask(&mut world, Wait::Forever);
    world.run(ms(1_000));
    assert!(world.told(id).is_empty());
    world.server.wait_refused = None;
    world.run(ms(1_000));
    assert!(world.holds(id));
}

#[test]
fn s16_an_unconfirmed_fence_is_nobodys() {
    let mut world = World::new(server(0));
    let options = Options {
        fence: Some(0),
        replicas: Some(ONE),
        ..Options::default()
    };
    let id = world.acquire_with(options, "a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(5_000));
    let counter = |world: &mut World| {
        let now = world.now.as_micros();
        let text = world.server.get(now, "lock:{lock:a}:fence").unwrap();
        String::from_utf8(text).unwrap().parse::<u64>().unwrap()
    };
    let wasted = counter(&mut world);
    world.server.replicas = 1;
    world.run(ms(2_000));
    let Some(Notice::Acquired {
        fence: Some(fence), ..
    }) = world.told(id).first().copied()
    else {
        panic!("{:?}", world.told(id))
    };
    let fence = *fence;
    assert!(fence > wasted);
    assert_eq!(fence, counter(&mut world));
}

#[test]
fn s16_what_leaves_no_time_to_confirm_is_refused_before_any_command() {
    let mut world = World::new(server(1));
    let replicas = Replicas {
        within_ms: 7_500,
        ..ONE
    };
    let request = Request {
        name: b"a",
        terms: terms(ms(30_000)),
        wait: Wait::Now,
        options: Options {
            replicas: Some(replicas),
            ..Options::default()
        },
        secret: [1; 16],
        since_ms: 0,
    };
    let lease = ms(30_000);
    let refused = world.mux.acquire(world.now, &request);
    assert_eq!(refused, Err(ConfigError::Replicas { replicas, lease }));
    assert!(world.mux.leases().is_empty());
}

#[test]
fn a_connection_on_demand_is_made_for_the_first_lease() {
    let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
    config.on_demand = true;
    let mut world = World::with(config, server(1), 1);
    world.run(ms(60_000));
    assert_eq!(world.dials, 0);
    assert_eq!(world.mux.deadline(), Deadline::Never);
    let id = hold(&mut world);
    world.release(id);
    world.run(ms(60_000));
    assert_eq!(world.dials, 1);
    // Without any use it is not made anew.
    world.cut();
    world.run(ms(60_000));
    assert_eq!(world.dials, 1);
    hold(&mut world);
    assert_eq!(world.dials, 2);
    world.mux.close(world.now);
    assert!(!matches!(world.mux.poll_output(world.now), Output::Connect));
}
