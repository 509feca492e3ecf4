//! First come, first served: what the scripts of a fair lock do on a server, within one transaction.

use rusqlite::{Connection, params};
use tenure_client::engine::{Bytes, Waiter};

use crate::table::{Now, Stands, bytes, one, run};

type Result<T> = rusqlite::Result<T>;

/// The first of those who wait.
#[derive(Debug)]
pub(crate) struct First {
    pub(crate) value: Bytes,
    pub(crate) came_us: i64,
    lease_ms: i64,
}

impl First {
    /// What stands under the key once it was passed on to this one.
    pub(crate) fn stands(&self, now: Now) -> Stands {
        Stands {
            value: self.value.clone(),
            until_ms: now.ms.saturating_add(self.lease_ms),
        }
    }
}

/// Who does not wait any more is taken out.
pub(crate) fn purge(conn: &Connection, key: &[u8], now: Now) -> Result<()> {
    let delete = "delete from tenure_queue where key = ?1 and alive_ms <= ?2";
    run(conn, delete, params![key, now.ms])
}

pub(crate) fn first(conn: &Connection, key: &[u8]) -> Result<Option<First>> {
    let get = "select value, came_us, lease_ms from tenure_queue where key = ?1 order by came_us, value limit 1";
    one(conn, get, params![key], |row| {
        Ok(First {
            value: bytes(row, 0)?,
            came_us: row.get(1)?,
            lease_ms: row.get(2)?,
        })
    })
}

/// When this one came, and whether it stands in the queue. A job that takes its time makes it later than it is, a clock that is set back
/// earlier, and those who come after that too: the earliest counts.
pub(crate) fn came(
    conn: &Connection,
    key: &[u8],
    waiter: &Waiter,
    now: Now,
) -> Result<(i64, bool)> {
    let age = u64::try_from(waiter.age.as_micros()).unwrap_or(u64::MAX);
    let came = i64::try_from(now.us.saturating_sub(age)).unwrap_or(i64::MAX);
    let get = "select came_us from tenure_queue where key = ?1 and value = ?2";
    let was = one(conn, get, params![key, &*waiter.value], |row| {
        row.get::<_, i64>(0)
    })?;
    Ok((was.map_or(came, |was| was.min(came)), was.is_some()))
}

/// How many wait.
pub(crate) fn count(conn: &Connection, key: &[u8]) -> Result<u32> {
    let get = "select count(*) from tenure_queue where key = ?1";
    let count = one(conn, get, params![key], |row| row.get(0))?;
    Ok(count.unwrap_or(0))
}

/// Into the queue, or back to its place.
pub(crate) fn join(
    conn: &Connection,
    key: &[u8],
    waiter: &Waiter,
    came_us: i64,
    now: Now,
) -> Result<()> {
    let put = "insert into tenure_queue (key, value, came_us, alive_ms, lease_ms) values (?1, ?2, ?3, ?4, ?5)
        on conflict (key, value) do update set came_us = excluded.came_us, alive_ms = excluded.alive_ms";
    let lease_ms = i64::try_from(waiter.lease.as_millis()).unwrap_or(i64::MAX);
    let alive_ms = now.ms.saturating_add(lease_ms);
    run(
        conn,
        put,
        params![key, &*waiter.value, came_us, alive_ms, lease_ms],
    )
}

pub(crate) fn leave(conn: &Connection, key: &[u8], value: &[u8]) -> Result<()> {
    let delete = "delete from tenure_queue where key = ?1 and value = ?2";
    run(conn, delete, params![key, value])
}
