//! What a server says of itself, and what that means for locks.

use std::time::{Duration, SystemTime};

use tenure::{Examination, Flavour, ServerInfo};

use super::Check;
use super::server::named;
use crate::output::roughly;

/// Clocks that are further apart are worth a word.
const APART: Duration = Duration::from_secs(1);
/// A file of locks needs little; its journal may grow for a while.
const LEAST_FREE: u64 = 16 << 20;
const OLDEST: (u16, u16) = (6, 2);

/// Everything that can be said without trying. `asked` is from when to when the server was asked.
pub(super) fn checks(
    said: &Examination,
    server: &ServerInfo,
    asked: (SystemTime, SystemTime),
) -> Vec<Check> {
    let mut checks = vec![version(said, server), dialect(server), clock(said, asked)];
    if said.refused.iter().any(|(what, _)| &**what != "TIME") {
        checks.push(Check::warn(
            "server",
            format!("it does not say how it is set: {}", words(said)),
            "allow +info to this user, or look at replication, maxmemory-policy and appendonly yourself",
        ));
    }
    checks.extend(replication(said));
    checks.extend(eviction(said));
    checks.extend(persistence(said));
    checks
}

/// The same of a file. That it is on a disk of this machine was seen when it was opened.
pub(super) fn of_file(said: &Examination) -> Vec<Check> {
    let version = said.fact("sqlite_version").unwrap_or_default();
    let mode = said.fact("file_mode").unwrap_or_default();
    let mut checks = vec![Check::ok("version", format!("SQLite {version}"))];
    // The last digit is for everybody.
    checks.push(match mode.chars().last() {
        Some('2' | '3' | '6' | '7') => Check::warn(
            "file",
            format!("anybody on this machine may write it (mode {mode})"),
            "chmod o-w: who writes it can free any lock",
        ),
        _ => Check::ok("file", format!("on a disk of this machine, mode {mode}")),
    });
    checks.push(match said.fact("journal_mode") {
        Some("wal") => Check::ok("journal", "a write-ahead log"),
        other => Check::warn(
            "journal",
            format!(
                "mode {}: who reads waits for who writes",
                other.unwrap_or("unknown")
            ),
            "set journal_mode to wal, while nobody uses the file",
        ),
    });
    let free = said
        .fact("free_bytes")
        .and_then(|bytes| bytes.parse::<u64>().ok());
    checks.extend(free.map(|bytes| {
        let text = format!("{} MB are free", bytes >> 20);
        match bytes < LEAST_FREE {
            true => Check::warn(
                "space",
                text,
                "make room: on a full disk no lock is granted or renewed",
            ),
            false => Check::ok("space", text),
        }
    }));
    let step = said
        .fact("clock_step_us")
        .and_then(|us| us.parse::<i64>().ok());
    checks.push(match step {
        Some(us) => {
            let (by, way) = (roughly(Duration::from_micros(us.unsigned_abs())), direction(us));
            Check::warn(
                "clock",
                format!("this machine's clock was set {way} by {by} while locks were held"),
                "slew the clock instead (chrony, ntpd), or set it while nothing is held: leases in a file end by it",
            )
        }
        None => Check::ok("clock", "not set while locks are held"),
    });
    checks.push(Check::ok("persistence", "a file: locks outlive a restart"));
    checks
}

fn direction(us: i64) -> &'static str {
    match us < 0 {
        true => "back",
        false => "forwards",
    }
}

fn version(said: &Examination, server: &ServerInfo) -> Check {
    let exact = said.fact("valkey_version").or(said.fact("redis_version"));
    let known = server
        .version
        .map(|(major, minor)| format!("{major}.{minor}"));
    let version = exact.map(str::to_owned).or(known).unwrap_or_default();
    let text = format!("{} {version}", named(server.flavour));
    match (server.flavour, server.version) {
        (Flavour::Redis, Some(version)) if version < OLDEST => {
            Check::fail("version", text, "take Redis 6.2 or newer, or Valkey")
        }
        _ => Check::ok("version", text.trim_end().to_owned()),
    }
}

/// As the client chooses its commands: the table in `docs/wire.md`.
fn dialect(server: &ServerInfo) -> Check {
    let at_least = |wanted| server.version.is_some_and(|version| version >= wanted);
    let (renewal, release) = match server.flavour {
        Flavour::Redis if at_least((8, 4)) => ("SET IFEQ", "DELEX"),
        Flavour::Valkey if at_least((9, 0)) => ("SET IFEQ", "DELIFEQ"),
        Flavour::Valkey if at_least((8, 1)) => ("SET IFEQ", "a script"),
        _ => ("a script", "a script"),
    };
    let text = format!("one round trip each: renews by {renewal}, releases by {release}");
    Check::ok("dialect", text)
}

fn clock(said: &Examination, (from, to): (SystemTime, SystemTime)) -> Check {
    let Some(clock) = said.clock else {
        let text = "the server does not tell its time";
        return Check::warn("clock", text, "allow +time to this user; fences need it");
    };
    // It was read at some time in between.
    let behind = from.duration_since(clock).unwrap_or_default();
    let ahead = clock.duration_since(to).unwrap_or_default();
    let (apart, side) = match behind > ahead {
        true => (behind, "behind"),
        false => (ahead, "ahead of"),
    };
    if apart > APART {
        let text = format!("the server is {} {side} this host", roughly(apart));
        let fix = "run NTP on both. Leases do not need it; fences grow by the server's clock";
        return Check::warn("clock", text, fix);
    }
    Check::ok(
        "clock",
        "the server's and this host's are less than 1 s apart",
    )
}

