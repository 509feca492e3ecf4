//! The engine: each job one transaction, or a read where nothing is to be written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tenure_client::StoreFault;
use tenure_client::engine::{Bytes, Done, Engine, Found, Job, Trouble, Waiter};
use tenure_core::fence::{self, FenceFault};

use crate::clock::{self, Uptime};
use crate::facts::facts;
use crate::file::{self, Identity, OpenFile};
use crate::queue;
use crate::table::{self, ENDLESS, Now, Stands, Table, one, run};
use crate::trouble;

/// So many writes come between two looks for what can be forgotten.
const SWEEP: u32 = 1_000;

/// How long the note of a removal by force is kept, in milliseconds: a minute, and as long as its holder could go on.
const NOTED: (i64, i64) = (60_000, 30 * 86_400_000);

/// Unix time in microseconds.
pub(crate) type WallClock = Box<dyn Fn() -> u64 + Send>;

/// A file with locks.
pub(crate) struct Sqlite {
    path: PathBuf,
    table: Table,
    wall: WallClock,
    /// Nothing where the wall clock is not the system's.
    uptime: fn() -> Option<Uptime>,
    open: Option<Open>,
    /// Why it is not open, for the jobs that were handed out behind the try to open it.
    unopened: Option<Trouble>,
}

struct Open {
    file: OpenFile,
    /// What the file said of its changes when that was last asked.
    version: i64,
    limit: Duration,
    writes: u32,
}

/// Why a transaction is given up.
enum Stop {
    Sqlite(rusqlite::Error),
    Unminted(FenceFault),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Stop {
        Stop::Sqlite(error)
    }
}

impl Sqlite {
    pub(crate) fn new(
        path: &Path,
        table: Option<&str>,
        (wall, uptime): (WallClock, fn() -> Option<Uptime>),
    ) -> Sqlite {
        Sqlite {
            // The process may go to another folder.
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            table: table.map_or_else(Table::own, Table::shared),
            wall,
            uptime,
            open: None,
            unopened: None,
        }
    }

    fn now(&self) -> Now {
        Now::of((self.wall)())
    }

