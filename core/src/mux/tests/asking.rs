//! Questions that belong to no lease, and what becomes of them when the connection does not last.

use core::time::Duration;
use std::borrow::ToOwned;
use std::format;
use std::string::String;
use std::vec::Vec;

use super::server::{Server, Stored};
use super::world::{Dial, World, ms, terms};
use crate::ask::{Found, Known, Listed, Question, Removed, Warning};
use crate::config::Wait;
use crate::error::{Failure, LinkFault, ServerError};
use crate::lease::Cause;
use crate::leases::Notice;
use crate::names::Value;
use crate::time::Tick;

const LEASE: Duration = ms(30_000);
const INSPECT: Question<'_> = Question::Inspect { name: b"a" };
const REMOVE: Question<'_> = Question::Remove { name: b"a" };

fn value(label: &str) -> Vec<u8> {
    Value::new(label, 7, &[9; 16], 1).as_bytes().to_vec()
}

/// A key for this long.
fn put(world: &mut World, key: &str, value: &[u8], ttl: Option<Duration>) {
    let until = ttl.map(|ttl| (world.now + ttl).as_micros());
    world.server.put(key, value, until);
}

fn greeted(server: Server) -> World {
    let mut world = World::new(server);
    world.run(ms(5));
    world
}

fn inspect(world: &mut World, name: &str) -> Option<Found> {
    let id = world.ask(&Question::Inspect {
        name: name.as_bytes(),
    });
    world.run(ms(5));
    match world.answer(id).1 {
        Ok(Known::Inspected(found)) => found.clone(),
        other => panic!("{other:?}"),
    }
}

fn list(world: &mut World, start: &str, limit: usize) -> Listed {
    let start = start.as_bytes();
    let id = world.ask(&Question::List { start, limit });
    world.run(ms(5_000));
    match world.answer(id).1 {
        Ok(Known::Listed(listed)) => listed.clone(),
        other => panic!("{other:?}"),
    }
}

