//! What a store gives a scenario: somewhere to open clients, and something to be done to it.

use std::time::Duration;

use tenure_client::{Config, Error};
use tenure_tests::Failure;

use crate::party::Verbs;
use crate::runtime::Runtime;
use crate::{Boxed, Need};

/// A store, for one scenario.
///
/// What it cannot do fails with a message; no scenario asks for it, since it would have said so in its needs.
pub trait Stage: Send + Sync + 'static {
    /// Whether it can do this.
    fn can(&self, need: Need) -> bool;

    /// A client on it with these settings, on a connection of its own.
    ///
    /// # Errors
    /// When the settings are refused.
    fn open(
        &self,
        runtime: &dyn Runtime,
        settings: &dyn Fn(Config) -> Config,
    ) -> Result<Connected, Error>;

    /// The value of a key, and how long it has left.
    ///
    /// # Errors
    /// When nobody can tell.
    fn look(&self, key: &str) -> Result<Option<Key>, Failure>;

    /// Somebody else deletes a key. Whether it was there.
    ///
    /// # Errors
    /// When nobody can.
    fn delete(&self, key: &str) -> Result<bool, Failure>;

    /// Somebody else writes a key.
    ///
    /// # Errors
    /// When nobody can.
    fn put(&self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Failure>;

    /// Somebody else makes a list of a key.
    ///
    /// # Errors
    /// When nobody can.
    fn make_list(&self, key: &str) -> Result<(), Failure>;

    /// Does something to the server, beside whatever the runtime has to do meanwhile.
    fn server(&self, what: Incident) -> Boxed<Result<(), Failure>>;
}

/// A client and its connection.
pub type Connected = (Box<dyn Verbs>, Box<dyn Link>);

/// The value of a key, and how long it has left if it expires.
pub type Key = (Vec<u8>, Option<Duration>);

/// The connection of one client.
pub trait Link: Send + Sync + 'static {
    /// Does something to it.
    ///
    /// # Errors
    /// When there is none.
    fn link(&self, what: Weather) -> Result<(), Failure>;
}

/// What can happen to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// It stops, and starts again with every key or with none.
    Restart {
        /// Whether it has kept its keys.
        with_data: bool,
    },
    /// Every key is deleted.
    Flush,
    /// Every script is forgotten.
    ForgetScripts,
    /// It refuses writes: it became a replica.
    ReadOnly(bool),
    /// It refuses what needs memory.
    OutOfMemory(bool),
    /// It refuses writes for want of replicas.
    NoReplicas(bool),
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// It is reset.
    Cut,
    /// Nothing arrives any more in either direction, until it does again.
    Silent(bool),
    /// The client is heard, and hears nothing.
    Deaf(bool),
    /// New ones are refused.
    Refused(bool),
    /// Whatever arrives is this late.
    Slow(Duration),
}
