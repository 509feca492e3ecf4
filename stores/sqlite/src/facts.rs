//! What a file says of itself, for an operator.

use std::path::Path;

use rusqlite::Connection;
use tenure_client::engine::Bytes;

use crate::clock;
use crate::table::Now;

/// Facts with their names; what cannot be found out is left out.
pub(crate) fn facts(conn: &Connection, path: &Path, now: Now) -> Vec<(Bytes, Bytes)> {
    let mut facts: Vec<(&str, String)> = vec![("sqlite_version", rusqlite::version().to_owned())];
    let journal = conn.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    facts.extend(journal.ok().map(|mode| ("journal_mode", mode)));
    for name in ["synchronous", "page_size", "page_count"] {
        let value = conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        facts.extend(value.ok().map(|value| (name, value.to_string())));
    }
    let step = clock::step(conn, now).ok().flatten();
    facts.extend(step.map(|us| ("clock_step_us", us.to_string())));
    facts.extend(mode(path).map(|mode| ("file_mode", mode)));
    facts.extend(free(path).map(|bytes| ("free_bytes", bytes.to_string())));
    let bytes = |text: &str| Bytes::from(text.as_bytes());
    let facts = facts.iter();
    facts
        .map(|(name, value)| (bytes(name), bytes(value)))
        .collect()
}

/// Who may read and write it, in octal.
#[cfg(unix)]
fn mode(path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    Some(format!("{:o}", mode & 0o7777))
}

#[cfg(not(unix))]
fn mode(_: &Path) -> Option<String> {
    None
}

/// Room that is left on its disk for whoever is not root.
#[cfg(target_os = "linux")]
fn free(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(target_os = "linux"))]
fn free(_: &Path) -> Option<u64> {
    None
}
