//! What a caller sees of the API, on each executor. What servers do is shown elsewhere.

mod on;

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_io::Timer;
use on::{On, Scripted};
use smol::future::yield_now;
use tenure_client::{
    Attempt, Cause, Config, Error, Event, Held, LockOptions, Locks, Observer, Wait, memory_with,
};
use tenure_smol::SmolBinding;

const SECOND: Duration = Duration::from_secs(1);
const SHORT: Duration = Duration::from_millis(200);

impl On {
    fn memory(self, config: &Config) -> Locks {
        self.memory_over(SmolBinding::new(), config)
    }

    fn memory_over(self, binding: SmolBinding, config: &Config) -> Locks {
        let (locks, driver) = memory_with(binding, config).unwrap();
        self.spawn(driver);
        locks
    }

    async fn connect(self, config: &Config) -> Result<Locks, Error> {
        tenure_smol::connect_on(config, |driver| self.spawn(driver)).await
    }
}

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
fn a_held_name_is_held_and_a_released_one_is_free() {
    for on in On::EACH {
        on.run(async {
            let locks = on.memory(&Config::in_memory().label("me"));
            let lock = locks.acquire("a").await.unwrap();
            let Attempt::Held(holder) = locks.try_acquire("a").await.unwrap() else {
                panic!("two holders");
            };
            assert_eq!(holder.label.as_deref(), Some("me"));
            assert!(lock.is_held() && lock.remaining() > 20 * SECOND);
            assert!(lock.release().await.unwrap().confirmed);
            drop(locks.acquire("a").await.unwrap());
            assert!(locks.try_acquire("a").await.unwrap().acquired().is_some());
            locks.close().await;
            assert_eq!(locks.acquire("a").await.unwrap_err(), Error::Closed);
        });
    }
}

#[test]
fn waiters_of_one_process_get_their_turn_in_order() {
    for on in On::EACH {
        on.run(async {
            let locks = on.memory(&Config::in_memory());
            let first = locks.acquire("a").await.unwrap();
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut waiting = Vec::new();
            for turn in 0..5 {
                let mut asked = Box::pin(locks.acquire("a"));
                // Each is in the queue before the next.
                assert!(once(asked.as_mut()).await.is_none());
                let (order, (done, is_done)) = (Arc::clone(&order), smol::channel::bounded(1));
                on.spawn(async move {
                    let lock = asked.await.unwrap();
                    order.lock().unwrap().push(turn);
                    lock.release().await.unwrap();
                    done.send(()).await.unwrap();
                });
                waiting.push(is_done);
            }
            first.release().await.unwrap();
            for done in waiting {
                done.recv().await.unwrap();
            }
            assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
        });
    }
}

#[test]
fn a_wait_ends_on_time_and_says_who_holds() {
    for on in On::EACH {
        on.run(async {
            let locks = on.memory(&Config::in_memory().label("the first one"));
            let _held = locks.acquire("a").await.unwrap();
            let begin = Instant::now();
            let waiting = locks.lock("a").wait(Wait::For(SHORT)).acquire();
            let Err(Error::TimedOut { holder }) = waiting.await else {
                panic!("two holders")
            };
            assert_eq!(holder.label.as_deref(), Some("the%20first%20one"));
            assert!(begin.elapsed() >= SHORT);
        });
    }
}

/// Counts renewals.
#[derive(Default)]
struct Renewals(AtomicU64);

