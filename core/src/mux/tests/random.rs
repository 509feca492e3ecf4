//! Random bytes, times and calls; and drivers that forget what they should do.

use core::time::Duration;
use std::vec::Vec;

use proptest::prelude::*;

use super::server::Server;
use super::world::{Dial, Manner, World, ms, terms};
use crate::ask::{AskId, Question};
use crate::config::{LeaseConfig, Wait};
use crate::leases::{LeaseId, Notice, Options, Request};
use crate::mux::{Mux, MuxConfig, Output};
use crate::names::Names;
use crate::rng::Rng;
use crate::time::Tick;

const REPLIES: &[&[u8]] = &[
    b"%3\r\n+server\r\n+redis\r\n+version\r\n+8.6.3\r\n+proto\r\n:3\r\n",
    b"_\r\n",
    b"+OK\r\n",
    b"$-1\r\n",
    b"$3\r\nfoo\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-2\r\n",
    b"-ERR unknown command\r\n",
    b"-NOSCRIPT no\r\n",
    b"-READONLY no\r\n",
    b"-NOPERM no\r\n",
    b"-OOM no\r\n",
    b"-WRONGTYPE no\r\n",
    b">2\r\n+invalidate\r\n_\r\n",
    b"*2\r\n:1\r\n",
    b"*2\r\n$1\r\n7\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*2\r\n$1\r\n0\r\n*0\r\n",
    b"$37\r\nmaxmemory:1\r\nmaxmemory_policy:x-lru\r\n",
    b"HTTP/1.1 200\r\n",
];

