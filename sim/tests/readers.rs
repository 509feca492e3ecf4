//! The reader's rule: a caller waits on the connection only while its command is the only one in flight, so that one that
//! is slow, or is not run at all, delays nobody but itself.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tenure_client::{Config, Locks};
use tenure_sim::{Dialect, Sim, Threads, World};

const MS: Duration = Duration::from_millis(1);
/// There and back on the usual link, and a third leg for chance.
const TRIP: Duration = Duration::from_micros(2_400);
const LEASE: Duration = Duration::from_millis(400);

/// Does this to a client of threads in a world of its own, for many seeds.
fn torture<F: Future<Output = ()> + Send + 'static>(
    seeds: u64,
    act: impl Fn(World, Locks, Threads) -> F,
) {
    for seed in 0..seeds {
        let mut sim = Sim::new(seed);
        let world = sim.world();
        let server = world.server("db", Dialect::Redis8);
        let client = world.client();
        let config = Config::from_url("redis://db").expect("a URL");
        let (locks, threads) = Threads::connect(&client, &config).expect("a client");
        let acting = act(world, locks.clone(), threads);
        sim.block_on(async move {
            let _server = server;
            locks.ready().await.expect("a server");
            acting.await;
        });
    }
}

/// Takes and gives back a lock of its own, over and over: each answer must come within a round trip.
async fn prompt(world: World, locks: Locks, threads: Threads, name: u64) {
    let threads = threads.prompt();
    for _ in 0..60 {
        world.sleep(world.up_to(4 * MS)).await;
        let began = world.now();
        let request = locks.lock(format!("own {name}")).lease(LEASE);
        let lock = threads.ask(request.acquire()).await.expect("a free name");
        let took = world.now() - began;
        assert!(took <= TRIP, "an acquire took {took:?}");
        let began = world.now();
        assert!(threads.ask(lock.release()).await.expect("held").confirmed);
        let took = world.now() - began;
        assert!(took <= TRIP, "a release took {took:?}");
    }
}

/// Asks, and is not run for a while: a future that is kept and not polled, a thread that is suspended.
async fn idle(world: World, locks: Locks, threads: Threads, name: u64) {
    for round in 0..8 {
        let request = locks.lock(format!("idle {name} {round}")).lease(LEASE);
        let mut asking = pin!(threads.ask(request.acquire()));
        std::future::poll_fn(|cx| {
            let _ = asking.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
        world.sleep(world.up_to(80 * MS)).await;
        if world.chance(500) {
            drop(asking.await);
        }
    }
}

#[test]
fn a_caller_that_is_not_run_delays_nobody_else() {
    torture(200, |world, locks, threads| async move {
        let running = Arc::new(AtomicU32::new(0));
        for name in 0..2 {
            for idles in [false, true] {
                let (world, locks, threads) = (world.clone(), locks.clone(), threads.clone());
                let (done, spawner) = (Arc::clone(&running), world.clone());
                running.fetch_add(1, Ordering::Relaxed);
                spawner.spawn(async move {
                    match idles {
                        true => idle(world, locks, threads, name).await,
                        false => prompt(world, locks, threads, name).await,
                    }
                    done.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
        while running.load(Ordering::Relaxed) > 0 {
            world.sleep(MS).await;
        }
    });
}

#[test]
fn a_lock_is_renewed_on_time_whoever_waits_on_the_connection() {
    torture(100, |world, locks, threads| async move {
        let held = locks
            .lock("held")
            .lease(LEASE)
            .acquire()
            .await
            .expect("a free name");
        for round in 0..40 {
            let request = locks.lock(format!("idle {round}")).lease(LEASE);
            let mut asking = pin!(threads.ask(request.acquire()));
            std::future::poll_fn(|cx| {
                let _ = asking.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
            world.sleep(world.up_to(60 * MS)).await;
            // Due after a fifth of the lease, jittered by no more than a tenth of that, and answered within a trip.
            let least = LEASE * 9 / 10 - LEASE / 5 - LEASE / 50 - TRIP;
            let remaining = held.remaining();
            assert!(remaining >= least, "{remaining:?} of {LEASE:?} are left");
        }
        assert!(held.is_held());
    });
}

#[test]
fn the_driver_looks_again_when_nobody_asks_any_more() {
    torture(100, |world, locks, threads| async move {
        // The server hangs up right after an answer that a caller has read.
        let request = locks.lock("a").lease(100 * LEASE);
        let lock = threads
            .prompt()
            .ask(request.acquire())
            .await
            .expect("a free name");
        let renewed = lock.remaining();
        world.sleep(10 * MS + world.up_to(3 * MS)).await;
        threads.hang_up();
        // Found within 50 ms, or at once by who is at the socket; connected anew and renewed at once.
        world.sleep(70 * MS).await;
        let remaining = lock.remaining();
        assert!(
            remaining + 75 * MS > renewed,
            "{remaining:?} of {renewed:?}"
        );
    });
}
