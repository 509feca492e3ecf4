//! The server answers, and refuses.

use std::time::{Duration, Instant};

use tenure_client::{Cause, Error, Failure as Why, LinkFault, Reason, ServerError, Wait};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, key_of};
use crate::trouble::{Busy, Trouble, load_slowly, moved_away};
use crate::{Client, Failure, Proxy, Reply, Server, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("out-of-memory-at-acquire", out_of_memory_at_acquire),
    ("out-of-memory-at-renewal", out_of_memory_at_renewal),
    ("read-only-at-acquire", read_only_at_acquire),
    ("read-only-while-held", read_only_while_held),
    ("loading-at-acquire", loading_at_acquire),
    ("busy-at-acquire", busy_at_acquire),
    ("busy-while-held", busy_while_held),
    ("primary-down-at-acquire", primary_down_at_acquire),
    ("too-few-replicas-at-acquire", too_few_replicas_at_acquire),
    ("too-few-replicas-while-held", too_few_replicas_while_held),
    ("cluster-down-at-acquire", cluster_down_at_acquire),
    ("slot-moved-away", slot_moved_away),
];

const NAME: &str = "orders";
const MINUTE: Duration = Duration::from_secs(60);
/// A wait that the trouble outlives, long enough for several attempts.
const WAIT: Duration = Duration::from_millis(250);

/// What the server is to say, and what is to be understood.
#[derive(Clone, Copy)]
struct Word(&'static str, ServerError);

impl Word {
    /// Whether this is what the caller is to be told: this refusal, in the server's words.
    fn is_told_by(self, error: &Error) -> Result<(), Failure> {
        let Error::Unavailable(Reason::Failure { failure, text }) = error else {
            return Err(format!("{error:?} instead of {}", self.0).into());
        };
        assert_eq!(*failure, Why::Server(self.1), "{error}");
        let text = text.as_deref().unwrap_or_default();
        assert_eq!(text.split(' ').next(), Some(self.0), "{error}");
        assert!(error.to_string().contains(self.0), "{error}");
        assert!(error.is_retryable());
        Ok(())
    }
}

/// A try and a wait fail with it.
fn fails(tenure: &Tenure, word: Word, wait: Duration) -> Result<(), Failure> {
    let tried = tenure.wait(tenure.locks().try_acquire(NAME))?;
    word.is_told_by(&tried.err().ok_or("granted all the same")?)?;
    let began = Instant::now();
    let waited = tenure.wait(tenure.locks().lock(NAME).wait(Wait::For(wait)).acquire())?;
    let took = began.elapsed();
    word.is_told_by(&waited.err().ok_or("granted all the same")?)?;
    assert!(took >= wait && took < wait * 4, "it ended after {took:?}");
    Ok(())
}

/// The trouble is entered twice: once to fail of it, once to wait for its end.
fn at_acquire<T>(
    server: &Server,
    word: Word,
    enter: impl Fn(&Server) -> Result<T, Failure>,
    leave: impl Fn(&Server, T) -> Result<(), Failure>,
) -> Result<Tenure, Failure> {
    let proxy = Proxy::start(server.addr())?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&proxy.url(), "me")?;
    let trouble = enter(server)?;
    fails(&tenure, word, WAIT)?;
    leave(server, trouble)?;
    assert_eq!(keys(&mut client)?, [""; 0]);

    let trouble = enter(server)?;
    let waiting = tenure.spawn(
        tenure
            .locks()
            .lock(NAME)
            .lease(MINUTE)
            .wait(Wait::For(LONG))
            .acquire(),
    );
    // It goes on trying.
    let sent = proxy.counts().to_server.frames;
    assert!(proxy.wait_for(LONG, |counts| counts.to_server.frames >= sent + 5));
    assert!(!waiting.is_finished());
    leave(server, trouble)?;
    is_had(&tenure, &mut client, waiting)?;
    Ok(tenure)
}

