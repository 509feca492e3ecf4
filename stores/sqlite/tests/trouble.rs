//! What is wrong with a file is said, with what to do about it; and what passes is waited for.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tempfile::TempDir;
use tenure_blocking::{Cause, Config, Error, Locks, open_with};

const LEASE: Duration = Duration::from_secs(3);
/// Longer than anything takes that happens at all.
const LONG: Duration = Duration::from_secs(20);

fn connect(path: &Path) -> Result<Locks, Error> {
    let locks = open_with(&Config::in_file(path), tenure_sqlite::open)?;
    locks.ready()?;
    Ok(locks)
}

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("locks.db");
    (folder, path)
}

/// What was written is in the file itself once the last one has closed it.
fn close(locks: Locks, path: &Path) {
    locks.close();
    let beside = PathBuf::from(format!("{}-wal", path.display()));
    wait_until("the file is closed", || !beside.exists());
}

/// Somebody else's transaction, which keeps the file locked.
fn keep_locked(path: &Path) -> Connection {
    let other = Connection::open(path).unwrap();
    other.busy_timeout(LONG).unwrap();
    other.execute_batch("begin immediate").unwrap();
    other
}

fn let_go(other: &Connection) {
    other.execute_batch("commit").unwrap();
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn s10_a_path_that_cannot_be_is_misconfigured_and_says_what_to_do() {
    let (folder, path) = folder();
    let within = |name: &str| folder.path().join(name);
    fs::write(
        within("text"),
        "no database at all, and longer than a header would be".repeat(50),
    )
    .unwrap();
    let other = Connection::open(within("other")).unwrap();
    other.execute_batch("create table theirs (a)").unwrap();
    close(connect(&path).unwrap(), &path);
    fs::copy(&path, within("newer")).unwrap();
    let newer = Connection::open(within("newer")).unwrap();
    newer.execute_batch("pragma user_version = 99").unwrap();
    for (name, says) in [
        ("text", "no SQLite database"),
        ("other", "the database of another program"),
        ("newer", "a newer version of Tenure"),
        ("not/there/locks.db", "make its folder"),
        (".", "it cannot be opened"),
    ] {
        let error = connect(&within(name)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Misconfigured(_)), "{name}: {text}");
        assert!(text.contains(says), "{name}: {text}");
    }
    // Nothing of theirs was changed.
    let tables = "select count(*) from sqlite_schema";
    let count: i64 = other.query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1);
}

#[cfg(unix)]
#[test]
fn the_file_and_its_folder_are_made_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;

    let folder = TempDir::new().unwrap();
    let inner = folder.path().join("state");
    let path = inner.join("locks.db");
    let locks = connect(&path).unwrap();
    let _lock = locks.acquire("a").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&inner), mode(&path)), (0o700, 0o600));
    assert_eq!(mode(&inner.join("locks.db-wal")), 0o600);
}

#[test]
fn s10_a_file_that_somebody_keeps_locked_is_unavailable_to_a_single_try() {
    let (_folder, path) = folder();
    let config = Config::in_file(&path).reply_limit(Duration::from_millis(100));
    let locks = open_with(&config, tenure_sqlite::open).unwrap();
    locks.ready().unwrap();
    let other = keep_locked(&path);
    let error = locks.try_acquire("a").unwrap_err();
    assert!(matches!(&error, Error::Unavailable(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("another program keeps the store locked"),
        "{error}"
    );
    assert!(error.is_retryable());
    let_go(&other);
    assert!(locks.try_acquire("a").unwrap().acquired().is_some());
}

#[test]
fn s9_who_waits_has_the_lock_when_the_file_is_let_go() {
    let (_folder, path) = folder();
    let config = Config::in_file(&path).reply_limit(Duration::from_millis(20));
    let locks = open_with(&config, tenure_sqlite::open).unwrap();
    locks.ready().unwrap();
    let other = keep_locked(&path);
    let waiting = {
        let locks = locks.clone();
        std::thread::spawn(move || locks.acquire("a").map(|lock| lock.is_held()))
    };
    // More than one try has failed by then.
    let request = locks.lock("b").wait(Duration::from_millis(100));
    let error = request.acquire().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(!waiting.is_finished());
    let_go(&other);
    assert!(waiting.join().unwrap().unwrap());
}

#[test]
fn s7_a_renewal_that_finds_the_file_locked_is_tried_again_and_nothing_is_lost() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    let lock = locks.lock("a").lease(LEASE).acquire().unwrap();
    let other = keep_locked(&path);
    // The first renewal is due by then, and finds it locked: it waits for its reply limit.
    assert_eq!(lock.lost_timeout(LEASE / 2), None);
    let_go(&other);
    assert_eq!(lock.lost_timeout(LEASE), None);
    lock.check().unwrap();
    assert!(lock.release().unwrap().confirmed);
}

#[test]
fn s1_a_loss_is_told_by_the_clock_while_the_store_hangs() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    let began = Instant::now();
    let lease = Duration::from_millis(600);
    let lock = locks.lock("a").lease(lease).acquire().unwrap();
    let other = keep_locked(&path);
    let lost = lock.lost_timeout(LONG).expect("nothing was renewed");
    assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost}");
    assert!(!lock.is_held());
    assert!(began.elapsed() >= lease / 2);
    let_go(&other);
}

