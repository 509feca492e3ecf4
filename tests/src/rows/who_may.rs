//! The server wants to know who asks, and lets not everybody do everything.

use std::time::{Duration, Instant};

use tenure_client::{Cause, Error, Failure as Why, LinkFault, Lock, Reason, ServerError, Wait};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Tenure, Told, key_of};
use crate::{Failure, Proxy, Server, ServerKind, Side, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("wrong-password", wrong_password),
    ("no-password", no_password),
    ("no-permission-on-the-key", on_the_key),
    ("no-permission-on-a-command", on_a_command),
    ("no-permission-to-read", to_read),
    ("hello-not-known", hello_not_known),
];

const NAME: &str = "orders";
const MINUTE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "hunter2-hunter2";

/// The URL of a user who may do this.
fn user(server: &Server, rights: &[&str]) -> Result<String, Failure> {
    let password = format!(">{PASSWORD}");
    let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", &password];
    words.extend(rights);
    server.client()?.ok(&words)?;
    Ok(format!("redis://app:{PASSWORD}@{}/", server.addr()))
}

/// A try and a long wait end with this at once; the error that the wait got.
fn is_denied(tenure: &Tenure, why: Why, word: &str) -> Result<Error, Failure> {
    let began = Instant::now();
    let tried = tenure.wait(tenure.locks().try_acquire(NAME))?.err();
    let waited = tenure.wait(tenure.locks().lock(NAME).wait(Wait::For(LONG)).acquire())?;
    let waited = waited.err().ok_or("granted all the same")?;
    assert!(began.elapsed() < LONG / 4, "it waited");
    for error in [tried.as_ref().ok_or("granted all the same")?, &waited] {
        let Error::Denied(Reason::Failure { failure, text }) = error else {
            return Err(format!("it got {error:?}").into());
        };
        assert_eq!(*failure, why);
        let text = text.as_deref().unwrap_or_default();
        assert_eq!(text.split(' ').next(), Some(word), "{error}");
        assert!(!error.is_retryable());
        hides_the_password(error);
    }
    let told = tenure.told().all();
    assert!(!format!("{told:?} {tenure:?}").contains(PASSWORD));
    Ok(waited)
}

#[track_caller]
fn hides_the_password(error: &Error) {
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
}

fn denied_at_connect(server: &Server, url: &str, why: ServerError) -> Result<Tenure, Failure> {
    // A program that connects is told.
    let tenure = Tenure::start(url, |config| config)?;
    let error = tenure.wait(tenure.locks().ready())?.err();
    let error = error.ok_or("connected all the same")?;
    assert!(matches!(&error, Error::Denied(_)), "{error:?}");
    hides_the_password(&error);
    let word = match why {
        ServerError::NoAuth => "NOAUTH",
        _ => "WRONGPASS",
    };
    let told = is_denied(&tenure, Why::Link(LinkFault::Handshake(why)), word)?;
    if why == ServerError::NoAuth {
        assert!(told.to_string().contains("wants a password"), "{told}");
    }
    let mut client = server.client()?;
    if why == ServerError::NoAuth {
        client.ok(&["AUTH", PASSWORD])?;
    }
    assert_eq!(client.keys()?, [""; 0]);
    Ok(tenure)
}

/// The client goes on trying: once somebody has set it right, it works.
fn works(tenure: &Tenure) -> Result<(), Failure> {
    let up = |told: &Told| matches!(told, Told::Connected);
    tenure.told().wait_for(1, LONG, up)?;
    let lock = tenure.hold(NAME, MINUTE)?;
    tenure.release(lock)
}

fn wrong_password(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let url = user(server, &["~*", "+@all"])?;
    server
        .client()?
        .ok(&["ACL", "SETUSER", "app", "resetpass", ">another"])?;
    let tenure = denied_at_connect(server, &url, ServerError::WrongPass)?;
    user(server, &["~*", "+@all"])?;
    works(&tenure)
}

fn no_password(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut admin = server.client()?;
    admin.config_set("requirepass", PASSWORD)?;
    let tenure = denied_at_connect(server, &server.url(), ServerError::NoAuth)?;
    admin.config_set("requirepass", "")?;
    works(&tenure)
}

fn on_the_key(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let url = user(server, &["~other:*", "+@all"])?;
    let tenure = Tenure::connect(&url, "me")?;
    is_denied(&tenure, Why::Server(ServerError::NoPerm), "NOPERM")?;
    assert_eq!(server.client()?.keys()?, [""; 0]);
    Ok(())
}

