//! S16 on real servers: only what replicas have confirmed counts.

use std::time::Duration;

use tenure_client::{
    Attempt, Cause, Confirmed, Error, Failure as Why, Lock, LockOptions, Reason, ReplicasFault,
    Wait,
};
use tenure_tests::{
    Client, Cut, Failure, Proxy, Server, ServerKind, Side, Tenure, Told, eventually, key_of,
};

type Outcome = Result<(), Failure>;

const LEASE: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(15);

/// A primary of each kind with a replica, and a client of the primary.
fn each(show: impl Fn(&Server, &Server, &Tenure) -> Outcome + Copy + Send + 'static) -> Outcome {
    let shows: Vec<_> = ServerKind::all_required()
        .into_iter()
        .map(|kind| {
            std::thread::spawn(move || {
                let server = Server::start(kind, &[])?;
                let replica = server.start_replica()?;
                let tenure = Tenure::connect(&server.url(), "me")?;
                show(&server, &replica, &tenure)
                    .map_err(|why| Failure::from(format!("{kind}: {why}")))
            })
        })
        .collect();
    for show in shows {
        show.join().map_err(|_| "a show panicked")??;
    }
    Ok(())
}

fn options() -> LockOptions {
    LockOptions::new()
        .lease(LEASE)
        .replicas(1, WITHIN)
        .wait(SOON)
}

fn try_once(tenure: &Tenure, options: LockOptions) -> Result<Result<Attempt, Error>, Failure> {
    tenure.wait(tenure.locks().lock("a").options(options).try_acquire())
}

fn hold(tenure: &Tenure) -> Result<Lock, Failure> {
    let request = tenure.locks().lock("a").options(options());
    Ok(tenure.wait(request.acquire())??)
}

fn why(refused: Result<Attempt, Error>) -> Result<Why, Failure> {
    match refused {
        Err(
            Error::Unavailable(Reason::Failure { failure, .. })
            | Error::Denied(Reason::Failure { failure, .. })
            | Error::Misconfigured(Reason::Failure { failure, .. }),
        ) => Ok(failure),
        other => Err(format!("{other:?}").into()),
    }
}

const NONE_OF_ONE: Why = Why::Unconfirmed(Confirmed::new(0, 1));

fn value(client: &mut Client) -> Result<Option<Vec<u8>>, Failure> {
    client.get(&key_of("a"))
}

#[test]
fn s16_a_frozen_replica_confirms_nothing_and_what_was_written_is_taken_back() -> Outcome {
    each(|server, replica, tenure| {
        let mut client = server.client()?;
        tenure.release(hold(tenure)?)?;
        replica.freeze()?;
        assert_eq!(why(try_once(tenure, options())?)?, NONE_OF_ONE);
        assert!(eventually(SOON, || !client
            .exists(&key_of("a"))
            .unwrap_or(true)));
        // Others are not held up, and nobody asks a replica of theirs.
        let plain = LockOptions::new().lease(LEASE);
        let attempt = try_once(tenure, plain)??;
        tenure.release(attempt.acquired().ok_or("held")?)?;
        replica.thaw()?;
        tenure.release(hold(tenure)?)?;
        Ok(())
    })
}

#[test]
fn s16_whoever_waits_for_a_frozen_replica_is_granted_when_it_goes_on() -> Outcome {
    each(|server, replica, tenure| {
        let mut client = server.client()?;
        replica.freeze()?;
        let waiting = tenure.spawn(tenure.locks().lock("a").options(options()).acquire());
        let mut first = None;
        // It has been written, and taken over by another write.
        assert!(eventually(SOON, || {
            let now = value(&mut client).ok().flatten();
            first = first.take().or_else(|| now.clone());
            now.is_some() && now != first
        }));
        assert!(!waiting.is_finished());
        replica.thaw()?;
        let lock = tenure.wait(waiting)???;
        assert!(lock.is_held());
        tenure.release(lock)
    })
}

