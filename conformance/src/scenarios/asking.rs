//! Asking for a lock: tries, waits, refusals.

use std::time::Duration;

use tenure_client::{Error, LockOptions, Wait};

use super::scenarios;
use crate::party::Tried;
use crate::scene::{LEASE, SOON};
use crate::{Outcome, Scene};

scenarios! {
    a_free_name_is_had_and_given_back: [];
    a_taken_name_is_a_value_and_says_by_whom: [];
    s15_who_holds_a_name_does_not_get_it_again: [];
    a_waiter_gets_the_name_when_it_is_released: [];
    those_who_wait_in_one_process_are_served_in_order: [];
    s9_a_wait_ends_on_time_and_says_who_holds: [];
    s9_a_wait_of_nothing_is_one_attempt: [];
    s9_the_wait_of_those_behind_is_their_own: [];
    many_names_are_held_at_once: [];
    one_at_a_time: [];
    s13_names_of_any_bytes_stay_apart: [];
    s11_what_cannot_work_is_refused: [];
    s11_settings_that_cannot_work_are_refused: [];
    a_foreign_value_is_respected: [Keys];
    a_key_without_a_ttl_is_respected: [Keys];
    s10_a_key_of_another_type_ends_the_wait_and_stays: [Keys, Types];
    s9_a_waiter_gets_the_name_when_the_key_expires: [Keys];
    s9_a_waiter_gets_the_name_when_the_key_is_deleted: [Keys];
    a_grant_is_a_key_with_the_ttl_and_a_value_that_shows_the_label: [Keys];
}

async fn a_free_name_is_had_and_given_back(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for _ in 0..3 {
        let guard = party.take(&name, scene.options()).await?;
        let held = guard.held();
        assert_eq!(held.name(), name.as_bytes());
        assert!(held.is_held());
        held.check()?;
        assert!(held.remaining() <= LEASE && held.remaining() > LEASE / 2);
        assert!(guard.release().await?.confirmed);
        assert!(!held.is_held());
        assert_eq!(held.check(), Err(Error::NotHeld));
        assert_eq!(held.remaining(), Duration::ZERO);
    }
    Ok(())
}

async fn a_taken_name_is_a_value_and_says_by_whom(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options()).await?;
    let tried = b.attempt(&name, scene.options()).await?;
    let Tried::Held(holder) = tried else {
        return Err("it was granted twice".into());
    };
    assert_eq!(holder.label.as_deref(), Some("a"));
    assert!(
        holder.remaining.is_none_or(|left| left <= LEASE),
        "{holder:?}"
    );
    assert!(guard.release().await?.confirmed);
    assert!(
        b.take(&name, scene.options())
            .await?
            .release()
            .await?
            .confirmed
    );
    Ok(())
}

async fn s15_who_holds_a_name_does_not_get_it_again(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    assert!(matches!(
        party.attempt(&name, scene.options()).await?,
        Tried::Held(_)
    ));
    let waited = party.acquire(&name, scene.options().wait(SOON)).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    assert!(guard.held().is_held());
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn a_waiter_gets_the_name_when_it_is_released(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options()).await?;
    let held = guard.held();
    let waiting = async {
        let guard = b.acquire(&name, scene.options()).await?;
        assert!(!held.is_held(), "two hold it");
        Ok::<_, crate::Failure>(guard)
    };
    let releasing = async {
        scene.sleep(SOON).await;
        guard.release().await
    };
    let (next, released) = tokio::join!(waiting, releasing);
    assert!(released?.confirmed);
    assert!(next?.release().await?.confirmed);
    Ok(())
}

async fn those_who_wait_in_one_process_are_served_in_order(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let order = std::sync::Mutex::new(Vec::new());
    let one = |number: u32| {
        let (scene, party, name, order) = (&scene, &party, &name, &order);
        async move {
            // One after the other; a waiter is in the queue once it was polled.
            scene.sleep(SOON / 3 * number).await;
            let guard = party.acquire(name, scene.options()).await?;
            if let Ok(mut order) = order.lock() {
                order.push(number);
            }
            guard.release().await
        }
    };
    let releasing = async {
        scene.sleep(SOON * 3).await;
        guard.release().await
    };
    let (a, b, c, d) = tokio::join!(one(1), one(2), one(3), releasing);
    for released in [a, b, c, d] {
        assert!(released?.confirmed);
    }
    assert_eq!(order.into_inner()?, [1, 2, 3]);
    Ok(())
}

