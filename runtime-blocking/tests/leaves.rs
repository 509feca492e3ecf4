//! What a client has open. One test, since it counts what the whole process has.

#![cfg(target_os = "linux")]

mod peer;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use peer::{LONG, Peer};

fn files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn s6_a_closed_client_that_is_kept_has_no_files() {
    let peer = Peer::start(|_, _, _| true);
    let before = files();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let locks = tenure_blocking::connect_config(&peer.config()).unwrap();
        let lock = locks.acquire("a").unwrap();
        kept.push((lock.held(), locks.clone()));
        assert!(files() > before);
        lock.release().unwrap();
        locks.close();
    }
    let late = Instant::now() + LONG;
    while files() != before {
        assert!(Instant::now() < late, "{} files, {before} before", files());
        thread::sleep(Duration::from_millis(2));
    }
    drop(kept);
}
