//! What can be set for one request.

use std::time::Duration;

use tenure_core::config::{LeaseConfig, WAITER_LEASE, Wait};
use tenure_core::leases::Options;
use tenure_core::replicas::Replicas;

/// All the options of a request, to be kept and used many times.
///
/// Given to a request they replace every default of its [`Locks`](crate::Locks); the methods of
/// [`Request`](crate::Request) change one option each.
///
/// ```
/// use std::time::Duration;
/// # use tenure_client as tenure;
/// use tenure::{LockOptions, Wait};
///
/// let nightly = LockOptions::new()
///     .lease(Duration::from_secs(60))
///     .wait(Wait::For(Duration::from_secs(5)));
/// # let _ = nightly;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockOptions {
    pub(crate) lease: LeaseConfig,
    pub(crate) wait: Wait,
    pub(crate) options: Options,
}

/// The default lease, 30 s.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

impl LockOptions {
    /// A lease of 30 s that renews itself, and no limit to the wait.
    pub const fn new() -> LockOptions {
        LockOptions {
            lease: LeaseConfig::new(DEFAULT_LEASE),
            wait: Wait::Forever,
            options: Options {
                fence: None,
                fair: None,
                max_waiters: None,
                replicas: None,
                rotate: false,
            },
        }
    }

