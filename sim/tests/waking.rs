//! Whoever waits or holds is told by the server, on the whole client: its driver, its callers as tasks and as threads. Nobody
//! here asks again by himself where it does not say so: a wake-up that is missed is waited for in vain.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_client::{Cause, Config, Event, Lock, LockOptions, Locks, Lost, Observer};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, Threads, World};

const MS: Duration = Duration::from_millis(1);
/// The way there and back on the usual link, at the longest.
const TRIP: Duration = Duration::from_micros(1_600);
/// The push, the attempt and its answer.
const WOKEN: Duration = Duration::from_micros(2_400);
/// The same where the push crosses with an attempt: its answer, a look for how long the name is taken, a moment of jitter.
const SOON: Duration = Duration::from_micros(10_000);
/// Nothing is renewed, and nothing expires, while a scenario lasts.
const AGE: Duration = Duration::from_secs(3_000);
const LONG: Duration = Duration::from_secs(100);

/// A server, and what is needed to make clients.
#[derive(Clone)]
struct Scene {
    world: World,
    server: ServerHandle,
    threads: bool,
}

/// A client on a machine of its own.
#[derive(Clone)]
struct Party {
    scene: Scene,
    machine: Client,
    locks: Locks,
    threads: Option<Threads>,
    unwatched: Arc<Unwatched>,
}

/// What a client was told of not being told.
#[derive(Default)]
struct Unwatched(Mutex<Vec<String>>);

impl Observer for Unwatched {
    fn event(&self, event: &Event<'_>) {
        if let Event::Unwatched(why) = event {
            self.0.lock().unwrap().push(why.to_string());
        }
    }
}

/// Plays a scene on every kind of server for some seeds, with callers that are tasks and with threads.
fn each<F: Future<Output = ()> + Send + 'static>(seeds: u64, act: impl Fn(Scene) -> F) {
    for seed in 0..seeds {
        for dialect in Dialect::ALL {
            for threads in [false, true] {
                let mut sim = Sim::new(seed);
                let world = sim.world();
                let server = world.server("db", dialect);
                let scene = Scene {
                    world,
                    server,
                    threads,
                };
                sim.block_on(act(scene));
            }
        }
    }
}

impl Scene {
    /// A client that is told and does not ask.
    async fn party(&self) -> Party {
        self.party_with(|config| config.poll_limit(Duration::MAX))
            .await
    }

    async fn party_with(&self, change: impl FnOnce(Config) -> Config) -> Party {
        let machine = self.world.client();
        let unwatched = Arc::new(Unwatched::default());
        let config = Config::from_url("redis://db").unwrap();
        let config = change(config.observe(unwatched.clone()));
        let (locks, threads) = match self.threads {
            false => (machine.connect_config(&config).await.unwrap(), None),
            true => {
                let (locks, threads) = Threads::connect(&machine, &config).unwrap();
                locks.ready().await.unwrap();
                (locks, Some(threads))
            }
        };
        Party {
            scene: self.clone(),
            machine,
            locks,
            threads,
            unwatched,
        }
    }

    /// Starts a waiter, which waits for its answer by itself.
    fn wait(&self, party: &Party, name: &str) -> Waiter {
        let answer: Waiter = Waiter::default();
        let (party, slot, name) = (party.clone(), answer.clone(), name.to_owned());
        party.machine.clone().spawn(async move {
            let lock = party.acquire(&name).await;
            *slot.0.lock().unwrap() = Some((party.scene.world.now(), lock));
        });
        answer
    }
}

/// When a waiter was granted its name, and the guard.
#[derive(Clone, Default)]
struct Waiter(Arc<Mutex<Option<(Duration, Lock)>>>);

impl Waiter {
    fn at(&self) -> Option<Duration> {
        self.0.lock().unwrap().as_ref().map(|(at, _)| *at)
    }

    /// Had so soon after this.
    fn was_woken(&self, freed: Duration, most: Duration) {
        let took = self.at().expect("a missed wake-up") - freed;
        assert!(took <= most, "woken after {took:?}");
    }
}

impl Party {
    async fn ask<F: Future>(&self, future: F) -> F::Output {
        match &self.threads {
            Some(threads) => threads.prompt().ask(future).await,
            None => future.await,
        }
    }

    async fn acquire(&self, name: &str) -> Lock {
        self.acquire_for(name, AGE).await
    }

