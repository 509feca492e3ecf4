//! The rules of safety, each by its name.

use core::time::Duration;
use std::string::ToString;
use std::vec;

use super::server::Server;
use super::world::{Dial, World, ms, terms};
use crate::config::Wait;
use crate::error::{Failure, LinkFault, ServerError};
use crate::lease::Cause;
use crate::leases::{Holder, Notice};

#[test]
fn s1_validity_counts_from_the_hand_out() {
    let mut world = World::new(Server::redis());
    world.latency = ms(50);
    world.run(ms(300));
    let asked = world.now;
    let id = world.acquire("a", terms(ms(10_000)), Wait::Forever);
    world.run(ms(100));
    assert_eq!(
        world.told(id),
        [&Notice::Acquired {
            valid_until: asked + ms(9_000),
            fence: None,
        }]
    );
    // The key lives on for the margin and for the way of the command.
    assert_eq!(
        world.server.keys.values().next().unwrap().1,
        Some((asked + ms(10_050)).as_micros())
    );
}

#[test]
fn s1_a_hand_out_is_the_last_look_before_the_first_byte_leaves() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    world.takes = 0;
    let id = world.acquire("a", terms(ms(10_000)), Wait::Forever);
    // The transport takes nothing for a while, then a byte, then the rest.
    world.run(ms(700));
    world.takes = 1;
    let first = world.now;
    world.pump();
    world.takes = usize::MAX;
    world.run(ms(5));
    assert_eq!(
        world.told(id),
        [&Notice::Acquired {
            valid_until: first + ms(9_000),
            fence: None,
        }]
    );
}

#[test]
fn s1_the_loss_is_told_before_the_key_is_free() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    let counted = world.mux.leases().lease(id).unwrap().valid_until().unwrap() - ms(2_700);
    world.black_hole = true;
    world.run(ms(5_000));
    let (when, notice) = world.end(id);
    // Told after two thirds; what is left of the lease less its margin is the stop window.
    assert_eq!(when, counted + ms(2_000));
    let Notice::Lost { lost, by: None } = notice else {
        panic!("{notice:?}")
    };
    assert_eq!(
        lost.cause,
        Cause::Expired {
            late_by: Duration::ZERO
        }
    );
    assert_eq!(lost.stop_by, counted + ms(2_700));
    assert!(!world.holds(id));
}

#[test]
fn s2_an_answer_that_lay_in_a_buffer_revives_nothing() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    // A renewal is executed while the process sleeps for longer than the lease.
    world.run(ms(560));
    let renewals = world.server.count("IFEQ");
    while world.server.count("IFEQ") == renewals {
        world.run(Duration::from_micros(100));
    }
    world.pause(ms(3_500));
    world.pump();
    let (_, notice) = world.end(id);
    assert!(
        matches!(notice, Notice::Lost { lost, .. } if matches!(lost.cause, Cause::Expired { .. }))
    );
    assert!(!world.holds(id));
}

#[test]
fn s2_between_give_up_and_the_end_of_validity_readable_bytes_come_first() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.run(ms(520));
    let renewals = world.server.count("IFEQ");
    while world.server.count("IFEQ") == renewals {
        world.run(Duration::from_micros(100));
    }
    // Awake between 2.0 s and 2.7 s after the last confirmed hand-out: the renewal lies there.
    world.pause(ms(1_700));
    world.pump();
    assert!(world.holds(id), "{:?}", world.told(id));
    world.run(ms(10_000));
    assert!(world.holds(id));
}

#[test]
fn s3_a_key_that_vanished_or_changed_is_left_alone() {
    for server in [Server::redis(), Server::valkey(), Server::old()] {
        let mut world = World::new(server);
        let (gone, changed) = (
            world.hold("gone", terms(ms(3_000))),
            world.hold("changed", terms(ms(3_000))),
        );
        world.server.keys.remove(&b"lock:gone"[..]);
        world.server.put("lock:changed", b"foreign", None);
        world.run(ms(1_000));
        let lost = |id| match world.end(id).1 {
            Notice::Lost { lost, .. } => lost.cause,
            other => panic!("{other:?}"),
        };
        assert_eq!((lost(gone), lost(changed)), (Cause::Gone, Cause::Replaced));
        world.drop_guard(gone);
        world.drop_guard(changed);
        world.run(ms(5_000));
        assert_eq!(
            (world.key("gone"), world.key("changed")),
            (None, Some("foreign".to_string()))
        );
        assert!(world.mux.leases().is_empty());
    }
}

