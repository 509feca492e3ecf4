//! The connection ends, is slow, or never comes to be.

use std::thread;
use std::time::{Duration, Instant};

use tenure_client::{Config, Error, Failure as Fault, LinkFault, Lock, Reason, Wait};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, Watch, key_of};
use crate::{Client, Cut, Failure, Proxy, Seen, Side, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("connection-cut-while-idle", cut_while_idle),
    ("connection-cut-during-acquire", cut_during_acquire),
    ("connection-cut-during-renewal", cut_during_renewal),
    ("connection-cut-during-release", cut_during_release),
    ("connection-late-delivery", late_delivery),
    ("reply-in-pieces", reply_in_pieces),
    ("reply-slow", reply_slow),
    ("reply-slower-than-the-lease", reply_slower_than_the_lease),
    ("connection-refused", refused),
    ("connection-black-hole", black_hole),
];

const NAME: &str = "orders";
/// Renewed every 400 ms.
const LEASE: Duration = Duration::from_secs(2);
const SHORT: Duration = Duration::from_millis(500);
/// Longer than any of these tests, so that nothing is renewed meanwhile.
const ENDLESS: Duration = Duration::from_secs(60);
/// For the server to be found again: a test need not wait for the usual seconds.
const LIMIT: Duration = Duration::from_millis(200);
const BOTH: [Cut; 2] = [Cut::Reset, Cut::Fin];

/// A client behind a proxy.
struct Scene {
    client: Client,
    watch: Watch,
    proxy: Proxy,
    tenure: Tenure,
    key: String,
}

impl Scene {
    fn set(context: &mut Context) -> Result<Self, Failure> {
        let server = context.server()?;
        let proxy = Proxy::start(server.addr())?;
        Ok(Self {
            client: server.client()?,
            watch: Watch::start(server)?,
            tenure: {
                // So that every frame on the way is one that the scene is about.
                let settings = |config: Config| config.label("me").no_wake_ups();
                let tenure = Tenure::start(&proxy.url(), settings)?;
                tenure.wait(tenure.locks().ready())??;
                tenure
            },
            proxy,
            key: key_of(NAME),
        })
    }

    /// Waits until whatever was asked is answered: no frame comes then but those that a test is about.
    fn settle(&self) -> Result<(), Failure> {
        self.tenure
            .wait(self.tenure.locks().inspect("nobody's"))??;
        Ok(())
    }

    /// Holds what goes this way, does something, waits until that has made a whole frame, cuts, and lets go.
    fn cut_under<T>(
        &self,
        side: Side,
        how: Cut,
        act: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let frames = |counts: crate::proxy::Counts| match side {
            Side::ToServer => counts.to_server.frames,
            Side::ToClient => counts.to_client.frames,
        };
        // Whatever was asked before is answered by then: no frame comes but those that the test is about.
        self.tenure
            .wait(self.tenure.locks().inspect("nobody's"))??;
        self.proxy.hold(side);
        let known = frames(self.proxy.counts());
        let done = act()?;
        if !self.proxy.wait_for(LONG, |counts| frames(*counts) > known) {
            return Err("nothing came to the proxy".into());
        }
        self.proxy.cut(how);
        self.proxy.release(side);
        Ok(done)
    }

    /// There is one key, of a hold that goes on: it is renewed, and nobody writes another value.
    fn is_one_hold(&mut self) -> Result<(), Failure> {
        assert_eq!(self.client.keys()?, [&*self.key]);
        let value = self.client.get(&self.key)?;
        self.tenure.told().more(2, LONG, renewed)?;
        assert_eq!(self.client.keys()?, [&*self.key]);
        assert_eq!(self.client.get(&self.key)?, value);
        let told = self.tenure.told();
        let lost = |told: &Told| matches!(told, Told::Lost(..));
        assert_eq!(told.count(lost), 0, "{:?}", told.all());
        Ok(())
    }

    /// The hold ends as if nothing had been.
    fn ends_well(&mut self, lock: Lock) -> Result<(), Failure> {
        assert!(lock.is_held());
        self.tenure.release(lock)?;
        assert_eq!(self.client.keys()?, [""; 0]);
        Ok(())
    }
}

