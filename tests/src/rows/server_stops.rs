//! The server stops answering, or ends.

use std::thread;
use std::time::{Duration, Instant};

use tenure_client::{Cause, Error, LinkFault, Lock, Wait};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, Watch, key_of};
use crate::{Client, Failure, Seen, Server};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("server-frozen-while-waiting", frozen_while_waiting),
    ("server-frozen-briefly-while-held", frozen_briefly),
    ("server-frozen-past-the-lease", frozen_past_the_lease),
    ("server-restarted-with-data-while-held", restarted_with_data),
    (
        "server-restarted-without-data-while-held",
        restarted_without_data,
    ),
    ("server-killed-for-good-while-held", killed_for_good),
    ("server-restarted-while-waiting", restarted_while_waiting),
];

const NAME: &str = "orders";
/// Renewed every 400 ms, and an outage of 666 ms does not end it.
const LEASE: Duration = Duration::from_secs(2);
/// Given up after 600 ms, and over after 900.
const SHORT: Duration = Duration::from_millis(900);
/// For the server to be found again: a test need not wait for the usual seconds.
const LIMIT: Duration = Duration::from_millis(200);
const WAIT: Wait = Wait::For(LONG);
const SHORT_WAIT: Wait = Wait::For(SHORT);

/// A client that gives a connection up soon.
fn hasty(url: &str) -> Result<Tenure, Failure> {
    let tenure = Tenure::start(url, |config| {
        config
            .label("me")
            .connect_limit(LIMIT)
            .reply_limit(LIMIT)
            .reconnect_limit(LIMIT / 2)
    })?;
    tenure.wait(tenure.locks().ready())??;
    Ok(tenure)
}

fn frozen_while_waiting(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let unix = format!("redis+unix://{}", server.socket_path().display());
    frozen_while_waiting_at(server, &server.url())?;
    frozen_while_waiting_at(server, &unix)?;
    frozen_to_the_end(server)
}

