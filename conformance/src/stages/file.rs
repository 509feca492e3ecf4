//! A file, at which somebody else looks with SQLite.

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use tempfile::TempDir;
use tenure_client::{Config, Error};
use tenure_tests::Failure;

use super::{Nothing, nothing};
use crate::runtime::Runtime;
use crate::stage::{Connected, Incident, Key, Stage};
use crate::{Boxed, Need};

/// Milliseconds of Unix time, as the file has them.
const NOW: &str = "cast(unixepoch('subsec') * 1000 as integer)";
/// Longer than anything keeps the file locked.
const BUSY: Duration = Duration::from_secs(10);

/// A file in a folder of its own.
pub struct InFile(TempDir);

impl InFile {
    /// A folder in which nothing is yet.
    ///
    /// # Errors
    /// When the system has no room for it.
    pub fn new() -> Result<InFile, Failure> {
        Ok(InFile(TempDir::new()?))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    fn other(&self) -> Result<Connection, Failure> {
        let connection = Connection::open(self.path())?;
        connection.busy_timeout(BUSY)?;
        Ok(connection)
    }
}

impl Stage for InFile {
    fn can(&self, need: Need) -> bool {
        need == Need::Keys
    }

    fn open(
        &self,
        runtime: &dyn Runtime,
        settings: &dyn Fn(Config) -> Config,
    ) -> Result<Connected, Error> {
        let config = settings(Config::in_file(self.path()));
        Ok((runtime.open(&config)?, Box::new(Nothing)))
    }

    fn look(&self, key: &str) -> Result<Option<Key>, Failure> {
        let get = format!(
            "select value, until_ms, until_ms - {NOW} from tenure_locks where key = ?1 and until_ms > {NOW}"
        );
        let found = self
            .other()?
            .query_row(&get, params![key.as_bytes()], |row| {
                Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            });
        Ok(found.optional()?.map(|(value, until, left)| {
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            (value, (until != i64::MAX).then_some(left))
        }))
    }

    fn delete(&self, key: &str) -> Result<bool, Failure> {
        let delete = "delete from tenure_locks where key = ?1";
        Ok(self.other()?.execute(delete, params![key.as_bytes()])? > 0)
    }

    fn put(&self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Failure> {
        let until = match ttl {
            Some(ttl) => format!("{NOW} + {}", ttl.as_millis()),
            None => i64::MAX.to_string(),
        };
        let put = format!("insert or replace into tenure_locks values (?1, ?2, {until})");
        let values = params![key.as_bytes(), value.as_bytes()];
        self.other()?.execute(&put, values)?;
        Ok(())
    }

    fn make_list(&self, _: &str) -> Result<(), Failure> {
        nothing()
    }

    fn server(&self, _: Incident) -> Boxed<Result<(), Failure>> {
        Box::pin(async { nothing() })
    }
}
