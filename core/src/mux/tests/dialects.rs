//! Every dialect, and every way from one form of a command to the next.

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::server::{Server, Stored};
use super::world::{World, ms, terms};
use crate::config::Wait;
use crate::error::{Failure, ServerError};
use crate::lease::Cause;
use crate::leases::{Holder, Notice};

/// The commands since `from`, without the greeting.
fn verbs(world: &World, from: usize) -> Vec<String> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let script = |text: &str| match text {
            _ if text == crate::plan::RENEW.sha => "renew",
            _ if text == crate::plan::ADOPT.sha => "adopt",
            _ if text == crate::plan::CLEAR.sha => "clear",
            _ if text == crate::plan::MINT.sha => "mint",
            _ => "text",
        };
        match words[0] {
            "SET" => {
                let flags = words
                    .iter()
                    .skip(3)
                    .filter(|word| ["NX", "GET", "IFEQ"].contains(word));
                flags.fold("SET".to_string(), |text, flag| format!("{text} {flag}"))
            }
            "EVALSHA" => format!("EVALSHA {}", script(words[1])),
            other => other.to_string(),
        }
    };
    let log = world.server.log[from..].iter().map(|(_, line)| line);
    log.filter(|line| !line.starts_with("HELLO"))
        .map(|line| of(line))
        .collect()
}

/// Acquire, renew, release; gives the commands of each step.
fn life(server: Server) -> (Vec<String>, Vec<String>, Vec<String>, World) {
    let mut world = World::new(server);
    world.run(ms(10));
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(10));
    assert!(world.holds(id), "{:?}", world.told(id));
    let acquired = world.server.log.len();
    world.mux.renew_now(world.now, id);
    world.run(ms(10));
    let until = world.server.keys.values().next().unwrap().1.unwrap();
    assert!(until > world.now.as_micros() + 29_000_000);
    let renewed = world.server.log.len();
    world.release(id);
    world.run(ms(10));
    assert_eq!(
        world.told(id).last(),
        Some(&&Notice::Released { confirmed: true })
    );
    assert_eq!(world.key("a"), None);
    let acquire = verbs(&world, 0);
    let acquire = acquire[..acquire.len() - verbs(&world, acquired).len()].to_vec();
    let renew = verbs(&world, acquired);
    let renew = renew[..renew.len() - verbs(&world, renewed).len()].to_vec();
    let clear = verbs(&world, renewed);
    (acquire, renew, clear, world)
}

#[test]
fn redis_speaks_compare_commands() {
    let (acquire, renew, clear, _) = life(Server::redis());
    assert_eq!(acquire, ["SET NX GET"]);
    assert_eq!(renew, ["SET IFEQ GET"]);
    assert_eq!(clear, ["DELEX"]);
}

#[test]
fn valkey_speaks_its_own_delete() {
    let (acquire, renew, clear, _) = life(Server::valkey());
    assert_eq!(
        (acquire, renew, clear),
        (
            ["SET NX GET".to_string()].into(),
            ["SET IFEQ GET".to_string()].into(),
            ["DELIFEQ".to_string()].into()
        )
    );
}

#[test]
fn an_old_server_is_found_out_by_trying() {
    let (acquire, renew, clear, mut world) = life(Server::old());
    assert_eq!(acquire, ["SET NX GET", "SET NX"]);
    assert_eq!(renew, ["SET IFEQ GET", "EVAL"]);
    assert_eq!(clear, ["EVAL"]);
    // It is remembered for as long as the connection lasts,
    let from = world.server.log.len();
    let id = world.hold("a", terms(ms(30_000)));
    world.mux.renew_now(world.now, id);
    world.run(ms(5));
    world.release(id);
    world.run(ms(5));
    assert_eq!(
        verbs(&world, from),
        ["SET NX", "EVALSHA renew", "EVALSHA clear"]
    );
    // and tried again on the next one.
    world.server = Server {
        log: world.server.log.clone(),
        ..Server::redis()
    };
    world.cut();
    world.run(ms(50));
    let from = world.server.log.len();
    let id = world.hold("a", terms(ms(30_000)));
    world.release(id);
    world.run(ms(5));
    assert_eq!(verbs(&world, from), ["SET NX GET", "DELEX"]);
}

