//! Threads that share a client, on real sockets.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tenure_blocking::{Cause, Config, Error, Locks};
use tenure_tests::{
    Answer, Call, Cut, Failure, Handshake, Model, Proxy, Recorder, ScriptedServer, Server,
    ServerKind, Side, Told, eventually, key_of,
};

type Outcome = Result<(), Failure>;

/// Nothing takes this long, unless it never comes.
const LONG: Duration = Duration::from_secs(20);
/// When a server that does not answer is given up.
const LIMIT: Duration = Duration::from_millis(300);
/// For threads to get their turn.
const SLACK: Duration = Duration::from_millis(500);

fn some_server() -> Result<Server, Failure> {
    let kinds = ServerKind::all_required();
    Server::start(*kinds.first().ok_or("no server")?, &[])
}

/// A client with limits that a test can wait for, and what it was told.
fn impatient(url: &str) -> Result<(Locks, Arc<Recorder>), Failure> {
    let told = Arc::new(Recorder::default());
    let config = Config::from_url(url)?
        .connect_limit(LIMIT)
        .reply_limit(LIMIT)
        .reconnect_limit(Duration::from_millis(20))
        .observe(Arc::<Recorder>::clone(&told));
    Ok((tenure_blocking::connect_lazily(&config)?, told))
}

/// A server that needs no script.
fn modern() -> Handshake {
    Handshake {
        version: "8.6.0".into(),
        ..Handshake::default()
    }
}

/// 16 threads, one connection, and never two inside.
#[test]
fn many_threads_share_a_connection_and_exclude_each_other() -> Outcome {
    const THREADS: usize = 16;
    const PAIRS: usize = 200;
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let locks = tenure_blocking::connect(&server.url())?;
        let inside = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (locks, inside, done) = (locks.clone(), &inside, &done);
                scope.spawn(move || {
                    for pair in 0..PAIRS {
                        // Two names, so that requests also cross each other on the connection.
                        let which = (thread + pair) % 2;
                        let lock = locks.acquire(["a", "b"][which]).unwrap();
                        assert_eq!(inside[which].fetch_add(1, Ordering::SeqCst), 0);
                        assert!(lock.is_held());
                        assert_eq!(inside[which].fetch_sub(1, Ordering::SeqCst), 1);
                        match pair % 3 {
                            0 => drop(lock),
                            _ => assert!(lock.release().unwrap().confirmed),
                        }
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), THREADS * PAIRS);
        let list = server.client()?.ok(&["CLIENT", "LIST"])?.text();
        assert_eq!(list.matches("name=tenure").count(), 1, "{list}");
        locks.close();
        assert!(server.client()?.keys()?.is_empty(), "{kind}");
    }
    Ok(())
}

#[test]
fn a_unix_socket_does_as_well() -> Outcome {
    let server = some_server()?;
    let url = format!("redis+unix://{}", server.socket_path().display());
    let locks = tenure_blocking::connect(&url)?;
    for _ in 0..50 {
        assert!(locks.acquire("a")?.release()?.confirmed);
    }
    locks.close();
    Ok(())
}

/// A host name may have several addresses, of which only some answer.
#[test]
fn names_are_resolved_and_every_address_is_tried() -> Outcome {
    let server = some_server()?;
    let url = format!("redis://localhost:{}/", server.port());
    let locks = tenure_blocking::connect(&url)?;
    assert!(locks.acquire("a")?.release()?.confirmed);
    let error = tenure_blocking::connect("redis://no-such-host.invalid/").unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    let port = tenure_tests::server::free_port()?;
    let error = tenure_blocking::connect(&format!("redis://127.0.0.1:{port}/")).unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    Ok(())
}

/// Replies come in order. Of two callers the one whose reply comes first may have begun to wait first, and both get theirs
/// at once when they come.
#[test]
fn callers_whose_requests_are_in_flight_together_all_get_their_answers() -> Outcome {
    let open = Arc::new(AtomicBool::new(false));
    let server = ScriptedServer::start(modern(), {
        let open = Arc::clone(&open);
        let mut model = Model::new(ServerKind::Redis86);
        move |call: &Call| -> Answer {
            let late = Instant::now() + LONG;
            while call.is("SET") && !open.load(Ordering::SeqCst) && Instant::now() < late {
                thread::sleep(Duration::from_millis(1));
            }
            model.answer(call)
        }
    })?;
    let locks = tenure_blocking::connect(&server.url())?;
    let (sender, acquired) = channel();
    let waiting: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|name| {
            let (locks, sender) = (locks.clone(), sender.clone());
            let waiting = thread::spawn(move || {
                let lock = locks.acquire(name).unwrap();
                sender.send(Instant::now()).unwrap();
                lock.release().unwrap();
            });
            // The first is on the socket before the others ask.
            thread::sleep(Duration::from_millis(30));
            waiting
        })
        .collect();
    let opened = Instant::now();
    open.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let at = acquired.recv_timeout(LONG)?;
        assert!(at - opened < SLACK, "{:?}", at - opened);
    }
    waiting.into_iter().for_each(|one| one.join().unwrap());
    Ok(())
}

