//! What an operator asks of a real server, and does to it; and what a server says of itself.

use std::time::Duration;

use tenure_client::{Cause, Error, Failure as Why, LinkFault, Reason, Unfit, Warning};
use tenure_tests::{
    Client, Cut, Failure, Proxy, Server, ServerKind, Side, Tenure, Told, eventually, key_of,
};

type Outcome = Result<(), Failure>;

const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

/// A server of each kind.
fn each(show: impl Fn(&Server, &mut Client) -> Outcome) -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        show(&server, &mut client).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

#[test]
fn a_name_is_inspected() -> Outcome {
    each(|server, client| {
        let (holder, other) = (
            Tenure::connect(&server.url(), "the holder 1")?,
            Tenure::connect(&server.url(), "other")?,
        );
        let inspect = |name: &str| other.wait(other.locks().inspect(name));
        assert_eq!(inspect("a")??, None);
        let lock = holder.hold("a", MINUTE)?;
        let found = inspect("a")??.ok_or("nobody")?;
        assert_eq!(found.label.as_deref(), Some("the%20holder%201"));
        let ago = found.since.ok_or("no time")?.elapsed()?;
        assert!(ago < SOON, "{ago:?}");
        let left = found.remaining.ok_or("no end")?;
        assert!(left > MINUTE - SOON && left <= MINUTE, "{left:?}");
        assert_eq!(found.warnings, []);
        // What lies under a key may be of any size, and any type.
        for (value, ttl) in [("", Some(MINUTE)), (&*"secret ".repeat(300_000), None)] {
            client.set(&key_of("b"), value, ttl)?;
            let found = inspect("b")??.ok_or("nobody")?;
            assert_eq!((&found.label, found.since), (&None, None));
            assert_eq!(found.remaining.is_some(), ttl.is_some());
            assert!(found.warnings.starts_with(&[Warning::Foreign]));
            assert_eq!(found.warnings.contains(&Warning::Endless), ttl.is_none());
            assert!(!found.to_string().contains("secret"));
        }
        client.ok(&["RPUSH", &key_of("c"), "secret"])?;
        let found = inspect("c")??.ok_or("nobody")?;
        assert_eq!(found.warnings, [Warning::OtherType, Warning::Endless]);
        assert_eq!(
            other
                .told()
                .count(|told| matches!(told, Told::Disconnected(_))),
            0
        );
        holder.release(lock)
    })
}

#[test]
fn names_are_listed() -> Outcome {
    each(|server, client| {
        let tenure = Tenure::connect(&server.url(), "me")?;
        let mut wanted: Vec<String> = (0..700).map(|at| format!("order:{at}")).collect();
        // The longest and the oddest.
        wanted.push(format!("order:{}", "{".repeat(1_018)));
        wanted.push("order:[a]*?\\^-".to_owned());
        let locks: Result<Vec<_>, _> = wanted
            .iter()
            .map(|name| tenure.hold(name, MINUTE))
            .collect();
        for at in 0..5_000 {
            client.set(&format!("cache:{at}"), "x", None)?;
        }
        client.set("lock:order:foreign", &"x".repeat(1_000_000), None)?;
        client.set("lock:{lock:order:1}:forced", "x", None)?;
        client.set("lock:order:%zz", "no name has this key", None)?;
        client.set("lock:other", "x", None)?;
        wanted.push("order:foreign".to_owned());
        wanted.sort();
        let listed = tenure.wait(tenure.locks().list("order:"))??;
        let names = listed.names.iter();
        let names: Vec<_> = names
            .map(|(name, _)| String::from_utf8_lossy(name))
            .collect();
        assert_eq!(names, wanted);
        assert!(!listed.more);
        let by_me = |label: Option<&str>| label == Some("me");
        let mine = listed
            .names
            .iter()
            .filter(|(_, found)| by_me(found.label.as_deref()));
        assert_eq!(mine.count(), 702);
        let listed = tenure.wait(tenure.locks().list("order:[a]*"))??;
        assert_eq!(listed.names.len(), 1);
        let listed = tenure.wait(tenure.locks().list("").limit(10))??;
        assert_eq!((listed.names.len(), listed.more), (10, true));
        assert_eq!(tenure.wait(tenure.locks().list("nobody's"))??.names, []);
        assert_eq!(
            tenure
                .told()
                .count(|told| matches!(told, Told::Disconnected(_))),
            0
        );
        drop(locks?);
        Ok(())
    })
}

