//! The server: restarted, emptied, made to refuse.

use tenure_client::{Cause, Error};

use super::scenarios;
use crate::scene::{LEASE, SOON};
use crate::stage::Incident;
use crate::{Outcome, Scene};

scenarios! {
    a_restart_with_data_is_no_loss: [Server];
    a_restart_without_data_is_told_as_gone: [Server];
    a_flush_is_told_as_gone: [Server];
    who_waits_through_a_restart_gets_the_name: [Server];
    scripts_that_are_forgotten_are_sent_again: [Server];
    s7_a_server_that_refuses_for_a_while_loses_no_lock: [Server];
    s7_a_full_server_loses_no_lock: [Server];
    s10_what_may_pass_is_waited_for_and_named: [Server];
    s6_a_full_server_takes_a_release: [Server];
}

/// Longer than a server takes to start on a busy machine.
const PATIENT: std::time::Duration = LEASE.saturating_mul(12);

async fn a_restart_with_data_is_no_loss(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().lease(PATIENT)).await?;
    scene.server(Incident::Restart { with_data: true }).await?;
    let before = party.count("renewed n");
    scene
        .until("a renewal", || party.count("renewed n") > before)
        .await?;
    guard.held().check()?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn a_restart_without_data_is_told_as_gone(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().lease(PATIENT)).await?;
    scene.server(Incident::Restart { with_data: false }).await?;
    let lost = scene.lost(&guard).await?;
    assert_eq!(lost.cause, Cause::Gone);
    drop(guard);
    let guard = party.acquire(&name, scene.options()).await?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn a_flush_is_told_as_gone(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let (one, two) = (scene.name("1"), scene.name("2"));
    let first = party.take(&one, scene.options()).await?;
    let second = party.take(&two, scene.options()).await?;
    scene.server(Incident::Flush).await?;
    assert_eq!(scene.lost(&first).await?.cause, Cause::Gone);
    assert_eq!(scene.lost(&second).await?.cause, Cause::Gone);
    Ok(())
}

async fn who_waits_through_a_restart_gets_the_name(scene: Scene) -> Outcome {
    let (a, b) = (scene.party("a").await?, scene.party("b").await?);
    let name = scene.name("n");
    let guard = a.take(&name, scene.options().lease(PATIENT)).await?;
    let waiting = b.acquire(&name, scene.options());
    let restarting = async {
        scene.sleep(SOON).await;
        scene.server(Incident::Restart { with_data: true }).await?;
        Ok::<_, crate::Failure>(guard.release().await)
    };
    let (next, released) = tokio::join!(waiting, restarting);
    drop(released?);
    assert!(next?.release().await?.confirmed);
    Ok(())
}

async fn scripts_that_are_forgotten_are_sent_again(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for _ in 0..3 {
        let guard = party.take(&name, scene.options()).await?;
        let renewals = party.count("renewed n");
        scene.server(Incident::ForgetScripts).await?;
        scene
            .until("a renewal", || party.count("renewed n") > renewals)
            .await?;
        scene.server(Incident::ForgetScripts).await?;
        assert!(guard.release().await?.confirmed);
        assert_eq!(scene.look(&name)?, None);
    }
    Ok(())
}

async fn s7_a_server_that_refuses_for_a_while_loses_no_lock(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for incident in [Incident::ReadOnly, Incident::NoReplicas] {
        // Short against the lease; the renewals in it are refused.
        let guard = party.take(&name, scene.options().lease(LEASE * 3)).await?;
        scene.server(incident(true)).await?;
        scene.sleep(LEASE * 3 / 4).await;
        scene.server(incident(false)).await?;
        scene.sleep(LEASE * 3).await;
        guard.held().check()?;
        assert!(guard.release().await?.confirmed);
    }
    Ok(())
}

async fn s7_a_full_server_loses_no_lock(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options()).await?;
    scene.server(Incident::OutOfMemory(true)).await?;
    scene.sleep(LEASE * 3).await;
    guard.held().check()?;
    scene.server(Incident::OutOfMemory(false)).await?;
    assert!(guard.release().await?.confirmed);
    Ok(())
}

async fn s10_what_may_pass_is_waited_for_and_named(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    for (incident, word) in [
        (Incident::ReadOnly as fn(bool) -> Incident, "READONLY"),
        (Incident::OutOfMemory, "OOM"),
        (Incident::NoReplicas, "NOREPLICAS"),
    ] {
        scene.server(incident(true)).await?;
        let waited = party.acquire(&name, scene.options().wait(SOON * 2)).await;
        match waited {
            Err(Error::Unavailable(reason)) => {
                let text = reason.to_string();
                assert!(text.contains(word), "{text}");
            }
            other => return Err(format!("{word}: {other:?}").into()),
        }
        let curing = async {
            scene.sleep(SOON).await;
            scene.server(incident(false)).await
        };
        let (guard, cured) = tokio::join!(party.acquire(&name, scene.options()), curing);
        cured?;
        assert!(guard?.release().await?.confirmed);
    }
    Ok(())
}

async fn s6_a_full_server_takes_a_release(scene: Scene) -> Outcome {
    let party = scene.party("a").await?;
    let name = scene.name("n");
    let guard = party.take(&name, scene.options().lease(PATIENT)).await?;
    scene.server(Incident::OutOfMemory(true)).await?;
    assert!(guard.release().await?.confirmed);
    assert_eq!(scene.look(&name)?, None);
    scene.server(Incident::OutOfMemory(false)).await
}
