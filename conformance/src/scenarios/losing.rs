//! Losing a lock, and being told so.

use std::time::Duration;

use tenure_client::{Cause, Error};

use super::scenarios;
use crate::scene::LEASE;
use crate::{Outcome, Scene};

scenarios! {
    s8_a_deleted_key_is_told_as_gone: [Keys];
    s8_a_replaced_key_is_told_as_replaced_and_left_alone: [Keys];
    s8_a_key_taken_by_another_client_says_by_whom: [Keys];
    s8_everybody_who_waits_for_the_loss_is_told_once: [Keys];
    s8_a_release_after_the_loss_says_so: [Keys];
    s4_nothing_is_renewed_after_the_loss: [Keys];
    the_hold_after_a_lost_one_is_like_any_other: [Keys];
    renew_now_finds_out_about_the_loss: [Keys];
}

async fn s8_a_deleted_key_is_told_as_gone(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    scene.delete(&name)?;
    let began = scene.now();
    let lost = scene.lost(&guard).await?;
    let took = scene.now() - began;
    assert_eq!(lost.cause, Cause::Gone);
    // At the next renewal.
    assert!(took < LEASE, "{took:?}");
    assert!(!guard.held().is_held());
    assert_eq!(scene.look(&name)?, None);
    Ok(())
}

async fn s8_a_replaced_key_is_told_as_replaced_and_left_alone(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    scene.put(&name, "somebody else's", Some(LEASE * 20))?;
    let lost = scene.lost(&guard).await?;
    assert_eq!((lost.cause, lost.by), (Cause::Replaced, None));
    drop(guard);
    scene.sleep(LEASE / 2).await;
    let (value, left) = scene.look(&name)?.ok_or("it was deleted")?;
    assert_eq!(value, b"somebody else's");
    assert!(left.is_some_and(|left| left > LEASE * 10), "{left:?}");
    scene.delete(&name)
}

async fn s8_a_key_taken_by_another_client_says_by_whom(scene: Scene) -> Outcome {
    // It is deleted for a moment before it is taken, of which the loser is not to hear.
    let a = scene.party_with("a", |config| config.no_wake_ups())?;
    let b = scene.party("b").await?;
    let name = scene.name("n");
    let guard = a.take(&name, scene.options()).await?;
    scene.delete(&name)?;
    let other = b.take(&name, scene.options()).await?;
    let lost = scene.lost(&guard).await?;
    assert_eq!(lost.cause, Cause::Replaced);
    assert_eq!(lost.by.as_deref(), Some("b"));
    drop(guard);
    other.held().check()?;
    assert!(other.release().await?.confirmed);
    Ok(())
}

async fn s8_everybody_who_waits_for_the_loss_is_told_once(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let held = guard.held();
    let (one, two, three) = (held.lost(), held.lost(), guard.held());
    scene.delete(&name)?;
    let all = async { tokio::join!(one, two, three.lost()) };
    let (one, two, three) = scene
        .within(LEASE * 4, all)
        .await
        .ok_or("not everybody was told")?;
    assert_eq!((&one, &two), (&three, &three));
    drop(guard);
    scene.sleep(LEASE / 2).await;
    assert_eq!(party.count("lost n"), 1);
    Ok(())
}

async fn s8_a_release_after_the_loss_says_so(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    // Not yet noticed, and noticed.
    for noticed in [false, true] {
        let guard = party.take(&name, scene.options()).await?;
        scene.delete(&name)?;
        if noticed {
            scene.lost(&guard).await?;
        }
        match guard.release().await {
            Err(Error::Lost(lost)) if lost.cause == Cause::Gone => {}
            other => return Err(format!("{noticed}: {other:?}").into()),
        }
    }
    Ok(())
}

async fn s4_nothing_is_renewed_after_the_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let (value, _) = scene.look(&name)?.ok_or("there is no key")?;
    scene.delete(&name)?;
    scene.lost(&guard).await?;
    // Even if the very same value comes back, from a replica say, it is not kept alive.
    scene.put(&name, std::str::from_utf8(&value)?, Some(LEASE))?;
    let renewals = party.count("renewed n");
    scene.sleep(LEASE * 3 / 2).await;
    assert_eq!(scene.look(&name)?, None);
    assert_eq!(party.count("renewed n"), renewals);
    assert!(!guard.held().is_held());
    Ok(())
}

async fn the_hold_after_a_lost_one_is_like_any_other(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let lost = party.take(&name, scene.options()).await?;
    scene.delete(&name)?;
    scene.lost(&lost).await?;
    // While the guard of the lost one still lives.
    let guard = party.acquire(&name, scene.options()).await?;
    scene.sleep(LEASE * 2).await;
    guard.held().check()?;
    drop(lost);
    scene.sleep(LEASE / 2).await;
    guard.held().check()?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn renew_now_finds_out_about_the_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let lease = LEASE * 40;
    let guard = party.take(&name, scene.options().lease(lease)).await?;
    scene.delete(&name)?;
    let renewed = scene
        .within(Duration::from_secs(2), guard.renew_now())
        .await;
    match renewed.ok_or("it was not told")? {
        Err(Error::Lost(lost)) if lost.cause == Cause::Gone => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
