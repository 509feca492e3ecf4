//! First come, first served, on the whole client in the simulated world.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tenure_client::{Attempt, Config, Error, LockOptions, Locks};
use tenure_sim::checker::{Ask, Assumptions, Checker, Guard, Want};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, World};

const DIALECTS: [Dialect; 3] = [Dialect::Redis8, Dialect::Valkey9, Dialect::Redis7];

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Nothing expires, and nobody is taken for dead, while a scene lasts.
const LONG: Duration = Duration::from_secs(600);
/// What a command takes, there and back, and the driver's turn.
const TRIP: Duration = ms(3);

#[derive(Clone)]
struct Scene {
    world: World,
    server: ServerHandle,
    checker: Checker,
    /// So that no two requests of a scene ask for the same lease.
    asked: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Process {
    scene: Scene,
    machine: Client,
    locks: Locks,
}

fn play<F: Future<Output = ()> + Send + 'static>(seeds: u64, scene: impl Fn(Scene) -> F) {
    for dialect in DIALECTS {
        for seed in 1..=seeds {
            let mut sim = Sim::new(seed);
            let world = sim.world();
            let server = world.server("db", dialect);
            let checker = Checker::new(&world, &server, Assumptions::ALL);
            let (asked, watched) = (Arc::default(), checker.clone());
            let playing = scene(Scene {
                world,
                server,
                checker: checker.clone(),
                asked,
            });
            sim.block_on(async move {
                playing.await;
                watched.finish();
            });
            let violations = checker.violations();
            assert!(violations.is_empty(), "{dialect:?} {seed}: {violations:#?}");
        }
    }
}

impl Scene {
    /// A client that asks for nothing by itself but to keep its place.
    async fn process(&self) -> Process {
        let machine = self.world.client();
        machine.link(&self.server, |link| link.latency = (ms(1), ms(1)));
        let config = Config::from_url("redis://db").unwrap();
        let config = config
            .poll_limit(Duration::MAX)
            .label(format!("c{}", machine.id()))
            .observe(self.checker.observer(&machine));
        let locks = machine.connect_config(&config).await.unwrap();
        Process {
            scene: self.clone(),
            machine,
            locks,
        }
    }

    async fn processes<const N: usize>(&self) -> [Process; N] {
        let mut made = Vec::new();
        for _ in 0..N {
            made.push(self.process().await);
        }
        made.try_into().ok().unwrap()
    }

    /// How many keys whose name ends so there are.
    fn keys(&self, end: &str) -> usize {
        let keys = self.server.keys();
        keys.iter().filter(|(key, ..)| key.ends_with(end)).count()
    }
}

impl Process {
    fn want(&self, waiter_lease: Duration) -> Want {
        let asked = self.scene.asked.fetch_add(1, Ordering::Relaxed);
        Want {
            fair: Some(waiter_lease),
            ..Want::wait(LONG + ms(asked), LONG)
        }
    }

    fn ask(&self, want: Want) -> (Ask, LockOptions) {
        let ask = self.scene.checker.ask(&self.machine, "n", want);
        let options = ask.options();
        (ask, options)
    }

