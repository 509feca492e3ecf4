//! What cannot work is refused before any command, by an error that names the value and what is allowed.

use std::time::Duration;

use tenure_client::{Config, Error, LockOptions, Request, Wait, connect_with, memory_with};
use tenure_tests::{Answer, Failure, Handshake, ScriptedServer, Tenure};
use tenure_tokio::TokioBinding;
use tokio::runtime::{Builder, Runtime};

type Outcome = Result<(), Failure>;

const NAME: &str = "orders";
const LEASE: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A server that is not to be asked anything.
fn silent() -> Result<ScriptedServer, Failure> {
    Ok(ScriptedServer::start(Handshake::default(), |_| {
        Answer::stall()
    })?)
}

fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// The error says this, is no reason to try again, and shows no password.
#[track_caller]
fn says(error: &Error, what: &[&str]) {
    let text = error.to_string();
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(!error.is_retryable());
    for part in what {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert!(!format!("{text} {error:?}").contains("hunter2"), "{text}");
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Changes to a request, and what is said of them.
type Bad = (fn(Request) -> Request, &'static [&'static str]);

const OPTIONS: &[Bad] = &[
    (
        |it| it.lease(Duration::ZERO),
        &["a lease of 0ns", "from 20ms to 30d"],
    ),
    (
        |it| it.lease(Duration::from_micros(19_999)),
        &["19.999ms", "from 20ms to 30d"],
    ),
    (
        |it| it.lease(30 * DAY + millis(1)),
        &["2592000.001s", "from 20ms to 30d"],
    ),
    (|it| it.lease(Duration::MAX), &["from 20ms to 30d"]),
    (
        |it| it.margin(Duration::ZERO),
        &["a margin of 0ns", "from 1ms to less than the lease of 30s"],
    ),
    (
        |it| it.margin(LEASE),
        &["a margin of 30s", "less than the lease of 30s"],
    ),
    (
        |it| it.margin(Duration::MAX),
        &["less than the lease of 30s"],
    ),
    (
        |it| it.renew_every(Duration::ZERO),
        &["0 < renew_every (0ns)", "give_up_after (20s)"],
    ),
    (
        |it| it.renew_every(Duration::from_secs(20)),
        &["renew_every (20s) < give_up_after (20s)"],
    ),
    (
        |it| it.renew_every(Duration::MAX),
        &["< give_up_after (20s)"],
    ),
    (
        |it| it.give_up_after(Duration::from_secs(27)),
        &["give_up_after (27s) < lease - margin (27s)"],
    ),
    (
        |it| it.give_up_after(Duration::ZERO),
        &["renew_every (6s) < give_up_after (0ns)"],
    ),
    (
        |it| it.give_up_after(Duration::MAX),
        &["< lease - margin (27s)"],
    ),
    (
        |it| it.margin(Duration::from_secs(11)),
        &["give_up_after (20s) < lease - margin (19s)"],
    ),
    (
        |it| it.no_renew().margin(Duration::from_secs(15)),
        &["lease - margin (15s)"],
    ),
    (
        |it| it.reply_limit(Duration::ZERO),
        &["a reply limit of 0ns", "more than 0 and at most"],
    ),
    (
        |it| it.reply_limit(millis(4_667)),
        &["a reply limit of 4.667s", "at most 4.666666666s"],
    ),
    (
        |it| it.reply_limit(Duration::MAX),
        &["at most 4.666666666s"],
    ),
    (
        |it| it.max_hold(millis(29_999)),
        &["max_hold of 29.999s", "the lease of 30s"],
    ),
    (
        |it| it.max_hold(Duration::ZERO),
        &["max_hold of 0ns", "the lease of 30s"],
    ),
];

/// A client that is done with the handshake once it is ready: nothing follows it.
fn quiet(server: &ScriptedServer) -> Result<Tenure, Failure> {
    let tenure = Tenure::start(&server.url(), |config| {
        config.no_wake_ups().no_server_checks()
    })?;
    tenure.wait(tenure.locks().ready())??;
    Ok(tenure)
}

#[test]
fn options_that_cannot_work_are_refused_before_any_command() -> Outcome {
    let server = silent()?;
    let tenure = quiet(&server)?;
    let greeted = server.commands().len();
    for (change, what) in OPTIONS {
        let request = change(tenure.locks().lock(NAME).lease(LEASE));
        let tried = tenure.wait(request.clone().try_acquire())?;
        says(&tried.err().ok_or("accepted")?, what);
        let waited = tenure.wait(request.clone().acquire())?;
        says(&waited.err().ok_or("accepted")?, what);
        let ran = tenure.wait(request.run(async |_| unreachable!()))?;
        says(&ran.err().ok_or("accepted")?, what);
    }
    assert_eq!(server.commands().len(), greeted, "something was sent");
    assert_eq!(server.connections(), 1);
    Ok(())
}

#[test]
fn names_that_cannot_be_are_refused_before_any_command() -> Outcome {
    let server = silent()?;
    let tenure = quiet(&server)?;
    let greeted = server.commands().len();
    for length in [0, 1025, 1 << 20] {
        let name = vec![b'{'; length];
        let what = format!("a name of {length} bytes");
        let what = [what.as_str(), "from 1 to 1024 bytes"];
        let tried = tenure.wait(tenure.locks().try_acquire(&name))?;
        says(&tried.err().ok_or("accepted")?, &what);
        let waited = tenure.wait(tenure.locks().acquire(&name))?;
        says(&waited.err().ok_or("accepted")?, &what);
    }
    assert_eq!(server.commands().len(), greeted, "something was sent");
    // Every name that can be can: the longest, of bytes that are all escaped.
    let name = vec![b'%'; 1024];
    let waiting = tenure.spawn(tenure.locks().acquire(&name));
    assert!(server.wait_for(1, LEASE, |call| call.is("SET")
        && call.arg(1).len() == 5 + 3 * 1024));
    waiting.abort();
    Ok(())
}

/// A setting of this type.
type Setting<T> = fn(Config, T) -> Config;

#[test]
fn settings_that_cannot_work_are_refused_before_there_is_a_connection() -> Outcome {
    let server = silent()?;
    let runtime = runtime()?;
    let url = format!("redis://:hunter2@{}/", server.addr());
    let long = |length| "x".repeat(length);
    let bad: Vec<(Setting<String>, String, &[&str])> = vec![
        (
            Config::prefix,
            "a{b".into(),
            &["prefix (3 bytes)", "no brace", "at most 256 bytes"],
        ),
        (
            Config::prefix,
            "a}b".into(),
            &["prefix (3 bytes)", "no brace"],
        ),
        (
            Config::prefix,
            long(257),
            &["prefix (257 bytes)", "at most 256 bytes"],
        ),
        (
            Config::label,
            long(129),
            &["a label of 129 bytes", "at most 128 bytes"],
        ),
        (
            Config::label,
            "ü".repeat(22),
            &["a label of 132 bytes (escaped)", "at most 128 bytes"],
        ),
        (
            Config::client_name,
            String::new(),
            &["`` (0 bytes)", "1 to 128"],
        ),
        (
            Config::client_name,
            "two words".into(),
            &["`two%20words` (9 bytes)", "without blanks"],
        ),
        (
            Config::client_name,
            "\u{1b}[31m".into(),
            &["`%1B[31m`", "printable"],
        ),
        (Config::client_name, long(129), &["(129 bytes)", "1 to 128"]),
    ];
    for (change, value, what) in bad {
        let config = change(Config::from_url(&url)?, value);
        says(&runtime.block_on(refused(&config))?, what);
    }
    let limits: [(Setting<Duration>, &str); 3] = [
        (Config::connect_limit, "a connect limit of"),
        (Config::reply_limit, "a reply limit of"),
        (Config::reconnect_limit, "a reconnect limit of"),
    ];
    for (change, what) in limits {
        for (limit, shown) in [
            (Duration::ZERO, "0ns"),
            (Duration::from_micros(999), "999µs"),
            (millis(300_001), "300.001s"),
            (Duration::MAX, "18446744073709551615.999999999s"),
        ] {
            let config = change(Config::from_url(&url)?, limit);
            let error = runtime.block_on(refused(&config))?;
            says(&error, &[&format!("{what} {shown}"), "from 1ms to 300s"]);
        }
    }
    let defaults = LockOptions::new().lease(millis(19));
    let config = Config::from_url(&url)?.defaults_for_locks(defaults.clone());
    let error = runtime.block_on(refused(&config))?;
    says(&error, &["a lease of 19ms", "from 20ms"]);
    assert_eq!(server.connections(), 0);

    let in_memory = [
        Config::in_memory().defaults_for_locks(defaults),
        Config::in_memory().prefix("{"),
        Config::in_memory().label(long(129)),
    ];
    runtime.block_on(async {
        for config in in_memory {
            let refused = memory_with(TokioBinding::new(), &config);
            says(&refused.err().ok_or("accepted")?, &[]);
        }
        Ok(())
    })
}

async fn refused(config: &Config) -> Result<Error, Failure> {
    let begun = connect_with(TokioBinding::new(), config);
    let error = begun.err().ok_or("accepted")?;
    let connected = tenure_tokio::connect_config(config).await;
    assert_eq!(connected.err(), Some(error.clone()));
    Ok(error)
}

#[test]
fn urls_that_cannot_be_are_refused_before_there_is_a_connection() -> Outcome {
    let server = silent()?;
    let runtime = runtime()?;
    let at = server.addr();
    for (url, what) in [
        (String::new(), "has no scheme"),
        (format!("{at}"), "has no scheme"),
        ("hunter2".into(), "has no scheme"),
        (format!("http://:hunter2@{at}/"), "allowed are redis://"),
        (format!("hunter2@x://{at}/"), "allowed are redis://"),
        (
            format!("rediss+unix://:hunter2@{at}/"),
            "allowed are redis://",
        ),
        (format!("redis://:hunter2@{at}/?ca=/x"), "TLS"),
        ("redis://".into(), "names no host"),
        ("redis://:hunter2@".into(), "names no host"),
        ("redis://:hunter2@/1".into(), "names no host"),
        (format!("redis://hunter2@{at}/"), "without a password"),
        (format!("redis://:hunter2%@{at}/"), "%25"),
        (format!("redis://:hunter2%zz@{at}/"), "%25"),
        (format!("redis://:hunter2%ff@{at}/"), "not UTF-8"),
        (format!("redis://:hunter2#@{at}/"), "%23"),
        ("redis://:hunter2@127.0.0.1:0/".into(), "from 1 to 65535"),
        (
            "redis://:hunter2@127.0.0.1:65536/".into(),
            "from 1 to 65535",
        ),
        ("redis://:hunter2@127.0.0.1:x/".into(), "from 1 to 65535"),
        ("redis://:hunter2@::1/".into(), "in brackets"),
        ("redis://:hunter2@[::1/".into(), "closing bracket"),
        (format!("redis://:hunter2@{at}/x"), "from 0 to 999999999"),
        (format!("redis://:hunter2@{at}/-1"), "from 0 to 999999999"),
        (
            format!("redis://:hunter2@{at}/1000000000"),
            "from 0 to 999999999",
        ),
        (format!("redis://:hunter2@{at}/1?db=2"), "two databases"),
        (
            format!("redis://:hunter2@{at}/?hunter2=1"),
            "allowed are db",
        ),
        ("redis+unix://:hunter2@".into(), "no socket path"),
        ("redis+unix://run/socket".into(), "no host"),
    ] {
        let error = Config::from_url(&url)
            .err()
            .ok_or(format!("accepted {url}"))?;
        says(&error, &[what]);
        let connected = runtime.block_on(tenure_tokio::connect(&url));
        assert_eq!(connected.err(), Some(error));
    }
    assert_eq!(server.connections(), 0);
    Ok(())
}

#[test]
fn the_ends_of_what_is_allowed_are_allowed() -> Outcome {
    let runtime = runtime()?;
    runtime.block_on(async {
        let locks = tenure_tokio::memory();
        let longest = [
            locks.lock("a").lease(millis(20)),
            locks.lock("a").lease(30 * DAY).max_hold(30 * DAY),
            locks.lock("a").lease(LEASE).max_hold(Duration::MAX),
            locks.lock("a").lease(LEASE).margin(millis(1)),
            locks.lock("a").wait(Wait::For(Duration::MAX)),
            locks
                .lock("a")
                .lease(LEASE)
                .reply_limit(Duration::from_nanos(4_666_666_666)),
            locks.lock(vec![0; 1024]),
            locks.lock([0xff; 1]),
        ];
        for request in longest {
            let lock = request.acquire().await?;
            assert!(lock.is_held());
            lock.release().await?;
        }
        for config in [
            Config::in_memory().prefix("").label(""),
            Config::in_memory()
                .prefix("x".repeat(256))
                .label("x".repeat(128)),
        ] {
            let locks = tenure_tokio::memory_config(&config)?;
            locks.acquire("a").await?.release().await?;
        }
        Ok(())
    })
}
