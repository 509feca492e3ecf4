//! The stores there are: real servers behind a proxy, memory, a file, and the simulated server.

mod file;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_client::{Config, Error, connect_with};
use tenure_sim::{Client as SimClient, Mood, ServerHandle, World};
use tenure_tests::trouble::Trouble;
use tenure_tests::{Client, Cut, Failure, Proxy, Server, ServerKind, Side};

use crate::party::Verbs;
use crate::runtime::Runtime;
use crate::stage::{Connected, Incident, Key, Link, Stage, Weather};
use crate::{Boxed, Need};
pub use file::InFile;

/// A real server.
pub struct Real(Arc<Mutex<Site>>);

struct Site {
    server: Server,
    client: Client,
}

impl Real {
    /// A server of its own, which keeps its keys over a restart that is with data.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start(kind: ServerKind) -> Result<Self, Failure> {
        let server = Server::start_with_data(kind, &[])?;
        let client = server.client()?;
        Ok(Self(Arc::new(Mutex::new(Site { server, client }))))
    }

    /// The same server.
    #[must_use]
    pub fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    fn site(&self) -> MutexGuard<'_, Site> {
        locked(&self.0)
    }
}

impl Stage for Real {
    fn can(&self, _: Need) -> bool {
        true
    }

    fn open(
        &self,
        runtime: &dyn Runtime,
        settings: &dyn Fn(Config) -> Config,
    ) -> Result<Connected, Error> {
        let proxy = Proxy::start(self.site().server.addr()).map_err(|error| unusable(&error))?;
        let config = settings(Config::from_url(&proxy.url())?);
        Ok((runtime.open(&config)?, Box::new(proxy)))
    }

    fn look(&self, key: &str) -> Result<Option<Key>, Failure> {
        let client = &mut self.site().client;
        let value = client.get(key)?;
        Ok(match value {
            // The client says `MAX` for a key that never expires.
            Some(value) => Some((
                value,
                client.pttl(key)?.filter(|left| *left != Duration::MAX),
            )),
            None => None,
        })
    }

    fn delete(&self, key: &str) -> Result<bool, Failure> {
        self.site().client.del(key)
    }

    fn put(&self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Failure> {
        self.site().client.set(key, value, ttl)
    }

    fn make_list(&self, key: &str) -> Result<(), Failure> {
        let client = &mut self.site().client;
        client.del(key)?;
        client.ok(&["RPUSH", key, "an element"]).map(drop)
    }

    fn server(&self, what: Incident) -> Boxed<Result<(), Failure>> {
        let site = Arc::clone(&self.0);
        // It may take as long as it likes: the runtime goes on.
        crate::runtimes::off_thread(move || {
            let Site { server, client } = &mut *locked(&site);
            let trouble = |trouble: Trouble, on| match on {
                true => trouble.enter(server),
                false => trouble.leave(server),
            };
            match what {
                Incident::Restart { with_data } => {
                    match with_data {
                        true => server.restart_with_data()?,
                        false => server.restart_empty()?,
                    }
                    *client = server.client()?;
                    Ok(())
                }
                Incident::Flush => client.ok(&["FLUSHALL"]).map(drop),
                Incident::ForgetScripts => client.ok(&["SCRIPT", "FLUSH"]).map(drop),
                Incident::ReadOnly(on) => trouble(Trouble::ReadOnly, on),
                Incident::OutOfMemory(on) => trouble(Trouble::OutOfMemory, on),
                Incident::NoReplicas(on) => trouble(Trouble::NoReplicas, on),
            }
        })
    }
}

impl Link for Proxy {
    fn link(&self, what: Weather) -> Result<(), Failure> {
        let hold = |side, on| match on {
            true => self.hold(side),
            false => self.release(side),
        };
        match what {
            Weather::Cut => self.cut(Cut::Reset),
            Weather::Silent(on) => {
                hold(Side::ToServer, on);
                hold(Side::ToClient, on);
            }
            Weather::Deaf(on) => hold(Side::ToClient, on),
            Weather::Refused(on) => self.refuse(on),
            Weather::Slow(delay) => self.delay(Side::ToClient, delay),
        }
        Ok(())
    }
}

/// The store in memory: every client of a scene is a handle of the same one.
#[derive(Default)]
pub struct Memory(Mutex<Option<Box<dyn Verbs>>>);

impl Stage for Memory {
    fn can(&self, _: Need) -> bool {
        false
    }

