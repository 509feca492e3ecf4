//! What a runtime gives a scenario: clients and time.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Config, Error};

use crate::party::Verbs;
use crate::{Boxed, Outcome};

/// A running runtime with its binding. One is made for each scenario, and it ends with it.
pub trait Runtime: Send + Sync + 'static {
    /// A client of the server that the settings name, without waiting for it.
    ///
    /// # Errors
    /// What the binding says to these settings.
    fn open(&self, config: &Config) -> Result<Box<dyn Verbs>, Error>;

    /// A store in memory, with a client on it.
    ///
    /// # Errors
    /// What the binding says to these settings.
    fn memory(&self, config: &Config) -> Result<Box<dyn Verbs>, Error>;

    /// Lets time pass.
    fn sleep(&self, span: Duration) -> Boxed<()>;

    /// The time since some fixed moment.
    fn now(&self) -> Duration;

    /// Tasks that have not ended, beside the scenario itself, where the runtime or whoever spawns on it can tell.
    fn tasks(&self) -> Option<usize> {
        None
    }
}

/// A runtime by its name.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Makes one, runs a scenario on it to its end, and ends it.
    pub play: fn(Play) -> Outcome,
}

/// A scenario, once it has a runtime.
pub type Play = Box<dyn FnOnce(Arc<dyn Runtime>) -> Boxed<Outcome> + Send>;

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
