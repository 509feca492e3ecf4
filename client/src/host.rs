//! One machine with its holds, shared by the callers and the driver.
//!
//! Whoever brings a change about - a caller's task, a drop, the driver - locks the machine, makes the
//! change, and carries out at once what can be carried out without waiting. Wakers and the observer
//! are called after the lock is given back.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::error::{ConfigError, Failure};
use tenure_core::leases::{self, Fault, LeaseId, Leases, Notice, Request};
use tenure_core::mux::LinkEvent;
use tenure_core::time::Tick;

use crate::binding::{Binding, Timer};
use crate::error::Error;
use crate::hold::{Hold, Told};
use crate::observer::{Event, Observer};
use crate::options::LockOptions;
use crate::store::{End, Store};

/// While anything is held the driver wakes at least this often: a timer does not count a suspension.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// Rounds of one poll before the driver lets other tasks run.
const ROUNDS: usize = 32;

/// What a host keeps under its lock: leases and whatever carries their operations out.
pub(crate) trait Machine: Send + 'static {
    fn leases(&self) -> &Leases;
    fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError>;
    fn end(&mut self, now: Tick, id: LeaseId, how: End);
    fn renew_now(&mut self, now: Tick, id: LeaseId);
    fn close(&mut self, now: Tick);
    fn is_finished(&self) -> bool;
    fn handle_timeout(&mut self, now: Tick);
    /// When the driver must run at the latest.
    fn deadline(&self, now: Tick) -> Option<Tick>;
    /// Carries out what can be carried out without waiting.
    fn flush(&mut self, now: Tick, signals: &mut Vec<Signal>);
    /// Takes in what has arrived, registering the task for more.
    fn poll_in(&mut self, cx: &mut Context<'_>) -> Arrived;
    /// Waits for what a flush had to leave. Ready when a flush may go on.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Whether only the driver can go on with what a flush had to leave.
    fn needs_driver(&self) -> bool;
    /// Everything is over: let go of the transport.
    fn shut_down(&mut self);
}

/// What a machine took in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    /// The time as it was read after the last of it.
    pub(crate) at: Option<Tick>,
    /// There may be more at once.
    pub(crate) more: bool,
}

/// Something a machine has to tell.
#[derive(Debug)]
pub(crate) enum Signal {
    Lease(leases::Event),
    Link(LinkEvent),
}

pub(crate) struct Shared<M, B> {
    binding: Arc<B>,
    observer: Option<Arc<dyn Observer>>,
    state: Mutex<State<M>>,
}

struct State<M> {
    machine: M,
    /// The hold of each lease, by its place in the table.
    holds: Vec<Option<Arc<Hold>>>,
    signals: Vec<Signal>,
    driver: Option<Waker>,
    /// What the driver's timer is set to.
    armed: Tick,
    ready: Option<Result<(), Error>>,
    /// Those who wait for `ready`, or for the end.
    waiting: Vec<Waker>,
    closed: bool,
    /// The driver has ended.
    gone: bool,
    /// For the observer, in order.
    seen: VecDeque<Seen>,
    telling: bool,
}

/// What the observer is still to be told.
enum Seen {
    Lease(Arc<Hold>, Notice, Duration),
    Link(LinkEvent),
    Dropped(Arc<Hold>, Duration),
    Cancelled(Arc<Hold>, Duration),
}

