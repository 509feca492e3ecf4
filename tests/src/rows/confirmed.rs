//! Replicas have to confirm it.

use std::time::Duration;

use tenure_client::{Attempt, Cause, Confirmed, Error, Failure as Why, LockOptions, Reason};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, key_of};
use crate::{Failure, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("grant-not-confirmed", grant),
    ("renewals-not-confirmed", renewals),
];

const NAME: &str = "orders";
const LEASE: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_millis(200);
const WAIT: Duration = Duration::from_secs(1);
const NONE_OF_ONE: Why = Why::Unconfirmed(Confirmed::new(0, 1));

fn options() -> LockOptions {
    let options = LockOptions::new().lease(LEASE);
    options.replicas(1, WITHIN)
}

fn is_unconfirmed(error: &Error) -> bool {
    matches!(error, Error::Unavailable(Reason::Failure { failure, .. }) if *failure == NONE_OF_ONE)
}

fn grant(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let replica = server.start_replica()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let request = |options| tenure.locks().lock(NAME).options(options);
    replica.freeze()?;
    match tenure.wait(request(options()).try_acquire())? {
        Err(error) if is_unconfirmed(&error) => {}
        other => return Err(format!("it got {other:?}").into()),
    }
    assert!(eventually(LONG, || client
        .keys()
        .is_ok_and(|keys| keys.is_empty())));
    // A plain one is granted meanwhile.
    let plain = tenure.locks().try_acquire(NAME);
    match tenure.wait(plain)?? {
        Attempt::Acquired(lock) => tenure.release(lock)?,
        Attempt::Held(holder) => return Err(format!("held by {holder}").into()),
    }
    match tenure.wait(request(options().wait(WAIT)).acquire())? {
        Err(error) if is_unconfirmed(&error) => {}
        other => return Err(format!("it got {other:?}").into()),
    }
    assert!(eventually(LONG, || client
        .keys()
        .is_ok_and(|keys| keys.is_empty())));
    let waiting = tenure.spawn(request(options().wait(LONG)).acquire());
    assert!(eventually(LONG, || client
        .exists(&key_of(NAME))
        .unwrap_or(false)));
    assert!(!waiting.is_finished());
    replica.thaw()?;
    let lock = tenure.wait(waiting)???;
    assert!(lock.is_held());
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn renewals(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let replica = server.start_replica()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let request = tenure.locks().lock(NAME).options(options());
    let lock = tenure.wait(request.acquire())??;
    replica.freeze()?;
    let lost = tenure.lost(&lock.held(), LONG)?;
    assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost}");
    let failed =
        |told: &Told| matches!(told, Told::RenewalFailed(_, error) if is_unconfirmed(error));
    assert!(tenure.told().count(failed) > 0);
    assert!(client.exists(&key_of(NAME))?);
    drop(lock);
    assert!(eventually(LONG, || client
        .keys()
        .is_ok_and(|keys| keys.is_empty())));
    replica.thaw()
}
