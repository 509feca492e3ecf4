//! What is under test, as a program uses it: a client on a runtime of its own, and a record of what it is told.
//!
//! The code of a scenario is not asynchronous: it may block on a monitor or a proxy while the client runs on.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_client::{
    Config, Error, Event, Held, Holder, LinkFault, Lock, Locks, Lost, Observer, connect_with,
};
use tenure_tokio::TokioBinding;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::{Client, Failure, Monitor, Seen, Server};

/// Nothing that a test waits for takes this long, unless it never comes.
pub const LONG: Duration = Duration::from_secs(20);

/// The key of the lock with this name, which has nothing to escape.
#[must_use]
pub fn key_of(name: &str) -> String {
    format!("lock:{name}")
}

/// A client with a runtime of its own, and everything its observer was told.
///
/// The driver runs on a thread of the runtime. When this is dropped the runtime ends, and the client with it.
#[derive(Debug)]
pub struct Tenure {
    locks: Locks,
    told: Arc<Recorder>,
    runtime: Runtime,
}

impl Tenure {
    /// Connects, with this label.
    ///
    /// # Errors
    /// Why the first try failed.
    pub fn connect(url: &str, label: &str) -> Result<Self, Failure> {
        let tenure = Self::start(url, |config| config.label(label))?;
        tenure.wait(tenure.locks.ready())??;
        Ok(tenure)
    }

    /// Starts a client with these settings. It connects in the background.
    ///
    /// # Errors
    /// When the settings are refused.
    pub fn start(url: &str, settings: impl FnOnce(Config) -> Config) -> Result<Self, Failure> {
        let told = Arc::new(Recorder::default());
        let config = settings(Config::from_url(url)?).observe(Arc::<Recorder>::clone(&told));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let entered = runtime.enter();
        let (locks, driver) = connect_with(TokioBinding::new(), &config)?;
        drop(entered);
        runtime.spawn(driver);
        Ok(Self {
            locks,
            told,
            runtime,
        })
    }

    /// The locks.
    #[must_use]
    pub const fn locks(&self) -> &Locks {
        &self.locks
    }

    /// What was told.
    #[must_use]
    pub fn told(&self) -> &Recorder {
        &self.told
    }

    /// The runtime.
    #[must_use]
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Waits for a future.
    ///
    /// # Errors
    /// When it does not come to an end.
    pub fn wait<F: Future>(&self, future: F) -> Result<F::Output, Failure> {
        self.wait_at_most(LONG, future)
    }

    /// Waits for a future that must be ready within this time.
    ///
    /// # Errors
    /// When it is not.
    pub fn wait_at_most<F: Future>(
        &self,
        within: Duration,
        future: F,
    ) -> Result<F::Output, Failure> {
        let waited = async { tokio::time::timeout(within, future).await };
        let output = self.runtime.block_on(waited);
        output.map_err(|_| format!("not ready within {within:?}").into())
    }

    /// Lets a future run on the runtime; [`Self::wait`] for the handle.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(future)
    }

    /// Acquires a lock with this lease that nobody holds, in one try.
    ///
    /// # Errors
    /// When it fails or somebody holds it.
    pub fn hold(&self, name: &str, lease: Duration) -> Result<Lock, Failure> {
        let attempt = self.wait(self.locks.lock(name).lease(lease).try_acquire())??;
        attempt
            .acquired()
            .ok_or_else(|| format!("{name} is held by somebody").into())
    }

    /// Waits for the loss of a hold.
    ///
    /// # Errors
    /// When it is not told within this time.
    pub fn lost(&self, held: &Held, within: Duration) -> Result<Lost, Failure> {
        self.wait_at_most(within, held.lost())
    }

    /// Releases a lock that must still be held, and waits for the server to confirm it.
    ///
    /// # Errors
    /// When it was lost, or is not confirmed.
    pub fn release(&self, lock: Lock) -> Result<(), Failure> {
        match self.wait(lock.release())?? {
            released if released.confirmed => Ok(()),
            _ => Err("the release is not confirmed".into()),
        }
    }
}

