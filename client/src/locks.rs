//! Where locks come from: [`Locks`], a [`Request`], and the futures that carry it out.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::config::Wait;
use tenure_core::leases::Holder;

use crate::asking::{Examining, Forcing, Inspecting, Listing};
use crate::error::Error;
use crate::hold::Hold;
use crate::lock::{Held, Lock};
use crate::options::LockOptions;
use crate::store::{End, Store};
use crate::token::OwnerToken;

/// Hands out locks. Cheap to clone, one concrete type for every store and runtime.
///
/// Code that needs "some lock" takes a `Locks`; its tests pass the in-memory store.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// // One try: taken is a value.
/// match locks.try_acquire("report").await? {
///     tenure::Attempt::Acquired(lock) => lock.release().await.map(drop)?,
///     tenure::Attempt::Held(holder) => println!("held by {holder}"),
/// }
///
/// // Or wait, with options.
/// let request = locks.lock("order:42").lease(std::time::Duration::from_secs(10));
/// let lock = request.wait(std::time::Duration::from_secs(5)).acquire().await?;
/// drop(lock);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Store>,
    defaults: LockOptions,
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

impl Locks {
    /// Locks over this store.
    pub fn new(store: Arc<dyn Store>) -> Locks {
        Locks {
            store,
            defaults: LockOptions::new(),
        }
    }

    /// These options for every request that does not set its own.
    #[must_use]
    pub fn with_defaults(mut self, defaults: LockOptions) -> Locks {
        self.defaults = defaults;
        self
    }

    /// One try, without waiting. That the name is taken is a value, not an error.
    ///
    /// # Errors
    /// As [`Request::try_acquire`].
    pub fn try_acquire(&self, name: impl AsRef<[u8]>) -> Trying {
        self.lock(name).try_acquire()
    }

    /// Waits for the lock as the default options say: without a limit, unless they have one. Not re-entrant: who holds the
    /// name already waits for themselves.
    ///
    /// # Errors
    /// As [`Request::acquire`].
    pub fn acquire(&self, name: impl AsRef<[u8]>) -> Acquiring {
        self.lock(name).acquire()
    }