    async fn acquire_for(&self, name: &str, lease: Duration) -> Lock {
        let options = LockOptions::new().lease(lease).wait(LONG);
        let request = self.locks.lock(name).options(options);
        self.ask(request.acquire())
            .await
            .expect("the name, in the end")
    }

    async fn release(&self, lock: Lock) {
        assert!(self.ask(lock.release()).await.expect("held").confirmed);
    }

    fn was_unwatched(&self) -> Vec<String> {
        self.unwatched.0.lock().unwrap().clone()
    }

    /// How the loss is told, and how long after this.
    async fn loses(&self, lock: &Lock, since: Duration) -> (Cause, Duration) {
        let Lost { cause, .. } = lock.lost().await;
        (cause, self.scene.world.now() - since)
    }
}

#[test]
fn s9_a_release_before_between_and_after_the_first_attempt_and_its_watch_wakes() {
    for at in 0..40 {
        each(1, move |scene| async move {
            let (holder, party) = (scene.party().await, scene.party().await);
            let lock = holder.acquire("a").await;
            scene.world.sleep(20 * MS).await;
            let asked = scene.world.now();
            let waiter = scene.wait(&party, "a");
            // It takes three ways to arm it, and a fourth to know how long the name is taken.
            scene.world.sleep(at * 100 * MS / 1_000).await;
            let freed = scene.world.now();
            holder.release(lock).await;
            scene.world.sleep(50 * MS).await;
            waiter.was_woken(freed.max(asked), SOON);
            assert!(party.was_unwatched().is_empty());
        });
    }
}

#[test]
fn s9_who_waits_is_woken_by_whatever_frees_the_name() {
    each(6, |scene| async move {
        let (holder, party) = (scene.party().await, scene.party().await);
        for how in 0..4 {
            let lock = holder.acquire("a").await;
            let waiter = scene.wait(&party, "a");
            scene.world.sleep(3 * LONG / 100).await;
            assert_eq!(waiter.at(), None);
            let freed = scene.world.now();
            match how {
                0 => holder.release(lock).await,
                1 => drop(lock),
                2 => assert!(scene.server.delete("lock:a")),
                _ => scene.server.flush(),
            }
            scene.world.sleep(20 * MS).await;
            waiter.was_woken(freed, WOKEN + TRIP / 2);
            drop(waiter);
            scene.world.sleep(20 * MS).await;
        }
    });
}

#[test]
fn s9_a_holder_that_dies_is_waited_for_until_its_lease_is_over_and_not_longer() {
    each(6, |scene| async move {
        let (holder, party) = (scene.party().await, scene.party().await);
        let lock = holder.acquire_for("a", 400 * MS).await;
        let waiter = scene.wait(&party, "a");
        // It is renewed for a while, which wakes as well.
        scene.world.sleep(2_000 * MS).await;
        holder.machine.kill();
        assert_eq!(waiter.at(), None);
        let (_, left) = scene.server.text("lock:a").unwrap();
        let expires = scene.world.now() + left.unwrap();
        scene.world.sleep(1_000 * MS).await;
        waiter.was_woken(expires, SOON);
        drop(lock);
    });
}

#[test]
fn s9_who_waits_while_the_connection_is_cut_is_woken_all_the_same() {
    each(6, |scene| async move {
        let (holder, party) = (scene.party().await, scene.party().await);
        // Freed while it is down, and a while after it is up again.
        for later in [Duration::ZERO, 100 * MS] {
            let lock = holder.acquire("a").await;
            let waiter = scene.wait(&party, "a");
            scene.world.sleep(50 * MS).await;
            party.machine.cut(&scene.server);
            scene.world.sleep(later).await;
            let freed = scene.world.now();
            holder.release(lock).await;
            scene.world.sleep(200 * MS).await;
            // The end is seen, the next try to connect comes within 20 ms, and the handshake takes two trips.
            let connects = if later.is_zero() {
                20 * MS
            } else {
                Duration::ZERO
            };
            waiter.was_woken(freed, SOON + connects);
            drop(waiter);
            scene.world.sleep(50 * MS).await;
        }
        assert!(party.was_unwatched().is_empty());
    });
}

