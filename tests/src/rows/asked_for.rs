//! What can be asked for with a lock: a fence, a place in a queue, a shortest hold.

use std::time::Duration;

use tenure_client::{Attempt, Error, Failure as Why, FenceFault, Lock, Reason};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, key_of};
use crate::{Client, Failure, Reply, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("fence-floor-far-ahead", floor),
    ("fence-counter-foreign", counter),
    ("fair-try-while-others-wait", fair),
    ("queue-full", full),
    ("released-before-its-minimum", minimum),
];

const NAME: &str = "orders";
/// Longer than any of these tests, so that nothing is renewed meanwhile.
const ENDLESS: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn helper(suffix: &str) -> String {
    format!("lock:{{{}}}:{suffix}", key_of(NAME))
}

fn refused(tenure: &Tenure, floor: u64, fault: FenceFault) -> Result<(), Failure> {
    let request = tenure.locks().lock(NAME).lease(ENDLESS).fence_from(floor);
    match tenure.wait(request.acquire())? {
        Err(Error::Misconfigured(Reason::Failure { failure, .. })) => {
            assert_eq!(failure, Why::Fence(fault));
            Ok(())
        }
        other => Err(format!("it got {other:?}").into()),
    }
}

/// A time that is further ahead than a fence may be, in microseconds.
fn far_ahead(client: &mut Client) -> Result<u64, Failure> {
    let Reply::Array(parts) = client.ok(&["TIME"])? else {
        return Err("no time".into());
    };
    let secs: u64 = parts.first().ok_or("no time")?.text().parse()?;
    let ahead = Duration::from_secs(secs) + DAY + ENDLESS;
    Ok(ahead.as_micros().try_into()?)
}

fn floor(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    refused(&tenure, far_ahead(&mut client)?, FenceFault::Floor)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn counter(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let counter = helper("fence");
    client.set(&counter, "not a number", None)?;
    refused(&tenure, 0, FenceFault::Foreign)?;
    assert_eq!(client.keys()?, [&*counter]);
    assert_eq!(client.get(&counter)?.as_deref(), Some(&b"not a number"[..]));

    client.del(&counter)?;
    client.ok(&["RPUSH", &counter, "x"])?;
    refused(&tenure, 0, FenceFault::Foreign)?;
    assert_eq!(client.keys()?, [&*counter]);
    let lock = tenure.hold(NAME, ENDLESS)?;
    tenure.release(lock)
}

fn fair(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let holder = Tenure::connect(&server.url(), "holder")?;
    let other = Tenure::connect(&server.url(), "other")?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let request = |of: &Tenure| of.locks().lock(NAME).lease(ENDLESS).waiter_lease(ENDLESS);
    let waiting = |client: &mut Client| match client.ok(&["ZCARD", &helper("queue")]) {
        Ok(Reply::Int(count)) => count,
        _ => -1,
    };
    let is_refused = || -> Result<(), Failure> {
        match tenure.wait(request(&tenure).try_acquire())?? {
            Attempt::Held(_) => Ok(()),
            Attempt::Acquired(_) => Err("it overtook".into()),
        }
    };
    let held = holder.wait(request(&holder).acquire())??;
    let next = other.spawn(request(&other).acquire());
    assert!(eventually(LONG, || waiting(&mut client) == 1));
    is_refused()?;
    assert_eq!(waiting(&mut client), 1);
    holder.release(held)?;
    is_refused()?;
    let lock: Lock = other.wait(next)???;
    other.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn full(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let holder = Tenure::connect(&server.url(), "holder")?;
    let other = Tenure::connect(&server.url(), "other")?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let request = |of: &Tenure| of.locks().lock(NAME).lease(ENDLESS).waiter_lease(ENDLESS);
    let mut waiting = || match client.ok(&["ZCARD", &helper("queue")]) {
        Ok(Reply::Int(count)) => count,
        _ => -1,
    };
    let held = holder.wait(request(&holder).acquire())??;
    let next = other.spawn(request(&other).max_waiters(1).acquire());
    assert!(eventually(LONG, || waiting() == 1));
    // By its text the first time, and by its SHA after that.
    for _ in 0..2 {
        match tenure.wait(request(&tenure).max_waiters(1).acquire())? {
            Err(Error::QueueFull) => {}
            other => return Err(format!("it got {other:?}").into()),
        }
    }
    assert_eq!(waiting(), 1);
    holder.release(held)?;
    let lock: Lock = other.wait(next)???;
    other.release(lock)?;
    let lock = tenure.wait(request(&tenure).max_waiters(1).acquire())??;
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn minimum(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let other = Tenure::connect(&server.url(), "another")?;
    let rest = Duration::from_secs(2);
    let request = tenure.locks().lock(NAME).lease(ENDLESS).at_least(rest);
    let lock = tenure.wait(request.acquire())??;
    tenure.release(lock)?;
    let left = client.pttl(&key_of(NAME))?.ok_or("there is no key")?;
    assert!(left <= rest, "{left:?}");
    let attempt = other.wait(other.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted")?;
    assert!(holder.cooling);
    assert_eq!(holder.label.as_deref(), Some("me"));
    let lock = other.wait(other.locks().lock(NAME).lease(ENDLESS).acquire())??;
    other.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}
