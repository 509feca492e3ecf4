//! Holding a lock: renewals, fixed leases, the longest hold, work under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_client::{Cause, Error};

use super::scenarios;
use crate::party::Tried;
use crate::scene::{LEASE, SOON};
use crate::{Outcome, Scene};

scenarios! {
    a_lock_is_kept_for_as_long_as_it_is_wanted: [];
    s3_a_renewal_keeps_the_key_and_its_value: [Keys];
    renew_now_moves_the_end_of_validity: [];
    a_lease_without_renewal_ends_and_says_so_before_the_key_does: [];
    a_longest_hold_is_the_longest: [];
    s1_what_remains_falls_and_is_less_than_the_lease: [];
    the_read_view_is_shared_and_ends_with_the_lock: [];
    a_lock_is_released_where_it_was_not_taken: [];
    run_gives_the_result_and_the_lock_back: [];
    run_releases_when_the_work_panics: [];
    run_refuses_a_result_that_came_after_the_loss: [Keys];
    those_who_watch_are_told_in_order: [];
}

async fn a_lock_is_kept_for_as_long_as_it_is_wanted(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options()).await?;
    for _ in 0..6 {
        scene.sleep(LEASE / 2).await;
        guard.held().check()?;
        assert!(matches!(
            b.attempt(&name, scene.options()).await?,
            Tried::Held(_)
        ));
    }
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s3_a_renewal_keeps_the_key_and_its_value(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let first = scene.look(&name)?.ok_or("there is no key")?.0;
    for renewals in 1..=3 {
        scene
            .until("a renewal", || party.count("renewed n") >= renewals)
            .await?;
        let (value, left) = scene.look(&name)?.ok_or("there is no key")?;
        assert_eq!(value, first);
        assert!(left.is_some_and(|left| left <= LEASE), "{left:?}");
    }
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn renew_now_moves_the_end_of_validity(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    // Not renewed by itself for as long as this takes.
    let lease = LEASE * 40;
    let guard = party.take(&name, scene.options().lease(lease)).await?;
    scene.sleep(LEASE).await;
    let before = guard.held().remaining();
    guard.renew_now().await?;
    let after = guard.held().remaining();
    assert!(
        after > before + LEASE / 2 && after <= lease,
        "{before:?} {after:?}"
    );
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn a_lease_without_renewal_ends_and_says_so_before_the_key_does(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let began = scene.now();
    let guard = a.take(&name, scene.options().no_renew()).await?;
    let lost = scene.lost(&guard).await?;
    let took = scene.now() - began;
    assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
    assert!(
        took < LEASE,
        "told {took:?} after the grant, when the key could be gone"
    );
    assert!(!guard.held().is_held());
    assert_eq!(guard.held().check(), Err(Error::Lost(lost)));
    drop(guard);
    assert!(
        b.acquire(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    assert_eq!(a.count("renewed n"), 0);
    Ok(())
}

async fn a_longest_hold_is_the_longest(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let began = scene.now();
    let longest = LEASE * 3;
    let guard = party.take(&name, scene.options().max_hold(longest)).await?;
    let lost = scene.lost(&guard).await?;
    let took = scene.now() - began;
    assert_eq!(lost.cause, Cause::MaxHold);
    assert!(took > LEASE && took <= longest + SOON, "{took:?}");
    Ok(())
}

async fn s1_what_remains_falls_and_is_less_than_the_lease(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().no_renew()).await?;
    let mut last = LEASE * 9 / 10;
    while let Ok(()) = guard.held().check() {
        let remaining = guard.held().remaining();
        assert!(remaining <= last, "{remaining:?} after {last:?}");
        last = remaining;
        scene.sleep(LEASE / 20).await;
    }
    assert!(!guard.held().is_held());
    Ok(())
}

async fn the_read_view_is_shared_and_ends_with_the_lock(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let (one, two) = (guard.held(), guard.held().clone());
    assert!(one.is_held() && two.is_held());
    assert!(guard.release().await?.confirmed);
    assert!(!one.is_held() && !two.is_held());
    assert_eq!(two.check(), Err(Error::NotHeld));
    Ok(())
}

async fn a_lock_is_released_where_it_was_not_taken(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    // On a thread that knows nothing of the runtime.
    std::thread::spawn(move || drop(guard))
        .join()
        .map_err(|_| "it panicked")?;
    assert!(
        party
            .acquire(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    Ok(())
}

async fn run_gives_the_result_and_the_lock_back(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let inner = scene.clone();
    let work = Box::new(move |held: tenure_client::Held| {
        let work = async move {
            inner.sleep(LEASE * 3 / 2).await;
            if held.is_held() { 42_u32 } else { 0 }
        };
        Box::pin(work) as crate::Boxed<u32>
    });
    assert_eq!(party.run(&name, scene.options(), work).await, Ok(42));
    assert!(
        party
            .take(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    Ok(())
}

async fn run_releases_when_the_work_panics(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let work = Box::new(|held: tenure_client::Held| {
        let work = async move {
            assert!(!held.is_held(), "on purpose");
            0_u32
        };
        Box::pin(work) as crate::Boxed<u32>
    });
    let mut running = Box::pin(party.run(&name, scene.options(), work));
    let panicked = std::future::poll_fn(|cx| {
        let poll = || running.as_mut().poll(cx);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(poll)) {
            Ok(std::task::Poll::Pending) => std::task::Poll::Pending,
            Ok(std::task::Poll::Ready(_)) => std::task::Poll::Ready(false),
            Err(_) => std::task::Poll::Ready(true),
        }
    })
    .await;
    assert!(panicked, "the panic was swallowed");
    assert!(
        party
            .acquire(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    Ok(())
}

async fn run_refuses_a_result_that_came_after_the_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let inside = Arc::new(AtomicBool::new(false));
    let (inner, begun) = (scene.clone(), Arc::clone(&inside));
    let work = Box::new(move |_| {
        let work = async move {
            begun.store(true, Ordering::SeqCst);
            inner.sleep(LEASE * 2).await;
            42_u32
        };
        Box::pin(work) as crate::Boxed<u32>
    });
    let deleting = async {
        scene
            .until("the work begins", || inside.load(Ordering::SeqCst))
            .await?;
        scene.delete(&name)
    };
    let (result, deleted) = tokio::join!(party.run(&name, scene.options(), work), deleting);
    deleted?;
    match result {
        Err(Error::Lost(lost)) if lost.cause == Cause::Gone => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

async fn those_who_watch_are_told_in_order(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    scene
        .until("a renewal", || party.count("renewed n") > 0)
        .await?;
    assert!(guard.release().await?.confirmed);
    drop(party.take(&name, scene.options()).await?);
    scene
        .until("the drop", || party.count("dropped n") > 0)
        .await?;
    let mut told = party.told();
    told.retain(|told| told.ends_with(" n"));
    told.dedup();
    assert_eq!(
        told,
        [
            "acquired n",
            "renewed n",
            "released n",
            "acquired n",
            "dropped n"
        ]
    );
    Ok(())
}
