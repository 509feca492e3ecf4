//! What SQLite's errors mean.

use rusqlite::{Error, ErrorCode};
use tenure_client::StoreFault;
use tenure_client::engine::Trouble;

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
        ) => (
            StoreFault::Denied,
            "let this user write the file and its folder",
        ),
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