#[test]
fn s4_an_unsent_renewal_is_withdrawn_by_a_release() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.takes = 0;
    world.mux.renew_now(world.now, id);
    world.pump();
    world.mux.release(world.now, id);
    assert!(!world.holds(id));
    world.takes = usize::MAX;
    world.run(ms(100));
    assert_eq!(world.server.count("IFEQ lock"), 0);
    assert_eq!(
        world.server.log.last().unwrap().1.split(' ').next(),
        Some("DELEX")
    );
    assert_eq!(
        world.told(id).last(),
        Some(&&Notice::Released { confirmed: true })
    );
}

#[test]
fn s4_whoever_ends_a_hold_is_offered_nothing_of_its_unsent_renewal() {
    // Callers write what their request leads to at once, without a turn of the driver in between.
    for how in 0..3 {
        let mut world = World::new(Server::redis());
        let id = world.hold("a", terms(ms(3_000)));
        world.takes = 0;
        world.mux.renew_now(world.now, id);
        world.pump();
        match how {
            0 => world.mux.release(world.now, id),
            1 => world.mux.drop_guard(world.now, id),
            _ => world.mux.abandon(world.now, id),
        }
        let offered = loop {
            match world.mux.poll_output(world.now) {
                crate::mux::Output::Lease(_) => {}
                crate::mux::Output::Transmit(bytes) => break bytes.to_vec(),
                _ => break vec![],
            }
        };
        let text = std::string::String::from_utf8_lossy(&offered).into_owned();
        assert_eq!(text.starts_with("*4\r\n$5\r\nDELEX"), how < 2, "{text}");
        assert!(!text.contains("SET"), "{text}");
    }
}

#[test]
fn s4_a_renewal_that_is_asked_for_when_it_is_too_late_takes_the_unsent_one_back() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.takes = 0;
    world.mux.renew_now(world.now, id);
    world.pump();
    // The process stood still until the validity was over, and the caller is first to run again.
    world.now = world.now + ms(2_800);
    world.mux.renew_now(world.now, id);
    let mut lost = false;
    loop {
        match world.mux.poll_output(world.now) {
            crate::mux::Output::Lease(event) => lost |= matches!(event.notice, Notice::Lost { .. }),
            crate::mux::Output::Transmit(bytes) => {
                panic!("{} after the loss", bytes.escape_ascii())
            }
            _ => break,
        }
    }
    assert!(lost);
}

#[test]
fn s4_a_renewal_that_has_begun_to_leave_is_finished_before_the_release() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.takes = 1;
    world.mux.renew_now(world.now, id);
    // One byte, then nothing.
    let _ = world.mux.poll_output(world.now);
    world.mux.transmitted(world.now, 1);
    world.takes = usize::MAX;
    // The first byte went nowhere here, so look at what is left.
    world.mux.release(world.now, id);
    let crate::mux::Output::Transmit(bytes) = world.mux.poll_output(world.now) else {
        panic!()
    };
    let text = std::string::String::from_utf8_lossy(bytes).into_owned();
    assert!(
        text.starts_with("8\r\n$3\r\nSET") && text.contains("*4\r\n$5\r\nDELEX"),
        "{text}"
    );
}

#[test]
fn s4_c3_after_a_loss_nothing_is_cleared_before_the_guard_is_gone() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.mute = true;
    world.run(ms(2_050));
    assert!(matches!(world.end(id).1, Notice::Lost { .. }));
    world.mute = false;
    let log = world.server.log.len();
    world.run(ms(400));
    // The link is back, the key still excludes others, the work has its stop window.
    assert!(
        world.server.log[log..]
            .iter()
            .all(|(_, line)| line.starts_with("HELLO")),
        "{:?}",
        &world.server.log[log..]
    );
    assert!(world.key("a").is_some());
    world.drop_guard(id);
    world.run(ms(10));
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s5a_c1_a_leftover_is_adopted_and_validity_counts_from_that() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    world.mute = true;
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.run(ms(800));
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("1"));
    world.mute = false;
    world.cut();
    world.run(ms(100));
    assert!(world.holds(id));
    // The retry wrote nothing; the adoption wrote a value of its own and a whole TTL.
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("3"));
    let (_, adopted) = *world
        .server
        .log
        .iter()
        .find(|(_, line)| line.contains("IFEQ"))
        .map(|(tick, line)| (line, tick))
        .as_ref()
        .unwrap();
    let valid_until = world
        .mux
        .leases()
        .lease(id)
        .unwrap()
        .valid_until()
        .unwrap()
        .as_micros();
    assert!(valid_until <= adopted + 27_000_000 && valid_until > adopted + 26_900_000);
    assert_eq!(
        world.server.keys.values().next().unwrap().1,
        Some(adopted + 30_000_000)
    );
}

