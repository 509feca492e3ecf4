//! The sequences that broke the first draft, each on the whole client. The numbers are those of the review that found them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Attempt, Cause, Config, Error, Locks, Reason, Request};
use tenure_core::error::Failure;
use tenure_sim::checker::{Ask, Assumption, Assumptions, Checker, Guard, Scope, Want};
use tenure_sim::{Client, Dialect, Link, Mood, ServerHandle, Sim, World};

const DIALECTS: [Dialect; 3] = [Dialect::Redis8, Dialect::Valkey9, Dialect::Redis7];

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One server, and a checker that assumes all but that dead connections are silent and that nobody else writes.
#[derive(Clone)]
struct Scene {
    world: World,
    server: ServerHandle,
    checker: Checker,
}

/// A machine with a client of the library.
#[derive(Clone)]
struct Process {
    machine: Client,
    locks: Locks,
    scene: Scene,
}

/// Plays a scene on every dialect, watched closely; then nothing may be left.
fn play<F: Future<Output = ()> + Send + 'static>(scene: impl Fn(Scene) -> F) {
    for (seed, dialect) in (1..).zip(DIALECTS) {
        let mut sim = Sim::new(seed);
        sim.record();
        let world = sim.world();
        let server = world.server("db", dialect);
        let assumed = Assumptions::ALL
            .without(Assumption::A6)
            .without(Assumption::A7);
        let checker = Checker::new(&world, &server, assumed);
        let (watching, clock) = (checker.clone(), world.clone());
        let here = Scene {
            world,
            server,
            checker: checker.clone(),
        };
        let playing = scene(here.clone());
        sim.block_on(async move {
            let alive = Arc::new(());
            let ends = Arc::downgrade(&alive);
            here.world.spawn(async move {
                while ends.upgrade().is_some() {
                    clock.sleep(clock.up_to(ms(5))).await;
                    watching.probe();
                }
            });
            playing.await;
            here.world.sleep(Duration::from_secs(31)).await;
            drop(alive);
            here.checker.finish();
            assert!(here.server.keys().is_empty(), "{:?}", here.server.keys());
        });
        let violations = checker.violations();
        assert!(
            violations.is_empty(),
            "{dialect:?}: {violations:#?}\n{}",
            sim.trace()
        );
    }
}

impl Scene {
    /// A client that gives a reply 100 ms.
    async fn process(&self) -> Process {
        let machine = self.world.client();
        machine.link(&self.server, |link| link.latency = (ms(1), ms(1)));
        let config = Config::from_url("redis://db")
            .unwrap()
            .reply_limit(ms(100))
            .label(format!("c{}", machine.id()))
            .observe(self.checker.observer(&machine));
        let locks = machine.connect_config(&config).await.unwrap();
        Process {
            machine,
            locks,
            scene: self.clone(),
        }
    }

    /// The commands that were executed and have this word, with the answers.
    fn executed(&self, word: &str) -> Vec<(Duration, Vec<String>, String)> {
        let start = tenure_client::Tick::ZERO;
        let text = |words: &[Vec<u8>]| -> Vec<String> {
            let words = words.iter().map(|word| String::from_utf8_lossy(word));
            words.map(|word| word.into_owned()).collect()
        };
        let all = self.server.executed().into_iter();
        all.map(|one| {
            (
                one.at.saturating_since(start),
                text(&one.command),
                one.answer,
            )
        })
        .filter(|(_, words, _)| words.iter().any(|one| one.contains(word)))
        .collect()
    }
}

impl Process {
    fn ask(&self, want: Want) -> (Ask, Request) {
        let ask = self.scene.checker.ask(&self.machine, "n", want);
        let request = self.locks.lock("n").options(ask.options());
        ask.begun(false);
        (ask, request)
    }

    async fn acquire(&self, lease: Duration) -> Guard {
        let (ask, request) = self.ask(Want::wait(lease, Duration::from_secs(20)));
        let lock = request.acquire().await.unwrap();
        ask.acquired(lock)
    }

    /// One try: the guard, or nothing.
    async fn try_acquire(&self, lease: Duration) -> Option<Guard> {
        let (ask, request) = self.ask(Want::a_try(lease));
        match request.try_acquire().await.unwrap() {
            Attempt::Acquired(lock) => Some(ask.acquired(lock)),
            Attempt::Held(_) => {
                ask.refused();
                None
            }
        }
    }

    fn link(&self, change: impl FnOnce(&mut Link)) {
        self.machine.link(&self.scene.server, change);
    }

