//! What is in the file, and the statements that read and write it. Each is one row by its key.
//!
//! `tenure_locks` has the values, as `docs/wire.md` has them; or a table that is shared with programs of another library has.
//! `tenure_fences` has the last fence of a lock, `tenure_forced` who removed a value by force, `tenure_queue` those who wait.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tenure_client::engine::Bytes;
use tenure_core::fence::DAY;

type Result<T> = rusqlite::Result<T>;

/// The time of a step: read once it can write, so that no step sees an earlier time than one before it, unless the clock is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) us: u64,
    /// As the file has times: whole milliseconds, rounded down.
    pub(crate) ms: i64,
}

impl Now {
    pub(crate) fn of(us: u64) -> Now {
        let ms = i64::try_from(us / 1_000).unwrap_or(i64::MAX);
        Now { us, ms }
    }
}

/// A value and until when it stands there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) value: Bytes,
    pub(crate) until_ms: i64,
}

/// It stands there for ever.
pub(crate) const ENDLESS: i64 = i64::MAX;

/// The table that has the values.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    shared: bool,
    create: String,
    get: String,
    put: String,
    delete: String,
    list: String,
    repair: Option<Repair>,
}

/// How a table of the older form gets its times.
#[derive(Clone, Debug)]
struct Repair {
    /// As a string of SQL.
    name: String,
    add: String,
}

const OF_OURS: &str = "
create table if not exists tenure_fences (
    key blob primary key not null, fence integer not null) strict, without rowid;
create table if not exists tenure_forced (
    key blob primary key not null, note blob not null, until_ms integer not null) strict, without rowid;
create table if not exists tenure_queue (
    key blob not null, value blob not null, came_us integer not null, alive_ms integer not null,
    lease_ms integer not null, primary key (key, value)) strict, without rowid;";

impl Table {
    /// That of a file of ours.
    pub(crate) fn own() -> Table {
        Table {
            shared: false,
            create: "create table if not exists tenure_locks (
                key blob primary key not null, value blob not null, until_ms integer not null) strict, without rowid"
                .to_owned(),
            get: "select value, until_ms from tenure_locks where key = ?1".to_owned(),
            put: "insert into tenure_locks (key, value, until_ms) values (?1, ?2, ?3)
                on conflict (key) do update set value = excluded.value, until_ms = excluded.until_ms"
                .to_owned(),
            delete: "delete from tenure_locks where key = ?1".to_owned(),
            list: "select key from tenure_locks where key >= ?1 and until_ms > ?2 order by key".to_owned(),
            repair: None,
        }
    }

    /// One that is shared with programs of the .NET library: its names are text, its times too, in whole seconds.
    ///
    /// A time is rounded up, so that the others take nothing over too early. Who wrote a row without a time, in the table's older form,
    /// keeps it until it is deleted.
    pub(crate) fn shared(name: &str) -> Table {
        let table = format!("\"{}\"", name.replace('"', "\"\""));
        Table {
            shared: true,
            create: format!(
                "create table if not exists {table} (resource_id text primary key, owner_id text not null,
                acquired_at text not null, expires_at text not null default (datetime('now', '+60 seconds')))"
            ),
            get: format!(
                "select cast(owner_id as blob), case when expires_at < '9999' then
                coalesce(cast(unixepoch(expires_at, 'subsec') * 1000 as integer), {ENDLESS}) else {ENDLESS} end
                from {table} where resource_id = cast(?1 as text)"
            ),
            put: format!(
                "insert into {table} (resource_id, owner_id, acquired_at, expires_at)
                values (cast(?1 as text), cast(?2 as text), datetime('now'),
                datetime((?3 + 999) / 1000, 'unixepoch'))
                on conflict (resource_id) do update set owner_id = excluded.owner_id, expires_at = excluded.expires_at,
                acquired_at = case owner_id when excluded.owner_id then acquired_at else excluded.acquired_at end"
            ),
            delete: format!("delete from {table} where resource_id = cast(?1 as text)"),
            list: format!(
                "select cast(resource_id as blob) from {table} where resource_id >= cast(?1 as text)
                and (expires_at >= '9999' or unixepoch(expires_at, 'subsec') * 1000 > ?2) order by resource_id"
            ),
            repair: Some(Repair {
                name: format!("'{}'", name.replace('\'', "''")),
                add: format!(
                    "alter table {table} add column expires_at text not null default '9999-12-31 23:59:59'"
                ),
            }),
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    pub(crate) fn create(&self, conn: &Connection) -> Result<()> {
        conn.execute_batch(&self.create)?;
        if let Some(repair) = &self.repair {
            let has = format!(
                "select 1 from pragma_table_info({}) where name = 'expires_at'",
                repair.name
            );
            if one(conn, &has, [], |row| row.get::<_, i64>(0))?.is_none() {
                conn.execute_batch(&repair.add)?;
            }
        }
        conn.execute_batch(OF_OURS)
    }

    /// What stands under the key, also when it has ended.
    pub(crate) fn get(&self, conn: &Connection, key: &[u8]) -> Result<Option<Stands>> {
        one(conn, &self.get, params![key], |row| {
            Ok(Stands {
                value: bytes(row, 0)?,
                until_ms: row.get(1)?,
            })
        })
    }

    pub(crate) fn put(&self, conn: &Connection, key: &[u8], stands: &Stands) -> Result<()> {
        let Stands { value, until_ms } = stands;
        run(conn, &self.put, params![key, &**value, until_ms])
    }

    pub(crate) fn delete(&self, conn: &Connection, key: &[u8]) -> Result<()> {
        run(conn, &self.delete, params![key])
    }

    /// The keys that begin so, as far as something stands under them.
    pub(crate) fn list(&self, conn: &Connection, start: &[u8], now: Now) -> Result<Vec<Bytes>> {
        let mut statement = conn.prepare_cached(&self.list)?;
        let keys = statement.query_map(params![start, now.ms], |row| bytes(row, 0))?;
        keys.take_while(|key| !matches!(key, Ok(key) if !key.starts_with(start)))
            .collect()
    }

    /// Forgets what is of no interest any more: first by reading, so that nobody waits for it.
    pub(crate) fn sweep(&self, conn: &Connection, now: Now) -> Result<()> {
        // Once the clock is past a fence, the next one is more without it; and what has ended its holder may still renew, if it is
        // only the clock that was set.
        let day_ago = Now::of(now.us.saturating_sub(DAY));
        let fence = i64::try_from(day_ago.us).unwrap_or(i64::MAX);
        let swept = [
            ("tenure_locks", "key", "until_ms <= ?1", day_ago.ms),
            ("tenure_forced", "key", "until_ms <= ?1", now.ms),
            ("tenure_queue", "(key, value)", "alive_ms <= ?1", now.ms),
            ("tenure_fences", "key", "fence < ?1", fence),
        ];
        for (table, key, over, by) in swept.into_iter().skip(usize::from(self.shared)) {
            let any = format!("select 1 from {table} where {over} limit 1");
            if one(conn, &any, params![by], |row| row.get::<_, i64>(0))?.is_some() {
                let columns = key.trim_matches(['(', ')']);
                // A lock that waits for this waits for little.
                let delete = format!(
                    "delete from {table} where {key} in (select {columns} from {table} where {over} limit 500)"
                );
                run(conn, &delete, params![by])?;
            }
        }
        Ok(())
    }
}

