//! The seam for a store that is called and answers: an embedded database, or a driver that waits. May change before 1.0.
//!
//! An [`Engine`] carries out one [`Job`] at a time, each as one atomic step, and may take its time for it: it is called by a
//! thread of its own, or by a thread that waits for the answer anyhow, and never under the client's lock. What it answers is what
//! it found; what that means for a lease is judged here, by core's `leases`.
//!
//! ```
//! use std::time::Duration;
//! use tenure_client::Config;
//! use tenure_client::engine::{Done, Engine, Found, Job, Trouble, open_with};
//!
//! /// Grants everything, and remembers nothing.
//! struct Generous;
//!
//! impl Engine for Generous {
//!     fn open(&mut self, _: Duration) -> Result<(), Trouble> {
//!         Ok(())
//!     }
//!
//!     fn carry_out(&mut self, job: &Job, _: Duration) -> Result<Done, Trouble> {
//!         Ok(match job {
//!             Job::Clear { .. } | Job::Pass { .. } => Done::Cleared { mine: true, found: Found::default() },
//!             Job::Inspect { keys } => Done::Inspected(keys.iter().map(|_| Found::default()).collect()),
//!             Job::List { .. } => Done::Listed(Vec::new()),
//!             Job::Remove { .. } => Done::Removed(None),
//!             Job::Examine => Done::Examined(Vec::new()),
//!             _ => Done::Granted { fence: None },
//!         })
//!     }
//!
//!     fn changes(&mut self) -> Result<Option<Vec<Box<[u8]>>>, Trouble> {
//!         Ok(None)
//!     }
//!
//!     fn wall_us(&self) -> u64 {
//!         0
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure_client::Error> {
//! let (locks, driver) = open_with(tenure_tokio::TokioBinding::new(), &Config::in_memory(), Generous)?;
//! tokio::spawn(driver);
//! let lock = locks.acquire("a").await?;
//! assert!(lock.release().await?.confirmed);
//! # Ok(()) }
//! ```

mod jobs;
mod machine;
mod making;
mod wall;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::StoreFault;
use tenure_core::fence::FenceFault;

use crate::binding::Binding;
use crate::config::Config;
use crate::error::Error;
use crate::host::{Driver, open};
use crate::locks::Locks;
use jobs::Jobs;
use machine::Rows;
pub use wall::ClockStep;

/// Keeps leases in rows, or in whatever it likes.
///
/// Time is that of its own clock, the same for all who share the store, read within the atomic step. A value that has ended by that
/// clock is not there; to whoever has the same value it is, as long as nobody has written another, so that a clock that is set
/// forwards takes nothing away from a holder that renews. Nothing of a step may be seen before all of it is.
pub trait Engine: Send + 'static {
    /// Opens the store, or opens it anew: after [`Trouble`] other than [`StoreFault::Busy`] it is closed and opened again.
    ///
    /// # Errors
    /// What is wrong, with words that say what to do.
    fn open(&mut self, limit: Duration) -> Result<(), Trouble>;

    /// Carries out one step, within about `limit`.
    ///
    /// # Errors
    /// Nothing was done, unless [`maybe_executed`](Trouble::maybe_executed) says that it may have been.
    fn carry_out(&mut self, job: &Job, limit: Duration) -> Result<Done, Trouble>;

    /// Whether others may have changed anything since this was last asked, or since the store was opened; if so, the keys of which a
    /// [note](Found::forced) says that their value was removed. It is asked a few dozen times a second while somebody waits, so
    /// it should be cheap.
    ///
    /// # Errors
    /// As [`carry_out`](Engine::carry_out).
    fn changes(&mut self) -> Result<Option<Vec<Bytes>>, Trouble>;

    /// The store's clock, Unix time in microseconds.
    fn wall_us(&self) -> u64;
}

/// Locks over an engine, driven by whatever runs the returned driver.
///
/// # Errors
/// [`Error::Misconfigured`] for a prefix, label, limit or default that is refused.
pub fn open_with<B: Binding, E: Engine>(
    binding: B,
    config: &Config,
    engine: E,
) -> Result<(Locks, Driver), Error> {
    let settings = config.mux()?;
    let binding = Arc::new(binding);
    let clock = {
        let binding = Arc::clone(&binding);
        move || binding.now()
    };
    open(binding, config, |seed| {
        let jobs = Jobs::new(engine, Box::new(clock));
        Ok(Rows::new(&settings, seed, jobs))
    })
}

/// The bytes of a key or a value.
pub type Bytes = Box<[u8]>;

