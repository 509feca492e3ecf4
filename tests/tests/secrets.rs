//! No output shows the secret of a value or a password: neither what an observer is told, nor an error, nor the debug
//! form of anything public.
//!
//! Everything that can be shown is collected over whole lives, on servers that work and on those that repeat what they were
//! told; then it is searched for what only the server should know.

use std::error::Error as _;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_client::hold::Hold;
use tenure_client::{
    Attempt, Config, Driver, Error, Event, LockOptions, Locks, Observer, Reason, Wait, connect_with,
};
use tenure_core::config::LeaseConfig;
use tenure_core::conn::ConnConfig;
use tenure_core::leases::{Leases, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::resp::Value;
use tenure_core::time::Tick;
use tenure_tests::fake::Stranger;
use tenure_tests::{
    Answer, Authority, Call, Client, Cut, Failure, Handshake, Hello, Model, Proxy, ScriptedServer,
    Server, ServerKind, Side, eventually,
};
use tenure_tokio::TokioBinding;
use tokio::runtime::{Builder, Runtime};

type Outcome = Result<(), Failure>;

const NAME: &str = "orders";
const KEY: &str = "lock:orders";
const PASSWORD: &str = "hunter2/h%s:e@cret";
const IN_A_URL: &str = "hunter2%2Fh%25s%3Ae%40cret";
const MINUTE: Duration = Duration::from_secs(60);
/// It is renewed, but for once.
const LEASE: Duration = Duration::from_secs(2);
const SHORT: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(5);

/// Everything that was shown.
#[derive(Default)]
struct Shown(Mutex<String>);

impl Shown {
    fn debug(&self, what: &dyn Debug) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(text, "{what:?} {what:#?}").expect("a string takes all");
    }

    fn error(&self, error: &Error) {
        self.debug(error);
        self.debug(&error.to_string());
        if let Some(source) = error.source() {
            self.debug(&source.to_string());
            self.debug(&source);
        }
        match error {
            Error::Lost(lost) => {
                self.debug(&lost.to_string());
            }
            Error::TimedOut { holder } => {
                self.debug(&holder.to_string());
            }
            Error::Unavailable(reason)
            | Error::Denied(reason)
            | Error::Misconfigured(reason)
            | Error::Protocol(reason) => {
                self.debug(reason);
                self.debug(&reason.to_string());
                if let Reason::Failure {
                    text: Some(text), ..
                } = reason
                {
                    self.debug(text);
                }
            }
            _ => {}
        }
    }

    fn text(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Observer for Shown {
    fn event(&self, event: &Event<'_>) {
        self.debug(event);
        match event {
            Event::Failed { error, .. } | Event::RenewalFailed { error, .. } => self.error(error),
            Event::Lost { lost, .. } => self.debug(&lost.to_string()),
            Event::Held { holder, .. } => self.debug(&holder.to_string()),
            Event::ConnectFailed { text, .. } => self.debug(text),
            _ => {}
        }
    }
}

/// A client that shows all it can.
struct Life {
    shown: Arc<Shown>,
    runtime: Runtime,
    locks: Locks,
}

impl Life {
    fn begin(url: &str, shown: &Arc<Shown>) -> Result<Life, Failure> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let config = Config::from_url(url)?
            .label("me")
            .defaults_for_locks(LockOptions::new().lease(LEASE))
            .observe(Arc::<Shown>::clone(shown));
        shown.debug(&config);
        shown.debug(&config.endpoint());
        let entered = runtime.enter();
        let binding = TokioBinding::new();
        shown.debug(&binding);
        let (locks, driver): (Locks, Driver) = connect_with(binding, &config)?;
        shown.debug(&driver);
        shown.debug(&locks);
        shown.debug(&locks.ready());
        drop(entered);
        runtime.spawn(driver);
        if let Err(error) = runtime.block_on(locks.ready()) {
            shown.error(&error);
        }
        Ok(Life {
            shown: Arc::clone(shown),
            runtime,
            locks,
        })
    }

    fn attempt(&self, wait: Duration) -> Option<tenure_client::Lock> {
        let request = self.locks.lock(NAME).wait(Wait::For(wait));
        self.shown.debug(&request);
        let (trying, acquiring) = (request.clone().try_acquire(), request.acquire());
        self.shown.debug(&trying);
        self.shown.debug(&acquiring);
        match self.runtime.block_on(trying) {
            Ok(attempt) => {
                self.shown.debug(&attempt);
                if let Some(holder) = attempt.holder() {
                    self.shown.debug(&holder.to_string());
                }
                if let Attempt::Acquired(lock) = attempt {
                    self.show_lock(&lock);
                    return Some(lock);
                }
            }
            Err(error) => self.shown.error(&error),
        }
        match self.runtime.block_on(acquiring) {
            Ok(lock) => {
                self.show_lock(&lock);
                Some(lock)
            }
            Err(error) => {
                self.shown.error(&error);
                None
            }
        }
    }

    fn show_lock(&self, lock: &tenure_client::Lock) {
        self.shown.debug(lock);
        self.shown.debug(&lock.held());
        self.shown.debug(&lock.lost());
        if let Err(error) = lock.check() {
            self.shown.error(&error);
        }
        match self.runtime.block_on(lock.renew_now()) {
            Ok(()) => {}
            Err(error) => self.shown.error(&error),
        }
    }

    fn release(&self, lock: tenure_client::Lock) {
        let release = lock.release();
        self.shown.debug(&release);
        match self.runtime.block_on(release) {
            Ok(released) => self.shown.debug(&released),
            Err(error) => self.shown.error(&error),
        }
    }

    fn close(&self) {
        let closing = self.locks.close();
        self.shown.debug(&closing);
        self.runtime.block_on(closing);
        self.attempt(SHORT);
    }
}

/// The secrets of the values that were seen on the server: what stands between the last two dots.
#[derive(Default)]
struct Secrets(Vec<String>);

impl Secrets {
    fn read(&mut self, client: &mut Client) -> Outcome {
        if let Some(value) = client.get(KEY)? {
            self.add(&value)?;
        }
        Ok(())
    }

    fn add(&mut self, value: &[u8]) -> Outcome {
        let text = String::from_utf8(value.to_vec())?;
        let mut parts = text.rsplit('.');
        let secret = parts.nth(1).ok_or("a value without a secret")?;
        assert_eq!(secret.len(), 32, "{text}");
        self.0.push(secret.to_owned());
        Ok(())
    }

    /// No eight digits of any of them were shown, and nothing of the password.
    fn are_in(&self, shown: &Shown, least: usize) {
        let text = shown.text();
        let mut found: Vec<&String> = self.0.iter().collect();
        found.dedup();
        assert!(
            found.len() >= least,
            "only {} secrets were seen",
            found.len()
        );
        for secret in found {
            for at in 0..=secret.len() - 8 {
                let part = &secret[at..at + 8];
                assert!(
                    !text.contains(part),
                    "{part} was shown: {}",
                    around(&text, part)
                );
            }
        }
        for part in [PASSWORD, IN_A_URL, "hunter2", "cret"] {
            assert!(
                !text.contains(part),
                "{part} was shown: {}",
                around(&text, part)
            );
        }
        // The search would have found something: labels and names are shown.
        assert!(text.contains(NAME) && text.contains("me"));
    }
}

fn around<'a>(text: &'a str, part: &str) -> &'a str {
    text.lines()
        .find(|line| line.contains(part))
        .unwrap_or_default()
}