#[test]
fn s9_what_is_lost_in_silence_is_found_within_the_poll_limit_and_from_then_on_asked_for() {
    each(2, |scene| async move {
        let (holder, party) = (scene.party().await, scene.party_with(|config| config).await);
        let lock = holder.acquire("a").await;
        let waiter = scene.wait(&party, "a");
        scene.world.sleep(50 * MS).await;
        scene.server.lose_tracking();
        let freed = scene.world.now();
        holder.release(lock).await;
        scene.world.sleep(11_000 * MS).await;
        waiter.was_woken(freed, 10_000 * MS + SOON);
        let why = party.was_unwatched();
        assert_eq!(why.len(), 1, "{why:?}");
        assert!(why[0].contains("proxy"), "{why:?}");
        drop(waiter);
        scene.world.sleep(20 * MS).await;

        let lock = holder.acquire("a").await;
        let waiter = scene.wait(&party, "a");
        scene.world.sleep(5_000 * MS).await;
        let freed = scene.world.now();
        holder.release(lock).await;
        scene.world.sleep(1_000 * MS).await;
        waiter.was_woken(freed, 400 * MS + SOON);
        assert_eq!(party.was_unwatched().len(), 1);
    });
}

#[test]
fn s9_who_is_refused_asks_says_so_once_and_is_woken_when_that_is_over() {
    each(4, |scene| async move {
        let holder = scene.party().await;
        scene.server.refuse_tracking(true);
        let party = scene.party().await;
        for told in [false, false, true] {
            let lock = holder.acquire("a").await;
            let waiter = scene.wait(&party, "a");
            scene.world.sleep(2_000 * MS).await;
            let freed = scene.world.now();
            holder.release(lock).await;
            scene.world.sleep(1_000 * MS).await;
            let most = if told { WOKEN + TRIP } else { 400 * MS + SOON };
            waiter.was_woken(freed, most);
            let why = party.was_unwatched();
            assert_eq!(why.len(), 1, "{why:?}");
            assert!(why[0].contains("NOPERM"), "{why:?}");
            drop(waiter);
            scene.world.sleep(20 * MS).await;
            // Each new connection asks anew.
            if scene.world.now() > 4_000 * MS {
                scene.server.refuse_tracking(false);
            }
            party.machine.cut(&scene.server);
            scene.world.sleep(100 * MS).await;
        }
    });
}

#[test]
fn s9_hints_without_a_change_end_neither_a_wait_nor_a_hold() {
    each(4, |scene| async move {
        let (holder, party) = (scene.party().await, scene.party().await);
        let lock = holder.acquire("a").await;
        let waiter = scene.wait(&party, "a");
        scene.world.sleep(50 * MS).await;
        for _ in 0..200 {
            scene.server.crowd_out_tracking();
            scene.world.sleep(scene.world.up_to(4 * MS)).await;
            assert!(lock.is_held() && waiter.at().is_none());
        }
        scene.world.sleep(20 * MS).await;
        let freed = scene.world.now();
        holder.release(lock).await;
        scene.world.sleep(20 * MS).await;
        waiter.was_woken(freed, WOKEN + TRIP / 2);
    });
}

#[test]
fn s9_many_who_wait_in_many_processes_have_their_turns() {
    each(4, |scene| async move {
        let holder = scene.party().await;
        let lock = holder.acquire("a").await;
        let done = Arc::new(Mutex::new(0));
        for _ in 0..4 {
            let party = scene.party().await;
            for _ in 0..6 {
                let (party, done) = (party.clone(), Arc::clone(&done));
                party.machine.clone().spawn(async move {
                    let lock = party.acquire("a").await;
                    party
                        .scene
                        .world
                        .sleep(party.scene.world.up_to(2 * MS))
                        .await;
                    party.release(lock).await;
                    *done.lock().unwrap() += 1;
                });
            }
        }
        scene.world.sleep(1_000 * MS).await;
        let commands = scene.server.executed_count();
        scene.world.sleep(5_000 * MS).await;
        assert_eq!(scene.server.executed_count(), commands, "somebody asks");
        holder.release(lock).await;
        // Each turn is held for up to 2 ms, and handed over in less than this.
        scene.world.sleep(24 * (2 * MS + SOON)).await;
        assert_eq!(*done.lock().unwrap(), 24);
    });
}

