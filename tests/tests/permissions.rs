//! The table of `docs/permissions.md`, on every server: with these rights everything works, and each is needed.

use std::path::Path;
use std::time::Duration;

use tenure_client::{Error, Wait};
use tenure_tests::{
    Cut, Failure, Proxy, Server, ServerKind, Side, Tenure, Told, eventually, key_of,
};

type Outcome = Result<(), Failure>;

const NAME: &str = "orders";
const KEYS: &str = "~lock:*";
const SOON: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// The row of the table for a server, and its commands.
const fn row(kind: ServerKind) -> (&'static str, &'static [&'static str]) {
    match kind {
        ServerKind::Redis86 => ("Redis 8.4 and newer", &["set", "delex"]),
        ServerKind::Valkey91 => ("Valkey 9.0 and newer", &["set", "delifeq"]),
        ServerKind::Valkey81 => ("Valkey 8.1", &["set", "eval", "evalsha", "get", "del"]),
        ServerKind::Redis70 => (
            "older, from Redis 6.2 on",
            &["set", "eval", "evalsha", "get", "pexpire", "del"],
        ),
    }
}

/// A server, and a user on it with these rights and no others.
fn with_user(kind: ServerKind, rights: &[String]) -> Result<(Server, Proxy, String), Failure> {
    let server = Server::start(kind, &[])?;
    let proxy = Proxy::start(server.addr())?;
    let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", ">p"];
    words.extend(rights.iter().map(String::as_str));
    server.client()?.ok(&words)?;
    let url = format!("redis://app:p@{}/", proxy.addr());
    Ok((server, proxy, url))
}

fn rights(commands: &[&str]) -> Vec<String> {
    let commands = commands.iter().map(|command| format!("+{command}"));
    [KEYS.to_owned()].into_iter().chain(commands).collect()
}

/// Everything that locks do. Fails of what the user may not.
fn life(server: &Server, proxy: &Proxy, url: &str, lease: Duration) -> Result<Tenure, Failure> {
    let mut client = server.client()?;
    let key = key_of(NAME);
    let tenure = Tenure::connect(url, "me")?;
    let other = Tenure::connect(url, "the other")?;
    let lock = tenure.hold(NAME, lease)?;
    let attempt = other.wait(other.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted a second time")?;
    assert_eq!(holder.label.as_deref(), Some("me"));
    // Twice: a script goes in full the first time, and by its SHA after that.
    tenure.wait(lock.renew_now())??;
    tenure.wait(lock.renew_now())??;
    let waiting = other.spawn(other.locks().lock(NAME).lease(lease).acquire());
    tenure.release(lock)?;
    let lock = other.wait(waiting)???;
    other.release(lock)?;
    let lock = other.hold(NAME, lease)?;
    other.release(lock)?;

    // The reply to an acquire is lost with its connection: its key is taken over.
    proxy.hold(Side::ToClient);
    let waiting = tenure.spawn(
        tenure
            .locks()
            .lock(NAME)
            .lease(MINUTE)
            .wait(Wait::For(SOON))
            .acquire(),
    );
    if !eventually(SOON, || client.exists(&key).unwrap_or(false)) {
        return Err("nothing was acquired".into());
    }
    proxy.cut(Cut::Reset);
    proxy.release(Side::ToClient);
    let lock = tenure.wait(waiting)???;
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(tenure)
}

#[test]
fn these_rights_are_enough_and_each_is_needed() -> Outcome {
    let checks: Vec<_> = ServerKind::all_required()
        .into_iter()
        .map(|kind| {
            std::thread::spawn(move || {
                enough_and_needed(kind).map_err(|why| format!("{kind}: {why}"))
            })
        })
        .collect();
    for check in checks {
        check.join().map_err(|_| "a check panicked")??;
    }
    Ok(())
}

fn enough_and_needed(kind: ServerKind) -> Outcome {
    let (_, commands) = row(kind);
    let (server, proxy, url) = with_user(kind, &rights(commands))?;
    let tenure = life(&server, &proxy, &url, MINUTE)?;
    let complains = |told: &Told| matches!(told, Told::Failed(..) | Told::RenewalFailed(..));
    assert_eq!(tenure.told().count(complains), 0);
    for left_out in commands {
        let some: Vec<&str> = commands
            .iter()
            .copied()
            .filter(|it| it != left_out)
            .collect();
        let (server, proxy, url) = with_user(kind, &rights(&some))?;
        if life(&server, &proxy, &url, Duration::from_millis(500)).is_ok() {
            return Err(format!("all of it works without {left_out}").into());
        }
    }
    Ok(())
}

#[test]
fn what_more_is_of_use() -> Outcome {
    for kind in ServerKind::all_required() {
        let (_, commands) = row(kind);
        for (more, known) in [(&[][..], false), (&["pttl"], true)] {
            let commands = [commands, more].concat();
            let (_server, _proxy, url) = with_user(kind, &rights(&commands))?;
            let tenure = Tenure::connect(&url, "me")?;
            let other = Tenure::connect(&url, "the other")?;
            let _lock = tenure.hold(NAME, MINUTE)?;
            let attempt = other.wait(other.locks().try_acquire(NAME))??;
            let holder = attempt.holder().ok_or("granted a second time")?;
            assert_eq!(holder.remaining.is_some(), known, "{kind}");
        }
        for (more, works) in [
            (&[][..], kind == ServerKind::Redis70),
            (&["eval", "evalsha", "get", "pexpire"], true),
        ] {
            let commands = [commands, more].concat();
            let (server, _proxy, url) = with_user(kind, &rights(&commands))?;
            let tenure = Tenure::connect(&url, "me")?;
            let lock = tenure.hold(NAME, MINUTE)?;
            server.client()?.config_set("maxmemory", "1")?;
            let renewed = tenure.wait(lock.renew_now())?;
            assert_eq!(renewed.is_ok(), works, "{kind}: {renewed:?}");
        }
        for (more, works) in [(&[][..], false), (&["select"], true)] {
            let commands = [commands, more].concat();
            let (_server, _proxy, url) = with_user(kind, &rights(&commands))?;
            let connected = Tenure::connect(&format!("{url}3"), "me");
            assert_eq!(connected.is_ok(), works, "{kind}");
        }
    }
    Ok(())
}

#[test]
fn the_page_has_this_table() -> Outcome {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/permissions.md");
    let page = std::fs::read_to_string(page)?;
    for kind in ServerKind::ALL {
        let (server, commands) = row(kind);
        let commands: Vec<String> = commands.iter().map(|it| format!("+{it}")).collect();
        let line = format!("| {server} | `{KEYS}` | `{}` |", commands.join(" "));
        assert!(page.contains(&line), "no line {line}");
    }
    Ok(())
}

/// What one thing more needs, beside what locks do.
struct Extra {
    /// As the page has it.
    what: &'static str,
    commands: &'static [&'static str],
    /// Does it, for a user of these rights alone.
    works: fn(&Server, &str) -> Result<bool, Failure>,
}

const EXTRAS: [Extra; 9] = [
    Extra {
        what: "`inspect`",
        commands: &["getrange", "pttl"],
        works: |server, url| {
            server.client()?.set(&key_of(NAME), "x", None)?;
            let tenure = Tenure::connect(url, "me")?;
            let found = tenure.wait(tenure.locks().inspect(NAME))?;
            Ok(allowed(found)?.is_some_and(|found| found.is_some()))
        },
    },
    Extra {
        what: "fences",
        commands: &["eval", "evalsha", "get", "time", "set"],
        works: |server, url| {
            let tenure = Tenure::connect(url, "me")?;
            let mut client = server.client()?;
            // Twice: in full the first time, and by its SHA after that.
            for _ in 0..2 {
                let request = tenure.locks().lock(NAME).lease(MINUTE).fenced();
                match tenure.wait(request.try_acquire())? {
                    Ok(attempt) => drop(attempt),
                    Err(Error::Denied(_) | Error::Misconfigured(_)) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
                client.del(&key_of(NAME))?;
            }
            Ok(true)
        },
    },
    Extra {
        what: "`fair`",
        commands: &[
            "eval",
            "evalsha",
            "get",
            "set",
            "del",
            "time",
            "pttl",
            "zrange",
            "zrangebyscore",
            "zscore",
            "zadd",
            "zrem",
            "pexpireat",
        ],
        works: |server, url| {
            let (other, me) = (Tenure::connect(&server.url(), "other")?, hasty(url)?);
            // Twice: in full the first time, and by its SHA after that.
            for _ in 0..2 {
                let held =
                    other.wait(other.locks().lock(NAME).lease(MINUTE).fair().acquire())??;
                let waiting = me.spawn(me.locks().lock(NAME).lease(MINUTE).fair().acquire());
                let mut client = server.client()?;
                // It waits, or it was refused.
                let queue = format!("lock:{{{}}}:queue", key_of(NAME));
                eventually(SOON, || {
                    waiting.is_finished() || client.exists(&queue).is_ok_and(|waits| waits)
                });
                other.release(held)?;
                let lock = match me.wait(waiting)?? {
                    Ok(lock) => lock,
                    Err(Error::Denied(_) | Error::Misconfigured(_)) => return Ok(false),
                    Err(error) => return Err(error.into()),
                };
                if !me
                    .wait(lock.release())?
                    .is_ok_and(|released| released.confirmed)
                {
                    return Ok(false);
                }
            }
            Ok(true)
        },
    },
    Extra {
        what: "a shortest hold, `.at_least(..)`",
        commands: &["eval", "evalsha", "get", "set"],
        works: |server, url| {
            let tenure = hasty(url)?;
            let mut client = server.client()?;
            for _ in 0..2 {
                let request = tenure.locks().lock(NAME).lease(MINUTE).at_least(MINUTE);
                let Some(lock) = allowed(tenure.wait(request.acquire())?)? else {
                    return Ok(false);
                };
                let released = tenure.wait(lock.release())?;
                if !released.is_ok_and(|released| released.confirmed) {
                    return Ok(false);
                }
                client.del(&key_of(NAME))?;
            }
            Ok(true)
        },
    },
    Extra {
        what: "`list`",
        commands: &["scan", "getrange", "pttl"],
        works: |server, url| {
            server.client()?.set(&key_of(NAME), "x", None)?;
            let tenure = Tenure::connect(url, "me")?;
            let listed = tenure.wait(tenure.locks().list(""))?;
            Ok(allowed(listed)?.is_some_and(|listed| listed.names.len() == 1))
        },
    },
    Extra {
        what: "`force_release`",
        commands: &["eval", "evalsha", "get", "pttl", "del", "set"],
        works: |server, url| {
            let holder = Tenure::connect(&server.url(), "holder")?;
            let tenure = Tenure::connect(url, "me")?;
            // Twice: in full the first time, and by its SHA after that.
            for _ in 0..2 {
                let lock = holder.hold(NAME, MINUTE)?;
                let removed = tenure.wait(tenure.locks().force_release(NAME))?;
                if allowed(removed)?.is_none() {
                    return Ok(false);
                }
                let lost = holder.lost(&lock, SOON)?;
                if lost.by.as_deref() != Some("me") {
                    return Ok(false);
                }
            }
            Ok(true)
        },
    },
    Extra {
        what: "`examine`",
        commands: &["info", "time"],
        works: |_, url| {
            let tenure = Tenure::connect(url, "me")?;
            let examination = tenure.wait(tenure.locks().examine())??;
            let told = !examination.facts.is_empty() && examination.clock.is_some();
            assert_eq!(told, examination.refused.is_empty());
            Ok(told)
        },
    },
    Extra {
        what: "risks, and `Config::strict_server`",
        commands: &["info"],
        works: |server, url| {
            server
                .client()?
                .config_set("maxmemory-policy", "noeviction")?;
            let tenure = Tenure::start(url, |config| config.strict_server())?;
            Ok(allowed(tenure.wait(tenure.locks().ready())?).is_ok_and(|ready| ready.is_some()))
        },
    },
    Extra {
        what: "wake-ups",
        commands: &["client|tracking", "get", "pttl"],
        works: |server, url| {
            let tenure = Tenure::start(url, |config| config.poll_limit(Duration::MAX))?;
            let other = Tenure::connect(&server.url(), "other")?;
            let lock = other.hold(NAME, MINUTE * 5)?;
            let watched = |told: &Told| matches!(told, Told::Unwatched(_));
            let waiting = tenure.spawn(tenure.locks().lock(NAME).wait(SOON).acquire());
            let mut client = server.client()?;
            let asked = || client.calls("set").is_ok_and(|calls| calls >= 2);
            if !eventually(SOON, asked) {
                return Err("nobody asks".into());
            }
            other.release(lock)?;
            drop(tenure.wait(waiting)???);
            Ok(tenure.told().count(watched) == 0)
        },
    },
];

/// What was answered, or nothing where it is not permitted.
/// A client that does not wait long for a release that is refused.
fn hasty(url: &str) -> Result<Tenure, Failure> {
    Tenure::start(url, |config| {
        config.label("me").reply_limit(Duration::from_millis(500))
    })
}

fn allowed<T>(answer: Result<T, Error>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Denied(_) | Error::Misconfigured(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The commands that the user of an extra has: for wake-ups those of locks as well.
fn has(kind: ServerKind, extra: &Extra, commands: &[&'static str]) -> Vec<String> {
    let (_, locks) = row(kind);
    let locks = match extra.what {
        "wake-ups" => locks,
        _ => &[],
    };
    let without = |it: &&&str| !extra.commands.contains(*it);
    let locks: Vec<&str> = locks.iter().filter(without).copied().collect();
    rights(&[&locks, commands].concat())
}

#[test]
fn what_an_operator_needs_is_enough_and_each_is_needed() -> Outcome {
    for kind in ServerKind::all_required() {
        for extra in &EXTRAS {
            let failed = |why| format!("{kind}, {}: {why}", extra.what);
            let (server, _proxy, url) = with_user(kind, &has(kind, extra, extra.commands))?;
            if !(extra.works)(&server, &url).map_err(failed)? {
                return Err(format!("{kind}, {}: not enough", extra.what).into());
            }
            for left_out in extra.commands {
                let some = extra.commands.iter().copied();
                let some: Vec<&str> = some.filter(|it| it != left_out).collect();
                let (server, _proxy, url) = with_user(kind, &has(kind, extra, &some))?;
                if (extra.works)(&server, &url).map_err(failed)? {
                    let what = extra.what;
                    return Err(format!("{kind}, {what}: works without {left_out}").into());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_page_has_what_an_operator_needs() -> Outcome {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/permissions.md");
    let page = std::fs::read_to_string(page)?;
    for Extra { what, commands, .. } in &EXTRAS {
        let commands: Vec<String> = commands.iter().map(|it| format!("+{it}")).collect();
        let commands = commands.join(" ").replace('|', "\\|");
        let line = format!("| {what} | `{commands}` |");
        assert!(page.contains(&line), "no line {line}");
    }
    Ok(())
}
