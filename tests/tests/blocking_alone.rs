//! What needs a process for itself: threads and files are counted, and the process is forked.
//!
//! One test after the other, on the main thread: a process that was forked off has only the thread that forked.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid};
use libtest_mimic::{Arguments, Failed, Trial};
use tenure_blocking::{Cause, Error, Lock, Locks};
use tenure_tests::{Authority, Failure, Monitor, Server, ServerKind, eventually, key_of};

type Outcome = Result<(), Failure>;
type Test = fn() -> Outcome;

const LONG: Duration = Duration::from_secs(20);
const DRIVER: &str = "tenure-driver";
/// How this program is started again, to end with a lock in hand.
const END_OF_MAIN: &str = "end-of-main";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, url] = &words[..]
        && word == END_OF_MAIN
    {
        let locks = tenure_blocking::connect(url).expect("it connects");
        let _lock = locks.acquire("a").expect("it is free");
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 6] = [
        ("callers_read_by_themselves", callers_read_by_themselves),
        ("the_driver_reads_for_two", the_driver_reads_for_two),
        ("nothing_is_left", nothing_is_left),
        (
            "a_lock_is_released_at_the_end_of_main",
            a_lock_is_released_at_the_end_of_main,
        ),
        ("a_forked_process_has_nothing", a_forked_process_has_nothing),
        (
            "a_forked_process_has_nothing_over_tls",
            a_forked_process_has_nothing_over_tls,
        ),
    ];
    let trials = tests.map(|(name, test)| {
        Trial::test(name, move || {
            test().map_err(|why| Failed::from(why.to_string()))
        })
        // Threads are counted in a place that Linux has.
        .with_ignored_flag(!cfg!(target_os = "linux"))
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn some_server() -> Result<Server, Failure> {
    let kinds = ServerKind::all_required();
    Server::start(*kinds.first().ok_or("no server")?, &[])
}

/// How often each thread of ours gave the processor up by itself, by name.
fn switches(of: &str) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        // A thread may end while its folder is looked at.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        let fields: BTreeMap<&str, &str> = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(field, value)| (field, value.trim()))
            .collect();
        if fields.get("Name") == Some(&of) {
            let count = fields.get("voluntary_ctxt_switches").copied();
            found.push(count.and_then(|it| it.parse().ok()).unwrap_or(0));
        }
    }
    Ok(found)
}

fn driver_switches() -> Result<u64, Failure> {
    match switches(DRIVER)?[..] {
        [count] => Ok(count),
        ref other => Err(format!("{} drivers", other.len()).into()),
    }
}

fn files() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

fn pairs(locks: &Locks, count: usize) -> Outcome {
    for _ in 0..count {
        assert!(locks.acquire("a")?.release()?.confirmed);
    }
    Ok(())
}

/// The driver wakes a few times a second, however many pairs there are.
fn callers_read_by_themselves() -> Outcome {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let locks = tenure_blocking::connect(&server.url())?;
        pairs(&locks, 50)?;
        let (before, began) = (driver_switches()?, Instant::now());
        pairs(&locks, 3_000)?;
        let (woken, took) = (driver_switches()? - before, began.elapsed());
        let slices = u64::try_from(took.as_millis() / 50)?;
        // On a busy machine a few now and then; a driver that reads is woken some 6,000 times.
        assert!(woken <= 300 + 2 * slices, "{woken} times in {took:?}");
        locks.close();
        drop(locks);
        assert!(eventually(LONG, || switches(DRIVER).is_ok_and(|it| it.is_empty())));
    }
    Ok(())
}

/// As soon as more than one request is in flight most of the time, the driver is there to read.
fn the_driver_reads_for_two() -> Outcome {
    let server = some_server()?;
    let locks = tenure_blocking::connect(&server.url())?;
    let before = driver_switches()?;
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let locks = locks.clone();
            scope.spawn(move || {
                for _ in 0..500 {
                    locks.acquire(name).unwrap().release().unwrap();
                }
            });
        }
    });
    let woken = driver_switches()? - before;
    assert!(woken >= 100, "{woken} times");
    // And alone again the last one reads by itself.
    pairs(&locks, 50)?;
    let (before, began) = (driver_switches()?, Instant::now());
    pairs(&locks, 1_000)?;
    let slices = u64::try_from(began.elapsed().as_millis() / 50)?;
    let woken = driver_switches()? - before;
    // On a busy machine a few now and then; a driver that reads is woken some 2,000 times.
    assert!(woken <= 300 + 2 * slices, "{woken} times");
    Ok(())
}

