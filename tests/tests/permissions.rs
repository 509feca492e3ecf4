//! The table of `docs/permissions.md`, on every server: with these rights everything works, and each is needed.

use std::path::Path;
use std::time::Duration;

use tenure_client::Wait;
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
