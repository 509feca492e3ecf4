//! The connection: cut, silent, slow, refused.

use std::time::Duration;

use tenure_client::{Cause, Error};

use super::scenarios;
use crate::scene::{LEASE, SOON};
use crate::stage::Weather;
use crate::{Outcome, Scene};

scenarios! {
    s7_a_cut_is_no_loss: [Keys, Link];
    s7_every_hold_is_renewed_at_once_after_a_cut: [Link];
    s5_a_cut_while_asking_leaves_one_key: [Keys, Link];
    s6_a_cut_while_leaving_leaves_no_key: [Keys, Link];
    s7_a_short_silence_is_no_loss: [Link];
    s1_a_long_silence_is_told_while_the_key_still_excludes: [Keys, Link];
    s8_a_release_without_an_answer_ends_and_goes_on: [Keys, Link];
    s9_a_try_without_an_answer_fails_and_leaves_nothing: [Keys, Link];
    s9_replies_slower_than_the_lease_get_no_lock: [Keys, Link];
    a_slow_connection_is_no_loss: [Link];
    s10_nobody_to_talk_to_is_told_as_that: [Link];
    a_client_that_started_first_gets_its_lock_when_the_server_comes: [Link];
}

async fn s7_a_cut_is_no_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let (value, _) = scene.look(&name)?.ok_or("there is no key")?;
    for cuts in 1..=4 {
        scene.sleep(LEASE / 5).await;
        party.weather(Weather::Cut)?;
        scene
            .until("a new connection", || party.count("connected") > cuts)
            .await?;
        guard.held().check()?;
    }
    scene.sleep(LEASE).await;
    guard.held().check()?;
    assert_eq!(scene.look(&name)?.map(|(value, _)| value), Some(value));
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s7_every_hold_is_renewed_at_once_after_a_cut(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    // Renewals of their own are far.
    let options = || scene.options().lease(LEASE * 40);
    let mut guards = Vec::new();
    for name in ["1", "2", "3"] {
        guards.push(party.take(&scene.name(name), options()).await?);
    }
    party.weather(Weather::Cut)?;
    for name in ["renewed 1", "renewed 2", "renewed 3"] {
        scene.until(name, || party.count(name) > 0).await?;
    }
    for guard in guards {
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn s5_a_cut_while_asking_leaves_one_key(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    for number in 0..4 {
        let name = scene.name(&number.to_string());
        // Executed, and never answered.
        party.weather(Weather::Deaf(true))?;
        let asking = party.acquire(&name, scene.options());
        let cutting = async {
            scene.until("the key", || scene.is_taken(&name)).await?;
            party.weather(Weather::Cut)?;
            party.weather(Weather::Deaf(false))
        };
        let (guard, cut) = tokio::join!(asking, cutting);
        cut?;
        let guard = guard?;
        scene.sleep(LEASE).await;
        guard.held().check()?;
        assert!(guard.release().await?.confirmed);
        assert_eq!(scene.look(&name)?, None);
    }
    Ok(())
}

async fn s6_a_cut_while_leaving_leaves_no_key(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for _ in 0..4 {
        let guard = party.take(&name, scene.options().lease(LEASE * 40)).await?;
        party.weather(Weather::Silent(true))?;
        drop(guard);
        party.weather(Weather::Cut)?;
        party.weather(Weather::Silent(false))?;
        scene.free(&name).await?;
    }
    Ok(())
}

async fn s7_a_short_silence_is_no_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    for _ in 0..3 {
        party.weather(Weather::Silent(true))?;
        scene.sleep(LEASE / 4).await;
        party.weather(Weather::Silent(false))?;
        scene.sleep(LEASE / 2).await;
        guard.held().check()?;
    }
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s1_a_long_silence_is_told_while_the_key_still_excludes(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    party.weather(Weather::Silent(true))?;
    let lost = scene.lost(&guard).await?;
    assert!(
        scene.is_taken(&name),
        "the key was gone before the loss was told"
    );
    assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
    let window = guard.held().stop_window(&lost);
    assert!(window < LEASE / 3, "{window:?}");
    assert!(!guard.held().is_held());
    party.weather(Weather::Silent(false))?;
    drop(guard);
    scene.free(&name).await
}

async fn s8_a_release_without_an_answer_ends_and_goes_on(scene: Scene) -> Outcome {
    let party = scene.party_with("a", |config| {
        config.reply_limit(SOON).connect_limit(SOON * 2)
    })?;
    party.ready().await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().lease(LEASE * 40)).await?;
    party.weather(Weather::Silent(true))?;
    let began = scene.now();
    let released = guard.release().await?;
    let took = scene.now() - began;
    assert!(!released.confirmed);
    assert!(took < LEASE * 2, "{took:?}");
    party.weather(Weather::Silent(false))?;
    scene.free(&name).await
}

async fn s9_a_try_without_an_answer_fails_and_leaves_nothing(scene: Scene) -> Outcome {
    let party = scene.party_with("a", |config| {
        config.reply_limit(SOON).connect_limit(SOON * 2)
    })?;
    party.ready().await?;
    let name = scene.name("n");
    party.weather(Weather::Deaf(true))?;
    let tried = party
        .attempt(&name, scene.options().lease(LEASE * 40))
        .await;
    assert!(matches!(tried, Err(Error::Unavailable(_))), "{tried:?}");
    party.weather(Weather::Deaf(false))?;
    scene.free(&name).await
}

async fn s9_replies_slower_than_the_lease_get_no_lock(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    party.weather(Weather::Slow(LEASE))?;
    let tried = party.attempt(&name, scene.options().lease(LEASE / 2)).await;
    assert!(matches!(tried, Err(Error::Unavailable(_))), "{tried:?}");
    party.weather(Weather::Slow(Duration::from_millis(1)))?;
    scene.free(&name).await
}

async fn a_slow_connection_is_no_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let options = scene.options().lease(LEASE * 2);
    party.weather(Weather::Slow(LEASE / 25))?;
    let guard = party.take(&name, options).await?;
    scene.sleep(LEASE * 4).await;
    guard.held().check()?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s10_nobody_to_talk_to_is_told_as_that(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    party.weather(Weather::Refused(true))?;
    party.weather(Weather::Cut)?;
    scene
        .until("no connection", || party.count("connect failed") > 0)
        .await?;
    let waited = party.acquire(&name, scene.options().wait(SOON * 2)).await;
    assert!(matches!(waited, Err(Error::Unavailable(_))), "{waited:?}");
    party.weather(Weather::Refused(false))?;
    let guard = party.acquire(&name, scene.options()).await?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn a_client_that_started_first_gets_its_lock_when_the_server_comes(scene: Scene) -> Outcome {
    let party = scene.party_with("a", |config| config)?;
    let name = scene.name("n");
    party.weather(Weather::Refused(true))?;
    // It may have been faster.
    party.weather(Weather::Cut)?;
    let waiting = party.acquire(&name, scene.options());
    let coming = async {
        scene
            .until("no connection", || party.count("connect failed") > 0)
            .await?;
        party.weather(Weather::Refused(false))
    };
    let (guard, came) = tokio::join!(waiting, coming);
    came?;
    assert!(guard?.release().await?.confirmed);
    Ok(())
}