#[test]
fn a_known_old_version_is_not_asked_for_what_it_cannot() {
    let (_, renew, clear, _) = life(Server {
        greets: Some(("redis", "7.4.0")),
        ifeq: false,
        delex: false,
        ..Server::redis()
    });
    assert_eq!(renew, ["EVAL"]);
    assert_eq!(clear, ["EVAL"]);
    let (_, renew, clear, _) = life(Server {
        greets: Some(("valkey", "8.1.0")),
        delifeq: false,
        ..Server::valkey()
    });
    assert_eq!(renew, ["SET IFEQ GET"]);
    assert_eq!(clear, ["EVAL"]);
}

#[test]
fn a_proxy_that_greets_for_somebody_else_costs_a_round_trip() {
    let (_, _, clear, _) = life(Server {
        greets: Some(("redis", "8.6.0")),
        ..Server::valkey()
    });
    assert_eq!(clear, ["DELEX", "EVAL"]);
    let (_, _, clear, _) = life(Server {
        greets: Some(("other", "1.0.0")),
        ..Server::valkey()
    });
    // A release may be the last thing a process sends: no place to try what is not known.
    assert_eq!(clear, ["EVAL"]);
}

#[test]
fn two_clean_ups_under_way_learn_the_same() {
    let mut world = World::new(Server {
        greets: Some(("redis", "8.6.0")),
        ..Server::valkey()
    });
    let (a, b) = (
        world.hold("a", terms(ms(30_000))),
        world.hold("b", terms(ms(30_000))),
    );
    world.mux.release(world.now, a);
    world.mux.release(world.now, b);
    let from = world.server.log.len();
    world.run(ms(10));
    assert_eq!(verbs(&world, from), ["DELEX", "DELEX", "EVAL", "EVAL"]);
}

#[test]
fn m8_a_user_that_may_not_read_gets_the_plain_forms() {
    let (acquire, renew, clear, mut world) = life(Server {
        may_read: false,
        ..Server::redis()
    });
    assert_eq!(acquire, ["SET NX GET", "SET NX"]);
    assert_eq!(renew, ["SET IFEQ"]);
    assert_eq!(clear, ["DELEX"]);
    // Who holds a name cannot be said then; one that was taken over looks gone.
    world.server.put("lock:b", b"other", None);
    let from = world.server.log.len();
    let id = world.acquire("b", terms(ms(3_000)), Wait::Now);
    world.run(ms(10));
    assert_eq!(world.told(id), [&Notice::Held(Holder::UNKNOWN)]);
    // Nor is it tried in vain.
    assert_eq!(verbs(&world, from), ["SET NX"]);
    let id = world.hold("c", terms(ms(3_000)));
    world.server.put("lock:c", b"other", None);
    world.run(ms(700));
    assert!(matches!(world.end(id).1, Notice::Lost { lost, .. } if lost.cause == Cause::Gone));
}

#[test]
fn after_a_refusal_the_holder_is_looked_at() {
    let other = b"tn1:p:1:you.0123456789abcdef0123456789abcdef.1";
    for (server, expected) in [
        (Server::redis(), ["SET NX GET", "PTTL"].to_vec()),
        (
            Server::old(),
            ["SET NX GET", "SET NX", "GET", "PTTL"].to_vec(),
        ),
    ] {
        let mut world = World::new(server);
        world.run(ms(10));
        let until = world.now + ms(5_000);
        world.server.put("lock:a", other, Some(until.as_micros()));
        let id = world.acquire("a", terms(ms(3_000)), Wait::Now);
        world.run(ms(20));
        assert_eq!(verbs(&world, 0), expected);
        let Notice::Held(holder) = world.end(id).1 else {
            panic!()
        };
        assert_eq!(holder.label.as_deref(), Some("you"));
        let remaining = holder.remaining.unwrap();
        assert!(
            remaining > ms(4_900) && remaining <= ms(5_000),
            "{remaining:?}"
        );
    }
}

