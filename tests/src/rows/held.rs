//! Somebody else holds the lock.

use std::time::{Duration, Instant};

use tenure_client::{Error, Holder, Wait};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, Watch, key_of};
use crate::{Failure, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("held-by-this-process", by_this_process),
    ("held-by-another-client", by_another_client),
    ("held-by-a-foreign-value", by_a_foreign_value),
];

const NAME: &str = "orders";
/// Longer than any of these tests, so that nothing is renewed meanwhile.
const LEASE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_millis(300);

fn by_this_process(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let mut watch = Watch::start(server)?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let key = key_of(NAME);
    let lock = tenure.hold(NAME, LEASE)?;
    let value = client.get(&key)?.ok_or("there is no key")?;
    watch.forget()?;

    let attempt = tenure.wait(tenure.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted a second time")?;
    assert_eq!(holder.label.as_deref(), Some("me"));
    let remaining = holder.remaining.ok_or("for how much longer?")?;
    assert!(remaining > LEASE / 2 && remaining <= LEASE, "{remaining:?}");

    // A request that waits does so in the process, too.
    let began = Instant::now();
    let timed_out = tenure.wait(tenure.locks().lock(NAME).wait(Wait::For(WAIT)).acquire())?;
    let took = began.elapsed();
    match timed_out {
        Err(Error::TimedOut { holder }) => assert_eq!(holder.label.as_deref(), Some("me")),
        other => return Err(format!("it got {other:?}").into()),
    }
    assert!(took >= WAIT && took < WAIT * 3, "it came after {took:?}");
    assert_eq!(watch.names(&key)?, [""; 0]);
    assert_eq!(client.get(&key)?.as_deref(), Some(&value[..]));

    let next = tenure.spawn(tenure.locks().lock(NAME).lease(LEASE).acquire());
    assert_eq!(watch.names(&key)?, [""; 0]);
    assert!(!next.is_finished());
    tenure.release(lock)?;
    let next = tenure.wait(next)???;
    assert!(next.is_held());
    let newer = client.get(&key)?.ok_or("there is no key")?;
    assert_ne!(newer, value, "two holds with one value");
    tenure.release(next)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn by_another_client(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let mut watch = Watch::start(server)?;
    let other = Tenure::connect(&server.url(), "another")?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let key = key_of(NAME);
    let lock = other.hold(NAME, LEASE)?;
    let value = client.get(&key)?;
    watch.forget()?;

    let attempt = tenure.wait(tenure.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted a second time")?;
    is_the_other(holder, LEASE);
    // One attempt and, after a refusal, one look.
    let commands = watch.about(&key)?;
    let attempts = commands.iter().filter(|seen| seen.name() == "SET");
    assert_eq!(attempts.count(), 1, "{commands:?}");

    let began = Instant::now();
    let timed_out = tenure.wait(tenure.locks().lock(NAME).wait(Wait::For(WAIT)).acquire())?;
    let took = began.elapsed();
    match timed_out {
        Err(Error::TimedOut { holder }) => assert_eq!(holder.label.as_deref(), Some("another")),
        other => return Err(format!("it got {other:?}").into()),
    }
    assert!(took >= WAIT && took < WAIT * 3, "it came after {took:?}");
    assert_eq!(client.get(&key)?, value);
    let left = client.pttl(&key)?.ok_or("there is no key")?;
    assert!(left < LEASE - WAIT, "somebody else renewed it: {left:?}");

    // Whoever waits gets it when it is free.
    watch.forget()?;
    let next = tenure.spawn(tenure.locks().lock(NAME).acquire());
    watch.wait_for(2, LONG, |seen| seen.name() == "SET")?;
    assert!(!next.is_finished());
    other.release(lock)?;
    let began = Instant::now();
    let next = tenure.wait(next)???;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "it came after {took:?}");
    tenure.release(next)?;
    assert_eq!(client.keys()?, [""; 0]);
    assert_eq!(tenure.told().count(|it| matches!(it, Told::Lost(..))), 0);
    Ok(())
}

#[track_caller]
fn is_the_other(holder: &Holder, lease: Duration) {
    assert_eq!(holder.label.as_deref(), Some("another"));
    let remaining = holder.remaining;
    assert!(
        remaining.is_some_and(|it| it > lease / 2 && it <= lease),
        "{remaining:?}"
    );
}

fn by_a_foreign_value(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let key = key_of(NAME);
    // One that looks like nothing, one that begins as ours does, and one that never expires.
    let values = [
        ("s3cret", Some(LEASE)),
        ("tn1:p:12:s3cret", Some(LEASE)),
        ("s3cret with blanks", None),
    ];
    for (value, ttl) in values {
        client.set(&key, value, ttl)?;
        let attempt = tenure.wait(tenure.locks().try_acquire(NAME))??;
        let holder = attempt.holder().ok_or("granted a second time")?;
        assert_eq!(holder.label, None);
        match ttl {
            Some(ttl) => assert!(holder.remaining.is_some_and(|it| it > ttl / 2 && it <= ttl)),
            None => assert_eq!(holder.remaining, None),
        }
        let error = tenure.wait(
            tenure
                .locks()
                .lock(NAME)
                .wait(Wait::For(WAIT / 3))
                .acquire(),
        )?;
        let error = error.err().ok_or("granted a second time")?;
        assert!(
            matches!(&error, Error::TimedOut { holder } if holder.label.is_none()),
            "{error:?}"
        );
        assert!(error.is_retryable());
        let shown = format!("{attempt:?} {error:?} {error} {:?}", tenure.told().all());
        assert!(!shown.contains("s3cret"), "{shown}");
        assert_eq!(client.get(&key)?.as_deref(), Some(value.as_bytes()));
        let left = client.pttl(&key)?;
        assert!(left.is_some_and(|left| left > LEASE / 2), "{left:?}");
    }

    // It is waited for as for any other.
    let next = tenure.spawn(tenure.locks().lock(NAME).acquire());
    client.set(&key, "s3cret", Some(Duration::from_millis(200)))?;
    let next = tenure.wait(next)???;
    assert!(eventually(LONG, || client.exists(&key).unwrap_or(false)));
    tenure.release(next)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}