#[test]
fn s16_a_hold_whose_renewals_nobody_confirms_is_lost_when_it_is_given_up() -> Outcome {
    each(|server, replica, tenure| {
        let lock = hold(tenure)?;
        replica.freeze()?;
        let lost = tenure.lost(&lock.held(), SOON)?;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost}");
        let unconfirmed = |told: &Told| matches!(told, Told::RenewalFailed(_, Error::Unavailable(Reason::Failure { failure, .. })) if *failure == NONE_OF_ONE);
        assert!(tenure.told().count(unconfirmed) > 0);
        // The server goes on to let it live: until the work has ended nothing is cleared.
        let mut client = server.client()?;
        assert!(client.exists(&key_of("a"))?);
        drop(lock);
        assert!(eventually(SOON, || !client
            .exists(&key_of("a"))
            .unwrap_or(true)));
        replica.thaw()
    })
}

#[test]
fn s16_h2_of_two_primaries_only_one_has_holders() -> Outcome {
    each(|server, replica, tenure| {
        let lock = hold(tenure)?;
        // The old primary serves on and renews; its replica does not follow it any more.
        replica.promote()?;
        let other = Tenure::connect(&replica.url(), "the other")?;
        let plain = LockOptions::new().lease(LEASE).wait(SOON);
        // What was confirmed is there.
        let attempt = try_once(&other, plain.clone())??;
        let holder = attempt.holder().ok_or("granted a second time")?;
        assert_eq!(holder.label.as_deref(), Some("me"));
        let request = other.locks().lock("a").options(plain).acquire();
        let next = other.wait(request)??;
        assert!(!lock.is_held());
        let lost = tenure.lost(&lock.held(), SOON)?;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost}");
        // Without a replica of its own the old one grants nothing more, though its key is free.
        server.client()?.del(&key_of("a"))?;
        assert_eq!(why(try_once(tenure, options())?)?, NONE_OF_ONE);
        assert!(next.is_held());
        Ok(())
    })
}

#[test]
fn s16_a_promoted_replica_that_lagged_behind_has_nothing_that_was_granted() -> Outcome {
    each(|server, replica, tenure| {
        replica.freeze()?;
        let waiting = tenure.spawn(tenure.locks().lock("a").options(options()).acquire());
        let mut client = server.client()?;
        assert!(eventually(SOON, || client
            .exists(&key_of("a"))
            .unwrap_or(false)));
        // It is promoted as it was when it stopped: it has nothing, and grants.
        server.freeze()?;
        replica.thaw()?;
        replica.promote()?;
        let other = Tenure::connect(&replica.url(), "the other")?;
        let plain = LockOptions::new().lease(LEASE).wait(SOON);
        let next = other.wait(other.locks().lock("a").options(plain).acquire())??;
        server.thaw()?;
        assert!(next.is_held() && !waiting.is_finished());
        waiting.abort();
        Ok(())
    })
}

#[test]
fn s16_h3_a_leftover_is_not_confirmed_by_a_connection_that_has_not_written_it() -> Outcome {
    each(|server, replica, _| {
        let proxy = Proxy::start(server.addr())?;
        let url = format!("redis://{}/", proxy.addr());
        let tenure = Tenure::connect(&url, "me")?;
        tenure.release(hold(&tenure)?)?;
        replica.freeze()?;
        let mut client = server.client()?;
        let waiting = tenure.spawn(tenure.locks().lock("a").options(options()).acquire());
        let mut seen = Vec::new();
        let mut changes = |count: usize| {
            eventually(SOON, || {
                if let Ok(Some(now)) = value(&mut client)
                    && seen.last() != Some(&now)
                {
                    seen.push(now);
                }
                seen.len() >= count
            })
        };
        assert!(changes(1));
        proxy.cut(Cut::Reset);
        // Taken over by a write on the new connection, and again since nobody has confirmed that one.
        assert!(changes(3));
        assert!(!waiting.is_finished());
        replica.thaw()?;
        let lock = tenure.wait(waiting)???;
        proxy.release(Side::ToClient);
        tenure.release(lock)
    })
}