#[test]
fn an_old_server_adopts_by_script() {
    let mut world = World::new(Server::old());
    world.run(ms(30));
    let warm = world.hold("warm", terms(ms(30_000)));
    world.release(warm);
    world.run(ms(30));
    world.mute = true;
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(10));
    world.mute = false;
    world.server.greets = Some(("redis", "7.2.0"));
    world.cut();
    let from = world.server.log.len();
    world.run(ms(100));
    assert!(world.holds(id), "{:?}", world.server.log);
    assert_eq!(
        verbs(&world, from),
        ["SET NX GET", "SET NX", "GET", "PTTL", "EVAL"]
    );
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("3"));
}

#[test]
fn s5e_a_script_that_fails_may_have_written() {
    let mut world = World::new(Server::old());
    world.run(ms(30));
    let warm = world.hold("warm", terms(ms(30_000)));
    world.release(warm);
    world.run(ms(30));
    world.mute = true;
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(10));
    world.mute = false;
    world.cut();
    // The script that takes the first attempt over writes, and then fails.
    world.server.script_fails = Some("ERR out of time, after a write");
    world.run(ms(100));
    let Notice::Failed(fault) = world.end(id).1 else {
        panic!("{:?}", world.told(id))
    };
    assert_eq!(fault.failure, Failure::Server(ServerError::Other));
    assert!(world.server.script_fails.is_none(), "it ran");
    // What it may have written is cleared with the rest.
    assert_eq!(world.key("a"), None, "{:?}", world.server.log);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn a_key_of_another_type_is_never_touched() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut world = World::new(server.clone());
        world
            .server
            .keys
            .insert(b"lock:a".to_vec(), (Stored::List, None));
        let id = world.acquire("a", terms(ms(3_000)), Wait::Forever);
        world.run(ms(50));
        let Notice::Failed(fault) = world.end(id).1 else {
            panic!()
        };
        assert_eq!(fault.failure, Failure::Server(ServerError::WrongType));

        // While it is held, a list comes in its place: told at the renewal,
        let mut world = World::new(server.clone());
        let id = world.hold("a", terms(ms(3_000)));
        world
            .server
            .keys
            .insert(b"lock:a".to_vec(), (Stored::List, None));
        world.run(ms(700));
        assert!(
            matches!(world.end(id).1, Notice::Lost { lost, by: None } if lost.cause == Cause::Replaced)
        );

        // or at the release.
        let mut world = World::new(server);
        let id = world.hold("a", terms(ms(3_000)));
        world
            .server
            .keys
            .insert(b"lock:a".to_vec(), (Stored::List, None));
        world.release(id);
        world.run(ms(50));
        assert!(matches!(world.end(id).1, Notice::Lost { .. }));
        assert!(world.mux.leases().is_empty());
        assert_eq!(world.server.keys[&b"lock:a"[..]].0, Stored::List);
    }
}

#[test]
fn the_scripts_are_known_by_their_sha() {
    use crate::plan::{ADOPT, CLEAR, COOL, MINT, REMOVE, RENEW};
    use sha1::{Digest, Sha1};
    for script in [RENEW, ADOPT, CLEAR, COOL, REMOVE, MINT] {
        let digest = Sha1::digest(script.text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, script.sha, "{}", script.text);
    }
}

#[test]
fn an_operation_put_another_way_survives_the_end_of_the_connection() {
    // NOSCRIPT and then nonsense, in one read.
    let mut world = World::new(Server {
        greets: Some(("redis", "7.4.0")),
        ifeq: false,
        delex: false,
        ..Server::redis()
    });
    let id = world.hold("a", terms(ms(30_000)));
    world.black_hole = true;
    world.mux.renew_now(world.now, id);
    world.pump();
    let bytes = b"-NOSCRIPT No matching script\r\nnonsense\r\n";
    world.mux.recv_space()[..bytes.len()].copy_from_slice(bytes);
    world.mux.received(world.now, bytes.len());
    world.black_hole = false;
    let before = world.mux.leases().lease(id).unwrap().valid_until();
    world.run(ms(100));
    assert!(
        world.mux.leases().lease(id).unwrap().valid_until() > before,
        "{:?}",
        world.links
    );
}

