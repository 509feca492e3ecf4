//! What happens when the wall clock is set, in virtual time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tenure_client::{Cause, Config, Error, Event, LockOptions, Locks, Observer};
use tenure_sim::{Client, Sim, World};

const LEASE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// The wall clock of the machine on which all clients are: when the world began, and by how much it was set since.
#[derive(Clone, Default)]
struct Wall(Arc<AtomicI64>);

impl Wall {
    fn set(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn of(&self, world: &World) -> impl Fn() -> u64 + Send + 'static {
        let (wall, world) = (self.clone(), world.clone());
        move || {
            let began = 1_800_000_000_000_000_i64;
            let passed = i64::try_from(world.now().as_micros()).unwrap();
            u64::try_from(began + passed + wall.0.load(Ordering::Relaxed)).unwrap()
        }
    }
}

/// What was told, in words.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn steps(&self) -> Vec<String> {
        let mut told = self.0.lock().unwrap();
        std::mem::take(&mut *told)
    }
}

impl Observer for Told {
    fn event(&self, event: &Event<'_>) {
        if let Event::ClockStepped(step) = event {
            self.0.lock().unwrap().push(step.to_string());
        }
    }
}

struct Place {
    folder: TempDir,
    world: World,
    wall: Wall,
}

impl Place {
    fn new(world: World) -> Place {
        Place {
            folder: TempDir::new().unwrap(),
            world,
            wall: Wall::default(),
        }
    }

    async fn client(&self) -> (Locks, Told, Client) {
        let client = self.world.client();
        let told = Told::default();
        let config = Config::in_file(self.folder.path().join("locks.db"))
            .observe(Arc::new(told.clone()))
            .defaults_for_locks(LockOptions::new().lease(LEASE));
        let clock = self.wall.of(&self.world);
        let (locks, driver) =
            tenure_sqlite::open_by_clock(client.binding(), &config, clock).unwrap();
        client.spawn(driver);
        locks.ready().await.unwrap();
        (locks, told, client)
    }
}

fn play<F: Future<Output = ()> + Send + 'static>(show: impl FnOnce(Place) -> F) {
    let mut sim = Sim::new(7);
    let place = Place::new(sim.world());
    sim.block_on(show(place));
}

#[test]
fn s12_a_clock_that_is_set_while_a_lock_is_held_is_told_and_the_lock_is_kept() {
    for (by, says) in [(HOUR, "forwards by"), (HOUR, "back by")] {
        play(|place| async move {
            let (locks, told, _) = place.client().await;
            let lock = locks.acquire("a").await.unwrap();
            place.world.sleep(LEASE * 3).await;
            assert_eq!(told.steps(), Vec::<String>::new());
            let by = i64::try_from(by.as_micros()).unwrap();
            place.wall.set(if says == "back by" { -by } else { by });
            place.world.sleep(LEASE * 3).await;
            let steps = told.steps();
            assert!(
                matches!(&steps[..], [step] if step.contains(says)),
                "{steps:?}"
            );
            assert!(lock.is_held());
            // Renewed by the clock as it is: others are refused, and not for longer than one lease.
            let (others, ..) = place.client().await;
            let holder = others.try_acquire("a").await.unwrap();
            let remaining = holder.holder().expect("it is held").remaining.unwrap();
            assert!(remaining <= LEASE, "{remaining:?}");
            assert!(lock.release().await.unwrap().confirmed);
        });
    }
}

#[test]
fn s12_a_clock_that_is_set_while_nothing_is_held_endangers_nothing_and_is_not_told() {
    play(|place| async move {
        let (locks, told, _) = place.client().await;
        locks.acquire("a").await.unwrap().release().await.unwrap();
        place.wall.set(3_600_000_000);
        locks.acquire("a").await.unwrap().release().await.unwrap();
        assert_eq!(told.steps(), Vec::<String>::new());
    });
}

#[test]
fn s12_what_others_have_taken_over_early_is_told_as_lost_at_the_next_renewal() {
    play(|place| async move {
        let (locks, ..) = place.client().await;
        let (others, ..) = place.client().await;
        let lock = locks.lock("a").fenced().acquire().await.unwrap();
        place.wall.set(3_600_000_000);
        let next = others.lock("a").fenced().acquire().await.unwrap();
        assert!(next.fence() > lock.fence());
        let lost = lock.lost().await;
        assert_eq!(lost.cause, Cause::Replaced);
        assert!(place.world.now() < LEASE);
        assert!(next.is_held() && !lock.is_held());
    });
}