/// Who waits for a lock that somebody else holds has nothing in flight: others go on as if they were alone.
#[test]
fn a_caller_that_waits_for_long_delays_nobody() -> Outcome {
    let server = some_server()?;
    server
        .client()?
        .set(&key_of("taken"), "somebody", Some(LONG))?;
    let locks = tenure_blocking::connect(&server.url())?;
    let waiting = thread::spawn({
        let locks = locks.clone();
        move || locks.acquire("taken").map(drop)
    });
    thread::sleep(Duration::from_millis(20));
    let began = Instant::now();
    for _ in 0..500 {
        locks.acquire("a")?.release()?;
    }
    // With each of them delayed by a slice of the driver's it would be seconds.
    assert!(began.elapsed() < LONG / 4, "{:?}", began.elapsed());
    server.client()?.del(&key_of("taken"))?;
    waiting.join().unwrap()?;
    Ok(())
}

/// The server is silent: the driver ends the connection, and the thread that waits on it hears of that.
#[test]
fn an_overdue_reply_wakes_the_thread_that_waits_on_the_socket() -> Outcome {
    let mut model = Model::new(ServerKind::Redis86);
    let server = ScriptedServer::start(modern(), move |call: &Call| -> Answer {
        match call.connection {
            0 => Answer::stall(),
            _ => model.answer(call),
        }
    })?;
    let (locks, told) = impatient(&server.url())?;
    locks.ready()?;
    let began = Instant::now();
    let lock = locks.lock("a").wait(LONG).acquire()?;
    let took = began.elapsed();
    assert!(took >= LIMIT && took < LIMIT + SLACK * 2, "{took:?}");
    assert_eq!(told.count(|it| matches!(it, Told::Disconnected(_))), 1);
    assert!(lock.release()?.confirmed);
    Ok(())
}

#[test]
fn a_cut_connection_is_made_anew_while_a_thread_waits_on_it() -> Outcome {
    let server = some_server()?;
    let proxy = Proxy::start(server.addr())?;
    for how in [Cut::Reset, Cut::Fin] {
        let (locks, told) = impatient(&proxy.url())?;
        locks.ready()?;
        locks.acquire("warm")?.release()?;
        proxy.hold(Side::ToClient);
        let waiting = thread::spawn({
            let locks = locks.clone();
            move || locks.lock("a").wait(LONG).acquire()
        });
        thread::sleep(Duration::from_millis(50));
        proxy.cut(how);
        proxy.release(Side::ToClient);
        let lock = waiting.join().unwrap()?;
        assert!(told.count(|it| matches!(it, Told::Disconnected(_))) >= 1);
        assert!(lock.release()?.confirmed);
        locks.close();
    }
    Ok(())
}

/// After callers have read by themselves, the driver looks again at a connection that is idle.
#[test]
fn the_end_of_an_idle_connection_is_seen() -> Outcome {
    let server = some_server()?;
    let proxy = Proxy::start(server.addr())?;
    let (locks, told) = impatient(&proxy.url())?;
    locks.ready()?;
    for _ in 0..100 {
        locks.acquire("a")?.release()?;
    }
    proxy.cut(Cut::Fin);
    told.wait_for(1, SLACK, |it| matches!(it, Told::Disconnected(_)))?;
    told.wait_for(2, LONG, |it| matches!(it, Told::Connected))?;
    locks.acquire("a")?.release()?;
    Ok(())
}

#[test]
fn closing_wakes_the_thread_that_waits_on_the_socket() -> Outcome {
    let server = ScriptedServer::start(Handshake::default(), |_: &Call| Answer::stall())?;
    let locks = tenure_blocking::connect(&server.url())?;
    let waiting = thread::spawn({
        let locks = locks.clone();
        // With the server gone, the closing takes as long as the lease.
        let request = locks.lock("a").lease(Duration::from_secs(1));
        move || (request.acquire().map(drop), Instant::now())
    });
    assert!(server.wait_for(1, LONG, |call| call.is("SET")));
    thread::sleep(Duration::from_millis(20));
    let closing = thread::spawn({
        let locks = locks.clone();
        move || (Instant::now(), locks.close())
    });
    let (answer, at) = waiting.join().unwrap();
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    drop(server);
    let (closed, ()) = closing.join().unwrap();
    assert!(at - closed < SLACK);
    Ok(())
}

#[test]
fn a_deleted_key_is_told_to_who_waits_for_the_loss() -> Outcome {
    let server = some_server()?;
    let locks = tenure_blocking::connect(&server.url())?;
    let lease = Duration::from_millis(500);
    let lock = locks.lock("a").lease(lease).acquire()?;
    let calls = Arc::new(Mutex::new(Vec::new()));
    lock.on_lost({
        let calls = Arc::clone(&calls);
        move |lost| calls.lock().unwrap().push(lost)
    });
    assert_eq!(lock.lost_timeout(lease * 2), None);
    server.client()?.del(&key_of("a"))?;
    let lost = lock.lost_timeout(lease).ok_or("not told")?;
    assert_eq!(lost.cause, Cause::Gone);
    assert!(eventually(SLACK, || !calls.lock().unwrap().is_empty()));
    assert_eq!(*calls.lock().unwrap(), [lost]);
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
    Ok(())
}

/// One thread after the other drops its lock without waiting for an answer: nobody but the driver can read those.
#[test]
fn what_is_dropped_is_free_at_once() -> Outcome {
    let server = some_server()?;
    let locks = tenure_blocking::connect(&server.url())?;
    let began = Instant::now();
    for _ in 0..200 {
        drop(locks.acquire("a")?);
    }
    assert!(began.elapsed() < LONG / 10, "{:?}", began.elapsed());
    locks.close();
    assert!(server.client()?.keys()?.is_empty());
    Ok(())
}
