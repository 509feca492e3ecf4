//! What SQLite's errors mean.

use std::io;
use std::path::Path;

use rusqlite::{Error, ErrorCode};
use tenure_client::StoreFault;
use tenure_client::engine::Trouble;

const NO_RIGHTS: &str = "let this user write the file and its folder";

/// What went wrong as the file was opened: of missing rights SQLite only says that it cannot.
pub(crate) fn of_opening(error: &Error, path: &Path) -> Trouble {
    let cannot = error.sqlite_error_code() == Some(ErrorCode::CannotOpen);
    match cannot && is_refused(looks(path)) {
        true => Trouble::new(
            StoreFault::Denied,
            format!("{NO_RIGHTS}; SQLite says: {error}"),
        ),
        false => of(error),
    }
}

/// Whether one of these looks was not for this user.
fn is_refused(looks: impl IntoIterator<Item = io::Result<()>>) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let refused = |error: io::Error| matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem);
    looks.into_iter().filter_map(Result::err).any(refused)
}

/// Whether this user may write the file, its log and its folder. None of them is opened for that: to close it again would give up
/// the locks of this process on it.
#[cfg(target_os = "linux")]
fn looks(path: &Path) -> Vec<io::Result<()>> {
    use rustix::fs::{Access, access};

    let beside = |end: &str| {
        let mut beside = path.as_os_str().to_owned();
        beside.push(end);
        beside
    };
    let files = ["", "-wal", "-shm"].map(beside);
    let files = files.map(|file| access(file, Access::READ_OK | Access::WRITE_OK));
    let folder = path
        .parent()
        .map(|folder| access(folder, Access::WRITE_OK | Access::EXEC_OK));
    let all = files.into_iter().chain(folder);
    all.map(|look| look.map_err(io::Error::from)).collect()
}

#[cfg(not(target_os = "linux"))]
fn looks(_: &Path) -> Vec<io::Result<()>> {
    Vec::new()
}

/// What to do about it comes first: the end may be cut off.
pub(crate) fn of(error: &Error) -> Trouble {
    let (fault, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (StoreFault::Busy, "end the transaction that holds it")
        }
        Some(ErrorCode::DiskFull) => (StoreFault::Full, "make room on its disk"),
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => (StoreFault::Denied, NO_RIGHTS),
        Some(ErrorCode::NotADatabase) => (
            StoreFault::Unusable,
            "it is no SQLite database: use another path",
        ),
        Some(ErrorCode::DatabaseCorrupt) => (
            StoreFault::Unusable,
            "it is damaged: stop all programs that use it and remove it",
        ),
        Some(ErrorCode::CannotOpen) => (
            StoreFault::Unusable,
            "it cannot be opened: look at the path and its permissions",
        ),
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::FileLockingProtocolFailed,
        ) => (StoreFault::Io, "look at its disk"),
        _ => (
            StoreFault::Unusable,
            "it is not as Tenure has made it: use another path",
        ),
    };
    Trouble::new(fault, format!("{advice}; SQLite says: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_look_that_was_refused_is_one_of_missing_rights() {
        use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        for (kind, refused) in [
            (PermissionDenied, true),
            (ReadOnlyFilesystem, true),
            (NotFound, false),
            (IsADirectory, false),
        ] {
            assert_eq!(is_refused([Ok(()), Err(kind.into())]), refused, "{kind}");
        }
        assert!(!is_refused([Ok(())]));
    }

    /// Root may write everything, so there is nobody here to be refused.
    #[test]
    fn a_file_that_is_not_there_was_refused_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_refused(looks(&folder.path().join("locks.db"))));
    }
}