async fn s9_a_wait_ends_on_time_and_says_who_holds(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options()).await?;
    let began = scene.now();
    let wait = SOON * 2;
    let waited = b.acquire(&name, scene.options().wait(wait)).await;
    let took = scene.now() - began;
    let Err(Error::TimedOut { holder }) = waited else {
        return Err(format!("{waited:?}").into());
    };
    assert_eq!(holder.label.as_deref(), Some("a"));
    assert!(took >= wait && took < wait + LEASE, "{took:?}");
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s9_a_wait_of_nothing_is_one_attempt(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = b.acquire(&name, scene.options().wait(Wait::Now)).await?;
    let refused = a.acquire(&name, scene.options().wait(Wait::Now)).await;
    assert!(
        matches!(refused, Err(Error::TimedOut { .. })),
        "{refused:?}"
    );
    let refused = a.acquire(&name, scene.options().wait(Duration::ZERO)).await;
    assert!(
        matches!(refused, Err(Error::TimedOut { .. })),
        "{refused:?}"
    );
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s9_the_wait_of_those_behind_is_their_own(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let began = scene.now();
    let wait = |wait: Duration| {
        let (scene, party, name) = (&scene, &party, &name);
        async move {
            let waited = party.acquire(name, scene.options().wait(wait)).await;
            assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
            scene.now() - began
        }
    };
    let (long, short) = tokio::join!(wait(SOON * 3), wait(SOON));
    assert!(short >= SOON && short < SOON * 3, "{short:?}");
    assert!(long >= SOON * 3, "{long:?}");
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn many_names_are_held_at_once(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let mut guards = Vec::new();
    for number in 0..40 {
        let name = scene.name(&number.to_string());
        guards.push(party.take(&name, scene.options()).await?);
    }
    scene.sleep(LEASE * 3 / 2).await;
    for guard in &guards {
        guard.held().check()?;
    }
    for guard in guards {
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn one_at_a_time(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let inside = std::sync::atomic::AtomicU32::new(0);
    let work = |party| {
        let (scene, name, inside): (&Scene, &String, _) = (&scene, &name, &inside);
        let party: &crate::Party = party;
        async move {
            for _ in 0..8 {
                let guard = party.acquire(name, scene.options()).await?;
                let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                assert_eq!(others, 0, "two hold it");
                scene.sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.release().await?;
            }
            Ok::<_, Error>(())
        }
    };
    let (one, two, three, four) = tokio::join!(work(&a), work(&a), work(&b), work(&b));
    one?;
    two?;
    three?;
    Ok(four?)
}

async fn s13_names_of_any_bytes_stay_apart(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let mut guards = Vec::new();
    for odd in [
        "", "%", "%25", "{", "}", "{n}", "%7Bn%7D", " ", "\n", "\0", "ü", "n", "N", "*",
    ] {
        let name = scene.name(&format!("odd{odd}"));
        guards.push(party.take(&name, scene.options()).await?);
    }
    let longest = scene.name("").len();
    let long = scene.name(&"l".repeat(1024 - longest));
    guards.push(party.take(&long, scene.options()).await?);
    for guard in guards {
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn s11_what_cannot_work_is_refused(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let refused = |why: Result<_, Error>| match why {
        Err(Error::Misconfigured(_)) => Ok(()),
        other => Err(crate::Failure::from(format!("{other:?}"))),
    };
    let ms = Duration::from_millis;
    refused(party.attempt("", scene.options()).await)?;
    refused(party.attempt(&"l".repeat(1025), scene.options()).await)?;
    let name = scene.name("n");
    for options in [
        LockOptions::new().lease(Duration::ZERO),
        LockOptions::new().lease(ms(19)),
        LockOptions::new().lease(ms(1_000)).renew_every(ms(900)),
        LockOptions::new().lease(ms(1_000)).give_up_after(ms(950)),
        LockOptions::new().lease(ms(1_000)).margin(ms(1_000)),
        LockOptions::new().lease(ms(1_000)).max_hold(ms(500)),
    ] {
        refused(party.attempt(&name, options).await)?;
    }
    // And nothing is left of them.
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

async fn s11_settings_that_cannot_work_are_refused(scene: Scene) -> Outcome {
    for (label, prefix) in [("a", "with{brace"), ("a", "with}brace")] {
        let party = scene.party_with(label, |config| config.prefix(prefix));
        assert!(matches!(party, Err(Error::Misconfigured(_))), "{party:?}");
    }
    let long = "l".repeat(200);
    let party = scene.party_with(&long, |config| config);
    assert!(matches!(party, Err(Error::Misconfigured(_))), "{party:?}");
    Ok(())
}

async fn a_foreign_value_is_respected(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "somebody else's", Some(LEASE * 20))?;
    let Tried::Held(holder) = party.attempt(&name, scene.options()).await? else {
        return Err("it was granted".into());
    };
    assert_eq!(holder.label, None);
    let waited = party.acquire(&name, scene.options().wait(SOON)).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    let (value, left) = scene.look(&name)?.ok_or("it was deleted")?;
    assert_eq!(value, b"somebody else's");
    assert!(left.is_some_and(|left| left > LEASE * 10), "{left:?}");
    scene.delete(&name)
}

async fn a_key_without_a_ttl_is_respected(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "for ever", None)?;
    let Tried::Held(holder) = party.attempt(&name, scene.options()).await? else {
        return Err("it was granted".into());
    };
    assert_eq!(holder.remaining, None);
    let waited = party.acquire(&name, scene.options().wait(SOON)).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    assert_eq!(scene.look(&name)?, Some((b"for ever".to_vec(), None)));
    scene.delete(&name)
}

async fn s10_a_key_of_another_type_ends_the_wait_and_stays(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.make_list(&name)?;
    let began = scene.now();
    let waited = party.acquire(&name, scene.options()).await;
    assert!(scene.now() - began < LEASE * 4);
    match waited {
        Err(Error::Misconfigured(reason)) => {
            let text = reason.to_string();
            assert!(
                text.contains("WRONGTYPE") || text.contains("type"),
                "{text}"
            );
        }
        other => return Err(format!("{other:?}").into()),
    }
    assert!(scene.look(&name).is_err() || scene.is_taken(&name) || scene.delete(&name).is_ok());
    Ok(())
}

async fn s9_a_waiter_gets_the_name_when_the_key_expires(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "somebody else's", Some(LEASE))?;
    let began = scene.now();
    let guard = party.acquire(&name, scene.options()).await?;
    let took = scene.now() - began;
    assert!(took < LEASE * 2, "{took:?}");
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s9_a_waiter_gets_the_name_when_the_key_is_deleted(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "somebody else's", Some(LEASE * 100))?;
    let deleting = async {
        scene.sleep(SOON).await;
        scene.delete(&name)
    };
    let began = scene.now();
    let (guard, deleted) = tokio::join!(party.acquire(&name, scene.options()), deleting);
    deleted?;
    let took = scene.now() - began;
    assert!(took < LEASE * 4, "{took:?}");
    assert!(guard?.release().await?.confirmed);
    Ok(())
}

async fn a_grant_is_a_key_with_the_ttl_and_a_value_that_shows_the_label(scene: Scene) -> Outcome {
    let party = scene.party("the-label").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    let (value, left) = scene.look(&name)?.ok_or("there is no key")?;
    let value = String::from_utf8(value)?;
    assert!(
        value.starts_with("tn1:p:") && value.contains(":the-label."),
        "{value}"
    );
    assert!(left.is_some_and(|left| left <= LEASE), "{left:?}");
    assert!(guard.release().await?.confirmed);
    assert_eq!(scene.look(&name)?, None);
    Ok(())
}
