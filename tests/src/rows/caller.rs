//! What the caller does: drop a future or a guard, end a runtime, sleep.

use std::future::Future as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_client::{Acquiring, Cause, Config, Error, Lock, Locks, connect_with};
use tenure_tokio::TokioBinding;
use tokio::runtime::{Builder, Runtime};

use crate::outcomes::{Context, Scenario};
use crate::tenure::{LONG, Recorder, Tenure, Told, Watch, key_of};
use crate::{Client, Failure, Proxy, Side, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    (
        "future-dropped-before-the-first-poll",
        before_the_first_poll,
    ),
    ("future-dropped-while-queued", while_queued),
    ("future-dropped-after-the-bytes-left", after_the_bytes_left),
    ("future-dropped-after-the-grant", after_the_grant),
    ("guard-dropped-at-the-end-of-main", at_the_end_of_main),
    ("guard-dropped-outside-a-runtime", outside_a_runtime),
    (
        "guard-dropped-after-the-runtime-ended",
        after_the_runtime_ended,
    ),
    ("guard-dropped-while-panicking", while_panicking),
    ("runtime-ended-under-living-locks", under_living_locks),
    ("process-slept-past-the-lease", slept_past_the_lease),
];

const NAME: &str = "orders";
const MINUTE: Duration = Duration::from_secs(60);
/// A round trip, on a machine that has much else to do.
const SOON: Duration = Duration::from_secs(5);
/// How often what depends on a race is done.
const TIMES: usize = 20;

/// Polls a future once, as an executor would that then forgets it.
fn poll(future: &mut Pin<Box<Acquiring>>) -> Poll<Result<Lock, Error>> {
    future.as_mut().poll(&mut Task::from_waker(Waker::noop()))
}

fn asked(tenure: &Tenure) -> Pin<Box<Acquiring>> {
    Box::pin(tenure.locks().lock(NAME).lease(MINUTE).acquire())
}

/// The key goes, long before its TTL.
fn goes(client: &mut Client, key: &str) -> Result<(), Failure> {
    match eventually(SOON, || matches!(client.exists(key), Ok(false))) {
        true => Ok(()),
        false => Err(format!("the key is left, with {:?} to live", client.pttl(key)?).into()),
    }
}

fn before_the_first_poll(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut watch = Watch::start(server)?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let connected = |told: &Told| matches!(told, Told::Connected);
    tenure.told().wait_for(1, LONG, connected)?;
    drop(asked(&tenure));
    drop(tenure.locks().try_acquire(NAME));
    assert_eq!(watch.names(&key_of(NAME))?, [""; 0]);
    let mut told = tenure.told().all();
    told.retain(|told| !matches!(told, Told::Risk(_)));
    assert_eq!(told, [Told::Connected]);

    // Nor does a client connect for it.
    let proxy = Proxy::start(server.addr())?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let config = Config::from_url(&proxy.url())?;
    let (locks, _driver) = connect_with(TokioBinding::new(), &config)?;
    drop(entered);
    drop(locks.acquire(NAME));
    assert_eq!(proxy.counts().connections, 0);
    Ok(())
}

