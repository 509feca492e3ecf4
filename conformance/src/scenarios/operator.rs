//! What an operator asks and does: who holds a name, which names are held, free one by force.

use tenure_client::{Cause, Error, Warning};

use super::scenarios;
use crate::scene::{LONG, SOON};
use crate::stage::Weather;
use crate::{Outcome, Scene};

scenarios! {
    inspect_says_who_holds_a_name_since_when_and_for_how_long: [];
    inspect_warns_of_what_is_odd_about_a_key: [Keys];
    list_gives_the_names_that_are_held: [];
    list_leaves_out_what_is_no_name: [Keys];
    s8_force_release_wakes_who_waits_and_the_holder_is_told_by_whom: [];
    s8_force_release_of_an_own_lock_is_told_as_any_other: [];
    s8_who_knows_the_token_may_release_and_the_holder_is_told: [];
    s3_a_token_frees_what_it_was_given_for_and_nothing_else: [];
    force_release_of_a_free_name_is_nothing: [];
    force_release_frees_what_is_none_of_ours: [Keys];
    questions_that_nobody_waits_for_leave_nothing_behind: [];
    s11_questions_about_no_name_are_refused: [];
    questions_wait_for_a_connection: [Link];
    s17_a_closed_client_answers_no_question: [];
}

async fn inspect_says_who_holds_a_name_since_when_and_for_how_long(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    assert_eq!(b.inspect(&name).await?, None);
    let guard = a.take(&name, scene.options().lease(LONG)).await?;
    let found = b.inspect(&name).await?.ok_or("nobody")?;
    assert_eq!(found.label.as_deref(), Some("a"));
    assert!(found.since.is_some());
    let left = found.remaining.ok_or("no end")?;
    assert!(left > LONG / 2 && left <= LONG, "{left:?}");
    assert_eq!(found.warnings, []);
    let text = found.to_string();
    assert!(text.starts_with("held by a since "), "{text}");
    // Asking changes nothing.
    guard.held().check()?;
    assert!(guard.release().await?.confirmed);
    assert_eq!(b.inspect(&name).await?, None);
    Ok(())
}

async fn inspect_warns_of_what_is_odd_about_a_key(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "somebody else's", Some(LONG))?;
    let found = party.inspect(&name).await?.ok_or("nobody")?;
    assert_eq!(found.warnings, [Warning::Foreign]);
    assert!(found.label.is_none() && found.remaining.is_some());
    assert!(!found.to_string().contains("somebody else's"));
    scene.put(&name, "somebody else's", None)?;
    let found = party.inspect(&name).await?.ok_or("nobody")?;
    assert_eq!(found.warnings, [Warning::Foreign, Warning::Endless]);
    assert_eq!(found.remaining, None);
    if scene.has_types() {
        scene.make_list(&name)?;
        let found = party.inspect(&name).await?.ok_or("nobody")?;
        assert_eq!(found.warnings, [Warning::OtherType, Warning::Endless]);
    }
    scene.delete(&name)
}

async fn list_gives_the_names_that_are_held(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let mut guards = Vec::new();
    let mut wanted = Vec::new();
    for at in 0..130 {
        // Some need escaping.
        let name = scene.name(&format!("{{{at}}}%*"));
        guards.push(a.take(&name, scene.options().lease(LONG)).await?);
        wanted.push(name.into_bytes());
    }
    wanted.sort();
    let listed = b.list(&scene.name("")).await?;
    assert!(!listed.more);
    let (names, found): (Vec<_>, Vec<_>) = listed.names.into_iter().unzip();
    assert_eq!(
        names.iter().map(|name| name.to_vec()).collect::<Vec<_>>(),
        wanted
    );
    assert!(
        found
            .iter()
            .all(|found| found.label.as_deref() == Some("a"))
    );
    let listed = b.list(&scene.name("{12")).await?;
    // 12, and 120 to 129.
    assert_eq!(listed.names.len(), 11);
    drop(guards);
    scene.sleep(SOON).await;
    assert_eq!(b.list(&scene.name("")).await?.names, []);
    Ok(())
}