/// What an observer was told, to be kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// Connected; the version of the server, if it said one.
    Connected,
    /// A try to connect failed.
    ConnectFailed(LinkFault, Option<String>),
    /// The connection was lost.
    Disconnected(LinkFault),
    /// The lock with this name was acquired.
    Acquired(String),
    /// A single try found it taken.
    Held(String, Holder),
    /// A request failed or timed out.
    Failed(String, Error),
    /// A renewal was confirmed.
    Renewed(String),
    /// A renewal did not count.
    RenewalFailed(String, Error),
    /// A hold was lost.
    Lost(String, Lost),
    /// A hold was released; whether that was confirmed.
    Released(String, bool),
    /// A hold was left to its TTL.
    Abandoned(String),
    /// A guard was dropped.
    Dropped(String),
    /// A future was dropped.
    Cancelled(String),
    /// The server does not tell when a name gets free; why.
    Unwatched(String),
    /// Something about the server endangers locks; what.
    Risk(String),
    /// Something else.
    Other,
}

/// An observer that keeps everything, with the time at which it came.
#[derive(Debug, Default)]
pub struct Recorder {
    told: Mutex<Vec<(Instant, Told)>>,
    changed: Condvar,
}

impl Recorder {
    /// Everything so far.
    #[must_use]
    pub fn all(&self) -> Vec<Told> {
        self.lock().iter().map(|(_, told)| told.clone()).collect()
    }

    /// How many so far meet the condition.
    #[must_use]
    pub fn count(&self, condition: impl Fn(&Told) -> bool) -> usize {
        self.lock().iter().filter(|(_, it)| condition(it)).count()
    }

    /// When each that meets the condition came.
    #[must_use]
    pub fn times(&self, condition: impl Fn(&Told) -> bool) -> Vec<Instant> {
        let told = self.lock();
        let met = told.iter().filter(|(_, it)| condition(it));
        met.map(|(at, _)| *at).collect()
    }

    /// How many renewals were confirmed so far.
    #[must_use]
    pub fn renewals(&self) -> usize {
        self.count(|told| matches!(told, Told::Renewed(_)))
    }

    /// Waits until there are that many more than now that meet the condition.
    ///
    /// # Errors
    /// When they do not come.
    pub fn more(
        &self,
        count: usize,
        within: Duration,
        condition: impl Fn(&Told) -> bool,
    ) -> Result<(), Failure> {
        let known = self.count(&condition);
        self.wait_for(known + count, within, condition)
    }

    /// Waits until that many meet the condition, counted from the start.
    ///
    /// # Errors
    /// When they do not come; says what did.
    pub fn wait_for(
        &self,
        count: usize,
        within: Duration,
        condition: impl Fn(&Told) -> bool,
    ) -> Result<(), Failure> {
        let until = Instant::now() + within;
        let mut told = self.lock();
        while told.iter().filter(|(_, it)| condition(it)).count() < count {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                let all: Vec<_> = told.iter().map(|(_, told)| told).collect();
                return Err(format!("not told within {within:?}; told was {all:?}").into());
            };
            let waited = self.changed.wait_timeout(told, left);
            told = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Instant, Told)>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Recorder {
    fn event(&self, event: &Event<'_>) {
        let told = Told::of(event);
        self.lock().push((Instant::now(), told));
        self.changed.notify_all();
    }
}

impl Told {
    /// Whether it is the end of a hold.
    #[must_use]
    pub const fn ends_hold(&self) -> bool {
        matches!(
            self,
            Self::Lost(..) | Self::Released(..) | Self::Abandoned(_) | Self::Dropped(_)
        )
    }

