//! What a caller sees of the API, on the store in memory under paused time. What servers do is shown elsewhere.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tenure_client::{
    Acquiring, Attempt, Cause, Config, Error, Event, Held, Lock, LockOptions, Locks, Observer,
    Release, Request, Trying, Wait, WaitLost,
};
use tenure_tokio::{memory, memory_config};

const SECOND: Duration = Duration::from_secs(1);

/// Polls once and gives what came of it.
async fn once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut future = future;
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn handles_go_anywhere() {
    fn anywhere<T: Send + 'static>() {}
    fn shared<T: Send + Sync + Clone + 'static>() {}
    anywhere::<Acquiring>();
    anywhere::<Trying>();
    anywhere::<Release>();
    anywhere::<WaitLost>();
    anywhere::<Lock>();
    shared::<Locks>();
    shared::<Held>();
    shared::<Request>();
    shared::<LockOptions>();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_first_poll() {
    let locks = memory();
    drop(locks.acquire("a"));
    let asked = locks.acquire("a");
    let lock = locks
        .try_acquire("a")
        .await
        .unwrap()
        .acquired()
        .expect("nobody has asked yet");
    drop(asked);
    assert!(lock.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_frees_the_name_at_once() {
    let locks = memory();
    for _ in 0..100 {
        let lock = locks
            .try_acquire("a")
            .await
            .unwrap()
            .acquired()
            .expect("free again");
        let held = lock.held();
        assert!(held.is_held());
        drop(lock);
        assert!(!held.is_held());
        assert_eq!(held.remaining(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_get_their_turn_in_order() {
    let locks = memory();
    let first = locks.acquire("a").await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for turn in 0..5 {
        let (locks, order) = (locks.clone(), Arc::clone(&order));
        waiting.push(tokio::spawn(async move {
            let lock = locks.acquire("a").await.unwrap();
            order.lock().unwrap().push(turn);
            lock.release().await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    first.release().await.unwrap();
    for task in waiting {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_on_time_and_says_who_holds() {
    let config = Config::in_memory().label("the first one");
    let locks = memory_config(&config).unwrap();
    let _held = locks.acquire("a").await.unwrap();
    let begin = tokio::time::Instant::now();
    let error = locks
        .lock("a")
        .wait(Wait::For(7 * SECOND))
        .acquire()
        .await
        .unwrap_err();
    let Error::TimedOut { holder } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(holder.label.as_deref(), Some("the%20first%20one"));
    assert!(error.is_retryable());
    let waited = begin.elapsed();
    assert!(
        waited >= 7 * SECOND && waited < 7 * SECOND + Duration::from_millis(5),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_leaves_the_queue() {
    let locks = memory();
    let first = locks.acquire("a").await.unwrap();
    let mut second = pin!(locks.acquire("a"));
    assert!(once(second.as_mut()).await.is_none());
    {
        let mut cancelled = pin!(locks.acquire("a"));
        assert!(once(cancelled.as_mut()).await.is_none());
    }
    let mut third = pin!(locks.acquire("a"));
    assert!(once(third.as_mut()).await.is_none());
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_gives_the_result_of_work_that_held_to_its_end() {
    let locks = memory();
    let mut count = 0;
    let result = locks
        .lock("a")
        .run(async |held: Held| {
            assert!(held.is_held());
            count += 1;
            "done"
        })
        .await;
    assert_eq!((result, count), (Ok("done"), 1));
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
}

#[tokio::test(start_paused = true)]
async fn run_cancels_the_work_at_the_loss() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let locks = memory();
    let dropped = Arc::new(AtomicU32::new(0));
    let guard = Dropped(Arc::clone(&dropped));
    let result = locks
        .lock("a")
        .lease(SECOND)
        .no_renew()
        .run(|_| async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        })
        .await;
    let Err(Error::Lost(lost)) = result else {
        panic!("{result:?}")
    };
    assert!(matches!(lost.cause, Cause::Expired { .. }));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(
        locks.try_acquire("a").await.unwrap().acquired().is_some(),
        "the clean-up went out after the work"
    );
}

#[tokio::test(start_paused = true)]
async fn run_refuses_a_result_that_came_too_late() {
    let locks = memory();
    let work = locks
        .lock("a")
        .lease(SECOND)
        .no_renew()
        .run(|held| async move {
            // Work that does not yield is not cancelled: its result does not count.
            tokio::time::advance(2 * SECOND).await;
            held.is_held()
        });
    assert!(matches!(work.await, Err(Error::Lost(_))));
}

#[tokio::test(start_paused = true)]
async fn run_releases_when_the_work_panics() {
    let locks = memory();
    let task = tokio::spawn(locks.lock("a").run(|_| async { panic!("on purpose") }));
    assert!(task.await.unwrap_err().is_panic());
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_lock_stays_taken_to_the_end_of_its_lease() {
    let locks = memory();
    let lock = locks.lock("a").lease(10 * SECOND).acquire().await.unwrap();
    let held = lock.held();
    tokio::time::sleep(60 * SECOND).await;
    lock.abandon();
    assert!(!held.is_held());
    assert_eq!(held.check(), Err(Error::NotHeld));
    assert!(locks.try_acquire("a").await.unwrap().holder().is_some());
    tokio::time::sleep(11 * SECOND).await;
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
}

#[tokio::test(start_paused = true)]
async fn renew_now_moves_the_end_of_validity() {
    let locks = memory();
    let lock = locks
        .lock("a")
        .lease(10 * SECOND)
        .no_renew()
        .acquire()
        .await
        .unwrap();
    tokio::time::sleep(5 * SECOND).await;
    assert!(lock.remaining() <= 4 * SECOND);
    lock.renew_now().await.unwrap();
    assert!(lock.remaining() > 8 * SECOND);
    let held = lock.held();
    lock.release().await.unwrap();
    assert_eq!(held.renew_now().await, Err(Error::NotHeld));
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_ends_with_its_own_cause() {
    let locks = memory();
    let lock = locks
        .lock("a")
        .lease(10 * SECOND)
        .max_hold(60 * SECOND)
        .acquire()
        .await
        .unwrap();
    let begin = tokio::time::Instant::now();
    let lost = lock.lost().await;
    assert_eq!(lost.cause, Cause::MaxHold);
    let window = lock.stop_window(&lost);
    assert!(window > Duration::ZERO, "there is time to stop");
    assert!(
        begin.elapsed() + window <= 60 * SECOND,
        "the hold ends by then"
    );
    assert!(begin.elapsed() >= 45 * SECOND, "and not long before");
    assert!(matches!(lock.release().await, Err(Error::Lost(_))));
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waits_for_the_loss_is_told() {
    let locks = memory();
    let lock = locks
        .lock("a")
        .lease(SECOND)
        .no_renew()
        .acquire()
        .await
        .unwrap();
    let mut watching = Vec::new();
    for _ in 0..10 {
        watching.push(tokio::spawn(lock.lost()));
    }
    // One that gives up waiting does not take the others with it.
    {
        let mut gone = pin!(lock.lost());
        assert!(once(gone.as_mut()).await.is_none());
    }
    for task in watching {
        let told = tokio::time::timeout(10 * SECOND, task).await;
        let lost = told.expect("everybody is told").unwrap();
        assert!(matches!(lost.cause, Cause::Expired { .. }));
    }
    assert!(matches!(lock.check(), Err(Error::Lost(_))));
    // And who comes later is told, too.
    assert!(matches!(lock.lost().await.cause, Cause::Expired { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_lost_hold_leaves_no_mark_on_its_name() {
    let locks = memory();
    let lost = locks
        .lock("a")
        .lease(SECOND)
        .no_renew()
        .acquire()
        .await
        .unwrap();
    lost.lost().await;
    let again = locks
        .lock("a")
        .wait(Wait::For(5 * SECOND))
        .acquire()
        .await
        .unwrap();
    assert!(again.is_held() && !lost.is_held());
    drop(lost);
    assert!(again.is_held(), "the late guard takes nothing away");
    again.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_goes_on() {
    let locks = memory();
    let lock = locks.acquire("a").await.unwrap();
    drop(lock.release());
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
}

#[tokio::test(start_paused = true)]
async fn closing_tells_everybody_and_ends() {
    let locks = memory();
    let lock = locks.lock("a").lease(10 * SECOND).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.acquire("a"));
    tokio::task::yield_now().await;
    let begin = tokio::time::Instant::now();
    let closing = locks.close();
    assert_eq!(waiting.await.unwrap().unwrap_err(), Error::Closed);
    assert_eq!(locks.acquire("b").await.unwrap_err(), Error::Closed);
    assert_eq!(lock.lost().await.cause, Cause::Closed);
    assert!(!lock.is_held());
    // The guard lives on: closing ends at the latest when the key has expired.
    closing.await;
    assert!(begin.elapsed() <= 10 * SECOND + Duration::from_millis(5));
}

#[tokio::test(start_paused = true)]
async fn closing_without_guards_ends_at_once() {
    let locks = memory();
    locks.acquire("a").await.unwrap().release().await.unwrap();
    drop(locks.acquire("b").await.unwrap());
    let begin = tokio::time::Instant::now();
    locks.close().await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[test]
fn locks_that_outlive_their_runtime_say_so_at_once() {
    let first = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (locks, lock) = first.block_on(async {
        let locks = memory();
        let lock = locks.acquire("a").await.unwrap();
        (locks, lock)
    });
    drop(first);
    assert!(!lock.is_held());
    let second = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    second.block_on(async {
        assert_eq!(locks.acquire("b").await.unwrap_err(), Error::Closed);
        assert_eq!(locks.try_acquire("b").await.unwrap_err(), Error::Closed);
        assert_eq!(lock.lost().await.cause, Cause::Closed);
        locks.close().await;
        assert!(matches!(lock.release().await, Err(Error::Lost(_))));
    });
}

#[test]
fn the_driver_ends_with_the_last_handle() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (locks, driver) =
            tenure_client::memory_with(tenure_tokio::TokioBinding::new(), &Config::in_memory())
                .unwrap();
        let driver = tokio::spawn(driver);
        let lock = locks.acquire("a").await.unwrap();
        let held = lock.held();
        drop(locks);
        tokio::task::yield_now().await;
        assert!(lock.is_held() && !driver.is_finished());
        drop(lock);
        drop(held);
        driver.await.unwrap();
    });
}

/// Keeps a line of everything it is told, and calls back into the client as it may.
#[derive(Default)]
struct Record {
    lines: Mutex<Vec<String>>,
    locks: Mutex<Option<Locks>>,
}

impl Observer for Record {
    fn event(&self, event: &Event<'_>) {
        let line = match event {
            Event::Acquired { name, .. } => format!("acquired {}", name.escape_ascii()),
            Event::Held { holder, .. } => {
                format!("held by {}", holder.label.as_deref().unwrap_or("?"))
            }
            Event::Failed { error, .. } => {
                format!("failed: {}", matches!(error, Error::TimedOut { .. }))
            }
            Event::Renewed { .. } => "renewed".to_owned(),
            Event::Lost { lost, .. } => format!("lost: {lost}"),
            Event::Released { confirmed, .. } => format!("released {confirmed}"),
            Event::Abandoned { .. } => "abandoned".to_owned(),
            Event::Dropped { .. } => "dropped".to_owned(),
            Event::Cancelled { .. } => "cancelled".to_owned(),
            Event::Connected(_) => return,
            other => format!("{other:?}"),
        };
        self.lines.lock().unwrap().push(line);
        if let Some(locks) = &*self.locks.lock().unwrap() {
            // No lock is held around the observer: it may use the client.
            drop(locks.lock("from the observer"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_observer_is_told_of_everything_in_order() {
    let record = Arc::new(Record::default());
    let config = Config::in_memory()
        .label("me")
        .observe(Arc::clone(&record) as Arc<dyn Observer>);
    let locks = memory_config(&config).unwrap();
    *record.locks.lock().unwrap() = Some(locks.clone());

    let lock = locks.lock("a").lease(10 * SECOND).acquire().await.unwrap();
    assert!(matches!(
        locks.try_acquire("a").await.unwrap(),
        Attempt::Held(_)
    ));
    assert!(
        locks
            .lock("a")
            .wait(Wait::For(SECOND))
            .acquire()
            .await
            .is_err()
    );
    {
        let mut cancelled = pin!(locks.acquire("a"));
        assert!(once(cancelled.as_mut()).await.is_none());
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    lock.release().await.unwrap();
    drop(locks.acquire("b").await.unwrap());
    locks.acquire("c").await.unwrap().abandon();
    let fixed = locks
        .lock("d")
        .lease(SECOND)
        .no_renew()
        .acquire()
        .await
        .unwrap();
    fixed.lost().await;
    drop(fixed);

    let lines = record.lines.lock().unwrap().join("\n");
    let expected = "acquired a\nheld by me\nfailed: true\ncancelled\nrenewed\nreleased true\nacquired b\ndropped\n\
        acquired c\nabandoned\nacquired d\nlost: no renewal was confirmed in time";
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn a_bad_request_is_an_error_and_no_event() {
    let locks = memory();
    for error in [
        locks.acquire("").await.unwrap_err(),
        locks.acquire(vec![b'x'; 1025]).await.unwrap_err(),
        locks
            .lock("a")
            .lease(Duration::from_millis(19))
            .acquire()
            .await
            .unwrap_err(),
        locks
            .lock("a")
            .renew_every(40 * SECOND)
            .acquire()
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::Misconfigured(_)) && !error.is_retryable(),
            "{error}"
        );
    }
    assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_cannot_be_says_so() {
    let locks = memory();
    let lock = locks
        .lock("a")
        .lease(10 * SECOND)
        .max_hold(60 * SECOND)
        .acquire()
        .await
        .unwrap();
    tokio::time::sleep(55 * SECOND).await;
    assert!(lock.is_held());
    let error = lock.renew_now().await.unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(error.to_string().contains("max_hold"), "{error}");
    assert!(lock.is_held(), "the hold goes on");
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_is_told_the_next_event_all_the_same() {
    struct Touchy(AtomicU32);
    impl Observer for Touchy {
        fn event(&self, event: &Event<'_>) {
            if let Event::Acquired { .. } = event {
                assert!(
                    self.0.fetch_add(1, Ordering::Relaxed) > 0,
                    "the first one is too much"
                );
            }
        }
    }

    let touchy = Arc::new(Touchy(AtomicU32::new(0)));
    let config = Config::in_memory().observe(Arc::clone(&touchy) as Arc<dyn Observer>);
    let locks = memory_config(&config).unwrap();
    for _ in 0..3 {
        locks.acquire("a").await.unwrap().release().await.unwrap();
    }
    assert_eq!(touchy.0.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn settings_for_the_store_in_memory_connect_to_no_server() {
    let error = tenure_tokio::connect_config(&Config::in_memory())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
}

#[tokio::test]
async fn ready_becomes_true_when_the_server_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("late.sock");
    let config = Config::from_url(&format!("redis+unix://{}", path.display())).unwrap();
    let (locks, driver) =
        tenure_client::connect_with(tenure_tokio::TokioBinding::new(), &config).unwrap();
    tokio::spawn(driver);
    assert!(matches!(locks.ready().await, Err(Error::Unavailable(_))));
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 512];
        let _ = stream.read(&mut bytes).await;
        stream.write_all(b"%1\r\n+proto\r\n:3\r\n").await.unwrap();
        let _ = stream.read(&mut bytes).await;
    });
    tokio::time::timeout(5 * SECOND, async {
        while locks.ready().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the driver has connected");
}

/// A server that greets, grants, and then answers nothing any more.
fn grants_and_falls_silent(path: &std::path::Path) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 512];
        let greeting = &b"%2\r\n+proto\r\n:3\r\n+server\r\n+redis\r\n"[..];
        for answer in [greeting, b"_\r\n"] {
            let _ = stream.read(&mut bytes).await;
            stream.write_all(answer).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_release_that_nobody_will_hear_of_is_answered_as_unconfirmed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mute.sock");
    let url = format!("redis+unix://{}", path.display());
    let driving = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let lock = driving.block_on(async {
        grants_and_falls_silent(&path);
        let config = Config::from_url(&url)
            .unwrap()
            .no_wake_ups()
            .no_server_checks();
        let locks = tenure_tokio::connect_config(&config).await.unwrap();
        locks.acquire("a").await.unwrap()
    });
    let held = lock.held();
    let waiting = std::thread::spawn(move || {
        let other = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        other.block_on(async { tokio::time::timeout(10 * SECOND, lock.release()).await })
    });
    while held.is_held() {
        std::thread::yield_now();
    }
    drop(driving);
    let answer = waiting.join().unwrap().expect("an answer");
    assert!(!answer.unwrap().confirmed);
}

#[test]
fn a_renewal_that_is_awaited_ends_with_the_hold() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("slow.sock");
    let url = format!("redis+unix://{}", path.display());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        grants_and_falls_silent(&path);
        let config = Config::from_url(&url)
            .unwrap()
            .no_wake_ups()
            .no_server_checks();
        let locks = tenure_tokio::connect_config(&config).await.unwrap();
        let lock = locks.acquire("a").await.unwrap();
        let held = lock.held();
        let renewing = tokio::spawn(async move { held.renew_now().await });
        tokio::task::yield_now().await;
        drop(lock);
        let answer = tokio::time::timeout(10 * SECOND, renewing)
            .await
            .expect("an answer");
        assert_eq!(answer.unwrap(), Err(Error::NotHeld));
    });
}

#[tokio::test(start_paused = true)]
async fn s4_a_lock_is_not_held_from_the_first_poll_of_its_release() {
    let locks = tenure_tokio::memory();
    let lock = locks.acquire("a").await.unwrap();
    let held = lock.held();
    let mut release = pin!(lock.release());
    assert!(held.is_held());
    once(release.as_mut()).await;
    assert!(!held.is_held());
    let lock = locks.acquire("b").await.unwrap();
    let held = lock.held();
    drop(lock);
    assert!(!held.is_held());
}

#[tokio::test]
async fn s5d_a_connection_that_is_declared_dead_is_reset() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    // A server that greets and answers nothing else.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 512];
        let _ = stream.read(&mut bytes).await;
        stream.write_all(b"%1\r\n+proto\r\n:3\r\n").await.unwrap();
        loop {
            match stream.read(&mut bytes).await {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(error.kind()),
            }
        }
    });
    let url = format!("redis://127.0.0.1:{port}");
    let config = Config::from_url(&url)
        .unwrap()
        .reply_limit(Duration::from_millis(50));
    let locks = tenure_tokio::connect_config(&config).await.unwrap();
    let waiting = tokio::spawn(locks.acquire("a"));
    let end = tokio::time::timeout(10 * SECOND, serving)
        .await
        .expect("an end");
    waiting.abort();
    // No orderly end, behind which the kernel would go on delivering.
    assert_eq!(end.unwrap(), Some(std::io::ErrorKind::ConnectionReset));
}