/// The wait ends with the lock, and its key is all there is.
fn is_had(
    tenure: &Tenure,
    client: &mut Client,
    waiting: tokio::task::JoinHandle<Result<tenure_client::Lock, Error>>,
) -> Result<(), Failure> {
    let lock = tenure.wait(waiting)???;
    assert!(lock.is_held());
    assert!(client.exists(&key_of(NAME))?);
    tenure.release(lock)?;
    assert!(!client.exists(&key_of(NAME))?);
    Ok(())
}

/// Every key, once the server tells.
fn keys(client: &mut Client) -> Result<Vec<String>, Failure> {
    let mut keys = Err("never asked".into());
    eventually(LONG, || {
        keys = client.keys();
        keys.is_ok()
    });
    keys
}

fn with(trouble: Trouble, server: &Server, word: Word) -> Result<Tenure, Failure> {
    at_acquire(
        server,
        word,
        |server| trouble.enter(server),
        |server, ()| trouble.leave(server),
    )
}

fn out_of_memory_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("OOM", ServerError::OutOfMemory);
    with(Trouble::OutOfMemory, context.server()?, word).map(drop)
}

fn read_only_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("READONLY", ServerError::ReadOnly);
    let tenure = with(Trouble::ReadOnly, context.server()?, word)?;
    // Another server may be the primary behind the same address: each refusal leads to a new connection.
    let left = |told: &Told| matches!(told, Told::Disconnected(LinkFault::Retired));
    assert!(tenure.told().count(left) >= 4);
    Ok(())
}

fn primary_down_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("MASTERDOWN", ServerError::MasterDown);
    with(Trouble::PrimaryDown, context.server()?, word).map(drop)
}

fn too_few_replicas_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("NOREPLICAS", ServerError::NoReplicas);
    with(Trouble::NoReplicas, context.server()?, word).map(drop)
}

fn busy_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("BUSY", ServerError::Busy);
    at_acquire(context.server()?, word, Busy::start, |_, busy| {
        drop(busy);
        Ok(())
    })
    .map(drop)
}

fn cluster_down_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("CLUSTERDOWN", ServerError::ClusterDown);
    let server = context.server_with(&["--cluster-enabled", "yes"])?;
    let ask = |server: &Server, words: &[&str]| server.client()?.ok(words).map(drop);
    at_acquire(
        server,
        word,
        |server| ask(server, &["CLUSTER", "FLUSHSLOTS"]),
        |server, ()| {
            ask(server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
            let mut client = server.client()?;
            let up = || matches!(client.cmd(&["EXISTS", "x"]), Ok(Reply::Int(0)));
            match eventually(LONG, up) {
                true => Ok(()),
                false => Err("the cluster does not come up".into()),
            }
        },
    )
    .map(drop)
}

fn loading_at_acquire(context: &mut Context) -> Result<(), Failure> {
    let word = Word("LOADING", ServerError::Loading);
    let server = context.server()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    load_slowly(server, Duration::from_secs(2))?;
    fails(&tenure, word, WAIT)?;
    let waiting = tenure.spawn(
        tenure
            .locks()
            .lock(NAME)
            .lease(MINUTE)
            .wait(Wait::For(LONG))
            .acquire(),
    );
    let mut client = server.client()?;
    assert!(client.cmd(&["GET", "x"])?.is_error("LOADING"), "too fast");
    is_had(&tenure, &mut client, waiting)
}

fn slot_moved_away(context: &mut Context) -> Result<(), Failure> {
    let server = moved_away(context.kind())?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let began = Instant::now();
    for wait in [Duration::ZERO, LONG] {
        let waited = tenure.wait(tenure.locks().lock(NAME).wait(Wait::For(wait)).acquire())?;
        let error = waited.err().ok_or("granted all the same")?;
        let Error::Misconfigured(Reason::Failure { failure, .. }) = &error else {
            return Err(format!("it got {error:?}").into());
        };
        assert_eq!(*failure, Why::Server(ServerError::Moved));
        assert!(error.to_string().contains("a cluster is not supported"));
        assert!(!error.is_retryable());
    }
    assert!(began.elapsed() < LONG / 4, "it waited");
    assert_eq!(server.client()?.keys()?, [""; 0]);
    Ok(())
}

