//! The file: where it may be, what must be in it, and whether it is still there.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use tenure_client::StoreFault;
use tenure_client::engine::Trouble;

use crate::forks::Opened;
use crate::table::Table;
use crate::trouble;

/// What SQLite keeps in the file to say whose it is: `tnr1`.
const APPLICATION: i64 = 0x746e_7231;
/// Of what is in it.
const VERSION: i64 = 1;
/// Statements that are kept prepared.
const STATEMENTS: usize = 48;
/// Between two tries to open a file that others are at.
const AGAIN: Duration = Duration::from_millis(5);

/// Which file it is, whatever its path leads to by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    /// That of the file at this path, if there is one.
    pub(crate) fn at(path: &Path) -> Option<Identity> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let file = fs::metadata(path).ok()?;
            Some(Identity(file.dev(), file.ino()))
        }
        // Elsewhere a file that is open cannot be replaced.
        #[cfg(not(unix))]
        path.exists().then_some(Identity(0, 0))
    }
}

/// An open file with the tables in it.
pub(crate) struct OpenFile {
    pub(crate) conn: Connection,
    pub(crate) identity: Identity,
    /// Behind the connection, which is closed first.
    _opened: Opened,
}

/// Opens the file, and makes what is not there.
pub(crate) fn open(path: &Path, table: &Table, limit: Duration) -> Result<OpenFile, Trouble> {
    let until = Instant::now() + limit;
    loop {
        match try_open(path, table, limit) {
            // Whoever comes first sets the file up, and some of that does not wait for others.
            Err(trouble) if trouble.fault == StoreFault::Busy && Instant::now() < until => {
                std::thread::sleep(AGAIN);
            }
            opened => return opened,
        }
    }
}

fn try_open(path: &Path, table: &Table, limit: Duration) -> Result<OpenFile, Trouble> {
    create(path)?;
    refuse_network(path)?;
    let identity = Identity::at(path).ok_or_else(|| {
        let text = format!("it was deleted as it was opened: {}", path.display());
        Trouble::new(StoreFault::Io, text)
    })?;
    let opened = Opened::new(identity, limit)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)
        .map_err(|error| trouble::of_opening(&error, path))?;
    set_up(&conn, table, limit).map_err(|error| match error {
        SetUp::Sqlite(error) => trouble::of_opening(&error, path),
        SetUp::Other(trouble) => trouble,
    })?;
    Ok(OpenFile {
        conn,
        identity,
        _opened: opened,
    })
}

enum SetUp {
    Sqlite(rusqlite::Error),
    Other(Trouble),
}

impl From<rusqlite::Error> for SetUp {
    fn from(error: rusqlite::Error) -> SetUp {
        SetUp::Sqlite(error)
    }
}

fn set_up(conn: &Connection, table: &Table, limit: Duration) -> Result<(), SetUp> {
    let unusable = |text: &str| SetUp::Other(Trouble::new(StoreFault::Unusable, text));
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.busy_timeout(limit)?;
    if conn.is_readonly("main")? {
        let text = "let this user write the file and its folder";
        return Err(SetUp::Other(Trouble::new(StoreFault::Denied, text)));
    }
    if table.is_shared() {
        // It is another program's: nothing about the file is changed.
        conn.execute_batch("begin immediate")?;
        table.create(conn)?;
        conn.execute_batch("commit")?;
        return Ok(());
    }
    let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let any: Option<i64> = conn
        .query_row("select 1 from sqlite_schema limit 1", [], |row| row.get(0))
        .optional()?;
    match (pragma("application_id")?, pragma("user_version")?) {
        (APPLICATION, version) if version > VERSION => {
            return Err(unusable(
                "a newer version of Tenure has made it: use that, or another path",
            ));
        }
        (APPLICATION, _) => {}
        (0, 0) if any.is_none() => {}
        _ => {
            return Err(unusable(
                "it is the database of another program: use a path of its own, or `table` for one that is shared",
            ));
        }
    }
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(unusable(
            "put it on a disk of this machine: its file system does not let processes share memory",
        ));
    }
    // A crash of the system may undo what was written last, and ends every hold anyhow.
    conn.pragma_update(None, "synchronous", "normal")?;
    conn.execute_batch("begin immediate")?;
    table.create(conn)?;
    conn.pragma_update(None, "application_id", APPLICATION)?;
    conn.pragma_update(None, "user_version", VERSION)?;
    conn.execute_batch("commit")?;
    Ok(())
}

/// Makes the file, and its folder, if they are not there: for their owner alone.
fn create(path: &Path) -> Result<(), Trouble> {
    let made = make(path).or_else(|error| match (error.kind(), folder(path)) {
        (io::ErrorKind::AlreadyExists, _) => Ok(()),
        (io::ErrorKind::NotFound, Some(folder)) => {
            make_folder(&folder)?;
            match make(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        }
        _ => Err(error),
    });
    made.map_err(|error| {
        let (fault, advice) = match error.kind() {
            io::ErrorKind::NotFound => (StoreFault::Unusable, "make its folder"),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => (
                StoreFault::Denied,
                "let this user write the file and its folder",
            ),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (StoreFault::Full, "make room on its disk")
            }
            _ => (StoreFault::Unusable, "use another path"),
        };
        Trouble::new(fault, format!("{advice}; {}: {error}", path.display()))
    })
}

/// Only where there is none: to open and close one that is in use would give up the locks of this process on it.
fn make(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn folder(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    (!folder.as_os_str().is_empty()).then(|| folder.to_owned())
}

#[cfg(target_os = "linux")]
fn refuse_network(path: &Path) -> Result<(), Trouble> {
    /// NFS, SMB, SMB2, CIFS, 9P, AFS, Ceph.
    const NETWORK: [u32; 7] = [
        0x6969,
        0x517b,
        0xfe53_4d42,
        0xff53_4d42,
        0x0102_1997,
        0x5346_414f,
        0x00c3_6400,
    ];
    // What cannot be told is tried.
    let Ok(system) = rustix::fs::statfs(path) else {
        return Ok(());
    };
    // The type is of another width on other machines; none of these needs more than 32 bits.
    let kind = system.f_type as u64 & 0xffff_ffff;
    if NETWORK.iter().any(|network| u64::from(*network) == kind) {
        return Err(Trouble::new(
            StoreFault::Unusable,
            "put it on a disk of this machine: on a network file system others would not see its locks",
        ));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_: &Path) -> Result<(), Trouble> {
    Ok(())
}