    fn conn(&self) -> Result<&Connection, Trouble> {
        let open = self.open.as_ref();
        open.map(|open| &open.file.conn)
            .ok_or_else(|| Trouble::new(StoreFault::Io, "it is not open"))
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&Connection, Now) -> rusqlite::Result<T>,
    ) -> Result<T, Trouble> {
        read(self.conn()?, self.now()).map_err(|error| trouble::of(&error))
    }

    /// One transaction that writes. Nobody else writes from its begin on, so its time is read behind that.
    fn write(
        &self,
        write: impl FnOnce(&Connection, Now) -> Result<Done, Stop>,
    ) -> Result<Done, Trouble> {
        let conn = self.conn()?;
        let end = |how| run(conn, how, []).map_err(|error| trouble::of(&error));
        end("begin immediate")?;
        let stop = match write(conn, self.now()) {
            Ok(done) => match end("commit") {
                Ok(()) => return Ok(done),
                // Others were in the way, or there was no room: it was not written.
                Err(trouble) if matches!(trouble.fault, StoreFault::Busy | StoreFault::Full) => {
                    Err(trouble)
                }
                Err(trouble) => Err(Trouble {
                    maybe_executed: true,
                    ..trouble
                }),
            },
            Err(Stop::Unminted(fault)) => Ok(Done::Unminted(fault)),
            Err(Stop::Sqlite(error)) => Err(trouble::of(&error)),
        };
        // Some errors have ended it already.
        if !conn.is_autocommit() {
            let _ = end("rollback");
        }
        stop
    }

    /// What the key has. What has ended is still there for those who have written it themselves: nobody else has since.
    fn found(
        &self,
        conn: &Connection,
        key: &[u8],
        own: &[Bytes],
        now: Now,
    ) -> rusqlite::Result<Found> {
        let stands = self.table.get(conn, key)?;
        let stands =
            stands.filter(|stands| stands.until_ms > now.ms || own.contains(&stands.value));
        let forced = table::forced(conn, key, now)?;
        Ok(Found {
            forced,
            ..found(stands, now)
        })
    }

    fn acquire(&self, key: &[u8], grant: &Grant<'_>) -> Result<Done, Trouble> {
        // Who is refused disturbs nobody who writes.
        let found = self.read(|conn, now| self.found(conn, key, &[], now))?;
        if found.value.is_some() {
            return Ok(Done::Refused(found));
        }
        self.write(|conn, now| {
            let found = self.found(conn, key, &[], now)?;
            match found.value {
                Some(_) => Ok(Done::Refused(found)),
                None => self.grant(conn, key, grant, now),
            }
        })
    }

    fn grant(
        &self,
        conn: &Connection,
        key: &[u8],
        grant: &Grant<'_>,
        now: Now,
    ) -> Result<Done, Stop> {
        let fence = match grant.fence {
            Some(floor) => {
                let counter = table::fence(conn, key)?;
                let fence = fence::mint(now.us, counter, floor).map_err(Stop::Unminted)?;
                table::set_fence(conn, key, fence)?;
                Some(fence)
            }
            None => None,
        };
        self.put(conn, key, grant.value, grant.lease, now)?;
        Ok(Done::Granted { fence })
    }

    fn put(
        &self,
        conn: &Connection,
        key: &[u8],
        value: &[u8],
        lease: Duration,
        now: Now,
    ) -> rusqlite::Result<()> {
        let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let stands = Stands {
            value: value.into(),
            until_ms: now.ms.saturating_add(lease_ms),
        };
        self.table.put(conn, key, &stands)
    }

    fn swap(&self, key: &[u8], old: &Bytes, grant: &Grant<'_>) -> Result<Done, Trouble> {
        self.write(|conn, now| {
            let found = self.found(conn, key, std::slice::from_ref(old), now)?;
            match found.value.as_ref() == Some(old) {
                true => self.grant(conn, key, grant, now),
                false => Ok(Done::Refused(found)),
            }
        })
    }

    fn clear(
        &self,
        key: &[u8],
        values: &[Bytes],
        of_hold: usize,
        cooling: Option<&(Bytes, Duration)>,
    ) -> Result<Done, Trouble> {
        self.write(|conn, now| {
            let found = self.found(conn, key, values, now)?;
            let at = place(&found, values);
            let mut mine = at.is_some_and(|at| at < of_hold);
            match (cooling, at) {
                (Some((value, rest)), Some(_)) if mine => self.put(conn, key, value, *rest, now)?,
                // Cooled before, and the answer was not had.
                (Some((value, _)), None) => mine = found.value.as_ref() == Some(value),
                (_, Some(_)) => self.table.delete(conn, key)?,
                (None, None) => {}
            }
            Ok(Done::Cleared { mine, found })
        })
    }

    fn take(
        &self,
        key: &[u8],
        grant: &Grant<'_>,
        waiter: Option<&Waiter>,
        most: Option<u32>,
    ) -> Result<Done, Trouble> {
        self.write(|conn, now| {
            let mut found = self.found(conn, key, &[], now)?;
            queue::purge(conn, key, now)?;
            let first = queue::first(conn, key)?;
            let came = match waiter {
                Some(waiter) => {
                    let (came, waits) = queue::came(conn, key, waiter, now)?;
                    Some((waiter, came, waits))
                }
                None => None,
            };
            let is_mine = |value: &Bytes| waiter.is_some_and(|waiter| waiter.value == *value);
            let comes_first = match &first {
                None => true,
                Some(first) => {
                    is_mine(&first.value) || came.is_some_and(|(_, came, _)| came < first.came_us)
                }
            };
            if match &found.value {
                Some(value) => is_mine(value),
                None => comes_first,
            } {
                if let Some(waiter) = waiter {
                    queue::leave(conn, key, &waiter.value)?;
                }
                return self.grant(conn, key, grant, now);
            }
            if let (None, Some(first)) = (&found.value, first) {
                let passed = self.pass_on(conn, key, &first, now)?;
                found = Found {
                    forced: found.forced.take(),
                    ..self::found(Some(passed), now)
                };
            }
            if let Some((waiter, came, waits)) = came {
                if let Some(most) = most
                    && !waits
                    && queue::count(conn, key)? >= most
                {
                    return Ok(Done::Full(found));
                }
                queue::join(conn, key, waiter, came, now)?;
            }
            Ok(Done::Refused(found))
        })
    }

    /// The key to whoever waits first, who leaves the queue by it: if it does not come, it does not stand in the way again.
    fn pass_on(
        &self,
        conn: &Connection,
        key: &[u8],
        first: &queue::First,
        now: Now,
    ) -> rusqlite::Result<Stands> {
        queue::leave(conn, key, &first.value)?;
        let stands = first.stands(now);
        self.table.put(conn, key, &stands)?;
        Ok(stands)
    }

    fn pass(
        &self,
        key: &[u8],
        values: &[Bytes],
        of_hold: usize,
        leaves: &Bytes,
        next: Option<&Waiter>,
    ) -> Result<Done, Trouble> {
        self.write(|conn, now| {
            let found = self.found(conn, key, values, now)?;
            queue::purge(conn, key, now)?;
            queue::leave(conn, key, leaves)?;
            let at = place(&found, values);
            let mine = at.is_some_and(|at| at < of_hold);
            if let Some(next) = next {
                let (came, _) = queue::came(conn, key, next, now)?;
                queue::join(conn, key, next, came, now)?;
            }
            if at.is_some() || found.value.as_ref() == Some(leaves) {
                match queue::first(conn, key)? {
                    Some(first) => drop(self.pass_on(conn, key, &first, now)?),
                    None => self.table.delete(conn, key)?,
                }
            }
            Ok(Done::Cleared { mine, found })
        })
    }

    fn inspect(&self, keys: &[Bytes]) -> Result<Done, Trouble> {
        let look = |conn: &Connection, key: &Bytes, now| {
            Ok(Found {
                fence: table::fence(conn, key)?,
                ..self.found(conn, key, &[], now)?
            })
        };
        let found = self.read(|conn, now| keys.iter().map(|key| look(conn, key, now)).collect())?;
        Ok(Done::Inspected(found))
    }

    fn remove(&self, key: &[u8], by: &[u8], only: Option<&Bytes>) -> Result<Done, Trouble> {
        self.write(|conn, now| {
            let stands = self.table.get(conn, key)?;
            let stands = stands.filter(|stands| stands.until_ms > now.ms);
            let stands = stands.filter(|stands| only.is_none_or(|only| *only == stands.value));
            if let Some(Stands { value, until_ms }) = &stands {
                let note = [by, b".", value].concat();
                let (least, most) = NOTED;
                let left = until_ms.saturating_sub(now.ms).clamp(least, most);
                table::set_forced(conn, key, &note, now.ms.saturating_add(left))?;
                self.table.delete(conn, key)?;
            }
            Ok(Done::Removed(stands.map(|stands| stands.value)))
        })
    }

    /// Whether the file is still the one that was opened: in one that was deleted nobody else sees the locks.
    fn check_identity(&self) -> Result<(), Trouble> {
        if let (None, Some(trouble)) = (&self.open, &self.unopened) {
            return Err(trouble.clone());
        }
        let identity = self.open.as_ref().map(|open| open.file.identity);
        match identity == Identity::at(&self.path) {
            true => Ok(()),
            false => Err(Trouble::new(
                StoreFault::Io,
                format!("it was deleted or replaced: {}", self.path.display()),
            )),
        }
    }

    fn prepare(&mut self, limit: Duration) -> Result<(), Trouble> {
        self.check_identity()?;
        if let Some(open) = &mut self.open {
            if open.limit != limit {
                let conn = &open.file.conn;
                conn.busy_timeout(limit)
                    .map_err(|error| trouble::of(&error))?;
                open.limit = limit;
            }
            open.writes += 1;
            if open.writes % SWEEP == 0 {
                let now = Now::of((self.wall)());
                // What is not forgotten now is forgotten later.
                let _ = self.table.sweep(&open.file.conn, now);
            }
        }
        Ok(())
    }
}

