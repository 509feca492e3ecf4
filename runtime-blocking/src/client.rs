//! What handles share: whose client it is, and how a thread waits for its answers.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};

use tenure_client::{Config, Driver, Error, Reason};

use crate::hub::{self, BlockingBinding, Hub};
use crate::parker;
#[cfg(unix)]
use crate::reader::Reader;

/// One client, as its handles see it.
pub(crate) struct Client {
    /// The process that may use it.
    process: u32,
    /// Of the driver's thread; none if it is driven elsewhere.
    hub: Weak<Hub>,
    #[cfg(unix)]
    reader: Option<Reader>,
}

impl Client {
    /// A client with a thread of its own.
    pub(crate) fn start(
        config: &Config,
        open: impl FnOnce(BlockingBinding, &Config) -> Result<(tenure_client::Locks, Driver), Error>,
    ) -> Result<(tenure_client::Locks, Arc<Client>), Error> {
        let (hub, poller) = Hub::new().map_err(|error| no("sockets to wait on", &error))?;
        let (locks, driver) = open(BlockingBinding(Arc::clone(&hub)), config)?;
        let client = Client {
            process: std::process::id(),
            hub: Arc::downgrade(&hub),
            #[cfg(unix)]
            reader: config.endpoint().map(|_| Reader::new(driver.pump(), &hub)),
        };
        hub::spawn(driver, hub, poller).map_err(|error| no("thread", &error))?;
        Ok((locks, Arc::new(client)))
    }

    /// A client that somebody else drives.
    pub(crate) fn driven_elsewhere() -> Arc<Client> {
        Arc::new(Client {
            process: std::process::id(),
            hub: Weak::new(),
            #[cfg(unix)]
            reader: None,
        })
    }

    /// Comes first in whatever waits, before any mutex.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        if self.is_copy() {
            let process = self.process;
            return Err(Error::Forked { process });
        }
        if hub::on_driver_thread() {
            return Err(Error::Misconfigured(Reason::Input(
                "a callback on the driver's thread would wait for itself: let another thread do it"
                    .into(),
            )));
        }
        Ok(())
    }

    /// Comes first in a verb that is one request: that says by itself whether this process may make it, before anything is
    /// waited for. So the system is asked for the process once.
    pub(crate) fn enter_to_ask(&self) -> Result<(), Error> {
        #[cfg(unix)]
        if self.reader.is_some() && !hub::on_driver_thread() {
            return Ok(());
        }
        self.enter()
    }

    /// Whether this process was forked off from that of the client.
    pub(crate) fn is_copy(&self) -> bool {
        std::process::id() != self.process
    }

    /// What the driver's thread has, if there is such a thread in this process.
    pub(crate) fn hub(&self) -> Weak<Hub> {
        match self.is_copy() {
            true => Weak::new(),
            false => Weak::clone(&self.hub),
        }
    }

    /// Makes a request and waits for its answer: reading that by itself where nobody else waits for one.
    pub(crate) fn ask<F: Future>(&self, future: F) -> F::Output {
        #[cfg(unix)]
        if let Some(reader) = &self.reader {
            return reader.ask(future);
        }
        parker::wait(future)
    }
}

fn no(what: &str, error: &std::io::Error) -> Error {
    let text = format!("the system gives no {what}: {error}");
    Error::Misconfigured(Reason::Input(text.into()))
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