fn with_password(server: &Server, address: &str) -> Result<String, Failure> {
    let password = format!(">{PASSWORD}");
    let mut client = server.client()?;
    client.ok(&[
        "ACL", "SETUSER", "app", "reset", "on", &password, "~lock:*", "+@all",
    ])?;
    Ok(format!("redis://app:{IN_A_URL}@{address}/"))
}

/// Every end that a request and a hold can have on a server that works.
fn a_whole_life(server: &Server, secrets: &mut Secrets, shown: &Arc<Shown>) -> Outcome {
    let proxy = Proxy::start(server.addr())?;
    let mut client = server.client()?;
    let me = Life::begin(&with_password(server, &proxy.addr().to_string())?, shown)?;
    let other = Life::begin(&with_password(server, &server.addr().to_string())?, shown)?;

    // Held, by this process and by another; released.
    let lock = me.attempt(SHORT).ok_or("not acquired")?;
    secrets.read(&mut client)?;
    let value = client.get(KEY)?.ok_or("there is no key")?;
    assert!(me.attempt(SHORT / 10).is_none() && other.attempt(SHORT / 10).is_none());
    me.release(lock);
    // Replaced by a value of ours, abandoned, deleted, dropped, cancelled.
    for end in 0..4 {
        let lock = me.attempt(SHORT).ok_or("not acquired")?;
        secrets.read(&mut client)?;
        match end {
            0 => client
                .ok(&[&b"SET"[..], KEY.as_bytes(), &value])
                .map(drop)?,
            1 => drop(client.del(KEY)?),
            _ => {}
        }
        me.show_lock(&lock);
        match end {
            2 => lock.abandon(),
            3 => drop(lock),
            _ => me.release(lock),
        }
        client.del(KEY)?;
    }
    // Another type, and a right that is missing.
    client.ok(&["RPUSH", KEY, "x"])?;
    assert!(me.attempt(SHORT / 10).is_none());
    client.del(KEY)?;
    client.ok(&["ACL", "SETUSER", "app", "-set"])?;
    assert!(me.attempt(SHORT / 10).is_none());
    client.ok(&["ACL", "SETUSER", "app", "+set"])?;
    // A reply that is lost, and a take-over.
    proxy.hold(Side::ToClient);
    let waiting = me.runtime.spawn(me.locks.acquire(NAME));
    if !eventually(SOON, || client.exists(KEY).unwrap_or(false)) {
        return Err("nothing was acquired".into());
    }
    secrets.read(&mut client)?;
    proxy.cut(Cut::Reset);
    proxy.release(Side::ToClient);
    let lock = me.runtime.block_on(waiting)??;
    me.show_lock(&lock);
    // The server is gone, and so is the lock.
    proxy.refuse(true);
    proxy.cut(Cut::Reset);
    me.show_lock(&lock);
    assert!(me.attempt(SHORT / 10).is_none());
    drop(lock);
    proxy.refuse(false);
    let gone = eventually(SOON, || !client.exists(KEY).unwrap_or(true));
    assert!(gone, "the key is left");
    me.close();
    other.close();
    Ok(())
}

