//! The driver: what is done when nobody calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::time::Tick;

use super::{Arrived, Machine, Shared, State, beside};
use crate::binding::{Binding, Timer};
use crate::pump::{Pump, Room};
use crate::waiters::{self, For};

/// While anything is held the driver wakes at least this often: a timer does not count a suspension.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// Rounds of one poll before the driver lets other tasks run.
const ROUNDS: usize = 32;

/// Reads, keeps time and reconnects: a future to be run beside the program's own.
///
/// It ends once every handle and guard is gone, or after [`Locks::close`](crate::Locks::close), when everything is released or has expired.
/// If it is dropped before - its runtime ends - the client is closed: requests fail, holds are told, and what a dropped
/// guard still has to release is written as far as the socket takes it.
#[must_use = "nothing is read and nothing is renewed unless the driver is run: spawn it"]
pub struct Driver {
    driving: Pin<Box<dyn Future<Output = ()> + Send>>,
    over: bool,
    beside: Option<beside::Driving>,
    pump: Pump,
}

impl Driver {
    pub(super) fn new<M: Machine, B: Binding>(shared: Arc<Shared<M, B>>, pump: Pump) -> Driver {
        Driver {
            driving: drive(shared),
            over: false,
            beside: None,
            pump,
        }
    }

    /// With another one, which is done by the same task.
    pub(super) fn with_beside<M: Machine, B: Binding>(self, other: Arc<Shared<M, B>>) -> Driver {
        let beside = Some(beside::Driving::new(drive(other)));
        Driver { beside, ..self }
    }

    /// With which other threads take in what has arrived. May change before 1.0.
    pub fn pump(&self) -> Pump {
        self.pump.clone()
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if !self.over {
            self.over = self.driving.as_mut().poll(cx).is_ready();
        }
        let other = match &mut self.beside {
            Some(beside) => beside.poll(cx),
            None => Poll::Ready(()),
        };
        match self.over {
            true => other,
            false => Poll::Pending,
        }
    }
}

fn drive<M: Machine, B: Binding>(
    shared: Arc<Shared<M, B>>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(Driving {
        shared,
        timer: None,
        room: Room::default(),
    })
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

struct Driving<M: Machine, B: Binding> {
    shared: Arc<Shared<M, B>>,
    /// Made at the first poll, which is inside the runtime.
    timer: Option<Pin<Box<B::Timer>>>,
    room: Room,
}

impl<M: Machine, B: Binding> Driving<M, B> {
    /// One poll under the lock. Ready when everything is over.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Driving {
            shared,
            timer,
            room: Room { wakers, over },
        } = self;
        let timer = timer.get_or_insert_with(|| Box::pin(shared.binding.timer()));
        let mut state = shared.lock();
        let old = waiters::set(&mut state.driver, cx);
        let poll = Self::rounds(shared, &mut state, timer, wakers, cx);
        std::mem::swap(&mut state.over, over);
        drop(state);
        drop(old);
        over.clear();
        poll
    }

    fn rounds(
        shared: &Shared<M, B>,
        state: &mut State<M>,
        timer: &mut Pin<Box<B::Timer>>,
        wakers: &mut Vec<Waker>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        for _ in 0..ROUNDS {
            let Arrived { at, more } = state.machine.poll_in(cx);
            let now = at.unwrap_or_else(|| shared.binding.now());
            if at.is_some() {
                state.reading.overtaken();
            }
            if more {
                // All that has arrived is taken in before anything is given up.
                shared.flush(state, now, wakers);
                continue;
            }
            state.machine.handle_timeout(now);
            shared.flush(state, now, wakers);
            if state.is_over() {
                state.gone = true;
                state.machine.shut_down();
                state.waiting.take(For::End, wakers);
                return Poll::Ready(());
            }
            if state.machine.poll_out(cx).is_ready() {
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

impl<M: Machine, B: Binding> Future for Driving<M, B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let poll = self.turn(cx);
        let Driving { shared, room, .. } = &mut *self;
        shared.tell(&mut room.wakers);
        shared.carry_out(false);
        poll
    }
}

impl<M: Machine, B: Binding> Drop for Driving<M, B> {
    fn drop(&mut self) {
        let observed = self.shared.observer.is_some();
        // What closing has to tell and to send comes first, then the releases that nobody will hear of.
        self.shared.change(|state, now, _| state.close(now));
        let driver = self.shared.change(|state, now, wakers| {
            state.end_releases(now, observed, wakers);
            state.driver.take()
        });
        drop(driver);
    }
}