#[test]
fn s8_a_forced_release_wakes_who_waits_and_is_told_to_the_holder() -> Outcome {
    each(|server, client| {
        let (a, b) = (
            Tenure::connect(&server.url(), "a")?,
            Tenure::connect(&server.url(), "b")?,
        );
        let operator = Tenure::connect(&server.url(), "the operator")?;
        let lock = a.hold("n", MINUTE * 5)?;
        let waiting = b.spawn(b.locks().lock("n").lease(MINUTE * 5).acquire());
        if !eventually(SOON, || client.calls("set").is_ok_and(|calls| calls >= 2)) {
            return Err("nobody asks".into());
        }
        let force = || operator.wait(operator.locks().force_release("n"));
        let removed = force()??.ok_or("there was nothing")?;
        assert_eq!(removed.label.as_deref(), Some("a"));
        assert_eq!(removed.warning, None);
        // No renewal and no attempt is due for a minute.
        let lost = a.lost(&lock, SOON)?;
        assert_eq!(lost.cause, Cause::Forced);
        assert_eq!(lost.by.as_deref(), Some("the%20operator"));
        let next = b.wait_at_most(SOON, waiting)???;
        let helper = format!("lock:{{{}}}:forced", key_of("n"));
        let left = client.pttl(&helper)?.ok_or("no helper key")?;
        assert!(left > MINUTE * 4 && left <= MINUTE * 5, "{left:?}");
        // Its own hold, and twice: by its SHA.
        let mine = operator.hold("m", MINUTE)?;
        let removed = operator.wait(operator.locks().force_release("m"))??;
        assert_eq!(
            removed.ok_or("there was nothing")?.label.as_deref(),
            Some("the%20operator")
        );
        assert_eq!(operator.lost(&mine, SOON)?.cause, Cause::Forced);
        assert_eq!(client.calls("evalsha")?, 1);
        client.ok(&["SCRIPT", "FLUSH"])?;
        b.release(next)?;
        assert_eq!(force()??, None);
        // What is none of this library's goes as well, and leaves no note.
        client.ok(&["DEL", &helper])?;
        client.set(&key_of("n"), &"x".repeat(2_000_000), None)?;
        let removed = force()??.ok_or("there was nothing")?;
        assert_eq!(
            (removed.label, removed.warning),
            (None, Some(Warning::Foreign))
        );
        client.ok(&["RPUSH", &key_of("n"), "x"])?;
        let removed = force()??.ok_or("there was nothing")?;
        assert_eq!(removed.warning, Some(Warning::OtherType));
        assert!(!client.exists(&key_of("n"))? && !client.exists(&helper)?);
        Ok(())
    })
}

/// Without wake-ups it is told at the next renewal.
#[test]
fn s8_a_forced_release_is_told_at_the_next_renewal_at_the_latest() -> Outcome {
    each(|server, _| {
        let a = Tenure::start(&server.url(), |config| config.label("a").no_wake_ups())?;
        let lock = a.hold("n", Duration::from_secs(1))?;
        let operator = Tenure::connect(&server.url(), "b")?;
        let removed = operator.wait(operator.locks().force_release("n"))??;
        assert!(removed.is_some());
        let lost = a.lost(&lock, SOON)?;
        assert_eq!((lost.cause, lost.by.as_deref()), (Cause::Forced, Some("b")));
        Ok(())
    })
}

