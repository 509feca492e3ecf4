//! One client of a scenario, with the same verbs whatever its runtime.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_client::{
    Attempt, Error, Event, Held, Holder, Inspection, Listed, Lock, LockOptions, Locks, Lost,
    Observer, OwnerToken, Released, Removed,
};
use tenure_tests::Failure;

use crate::Boxed;
use crate::stage::{Link, Weather};

/// A client, its connection, and what its observer was told.
pub struct Party {
    pub(crate) verbs: Box<dyn Verbs>,
    pub(crate) link: Box<dyn Link>,
    pub(crate) told: Arc<Told>,
}

impl Party {
    /// Waits for a lock as long as the options say.
    ///
    /// # Errors
    /// As the client's.
    pub async fn acquire(&self, name: &str, options: LockOptions) -> Result<Guard, Error> {
        self.verbs.acquire(name.as_bytes(), options).await
    }

    /// Makes one attempt.
    ///
    /// # Errors
    /// As the client's.
    pub async fn attempt(&self, name: &str, options: LockOptions) -> Result<Tried, Error> {
        self.verbs.attempt(name.as_bytes(), options).await
    }

    /// Takes a lock that must be free.
    ///
    /// # Errors
    /// When it is not, or cannot be had.
    pub async fn take(&self, name: &str, options: LockOptions) -> Result<Guard, Failure> {
        match self.attempt(name, options).await? {
            Tried::Acquired(guard) => Ok(guard),
            Tried::Held(holder) => Err(format!("{name} is held by {holder}").into()),
        }
    }

    /// Works under a lock.
    ///
    /// # Errors
    /// As the client's.
    pub async fn run(&self, name: &str, options: LockOptions, work: Work) -> Result<u32, Error> {
        self.verbs.run(name.as_bytes(), options, work).await
    }

    /// Asks who holds a name.
    ///
    /// # Errors
    /// As the client's.
    pub async fn inspect(&self, name: &str) -> Result<Option<Inspection>, Error> {
        self.verbs.inspect(name.as_bytes()).await
    }

    /// Asks which names that begin so are held.
    ///
    /// # Errors
    /// As the client's.
    pub async fn list(&self, start: &str) -> Result<Listed, Error> {
        self.verbs.list(start.as_bytes()).await
    }

    /// Frees a name, whoever holds it.
    ///
    /// # Errors
    /// As the client's.
    pub async fn force_release(&self, name: &str) -> Result<Option<Removed>, Error> {
        self.verbs.force_release(name.as_bytes()).await
    }

    /// Frees a name if it is held with this token.
    ///
    /// # Errors
    /// As the client's.
    pub async fn release_by_token(
        &self,
        name: &str,
        token: &OwnerToken,
    ) -> Result<Option<Removed>, Error> {
        self.verbs.release_by_token(name.as_bytes(), token).await
    }

    /// Waits until the store was reached.
    ///
    /// # Errors
    /// Why it was not.
    pub async fn ready(&self) -> Result<(), Error> {
        self.verbs.ready().await
    }

    /// Closes the client.
    pub async fn close(&self) {
        self.verbs.close().await;
    }

    /// The client without its runtime's verbs: for futures that are polled and dropped by hand.
    #[must_use]
    pub fn locks(&self) -> Locks {
        self.verbs.locks()
    }

    /// Lets go of the client, and only of that: its connection lives as long as what is given back.
    #[must_use = "the connection ends with this"]
    pub fn leave(self) -> Box<dyn Link> {
        self.link
    }

    /// Does something to its connection.
    ///
    /// # Errors
    /// When it has none.
    pub fn weather(&self, what: Weather) -> Result<(), Failure> {
        self.link.link(what)
    }

    /// What its observer was told, a word and a name each.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        self.told
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How often it was told this.
    #[must_use]
    pub fn count(&self, what: &str) -> usize {
        self.told().iter().filter(|told| *told == what).count()
    }
}

/// A lock that is held.
pub type Guard = Box<dyn Keeps>;

/// The outcome of one attempt.
pub enum Tried {
    /// It was had.
    Acquired(Guard),
    /// Somebody else has it.
    Held(Holder),
}

/// Work to be done under a lock.
pub type Work = Box<dyn FnOnce(Held) -> Boxed<u32> + Send>;

/// The verbs of a client, as futures.
pub trait Verbs: Send + Sync + 'static {
    /// As [`Party::acquire`].
    fn acquire(&self, name: &[u8], options: LockOptions) -> Boxed<Result<Guard, Error>>;
    /// As [`Party::attempt`].
    fn attempt(&self, name: &[u8], options: LockOptions) -> Boxed<Result<Tried, Error>>;
    /// As [`Party::run`].
    fn run(&self, name: &[u8], options: LockOptions, work: Work) -> Boxed<Result<u32, Error>>;
    /// As [`Party::inspect`].
    fn inspect(&self, name: &[u8]) -> Boxed<Result<Option<Inspection>, Error>>;
    /// As [`Party::list`].
    fn list(&self, start: &[u8]) -> Boxed<Result<Listed, Error>>;
    /// As [`Party::force_release`].
    fn force_release(&self, name: &[u8]) -> Boxed<Result<Option<Removed>, Error>>;
    /// As [`Party::release_by_token`].
    fn release_by_token(
        &self,
        name: &[u8],
        token: &OwnerToken,
    ) -> Boxed<Result<Option<Removed>, Error>>;
    /// As [`Party::ready`].
    fn ready(&self) -> Boxed<Result<(), Error>>;
    /// As [`Party::close`].
    fn close(&self) -> Boxed<()>;
    /// As [`Party::locks`].
    fn locks(&self) -> Locks;
    /// Another handle of the same client.
    fn another(&self) -> Box<dyn Verbs>;
}

