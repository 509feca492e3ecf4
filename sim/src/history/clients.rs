//! What clients do: everything a user can, at random.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_client::{Config, Error, Locks, Wait, connect_with};
use tenure_core::config::MIN_WAITER_LEASE;

use super::{Kind, Stage, lock};
use crate::checker::{Ask, Assumption, Guard, Want};
use crate::machine::Client;
use crate::thread::Threads;
use crate::world::World;

/// The name of a lock.
pub(super) fn name(number: usize) -> String {
    format!("n{number}")
}

/// A new machine with a process on it.
pub(super) fn start(stage: &Stage) {
    // With the server's this stays within the margin, or is far from it.
    let most: u64 = match stage.checker.assumes(&[Assumption::A2]) {
        true => 40_000,
        false => 400_000,
    };
    let drift = stage.world.below(2 * most + 1) as i64 - most as i64;
    let client = stage.world.client_with_drift(drift);
    lock(&stage.clients).push(client.clone());
    let (busy, stage) = (stage.busy("a client"), stage.clone());
    client.clone().spawn(async move {
        let _busy = busy;
        for _ in 0..1 + stage.world.below(2) {
            live(&stage, &client).await;
        }
    });
}

/// A client of the library, its driver running; its callers are tasks or threads.
pub(super) async fn connect(stage: &Stage, client: &Client) -> Result<(Locks, Callers), Error> {
    let mut config = Config::from_url(&format!("redis://{}", stage.server.host()))?
        // A client that was closed may still clean up while the next one on its machine begins.
        .label(format!("c{}-{}", client.id(), stage.number()))
        .observe(stage.checker.observer(client));
    config = match stage.world.below(10) {
        0 if stage.kind != Kind::Waking => config.no_wake_ups(),
        1..=4 if stage.told => config.poll_limit(Duration::MAX),
        _ => config,
    };
    let (locks, callers) = if stage.world.chance(250) {
        stage.checker.has_threads(client);
        let (locks, threads) = Threads::connect(client, &config)?;
        (locks, Callers(Some(threads)))
    } else {
        let (locks, driver) = connect_with(client.binding(), &config)?;
        client.spawn(driver);
        (locks, Callers(None))
    };
    if stage.world.chance(500) {
        // The first try may fail; the driver goes on.
        let _ = locks.ready().await;
    }
    Ok((locks, callers))
}

/// Threads that read for themselves while they are alone, or tasks.
#[derive(Clone)]
pub(super) struct Callers(Option<Threads>);

impl Callers {
    async fn ask<F: Future>(&self, future: F) -> F::Output {
        match &self.0 {
            Some(threads) => threads.ask(future).await,
            None => future.await,
        }
    }
}

/// From connecting to the end of every task; now and then it is closed before.
async fn live(stage: &Stage, client: &Client) {
    let Ok((locks, callers)) = connect(stage, client).await else {
        return;
    };
    let alive = Arc::new(());
    for _ in 0..1 + stage.world.below(3) {
        let (stage, client) = (stage.clone(), client.clone());
        let (locks, callers) = (locks.clone(), callers.clone());
        let (busy, alive) = (stage.busy("a task"), Arc::clone(&alive));
        client.clone().spawn(async move {
            let (_busy, _alive) = (busy, alive);
            while stage.goes_on() {
                if stage.world.chance(600) {
                    let pause = stage.up_to(200);
                    stage.world.sleep(pause).await;
                }
                if verb(&stage, &client, &locks, &callers).await.is_err() {
                    return;
                }
            }
        });
    }
    if stage.world.chance(200) {
        stage.world.sleep(stage.world.up_to(stage.until())).await;
        stage
            .world
            .note(|| format!("client {} closes", client.id()));
        let closing = locks.close();
        if stage.world.chance(700) {
            let _ = within(&stage.world, Duration::from_secs(1), closing).await;
        }
    }
    drop(locks);
    while Arc::strong_count(&alive) > 1 {
        stage.world.sleep(Duration::from_millis(50)).await;
    }
}

