//! A future may be dropped at any instant: a round trip later nothing is left of it, and nobody renews it.
//!
//! The instants are spread over the whole life of a request, half of them around the arrival of its reply. Replies
//! and requests are delayed, so that there is time to be dropped in. What is dropped is either not polled again
//! after its first poll, or polled all the time: then a lock that was granted is dropped with it.

use std::future::{Future, poll_fn};
use std::hint::spin_loop;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tenure_client::Held;
use tenure_tests::tenure::LONG;
use tenure_tests::{
    Client, Cut, Failure, Proxy, Seen, Server, ServerKind, Side, Tenure, Told, Watch, eventually,
    key_of,
};

type Outcome = Result<(), Failure>;

/// So long that a key that is gone in time did not expire, and so short that a hold that nobody wants is renewed
/// before the test ends.
const LEASE: Duration = Duration::from_secs(5);
/// How long a request and a reply are on their way, together.
const TRIP: Duration = Duration::from_millis(8);
/// Beyond the round trips there are: for threads to get their turn.
const SLACK: Duration = Duration::from_millis(250);
/// When a server that does not answer is given up.
const LIMIT: Duration = Duration::from_millis(500);
/// What a server that can be reached again may take to be found.
const RECONNECT: Duration = Duration::from_secs(1);

struct Scene {
    client: Client,
    watch: Watch,
    proxy: Proxy,
    tenure: Tenure,
    server: Server,
    names: usize,
    /// The time from the first poll to the arrival of the reply.
    trip: Duration,
}

impl Scene {
    fn set(kind: ServerKind) -> Result<Self, Failure> {
        let server = Server::start(kind, &[])?;
        let proxy = Proxy::start(server.addr())?;
        let tenure = Tenure::start(&proxy.url(), |config| {
            config
                .label("me")
                .reconnect_limit(TRIP * 2)
                .connect_limit(LIMIT)
                .reply_limit(LIMIT)
        })?;
        tenure.wait(tenure.locks().ready())??;
        let mut scene = Self {
            client: server.client()?,
            watch: Watch::start(&server)?,
            proxy,
            tenure,
            server,
            names: 0,
            trip: TRIP,
        };
        scene.delay(TRIP / 2, TRIP / 2);
        let mut trips = Vec::new();
        for _ in 0..9 {
            let name = scene.next();
            let began = Instant::now();
            let lock = scene.tenure.hold(&name, LEASE)?;
            trips.push(began.elapsed());
            scene.tenure.release(lock)?;
        }
        trips.sort();
        scene.trip = trips[trips.len() / 2];
        scene.watch.forget()?;
        Ok(scene)
    }

    fn delay(&self, requests: Duration, replies: Duration) {
        self.proxy.delay(Side::ToServer, requests);
        self.proxy.delay(Side::ToClient, replies);
    }

    /// A part of the trip each, or all of it the one way.
    fn delay_as(&self, round: usize) {
        match round % 3 {
            0 => self.delay(TRIP / 2, TRIP / 2),
            1 => self.delay(TRIP, Duration::ZERO),
            _ => self.delay(Duration::ZERO, TRIP),
        }
    }