    /// Does something while the answer to what it has just sent gets lost, and the connection with it.
    fn lose_the_reply(&self) {
        let (process, world) = (self.clone(), self.scene.world.clone());
        self.scene.world.spawn(async move {
            // The command is under way for 1 ms.
            world.sleep(Duration::from_micros(500)).await;
            process.link(|link| link.silent = true);
            world.sleep(ms(150)).await;
            process.link(|link| link.silent = false);
        });
    }
}

#[test]
fn c1_ones_own_leftover_counts_from_its_take_over() {
    play(|scene| async move {
        let (a, b) = (scene.process().await, scene.process().await);
        a.lose_the_reply();
        // The checker compares the validity with the hand-outs, and with the key.
        let guard = a.acquire(ms(1_000)).await;
        // Both values in one command: compared with the one, written the other.
        let is_take_over = |words: &[String]| {
            let value = |attempt: &str| words.iter().any(|word| word.ends_with(attempt));
            value(".1") && value(".3")
        };
        let commands = scene.executed(".1");
        assert!(
            commands.iter().any(|(_, words, _)| is_take_over(words)),
            "{commands:?}"
        );
        assert!(guard.remaining() > ms(880), "{:?}", guard.remaining());
        assert!(b.try_acquire(ms(1_000)).await.is_none());
        scene.world.sleep(ms(3_000)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
    });
}

#[test]
fn c2_a_late_clean_up_deletes_no_live_lock() {
    play(|scene| async move {
        let a = scene.process().await;
        let guard = a.acquire(ms(1_000)).await;
        a.link(|link| {
            link.silent = true;
            link.zombies = Some(ms(400));
        });
        drop(guard);
        // Reply overdue at 100 ms: the clean-up arrives at 500 ms; a second one goes out before.
        scene.world.sleep(ms(150)).await;
        a.link(|link| link.silent = false);
        let guard = a.acquire(ms(1_000)).await;
        scene.world.sleep(ms(2_000)).await;
        assert!(scene.world.counts().zombies > 0);
        assert!(guard.is_held());
        assert_eq!(scene.server.keys().len(), 1);
        guard.release().await.unwrap();
    });
}

#[test]
fn c3_a_lost_lock_excludes_while_its_work_stops() {
    play(|scene| async move {
        let (a, b) = (scene.process().await, scene.process().await);
        let guard = a.acquire(ms(3_000)).await;
        a.link(|link| link.silent = true);
        let lost = guard.lost().await;
        assert!(matches!(lost.cause, Cause::Expired { .. }));
        assert!(guard.stop_window(&lost) > ms(600));
        a.link(|link| link.silent = false);
        // The network is well, the server within reach, and the work not done yet.
        scene.world.sleep(ms(300)).await;
        assert!(b.try_acquire(ms(3_000)).await.is_none());
        drop(guard);
        scene.world.sleep(ms(50)).await;
        let guard = b
            .try_acquire(ms(3_000))
            .await
            .expect("cleared once the guard is gone");
        guard.release().await.unwrap();
    });
}

#[test]
fn c4_a_late_acquire_hides_no_loss() {
    play(|scene| async move {
        let (a, b) = (scene.process().await, scene.process().await);
        a.link(|link| {
            link.silent = true;
            link.zombies = Some(ms(300));
        });
        let (world, link) = (scene.world.clone(), a.clone());
        scene.world.spawn(async move {
            world.sleep(ms(120)).await;
            link.link(|link| link.silent = false);
        });
        // The first attempt is under way until 400 ms; the second wins.
        let guard = a.acquire(ms(3_000)).await;
        assert!(scene.executed(".1").is_empty());
        scene.checker.broke(Assumption::A6, Scope::Name("n"));
        scene.server.delete("lock:n");
        b.try_acquire(ms(3_000))
            .await
            .expect("free")
            .release()
            .await
            .unwrap();
        scene.world.sleep(ms(300)).await;
        assert!(
            scene.server.keys()[0].1.ends_with(".1"),
            "the first attempt arrived"
        );
        let lost = guard.lost().await;
        assert!(
            matches!(lost.cause, Cause::Replaced | Cause::Gone),
            "{lost}"
        );
        drop(guard);
        scene.world.sleep(ms(50)).await;
        assert!(scene.server.keys().is_empty(), "every attempt is cleared");
    });
}

#[test]
fn s2_what_has_arrived_is_taken_in_before_a_hold_is_given_up() {
    play(|scene| async move {
        let a = scene.process().await;
        let guard = a.acquire(ms(3_000)).await;
        let before = scene.server.executed_count();
        while scene.server.executed_count() == before {
            scene.world.sleep(Duration::from_micros(100)).await;
        }
        // The renewal near 600 ms is executed; its answer comes while the process stands still. It wakes up
        // after the give-up at 2 s, and before the end of validity at 2.7 s.
        a.machine.pause();
        scene.world.sleep(ms(1_700)).await;
        a.machine.resume();
        scene.world.sleep(ms(5)).await;
        assert!(guard.is_held());
        scene.world.sleep(ms(5_000)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
    });
}

#[test]
fn s5d_what_a_dead_connection_had_not_delivered_is_never_delivered() {
    play(|scene| async move {
        let a = scene.process().await;
        a.link(|link| link.silent = true);
        let (ask, request) = a.ask(Want::wait(ms(1_000), ms(300)));
        let error = request.acquire().await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        ask.failed(&error);
        // The attempt was written; its connection is dead since 100 ms. Now the network delivers what it still has.
        a.link(|link| link.silent = false);
        scene.world.sleep(ms(500)).await;
        let attempts = scene.executed("NX");
        assert!(attempts.is_empty(), "{attempts:?}");
    });
}

#[test]
fn s5c_a_late_renewal_shortens_nothing() {
    play(|scene| async move {
        let a = scene.process().await;
        let guard = a.acquire(ms(2_000)).await;
        let value = scene.server.keys()[0].1.clone();
        scene.world.sleep(ms(200)).await;
        a.link(|link| {
            link.silent = true;
            link.zombies = Some(ms(700));
        });
        // A renewal is stuck, overdue, and executed after those of the next connection.
        scene.world.sleep(ms(400)).await;
        a.link(|link| link.silent = false);
        scene.world.sleep(ms(3_000)).await;
        assert!(scene.world.counts().zombies > 0);
        assert!(guard.is_held());
        guard.release().await.unwrap();
        let writes = scene.executed(&value);
        let lengths = writes
            .iter()
            .filter(|(_, words, _)| words.iter().any(|word| word == "2000"));
        assert!(lengths.count() > 5);
    });
}

#[test]
fn m3_a_command_that_began_to_leave_is_finished_or_its_connection_aborted() {
    play(|scene| async move {
        let a = scene.process().await;
        for taken in [1, 7, 40, 90] {
            a.link(|link| {
                link.window = taken;
                link.silent = true;
            });
            let (ask, request) = a.ask(Want::wait(ms(1_000 + taken as u64), ms(500)));
            let mut acquiring = Box::pin(request.acquire());
            let world = scene.world.clone();
            let pending = is_pending_after_one_poll(&mut acquiring).await;
            assert!(pending);
            world.sleep(ms(10)).await;
            drop(acquiring);
            drop(ask);
            a.link(|link| *link = Link::default());
            world.sleep(ms(400)).await;
            assert!(scene.server.keys().is_empty(), "{:?}", scene.server.keys());
        }
    });
}

/// True when one poll does not finish it.
async fn is_pending_after_one_poll<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| {
        let poll = std::pin::Pin::new(&mut *future).poll(cx);
        std::task::Poll::Ready(poll.is_pending())
    })
    .await
}