async fn list_leaves_out_what_is_no_name(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let guard = party
        .take(&scene.name("n"), scene.options().lease(LONG))
        .await?;
    let odd = [
        scene.name("%zz"),
        scene.name("{"),
        format!("{{lock:{}}}:forced", scene.name("n")),
    ];
    for name in &odd {
        scene.put(name, "x", Some(LONG))?;
    }
    scene.put(&scene.name("theirs"), "x", Some(LONG))?;
    let listed = party.list(&scene.name("")).await?;
    let names: Vec<_> = listed.names.iter().map(|(name, _)| name.to_vec()).collect();
    assert_eq!(
        names,
        [scene.name("n"), scene.name("theirs")].map(String::into_bytes)
    );
    for name in &odd {
        scene.delete(name)?;
    }
    scene.delete(&scene.name("theirs"))?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s8_force_release_wakes_who_waits_and_the_holder_is_told_by_whom(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let operator = scene.party("operator").await?;
    let name = scene.name("n");
    // In memory every party is the same client, with one label.
    let by = match scene.has_keys() {
        true => "operator",
        false => "a",
    };
    let lease = LONG * 6;
    let guard = a.take(&name, scene.options().lease(lease)).await?;
    let options = scene.options().lease(lease);
    let waiting = b.acquire(&name, options);
    let forcing = async {
        scene.sleep(SOON).await;
        let removed = operator.force_release(&name).await?.ok_or("it was free")?;
        assert_eq!(removed.label.as_deref(), Some("a"));
        assert_eq!(removed.warning, None);
        let began = scene.now();
        let lost = scene.lost(&guard).await?;
        assert_eq!((lost.cause, lost.by.as_deref()), (Cause::Forced, Some(by)));
        assert!(!guard.held().is_held());
        // Long before a renewal is due.
        let took = scene.now() - began;
        assert!(took < lease / 10, "{took:?}");
        Ok::<_, crate::Failure>(())
    };
    let (next, forced) = tokio::join!(waiting, forcing);
    forced?;
    let next = next?;
    match guard.release().await {
        Err(Error::Lost(lost)) => assert_eq!(lost.cause, Cause::Forced),
        other => return Err(format!("{other:?}").into()),
    }
    next.held().check()?;
    assert!(next.release().await?.confirmed);
    Ok(())
}

async fn s8_force_release_of_an_own_lock_is_told_as_any_other(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for _ in 0..2 {
        let guard = party.take(&name, scene.options().lease(LONG * 6)).await?;
        assert!(party.force_release(&name).await?.is_some());
        let lost = scene.lost(&guard).await?;
        assert_eq!((lost.cause, lost.by.as_deref()), (Cause::Forced, Some("a")));
        assert_eq!(party.inspect(&name).await?, None);
    }
    assert_eq!(party.count("lost n"), 2);
    Ok(())
}

async fn s8_who_knows_the_token_may_release_and_the_holder_is_told(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let options = || scene.options().lease(LONG);
    for options in [options(), options().fenced(), options().fair()] {
        let guard = a.take(&name, options).await?;
        let token = guard.held().token().ok_or("no token")?;
        let removed = b.release_by_token(&name, &token).await?.ok_or("nobody")?;
        assert_eq!(removed.label.as_deref(), Some("a"));
        guard.held().renew_now().await.unwrap_err();
        let lost = guard.held().lost().await;
        assert_eq!(lost.cause, Cause::Forced);
        assert_eq!(
            lost.by.as_deref(),
            Some(if scene.has_keys() { "b" } else { "a" })
        );
        assert!(guard.held().token().is_none());
        drop(guard);
        assert!(b.inspect(&name).await?.is_none());
    }
    let guard = a.take(&name, options().rotate()).await?;
    assert!(guard.held().token().is_none());
    guard.release().await?;
    Ok(())
}

async fn s3_a_token_frees_what_it_was_given_for_and_nothing_else(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let (name, other) = (scene.name("n"), scene.name("m"));
    let options = || scene.options().lease(LONG);
    let old = a.take(&name, options()).await?;
    let token = old.held().token().ok_or("no token")?;
    old.release().await?;
    assert!(b.release_by_token(&name, &token).await?.is_none());
    // The same holder, the next hold; and another name.
    let (next, beside) = (
        a.take(&name, options()).await?,
        a.take(&other, options()).await?,
    );
    assert!(b.release_by_token(&name, &token).await?.is_none());
    assert!(
        b.release_by_token(&other, &next.held().token().ok_or("no token")?)
            .await?
            .is_none()
    );
    next.held().renew_now().await?;
    beside.held().renew_now().await?;
    assert!(next.release().await?.confirmed && beside.release().await?.confirmed);
    assert!(b.inspect(&name).await?.is_none());
    Ok(())
}

async fn force_release_of_a_free_name_is_nothing(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    assert_eq!(party.force_release(&name).await?, None);
    let guard = party.take(&name, scene.options()).await?;
    assert!(guard.release().await?.confirmed);
    assert_eq!(party.force_release(&name).await?, None);
    Ok(())
}

async fn force_release_frees_what_is_none_of_ours(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    scene.put(&name, "somebody else's", None)?;
    let removed = party.force_release(&name).await?.ok_or("it was free")?;
    assert_eq!(
        (removed.label, removed.warning),
        (None, Some(Warning::Foreign))
    );
    if scene.has_types() {
        scene.make_list(&name)?;
        let removed = party.force_release(&name).await?.ok_or("it was free")?;
        assert_eq!(removed.warning, Some(Warning::OtherType));
    }
    let guard = party.take(&name, scene.options()).await?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn questions_that_nobody_waits_for_leave_nothing_behind(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().lease(LONG)).await?;
    let locks = party.locks();
    // Not polled: not asked.
    drop(locks.force_release(&name));
    for _ in 0..20 {
        tokio::select! { biased;
            _ = locks.inspect(&name) => {}
            () = std::future::ready(()) => {}
        }
        tokio::select! { biased;
            _ = locks.list("") => {}
            () = std::future::ready(()) => {}
        }
    }
    assert!(party.inspect(&name).await?.is_some());
    guard.held().check()?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s11_questions_about_no_name_are_refused(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    for name in ["", &"n".repeat(1_025)] {
        let refused = |error| matches!(error, Error::Misconfigured(_));
        assert!(party.inspect(name).await.is_err_and(refused));
        assert!(party.force_release(name).await.is_err_and(refused));
        assert_eq!(party.list(name).await.is_err_and(refused), !name.is_empty());
    }
    Ok(())
}

async fn questions_wait_for_a_connection(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().lease(LONG)).await?;
    party.weather(Weather::Refused(true))?;
    party.weather(Weather::Cut)?;
    let healing = async {
        scene.sleep(SOON).await;
        party.weather(Weather::Refused(false))
    };
    let start = scene.name("");
    let asking = async { tokio::join!(party.inspect(&name), party.list(&start)) };
    let ((found, listed), healed) = tokio::join!(asking, healing);
    healed?;
    assert!(found?.is_some());
    assert_eq!(listed?.names.len(), 1);
    guard.held().check()?;
    drop(guard.release().await);
    Ok(())
}

async fn s17_a_closed_client_answers_no_question(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let asking = party.locks().inspect(&name);
    party.close().await;
    assert_eq!(asking.await, Err(Error::Closed));
    assert_eq!(party.force_release(&name).await, Err(Error::Closed));
    Ok(())
}