    /// A name that was not used before.
    fn next(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    /// Nothing is left of this name once everything that was sent is executed, or a round trip later.
    fn is_gone(&mut self, name: &str, within: Duration, when: &str) -> Outcome {
        // Its answer comes after those to everything before it on the connection.
        let barrier = self.next();
        let request = self.tenure.locks().lock(&barrier).lease(LEASE);
        drop(self.tenure.wait(request.acquire())??);
        let key = key_of(name);
        if eventually(within, || !self.client.exists(&key).unwrap_or(true)) {
            return Ok(());
        }
        let sent = shown(&self.watch.about(&key)?);
        Err(format!("{name} is left, {when}; sent was {sent:?}").into())
    }

    /// All is gone, and nobody renews anything, nor ever did.
    fn is_over(&mut self) -> Outcome {
        let client = &mut self.client;
        let empty = || client.keys().is_ok_and(|keys| keys.is_empty());
        assert!(eventually(SLACK, empty), "{:?}", self.client.keys());
        let seen = self.watch.all()?;
        let renewals: Vec<_> = seen.iter().filter(|seen| renews(seen)).collect();
        assert!(renewals.is_empty(), "{:?}", shown(renewals));
        // Long enough for a renewal of the last one, too.
        self.watch.forget()?;
        sleep(LEASE / 5 + SLACK);
        let seen = self.watch.all()?;
        assert!(seen.is_empty(), "{:?}", shown(&seen));
        assert_eq!(self.client.keys()?, [""; 0]);
        Ok(())
    }

    fn count(&self, condition: impl Fn(&Told) -> bool) -> usize {
        self.tenure.told().count(condition)
    }
}

/// An instant for each number below `of`: every second one is spread over `whole`, the others lie within one trip
/// around the end of the first trip, where the reply arrives.
fn instant(number: usize, of: usize, trip: Duration, whole: Duration) -> Duration {
    let at = |span: Duration| span.mul_f64(number as f64 / of as f64);
    match number.is_multiple_of(2) {
        true => at(whole),
        false => trip / 2 + at(trip),
    }
}

/// Polls a future once, or again and again, and drops it with whatever it gave this long after the first poll.
fn drop_after<F: Future>(future: F, span: Duration, often: bool) {
    let mut context = Context::from_waker(Waker::noop());
    let began = Instant::now();
    let mut future = Box::pin(future);
    let mut output = future.as_mut().poll(&mut context);
    while let Some(left) = span.checked_sub(began.elapsed()) {
        if often && output.is_pending() {
            output = future.as_mut().poll(&mut context);
        }
        match left.checked_sub(Duration::from_micros(500)) {
            Some(enough) => sleep(enough.min(Duration::from_micros(100))),
            None => spin_loop(),
        }
    }
    drop(future);
    drop(output);
}

/// An acquire, on a free name.
fn acquire(kind: ServerKind, instants: usize) -> Outcome {
    let mut scene = Scene::set(kind)?;
    let whole = scene.trip * 3 / 2;
    for number in 0..instants {
        scene.delay_as(number / 2);
        let often = number / 2 % 2 == 0;
        let span = instant(number, instants, scene.trip, whole);
        let name = scene.next();
        let request = scene.tenure.locks().lock(&name).lease(LEASE);
        match number % 7 {
            3 => drop_after(request.try_acquire(), span, often),
            _ => drop_after(request.acquire(), span, often),
        }
        let within = scene.trip * 2 + SLACK;
        scene.is_gone(&name, within, &format!("dropped after {span:?}"))?;
    }
    scene.is_over()?;
    // It was dropped before the answer, and after it.
    let (before, after) = (
        scene.count(|told| matches!(told, Told::Cancelled(_))),
        scene.count(|told| matches!(told, Told::Dropped(_))) - instants,
    );
    assert!(
        before > instants / 5 && after > instants / 5,
        "{before} {after}"
    );
    Ok(())
}

/// An acquire that waits behind a hold of the same process, which is released while it waits.
fn behind_a_hold_here(kind: ServerKind, instants: usize) -> Outcome {
    let mut scene = Scene::set(kind)?;
    // The answer to the release makes it the first, then comes its own attempt.
    let whole = scene.trip * 5 / 2;
    for number in 0..instants {
        scene.delay_as(number / 2);
        let often = number / 2 % 2 == 0;
        let span = instant(number, instants, scene.trip * 2, whole);
        let name = scene.next();
        let lock = scene.tenure.hold(&name, LEASE)?;
        let request = || scene.tenure.locks().lock(&name).lease(LEASE).acquire();
        let behind = request();
        let releasing = async {
            let mut behind = pin!(behind);
            let mut release = pin!(lock.release());
            let mut released = false;
            poll_fn(|cx| {
                // Queued first, then the hold is released.
                let behind = behind.as_mut().poll(cx);
                if !released {
                    released = release.as_mut().poll(cx).is_ready();
                }
                behind
            })
            .await
        };
        drop_after(releasing, span, often);
        let within = scene.trip * 2 + SLACK;
        scene.is_gone(&name, within, &format!("dropped after {span:?}"))?;
    }
    scene.is_over()
}

/// An acquire that waits behind a hold of another client, which is released while it waits.
fn behind_a_hold_elsewhere(kind: ServerKind, instants: usize) -> Outcome {
    let mut scene = Scene::set(kind)?;
    for number in 0..instants {
        scene.delay_as(number / 2);
        let often = number / 2 % 2 == 0;
        // It is refused after a trip, and after a pause of up to 20 ms it tries again.
        let span = instant(number, instants, scene.trip * 2, scene.trip * 6);
        let name = scene.next();
        let key = key_of(&name);
        scene.client.set(&key, "somebody else", Some(LEASE * 10))?;
        let acquiring = scene.tenure.locks().lock(&name).lease(LEASE).acquire();
        let (mut client, freed) = (scene.server.client()?, Instant::now() + scene.trip);
        let (mut free, held) = (false, key.clone());
        let mut acquiring = Box::pin(acquiring);
        let acquiring = poll_fn(move |cx| {
            if !free && Instant::now() >= freed {
                free = client.del(&held).unwrap_or(false);
            }
            acquiring.as_mut().poll(cx)
        });
        drop_after(acquiring, span, often);
        if scene.client.get(&key)?.as_deref() == Some(b"somebody else") {
            scene.client.del(&key)?;
        }
        let within = scene.trip * 2 + SLACK;
        scene.is_gone(&name, within, &format!("dropped after {span:?}"))?;
    }
    scene.is_over()
}

/// `run`: while it acquires, works, or releases. The work ends before the release is sent.
fn run(kind: ServerKind, instants: usize) -> Outcome {
    struct Working(Held, Arc<Mutex<Vec<bool>>>);

    impl Drop for Working {
        fn drop(&mut self) {
            let Self(held, ended) = self;
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.push(held.is_held());
        }
    }

    let mut scene = Scene::set(kind)?;
    let ended = Arc::new(Mutex::new(Vec::new()));
    let whole = scene.trip * 4;
    for number in 0..instants {
        scene.delay_as(number);
        let span = instant(number, instants, scene.trip, whole);
        let name = scene.next();
        let request = scene.tenure.locks().lock(&name).lease(LEASE);
        let work = scene.trip;
        let running = request.run(|held| {
            let working = Working(held, Arc::clone(&ended));
            let until = Instant::now() + work;
            async move {
                poll_fn(|_| match Instant::now() >= until {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                })
                .await;
                drop(working);
            }
        });
        drop_after(running, span, true);
        let within = scene.trip * 2 + SLACK;
        scene.is_gone(&name, within, &format!("dropped after {span:?}"))?;
    }
    scene.is_over()?;
    let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(ended.len() > instants / 3, "worked {} times", ended.len());
    assert!(ended.iter().all(|held| *held), "released under the work");
    Ok(())
}

/// The connection is reset while an acquire is on its way, and the future is dropped before, with or after it.
fn cut(kind: ServerKind, instants: usize) -> Outcome {
    let mut scene = Scene::set(kind)?;
    let whole = scene.trip * 3 / 2;
    let mut executed = 0;
    for number in 0..instants {
        scene.delay_as(number / 3);
        let span = instant(number, instants, scene.trip, whole);
        let name = scene.next();
        let acquiring = scene.tenure.locks().lock(&name).lease(LEASE).acquire();
        let connections = scene.count(|told| *told == Told::Connected);
        match number % 3 {
            // Before: its clean-up is lost with the connection.
            0 => {
                drop_after(acquiring, span, true);
                scene.proxy.cut(Cut::Reset);
            }
            // After: it knows that its attempt is without an answer, and may have asked again.
            1 => {
                let proxy = &scene.proxy;
                let mut acquiring = Box::pin(acquiring);
                let began = Instant::now();
                let mut whole = true;
                let acquiring = poll_fn(move |cx| {
                    if whole && began.elapsed() >= span {
                        whole = false;
                        proxy.cut(Cut::Reset);
                    }
                    acquiring.as_mut().poll(cx)
                });
                drop_after(
                    acquiring,
                    span + Duration::from_millis(number as u64 % 5 * 8),
                    true,
                );
            }
            // Right after the bytes reached the server, whose answer never comes.
            _ => {
                scene.proxy.hold(Side::ToClient);
                let proxy = &scene.proxy;
                let mut acquiring = Box::pin(acquiring);
                let mut context = Context::from_waker(Waker::noop());
                assert!(acquiring.as_mut().poll(&mut context).is_pending());
                let (client, key) = (&mut scene.client, key_of(&name));
                assert!(eventually(LONG, || client.exists(&key).unwrap_or(false)));
                executed += 1;
                if number % 2 == 0 {
                    proxy.cut(Cut::Reset);
                    drop(acquiring);
                } else {
                    drop(acquiring);
                    proxy.cut(Cut::Reset);
                }
                proxy.release(Side::ToClient);
            }
        }
        let told = scene.tenure.told();
        if number % 3 != 1 {
            told.wait_for(connections + 1, LONG, |told| *told == Told::Connected)?;
        }
        scene.is_gone(&name, RECONNECT, &format!("cut after {span:?}, {number}"))?;
        // One that went on after the cut may have taken a leftover over and confirmed it, which is a renewal to look at.
        let seen = scene.watch.about(&key_of(&name))?;
        assert!(number % 3 != 0 || !seen.iter().any(renews), "{seen:?}");
        scene.watch.forget()?;
    }
    assert!(executed >= instants / 3);
    scene.is_over()
}

/// The server is frozen when an acquire reaches it. It goes on after the future was dropped: in time for the same
/// connection, or when that was given up.
fn frozen(kind: ServerKind, instants: usize) -> Outcome {
    let mut scene = Scene::set(kind)?;
    for number in 0..instants {
        let span = instant(number, instants, scene.trip, scene.trip * 2);
        let name = scene.next();
        let acquiring = scene.tenure.locks().lock(&name).lease(LEASE).acquire();
        let faults = || scene.count(|told| matches!(told, Told::Disconnected(_)));
        let known = faults();
        scene.server.freeze()?;
        drop_after(acquiring, span, number % 4 < 2);
        let given_up = number % 2 == 0;
        if given_up {
            scene.tenure.told().wait_for(known + 1, LONG, |told| {
                matches!(told, Told::Disconnected(_))
            })?;
        }
        scene.server.thaw()?;
        scene.is_gone(&name, RECONNECT, &format!("{span:?}, {given_up}"))?;
    }
    scene.is_over()
}

/// A renewal: `SET` of a value in place of the same, or a script that is given one value and a time.
fn renews(seen: &Seen) -> bool {
    match seen.name().as_str() {
        "SET" => seen.args.get(3).is_some_and(|arg| arg == b"IFEQ") && seen.args[2] == seen.args[4],
        "EVAL" | "EVALSHA" => seen.args.len() == 6,
        _ => false,
    }
}

fn shown<'a>(seen: impl IntoIterator<Item = &'a Seen>) -> Vec<String> {
    let words = |seen: &Seen| {
        (0..seen.args.len())
            .map(|at| seen.arg(at))
            .collect::<Vec<_>>()
    };
    seen.into_iter().map(|seen| words(seen).join(" ")).collect()
}

