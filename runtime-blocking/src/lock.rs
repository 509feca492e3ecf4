//! What a holder has in hand.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_client::{Error, Lost, Released};

use crate::client::Client;
use crate::hub::on_driver_thread;
use crate::on_lost::Watches;
use crate::parker;

/// A lock that is held until it is released, dropped or lost.
///
/// Dropping it releases: the command is written on the spot if the socket takes it, and by the driver
/// otherwise. The drop never blocks and works while panicking; over a store that is called, such as a file, this thread carries the
/// release out, within the reply limit. It derefs to [`Held`], the read view, which can be cloned and
/// handed to other threads.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// # let locks = tenure_blocking::memory();
/// let lock = locks.acquire("order:42")?;
/// lock.on_lost(|lost| eprintln!("stop: {lost}"));
/// for _step in 0..3 {
///     // ... a step of the work ...
///     if let Some(lost) = lock.lost_timeout(Duration::from_millis(1)) {
///         eprintln!("stop within {:?}: {lost}", lock.stop_window(&lost));
///         break;
///     }
/// }
/// assert!(lock.release()?.confirmed);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping a lock releases it at once"]
pub struct Lock {
    guard: tenure_client::Lock,
    held: Held,
    /// After the guard, so that a loss that is found by its drop is still told.
    watches: Watches,
}

impl Lock {
    pub(crate) fn new(guard: tenure_client::Lock, client: Arc<Client>) -> Lock {
        Lock {
            held: Held {
                inner: guard.held(),
                client,
            },
            guard,
            watches: Watches::default(),
        }
    }

    /// The lock of an async client, driven by its runtime: a thread that waits here must not be one that the runtime needs
    /// for that.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure_blocking::Error> {
    /// let lock = tenure_tokio::memory().acquire("a").await?;
    /// let lock = tenure_blocking::Lock::from_async(lock);
    /// let released = tokio::task::spawn_blocking(move || lock.release()).await.unwrap()?;
    /// assert!(released.confirmed);
    /// # Ok(()) }
    /// ```
    pub fn from_async(lock: tenure_client::Lock) -> Lock {
        Lock::new(lock, Client::driven_elsewhere())
    }

    /// The same lock with futures. Callbacks of [`on_lost`](Lock::on_lost) are forgotten.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let lock: tenure_client::Lock = locks.acquire("a")?.into_async();
    /// assert!(lock.is_held());
    /// # Ok(()) }
    /// ```
    pub fn into_async(self) -> tenure_client::Lock {
        self.guard
    }

    /// The read view, to be handed to others.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Releases, and waits for the answer: at most 5 s, or one lease if that is shorter.
    ///
    /// # Errors
    /// [`Error::Lost`]: it was lost before, and why. [`Error::Forked`] in a process that was forked off: there nothing is
    /// released. [`Error::Misconfigured`] in a callback on the driver's thread, which cannot wait: it is released there, and
    /// only the answer is not known.
    pub fn release(self) -> Result<Released, Error> {
        let Lock { guard, held, .. } = self;
        held.client.enter_to_ask()?;
        held.client.ask(guard.release())
    }

    /// Stops renewing and leaves the key to its TTL: nobody else gets the lock before.
    pub fn abandon(self) {
        self.guard.abandon();
    }

    /// Calls `callback` once when the lock is lost, if that happens before it is released, dropped or abandoned; at once if
    /// it has happened.
    ///
    /// It is called on the driver's thread, which renews nothing meanwhile: let it be short. It may use the client, but
    /// waits for nothing; what would is refused. If it panics, nothing else is harmed. (The callback of a lock
    /// [`from_async`](Lock::from_async) is called by whatever drives it; in a process that was forked off, where the lock is
    /// lost, it is called at once.)
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let lock = locks.acquire("a")?;
    /// let stop = Arc::new(AtomicBool::new(false));
    /// let stopping = Arc::clone(&stop);
    /// lock.on_lost(move |_| stopping.store(true, Ordering::Relaxed));
    /// while !stop.load(Ordering::Relaxed) {
    ///     // ... the work ...
    /// #   break;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn on_lost(&self, callback: impl FnOnce(Lost) + Send + 'static) {
        let hub = self.held.client.hub();
        let lost = self.held.inner.lost();
        self.watches.add(hub, lost, Box::new(callback));
    }
}

impl Deref for Lock {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// The read view of a lock: cheap to clone, and valid after the lock has ended, too. It derefs to that of the client, whose
/// `is_held`, `check`, `remaining` and `stop_window` never wait.
///
/// ```
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// # let locks = tenure_blocking::memory();
/// let lock = locks.acquire("a")?;
/// let held = lock.held();
/// let watcher = std::thread::spawn(move || held.is_held());
/// assert!(watcher.join().unwrap());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Held {
    inner: tenure_client::Held,
    client: Arc<Client>,
}

impl Held {
    /// Waits for the loss, this long. `None` when it has not come; a released lock is not lost.
    ///
    /// Told once a renewal has not been confirmed in time, while the key still excludes others, so that
    /// the work can stop. That the key was deleted or replaced is noticed at the next renewal; then there is no such time.
    ///
    /// In a callback on the driver's thread it does not wait. In a process that was forked off the lock is lost.
    pub fn lost_timeout(&self, limit: Duration) -> Option<Lost> {
        let limit = match on_driver_thread() {
            true => Duration::ZERO,
            false => limit,
        };
        let lost = pin!(self.inner.lost());
        match Instant::now().checked_add(limit) {
            Some(until) => parker::wait_until(lost, until),
            None => Some(parker::wait(lost)),
        }
    }

    /// Waits for the loss. It never returns if the lock is released or abandoned instead: for a thread that does nothing
    /// else, such as one that ends the process.
    ///
    /// # Errors
    /// [`Error::Misconfigured`] in a callback on the driver's thread.
    pub fn wait_lost(&self) -> Result<Lost, Error> {
        // In a forked process the loss has come.
        if !self.client.is_copy() {
            self.client.enter()?;
        }
        Ok(parker::wait(self.inner.lost()))
    }

    /// Renews now, and waits for the answer.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unavailable`] or another error if this renewal did not
    /// count, while the hold goes on; [`Error::NotHeld`] once it was released; [`Error::Forked`].
    pub fn renew_now(&self) -> Result<(), Error> {
        self.client.enter()?;
        self.client.ask(self.inner.renew_now())
    }

    /// The same view with futures.
    pub fn into_async(self) -> tenure_client::Held {
        self.inner
    }
}

impl Deref for Held {
    type Target = tenure_client::Held;

    fn deref(&self) -> &tenure_client::Held {
        &self.inner
    }
}