#[test]
#[should_panic(expected = "was shown")]
fn the_search_finds_what_was_shown() {
    let (shown, mut secrets) = (Shown::default(), Secrets::default());
    let value = format!("tn1:p:1:me.{}.1", "0123456789abcdef".repeat(2));
    secrets.add(value.as_bytes()).expect("a value");
    shown.debug(&format!("{NAME} me 6789abcd"));
    secrets.are_in(&shown, 1);
}

#[test]
fn a_whole_life_shows_no_secret() -> Outcome {
    for kind in ServerKind::all_required() {
        let (shown, mut secrets) = (Arc::new(Shown::default()), Secrets::default());
        let server = Server::start(kind, &[])?;
        a_whole_life(&server, &mut secrets, &shown)?;
        secrets.are_in(&shown, 6);
    }
    Ok(())
}

/// Neither what goes through it, nor the key of a certificate.
#[test]
fn tls_shows_no_secret() -> Outcome {
    let (authority, stranger) = (Authority::new()?, Authority::named("a stranger")?);
    let mine = authority.client()?;
    for kind in ServerKind::all_required() {
        let pair = authority.server(&["127.0.0.1"])?;
        let server = Server::setup(kind).tls(&pair, &authority, "yes").start()?;
        let (cert, key) = mine.write(server.dir(), "mine")?;
        let ca = authority.write(server.dir(), "own.pem")?;
        let other_ca = stranger.write(server.dir(), "other.pem")?;
        let url = with_password(&server, &server.addr().to_string())?;
        let url = url.replacen("redis:", "rediss:", 1);
        let (ca, other_ca) = (format!("?ca={}", ca.display()), other_ca.display());
        let mine_too = format!("&cert={}&key={}", cert.display(), key.display());
        let (shown, mut secrets) = (Arc::<Shown>::default(), Secrets::default());
        let me = Life::begin(&format!("{url}{ca}{mine_too}"), &shown)?;
        let lock = me.attempt(SHORT).ok_or("not acquired")?;
        secrets.read(&mut server.client()?)?;
        me.release(lock);
        me.close();
        // No certificate, another authority, a parameter that is none, another password.
        Life::begin(&format!("{url}{ca}"), &shown)?;
        Life::begin(&format!("{url}?ca={other_ca}{mine_too}"), &shown)?;
        if let Err(error) = Config::from_url(&format!("{url}{ca}&{IN_A_URL}=1")) {
            shown.error(&error);
        }
        server
            .client()?
            .ok(&["ACL", "SETUSER", "app", "resetpass", ">x"])?;
        Life::begin(&format!("{url}{ca}{mine_too}"), &shown)?;
        secrets.are_in(&shown, 1);
        let text = shown.text();
        assert!(text.contains("wants a client certificate"), "{text}");
        assert!(text.contains("not signed by an authority"), "{text}");
        let body = mine.key.lines().nth(1).ok_or("the key has no body")?;
        assert!(!text.contains(&body[..16]));
    }
    Ok(())
}