/// One test for each way to be dropped and server, with that many instants.
macro_rules! tests {
    ($( $name:ident: $way:ident, $kind:ident, $instants:expr; )*) => { $(
        #[test]
        fn $name() -> Outcome {
            match ServerKind::all_required().contains(&ServerKind::$kind) {
                true => $way(ServerKind::$kind, $instants),
                false => Ok(()),
            }
        }
    )* };
}

tests! {
    an_acquire_dropped_at_any_instant_leaves_nothing_on_redis_8_6: acquire, Redis86, 200;
    an_acquire_dropped_at_any_instant_leaves_nothing_on_valkey_9_1: acquire, Valkey91, 200;
    an_acquire_dropped_at_any_instant_leaves_nothing_on_redis_7_0: acquire, Redis70, 60;
    a_request_behind_a_hold_here_leaves_nothing_on_redis_8_6: behind_a_hold_here, Redis86, 60;
    a_request_behind_a_hold_here_leaves_nothing_on_valkey_9_1: behind_a_hold_here, Valkey91, 60;
    a_request_behind_a_hold_here_leaves_nothing_on_redis_7_0: behind_a_hold_here, Redis70, 20;
    a_request_behind_a_hold_elsewhere_leaves_nothing_on_redis_8_6: behind_a_hold_elsewhere, Redis86, 60;
    a_request_behind_a_hold_elsewhere_leaves_nothing_on_valkey_9_1: behind_a_hold_elsewhere, Valkey91, 60;
    a_request_behind_a_hold_elsewhere_leaves_nothing_on_redis_7_0: behind_a_hold_elsewhere, Redis70, 20;
    work_dropped_at_any_instant_leaves_nothing_on_redis_8_6: run, Redis86, 60;
    work_dropped_at_any_instant_leaves_nothing_on_valkey_9_1: run, Valkey91, 60;
    work_dropped_at_any_instant_leaves_nothing_on_redis_7_0: run, Redis70, 20;
    a_cut_and_a_drop_leave_nothing_on_redis_8_6: cut, Redis86, 60;
    a_cut_and_a_drop_leave_nothing_on_valkey_9_1: cut, Valkey91, 60;
    a_cut_and_a_drop_leave_nothing_on_redis_7_0: cut, Redis70, 21;
    a_frozen_server_and_a_drop_leave_nothing_on_redis_8_6: frozen, Redis86, 16;
    a_frozen_server_and_a_drop_leave_nothing_on_valkey_9_1: frozen, Valkey91, 16;
    a_frozen_server_and_a_drop_leave_nothing_on_redis_7_0: frozen, Redis70, 8;
}