    /// A request for the lock with this name, 1 to 1,024 bytes, to be given options and a verb.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Request {
        Request {
            store: Arc::clone(&self.store),
            name: name.as_ref().into(),
            options: self.defaults.clone(),
        }
    }

    /// Asks who holds the name, since when and for how much longer, without touching it. `None`: nobody.
    ///
    /// It is what the server said a moment ago: only a lock says that one holds it now. Nothing is sent before the
    /// first poll; dropping the future forgets the question.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// # let _lock = locks.acquire("report").await?;
    /// match locks.inspect("report").await? {
    ///     Some(inspection) => println!("{inspection}"),
    ///     None => println!("free"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no answer within connect limit and reply limit, 10 s at the defaults; at once
    /// [`Error::Denied`] (`docs/permissions.md` lists what is needed), [`Error::Misconfigured`], [`Error::Protocol`],
    /// [`Error::Closed`].
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Inspecting {
        Inspecting::new(&self.store, name.as_ref())
    }

    /// Asks which names that begin with `start` are held, and by whom: all of them for an empty one, up to 10,000
    /// ([`Listing::limit`]).
    ///
    /// The server is looked through page by page, so that others are served in between, and names that are taken or freed
    /// meanwhile may be there or not. Cancelled as [`inspect`](Locks::inspect).
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// # let _lock = locks.acquire("order:42").await?;
    /// for (name, inspection) in locks.list("order:").await?.names {
    ///     println!("{}: {inspection}", name.escape_ascii());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`inspect`](Locks::inspect), with [`Error::Unavailable`] when there is no progress for that long.
    pub fn list(&self, start: impl AsRef<[u8]>) -> Listing {
        Listing::new(&self.store, start.as_ref())
    }

    /// Frees the name, whoever holds it. For an operator who knows that the holder is gone, or must stop. `None`: it was free.
    ///
    /// The holder is told `Lost` with [`Cause::Forced`](crate::Cause::Forced) and the label of this client, at once where the
    /// server wakes, at its next renewal otherwise; **until then it goes on working**, and whoever waits may have the lock
    /// already. What is none of this library's is removed as well. Once the first byte has left, dropping the future
    /// does not call it back.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.acquire("report").await?;
    /// if let Some(removed) = locks.force_release("report").await? {
    ///     println!("{removed}");
    /// }
    /// assert_eq!(lock.lost().await.cause, tenure::Cause::Forced);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`inspect`](Locks::inspect): then nothing was done. [`Error::MaybeDone`] when it was sent and the answer did not
    /// come: it may have been done, and is not tried again.
    pub fn force_release(&self, name: impl AsRef<[u8]>) -> Forcing {
        Forcing::new(&self.store, name.as_ref())
    }

    /// Frees the name if it is still held with this token, as [`Held::token`](crate::Held::token) gave it: for a program that the lock
    /// is held for, and for whoever finishes the work of another. `None`: it is free, or held by somebody else.
    ///
    /// The holder is told `Lost` with [`Cause::Forced`](crate::Cause::Forced) and the label of this client, as by
    /// [`force_release`](Locks::force_release); a [shortest hold](crate::LockOptions::at_least) does not stop it. Releasing an own
    /// [`Lock`](crate::Lock) is better where there is one.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.acquire("report").await?;
    /// let token = lock.token().expect("it is held, and does not rotate");
    /// assert!(locks.release_by_token("report", &token).await?.is_some());
    /// assert!(locks.release_by_token("report", &token).await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`force_release`](Locks::force_release).
    pub fn release_by_token(&self, name: impl AsRef<[u8]>, token: &OwnerToken) -> Forcing {
        Forcing::by_token(&self.store, name.as_ref(), token)
    }

    /// Asks what the server says of itself: version, memory, persistence, replication, clock. What it refuses is part of the
    /// answer. Cancelled as [`inspect`](Locks::inspect).
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let examination = locks.examine().await?;
    /// println!("{:?} at {:?}", examination.fact("redis_version"), examination.clock);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`inspect`](Locks::inspect), but `Denied` only for the connection itself.
    pub fn examine(&self) -> Examining {
        Examining::new(&self.store)
    }

    /// Waits until the server has been reached, or a first try to reach it has failed.
    ///
    /// # Errors
    /// Why the first try to connect failed. The driver goes on trying; once it has succeeded, so does this.
    pub fn ready(&self) -> Ready {
        Ready(Waiting::new(&self.store))
    }

    /// Ends this client for all its clones: new requests get [`Error::Closed`], waiting ones fail with it, and
    /// locks that are still held are told that they are lost, so that their work stops.
    ///
    /// Ready once every release is confirmed or has expired; for a guard that lives on that is one lease
    /// at most. The closing begins at once, also if the future is dropped.
    pub fn close(&self) -> Closing {
        self.store.close();
        Closing(Waiting::new(&self.store))
    }
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

/// A request for one lock: options, then a verb. Nothing is sent before a verb's future is polled.
#[derive(Clone)]
#[must_use = "a request does nothing without a verb: acquire, try_acquire or run"]
pub struct Request {
    store: Arc<dyn Store>,
    name: Box<[u8]>,
    options: LockOptions,
}

macro_rules! option {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("As [`LockOptions::", stringify!($name), "`].")]
        pub fn $name(mut self, $($arg: $kind),*) -> Request {
            self.options = self.options.$name($($arg),*);
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
        at_least(at_least: Duration);
        no_renew();
        rotate();
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
        self.options = options;
        self
    }

    /// Waits for the lock, as long as the options say.
    ///
    /// Nothing is sent before the first poll. Dropping the future withdraws: what may have been granted is
    /// released.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when somebody else holds it to the end of the wait, [`Error::Unavailable`] when the
    /// server does not serve to the end of the wait; at once what waiting cannot cure: [`Error::Denied`],
    /// [`Error::Misconfigured`], [`Error::Protocol`], [`Error::Closed`].
    pub fn acquire(self) -> Acquiring {
        Acquiring(Asking::new(self))
    }

    /// Makes exactly one attempt, whatever wait is set. Without an answer it fails after connect limit and reply limit, 10 s
    /// at the defaults. Cancelled as [`acquire`](Request::acquire).
    ///
    /// # Errors
    /// As for `acquire`, without `TimedOut`: a name that is taken is [`Attempt::Held`].
    pub fn try_acquire(self) -> Trying {
        Trying(Asking::new(self.wait(Wait::Now)))
    }

    /// Acquires, runs `work`, releases. The work is cancelled when the lock is lost.
    ///
    /// `work` gets the read view of the lock. The loss is looked at before the work at every poll; the work's
    /// future is dropped entirely before the lock is released, also when it panics. What it has spawned
    /// is not cancelled with it. Work that can fail gives a result in the result: `run(..).await??`.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let sum = locks.lock("ledger").run(async |held| if held.is_held() { 42 } else { 0 }).await?;
    /// assert_eq!(sum, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Request::acquire); and [`Error::Lost`] unless the lock was still held when the work ended,
    /// even if the work has a result.
    pub async fn run<F, Fut>(self, work: F) -> Result<Fut::Output, Error>
    where
        F: FnOnce(Held) -> Fut,
        Fut: Future,
    {
        let lock = self.acquire().await?;
        let result = {
            let mut lost = lock.lost();
            let mut work = pin!(work(lock.held()));
            std::future::poll_fn(|cx| {
                if let Poll::Ready(lost) = Pin::new(&mut lost).poll(cx) {
                    return Poll::Ready(Err(Error::Lost(lost)));
                }
                let result = std::task::ready!(work.as_mut().poll(cx));
                Poll::Ready(lock.check().map(|()| result))
            })
            .await?
        };
        lock.release().await?;
        Ok(result)
    }
}