#[test]
fn s16_on_disk_takes_an_append_only_file() -> Outcome {
    for kind in ServerKind::all_required() {
        // A replica says only once a second what it has on disk.
        let options = || {
            let (lease, within) = (Duration::from_secs(12), Duration::from_millis(2_500));
            options().lease(lease).replicas(1, within).on_disk()
        };
        let server = Server::start(kind, &[])?;
        let _replica = server.start_replica()?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        let fault = match kind {
            ServerKind::Redis70 => ReplicasFault::Unknown,
            _ => ReplicasFault::NoAppendOnlyFile,
        };
        let refused = why(try_once(&tenure, options())?)?;
        assert_eq!(refused, Why::Replicas(fault), "{kind}");
        let mut client = server.client()?;
        assert!(eventually(SOON, || !client
            .exists(&key_of("a"))
            .unwrap_or(true)));
        if fault == ReplicasFault::Unknown {
            continue;
        }
        let server = Server::start_with_data(kind, &[])?;
        let replica = server.start_replica()?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        // The replica writes its file anew first.
        let request = tenure.locks().lock("a").options(options());
        let lock = tenure.wait(request.acquire())??;
        tenure.wait(lock.renew_now())??;
        tenure.release(lock)?;
        replica.freeze()?;
        let refused = why(try_once(&tenure, options())?)?;
        assert_eq!(refused, NONE_OF_ONE, "{kind}");
        replica.thaw()?;
    }
    Ok(())
}

#[test]
fn s16_a_server_without_replicas_grants_nothing() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        let refused = try_once(&tenure, options())?;
        assert!(
            refused
                .as_ref()
                .is_err_and(|why| why.is_retryable()
                    && why.to_string().contains("0 of 1 replicas confirmed")),
            "{refused:?}"
        );
        assert!(eventually(SOON, || server
            .client()
            .and_then(|mut client| client.exists(&key_of("a")))
            .is_ok_and(|exists| !exists)));
        let options = LockOptions::new().lease(LEASE).on_disk();
        let refused = try_once(&tenure, options.wait(Wait::Now))?;
        assert!(matches!(
            refused,
            Err(Error::Misconfigured(Reason::Config(_)))
        ));
    }
    Ok(())
}

#[test]
fn s16_a_user_who_may_not_wait_is_told_so_and_nobody_else_needs_it() -> Outcome {
    each(|server, _, _| {
        let user = [
            "ACL", "SETUSER", "app", "reset", "on", ">p", "~lock:*", "+@all",
        ];
        server.client()?.ok(&user)?;
        server.client()?.ok(&["ACL", "SETUSER", "app", "-wait"])?;
        let url = format!("redis://app:p@{}/", server.addr());
        let tenure = Tenure::connect(&url, "me")?;
        let plain = LockOptions::new().lease(LEASE);
        let attempt = try_once(&tenure, plain)??;
        tenure.release(attempt.acquired().ok_or("held")?)?;
        let refused = try_once(&tenure, options())?;
        assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
        let denied = Why::Replicas(ReplicasFault::NotPermitted);
        assert_eq!(why(refused)?, denied);
        let mut client = server.client()?;
        assert!(eventually(SOON, || !client
            .exists(&key_of("a"))
            .unwrap_or(true)));
        client.ok(&["ACL", "SETUSER", "app", "+wait"])?;
        tenure.release(hold(&tenure)?)
    })
}

#[test]
fn locks_with_replicas_do_not_hold_up_the_others() -> Outcome {
    each(|_, replica, tenure| {
        replica.freeze()?;
        let slow = LockOptions::new()
            .lease(Duration::from_secs(60))
            .replicas(1, Duration::from_secs(14));
        let waiting = tenure.spawn(tenure.locks().lock("a").options(slow).acquire());
        let plain = tenure.locks().lock("b").lease(LEASE);
        // Behind the server's wait for the replica it would come after the end of its lease.
        let lock = tenure.wait(plain.acquire())??;
        tenure.wait(lock.renew_now())??;
        tenure.release(lock)?;
        assert!(!waiting.is_finished());
        waiting.abort();
        replica.thaw()
    })
}

#[test]
fn a_client_with_replicas_closes_both_connections() -> Outcome {
    each(|server, _, tenure| {
        let lock = hold(tenure)?;
        tenure
            .wait(tenure.locks().lock("b").lease(LEASE).acquire())??
            .abandon();
        let closing = tenure.locks().close();
        let lost = tenure.lost(&lock.held(), SOON)?;
        assert!(matches!(lost.cause, Cause::Closed));
        drop(lock);
        tenure.wait(closing)?;
        let mut client = server.client()?;
        assert!(!client.exists(&key_of("a"))?);
        assert!(eventually(SOON, || client
            .cmd(&["CLIENT", "LIST"])
            .is_ok_and(|list| !list.text().contains("name=tenure"))));
        Ok(())
    })
}