impl<M: Machine, B: Binding> Shared<M, B> {
    pub(crate) fn new(
        machine: M,
        binding: Arc<B>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Arc<Shared<M, B>> {
        Arc::new(Shared {
            binding,
            observer,
            state: Mutex::new(State {
                machine,
                holds: Vec::new(),
                signals: Vec::new(),
                driver: None,
                armed: Tick::MAX,
                ready: None,
                waiting: Vec::new(),
                closed: false,
                gone: false,
                seen: VecDeque::new(),
                telling: false,
            }),
        })
    }

    /// Makes a change as a caller: what it leads to goes out at once, as far as that needs no waiting.
    fn change<R>(&self, change: impl FnOnce(&mut State<M>, Tick) -> R) -> R {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        // Read before the bytes are looked at that the change leads to.
        let now = self.binding.now_for_sending();
        let result = change(&mut state, now);
        state.flush(now, self.observer.is_some(), &mut wakers);
        let due = state.machine.deadline(now).unwrap_or(Tick::MAX);
        if due < state.armed || state.machine.needs_driver() || state.is_over() {
            wakers.extend(state.driver.clone());
        }
        drop(state);
        self.tell(wakers);
        result
    }

    /// Calls wakers and the observer. No lock is held.
    fn tell(&self, wakers: Vec<Waker>) {
        wakers.into_iter().for_each(Waker::wake);
        let Some(observer) = &self.observer else {
            return;
        };
        let mut state = self.lock();
        // One thread tells at a time, so that the events of a lock come in order.
        if std::mem::replace(&mut state.telling, true) {
            return;
        }
        while let Some(seen) = state.seen.pop_front() {
            drop(state);
            seen.tell(&**observer);
            state = self.lock();
        }
        state.telling = false;
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // The machines do not panic; if one did, a poisoned lock must not take every drop down with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Machine> State<M> {
    fn is_over(&self) -> bool {
        self.closed && self.machine.is_finished()
    }

    fn flush(&mut self, now: Tick, observed: bool, wakers: &mut Vec<Waker>) {
        let mut signals = std::mem::take(&mut self.signals);
        self.machine.flush(now, &mut signals);
        for signal in signals.drain(..) {
            match signal {
                Signal::Lease(event) => self.lease_event(event, now, observed, wakers),
                Signal::Link(event) => self.link_event(event, observed, wakers),
            }
        }
        self.signals = signals;
        if self.is_over() {
            wakers.append(&mut self.waiting);
        }
    }

    fn lease_event(
        &mut self,
        event: leases::Event,
        now: Tick,
        observed: bool,
        wakers: &mut Vec<Waker>,
    ) {
        let Some(slot) = self.holds.get_mut(event.id.index()) else {
            return;
        };
        let Some(hold) = slot.as_ref().filter(|hold| hold.id() == Some(event.id)) else {
            return;
        };
        let Told { lasted, over } = hold.tell(&event.notice, now, wakers);
        if observed {
            self.seen
                .push_back(Seen::Lease(Arc::clone(hold), event.notice, lasted));
        }
        if over {
            *slot = None;
        }
    }

    fn link_event(&mut self, event: LinkEvent, observed: bool, wakers: &mut Vec<Waker>) {
        let ready = match &event {
            LinkEvent::Up(_) => Some(Ok(())),
            LinkEvent::Failed { fault, text } => {
                Some(Err(Error::of_failure(Failure::Link(*fault), text.clone())))
            }
            _ => None,
        };
        if self.ready.is_none() && ready.is_some() {
            self.ready = ready;
            wakers.append(&mut self.waiting);
        }
        if observed {
            self.seen.push_back(Seen::Link(event));
        }
    }

    fn adopt(&mut self, id: LeaseId, hold: &Arc<Hold>) {
        let index = id.index();
        if self.holds.len() <= index {
            self.holds.resize_with(index + 1, || None);
        }
        hold.set_id(id);
        self.holds[index] = Some(Arc::clone(hold));
    }

    fn close(&mut self, now: Tick) {
        if !std::mem::replace(&mut self.closed, true) {
            self.machine.close(now);
        }
    }
}

/// The store that callers hold. When the last of them is gone, the driver ends.
pub(crate) struct Front<M: Machine, B: Binding>(Arc<Shared<M, B>>);

impl<M: Machine, B: Binding> Front<M, B> {
    pub(crate) fn new(shared: &Arc<Shared<M, B>>) -> Front<M, B> {
        Front(Arc::clone(shared))
    }
}

impl<M: Machine, B: Binding> Drop for Front<M, B> {
    fn drop(&mut self) {
        // No handle, no guard, no future is left: only clean-ups can be.
        self.0.change(|state, now| state.close(now));
    }
}

impl<M: Machine, B: Binding> Store for Front<M, B> {
    fn acquire(&self, options: &LockOptions, hold: &Arc<Hold>) {
        let terms = match options.lease.build() {
            Ok(terms) => terms,
            Err(error) => return hold.fail(error.into()),
        };
        let mut secret = [0; 16];
        if let Err(error) = self.0.binding.entropy(&mut secret) {
            return hold.fail(Error::input(format!(
                "the system gives no entropy: {error}"
            )));
        }
        let request = Request {
            name: hold.name(),
            terms,
            wait: options.wait,
            secret,
            since_ms: self.0.binding.unix_ms(),
        };
        let refused = self.0.change(|state, now| {
            if state.closed || state.gone {
                return Some(Error::Closed);
            }
            match state.machine.acquire(now, &request) {
                Ok(id) => {
                    state.adopt(id, hold);
                    None
                }
                Err(error) => Some(error.into()),
            }
        });
        if let Some(error) = refused {
            hold.fail(error);
        }
    }

    fn end(&self, hold: &Arc<Hold>, how: End) {
        let Some(id) = hold.id() else { return };
        let observed = self.0.observer.is_some();
        self.0.change(|state, now| {
            if how == End::Drop && observed {
                let seen = hold
                    .waiting(now)
                    .map(|waited| Seen::Cancelled(Arc::clone(hold), waited));
                state.seen.extend(seen);
            }
            let held = hold.let_go(now);
            if let (End::Drop, Some(held), true) = (how, held, observed) {
                state.seen.push_back(Seen::Dropped(Arc::clone(hold), held));
            }
            state.machine.end(now, id, how);
            if how == End::Drop
                && let Some(slot) = state.holds.get_mut(id.index())
            {
                slot.take_if(|other| Arc::ptr_eq(other, hold));
            }
        });
    }

    fn renew(&self, hold: &Arc<Hold>) {
        let Some(id) = hold.id() else { return };
        self.0.change(|state, now| state.machine.renew_now(now, id));
    }

    fn now(&self) -> Tick {
        self.0.binding.now()
    }

    fn about_now(&self) -> Tick {
        self.0.binding.now_for_sending()
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut state = self.0.lock();
        match &state.ready {
            Some(ready) => Poll::Ready(ready.clone()),
            None if state.gone || state.closed => Poll::Ready(Err(Error::Closed)),
            None => {
                state.waiting.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn close(&self) {
        self.0.change(|state, now| state.close(now));
    }

    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.gone || state.is_over() {
            return Poll::Ready(());
        }
        state.waiting.push(cx.waker().clone());
        Poll::Pending
    }
}

/// Reads, keeps time and reconnects: a future to be run beside the program's own.
///
/// It ends once every handle and guard is gone, or after [`Locks::close`](crate::Locks::close), when everything is
/// released or has expired. If it is dropped before - its runtime ends - the client is closed: requests fail,
/// holds are told, and what a dropped guard still has to release is written as far as the socket takes it.
#[must_use = "nothing is read and nothing is renewed unless the driver is run: spawn it"]
pub struct Driver(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Driver {
    pub(crate) fn new<M: Machine, B: Binding>(shared: Arc<Shared<M, B>>) -> Driver {
        let timer = Box::pin(shared.binding.timer());
        Driver(Box::pin(Turning {
            shared,
            timer,
            wakers: Vec::new(),
        }))
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

struct Turning<M: Machine, B: Binding> {
    shared: Arc<Shared<M, B>>,
    timer: Pin<Box<B::Timer>>,
    wakers: Vec<Waker>,
}

impl<M: Machine, B: Binding> Turning<M, B> {
    /// One poll under the lock. Ready when everything is over.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Turning {
            shared,
            timer,
            wakers,
        } = self;
        let observed = shared.observer.is_some();
        let mut state = shared.lock();
        match &mut state.driver {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.driver = Some(cx.waker().clone()),
        }
        for _ in 0..ROUNDS {
            // What has arrived is taken in before anything is given up.
            let Arrived { at, more } = state.machine.poll_in(cx);
            let now = at.unwrap_or_else(|| shared.binding.now());
            state.machine.handle_timeout(now);
            state.flush(now, observed, wakers);
            if state.is_over() {
                state.gone = true;
                state.machine.shut_down();
                wakers.append(&mut state.waiting);
                return Poll::Ready(());
            }
            if more || state.machine.poll_out(cx).is_ready() {
                continue;
            }
            let mut due = state.machine.deadline(now).unwrap_or(Tick::MAX);
            if state.machine.leases().holds_any() {
                due = due.min(now + CLOCK_CHECK);
            }
            // A timer that is set too early only asks once more; most deadlines never come to pass.
            if due < state.armed || state.armed <= now {
                state.armed = due;
                if due != Tick::MAX {
                    timer.as_mut().set(due);
                }
            }
            if state.armed == Tick::MAX || timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // It has fired: whatever comes next sets it anew.
            state.armed = Tick::MAX;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<M: Machine, B: Binding> Future for Turning<M, B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let poll = self.turn(cx);
        if !self.wakers.is_empty() || self.shared.observer.is_some() {
            let mut wakers = std::mem::take(&mut self.wakers);
            wakers.drain(..).for_each(Waker::wake);
            self.wakers = wakers;
            self.shared.tell(Vec::new());
        }
        poll
    }
}

impl<M: Machine, B: Binding> Drop for Turning<M, B> {
    fn drop(&mut self) {
        self.shared.change(|state, now| {
            state.driver = None;
            state.close(now);
            state.gone = true;
        });
        // Those who wait for the end are told that there is nobody to wait for.
        let waiting = std::mem::take(&mut self.shared.lock().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Seen {
    fn tell(&self, observer: &dyn Observer) {
        match self {
            Seen::Link(event) => match event {
                LinkEvent::Up(info) => observer.event(&Event::Connected(info)),
                LinkEvent::Down(fault) => observer.event(&Event::Disconnected(*fault)),
                LinkEvent::Failed { fault, text } => {
                    observer.event(&Event::ConnectFailed {
                        fault: *fault,
                        text: text.as_deref(),
                    });
                }
                _ => {}
            },
            Seen::Dropped(hold, held) => observer.event(&Event::Dropped {
                name: hold.name(),
                held: *held,
            }),
            Seen::Cancelled(hold, waited) => {
                observer.event(&Event::Cancelled {
                    name: hold.name(),
                    waited: *waited,
                });
            }
            Seen::Lease(hold, notice, lasted) => tell_lease(observer, hold.name(), notice, *lasted),
        }
    }
}

fn tell_lease(observer: &dyn Observer, name: &[u8], notice: &Notice, lasted: Duration) {
    let failed = |error: &Error| {
        observer.event(&Event::Failed {
            name,
            error,
            waited: lasted,
        })
    };
    match notice {
        Notice::Acquired { .. } => observer.event(&Event::Acquired {
            name,
            waited: lasted,
        }),
        Notice::Held(holder) => observer.event(&Event::Held { name, holder }),
        Notice::TimedOut(holder) => failed(&Error::TimedOut {
            holder: holder.clone(),
        }),
        Notice::Failed(fault) => failed(&fault.clone().into()),
        Notice::Renewed { .. } => observer.event(&Event::Renewed { name }),
        Notice::RenewalFailed(fault) => {
            observer.event(&Event::RenewalFailed {
                name,
                error: &Fault::clone(fault).into(),
            });
        }
        Notice::Lost { lost, by } => {
            let lost = crate::lock::Lost::new(*lost, by.clone());
            observer.event(&Event::Lost {
                name,
                lost: &lost,
                held: lasted,
            });
        }
        Notice::Released { confirmed } => {
            observer.event(&Event::Released {
                name,
                confirmed: *confirmed,
                held: lasted,
            });
        }
        Notice::Abandoned => observer.event(&Event::Abandoned { name }),
    }
}
