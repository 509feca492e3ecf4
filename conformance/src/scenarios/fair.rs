//! First come, first served.

use std::sync::Mutex;
use std::time::Duration;

use tenure_client::{ConfigError, Error, LockOptions, Reason, Released};

use super::scenarios;
use crate::party::{Party, Tried};
use crate::scene::{LONG, SOON};
use crate::stage::Incident;
use crate::{Outcome, Scene};

scenarios! {
    s19_fair_those_who_wait_are_served_in_order: [];
    s19_fair_a_try_gets_nothing_that_others_wait_for: [];
    s19_fair_who_leaves_the_queue_is_not_waited_for: [];
    s19_fair_who_would_be_one_too_many_is_turned_away: [];
    s19_fair_each_turn_has_a_higher_fence: [];
    s19_fair_places_that_cannot_be_kept_are_refused: [];
    s19_fair_who_waits_gets_what_the_server_forgot: [Server];
}

/// Who got it, in order.
type Order = Mutex<Vec<(usize, Option<u64>)>>;

fn fair(scene: &Scene) -> LockOptions {
    scene.options().lease(LONG).fair()
}

/// Comes in its turn, one after the other, and notes that it got it.
async fn come(
    scene: &Scene,
    number: usize,
    (party, options): (&Party, LockOptions),
    name: &str,
    order: &Order,
) -> Result<Released, Error> {
    scene.sleep(SOON / 3 * number as u32).await;
    let guard = party.acquire(name, options).await?;
    if let Ok(mut order) = order.lock() {
        order.push((number, guard.held().fence()));
    }
    guard.release().await
}

async fn s19_fair_those_who_wait_are_served_in_order(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let (name, order) = (scene.name("n"), Order::default());
    let guard = a.take(&name, fair(&scene)).await?;
    let one = |number, party| come(&scene, number, (party, fair(&scene)), &name, &order);
    let releasing = async {
        scene.sleep(SOON * 3).await;
        guard.release().await
    };
    // Of two processes, one of which has it: whoever comes later waits longer, wherever that is.
    let (first, second, third, fourth, released) =
        tokio::join!(one(1, &b), one(2, &a), one(3, &b), one(4, &a), releasing);
    for released in [first, second, third, fourth, released] {
        assert!(released?.confirmed);
    }
    let order: Vec<_> = order
        .into_inner()?
        .iter()
        .map(|(number, _)| *number)
        .collect();
    assert_eq!(order, [1, 2, 3, 4]);
    Ok(())
}

