//! S16 on the whole client: what a failover does to locks that replicas have confirmed, and to those they have not.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tenure_client::{
    Attempt, Cause, Config, Confirmed, Error, Failure, Lock, LockOptions, Locks, Reason,
};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, World};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const LEASE: Duration = ms(10_000);
const NONE_OF_ONE: Failure = Failure::Unconfirmed(Confirmed::new(0, 1));

/// A primary with one replica, and the address at which it is promoted.
#[derive(Clone)]
struct Scene {
    world: World,
    server: ServerHandle,
    promoted: ServerHandle,
}

fn play<F: Future<Output = ()> + Send + 'static>(scene: impl Fn(Scene) -> F) {
    for (seed, dialect) in (1..).zip(Dialect::ALL) {
        let mut sim = Sim::new(seed);
        let world = sim.world();
        let here = Scene {
            server: world.server("db", dialect),
            promoted: world.server("other", dialect),
            world,
        };
        here.server.add_replica(ms(3));
        sim.block_on(scene(here));
    }
}

impl Scene {
    async fn client(&self, server: &ServerHandle) -> (Client, Locks) {
        let client = self.world.client();
        let config = Config::from_url(&format!("redis://{}", server.host())).unwrap();
        let config = config.label(format!("c{}", client.id()));
        let locks = client.connect_config(&config).await.unwrap();
        (client, locks)
    }

    /// The replica becomes a primary of its own, with what it has received.
    fn promote(&self) {
        self.promoted.fail_over(self.server.take_replica(0), 0);
    }

    fn values(&self) -> Vec<String> {
        let keys = self.server.keys().into_iter();
        keys.map(|(_, value, _)| value).collect()
    }
}

fn options() -> LockOptions {
    LockOptions::new().lease(LEASE).replicas(1, ms(400))
}

async fn hold(locks: &Locks) -> Lock {
    let request = locks.lock("n").options(options());
    request.acquire().await.unwrap()
}

/// Whether it is not answered; what it has to do is done.
fn pending(future: &mut (impl Future + Unpin)) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(future).poll(&mut cx).is_pending()
}

async fn try_plain(locks: &Locks) -> Attempt {
    let request = locks.lock("n").lease(LEASE);
    request.try_acquire().await.unwrap()
}