#[test]
fn a_hold_is_told_at_any_time_of_its_renewals() {
    each(12, |scene| async move {
        let party = scene.party().await;
        for replaced in [false, true] {
            let lock = Arc::new(party.acquire_for("a", 600 * MS).await);
            // Renewals on their way, too: each ends the watch and begins it again.
            scene.world.sleep(scene.world.up_to(500 * MS)).await;
            if scene.world.chance(500) {
                let (renewing, lock) = (party.clone(), Arc::clone(&lock));
                party.machine.spawn(async move {
                    drop(renewing.ask(lock.renew_now()).await);
                });
                scene.world.sleep(scene.world.up_to(TRIP)).await;
            }
            assert!(lock.is_held());
            let since = scene.world.now();
            match replaced {
                true => scene.server.set("lock:a", "somebody", None),
                false => assert!(scene.server.delete("lock:a")),
            }
            let (cause, took) = party.loses(&lock, since).await;
            let expected = if replaced {
                Cause::Replaced
            } else {
                Cause::Gone
            };
            assert_eq!(cause, expected);
            // A renewal that finds it looks why, which is a trip more. Threads may look away from an idle connection.
            let away = if scene.threads {
                50 * MS
            } else {
                Duration::ZERO
            };
            assert!(took <= 3 * TRIP + away, "told after {took:?}");
            drop(lock);
            scene.server.delete("lock:a");
            scene.world.sleep(20 * MS).await;
        }
    });
}

#[test]
fn a_hold_that_is_never_renewed_is_told_after_a_reconnect_too() {
    each(6, |scene| async move {
        let party = scene.party().await;
        // Deleted while the connection is down, and later.
        for later in [Duration::ZERO, 200 * MS] {
            let options = LockOptions::new().lease(AGE).no_renew();
            let request = party.locks.lock("a").options(options);
            let lock = party.ask(request.acquire()).await.unwrap();
            scene.world.sleep(100 * MS).await;
            party.machine.cut(&scene.server);
            scene.world.sleep(later).await;
            let since = scene.world.now();
            assert!(scene.server.delete("lock:a"));
            let (cause, took) = party.loses(&lock, since).await;
            assert_eq!(cause, Cause::Gone);
            let late = if scene.threads { 50 * MS } else { 20 * MS };
            assert!(took <= SOON + late, "told after {took:?}");
        }
    });
}

/// What others of its process do on the same connection, and how much later a waiter may be woken for it.
#[derive(Clone, Copy)]
enum Others {
    /// They take and give back locks of their own now and then, and run at once.
    Prompt,
    /// They may not run for 20 ms though their answer has come.
    Slow,
    /// They ask, and do not run any more: the driver looks after 50 ms.
    Idle,
}

#[test]
fn s9_a_thread_that_waits_is_woken_though_others_read() {
    for (others, late) in [
        (Others::Prompt, Duration::ZERO),
        (Others::Slow, 40 * MS),
        (Others::Idle, 50 * MS),
    ] {
        each(6, move |scene| async move {
            let (Some(threads), party, holder) = ({
                let party = scene.party().await;
                (party.threads.clone(), party, scene.party().await)
            }) else {
                return;
            };
            for turn in 0..10_u32 {
                let lock = holder.acquire("a").await;
                let waiter = scene.wait(&party, "a");
                scene.world.sleep(20 * MS).await;
                let until = scene.world.now() + 40 * MS;
                let asking = (party.clone(), threads.clone());
                party.machine.spawn(async move {
                    let (party, threads) = asking;
                    let world = &party.scene.world;
                    let mut parked = Vec::new();
                    while world.now() < until {
                        let name = format!("own {turn} {}", world.now().as_micros());
                        let request = party.locks.lock(name.as_str()).lease(AGE);
                        match others {
                            Others::Idle => {
                                let threads = threads.clone();
                                let mut asking = Box::pin(async move {
                                    drop(threads.ask(request.acquire()).await);
                                });
                                std::future::poll_fn(|cx| {
                                    let _ = asking.as_mut().poll(cx);
                                    std::task::Poll::Ready(())
                                })
                                .await;
                                parked.push(asking);
                            }
                            // The answer to a release comes at once as a whole, and then nothing is in flight.
                            Others::Prompt => {
                                let lock = party.acquire(&name).await;
                                party.release(lock).await;
                            }
                            Others::Slow => drop(threads.ask(request.acquire()).await),
                        }
                        // At other times nobody but the driver reads.
                        world.sleep(world.up_to(20 * MS)).await;
                    }
                    world.sleep(100 * MS).await;
                });
                scene.world.sleep(scene.world.up_to(40 * MS)).await;
                let freed = scene.world.now();
                holder.release(lock).await;
                scene.world.sleep(200 * MS).await;
                waiter.was_woken(freed, WOKEN + TRIP + late);
                drop(waiter);
                scene.world.sleep(20 * MS).await;
            }
        });
    }
}