/// Neither a thread nor a file, on the server neither a key nor a connection: after a close, and after the last handle.
fn nothing_is_left() -> Outcome {
    let server = some_server()?;
    let mut client = server.client()?;
    // Whatever is made once and kept is there by now.
    drop(tenure_blocking::connect(&server.url())?);
    assert!(eventually(LONG, || switches(DRIVER).is_ok_and(|it| it.is_empty())));
    let before = files()?;
    let ends: [fn(&Locks, Lock); 4] = [
        |locks, lock| {
            drop(lock);
            locks.close();
        },
        |_, lock| assert!(lock.release().unwrap().confirmed),
        |_, lock| drop(lock),
        |_, lock| {
            lock.on_lost(|_| unreachable!("it is not lost"));
            drop(lock);
        },
    ];
    for end in ends {
        let locks = tenure_blocking::connect(&server.url())?;
        pairs(&locks, 20)?;
        end(&locks, locks.acquire("b")?);
        drop(locks);
        assert!(eventually(LONG, || switches(DRIVER).is_ok_and(|it| it.is_empty())));
        assert!(eventually(LONG, || files().is_ok_and(|count| count == before)));
        assert!(eventually(LONG, || client
            .keys()
            .is_ok_and(|keys| keys.is_empty())));
        let mut connections = || client.ok(&["CLIENT", "LIST"]).map(|list| list.text());
        assert!(eventually(LONG, || connections()
            .is_ok_and(|list| !list.contains("name=tenure"))));
    }
    // One that never reached a server, and one in memory.
    let config = tenure_blocking::Config::from_url("redis://no-such-host.invalid/")?;
    drop(tenure_blocking::connect_lazily(&config)?);
    drop(tenure_blocking::memory());
    assert!(eventually(LONG, || switches(DRIVER).is_ok_and(|it| it.is_empty())));
    assert!(eventually(LONG, || switches("tenure-resolve")
        .is_ok_and(|it| it.is_empty())));
    assert!(eventually(LONG, || files().is_ok_and(|count| count == before)));
    Ok(())
}

fn a_lock_is_released_at_the_end_of_main() -> Outcome {
    let server = some_server()?;
    let status = Command::new(std::env::current_exe()?)
        .args([END_OF_MAIN, &server.url()])
        .status()?;
    assert!(status.success());
    let mut client = server.client()?;
    assert!(eventually(Duration::from_secs(2), || client
        .keys()
        .is_ok_and(|keys| keys.is_empty())));
    Ok(())
}

fn a_forked_process_has_nothing() -> Outcome {
    let server = some_server()?;
    forks(&server, &server.url())
}

/// A byte of the copy would break the connection of the other.
fn a_forked_process_has_nothing_over_tls() -> Outcome {
    let kinds = ServerKind::all_required();
    let setup = Server::setup(*kinds.first().ok_or("no server")?);
    let authority = Authority::new()?;
    let pair = authority.server(&["127.0.0.1"])?;
    let server = setup.tls(&pair, &authority, "no").start()?;
    let ca = server.dir().join("ca.pem");
    let url = format!("{}?ca={}", server.url(), ca.display());
    forks(&server, &url)
}

/// The connections of clients by the ids that the server gives them.
fn connections(server: &Server) -> Result<Vec<String>, Failure> {
    let list = server.client()?.ok(&["CLIENT", "LIST"])?.text();
    let ours = list.lines().filter(|line| line.contains(" name=tenure "));
    Ok(ours
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect())
}

fn forks(server: &Server, url: &str) -> Outcome {
    let locks = tenure_blocking::connect(url)?;
    let lock = locks.acquire("a")?;
    lock.on_lost(|_| unreachable!("it is not lost"));
    let spare = locks.acquire("spare")?;
    let parent = std::process::id();
    let mine = connections(server)?;
    let monitor: Monitor = server.monitor()?;
    monitor.clear();
    match fork()? {
        Fork::Child => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                in_the_child(parent, url, &locks, lock, spare)
            }));
            // Without what the test runner would do at its end: that is the parent's.
            std::process::exit(match ended {
                Ok(Ok(())) => 0,
                Ok(Err(why)) => {
                    eprintln!("in the forked process: {why}");
                    1
                }
                Err(_) => 2,
            });
        }
        Fork::Parent(child) => {
            let status = waitpid(child)?;
            assert_eq!(status, 0, "the forked process failed");
        }
    }
    // Whatever named the key came from the child's own connection.
    let seen = monitor.about(&key_of("a"));
    let releases = ["DELEX", "DELIFEQ", "EVAL", "EVALSHA"];
    assert!(
        !seen.iter().any(|it| releases.contains(&it.name().as_str())),
        "{seen:?}"
    );
    // Here nothing has changed: on the same connection.
    assert!(lock.is_held());
    lock.renew_now()?;
    assert!(spare.release()?.confirmed);
    assert!(lock.release()?.confirmed);
    pairs(&locks, 20)?;
    assert_eq!(connections(server)?, mine);
    locks.close();
    assert!(server.client()?.keys()?.is_empty());
    Ok(())
}

fn in_the_child(parent: u32, url: &str, locks: &Locks, lock: Lock, spare: Lock) -> Outcome {
    let forked = Error::Forked { process: parent };
    assert_eq!(locks.acquire("b").unwrap_err(), forked);
    assert_eq!(locks.try_acquire("b").unwrap_err(), forked);
    assert_eq!(locks.lock("b").run(|_| ()).unwrap_err(), forked);
    assert_eq!(locks.ready().unwrap_err(), forked);
    assert!(forked.to_string().contains(&parent.to_string()));
    assert!(!lock.is_held());
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert_eq!(lock.check().unwrap_err(), forked);
    assert_eq!(lock.renew_now().unwrap_err(), forked);
    let lost = lock.lost_timeout(LONG).ok_or("it believes in the lock")?;
    assert_eq!(lost.cause, Cause::Closed);
    assert_eq!(lock.wait_lost()?, lost);
    assert_eq!(spare.release().unwrap_err(), forked);
    locks.close();
    // Anew it works, and the parent's lock is somebody else's.
    let anew = tenure_blocking::connect(url)?;
    assert!(anew.try_acquire("a")?.holder().is_some());
    assert!(anew.acquire("b")?.release()?.confirmed);
    anew.close();
    drop(lock);
    Ok(())
}
