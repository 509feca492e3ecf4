//! The store under examination: how it was reached, and all checks in order.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tenure::binding::Endpoint;
use tenure::blocking::{Locks, connect_config};
use tenure::{Config, Error, Event, Flavour, Observer, ServerInfo};

use super::probes::Probe;
use super::{Check, facts};
use crate::store::Store;

/// A store that was reached.
pub(super) struct Patient {
    config: Config,
    locks: Locks,
    heard: Arc<Heard>,
    took: Duration,
    is_tls: bool,
}

/// What the client says of its connection: soon after the call that it is about has returned.
#[derive(Default)]
pub(super) struct Heard {
    told: Mutex<Told>,
    more: Condvar,
}

#[derive(Default)]
struct Told {
    server: Option<ServerInfo>,
    unwatched: Option<String>,
}

/// What was not told by then is not.
const TOLD: Duration = Duration::from_millis(500);
/// Requests are refused or answered: nothing is waited for longer.
const REPLY_LIMIT: Duration = Duration::from_secs(2);

impl Patient {
    pub(super) fn reach(store: &Store) -> Result<Patient, Error> {
        let config = store.config().clone().label("tenure-doctor");
        let config = config.reply_limit(REPLY_LIMIT);
        let heard = Arc::<Heard>::default();
        let begun = Instant::now();
        let locks = connect_config(&config.clone().observe(heard.clone()))?;
        Ok(Patient {
            config,
            locks,
            heard,
            took: begun.elapsed(),
            is_tls: store.is_tls(),
        })
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        // A file says nothing of the kind.
        let server = match self.config.file() {
            None => self.heard.server(),
            Some(_) => ServerInfo::default(),
        };
        let mut checks = vec![self.reached()];
        checks.extend(self.transport());
        let before = SystemTime::now();
        match self.locks.examine() {
            Err(error) => checks.push(Check::fail("server", error.to_string(), "run it again")),
            Ok(examination) if self.config.file().is_some() => {
                checks.extend(facts::of_file(&examination));
            }
            Ok(examination) => {
                let asked = (before, SystemTime::now());
                checks.extend(facts::checks(&examination, &server, asked));
            }
        }
        let probe = Probe::new(&self.locks, server);
        checks.push(probe.round_trip());
        checks.extend(probe.permissions(&self.config));
        checks
    }

    fn reached(&self) -> Check {
        let ms = self.took.as_millis();
        if let Some(path) = self.config.file() {
            return Check::ok("reach", format!("{} in {ms} ms", path.display()));
        }
        let endpoint = self.config.endpoint();
        let endpoint = endpoint.map(ToString::to_string).unwrap_or_default();
        let protocol = self.heard.server().protocol;
        Check::ok("reach", format!("{endpoint} in {ms} ms, RESP{protocol}"))
    }

    /// Whether others can listen; a file is not reached over a network.
    fn transport(&self) -> Option<Check> {
        Some(match self.config.endpoint()? {
            _ if self.is_tls => Check::ok("tls", "the certificate is trusted"),
            Endpoint::Tcp { host, .. } if is_loopback(host) => {
                Check::ok("tls", "not needed: this machine")
            }
            Endpoint::Tcp { .. } => Check::warn(
                "tls",
                "passwords and owner tokens cross the network in clear",
                "let the server speak TLS, and begin the URL with rediss://",
            ),
            _ => Check::ok("tls", "not needed: a local socket"),
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl Heard {
    pub(super) fn server(&self) -> ServerInfo {
        self.wait(|told| told.server).unwrap_or_default()
    }

    /// Why the server does not tell when a name gets free, if that was told by now.
    pub(super) fn unwatched(&self) -> Option<String> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.unwatched.clone()
    }

    /// The same, for who has reason to wait for it.
    pub(super) fn unwatched_soon(&self) -> Option<String> {
        self.wait(|told| told.unwatched.clone())
    }

    fn wait<T>(&self, look: impl Fn(&Told) -> Option<T>) -> Option<T> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .more
            .wait_timeout_while(told, TOLD, |told| look(told).is_none());
        let (told, _) = waited.unwrap_or_else(PoisonError::into_inner);
        look(&told)
    }
}

impl Observer for Heard {
    fn event(&self, event: &Event<'_>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Connected(info) => told.server = Some(**info),
            Event::Unwatched(why) => told.unwatched = Some(why.to_string()),
            _ => {}
        }
        self.more.notify_all();
    }
}

/// For people.
pub(super) fn named(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Redis => "Redis",
        Flavour::Valkey => "Valkey",
        _ => "a server that does not say what it is",
    }
}
