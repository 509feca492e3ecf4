//! Processes that share a file. This program plays them itself, started again; a test at a time, since threads and files are
//! counted, and the process is forked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid};
use libtest_mimic::{Arguments, Failed, Trial};
use tenure_blocking::{Config, Error, LockOptions, Locks};
use tenure_tests::process::Folder;
use tenure_tests::{Failure, eventually};
use tokio::runtime::Builder;

type Outcome = Result<(), Failure>;
type Test = fn() -> Outcome;

const LONG: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(2);
/// How long the processes are at it.
const SPAN: Duration = Duration::from_secs(10);
const PROCESSES: usize = 8;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let played = match &words[..] {
        [_, how, place, names] if how == "contend" => contend(Path::new(place), names),
        [_, how, place, name] if how == "hold" => hold(Path::new(place), name),
        [_, how, place, name] if how == "end" => end(Path::new(place), name),
        [_, how, place, name] if how == "end-of-tasks" => {
            end_of_tasks(Path::new(place), name, false)
        }
        [_, how, place, name] if how == "after-tasks" => end_of_tasks(Path::new(place), name, true),
        _ => return tests(),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn tests() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 7] = [
        ("eight_processes_on_one_name_never_overlap", || processes(1)),
        ("eight_processes_on_many_names_never_overlap", || {
            processes(1_000)
        }),
        ("what_a_killed_process_held_is_free_at_its_ttl", killed),
        ("a_lock_is_released_at_the_end_of_main", ends_of_main),
        ("a_thread_needs_no_other_for_its_locks", by_itself),
        ("nothing_is_left", nothing_is_left),
        ("a_forked_process_has_nothing", forked),
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

fn config(place: &Path) -> Config {
    let defaults = LockOptions::new().lease(LEASE).wait(LONG);
    Config::in_file(place.join("locks.db")).defaults_for_locks(defaults)
}

fn connect(place: &Path) -> Result<Locks, Error> {
    let locks = tenure_blocking::open_with(&config(place), tenure_sqlite::open)?;
    locks.ready()?;
    Ok(locks)
}

/// Another process of this program. It ends when this one does, since it reads what that says.
fn start(how: &str, place: &Path, word: &str) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args([how.as_ref(), place.as_os_str(), word.as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Waits for the end of a child, which has to be a good one. Gives what it said.
fn end_of(child: Child) -> Result<String, Failure> {
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

/// Sees to it that nobody else is where it is, without any of the locks' doing.
struct Witness(PathBuf);

impl Witness {
    fn enter(place: &Path, name: &str) -> Result<Witness, Failure> {
        let path = place.join(format!("{name}.taken"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => Ok(Witness(path)),
            Err(error) => Err(format!("two hold {name}: {error}").into()),
        }
    }

    /// Each fence is higher than the one before it.
    fn note(&self, fence: u64) -> Outcome {
        let path = self.0.with_extension("fence");
        let last = fs::read_to_string(&path).unwrap_or_default();
        if last.parse().is_ok_and(|last: u64| fence <= last) {
            return Err(format!("{fence} after {last}").into());
        }
        Ok(fs::write(path, fence.to_string())?)
    }

    fn leave(self) -> Outcome {
        Ok(fs::remove_file(self.0)?)
    }
}

/// Takes locks and gives them back for a while; says how many.
fn contend(place: &Path, names: &str) -> Outcome {
    let names: usize = names.parse()?;
    let locks = connect(place)?;
    let began = Instant::now();
    let mut taken = 0_usize;
    while began.elapsed() < SPAN {
        let name = format!("name-{}", (taken * 7 + std::process::id() as usize) % names);
        let request = locks.lock(&name);
        let lock = match taken % 3 {
            0 => request.fenced().fair().acquire()?,
            _ => request.fenced().acquire()?,
        };
        let witness = Witness::enter(place, &name)?;
        witness.note(lock.fence().ok_or("no fence")?)?;
        lock.check()?;
        witness.leave()?;
        if !lock.release()?.confirmed {
            return Err("a release was not confirmed".into());
        }
        taken += 1;
    }
    locks.close();
    println!("{taken}");
    Ok(())
}

fn processes(names: usize) -> Outcome {
    let folder = Folder::new()?;
    // All at once make the file, too.
    let children: Result<Vec<_>, _> = (0..PROCESSES)
        .map(|_| start("contend", folder.path(), &names.to_string()))
        .collect();
    let mut taken = 0;
    for child in children? {
        let said = end_of(child)?;
        let count: usize = said.trim().parse()?;
        assert!(count > 0, "one had nothing");
        taken += count;
    }
    assert!(taken > PROCESSES * 4, "{taken}");
    let left = fs::read_dir(folder.path())?.filter_map(Result::ok);
    let left: Vec<_> = left
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "taken"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(connect(folder.path())?.list("")?.names.is_empty());
    Ok(())
}

/// Says that it holds, and goes on until it is told anything, or nothing more.
fn say_and_listen() -> io::Result<()> {
    println!("held");
    io::stdout().flush()?;
    io::stdin().read_line(&mut String::new()).map(drop)
}

fn hold(place: &Path, name: &str) -> Outcome {
    let locks = connect(place)?;
    let lock = locks.acquire(name)?;
    say_and_listen()?;
    Ok(lock.check()?)
}

fn wait_for_held(child: &mut Child) -> Outcome {
    let output = child.stdout.as_mut().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    match line.trim() {
        "held" => Ok(()),
        other => {
            let mut why = String::new();
            if let Some(errors) = &mut child.stderr {
                errors.read_to_string(&mut why)?;
            }
            Err(format!("it said `{other}` {why}").into())
        }
    }
}

fn killed() -> Outcome {
    let folder = Folder::new()?;
    let locks = connect(folder.path())?;
    let mut child = start("hold", folder.path(), "a")?;
    wait_for_held(&mut child)?;
    child.kill()?;
    child.wait()?;
    let began = Instant::now();
    let inspection = locks.inspect("a")?.ok_or("it is free at once")?;
    let remaining = inspection.remaining.ok_or("it does not end")?;
    assert!(remaining <= LEASE);
    let lock = locks.acquire("a")?;
    // Whole milliseconds, and a moment between the two questions.
    assert!(began.elapsed() + Duration::from_millis(5) >= remaining);
    lock.check()?;
    Ok(())
}

/// The guard is dropped as the last statement of `main`.
fn end(place: &Path, name: &str) -> Outcome {
    let locks = connect(place)?;
    let _lock = locks.acquire(name)?;
    Ok(())
}

/// As `#[tokio::main]` does it; or when the runtime has ended.
fn end_of_tasks(place: &Path, name: &str, after: bool) -> Outcome {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let config = config(place);
    let held = runtime.block_on(async {
        let locks = tenure_tokio::open_with(&config, tenure_sqlite::open)?;
        let lock = locks.acquire(name).await?;
        Ok::<_, Error>(after.then_some((locks, lock)))
    })?;
    drop(runtime);
    drop(held);
    Ok(())
}

fn ends_of_main() -> Outcome {
    let folder = Folder::new()?;
    let locks = connect(folder.path())?;
    for how in ["end", "end-of-tasks", "after-tasks"] {
        for _ in 0..5 {
            end_of(start(how, folder.path(), "a")?)?;
            let left = locks.inspect("a")?;
            assert!(left.is_none(), "{how}: {left:?}");
        }
    }
    Ok(())
}

/// How often the threads of this name gave the processor up by themselves.
fn switches(of: &str) -> io::Result<u64> {
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim)
        };
        if field("Name:") == Some(of) {
            let switches = field("voluntary_ctxt_switches:");
            count += switches.and_then(|it| it.parse().ok()).unwrap_or(0);
        }
    }
    Ok(count)
}

/// Neither the store's thread nor the driver's has anything to do with it.
fn by_itself() -> Outcome {
    const PAIRS: u64 = 1_000;
    let folder = Folder::new()?;
    let locks = connect(folder.path())?;
    let ours = || Ok::<_, io::Error>(switches("tenure-store")? + switches("tenure-driver")?);
    let before = ours()?;
    for _ in 0..PAIRS {
        assert!(locks.acquire("a")?.release()?.confirmed);
    }
    let woken = ours()? - before;
    assert!(woken < PAIRS / 4, "{woken} times");
    Ok(())
}

fn threads() -> io::Result<usize> {
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread may end while its folder is looked at.
        let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        count += usize::from(name.starts_with("tenure"));
    }
    Ok(count)
}

/// What of the files of this process is in that folder.
fn files(folder: &Path) -> io::Result<usize> {
    let mut count = 0;
    for file in fs::read_dir("/proc/self/fd")? {
        let leads_to = fs::read_link(file?.path()).unwrap_or_default();
        count += usize::from(leads_to.starts_with(folder));
    }
    Ok(count)
}

fn is_clean(folder: &Path) -> bool {
    eventually(LONG, || {
        threads().is_ok_and(|it| it == 0) && files(folder).is_ok_and(|it| it == 0)
    })
}

fn nothing_is_left() -> Outcome {
    let folder = Folder::new()?;
    for close in [true, false] {
        let locks = connect(folder.path())?;
        let lock = locks.acquire("a")?;
        assert!(threads()? > 0 && files(folder.path())? > 0);
        drop(lock);
        if close {
            locks.close();
            // Though the handle lives on.
            assert!(is_clean(folder.path()), "after close");
        }
        drop(locks);
        assert!(is_clean(folder.path()), "close: {close}");
    }
    for keep in [true, false] {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let config = config(folder.path());
        let (locks, lock) = runtime.block_on(async {
            let locks = tenure_tokio::open_with(&config, tenure_sqlite::open)?;
            let lock = locks.acquire("a").await?;
            Ok::<_, Error>((locks, lock))
        })?;
        if keep {
            drop(runtime);
            drop((locks, lock));
        } else {
            drop((locks, lock));
            drop(runtime);
        }
        assert!(is_clean(folder.path()), "keep: {keep}");
        let locks = connect(folder.path())?;
        assert!(locks.inspect("a")?.is_none());
    }
    assert!(is_clean(folder.path()));
    // The last one to leave has put everything into the file itself.
    assert!(!folder.path().join("locks.db-wal").exists());
    Ok(())
}

fn forked() -> Outcome {
    let folder = Folder::new()?;
    let locks = connect(folder.path())?;
    let lock = locks.acquire("a")?;
    match fork().map_err(|error| format!("no fork: {error}"))? {
        Fork::Child => {
            let alone = !lock.is_held()
                && matches!(locks.try_acquire("b"), Err(Error::Forked { .. }))
                && matches!(locks.inspect("a"), Err(Error::Forked { .. }));
            drop(lock);
            locks.close();
            drop(locks);
            // SQLite cannot open it anew here; another file it can.
            let anew = connect(folder.path());
            let refused =
                matches!(anew, Err(Error::Misconfigured(why)) if why.to_string().contains("fork"));
            let other = folder.path().join("other");
            let other = connect(&other).and_then(|locks| locks.try_acquire("a"));
            let refused = refused && other.is_ok_and(|attempt| attempt.acquired().is_some());
            std::mem::forget(folder);
            std::process::exit(if alone && refused { 0 } else { 1 });
        }
        Fork::Parent(child) => {
            let status = waitpid(child).map_err(|error| format!("not waited: {error}"))?;
            assert_eq!(status, 0);
        }
    }
    lock.check()?;
    lock.renew_now()?;
    assert!(lock.release()?.confirmed);
    // And the file is as it should be.
    let mut header = [0; 15];
    File::open(folder.path().join("locks.db"))?.read_exact(&mut header)?;
    assert_eq!(&header, b"SQLite format 3");
    assert!(locks.list("")?.names.is_empty());
    Ok(())
}