fn while_queued(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut watch = Watch::start(server)?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let tenure = Tenure::connect(&server.url(), "me")?;
    let lock = tenure.hold(NAME, MINUTE)?;
    let value = client.get(&key)?;
    watch.forget()?;
    let (mut second, mut third) = (asked(&tenure), asked(&tenure));
    assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());
    drop(second);
    let cancelled = |told: &Told| matches!(told, Told::Cancelled(name) if name == NAME);
    tenure.told().wait_for(1, LONG, cancelled)?;
    assert_eq!(watch.names(&key)?, [""; 0]);
    assert_eq!(client.get(&key)?, value);
    assert!(lock.is_held());

    tenure.release(lock)?;
    let lock = tenure.wait(third)??;
    // The release, and one acquire: nothing for the one that left.
    let mut names = watch.names(&key)?;
    names.retain(|name| name == "SET");
    assert_eq!(names, ["SET"]);
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn after_the_bytes_left(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let proxy = Proxy::start(server.addr())?;
    let tenure = Tenure::connect(&proxy.url(), "me")?;
    for _ in 0..TIMES {
        proxy.hold(Side::ToClient);
        let mut future = asked(&tenure);
        assert!(poll(&mut future).is_pending());
        assert!(eventually(SOON, || client.exists(&key).unwrap_or(false)));
        drop(future);
        proxy.release(Side::ToClient);
        goes(&mut client, &key)?;
    }
    let told = tenure.told();
    assert_eq!(told.count(|told| matches!(told, Told::Acquired(_))), 0);
    assert_eq!(told.count(|told| matches!(told, Told::Cancelled(_))), TIMES);
    // And when it was dropped before the server had it.
    proxy.hold(Side::ToServer);
    let sent = proxy.counts().to_server.frames;
    let mut future = asked(&tenure);
    assert!(poll(&mut future).is_pending());
    assert!(proxy.wait_for(SOON, |counts| counts.to_server.frames > sent));
    drop(future);
    proxy.release(Side::ToServer);
    // The next one finds the name free, and its own key is not taken for that of the other.
    let lock = tenure.hold(NAME, MINUTE)?;
    assert!(lock.is_held() && client.exists(&key)?);
    tenure.release(lock)?;
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn after_the_grant(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let tenure = Tenure::connect(&server.url(), "me")?;
    let mut unseen = 0;
    for times in 1.. {
        let mut future = asked(&tenure);
        let polled = poll(&mut future);
        let acquired = |told: &Told| matches!(told, Told::Acquired(_));
        tenure.told().wait_for(times, SOON, acquired)?;
        assert!(client.exists(&key)?);
        // On a busy machine the answer may be there before the first poll ends: that is not meant here.
        unseen += usize::from(polled.is_pending());
        drop((polled, future));
        goes(&mut client, &key)?;
        if unseen == TIMES {
            break;
        }
    }
    assert_eq!(client.keys()?, [""; 0]);
    Ok(())
}

fn at_the_end_of_main(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    for times in 0..TIMES {
        let how = ["end", "end-of-threads"][times % 2];
        let mut program = Program::start(how, &server.url())?;
        program.says("held")?;
        assert!(client.exists(&key)?);
        program.tell("go")?;
        assert!(program.ended()?.success());
        goes(&mut client, &key)?;
    }
    // It does not wait for an answer either.
    let proxy = Proxy::start(server.addr())?;
    let mut program = Program::start("end", &proxy.url())?;
    program.says("held")?;
    proxy.hold(Side::ToClient);
    program.tell("go")?;
    assert!(program.ended()?.success());
    goes(&mut client, &key)
}

fn while_panicking(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    for times in 0..TIMES {
        let how = ["panic", "panic-of-threads", "panic-in-a-task"][times % 3];
        let mut program = Program::start(how, &server.url())?;
        program.says("held")?;
        assert!(client.exists(&key)?);
        program.tell("it")?;
        let status = program.ended()?;
        assert_eq!(status.code(), Some(101), "{how}: {status}");
        let says = program.complaints()?;
        assert!(says.contains("as it said"), "{how}: {says}");
        assert_eq!(says.matches("panicked").count(), 1, "{how}: {says}");
        goes(&mut client, &key)?;
    }
    // And in a process that lives on.
    let tenure = Tenure::connect(&server.url(), "me")?;
    for times in 0..TIMES {
        let lock = tenure.hold(NAME, MINUTE)?;
        let panic = std::panic::catch_unwind(AssertUnwindSafe(move || {
            let _lock = lock;
            std::panic::resume_unwind(Box::new(times));
        }));
        let panic = panic.err().ok_or("no panic")?;
        assert_eq!(panic.downcast_ref(), Some(&times));
        goes(&mut client, &key)?;
    }
    Ok(())
}

fn outside_a_runtime(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let tenure = Tenure::connect(&server.url(), "me")?;
    for _ in 0..TIMES {
        let lock = tenure.hold(NAME, MINUTE)?;
        assert!(client.exists(&key)?);
        let dropped = thread::spawn(move || {
            assert!(tokio::runtime::Handle::try_current().is_err());
            drop(lock);
        });
        assert!(dropped.join().is_ok(), "it panicked");
        goes(&mut client, &key)?;
    }
    Ok(())
}

/// A runtime of either kind, and a lock that is held on it.
fn on_a_runtime(times: usize, url: &str) -> Result<(Runtime, Locks, Lock), Failure> {
    let mut builder = match times % 2 {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(1).enable_all().build()?;
    let (locks, lock) = runtime.block_on(async {
        let locks = tenure_tokio::connect(url).await?;
        let lock = locks.lock(NAME).lease(MINUTE).acquire().await?;
        Ok::<_, Error>((locks, lock))
    })?;
    Ok((runtime, locks, lock))
}

fn after_the_runtime_ended(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    for times in 0..TIMES {
        let (runtime, locks, lock) = on_a_runtime(times, &server.url())?;
        assert!(lock.is_held() && client.exists(&key)?);
        drop(runtime);
        // Its work may go on for all anybody knows: it is told, and the key stays.
        assert!(!lock.is_held());
        assert!(matches!(lock.check(), Err(Error::Lost(lost)) if lost.cause == Cause::Closed));
        assert!(client.exists(&key)?);
        let began = Instant::now();
        if times % 4 < 2 {
            drop(lock);
            drop(locks);
        } else {
            drop(locks);
            drop(lock);
        }
        assert!(began.elapsed() < SOON);
        goes(&mut client, &key)?;
    }
    for times in 0..TIMES {
        let how = ["after-runtime", "after-runtime-of-threads"][times % 2];
        let mut program = Program::start(how, &server.url())?;
        program.says("held")?;
        program.tell("go")?;
        assert!(program.ended()?.success());
        goes(&mut client, &key)?;
    }
    // A socket that takes nothing: the TTL ends it, and nobody waits for that.
    let (runtime, locks, lock) = on_a_runtime(0, &server.url())?;
    client.ok(&["CLIENT", "KILL", "TYPE", "NORMAL"])?;
    let mut client = server.client()?;
    drop(runtime);
    drop(lock);
    drop(locks);
    assert!(client.pttl(&key)? > Some(MINUTE / 2));
    Ok(())
}

fn under_living_locks(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut watch = Watch::start(server)?;
    let mut client = server.client()?;
    for times in 0..TIMES {
        let (runtime, locks, lock) = on_a_runtime(times, &server.url())?;
        let mut waiting = Box::pin(locks.acquire(NAME));
        assert!(poll(&mut waiting).is_pending());
        let lost = pin!(lock.lost());
        drop(runtime);
        let mut task = Task::from_waker(Waker::noop());
        assert!(matches!(
            poll(&mut waiting),
            Poll::Ready(Err(Error::Closed))
        ));
        assert!(matches!(lost.poll(&mut task), Poll::Ready(lost) if lost.cause == Cause::Closed));
        watch.forget()?;
        let tried = pin!(locks.try_acquire("another")).poll(&mut task);
        assert!(
            matches!(tried, Poll::Ready(Err(Error::Closed))),
            "{tried:?}"
        );
        let mut waited = Box::pin(locks.acquire("another"));
        assert!(matches!(poll(&mut waited), Poll::Ready(Err(Error::Closed))));
        let closed = pin!(locks.close()).poll(&mut task);
        assert!(closed.is_ready());
        assert_eq!(watch.names("lock:another")?, [""; 0]);
        let released = pin!(lock.release()).poll(&mut task);
        assert!(
            matches!(released, Poll::Ready(Err(Error::Lost(lost))) if lost.cause == Cause::Closed)
        );
        goes(&mut client, &key_of(NAME))?;
    }
    Ok(())
}

fn slept_past_the_lease(context: &mut Context) -> Result<(), Failure> {
    stopped(context)?;
    blocked(context)?;
    suspended(context)
}

/// A process that is stopped; its key expires, and somebody else takes it.
fn stopped(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let mut watch = Watch::start(server)?;
    for taken in [false, true] {
        let mut program = Program::start("sleep", &server.url())?;
        program.says("held")?;
        program.says("renewed")?;
        program.signal(Signal::STOP)?;
        assert!(eventually(LONG, || matches!(
            client.exists(&key),
            Ok(false)
        )));
        if taken {
            client.set(&key, "another's", Some(MINUTE))?;
        }
        // Long enough after give-up, at two thirds of the lease, for the lateness to show.
        thread::sleep(Duration::from_millis(100));
        watch.forget()?;
        program.tell("look")?;
        program.signal(Signal::CONT)?;
        let mut said = [program.hears()?, program.hears()?];
        said.sort();
        let [lost, no] = &said[..] else {
            unreachable!()
        };
        assert_eq!(no, "no");
        let late_by: u64 = lost.strip_prefix("lost ").ok_or(lost.as_str())?.parse()?;
        assert!(late_by >= 100, "late by {late_by} ms");
        // The guard lives: its work may, too.
        program.tell("look")?;
        program.says("no")?;
        watch.silent(&key, Duration::from_millis(600))?;
        program.tell("end")?;
        assert!(program.ended()?.success());
        // Told once, and neither renewed nor told anything else.
        assert_eq!(program.rest()?, "");
        let left = client.get(&key)?;
        assert_eq!(left.as_deref(), taken.then_some(&b"another's"[..]));
        client.del(&key)?;
    }
    Ok(())
}

/// A runtime whose only thread sleeps; the rest of the process sees it at once.
fn blocked(context: &mut Context) -> Result<(), Failure> {
    let lease = Duration::from_millis(500);
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let mut watch = Watch::start(server)?;
    let tenure = Tenure::connect(&server.url(), "me")?;
    let lock = tenure.hold(NAME, lease)?;
    let held = lock.held();
    let (wake, asleep) = std::sync::mpsc::channel::<()>();
    let sleeping = tenure.spawn(async move { asleep.recv() });
    assert!(eventually(LONG, || !held.is_held()), "for ever held");
    assert_eq!(held.remaining(), Duration::ZERO);
    let told = |told: &Told| told.ends_hold();
    assert_eq!(tenure.told().count(told), 0);
    assert!(eventually(LONG, || matches!(
        client.exists(&key),
        Ok(false)
    )));
    client.set(&key, "another's", Some(MINUTE))?;
    watch.forget()?;
    let renewals = tenure.told().renewals();
    wake.send(())?;
    let lost = tenure.lost(&held, LONG)?;
    assert!(
        matches!(lost.cause, Cause::Expired { late_by } if late_by >= lease / 10),
        "{lost:?}"
    );
    watch.silent(&key, lease)?;
    tenure.wait(sleeping)??.ok();
    assert!(matches!(tenure.wait(lock.release())?, Err(Error::Lost(again)) if again == lost));
    assert_eq!(tenure.told().count(told), 1);
    assert_eq!(tenure.told().renewals(), renewals);
    assert_eq!(client.get(&key)?.as_deref(), Some(&b"another's"[..]));
    client.del(&key)?;
    Ok(())
}

/// A machine that is suspended while the server is not: the key may still be there.
fn suspended(context: &mut Context) -> Result<(), Failure> {
    let server = context.server()?;
    let mut client = server.client()?;
    let key = key_of(NAME);
    let mut watch = Watch::start(server)?;
    let told = Arc::new(Recorder::default());
    let config = Config::from_url(&server.url())?.observe(Arc::<Recorder>::clone(&told));
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let slept = Arc::new(AtomicU64::new(0));
    let binding = TokioBinding::with_suspended({
        let slept = Arc::clone(&slept);
        move || Duration::from_secs(slept.load(Ordering::Relaxed))
    });
    let entered = runtime.enter();
    let (locks, driver) = connect_with(binding, &config)?;
    drop(entered);
    runtime.spawn(driver);
    let lock = runtime.block_on(locks.lock(NAME).lease(MINUTE).acquire())?;
    let value = client.get(&key)?;
    watch.forget()?;
    slept.fetch_add(3600, Ordering::Relaxed);
    assert!(!lock.is_held());
    assert!(matches!(lock.check(), Err(Error::Lost(_))));
    let lost = |told: &Told| matches!(told, Told::Lost(..));
    // The driver looks at the clock every second while it holds.
    told.wait_for(1, Duration::from_secs(3), lost)?;
    let why = runtime.block_on(lock.lost());
    let late = Duration::from_secs(3600) - MINUTE * 2 / 3;
    assert!(
        matches!(why.cause, Cause::Expired { late_by } if late_by >= late),
        "{why:?}"
    );
    // Not before the guard is gone; then it deletes what is its own.
    watch.silent(&key, Duration::from_millis(300))?;
    assert_eq!(client.get(&key)?, value);
    drop(lock);
    goes(&mut client, &key)?;
    assert_eq!(told.count(Told::ends_hold), 1);
    assert_eq!(told.renewals(), 0);
    Ok(())
}

/// A run of the program beside this file. It is killed on drop.
#[derive(Debug)]
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(how: &str, url: &str) -> Result<Self, Failure> {
        // Beside the folder of the test that runs.
        let test = std::env::current_exe()?;
        let folder = test.ancestors().nth(2).ok_or("a test without a folder")?;
        let path = folder.join(format!("tenure-child{}", std::env::consts::EXE_SUFFIX));
        let mut child = Command::new(&path)
            .args([how, url, NAME])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_remove("RUST_BACKTRACE")
            .spawn()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let piped = || io::Error::other("it is piped");
        let output = child.stdout.take().ok_or_else(piped)?;
        Ok(Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        })
    }

    /// Its next line.
    fn hears(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Waits for it to say this, whatever it says before.
    fn says(&mut self, what: &str) -> Result<(), Failure> {
        loop {
            match self.hears()? {
                line if line == what => return Ok(()),
                line if line.is_empty() => {
                    return Err(format!("it ended: {}", self.complaints()?).into());
                }
                _ => {}
            }
        }
    }

    fn tell(&mut self, what: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("it was told all")?;
        Ok(writeln!(input, "{what}")?)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.ok_or("no such process")?, signal)?)
    }

    /// How it ended; it has no reason to take long.
    fn ended(&mut self) -> Result<ExitStatus, Failure> {
        let mut status = None;
        eventually(SOON, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        status.ok_or_else(|| "it does not end".into())
    }

    /// What it has said and was not heard yet, once it has ended.
    fn rest(&mut self) -> Result<String, Failure> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        Ok(text)
    }

    /// What it said on its standard error, once it has ended.
    fn complaints(&mut self) -> Result<String, Failure> {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut text)?;
        }
        Ok(text)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
