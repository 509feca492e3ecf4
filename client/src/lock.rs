//! What a holder has in hand: the guard, its read view, and why a hold ended.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_core::lease::{self, Cause};
use tenure_core::time::Tick;

use crate::error::Error;
use crate::hold::Hold;
use crate::store::{End, Store};
use crate::token::OwnerToken;

/// A lock that is held until it is released, dropped or lost.
///
/// Dropping it releases: the command is written on the spot if the socket takes it, and by the driver
/// otherwise. The drop never blocks, needs no runtime, and works while panicking. It derefs to [`Held`],
/// the read view, which can be cloned and handed to subtasks.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// let lock = locks.acquire("order:42").await?;
/// tokio::select! {
///     lost = lock.lost() => eprintln!("stop within {:?}: {lost}", lock.stop_window(&lost)),
///     () = async { /* the work, looking at lock.is_held() between its steps */ } => {}
/// }
/// assert!(lock.release().await?.confirmed);
/// # Ok(()) }
/// ```
#[must_use = "dropping a lock releases it at once"]
pub struct Lock {
    held: Held,
    /// Released, abandoned, or handed over to a release that is under way.
    ended: bool,
}

/// The read view of a lock: cheap to clone, and valid after the lock has ended, too.
#[derive(Clone)]
pub struct Held {
    hold: Arc<Hold>,
    store: Arc<dyn Store>,
}

/// The end of a hold that its holder did not want.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Why.
    pub cause: Cause,
    /// The label of who replaced it, if that is known.
    pub by: Option<Box<str>>,
    /// The end of the stop window: until then the key still excludes others, unless the cause is that it
    /// is gone or replaced. [`Held::stop_window`] tells how long that is from now.
    pub stop_by: Tick,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// Whether the server confirmed it. If not, it goes on in the background until it is answered or the
    /// lease has run out.
    pub confirmed: bool,
}

impl Lock {
    pub(crate) fn new(hold: Arc<Hold>, store: Arc<dyn Store>) -> Lock {
        Lock {
            held: Held { hold, store },
            ended: false,
        }
    }

    /// The read view, to be handed to others.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Releases, and waits for the answer: at most 5 s, or one lease if that is shorter.
    ///
    /// From the first poll on the lock is not held. Dropping the future does not cancel the release,
    /// neither before nor after that.
    ///
    /// # Errors
    /// [`Error::Lost`]: it was lost before, and why. [`Error::Forked`] in a process that was forked off: there nothing is
    /// released.
    pub fn release(self) -> Release {
        Release {
            lock: Some(self),
            held: None,
        }
    }

    /// Stops renewing and leaves the key to its TTL: nobody else gets the lock before.
    pub fn abandon(mut self) {
        self.ended = true;
        let _ = self.held.store.end(&self.held.hold, End::Abandon);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.held.store.end(&self.held.hold, End::Drop);
        }
    }
}

impl Deref for Lock {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Held {
    /// The name of the lock.
    pub fn name(&self) -> &[u8] {
        self.hold.name()
    }

    /// Whether the lock is held now: a comparison with a freshly read clock, never a remembered answer.
    ///
    /// Ask before each step that must not overlap with another holder's. False for good once it was
    /// lost or its release has begun.
    pub fn is_held(&self) -> bool {
        self.hold
            .valid_until()
            .is_some_and(|until| self.store.now() < until)
    }

    /// `Ok` while the lock is held.
    ///
    /// # Errors
    /// [`Error::Lost`] with the cause; [`Error::NotHeld`] once it was released or abandoned; [`Error::Forked`] in a process that
    /// was forked off, which holds nothing.
    pub fn check(&self) -> Result<(), Error> {
        match self.store.refusal() {
            Some(error) => Err(error),
            None => self.hold.check(self.store.now()),
        }
    }

    /// How long the lock stays held if nothing is renewed any more; zero when it is not held.
    pub fn remaining(&self) -> Duration {
        let until = self.hold.valid_until();
        until.map_or(Duration::ZERO, |until| {
            until.saturating_since(self.store.now())
        })
    }

    /// The fence, if one was [asked for](crate::LockOptions::fenced): more than that of every holder of this name before, the
    /// same for as long as this hold lasts, and known after its end. A number under 2^53.
    ///
    /// Give it with every write to the resource, and let the resource refuse a write whose fence is lower than one that it
    /// has seen: that stops a holder that was paused between its check and its write.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.lock("ledger").fenced().acquire().await?;
    /// let fence = lock.fence().expect("it was asked for");
    /// let sql = "UPDATE ledger SET total = $1, fence = $2 WHERE id = $3 AND fence <= $2";
    /// # let _ = (fence, sql);
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Option<u64> {
        self.hold.fence()
    }

