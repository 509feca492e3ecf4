//! A callback for a loss, in a process that was forked off. One test, since a copy has only the thread that has forked.

#![cfg(unix)]

mod peer;

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fork::{Fork, fork, waitpid};
use peer::Peer;

#[test]
fn s18_a_callback_in_a_forked_process_is_called_at_once() {
    let peer = Peer::start(|_, _, _| true);
    let locks = tenure_blocking::connect_config(&peer.config()).unwrap();
    let lock = locks.acquire("a").unwrap();
    match fork().unwrap() {
        Fork::Child => {
            let told = Arc::new(AtomicBool::new(false));
            let telling = Arc::clone(&told);
            lock.on_lost(move |_| telling.store(true, Ordering::SeqCst));
            process::exit(i32::from(!told.load(Ordering::SeqCst)));
        }
        Fork::Parent(child) => assert_eq!(waitpid(child).unwrap(), 0, "it was not told"),
    }
    assert!(lock.release().unwrap().confirmed);
}