async fn s19_fair_a_try_gets_nothing_that_others_wait_for(scene: Scene) -> Outcome {
    let parties = (
        scene.party("a").await?,
        scene.party("b").await?,
        scene.party("c").await?,
    );
    let (a, b, c) = &parties;
    let name = scene.name("n");
    let guard = a.take(&name, fair(&scene)).await?;
    let waiting = b.acquire(&name, fair(&scene));
    let trying = async {
        scene.sleep(SOON).await;
        let released = guard.release().await?;
        // Whether it has come to the one who waits or is still on its way.
        let tried = c.attempt(&name, fair(&scene)).await?;
        Ok::<_, Error>((released, tried))
    };
    let (guard, tried) = tokio::join!(waiting, trying);
    let (released, tried) = tried?;
    assert!(released.confirmed);
    assert!(matches!(tried, Tried::Held(_)), "a try came in between");
    assert!(guard?.release().await?.confirmed);
    let guard = c.take(&name, fair(&scene)).await?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s19_fair_who_leaves_the_queue_is_not_waited_for(scene: Scene) -> Outcome {
    let parties = (
        scene.party("a").await?,
        scene.party("b").await?,
        scene.party("c").await?,
    );
    let (a, b, c) = &parties;
    let (name, order) = (scene.name("n"), Order::default());
    // Far longer than all of this takes: a place that was not left would be waited for.
    let options = fair(&scene).waiter_lease(Duration::from_secs(600));
    let guard = a.take(&name, options.clone()).await?;
    let leaving = async {
        // One is dropped, one has waited for long enough.
        let dropped = scene.within(SOON, b.acquire(&name, options.clone())).await;
        let ended = b.acquire(&name, options.clone().wait(SOON)).await;
        (dropped.is_none(), ended.err())
    };
    let releasing = async {
        scene.sleep(SOON * 4).await;
        guard.release().await
    };
    let staying = come(&scene, 1, (c, options.clone()), &name, &order);
    let (left, stayed, released) = tokio::join!(leaving, staying, releasing);
    assert!(
        left.0 && matches!(left.1, Some(Error::TimedOut { .. })),
        "{left:?}"
    );
    assert!(stayed?.confirmed && released?.confirmed);
    Ok(())
}

async fn s19_fair_who_would_be_one_too_many_is_turned_away(scene: Scene) -> Outcome {
    let parties = (
        scene.party("a").await?,
        scene.party("b").await?,
        scene.party("c").await?,
    );
    let (a, b, c) = &parties;
    let name = scene.name("n");
    let one = || fair(&scene).wait(LONG).max_waiters(1);
    let timed_out = |asked| matches!(asked, Err(Error::TimedOut { .. }));
    let guard = a.take(&name, one()).await?;
    // In the process of the holder, which asks nobody.
    let waiting = a.acquire(&name, one().wait(SOON * 2));
    let another = async {
        scene.sleep(SOON).await;
        a.acquire(&name, one()).await
    };
    let (waited, refused) = tokio::join!(waiting, another);
    assert!(timed_out(waited) && matches!(refused, Err(Error::QueueFull)));
    let waiting = b.acquire(&name, one());
    let others = async {
        scene.sleep(SOON).await;
        // Turned away at once, however long it would wait, and without a trace.
        let asked = scene.now();
        for _ in 0..3 {
            let refused = c.acquire(&name, one()).await;
            assert!(matches!(refused, Err(Error::QueueFull)));
        }
        assert!(scene.now() - asked < LONG);
        // A single try does not wait; who does not count may join, and is counted.
        assert!(matches!(c.attempt(&name, one()).await?, Tried::Held(_)));
        let two = fair(&scene).max_waiters(2).wait(SOON);
        assert!(timed_out(c.acquire(&name, two).await));
        let plain = fair(&scene).wait(SOON);
        assert!(timed_out(c.acquire(&name, plain).await));
        guard.release().await
    };
    let (next, released) = tokio::join!(waiting, others);
    assert!(released?.confirmed);
    let next = next?;
    // There is room again.
    let waiting = c.acquire(&name, one());
    let releasing = async {
        scene.sleep(SOON).await;
        next.release().await
    };
    let (last, released) = tokio::join!(waiting, releasing);
    assert!(released?.confirmed && last?.release().await?.confirmed);
    let none = c.acquire(&name, fair(&scene).max_waiters(0)).await;
    let Err(Error::Misconfigured(Reason::Config(ConfigError::MaxWaiters))) = none else {
        return Err("nobody may wait".into());
    };
    Ok(())
}

async fn s19_fair_each_turn_has_a_higher_fence(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let (name, order) = (scene.name("n"), Order::default());
    let guard = a.take(&name, fair(&scene).fenced()).await?;
    let first = guard.held().fence();
    let one = |number, party| {
        let options = fair(&scene).fenced();
        come(&scene, number, (party, options), &name, &order)
    };
    let releasing = async {
        scene.sleep(SOON * 2).await;
        guard.release().await
    };
    let (second, third, released) = tokio::join!(one(1, &b), one(2, &a), releasing);
    for released in [second, third, released] {
        assert!(released?.confirmed);
    }
    let order = order.into_inner()?;
    assert!(first.is_some() && first < order[0].1 && order[0].1 < order[1].1);
    Ok(())
}

async fn s19_fair_places_that_cannot_be_kept_are_refused(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let short = Duration::from_millis(99);
    let options = scene.options().waiter_lease(short);
    match party.acquire(&scene.name("n"), options).await.err() {
        Some(Error::Misconfigured(Reason::Config(ConfigError::WaiterLease(lease)))) => {
            assert_eq!(lease, short);
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}

async fn s19_fair_who_waits_gets_what_the_server_forgot(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, fair(&scene)).await?;
    let forgetting = async {
        scene.sleep(SOON).await;
        scene.server(Incident::Restart { with_data: false }).await
    };
    let (waited, forgotten) = tokio::join!(b.acquire(&name, fair(&scene)), forgetting);
    forgotten?;
    let waited = waited?;
    assert!(waited.held().is_held());
    drop(guard);
    waited.release().await?;
    Ok(())
}
