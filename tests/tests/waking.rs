//! Waiters and holders that the server tells, on real servers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tenure_client::{Cause, Config, Locks};
use tenure_tests::{Client, Failure, Seen, Server, ServerKind, Tenure, Told, eventually, key_of};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

type Outcome = Result<(), Failure>;

/// Nothing takes this long, unless it never comes.
const LONG: Duration = Duration::from_secs(20);
/// No renewal is due, and nothing expires, before a test would have failed.
const LEASE: Duration = Duration::from_secs(300);

fn runtime() -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

/// A client that asks for nothing by itself: it is woken, or waits for ever.
fn told_only(url: &str) -> Result<Config, Failure> {
    Ok(Config::from_url(url)?.poll_limit(Duration::MAX))
}

/// Waits until somebody has sent more than so many SET.
fn asks(client: &mut Client, than: u64) -> Outcome {
    match eventually(LONG, || client.calls("set").is_ok_and(|calls| calls > than)) {
        true => Ok(()),
        false => Err("nobody asks".into()),
    }
}

async fn connect(url: &str) -> Result<Locks, Failure> {
    Ok(tenure_tokio::connect_config(&told_only(url)?).await?)
}

/// 5,000 times the lock goes from one client to the other and back, released at any moment of the other's asking.
#[test]
fn s9_of_5000_hand_overs_none_is_missed() -> Outcome {
    for kind in ServerKind::all_required() {
        let hand_overs = match kind {
            ServerKind::Redis86 | ServerKind::Valkey91 => 5_000,
            _ => 500,
        };
        let server = Server::start(kind, &[])?;
        runtime()?.block_on(async {
            let clients = [connect(&server.url()).await?, connect(&server.url()).await?];
            let mut held = clients[0].lock("a").lease(LEASE).acquire().await?;
            for turn in 1..=hand_overs {
                let asking = clients[turn % 2].lock("a").lease(LEASE).acquire();
                let asking = tokio::spawn(asking);
                // Now and then at once, else a little later, on either side of what a round trip takes.
                let pause = Duration::from_micros((turn * 7 % 50 * 8) as u64);
                let until = Instant::now() + pause;
                while Instant::now() < until {
                    tokio::task::yield_now().await;
                }
                assert!(held.release().await?.confirmed);
                let woken = timeout(LONG, asking).await;
                held = woken.map_err(|_| format!("{kind}: hand-over {turn} was missed"))???;
            }
            Ok::<_, Failure>(())
        })?;
        let sent = server
            .client()?
            .info_field("stats", "tracking_total_keys")?;
        assert!(sent.is_some());
    }
    Ok(())
}

/// The same for threads: nobody looks away while somebody waits to be woken.
#[test]
fn s9_of_500_hand_overs_between_threads_none_is_missed() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let config = told_only(&server.url())?;
        let clients = [
            tenure_blocking::connect_config(&config)?,
            tenure_blocking::connect_config(&config)?,
        ];
        thread::scope(|scope| {
            for locks in &clients {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let lock = locks.lock("a").lease(LEASE).wait(LONG).acquire().unwrap();
                        assert!(lock.release().unwrap().confirmed);
                    }
                });
            }
        });
    }
    Ok(())
}

/// Whatever frees the name.
#[test]
fn s9_whatever_frees_a_name_wakes() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let acts: [&[&str]; 5] = [
            &["DEL", "lock:a"],
            &["UNLINK", "lock:a"],
            &["PEXPIRE", "lock:a", "1"],
            &["FLUSHALL"],
            &["FLUSHDB", "ASYNC"],
        ];
        let tenure = Tenure::start(&server.url(), |config| config.poll_limit(Duration::MAX))?;
        for act in acts {
            client.set(&key_of("a"), "theirs", Some(LEASE))?;
            let asked = client.calls("set")?;
            let acquiring = tenure.spawn(tenure.locks().lock("a").lease(LEASE).acquire());
            asks(&mut client, asked)?;
            client.ok(act)?;
            let lock = tenure.wait(acquiring)???;
            tenure.release(lock)?;
        }
    }
    Ok(())
}

/// A connection that is lost while somebody waits, and the name freed before it is back, or after.
#[test]
fn s9_a_reconnect_loses_no_wake_up() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let tenure = Tenure::start(&server.url(), |config| config.poll_limit(Duration::MAX))?;
        for before in [true, false] {
            client.set(&key_of("a"), "theirs", Some(LEASE))?;
            let asked = client.calls("set")?;
            let acquiring = tenure.spawn(tenure.locks().lock("a").lease(LEASE).acquire());
            asks(&mut client, asked)?;
            let asked = client.calls("set")?;
            let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
            if before {
                // In one step: nobody reconnects in between.
                client.ok(&["MULTI"])?;
                client.ok(&kill)?;
                client.ok(&["DEL", "lock:a"])?;
                client.ok(&["EXEC"])?;
            } else {
                client.ok(&kill)?;
                asks(&mut client, asked)?;
                client.ok(&["DEL", "lock:a"])?;
            }
            let lock = tenure.wait(acquiring)???;
            tenure.release(lock)?;
        }
    }
    Ok(())
}

