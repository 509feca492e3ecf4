//! The verbs without `async`, over the store in memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use tenure_blocking::{
    Attempt, Cause, Config, Error, Held, Lock, LockOptions, Locks, Lost, Request, Wait,
};

const LEASE: Duration = Duration::from_secs(30);
/// A lease that is lost soon, since nothing renews it.
const SHORT: Duration = Duration::from_millis(60);
/// Nothing takes this long, unless it never comes.
const LONG: Duration = Duration::from_secs(20);

fn short(locks: &Locks) -> Lock {
    locks.lock("a").lease(SHORT).no_renew().acquire().unwrap()
}

/// A loss, and the name of the thread that told it.
type Heard = (Lost, String);

fn ear() -> (Sender<Heard>, Receiver<Heard>) {
    channel()
}

fn tell(sender: Sender<Heard>) -> impl FnOnce(Lost) + Send + 'static {
    move |lost| {
        let name = thread::current().name().unwrap_or_default().to_owned();
        let _ = sender.send((lost, name));
    }
}

#[test]
fn everything_can_be_shared_by_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Locks>();
    shared::<Request>();
    shared::<Lock>();
    shared::<Held>();
    shared::<Attempt>();
}

#[test]
fn the_verbs() {
    let config = Config::in_memory().label("me");
    let locks = tenure_blocking::memory_config(&config).unwrap();
    locks.ready().unwrap();
    let lock = locks.acquire("a").unwrap();
    assert!(lock.is_held());
    assert_eq!(lock.name(), b"a");
    assert!(lock.remaining() > LEASE / 2);
    lock.check().unwrap();
    let attempt = locks.try_acquire("a").unwrap();
    assert_eq!(attempt.holder().unwrap().label.as_deref(), Some("me"));
    assert!(attempt.acquired().is_none());
    lock.renew_now().unwrap();
    let held = lock.held();
    assert!(lock.release().unwrap().confirmed);
    assert!(!held.is_held());
    assert_eq!(held.renew_now(), Err(Error::NotHeld));
    assert_eq!(held.lost_timeout(Duration::ZERO), None);

    let options = LockOptions::new().lease(SHORT).no_renew();
    let request = locks.lock("b").options(options).wait(Wait::Forever);
    request.clone().acquire().unwrap().abandon();
    let began = Instant::now();
    assert!(request.acquire().unwrap().is_held());
    assert!(began.elapsed() >= SHORT / 2);
    assert!(matches!(locks.acquire(""), Err(Error::Misconfigured(_))));
    locks.close();
    assert!(matches!(locks.acquire("a"), Err(Error::Closed)));
    assert!(matches!(locks.ready(), Err(Error::Closed)));
}

#[test]
fn a_wait_ends_when_it_is_over_or_the_lock_is_free() {
    let locks = tenure_blocking::memory();
    let lock = locks.acquire("a").unwrap();
    let wait = Duration::from_millis(50);
    let began = Instant::now();
    let error = locks.lock("a").wait(wait).acquire().unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(began.elapsed() >= wait);

    let waiting = thread::spawn({
        let locks = locks.clone();
        move || locks.acquire("a").map(|lock| lock.is_held())
    });
    thread::sleep(wait);
    drop(lock);
    assert!(waiting.join().unwrap().unwrap());
}

#[test]
fn threads_exclude_each_other() {
    const THREADS: usize = 8;
    const PAIRS: usize = 50;
    let locks = tenure_blocking::memory();
    let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..PAIRS {
                    let lock = locks.acquire("a").unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    assert!(lock.release().unwrap().confirmed);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), THREADS * PAIRS);
}

#[test]
fn run_releases_and_gives_the_result() {
    let locks = tenure_blocking::memory();
    let here = thread::current().id();
    let request = locks.lock("a");
    let result = request.clone().run(|held| {
        assert!(held.is_held());
        assert_eq!(thread::current().id(), here);
        assert!(locks.try_acquire("a").unwrap().acquired().is_none());
        7
    });
    assert_eq!(result, Ok(7));
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
    // Somebody's error stays somebody's.
    let result = request.run(|_| Err::<(), _>("mine"));
    assert_eq!(result, Ok(Err("mine")));
}

#[test]
fn a_result_of_a_lost_lock_is_none() {
    let locks = tenure_blocking::memory();
    let request = locks.lock("a").lease(SHORT).no_renew();
    let mut ran = false;
    let result = request.run(|held| {
        ran = true;
        held.lost_timeout(LONG).unwrap();
    });
    assert!(matches!(result, Err(Error::Lost(_))));
    assert!(ran);
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
}

#[test]
fn a_panic_releases_and_goes_on() {
    let locks = tenure_blocking::memory();
    let work = || locks.lock("a").run(|_| panic!("on purpose")).map(drop);
    let panicked = catch_unwind(AssertUnwindSafe(work)).unwrap_err();
    assert_eq!(panicked.downcast_ref(), Some(&"on purpose"));
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
    // A lock that lives on the stack of what panics, too.
    let panicked = thread::spawn({
        let locks = locks.clone();
        move || {
            let _lock = locks.acquire("a").unwrap();
            panic!("on purpose");
        }
    });
    panicked.join().unwrap_err();
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
}

#[test]
fn a_lock_in_a_threads_own_variables_is_released_with_the_thread() {
    struct Kept(Option<Lock>);

    impl Drop for Kept {
        fn drop(&mut self) {
            // It may wait even here, where other variables of the thread may be gone.
            self.0.take().unwrap().release().unwrap();
        }
    }

    thread_local! {
        static KEPT: std::cell::RefCell<Option<Kept>> = const { std::cell::RefCell::new(None) };
    }
    let locks = tenure_blocking::memory();
    thread::spawn({
        let locks = locks.clone();
        move || KEPT.set(Some(Kept(Some(locks.acquire("a").unwrap()))))
    })
    .join()
    .unwrap();
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
}