#[test]
fn s5a_a_value_of_a_live_hold_or_of_another_request_is_held() {
    let mut world = World::new(Server::redis());
    world.hold("a", terms(ms(30_000)));
    // Not through the local queue: another client with the same label.
    let value = world.key("a").unwrap();
    world.server.put("lock:b", value.as_bytes(), None);
    let id = world.acquire("b", terms(ms(30_000)), Wait::Now);
    world.run(ms(10));
    assert_eq!(
        world.told(id),
        [&Notice::Held(Holder::labelled("me", None))]
    );
    assert_eq!(world.key("b"), Some(value));
}

#[test]
fn s5b_c2_a_late_clean_up_of_a_dead_connection_deletes_no_live_hold() {
    let mut world = World::new(Server::redis());
    let first = world.hold("a", terms(ms(30_000)));
    // The release is written, its connection dies, and the network delivers it four seconds later.
    world.zombies = Some(ms(4_000));
    world.latency = ms(2);
    world.release(first);
    world.cut();
    world.run(ms(50));
    assert_eq!(
        world.told(first).last(),
        Some(&&Notice::Released { confirmed: true })
    );
    world.zombies = None;
    let second = world.hold("a", terms(ms(30_000)));
    let value = world.key("a");
    let clears = world.server.count("DELEX");
    world.run(ms(5_000));
    assert_eq!(world.server.count("DELEX"), clears + 1);
    assert_eq!(world.key("a"), value);
    assert!(world.holds(second));
}

#[test]
fn s5b_no_value_is_written_after_its_release() {
    let mut world = World::new(Server::redis());
    for _ in 0..5 {
        let id = world.hold("a", terms(ms(3_000)));
        world.run(ms(2_000));
        world.release(id);
        world.run(ms(10));
    }
    let mut released = vec![];
    for (_, line) in &world.server.log {
        let value = line.split(' ').find(|word| word.starts_with("tn1:"));
        match value {
            Some(value) if line.starts_with("DELEX") => released.push(value),
            Some(value) => assert!(!released.contains(&value), "{line}"),
            None => {}
        }
    }
    assert_eq!(released.len(), 5);
}

#[test]
fn s5_c4_a_late_attempt_of_a_dead_connection_hides_no_loss() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    // Attempt 1 is under way when its connection dies; it arrives three seconds later.
    world.zombies = Some(ms(3_000));
    world.latency = ms(2);
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.cut();
    world.run(ms(50));
    world.zombies = None;
    assert!(world.holds(id));
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("2"));
    // Somebody deletes the key, and attempt 1 puts one there again.
    world.server.keys.clear();
    world.run(ms(3_000));
    assert_eq!(world.key("a").unwrap().rsplit('.').next(), Some("1"));
    world.run(ms(6_000));
    let (_, notice) = world.end(id);
    assert!(
        matches!(notice, Notice::Lost { lost, by: None } if lost.cause == Cause::Replaced),
        "{notice:?}"
    );
    // S6: once the guard is gone, the orphan is cleared too.
    world.drop_guard(id);
    world.run(ms(10));
    assert_eq!(world.key("a"), None);
}

#[test]
fn s5c_the_lease_length_is_fixed_within_a_hold() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.hold("b", terms(ms(7_000)));
    world.mux.renew_now(world.now, id);
    world.run(ms(20_000));
    for (_, line) in world
        .server
        .log
        .iter()
        .filter(|(_, line)| line.contains(" PX "))
    {
        let expected = if line.contains("lock:a") {
            "3000"
        } else {
            "7000"
        };
        assert_eq!(line.rsplit(' ').next(), Some(expected), "{line}");
    }
}

#[test]
fn s5d_an_overdue_connection_is_aborted() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(30_000)));
    world.mute = true;
    world.run(ms(9_500));
    assert!(
        world
            .links
            .iter()
            .any(|(_, event)| *event == crate::mux::LinkEvent::Down(LinkFault::ReplyOverdue))
    );
    world.mute = false;
    world.run(ms(6_000));
    assert!(world.holds(id));
}

#[test]
fn s6_a_cancelled_request_leaves_nothing() {
    // Whatever of it is under way when the future is dropped, in steps of a tenth of a round trip.
    for tenths in 0..40 {
        let mut world = World::new(Server::redis());
        let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
        world.run(Duration::from_micros(100 * tenths));
        world.drop_guard(id);
        world.run(ms(5));
        assert_eq!(world.key("a"), None, "after {tenths}");
        assert!(world.mux.leases().is_empty(), "after {tenths}");
        assert!(world.told(id).len() <= 1);
    }
}

