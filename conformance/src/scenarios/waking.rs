//! Whoever waits or holds is told by the store, and does not find out by asking.

use std::time::Duration;

use tenure_client::{Cause, LockOptions};

use super::scenarios;
use crate::scene::{LONG, SOON};
use crate::stage::{Incident, Weather};
use crate::{Outcome, Scene};

/// Nothing is renewed and nothing expires before a scenario would have failed.
const AGE: Duration = Duration::from_secs(300);

scenarios! {
    s9_a_release_wakes_who_waits: [Push];
    s9_a_deletion_wakes_who_waits: [Push, Keys];
    s9_a_flush_wakes_who_waits: [Push, Server];
    s9_who_waits_is_woken_on_the_next_connection_too: [Push, Keys, Link];
    s9_what_was_freed_while_the_connection_was_away_is_had_at_once: [Push, Keys, Link];
    s9_many_who_wait_have_their_turns: [Push];
    s9_without_wake_ups_it_is_asked: [Keys];
    a_hold_whose_key_is_deleted_is_told_and_not_at_the_next_renewal: [Push, Keys];
    a_hold_whose_key_is_replaced_is_told_and_not_at_the_next_renewal: [Push, Keys];
    a_hold_is_told_after_a_renewal_and_a_reconnect_too: [Push, Keys, Link];
}

fn aged(scene: &Scene) -> LockOptions {
    scene.options().lease(AGE).wait(LONG)
}

/// A client that does not ask by itself.
async fn told_only(scene: &Scene, label: &str) -> Result<crate::Party, crate::Failure> {
    let party = scene.party_with(label, |config| config.poll_limit(Duration::MAX))?;
    party.ready().await?;
    Ok(party)
}