fn cut_while_idle(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    let value = scene.client.get(&scene.key)?;
    for how in [None, Some(Cut::Reset), Some(Cut::Fin)] {
        let told = scene.tenure.told();
        // The next renewal is far.
        told.more(1, LONG, renewed)?;
        let connections = told.count(|told| *told == Told::Connected);
        let renewals = told.renewals();
        match how {
            Some(how) => scene.proxy.cut(how),
            // By the server.
            None => {
                let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
                scene.client.ok(&kill)?;
            }
        }
        told.wait_for(connections + 1, LONG, |told| *told == Told::Connected)?;
        told.wait_for(renewals + 1, LONG, renewed)?;
        let connected = told.times(|told| *told == Told::Connected);
        let renewed = told.times(renewed);
        let took = renewed[renewals].duration_since(connected[connections]);
        assert!(took < LEASE / 10, "{how:?}: renewed {took:?} later");
        assert!(lock.is_held());
        assert_eq!(scene.client.get(&scene.key)?, value);
    }
    scene.is_one_hold()?;
    scene.ends_well(lock)
}

fn cut_during_acquire(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    for how in BOTH {
        scene.watch.forget()?;
        let waiting = scene.cut_under(Side::ToClient, how, || {
            let request = scene.tenure.locks().lock(NAME).lease(LEASE);
            Ok(scene.tenure.spawn(request.acquire()))
        })?;
        let lock = scene.tenure.wait(waiting)???;
        // Its own key, not one that had to expire first; and with a value that no dead connection knows.
        let seen = scene.watch.about(&scene.key)?;
        let values: Vec<_> = seen.iter().filter_map(fresh).collect();
        assert!(values.len() >= 2, "{seen:?}");
        let value = scene.client.get(&scene.key)?.ok_or("there is no key")?;
        assert_ne!(&value, values[0]);
        scene.is_one_hold()?;
        scene.ends_well(lock)?;
    }

    // A single try makes no second attempt, and what it left is cleared.
    for how in BOTH {
        scene.watch.forget()?;
        let trying = scene.cut_under(Side::ToClient, how, || {
            let request = scene.tenure.locks().lock(NAME).lease(ENDLESS);
            Ok(scene.tenure.spawn(request.try_acquire()))
        })?;
        is_link_fault(scene.tenure.wait(trying)??.map(drop), LinkFault::Closed)?;
        let client = &mut scene.client;
        assert!(eventually(LONG, || client
            .keys()
            .is_ok_and(|keys| keys.is_empty())));
        let seen = scene.watch.about(&scene.key)?;
        assert_eq!(seen.iter().filter_map(fresh).count(), 1, "{seen:?}");
    }
    Ok(())
}

fn cut_during_renewal(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    let lock = scene.tenure.hold(NAME, LEASE)?;
    let value = scene.client.get(&scene.key)?;
    for (side, how) in [
        (Side::ToClient, Cut::Reset),
        (Side::ToClient, Cut::Fin),
        (Side::ToServer, Cut::Reset),
    ] {
        scene.tenure.told().more(1, LONG, renewed)?;
        let renewals = scene.tenure.told().renewals();
        let (before, at) = (lock.remaining(), Instant::now());
        scene.proxy.hold(side);
        let known = scene.proxy.counts();
        assert!(scene.proxy.wait_for(LONG, |counts| match side {
            Side::ToClient => counts.to_client.frames > known.to_client.frames,
            Side::ToServer => counts.to_server.frames > known.to_server.frames,
        }));
        // The answer is there, and does not count before it arrives.
        let after = lock.remaining();
        if scene.tenure.told().renewals() == renewals {
            assert!(before.saturating_sub(at.elapsed()) + Duration::from_millis(1) > after);
        }
        scene.proxy.cut(how);
        scene.proxy.release(side);
        scene.tenure.told().more(1, LONG, renewed)?;
        assert!(lock.is_held());
        assert_eq!(scene.client.get(&scene.key)?, value);
    }
    scene.is_one_hold()?;
    scene.ends_well(lock)
}

fn cut_during_release(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    // Executed and not answered, or not even executed.
    for side in [Side::ToClient, Side::ToServer] {
        for how in BOTH {
            let lock = scene.tenure.hold(NAME, ENDLESS)?;
            let held = lock.held();
            let releasing =
                scene.cut_under(side, how, || Ok(scene.tenure.spawn(lock.release())))?;
            assert!(!held.is_held());
            let released = scene.tenure.wait(releasing)??;
            let released = released.map_err(|why| format!("{side:?} {how:?}: {why}"))?;
            assert!(released.confirmed, "{side:?} {how:?}");
            assert_eq!(scene.client.keys()?, [""; 0]);
        }
    }
    // A guard that is only dropped.
    let lock = scene.tenure.hold(NAME, ENDLESS)?;
    scene.cut_under(Side::ToServer, Cut::Reset, || {
        drop(lock);
        Ok(())
    })?;
    let client = &mut scene.client;
    assert!(eventually(LONG, || client
        .keys()
        .is_ok_and(|keys| keys.is_empty())));
    scene.watch.silent(&scene.key, SHORT / 2)
}

