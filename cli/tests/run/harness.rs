//! The program under test, in a session of its own, and the stores that it runs on.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
pub(crate) use tenure_tests::eventually;
use tenure_tests::process::Folder;
use tenure_tests::{Server, ServerKind, key_of};

/// Nothing that a test waits for takes this long, unless it never comes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A store, and what a stranger can do to it.
pub(crate) trait Store {
    fn url(&self) -> String;
    /// How long the name stays taken if nobody renews it; `None` when it is free.
    fn left(&self, name: &str) -> Option<Duration>;
    /// Frees the name behind the holder's back.
    fn delete(&self, name: &str);
    /// Gives it to somebody else behind the holder's back.
    fn replace(&self, name: &str);
    /// It answers nothing until it is let go on; what it keeps expires meanwhile.
    fn freeze(&self);
    fn thaw(&self);
}

pub(crate) struct Redis(pub(crate) Server);

impl Redis {
    pub(crate) fn start() -> Redis {
        Redis::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Redis {
        let kinds = ServerKind::all_required();
        let kind = *kinds.last().expect("a server to test on");
        Redis(Server::start(kind, arguments).expect("a server"))
    }
}

impl Store for Redis {
    fn url(&self) -> String {
        format!("redis+unix://{}", self.0.socket_path().display())
    }

    fn left(&self, name: &str) -> Option<Duration> {
        let mut client = self.0.client().unwrap();
        let key = key_of(name);
        match client.pttl(&key).unwrap() {
            Some(left) => Some(left),
            // Without an end, or without a key.
            None => client.exists(&key).unwrap().then_some(Duration::MAX),
        }
    }

    fn delete(&self, name: &str) {
        assert!(self.0.client().unwrap().del(&key_of(name)).unwrap());
    }

    fn replace(&self, name: &str) {
        let mut client = self.0.client().unwrap();
        client
            .set(&key_of(name), "somebody else", Some(LONG))
            .unwrap();
    }

    fn freeze(&self) {
        self.0.freeze().unwrap();
    }