/// Nobody knows that somebody holds it, so that is not what is said.
fn frozen_to_the_end(server: &Server) -> Result<(), Failure> {
    let mut client = server.client()?;
    // The reply is not overdue when the wait ends, or it is and the next connection says nothing either.
    for tenure in [Tenure::connect(&server.url(), "me")?, hasty(&server.url())?] {
        server.freeze()?;
        let began = Instant::now();
        let request = tenure.locks().lock(NAME).lease(LEASE).wait(SHORT_WAIT);
        let outcome = tenure.wait(request.acquire())?.map(drop);
        let took = began.elapsed();
        server.thaw()?;
        let error = outcome.err().ok_or("granted by nobody")?;
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(took >= SHORT && took < SHORT * 2, "it came after {took:?}");
        // What it had sent is executed now, and cleared.
        let next = tenure.wait(tenure.locks().acquire(NAME))??;
        tenure.release(next)?;
        assert_eq!(client.keys()?, [""; 0]);
    }

    // Who was seen is what is said, until something else is known.
    let tenure = Tenure::connect(&server.url(), "me")?;
    let other = Tenure::connect(&server.url(), "another")?;
    let lock = other.hold(NAME, LEASE * 10)?;
    let watch = Watch::start(server)?;
    let request = tenure.locks().lock(NAME).lease(LEASE).wait(SHORT_WAIT);
    let waiting = tenure.spawn(request.acquire());
    watch.wait_for(2, LONG, |seen| seen.name() == "SET")?;
    server.freeze()?;
    let outcome = tenure.wait(waiting)??.map(drop);
    server.thaw()?;
    match outcome {
        Err(Error::TimedOut { holder }) => assert_eq!(holder.label.as_deref(), Some("another")),
        other => return Err(format!("it got {other:?}").into()),
    }
    other.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn frozen_while_waiting_at(server: &Server, url: &str) -> Result<(), Failure> {
    let tenure = hasty(url)?;
    let mut client = server.client()?;
    let mut watch = Watch::start(server)?;
    let key = key_of(NAME);

    server.freeze()?;
    let request = tenure.locks().lock(NAME).lease(LEASE).wait(WAIT);
    let waiting = tenure.spawn(request.acquire());
    // The first attempt is overdue, and a second connection leads nowhere either.
    let told = tenure.told();
    told.wait_for(1, LONG, |told| {
        *told == Told::Disconnected(LinkFault::ReplyOverdue)
    })?;
    told.wait_for(1, LONG, |told| matches!(told, Told::ConnectFailed(..)))?;
    assert!(!waiting.is_finished());
    server.thaw()?;
    let lock = tenure.wait(waiting)???;
    assert!(lock.is_held());

    is_one_hold(&tenure, &mut client, &key)?;
    // Whatever the connections before had sent, each attempt had a value of its own.
    let values: Vec<_> = watch.about(&key)?.into_iter().filter_map(fresh).collect();
    for (at, value) in values.iter().enumerate() {
        assert!(!values[..at].contains(value), "a value was written twice");
    }
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    watch.silent(&key, SHORT / 2)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn frozen_briefly(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let lock = tenure.hold(NAME, LEASE)?;
    let value = client.get(&key)?;
    tenure.told().wait_for(1, LONG, renewed)?;

    // From right after a renewal on, and from right before one on: the time without an answer is longest then.
    for since_renewal in [Duration::ZERO, LEASE * 19 / 100] {
        thread::sleep(since_renewal);
        server.freeze()?;
        let until = Instant::now() + LEASE * 3 / 10;
        while Instant::now() < until {
            assert!(lock.is_held());
            thread::sleep(Duration::from_millis(5));
        }
        let known = tenure.told().renewals();
        server.thaw()?;
        tenure.told().wait_for(known + 2, LONG, renewed)?;
        assert!(lock.is_held());
        assert_eq!(client.get(&key)?, value);
    }
    is_one_hold(&tenure, &mut client, &key)?;
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn frozen_past_the_lease(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let tenure = hasty(&server.url())?;
    let mut client = server.client()?;
    let mut watch = Watch::start(server)?;
    let key = key_of(NAME);
    let lock = tenure.hold(NAME, SHORT)?;
    tenure.told().wait_for(1, LONG, renewed)?;

    server.freeze()?;
    let frozen = Instant::now();
    is_given_up(&tenure, &lock, frozen, SHORT)?;
    while frozen.elapsed() < SHORT * 2 {
        assert!(!lock.is_held());
        thread::sleep(Duration::from_millis(5));
    }
    server.thaw()?;
    // Nothing is left, and what was on its way does not make it again.
    assert_eq!(client.keys()?, [""; 0]);
    tenure
        .told()
        .wait_for(2, LONG, |told| *told == Told::Connected)?;
    watch.silent(&key, SHORT / 2)?;
    assert_eq!(client.keys()?, [""; 0]);
    assert!(!lock.is_held());
    let lost = lock.check();
    assert_eq!(tenure.wait(lock.release())?.map(drop), lost);
    let ends = tenure.told().count(Told::ends_hold);
    assert_eq!(ends, 1, "{:?}", tenure.told().all());

    let next = tenure.hold(NAME, SHORT)?;
    tenure.release(next)
}

fn restarted_with_data(context: &mut Context) -> Result<(), Failure> {
    // A start takes some time of its own.
    let lease = LEASE * 2;
    let server = context.server_with_data()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let key = key_of(NAME);
    let lock = tenure.hold(NAME, lease)?;
    let value = server.client()?.get(&key)?;
    tenure.told().wait_for(1, LONG, renewed)?;

    server.restart_with_data()?;
    let mut client = server.client()?;
    let told = tenure.told();
    let known = told.renewals();
    told.wait_for(2, LONG, |told| *told == Told::Connected)?;
    told.wait_for(known + 1, LONG, renewed)?;
    assert_eq!(client.get(&key)?, value);
    renewed_at_once(&tenure, lease)?;
    is_one_hold(&tenure, &mut client, &key)?;
    assert!(lock.is_held());
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn restarted_without_data(context: &mut Context) -> Result<(), Failure> {
    let lease = LEASE * 2;
    let server = context.server()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let key = key_of(NAME);
    let lock = tenure.hold(NAME, lease)?;
    tenure.told().wait_for(1, LONG, renewed)?;

    server.restart_empty()?;
    let lost = tenure.lost(&lock, lease)?;
    assert_eq!((lost.cause, lost.by.as_deref()), (Cause::Gone, None));
    assert!(!lock.is_held());
    let connected = tenure.told().times(|told| *told == Told::Connected);
    let is_lost = |told: &Told| matches!(told, Told::Lost(..));
    tenure.told().wait_for(1, LONG, is_lost)?;
    let lost_at = tenure.told().times(is_lost);
    let took = lost_at[0].duration_since(connected[1]);
    assert!(took < lease / 10, "told {took:?} after the reconnect");

    let mut watch = Watch::start(server)?;
    watch.silent(&key, lease / 4)?;
    assert_eq!(tenure.wait(lock.release())?, Err(Error::Lost(lost)));
    watch.silent(&key, lease / 10)?;
    assert_eq!(server.client()?.keys()?, [""; 0]);
    let next = tenure.hold(NAME, lease)?;
    tenure.release(next)
}

fn killed_for_good(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let tenure = hasty(&server.url())?;
    let held = tenure.hold(NAME, SHORT)?;
    let released = tenure.hold("second", SHORT)?;
    let dropped = tenure.hold("third", SHORT)?;
    tenure.told().wait_for(3, LONG, renewed)?;

    server.kill();
    let killed = Instant::now();
    drop(dropped);
    let release = tenure.spawn(released.release());
    is_given_up(&tenure, &held, killed, SHORT)?;
    // A release waits for its answer no longer than one lease, and says that there is none.
    let release = tenure.wait(release)??.map_err(|why| format!("{why:?}"))?;
    assert!(!release.confirmed);
    let took = killed.elapsed();
    assert!(took < SHORT * 2, "unconfirmed after {took:?}");
    // After the loss it is known at once.
    let lost = held.check();
    let released = tenure.wait_at_most(SHORT / 4, held.release())?;
    assert_eq!(released.map(drop), lost);

    // With nobody there, closing comes to an end once everything has expired.
    let locks = tenure.locks().clone();
    tenure.wait_at_most(SHORT * 3, locks.close())?;
    assert!(matches!(
        tenure.wait(locks.try_acquire(NAME))?,
        Err(Error::Closed)
    ));
    let told = tenure.told();
    told.wait_for(3, LONG, Told::ends_hold)?;
    assert_eq!(told.count(Told::ends_hold), 3, "{:?}", told.all());
    Ok(())
}

fn restarted_while_waiting(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let tenure = hasty(&server.url())?;
    let watch = Watch::start(server)?;
    let key = key_of(NAME);
    server
        .client()?
        .set(&key, "somebody else", Some(Duration::from_secs(60)))?;
    let request = tenure.locks().lock(NAME).lease(LEASE).wait(WAIT);
    let waiting = tenure.spawn(request.acquire());
    watch.wait_for(2, LONG, |seen| seen.name() == "SET")?;

    server.kill();
    let told = tenure.told();
    told.wait_for(2, LONG, |told| matches!(told, Told::ConnectFailed(..)))?;
    assert!(!waiting.is_finished());
    server.restart_empty()?;
    let lock = tenure.wait(waiting)???;
    assert!(lock.is_held());
    let mut client = server.client()?;
    is_one_hold(&tenure, &mut client, &key)?;
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

/// There is one key, of a hold that goes on: it is renewed, and nobody writes another value.
fn is_one_hold(tenure: &Tenure, client: &mut Client, key: &str) -> Result<(), Failure> {
    assert_eq!(client.keys()?, [key]);
    let value = client.get(key)?;
    tenure.told().more(2, LONG, renewed)?;
    assert_eq!(client.keys()?, [key]);
    assert_eq!(client.get(key)?, value);
    assert_eq!(
        tenure.told().count(|told| matches!(told, Told::Lost(..))),
        0,
        "{:?}",
        tenure.told().all()
    );
    Ok(())
}

/// It is told without an answer, two thirds of a lease after the last renewal: before the lease ends, with time left
/// to stop.
fn is_given_up(
    tenure: &Tenure,
    lock: &Lock,
    since: Instant,
    lease: Duration,
) -> Result<(), Failure> {
    let lost = tenure.lost(lock, LONG)?;
    let took = since.elapsed();
    let left = lock.stop_window(&lost);
    let Cause::Expired { late_by } = lost.cause else {
        return Err(format!("{lost:?}").into());
    };
    assert!(!lock.is_held());
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(lost.by, None);
    // The last renewal may be a fifth of a lease old when the trouble begins.
    assert!(took > lease / 3, "given up after {took:?}");
    assert!(took < lease && late_by < lease / 10, "{took:?} {late_by:?}");
    assert!(!left.is_zero() && left < lease / 3, "{left:?} to stop");
    Ok(())
}

/// The last renewal after the last connection came soon, not when it would have been due.
fn renewed_at_once(tenure: &Tenure, lease: Duration) -> Result<(), Failure> {
    let told = tenure.told();
    let connected = told.times(|told| *told == Told::Connected);
    let connected = connected.last().ok_or("never connected")?;
    let renewals = told.times(renewed);
    let first = renewals.iter().find(|at| *at > connected);
    let took = first.ok_or("not renewed")?.duration_since(*connected);
    assert!(took < lease / 10, "renewed {took:?} after the reconnect");
    Ok(())
}

/// The value that an attempt wants to write.
fn fresh(seen: Seen) -> Option<Vec<u8>> {
    let attempt = seen.name() == "SET" && seen.arg(3).eq_ignore_ascii_case("NX");
    attempt.then(|| seen.args[2].clone())
}

const fn renewed(told: &Told) -> bool {
    matches!(told, Told::Renewed(_))
}
