//! Fences: numbers that only grow, from one holder to the next.

use tenure_client::{ConfigError, Error, Failure as Why, FenceFault, Reason};

use super::scenarios;
use crate::party::{Guard, Party, Tried};
use crate::scene::LONG;
use crate::stage::{Incident, Weather};
use crate::{Failure, Outcome, Scene};

scenarios! {
    s14_each_holder_has_a_higher_fence: [];
    s14_a_lock_without_one_has_no_fence: [];
    s14_fenced_and_unfenced_holders_exclude_each_other: [];
    s14_inspect_shows_the_fence_of_who_holds: [];
    s14_renewals_leave_the_fence: [];
    s14_a_fence_passes_the_floor: [];
    s14_a_floor_far_ahead_is_refused: [];
    s14_a_take_over_has_a_new_fence: [Keys, Link];
    s14_a_server_that_forgets_all_goes_on_growing: [Server];
}

async fn take(party: &Party, scene: &Scene, name: &str) -> Result<(Guard, u64), Failure> {
    let guard = party.acquire(name, scene.options().fenced()).await?;
    let fence = guard.held().fence().ok_or("no fence")?;
    Ok((guard, fence))
}

async fn s14_each_holder_has_a_higher_fence(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let mut last = 0;
    for round in 0..10 {
        let party = if round % 2 == 0 { &a } else { &b };
        let (guard, fence) = take(party, &scene, &name).await?;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        match round % 3 {
            // The key runs out.
            0 if round < 3 => guard.abandon(),
            1 => drop(guard),
            _ => _ = guard.release().await?,
        }
    }
    assert!(last < 1 << 53);
    Ok(())
}

async fn s14_a_lock_without_one_has_no_fence(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let guard = party.take(&scene.name("n"), scene.options()).await?;
    assert_eq!(guard.held().fence(), None);
    Ok(())
}

async fn s14_fenced_and_unfenced_holders_exclude_each_other(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    for (first, second) in [(true, false), (false, true), (true, true)] {
        let options = |fenced| match fenced {
            true => scene.options().lease(LONG).fenced(),
            false => scene.options().lease(LONG),
        };
        let guard = a.take(&name, options(first)).await?;
        match b.attempt(&name, options(second)).await? {
            Tried::Held(holder) => assert_eq!(holder.label.as_deref(), Some("a")),
            Tried::Acquired(_) => return Err("held twice".into()),
        }
        let waiting = b.acquire(&name, options(second));
        let (released, guard) = tokio::join!(guard.release(), waiting);
        assert!(released?.confirmed);
        let guard = guard?;
        assert_eq!(guard.held().fence().is_some(), second);
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn s14_inspect_shows_the_fence_of_who_holds(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let (guard, fence) = take(&a, &scene, &name).await?;
    let found = b.inspect(&name).await?.ok_or("nobody")?;
    assert_eq!(found.fence, Some(fence));
    assert!(found.to_string().contains(&fence.to_string()));
    let listed = b.list(&name).await?;
    assert_eq!(listed.names[0].1.fence, Some(fence));
    assert_eq!(listed.names.len(), 1);
    assert!(guard.release().await?.confirmed);
    // The counter is still there, and is nobody's.
    let _guard = a.take(&name, scene.options()).await?;
    let found = b.inspect(&name).await?.ok_or("nobody")?;
    assert_eq!(found.fence, None);
    Ok(())
}

async fn s14_renewals_leave_the_fence(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let (guard, fence) = take(&party, &scene, &name).await?;
    for _ in 0..3 {
        guard.renew_now().await?;
    }
    assert_eq!(guard.held().fence(), Some(fence));
    let held = guard.held().clone();
    assert!(guard.release().await?.confirmed);
    // It is known after the end, too.
    assert_eq!(held.fence(), Some(fence));
    let (_guard, next) = take(&party, &scene, &name).await?;
    assert!(next > fence);
    Ok(())
}

async fn s14_a_fence_passes_the_floor(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let (guard, fence) = take(&party, &scene, &name).await?;
    drop(guard);
    // An hour ahead of any clock here.
    let floor = fence + 3_600_000_000;
    let guard = party
        .acquire(&name, scene.options().fence_from(floor))
        .await?;
    assert_eq!(guard.held().fence(), Some(floor + 1));
    drop(guard);
    let (_guard, next) = take(&party, &scene, &name).await?;
    assert_eq!(next, floor + 2);
    Ok(())
}

async fn s14_a_floor_far_ahead_is_refused(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let (guard, fence) = take(&party, &scene, &name).await?;
    assert!(guard.release().await?.confirmed);
    let far = fence + 2 * 86_400_000_000;
    let refused = party.acquire(&name, scene.options().fence_from(far)).await;
    let Err(Error::Misconfigured(Reason::Failure { failure, .. })) = &refused else {
        return Err("granted".into());
    };
    assert_eq!(*failure, Why::Fence(FenceFault::Floor));
    let refused = party
        .acquire(&name, scene.options().fence_from(1 << 53))
        .await;
    assert!(matches!(
        refused,
        Err(Error::Misconfigured(Reason::Config(ConfigError::Floor(_))))
    ));
    // Nothing of it is left.
    let (_guard, next) = take(&party, &scene, &name).await?;
    assert!(next > fence && next < far);
    Ok(())
}

async fn s14_a_take_over_has_a_new_fence(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let counter = format!("{{lock:{name}}}:fence");
    // Executed, and never answered.
    party.weather(Weather::Deaf(true))?;
    let asking = take(&party, &scene, &name);
    let cutting = async {
        scene.until("the key", || scene.is_taken(&name)).await?;
        let (left, _) = scene.look(&counter)?.ok_or("no counter")?;
        party.weather(Weather::Cut)?;
        party.weather(Weather::Deaf(false))?;
        Ok::<_, Failure>(left)
    };
    let (taken, left) = tokio::join!(asking, cutting);
    let (_guard, fence) = taken?;
    let left: u64 = String::from_utf8(left?)?.parse()?;
    // A simulated answer may have been on its way already: then the first attempt counts, with its fence.
    let (value, _) = scene.look(&name)?.ok_or("no key")?;
    match value.ends_with(b".1") {
        true => assert_eq!(fence, left),
        false => assert!(fence > left, "{fence} after {left}"),
    }
    Ok(())
}

async fn s14_a_server_that_forgets_all_goes_on_growing(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let (guard, before) = take(&party, &scene, &name).await?;
    assert!(guard.release().await?.confirmed);
    scene.server(Incident::Flush).await?;
    let (guard, flushed) = take(&party, &scene, &name).await?;
    assert!(flushed > before && guard.release().await?.confirmed);
    scene.server(Incident::Restart { with_data: false }).await?;
    let (_guard, restarted) = take(&party, &scene, &name).await?;
    assert!(restarted > flushed);
    Ok(())
}