#[test]
fn a_wrong_password_is_not_shown() -> Outcome {
    for kind in ServerKind::all_required() {
        // Servers that do not know HELLO or AUTH repeat what they were told.
        for renamed in [
            &[][..],
            &["--rename-command", "HELLO", ""],
            &[
                "--rename-command",
                "HELLO",
                "",
                "--rename-command",
                "AUTH",
                "",
            ],
        ] {
            let shown = Arc::new(Shown::default());
            let server = Server::start(kind, renamed)?;
            let url = with_password(&server, &server.addr().to_string())?;
            server
                .client()?
                .ok(&["ACL", "SETUSER", "app", "resetpass", ">another"])?;
            let life = Life::begin(&url, &shown)?;
            assert!(life.attempt(SHORT / 10).is_none());
            life.close();
            Secrets::default().are_in(&shown, 0);
        }
    }
    Ok(())
}

/// As servers do that do not know a command, and as none should.
fn echoes(call: &Call, quote: &str, how: usize) -> Answer {
    let words: Vec<String> = (0..call.args.len()).map(|at| call.arg(at)).collect();
    let rest: Vec<String> = words[1..]
        .iter()
        .map(|it| format!("{quote}{it}{quote}"))
        .collect();
    Answer::error(&match how {
        0 => format!(
            "ERR unknown command {quote}{}{quote}, with args beginning with: {}",
            words[0],
            rest.join(", ")
        ),
        1 => format!(
            "ERR unknown command {quote}{}{quote}, with args beginning with: {} ",
            words[0],
            rest.join(" ")
        ),
        // Not in the words of any server that is known, but a value is known by its form.
        2 => format!("ERR what is {}?", words.join(" ")),
        _ => format!("OOM no room for {}", rest.join(" ")),
    })
}

#[test]
fn a_server_that_repeats_what_it_was_told_shows_no_secret() -> Outcome {
    for how in 0..4 {
        for quote in ["'", "`", "\""] {
            for refuses_at_once in [true, false] {
                let shown = Arc::new(Shown::default());
                let handshake = Handshake {
                    hello: Hello::Unknown,
                    ..Handshake::with_password("app", PASSWORD)
                };
                let mut model = Model::new(ServerKind::Redis86);
                let server = ScriptedServer::start(handshake, move |call| {
                    // The acquire itself, or everything that comes after it.
                    let acquire = call.is("SET") && call.has("NX");
                    if acquire == refuses_at_once {
                        return echoes(call, quote, how);
                    }
                    model.answer(call)
                })?;
                let url = format!("redis://app:{IN_A_URL}@{}/", server.addr());
                let life = Life::begin(&url, &shown)?;
                let lock = life.attempt(SHORT / 10);
                assert_eq!(lock.is_none(), refuses_at_once, "{}", shown.text());
                drop(lock);
                let mut secrets = Secrets::default();
                for call in server.commands().iter().filter(|call| call.is("SET")) {
                    secrets.add(&call.args[2])?;
                }
                secrets.are_in(&shown, 1);
                // Say that the error was shown at all.
                assert!(!refuses_at_once || how == 3 || shown.text().contains("ERR "));
            }
        }
    }
    Ok(())
}

