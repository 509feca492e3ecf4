//! Fences on real servers: they grow, whatever happens to the server and to what it keeps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_client::fence::{Guarded, Written};
use tenure_client::{Error, Failure as Why, FenceFault, Lock, Reason, Wait};
use tenure_tests::{
    Client, Cut, Failure, Proxy, Reply, Server, ServerKind, Side, Tenure, eventually, key_of,
};

type Outcome = Result<(), Failure>;

const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);
const DAY: u64 = 86_400_000_000;
const COUNTER: &str = "lock:{lock:a}:fence";

/// A server of each kind, and a client of it.
fn each(show: impl Fn(&mut Server, &Tenure, &mut Client) -> Outcome) -> Outcome {
    for kind in ServerKind::all_required() {
        let mut server = Server::start(kind, &[])?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        let mut client = server.client()?;
        show(&mut server, &tenure, &mut client).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

fn try_above(tenure: &Tenure, floor: u64) -> Result<Result<Lock, Error>, Failure> {
    let request = tenure.locks().lock("a").lease(MINUTE).wait(SOON);
    tenure.wait(request.fence_from(floor).acquire())
}

fn hold(tenure: &Tenure) -> Result<(Lock, u64), Failure> {
    let lock = try_above(tenure, 0)??;
    let fence = lock.fence().ok_or("no fence")?;
    Ok((lock, fence))
}

/// Takes the lock with a fence, and releases it.
fn fence(tenure: &Tenure) -> Result<u64, Failure> {
    let (lock, fence) = hold(tenure)?;
    tenure.release(lock)?;
    Ok(fence)
}

/// The server's time in microseconds.
fn time(client: &mut Client) -> Result<u64, Failure> {
    let Reply::Array(parts) = client.ok(&["TIME"])? else {
        return Err("no time".into());
    };
    let [secs, micros] = &parts[..] else {
        return Err("no time".into());
    };
    Ok(secs.text().parse::<u64>()? * 1_000_000 + micros.text().parse::<u64>()?)
}

fn why(refused: Result<Lock, Error>) -> Result<Why, Failure> {
    match refused {
        Err(Error::Misconfigured(Reason::Failure { failure, .. })) => Ok(failure),
        other => Err(format!("{other:?}").into()),
    }
}

#[test]
fn s14_each_holder_has_a_higher_fence_than_the_one_before() -> Outcome {
    each(|server, tenure, client| {
        let (before, mut last) = (time(client)?, 0);
        for round in 0..20 {
            // By turns: a release, an expiry, a deletion, a removal by force, another client.
            let next = match round % 4 {
                0 => fence(tenure)?,
                1 => {
                    let lock = tenure.locks().lock("a").lease(Duration::from_millis(50));
                    let lock = tenure.wait(lock.fenced().acquire())??;
                    let fence = lock.fence().ok_or("no fence")?;
                    lock.abandon();
                    fence
                }
                2 => {
                    let (_lock, fence) = hold(tenure)?;
                    client.del(&key_of("a"))?;
                    fence
                }
                _ => fence(&Tenure::connect(&server.url(), "other")?)?,
            };
            assert!(next > last, "round {round}: {next} after {last}");
            last = next;
        }
        // It is the time, as long as that is more.
        assert!(last >= before && last <= time(client)? + 1);
        let left = client.pttl(COUNTER)?.ok_or("the counter does not expire")?;
        assert!(
            left > Duration::from_micros(DAY) - MINUTE
                && left <= Duration::from_micros(DAY) + MINUTE
        );
        Ok(())
    })
}

#[test]
fn s14_nothing_that_the_server_forgets_lowers_a_fence() -> Outcome {
    each(|server, tenure, client| {
        let first = fence(tenure)?;
        // The counter expires or is deleted,
        client.del(COUNTER)?;
        let second = fence(tenure)?;
        assert!(second > first);
        // the server forgets all,
        server.restart_empty()?;
        let third = fence(tenure)?;
        assert!(third > second);
        // or its clock steps back: to the counter the same as if it were ahead.
        let ahead = time(&mut server.client()?)? + 3_600_000_000;
        let mut client = server.client()?;
        client.set(COUNTER, &ahead.to_string(), None)?;
        assert_eq!(fence(tenure)?, ahead + 1);
        assert_eq!(fence(tenure)?, ahead + 2);
        // It is kept until a day after the time that it says.
        let left = client.pttl(COUNTER)?.ok_or("the counter does not expire")?;
        assert!(left > Duration::from_micros(DAY + 3_600_000_000) - MINUTE);
        Ok(())
    })
}

#[test]
fn s14_a_floor_is_passed_and_what_is_far_ahead_is_refused_without_a_write() -> Outcome {
    each(|_, tenure, client| {
        let floor = time(client)? + DAY - 60_000_000;
        let lock = try_above(tenure, floor)??;
        assert_eq!(lock.fence(), Some(floor + 1));
        tenure.release(lock)?;
        client.del(COUNTER)?;
        let far = time(client)? + DAY + 60_000_000;
        let refused = try_above(tenure, far)?;
        assert_eq!(why(refused)?, Why::Fence(FenceFault::Floor));
        assert_eq!(client.keys()?, [""; 0]);
        let counters = [
            (far.to_string(), FenceFault::Counter),
            ("9007199254740993".to_owned(), FenceFault::Counter),
            ("9".repeat(400), FenceFault::Counter),
            (String::new(), FenceFault::Foreign),
            ("12x".to_owned(), FenceFault::Foreign),
            ("-5".to_owned(), FenceFault::Foreign),
            ("0x10".to_owned(), FenceFault::Foreign),
            ("1e15".to_owned(), FenceFault::Foreign),
            (" 1".to_owned(), FenceFault::Foreign),
        ];
        for (counter, fault) in counters {
            client.set(COUNTER, &counter, None)?;
            let refused = try_above(tenure, 0)?;
            assert_eq!(why(refused)?, Why::Fence(fault), "{counter}");
            assert_eq!(client.keys()?, [COUNTER]);
            assert_eq!(client.get(COUNTER)?, Some(counter.into_bytes()));
        }
        client.del(COUNTER)?;
        client.ok(&["RPUSH", COUNTER, "x"])?;
        assert_eq!(why(try_above(tenure, 0)?)?, Why::Fence(FenceFault::Foreign));
        // A lock without a fence does not look at it.
        let lock = tenure.hold("a", MINUTE)?;
        assert_eq!(lock.fence(), None);
        tenure.release(lock)
    })
}

#[test]
fn s14_fenced_and_unfenced_holders_exclude_each_other() -> Outcome {
    each(|server, tenure, client| {
        let other = Tenure::connect(&server.url(), "other")?;
        for (first, second) in [(false, true), (true, false), (true, true)] {
            let ask = |of: &Tenure, fenced| {
                let request = of.locks().lock("a").lease(MINUTE);
                if fenced { request.fenced() } else { request }
            };
            let lock = tenure.wait(ask(tenure, first).acquire())??;
            let value = client.get(&key_of("a"))?.ok_or("no key")?;
            assert_eq!(value.starts_with(b"tn1:f:"), first);
            let attempt = other.wait(ask(&other, second).try_acquire())??;
            let holder = attempt.holder().ok_or("granted twice")?;
            assert_eq!(holder.label.as_deref(), Some("me"));
            assert!(holder.remaining.is_some());
            // What it waits for wakes it.
            let waiting = other.spawn(ask(&other, second).wait(Wait::For(SOON)).acquire());
            let inspection = other.wait(other.locks().inspect("a"))??.ok_or("nobody")?;
            assert_eq!(inspection.fence, lock.fence());
            tenure.release(lock)?;
            let lock = other.wait(waiting)???;
            assert_eq!(lock.fence().is_some(), second);
            other.release(lock)?;
        }
        // A name was held with a fence, and is not now: none is shown.
        let _lock = tenure.hold("a", MINUTE)?;
        let inspection = other.wait(other.locks().inspect("a"))??.ok_or("nobody")?;
        assert!(client.exists(COUNTER)? && inspection.fence.is_none());
        Ok(())
    })
}

#[test]
fn s14_a_leftover_is_taken_over_with_a_new_fence_and_a_renewal_leaves_it() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let proxy = Proxy::start(server.addr())?;
        let tenure = Tenure::connect(&proxy.url(), "me")?;
        let mut client = server.client()?;
        fence(&tenure)?;
        proxy.hold(Side::ToClient);
        let request = tenure.locks().lock("a").lease(MINUTE).fenced();
        let waiting = tenure.spawn(request.wait(SOON).acquire());
        if !eventually(SOON, || client.exists(&key_of("a")).unwrap_or(false)) {
            return Err("nothing was acquired".into());
        }
        let left: u64 = String::from_utf8(client.get(COUNTER)?.ok_or("none")?)?.parse()?;
        proxy.cut(Cut::Reset);
        proxy.release(Side::ToClient);
        let lock = tenure.wait(waiting)???;
        let value = String::from_utf8(client.get(&key_of("a"))?.ok_or("no key")?)?;
        assert!(value.ends_with(".3"), "{kind}: not taken over");
        let fence = lock.fence().ok_or("no fence")?;
        assert!(fence > left, "{kind}: {fence} after {left}");
        tenure.wait(lock.renew_now())??;
        assert_eq!(client.get(COUNTER)?, Some(fence.to_string().into_bytes()));
        assert_eq!(lock.fence(), Some(fence));
        tenure.release(lock)?;
    }
    Ok(())
}