    fn open(
        &self,
        runtime: &dyn Runtime,
        settings: &dyn Fn(Config) -> Config,
    ) -> Result<Connected, Error> {
        let config = settings(Config::in_memory());
        let mut first = locked(&self.0);
        let verbs = match &*first {
            Some(verbs) => verbs.another(),
            None => {
                let verbs = runtime.memory(&config)?;
                first.insert(verbs).another()
            }
        };
        Ok((verbs, Box::new(Nothing)))
    }

    fn look(&self, _: &str) -> Result<Option<Key>, Failure> {
        nothing()
    }

    fn delete(&self, _: &str) -> Result<bool, Failure> {
        nothing()
    }

    fn put(&self, _: &str, _: &str, _: Option<Duration>) -> Result<(), Failure> {
        nothing()
    }

    fn make_list(&self, _: &str) -> Result<(), Failure> {
        nothing()
    }

    fn server(&self, _: Incident) -> Boxed<Result<(), Failure>> {
        Box::pin(async { nothing() })
    }
}

struct Nothing;

impl Link for Nothing {
    fn link(&self, _: Weather) -> Result<(), Failure> {
        nothing()
    }
}

fn nothing<T>() -> Result<T, Failure> {
    Err("the store cannot do this: the scenario needs more than it says".into())
}

/// The simulated server, in its world.
pub struct Simulated {
    pub(crate) world: World,
    pub(crate) server: ServerHandle,
}

struct SimLink(SimClient, ServerHandle);

impl Stage for Simulated {
    fn can(&self, _: Need) -> bool {
        true
    }

    fn open(
        &self,
        _: &dyn Runtime,
        settings: &dyn Fn(Config) -> Config,
    ) -> Result<Connected, Error> {
        let config = Config::from_url(&format!("redis://{}", self.server.host()))?;
        let client = self.world.client();
        let (locks, driver) = connect_with(client.binding(), &settings(config))?;
        client.spawn(driver);
        let link = SimLink(client, self.server.clone());
        Ok((Box::new(locks), Box::new(link)))
    }

    fn look(&self, key: &str) -> Result<Option<Key>, Failure> {
        Ok(self.server.text(key))
    }

    fn delete(&self, key: &str) -> Result<bool, Failure> {
        Ok(self.server.delete(key))
    }

    fn put(&self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Failure> {
        self.server.set(key, value, ttl);
        Ok(())
    }

    fn make_list(&self, key: &str) -> Result<(), Failure> {
        self.server.make_list(key);
        Ok(())
    }

    fn server(&self, what: Incident) -> Boxed<Result<(), Failure>> {
        let server = &self.server;
        let mood = |mood, on| server.mood(if on { mood } else { Mood::Well });
        match what {
            Incident::Restart { with_data } => {
                server.stop();
                server.start(with_data);
            }
            Incident::Flush => server.flush(),
            Incident::ForgetScripts => server.forget_scripts(),
            Incident::ReadOnly(on) => mood(Mood::ReadOnly, on),
            Incident::OutOfMemory(on) => mood(Mood::OutOfMemory, on),
            Incident::NoReplicas(on) => mood(Mood::NoReplicas, on),
        }
        Box::pin(async { Ok(()) })
    }
}

impl Link for SimLink {
    fn link(&self, what: Weather) -> Result<(), Failure> {
        let SimLink(client, server) = self;
        match what {
            Weather::Cut => client.cut(server),
            Weather::Silent(on) => client.link(server, |link| link.silent = on),
            Weather::Deaf(on) => client.link(server, |link| link.deaf = on),
            Weather::Refused(on) => client.link(server, |link| link.refuses = on),
            Weather::Slow(delay) => client.link(server, |link| link.latency = (delay, delay)),
        }
        Ok(())
    }
}

fn unusable(error: &std::io::Error) -> Error {
    // There is no better one for a proxy that does not start.
    Config::from_url(&format!("the proxy does not start: {error}"))
        .map_or_else(|error| error, |_| Error::Closed)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
