//! What a lease is made of, checked when it is built.

use core::time::Duration;

use crate::error::ConfigError;
use crate::time::micros;

/// The shortest lease.
pub const MIN_LEASE: Duration = Duration::from_millis(20);
/// The longest lease, 30 days.
pub const MAX_LEASE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The smallest margin.
pub const MIN_MARGIN: Duration = Duration::from_millis(1);
/// The longest name in bytes.
pub const MAX_NAME: usize = 1024;
/// The longest key prefix in bytes.
pub const MAX_PREFIX: usize = 256;
/// The longest label in bytes, once escaped.
pub const MAX_LABEL: usize = 128;
/// The reply limit where no live hold asks for a smaller one.
pub const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// The longest delay between two attempts of a waiter that the server wakes: should a wake-up be missed.
pub const POLL_LIMIT: Duration = Duration::from_secs(10);

/// For how long who waits for a fair lock is taken for alive after its last word, unless another time is set.
pub const WAITER_LEASE: Duration = Duration::from_secs(5);
/// The shortest such time.
pub const MIN_WAITER_LEASE: Duration = Duration::from_millis(100);

/// The times of one lease. What is not set follows from the lease length.
///
/// | time | default |
/// |---|---|
/// | `margin` | a tenth of the lease, at least 2 ms: what clocks may drift apart |
/// | `renew_every` | a fifth of the lease |
/// | `give_up_after` | two thirds of the lease (without renewal: the lease less two margins) |
/// | `reply_limit` | a fifth of the time between the two above, at most 5 s |
///
/// With these an outage of up to a third of the lease never loses a hold: a renewal is due at 1/5,
/// the outage ends at 8/15 at the latest, a dial that hung in it ends 7/75 later at 47/75, and a new
/// connection still renews before 2/3. (A dial may take half of what is left until 2/3, and at least the reply
/// limit: the earlier it begins the longer, but it ends no later than that.)
///
/// ```
/// use core::time::Duration;
/// use tenure_core::config::LeaseConfig;
///
/// let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
/// assert_eq!(terms.validity(), Duration::from_secs(27));
/// assert_eq!(terms.give_up_after(), Duration::from_secs(20));
///
/// // What cannot work is refused here, before any command.
/// assert!(LeaseConfig::new(Duration::from_secs(30)).renew_every(Duration::from_secs(25)).build().is_err());
/// # Ok::<(), tenure_core::error::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    lease: Duration,
    margin: Option<Duration>,
    renew_every: Option<Duration>,
    give_up_after: Option<Duration>,
    reply_limit: Option<Duration>,
    max_hold: Option<Duration>,
    at_least: Duration,
    renew: bool,
}

impl LeaseConfig {
    /// A lease of this length, renewed by itself.
    pub const fn new(lease: Duration) -> LeaseConfig {
        LeaseConfig {
            lease,
            margin: None,
            renew_every: None,
            give_up_after: None,
            reply_limit: None,
            max_hold: None,
            at_least: Duration::ZERO,
            renew: true,
        }
    }

    /// Changes the lease length.
    #[must_use]
    pub const fn lease(mut self, lease: Duration) -> LeaseConfig {
        self.lease = lease;
        self
    }

    /// The safety margin: the lease counts as over this long before the server lets the key expire.
    #[must_use]
    pub const fn margin(mut self, margin: Duration) -> LeaseConfig {
        self.margin = Some(margin);
        self
    }

    /// How long after the hand-out of one renewal the next is due.
    #[must_use]
    pub const fn renew_every(mut self, every: Duration) -> LeaseConfig {
        self.renew_every = Some(every);
        self
    }

    /// How long after the hand-out of the last confirmed renewal the loss is told.
    ///
    /// From then to the end of validity is the stop window: the key still excludes others, and the
    /// work has that time to end.
    #[must_use]
    pub const fn give_up_after(mut self, after: Duration) -> LeaseConfig {
        self.give_up_after = Some(after);
        self
    }

    /// How long a renewal may stay unanswered before its connection is declared dead.
    #[must_use]
    pub const fn reply_limit(mut self, limit: Duration) -> LeaseConfig {
        self.reply_limit = Some(limit);
        self
    }

    /// Renewing stops in time for the hold to end by `max_hold` after the grant.
    #[must_use]
    pub const fn max_hold(mut self, max_hold: Duration) -> LeaseConfig {
        self.max_hold = Some(max_hold);
        self
    }

    /// The shortest hold: a lock that is released before stays taken until `at_least` after the grant was told. Zero, the
    /// default, for none; at most [`MAX_LEASE`].
    #[must_use]
    pub const fn at_least(mut self, at_least: Duration) -> LeaseConfig {
        self.at_least = at_least;
        self
    }

    /// One fixed lease that is not renewed.
    #[must_use]
    pub const fn no_renew(mut self) -> LeaseConfig {
        self.renew = false;
        self
    }

