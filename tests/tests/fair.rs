//! First come, first served, on real servers.

use std::future::{Future as _, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tenure_client::{Attempt, Config, Error, Lock, Locks, Request};
use tenure_core::rng::Rng;
use tenure_tests::{
    Client, Cut, Failure, Proxy, Reply, Server, ServerKind, Side, Tenure, eventually, key_of,
};
use tokio::task::JoinHandle;

type Outcome = Result<(), Failure>;

/// Nothing takes this long, unless it never comes.
const LONG: Duration = Duration::from_secs(20);
/// Nothing expires before a test would have failed.
const LEASE: Duration = Duration::from_secs(300);
/// Longer than a test.
const PATIENT: Duration = Duration::from_secs(120);
const QUEUE: &str = "lock:{lock:a}:queue";
const ALIVE: &str = "lock:{lock:a}:alive";

type Asking = JoinHandle<Result<Lock, Error>>;

/// On a server of each kind, with that many clients that ask for nothing while they wait, but keep their places.
fn each(clients: usize, show: impl Fn(&mut Server, &[Tenure], &mut Client) -> Outcome) -> Outcome {
    for kind in ServerKind::all_required() {
        let mut server = Server::start(kind, &[])?;
        let clients = (0..clients).map(|client| {
            let label = format!("client-{client}");
            Tenure::start(&server.url(), |config| told_only(config).label(&label))
        });
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let mut client = server.client()?;
        show(&mut server, &clients, &mut client).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

/// It is woken, or waits for ever.
fn told_only(config: Config) -> Config {
    config.poll_limit(Duration::MAX)
}

fn fair(tenure: &Tenure) -> Request {
    let request = tenure.locks().lock("a").lease(LEASE);
    request.waiter_lease(PATIENT)
}

/// Asks now, and lets it wait; who asks next comes a good deal later than a command takes.
fn ask(tenure: &Tenure, request: Request) -> Result<Asking, Failure> {
    let mut asking = Box::pin(request.acquire());
    tenure.wait(poll_fn(|cx| {
        assert!(asking.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    }))?;
    thread::sleep(Duration::from_millis(20));
    Ok(tenure.spawn(asking))
}

fn got(tenure: &Tenure, asking: Asking) -> Result<Lock, Failure> {
    Ok(tenure.wait_at_most(LONG, asking)???)
}

fn waiting(client: &mut Client) -> Result<i64, Failure> {
    match client.ok(&["ZCARD", QUEUE])? {
        Reply::Int(count) => Ok(count),
        other => Err(format!("{other:?}").into()),
    }
}

/// Waits until so many stand in the queue.
fn stand(client: &mut Client, count: i64) -> Outcome {
    match eventually(LONG, || waiting(client).is_ok_and(|it| it == count)) {
        true => Ok(()),
        false => Err(format!("{} wait, not {count}", waiting(client)?).into()),
    }
}

/// One after the other comes, and gets the name in that order: with a fence or without, of one process or several.
#[test]
fn s19_first_come_first_served() -> Outcome {
    each(4, |_, clients, client| {
        let held = clients[0].wait(fair(&clients[0]).acquire())??;
        let mut asked = Vec::new();
        for turn in 0..12 {
            let tenure = &clients[turn * 7 % 4];
            let request = fair(tenure);
            let request = match turn % 3 {
                0 => request.fenced(),
                _ => request,
            };
            asked.push((tenure, ask(tenure, request)?));
            // Of each process the first stands for the others, and nobody for that of the holder.
            stand(client, (asked.len() - 1).min(3) as i64)?;
        }
        for key in [QUEUE, ALIVE] {
            assert!(client.pttl(key)?.is_some_and(|ttl| ttl <= PATIENT));
        }
        let (mut last, mut fence) = (held, 0);
        for (tenure, asking) in asked {
            // Never free in between: a try that is not fair finds it taken, too.
            clients[0].release(last)?;
            let tried = clients[1].wait(clients[1].locks().try_acquire("a"))??;
            assert!(matches!(tried, Attempt::Held(_)), "{tried:?}");
            last = got(tenure, asking)?;
            if let Some(newer) = last.fence() {
                assert!(newer > fence);
                fence = newer;
            }
        }
        clients[0].release(last)?;
        assert!(!client.exists(QUEUE)? && !client.exists(ALIVE)? && !client.exists("lock:a")?);
        Ok(())
    })
}

/// A single try gets the name only if nobody waits for it, and passes it on where it is free.
#[test]
fn s19_a_try_does_not_overtake() -> Outcome {
    each(3, |_, clients, client| {
        let try_fair = |tenure: &Tenure| tenure.wait(fair(tenure).try_acquire());
        let held = clients[0].wait(fair(&clients[0]).acquire())??;
        let asking = ask(&clients[1], fair(&clients[1]))?;
        stand(client, 1)?;
        // Deleted by somebody who knows nothing of the queue, and the one who waits is held up by its own process.
        assert!(matches!(try_fair(&clients[2])??, Attempt::Held(_)));
        assert_eq!(waiting(client)?, 1);
        clients[0].release(held)?;
        let lock = got(&clients[1], asking)?;
        assert!(matches!(try_fair(&clients[2])??, Attempt::Held(_)));
        clients[1].release(lock)?;
        let lock = try_fair(&clients[2])??.acquired().ok_or("nobody waits")?;
        clients[2].release(lock)?;
        assert!(client.keys()?.is_empty(), "{:?}", client.keys()?);
        Ok(())
    })
}

/// Whoever gives up, by a limit or by being dropped, leaves the queue at once, also if the name was just passed on to it.
#[test]
fn s19_who_gives_up_leaves_the_queue() -> Outcome {
    each(3, |_, clients, client| {
        let held = clients[0].wait(fair(&clients[0]).acquire())??;
        let limited = fair(&clients[1]).wait(Duration::from_millis(300));
        let limited = ask(&clients[1], limited)?;
        stand(client, 1)?;
        let dropped = ask(&clients[2], fair(&clients[2]))?;
        stand(client, 2)?;
        dropped.abort();
        stand(client, 1)?;
        assert!(matches!(
            clients[1].wait(limited)??,
            Err(Error::TimedOut { .. })
        ));
        stand(client, 0)?;
        // The one that is first leaves at the very moment at which the name is passed on to it.
        let first = ask(&clients[1], fair(&clients[1]))?;
        let second = ask(&clients[2], fair(&clients[2]))?;
        stand(client, 2)?;
        let released = clients[0].spawn(held.release());
        first.abort();
        let lock = match clients[1].wait(first)? {
            Ok(lock) => {
                clients[1].release(lock?)?;
                got(&clients[2], second)?
            }
            Err(_) => got(&clients[2], second)?,
        };
        assert!(clients[0].wait(released)???.confirmed);
        clients[2].release(lock)?;
        assert!(client.keys()?.is_empty(), "{:?}", client.keys()?);
        Ok(())
    })
}

/// A process that dies while it waits keeps the others waiting for twice its waiter's lease at most.
#[test]
fn s19_the_dead_delay_by_twice_their_lease_at_most() -> Outcome {
    let lease = Duration::from_millis(400);
    each(2, |server, clients, client| {
        let proxy = Proxy::start(server.addr())?;
        let dead = Tenure::start(&proxy.url(), told_only)?;
        let held = clients[0].wait(fair(&clients[0]).acquire())??;
        let first = ask(&dead, fair(&dead).waiter_lease(lease))?;
        stand(client, 1)?;
        let second = ask(&clients[1], fair(&clients[1]).waiter_lease(lease))?;
        stand(client, 2)?;
        // Nothing of it arrives any more; its place is kept for a while, and the name is passed on to it.
        proxy.black_hole(true);
        let (released, asked) = (clients[0].spawn(held.release()), Instant::now());
        let lock = got(&clients[1], second)?;
        let waited = asked.elapsed();
        assert!(clients[0].wait(released)???.confirmed);
        // On a busy machine a little more.
        assert!(
            waited < 2 * lease + Duration::from_millis(400),
            "{waited:?}"
        );
        clients[1].release(lock)?;
        first.abort();
        Ok(())
    })
}

/// After a flush, and after an outage that was longer than their lease, those who wait have their old places.
#[test]
fn s19_places_are_kept_whatever_the_server_forgets() -> Outcome {
    let lease = Duration::from_millis(300);
    each(4, |server, clients, client| {
        for act in ["flush", "restart"] {
            let held = clients[0].wait(fair(&clients[0]).acquire())??;
            let mut asked = Vec::new();
            for tenure in &clients[1..] {
                asked.push((tenure, ask(tenure, fair(tenure).waiter_lease(lease))?));
                stand(client, asked.len() as i64)?;
            }
            match act {
                "flush" => drop(client.ok(&["FLUSHALL"])?),
                _ => {
                    server.restart_empty()?;
                    *client = server.client()?;
                }
            }
            drop(held);
            // Nobody has it: whoever comes back first gets it. The others have the order in which they came.
            assert!(eventually(LONG, || asked
                .iter()
                .any(|(_, it)| it.is_finished())));
            stand(client, 2)?;
            asked.sort_by_key(|(_, asking)| !asking.is_finished());
            for (tenure, asking) in asked {
                let lock = got(tenure, asking)?;
                tenure.release(lock)?;
            }
        }
        Ok(())
    })
}

/// A server that is full grants nothing. What is released on it is passed on all the same.
#[test]
fn s19_a_full_server_releases() -> Outcome {
    each(2, |_, clients, client| {
        let held = clients[0].wait(fair(&clients[0]).acquire())??;
        let asking = ask(&clients[1], fair(&clients[1]))?;
        stand(client, 1)?;
        client.config_set("maxmemory", "1")?;
        clients[0].release(held)?;
        let value = client.get(&key_of("a"))?.unwrap_or_default();
        assert!(value.starts_with(b"tn1:w:"), "{}", value.escape_ascii());
        client.config_set("maxmemory", "0")?;
        let lock = got(&clients[1], asking)?;
        clients[1].release(lock)?;
        Ok(())
    })
}

/// Who is not fair can come in between only where the name gets free without being passed on.
#[test]
fn s19_only_what_is_freed_otherwise_can_be_overtaken() -> Outcome {
    each(2, |_, clients, client| {
        let held = clients[0].wait(fair(&clients[0]).acquire())??;
        let asking = ask(&clients[1], fair(&clients[1]))?;
        stand(client, 1)?;
        // As one step: deleted, and taken by somebody who does not look at the queue.
        let take =
            "redis.call('DEL',KEYS[1]) return redis.call('SET',KEYS[1],'foreign','NX','PX',100)";
        client.ok(&["EVAL", take, "1", "lock:a"])?;
        let lock = got(&clients[1], asking)?;
        drop(held);
        clients[1].release(lock)?;
        assert!(client.keys()?.iter().all(|key| !key.contains("queue")));
        Ok(())
    })
}

/// Who asked when, and who had it when.
#[derive(Clone, Copy)]
struct Turn {
    asked: Instant,
    had: Instant,
    /// Whether anything was done to its process between the two.
    disturbed: bool,
}

/// A thousand turns of each kind of server, while connections are cut, processes stand still, and requests are given up: of two whose
/// processes were left alone the one that came first has it first.
#[test]
fn s19_a_thousand_turns_are_in_order() -> Outcome {
    /// Two that come within this on a busy machine came together.
    const TOGETHER: Duration = Duration::from_millis(100);
    const TURNS: usize = 1_000;
    for kind in [
        ServerKind::Redis86,
        ServerKind::Redis70,
        ServerKind::Valkey91,
    ] {
        let server = Server::start(kind, &[])?;
        let turns = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let mut players = Vec::new();
        for number in 0..6_u64 {
            let proxy = Proxy::start(server.addr())?;
            let tenure = Tenure::start(&proxy.url(), |config| config.reply_limit(LONG))?;
            let (turns, over) = (Arc::clone(&turns), Arc::clone(&over));
            players.push(thread::spawn(move || -> Result<(), String> {
                let troubles = Arc::new(AtomicU64::new(0));
                let mut playing = Vec::new();
                for _ in 0..2 {
                    playing.push(tenure.spawn(play(
                        tenure.locks().clone(),
                        Arc::clone(&turns),
                        Arc::clone(&over),
                        Arc::clone(&troubles),
                    )));
                }
                let mut rng = Rng::new(number);
                while !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(100 + rng.next_u64() % 400));
                    troubles.fetch_add(1, Ordering::Relaxed);
                    match rng.next_u64() % 3 {
                        0 => proxy.cut(Cut::Reset),
                        1 => {
                            proxy.hold(Side::ToServer);
                            thread::sleep(Duration::from_millis(rng.next_u64() % 200));
                            proxy.release(Side::ToServer);
                        }
                        _ => {}
                    }
                    troubles.fetch_add(1, Ordering::Relaxed);
                }
                for playing in playing {
                    let played = tenure.wait(playing).map_err(|why| why.to_string())?;
                    played.map_err(|why| why.to_string())?;
                }
                Ok(())
            }));
        }
        let count = || turns.lock().map_or(0, |turns| turns.len());
        let done = eventually(LONG * 5, || count() >= TURNS);
        over.store(true, Ordering::Relaxed);
        for player in players {
            player.join().map_err(|_| "a player panicked")??;
        }
        assert!(done, "{kind}: {} turns", count());
        let turns = turns.lock().map_err(|_| "poisoned")?.clone();
        let calm: Vec<_> = turns.iter().filter(|turn| !turn.disturbed).collect();
        assert!(
            calm.len() >= TURNS / 10,
            "{kind}: {} of them calm",
            calm.len()
        );
        for one in &calm {
            let overtaken =
                |other: &&&Turn| other.asked + TOGETHER < one.asked && other.had > one.had;
            assert_eq!(calm.iter().filter(overtaken).count(), 0, "{kind}");
        }
    }
    Ok(())
}

/// Asks again and again, and gives it back at once; now and then it does not wait to the end.
async fn play(
    locks: Locks,
    turns: Arc<Mutex<Vec<Turn>>>,
    over: Arc<AtomicBool>,
    troubles: Arc<AtomicU64>,
) {
    let mut rng = Rng::new(Arc::as_ptr(&troubles) as u64);
    while !over.load(Ordering::Relaxed) {
        let (asked, before) = (Instant::now(), troubles.load(Ordering::Relaxed));
        let request = locks.lock("a").lease(Duration::from_secs(3));
        let acquiring = request.waiter_lease(Duration::from_secs(2)).acquire();
        let patience = match rng.next_u64() % 20 {
            0 => Duration::from_millis(rng.next_u64() % 10),
            _ => LONG,
        };
        let Ok(Ok(lock)) = tokio::time::timeout(patience, acquiring).await else {
            continue;
        };
        let had = Instant::now();
        // An odd number: something is being done to it right now.
        let after = troubles.load(Ordering::Relaxed);
        let disturbed = before != after || before % 2 == 1;
        if let Ok(mut turns) = turns.lock() {
            turns.push(Turn {
                asked,
                had,
                disturbed,
            });
        }
        lock.release().await.ok();
        tokio::time::sleep(Duration::from_millis(rng.next_u64() % 4)).await;
    }
}