async fn refusal(locks: &Locks) -> Failure {
    match locks.lock("n").options(options()).try_acquire().await {
        Err(Error::Unavailable(Reason::Failure { failure, .. })) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn s16_a_lock_that_was_confirmed_is_there_after_a_failover() {
    play(|scene| async move {
        let (_, locks) = scene.client(&scene.server).await;
        for _ in 0..20 {
            let lock = hold(&locks).await;
            let replica = scene.server.take_replica(0);
            scene.server.fail_over(replica, 0);
            scene.server.add_replica(ms(3));
            let (_, others) = scene.client(&scene.server).await;
            assert!(try_plain(&others).await.holder().is_some());
            // Found again by a renewal, on the new connection.
            scene.world.sleep(2 * LEASE).await;
            assert!(lock.is_held());
            lock.release().await.unwrap();
        }
    });
}

#[test]
fn s16_h2_who_is_cut_off_with_the_old_primary_is_told_before_anybody_else_is_granted() {
    play(|scene| async move {
        let (_, locks) = scene.client(&scene.server).await;
        let lock = hold(&locks).await;
        scene.world.sleep(ms(5_300)).await;
        scene.promote();
        let (_, others) = scene.client(&scene.promoted).await;
        let next = others.lock("n").lease(LEASE).acquire().await.unwrap();
        // The old primary has answered every renewal, and its key lives.
        assert!(!lock.is_held() && next.is_held());
        assert_eq!(scene.values().len(), 1);
        let lost = lock.lost().await;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost}");
        drop(lock);
        scene.world.sleep(ms(1_000)).await;
        assert_eq!(refusal(&locks).await, NONE_OF_ONE);
    });
}

#[test]
fn s16_h3_what_a_dead_connection_has_written_is_confirmed_by_another_write_only() {
    play(|scene| async move {
        let (client, locks) = scene.client(&scene.server).await;
        hold(&locks).await.release().await.unwrap();
        scene.server.freeze_replica(0);
        let asking = locks.lock("n").options(options()).acquire();
        let mut asking = Box::pin(asking);
        assert!(pending(&mut asking));
        scene.world.sleep(ms(100)).await;
        let first = scene.values();
        assert_eq!(first.len(), 1);
        client.cut(&scene.server);
        for _ in 0..20 {
            scene.world.sleep(ms(250)).await;
            assert!(pending(&mut asking), "confirmed by nobody");
        }
        assert_ne!(scene.values(), first);
        scene.server.thaw_replica(0);
        let lock = asking.await.unwrap();
        assert!(lock.is_held());
    });
}

#[test]
fn s16_what_the_promoted_replica_has_not_received_was_never_granted() {
    play(|scene| async move {
        let (_, locks) = scene.client(&scene.server).await;
        hold(&locks).await.release().await.unwrap();
        // A release is not waited for.
        scene.world.sleep(ms(50)).await;
        scene.server.freeze_replica(0);
        let (told, asked) = (locks.clone(), scene.world.now());
        let trying = told.lock("n").options(options()).try_acquire();
        let mut trying = Box::pin(trying);
        assert!(pending(&mut trying));
        scene.world.sleep(ms(50)).await;
        assert_eq!(scene.values().len(), 1);
        scene.promote();
        let (_, others) = scene.client(&scene.promoted).await;
        let next = try_plain(&others).await.acquired().unwrap();
        let refused = trying.await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        assert!(scene.world.now() - asked >= ms(400));
        scene.world.sleep(ms(50)).await;
        assert_eq!(scene.values(), [""; 0]);
        assert!(next.is_held());
    });
}

#[test]
fn s16_a_replica_that_goes_on_in_time_keeps_the_lock() {
    play(|scene| async move {
        let (_, locks) = scene.client(&scene.server).await;
        let lock = hold(&locks).await;
        for _ in 0..20 {
            scene.server.freeze_replica(0);
            scene.world.sleep(ms(4_000)).await;
            scene.server.thaw_replica(0);
            scene.world.sleep(ms(4_000)).await;
            assert!(lock.is_held());
        }
        assert!(lock.release().await.unwrap().confirmed);
    });
}

#[test]
fn s16_other_locks_do_not_wait_for_replicas() {
    play(|scene| async move {
        let (_, locks) = scene.client(&scene.server).await;
        scene.server.freeze_replica(0);
        let slow = options().replicas(1, ms(2_400));
        let waiting = locks.clone();
        scene.world.spawn(async move {
            let request = waiting.lock("n").options(slow);
            let _ = request.acquire().await;
        });
        scene.world.sleep(ms(100)).await;
        for _ in 0..20 {
            let asked = scene.world.now();
            let lock = locks.lock("other").lease(LEASE).acquire().await.unwrap();
            lock.release().await.unwrap();
            assert!(scene.world.now() - asked < ms(100));
        }
    });
}

/// Who waits in turn, and with replicas.
fn in_turn(locks: &Locks) -> tenure_client::Acquiring {
    let options = options().waiter_lease(ms(60_000));
    locks.lock("n").options(options).acquire()
}

#[test]
fn s16_a_turn_that_nobody_confirms_is_not_granted_and_is_passed_on_by_who_gives_up() {
    play(|scene| async move {
        let mut waiting = Vec::new();
        let (_, first) = scene.client(&scene.server).await;
        let lock = in_turn(&first).await.unwrap();
        for _ in 0..3 {
            let (_, locks) = scene.client(&scene.server).await;
            let mut asking = Box::pin(in_turn(&locks));
            assert!(pending(&mut asking));
            scene.world.sleep(ms(50)).await;
            waiting.push((locks, asking));
        }
        scene.server.freeze_replica(0);
        lock.release().await.unwrap();
        // The first one has the key and no confirmation, however often it writes it anew.
        let mut values = std::collections::BTreeSet::new();
        for _ in 0..30 {
            scene.world.sleep(ms(250)).await;
            for (_, asking) in &mut waiting {
                assert!(pending(asking), "granted, and confirmed by nobody");
            }
            let held = scene.server.text("lock:n").unwrap();
            values.insert(String::from_utf8(held.0).unwrap());
        }
        let label = |value: &String| value.contains(":c1.");
        assert!(values.len() > 1 && values.iter().all(label), "{values:?}");
        // Nobody comes in between, also where nothing is asked of replicas.
        let (_, others) = scene.client(&scene.server).await;
        let fair = others.lock("n").lease(LEASE).fair().try_acquire();
        assert!(fair.await.unwrap().holder().is_some());
        // It gives up: the next one has its turn, and is confirmed once that can be.
        let (gone, asking) = waiting.remove(0);
        drop((gone, asking));
        scene.world.sleep(ms(500)).await;
        let held = scene.server.text("lock:n").unwrap();
        let held = String::from_utf8(held.0).unwrap();
        assert!(held.contains(":c2."), "{held}");
        scene.server.thaw_replica(0);
        for (_, asking) in waiting {
            let lock = asking.await.unwrap();
            assert!(lock.is_held());
            lock.release().await.unwrap();
        }
        scene.world.sleep(ms(100)).await;
        assert_eq!(scene.values(), [""; 0]);
    });
}