    /// The lease length, from 20 ms to 30 days: how long the name stays taken when this process dies.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> LockOptions {
        self.lease = self.lease.lease(lease);
        self
    }

    /// How long to wait while somebody else holds the name. Default: until it is had.
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Wait>) -> LockOptions {
        self.wait = wait.into();
        self
    }

    /// How much earlier than on the server the lease counts as over here. Default: a tenth, at least 2 ms.
    #[must_use]
    pub const fn margin(mut self, margin: Duration) -> LockOptions {
        self.lease = self.lease.margin(margin);
        self
    }

    /// Time between renewals. Default: a fifth of the lease.
    #[must_use]
    pub const fn renew_every(mut self, every: Duration) -> LockOptions {
        self.lease = self.lease.renew_every(every);
        self
    }

    /// Time without a confirmed renewal until the loss is told. Default: two thirds of the lease.
    ///
    /// What then remains until the end of validity is the time the work has to stop.
    #[must_use]
    pub const fn give_up_after(mut self, after: Duration) -> LockOptions {
        self.lease = self.lease.give_up_after(after);
        self
    }

    /// How long the reply to a renewal may take before its connection counts as dead. Default: a fifth of the time
    /// between `renew_every` and `give_up_after`; at most a third of it, and at most the reply limit of
    /// [`Config`](crate::Config), 5 s.
    #[must_use]
    pub const fn reply_limit(mut self, limit: Duration) -> LockOptions {
        self.lease = self.lease.reply_limit(limit);
        self
    }

    /// The longest hold: renewing stops in time for the hold to end by then. At least one lease.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> LockOptions {
        self.lease = self.lease.max_hold(max_hold);
        self
    }

    /// The shortest hold, at most 30 days: a lock that is released or dropped before stays taken until `at_least` after its
    /// grant, so that what runs under it runs once in that time, however short it is and however many machines try. Meanwhile
    /// the name is [cooling](crate::Holder), nobody's any more: whoever waits gets it when the time is over.
    ///
    /// It also holds for a lock that was lost because no renewal was confirmed, if its key is still there when the guard goes. A process
    /// that dies leaves the name to its lease, and [`Lock::abandon`](crate::Lock::abandon) too.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let hourly = locks.lock("report").at_least(Duration::from_secs(3_600));
    /// let lock = hourly.clone().acquire().await?;
    /// // The report, in a second or two.
    /// lock.release().await?;
    /// let attempt = hourly.try_acquire().await?;
    /// assert!(attempt.holder().is_some_and(|holder| holder.cooling));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn at_least(mut self, at_least: Duration) -> LockOptions {
        self.lease = self.lease.at_least(at_least);
        self
    }

    /// With a fence: a number above that of every holder of this name before, by which a resource can refuse whoever comes
    /// too late. [`Held::fence`](crate::Held::fence) gives it; `docs/fencing.md` says how to use it.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let first = locks.lock("ledger").fenced().acquire().await?;
    /// let fence = first.fence().expect("it was asked for");
    /// first.release().await?;
    /// let second = locks.lock("ledger").fenced().acquire().await?;
    /// assert!(second.fence() > Some(fence));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn fenced(mut self) -> LockOptions {
        if self.options.fence.is_none() {
            self.options.fence = Some(0);
        }
        self
    }

    /// With a fence above `floor`: the highest one that the resource has seen. Where the resource keeps it, fences grow
    /// whatever the server forgets. A floor more than a day ahead of the server's clock is
    /// [`Error::Misconfigured`](crate::Error::Misconfigured).
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// # let newest_in_the_table = 41;
    /// let lock = locks.lock("ledger").fence_from(newest_in_the_table).acquire().await?;
    /// assert!(lock.fence() > Some(newest_in_the_table));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn fence_from(mut self, floor: u64) -> LockOptions {
        self.options.fence = Some(floor);
        self
    }

    /// First come, first served, across processes: who releases passes the name on to whoever has waited longest, and no newcomer
    /// comes in between. A single try gets the name only if nobody waits for it. `docs/fairness.md` says what it costs, and how
    /// requests that are not fair overtake.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.lock("printer").fair().acquire().await?;
    /// # lock.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn fair(mut self) -> LockOptions {
        if self.options.fair.is_none() {
            self.options.fair = Some(WAITER_LEASE);
        }
        self
    }

    /// [`fair`](LockOptions::fair), and for how long a process that waits is taken for alive without a word of it. Default: 5 s. A
    /// process that dies while it waits keeps the others waiting for at most twice this. It gives word three times in it.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.lock("printer").waiter_lease(Duration::from_secs(2)).acquire().await?;
    /// # lock.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn waiter_lease(mut self, lease: Duration) -> LockOptions {
        self.options.fair = Some(lease);
        self
    }

    /// [`fair`](LockOptions::fair), and whoever would be one more than `count` to wait does not: the request fails with
    /// [`Error::QueueFull`](crate::Error::QueueFull) at once. `1`: one runs, one waits, everybody else is turned away.
    ///
    /// Counted on the server, where a process is one however many of its requests wait, and among the requests of each process; those
    /// who wait behind a hold of their own process are counted there only.
    /// Only requests that ask for it are turned away, and they count whoever waits in turn. A process that died while it waited
    /// counts for as long as it is taken for alive: see [`waiter_lease`](LockOptions::waiter_lease).
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let request = || locks.lock("rebuild").max_waiters(1);
    /// let runs = request().acquire().await?;
    /// let waits = tokio::spawn(request().acquire());
    /// tokio::task::yield_now().await;
    /// assert!(matches!(request().acquire().await, Err(tenure::Error::QueueFull)));
    /// runs.release().await?;
    /// assert!(waits.await.unwrap()?.is_held());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn max_waiters(mut self, count: u32) -> LockOptions {
        self.options.max_waiters = Some(count);
        self.fair()
    }

    /// Counts as held only what at least `count` replicas, 1 to 15, have confirmed: behind the grant and each renewal the server waits
    /// for them, up to `within`, which is less than a quarter of the lease. Without them nothing is granted
    /// ([`Error::Unavailable`](crate::Error::Unavailable)), and a hold is lost when it is given up.
    ///
    /// With `count` = all replicas that can be promoted, no failover to one of them gives the name to somebody else while it
    /// is held. `docs/replicas.md` says what is promised and what is not. These locks have a connection of their own, made
    /// for the first of them, since a server that waits for replicas serves nothing else there.
    ///
    /// ```no_run
    /// # use tenure_client as tenure;
    /// # use std::time::Duration;
    /// # async fn example(locks: tenure::Locks) -> Result<(), tenure::Error> {
    /// let lock = locks.lock("ledger").replicas(2, Duration::from_millis(500)).acquire().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn replicas(mut self, count: u8, within: Duration) -> LockOptions {
        let ms = within.as_nanos().div_ceil(1_000_000);
        self.options.replicas = Some(Replicas {
            count,
            within_ms: if ms > u32::MAX as u128 {
                u32::MAX
            } else {
                ms as u32
            },
            on_disk: self.is_on_disk(),
        });
        self
    }

    /// With [`replicas`](LockOptions::replicas): counts only what is on disk, on the server as well as on the replicas. Takes
    /// `WAITAOF`, so Redis 7.2 or Valkey, and an append-only file on each. Allow more than a second: a replica says only once a
    /// second what it has on disk.
    ///
    /// ```no_run
    /// # use tenure_client as tenure;
    /// # use std::time::Duration;
    /// # async fn example(locks: tenure::Locks) -> Result<(), tenure::Error> {
    /// let within = Duration::from_secs(3);
    /// let lock = locks.lock("ledger").replicas(1, within).on_disk().acquire().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn on_disk(mut self) -> LockOptions {
        // Without replicas it is refused: none is as good as not asked for.
        let (count, within_ms) = match self.options.replicas {
            Some(replicas) => (replicas.count, replicas.within_ms),
            None => (0, 0),
        };
        self.options.replicas = Some(Replicas {
            count,
            within_ms,
            on_disk: true,
        });
        self
    }

    const fn is_on_disk(&self) -> bool {
        matches!(self.options.replicas, Some(replicas) if replicas.on_disk)
    }

    /// With a new value at every renewal, so that of two copies of this process - a virtual machine that was restored from a
    /// snapshot while the original runs on, a checkpoint - one is told at its first renewal that the lock was
    /// [replaced](crate::Cause::Replaced). **Until then both hold it.** `docs/safety.md` says what remains, assumption A5.
    ///
    /// Each renewal takes 16 bytes of the system's entropy, and the value that the server keeps is always the newest. With
    /// [`no_renew`](LockOptions::no_renew) it changes nothing.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// let lock = locks.lock("ledger").rotate().acquire().await?;
    /// lock.renew_now().await?;
    /// assert!(lock.is_held());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn rotate(mut self) -> LockOptions {
        self.options.rotate = true;
        self
    }

    /// One fixed lease, not renewed. The loss is told a margin before the end of validity.
    #[must_use]
    pub const fn no_renew(mut self) -> LockOptions {
        self.lease = self.lease.no_renew();
        self
    }
}

impl Default for LockOptions {
    fn default() -> LockOptions {
        LockOptions::new()
    }
}
