//! A table that is shared with programs of the .NET library, whose statements are sent here as it sends them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::{Connection, named_params};
use tempfile::TempDir;
use tenure_blocking::{Attempt, Config, Locks, open_with};

const TABLE: &str = "__distributed_locks";
const LEASE: Duration = Duration::from_secs(30);

/// The table as the provider makes it.
const CREATE: &str = "CREATE TABLE IF NOT EXISTS __distributed_locks (resource_id TEXT PRIMARY KEY, owner_id TEXT NOT NULL, \
    acquired_at TEXT NOT NULL, expires_at TEXT NOT NULL DEFAULT (datetime('now', '+60 seconds')));";
/// And as its extension for transactions does.
const CREATE_OLDER: &str = "CREATE TABLE IF NOT EXISTS __distributed_locks (resource_id TEXT PRIMARY KEY, owner_id TEXT NOT NULL, \
    acquired_at TEXT NOT NULL);";
const ACQUIRE: &str = "INSERT INTO __distributed_locks (resource_id, owner_id, acquired_at, expires_at) \
    VALUES (@ResourceId, @OwnerId, datetime('now'), datetime('now', '+' || @TtlSeconds || ' seconds')) \
    ON CONFLICT(resource_id) DO UPDATE SET owner_id = excluded.owner_id, acquired_at = excluded.acquired_at, \
    expires_at = excluded.expires_at WHERE __distributed_locks.expires_at <= datetime('now');";
const RENEW: &str = "UPDATE __distributed_locks SET expires_at = datetime('now', '+' || @TtlSeconds || ' seconds') \
    WHERE resource_id = @ResourceId AND owner_id = @OwnerId;";
const RELEASE: &str =
    "DELETE FROM __distributed_locks WHERE resource_id = @ResourceId AND owner_id = @OwnerId;";
const INSERT_IN_TRANSACTION: &str = "INSERT INTO __distributed_locks (resource_id, owner_id, acquired_at) \
    VALUES (@ResourceId, @OwnerId, datetime('now'));";

/// A program of theirs.
struct Theirs {
    connection: Connection,
    owner: &'static str,
}

impl Theirs {
    fn acquire(&self, name: &str, seconds: i64) -> bool {
        self.connection
            .execute(
                ACQUIRE,
                named_params! { "@ResourceId": name, "@OwnerId": self.owner, "@TtlSeconds": seconds },
            )
            .unwrap()
            == 1
    }

    fn renew(&self, name: &str, seconds: i64) -> bool {
        self.connection
            .execute(
                RENEW,
                named_params! { "@ResourceId": name, "@OwnerId": self.owner, "@TtlSeconds": seconds },
            )
            .unwrap()
            == 1
    }

    fn release(&self, name: &str) -> bool {
        let named = named_params! { "@ResourceId": name, "@OwnerId": self.owner };
        self.connection.execute(RELEASE, named).unwrap() == 1
    }

    /// When the row ends, in milliseconds of Unix time.
    fn ends(&self, name: &str) -> i64 {
        let get =
            "select unixepoch(expires_at) * 1000 from __distributed_locks where resource_id = ?1";
        self.connection
            .query_row(get, [name], |row| row.get(0))
            .unwrap()
    }

    fn now(&self) -> i64 {
        let get = "select cast(unixepoch('subsec') * 1000 as integer)";
        self.connection
            .query_row(get, [], |row| row.get(0))
            .unwrap()
    }
}

struct Place {
    _folder: TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Place {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("app.db");
        Place {
            _folder: folder,
            path,
        }
    }

    fn ours(&self) -> Locks {
        let config = Config::in_file(&self.path).share_table(TABLE);
        let locks = open_with(&config, tenure_sqlite::open).unwrap();
        locks.ready().unwrap();
        locks
    }

    fn theirs(&self, create: &str) -> Theirs {
        let connection = Connection::open(&self.path).unwrap();
        connection.busy_timeout(LEASE).unwrap();
        connection.execute_batch(create).unwrap();
        Theirs {
            connection,
            owner: "0123456789abcdef0123456789abcdef",
        }
    }
}

fn is_refused(locks: &Locks, name: &str) -> bool {
    matches!(locks.try_acquire(name).unwrap(), Attempt::Held(_))
}

#[test]
fn theirs_and_ours_exclude_each_other() {
    let place = Place::new();
    let theirs = place.theirs(CREATE);
    let ours = place.ours();
    assert!(theirs.acquire("a", 60));
    let holder = ours.try_acquire("a").unwrap();
    let holder = holder.holder().expect("it is theirs");
    // Nothing of what is theirs is shown, but how long it lasts.
    assert_eq!(holder.label, None);
    assert!(holder.remaining.unwrap() > Duration::from_secs(58));
    assert!(theirs.renew("a", 90) && theirs.release("a"));
    for fenced in [false, true] {
        let request = ours.lock("a").lease(LEASE);
        let request = if fenced { request.fenced() } else { request };
        let lock = request.acquire().unwrap();
        assert!(!theirs.acquire("a", 60));
        assert!(!theirs.renew("a", 60) && !theirs.release("a"));
        lock.renew_now().unwrap();
        assert!(lock.release().unwrap().confirmed);
        assert!(theirs.acquire("a", 60) && theirs.release("a"));
    }
}

