//! Fences in virtual time: clocks that step back, counters that expire, scripts that fail midway.

use std::future::Future;
use std::time::Duration;

use tenure_client::{Error, Locks};
use tenure_sim::{Dialect, ServerHandle, Sim, World};

const DIALECTS: [Dialect; 4] = Dialect::ALL;
const HOUR: i64 = 3_600_000;
const DAY: Duration = Duration::from_secs(86_400);
const COUNTER: &str = "lock:{lock:n}:fence";

#[derive(Clone)]
struct Scene {
    world: World,
    server: ServerHandle,
    locks: Locks,
}

fn play<F: Future<Output = ()> + Send + 'static>(scene: impl Fn(Scene) -> F) {
    for (seed, dialect) in (1..).zip(DIALECTS) {
        let mut sim = Sim::new(seed);
        let world = sim.world();
        let server = world.server("db", dialect);
        let client = world.client();
        let to = server.clone();
        let locks = sim.block_on(async move { client.connect(&to).await.unwrap() });
        let here = Scene {
            world,
            server,
            locks,
        };
        sim.block_on(scene(here));
    }
}

impl Scene {
    /// Takes the lock with a fence above the floor, and releases it.
    async fn fence_from(&self, floor: u64) -> Result<u64, Error> {
        let lock = self.locks.lock("n").fence_from(floor).acquire().await?;
        let fence = lock.fence().expect("it was asked for");
        lock.release().await?;
        Ok(fence)
    }

    async fn fence(&self) -> u64 {
        self.fence_from(0).await.unwrap()
    }

    fn counter(&self) -> Option<Duration> {
        self.server.text(COUNTER).and_then(|(_, left)| left)
    }
}

#[test]
fn h4_a_clock_that_steps_back_an_hour_lowers_no_fence_not_even_when_the_counter_has_expired() {
    play(|scene| async move {
        let first = scene.fence().await;
        scene.server.step_clock(-HOUR);
        let second = scene.fence().await;
        assert_eq!(second, first + 1);
        // It is kept an hour longer by this clock: until that shows more than the fence.
        let left = scene.counter().unwrap();
        assert!(left > DAY + Duration::from_secs(3_590), "{left:?}");
        scene.world.sleep(DAY + Duration::from_secs(1)).await;
        assert!(scene.counter().is_some());
        scene.world.sleep(Duration::from_secs(3_600)).await;
        assert!(scene.counter().is_none());
        assert!(scene.fence().await > second);
    });
}

#[test]
fn s14_a_restart_without_data_goes_on_from_the_clock_and_one_that_is_behind_needs_a_floor() {
    play(|scene| async move {
        let mut last = scene.fence().await;
        for with_data in [true, false] {
            scene.server.stop();
            scene.server.start(with_data);
            let next = scene.fence().await;
            assert!(next > last);
            last = next;
        }
        // The bound that remains: no counter, and a clock that is behind.
        scene.server.step_clock(-HOUR);
        scene.server.flush();
        assert!(scene.fence().await < last);
        assert_eq!(scene.fence_from(last).await, Ok(last + 1));
        assert_eq!(scene.fence().await, last + 2);
    });
}

#[test]
fn s14_a_clock_two_days_behind_is_misconfigured_and_heals() {
    play(|scene| async move {
        let first = scene.fence().await;
        scene.server.step_clock(-48 * HOUR);
        let refused = scene.fence_from(0).await;
        assert!(
            matches!(refused, Err(Error::Misconfigured(_))),
            "{refused:?}"
        );
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("more than a day ahead"), "{text}");
        // A lock without one can still be had.
        let lock = scene.locks.acquire("n").await.unwrap();
        lock.release().await.unwrap();
        scene.server.step_clock(48 * HOUR);
        assert!(scene.fence().await > first);
    });
}

#[test]
fn h5_a_script_that_fails_after_it_has_written_leaves_no_key() {
    play(|scene| async move {
        let first = scene.fence().await;
        scene.server.fail_next_script();
        let failed = scene.fence_from(0).await;
        assert!(matches!(failed, Err(Error::Misconfigured(_))), "{failed:?}");
        // Long before its lease is over nothing is left, and nobody has the fence that was minted.
        scene.world.sleep(Duration::from_secs(1)).await;
        assert!(scene.server.text("lock:n").is_none());
        assert!(scene.fence().await > first + 1);
    });
}
