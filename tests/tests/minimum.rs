//! The shortest hold on real servers: what is let go of before stays taken for the rest, in one step.

use std::time::Duration;

use tenure_client::fence::{Guarded, Written};
use tenure_client::{Request, Wait};
use tenure_tests::{Client, Failure, Reply, Server, ServerKind, Tenure, eventually, key_of};

type Outcome = Result<(), Failure>;

const LEASE: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3_600);
const SOON: Duration = Duration::from_secs(5);

fn each(show: impl Fn(&Server, &Tenure, &mut Client) -> Outcome) -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        let mut client = server.client()?;
        show(&server, &tenure, &mut client).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

fn hourly(tenure: &Tenure) -> Request {
    tenure.locks().lock("a").lease(LEASE).at_least(HOUR)
}

fn is_cooling(client: &mut Client) -> Result<bool, Failure> {
    let value = client.get(&key_of("a"))?.ok_or("no key")?;
    let left = client.pttl(&key_of("a"))?.ok_or("it does not expire")?;
    assert!(
        left > HOUR - Duration::from_secs(60) && left <= HOUR,
        "{left:?}"
    );
    Ok(value.starts_with(b"tn1:c:"))
}

#[test]
fn s6_a_release_and_a_drop_leave_the_name_taken_for_the_rest() -> Outcome {
    each(|server, tenure, client| {
        let other = Tenure::connect(&server.url(), "other")?;
        for released in [true, false] {
            let lock = tenure.wait(hourly(tenure).acquire())??;
            match released {
                true => tenure.release(lock)?,
                false => drop(lock),
            }
            let key = key_of("a");
            let cools = || {
                client
                    .get(&key)
                    .is_ok_and(|value| value.is_some_and(|value| value.starts_with(b"tn1:c:")))
            };
            if !eventually(SOON, cools) {
                return Err("it does not cool".into());
            }
            assert!(is_cooling(client)?);
            let attempt = other.wait(other.locks().try_acquire("a"))??;
            let holder = attempt.holder().ok_or("granted")?;
            assert!(holder.cooling && holder.label.as_deref() == Some("me"));
            assert!(holder.remaining > Some(LEASE));
            let inspection = other.wait(other.locks().inspect("a"))??.ok_or("nobody")?;
            assert!(
                inspection.cooling && inspection.to_string().starts_with("cooling down after me")
            );
            // An operator may end it.
            let removed = other.wait(other.locks().force_release("a"))??;
            assert!(removed.is_some());
        }
        Ok(())
    })
}

#[test]
fn s6_whoever_waits_gets_the_name_when_the_minimum_is_over() -> Outcome {
    each(|server, tenure, _| {
        let other = Tenure::connect(&server.url(), "other")?;
        let period = Duration::from_millis(300);
        let lock = tenure.wait(
            tenure
                .locks()
                .lock("a")
                .lease(LEASE)
                .at_least(period)
                .acquire(),
        )??;
        tenure.release(lock)?;
        let waiting = other.locks().lock("a").lease(LEASE).wait(Wait::For(SOON));
        let lock = other.wait(waiting.acquire())??;
        other.release(lock)
    })
}

#[test]
fn s6_a_full_server_keeps_the_value_of_the_hold_for_the_rest() -> Outcome {
    each(|_, tenure, client| {
        let lock = tenure.wait(hourly(tenure).acquire())??;
        client.config_set("maxmemory", "1")?;
        tenure.release(lock)?;
        assert!(!is_cooling(client)?);
        client.config_set("maxmemory", "0")?;
        Ok(())
    })
}

#[test]
fn a_guarded_write_is_refused_while_the_name_cools() -> Outcome {
    each(|_, tenure, client| {
        let lock = tenure.wait(hourly(tenure).fenced().acquire())??;
        let fence = lock.fence().ok_or("no fence")?;
        tenure.release(lock)?;
        assert!(is_cooling(client)?);
        let write = Guarded::write("lock:", b"a", fence, b"{lock:a}:data", b"too late")?;
        let mut words: Vec<&[u8]> = vec![b"EVAL", write.text.as_bytes(), b"3"];
        words.extend(write.keys.iter().map(Vec::as_slice));
        words.extend(write.arguments.iter().map(Vec::as_slice));
        match client.ok(&words)? {
            Reply::Int(answer) => assert_eq!(Written::of(answer), Some(Written::NotHeld)),
            other => return Err(format!("{other:?}").into()),
        }
        Ok(())
    })
}

#[test]
fn s6_a_request_that_was_withdrawn_and_a_hold_past_its_minimum_leave_nothing() -> Outcome {
    each(|_, tenure, client| {
        let short = tenure.locks().lock("a").lease(LEASE);
        let lock = tenure.wait(short.at_least(Duration::from_millis(1)).acquire())??;
        std::thread::sleep(Duration::from_millis(2));
        tenure.release(lock)?;
        assert!(!client.exists(&key_of("a"))?);
        Ok(())
    })
}