/// One request, and what becomes of it. An error says that the client was closed.
async fn verb(
    stage: &Stage,
    client: &Client,
    locks: &Locks,
    callers: &Callers,
) -> Result<(), Error> {
    let world = &stage.world;
    let name = name(world.below(stage.names as u64) as usize);
    if world.chance(20) {
        let patience = Duration::from_millis(1) + stage.up_to(2_500);
        return look(world, locks, &name, patience).await;
    }
    let (least, most) = stage.pace.leases;
    let lease = least + world.up_to(most - least);
    let want = Want {
        lease,
        wait: match world.below(10) {
            0..=3 => Wait::Now,
            9 => Wait::Forever,
            _ => Wait::For(Duration::from_millis(1) + stage.up_to(2_000)),
        },
        renew: !world.chance(100),
        max_hold: world.chance(100).then(|| world.up_to(most)),
        // Without a draw of its own: a history is its seed.
        fenced: lease.as_micros().is_multiple_of(3),
        fair: fair(lease),
        rotate: lease.as_micros() % 4 == 1,
        at_least: match lease.as_micros() % 5 {
            2 => lease * 3 / 2,
            _ => Duration::ZERO,
        },
        max_waiters: max_waiters(lease),
        replicas: (stage.replicas > 0 && (lease.as_micros() / 7).is_multiple_of(2))
            .then_some((stage.replicas, lease / 8)),
    };
    let ask = stage.checker.ask(client, &name, want);
    let request = locks.lock(&name).options(ask.options());
    world.note(|| format!("client {} asks for {name}: {want:?}", client.id()));
    let patience = Duration::from_millis(1) + stage.up_to(2_500);
    if world.chance(150) {
        return work(stage, ask, request, patience).await;
    }
    let tries = want.wait == Wait::Now && world.chance(800);
    let lazy = world.chance(100);
    ask.begun(lazy);
    let mut asking: Pin<Box<dyn Future<Output = Result<Option<_>, Error>> + Send>> = if tries {
        let (callers, trying) = (callers.clone(), request.try_acquire());
        Box::pin(async move { Ok(callers.ask(trying).await?.acquired()) })
    } else {
        let (callers, acquiring) = (callers.clone(), request.acquire());
        Box::pin(async move { callers.ask(acquiring).await.map(Some) })
    };
    let mut answer = None;
    if lazy {
        // Polled once, and then not for a while.
        answer = once(&mut asking).await;
        world.sleep(world.up_to(patience)).await;
    }
    if answer.is_none() && !(lazy && world.chance(300)) {
        answer = if want.wait == Wait::Forever || world.chance(200) {
            within(world, patience, &mut asking).await
        } else {
            Some((&mut asking).await)
        };
    }
    drop(asking);
    match answer {
        // Its future was dropped; so is what the checker has of it.
        None => Ok(()),
        Some(Ok(Some(lock))) => keep(stage, callers, ask.acquired(lock), want.lease).await,
        Some(Ok(None)) => {
            ask.refused();
            Ok(())
        }
        Some(Err(error)) => {
            ask.failed(&error);
            match error {
                Error::Closed => Err(error),
                _ => Ok(()),
            }
        }
    }
}

/// A third of the requests is fair; for how long a place is kept is short enough to end now and then.
fn fair(lease: Duration) -> Option<Duration> {
    let waiter_lease = (lease / 2).max(MIN_WAITER_LEASE);
    (lease.as_micros() / 3)
        .is_multiple_of(3)
        .then_some(waiter_lease)
}

/// Half of those that are fair do not wait behind more than one or two.
pub(crate) fn max_waiters(lease: Duration) -> Option<u32> {
    let micros = lease.as_micros() / 9;
    let is_fair = (lease.as_micros() / 3).is_multiple_of(3);
    (is_fair && micros.is_multiple_of(2)).then(|| 1 + (micros / 2 % 2) as u32)
}

/// As an operator does; sometimes dropped midway.
async fn look(world: &World, locks: &Locks, name: &str, patience: Duration) -> Result<(), Error> {
    let answer = if world.chance(500) {
        within(world, patience, async {
            locks.inspect(name).await.map(drop)
        })
        .await
    } else {
        within(world, patience, async { locks.list("").await.map(drop) }).await
    };
    match answer {
        Some(Err(Error::Closed)) => Err(Error::Closed),
        _ => Ok(()),
    }
}

/// Acquires, runs, releases in one; sometimes dropped midway.
async fn work(
    stage: &Stage,
    ask: Ask,
    request: tenure_client::Request,
    patience: Duration,
) -> Result<(), Error> {
    let world = &stage.world;
    ask.begun(false);
    let ask = Arc::new(std::sync::Mutex::new(Some(ask)));
    let take = {
        let ask = Arc::clone(&ask);
        move || ask.lock().ok().and_then(|mut ask| ask.take())
    };
    let (inner, span) = (world.clone(), world.up_to(patience));
    let running = request.run(|held| async move {
        let mark = take().map(|ask| ask.held(&held));
        inner.sleep(span).await;
        drop(mark);
    });
    let answer = if world.chance(300) {
        within(world, patience, running).await
    } else {
        within(world, Duration::from_secs(20), running).await
    };
    let ask = ask.lock().ok().and_then(|mut ask| ask.take());
    match (answer, ask) {
        (Some(Err(error)), Some(ask)) => {
            ask.failed(&error);
            match error {
                Error::Closed => Err(error),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Holds it for a while, and ends it in one of the many ways.
async fn keep(
    stage: &Stage,
    callers: &Callers,
    guard: Guard,
    lease: Duration,
) -> Result<(), Error> {
    let world = &stage.world;
    let span = match world.below(10) {
        0..=2 => Duration::ZERO,
        9 => lease * 3,
        _ => lease,
    };
    let end = world.now() + world.up_to(span);
    while world.now() < end {
        let left = end.saturating_sub(world.now());
        if within(
            world,
            world.up_to(left) + Duration::from_micros(1),
            guard.lost(),
        )
        .await
        .is_some()
        {
            break;
        }
        if world.chance(300) {
            let _ = within(world, world.up_to(left), callers.ask(guard.renew_now())).await;
        }
    }
    match world.below(20) {
        0 => guard.abandon(),
        1..=4 => drop(guard),
        5 => {
            // The work goes on for a while, whether it is lost or not.
            let _ = within(world, lease * 2, guard.lost()).await;
            world.sleep(world.up_to(lease)).await;
            drop(guard);
        }
        6..=7 => {
            let _ = within(
                world,
                world.up_to(Duration::from_millis(2)),
                callers.ask(guard.release()),
            )
            .await;
        }
        _ => {
            let _ = callers.ask(guard.release()).await;
        }
    }
    Ok(())
}

/// The output of a future, unless it takes longer; then it is dropped.
pub(super) async fn within<F: Future>(
    world: &World,
    span: Duration,
    future: F,
) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut sleep = std::pin::pin!(world.sleep(span));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

/// Polls a future once.
async fn once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