#[test]
fn s14_fences_grow_though_the_clock_is_set_back() {
    play(|place| async move {
        let (locks, ..) = place.client().await;
        let mut last = None;
        for _ in 0..5 {
            let lock = locks.lock("a").fenced().acquire().await.unwrap();
            assert!(lock.fence() > last);
            last = lock.fence();
            lock.release().await.unwrap();
            place.wall.set(-3_600_000_000);
        }
        // A day and more ahead of the clock is a mistake.
        place.wall.set(-90_000_000_000);
        let refused = locks.lock("a").fenced().try_acquire().await;
        assert!(
            matches!(refused, Err(Error::Misconfigured(_))),
            "{refused:?}"
        );
    });
}

#[test]
fn s6_what_a_dead_process_has_left_is_free_at_its_ttl_and_not_before() {
    play(|place| async move {
        let (locks, _, client) = place.client().await;
        let (others, ..) = place.client().await;
        let lock = locks.lock("a").no_renew().acquire().await.unwrap();
        let began = place.world.now();
        client.kill();
        let next = others.acquire("a").await.unwrap();
        let took = place.world.now() - began;
        assert!(took >= LEASE - Duration::from_millis(1), "{took:?}");
        assert!(took < LEASE + Duration::from_secs(1), "{took:?}");
        assert!(!lock.is_held() && next.is_held());
    });
}

#[test]
fn s9_a_name_that_another_process_frees_is_had_within_a_look() {
    play(|place| async move {
        let (locks, ..) = place.client().await;
        let (others, ..) = place.client().await;
        let lock = locks.acquire("a").await.unwrap();
        let world = place.world.clone();
        let waiting = others.acquire("a");
        let freed = Arc::new(Mutex::new(Duration::ZERO));
        let at = Arc::clone(&freed);
        place.world.spawn(async move {
            world.sleep(Duration::from_secs(100)).await;
            *at.lock().unwrap() = world.now();
            lock.release().await.unwrap();
        });
        let next = waiting.await.unwrap();
        let took = place.world.now() - *freed.lock().unwrap();
        assert!(took <= Duration::from_millis(30), "{took:?}");
        next.release().await.unwrap();
    });
}

#[test]
fn s19_who_waits_for_a_fair_lock_in_another_process_has_its_turn_within_a_look() {
    play(|place| async move {
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(place.client().await.0);
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = clients[0].lock("a").fair().acquire().await.unwrap();
        for (turn, locks) in clients.iter().enumerate().skip(1) {
            let (locks, order) = (locks.clone(), Arc::clone(&order));
            place.world.spawn(async move {
                let lock = locks.lock("a").fair().acquire().await.unwrap();
                order.lock().unwrap().push(turn);
                lock.release().await.unwrap();
            });
            place.world.sleep(Duration::from_millis(200)).await;
        }
        let began = place.world.now();
        first.release().await.unwrap();
        while order.lock().unwrap().len() < 3 {
            place.world.sleep(Duration::from_millis(1)).await;
            assert!(place.world.now() - began < Duration::from_millis(200));
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
    });
}

#[test]
fn s19_whoever_would_be_one_too_many_is_turned_away_by_the_file() {
    play(|place| async move {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(place.client().await.0);
        }
        let runs = clients[0].lock("a").fair().acquire().await.unwrap();
        let waiting = Arc::new(Mutex::new(false));
        let (locks, served) = (clients[1].clone(), Arc::clone(&waiting));
        place.world.spawn(async move {
            let lock = locks.lock("a").max_waiters(1).acquire().await.unwrap();
            *served.lock().unwrap() = true;
            lock.release().await.unwrap();
        });
        place.world.sleep(Duration::from_secs(1)).await;
        let refused = clients[2].lock("a").max_waiters(1).acquire().await;
        assert!(matches!(refused, Err(Error::QueueFull)), "{refused:?}");
        runs.release().await.unwrap();
        place.world.sleep(Duration::from_secs(1)).await;
        assert!(*waiting.lock().unwrap());
        let lock = clients[2].lock("a").max_waiters(1).acquire().await.unwrap();
        assert!(lock.is_held());
    });
}

#[test]
fn what_the_dead_have_left_is_swept_out_and_the_file_does_not_grow() {
    play(|place| async move {
        let (locks, ..) = place.client().await;
        for index in 0..20 {
            let request = locks.lock(format!("name {index}")).fenced();
            request.acquire().await.unwrap().abandon();
        }
        let rows = |place: &Place| {
            let file = rusqlite::Connection::open(place.folder.path().join("locks.db")).unwrap();
            ["tenure_locks", "tenure_fences"].map(|table| {
                let count = format!("select count(*) from {table}");
                file.query_row(&count, [], |row| row.get::<_, i64>(0))
                    .unwrap()
            })
        };
        // Whoever comes next within a day leaves them: a clock that was set may be the only reason.
        place.world.sleep(HOUR).await;
        place.client().await;
        assert_eq!(rows(&place), [20, 20]);
        place.world.sleep(25 * HOUR).await;
        place.client().await;
        assert_eq!(rows(&place), [0, 0]);
    });
}