#[test]
fn s6_what_is_released_while_the_file_is_locked_is_free_once_it_is_not() {
    let (_folder, path) = folder();
    let (locks, others) = (connect(&path).unwrap(), connect(&path).unwrap());
    let lock = locks.acquire("a").unwrap();
    let other = keep_locked(&path);
    let dropping = std::thread::spawn(move || drop(lock));
    // Whoever is refused disturbs nobody, and is not disturbed.
    assert!(others.try_acquire("a").unwrap().holder().is_some());
    let_go(&other);
    dropping.join().unwrap();
    wait_until("it is free", || others.inspect("a").unwrap().is_none());
}

#[cfg(unix)]
#[test]
fn a3_a_file_that_is_deleted_takes_its_locks_away_which_is_told_and_a_new_one_is_made() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    let lock = locks.lock("a").lease(LEASE).acquire().unwrap();
    for end in ["", "-wal", "-shm"] {
        fs::remove_file(format!("{}{end}", path.display())).unwrap();
    }
    let lost = lock.lost_timeout(LONG).expect("it is gone");
    assert_eq!(lost.cause, Cause::Gone);
    let others = connect(&path).unwrap();
    let lock = others.acquire("a").unwrap();
    assert!(locks.try_acquire("a").unwrap().holder().is_some());
    drop(lock);
}

#[test]
fn s10_a_file_that_is_damaged_is_said_to_be() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    drop(locks.acquire("a").unwrap());
    close(locks, &path);
    let mut bytes = fs::read(&path).unwrap();
    assert!(bytes.len() > 4096);
    // All but the header's first words.
    bytes[100..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let error = connect(&path).unwrap_err();
    assert!(matches!(error, Error::Misconfigured(_)), "{error}");
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[test]
fn names_and_labels_of_any_bytes_stay_apart_in_one_file() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    let names: [&[u8]; 6] = [b"a", b"A", b"a ", b"\0", b"\xff\xfe", "\u{e4}".as_bytes()];
    let held: Vec<_> = names
        .iter()
        .map(|name| locks.acquire(name).unwrap())
        .collect();
    let mut listed: Vec<_> = locks
        .list("")
        .unwrap()
        .names
        .into_iter()
        .map(|(name, _)| name.to_vec())
        .collect();
    let mut names = names.map(<[u8]>::to_vec).to_vec();
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    assert!(held.iter().all(|lock| lock.is_held()));
}

#[test]
fn what_is_over_leaves_no_row_but_the_last_fence() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    for index in 0..50 {
        let name = format!("name {index}");
        locks.acquire(&name).unwrap().release().unwrap();
        locks
            .lock(&name)
            .fair()
            .acquire()
            .unwrap()
            .release()
            .unwrap();
    }
    locks
        .lock("fenced")
        .fenced()
        .acquire()
        .unwrap()
        .release()
        .unwrap();
    let other = Connection::open(&path).unwrap();
    let count = |table| {
        let count = format!("select count(*) from {table}");
        other
            .query_row(&count, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let tables = [
        "tenure_locks",
        "tenure_queue",
        "tenure_forced",
        "tenure_fences",
    ];
    assert_eq!(tables.map(count), [0, 0, 0, 1]);
}

#[test]
fn s9_a_wait_ends_in_time_though_somebody_keeps_the_file_locked() {
    let (_folder, path) = folder();
    let locks = connect(&path).unwrap();
    let other = keep_locked(&path);
    let since = Instant::now();
    let wait = Duration::from_millis(300);
    let error = locks.lock("a").wait(wait).acquire().unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(since.elapsed() < 5 * wait, "{:?}", since.elapsed());
    let_go(&other);
}
