//! Where locks come from.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::{
    Config, Driver, Error, Examination, Holder, Inspection, Listed, LockOptions, OwnerToken,
    Removed, Wait,
};

use crate::client::Client;
use crate::hub::BlockingBinding;
use crate::lock::{Held, Lock};
use crate::parker;

/// Hands out locks. Cheap to clone, and shared by any number of threads.
///
/// ```
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// let locks = tenure_blocking::memory();
/// let others = locks.clone();
/// let lock = locks.acquire("a")?;
/// let other = std::thread::spawn(move || others.acquire("a").map(drop));
/// lock.release()?;
/// other.join().unwrap()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    inner: tenure_client::Locks,
    client: Arc<Client>,
}

impl Locks {
    pub(crate) fn start(
        config: &Config,
        open: impl FnOnce(BlockingBinding, &Config) -> Result<(tenure_client::Locks, Driver), Error>,
    ) -> Result<Locks, Error> {
        let (inner, client) = Client::start(config, open)?;
        Ok(Locks { inner, client })
    }

    /// These locks for code that waits by itself. They may come from any runtime, and are driven there: a thread that
    /// waits here must not be one that the runtime needs for that.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), tenure_blocking::Error> {
    /// let locks = tenure_tokio::memory();
    /// let blocking = tenure_blocking::Locks::from_async(locks.clone());
    /// let held = tokio::task::spawn_blocking(move || blocking.acquire("a")).await.unwrap()?;
    /// assert!(locks.try_acquire("a").await?.acquired().is_none());
    /// # drop(held);
    /// # Ok(()) }
    /// ```
    pub fn from_async(locks: tenure_client::Locks) -> Locks {
        Locks {
            inner: locks,
            client: Client::driven_elsewhere(),
        }
    }

    /// The same locks with futures, for any executor. They are driven by the thread of this client.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// let locks: tenure_client::Locks = tenure_blocking::memory().into_async();
    /// # let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// executor.block_on(async { locks.acquire("a").await?.release().await.map(drop) })
    /// # }
    /// ```
    pub fn into_async(self) -> tenure_client::Locks {
        self.inner
    }

    /// One try, without waiting. That the name is taken is a value, not an error.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let Some(lock) = locks.try_acquire("report")?.acquired() else { return Ok(()) };
    /// # drop(lock);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Request::try_acquire`].
    pub fn try_acquire(&self, name: impl AsRef<[u8]>) -> Result<Attempt, Error> {
        self.lock(name).try_acquire()
    }

    /// Waits for the lock as the default options say: without a limit, unless they have one. Not re-entrant: who holds the
    /// name already waits for themselves.
    ///
    /// # Errors
    /// As [`Request::acquire`].
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Result<Lock, Error> {
        self.lock(name).acquire()
    }