fn out_of_memory_at_renewal(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let lock = tenure.hold(NAME, MINUTE)?;
    let key = key_of(NAME);
    let value = client.get(&key)?;
    Trouble::OutOfMemory.enter(server)?;
    client.ok(&["PEXPIRE", &key, "30000"])?;
    tenure.wait(lock.renew_now())??;
    assert!(client.pttl(&key)? > Some(MINUTE / 2), "not renewed");
    assert_eq!(client.get(&key)?, value);
    assert!(lock.is_held());
    let failed = |told: &Told| matches!(told, Told::RenewalFailed(..));
    assert_eq!(tenure.told().count(failed), 0);
    // It can be released, too.
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

/// Held over a trouble that lasts until a renewal has met it.
fn while_held<T>(
    server: &Server,
    word: Word,
    enter: impl Fn(&Server) -> Result<T, Failure>,
    leave: impl Fn(&Server, T) -> Result<(), Failure>,
) -> Result<Tenure, Failure> {
    // So long that a busy machine does not make it a loss.
    let lease = Duration::from_secs(6);
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let lock = tenure.hold(NAME, lease)?;
    let key = key_of(NAME);
    let value = client.get(&key)?;
    let trouble = enter(server)?;
    let renewed = tenure.wait(lock.renew_now())?;
    word.is_told_by(&renewed.err().ok_or("renewed all the same")?)?;
    assert!(lock.is_held());
    leave(server, trouble)?;
    let renewals = tenure.told().renewals();
    tenure.told().wait_for(renewals + 1, lease / 3, |told| {
        matches!(told, Told::Renewed(_))
    })?;
    assert!(lock.is_held() && lock.remaining() > lease / 2);
    assert_eq!(client.get(&key)?, value);
    assert!(client.pttl(&key)? > Some(lease / 2));
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(tenure)
}

fn busy_while_held(context: &mut Context) -> Result<(), Failure> {
    let word = Word("BUSY", ServerError::Busy);
    while_held(context.server()?, word, Busy::start, |_, busy| {
        drop(busy);
        Ok(())
    })
    .map(drop)
}

fn read_only_while_held(context: &mut Context) -> Result<(), Failure> {
    let word = Word("READONLY", ServerError::ReadOnly);
    let tenure = while_held(
        context.server()?,
        word,
        |server| Trouble::ReadOnly.enter(server),
        |server, ()| Trouble::ReadOnly.leave(server),
    )?;
    let left = |told: &Told| matches!(told, Told::Disconnected(LinkFault::Retired));
    assert!(tenure.told().count(left) >= 1);
    Ok(())
}

fn too_few_replicas_while_held(context: &mut Context) -> Result<(), Failure> {
    let lease = Duration::from_millis(1500);
    let server = context.server()?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let lock = tenure.hold(NAME, lease)?;
    let key = key_of(NAME);
    let value = client.get(&key)?;
    Trouble::NoReplicas.enter(server)?;
    let began = Instant::now();
    let lost = tenure.lost(&lock, LONG)?;
    let took = began.elapsed();
    assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
    // Two thirds of the lease after the last renewal, and before its end.
    assert!(took < lease, "told after {took:?}");
    assert!(!lock.is_held());
    assert!(lock.stop_window(&lost) < lease / 3);
    let refused = |told: &Told| {
        matches!(told, Told::RenewalFailed(_, Error::Unavailable(Reason::Failure { failure, .. }))
            if *failure == Why::Server(ServerError::NoReplicas))
    };
    assert!(tenure.told().count(refused) >= 1);
    assert_eq!(client.get(&key)?, value);
    // The guard goes, and its clean-up is refused: the TTL ends the key.
    drop(lock);
    let ended = eventually(lease * 2, || matches!(client.exists(&key), Ok(false)));
    assert!(ended, "the key is left");
    Trouble::NoReplicas.leave(server)?;
    // Nothing of the old hold stands in the way of a new one.
    let lock = tenure.hold(NAME, lease)?;
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}