    /// Checks the relations between the times.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that cannot work and the range that can.
    pub fn build(&self) -> Result<Terms, ConfigError> {
        let lease = self.lease;
        if lease < MIN_LEASE || lease > MAX_LEASE {
            return Err(ConfigError::Lease(lease));
        }
        let margin = self
            .margin
            .unwrap_or_else(|| (lease / 10).max(Duration::from_millis(2)));
        if margin < MIN_MARGIN || margin >= lease {
            return Err(ConfigError::Margin { margin, lease });
        }
        let validity = lease - margin;
        let renew_every = match (self.renew, self.renew_every) {
            (false, _) => Duration::ZERO,
            (true, Some(every)) => every,
            (true, None) => lease / 5,
        };
        let give_up_after = self.give_up_after.unwrap_or_else(|| {
            if self.renew {
                lease * 2 / 3
            } else {
                validity.saturating_sub(margin)
            }
        });
        let order = renew_every < give_up_after && give_up_after < validity;
        if !order || (self.renew && renew_every.is_zero()) {
            return Err(ConfigError::Intervals {
                renew_every,
                give_up_after,
                validity,
            });
        }
        let room = give_up_after - renew_every;
        let limit = self
            .reply_limit
            .unwrap_or_else(|| (room / 5).min(REPLY_LIMIT));
        if limit.is_zero() || limit > room / 3 {
            return Err(ConfigError::ReplyLimit {
                limit,
                most: room / 3,
            });
        }
        if let Some(max_hold) = self.max_hold {
            if max_hold < lease {
                return Err(ConfigError::MaxHold { max_hold, lease });
            }
        }
        if self.at_least > MAX_LEASE {
            return Err(ConfigError::AtLeast(self.at_least));
        }
        Ok(Terms {
            lease: micros(lease),
            validity: micros(validity),
            renew_every: if self.renew {
                micros(renew_every)
            } else {
                u64::MAX
            },
            give_up_after: micros(give_up_after),
            // The general one is far below.
            reply_limit: u32::try_from(micros(limit).max(1)).unwrap_or(u32::MAX),
            at_least_ms: micros(self.at_least).div_ceil(1000) as u32,
            max_hold: self.max_hold.map_or(u64::MAX, micros),
        })
    }
}

/// The checked times of one lease. Made by [`LeaseConfig::build`]; fixed for the whole hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    // Microseconds, `u64::MAX` for never: six words instead of ninety-six bytes of `Duration`.
    lease: u64,
    validity: u64,
    renew_every: u64,
    give_up_after: u64,
    max_hold: u64,
    reply_limit: u32,
    at_least_ms: u32,
}

impl Terms {
    /// The lease length.
    pub const fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }

    /// The lease length for the server: whole milliseconds, rounded up.
    pub const fn lease_ms(&self) -> u64 {
        self.lease.div_ceil(1000)
    }

    /// Lease less margin: how long a confirmed hand-out counts.
    pub const fn validity(&self) -> Duration {
        Duration::from_micros(self.validity)
    }

    /// Time from a hand-out to the next renewal; `None` without renewal.
    pub const fn renew_every(&self) -> Option<Duration> {
        if self.renew_every == u64::MAX {
            None
        } else {
            Some(Duration::from_micros(self.renew_every))
        }
    }

    /// Time from the last confirmed hand-out to the loss being told.
    pub const fn give_up_after(&self) -> Duration {
        Duration::from_micros(self.give_up_after)
    }

    /// How long a renewal may stay unanswered.
    pub const fn reply_limit(&self) -> Duration {
        Duration::from_micros(self.reply_limit as u64)
    }

    /// The shortest hold, counted from the grant; zero for none.
    pub const fn at_least(&self) -> Duration {
        Duration::from_millis(self.at_least_ms as u64)
    }

    /// The longest hold, counted from the grant.
    pub const fn max_hold(&self) -> Option<Duration> {
        if self.max_hold == u64::MAX {
            None
        } else {
            Some(Duration::from_micros(self.max_hold))
        }
    }
}

/// How long a request waits for a name that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wait {
    /// Not at all: exactly one attempt.
    Now,
    /// For at most this long.
    For(Duration),
    /// Until it is had.
    #[default]
    Forever,
}

impl From<Duration> for Wait {
    fn from(wait: Duration) -> Wait {
        Wait::For(wait)
    }
}

impl Wait {
    /// Whether this is a single try: no wait, or one that is shorter than time is counted here.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tenure_core::config::Wait;
    ///
    /// assert!(Wait::Now.is_single_try() && Wait::For(Duration::ZERO).is_single_try());
    /// assert!(!Wait::For(Duration::from_millis(1)).is_single_try() && !Wait::Forever.is_single_try());
    /// ```
    pub const fn is_single_try(self) -> bool {
        match self {
            Wait::Now => true,
            Wait::For(wait) => micros(wait) == 0,
            Wait::Forever => false,
        }
    }
}