/// Counts how a request and its hold were told to end.
fn check_told(told: &[(LeaseId, Notice)], id: LeaseId) {
    let of = told.iter().filter(|(other, _)| *other == id);
    let (mut asked, mut held) = (0, 0);
    for (_, notice) in of {
        match notice {
            Notice::Acquired { .. } => asked += 1,
            Notice::Held(_) | Notice::TimedOut(_) | Notice::Failed(_) => {
                assert_eq!(asked, 0);
                (asked, held) = (asked + 1, held + 1);
            }
            Notice::Lost { .. } | Notice::Released { .. } | Notice::Abandoned => held += 1,
            Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished => {
                assert_eq!((asked, held), (1, 0))
            }
        }
    }
    assert!(asked <= 1 && held <= 1 && held <= asked, "{told:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// No bytes, no times and no order of calls make it panic, and everything has one end.
    #[test]
    fn nothing_makes_it_panic(steps in prop::collection::vec((0u8..22, any::<u32>()), 0..200), check: bool, strict: bool) {
        let mut config = MuxConfig::new(Names::new("", "me").unwrap());
        (config.check, config.strict) = (check, strict);
        let mut mux = Mux::new(config, 1);
        let (mut asks, mut answered): (Vec<AskId>, Vec<AskId>) = (Vec::new(), Vec::new());
        let mut now = Tick::ZERO;
        let (mut ids, mut told): (Vec<LeaseId>, Vec<(LeaseId, Notice)>) = (Vec::new(), Vec::new());
        for (kind, arg) in steps {
            let id = ids.get(arg as usize % ids.len().max(1)).copied();
            match kind {
                0 | 1 => {
                    let config = LeaseConfig::new(ms(20 + u64::from(arg % 7) * 500));
                    let terms = if arg % 5 == 0 { config.no_renew() } else { config }.build().unwrap();
                    let wait = [Wait::Now, Wait::Forever, Wait::For(ms(u64::from(arg % 300)))][(arg % 3) as usize];
                    let name = [b'a' + (arg % 4) as u8];
                    let request = Request { name: &name, terms, wait, options: Options::default(), secret: [1; 16], since_ms: 0 };
                    ids.push(mux.acquire(now, &request).unwrap());
                }
                2 => if let Some(id) = id { mux.release(now, id) },
                3 => if let Some(id) = id { mux.drop_guard(now, id) },
                4 => if let Some(id) = id { mux.renew_now(now, id) },
                5 if arg % 4 == 0 => if let Some(id) = id { mux.abandon(now, id) },
                6 if arg % 30 == 0 => mux.close(now),
                7 => mux.handle_connected(now),
                8 if arg % 4 == 0 => mux.handle_disconnected(now),
                9 if arg % 3 == 0 => mux.handle_dial_failed(now, ""),
                10 | 11 => {
                    let bytes = REPLIES[arg as usize % REPLIES.len()];
                    let n = if arg % 50 == 0 { bytes.len() / 2 } else { bytes.len() };
                    mux.recv_space()[..n].copy_from_slice(&bytes[..n]);
                    mux.received(now, n);
                }
                12 if arg % 10 == 0 => {
                    let n = mux.recv_space().len();
                    mux.received(now, (arg as usize / 10) % (2 * n));
                }
                13 => now = now + Duration::from_micros(u64::from(arg % 400_000)),
                14 if arg % 20 == 0 => now = now + Duration::from_micros(u64::from(arg) * 1_000),
                15 if arg % 20 == 0 => now = now - Duration::from_micros(u64::from(arg % 1_000_000)),
                16 if arg % 300 == 0 => now = Tick::MAX,
                17 => mux.handle_timeout(now),
                18 => mux.transmitted(now, arg as usize % 100),
                19 => {
                    let name = [b'a' + (arg % 4) as u8];
                    let question = match arg % 4 {
                        3 => Question::Examine,
                        0 => Question::Inspect { name: &name },
                        1 => Question::Remove { name: &name },
                        _ => Question::List { start: &name[1..], limit: arg as usize % 5 },
                    };
                    asks.push(mux.ask(now, &question).unwrap());
                }
                20 if arg % 4 == 0 => if let Some(id) = asks.get(arg as usize / 4 % asks.len().max(1)) {
                    mux.forget(*id);
                    answered.push(*id);
                },
                _ => for _ in 0..100 {
                    match mux.poll_output(now) {
                        Output::Lease(event) => told.push((event.id, event.notice)),
                        Output::Answer(answer) => {
                            assert!(!answered.contains(&answer.id));
                            answered.push(answer.id);
                        }
                        Output::Transmit(bytes) => {
                            let n = bytes.len().min(1 + arg as usize % 200);
                            mux.transmitted(now, n);
                        }
                        Output::Idle(_) => break,
                        Output::Connect if arg % 2 == 0 => mux.handle_connected(now),
                        _ => {}
                    }
                },
            }
        }
        for id in ids {
            check_told(&told, id);
        }
    }
}

/// One life of a few locks on a network with troubles; gives what was told in the end.
fn life(seed: u64, manner: Manner) -> (Vec<(Tick, LeaseId, Notice)>, World) {
    let mut world = World::seeded(Server::redis(), seed);
    world.manner = manner;
    let mut plan = Rng::new(seed * 31);
    let mut ids = Vec::new();
    for step in 0..60 {
        let name = ["a", "b", "c"][(plan.next_u64() % 3) as usize];
        match plan.next_u64() % 12 {
            0..=4 => {
                let wait =
                    [Wait::Now, Wait::Forever, Wait::For(ms(400))][(plan.next_u64() % 3) as usize];
                ids.push(world.acquire(name, terms(ms(1_500)), wait));
            }
            5 | 6 if !ids.is_empty() => {
                let id = ids[plan.next_u64() as usize % ids.len()];
                world.release(id);
            }
            7 if !ids.is_empty() => {
                let id = ids[plan.next_u64() as usize % ids.len()];
                world.drop_guard(id);
            }
            8 => world.cut(),
            9 => world.mute = !world.mute,
            10 => {
                world.dial = if world.dial == Dial::Works {
                    Dial::Refused
                } else {
                    Dial::Works
                }
            }
            _ if manner == Manner::Forgetful => world.server.keys.clear(),
            _ => {}
        }
        world.run(ms(10 + plan.next_u64() % 250));
        // On one server that forgets nothing no name is held twice, whatever happened.
        for name in ["lock:a", "lock:b", "lock:c"] {
            let held = ids
                .iter()
                .filter(|id| world.holds(**id) && world.mux.leases().key(**id) == name.as_bytes());
            let most = if manner == Manner::Forgetful { 2 } else { 1 };
            assert!(held.count() <= most, "seed {seed} step {step}");
        }
    }
    (world.mute, world.dial) = (false, Dial::Works);
    world.run(ms(4_000));
    for id in &ids {
        world.mux.drop_guard(world.now, *id);
    }
    world.pump();
    world.run(ms(8_000));
    let told = world.notices.clone();
    let pairs: Vec<_> = told
        .iter()
        .map(|(_, id, notice)| (*id, notice.clone()))
        .collect();
    for id in ids {
        check_told(&pairs, id);
    }
    assert!(
        world.mux.leases().is_empty(),
        "seed {seed}: {:?}",
        world.mux
    );
    assert!(
        world
            .server
            .keys
            .values()
            .all(|(_, until)| until.is_none_or(|until| until <= world.now.as_micros())),
        "seed {seed}"
    );
    (told, world)
}

#[test]
fn spurious_timeouts_change_nothing() {
    for seed in 1..30 {
        let (told, world) = life(seed, Manner::Exact);
        // The same life, with calls that nobody asked for in between: to the byte and the microsecond.
        let (told_again, world_again) = life(seed, Manner::Fussy);
        assert_eq!(told, told_again, "seed {seed}");
        assert_eq!(world.server.log, world_again.server.log, "seed {seed}");
    }
}

#[test]
fn forgotten_polls_only_delay() {
    // All that `life` checks holds for a driver that forgets every fourth turn.
    for seed in 1..80 {
        life(seed, Manner::Forgetful);
    }
}