/// The last fence of a key.
pub(crate) fn fence(conn: &Connection, key: &[u8]) -> Result<Option<u64>> {
    let get = "select fence from tenure_fences where key = ?1";
    let fence = one(conn, get, params![key], |row| row.get::<_, i64>(0))?;
    Ok(fence.map(|fence| u64::try_from(fence).unwrap_or(0)))
}

pub(crate) fn set_fence(conn: &Connection, key: &[u8], fence: u64) -> Result<()> {
    let put = "insert into tenure_fences (key, fence) values (?1, ?2)
        on conflict (key) do update set fence = excluded.fence";
    let fence = i64::try_from(fence).unwrap_or(i64::MAX);
    run(conn, put, params![key, fence])
}

/// Who removed the value of a key by force, as long as that is of interest.
pub(crate) fn forced(conn: &Connection, key: &[u8], now: Now) -> Result<Option<Bytes>> {
    let get = "select note from tenure_forced where key = ?1 and until_ms > ?2";
    one(conn, get, params![key, now.ms], |row| bytes(row, 0))
}

/// The keys whose values were removed by force lately: mostly none.
pub(crate) fn all_forced(conn: &Connection, now: Now) -> Result<Vec<Bytes>> {
    let get = "select key from tenure_forced where until_ms > ?1";
    let mut statement = conn.prepare_cached(get)?;
    let keys = statement.query_map(params![now.ms], |row| bytes(row, 0))?;
    keys.collect()
}

pub(crate) fn set_forced(conn: &Connection, key: &[u8], note: &[u8], until_ms: i64) -> Result<()> {
    let put = "insert into tenure_forced (key, note, until_ms) values (?1, ?2, ?3)
        on conflict (key) do update set note = excluded.note, until_ms = excluded.until_ms";
    run(conn, put, params![key, note, until_ms])
}

pub(crate) fn one<T>(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl FnOnce(&Row<'_>) -> Result<T>,
) -> Result<Option<T>> {
    conn.prepare_cached(sql)?.query_row(params, read).optional()
}

pub(crate) fn run(conn: &Connection, sql: &str, params: impl rusqlite::Params) -> Result<()> {
    conn.prepare_cached(sql)?.execute(params).map(drop)
}

pub(crate) fn bytes(row: &Row<'_>, column: usize) -> Result<Bytes> {
    Ok(row.get_ref(column)?.as_bytes()?.into())
}
