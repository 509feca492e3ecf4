//! The shortest hold, and renewals that write a new value each.

use tenure_client::Error;

use super::scenarios;
use crate::party::{Tried, Work};
use crate::scene::{LEASE, LONG, SOON};
use crate::stage::Weather;
use crate::{Outcome, Scene};

scenarios! {
    s6_a_lock_that_is_released_early_stays_taken_for_the_rest: [];
    s6_a_guard_that_is_dropped_early_leaves_the_name_taken: [];
    s6_a_job_runs_once_in_its_period_though_two_parties_try: [];
    s6_a_closed_client_leaves_the_name_taken_for_the_rest: [Link];
    s6_work_under_a_lock_leaves_the_name_taken_for_the_rest: [];
    s6_whoever_dies_before_the_minimum_is_over_leaves_its_lease: [Keys, Link];
    s6_a_shortest_hold_that_is_over_changes_nothing: [];
    s6_who_removes_a_cooling_name_by_force_frees_it: [];
    a5_a_lock_that_rotates_is_kept_and_released: [];
    a5_each_renewal_that_rotates_changes_the_value: [Keys];
}

async fn s6_a_lock_that_is_released_early_stays_taken_for_the_rest(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    // Longer than the lease.
    let guard = a.take(&name, scene.options().at_least(LONG * 10)).await?;
    assert!(guard.release().await?.confirmed);
    let Tried::Held(holder) = b.attempt(&name, scene.options()).await? else {
        return Err("granted".into());
    };
    assert!(holder.cooling && holder.label.as_deref() == Some("a"));
    let found = b.inspect(&name).await?.ok_or("nobody")?;
    assert!(found.cooling && found.remaining > Some(LONG));
    assert!(found.to_string().starts_with("cooling down after a"));
    let listed = b.list(&name).await?;
    assert!(listed.names.iter().all(|(_, found)| found.cooling));
    assert_eq!(listed.names.len(), 1);
    Ok(())
}

async fn s6_a_guard_that_is_dropped_early_leaves_the_name_taken(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    drop(a.take(&name, scene.options().at_least(LONG * 10)).await?);
    scene.sleep(LEASE / 2).await;
    let Tried::Held(holder) = b.attempt(&name, scene.options()).await? else {
        return Err("granted".into());
    };
    assert!(holder.cooling);
    Ok(())
}

async fn s6_a_job_runs_once_in_its_period_though_two_parties_try(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let options = || scene.options().at_least(LEASE * 2);
    let guard = a.take(&name, options()).await?;
    let granted = scene.now();
    assert!(guard.release().await?.confirmed);
    let guard = b.acquire(&name, options()).await?;
    let passed = scene.now() - granted;
    assert!(passed >= LEASE * 2 * 9 / 10, "{passed:?}");
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s6_a_closed_client_leaves_the_name_taken_for_the_rest(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options().at_least(LONG * 10)).await?;
    let closing = a.close();
    drop(guard);
    closing.await;
    let Tried::Held(holder) = b.attempt(&name, scene.options()).await? else {
        return Err("granted".into());
    };
    assert!(holder.cooling);
    Ok(())
}

async fn s6_work_under_a_lock_leaves_the_name_taken_for_the_rest(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let options = scene.options().at_least(LONG * 10);
    let work: Work = Box::new(|held| Box::pin(async move { u32::from(held.is_held()) }));
    assert_eq!(a.run(&name, options.clone(), work).await, Ok(1));
    let work: Work = Box::new(|_| Box::pin(async { 2 }));
    match b.run(&name, options.wait(SOON), work).await {
        Err(Error::TimedOut { holder }) => assert!(holder.cooling),
        other => return Err(format!("the second time: {other:?}").into()),
    }
    Ok(())
}

/// Nobody is left to say that the name has to stay taken: it does for the lease, and no longer.
async fn s6_whoever_dies_before_the_minimum_is_over_leaves_its_lease(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options().at_least(LONG * 10)).await?;
    // Nothing of it is heard any more, nor what it leaves behind.
    a.weather(Weather::Silent(true))?;
    let (_, left) = scene.look(&name)?.ok_or("there is no key")?;
    assert!(left.is_some_and(|left| left <= LEASE), "{left:?}");
    let Tried::Held(holder) = b.attempt(&name, scene.options()).await? else {
        return Err("granted".into());
    };
    assert!(!holder.cooling);
    let next = b.acquire(&name, scene.options()).await?;
    drop(guard);
    assert!(next.release().await?.confirmed);
    Ok(())
}

async fn s6_a_shortest_hold_that_is_over_changes_nothing(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options().at_least(LEASE / 4)).await?;
    scene.sleep(LEASE / 2).await;
    assert!(guard.release().await?.confirmed);
    assert!(matches!(
        b.attempt(&name, scene.options()).await?,
        Tried::Acquired(_)
    ));
    Ok(())
}

async fn s6_who_removes_a_cooling_name_by_force_frees_it(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options().at_least(LONG * 10)).await?;
    assert!(guard.release().await?.confirmed);
    let removed = b.force_release(&name).await?.ok_or("nothing")?;
    assert_eq!(removed.label.as_deref(), Some("a"));
    assert!(matches!(
        b.attempt(&name, scene.options()).await?,
        Tried::Acquired(_)
    ));
    Ok(())
}

async fn a5_a_lock_that_rotates_is_kept_and_released(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    for fenced in [false, true] {
        let options = match fenced {
            true => scene.options().rotate().fenced(),
            false => scene.options().rotate(),
        };
        let guard = a.take(&name, options).await?;
        for _ in 0..4 {
            guard.renew_now().await?;
            scene.sleep(LEASE / 2).await;
            guard.held().check()?;
        }
        assert!(guard.release().await?.confirmed);
        let tried = b.attempt(&name, scene.options()).await?;
        let Tried::Acquired(guard) = tried else {
            return Err("still taken".into());
        };
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn a5_each_renewal_that_rotates_changes_the_value(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().rotate()).await?;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let (value, _) = scene.look(&name)?.ok_or("there is no key")?;
        assert!(!seen.contains(&value), "a value came again");
        seen.push(value);
        guard.renew_now().await?;
        guard.held().check()?;
    }
    assert!(guard.release().await?.confirmed);
    scene.free(&name).await
}
