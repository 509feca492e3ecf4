//! A fork on the thread of the driver. One test, since a copy has only the thread that has forked.

#![cfg(unix)]

mod peer;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use peer::{LONG, Peer};

#[test]
fn s18_a_process_that_a_callback_forks_off_drives_nothing() {
    let peer = Peer::start(|_, _, _| true);
    let locks = tenure_blocking::connect_config(&peer.config()).unwrap();
    // The peer answers no renewal as it should: the lock is gone at the first.
    let request = locks.lock("a").lease(Duration::from_millis(500));
    let lock = request.acquire().unwrap();
    let request = locks.lock("b").lease(Duration::from_secs(5));
    let _other = request.acquire().unwrap();
    let (sender, forked) = channel();
    lock.on_lost(move |_| {
        if let Ok(Fork::Parent(child)) = fork() {
            sender.send(child).unwrap();
        }
    });
    let child = forked.recv_timeout(LONG).unwrap();
    // It has ended, and not gone on with the renewals of the other lock.
    assert_eq!(waitpid(child).unwrap(), 0);
    thread::sleep(Duration::from_millis(1500));
    let sent = peer.sent();
    let other: Vec<_> = sent
        .split('*')
        .filter(|words| words.contains("lock:b\r\n"))
        .collect();
    assert_eq!(other.len(), 2, "the grant and one renewal: {other:?}");
}