    /// What this hold has written under its key: with it somebody else may release the lock
    /// ([`Locks::release_by_token`](crate::Locks::release_by_token)), such as a program that it is held for. `None` once it is not
    /// held any more, and of a hold that [rotates](crate::LockOptions::rotate), whose value does not last.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.acquire("report").await?;
    /// let token = lock.token().expect("it is held, and does not rotate");
    /// assert_eq!(format!("{token:?}"), "OwnerToken(..)");
    /// # Ok(()) }
    /// ```
    pub fn token(&self) -> Option<OwnerToken> {
        self.store.token(&self.hold)
    }

    /// How much of the stop window is left after a loss: until then the key still excludes others.
    pub fn stop_window(&self, lost: &Lost) -> Duration {
        lost.stop_by.saturating_since(self.store.now())
    }

    /// Waits for the loss. Never ready if the lock is released or abandoned instead: a task that waits for it is to be
    /// aborted when the work is done, or waits beside the work in one `select!`.
    ///
    /// Told once a renewal has not been confirmed in time, while the key still excludes others, so that
    /// the work can stop. That the key was deleted or replaced is noticed at the next renewal; then there is no such time. Dropping the future is free.
    pub fn lost(&self) -> WaitLost {
        WaitLost {
            hold: Arc::clone(&self.hold),
            watcher: None,
            copy: self.store.refusal().is_some(),
        }
    }

    /// Renews now, and waits for the answer.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost; [`Error::Unavailable`] or another error if this renewal did not
    /// count, while the hold goes on; [`Error::NotHeld`] once it was released. Dropping the future leaves
    /// the renewal under way.
    pub async fn renew_now(&self) -> Result<(), Error> {
        let seen = self.hold.renewals();
        self.store.renew(&self.hold);
        let mut watch = Watch {
            hold: &self.hold,
            watcher: None,
        };
        std::future::poll_fn(|cx| watch.hold.poll_renewed(seen, &mut watch.watcher, cx)).await
    }
}

/// Forgets the waker of a wait that was given up.
struct Watch<'a> {
    hold: &'a Hold,
    watcher: Option<u32>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.hold.unwatch(self.watcher);
    }
}

/// The future of [`Lock::release`].
#[must_use = "without polling it the lock is dropped, which releases it without waiting for the answer"]
pub struct Release {
    lock: Option<Lock>,
    held: Option<Held>,
}

impl Future for Release {
    type Output = Result<Released, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(mut lock) = self.lock.take() {
            let held = lock.held();
            lock.ended = true;
            if let Err(error) = held.store.end(&held.hold, End::Release) {
                return Poll::Ready(Err(error));
            }
            self.held = Some(held);
        }
        let Some(held) = &self.held else {
            return Poll::Ready(Err(Error::Closed));
        };
        held.hold.poll_released(cx).map(|answer| match answer {
            Ok(confirmed) => Ok(Released { confirmed }),
            Err(lost) => Err(Error::Lost(lost)),
        })
    }
}

/// The future of [`Held::lost`].
#[must_use = "futures do nothing unless polled"]
pub struct WaitLost {
    hold: Arc<Hold>,
    watcher: Option<u32>,
    /// In a forked process, for which the client is closed.
    copy: bool,
}

impl Future for WaitLost {
    type Output = Lost;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Lost> {
        let WaitLost {
            hold,
            watcher,
            copy,
        } = &mut *self;
        if *copy {
            return Poll::Ready(Lost {
                cause: Cause::Closed,
                by: None,
                stop_by: Tick::ZERO,
            });
        }
        hold.poll_lost(watcher, cx)
    }
}

impl Drop for WaitLost {
    fn drop(&mut self) {
        if self.watcher.is_some() {
            self.hold.unwatch(self.watcher);
        }
    }
}

impl Lost {
    pub(crate) fn new(lost: lease::Lost, by: Option<Box<str>>) -> Lost {
        Lost {
            cause: lost.cause,
            by,
            stop_by: lost.stop_by,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)?;
        match &self.by {
            Some(by) => write!(f, ": {by}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("name", &self.name().escape_ascii().to_string())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lock").field(&self.held).finish()
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release").finish_non_exhaustive()
    }
}

impl fmt::Debug for WaitLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitLost").finish_non_exhaustive()
    }
}
