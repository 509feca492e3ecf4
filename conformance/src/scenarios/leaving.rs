//! Leaving: dropped guards and futures, abandoned locks, closed clients.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_client::{Cause, Error, Wait};

use super::scenarios;
use crate::party::Tried;
use crate::scene::{LEASE, SOON};
use crate::{Outcome, Scene};

scenarios! {
    a_dropped_guard_frees_the_name: [];
    s6_a_dropped_guard_leaves_no_key: [Keys];
    an_abandoned_lock_stays_taken_to_the_end_of_its_lease: [];
    nothing_is_asked_before_the_first_poll: [];
    s6_a_request_that_is_dropped_leaves_nothing: [];
    s6_a_request_that_is_dropped_leaves_no_key: [Keys];
    a_request_that_is_dropped_leaves_the_queue: [];
    a_release_that_is_dropped_is_made: [];
    closing_tells_holders_and_refuses_requests: [];
    closing_ends_those_who_wait: [];
    closing_waits_for_what_is_to_be_given_back: [];
    one_handle_more_or_less_ends_nothing: [];
    the_guard_keeps_its_client_alive: [];
    s6_a_wait_that_timed_out_leaves_nothing: [Keys];
}

async fn a_dropped_guard_frees_the_name(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options().lease(LEASE * 40)).await?;
    let held = guard.held();
    drop(guard);
    assert!(!held.is_held());
    let began = scene.now();
    let guard = b.acquire(&name, scene.options()).await?;
    assert!(scene.now() - began < LEASE * 4);
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s6_a_dropped_guard_leaves_no_key(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    drop(party.take(&name, scene.options().lease(LEASE * 40)).await?);
    scene.free(&name).await
}

async fn an_abandoned_lock_stays_taken_to_the_end_of_its_lease(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let began = scene.now();
    let guard = a.take(&name, scene.options()).await?;
    let held = guard.held();
    guard.abandon();
    assert!(!held.is_held());
    let guard = b.acquire(&name, scene.options()).await?;
    let took = scene.now() - began;
    assert!(
        took >= LEASE * 9 / 10,
        "it was had {took:?} after the grant"
    );
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn nothing_is_asked_before_the_first_poll(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let locks = party.locks();
    let unpolled = locks.lock(&name).lease(LEASE).acquire();
    assert!(
        party
            .take(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    drop(unpolled);
    Ok(())
}

async fn s6_a_request_that_is_dropped_leaves_nothing(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let locks = party.locks();
    for number in 0..20 {
        let name = scene.name(&number.to_string());
        let request = locks.lock(&name).lease(LEASE * 40).wait(Wait::Forever);
        let mut acquiring = request.acquire();
        let _ = poll_once(&mut acquiring);
        scene.sleep(Duration::from_micros(number * 100)).await;
        drop(acquiring);
        let guard = party.acquire(&name, scene.options()).await?;
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn s6_a_request_that_is_dropped_leaves_no_key(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let locks = party.locks();
    let mut names = Vec::new();
    for number in 0..20 {
        let name = scene.name(&number.to_string());
        let mut acquiring = locks.lock(&name).lease(LEASE * 40).acquire();
        let _ = poll_once(&mut acquiring);
        scene.sleep(Duration::from_micros(number * 100)).await;
        drop(acquiring);
        names.push(name);
    }
    // What comes after on the same connection comes after.
    let last = scene.name("last");
    assert!(
        party
            .take(&last, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    for name in names {
        scene.free(&name).await?;
    }
    Ok(())
}

async fn a_request_that_is_dropped_leaves_the_queue(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let locks = party.locks();
    let mut first = locks.lock(&name).lease(LEASE).acquire();
    assert!(poll_once(&mut first).is_pending());
    let second = party.acquire(&name, scene.options());
    let leaving = async {
        scene.sleep(SOON).await;
        drop(first);
        guard.release().await
    };
    let (second, released) = tokio::join!(second, leaving);
    assert!(released?.confirmed);
    assert!(second?.release().await?.confirmed);
    Ok(())
}

async fn a_release_that_is_dropped_is_made(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let locks = party.locks();
    for polled in [false, true] {
        let lock = locks.lock(&name).lease(LEASE * 40).acquire().await?;
        let mut releasing = lock.release();
        if polled {
            let _ = poll_once(&mut releasing);
        }
        drop(releasing);
        let guard = party.acquire(&name, scene.options()).await?;
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn closing_tells_holders_and_refuses_requests(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let closing = party.close();
    let losing = async {
        let lost = scene.lost(&guard).await?;
        assert_eq!(lost.cause, Cause::Closed);
        assert!(!guard.held().is_held());
        drop(guard);
        Ok::<_, crate::Failure>(())
    };
    let ((), lost) = tokio::join!(closing, losing);
    lost?;
    let refused = party.attempt(&name, scene.options()).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    let refused = party.acquire(&name, scene.options()).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    // Again is no more than once.
    party.close().await;
    Ok(())
}

async fn closing_ends_those_who_wait(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    // The name stays taken until the waiter has its answer: it has no other way out.
    let waiting = async {
        let waited = party.acquire(&name, scene.options()).await;
        drop(guard);
        waited.map(drop)
    };
    let closing = async {
        scene.sleep(SOON).await;
        party.close().await;
    };
    let (waited, ()) = tokio::join!(waiting, closing);
    assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
    Ok(())
}

async fn closing_waits_for_what_is_to_be_given_back(scene: Scene) -> Outcome {
    let a = scene.party("a").await?;
    let mut names = Vec::new();
    for number in 0..10 {
        let name = scene.name(&number.to_string());
        drop(a.take(&name, scene.options().lease(LEASE * 40)).await?);
        names.push(name);
    }
    a.close().await;
    drop(a);
    if scene.has_keys() {
        for name in names {
            assert_eq!(scene.look(&name)?, None);
        }
    }
    Ok(())
}

async fn one_handle_more_or_less_ends_nothing(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    drop(party.locks());
    scene.sleep(LEASE * 3 / 2).await;
    guard.held().check()?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn the_guard_keeps_its_client_alive(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options()).await?;
    let _connection = a.leave();
    scene.sleep(LEASE * 3 / 2).await;
    guard.held().check()?;
    assert!(matches!(
        b.attempt(&name, scene.options()).await?,
        Tried::Held(_)
    ));
    assert!(guard.release().await?.confirmed);
    assert!(
        b.acquire(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    Ok(())
}

async fn s6_a_wait_that_timed_out_leaves_nothing(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "somebody else's", Some(LEASE * 40))?;
    let waited = party.acquire(&name, scene.options().wait(SOON)).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    scene.delete(&name)?;
    scene.sleep(LEASE).await;
    assert_eq!(scene.look(&name)?, None);
    Ok(())
}

/// As a task does that is then never polled again.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}