#[test]
fn s6_every_ambiguous_attempt_is_cleared() {
    let mut world = World::new(Server::redis());
    world.run(ms(30));
    world.mute = true;
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    for _ in 0..3 {
        world.run(ms(40));
        world.cut();
    }
    world.run(ms(40));
    world.mute = false;
    world.cut();
    world.drop_guard(id);
    world.run(ms(100));
    let log = &world.server.log;
    for attempt in 1..=3 {
        let part = std::format!(".{attempt}");
        assert!(
            log.iter()
                .any(|(_, line)| line.starts_with("DELEX") && line.ends_with(&part)),
            "{attempt} {log:?}"
        );
    }
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s6_a_clean_up_without_an_answer_is_made_again() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(30_000)));
    world.black_hole = true;
    world.drop_guard(id);
    world.run(ms(10));
    assert!(world.key("a").is_some());
    world.black_hole = false;
    world.cut();
    world.run(ms(100));
    assert_eq!(world.key("a"), None);
    assert!(world.mux.leases().is_empty());
}

#[test]
fn s6_m4_a_clean_up_is_forgotten_one_ttl_and_a_margin_after_the_connection_died() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.dial = Dial::Refused;
    world.cut();
    let dead = world.now;
    world.run(ms(200));
    world.release(id);
    assert!(!world.holds(id));
    // By the server's clock, which may be slower by the margin, the key is still there.
    world.run_until(dead + ms(3_300));
    assert!(!world.mux.leases().is_empty());
    world.run(ms(2));
    assert!(world.mux.leases().is_empty());
    assert_eq!(
        world.told(id).last(),
        Some(&&Notice::Released { confirmed: false })
    );
}

#[test]
fn s6_an_error_that_nothing_cures_does_not_keep_a_clean_up_for_ever() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.server.ails = Some("NOPERM this user has no permissions");
    world.release(id);
    world.run(ms(3_500));
    assert!(world.mux.leases().is_empty());
    assert_eq!(
        world.told(id).last(),
        Some(&&Notice::Released { confirmed: false })
    );
}

#[test]
fn s7_m11_after_a_reconnect_everything_is_renewed_at_once() {
    let mut world = World::new(Server::redis());
    for name in ["a", "b", "c"] {
        world.hold(name, terms(ms(30_000)));
    }
    world.run(ms(500));
    let before = world.server.count("IFEQ");
    world.cut();
    world.run(ms(20));
    assert_eq!(world.server.count("IFEQ"), before + 3);
}

#[test]
fn s7_m11_a_replica_is_left_and_the_reconnects_are_paced() {
    let mut world = World::new(Server::redis());
    let id = world.acquire("a", terms(ms(30_000)), Wait::Forever);
    world.server.ails = Some("READONLY You can't write against a read only replica.");
    world.run(ms(10_000));
    let retired = world
        .links
        .iter()
        .filter(|(_, event)| *event == crate::mux::LinkEvent::Down(LinkFault::Retired));
    assert!(retired.count() >= 5);
    assert!(world.dials < 60, "{} dials in ten seconds", world.dials);
    world.server.ails = None;
    world.run(ms(2_000));
    assert!(world.holds(id));
}

#[test]
fn s7_m7_a_full_server_renews_by_script() {
    for server in [Server::redis(), Server::valkey()] {
        let mut world = World::new(server);
        let id = world.hold("a", terms(ms(3_000)));
        world.server.oom = true;
        world.run(ms(20_000));
        assert!(world.holds(id));
        let waiting = world.acquire("b", terms(ms(3_000)), Wait::Forever);
        let once = world.acquire("c", terms(ms(3_000)), Wait::Now);
        world.run(ms(1_000));
        assert!(world.told(waiting).is_empty());
        assert!(
            matches!(world.end(once).1, Notice::Failed(fault) if fault.failure == Failure::Server(ServerError::OutOfMemory))
        );
        world.server.oom = false;
        world.run(ms(1_000));
        assert!(world.holds(waiting));
    }
}

#[test]
fn s7_an_error_reply_ends_no_hold_before_it_is_given_up() {
    for error in [
        "ERR what",
        "NOPERM no",
        "LOADING wait",
        "MISCONF no",
        "CLUSTERDOWN down",
    ] {
        let mut world = World::new(Server::redis());
        let id = world.hold("a", terms(ms(3_000)));
        world.server.ails = Some(error);
        world.run(ms(1_900));
        assert!(world.holds(id), "{error}");
        let failed = world
            .notices
            .iter()
            .filter(|(.., notice)| matches!(notice, Notice::RenewalFailed(_)));
        assert!((3..60).contains(&failed.count()));
        world.run(ms(300));
        assert!(matches!(world.end(id).1, Notice::Lost { .. }), "{error}");
    }
}
