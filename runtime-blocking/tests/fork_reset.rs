//! A connection that a forked process has, too. One test, since it forks.

#![cfg(any(target_os = "linux", target_os = "android"))]

mod peer;

use std::io::{self, Read as _};
use std::process;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid};
use peer::{LONG, Peer};

#[test]
fn s5d_a_connection_that_is_given_up_is_reset_while_a_forked_process_has_it() {
    let (sender, ended) = channel();
    let sender = Mutex::new(sender);
    let peer = Peer::start(move |connection, command, stream| {
        if connection > 0 || command == 0 {
            return true;
        }
        // Not a word more: how does it end?
        let began = Instant::now();
        let end = loop {
            match stream.read(&mut [0; 64]) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        sender.lock().unwrap().send((end, began.elapsed())).unwrap();
        false
    });
    let config = peer.config().reply_limit(Duration::from_millis(100));
    let locks = tenure_blocking::connect_config(&config).unwrap();
    let child = match fork().unwrap() {
        Fork::Child => {
            thread::sleep(Duration::from_secs(4));
            process::exit(0);
        }
        Fork::Parent(child) => child,
    };
    let lock = locks.lock("a").wait(LONG).acquire().unwrap();
    let (end, took) = ended.recv_timeout(LONG).unwrap();
    assert_eq!(end, Some(io::ErrorKind::ConnectionReset));
    assert!(took < Duration::from_secs(3), "{took:?}");
    lock.release().unwrap();
    assert_eq!(waitpid(child).unwrap(), 0);
}