    /// Waits for the name in its own turn.
    fn acquire(&self, waiter_lease: Duration) -> impl Future<Output = Guard> + Send + 'static {
        let (ask, options) = self.ask(self.want(waiter_lease));
        let acquiring = self.locks.lock("n").options(options).acquire();
        async move {
            ask.begun(false);
            ask.acquired(acquiring.await.unwrap())
        }
    }

    async fn tries(&self, fair: bool) -> bool {
        let want = self.want(LONG);
        let want = Want {
            wait: tenure_client::Wait::Now,
            fair: want.fair.filter(|_| fair),
            ..want
        };
        let (ask, options) = self.ask(want);
        ask.begun(false);
        match self.locks.lock("n").options(options).try_acquire().await {
            Ok(Attempt::Acquired(lock)) => {
                ask.acquired(lock).release().await.unwrap();
                true
            }
            Ok(Attempt::Held(_)) => {
                ask.refused();
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Begins to wait; gives when it had the name, and lets it go after a while.
    fn wait(&self, waiter_lease: Duration, keep: Duration) -> Arc<AtomicU64> {
        let (acquiring, world) = (self.acquire(waiter_lease), self.scene.world.clone());
        let had = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&had);
        self.machine.spawn(async move {
            let guard = acquiring.await;
            told.store(world.now().as_micros() as u64, Ordering::Relaxed);
            world.sleep(keep).await;
            drop(guard);
        });
        had
    }
}

/// When it had the name; it must have had it.
fn at(had: &AtomicU64) -> Duration {
    let at = had.load(Ordering::Relaxed);
    assert!(at > 0, "it never had it");
    Duration::from_micros(at)
}

#[test]
fn s19_the_name_goes_from_hand_to_hand_in_the_order_of_coming() {
    play(5, |scene| async move {
        let processes: [Process; 3] = scene.processes().await;
        let held = processes[0].acquire(LONG).await;
        let mut came = Vec::new();
        // Of every process several, that of the holder too.
        for turn in [1, 0, 2, 1, 1, 0, 2, 0, 1] {
            came.push(processes[turn].wait(LONG, ms(5)));
            scene.world.sleep(ms(20)).await;
        }
        let began = scene.world.now();
        held.release().await.unwrap();
        scene.world.sleep(Duration::from_secs(1)).await;
        let mut last = began;
        for had in came {
            let had = at(&had);
            assert!(
                had > last && had < last + ms(5) + 2 * TRIP,
                "{had:?} {last:?}"
            );
            last = had;
        }
        assert_eq!(
            scene.keys(":queue") + scene.keys(":alive") + scene.keys("lock:n"),
            0
        );
    });
}

#[test]
fn s19_who_waits_keeps_its_place_by_word_in_time() {
    play(3, |scene| async move {
        let processes: [Process; 4] = scene.processes().await;
        let held = processes[0].acquire(ms(300)).await;
        let first = processes[1].wait(ms(300), ms(5));
        scene.world.sleep(Duration::from_secs(5)).await;
        assert_eq!(scene.keys(":queue"), 1);
        let second = processes[2].wait(ms(300), ms(5));
        scene.world.sleep(Duration::from_secs(5)).await;
        // Even where the word of one gets lost, and the next.
        held.release().await.unwrap();
        scene.world.sleep(ms(500)).await;
        assert!(at(&first) < at(&second));
    });
}

#[test]
fn s19_a_try_gets_nothing_that_others_wait_for() {
    play(5, |scene| async move {
        let processes: [Process; 3] = scene.processes().await;
        let held = processes[0].acquire(LONG).await;
        // It is up, and cannot say so: the name is passed on to it, and waits.
        let waiting = processes[1].wait(LONG, ms(5));
        scene.world.sleep(ms(20)).await;
        processes[1].machine.pause();
        held.release().await.unwrap();
        // It is not free in between, not even for who does not care.
        for fair in [false, true, false] {
            assert!(!processes[2].tries(fair).await);
        }
        processes[1].machine.resume();
        scene.world.sleep(ms(50)).await;
        assert!(at(&waiting) > Duration::ZERO);
        assert!(processes[2].tries(true).await);
    });
}

/// The command and the read behind it come apart, and in between the name is given back: the word of it is never missed.
#[test]
fn s19_what_is_passed_on_while_the_server_begins_to_tell_is_taken() {
    for room in (1_900..2_500).step_by(8) {
        play(1, move |scene| async move {
            let processes: [Process; 2] = scene.processes().await;
            let held = processes[0].acquire(LONG).await;
            // What does not fit goes out when the rest has arrived.
            let link = |link: &mut tenure_sim::Link| link.window = room;
            processes[1].machine.link(&scene.server, link);
            let waiting = processes[1].wait(LONG, ms(5));
            scene.world.sleep(Duration::from_micros(500)).await;
            held.release().await.unwrap();
            scene.world.sleep(ms(50)).await;
            assert!(at(&waiting) > Duration::ZERO);
        });
    }
}

#[test]
fn s19_who_leaves_is_not_waited_for() {
    play(5, |scene| async move {
        let processes: [Process; 3] = scene.processes().await;
        let held = processes[0].acquire(LONG).await;
        let mut leaving = Box::pin(processes[1].acquire(LONG));
        let mut sleep = Box::pin(scene.world.sleep(ms(20)));
        std::future::poll_fn(|cx| {
            assert!(leaving.as_mut().poll(cx).is_pending());
            sleep.as_mut().poll(cx)
        })
        .await;
        let second = processes[2].wait(LONG, ms(5));
        scene.world.sleep(ms(20)).await;
        drop(leaving);
        scene.world.sleep(ms(20)).await;
        let released = scene.world.now();
        held.release().await.unwrap();
        scene.world.sleep(ms(50)).await;
        assert!(at(&second) < released + 2 * TRIP);
        assert_eq!(scene.keys(":queue") + scene.keys(":alive"), 0);
    });
}

#[test]
fn s19_the_dead_delay_by_twice_their_lease_at_most() {
    play(5, |scene| async move {
        let processes: [Process; 6] = scene.processes().await;
        let held = processes[0].acquire(ms(500)).await;
        for process in &processes[1..5] {
            process.wait(ms(500), ms(5));
            scene.world.sleep(ms(20)).await;
        }
        let last = processes[5].wait(ms(500), ms(5));
        scene.world.sleep(ms(700)).await;
        // All of them die at once, just before the name comes free: one is passed it, the others are passed over.
        processes[1..5].iter().for_each(|one| one.machine.kill());
        let released = scene.world.now();
        held.release().await.unwrap();
        scene.world.sleep(Duration::from_secs(3)).await;
        let waited = at(&last) - released;
        assert!(waited <= ms(1_000) + 2 * TRIP, "{waited:?}");
        assert!(waited >= ms(400), "{waited:?}");
    });
}

/// A thousand turns while processes die, pause, lose their connections, and leave: the checker finds everybody who is overtaken. And
/// nobody waits longer than those before it take.
#[test]
fn s19_nobody_is_overtaken_in_a_thousand_turns() {
    play(2, |scene| async move {
        const KEEP: Duration = ms(4);
        const PLACE: Duration = ms(400);
        let turns = Arc::new(AtomicU64::new(0));
        for _ in 0..8 {
            let (scene, turns) = (scene.clone(), Arc::clone(&turns));
            scene.clone().world.spawn(async move {
                while turns.load(Ordering::Relaxed) < 1_000 {
                    let process = scene.process().await;
                    let lives = ms(200) + scene.world.up_to(Duration::from_secs(2));
                    for _ in 0..3 {
                        process.clone().contends(KEEP, PLACE, &turns);
                    }
                    scene.world.sleep(lives).await;
                    match scene.world.below(4) {
                        0 => process.machine.kill(),
                        1 => {
                            process.machine.pause();
                            scene.world.sleep(scene.world.up_to(PLACE * 2)).await;
                            process.machine.resume();
                        }
                        2 => process.machine.cut(&scene.server),
                        _ => {}
                    }
                    scene.world.sleep(ms(100)).await;
                    process.machine.kill();
                }
            });
        }
        while turns.load(Ordering::Relaxed) < 1_000 {
            let before = turns.load(Ordering::Relaxed);
            // A dead holder frees the name by its lease, dead waiters by theirs.
            scene.world.sleep(Duration::from_secs(10)).await;
            assert!(
                turns.load(Ordering::Relaxed) > before,
                "nobody gets it any more"
            );
        }
        let (in_turn, overtakings) = scene.checker.turns_and_overtakings();
        assert!(
            in_turn >= 1_000 && overtakings == 0,
            "{in_turn} {overtakings}"
        );
        scene.world.sleep(Duration::from_secs(20)).await;
    });
}

impl Process {
    /// Asks again and again, until its process dies; now and then it does not wait to the end.
    fn contends(self, keep: Duration, place: Duration, turns: &Arc<AtomicU64>) {
        let turns = Arc::clone(turns);
        self.machine.clone().spawn(async move {
            loop {
                let world = &self.scene.world;
                let asked = self.scene.asked.fetch_add(1, Ordering::Relaxed);
                let want = Want {
                    fair: Some(place),
                    ..Want::wait(ms(2_000 + asked), Duration::from_secs(60))
                };
                let (ask, options) = self.ask(want);
                let mut acquiring = Box::pin(self.locks.lock("n").options(options).acquire());
                ask.begun(false);
                let patience = match world.chance(100) {
                    true => world.up_to(ms(100)),
                    false => LONG,
                };
                let mut sleep = Box::pin(world.sleep(patience));
                let answer = std::future::poll_fn(|cx| {
                    if let std::task::Poll::Ready(answer) = acquiring.as_mut().poll(cx) {
                        return std::task::Poll::Ready(Some(answer));
                    }
                    sleep.as_mut().poll(cx).map(|()| None)
                })
                .await;
                drop(acquiring);
                match answer {
                    None => drop(ask),
                    Some(Err(error)) => ask.failed(&error),
                    Some(Ok(lock)) => {
                        let guard = ask.acquired(lock);
                        turns.fetch_add(1, Ordering::Relaxed);
                        world.sleep(world.up_to(keep)).await;
                        let _ = guard.release().await;
                    }
                }
                world.sleep(world.up_to(ms(10))).await;
            }
        });
    }
}

#[test]
fn s19_who_would_be_one_too_many_is_turned_away_and_leaves_no_trace() {
    play(3, |scene| async move {
        let processes: [Process; 4] = scene.processes().await;
        let held = processes[0].acquire(LONG).await;
        let one = |process: &Process| {
            let want = Want {
                max_waiters: Some(1),
                ..process.want(LONG)
            };
            let (ask, options) = process.ask(want);
            let acquiring = process.locks.lock("n").options(options).acquire();
            async move {
                ask.begun(false);
                match acquiring.await {
                    Ok(lock) => {
                        drop(ask.acquired(lock));
                        Ok(())
                    }
                    Err(error) => {
                        ask.failed(&error);
                        Err(error)
                    }
                }
            }
        };
        let first = processes[1].wait(LONG, ms(5));
        scene.world.sleep(ms(20)).await;
        for _ in 0..3 {
            let asked = scene.world.now();
            let refused = one(&processes[2]).await;
            assert!(matches!(refused, Err(Error::QueueFull)), "{refused:?}");
            assert!(scene.world.now() - asked < 2 * TRIP);
        }
        // Behind the hold of its own process: nobody else is asked, and one may wait.
        let mut own = Box::pin(one(&processes[0]));
        let pending = std::future::poll_fn(|cx| Poll::Ready(own.as_mut().poll(cx).is_pending()));
        assert!(pending.await);
        assert!(matches!(one(&processes[0]).await, Err(Error::QueueFull)));
        drop(own);
        held.release().await.unwrap();
        scene.world.sleep(ms(500)).await;
        at(&first);
        assert!(one(&processes[3]).await.is_ok());
        scene.world.sleep(ms(500)).await;
        assert_eq!(scene.keys(""), 0);
    });
}
