//! What about a server endangers locks, told and refused.

use std::vec::Vec;

use super::server::Server;
use super::world::{World, ms, terms};
use crate::ask::Question;
use crate::config::Wait;
use crate::error::{Failure, LinkFault, ServerError, Unfit};
use crate::leases::Notice;
use crate::mux::{LinkEvent, MuxConfig};
use crate::names::Names;
use crate::plan::Risk;

const EVICTS: &str = "maxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n";

fn world(server: Server, strict: bool) -> World {
    let mut config = MuxConfig::new(Names::new("lock:", "me").unwrap());
    (config.check, config.strict) = (true, strict);
    World::with(config, server, 1)
}

fn risks(world: &World) -> Vec<&Risk> {
    let told = world.links.iter().filter_map(|(_, event)| match event {
        LinkEvent::Risk(risk) => Some(risk),
        _ => None,
    });
    told.collect()
}

fn evicts() -> Risk {
    Risk::Evicts {
        policy: "allkeys-lru".into(),
    }
}

#[test]
fn a_risk_is_told_once_for_as_long_as_it_stays_so() {
    let mut world = world(Server::redis(), false);
    world.server.memory = EVICTS;
    world.server.persistence = "aof_enabled:0\r\n";
    for _ in 0..3 {
        world.run(ms(500));
        world.cut();
    }
    assert_eq!(risks(&world), [&evicts(), &Risk::Forgets]);
    // Another policy is another risk; and what has come back is told again.
    for memory in [
        "maxmemory:1\r\nmaxmemory_policy:volatile-ttl\r\n",
        "maxmemory:0\r\nmaxmemory_policy:volatile-ttl\r\n",
        "-NOPERM no",
        EVICTS,
    ] {
        world.server.memory = memory;
        world.cut();
        world.run(ms(500));
    }
    assert_eq!(risks(&world).len(), 4);
}

#[test]
fn where_nothing_may_be_looked_at_nothing_is_told_and_locks_work() {
    let mut world = world(Server::redis(), false);
    (world.server.memory, world.server.persistence) = ("-NOPERM no", "-ERR unknown command");
    world.hold("a", terms(ms(30_000)));
    assert_eq!(world.server.count("INFO"), 2);
    assert!(risks(&world).is_empty());
}

#[test]
fn the_first_lock_goes_before_the_look() {
    let mut world = world(Server::redis(), false);
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(30));
    assert!(world.holds(id));
    let verbs: Vec<&str> = world
        .server
        .log
        .iter()
        .map(|(_, line)| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(verbs, ["HELLO", "CLIENT", "SET", "GET", "INFO", "INFO"]);
    // In one write: no later than the lock.
    assert_eq!(world.server.log[2].0, world.server.log[5].0);
}

#[test]
fn a_strict_client_takes_no_lock_on_a_server_that_evicts() {
    for (memory, fault) in [
        (EVICTS, LinkFault::Unfit(Unfit::Evicts)),
        ("-NOPERM no", LinkFault::Unfit(Unfit::Unseen)),
        ("maxmemory:1\r\n", LinkFault::Unfit(Unfit::Unseen)),
    ] {
        let mut world = world(Server::redis(), true);
        world.server.memory = memory;
        let waiting = world.acquire("a", terms(ms(30_000)), Wait::Forever);
        let asking = world.ask(&Question::Inspect { name: b"a" });
        world.run(ms(50));
        let (_, notice) = world.end(waiting);
        let Notice::Failed(why) = notice else {
            panic!("{notice:?}")
        };
        assert_eq!(why.failure, Failure::Link(fault));
        let asked = world.answer(asking).1.as_ref().unwrap_err();
        assert_eq!(asked.failure, Failure::Link(fault));
        assert_eq!(world.server.count("SET"), 0);
        assert_eq!(world.server.count("CLIENT"), 0);
        // It is tried again, ever more slowly; and once the server is fit there are locks.
        world.run(ms(10_000));
        assert!(world.dials < 40, "{}", world.dials);
        world.server.memory = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        world.run(ms(1_100));
        world.hold("a", terms(ms(30_000)));
    }
}

#[test]
fn a_strict_client_waits_for_a_server_that_cannot_answer_yet() {
    let mut world = world(Server::redis(), true);
    world.server.memory = "-LOADING no";
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(500));
    assert!(world.told(id).is_empty());
    let loading = LinkFault::Handshake(ServerError::Loading);
    let failed =
        |event: &LinkEvent| matches!(event, LinkEvent::Failed { fault, .. } if *fault == loading);
    assert!(world.links.iter().any(|(_, event)| failed(event)));
    world.server.memory = "maxmemory:0\r\nmaxmemory_policy:x\r\n";
    world.run(ms(1_100));
    assert!(world.holds(id));
}

#[test]
fn nothing_is_granted_before_a_strict_client_has_its_answer() {
    let mut world = world(Server::old(), true);
    world.server.memory = EVICTS;
    world.server.persistence = EVICTS;
    world.acquire("a", terms(ms(30_000)), Wait::Now);
    world.run(ms(50));
    assert_eq!(world.server.count("SET"), 0);
    assert_eq!(risks(&world), [&evicts()]);
}