/// What is to be written, and whether with a fence above this.
struct Grant<'a> {
    value: &'a [u8],
    lease: Duration,
    fence: Option<u64>,
}

fn found(stands: Option<Stands>, now: Now) -> Found {
    let left = |until_ms: i64| {
        let left = u64::try_from(until_ms.saturating_sub(now.ms)).unwrap_or(0);
        (until_ms != ENDLESS).then(|| Duration::from_millis(left))
    };
    Found {
        remaining: stands.as_ref().and_then(|stands| left(stands.until_ms)),
        value: stands.map(|stands| stands.value),
        ..Found::default()
    }
}

/// Which of these values stands there.
fn place(found: &Found, values: &[Bytes]) -> Option<usize> {
    let value = found.value.as_ref()?;
    values.iter().position(|own| own == value)
}

fn version(conn: &Connection) -> rusqlite::Result<i64> {
    let version = one(conn, "pragma data_version", [], |row| row.get(0))?;
    Ok(version.unwrap_or(0))
}

impl Engine for Sqlite {
    fn open(&mut self, limit: Duration) -> Result<(), Trouble> {
        self.open = None;
        let file = file::open(&self.path, &self.table, limit)
            .inspect_err(|trouble| self.unopened = Some(trouble.clone()))?;
        let version = version(&file.conn).map_err(|error| trouble::of(&error))?;
        let _ = self.table.sweep(&file.conn, self.now());
        if let (Some(uptime), false) = ((self.uptime)(), self.table.is_shared()) {
            // What is not noted now is noted by the next one.
            let _ = clock::note(&file.conn, &uptime, self.now());
        }
        self.open = Some(Open {
            file,
            version,
            limit,
            writes: 0,
        });
        Ok(())
    }

