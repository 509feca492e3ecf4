//! The key of a hold changes on the server, or is not what a lock can use.

use std::time::{Duration, Instant};

use tenure_client::{Cause, Config, Error, Failure as Fault, Lock, Reason, ServerError};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, Watch, key_of};
use crate::{Client, Failure, Reply, ServerKind};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("key-deleted-while-held", deleted),
    ("key-replaced-while-held", replaced),
    ("key-of-another-type-while-held", of_another_type),
    ("key-of-another-type-at-acquire", of_another_type_at_acquire),
    ("server-flushed-while-held", flushed),
    ("script-cache-flushed", script_cache_flushed),
];

const NAME: &str = "orders";
/// Renewed every 160 ms.
const LEASE: Duration = Duration::from_millis(800);
/// Longer than any of these tests, so that nothing is renewed meanwhile.
const ENDLESS: Duration = Duration::from_secs(60);

/// A hold whose key is about to change.
struct Scene {
    client: Client,
    watch: Watch,
    tenure: Tenure,
    key: String,
}

impl Scene {
    fn set(context: &mut Context) -> Result<Self, Failure> {
        Self::with(context, |config| config)
    }

    /// Changes are found by the next renewal.
    fn unwatched(context: &mut Context) -> Result<Self, Failure> {
        Self::with(context, Config::no_wake_ups)
    }

    fn with(
        context: &mut Context,
        settings: impl FnOnce(Config) -> Config,
    ) -> Result<Self, Failure> {
        let server = context.server()?;
        let tenure = Tenure::start(&server.url(), |config| settings(config.label("me")))?;
        tenure.wait(tenure.locks().ready())??;
        Ok(Self {
            client: server.client()?,
            watch: Watch::start(server)?,
            tenure,
            key: key_of(NAME),
        })
    }

    /// The holder is told at the next renewal at the latest, once, and for this reason; then all is silent.
    fn is_lost(&mut self, lock: Lock, cause: Cause, by: Option<&str>) -> Result<(), Failure> {
        let began = Instant::now();
        let lost = self.tenure.lost(&lock, LONG)?;
        let took = began.elapsed();
        // Long before it is given up without an answer, at two thirds.
        assert!(took < LEASE / 2, "told after {took:?}");
        assert_eq!((lost.cause, lost.by.as_deref()), (cause, by));
        assert!(!lock.is_held());
        assert_eq!(lock.remaining(), Duration::ZERO);
        assert_eq!(lock.check(), Err(Error::Lost(lost.clone())));
        self.watch.silent(&self.key, LEASE / 2)?;
        // It is the same afterwards, and a lost lock is not released.
        let held = lock.held();
        assert_eq!(self.tenure.wait(lock.release())?, Err(Error::Lost(lost)));
        assert!(!held.is_held());
        self.watch.silent(&self.key, LEASE / 4)?;
        let ends = self.tenure.told().count(Told::ends_hold);
        assert_eq!(ends, 1, "{:?}", self.tenure.told().all());
        Ok(())
    }
}

fn deleted(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    scene.tenure.told().wait_for(1, LONG, renewed)?;
    assert!(scene.client.del(&scene.key)?);
    scene.is_lost(lock, Cause::Gone, None)?;
    assert_eq!(scene.client.keys()?, [""; 0]);

    // Released before it could be told.
    let lock = scene.tenure.hold(NAME, ENDLESS)?;
    assert!(scene.client.del(&scene.key)?);
    match scene.tenure.wait(lock.release())? {
        Err(Error::Lost(lost)) => assert_eq!(lost.cause, Cause::Gone),
        other => return Err(format!("the release says {other:?}").into()),
    }
    assert_eq!(scene.client.keys()?, [""; 0]);

    // Nothing is left of either: the next one gets it.
    let lock = scene.tenure.hold(NAME, LEASE)?;
    scene.tenure.release(lock)
}