fn late_delivery(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;

    // An attempt: the lock was had by another one, used and released.
    scene.settle()?;
    scene.proxy.hold(Side::ToServer);
    let known = scene.proxy.counts().to_server.frames;
    let request = scene.tenure.locks().lock(NAME).lease(SHORT);
    let waiting = scene.tenure.spawn(request.acquire());
    let sent = |scene: &Scene, known: u64| {
        scene
            .proxy
            .wait_for(LONG, |counts| counts.to_server.frames > known)
    };
    assert!(sent(&scene, known));
    strand(&scene.proxy);
    let lock = scene.tenure.wait(waiting)???;
    scene.ends_well(lock)?;
    scene.proxy.deliver()?;
    let client = &mut scene.client;
    assert!(eventually(LONG, || client
        .exists(&scene.key)
        .unwrap_or(false)));
    // It is a key of nobody: not even the client that sent it takes it for its own, and it is not kept alive.
    let attempt = scene
        .tenure
        .wait(scene.tenure.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted on a dead key")?;
    assert_eq!(holder.label.as_deref(), Some("me"));
    assert!(client.pttl(&scene.key)?.is_none_or(|left| left <= SHORT));
    let began = Instant::now();
    let request = scene.tenure.locks().lock(NAME).lease(LEASE);
    let lock = scene.tenure.wait(request.acquire())??;
    let took = began.elapsed();
    assert!(took < SHORT * 2, "it was kept alive for {took:?}");
    scene.is_one_hold()?;

    // A renewal, after the release of its hold.
    scene.tenure.told().more(1, LONG, renewed)?;
    scene.proxy.hold(Side::ToServer);
    let known = scene.proxy.counts().to_server.frames;
    assert!(sent(&scene, known));
    strand(&scene.proxy);
    scene.tenure.told().more(1, LONG, renewed)?;
    scene.ends_well(lock)?;
    deliver(&mut scene, 1)?;
    assert_eq!(scene.client.keys()?, [""; 0]);

    // A release, while the next one holds it.
    let lock = scene.tenure.hold(NAME, ENDLESS)?;
    scene.proxy.hold(Side::ToServer);
    let known = scene.proxy.counts().to_server.frames;
    let releasing = scene.tenure.spawn(lock.release());
    assert!(sent(&scene, known));
    strand(&scene.proxy);
    assert!(
        scene
            .tenure
            .wait(releasing)??
            .map_err(|why| why.to_string())?
            .confirmed
    );
    let lock = scene.tenure.hold(NAME, LEASE)?;
    deliver(&mut scene, 1)?;
    scene.is_one_hold()?;
    scene.ends_well(lock)
}

/// The connection is dead to the client, its bytes are on their way, and the next connection works.
fn strand(proxy: &Proxy) {
    proxy.strand(Cut::Reset);
    proxy.release(Side::ToServer);
}

/// What was stranded reaches the server, and that many commands on the key are executed.
fn deliver(scene: &mut Scene, commands: usize) -> Result<(), Failure> {
    scene.watch.forget()?;
    scene.proxy.deliver()?;
    let key = scene.key.as_bytes();
    scene.watch.wait_for(commands, LONG, |seen| {
        seen.args.iter().any(|arg| arg == key)
    })
}

fn reply_in_pieces(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let other = Tenure::connect(&server.url(), "another")?;
    let proxy = Proxy::start(server.addr())?;
    proxy.trickle(Side::ToClient, true);
    // The greeting comes in pieces, too.
    let tenure = Tenure::connect(&proxy.url(), "me")?;
    let mut scene = Scene {
        client: server.client()?,
        watch: Watch::start(server)?,
        tenure,
        proxy,
        key: key_of(NAME),
    };
    for request_too in [false, true] {
        scene.proxy.trickle(Side::ToServer, request_too);
        let lock = scene.tenure.hold(NAME, LEASE)?;
        scene.is_one_hold()?;
        scene.ends_well(lock)?;

        let theirs = other.hold(NAME, ENDLESS)?;
        let attempt = scene
            .tenure
            .wait(scene.tenure.locks().try_acquire(NAME))??;
        let holder = attempt.holder().ok_or("granted a second time")?;
        assert_eq!(holder.label.as_deref(), Some("another"));
        assert!(holder.remaining.is_some_and(|it| it > ENDLESS / 2));
        let waiting = scene.tenure.spawn(scene.tenure.locks().acquire(NAME));
        scene.watch.forget()?;
        scene.watch.wait_for(2, LONG, |seen| seen.name() == "SET")?;
        other.release(theirs)?;
        let lock = scene.tenure.wait(waiting)???;
        scene.ends_well(lock)?;
    }
    let told = scene.tenure.told();
    let lost = |told: &Told| matches!(told, Told::Disconnected(_) | Told::RenewalFailed(..));
    assert_eq!(told.count(lost), 0, "{:?}", told.all());
    Ok(())
}

fn reply_slow(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    scene.proxy.delay(Side::ToClient, LEASE * 3 / 5);
    let known = scene.proxy.counts().to_client.forwarded;
    let began = Instant::now();
    let request = scene.tenure.locks().lock(NAME).lease(LEASE);
    let trying = scene.tenure.spawn(request.try_acquire());
    let arrived = |counts: &crate::proxy::Counts| counts.to_client.forwarded > known;
    assert!(scene.proxy.wait_for(LONG, arrived));
    scene.proxy.delay(Side::ToClient, Duration::ZERO);
    let lock = scene.tenure.wait(trying)???.acquired();
    let lock = lock.ok_or("it is held by somebody")?;
    assert!(began.elapsed() >= LEASE * 3 / 5, "{:?}", began.elapsed());
    // What it has is a fresh lease, not the rest of the first.
    assert!(lock.remaining() > LEASE / 2, "{:?}", lock.remaining());
    assert_eq!(scene.tenure.told().renewals(), 0);
    scene.is_one_hold()?;
    scene.ends_well(lock)
}

fn reply_slower_than_the_lease(context: &mut Context) -> Result<(), Failure> {
    let mut scene = Scene::set(context)?;
    // The grant is worth little when it arrives, and its confirmation is worth no more.
    scene.proxy.delay(Side::ToClient, SHORT * 4 / 5);
    for waits in [false, true] {
        let request = scene.tenure.locks().lock(NAME).lease(SHORT);
        let outcome = match waits {
            true => scene.tenure.wait(request.acquire())?.map(drop),
            false => scene.tenure.wait(request.try_acquire())?.map(drop),
        };
        let error = outcome.err().ok_or("granted, with hardly anything left")?;
        let Error::Unavailable(Reason::Failure { failure, .. }) = &error else {
            return Err(format!("{error:?}").into());
        };
        assert_eq!(*failure, Fault::SlowReplies);
        assert!(error.to_string().contains("longer lease"), "{error}");
        // Cleared, without waiting for the answer to that.
        let client = &mut scene.client;
        assert!(eventually(SHORT / 2, || {
            client.keys().is_ok_and(|keys| keys.is_empty())
        }));
    }

    Ok(())
}

fn refused(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    server.kill();
    let url = server.url();
    let tenure = Tenure::start(&url, |config| config.label("me").reconnect_limit(LIMIT))?;
    let ready = tenure.wait_at_most(LONG / 10, tenure.locks().ready())?;
    is_link_fault(ready, LinkFault::Dial)?;

    // One that makes a single try does not wait for another connection.
    let tried = tenure.wait_at_most(LIMIT * 3, tenure.locks().try_acquire(NAME))?;
    is_link_fault(tried.map(drop), LinkFault::Dial)?;

    let began = Instant::now();
    let request = tenure.locks().lock(NAME).wait(Wait::For(SHORT));
    let waited = tenure.wait(request.acquire())?;
    let took = began.elapsed();
    is_link_fault(waited.map(drop), LinkFault::Dial)?;
    assert!(took >= SHORT && took < SHORT * 2, "it came after {took:?}");
    let tries = |told: &Told| match told {
        Told::ConnectFailed(LinkFault::Dial, Some(why)) => why.contains("127.0.0.1"),
        _ => false,
    };
    assert!(tenure.told().count(tries) > 3, "it did not go on trying");

    let waiting = tenure.spawn(tenure.locks().lock(NAME).lease(LEASE).acquire());
    tenure.told().more(2, LONG, tries)?;
    assert!(!waiting.is_finished());
    server.restart_empty()?;
    let lock = tenure.wait(waiting)???;
    let mut client = server.client()?;
    assert_eq!(client.keys()?, [key_of(NAME)]);
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);

    // Somebody listens, and hangs up at once.
    let proxy = Proxy::start(server.addr())?;
    proxy.refuse(true);
    let tenure = Tenure::start(&proxy.url(), |config| config.reconnect_limit(LIMIT))?;
    // The reset is seen while the connection is made, or right after.
    let ready = tenure.wait(tenure.locks().ready())?;
    is_link_fault(ready.clone(), LinkFault::Closed)
        .or_else(|_| is_link_fault(ready, LinkFault::Dial))?;
    let waiting = tenure.spawn(tenure.locks().acquire(NAME));
    tenure
        .told()
        .more(2, LONG, |told| matches!(told, Told::ConnectFailed(..)))?;
    assert!(!waiting.is_finished());
    proxy.refuse(false);
    let lock = tenure.wait(waiting)???;
    tenure.release(lock)
}

