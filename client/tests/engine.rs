//! The seam for a store that is called and answers: who carries out its jobs, in which order, and what its troubles mean.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tenure_client::engine::{Bytes, Done, Engine, Found, Job, Trouble, open_with};
use tenure_client::{Config, Error, LockOptions, Locks, StoreFault};
use tenure_tokio::TokioBinding;

/// A store in memory, of which a test decides when and how it answers.
#[derive(Clone, Default)]
struct Store(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Default)]
struct Inner {
    values: HashMap<Bytes, Bytes>,
    /// What it was asked, in short.
    log: Vec<String>,
    shut: bool,
    opened: u32,
    trouble: Option<Trouble>,
    panics: bool,
}

impl Store {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.0.lock().unwrap()
    }

    /// From here on it answers nothing, until it is opened again.
    fn shut(&self, shut: bool) {
        self.inner().shut = shut;
        self.0.1.notify_all();
    }

    /// The next job has this trouble, after it was done if that may be.
    fn fail_next(&self, fault: StoreFault, maybe_executed: bool) {
        self.inner().trouble = Some(Trouble {
            maybe_executed,
            ..Trouble::new(fault, "on purpose")
        });
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().log)
    }

    async fn until(&self, is_so: impl Fn(&Inner) -> bool) {
        for _ in 0..10_000 {
            if is_so(&self.inner()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("not in time");
    }

    async fn connect(&self) -> Result<Locks, Error> {
        let config = Config::in_memory().no_wake_ups();
        let (locks, driver) = open_with(TokioBinding::new(), &config, self.clone())?;
        tokio::spawn(driver);
        locks.ready().await?;
        Ok(locks)
    }
}

impl Inner {
    fn found(&self, key: &Bytes) -> Done {
        Done::Refused(Found {
            value: self.values.get(key).cloned(),
            remaining: Some(Duration::from_secs(1)),
            ..Found::default()
        })
    }

    fn carry_out(&mut self, job: &Job) -> Done {
        let short = |what: &str, key: &Bytes| format!("{what} {}", key.escape_ascii());
        match job {
            Job::Acquire { key, value, .. } => {
                self.log.push(short("acquire", key));
                if self.values.contains_key(key) {
                    return self.found(key);
                }
                self.values.insert(key.clone(), value.clone());
                Done::Granted { fence: None }
            }
            Job::Swap { key, old, new, .. } => {
                self.log
                    .push(short(if old == new { "renew" } else { "adopt" }, key));
                if self.values.get(key) != Some(old) {
                    return self.found(key);
                }
                self.values.insert(key.clone(), new.clone());
                Done::Granted { fence: None }
            }
            Job::Clear { key, values, .. } => {
                self.log.push(short("clear", key));
                let mine = self
                    .values
                    .get(key)
                    .is_some_and(|value| values.contains(value));
                if mine {
                    self.values.remove(key);
                }
                Done::Cleared {
                    mine,
                    found: Found::default(),
                }
            }
            other => panic!("nobody asked for {other:?}"),
        }
    }
}

impl Engine for Store {
    fn open(&mut self, _: Duration) -> Result<(), Trouble> {
        self.inner().opened += 1;
        Ok(())
    }

    fn carry_out(&mut self, job: &Job, _: Duration) -> Result<Done, Trouble> {
        let mut inner = self.inner();
        while inner.shut {
            inner = self.0.1.wait(inner).unwrap();
        }
        if std::mem::take(&mut inner.panics) {
            drop(inner);
            panic!("on purpose");
        }
        match inner.trouble.take() {
            Some(trouble) => {
                if trouble.maybe_executed {
                    inner.carry_out(job);
                }
                Err(trouble)
            }
            None => Ok(inner.carry_out(job)),
        }
    }

    fn changes(&mut self) -> Result<Option<Vec<Bytes>>, Trouble> {
        Ok(None)
    }

    fn wall_us(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn no_task_waits_for_the_store() -> Result<(), Error> {
    let store = Store::default();
    let locks = store.connect().await?;
    let held = locks.acquire("held").await?;
    store.shut(true);
    // On the one thread of this runtime: each of these would wait for ever.
    let waiting = tokio::spawn(locks.acquire("a"));
    drop(held);
    let refused = locks
        .lock("b")
        .wait(Duration::from_millis(50))
        .acquire()
        .await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(!waiting.is_finished());
    store.shut(false);
    let lock = waiting.await.unwrap()?;
    assert!(lock.release().await?.confirmed);
    locks.close().await;
    assert!(store.inner().values.is_empty());
    Ok(())
}

#[tokio::test]
async fn what_nobody_wants_any_more_and_was_not_begun_is_not_done() -> Result<(), Error> {
    let store = Store::default();
    let locks = store.connect().await?;
    store.shut(true);
    let first = tokio::spawn(locks.acquire("a"));
    let second = tokio::spawn(locks.acquire("b"));
    // Both have asked by then: there is one thread.
    tokio::task::yield_now().await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    store.shut(false);
    first.await.unwrap()?.release().await?;
    locks.close().await;
    assert_eq!(store.log(), ["acquire lock:a", "clear lock:a"]);
    Ok(())
}

#[tokio::test]
async fn the_jobs_of_a_lease_are_done_in_order() -> Result<(), Error> {
    let store = Store::default();
    let locks = store.connect().await?;
    for _ in 0..20 {
        let lock = locks.acquire("a").await?;
        lock.held().renew_now().await?;
        drop(lock);
    }
    locks.close().await;
    let life = ["acquire lock:a", "renew lock:a", "clear lock:a"];
    assert_eq!(store.log(), life.repeat(20));
    Ok(())
}

#[tokio::test]
async fn s5_a_commit_of_which_nobody_knows_is_taken_over() -> Result<(), Error> {
    let store = Store::default();
    let locks = store.connect().await?;
    store.fail_next(StoreFault::Io, true);
    let lock = locks.acquire("a").await?;
    assert!(lock.is_held());
    let log = store.log();
    assert_eq!(log.first().map(String::as_str), Some("acquire lock:a"));
    assert!(log.contains(&"adopt lock:a".to_owned()), "{log:?}");
    assert!(lock.release().await?.confirmed);
    // Of a single try it is cleared.
    store.fail_next(StoreFault::Io, true);
    let refused = locks.try_acquire("b").await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    store.until(|inner| inner.values.is_empty()).await;
    Ok(())
}

#[tokio::test]
async fn a_store_that_does_not_work_is_opened_anew_and_nothing_is_lost() -> Result<(), Error> {
    let store = Store::default();
    let locks = store.connect().await?;
    let lock = locks.acquire("a").await?;
    store.fail_next(StoreFault::Io, false);
    let failed = lock.held().renew_now().await;
    assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
    store.until(|inner| inner.opened == 2).await;
    // It is renewed at once, without anybody's doing.
    store
        .until(|inner| inner.log.contains(&"renew lock:a".to_owned()))
        .await;
    assert!(lock.is_held());
    // One that is only busy is not.
    store.fail_next(StoreFault::Busy, false);
    assert!(lock.held().renew_now().await.is_err());
    lock.held().renew_now().await?;
    assert_eq!(store.inner().opened, 2);
    Ok(())
}

#[tokio::test]
async fn s10_what_waiting_cannot_cure_ends_the_wait_and_says_why() -> Result<(), Error> {
    for (fault, denied) in [(StoreFault::Denied, true), (StoreFault::Unusable, false)] {
        let store = Store::default();
        let locks = store.connect().await?;
        store.fail_next(fault, false);
        let error = locks.acquire("a").await.unwrap_err();
        match denied {
            true => assert!(matches!(error, Error::Denied(_)), "{error}"),
            false => assert!(matches!(error, Error::Misconfigured(_)), "{error}"),
        }
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert!(!error.is_retryable());
    }
    Ok(())
}

#[tokio::test]
async fn replicas_are_refused() -> Result<(), Error> {
    let locks = Store::default().connect().await?;
    let options = LockOptions::new().replicas(1, Duration::from_millis(100));
    let refused = locks.lock("a").options(options).acquire().await;
    assert!(
        matches!(refused, Err(Error::Misconfigured(_))),
        "{refused:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_store_that_panics_is_opened_anew_and_what_waits_goes_on() -> Result<(), Error> {
    let store = Store::default();
    let locks = store.connect().await?;
    store.inner().panics = true;
    let lock = locks.acquire("a").await?;
    assert_eq!(store.inner().opened, 2);
    assert!(lock.release().await?.confirmed);
    locks.close().await;
    assert!(store.inner().values.is_empty());
    Ok(())
}

#[tokio::test]
async fn s11_a_file_without_its_store_says_which_feature_to_add() -> Result<(), Error> {
    let config = Config::from_url("sqlite:locks.db")?;
    let refused = tenure_client::connect_with(TokioBinding::new(), &config);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("feature `sqlite`"), "{text}");
    Ok(())
}