/// The verbs of a lock, as futures.
pub trait Keeps: Send + Sync + 'static {
    /// Its read view.
    fn held(&self) -> Held;
    /// Waits for its loss, no longer than this.
    fn lost_within(&self, span: Duration, sleep: Boxed<()>) -> Boxed<Option<Lost>>;
    /// Renews it now.
    fn renew_now(&self) -> Boxed<Result<(), Error>>;
    /// Releases it.
    fn release(self: Box<Self>) -> Boxed<Result<Released, Error>>;
    /// Leaves it to its TTL.
    fn abandon(self: Box<Self>);
}

impl Verbs for Locks {
    fn acquire(&self, name: &[u8], options: LockOptions) -> Boxed<Result<Guard, Error>> {
        let acquiring = self.lock(name).options(options).acquire();
        Box::pin(async { Ok(Box::new(acquiring.await?) as Guard) })
    }

    fn attempt(&self, name: &[u8], options: LockOptions) -> Boxed<Result<Tried, Error>> {
        let trying = self.lock(name).options(options).try_acquire();
        Box::pin(async {
            Ok(match trying.await? {
                Attempt::Acquired(lock) => Tried::Acquired(Box::new(lock)),
                Attempt::Held(holder) => Tried::Held(holder),
            })
        })
    }

    fn run(&self, name: &[u8], options: LockOptions, work: Work) -> Boxed<Result<u32, Error>> {
        Box::pin(self.lock(name).options(options).run(work))
    }

    fn inspect(&self, name: &[u8]) -> Boxed<Result<Option<Inspection>, Error>> {
        Box::pin(Locks::inspect(self, name))
    }

    fn list(&self, start: &[u8]) -> Boxed<Result<Listed, Error>> {
        Box::pin(Locks::list(self, start))
    }

    fn force_release(&self, name: &[u8]) -> Boxed<Result<Option<Removed>, Error>> {
        Box::pin(Locks::force_release(self, name))
    }

    fn release_by_token(
        &self,
        name: &[u8],
        token: &OwnerToken,
    ) -> Boxed<Result<Option<Removed>, Error>> {
        Box::pin(Locks::release_by_token(self, name, token))
    }

    fn ready(&self) -> Boxed<Result<(), Error>> {
        Box::pin(Locks::ready(self))
    }

    fn close(&self) -> Boxed<()> {
        Box::pin(Locks::close(self))
    }

    fn locks(&self) -> Locks {
        self.clone()
    }

    fn another(&self) -> Box<dyn Verbs> {
        Box::new(self.clone())
    }
}

impl Keeps for Lock {
    fn held(&self) -> Held {
        Lock::held(self)
    }

    fn lost_within(&self, _: Duration, sleep: Boxed<()>) -> Boxed<Option<Lost>> {
        let lost = self.lost();
        Box::pin(async {
            tokio::select! { biased;
                lost = lost => Some(lost),
                () = sleep => None,
            }
        })
    }

    fn renew_now(&self) -> Boxed<Result<(), Error>> {
        let held = self.held();
        Box::pin(async move { held.renew_now().await })
    }

    fn release(self: Box<Self>) -> Boxed<Result<Released, Error>> {
        Box::pin(Lock::release(*self))
    }

    fn abandon(self: Box<Self>) {
        Lock::abandon(*self);
    }
}

/// What an observer was told.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn event(&self, event: &Event<'_>) {
        let named = |word: &str, name: &[u8]| {
            // Names begin with that of the scenario, which would only be in the way.
            let name = name.escape_ascii().to_string();
            let short = name.rsplit_once('/').map_or(&*name, |(_, short)| short);
            format!("{word} {short}")
        };
        let told = match event {
            Event::Connected(_) => "connected".to_owned(),
            Event::ConnectFailed { .. } => "connect failed".to_owned(),
            Event::Disconnected(_) => "disconnected".to_owned(),
            Event::Acquired { name, .. } => named("acquired", name),
            Event::Held { name, .. } => named("held", name),
            Event::Failed { name, .. } => named("failed", name),
            Event::Renewed { name, .. } => named("renewed", name),
            Event::RenewalFailed { name, .. } => named("renewal failed", name),
            Event::Lost { name, .. } => named("lost", name),
            Event::Released { name, .. } => named("released", name),
            Event::Abandoned { name, .. } => named("abandoned", name),
            Event::Dropped { name, .. } => named("dropped", name),
            Event::Cancelled { name, .. } => named("cancelled", name),
            _ => return,
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(told);
    }
}

impl std::fmt::Debug for Tried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tried::Acquired(guard) => f.debug_tuple("Acquired").field(&guard.held()).finish(),
            Tried::Held(holder) => f.debug_tuple("Held").field(holder).finish(),
        }
    }
}

impl std::fmt::Debug for dyn Keeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.held().fmt(f)
    }
}

impl std::fmt::Debug for Party {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Party")
            .field("told", &self.told())
            .finish_non_exhaustive()
    }
}