#[test]
fn strangers_are_told_of_without_a_secret() -> Outcome {
    for stranger in [Stranger::Http, Stranger::Tls] {
        let shown = Arc::new(Shown::default());
        let server = ScriptedServer::stranger(stranger)?;
        let life = Life::begin(&format!("redis://:{IN_A_URL}@{}/", server.addr()), &shown)?;
        assert!(life.attempt(SHORT / 10).is_none());
        Secrets::default().are_in(&shown, 0);
    }
    let error = Config::from_url(&format!("redis://app:{IN_A_URL}@h:0/")).err();
    let shown = Shown::default();
    shown.error(&error.ok_or("accepted")?);
    assert!(!shown.text().contains("hunter2"));
    Ok(())
}

#[test]
fn the_machines_show_no_secret() -> Outcome {
    let secret = [0xa7; 16];
    let hex = "a7".repeat(16);
    let shown = Shown::default();
    let now = Tick::from_micros(0);
    let mut config = MuxConfig::new(Names::new("lock:", "me")?);
    config.conn = ConnConfig {
        user: Some("app".into()),
        password: Some(PASSWORD.into()),
        ..ConnConfig::default()
    };
    shown.debug(&config);
    shown.debug(&config.conn);
    let request = Request {
        name: NAME.as_bytes(),
        terms: LeaseConfig::new(MINUTE).build()?,
        wait: Wait::Forever,
        secret,
        options: Options::default(),
        since_ms: 0,
    };
    shown.debug(&request);

    let mut leases = Leases::new(config.names.clone(), 1);
    let id = leases.acquire(now, &request)?;
    shown.debug(&leases.value(id, 1));
    while let Some(op) = leases.poll_op(now) {
        shown.debug(&op);
    }
    shown.debug(&leases);

    let mut mux = Mux::new(config, 1);
    mux.acquire(now, &request)?;
    let mut sent = Vec::new();
    // The bytes lie in the machine; a transport takes a part of them, then the rest.
    for half in [true, false, true, false, true, false] {
        loop {
            match mux.poll_output(now) {
                Output::Connect => mux.handle_connected(now),
                Output::Transmit(bytes) => {
                    let taken = if half { bytes.len() / 2 } else { bytes.len() };
                    sent.extend_from_slice(&bytes[..taken]);
                    mux.transmitted(now, taken);
                    break;
                }
                Output::Idle(_) => break,
                other => shown.debug(&other),
            }
        }
        shown.debug(&mux);
        // A greeting, then the reply to the acquire, which shows a value: the bytes lie in the machine as well.
        let reply = match half {
            true => Vec::new(),
            false if !mux.is_up() => b"%1\r\n+proto\r\n:3\r\n".to_vec(),
            false => format!("$45\r\ntn1:p:0:me.{hex}.9").into_bytes(),
        };
        mux.recv_space()[..reply.len()].copy_from_slice(&reply);
        mux.received(now, reply.len());
        shown.debug(&mux);
    }
    let sent = String::from_utf8(sent)?;
    assert!(sent.contains(PASSWORD) && sent.contains(&hex), "{sent:?}");
    shown.debug(&Hold::new(NAME.as_bytes().into(), now));
    // Its bytes may show up as numbers, too.
    let text = shown.text();
    for part in [
        "a7a7a7a7",
        "A7A7",
        "167, 167",
        "167,\n",
        "hunter2",
        "104, 117, 110",
    ] {
        assert!(
            !text.contains(part),
            "{part} was shown: {}",
            around(&text, part)
        );
    }
    let error = format!("ERR no {PASSWORD} {hex}");
    for reply in [
        Value::Bulk(hex.as_bytes()),
        Value::Error(error.as_bytes()),
        Value::BulkError(error.as_bytes()),
    ] {
        let text = format!("{reply:?} {reply:#?}");
        assert!(!text.contains(PASSWORD) && !text.contains(&hex), "{text}");
    }
    Ok(())
}
