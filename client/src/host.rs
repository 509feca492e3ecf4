//! One machine with its holds, shared by the callers and the driver.
//!
//! Whoever brings a change about - a caller's task, a drop, the driver - locks the machine, makes the
//! change, and carries out at once what can be carried out without waiting. Wakers and the observer
//! are called after the lock is given back.

mod beside;
mod driver;
mod handle;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::ask::{Answer, AskId, Question};
use tenure_core::error::{ConfigError, Failure};
use tenure_core::leases::{self, LeaseId, Leases, Notice, Request};
use tenure_core::mux::LinkEvent;
use tenure_core::time::Tick;

use crate::asking::Asked;
use crate::binding::Binding;
use crate::config::Config;
use crate::engine::ClockStep;
use crate::error::Error;
use crate::hold::{Hold, Told};
use crate::locks::Locks;
use crate::observer::Observer;
use crate::pump::{Borrowed, Pump, Pumped, Reading, Room};
use crate::store::End;
use crate::untold::Untold;
use crate::waiters::{For, Waiters};

use beside::Beside;
pub use driver::Driver;
use handle::Handle;

/// What a host keeps under its lock: leases and whatever carries their operations out.
pub(crate) trait Machine: Send + 'static {
    fn leases(&self) -> &Leases;
    fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError>;
    fn end(&mut self, now: Tick, id: LeaseId, how: End);
    fn renew_now(&mut self, now: Tick, id: LeaseId);
    fn ask(&mut self, now: Tick, question: &Question<'_>) -> Result<AskId, ConfigError>;
    fn forget(&mut self, id: AskId);
    fn close(&mut self, now: Tick);
    fn handle_timeout(&mut self, now: Tick);
    /// When the driver must run at the latest.
    fn deadline(&self, now: Tick) -> Option<Tick>;
    /// Whether a rotation is about to go out.
    fn wants_stirring(&self) -> bool;
    /// What its value is made from, if there is anything.
    fn stir(&mut self, fresh: Option<[u8; 16]>);
    /// Carries out what can be carried out without waiting.
    fn flush(&mut self, now: Tick, signals: &mut Vec<Signal>);
    /// Takes in what has arrived, registering the task for more.
    fn poll_in(&mut self, cx: &mut Context<'_>) -> Arrived;
    /// Takes in what has arrived, without registering anybody.
    fn take_in(&mut self) -> Arrived;
    /// Commands without an answer on the open transport, if there is one.
    fn in_flight(&self) -> Option<usize>;
    /// Waits for what a flush had to leave. Ready when a flush may go on.
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Whether only the driver can go on with what a flush had to leave.
    fn needs_driver(&self) -> bool;
    /// Everything is over: let go of the transport.
    fn shut_down(&mut self);
    /// Where it leaves what takes its time, if anything does.
    fn work(&self) -> Option<Arc<dyn Work>> {
        None
    }
}

/// What a machine has left to be done without the client's lock. What comes of it is taken in by the machine.
pub(crate) trait Work: Send + Sync {
    /// Lets another thread do it, which wakes the driver.
    fn hand_over(self: Arc<Self>);
    /// Does the first of it on this thread, unless another one is at it; with `wait` once that is through. Whether anything was done.
    fn carry_out(&self, wait: bool) -> bool;
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
    Answer(Answer),
    Link(LinkEvent),
    Clock(ClockStep),
}

/// Locks and their driver over a machine that is made from the seed of its jitter.
pub(crate) fn open<M: Machine, B: Binding>(
    binding: Arc<B>,
    config: &Config,
    machine: impl FnOnce(u64) -> Result<M, Error>,
) -> Result<(Locks, Driver), Error> {
    let defaults = config.defaults()?;
    let machine = machine(seed(&*binding)?)?;
    let shared = share(binding, config, machine);
    let handle = Handle {
        shared: Arc::clone(&shared),
        beside: None,
    };
    let locks = Locks::new(Arc::new(handle)).with_defaults(defaults);
    let pump = Pump::new(Arc::<Shared<M, B>>::clone(&shared));
    Ok((locks, Driver::new(shared, pump)))
}

/// As [`open`], with another machine beside it for the locks that replicas have to confirm.
pub(crate) fn open_two<M: Machine, B: Binding>(
    [binding, other]: [Arc<B>; 2],
    config: &Config,
    [machine, beside]: [&dyn Fn(u64) -> Result<M, Error>; 2],
) -> Result<(Locks, Driver), Error> {
    let defaults = config.defaults()?;
    let seed = seed(&*binding)?;
    let shared = share(binding, config, machine(seed)?);
    let other = share(other, config, beside(!seed)?);
    let used = Arc::new(AtomicBool::new(false));
    let store = Arc::new(Handle {
        shared: Arc::clone(&other),
        beside: None,
    });
    let handle = Handle {
        shared: Arc::clone(&shared),
        beside: Some(Beside::new(store, &used)),
    };
    let locks = Locks::new(Arc::new(handle)).with_defaults(defaults);
    let pump: Arc<dyn Pumped> = Arc::<Shared<M, B>>::clone(&shared);
    let pump = Pump::new(Arc::new(beside::PumpBeside { pump, used }));
    Ok((locks, Driver::new(shared, pump).with_beside(other)))
}

fn share<M: Machine, B: Binding>(
    binding: Arc<B>,
    config: &Config,
    machine: M,
) -> Arc<Shared<M, B>> {
    Arc::new(Shared {
        work: machine.work(),
        observer: config.observer(),
        state: Mutex::new(State {
            machine,
            holds: Vec::new(),
            asks: BTreeMap::new(),
            over: Vec::new(),
            signals: Vec::new(),
            driver: None,
            reading: Reading::default(),
            armed: Tick::MAX,
            ready: None,
            waiting: Waiters::default(),
            closed: false,
            gone: false,
            untold: VecDeque::new(),
            telling: false,
        }),
        binding,
    })
}

fn seed<B: Binding>(binding: &B) -> Result<u64, Error> {
    let mut seed = [0; 8];
    fill(binding, &mut seed)?;
    Ok(u64::from_le_bytes(seed))
}

fn fill<B: Binding>(binding: &B, bytes: &mut [u8]) -> Result<(), Error> {
    binding
        .entropy(bytes)
        .map_err(|error| Error::input(format!("the system gives no entropy: {error}")))
}

/// With so many jobs, and for so long, a caller's thread helps. There may be no end of what others want, while its own answer is there.
const HELPS_WITH: u32 = 8;
const HELPS_FOR: Duration = Duration::from_millis(100);

struct Shared<M, B> {
    binding: Arc<B>,
    observer: Option<Arc<dyn Observer>>,
    work: Option<Arc<dyn Work>>,
    state: Mutex<State<M>>,
}

struct State<M> {
    machine: M,
    /// The hold of each lease, by its place in the table.
    holds: Vec<Option<Arc<Hold>>>,
    /// The questions that are not answered.
    asks: BTreeMap<AskId, Arc<Asked>>,
    /// Holds that are over: dropped after the lock is given back, since with one may go a waker, with that a
    /// task, and with that a guard.
    over: Vec<Arc<Hold>>,
    signals: Vec<Signal>,
    driver: Option<Waker>,
    reading: Reading,
    /// What the driver's timer is set to.
    armed: Tick,
    /// Whether the server has been reached, or why not.
    ready: Option<Result<(), Error>>,
    /// Those who wait for `ready`, or for the end.
    waiting: Waiters,
    closed: bool,
    /// The driver has ended.
    gone: bool,
    /// For the observer, in order.
    untold: VecDeque<Untold>,
    /// A thread is telling it.
    telling: bool,
}

impl<M: Machine, B: Binding> Shared<M, B> {
    /// Makes a change as a caller: what it leads to goes out at once, as far as that needs no waiting. `change` may add
    /// wakers, to be called once the lock is given back.
    fn change<R>(&self, change: impl FnOnce(&mut State<M>, Tick, &mut Vec<Waker>) -> R) -> R {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        // Read before the bytes are looked at that the change leads to.
        let now = self.binding.now_for_sending();
        let result = change(&mut state, now, &mut wakers);
        self.flush(&mut state, now, &mut wakers);
        if state.needs_driver(now) {
            wakers.extend(state.driver.clone());
        }
        let gone = state.gone;
        // Mostly there are none, and the driver keeps the room for them.
        let over = match state.over.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut state.over),
        };
        drop(state);
        drop(over);
        self.tell(&mut wakers);
        self.carry_out(gone);
        result
    }

    /// Sees to what the machine has left to be done. A thread that may wait does it by itself for a moment, what is others' too, and
    /// whoever comes when the driver is gone does all of it: nobody else would take in what comes of it.
    fn carry_out(&self, gone: bool) {
        let Some(work) = &self.work else { return };
        if gone || self.binding.may_block() {
            self.help(work, gone, gone);
        }
        Arc::clone(work).hand_over();
    }

    /// A guard was dropped, which may be the last thing that the process does: a thread that may wait does so for the one that is at
    /// it, and does then what is left.
    fn see_through(&self) {
        if let (Some(work), true) = (&self.work, self.binding.may_block()) {
            self.help(work, true, false);
        }
    }

    /// All of it, or what a caller's thread helps with.
    fn help(&self, work: &Arc<dyn Work>, wait: bool, all: bool) {
        let until = self.binding.now() + HELPS_FOR;
        let mut done = 0;
        while (all || done < HELPS_WITH && self.binding.now() < until) && work.carry_out(wait) {
            self.take_in();
            done += 1;
        }
    }

    /// Takes in what has come of it.
    fn take_in(&self) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        let Arrived { at, .. } = state.machine.take_in();
        let now = at.unwrap_or_else(|| self.binding.now());
        self.flush(&mut state, now, &mut wakers);
        if state.needs_driver(now) {
            wakers.extend(state.driver.clone());
        }
        let over = std::mem::take(&mut state.over);
        drop(state);
        drop(over);
        self.tell(&mut wakers);
    }

    /// Sends what can be sent. What a copy of this process must not know is drawn right before.
    fn flush(&self, state: &mut State<M>, now: Tick, wakers: &mut Vec<Waker>) {
        if state.machine.wants_stirring() {
            let mut fresh = [0; 16];
            let drawn = self.binding.entropy(&mut fresh);
            state.machine.stir(drawn.is_ok().then_some(fresh));
        }
        state.flush(now, self.observer.is_some(), wakers);
    }

    /// Calls wakers and the observer. No lock is held.
    fn tell(&self, wakers: &mut Vec<Waker>) {
        wakers.drain(..).for_each(Waker::wake);
        let Some(observer) = &self.observer else {
            return;
        };
        // One thread tells at a time, so that the events of a lock come in order.
        if std::mem::replace(&mut self.lock().telling, true) {
            return;
        }
        loop {
            let untold = {
                let mut state = self.lock();
                match state.untold.pop_front() {
                    Some(untold) => untold,
                    None => {
                        state.telling = false;
                        return;
                    }
                }
            };
            untold.tell(&**observer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // The machines do not panic; if one did, a poisoned lock must not take every drop down with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Machine> State<M> {
    fn is_over(&self) -> bool {
        self.closed && self.machine.leases().is_empty()
    }

    /// Whether the driver has to look at what a caller has done.
    fn needs_driver(&self, now: Tick) -> bool {
        self.machine.deadline(now).unwrap_or(Tick::MAX) < self.armed
            || self.machine.needs_driver()
            || self.is_over()
            || self.reading.needs_driver(
                || self.machine.in_flight(),
                self.machine.leases().awaits_change(),
            )
    }

    fn flush(&mut self, now: Tick, observed: bool, wakers: &mut Vec<Waker>) {
        let mut signals = std::mem::take(&mut self.signals);
        self.machine.flush(now, &mut signals);
        self.reading.sent(|| self.machine.in_flight());
        for signal in signals.drain(..) {
            match signal {
                Signal::Lease(event) => self.lease_event(event, now, observed, wakers),
                Signal::Answer(Answer { id, result }) => {
                    if let Some(asked) = self.asks.remove(&id) {
                        asked.tell(result.map_err(Error::from), wakers);
                    }
                }
                Signal::Link(event) => self.link_event(event, observed, wakers),
                Signal::Clock(step) if observed => self.untold.push_back(Untold::Clock(step)),
                Signal::Clock(_) => {}
            }
        }
        self.signals = signals;
        if self.is_over() {
            self.waiting.take(For::End, wakers);
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
            self.untold
                .push_back(Untold::Lease(Arc::clone(hold), event.notice, lasted));
        }
        if over {
            self.over.extend(slot.take());
        }
    }

    fn link_event(&mut self, event: LinkEvent, observed: bool, wakers: &mut Vec<Waker>) {
        match (&event, &self.ready) {
            (LinkEvent::Up(_), _) => self.ready = Some(Ok(())),
            (LinkEvent::Failed { fault, text }, None | Some(Err(_))) => {
                self.ready = Some(Err(Error::of_failure(Failure::Link(*fault), text.clone())));
            }
            _ => {}
        }
        if self.ready.is_some() {
            self.waiting.take(For::End, wakers);
        }
        if observed {
            self.untold.push_back(Untold::Link(event));
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

    /// The driver is gone: nobody will read the answers to the releases that are on their way.
    fn end_releases(&mut self, now: Tick, observed: bool, wakers: &mut Vec<Waker>) {
        self.gone = true;
        for slot in &mut self.holds {
            if let Some(hold) = slot.take_if(|hold| hold.is_ending()) {
                let notice = Notice::Released { confirmed: false };
                let Told { lasted, .. } = hold.tell(&notice, now, wakers);
                if observed {
                    self.untold
                        .push_back(Untold::Lease(Arc::clone(&hold), notice, lasted));
                }
                self.over.push(hold);
            }
        }
        self.waiting.take(For::End, wakers);
    }
}

impl<M: Machine, B: Binding> Pumped for Shared<M, B> {
    fn turn(&self, borrowed: Borrowed, room: &mut Room) -> bool {
        let Room { wakers, over } = room;
        let mut state = self.lock();
        let Arrived { at, more } = state.machine.take_in();
        let now = at.unwrap_or_else(|| self.binding.now());
        self.flush(&mut state, now, wakers);
        let in_flight = state.machine.in_flight();
        let goes_on = state.reading.goes_on(borrowed, in_flight);
        if more || state.needs_driver(now) {
            wakers.extend(state.driver.clone());
        }
        std::mem::swap(&mut state.over, over);
        drop(state);
        over.clear();
        self.tell(wakers);
        goes_on
    }

    fn goes_on(&self, borrowed: Borrowed) -> bool {
        let mut state = self.lock();
        let in_flight = state.machine.in_flight();
        let goes_on = state.reading.goes_on(borrowed, in_flight);
        let awaits_change = state.machine.leases().awaits_change();
        let driver = match state.reading.needs_driver(|| in_flight, awaits_change) {
            true => state.driver.clone(),
            false => None,
        };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
        goes_on
    }

    fn borrow(&self) -> Option<Borrowed> {
        // Never waited for. Nothing was asked of the binding yet, and in a forked process the lock of a copy may never be given
        // back; otherwise somebody is at it, and the caller is not alone.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let in_flight = state.machine.in_flight();
        state.reading.borrow(in_flight)
    }

    fn give_back(&self, borrowed: Borrowed) {
        let mut state = self.lock();
        state.reading.give_back(borrowed);
        let in_flight = state.machine.in_flight();
        let awaits_change = state.machine.leases().awaits_change();
        let driver = match state.reading.needs_driver(|| in_flight, awaits_change) {
            true => state.driver.clone(),
            false => None,
        };
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }

    fn look_away(&self) -> bool {
        let mut state = self.lock();
        // What a flush had to leave only the driver can send, once the transport takes it.
        let in_flight = match state.machine.needs_driver() {
            true => None,
            false => state.machine.in_flight(),
        };
        let awaits_change = state.machine.leases().awaits_change();
        state.reading.look_away(in_flight, awaits_change)
    }
}