fn replaced(context: &mut Context) -> Result<(), Failure> {
    // It is deleted for a moment before it is replaced.
    let mut scene = Scene::unwatched(context)?;
    let other = Tenure::connect(&context.server()?.url(), "another")?;

    // By another client of the same kind.
    let lock = scene.tenure.hold(NAME, LEASE)?;
    assert!(scene.client.del(&scene.key)?);
    let theirs = other.hold(NAME, ENDLESS)?;
    let value = scene.client.get(&scene.key)?;
    scene.is_lost(lock, Cause::Replaced, Some("another"))?;
    assert_eq!(scene.client.get(&scene.key)?, value);
    let left = scene.client.pttl(&scene.key)?.ok_or("it is gone")?;
    // It ran on, all the time that passed.
    assert!(left < ENDLESS - LEASE / 2 && left > ENDLESS / 2, "{left:?}");
    assert!(theirs.is_held());
    other.release(theirs)?;

    // By a stranger, after one more renewal.
    let scene = &mut Scene::set(context)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    scene.tenure.told().wait_for(1, LONG, renewed)?;
    scene.client.set(&scene.key, "s3cret", Some(ENDLESS))?;
    scene.is_lost(lock, Cause::Replaced, None)?;
    assert_eq!(
        scene.client.get(&scene.key)?.as_deref(),
        Some(&b"s3cret"[..])
    );
    let told = format!("{:?}", scene.tenure.told().all());
    assert!(!told.contains("s3cret"), "{told}");

    // Released before it could be told: a comparison that failed does not say with what.
    scene.client.del(&scene.key)?;
    let lock = scene.tenure.hold(NAME, ENDLESS)?;
    scene.client.set(&scene.key, "s3cret", Some(ENDLESS))?;
    let released = scene.tenure.wait(lock.release())?;
    assert!(matches!(released, Err(Error::Lost(_))), "{released:?}");
    assert_eq!(
        scene.client.get(&scene.key)?.as_deref(),
        Some(&b"s3cret"[..])
    );
    let left = scene.client.pttl(&scene.key)?;
    assert!(left.is_some_and(|left| left > ENDLESS / 2), "{left:?}");
    Ok(())
}

fn of_another_type(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    make_list(&mut scene)?;
    scene.is_lost(lock, Cause::Replaced, None)?;
    is_list(&mut scene)?;

    // Released before it could be told.
    scene.client.del(&scene.key)?;
    let lock = scene.tenure.hold(NAME, ENDLESS)?;
    make_list(&mut scene)?;
    let released = scene.tenure.wait(lock.release())?;
    assert!(matches!(released, Err(Error::Lost(_))), "{released:?}");
    is_list(&mut scene)?;

    // The connection goes on as if nothing had been.
    scene.client.del(&scene.key)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    scene.tenure.told().more(1, LONG, renewed)?;
    scene.tenure.release(lock)?;
    assert_eq!(scene.client.keys()?, [""; 0]);
    let lost_connection = |told: &Told| matches!(told, Told::Disconnected(_));
    assert_eq!(scene.tenure.told().count(lost_connection), 0);
    Ok(())
}

fn of_another_type_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    scene.client.ok(&["RPUSH", &scene.key, "a", "b"])?;
    let locks = scene.tenure.locks();
    let tried = scene.tenure.wait(locks.try_acquire(NAME))?.map(drop);
    // Without a limit to its wait, it ends at once.
    let waited = scene.tenure.wait(locks.acquire(NAME))?.map(drop);
    for outcome in [tried, waited] {
        let error = outcome.err().ok_or("granted on a list")?;
        let Error::Misconfigured(Reason::Failure { failure, text }) = &error else {
            return Err(format!("{error:?}").into());
        };
        assert_eq!(*failure, Fault::Server(ServerError::WrongType));
        assert!(
            text.as_deref()
                .is_some_and(|text| text.starts_with("WRONGTYPE"))
        );
        assert!(!error.is_retryable());
        assert!(error.to_string().contains("another type"), "{error}");
    }
    scene.watch.silent(&scene.key, LEASE / 2)?;
    is_list(&mut scene)
}

