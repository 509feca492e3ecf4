//! Whether the wall clock was set while locks were held, as those who open the file find out for each other.
//!
//! A client that runs compares the two clocks at every step, and tells its observer. A command that lives for a moment has nothing
//! to compare with: so whoever opens the file notes how far the wall clock is ahead of the time since the machine was
//! started, and sees whether that is still so.

use rusqlite::{Connection, Result, params};

use crate::table::{ENDLESS, Now, one, run};

/// The time since the machine was started, suspensions counted, and which start that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uptime {
    pub(crate) boot: String,
    pub(crate) us: i64,
}

/// What is called a step, in microseconds: more than this and a thousandth of the time since it was noted, which is what clocks
/// are slewed by.
const STEP: i64 = 250_000;
const SLEW: i64 = 1_000;

const CREATE: &str = "create table if not exists tenure_clock (
    id integer primary key check (id = 1), boot text not null, ahead_us integer not null, noted_us integer not null,
    step_us integer not null, until_ms integer not null) strict";

struct Noted {
    boot: String,
    /// How far the wall clock is ahead of the uptime.
    ahead_us: i64,
    /// The uptime then.
    noted_us: i64,
    /// By how much it was set, forwards if positive, while locks were held whose leases end at `until_ms` at the latest.
    step_us: i64,
    until_ms: i64,
}

impl Uptime {
    /// Where the system says so.
    #[cfg(target_os = "linux")]
    pub(crate) fn read() -> Option<Uptime> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Some(Uptime {
            boot: boot.trim().to_owned(),
            us: time.tv_sec * 1_000_000 + time.tv_nsec / 1_000,
        })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read() -> Option<Uptime> {
        None
    }
}

/// Compares, and notes what is new: mostly nothing.
pub(crate) fn note(conn: &Connection, uptime: &Uptime, now: Now) -> Result<()> {
    run(conn, CREATE, [])?;
    let ahead_us = i64::try_from(now.us).unwrap_or(i64::MAX) - uptime.us;
    let mut fresh = Noted {
        boot: uptime.boot.clone(),
        ahead_us,
        noted_us: uptime.us,
        step_us: 0,
        until_ms: 0,
    };
    // Between two starts of the machine there is nothing to compare.
    let noted = noted(conn)?.filter(|noted| noted.boot == uptime.boot);
    if let Some(noted) = noted {
        let by = ahead_us - noted.ahead_us;
        let slewed = (uptime.us - noted.noted_us).max(0) / SLEW;
        if by.abs() <= slewed + STEP / 10 {
            return Ok(());
        }
        (fresh.step_us, fresh.until_ms) = (noted.step_us, noted.until_ms);
        if by.abs() > slewed + STEP {
            // By the clock as it was those leases were running.
            let before_ms = (uptime.us + noted.ahead_us) / 1_000;
            let last =
                "select max(until_ms) from tenure_locks where until_ms > ?1 and until_ms < ?2";
            let last = one(conn, last, params![before_ms, ENDLESS], |row| {
                row.get::<_, Option<i64>>(0)
            })?;
            if let Some(last) = last.flatten() {
                // Set forwards it has ended them, and their holders may still believe in them.
                fresh.step_us = by;
                fresh.until_ms = last.max(now.ms + (last - before_ms));
            }
        }
    }
    put(conn, &fresh)
}

/// By how many microseconds the clock was set while locks were held, forwards if positive, if any of these may still be believed in.
pub(crate) fn step(conn: &Connection, now: Now) -> Result<Option<i64>> {
    let noted = noted(conn)?;
    Ok(noted
        .filter(|noted| noted.step_us != 0 && noted.until_ms > now.ms)
        .map(|noted| noted.step_us))
}

fn noted(conn: &Connection) -> Result<Option<Noted>> {
    let get = "select boot, ahead_us, noted_us, step_us, until_ms from tenure_clock";
    one(conn, get, [], |row| {
        Ok(Noted {
            boot: row.get(0)?,
            ahead_us: row.get(1)?,
            noted_us: row.get(2)?,
            step_us: row.get(3)?,
            until_ms: row.get(4)?,
        })
    })
}

fn put(conn: &Connection, noted: &Noted) -> Result<()> {
    let Noted {
        boot,
        ahead_us,
        noted_us,
        step_us,
        until_ms,
    } = noted;
    let put = "insert or replace into tenure_clock values (1, ?1, ?2, ?3, ?4, ?5)";
    run(
        conn,
        put,
        params![boot, ahead_us, noted_us, step_us, until_ms],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Stands, Table};

    const SECOND: i64 = 1_000_000;
    const HOUR: i64 = 3_600 * SECOND;
    /// Of the wall clock at the start of the machine.
    const EPOCH: i64 = 1_800_000_000 * SECOND;

    /// A file in memory, and a lock in it that ends so long after the start of the machine.
    fn file(ends: Option<i64>) -> Connection {
        let conn = Connection::open_in_memory().unwrap();
        Table::own().create(&conn).unwrap();
        if let Some(ends) = ends {
            let stands = Stands {
                value: b"tn1:p:0:me.s.1"[..].into(),
                until_ms: (EPOCH + ends) / 1_000,
            };
            Table::own().put(&conn, b"lock:a", &stands).unwrap();
        }
        conn
    }

    /// Opens the file so long after the start, when the clock was set by so much.
    fn open(conn: &Connection, at: i64, set: i64) -> Option<i64> {
        let uptime = Uptime {
            boot: "one".to_owned(),
            us: at,
        };
        let now = Now::of((EPOCH + at + set).try_into().unwrap());
        note(conn, &uptime, now).unwrap();
        step(conn, now).unwrap()
    }

    #[test]
    fn s12_a_clock_that_was_set_while_a_lock_was_held_is_found_until_its_lease_is_over() {
        for set in [HOUR, -HOUR, SECOND, -SECOND] {
            let conn = file(Some(30 * SECOND));
            assert_eq!(open(&conn, SECOND, 0), None);
            assert_eq!(open(&conn, 10 * SECOND, set), Some(set));
            // Whoever comes next finds it too.
            assert_eq!(open(&conn, 11 * SECOND, set), Some(set));
            let over = 31 * SECOND + (-set).max(0);
            assert_eq!(open(&conn, over, set), None);
        }
    }

    #[test]
    fn s12_a_clock_that_is_set_while_nothing_is_held_or_is_slewed_is_nobodys_concern() {
        let conn = file(Some(5 * SECOND));
        assert_eq!(open(&conn, SECOND, 0), None);
        assert_eq!(open(&conn, 10 * SECOND, HOUR), None);
        let conn = file(Some(2 * HOUR));
        for minute in 0..60 {
            let at = minute * 60 * SECOND;
            // Half a millisecond a second, whoever opens the file how often.
            assert_eq!(open(&conn, at, at / 2_000), None, "{minute}");
        }
    }

    #[test]
    fn s12_a_start_of_the_machine_begins_anew() {
        let conn = file(Some(2 * HOUR));
        assert_eq!(open(&conn, HOUR, 0), None);
        let uptime = Uptime {
            boot: "two".to_owned(),
            us: SECOND,
        };
        let now = Now::of((EPOCH + HOUR + 60 * SECOND).try_into().unwrap());
        note(&conn, &uptime, now).unwrap();
        assert_eq!(step(&conn, now).unwrap(), None);
    }
}