fn on_a_command(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let url = user(server, &["~lock:*", "+@all", "-set"])?;
    let tenure = Tenure::connect(&url, "me")?;
    let error = is_denied(&tenure, Why::Server(ServerError::NoPerm), "NOPERM")?;
    assert!(error.to_string().contains("'set'"), "{error}");
    assert_eq!(server.client()?.keys()?, [""; 0]);
    Ok(())
}

fn to_read(context: &mut Context) -> Result<(), Failure> {
    let kind = context.kind();
    let server = context.server()?;
    let key = key_of(NAME);
    let url = user(server, &["%W~lock:*", "+@all"])?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&url, "me")?;
    let other = Tenure::connect(&url, "the other")?;

    let lock = tenure.hold(NAME, MINUTE)?;
    let value = client.get(&key)?;
    assert!(value.is_some());
    let attempt = other.wait(other.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted a second time")?;
    assert_eq!(holder.label, None);
    let wait = Wait::For(Duration::from_millis(100));
    let waited = other.wait(other.locks().lock(NAME).wait(wait).acquire())?;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    assert_eq!(client.get(&key)?, value);

    // Without a script a lock can be renewed and released unread; a script needs the right to read.
    let may_renew = kind != ServerKind::Redis70;
    let may_release = matches!(kind, ServerKind::Redis86 | ServerKind::Valkey91);
    client.ok(&["PEXPIRE", &key, "30000"])?;
    let renewed = tenure.wait(lock.renew_now())?;
    if may_renew {
        renewed?;
        assert!(client.pttl(&key)? > Some(MINUTE / 2), "not renewed");
    } else {
        assert!(matches!(renewed, Err(Error::Denied(_))), "{renewed:?}");
        assert!(lock.is_held());
    }
    if may_release {
        let waiting = other.spawn(other.locks().lock(NAME).lease(MINUTE).acquire());
        tenure.release(lock)?;
        let lock = other.wait(waiting)???;
        assert!(lock.is_held());
        other.release(lock)?;
        assert_eq!(client.keys()?, [""; 0]);
        return Ok(());
    }
    // Then the TTL ends what was not renewed or not released.
    drop(lock);
    let short = Duration::from_secs(1);
    assert!(client.del(&key)?);
    let lock = tenure.hold(NAME, short)?;
    if may_renew {
        drop(lock);
    } else {
        let lost = tenure.lost(&lock, LONG)?;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
    }
    let ended = eventually(short * 3, || matches!(client.exists(&key), Ok(false)));
    assert!(ended, "the key is left");
    Ok(())
}

fn hello_not_known(context: &mut Context) -> Result<(), Failure> {
    let server = context.server_with(&["--rename-command", "HELLO", ""])?;
    let url = user(server, &["~lock:*", "+@all"])?;
    let mut client = server.client()?;
    // Through a proxy, to see what the greeting comes to.
    let proxy = Proxy::start(server.addr())?;
    let url = url.replace(&server.addr().to_string(), &proxy.addr().to_string());
    let tenure = Tenure::connect(&url, "me")?;
    let other = Tenure::connect(&url, "the other")?;
    let resp = client.ok(&["CLIENT", "LIST", "TYPE", "NORMAL"])?.text();
    let ours: Vec<&str> = resp
        .lines()
        .filter(|line| line.contains("name=tenure"))
        .collect();
    assert_eq!(ours.len(), 2, "{resp}");
    assert!(
        ours.iter()
            .all(|line| line.contains("resp=2") && line.contains("user=app"))
    );

    let key = key_of(NAME);
    let lock = tenure.hold(NAME, MINUTE)?;
    assert!(client.exists(&key)?);
    let attempt = other.wait(other.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted a second time")?;
    assert_eq!(holder.label.as_deref(), Some("me"));
    let waiting = other.spawn(other.locks().lock(NAME).lease(MINUTE).acquire());
    client.ok(&["PEXPIRE", &key, "30000"])?;
    tenure.wait(lock.renew_now())??;
    assert!(client.pttl(&key)? > Some(MINUTE / 2), "not renewed");
    tenure.release(lock)?;
    let lock: Lock = other.wait(waiting)???;
    assert!(lock.is_held() && client.exists(&key)?);
    // An adoption works here, too: the reply to an acquire is lost.
    other.release(lock)?;
    proxy.hold(Side::ToClient);
    let sent = proxy.counts().to_server.frames;
    let waiting = tenure.spawn(tenure.locks().lock(NAME).lease(MINUTE).acquire());
    assert!(proxy.wait_for(LONG, |counts| counts.to_server.frames > sent));
    assert!(eventually(LONG, || client.exists(&key).unwrap_or(false)));
    proxy.cut(crate::Cut::Reset);
    proxy.release(Side::ToClient);
    let lock = tenure.wait(waiting)???;
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}