#[test]
fn a_full_server_takes_a_forced_release_and_its_note() -> Outcome {
    each(|server, client| {
        let tenure = Tenure::connect(&server.url(), "me")?;
        let lock = tenure.hold("n", MINUTE)?;
        client.config_set("maxmemory", "1")?;
        assert!(tenure.wait(tenure.locks().force_release("n"))??.is_some());
        assert_eq!(tenure.lost(&lock, SOON)?.cause, Cause::Forced);
        Ok(())
    })
}

#[test]
fn s5_a_forced_release_without_an_answer_says_that_it_may_be_done() -> Outcome {
    each(|server, client| {
        let proxy = Proxy::start(server.addr())?;
        let holder = Tenure::connect(&server.url(), "holder")?;
        let tenure = Tenure::connect(&proxy.url(), "me")?;
        let lock = holder.hold("n", MINUTE)?;
        proxy.hold(Side::ToClient);
        let forcing = tenure.spawn(tenure.locks().force_release("n"));
        if !eventually(SOON, || !client.exists(&key_of("n")).unwrap_or(true)) {
            return Err("nothing was forced".into());
        }
        proxy.cut(Cut::Reset);
        proxy.release(Side::ToClient);
        match tenure.wait(forcing)?? {
            Err(error @ Error::MaybeDone(_)) => assert!(!error.is_retryable(), "{error}"),
            other => return Err(format!("{other:?}").into()),
        }
        assert_eq!(holder.lost(&lock, SOON)?.cause, Cause::Forced);
        // It was sent once.
        let scripts = client.calls("eval")? + client.calls("evalsha")?;
        let again = holder.hold("n", MINUTE)?;
        tenure.wait(tenure.locks().ready())??;
        assert!(tenure.wait(tenure.locks().inspect("n"))??.is_some());
        assert_eq!(client.calls("eval")? + client.calls("evalsha")?, scripts);
        holder.release(again)
    })
}

#[test]
fn what_endangers_locks_is_told() -> Outcome {
    each(|server, client| {
        client.config_set("maxmemory", "1gb")?;
        client.config_set("maxmemory-policy", "allkeys-lru")?;
        let risk = |part: &'static str| move |told: &Told| matches!(told, Told::Risk(text) if text.contains(part));
        let tenure = Tenure::connect(&server.url(), "me")?;
        tenure.told().wait_for(1, SOON, risk("allkeys-lru"))?;
        tenure.told().wait_for(1, SOON, risk("appendonly"))?;
        // Bounded and not evicting, and on disk.
        client.config_set("maxmemory-policy", "noeviction")?;
        client.config_set("appendonly", "yes")?;
        let fine = Tenure::connect(&server.url(), "me")?;
        let lock = fine.hold("n", MINUTE)?;
        fine.wait(fine.locks().inspect("n"))??;
        fine.release(lock)?;
        assert_eq!(fine.told().count(|told| matches!(told, Told::Risk(_))), 0);
        Ok(())
    })
}

#[test]
fn in_resp2_all_of_it_works() -> Outcome {
    for kind in ServerKind::all_required() {
        let evicts = ["--maxmemory", "1gb", "--maxmemory-policy", "volatile-ttl"];
        let no_hello = ["--rename-command", "HELLO", ""];
        let server = Server::start(kind, &[&no_hello[..], &evicts].concat())?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        let evicts =
            |told: &Told| matches!(told, Told::Risk(text) if text.contains("volatile-ttl"));
        tenure.told().wait_for(1, SOON, evicts)?;
        let lock = tenure.hold("n", MINUTE)?;
        let found = tenure.wait(tenure.locks().inspect("n"))??.ok_or("nobody")?;
        assert_eq!(found.label.as_deref(), Some("me"));
        assert_eq!(tenure.wait(tenure.locks().inspect("free"))??, None);
        assert_eq!(tenure.wait(tenure.locks().list(""))??.names.len(), 1);
        let force = || tenure.wait(tenure.locks().force_release("n"));
        assert_eq!(force()??.ok_or("nobody")?.label.as_deref(), Some("me"));
        assert_eq!(force()??, None);
        assert_eq!(tenure.lost(&lock, SOON)?.cause, Cause::Forced);
        let strict = Tenure::start(&server.url(), |config| config.strict_server())?;
        let refused = strict.wait(strict.locks().acquire("n"))?.map(drop);
        assert!(
            matches!(refused, Err(Error::Misconfigured(_))),
            "{refused:?}"
        );
    }
    Ok(())
}

