//! Locks of two older systems and of this one exclude each other on one server, and none touches another's key.
//!
//! The first writes 32 hexadecimal digits to `lock:NAME` by `SET NX` with `EX` or `PX` and compares by script. The second
//! writes a token to `PREFIX:NAME` and compares by `SET .. IFEQ` and `DELEX`, on servers that have them.

use std::time::{Duration, Instant};

use tenure_client::{Error, Wait};
use tenure_tests::{Client, Failure, Reply, Server, ServerKind, Tenure};

type Outcome = Result<(), Failure>;

const MINUTE: Duration = Duration::from_secs(60);
/// What such systems write: an identifier without its hyphens.
const TOKEN: &str = "9b2c4e71a0d84f3c8e5d6a7b1c2d3e4f";
const OTHER_TOKEN: &str = "00000000000040008000000000000000";
const NAME: &str = "invoices:2026:january";

const COMPARE_AND_EXPIRE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";
const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";

/// One of the older systems.
#[derive(Clone, Copy, Debug)]
enum Older {
    /// `SET key token EX s NX`, scripts.
    Seconds,
    /// `SET key token PX ms NX`, scripts.
    Millis,
    /// `SET key token NX PX ms`, `SET .. IFEQ`, `DELEX` or what the server has instead.
    Compare,
}

use Older::{Compare, Millis, Seconds};

/// How our side is set up to meet it.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    older: Older,
    prefix: &'static str,
    plain: bool,
}

const MEETINGS: [Meeting; 6] = [
    meeting(Seconds, "lock:", true),
    meeting(Seconds, "lock:", false),
    meeting(Millis, "lock:", true),
    meeting(Millis, "lock:", false),
    meeting(Compare, "myapp:lock:", true),
    meeting(Compare, "myapp:lock:", false),
];

const fn meeting(older: Older, prefix: &'static str, plain: bool) -> Meeting {
    Meeting {
        older,
        prefix,
        plain,
    }
}

impl Older {
    fn acquire(
        self,
        client: &mut Client,
        key: &str,
        token: &str,
        ttl: Duration,
    ) -> Result<bool, Failure> {
        let (seconds, millis) = (ttl.as_secs().to_string(), ttl.as_millis().to_string());
        let reply = match self {
            Seconds => client.ok(&["SET", key, token, "EX", &seconds, "NX"])?,
            Millis => client.ok(&["SET", key, token, "PX", &millis, "NX"])?,
            Compare => client.ok(&["SET", key, token, "NX", "PX", &millis])?,
        };
        match reply {
            Reply::Nil => Ok(false),
            Reply::Simple(ok) if ok == "OK" => Ok(true),
            other => Err(format!("SET answered {other:?}").into()),
        }
    }

    fn renew(
        self,
        kind: ServerKind,
        client: &mut Client,
        key: &str,
        token: &str,
    ) -> Result<bool, Failure> {
        let reply = match self {
            Compare if kind != ServerKind::Redis70 => {
                client.ok(&["SET", key, token, "IFEQ", token, "PX", "60000"])?
            }
            _ => client.ok(&["EVAL", COMPARE_AND_EXPIRE, "1", key, token, "60000"])?,
        };
        Ok(matches!(reply, Reply::Simple(_) | Reply::Int(1)))
    }

    fn release(
        self,
        kind: ServerKind,
        client: &mut Client,
        key: &str,
        token: &str,
    ) -> Result<bool, Failure> {
        let reply = match (self, kind) {
            (Compare, ServerKind::Redis86) => client.ok(&["DELEX", key, "IFEQ", token])?,
            (Compare, ServerKind::Valkey91) => client.ok(&["DELIFEQ", key, token])?,
            _ => client.ok(&["EVAL", COMPARE_AND_DELETE, "1", key, token])?,
        };
        Ok(reply == Reply::Int(1))
    }
}

impl Meeting {
    fn tenure(self, server: &Server) -> Result<Tenure, Failure> {
        let tenure = Tenure::start(&server.url(), |config| {
            let config = config.prefix(self.prefix).label("me");
            match self.plain {
                true => config.plain_keys(),
                false => config,
            }
        })?;
        tenure.wait(tenure.locks().ready())??;
        Ok(tenure)
    }
}

type Test = fn(Meeting, &Server, &Tenure, &mut Client, &str) -> Outcome;

/// Every meeting on every server, the servers side by side.
fn on_each(test: Test) -> Outcome {
    std::thread::scope(|scope| {
        let kinds = ServerKind::all_required().into_iter();
        let runs: Vec<_> = kinds
            .map(|kind| scope.spawn(move || every_meeting(test, kind)))
            .collect();
        let mut ended = runs.into_iter().map(|run| run.join());
        ended.try_for_each(|ended| ended.map_err(|_| Failure::from("it panicked"))?)
    })
}

fn every_meeting(test: Test, kind: ServerKind) -> Outcome {
    let server = Server::start(kind, &[])?;
    for meeting in MEETINGS {
        let tenure = meeting.tenure(&server)?;
        let mut client = server.client()?;
        let key = format!("{}{NAME}", meeting.prefix);
        test(meeting, &server, &tenure, &mut client, &key)
            .map_err(|error| format!("{kind} {meeting:?}: {error}"))?;
        assert_eq!(client.keys()?, [""; 0], "{kind} {meeting:?}");
    }
    Ok(())
}

