//! S7: a short outage is no loss, a long one always is.

use core::time::Duration;

use super::server::Server;
use super::world::{Dial, World, ms, terms};
use crate::leases::Notice;

/// Holds a lease, then an outage of this length begins after `phase` of a renewal interval.
fn lost(lease: Duration, phase: u32, outage: Duration, dial: Dial, seed: u64) -> bool {
    let mut world = World::seeded(Server::redis(), seed);
    world.latency = (lease / 2_000).min(ms(1));
    let id = world.acquire("a", terms(lease), crate::config::Wait::Forever);
    world.run(ms(10));
    assert!(world.holds(id));
    world.run(lease / 5 + lease / 5 * phase / 16);
    if dial == Dial::Hangs {
        // Silence: bytes vanish and dials hang.
        world.black_hole = true;
    } else {
        world.dial = dial;
        world.cut();
    }
    world.run(outage);
    (world.black_hole, world.dial) = (false, Dial::Works);
    world.run(lease * 2);
    world
        .notices
        .iter()
        .any(|(.., notice)| matches!(notice, Notice::Lost { .. }))
}

#[test]
fn s7_an_outage_of_a_third_of_the_lease_is_no_loss() {
    for lease in [ms(500), ms(5_000), ms(30_000)] {
        for phase in 0..=16 {
            for seed in 0..12 {
                for dial in [Dial::Hangs, Dial::Refused] {
                    let lost = lost(lease, phase, lease / 3, dial, seed);
                    assert!(!lost, "{lease:?} phase {phase} seed {seed} {dial:?}");
                }
            }
        }
    }
}

#[test]
fn s7_a_slow_dial_may_take_half_of_what_is_left() {
    for lease in [ms(500), ms(5_000), ms(30_000)] {
        for phase in 0..=16 {
            // Longer than a reply may take, shorter than the connect limit; begun at 1/5 it ends before 2/3.
            let slow = Dial::Slow((lease / 5).min(ms(4_000)));
            let lost = lost(lease, phase, lease * 2, slow, u64::from(phase));
            assert!(!lost, "{lease:?} phase {phase}");
        }
    }
}

#[test]
fn s7_an_outage_of_more_than_two_thirds_always_is_a_loss() {
    for lease in [ms(500), ms(5_000), ms(30_000)] {
        for phase in 0..=16 {
            for dial in [Dial::Hangs, Dial::Refused] {
                assert!(
                    lost(lease, phase, lease * 2 / 3 + ms(2), dial, 3),
                    "{lease:?} phase {phase} {dial:?}"
                );
            }
        }
    }
}

#[test]
fn s12_a_clock_that_falls_back_changes_nothing() {
    let mut world = World::new(Server::redis());
    let id = world.hold("a", terms(ms(3_000)));
    world.run(ms(1_000));
    let until = world.mux.leases().lease(id).unwrap().valid_until();
    let now = world.now;
    for back in [ms(1), ms(999), ms(100_000)] {
        world.mux.handle_timeout(now - back);
        let _ = world.mux.poll_output(now - back);
        world.mux.renew_now(now - back, id);
    }
    assert!(world.mux.leases().clock_regressions() >= 3);
    assert!(world.holds(id));
    world.run(ms(100));
    assert!(world.mux.leases().lease(id).unwrap().valid_until() >= until);
    world.run(ms(10_000));
    assert!(world.holds(id));
}

#[test]
fn s12_a_jump_forward_is_told_as_the_loss_it_is() {
    use crate::time::Tick;
    for jump in [Tick::from_micros(10_000_000_000_000), Tick::MAX] {
        let mut world = World::new(Server::redis());
        let id = world.hold("a", terms(ms(3_000)));
        world.now = jump;
        world.mux.handle_timeout(jump);
        assert!(!world.holds(id));
        let mut told = 0;
        while let crate::mux::Output::Lease(event) = world.mux.poll_output(jump) {
            assert!(matches!(event.notice, Notice::Lost { .. }));
            told += 1;
        }
        assert_eq!(told, 1);
    }
}