impl Observer for Renewals {
    fn event(&self, event: &Event<'_>) {
        if let Event::Renewed { .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_lease_is_renewed_while_the_executor_has_other_work_and_none() {
    for on in On::EACH {
        let renewals = Arc::new(Renewals::default());
        let config = Config::in_memory().observe(Arc::clone(&renewals) as _);
        let begin = Instant::now();
        on.run(async {
            let locks = on.memory(&config);
            let lock = locks.lock("a").lease(SHORT).acquire().await.unwrap();
            // Past its length, and past that of the next one.
            while renewals.0.load(Ordering::Relaxed) < 12 {
                assert!(lock.is_held());
                Timer::after(SHORT / 40).await;
            }
            assert!(begin.elapsed() > 2 * SHORT);
            assert!(lock.release().await.unwrap().confirmed);
        });
    }
}

#[test]
fn the_loss_is_told_and_run_cancels_the_work_for_it() {
    for on in On::EACH {
        on.run(async {
            let locks = on.memory(&Config::in_memory());
            let request = locks.lock("a").lease(SHORT).no_renew();
            let lock = request.clone().acquire().await.unwrap();
            let lost = lock.lost().await;
            assert!(matches!(lost.cause, Cause::Expired { .. }));
            assert!(!lock.is_held());
            drop(lock);

            let ran = request.clone().run(|_| std::future::pending::<()>()).await;
            assert!(matches!(ran, Err(Error::Lost(_))));
            let ran = request.run(async |held: Held| held.is_held()).await;
            assert_eq!(ran, Ok(true));
        });
    }
}

#[test]
fn a_cancelled_wait_leaves_the_queue() {
    for on in On::EACH {
        on.run(async {
            let locks = on.memory(&Config::in_memory());
            let first = locks.acquire("a").await.unwrap();
            {
                let mut cancelled = pin!(locks.acquire("a"));
                assert!(once(cancelled.as_mut()).await.is_none());
            }
            let mut second = pin!(locks.acquire("a"));
            assert!(once(second.as_mut()).await.is_none());
            first.release().await.unwrap();
            second.await.unwrap().release().await.unwrap();
        });
    }
}

#[test]
fn a_suspension_is_noticed_within_a_second() {
    for on in On::EACH {
        on.run(async {
            let seconds = Arc::new(AtomicU64::new(7));
            let read = Arc::clone(&seconds);
            let binding = SmolBinding::with_suspended(move || {
                Duration::from_secs(read.load(Ordering::Relaxed))
            });
            let defaults = LockOptions::new().lease(30 * SECOND);
            let config = Config::in_memory().defaults_for_locks(defaults);
            let locks = on.memory_over(binding, &config);
            let lock = locks.acquire("a").await.unwrap();
            assert!(lock.is_held());
            seconds.fetch_add(120, Ordering::Relaxed);
            assert!(!lock.is_held());
            let begin = Instant::now();
            let lost = lock.lost().await;
            let Cause::Expired { late_by } = lost.cause else {
                panic!("{lost:?}");
            };
            // No timer has fired: the clock is looked at every second while anything is held.
            assert!(begin.elapsed() < 5 * SECOND, "{:?}", begin.elapsed());
            assert!(late_by >= 100 * SECOND);
        });
    }
}

#[test]
fn a_driver_on_an_executor_that_ends_closes_its_client() {
    let executor = smol::Executor::new();
    let (locks, driver) = memory_with(SmolBinding::new(), &Config::in_memory()).unwrap();
    executor.spawn(driver).detach();
    let lock = smol::block_on(executor.run(locks.acquire("a"))).unwrap();
    drop(executor);
    assert!(!lock.is_held());
    On::Smol.run(async {
        assert_eq!(locks.acquire("b").await.unwrap_err(), Error::Closed);
        assert_eq!(lock.lost().await.cause, Cause::Closed);
        locks.close().await;
    });
}

#[test]
fn a_guard_dropped_outside_of_everything_writes_its_release() {
    for on in On::EACH {
        let server = Scripted::start(&[b"_\r\n", b":1\r\n"]);
        let (locks, lock) = on.run(async {
            let locks = on.connect(&server.config()).await.unwrap();
            let lock = locks.acquire("a").await.unwrap();
            (locks, lock)
        });
        // On a thread that knows no executor.
        std::thread::spawn(move || drop((lock, locks)))
            .join()
            .unwrap();
        let (sent, _) = server.end();
        // This server did not say its version, so it is asked in its newest dialect.
        assert!(sent.contains("DELEX"), "{sent}");
    }
}

#[test]
fn a_guard_dropped_after_its_executor_writes_its_release() {
    let server = Scripted::start(&[b"_\r\n"]);
    let executor = smol::Executor::new();
    let config = server.config();
    let connecting = tenure_smol::connect_on(&config, |driver| executor.spawn(driver).detach());
    let (locks, lock) = smol::block_on(executor.run(async {
        let locks = connecting.await.unwrap();
        let lock = locks.acquire("a").await.unwrap();
        (locks, lock)
    }));
    drop(executor);
    drop((lock, locks));
    let (sent, _) = server.end();
    assert!(sent.contains("DELEX"), "{sent}");
}

#[test]
fn s5d_a_connection_that_is_declared_dead_is_reset() {
    for on in On::EACH {
        let server = Scripted::start(&[]);
        let config = server.config().reply_limit(SHORT);
        on.run(async {
            let locks = on.connect(&config).await.unwrap();
            let asked = locks.lock("a").wait(Wait::Now).acquire().await;
            assert!(asked.is_err());
        });
        // No orderly end, behind which the kernel would go on delivering.
        assert_eq!(server.end().1, Some(ErrorKind::ConnectionReset));
    }
}

#[test]
fn a_name_is_looked_up_while_the_executor_goes_on() {
    for on in On::EACH {
        let server = Scripted::start(&[b"_\r\n"]);
        let url = format!("redis://localhost:{}/", server.port);
        let config = Config::from_url(&url)
            .unwrap()
            .no_wake_ups()
            .no_server_checks();
        on.run(async {
            let locks = on.connect(&config).await.unwrap();
            assert!(locks.acquire("a").await.unwrap().is_held());
        });
    }
}

#[cfg(unix)]
#[test]
fn ready_becomes_true_when_the_server_does() {
    use std::io::{Read as _, Write as _};

    for on in On::EACH {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("late.sock");
        let config = Config::from_url(&format!("redis+unix://{}", path.display())).unwrap();
        let (locks, driver) = tenure_client::connect_with(SmolBinding::new(), &config).unwrap();
        on.spawn(driver);
        let refused = on.run(locks.ready());
        assert!(matches!(refused, Err(Error::Unavailable(_))));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 512];
            let _ = stream.read(&mut bytes);
            stream.write_all(b"%1\r\n+proto\r\n:3\r\n").unwrap();
            let _ = stream.read(&mut bytes);
        });
        on.run(async {
            while locks.ready().await.is_err() {
                yield_now().await;
            }
        });
        drop(locks);
        serving.join().unwrap();
    }
}

#[cfg(feature = "smol")]
#[test]
fn connect_spawns_on_the_global_executor() {
    let server = Scripted::start(&[b"_\r\n", b":1\r\n"]);
    let config = server.config();
    // From any thread, under whatever polls it.
    On::AsyncStd.run(async {
        let locks = tenure_smol::connect_config(&config).await.unwrap();
        let lock = locks.acquire("a").await.unwrap();
        assert!(lock.release().await.unwrap().confirmed);
        locks.close().await;
    });
    assert_eq!(server.end().1, None, "an orderly end");
    On::Smol.run(async {
        let error = tenure_smol::connect("redis://").await.unwrap_err();
        assert!(matches!(error, Error::Misconfigured(_)), "{error}");
        let error = tenure_smol::connect_config(&Config::in_memory()).await;
        assert!(matches!(error.unwrap_err(), Error::Misconfigured(_)));
        // Nobody listens there any more.
        let locks = tenure_smol::connect_lazily(&config).unwrap();
        assert!(matches!(locks.ready().await, Err(Error::Unavailable(_))));
    });
}