#[test]
fn s14_a_full_server_grants_nothing_and_leaves_nothing() -> Outcome {
    each(|_, tenure, client| {
        let before = fence(tenure)?;
        client.config_set("maxmemory", "1")?;
        let request = tenure.locks().lock("a").lease(MINUTE).fenced();
        let refused = tenure.wait(request.try_acquire())?;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        client.config_set("maxmemory", "0")?;
        assert!(!client.exists(&key_of("a"))?);
        assert!(fence(tenure)? > before);
        Ok(())
    })
}

#[test]
fn a_guarded_write_is_done_by_the_newest_holder_alone() -> Outcome {
    each(|_, tenure, client| {
        let mut write = |fence: u64, value: &str| -> Result<Option<Written>, Failure> {
            let data = b"{lock:a}:data";
            let write = Guarded::write("lock:", b"a", fence, data, value.as_bytes())?;
            let mut words: Vec<&[u8]> = vec![b"EVAL", write.text.as_bytes(), b"3"];
            words.extend(write.keys.iter().map(Vec::as_slice));
            words.extend(write.arguments.iter().map(Vec::as_slice));
            match client.ok(&words)? {
                Reply::Int(answer) => Ok(Written::of(answer)),
                other => Err(format!("{other:?}").into()),
            }
        };
        let (first, old) = hold(tenure)?;
        assert_eq!(write(old, "of the first")?, Some(Written::Done));
        tenure.release(first)?;
        // Nobody has it; somebody else has it, without a fence, and with one.
        assert_eq!(write(old, "too late")?, Some(Written::NotHeld));
        let plain = tenure.hold("a", MINUTE)?;
        assert_eq!(write(old, "too late")?, Some(Written::NotHeld));
        tenure.release(plain)?;
        let (second, new) = hold(tenure)?;
        assert_eq!(write(old, "too late")?, Some(Written::NotHeld));
        assert_eq!(write(new, "of the second")?, Some(Written::Done));
        assert_eq!(write(new, "of the second again")?, Some(Written::Done));
        tenure.release(second)
    })?;
    // Should the counter have been lowered by hand, what is written still says what came last.
    each(|_, tenure, client| {
        let (lock, fence) = hold(tenure)?;
        let data = "data";
        client.ok(&[
            "HSET",
            data,
            "fence",
            &(fence + 1).to_string(),
            "value",
            "x",
        ])?;
        let write = Guarded::write("lock:", b"a", fence, data.as_bytes(), b"y")?;
        let mut words: Vec<&[u8]> = vec![b"EVAL", write.text.as_bytes(), b"3"];
        words.extend(write.keys.iter().map(Vec::as_slice));
        words.extend(write.arguments.iter().map(Vec::as_slice));
        assert!(matches!(client.ok(&words)?, Reply::Int(-1)));
        tenure.release(lock)
    })
}

#[test]
fn fences_of_a_server_are_of_its_own_time() -> Outcome {
    each(|_, tenure, _| {
        let fence = fence(tenure)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let off = Duration::from_micros(fence).abs_diff(now);
        assert!(off < MINUTE, "{off:?}");
        Ok(())
    })
}
