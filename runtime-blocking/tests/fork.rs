//! A process that was forked off. One test, since a copy has only the thread that has forked.

#![cfg(unix)]

mod peer;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process;
use std::task::{Context, Poll, Waker};

use fork::{Fork, fork, waitpid};
use peer::Peer;
use tenure_blocking::{Error, Lock, Locks};

#[test]
fn s18_a_forked_process_writes_nothing() {
    let peer = Peer::start(|_, _, _| true);
    let locks = tenure_blocking::connect_config(&peer.config()).unwrap();
    let lock = locks.acquire("a").unwrap();
    let before = peer.sent();
    let parent = process::id();
    match fork().unwrap() {
        Fork::Child => {
            let child = AssertUnwindSafe(|| in_the_child(parent, &locks, lock));
            // Without what the test runner would do at its end: that is the parent's.
            process::exit(i32::from(catch_unwind(child).is_err()));
        }
        Fork::Parent(child) => {
            assert_eq!(waitpid(child).unwrap(), 0, "the forked process failed");
        }
    }
    // Answered in order: whatever the copy had written would have been read before.
    assert!(lock.release().unwrap().confirmed);
    let sent = peer.sent();
    let since: Vec<_> = sent[before.len()..].split('*').skip(1).collect();
    assert!(since.len() == 1 && since[0].contains("DELEX"), "{since:?}");
}

fn in_the_child(parent: u32, locks: &Locks, lock: Lock) {
    let forked = Error::Forked { process: parent };
    assert_eq!(locks.acquire("b").unwrap_err(), forked);
    assert!(!lock.is_held());
    // The futures of the same client say so, too.
    let acquiring = pin!(locks.clone().into_async().acquire("b"));
    let answer = acquiring.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(answer, Poll::Ready(Err(error)) if error == forked));
    drop(lock);
    locks.close();
}
