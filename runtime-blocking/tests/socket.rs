//! Threads that wait on the socket by themselves, and what becomes of it.

mod peer;

use std::io::{self, Read as _};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use peer::{LONG, Peer};

/// When an answer that does not come is given up.
const LIMIT: Duration = Duration::from_millis(100);

/// The thread that waits on a socket keeps it open. It lets go at once, and not when it has its answer.
#[test]
fn s5d_a_connection_that_is_given_up_is_reset_while_a_thread_waits_on_it() {
    let (sender, ended) = channel();
    let sender = Mutex::new(sender);
    let is_reset = Arc::new(AtomicBool::new(false));
    let peer = Peer::start({
        let is_reset = Arc::clone(&is_reset);
        move |connection, command, stream| {
            if (connection, command) == (0, 0) {
                return true;
            }
            if connection > 0 {
                // Whatever is asked anew is answered afterwards.
                return is_reset.load(Ordering::SeqCst);
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
            is_reset.store(true, Ordering::SeqCst);
            let _ = sender.lock().unwrap().send((end, began.elapsed()));
            false
        }
    });
    let config = peer.config().reply_limit(LIMIT);
    let locks = tenure_blocking::connect_config(&config).unwrap();
    let waiting = thread::spawn({
        let request = locks.lock("a").wait(LONG);
        move || request.acquire()
    });
    let (end, took) = ended.recv_timeout(2 * LONG).unwrap();
    assert_eq!(end, Some(io::ErrorKind::ConnectionReset));
    assert!(took < LIMIT + Duration::from_secs(2), "{took:?}");
    assert!(waiting.join().unwrap().unwrap().is_held());
}

/// A thread that borrows the waiting and needs none of it, since its request is answered here, leaves it to others.
#[test]
fn s17_a_thread_that_has_nothing_to_wait_for_gives_the_waiting_back() {
    const PAIRS: u32 = 40;
    let peer = Peer::start(|_, _, _| true);
    let locks = tenure_blocking::connect_config(&peer.config()).unwrap();
    let held = locks.acquire("a").unwrap();
    let began = Instant::now();
    for _ in 0..PAIRS {
        assert!(locks.try_acquire("a").unwrap().acquired().is_none());
        assert!(locks.acquire("b").unwrap().release().unwrap().confirmed);
    }
    // Else each answer is read when the driver looks, which is 10 ms later.
    let took = began.elapsed();
    assert!(took < PAIRS * Duration::from_millis(10), "{took:?}");
    assert!(held.is_held());
}

/// Between the requests of threads that read by themselves the driver looks at the connection again, soon.
#[test]
fn s17_the_end_of_an_idle_connection_is_seen() {
    // Enough for the driver to have looked away by then.
    const PAIRS: usize = 300;
    let (sender, greeted) = channel();
    let sender = Mutex::new(sender);
    let peer = Peer::start(move |connection, command, stream| {
        match (connection, command) {
            (_, 0) => drop(sender.lock().unwrap().send(connection)),
            // The last release: its answer arrives, and then the end.
            (0, last) if last == 2 * PAIRS => {
                let stream = stream.try_clone().unwrap();
                thread::spawn(move || {
                    thread::sleep(LIMIT);
                    stream.shutdown(Shutdown::Both)
                });
            }
            _ => {}
        }
        true
    });
    let locks = tenure_blocking::connect_config(&peer.config()).unwrap();
    for _ in 0..PAIRS {
        assert!(locks.acquire("a").unwrap().release().unwrap().confirmed);
    }
    assert_eq!(greeted.recv_timeout(LONG), Ok(0));
    // It connects anew without being asked for anything, and before the limit of a reply, when it wakes in any case.
    assert_eq!(greeted.recv_timeout(LIMIT + Duration::from_secs(2)), Ok(1));
}