    fn thaw(&self) {
        self.0.thaw().unwrap();
    }
}

/// A file, at which somebody else works with SQLite.
pub(crate) struct InFile {
    folder: Folder,
    /// With a transaction that keeps the file locked.
    locked: Mutex<Option<Connection>>,
}

/// Milliseconds of Unix time, as the file has them.
const NOW: &str = "cast(unixepoch('subsec') * 1000 as integer)";

impl InFile {
    pub(crate) fn new() -> InFile {
        InFile {
            folder: Folder::new().unwrap(),
            locked: Mutex::new(None),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn other(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(LONG).unwrap();
        connection
    }
}

impl Store for InFile {
    fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    fn left(&self, name: &str) -> Option<Duration> {
        if !self.path().exists() {
            return None;
        }
        let get = format!(
            "select until_ms - {NOW} from tenure_locks where key = ?1 and until_ms > {NOW}"
        );
        let key = key_of(name).into_bytes();
        let left = self
            .other()
            .query_row(&get, [key], |row| row.get::<_, i64>(0));
        match left {
            Ok(left) => Some(Duration::from_millis(u64::try_from(left).unwrap())),
            // Before the first run has made the table there is none.
            Err(_) => None,
        }
    }

    fn delete(&self, name: &str) {
        let delete = "delete from tenure_locks where key = ?1";
        let key = key_of(name).into_bytes();
        assert_eq!(self.other().execute(delete, [key]).unwrap(), 1);
    }

    fn replace(&self, name: &str) {
        let put = format!(
            "insert or replace into tenure_locks values (?1, ?2, {NOW} + {})",
            LONG.as_millis()
        );
        let values = [key_of(name).into_bytes(), b"somebody else".to_vec()];
        self.other().execute(&put, values).unwrap();
    }

    fn freeze(&self) {
        let connection = self.other();
        connection.execute_batch("begin immediate").unwrap();
        *self.locked.lock().unwrap() = Some(connection);
    }

    fn thaw(&self) {
        // Dropped, and so rolled back.
        *self.locked.lock().unwrap() = None;
    }
}

/// One test for each store.
macro_rules! on_every_store {
    ($($(#[$meta:meta])* fn $name:ident($store:ident) $body:block)*) => {
        $($(#[$meta])* fn $name($store: &dyn $crate::harness::Store) $body)*

        mod redis {
            $(#[test] fn $name() {
                super::$name(&$crate::harness::Redis::start());
            })*
        }

        mod file {
            $(#[test] fn $name() {
                super::$name(&$crate::harness::InFile::new());
            })*
        }
    };
}
pub(crate) use on_every_store;

/// A run that is to be started.
pub(crate) struct Tenure {
    command: Command,
}

/// One that was. It leads a session, in which all of its processes are found.
pub(crate) struct Run {
    child: Child,
    session: u32,
}

impl Tenure {
    /// `tenure run`, with these words.
    pub(crate) fn run(store: &dyn Store, words: &[&str]) -> Tenure {
        Tenure::with_url(&store.url(), words)
    }

    pub(crate) fn with_url(url: &str, words: &[&str]) -> Tenure {
        let mut tenure = Tenure::bare(&[]);
        tenure
            .command
            .arg("run")
            .args(words)
            .env("TENURE_STORE", url);
        tenure
    }

    /// `tenure`, with these words and no store.
    pub(crate) fn bare(words: &[&str]) -> Tenure {
        // A leader of a group could not lead a session; a child that was just started is none.
        let mut command = Command::new("setsid");
        command.arg(env!("CARGO_BIN_EXE_tenure")).args(words);
        for variable in ["TENURE_STORE", "TENURE_STORE_FILE", "TENURE_HELD"] {
            command.env_remove(variable);
        }
        // Not in the home of whoever runs the tests.
        command.env("XDG_STATE_HOME", "/dev/null/state");
        command.stdin(Stdio::null());
        Tenure { command }
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Tenure {
        self.command.env(name, value);
        self
    }

    pub(crate) fn start(self) -> Run {
        Run::lead(self.command)
    }

    /// Runs it to its end; nothing of it may be left then.
    pub(crate) fn output(mut self) -> Output {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.command.spawn().unwrap();
        let session = child.id();
        let output = child.wait_with_output().unwrap();
        assert_eq!(processes(session), Vec::<String>::new());
        output
    }

    pub(crate) fn code(self) -> Option<i32> {
        self.output().status.code()
    }
}

impl Run {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.session.try_into().unwrap()).unwrap()
    }

    /// Starts a program that is to lead a session, by `setsid`.
    pub(crate) fn lead(mut command: Command) -> Run {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Run {
            session: child.id(),
            child,
        }
    }

    pub(crate) fn session(&self) -> u32 {
        self.session
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended by itself; its number stays its own until it is waited for.
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end, and for that of everybody in its session.
    pub(crate) fn end(mut self) -> ExitStatus {
        let status = self.wait();
        let session = self.session;
        let gone = eventually(Duration::from_millis(500), || processes(session).is_empty());
        assert!(gone, "{status}, left behind: {:?}", processes(session));
        status
    }

    /// It has ended, and so has everybody in its session, now.
    pub(crate) fn end_now(self) {
        assert_eq!(self.processes(), Vec::<String>::new());
    }

    /// Waits for its end alone.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                panic!("does not end: {:?}", processes(self.session));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn processes(&self) -> Vec<String> {
        processes(self.session)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        kill_session(self.session);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Its guard ends a run; but if that is what does not work, so does this.
pub(crate) fn kill_session(id: u32) {
    for (pid, ..) in session(id) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Of what a session is left, in words; zombies are not.
pub(crate) fn processes(session_id: u32) -> Vec<String> {
    let all = session(session_id).into_iter();
    all.map(|(pid, _, line)| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!(
            "{line} {}",
            String::from_utf8_lossy(&words).replace('\0', " ")
        )
    })
    .collect()
}

/// Number, group and line of each process of a session that has not ended.
pub(crate) fn session(id: u32) -> Vec<(i32, i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, fields)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields: Vec<&str> = fields.split(' ').collect();
        if fields[3] == id.to_string() && !matches!(fields[0], "Z" | "X") {
            found.push((pid, fields[2].parse().unwrap(), stat.clone()));
        }
    }
    found
}

/// A folder for files by which a command shows what it does.
pub(crate) struct Marks(Folder);

impl Marks {
    pub(crate) fn new() -> Marks {
        Marks(Folder::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let mut file = fs::File::create(self.path(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn wait_for(&self, name: &str) {
        assert!(eventually(LONG, || self.has(name)), "no {name}");
    }
}

/// A command whose grandchild has a lock of the kernel's on this file, for as long as it runs.
pub(crate) fn busy(file: &Path, mark: &str) -> String {
    let file = file.display();
    format!("flock -n {file} sh -c 'touch {mark}; sleep 100; :' & wait")
}

/// A command that is content only if nobody has that lock.
pub(crate) fn finds_nobody(file: &Path) -> String {
    format!("flock -n {} true || exit 99", file.display())
}

pub(crate) fn died_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// A number below `end`, another each time.
pub(crate) fn random(end: u64) -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish() % end
}