#[test]
fn a_strict_client_takes_no_lock_where_locks_may_be_deleted() -> Outcome {
    each(|server, client| {
        let strict = |url: &str| Tenure::start(url, |config| config.strict_server());
        client.config_set("maxmemory", "1gb")?;
        client.config_set("maxmemory-policy", "allkeys-lfu")?;
        let tenure = strict(&server.url())?;
        let waiting = tenure.wait_at_most(SOON, tenure.locks().acquire("n"))?;
        match waiting.map(drop) {
            Err(error @ Error::Misconfigured(_)) => {
                let text = error.to_string();
                assert!(
                    text.contains("noeviction") && text.contains("allkeys-lfu"),
                    "{text}"
                );
            }
            other => return Err(format!("{other:?}").into()),
        }
        assert!(tenure.wait(tenure.locks().inspect("n"))?.is_err());
        client.ok(&[
            "ACL", "SETUSER", "blind", "on", ">p", "~*", "&*", "+@all", "-info",
        ])?;
        client.config_set("maxmemory-policy", "noeviction")?;
        let blind = strict(&server.url().replace("redis://", "redis://blind:p@"))?;
        match blind
            .wait_at_most(SOON, blind.locks().acquire("n"))?
            .map(drop)
        {
            Err(Error::Misconfigured(Reason::Failure { failure, .. })) => {
                assert_eq!(failure, Why::Link(LinkFault::Unfit(Unfit::Unseen)));
            }
            other => return Err(format!("{other:?}").into()),
        }
        assert_eq!(client.calls("set")?, 0);
        // It is looked at anew with each connection.
        let lock = tenure.wait(tenure.locks().lock("n").lease(MINUTE).acquire())?;
        tenure.release(lock?)?;
        let lock = strict(&server.url())?;
        let held = lock.hold("n", MINUTE)?;
        lock.release(held)
    })
}

#[test]
fn a_server_says_what_it_is() -> Outcome {
    each(|server, client| {
        let replica = Server::start(
            server.kind(),
            &["--replicaof", "127.0.0.1", &server.port().to_string()],
        )?;
        let (tenure, of_replica) = (
            Tenure::connect(&server.url(), "me")?,
            Tenure::start(&replica.url(), |config| config)?,
        );
        let examine = || tenure.wait(tenure.locks().examine());
        let said = examine()??;
        assert_eq!(
            (&*said.refused, said.fact("role")),
            (&[][..], Some("master"))
        );
        let apart = said
            .clock
            .ok_or("no clock")?
            .elapsed()
            .unwrap_or_else(|error| error.duration());
        assert!(apart < SOON, "{apart:?}");
        for name in [
            "redis_version",
            "uptime_in_seconds",
            "maxmemory_policy",
            "aof_enabled",
            "connected_slaves",
        ] {
            assert!(said.fact(name).is_some(), "{name}: {said:?}");
        }
        assert_eq!(said.fact("no such fact"), None);
        client.config_set("maxmemory-policy", "allkeys-lru")?;
        assert_eq!(examine()??.fact("maxmemory_policy"), Some("allkeys-lru"));
        let said = of_replica.wait(of_replica.locks().examine())??;
        assert_eq!(said.fact("role"), Some("slave"));
        Ok(())
    })
}