/// One atomic step. Keys and values are as in `docs/wire.md`; a value is compared byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Job {
    /// Write the value if the key is free: [`Done::Granted`], or [`Done::Refused`] with what is in the way.
    Acquire {
        /// Of the lock.
        key: Bytes,
        /// To be written.
        value: Bytes,
        /// How long it is to live.
        lease: Duration,
        /// Whether a [fence](tenure_core::fence) is minted with it, and above what.
        fence: Option<u64>,
    },
    /// Write `new`, with a fresh time to live, if the key has the value `old`; both may be the same. [`Done::Granted`] or
    /// [`Done::Refused`].
    Swap {
        /// Of the lock.
        key: Bytes,
        /// To be compared with.
        old: Bytes,
        /// To be written.
        new: Bytes,
        /// How long it is to live.
        lease: Duration,
        /// As in `Acquire`; the comparison comes first.
        fence: Option<u64>,
    },
    /// See what the key has: [`Done::Refused`], whatever it is.
    Look {
        /// Of the lock.
        key: Bytes,
        /// What it should be.
        value: Bytes,
    },
    /// Free the key if it has one of these values: [`Done::Cleared`].
    Clear {
        /// Of the lock.
        key: Bytes,
        /// Those that stand for the hold come first.
        values: Vec<Bytes>,
        /// How many of them do.
        of_hold: usize,
        /// What takes the place of one that stands for the hold, and for how long, instead of nothing. Where it is in its
        /// place already, that was done before.
        cooling: Option<(Bytes, Duration)>,
    },
    /// As `Acquire`, first come, first served: what [`TAKE`](tenure_core::plan::TAKE) does.
    Take {
        /// Of the lock.
        key: Bytes,
        /// To be written.
        value: Bytes,
        /// How long it is to live.
        lease: Duration,
        /// As in `Acquire`.
        fence: Option<u64>,
        /// Who asks; nobody for a single try, which does not wait.
        waiter: Option<Waiter>,
        /// How many may wait; whoever would be one more is not put into the queue: [`Done::Full`].
        most: Option<u32>,
    },
    /// As `Clear`, to whoever waits first: what [`PASS`](tenure_core::plan::PASS) does.
    Pass {
        /// Of the lock.
        key: Bytes,
        /// Those that stand for the hold come first.
        values: Vec<Bytes>,
        /// How many of them do.
        of_hold: usize,
        /// Who leaves the queue with this, and the value under which the key may have been passed on to it.
        leaves: Bytes,
        /// Who waits in the same process, to be put into the queue or back to its place.
        next: Option<Waiter>,
    },
    /// What each of these keys has: [`Done::Inspected`], in this order.
    Inspect {
        /// Of locks.
        keys: Vec<Bytes>,
    },
    /// Which keys that begin so have a value: [`Done::Listed`].
    List {
        /// How they begin.
        start: Bytes,
    },
    /// Remove the value of the key, whosever it is, and leave the note `by` + `.` + value for its holder to be
    /// [found](Found::forced), as long as the value would have lived and a minute at least: [`Done::Removed`].
    #[non_exhaustive]
    Remove {
        /// Of the lock.
        key: Bytes,
        /// The label of whoever removes it.
        by: Bytes,
        /// Only if it has this value; as if it were free if it has another.
        only: Option<Bytes>,
    },
    /// Say what the store is and how it is set: [`Done::Examined`].
    Examine,
}

/// Somebody in the queue of a fair lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// Under this value the key is passed on to it; it is known by that.
    pub value: Bytes,
    /// How long it is taken for alive without a word of it, and how long the key waits for it once passed on.
    pub lease: Duration,
    /// How long ago it came: whoever comes back after an outage has its old place.
    pub age: Duration,
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Done {
    /// It was written.
    Granted {
        /// The fence, if one was asked for.
        fence: Option<u64>,
    },
    /// It was not written, or was only looked at: this is what the key has.
    Refused(Found),
    /// As `Refused`, and as many wait as may.
    Full(Found),
    /// No fence could be minted, and nothing was written.
    Unminted(FenceFault),
    /// What was to be cleared is not there any more.
    Cleared {
        /// Whether the key had a value of the hold until then.
        mine: bool,
        /// What it had, for the note that may be with it.
        found: Found,
    },
    /// What each key has.
    Inspected(Vec<Found>),
    /// The keys that have a value.
    Listed(Vec<Bytes>),
    /// The value that was removed, if there was one.
    Removed(Option<Bytes>),
    /// What there is to say of the store, each with a name.
    Examined(Vec<(Bytes, Bytes)>),
}

/// What a key has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The value; `None` for a free key.
    pub value: Option<Bytes>,
    /// How long it lives on; `None` for ever.
    pub remaining: Option<Duration>,
    /// The last fence that was minted for the key.
    pub fence: Option<u64>,
    /// The note of a [removal](Job::Remove), as long as that is of interest.
    pub forced: Option<Bytes>,
}

/// Why a step was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of trouble.
    pub fault: StoreFault,
    /// In words, for people: what to do comes first, since the end may be cut off.
    pub text: String,
    /// Whether the step may have been carried out all the same.
    pub maybe_executed: bool,
}

impl Trouble {
    /// Trouble before anything was done.
    pub fn new(fault: StoreFault, text: impl Into<String>) -> Trouble {
        Trouble {
            fault,
            text: text.into(),
            maybe_executed: false,
        }
    }
}