/// Nothing that anybody is shown has a part of the token in it.
fn hides_the_token(shown: &str) {
    for part in TOKEN.as_bytes().windows(8) {
        let part = std::str::from_utf8(part).expect("hexadecimal digits");
        assert!(!shown.contains(part), "{part} in {shown}");
    }
}

#[test]
fn theirs_excludes_ours() -> Outcome {
    on_each(|Meeting { older, .. }, _, tenure, client, key| {
        assert!(older.acquire(client, key, TOKEN, Duration::from_secs(30))?);
        let attempt = tenure.wait(tenure.locks().try_acquire(NAME))??;
        let holder = attempt.holder().ok_or("granted a second time")?;
        assert_eq!(holder.label, None);
        let remaining = holder.remaining.ok_or("for how much longer?")?;
        assert!(remaining > Duration::from_secs(25) && remaining <= Duration::from_secs(30));
        hides_the_token(&format!("{attempt:?} {holder}"));

        let wait = Wait::For(Duration::from_millis(60));
        let waited = tenure.wait(tenure.locks().lock(NAME).wait(wait).acquire())?;
        let error = waited.err().ok_or("granted a second time")?;
        assert!(matches!(&error, Error::TimedOut { holder } if holder.label.is_none()));
        hides_the_token(&format!("{error:?} {error} {:?}", tenure.told().all()));

        assert_eq!(client.get(key)?.as_deref(), Some(TOKEN.as_bytes()));
        assert!(client.pttl(key)? <= Some(Duration::from_secs(30)));
        assert!(client.del(key)?);
        Ok(())
    })
}

#[test]
fn ours_excludes_theirs_and_they_cannot_touch_it() -> Outcome {
    on_each(|Meeting { older, .. }, server, tenure, client, key| {
        let kind = server.kind();
        let lock = tenure.hold(NAME, MINUTE)?;
        let value = client.get(key)?.ok_or("there is no key")?;
        for token in [TOKEN, OTHER_TOKEN, ""] {
            assert!(!older.acquire(client, key, token, MINUTE)?);
            client.ok(&["PEXPIRE", key, "30000"])?;
            assert!(!older.renew(kind, client, key, token)?);
            assert!(client.pttl(key)? <= Some(Duration::from_secs(30)));
            assert!(!older.release(kind, client, key, token)?);
        }
        assert_eq!(client.get(key)?, Some(value));
        tenure.wait(lock.renew_now())??;
        assert!(client.pttl(key)? > Some(Duration::from_secs(30)));
        assert!(lock.is_held());
        tenure.release(lock)?;
        // Free for them again.
        assert!(older.acquire(client, key, TOKEN, MINUTE)?);
        assert!(older.renew(kind, client, key, TOKEN)?);
        assert!(older.release(kind, client, key, TOKEN)?);
        Ok(())
    })
}

#[test]
fn ours_never_touches_theirs() -> Outcome {
    on_each(|Meeting { older, .. }, _, tenure, client, key| {
        let half = Duration::from_secs(30);
        // Ours is lost to one of theirs: its renewal, its release and its clean-up come too late.
        for renewed in [true, false] {
            let lock = tenure.hold(NAME, MINUTE)?;
            assert!(client.del(key)?);
            assert!(older.acquire(client, key, TOKEN, half)?);
            if renewed {
                let renewed = tenure.wait(lock.renew_now())?;
                let Err(Error::Lost(lost)) = renewed else {
                    return Err(format!("renewed what is theirs: {renewed:?}").into());
                };
                assert_eq!(lost.by, None);
                hides_the_token(&format!("{lost:?} {lost} {lock:?}"));
            }
            let answer = tenure.wait(lock.release())?;
            assert!(matches!(&answer, Err(Error::Lost(_))), "{answer:?}");
            hides_the_token(&format!("{answer:?} {:?}", tenure.told().all()));
            assert_eq!(client.get(key)?.as_deref(), Some(TOKEN.as_bytes()));
            let ttl = client.pttl(key)?;
            assert!(ttl <= Some(half) && ttl > Some(half / 2), "{ttl:?}");
            assert!(client.del(key)?);
        }
        Ok(())
    })
}

#[test]
fn our_waiter_gets_the_name_when_theirs_expires() -> Outcome {
    on_each(|Meeting { older, .. }, _, tenure, client, key| {
        let ttl = Duration::from_secs(1);
        assert!(older.acquire(client, key, TOKEN, ttl)?);
        let began = Instant::now();
        let lock = tenure.wait(tenure.locks().lock(NAME).lease(MINUTE).acquire())??;
        let took = began.elapsed();
        assert!(lock.is_held());
        assert!(took > ttl / 2 && took < ttl * 4, "after {took:?}");
        assert!(!older.acquire(client, key, OTHER_TOKEN, ttl)?);
        tenure.release(lock)?;
        Ok(())
    })
}

#[test]
fn names_with_special_characters_meet_only_as_plain_keys() -> Outcome {
    let name = "order:{42}%";
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let raw = format!("lock:{name}");
        for (plain, key) in [(true, raw.as_str()), (false, "lock:order:%7B42%7D%25")] {
            let tenure = meeting(Seconds, "lock:", plain).tenure(&server)?;
            let lock = tenure.hold(name, MINUTE)?;
            assert_eq!(client.keys()?, [key], "{kind}");
            assert_eq!(Seconds.acquire(&mut client, &raw, TOKEN, MINUTE)?, !plain);
            tenure.release(lock)?;
            client.del(&raw)?;
        }
    }
    Ok(())
}