#[test]
fn the_first_release_by_script_needs_no_second_one() {
    // A process that ends right after its release is not there to answer NOSCRIPT.
    let mut world = World::new(Server::old());
    world.run(ms(30));
    let id = world.hold("a", terms(ms(30_000)));
    world.mux.drop_guard(world.now, id);
    world.run(ms(1));
    let clear: Vec<_> = verbs(&world, 0)
        .into_iter()
        .skip_while(|verb| verb.starts_with("SET"))
        .collect();
    assert_eq!(clear.last().map(String::as_str), Some("EVAL"), "{clear:?}");
    assert!(
        !clear.iter().any(|verb| verb.starts_with("EVALSHA")),
        "{clear:?}"
    );
    // A script that was answered once goes by its SHA; one that the server forgot goes in full again.
    let id = world.hold("b", terms(ms(30_000)));
    let from = world.server.log.len();
    world.release(id);
    world.run(ms(5));
    assert_eq!(verbs(&world, from), ["EVALSHA clear"]);
}

#[test]
fn a_key_that_is_not_permitted_does_not_stop_others_from_being_read() {
    use crate::conn::{Flavour, ServerInfo};
    use crate::lease::OpKind;
    use crate::plan::{Dialect, Form, Partial, ReplyTo};
    use crate::resp::Value;

    let mut dialect = Dialect::of(&ServerInfo {
        flavour: Flavour::Redis,
        ..ServerInfo::default()
    });
    let denied = ReplyTo {
        value: Value::Error(b"NOPERM no key"),
        expected: b"",
        handed_out: crate::time::Tick::ZERO,
        more: 0,
        of_hold: 1,
    };
    let acquire = OpKind::Acquire { attempt: 1 };
    let renew = OpKind::Renew { attempt: 1 };
    for (kind, with_get, without) in [
        (acquire, Form::AcquireGet, Form::Acquire),
        (renew, Form::SwapGet, Form::Swap),
    ] {
        assert_eq!(dialect.form(kind), with_get);
        dialect.judge(with_get, kind, &denied, &mut Partial::default());
        assert_eq!(dialect.form(kind), without, "a user that may not read");
        dialect.judge(without, kind, &denied, &mut Partial::default());
        assert_eq!(
            dialect.form(kind),
            with_get,
            "or a key that is not permitted"
        );
    }
}

#[test]
fn a_full_server_is_asked_by_script_for_a_renewal_and_not_for_a_take_over() {
    use crate::conn::ServerInfo;
    use crate::lease::{OpKind, Outcome};
    use crate::plan::{Dialect, Form, Partial, ReplyTo, Sent, Verdict};
    use crate::resp::Value;

    let mut dialect = Dialect::of(&ServerInfo::default());
    let full = ReplyTo {
        value: Value::Error(b"OOM command not allowed when used memory > 'maxmemory'."),
        expected: b"",
        handed_out: crate::time::Tick::ZERO,
        more: 0,
        of_hold: 1,
    };
    let mut verdict = |kind| dialect.judge(Form::SwapGet, kind, &full, &mut Partial::default());
    assert_eq!(
        verdict(OpKind::Renew { attempt: 1 }),
        Verdict::Again(Form::SwapScript(Sent::Text))
    );
    // There is no room for another value in a script either, and so nothing is left to be cleared.
    assert_eq!(
        verdict(OpKind::Adopt { attempt: 2, old: 1 }),
        Verdict::Done(Outcome::Failed {
            failure: Failure::Server(ServerError::OutOfMemory),
            maybe_executed: false,
        })
    );
}
