//! What is found out by trying, on names of our own.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tenure::blocking::{Lock, Locks, Request, connect_config};
use tenure::{Config, Error, Flavour, LockOptions, ServerInfo};

use super::Check;
use super::server::Heard;

/// Tries what locks do.
pub(super) struct Probe<'a> {
    locks: &'a Locks,
    server: ServerInfo,
    /// A name that nobody else uses.
    name: String,
}

/// The names that are tried: nothing else is touched.
const NAMES: &str = "tenure-doctor";
/// What we leave behind, if we are killed, is gone then.
const LEASE: Duration = Duration::from_secs(5);
/// So often a round trip is measured.
const ROUNDS: usize = 50;
/// A lease of one second has its connection declared dead after that: `LeaseConfig` says why.
const SHORT_LIMIT: Duration = Duration::from_millis(93);
/// Who waits is woken within this, or asks by itself.
const WOKEN: Duration = Duration::from_secs(2);

impl<'a> Probe<'a> {
    pub(super) fn new(locks: &'a Locks, server: ServerInfo) -> Probe<'a> {
        let random = RandomState::new().build_hasher().finish();
        let name = format!("{NAMES}:{random:016x}");
        Probe {
            locks,
            server,
            name,
        }
    }

    /// A question that is answered in one round trip, be it by a refusal.
    pub(super) fn round_trip(&self) -> Check {
        let mut took: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let begun = Instant::now();
                let _answered = self.locks.inspect(&self.name);
                begun.elapsed()
            })
            .collect();
        took.sort_unstable();
        let (p50, p99) = (took[ROUNDS / 2], took[ROUNDS * 99 / 100]);
        let us = |took: Duration| format!("{:.2} ms", took.as_secs_f64() * 1_000.0);
        let text = format!("p50 {}, p99 {} of {ROUNDS}", us(p50), us(p99));
        match p99 > SHORT_LIMIT {
            true => Check::warn(
                "round-trip",
                text,
                "take leases well above 1 s, whose renewals must be answered within 93 ms",
            ),
            false => Check::ok("round-trip", text),
        }
    }

    /// What this user may do; no more than the first failure where locks cannot be had for another reason.
    pub(super) fn permissions(&self, config: &Config) -> Vec<Check> {
        let mut checks = match self.request().acquire() {
            Ok(lock) => self.life(lock),
            Err(error) => {
                let fix = missing(&error, self.rights());
                let check = Check::fail("acquire", words(&error), fix);
                if !matches!(error, Error::Denied(_)) {
                    return vec![check];
                }
                vec![check]
            }
        };
        checks.extend(self.extras());
        checks.push(wake_ups(config, self));
        checks
    }

    /// To renew and release what was acquired: without that there are no locks.
    fn life(&self, lock: Lock) -> Vec<Check> {
        let rights = self.rights();
        let renewed = match lock.renew_now() {
            Ok(()) => Check::ok("renew", "allowed"),
            Err(error) => Check::fail("renew", words(&error), missing(&error, rights)),
        };
        let released = match released(lock) {
            Ok(true) => Check::ok("release", "allowed"),
            Ok(false) => {
                let text = "not confirmed: names stay taken to the end of their lease";
                Check::fail("release", text, allow(rights))
            }
            Err(error) => Check::fail("release", words(&error), missing(&error, rights)),
        };
        vec![Check::ok("acquire", "allowed"), renewed, released]
    }

    /// What not everybody needs, and the rights for it: the table in `docs/permissions.md`.
    fn extras(&self) -> [Check; 6] {
        let name = &self.name;
        [
            extra("inspect", "+getrange +pttl", || {
                self.locks.inspect(name).map(|_| true)
            }),
            // Always the same name: its counter is kept for a day.
            extra("fences", "+eval +evalsha +get +time +set", || {
                let request = self.locks.lock(NAMES).lease(LEASE).fenced();
                released(request.wait(LEASE).acquire()?)
            }),
            extra(
                "fair",
                "+eval +evalsha +get +set +del +time +pttl +zrange +zrangebyscore +zscore +zadd +zrem +pexpireat",
                || released(self.request().fair().acquire()?),
            ),
            extra("at-least", "+eval +evalsha +get +set", || {
                // Longer than it takes to see that the release is refused.
                let options = LockOptions::new().at_least(LEASE).lease(LEASE);
                let request = self.locks.lock(format!("{name}:at-least"));
                released(request.options(options).wait(LEASE).acquire()?)
            }),
            extra("list", "+scan +getrange +pttl", || {
                self.locks.list(name).map(|_| true)
            }),
            extra(
                "force-release",
                "+eval +evalsha +get +pttl +del +set",
                || {
                    let _lock = self.request().acquire()?;
                    self.locks.force_release(name).map(|_| true)
                },
            ),
        ]
    }

    fn request(&self) -> Request {
        self.locks.lock(&self.name).lease(LEASE).wait(LEASE)
    }

    /// What locks need on this server.
    fn rights(&self) -> &'static str {
        let at_least = |wanted| self.server.version.is_some_and(|version| version >= wanted);
        match self.server.flavour {
            Flavour::Redis if at_least((8, 4)) => "+set +delex",
            Flavour::Valkey if at_least((9, 0)) => "+set +delifeq",
            Flavour::Valkey if at_least((8, 1)) => "+set +eval +evalsha +get +del",
            _ => "+set +eval +evalsha +get +pexpire +del",
        }
    }
}