    /// A request for the lock with this name, 1 to 1,024 bytes, to be given options and a verb.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Request {
        Request {
            inner: self.inner.lock(name),
            client: Arc::clone(&self.client),
        }
    }

    /// Asks who holds the name, since when and for how much longer, without touching it. `None`: nobody.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let lock = locks.acquire("report")?;
    /// let inspection = locks.inspect("report")?.expect("it is held");
    /// println!("{inspection}");
    /// # drop(lock);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`tenure_client::Locks::inspect`]; and [`Error::Forked`].
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Option<Inspection>, Error> {
        self.client.enter_to_ask()?;
        self.client.ask(self.inner.inspect(name))
    }

    /// Asks which names that begin with `start` are held, and by whom: all for an empty one, up to 10,000.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let lock = locks.acquire("order:42")?;
    /// for (name, inspection) in locks.list("order:")?.names {
    ///     println!("{}: {inspection}", name.escape_ascii());
    /// }
    /// # drop(lock);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`tenure_client::Locks::list`]; and [`Error::Forked`].
    pub fn list(&self, start: impl AsRef<[u8]>) -> Result<Listed, Error> {
        self.client.enter_to_ask()?;
        self.client.ask(self.inner.list(start))
    }

    /// As [`list`](Locks::list), up to another number of names.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let (_a, _b) = (locks.acquire("a")?, locks.acquire("b")?);
    /// let listed = locks.list_up_to(1, "")?;
    /// assert_eq!((listed.names.len(), listed.more), (1, true));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`list`](Locks::list).
    pub fn list_up_to(&self, limit: usize, start: impl AsRef<[u8]>) -> Result<Listed, Error> {
        self.client.enter_to_ask()?;
        self.client.ask(self.inner.list(start).limit(limit))
    }

    /// Frees the name, whoever holds it. `None`: it was free. The holder is told, but goes on working until then: see
    /// [`tenure_client::Locks::force_release`].
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let lock = locks.acquire("report")?;
    /// println!("{}", locks.force_release("report")?.expect("it was held"));
    /// assert_eq!(lock.wait_lost()?.cause, tenure_blocking::Cause::Forced);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`tenure_client::Locks::force_release`], [`Error::MaybeDone`] among them; and [`Error::Forked`].
    pub fn force_release(&self, name: impl AsRef<[u8]>) -> Result<Option<Removed>, Error> {
        self.client.enter_to_ask()?;
        self.client.ask(self.inner.force_release(name))
    }

    /// Frees the name if it is still held with this token. `None`: it is free, or held by somebody else. See
    /// [`tenure_client::Locks::release_by_token`].
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let lock = locks.acquire("report")?;
    /// let token = lock.token().expect("it is held, and does not rotate");
    /// assert!(locks.release_by_token("report", &token)?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`force_release`](Locks::force_release).
    pub fn release_by_token(
        &self,
        name: impl AsRef<[u8]>,
        token: &OwnerToken,
    ) -> Result<Option<Removed>, Error> {
        self.client.enter_to_ask()?;
        self.client.ask(self.inner.release_by_token(name, token))
    }

    /// Asks what the server says of itself: version, memory, persistence, replication, clock.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let examination = locks.examine()?;
    /// println!("{:?} at {:?}", examination.fact("redis_version"), examination.clock);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`tenure_client::Locks::examine`]; and [`Error::Forked`].
    pub fn examine(&self) -> Result<Examination, Error> {
        self.client.enter_to_ask()?;
        self.client.ask(self.inner.examine())
    }

    /// Waits until the server has been reached, or a first try to reach it has failed.
    ///
    /// # Errors
    /// Why the first try to connect failed. The driver goes on trying; once it has succeeded, so does this.
    pub fn ready(&self) -> Result<(), Error> {
        self.client.enter()?;
        parker::wait(self.inner.ready())
    }

    /// Ends this client for all its clones: new requests get [`Error::Closed`], waiting ones fail with it, and
    /// locks that are still held are told that they are lost, so that their work stops.
    ///
    /// Returns once every release is confirmed or has expired; for a guard that lives on that is one lease at most. In a
    /// callback on the driver's thread, and in a process that was forked off, it does not wait.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// drop(locks.acquire("a")?);
    /// locks.close();
    /// assert!(matches!(locks.acquire("a"), Err(tenure_blocking::Error::Closed)));
    /// # Ok(()) }
    /// ```
    pub fn close(&self) {
        let closing = self.inner.close();
        if self.client.enter().is_ok() {
            parker::wait(closing);
        }
    }
}

/// The outcome of a single try.
#[derive(Debug)]
#[must_use = "a lock that is not kept is released at once"]
pub enum Attempt {
    /// The lock is ours.
    Acquired(Lock),
    /// Somebody else has it.
    Held(Holder),
}

impl Attempt {
    /// The lock, if it was had.
    pub fn acquired(self) -> Option<Lock> {
        match self {
            Attempt::Acquired(lock) => Some(lock),
            Attempt::Held(_) => None,
        }
    }

