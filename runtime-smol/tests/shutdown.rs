//! When a client is over, nothing of it is left: no task, no timer, no socket, no thread. One test, since it counts what the
//! whole process has.

#![cfg(target_os = "linux")]

mod on;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use on::{On, Scripted};
use tenure_client::connect_with;
use tenure_smol::SmolBinding;

/// Entries of a folder of this process: open files, or threads.
fn count(of: &str) -> usize {
    fs::read_dir(format!("/proc/self/{of}")).unwrap().count()
}

/// A life from connecting to closing; true if the driver was dropped by then.
fn life(on: On) -> bool {
    let server = Scripted::start(&[b"_\r\n", b":1\r\n"]);
    let dropped = Arc::new(AtomicBool::new(false));
    on.run(async {
        let (locks, driver) = connect_with(SmolBinding::new(), &server.config()).unwrap();
        let over = Dropped(Arc::clone(&dropped));
        let (done, is_done) = smol::channel::bounded::<()>(1);
        on.spawn(async move {
            let _done = done;
            let _over = over;
            driver.await;
        });
        let lock = locks.acquire("a").await.unwrap();
        assert!(lock.release().await.unwrap().confirmed);
        locks.close().await;
        // Closed with the task.
        assert!(is_done.recv().await.is_err());
    });
    let (sent, error) = server.end();
    assert!(
        sent.contains("DELEX") && error.is_none(),
        "{sent} {error:?}"
    );
    dropped.load(Ordering::Relaxed)
}

struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_closed_client_leaves_nothing_behind() {
    for on in On::EACH {
        // The executor and the reactor have their threads and files from the first use on.
        life(on);
        let before = (count("fd"), count("task"));
        for _ in 0..20 {
            assert!(life(on), "the driver has ended with its client");
        }
        let after = (count("fd"), count("task"));
        // The executor may have begun another thread of its own meanwhile; a client that leaves one leaves twenty.
        assert!(
            after.0 <= before.0 && after.1 < before.1 + 10,
            "{before:?} {after:?}"
        );
    }

    // An executor of one's own can be asked: it has no task left.
    let server = Scripted::start(&[b"_\r\n", b":1\r\n"]);
    let executor = smol::Executor::new();
    let config = server.config();
    smol::block_on(executor.run(async {
        let spawn = |driver| executor.spawn(driver).detach();
        let locks = tenure_smol::connect_on(&config, spawn).await.unwrap();
        let lock = locks.acquire("a").await.unwrap();
        assert!(!executor.is_empty());
        lock.release().await.unwrap();
        locks.close().await;
        while !executor.is_empty() {
            smol::future::yield_now().await;
        }
    }));
    server.end();
}
