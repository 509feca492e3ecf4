//! Your own code under a fake clock: a lease's whole life without waiting, and loss, outage and contention on cue.
//!
//! Copy from here. The code under test takes a `Locks`, as it does in production; a simulated client hands it one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_client::{Cause, Error, Locks};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, World};

const SECOND: Duration = Duration::from_secs(1);

/// The code under test: every ten seconds of work is a page, and a page is only printed while the lock is held.
async fn print_report(locks: Locks, world: World, pages: Arc<AtomicU32>) -> Result<u32, Error> {
    let request = locks.lock("report").lease(30 * SECOND).wait(5 * SECOND);
    let printed = Arc::clone(&pages);
    request
        .run(|held| async move {
            for _ in 0..6 {
                world.sleep(10 * SECOND).await;
                if held.is_held() {
                    printed.fetch_add(1, Ordering::Relaxed);
                }
            }
            printed.load(Ordering::Relaxed)
        })
        .await
}

/// A world with one server and one client, the code under test started on it, and `meanwhile` beside it.
fn with_report<F: Future<Output = ()> + Send + 'static>(
    meanwhile: impl FnOnce(World, ServerHandle, Client) -> F + Send + 'static,
) -> (Result<u32, Error>, u32) {
    let mut sim = Sim::new(1);
    let world = sim.world();
    let server = world.server("db", Dialect::Redis8);
    let client = world.client();
    let pages = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&pages);
    let result = sim.block_on(async move {
        let locks = client.connect(&server).await?;
        world.spawn(meanwhile(world.clone(), server.clone(), client.clone()));
        print_report(locks, world, counted).await
    });
    (result, pages.load(Ordering::Relaxed))
}

#[test]
fn a_minute_of_work_takes_no_time() {
    let (result, _) = with_report(|_, _, _| async {});
    assert_eq!(result, Ok(6));
}

#[test]
fn a_short_outage_goes_unnoticed() {
    let (result, _) = with_report(|world, server, client| async move {
        world.sleep(12 * SECOND).await;
        client.link(&server, |link| link.silent = true);
        world.sleep(9 * SECOND).await;
        client.link(&server, |link| link.silent = false);
    });
    assert_eq!(result, Ok(6));
}

#[test]
fn a_long_outage_stops_the_work_in_time() {
    let (result, pages) = with_report(|world, server, client| async move {
        world.sleep(12 * SECOND).await;
        client.link(&server, |link| link.silent = true);
    });
    let Err(Error::Lost(lost)) = result else {
        panic!("{result:?}")
    };
    assert!(matches!(lost.cause, Cause::Expired { .. }));
    // The last renewal was handed out after six or twelve seconds; two thirds of the lease later it was given up.
    assert!((2..=3).contains(&pages), "{pages} pages");
}

#[test]
fn a_key_that_somebody_deletes_stops_the_work_at_the_next_renewal() {
    let (result, pages) = with_report(|world, server, _| async move {
        world.sleep(25 * SECOND).await;
        assert!(server.delete("lock:report"));
    });
    let Err(Error::Lost(lost)) = result else {
        panic!("{result:?}")
    };
    assert_eq!(lost.cause, Cause::Gone);
    assert!((2..=3).contains(&pages), "{pages} pages");
}

#[test]
fn somebody_else_has_it() {
    let mut sim = Sim::new(1);
    let world = sim.world();
    let server = world.server("db", Dialect::Valkey9);
    // Any client at all: a plain value, with a TTL.
    server.set("lock:report", "somebody", Some(60 * SECOND));
    let client = world.client();
    let result = sim.block_on(async move {
        let locks = client.connect(&server).await?;
        print_report(locks, world, Arc::new(AtomicU32::new(0))).await
    });
    assert!(matches!(result, Err(Error::TimedOut { .. })), "{result:?}");
}

#[test]
fn a_run_repeats_to_the_byte() {
    let run = |seed| {
        let mut sim = Sim::new(seed);
        sim.record();
        let world = sim.world();
        let server = world.server("db", Dialect::Redis8);
        let client = world.client();
        let done = sim.block_on(async move {
            let locks = client.connect(&server).await?;
            print_report(locks, world, Arc::new(AtomicU32::new(0))).await
        });
        assert_eq!(done, Ok(6));
        sim.trace()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8), "another seed is another run");
}
