//! Programs that use locks are tested under tokio's paused time: what takes hours takes no time, and everything
//! happens at the instant the documentation says. And the other clock: a suspension that tokio's does not count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_client::binding::Binding as _;
use tenure_client::{
    Attempt, Cause, Config, Error, Event, LockOptions, Locks, Observer, Wait, memory_with,
};
use tenure_tokio::TokioBinding;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(30);
/// The granularity of tokio's timers: none fires early, and none more than this late.
const GRAIN: Duration = Duration::from_millis(2);

#[track_caller]
fn assert_at(since: Instant, expected: Duration) {
    let elapsed = since.elapsed();
    assert!(
        elapsed >= expected && elapsed <= expected + GRAIN,
        "{elapsed:?} instead of {expected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_lives_for_virtual_hours() {
    let real = std::time::Instant::now();
    let locks = tenure_tokio::memory();
    let lock = locks.lock("a").lease(LEASE).acquire().await.unwrap();
    for _ in 0..6 {
        sleep(Duration::from_secs(3600)).await;
        assert!(lock.is_held());
        assert!(lock.remaining() > LEASE / 2);
    }
    assert!(matches!(locks.try_acquire("a").await, Ok(Attempt::Held(_))));
    assert!(lock.release().await.unwrap().confirmed);
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
    assert!(real.elapsed() < Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn without_renewal_the_loss_is_told_a_margin_before_the_end_of_validity() {
    let locks = tenure_tokio::memory();
    let begin = Instant::now();
    let request = locks.lock("a").lease(LEASE).no_renew();
    let lock = request.acquire().await.unwrap();
    assert_eq!(lock.remaining(), Duration::from_secs(27));
    sleep(Duration::from_millis(23_900)).await;
    assert!(lock.is_held());
    let lost = lock.lost().await;
    assert_at(begin, Duration::from_secs(24));
    assert!(matches!(lost.cause, Cause::Expired { late_by } if late_by <= GRAIN));
    let window = lock.stop_window(&lost);
    assert!(window <= Duration::from_secs(3) && window >= Duration::from_secs(3) - GRAIN);
    assert!(!lock.is_held());
    // The key is there until the guard is gone: the work may not have ended.
    assert!(matches!(locks.try_acquire("a").await, Ok(Attempt::Held(_))));
    drop(lock);
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
    assert_at(begin, Duration::from_secs(24));
}

#[tokio::test(start_paused = true)]
async fn a_lost_key_is_free_when_its_lease_has_run_out() {
    let locks = tenure_tokio::memory();
    let begin = Instant::now();
    let request = locks.lock("a").lease(LEASE).no_renew();
    let lock = request.acquire().await.unwrap();
    let second = locks.acquire("a").await.unwrap();
    let elapsed = begin.elapsed();
    assert!(elapsed >= LEASE, "{elapsed:?}");
    assert!(elapsed < LEASE + Duration::from_millis(50), "{elapsed:?}");
    assert!(!lock.is_held() && second.is_held());
    // The clean-up of the one does not touch the other.
    drop(lock);
    assert!(matches!(locks.try_acquire("a").await, Ok(Attempt::Held(_))));
    assert!(second.release().await.unwrap().confirmed);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_ends_in_time() {
    let locks = tenure_tokio::memory();
    let begin = Instant::now();
    let most = Duration::from_secs(300);
    let request = locks.lock("a").lease(LEASE).max_hold(most);
    let lock = request.acquire().await.unwrap();
    let lost = lock.lost().await;
    assert_eq!(lost.cause, Cause::MaxHold);
    // Told at the latest two thirds into the last lease, and all of it ends before the end.
    assert!(begin.elapsed() > most - LEASE && begin.elapsed() < most);
    assert!(begin.elapsed() + lock.stop_window(&lost) <= most);
    assert!(!lock.is_held());
    assert!(matches!(lock.release().await, Err(Error::Lost(lost)) if lost.cause == Cause::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn waits_time_out_at_the_instant() {
    let locks = tenure_tokio::memory();
    let _held = locks.acquire("a").await.unwrap();
    for wait in [
        Duration::from_millis(1),
        Duration::from_millis(40),
        Duration::from_secs(5),
        Duration::from_secs(3600),
    ] {
        let begin = Instant::now();
        let waited = locks.lock("a").wait(Wait::For(wait)).acquire().await;
        assert!(matches!(waited, Err(Error::TimedOut { holder }) if holder.label.is_some()));
        assert_at(begin, wait);
    }
    let begin = Instant::now();
    assert!(locks.try_acquire("a").await.unwrap().holder().is_some());
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn waiters_get_their_turns_in_order() {
    let locks = tenure_tokio::memory();
    let begin = Instant::now();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = locks.acquire("a").await.unwrap();
    let mut waiters = Vec::new();
    for number in 1..=3_u64 {
        let (locks, order) = (locks.clone(), Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let lock = locks.acquire("a").await.unwrap();
            order
                .lock()
                .unwrap()
                .push((number, begin.elapsed().as_secs()));
            sleep(Duration::from_secs(60)).await;
            assert!(lock.is_held());
            lock.release().await.unwrap();
        }));
        // Each is in the queue before the next.
        tokio::task::yield_now().await;
    }
    sleep(Duration::from_secs(60)).await;
    first.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [(1, 60), (2, 120), (3, 180)]);
    assert_at(begin, Duration::from_secs(240));
}

#[tokio::test(start_paused = true)]
async fn the_work_of_run_is_stopped_at_the_loss() {
    let locks = tenure_tokio::memory();
    let begin = Instant::now();
    let request = locks.lock("a").lease(LEASE).no_renew();
    let ran = request.run(|_| sleep(Duration::from_secs(3600))).await;
    assert!(matches!(ran, Err(Error::Lost(_))));
    assert_at(begin, Duration::from_secs(24));
}

/// A machine that is suspended when the test says so.
struct Suspended {
    locks: Locks,
    seconds: Arc<AtomicU64>,
    lost: Arc<Counter>,
}

#[derive(Default)]
struct Counter {
    lost: AtomicU64,
    renewed: AtomicU64,
}

impl Observer for Counter {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Lost { .. } => self.lost.fetch_add(1, Ordering::Relaxed),
            Event::Renewed { .. } => self.renewed.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

impl Suspended {
    fn new() -> Suspended {
        let seconds = Arc::new(AtomicU64::new(7));
        let lost = Arc::new(Counter::default());
        let read = Arc::clone(&seconds);
        let binding =
            TokioBinding::with_suspended(move || Duration::from_secs(read.load(Ordering::Relaxed)));
        let config = Config::in_memory()
            .observe(Arc::clone(&lost) as _)
            .defaults_for_locks(LockOptions::new().lease(LEASE));
        let (locks, driver) = memory_with(binding, &config).unwrap();
        tokio::spawn(driver);
        Suspended {
            locks,
            seconds,
            lost,
        }
    }

    fn suspend(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    fn count(&self) -> (u64, u64) {
        (
            self.lost.lost.load(Ordering::Relaxed),
            self.lost.renewed.load(Ordering::Relaxed),
        )
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspension_past_the_lease_is_seen_at_once_and_told_at_the_next_wake_up() {
    let machine = Suspended::new();
    let lock = machine.locks.acquire("a").await.unwrap();
    sleep(Duration::from_secs(100)).await;
    let (_, renewed) = machine.count();
    assert!(lock.is_held() && renewed > 10);

    machine.suspend(120);
    assert!(!lock.is_held());
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert!(matches!(lock.check(), Err(Error::Lost(_))));

    // No timer fired meanwhile: the driver looks at the clock every second while it holds anything.
    let begin = Instant::now();
    let lost = lock.lost().await;
    assert!(begin.elapsed() <= Duration::from_secs(1) + GRAIN);
    let Cause::Expired { late_by } = lost.cause else {
        panic!("{lost:?}");
    };
    // Given up 20 s after the last renewal, which was at most 6 s before the suspension.
    assert!(late_by >= Duration::from_secs(100) && late_by <= Duration::from_secs(107) + GRAIN);
    assert!(lost.to_string().contains("was the process paused?"));
    assert_eq!(lock.stop_window(&lost), Duration::ZERO);
    assert_eq!(machine.count(), (1, renewed));

    // Nothing is renewed any more, and nothing is told twice.
    sleep(Duration::from_secs(120)).await;
    assert_eq!(machine.count(), (1, renewed));
    assert!(!lock.is_held());
    assert!(matches!(lock.release().await, Err(Error::Lost(again)) if again == lost));
    assert!(
        machine
            .locks
            .try_acquire("a")
            .await
            .unwrap()
            .acquired()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_suspension_shorter_than_the_give_up_is_no_loss() {
    let machine = Suspended::new();
    let lock = machine.locks.acquire("a").await.unwrap();
    for _ in 0..10 {
        let (_, renewed) = machine.count();
        machine.suspend(12);
        assert!(lock.is_held());
        // Renewed at the next look at the clock, not when the timer would have fired.
        sleep(Duration::from_secs(1) + GRAIN).await;
        assert!(machine.count().1 > renewed);
        assert!(lock.is_held());
    }
    assert_eq!(machine.count().0, 0);
    assert!(lock.release().await.unwrap().confirmed);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_what_expired_during_a_suspension() {
    let machine = Suspended::new();
    let lost = machine.locks.acquire("a").await.unwrap();
    let waiter = tokio::spawn(machine.locks.lock("a").acquire());
    tokio::task::yield_now().await;
    machine.suspend(120);
    let won = timeout(Duration::from_secs(2), waiter).await.unwrap();
    let won = won.unwrap().unwrap();
    assert!(won.is_held() && !lost.is_held());
    drop(lost);
    assert!(won.release().await.unwrap().confirmed);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_time_that_falls_changes_nothing() {
    let machine = Suspended::new();
    let lock = machine.locks.acquire("a").await.unwrap();
    let read = Arc::clone(&machine.seconds);
    let binding =
        TokioBinding::with_suspended(move || Duration::from_secs(read.load(Ordering::Relaxed)));
    machine.suspend(5);
    let before = binding.now();
    machine.seconds.store(0, Ordering::Relaxed);
    assert!(binding.now() >= before);
    assert!(lock.is_held());
    sleep(Duration::from_secs(120)).await;
    assert!(lock.is_held());
}