/// Long before any renewal, and by one look.
#[test]
fn a_hold_that_is_deleted_or_replaced_is_told_without_a_renewal() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        let tenure = Tenure::connect(&server.url(), "me")?;
        let acts: [(&[&str], Cause); 4] = [
            (&["DEL", "lock:a"], Cause::Gone),
            (&["SET", "lock:a", "theirs"], Cause::Replaced),
            (&["FLUSHALL"], Cause::Gone),
            (&["PEXPIRE", "lock:a", "1"], Cause::Gone),
        ];
        for (act, cause) in acts {
            let lock = tenure.hold("a", LEASE)?;
            let monitor = server.monitor()?;
            client.ok(act)?;
            let lost = tenure.lost(&lock.held(), LONG)?;
            assert_eq!(lost.cause, cause, "{act:?}");
            // The look, and the helper key that would say who forced it: one round trip. Told of a new TTL first, it may look
            // twice.
            let most = if act[0] == "PEXPIRE" { 4 } else { 2 };
            let is_get = |seen: &Seen| seen.name().eq_ignore_ascii_case("GET");
            assert!(monitor.wait_for(2, LONG, is_get));
            let sent = monitor.commands();
            let looks = sent.iter().filter(|seen| is_get(seen)).count();
            assert!(looks <= most, "{sent:?}");
            drop(lock);
            client.ok(&["DEL", "lock:a"])?;
        }
    }
    Ok(())
}

/// A user that may not ask to be told waits all the same, and whoever watches the client hears of it once.
#[test]
fn s9_who_may_not_be_told_asks_and_says_so_once() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        client.ok(&[
            "ACL",
            "SETUSER",
            "plain",
            "on",
            ">word",
            "~*",
            "+@all",
            "-client|tracking",
        ])?;
        let url = format!("redis://plain:word@127.0.0.1:{}/", server.port());
        let tenure = Tenure::connect(&url, "me")?;
        let recorder = tenure.told();
        client.set(&key_of("a"), "theirs", Some(LEASE))?;
        let asked = client.calls("set")?;
        let acquiring = tenure.spawn(tenure.locks().lock("a").lease(LEASE).acquire());
        // It asks again and again.
        asks(&mut client, asked + 3)?;
        client.ok(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])?;
        let asked = client.calls("set")?;
        asks(&mut client, asked + 3)?;
        client.del(&key_of("a"))?;
        let lock = tenure.wait(acquiring)???;
        tenure.release(lock)?;
        let unwatched = recorder.count(|told| matches!(told, Told::Unwatched(_)));
        assert_eq!(unwatched, 1, "{:?}", recorder.all());
    }
    Ok(())
}

/// 500 waiters in 5 processes, while the name is held for 10 s and renewed meanwhile: next to no commands, no time of the
/// processor, and then each has its turn.
#[test]
fn s9_500_waiters_of_5_processes_ask_for_next_to_nothing() -> Outcome {
    const HELD: Duration = Duration::from_secs(10);
    let kind = ServerKind::all_required()[0];
    let server = Server::start(kind, &[])?;
    let mut client = server.client()?;
    let tenure = Tenure::connect(&server.url(), "holder")?;
    let lock = tenure.hold("a", Duration::from_secs(30))?;
    let mut waiters = Vec::new();
    for _ in 0..5 {
        let mut waiter = Waiter::start(&server.url())?;
        assert_eq!(waiter.hear()?, "connected");
        waiters.push(waiter);
    }
    let count = |client: &mut Client| -> Result<u64, Failure> {
        let processed = client.info_field("stats", "total_commands_processed")?;
        Ok(processed.ok_or("no count")?.parse()?)
    };
    let spent = |waiters: &[Waiter]| waiters.iter().map(Waiter::processor_time).sum::<Duration>();
    let (commands, time) = (count(&mut client)?, spent(&waiters));
    waiters.iter_mut().try_for_each(Waiter::go)?;
    // This is not for anybody to get ready: it is how long the name is held.
    thread::sleep(HELD);
    let sent = count(&mut client)? - commands;
    let busy = spent(&waiters).saturating_sub(time);
    println!("{kind}: {sent} commands in {HELD:?}, {busy:?} of the processor in all five");
    assert!(lock.is_held() && tenure.told().renewals() > 0);
    // The renewals of the holder, and this question, among them.
    assert!(sent <= 100, "{sent} commands");
    assert!(sent >= 10, "nobody waited");
    // Starting 500 tasks included.
    assert!(busy < HELD / 10, "{busy:?}");
    tenure.release(lock)?;
    for waiter in &mut waiters {
        assert_eq!(waiter.hear()?, "done");
    }
    Ok(())
}

/// A process with a hundred waiters.
struct Waiter {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Waiter {
    fn start(url: &str) -> Result<Waiter, Failure> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tenure-child"))
            .args(["queue", url, "a"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().ok_or("no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("no output")?);
        Ok(Waiter {
            process,
            input,
            output,
        })
    }

    fn go(&mut self) -> Outcome {
        Ok(writeln!(self.input, "go")?)
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// What it has had of the processor.
    fn processor_time(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let stat = std::fs::read_to_string(path).expect("Linux tells");
        let nanos = stat.split(' ').next().and_then(|field| field.parse().ok());
        Duration::from_nanos(nanos.expect("a number"))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