fn black_hole(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let proxy = Proxy::start(server.addr())?;
    let mut client = server.client()?;
    let mut watch = Watch::start(server)?;
    let hasty = || {
        Tenure::start(&proxy.url(), |config| {
            config
                .label("me")
                .connect_limit(LIMIT)
                .reply_limit(LIMIT)
                .reconnect_limit(LIMIT / 2)
        })
    };

    // From the start.
    proxy.black_hole(true);
    let tenure = hasty()?;
    let began = Instant::now();
    let ready = tenure.wait(tenure.locks().ready())?;
    is_link_fault(ready, LinkFault::DialTimedOut)?;
    let took = began.elapsed();
    assert!(took < LIMIT * 3, "not ready after {took:?}");
    let tried = tenure.wait_at_most(LIMIT * 3, tenure.locks().try_acquire(NAME))?;
    let error = tried.map(drop).err().ok_or("granted by nobody")?;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");

    // In the middle.
    proxy.black_hole(false);
    let tenure = hasty()?;
    tenure.wait(tenure.locks().ready())??;
    proxy.black_hole(true);
    let began = Instant::now();
    let tried = tenure.wait(tenure.locks().try_acquire(NAME))?;
    let took = began.elapsed();
    let error = tried.map(drop).err().ok_or("granted by nobody")?;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.is_retryable());
    assert!(took < LIMIT * 3, "it came after {took:?}");

    let began = Instant::now();
    let request = tenure.locks().lock(NAME).wait(Wait::For(SHORT));
    let waited = tenure.wait(request.acquire())?;
    let took = began.elapsed();
    let error = waited.map(drop).err().ok_or("granted by nobody")?;
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(took >= SHORT && took < SHORT * 2, "it came after {took:?}");
    assert_eq!(watch.names(&key_of(NAME))?, [""; 0]);
    assert_eq!(client.keys()?, [""; 0]);

    // It ends in time.
    let waiting = tenure.spawn(tenure.locks().lock(NAME).lease(LEASE).acquire());
    let failed = |told: &Told| matches!(told, Told::ConnectFailed(..));
    tenure.told().more(1, LONG, failed)?;
    assert!(!waiting.is_finished());
    proxy.black_hole(false);
    let lock = tenure.wait(waiting)???;
    assert_eq!(client.keys()?, [key_of(NAME)]);
    tenure.release(lock)?;
    thread::sleep(LIMIT);
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

/// The server cannot be reached, for this reason, and trying again may help.
fn is_link_fault(outcome: Result<(), Error>, fault: LinkFault) -> Result<(), Failure> {
    let error = outcome.err().ok_or("it went well")?;
    let Error::Unavailable(Reason::Failure { failure, .. }) = &error else {
        return Err(format!("{error:?}").into());
    };
    assert!(error.is_retryable());
    match *failure == Fault::Link(fault) {
        true => Ok(()),
        false => Err(format!("{failure:?} where {fault:?} was to be").into()),
    }
}

/// The value that an attempt wants to write.
fn fresh(seen: &Seen) -> Option<&Vec<u8>> {
    let attempt = seen.name() == "SET" && seen.arg(3).eq_ignore_ascii_case("NX");
    attempt.then(|| &seen.args[2])
}

const fn renewed(told: &Told) -> bool {
    matches!(told, Told::Renewed(_))
}