    fn of(event: &Event<'_>) -> Self {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        match event {
            Event::Connected(_) => Self::Connected,
            Event::Unwatched(why) => Self::Unwatched(why.to_string()),
            Event::Risk(risk) => Self::Risk(risk.to_string()),
            Event::ConnectFailed { fault, text, .. } => {
                Self::ConnectFailed(*fault, text.map(str::to_owned))
            }
            Event::Disconnected(fault) => Self::Disconnected(*fault),
            Event::Acquired { name, .. } => Self::Acquired(text(name)),
            Event::Held { name, holder, .. } => Self::Held(text(name), (*holder).clone()),
            Event::Failed { name, error, .. } => Self::Failed(text(name), (*error).clone()),
            Event::Renewed { name, .. } => Self::Renewed(text(name)),
            Event::RenewalFailed { name, error, .. } => {
                Self::RenewalFailed(text(name), (*error).clone())
            }
            Event::Lost { name, lost, .. } => Self::Lost(text(name), (*lost).clone()),
            Event::Released {
                name, confirmed, ..
            } => Self::Released(text(name), *confirmed),
            Event::Abandoned { name, .. } => Self::Abandoned(text(name)),
            Event::Dropped { name, .. } => Self::Dropped(text(name)),
            Event::Cancelled { name, .. } => Self::Cancelled(text(name)),
            _ => Self::Other,
        }
    }
}

/// What clients send to a server, without what the test itself sends over the Unix socket and what scripts do.
#[derive(Debug)]
pub struct Watch {
    monitor: Monitor,
    client: Client,
    marks: u32,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn start(server: &Server) -> Result<Self, Failure> {
        Ok(Self {
            monitor: server.monitor()?,
            client: server.client()?,
            marks: 0,
        })
    }

    /// Every command that named this key anywhere and was executed until now.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn about(&mut self, key: &str) -> Result<Vec<Seen>, Failure> {
        self.settle()?;
        let mut seen = self.monitor.about(key);
        seen.retain(sent);
        Ok(seen)
    }

    /// Every command that was executed until now.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn all(&mut self) -> Result<Vec<Seen>, Failure> {
        self.settle()?;
        let mut seen = self.monitor.commands();
        seen.retain(sent);
        Ok(seen)
    }

    /// The names of those that named this key.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn names(&mut self, key: &str) -> Result<Vec<String>, Failure> {
        Ok(self.about(key)?.iter().map(Seen::name).collect())
    }

    /// Waits until that many commands were sent, since the start or the last [`Self::forget`], that meet the
    /// condition.
    ///
    /// # Errors
    /// When they do not come.
    pub fn wait_for(
        &self,
        count: usize,
        within: Duration,
        condition: impl Fn(&Seen) -> bool,
    ) -> Result<(), Failure> {
        match self
            .monitor
            .wait_for(count, within, |seen| sent(seen) && condition(seen))
        {
            true => Ok(()),
            false => Err(format!(
                "not sent within {within:?}; sent was {:?}",
                self.monitor.commands()
            )
            .into()),
        }
    }

    /// Forgets what was executed until now.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn forget(&mut self) -> Result<(), Failure> {
        self.settle()?;
        self.monitor.clear();
        Ok(())
    }

    /// Lets time pass, such as a lease, and checks that no command names the key in it.
    ///
    /// # Errors
    /// When one does.
    pub fn silent(&mut self, key: &str, span: Duration) -> Result<(), Failure> {
        self.forget()?;
        std::thread::sleep(span);
        match self.names(key)? {
            names if names.is_empty() => Ok(()),
            names => Err(format!("{names:?} came where nothing was to come").into()),
        }
    }

    /// Waits for the monitor to have told of everything that the server has executed until now.
    fn settle(&mut self) -> Result<(), Failure> {
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        self.client.ok(&["ECHO", &mark])?;
        match self
            .monitor
            .wait_for(1, LONG, |seen| seen.args.len() == 2 && seen.arg(1) == mark)
        {
            true => Ok(()),
            false => Err("the monitor is silent".into()),
        }
    }
}

fn sent(seen: &Seen) -> bool {
    seen.from != "lua" && !seen.from.starts_with("unix:")
}