fn replication(said: &Examination) -> Option<Check> {
    let role = said.fact("role")?;
    if role != "master" {
        let text = "this is a replica: it grants no locks";
        let fix = "connect to the primary; whoever fails over moves the address to it";
        return Some(Check::fail("replication", text, fix));
    }
    let replicas = said.fact("connected_slaves").unwrap_or("0");
    if replicas == "0" {
        return Some(Check::ok("replication", "a primary without replicas"));
    }
    let lags = said.facts.iter().filter(|(name, _)| {
        let digits = name.strip_prefix("slave");
        digits.is_some_and(|digits| digits.parse::<u16>().is_ok())
    });
    let lags = lags.filter_map(|(_, text)| text.rsplit_once("lag=")?.1.parse::<u64>().ok());
    let lag = lags.max().unwrap_or_default();
    Some(Check::warn(
        "replication",
        format!(
            "a primary, replicas: {replicas}, the slowest {lag} s behind: a failover can forget locks"
        ),
        "ask for .replicas(n, within) where that matters: docs/replicas.md",
    ))
}

fn eviction(said: &Examination) -> Option<Check> {
    let policy = said.fact("maxmemory_policy")?;
    let max = said.fact("maxmemory").unwrap_or("0");
    if policy == "noeviction" {
        return Some(Check::ok("eviction", "none: maxmemory-policy noeviction"));
    }
    let fix = "set maxmemory-policy to noeviction, or give locks a server of their own";
    Some(match max {
        "0" => Check::ok(
            "eviction",
            format!("none: maxmemory is 0; with one, maxmemory-policy {policy} would delete locks"),
        ),
        _ => Check::warn(
            "eviction",
            format!("locks are deleted when memory is full: maxmemory-policy {policy}"),
            fix,
        ),
    })
}

fn persistence(said: &Examination) -> Option<Check> {
    let is_kept = said.fact("aof_enabled")? == "1";
    let is_written = said
        .fact("aof_last_write_status")
        .is_none_or(|status| status == "ok");
    Some(match (is_kept, is_written) {
        (true, true) => Check::ok("persistence", "an append-only file"),
        (true, false) => Check::fail(
            "persistence",
            "the append-only file cannot be written: the server takes no writes",
            "make room on its disk, and look at its log",
        ),
        (false, _) => Check::warn(
            "persistence",
            "locks are forgotten when the server restarts",
            "set appendonly to yes, with appendfsync always if no lock may be forgotten",
        ),
    })
}

fn words(said: &Examination) -> String {
    let refused = said.refused.iter();
    let refused = refused.filter(|(what, _)| &**what != "TIME");
    let words = refused.map(|(_, why)| &**why).next();
    words.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;
    use std::time::UNIX_EPOCH;

    fn said(facts: &[(&str, &str)]) -> Examination {
        let mut said = Examination::default();
        let facts = facts
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()));
        said.facts = facts.collect();
        said
    }

    #[test]
    fn clocks_are_compared_with_the_time_that_the_answer_took() {
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        let grade = |server, asked| {
            let mut said = said(&[]);
            said.clock = Some(at(server));
            clock(&said, asked).grade
        };
        assert_eq!(grade(5_000, (at(4_000), at(6_000))), Grade::Ok);
        // A slow answer says nothing.
        assert_eq!(grade(5_000, (at(4_000), at(60_000))), Grade::Ok);
        assert_eq!(grade(7_100, (at(4_000), at(6_000))), Grade::Warn);
        assert_eq!(grade(2_900, (at(4_000), at(6_000))), Grade::Warn);
        assert_eq!(clock(&said(&[]), (at(0), at(0))).grade, Grade::Warn);
    }

    #[test]
    fn what_is_not_said_is_not_judged() {
        let none = said(&[]);
        assert!(replication(&none).is_none() && eviction(&none).is_none());
        assert!(persistence(&none).is_none());
    }

    #[test]
    fn the_slowest_replica_counts() {
        let said = said(&[
            ("role", "master"),
            ("connected_slaves", "2"),
            ("slave0", "ip=::1,port=1,state=online,offset=1,lag=3"),
            ("slave1", "ip=::1,port=2,state=online,offset=1,lag=1"),
            ("slave_read_only", "1"),
        ]);
        let check = replication(&said).unwrap();
        assert_eq!(check.grade, Grade::Warn);
        assert!(
            check.detail.contains("replicas: 2, the slowest 3 s behind"),
            "{}",
            check.detail
        );
    }

    #[test]
    fn a_file_without_room_or_open_to_all_is_warned_of() {
        let grades = |facts: &[(&str, &str)]| {
            let checks = of_file(&said(facts));
            let odd = checks.iter().filter(|check| check.grade != Grade::Ok);
            odd.map(|check| check.check).collect::<Vec<_>>()
        };
        let good = [
            ("journal_mode", "wal"),
            ("file_mode", "600"),
            ("free_bytes", "99999999"),
        ];
        assert_eq!(grades(&good), Vec::<&str>::new());
        let stepped = [&good[..], &[("clock_step_us", "-3600000000")]].concat();
        assert_eq!(grades(&stepped), ["clock"]);
        let bad = [
            ("journal_mode", "delete"),
            ("file_mode", "666"),
            ("free_bytes", "9"),
        ];
        assert_eq!(grades(&bad), ["file", "journal", "space"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_fails() {
        let said = said(&[("aof_enabled", "1"), ("aof_last_write_status", "err")]);
        assert_eq!(persistence(&said).unwrap().grade, Grade::Fail);
    }
}
