//! An operator frees a name by force, and a server that keeps no locks is not used.

use std::time::Duration;

use tenure_client::{Cause, Error};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, key_of};
use crate::{Cut, Failure, Proxy, Side, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("released-by-force-while-held", forced),
    ("connection-cut-during-force-release", cut),
    ("server-that-evicts", evicts),
];

const NAME: &str = "orders";
/// Longer than any of these tests, so that nothing is renewed meanwhile.
const ENDLESS: Duration = Duration::from_secs(60);

fn forced(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let (tenure, operator) = (
        Tenure::connect(&server.url(), "me")?,
        Tenure::connect(&server.url(), "the operator")?,
    );
    let lock = tenure.hold(NAME, ENDLESS)?;
    let removed = operator.wait(operator.locks().force_release(NAME))??;
    let removed = removed.ok_or("there was nothing")?;
    assert_eq!(removed.label.as_deref(), Some("me"));
    let lost = tenure.lost(&lock, LONG)?;
    assert_eq!(
        (lost.cause, lost.by.as_deref()),
        (Cause::Forced, Some("the%20operator"))
    );
    assert_eq!(tenure.wait(lock.release())?, Err(Error::Lost(lost)));
    let helper = format!("lock:{{{}}}:forced", key_of(NAME));
    assert_eq!(client.keys()?, [&*helper]);
    let left = client.pttl(&helper)?.ok_or("no helper key")?;
    assert!(left <= ENDLESS && left > ENDLESS / 2, "{left:?}");

    // Released before it could be told.
    let lock = tenure.hold(NAME, ENDLESS)?;
    let forcing = operator.spawn(operator.locks().force_release(NAME));
    assert!(operator.wait(forcing)???.is_some());
    match tenure.wait(lock.release())? {
        Err(Error::Lost(lost)) => assert_eq!(lost.cause, Cause::Forced),
        other => return Err(format!("the release says {other:?}").into()),
    }
    let lock = tenure.hold(NAME, ENDLESS)?;
    tenure.release(lock)
}

fn cut(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let proxy = Proxy::start(server.addr())?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let operator = Tenure::connect(&proxy.url(), "the operator")?;
    let lock = tenure.hold(NAME, ENDLESS)?;
    proxy.hold(Side::ToClient);
    let forcing = operator.spawn(operator.locks().force_release(NAME));
    if !eventually(LONG, || !client.exists(&key_of(NAME)).unwrap_or(true)) {
        return Err("nothing was removed".into());
    }
    proxy.cut(Cut::Reset);
    proxy.release(Side::ToClient);
    match operator.wait(forcing)?? {
        Err(Error::MaybeDone(_)) => {}
        other => return Err(format!("the operator is told {other:?}").into()),
    }
    assert_eq!(tenure.lost(&lock, LONG)?.cause, Cause::Forced);
    // It is not sent again: the next holder keeps the name.
    let next = tenure.hold(NAME, ENDLESS)?;
    let found = operator.wait(operator.locks().inspect(NAME))??;
    assert_eq!(found.ok_or("nobody")?.label.as_deref(), Some("me"));
    tenure.wait(next.renew_now())??;
    tenure.release(next)
}

fn evicts(context: &mut Context) -> Result<(), Failure> {
    let arguments = ["--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"];
    let server = context.server_with(&arguments)?;
    let mut client = server.client()?;
    let tenure = Tenure::start(&server.url(), |config| config.strict_server())?;
    let refused = tenure.wait(tenure.locks().acquire(NAME))?;
    match refused.map(drop) {
        Err(error @ Error::Misconfigured(_)) => {
            assert!(error.to_string().contains("volatile-lru"), "{error}");
        }
        other => return Err(format!("the caller gets {other:?}").into()),
    }
    assert_eq!(client.keys()?, [""; 0]);
    assert_eq!(client.calls("set")?, 0);
    // Once it keeps them, there are locks.
    client.config_set("maxmemory-policy", "noeviction")?;
    let lock = tenure.wait(tenure.locks().lock(NAME).lease(ENDLESS).acquire())??;
    tenure.release(lock)
}