    /// Who has it, if it was not had.
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Attempt::Acquired(_) => None,
            Attempt::Held(holder) => Some(holder),
        }
    }
}

/// A request for one lock: options, then a verb.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> Result<(), tenure_blocking::Error> {
/// # let locks = tenure_blocking::memory();
/// let request = locks.lock("order:42").lease(Duration::from_secs(10)).wait(Duration::from_secs(5));
/// // It can be used again and again.
/// request.clone().acquire()?.release()?;
/// request.acquire()?.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing without a verb: acquire, try_acquire or run"]
pub struct Request {
    inner: tenure_client::Request,
    client: Arc<Client>,
}

macro_rules! option {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("As [`LockOptions::", stringify!($name), "`].")]
        pub fn $name(mut self, $($arg: $kind),*) -> Request {
            self.inner = self.inner.$name($($arg),*);
            self
        }
    )* };
}

impl Request {
    option! {
        lease(lease: Duration);
        wait(wait: impl Into<Wait>);
        margin(margin: Duration);
        renew_every(every: Duration);
        give_up_after(after: Duration);
        reply_limit(limit: Duration);
        max_hold(max_hold: Duration);
        no_renew();
        fenced();
        fence_from(floor: u64);
        fair();
        waiter_lease(lease: Duration);
        max_waiters(count: u32);
        replicas(count: u8, within: Duration);
        on_disk();
    }

    /// These options instead of the defaults.
    pub fn options(mut self, options: LockOptions) -> Request {
        self.inner = self.inner.options(options);
        self
    }

    /// Waits for the lock, as long as the options say.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when somebody else holds it to the end of the wait, [`Error::Unavailable`] when the
    /// server does not serve to the end of the wait; at once what waiting cannot cure: [`Error::Denied`],
    /// [`Error::Misconfigured`], [`Error::Protocol`], [`Error::Closed`], [`Error::Forked`].
    pub fn acquire(self) -> Result<Lock, Error> {
        let Request { inner, client } = self;
        client.enter_to_ask()?;
        let lock = client.ask(inner.acquire())?;
        Ok(Lock::new(lock, client))
    }

    /// Makes exactly one attempt, whatever wait is set. Without an answer it fails after connect limit and reply limit, 10 s
    /// at the defaults.
    ///
    /// # Errors
    /// As for `acquire`, without `TimedOut`: a name that is taken is [`Attempt::Held`].
    pub fn try_acquire(self) -> Result<Attempt, Error> {
        let Request { inner, client } = self;
        client.enter_to_ask()?;
        Ok(match client.ask(inner.try_acquire())? {
            tenure_client::Attempt::Acquired(lock) => Attempt::Acquired(Lock::new(lock, client)),
            tenure_client::Attempt::Held(holder) => Attempt::Held(holder),
        })
    }

    /// Acquires, does `work` on this thread, releases.
    ///
    /// A thread cannot be cancelled: `work` gets the read view of the lock and looks at it before each step that must not
    /// overlap with another holder's. If it panics the lock is released and the panic goes on. Work that can fail gives a
    /// result in the result: `run(..)??`.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure_blocking::Error> {
    /// # let locks = tenure_blocking::memory();
    /// let orders = [20, 22];
    /// let sum = locks.lock("ledger").run(|held| {
    ///     let mut sum = 0;
    ///     for order in orders {
    ///         held.check()?;
    ///         sum += order;
    ///     }
    ///     Ok::<_, tenure_blocking::Error>(sum)
    /// })??;
    /// assert_eq!(sum, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Request::acquire); and [`Error::Lost`] unless the lock was still held when the work ended,
    /// even if the work has a result.
    pub fn run<T>(self, work: impl FnOnce(Held) -> T) -> Result<T, Error> {
        // A panic drops the lock, which releases it on the spot.
        let lock = self.acquire()?;
        let result = work(lock.held());
        lock.check()?;
        lock.release()?;
        Ok(result)
    }
}