async fn s9_a_release_wakes_who_waits(scene: Scene) -> Outcome {
    let (a, b) = (told_only(&scene, "a").await?, told_only(&scene, "b").await?);
    let name = scene.name("n");
    let mut guard = a.take(&name, aged(&scene)).await?;
    for turn in 0..20 {
        let (from, to) = if turn % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let held = guard.held();
        let releasing = async {
            // Now and then before the other has asked, now and then after.
            scene.sleep(SOON / 40 * (turn % 5)).await;
            guard.release().await
        };
        let (next, released) = tokio::join!(to.acquire(&name, aged(&scene)), releasing);
        assert!(released?.confirmed, "{turn}");
        assert!(!held.is_held());
        guard = next.map_err(|error| format!("hand-over {turn} was missed: {error}"))?;
        assert_eq!(from.count("lost n"), 0);
    }
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s9_a_deletion_wakes_who_waits(scene: Scene) -> Outcome {
    let party = told_only(&scene, "a").await?;
    let name = scene.name("n");
    for _ in 0..5 {
        scene.put(&name, "theirs", Some(AGE))?;
        let deleting = async {
            scene.sleep(SOON).await;
            scene.delete(&name)
        };
        let (guard, deleted) = tokio::join!(party.acquire(&name, aged(&scene)), deleting);
        deleted?;
        assert!(guard?.release().await?.confirmed);
    }
    Ok(())
}

async fn s9_a_flush_wakes_who_waits(scene: Scene) -> Outcome {
    let party = told_only(&scene, "a").await?;
    let name = scene.name("n");
    scene.put(&name, "theirs", Some(AGE))?;
    let flushing = async {
        scene.sleep(SOON).await;
        scene.server(Incident::Flush).await
    };
    let (guard, flushed) = tokio::join!(party.acquire(&name, aged(&scene)), flushing);
    flushed?;
    assert!(guard?.release().await?.confirmed);
    Ok(())
}

async fn s9_who_waits_is_woken_on_the_next_connection_too(scene: Scene) -> Outcome {
    let party = told_only(&scene, "a").await?;
    let name = scene.name("n");
    scene.put(&name, "theirs", Some(AGE))?;
    let meanwhile = async {
        for _ in 0..3 {
            scene.sleep(SOON).await;
            party.weather(Weather::Cut)?;
        }
        scene.sleep(SOON * 3).await;
        scene.delete(&name)
    };
    let (guard, done) = tokio::join!(party.acquire(&name, aged(&scene)), meanwhile);
    done?;
    assert!(guard?.release().await?.confirmed);
    Ok(())
}

async fn s9_what_was_freed_while_the_connection_was_away_is_had_at_once(scene: Scene) -> Outcome {
    let party = told_only(&scene, "a").await?;
    let name = scene.name("n");
    scene.put(&name, "theirs", Some(AGE))?;
    let meanwhile = async {
        scene.sleep(SOON).await;
        party.weather(Weather::Refused(true))?;
        party.weather(Weather::Cut)?;
        scene.delete(&name)?;
        scene.sleep(SOON).await;
        party.weather(Weather::Refused(false))
    };
    let (guard, done) = tokio::join!(party.acquire(&name, aged(&scene)), meanwhile);
    done?;
    assert!(guard?.release().await?.confirmed);
    Ok(())
}

async fn s9_many_who_wait_have_their_turns(scene: Scene) -> Outcome {
    let mut parties = Vec::new();
    for label in ["a", "b", "c"] {
        parties.push(told_only(&scene, label).await?);
    }
    let name = scene.name("n");
    let guard = parties[0].take(&name, aged(&scene)).await?;
    let turn = |at: usize| {
        let party = &parties[at % parties.len()];
        let (name, options) = (&name, aged(&scene));
        async move { Ok::<_, crate::Failure>(party.acquire(name, options).await?.release().await?) }
    };
    let releasing = async {
        scene.sleep(SOON).await;
        Ok(guard.release().await?)
    };
    let turns = tokio::join!(
        turn(0),
        turn(1),
        turn(2),
        turn(3),
        turn(4),
        turn(5),
        releasing
    );
    let (a, b, c, d, e, f, g) = turns;
    for turn in [a, b, c, d, e, f, g] {
        assert!(turn?.confirmed);
    }
    Ok(())
}

async fn s9_without_wake_ups_it_is_asked(scene: Scene) -> Outcome {
    let party = scene.party_with("a", |config| config.no_wake_ups())?;
    party.ready().await?;
    let name = scene.name("n");
    scene.put(&name, "theirs", Some(AGE))?;
    let deleting = async {
        scene.sleep(SOON).await;
        scene.delete(&name)
    };
    let (guard, deleted) = tokio::join!(party.acquire(&name, aged(&scene)), deleting);
    deleted?;
    assert!(guard?.release().await?.confirmed);
    Ok(())
}

async fn a_hold_whose_key_is_deleted_is_told_and_not_at_the_next_renewal(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for options in [aged(&scene), aged(&scene).no_renew()] {
        let guard = party.take(&name, options).await?;
        scene.delete(&name)?;
        let lost = scene.lost_within(&guard, LONG).await.ok_or("not told")?;
        assert_eq!(lost.cause, Cause::Gone);
        assert_eq!(party.count("renewed n"), 0);
    }
    Ok(())
}

async fn a_hold_whose_key_is_replaced_is_told_and_not_at_the_next_renewal(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, aged(&scene)).await?;
    scene.put(&name, "theirs", Some(AGE))?;
    let lost = scene.lost_within(&guard, LONG).await.ok_or("not told")?;
    assert_eq!((lost.cause, lost.by), (Cause::Replaced, None));
    scene.delete(&name)
}

async fn a_hold_is_told_after_a_renewal_and_a_reconnect_too(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, aged(&scene)).await?;
    guard.renew_now().await?;
    party.weather(Weather::Cut)?;
    scene.sleep(SOON * 3).await;
    guard.renew_now().await?;
    scene.delete(&name)?;
    let lost = scene.lost_within(&guard, LONG).await.ok_or("not told")?;
    assert_eq!(lost.cause, Cause::Gone);
    Ok(())
}