/// Whether the server tells when a name gets free: somebody waits who does not ask by itself.
fn wake_ups(config: &Config, probe: &Probe<'_>) -> Check {
    let heard = Arc::<Heard>::default();
    let config = config.clone().poll_limit(Duration::MAX);
    let woken = (|| {
        let other = connect_config(&config.observe(heard.clone()))?;
        let lock = probe.request().acquire()?;
        let waits = other.lock(&probe.name).lease(LEASE).wait(WOKEN);
        let waiting = thread::spawn(move || {
            let lock = waits.acquire()?;
            let woken = Instant::now();
            released(lock).map(|_| woken)
        });
        // It asks once, and is refused.
        thread::sleep(Duration::from_millis(100));
        let freed = Instant::now();
        released(lock)?;
        let woken = waiting.join().map_err(|_| Error::Closed)??;
        Ok::<Duration, Error>(woken.saturating_duration_since(freed))
    })();
    let fix = "speak RESP3 (Redis 6 or newer, no proxy that hides it), and allow +client|tracking +get +pttl";
    let unwatched = match &woken {
        Ok(_) => heard.unwatched(),
        Err(_) => heard.unwatched_soon(),
    };
    match (unwatched, woken) {
        (Some(why), _) => Check::warn(
            "wake-ups",
            format!("who waits asks again and again: {why}"),
            fix,
        ),
        (None, Ok(woken)) => {
            let ms = woken.as_secs_f64() * 1_000.0;
            Check::ok("wake-ups", format!("who waits is told, in {ms:.2} ms"))
        }
        (None, Err(error)) => Check::warn("wake-ups", format!("not tried: {}", words(&error)), fix),
    }
}

/// Locks work without it. Whether it was done, as far as the server has confirmed it.
fn extra(
    check: &'static str,
    rights: &str,
    attempt: impl FnOnce() -> Result<bool, Error>,
) -> Check {
    match attempt() {
        Ok(true) => Check::ok(check, "allowed"),
        Ok(false) => Check::warn(check, "not confirmed", allow(rights)),
        Err(error) => Check::warn(check, words(&error), missing(&error, rights)),
    }
}

fn released(lock: Lock) -> Result<bool, Error> {
    lock.release().map(|released| released.confirmed)
}

/// Of a refusal the server's own words are enough.
fn words(error: &Error) -> String {
    let text = error.to_string();
    match (error, text.split_once("the server says: ")) {
        (Error::Denied(_), Some((_, words))) => format!("refused: {}", words.trim_end_matches(')')),
        _ => text,
    }
}

/// What to do about a refusal: the server names the command, or that it is about keys.
fn missing(error: &Error, rights: &str) -> String {
    if !matches!(error, Error::Denied(_)) {
        return "cure that, and run this again".to_owned();
    }
    let text = error.to_string();
    let command = text
        .split_once("run the '")
        .and_then(|(_, rest)| rest.split_once('\''));
    match command {
        Some((command, _)) => {
            format!("allow +{command} to this user, of all that it needs: {rights}")
        }
        None if text.contains("key") => {
            format!("allow the keys: ~lock:* for the prefix `lock:`, and {rights}")
        }
        None => allow(rights),
    }
}

fn allow(rights: &str) -> String {
    format!("allow {rights} to this user: docs/permissions.md")
}