/// The future of [`Request::acquire`]: `Send`, `'static`, cancelled by dropping it.
#[must_use = "futures do nothing unless polled"]
pub struct Acquiring(Asking);

/// The future of [`Request::try_acquire`]: `Send`, `'static`, cancelled by dropping it.
#[must_use = "futures do nothing unless polled"]
pub struct Trying(Asking);

impl Future for Acquiring {
    type Output = Result<Lock, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|answer| match answer? {
            Attempt::Acquired(lock) => Ok(lock),
            Attempt::Held(holder) => Err(Error::TimedOut { holder }),
        })
    }
}

impl Future for Trying {
    type Output = Result<Attempt, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx)
    }
}

/// A request on its way: not asked yet, then asked, then neither.
struct Asking {
    request: Option<Request>,
    asked: Option<(Arc<Hold>, Arc<dyn Store>)>,
}

impl Asking {
    fn new(request: Request) -> Asking {
        Asking {
            request: Some(request),
            asked: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Attempt, Error>> {
        if let Some(Request {
            store,
            name,
            options,
        }) = self.request.take()
        {
            let store = match options.options.replicas {
                Some(_) => store.replicated().unwrap_or(store),
                None => store,
            };
            let hold = Arc::new(Hold::new(name, store.now_for_sending()));
            store.acquire(&options, &hold);
            self.asked = Some((hold, store));
        }
        let Some((hold, store)) = self.asked.take() else {
            // Polled again after it was ready, which nobody should do.
            return Poll::Ready(Err(Error::NotHeld));
        };
        match hold.poll_acquired(cx) {
            Poll::Pending => {
                self.asked = Some((hold, store));
                Poll::Pending
            }
            Poll::Ready(Ok(Some(holder))) => Poll::Ready(Ok(Attempt::Held(holder))),
            Poll::Ready(Ok(None)) => Poll::Ready(Ok(Attempt::Acquired(Lock::new(hold, store)))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some((hold, store)) = &self.asked {
            let _ = store.end(hold, End::Cancel);
        }
    }
}

/// The future of [`Locks::ready`].
#[must_use = "futures do nothing unless polled"]
pub struct Ready(Waiting);

/// The future of [`Locks::close`].
#[must_use = "the closing has begun; await it to know that every release is confirmed"]
pub struct Closing(Waiting);

/// A future that waits for something of a store.
struct Waiting {
    store: Arc<dyn Store>,
    watcher: Option<u32>,
}

impl Waiting {
    fn new(store: &Arc<dyn Store>) -> Waiting {
        Waiting {
            store: Arc::clone(store),
            watcher: None,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.store.unwatch(self.watcher);
    }
}

impl Future for Ready {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Waiting { store, watcher } = &mut self.0;
        store.poll_ready(watcher, cx)
    }
}

impl Future for Closing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Waiting { store, watcher } = &mut self.0;
        store.poll_closed(watcher, cx)
    }
}

macro_rules! opaque_debug {
    ($($name:ident)*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )* };
}

opaque_debug! { Locks Acquiring Trying Ready Closing }

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("name", &self.name.escape_ascii().to_string())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