#[test]
fn a_loss_is_told_to_whoever_waits_for_it() {
    let locks = tenure_blocking::memory();
    let lock = short(&locks);
    assert_eq!(lock.lost_timeout(Duration::from_millis(1)), None);
    let held = lock.held();
    let waiting = thread::spawn(move || held.wait_lost().unwrap());
    let lost = lock.lost_timeout(LONG).unwrap();
    assert!(matches!(lost.cause, Cause::Expired { .. }));
    assert_eq!(waiting.join().unwrap(), lost);
    assert!(!lock.is_held());
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
}

#[test]
fn callbacks_are_called_once_on_the_drivers_thread() {
    let locks = tenure_blocking::memory();
    let lock = short(&locks);
    let (sender, losses) = ear();
    lock.on_lost(|_| panic!("on purpose"));
    lock.on_lost(tell(sender.clone()));
    let (lost, thread) = losses.recv_timeout(LONG).unwrap();
    assert!(matches!(lost.cause, Cause::Expired { .. }));
    assert_eq!(thread, "tenure-driver");
    // After the loss: at once, and there, too.
    lock.on_lost(tell(sender));
    let (_, thread) = losses.recv_timeout(LONG).unwrap();
    assert_eq!(thread, "tenure-driver");
    // The sender is gone: nothing more can come.
    losses.recv_timeout(LONG).unwrap_err();
    // The driver lives on.
    drop(lock);
    locks.acquire("a").unwrap().release().unwrap();
}

#[test]
fn a_callback_of_a_released_lock_is_dropped_uncalled() {
    let locks = tenure_blocking::memory();
    for end in [
        |lock: Lock| lock.release().map(drop).unwrap(),
        |lock: Lock| drop(lock),
        |lock: Lock| lock.abandon(),
        |lock: Lock| drop(lock.into_async()),
    ] {
        let (sender, losses) = ear();
        let lock = locks.lock("a").lease(SHORT).acquire().unwrap();
        lock.on_lost(tell(sender));
        end(lock);
        // Not kept by anything either.
        losses.recv_timeout(LONG).unwrap_err();
    }
}

#[test]
fn a_callback_may_use_the_client_and_waits_for_nothing() {
    let locks = tenure_blocking::memory();
    let lock = short(&locks);
    let other = locks.acquire("other").unwrap();
    let held = other.held();
    let (sender, results) = channel();
    lock.on_lost({
        let locks = locks.clone();
        move |_| {
            assert!(other.is_held());
            let began = Instant::now();
            let lost = held.lost_timeout(LONG);
            assert!(lost.is_none() && began.elapsed() < LONG / 2);
            let acquired = locks.acquire("b").map(drop);
            let released = other.release().map(drop);
            sender.send((acquired, released)).unwrap();
        }
    });
    let (acquired, released) = results.recv_timeout(LONG).unwrap();
    assert!(matches!(acquired, Err(Error::Misconfigured(_))));
    assert!(matches!(released, Err(Error::Misconfigured(_))));
    // Released it was.
    let request = locks.lock("other").wait(LONG);
    request.acquire().unwrap().release().unwrap();
}

#[test]
fn closing_ends_waits_and_tells_holders() {
    let locks = tenure_blocking::memory();
    let lock = locks.acquire("a").unwrap();
    let (sender, losses) = ear();
    lock.on_lost(tell(sender));
    let held = lock.held();
    let at_the_gate = Arc::new(Barrier::new(2));
    let waiting = thread::spawn({
        let (locks, gate) = (locks.clone(), Arc::clone(&at_the_gate));
        move || {
            gate.wait();
            locks.acquire("a").map(drop)
        }
    });
    at_the_gate.wait();
    thread::sleep(Duration::from_millis(20));
    let closing = thread::spawn({
        let locks = locks.clone();
        move || locks.close()
    });
    assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    let (lost, _) = losses.recv_timeout(LONG).unwrap();
    assert_eq!(lost.cause, Cause::Closed);
    assert!(!held.is_held());
    drop(lock);
    closing.join().unwrap();
}

#[test]
fn locks_of_a_runtime_and_back() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let inner = runtime.block_on(async { tenure_tokio::memory() });
    let locks = Locks::from_async(inner.clone());
    locks.ready().unwrap();
    let lock = locks.lock("a").lease(SHORT).no_renew().acquire().unwrap();
    let (sender, losses) = ear();
    lock.on_lost(tell(sender));
    losses.recv_timeout(LONG).unwrap();
    assert!(lock.lost_timeout(LONG).is_some());
    drop(lock);
    let lock = runtime.block_on(inner.acquire("b")).unwrap();
    let lock = Lock::from_async(lock);
    assert!(locks.try_acquire("b").unwrap().acquired().is_none());
    assert!(lock.release().unwrap().confirmed);

    // And ours on its executor.
    let locks = tenure_blocking::memory();
    let inner = locks.clone().into_async();
    let lock = runtime.block_on(inner.acquire("a")).unwrap();
    assert!(locks.try_acquire("a").unwrap().acquired().is_none());
    runtime.block_on(lock.release()).unwrap();
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
    runtime.block_on(inner.close());
}

#[test]
fn the_last_handle_may_be_a_held() {
    let locks = tenure_blocking::memory();
    let lock = locks.acquire("a").unwrap();
    let held = lock.held();
    drop(locks);
    drop(lock);
    assert!(!held.is_held());
    assert_eq!(held.check(), Err(Error::NotHeld));
}