fn flushed(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    let second = scene.tenure.hold("second", LEASE)?;
    scene.client.ok(&["FLUSHALL"])?;
    let lost = scene.tenure.lost(&second, LEASE / 2)?;
    assert_eq!(lost.cause, Cause::Gone);
    scene.tenure.lost(&lock, LEASE / 2)?;
    drop(second);
    scene.watch.silent(&scene.key, LEASE / 2)?;
    let ends = scene.tenure.told().count(Told::ends_hold);
    assert_eq!(ends, 2, "{:?}", scene.tenure.told().all());
    assert_eq!(scene.client.keys()?, [""; 0]);
    match scene.tenure.wait(lock.release())? {
        Err(Error::Lost(lost)) => assert_eq!(lost.cause, Cause::Gone),
        other => return Err(format!("the release says {other:?}").into()),
    }
    assert_eq!(scene.client.keys()?, [""; 0]);
    Ok(())
}

fn script_cache_flushed(context: &mut Context) -> Result<(), Failure> {
    let (renews, releases) = match context.kind() {
        ServerKind::Redis70 => (true, true),
        ServerKind::Valkey81 => (false, true),
        ServerKind::Redis86 | ServerKind::Valkey91 => (false, false),
    };
    let mut scene = Scene::set(context)?;
    // Every script is used, and known to be there.
    let lock = scene.tenure.hold("first", LEASE)?;
    scene.tenure.release(lock)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    let value = scene.client.get(&scene.key)?;
    scene.tenure.told().wait_for(2, LONG, renewed)?;
    scene.client.ok(&["SCRIPT", "FLUSH"])?;
    scene.watch.forget()?;
    scene.tenure.told().more(3, LONG, renewed)?;
    let names = scene.watch.names(&scene.key)?;
    let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
    // By its digest, then whole, then by its digest again.
    assert_eq!(count("EVAL"), usize::from(renews), "{names:?}");
    assert_eq!(count("EVALSHA") >= 3, renews, "{names:?}");
    assert_eq!(names.first().is_some_and(|it| it == "EVALSHA"), renews);

    scene.client.ok(&["SCRIPT", "FLUSH"])?;
    scene.watch.forget()?;
    assert_eq!(scene.client.get(&scene.key)?, value);
    scene.tenure.release(lock)?;
    let names = scene.watch.names(&scene.key)?;
    // A renewal may have come before.
    let as_script = names.ends_with(&["EVALSHA".into(), "EVAL".into()]);
    assert_eq!(as_script, releases, "{names:?}");
    assert_eq!(scene.client.keys()?, [""; 0]);
    let failed = |told: &Told| matches!(told, Told::RenewalFailed(..) | Told::Lost(..));
    let told = scene.tenure.told();
    assert_eq!(told.count(failed), 0, "{:?}", told.all());
    Ok(())
}

const fn renewed(told: &Told) -> bool {
    matches!(told, Told::Renewed(_))
}

/// In one step, so that no renewal finds it gone.
fn make_list(scene: &mut Scene) -> Result<(), Failure> {
    let client = &mut scene.client;
    client.ok(&["MULTI"])?;
    client.ok(&["DEL", &scene.key])?;
    client.ok(&["RPUSH", &scene.key, "a", "b"])?;
    client.ok(&["EXEC"]).map(drop)
}

fn is_list(scene: &mut Scene) -> Result<(), Failure> {
    let list = scene.client.ok(&["LRANGE", &scene.key, "0", "-1"])?;
    let items = [b"a", b"b"].map(|item| Reply::Bulk(item.to_vec()));
    assert_eq!(list, Reply::Array(items.to_vec()));
    assert_eq!(scene.client.pttl(&scene.key)?, Some(Duration::MAX));
    Ok(())
}