#[test]
fn m4_a_release_goes_on_after_the_validity_while_the_key_can_be_there() {
    play(|scene| async move {
        let a = scene.process().await;
        let guard = a.acquire(ms(1_000)).await;
        let start = scene.world.now();
        let until = |at: u64| {
            let (world, at) = (scene.world.clone(), start + ms(at));
            async move { world.sleep(at.saturating_sub(world.now())).await }
        };
        until(100).await;
        // The renewals near 200 ms are executed, and their answers lost: the key outlives what the client believes.
        a.link(|link| link.deaf = true);
        guard.lost().await;
        drop(guard);
        until(1_050).await;
        assert_eq!(
            scene.server.keys().len(),
            1,
            "kept by the unanswered renewal"
        );
        a.link(|link| *link = Link::default());
        until(1_120).await;
        assert!(scene.server.keys().is_empty(), "{:?}", scene.server.keys());
    });
}

#[test]
fn m6_a_grant_with_little_left_is_renewed_first() {
    play(|scene| async move {
        let machine = scene.world.client();
        let config = Config::from_url("redis://db")
            .unwrap()
            .observe(scene.checker.observer(&machine));
        let locks = machine.connect_config(&config).await.unwrap();
        let a = Process {
            machine,
            locks,
            scene: scene.clone(),
        };
        scene.server.freeze();
        let (server, world) = (scene.server.clone(), scene.world.clone());
        scene.world.spawn(async move {
            world.sleep(ms(600)).await;
            server.thaw();
        });
        let guard = a.acquire(ms(1_000)).await;
        assert!(guard.remaining() > ms(800), "{:?}", guard.remaining());
        guard.release().await.unwrap();
    });
}