fn remove(world: &mut World) -> Option<Removed> {
    let id = world.ask(&REMOVE);
    world.run(ms(5));
    match world.answer(id).1 {
        Ok(Known::Removed(removed)) => removed.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn s3_a_release_by_value_leaves_another_value() {
    for server in [Server::redis(), Server::valkey()] {
        let mut world = greeted(server);
        let (theirs, mine) = (value("them"), value("me"));
        put(&mut world, "lock:a", &theirs, Some(LEASE));
        for (value, expected) in [(&mine, None), (&theirs, Some("them")), (&theirs, None)] {
            let id = world.ask(&Question::Release { name: b"a", value });
            world.run(ms(5));
            let Ok(Known::Removed(removed)) = &world.answer(id).1 else {
                panic!("{:?}", world.answer(id));
            };
            let label = removed
                .as_ref()
                .and_then(|removed| removed.label.as_deref());
            assert_eq!(label, expected);
        }
        assert!(world.key("a").is_none());
    }
}

fn failure(world: &World, id: crate::ask::AskId) -> (Tick, Failure) {
    let (tick, result) = world.answer(id);
    (tick, result.as_ref().expect_err("a failure").failure)
}

#[test]
fn a_name_is_inspected_in_one_round_trip() {
    let mut world = greeted(Server::redis());
    put(&mut world, "lock:a", &value("them"), Some(ms(9_000)));
    let asked = world.now;
    let id = world.ask(&INSPECT);
    world.run(ms(5));
    let (tick, result) = world.answer(id);
    assert_eq!(tick, asked + world.latency * 2);
    let Ok(Known::Inspected(Some(found))) = result else {
        panic!("{result:?}")
    };
    assert_eq!(found.label.as_deref(), Some("them"));
    assert_eq!(found.since_ms, Some(7));
    assert_eq!(found.remaining, Some(ms(8_999)));
    assert_eq!(found.warnings, []);
    assert_eq!(inspect(&mut world, "nobody's"), None);
}

#[test]
fn what_is_odd_about_a_key_is_said() {
    let mut world = greeted(Server::redis());
    let odd = |found: Option<Found>| {
        let found = found.expect("something");
        (found.label.is_some(), found.remaining, found.warnings)
    };
    put(&mut world, "lock:a", &value("them"), None);
    let endless = (true, None, Vec::from([Warning::Endless]));
    assert_eq!(odd(inspect(&mut world, "a")), endless);
    put(&mut world, "lock:a", b"theirs", None);
    let foreign = [Warning::Foreign, Warning::Endless];
    assert_eq!(
        odd(inspect(&mut world, "a")),
        (false, None, foreign.to_vec())
    );
    put(&mut world, "lock:a", b"", Some(ms(1_000)));
    assert_eq!(odd(inspect(&mut world, "a")).2, [Warning::Foreign]);
    let list = (Stored::List, None);
    world.server.keys.insert(b"lock:a".to_vec(), list);
    let other = [Warning::OtherType, Warning::Endless];
    assert_eq!(odd(inspect(&mut world, "a")).2, other);
}

#[test]
fn names_are_listed_in_order_once_each_and_helper_keys_are_not() {
    let mut world = greeted(Server::redis());
    let mut names: Vec<String> = (0..500).map(|at| format!("order:{at}")).collect();
    names.push("order:{x}*?".to_owned());
    for name in &names {
        let key = format!("lock:{}", name.replace('{', "%7B").replace('}', "%7D"));
        put(&mut world, &key, &value("them"), Some(LEASE));
    }
    for other in [
        "lock:other",
        "lock:{lock:order:1}:forced",
        "order:1",
        "lock:order:%",
    ] {
        put(&mut world, other, &value("them"), Some(LEASE));
    }
    names.sort();
    let listed = list(&mut world, "order:", 10_000);
    let found: Vec<&[u8]> = listed.names.iter().map(|(name, _)| &**name).collect();
    let wanted: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    assert_eq!(found, wanted);
    assert!(!listed.more);
    let held_by = |found: &Found| found.label.as_deref() == Some("them");
    assert!(listed.names.iter().all(|(_, found)| held_by(found)));
    assert_eq!(list(&mut world, "order:{", 10).names.len(), 1);
    assert_eq!(list(&mut world, "", 10_000).names.len(), 502);
    assert_eq!(list(&mut world, "order:*", 10), Listed::default());
}

#[test]
fn a_list_says_that_there_are_more() {
    let mut world = greeted(Server::redis());
    for at in 0..300 {
        let key = format!("lock:{at}");
        put(&mut world, &key, &value("them"), Some(LEASE));
    }
    let listed = list(&mut world, "", 7);
    assert_eq!((listed.names.len(), listed.more), (7, true));
    let listed = list(&mut world, "", 300);
    assert_eq!((listed.names.len(), listed.more), (300, false));
}

#[test]
fn a_list_goes_faster_where_few_keys_are_of_locks() {
    let mut world = greeted(Server::redis());
    for at in 0..20_000 {
        put(&mut world, &format!("other:{at}"), b"x", None);
    }
    put(&mut world, "lock:a", &value("them"), Some(LEASE));
    assert_eq!(list(&mut world, "", 10).names.len(), 1);
    assert!(
        world.server.count("SCAN") < 20,
        "{}",
        world.server.count("SCAN")
    );
}

#[test]
fn a_removal_says_whose_it_was_and_leaves_a_note() {
    let mut world = greeted(Server::redis());
    assert_eq!(remove(&mut world), None);
    assert_eq!(world.server.keys.len(), 0);
    put(&mut world, "lock:a", &value("them"), Some(LEASE));
    let removed = remove(&mut world).expect("it was there");
    assert_eq!(removed.label.as_deref(), Some("them"));
    assert_eq!((removed.since_ms, removed.warning), (Some(7), None));
    let (_, (note, until)) = world.server.keys.first_key_value().expect("a note");
    let note = note.clone();
    assert_eq!(note, Stored::Text([b"me.", &value("them")[..]].concat()));
    assert!(until.is_some_and(|until| until >= (world.now + ms(29_000)).as_micros()));
    // By its SHA from the second on, and in full again when that is forgotten.
    world.server.cached.clear();
    put(&mut world, "lock:a", b"theirs", None);
    assert_eq!(remove(&mut world), Some(Removed::other(Warning::Foreign)));
    assert_eq!(world.server.count("EVALSHA"), 2);
    let list = (Stored::List, None);
    world.server.keys.insert(b"lock:a".to_vec(), list);
    assert_eq!(remove(&mut world), Some(Removed::other(Warning::OtherType)));
    assert_eq!(world.server.keys.len(), 1, "no note is left of those");
}

#[test]
fn s8_the_holder_is_told_by_whom_and_whoever_waits_is_woken() {
    for watching in [false, true] {
        let mut world = match watching {
            true => World::watching(Server::redis(), 1),
            false => World::new(Server::redis()),
        };
        let id = world.hold("a", terms(LEASE));
        let waiting = world.acquire("a", terms(LEASE), Wait::Forever);
        world.run(ms(5));
        let asked = world.now;
        let removed = remove(&mut world).expect("it was there");
        assert_eq!(removed.label.as_deref(), Some("me"));
        let (tick, notice) = world.end(id);
        let Notice::Lost { lost, by } = notice else {
            panic!("{notice:?}")
        };
        assert_eq!((lost.cause, by.as_deref()), (Cause::Forced, Some("me")));
        assert!(tick <= asked + world.latency * 4);
        assert!(world.holds(waiting));
    }
}

/// Somebody else has the name by the time the holder looks, or renews.
#[test]
fn s8_the_holder_is_told_by_whom_also_when_somebody_else_was_faster() {
    for watching in [false, true] {
        let mut world = match watching {
            true => World::watching(Server::redis(), 1),
            false => World::new(Server::redis()),
        };
        let id = world.hold("a", terms(LEASE));
        let until = Some((world.now + LEASE * 9).as_micros());
        let now = world.now.as_micros();
        world.server.meddle(|server| {
            server.take_by_force(now, b"lock:a", b"lock:{lock:a}:forced", b"root", None);
            server.put("lock:a", &value("them"), until);
        });
        world.run(LEASE / 4);
        let (_, notice) = world.end(id);
        let Notice::Lost { lost, by } = notice else {
            panic!("{notice:?}")
        };
        assert_eq!((lost.cause, by.as_deref()), (Cause::Forced, Some("root")));
        assert!(world.key("a").is_some_and(|value| value.contains("them")));
    }
}

#[test]
fn what_is_not_permitted_is_said() {
    for question in [INSPECT, REMOVE] {
        let mut world = greeted(Server::redis());
        world.server.may_read = false;
        let id = world.ask(&question);
        world.run(ms(5));
        let fault = world.answer(id).1.as_ref().unwrap_err();
        assert_eq!(fault.failure, Failure::Server(ServerError::NoPerm));
        assert_eq!(fault.text.as_deref(), Some("NOPERM no"));
    }
}

#[test]
fn a_question_waits_for_the_connection_and_no_longer_than_its_limits() {
    let mut world = World::new(Server::redis());
    world.dial = Dial::Refused;
    let asked = world.now;
    let early = world.ask(&INSPECT);
    world.run(ms(9_000));
    let late = world.ask(&INSPECT);
    world.run(ms(1_500));
    assert_eq!(
        failure(&world, early),
        (asked + ms(10_000), Failure::Link(LinkFault::Dial))
    );
    world.dial = Dial::Works;
    world.run(ms(2_000));
    assert_eq!(world.answer(late).1, &Ok(Known::Inspected(None)));
}

#[test]
fn what_waiting_cannot_cure_ends_a_question_at_once() {
    let mut world = World::new(Server::redis());
    let id = world.ask(&INSPECT);
    world.run(Duration::from_micros(1_200));
    world.mux.recv_space()[..13].copy_from_slice(b"-WRONGPASS no");
    world.mux.recv_space()[13..15].copy_from_slice(b"\r\n");
    world.mux.received(world.now, 15);
    world.pump();
    let wrong = Failure::Link(LinkFault::Handshake(ServerError::WrongPass));
    assert_eq!(failure(&world, id).1, wrong);
}

#[test]
fn what_only_reads_is_asked_again_and_a_removal_that_may_be_done_is_not() {
    let mut world = greeted(Server::redis());
    put(&mut world, "lock:a", &value("them"), Some(LEASE));
    let start: &[u8] = b"";
    let reads = [
        world.ask(&INSPECT),
        world.ask(&Question::List { start, limit: 9 }),
    ];
    world.run(Duration::from_micros(600));
    let removes = world.ask(&REMOVE);
    world.run(Duration::from_micros(100));
    // The reads were executed, the removal is on its way.
    world.cut();
    assert_eq!(failure(&world, removes), (world.now, Failure::MaybeDone));
    world.run(ms(1_000));
    for id in reads {
        assert!(world.answer(id).1.is_ok());
    }
    assert_eq!(world.server.count("EVAL"), 0);
}

#[test]
fn a_removal_of_which_no_byte_has_left_is_made_on_the_next_connection() {
    let mut world = greeted(Server::redis());
    put(&mut world, "lock:a", &value("them"), Some(LEASE));
    world.takes = 0;
    let id = world.ask(&REMOVE);
    world.run(ms(5));
    world.takes = usize::MAX;
    world.cut();
    world.run(ms(1_000));
    assert!(matches!(world.answer(id).1, Ok(Known::Removed(Some(_)))));
    assert_eq!(world.server.count("EVAL"), 1);
}

#[test]
fn a_removal_without_an_answer_in_time_says_that_it_may_be_done() {
    let mut world = greeted(Server::redis());
    world.dial = Dial::Refused;
    world.takes = 0;
    let unsent = world.ask(&REMOVE);
    world.run(ms(11_000));
    assert_eq!(failure(&world, unsent).1, Failure::NoReply);
    world.takes = usize::MAX;
    world.mute = true;
    let sent = world.ask(&REMOVE);
    world.run(ms(11_000));
    let overdue = Failure::MaybeDone;
    assert_eq!(failure(&world, sent).1, overdue);
}

#[test]
fn a_list_on_connections_that_do_not_last_ends() {
    let mut world = greeted(Server::redis());
    for at in 0..500 {
        put(
            &mut world,
            &format!("lock:{at}"),
            &value("them"),
            Some(LEASE),
        );
    }
    let id = world.ask(&Question::List {
        start: b"",
        limit: 1_000,
    });
    let mut cuts = 0;
    while world.answers.is_empty() {
        world.run(ms(30));
        // In the middle of it.
        world.ask(&INSPECT);
        let sent = world.server.count("SCAN");
        world.run_until(world.now + ms(2));
        if world.server.count("SCAN") > sent || cuts == 0 {
            world.cut();
            cuts += 1;
        }
        world.answers.retain(|(_, answer)| answer.id == id);
        assert!(cuts < 50);
    }
}

#[test]
fn what_is_forgotten_is_not_answered_and_not_sent() {
    let mut world = greeted(Server::redis());
    put(&mut world, "lock:a", &value("them"), Some(LEASE));
    world.takes = 0;
    let unsent = world.ask(&REMOVE);
    world.mux.forget(unsent);
    world.takes = usize::MAX;
    let sent = world.ask(&INSPECT);
    world.mux.forget(sent);
    world.run(ms(20));
    assert_eq!(world.answers, []);
    assert_eq!(world.server.count("EVAL"), 0);
    assert!(world.key("a").is_some());
    assert_eq!(inspect(&mut world, "b"), None);
}

#[test]
fn closing_answers_everything_once() {
    let mut world = greeted(Server::redis());
    let (reads, removes) = (world.ask(&INSPECT), world.ask(&REMOVE));
    world.mux.close(world.now);
    world.pump();
    let after = world.ask(&INSPECT);
    assert_eq!(failure(&world, reads).1, Failure::Closed);
    assert_eq!(failure(&world, removes).1, Failure::MaybeDone);
    assert_eq!(failure(&world, after).1, Failure::Closed);
    world.run(ms(20));
    assert!(world.mux.is_finished());
    assert_eq!(world.answers.len(), 3);
}

#[test]
fn a_server_is_examined_in_one_round_trip_and_what_it_refuses_is_said() {
    let mut world = greeted(Server::redis());
    world.server.memory = "# Memory\r\nmaxmemory:0\r\n";
    world.server.persistence = "-NOPERM no";
    let asked = world.now;
    let id = world.ask(&Question::Examine);
    world.run(ms(5));
    let (tick, result) = world.answer(id);
    assert_eq!(tick, asked + world.latency * 2);
    let Ok(Known::Examined(examined)) = result else {
        panic!("{result:?}")
    };
    let fact = |name: &str| {
        let mut facts = examined.facts.iter();
        facts.find_map(|(found, value)| (**found == *name).then_some(&**value))
    };
    assert_eq!(fact("redis_version"), Some("8.6.3"));
    assert_eq!(fact("maxmemory"), Some("0"));
    assert_eq!(fact("role"), Some("mas%1Bter"));
    let refused = &examined.refused;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(
        (&*refused[0].0, &*refused[0].1),
        ("persistence", "NOPERM no")
    );
    let clock = world.server.epoch + (asked + world.latency).as_micros();
    assert_eq!(examined.clock_us, Some(clock));
}

#[test]
fn an_examination_begins_anew_when_its_connection_dies() {
    let mut world = greeted(Server::redis());
    let id = world.ask(&Question::Examine);
    world.run(world.latency);
    world.cut();
    world.run(ms(500));
    let Ok(Known::Examined(examined)) = world.answer(id).1 else {
        panic!("{:?}", world.answer(id));
    };
    let versions = examined.facts.iter();
    let versions = versions.filter(|(name, _)| **name == *"redis_version");
    assert_eq!((versions.count(), examined.refused.len()), (1, 0));
}