    fn carry_out(&mut self, job: &Job, limit: Duration) -> Result<Done, Trouble> {
        self.prepare(limit)?;
        let grant = |value, lease, fence| Grant {
            value,
            lease,
            fence,
        };
        match job {
            Job::Acquire {
                key,
                value,
                lease,
                fence,
            } => self.acquire(key, &grant(value, *lease, *fence)),
            Job::Swap {
                key,
                old,
                new,
                lease,
                fence,
            } => self.swap(key, old, &grant(new, *lease, *fence)),
            Job::Look { key, value } => self
                .read(|conn, now| self.found(conn, key, std::slice::from_ref(value), now))
                .map(Done::Refused),
            Job::Clear {
                key,
                values,
                of_hold,
                cooling,
            } => self.clear(key, values, *of_hold, cooling.as_ref()),
            Job::Take {
                key,
                value,
                lease,
                fence,
                waiter,
                most,
            } => {
                let grant = grant(value, *lease, *fence);
                self.take(key, &grant, waiter.as_ref(), *most)
            }
            Job::Pass {
                key,
                values,
                of_hold,
                leaves,
                next,
            } => self.pass(key, values, *of_hold, leaves, next.as_ref()),
            Job::Inspect { keys } => self.inspect(keys),
            Job::List { start } => self
                .read(|conn, now| self.table.list(conn, start, now))
                .map(Done::Listed),
            Job::Remove { key, by, only, .. } => self.remove(key, by, only.as_ref()),
            Job::Examine => Ok(Done::Examined(facts(self.conn()?, &self.path, self.now()))),
            _ => Err(Trouble::new(
                StoreFault::Unusable,
                "this version of the store cannot do it: update tenure-sqlite",
            )),
        }
    }

    fn changes(&mut self) -> Result<Option<Vec<Bytes>>, Trouble> {
        self.check_identity()?;
        let version = self.read(|conn, _| version(conn))?;
        let was = match &mut self.open {
            Some(open) => std::mem::replace(&mut open.version, version),
            None => return Ok(None),
        };
        match was == version {
            true => Ok(None),
            false => self.read(table::all_forced).map(Some),
        }
    }

    fn wall_us(&self) -> u64 {
        (self.wall)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_behind_an_open_that_failed_says_why_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("no/such/locks.db");
        let clocks: (WallClock, fn() -> Option<Uptime>) = (Box::new(|| 0), || None);
        let mut store = Sqlite::new(&path, None, clocks);
        let limit = Duration::from_secs(1);
        let trouble = store.open(limit).unwrap_err();
        assert_eq!(store.prepare(limit), Err(trouble));
    }
}
