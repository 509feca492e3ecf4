//! The driver's thread, and what it shares with the binding and the callers.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use mio::{Events, Poll as Poller, Registry, Token};
use tenure_client::binding::{Binding, Endpoint, Timer};
use tenure_client::system::{self, Clock};
use tenure_client::{Driver, Tick};

use crate::dial::{Dial, Resolution};
use crate::on_lost::Watch;
use crate::socket::{BlockingStream, Socket};

const WAKE: Token = Token(0);
const SOCKET: Token = Token(1);
const BESIDE: Token = Token(2);

/// While callers read by themselves the driver looks this often whether they still do. Only then may it see the end of an
/// idle connection so late.
const SLACK: Duration = Duration::from_millis(10);

/// The driver's thread polls its future.
const RUNNING: u8 = 0;
/// It was woken and has not looked yet.
const NOTIFIED: u8 = 1;
/// It is in its poller, or about to be.
const SLEEPING: u8 = 2;

thread_local! {
    static IS_DRIVER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is that of a driver: it must not wait for one.
pub(crate) fn on_driver_thread() -> bool {
    IS_DRIVER.get()
}

/// What the driver's thread shares with its binding, and with callers.
pub(crate) struct Hub {
    process: u32,
    clock: Arc<Clock>,
    /// The hub whose thread drives this one, too; and the one that this one's thread drives, too.
    above: Option<Arc<Hub>>,
    beside: Mutex<Weak<Hub>>,
    /// Goes with the thread, however long a handle is kept: it has files.
    ear: Mutex<Option<Ear>>,
    state: AtomicU8,
    /// When the timer fires, in microseconds.
    due: AtomicU64,
    /// The thread has woken for that: once is enough, if the future has lost interest in its timer.
    rung: AtomicBool,
    /// When the dial goes on to its next address.
    patience: AtomicU64,
    /// The open socket.
    socket: Mutex<Option<Arc<Socket>>>,
    resolving: Mutex<Option<Arc<Resolution>>>,
    /// Losses that are to be told on the driver's thread; none once that has ended.
    fired: Mutex<Option<Vec<Arc<Watch>>>>,
}

/// The way into the poller of the driver's thread.
struct Ear {
    registry: Registry,
    alarm: mio::Waker,
}

const NEVER: u64 = u64::MAX;

impl Hub {
    /// A hub, and the poller for its thread.
    pub(crate) fn new() -> io::Result<(Arc<Hub>, Poller)> {
        let poller = Poller::new()?;
        let hub = Hub {
            process: std::process::id(),
            clock: Arc::new(Clock::new()),
            above: None,
            beside: Mutex::new(Weak::new()),
            ear: Mutex::new(Some(Ear {
                registry: poller.registry().try_clone()?,
                alarm: mio::Waker::new(poller.registry(), WAKE)?,
            })),
            state: AtomicU8::new(RUNNING),
            due: AtomicU64::new(NEVER),
            rung: AtomicBool::new(false),
            patience: AtomicU64::new(NEVER),
            socket: Mutex::new(None),
            resolving: Mutex::new(None),
            fired: Mutex::new(Some(Vec::new())),
        };
        Ok((Arc::new(hub), poller))
    }

    /// A hub for another connection on the same thread.
    fn another(self: &Arc<Hub>) -> Arc<Hub> {
        let another = Arc::new(Hub {
            process: self.process,
            clock: Arc::clone(&self.clock),
            above: Some(Arc::clone(self)),
            beside: Mutex::new(Weak::new()),
            ear: Mutex::new(None),
            state: AtomicU8::new(RUNNING),
            due: AtomicU64::new(NEVER),
            rung: AtomicBool::new(false),
            patience: AtomicU64::new(NEVER),
            socket: Mutex::new(None),
            resolving: Mutex::new(None),
            fired: Mutex::new(None),
        });
        *lock(&self.beside) = Arc::downgrade(&another);
        another
    }

    /// What the events of its socket are known by.
    pub(crate) fn token(&self) -> Token {
        match self.above {
            None => SOCKET,
            Some(_) => BESIDE,
        }
    }

    /// Whether this process was forked off from that of the client.
    fn is_copy(&self) -> bool {
        self.process != std::process::id()
    }

    /// Changes what the driver's thread waits on.
    ///
    /// # Errors
    /// The system's; or the thread has ended.
    pub(crate) fn in_poller(
        &self,
        change: impl FnOnce(&Registry) -> io::Result<()>,
    ) -> io::Result<()> {
        let thread = self.above.as_deref().unwrap_or(self);
        match &*lock(&thread.ear) {
            Some(ear) => change(&ear.registry),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The driver's future is to be polled.
    pub(crate) fn wake(&self) {
        if let Some(above) = &self.above {
            return Hub::wake(above);
        }
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING
            && let Some(ear) = &*lock(&self.ear)
        {
            // It fails only where the poller is gone, and then so is the thread.
            let _ = ear.alarm.wake();
        }
    }

    /// The open socket, to be waited on.
    #[cfg(unix)]
    pub(crate) fn socket(&self) -> Option<Arc<Socket>> {
        lock(&self.socket).clone()
    }

    pub(crate) fn set_socket(&self, socket: &Arc<Socket>) {
        *lock(&self.socket) = Some(Arc::clone(socket));
    }

    /// The client has let go of it: nobody is to wait on it any more.
    pub(crate) fn forget(&self, socket: &Arc<Socket>) {
        let mut open = lock(&self.socket);
        // Taken out of the poller by hand: another process that was forked off may keep the connection open.
        socket.watch(false, self);
        if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, socket)) {
            *open = None;
        }
        drop(open);
        socket.let_go();
    }

    pub(crate) fn resolving(&self) -> MutexGuard<'_, Option<Arc<Resolution>>> {
        lock(&self.resolving)
    }

    pub(crate) fn have_patience(&self, span: Option<Duration>) {
        let until = span.map_or(NEVER, |span| (self.clock.now() + span).as_micros());
        self.patience.store(until, Ordering::Relaxed);
    }

    pub(crate) fn is_out_of_patience(&self) -> bool {
        self.clock.now().as_micros() >= self.patience.load(Ordering::Relaxed)
    }

    /// How long the driver may sleep.
    fn timeout(&self, away: bool) -> Option<Duration> {
        let due = match self.rung.load(Ordering::Relaxed) {
            true => NEVER,
            false => self.due.load(Ordering::Relaxed),
        };
        let until = due.min(self.patience.load(Ordering::Relaxed));
        let left =
            (until != NEVER).then(|| Tick::from_micros(until).saturating_since(self.clock.now()));
        match away {
            true => Some(left.map_or(SLACK, |left| left.min(SLACK))),
            false => left,
        }
    }

    /// The driver has slept.
    fn ring(&self, events: &Events) {
        if events.iter().any(|event| event.token() == self.token())
            && let Some(socket) = &*lock(&self.socket)
        {
            socket.set_writable();
        }
        if self.clock.now().as_micros() >= self.due.load(Ordering::Relaxed) {
            self.rung.store(true, Ordering::Relaxed);
        }
    }

    /// A loss is to be told on the driver's thread. Whether there is one.
    pub(crate) fn fire(&self, watch: &Arc<Watch>) -> bool {
        match &mut *lock(&self.fired) {
            Some(fired) => fired.push(Arc::clone(watch)),
            None => return false,
        }
        self.wake();
        true
    }

    fn take_fired(&self) -> Vec<Arc<Watch>> {
        let mut fired = lock(&self.fired);
        fired.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl Wake for Hub {
    fn wake(self: Arc<Self>) {
        Hub::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Hub::wake(self);
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread. It ends with the driver.
pub(crate) fn spawn(driver: Driver, hub: Arc<Hub>, poller: Poller) -> io::Result<()> {
    let thread = thread::Builder::new().name("tenure-driver".to_owned());
    thread.spawn(move || run(driver, &hub, poller)).map(drop)
}

fn run(mut driver: Driver, hub: &Arc<Hub>, mut poller: Poller) {
    IS_DRIVER.set(true);
    let waker = Waker::from(Arc::clone(hub));
    let mut cx = Context::from_waker(&waker);
    let mut events = Events::with_capacity(8);
    let pump = driver.pump();
    // It lives as long as the driver, whose binding has it.
    let beside = lock(&hub.beside).upgrade();
    loop {
        hub.state.store(RUNNING, Ordering::Release);
        let over = Pin::new(&mut driver).poll(&mut cx).is_ready();
        hub.take_fired().iter().for_each(Watch::tell);
        if hub.is_copy() {
            // A callback has forked: this is the only thread of the copy, and what it would go on with is not its own.
            std::mem::forget(driver);
            return;
        }
        if over {
            break;
        }
        let away = pump.look_away();
        if let Some(socket) = &*lock(&hub.socket) {
            socket.watch(!away, hub);
        }
        let mut timeout = hub.timeout(away);
        if let Some(other) = beside.as_ref().and_then(|beside| beside.timeout(false)) {
            timeout = Some(timeout.map_or(other, |timeout| timeout.min(other)));
        }
        let asleep =
            hub.state
                .compare_exchange(RUNNING, SLEEPING, Ordering::AcqRel, Ordering::Acquire);
        if asleep.is_err() {
            continue;
        }
        if poller.poll(&mut events, timeout).is_err() {
            // A signal, most likely; anything else must not make a busy loop.
            events.clear();
            thread::sleep(Duration::from_millis(1));
        }
        hub.ring(&events);
        if let Some(beside) = &beside {
            beside.ring(&events);
        }
    }
    drop(driver);
    *lock(&hub.ear) = None;
    // Whatever fires from now on is told by whoever hears it.
    let last = lock(&hub.fired).take();
    last.iter().flatten().for_each(Watch::tell);
}

/// What a driver's thread needs: non-blocking sockets, and its poller's timeout for a timer. It is had from
/// [`open_with`](crate::open_with).
#[derive(Clone, Debug)]
pub struct BlockingBinding(pub(crate) Arc<Hub>);

impl Binding for BlockingBinding {
    type Stream = BlockingStream;
    type Timer = BlockingTimer;

    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<BlockingStream>> + Send + 'static {
        Dial::new(Arc::clone(&self.0), endpoint.clone())
    }

    fn timer(&self) -> BlockingTimer {
        BlockingTimer(Arc::clone(&self.0))
    }

    fn now(&self) -> Tick {
        self.0.clock.now()
    }

    fn now_for_sending(&self) -> Tick {
        self.0.clock.now_for_sending()
    }

    fn beside(&self) -> Option<BlockingBinding> {
        Some(BlockingBinding(self.0.another()))
    }

    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()> {
        system::entropy(bytes)
    }

    fn may_block(&self) -> bool {
        // The driver's thread keeps the time for everybody.
        !on_driver_thread()
    }

    fn forked_from(&self) -> Option<u32> {
        self.0.is_copy().then_some(self.0.process)
    }
}

/// The driver's thread wakes for it.
#[derive(Debug)]
pub struct BlockingTimer(Arc<Hub>);

impl Timer for BlockingTimer {
    fn set(self: Pin<&mut Self>, deadline: Tick) {
        self.0.due.store(deadline.as_micros(), Ordering::Relaxed);
        self.0.rung.store(false, Ordering::Relaxed);
    }

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        if self.0.clock.now().as_micros() < self.0.due.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        self.0.due.store(NEVER, Ordering::Relaxed);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s17_a_driver_that_looks_away_looks_again_soon() {
        let (hub, _poller) = Hub::new().unwrap();
        assert_eq!(hub.timeout(false), None);
        assert_eq!(hub.timeout(true), Some(SLACK));
        let mut timer = BlockingTimer(Arc::clone(&hub));
        Pin::new(&mut timer).set(hub.clock.now() + 100 * SLACK);
        assert_eq!(hub.timeout(true), Some(SLACK));
        Pin::new(&mut timer).set(hub.clock.now());
        assert_eq!(hub.timeout(true), Some(Duration::ZERO));
    }

    #[test]
    fn a_timer_that_nobody_asks_any_more_rings_once() {
        let (hub, _poller) = Hub::new().unwrap();
        let mut timer = BlockingTimer(Arc::clone(&hub));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(hub.timeout(false), None);
        Pin::new(&mut timer).set(hub.clock.now());
        assert_eq!(hub.timeout(false), Some(Duration::ZERO));
        hub.ring(&Events::with_capacity(1));
        assert_eq!(hub.timeout(false), None);
        // It has fired for whoever does ask.
        assert!(Pin::new(&mut timer).poll(&mut cx).is_ready());
        assert!(Pin::new(&mut timer).poll(&mut cx).is_pending());
        Pin::new(&mut timer).set(hub.clock.now());
        assert_eq!(hub.timeout(false), Some(Duration::ZERO));
    }
}
