//! Where a scenario plays.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Config, Error, LockOptions};

use crate::Failure;
use crate::party::{Guard, Party, Told};
use crate::runtime::Runtime;
use crate::stage::{Incident, Key, Stage};

/// A lease, short since tests on real servers live through it.
pub const LEASE: Duration = Duration::from_millis(500);
/// Longer than anything takes that works.
pub const LONG: Duration = Duration::from_secs(10);
/// Shorter than anything that takes a lease or a part of it; long enough for a busy machine.
pub const SOON: Duration = Duration::from_millis(150);

/// Where a scenario plays: a runtime, a store, and names that are its own.
#[derive(Clone)]
pub struct Scene {
    pub(crate) scenario: &'static str,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) stage: Arc<dyn Stage>,
}

impl Scene {
    /// A client with this label that has reached the store.
    ///
    /// # Errors
    /// When it cannot.
    pub async fn party(&self, label: &str) -> Result<Party, Failure> {
        let party = self.party_with(label, |config| config)?;
        party.ready().await?;
        Ok(party)
    }

    /// A client with these settings, which may never reach the store.
    ///
    /// # Errors
    /// When they are refused.
    pub fn party_with(
        &self,
        label: &str,
        settings: impl Fn(Config) -> Config,
    ) -> Result<Party, Error> {
        let told = Arc::new(Told::default());
        let (verbs, link) = self.stage.open(&*self.runtime, &|config| {
            settings(config.label(label).observe(Arc::<Told>::clone(&told)))
        })?;
        Ok(Party { verbs, link, told })
    }

    /// A name that no other scenario uses.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.scenario)
    }

    /// Options with the usual lease and a wait that ends.
    #[must_use]
    pub fn options(&self) -> LockOptions {
        LockOptions::new().lease(LEASE).wait(LONG)
    }

    /// Lets time pass.
    pub async fn sleep(&self, span: Duration) {
        self.runtime.sleep(span).await;
    }

    /// The time since some fixed moment.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.runtime.now()
    }

    /// Runs a future for no longer than this.
    pub async fn within<T>(&self, span: Duration, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! { biased;
            value = future => Some(value),
            () = self.sleep(span) => None,
        }
    }

    /// Waits for a condition.
    ///
    /// # Errors
    /// When it does not come true in a long time.
    pub async fn until(
        &self,
        what: &str,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), Failure> {
        let end = self.now() + LONG;
        while !condition() {
            if self.now() > end {
                return Err(format!("not within {LONG:?}: {what}").into());
            }
            self.sleep(Duration::from_millis(3)).await;
        }
        Ok(())
    }

    /// Waits for the loss of a lock, no longer than this.
    pub async fn lost_within(&self, guard: &Guard, span: Duration) -> Option<tenure_client::Lost> {
        guard.lost_within(span, self.runtime.sleep(span)).await
    }

    /// Waits for the loss of a lock that must be lost.
    ///
    /// # Errors
    /// When it is not.
    pub async fn lost(&self, guard: &Guard) -> Result<tenure_client::Lost, Failure> {
        let lost = self.lost_within(guard, LONG).await;
        lost.ok_or_else(|| "the loss was not told".into())
    }

    /// The value of the key of a name, and how long it has left.
    ///
    /// # Errors
    /// When nobody can tell.
    pub fn look(&self, name: &str) -> Result<Option<Key>, Failure> {
        self.stage.look(&key_of(name))
    }

    /// Whether there are keys to be looked at.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.stage.can(crate::Need::Keys)
    }

    /// Whether a key can be of another type than a string.
    #[must_use]
    pub fn has_types(&self) -> bool {
        self.stage.can(crate::Need::Types)
    }

    /// Whether the name has a key.
    #[must_use]
    pub fn is_taken(&self, name: &str) -> bool {
        self.look(name).is_ok_and(|key| key.is_some())
    }

    /// Waits until a name has no key.
    ///
    /// # Errors
    /// When it stays.
    pub async fn free(&self, name: &str) -> Result<(), Failure> {
        self.until(&format!("{name} has no key"), || {
            self.look(name).is_ok_and(|key| key.is_none())
        })
        .await
    }

    /// Somebody else deletes the key of a name.
    ///
    /// # Errors
    /// When it is not there.
    pub fn delete(&self, name: &str) -> Result<(), Failure> {
        match self.stage.delete(&key_of(name))? {
            true => Ok(()),
            false => Err(format!("{name} has no key to delete").into()),
        }
    }

    /// Somebody else writes the key of a name.
    ///
    /// # Errors
    /// When nobody can.
    pub fn put(&self, name: &str, value: &str, ttl: Option<Duration>) -> Result<(), Failure> {
        self.stage.put(&key_of(name), value, ttl)
    }

    /// Somebody else makes a list of the key of a name.
    ///
    /// # Errors
    /// When nobody can.
    pub fn make_list(&self, name: &str) -> Result<(), Failure> {
        self.stage.make_list(&key_of(name))
    }

    /// Does something to the server.
    ///
    /// # Errors
    /// When it goes wrong.
    pub async fn server(&self, what: Incident) -> Result<(), Failure> {
        self.stage.server(what).await
    }
}

fn key_of(name: &str) -> String {
    format!("lock:{name}")
}