#[test]
fn m6_replies_slower_than_the_lease_get_no_lock() {
    play(|scene| async move {
        let machine = scene.world.client();
        let config = Config::from_url("redis://db")
            .unwrap()
            .observe(scene.checker.observer(&machine));
        let locks = machine.connect_config(&config).await.unwrap();
        let a = Process {
            machine,
            locks,
            scene: scene.clone(),
        };
        a.link(|link| link.latency = (ms(400), ms(400)));
        let (ask, request) = a.ask(Want::a_try(ms(1_000)));
        let error = request.try_acquire().await.unwrap_err();
        let slow = |reason: &Reason| {
            matches!(
                reason,
                Reason::Failure {
                    failure: Failure::SlowReplies,
                    ..
                }
            )
        };
        assert!(
            matches!(&error, Error::Unavailable(reason) if slow(reason)),
            "{error:?}"
        );
        ask.failed(&error);
        scene.world.sleep(ms(900)).await;
        assert!(scene.server.keys().is_empty());
    });
}

#[test]
fn m7_a_full_server_loses_no_lock() {
    play(|scene| async move {
        let a = scene.process().await;
        let guard = a.acquire(ms(1_000)).await;
        scene.server.mood(Mood::OutOfMemory);
        scene.world.sleep(ms(5_000)).await;
        assert!(guard.is_held());
        guard.release().await.unwrap();
        assert!(scene.server.keys().is_empty());
    });
}

#[test]
fn m11_every_hold_is_renewed_at_once_after_a_reconnect() {
    play(|scene| async move {
        let a = scene.process().await;
        let mut guards = Vec::new();
        for name in ["x", "y", "z"] {
            let want = Want::wait(Duration::from_secs(30), ms(1_000));
            let ask = scene.checker.ask(&a.machine, name, want);
            ask.begun(false);
            let lock = a.locks.lock(name).options(ask.options()).acquire().await;
            guards.push(ask.acquired(lock.unwrap()));
        }
        // A reset, and a server that is a replica for a moment.
        for replica in [false, true] {
            let before = scene.world.now();
            if replica {
                scene.server.mood(Mood::ReadOnly);
                let _ = guards[0].renew_now().await;
                scene.server.mood(Mood::Well);
            } else {
                a.machine.cut(&scene.server);
            }
            scene.world.sleep(ms(1_500)).await;
            for name in ["lock:x", "lock:y", "lock:z"] {
                let commands = scene.executed(name);
                let renewed = commands
                    .iter()
                    .any(|(at, _, answer)| *at > before && !answer.starts_with("Error"));
                assert!(renewed, "{name} {replica}: {commands:?}");
            }
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
    });
}

#[test]
fn s2_an_answer_that_lay_in_a_buffer_revives_nothing() {
    play(|scene| async move {
        let a = scene.process().await;
        let guard = a.acquire(ms(1_000)).await;
        // From 180 ms on a renewal is due; its answer takes a while, and finds the process asleep.
        a.link(|link| link.latency = (ms(30), ms(30)));
        let renewed = |scene: &Scene| scene.executed("1000").len() > 1;
        while !renewed(&scene) {
            scene.world.sleep(ms(1)).await;
        }
        a.machine.pause();
        while guard.is_held() {
            scene.world.sleep(ms(5)).await;
        }
        a.machine.resume();
        let lost = guard.lost().await;
        assert!(
            matches!(lost.cause, Cause::Expired { late_by } if late_by > ms(200)),
            "{lost}"
        );
        assert!(!guard.is_held());
        a.link(|link| *link = Link::default());
        assert!(guard.release().await.is_err());
    });
}

#[test]
fn s6_a_fast_clock_forgets_no_clean_up_while_the_key_is_there() {
    for dialect in DIALECTS {
        let mut sim = Sim::new(1);
        let world = sim.world();
        let server = world.server("db", dialect);
        // Within the margin of a tenth.
        let client = world.client_with_drift(80_000);
        sim.block_on(async move {
            let config = Config::from_url("redis://db").unwrap();
            let config = config.reconnect_limit(ms(10));
            let locks = client.connect_config(&config).await.unwrap();
            let lock = locks.lock("n").lease(ms(2_000)).acquire().await.unwrap();
            // The last renewal is executed; its connection is cut at once, and nothing can be reached.
            lock.renew_now().await.unwrap();
            client.link(&server, |link| link.refuses = true);
            client.cut(&server);
            drop(lock);
            // One lease by the client's clock is over, by the server's it is not.
            world.sleep(ms(1_900)).await;
            assert_eq!(server.keys().len(), 1);
            client.link(&server, |link| link.refuses = false);
            world.sleep(ms(70)).await;
            let cleared = server.executed().iter().any(|one| {
                let last = one.command.last();
                one.answer == "1" && last.is_some_and(|word| word.starts_with(b"tn1:"))
            });
            assert!(cleared, "{dialect:?}: {:?}", server.keys());
            drop(locks);
        });
    }
}