#[test]
fn who_comes_first_makes_a_table_that_the_other_can_use() {
    let place = Place::new();
    let ours = place.ours();
    let theirs = place.theirs(CREATE);
    let lock = ours.acquire("a").unwrap();
    assert!(!theirs.acquire("a", 60) && theirs.acquire("b", 60));
    assert!(is_refused(&ours, "b"));
    drop(lock);
    assert!(theirs.acquire("a", 60));
}

#[test]
fn a_table_of_the_older_form_is_repaired_and_what_has_no_time_stays() {
    let place = Place::new();
    let theirs = place.theirs(CREATE_OLDER);
    let named = named_params! { "@ResourceId": "old", "@OwnerId": theirs.owner };
    theirs
        .connection
        .execute(INSERT_IN_TRANSACTION, named)
        .unwrap();
    let ours = place.ours();
    assert!(is_refused(&ours, "old"));
    assert_eq!(ours.inspect("old").unwrap().unwrap().remaining, None);
    // It stays until it is deleted, as with them; both of their forms go on working.
    assert!(theirs.acquire("a", 60) && is_refused(&ours, "a"));
    let named = named_params! { "@ResourceId": "b", "@OwnerId": theirs.owner };
    theirs
        .connection
        .execute(INSERT_IN_TRANSACTION, named)
        .unwrap();
    assert!(is_refused(&ours, "b"));
    assert!(theirs.release("old") && theirs.release("b"));
    drop(ours.acquire("old").unwrap());
    // Repaired once.
    let again = place.ours();
    assert!(is_refused(&again, "a"));
}

/// The times of the table are whole seconds: a row of ours must not end before the lease does.
#[test]
fn s1_a_row_of_ours_outlives_the_lease_and_by_no_more_than_a_second() {
    let place = Place::new();
    let theirs = place.theirs(CREATE);
    let ours = place.ours();
    for millis in [20, 500, 999, 1_000, 1_001, 2_345] {
        let lease = Duration::from_millis(millis);
        let before = theirs.now();
        let lock = ours.lock("a").lease(lease).no_renew().acquire().unwrap();
        let (after, ends) = (theirs.now(), theirs.ends("a"));
        let lease = i64::try_from(millis).unwrap();
        assert!(ends >= before + lease, "{millis}");
        assert!(ends < after + lease + 1_000, "{millis}");
        drop(lock);
        // A short one may be over before it is dropped.
        theirs
            .connection
            .execute_batch("delete from __distributed_locks")
            .unwrap();
    }
}

#[test]
fn what_a_dead_holder_of_theirs_has_left_is_taken_over_when_it_ends() {
    let place = Place::new();
    let theirs = place.theirs(CREATE);
    let ours = place.ours();
    assert!(theirs.acquire("a", 1));
    let ends = theirs.ends("a");
    let began = Instant::now();
    let lock = ours.acquire("a").unwrap();
    assert!(theirs.now() >= ends);
    assert!(began.elapsed() < LEASE);
    drop(lock);
}

#[test]
fn nothing_about_the_file_is_changed_but_tables_are_added() {
    let place = Place::new();
    let theirs = place.theirs(CREATE);
    theirs
        .connection
        .execute_batch("pragma user_version = 7; pragma application_id = 42; create table app (a)")
        .unwrap();
    let ours = place.ours();
    drop(ours.acquire("a").unwrap());
    let pragma = |name: &str| {
        let value = theirs
            .connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        value.unwrap()
    };
    assert_eq!((pragma("user_version"), pragma("application_id")), (7, 42));
    let mode = theirs
        .connection
        .pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    assert_eq!(mode.unwrap(), "delete");
}

#[test]
fn fair_locks_and_the_operators_questions_work_on_a_shared_table() {
    let place = Place::new();
    let (a, b) = (place.ours(), place.ours());
    let lock = a.lock("n").fair().acquire().unwrap();
    let waiting = std::thread::spawn({
        let b = b.clone();
        move || b.lock("n").fair().acquire().unwrap().release().unwrap()
    });
    // It is in the queue.
    let theirs = place.theirs(CREATE);
    let queue = "select count(*) from tenure_queue";
    let until = Instant::now() + LEASE;
    while theirs
        .connection
        .query_row(queue, [], |row| row.get::<_, i64>(0))
        .unwrap()
        == 0
    {
        assert!(Instant::now() < until);
    }
    lock.release().unwrap();
    assert!(waiting.join().unwrap().confirmed);
    let lock = a.acquire("o").unwrap();
    let names = b.list("").unwrap().names;
    assert_eq!(names.len(), 1);
    assert_eq!(&*names[0].0, b"o");
    assert!(b.force_release("o").unwrap().is_some());
    assert!(lock.lost_timeout(LEASE).is_some());
}
