//! The slot between a store and a user's futures: the store fills it, the futures wait on it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::lease::Cause;
use tenure_core::leases::{Holder, LeaseId, Notice};
use tenure_core::time::Tick;

use crate::error::Error;
use crate::lock::Lost;
use crate::waiters::{self, For, Waiters};

/// Not asked for yet.
const NO_ID: u64 = u64::MAX;
/// Granted without one.
const NO_FENCE: u64 = 0;
/// Not held.
const NOT_HELD: u64 = 0;

/// One request and the hold it may become, shared by the store and the caller.
pub struct Hold {
    name: Box<[u8]>,
    id: AtomicU64,
    /// The end of validity in microseconds, plus one.
    valid_until: AtomicU64,
    fence: AtomicU64,
    cell: Mutex<Cell>,
}

struct Cell {
    stage: Stage,
    /// The future of the caller: acquiring, then releasing.
    caller: Option<Waker>,
    /// Those who wait for a change of the hold.
    watchers: Waiters,
    renewals: u32,
    since: Tick,
    renewal_error: Option<Box<Error>>,
}

/// What is rare is boxed: a stage is part of every held lock.
#[derive(Clone, Debug)]
enum Stage {
    Pending,
    Refused(Box<Holder>),
    Failed(Box<Error>),
    Held,
    /// Its release is on its way.
    Ending,
    Released {
        confirmed: bool,
    },
    Lost(Box<Lost>),
    Abandoned,
}

/// What a notice did to a hold.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Told {
    /// How long what has ended by it had lasted: the waiting, or the hold.
    pub lasted: Duration,
    /// Whether the store can forget the hold.
    pub over: bool,
}

impl Hold {
    /// A request for `name` made at `now`.
    pub fn new(name: Box<[u8]>, now: Tick) -> Hold {
        Hold {
            name,
            id: AtomicU64::new(NO_ID),
            valid_until: AtomicU64::new(NOT_HELD),
            fence: AtomicU64::new(NO_FENCE),
            cell: Mutex::new(Cell {
                stage: Stage::Pending,
                caller: None,
                watchers: Waiters::default(),
                since: now,
                renewals: 0,
                renewal_error: None,
            }),
        }
    }

    /// The name of the lock.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The lease in the store's table, once it is there.
    pub fn id(&self) -> Option<LeaseId> {
        match self.id.load(Ordering::Acquire) {
            NO_ID => None,
            bits => Some(LeaseId::from_bits(bits)),
        }
    }

    /// The store has taken the request up.
    pub fn set_id(&self, id: LeaseId) {
        self.id.store(id.to_bits(), Ordering::Release);
    }

    /// The request failed before it was in the store's table.
    pub fn fail(&self, error: Error) {
        let waker = {
            let mut cell = self.cell();
            if !matches!(cell.stage, Stage::Pending) {
                return;
            }
            cell.stage = Stage::Failed(Box::new(error));
            cell.caller.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Tells what happened. The store calls the wakers that it gets, once it holds no lock.
    pub fn tell(&self, notice: &Notice, now: Tick, wakers: &mut Vec<Waker>) -> Told {
        let mut cell = self.cell();
        let lasted = now.saturating_since(cell.since);
        let told = |over| Told { lasted, over };
        match notice {
            Notice::Acquired { valid_until, fence } => {
                cell.stage = Stage::Held;
                cell.since = now;
                self.fence
                    .store(fence.unwrap_or(NO_FENCE), Ordering::Release);
                self.set_valid_until(*valid_until);
                wakers.extend(cell.caller.take());
                return told(false);
            }
            Notice::Held(holder) => cell.stage = Stage::Refused(Box::new(holder.clone())),
            Notice::TimedOut(holder) => {
                cell.stage = Stage::Failed(Box::new(Error::TimedOut {
                    holder: holder.clone(),
                }))
            }
            Notice::Failed(fault) => cell.stage = Stage::Failed(Box::new(fault.clone().into())),
            Notice::Renewed { valid_until } => {
                // Once its release is on its way a hold is over, whatever was still queued.
                if matches!(cell.stage, Stage::Held) {
                    self.set_valid_until(*valid_until);
                    cell.renewals = cell.renewals.wrapping_add(1);
                    cell.renewal_error = None;
                    cell.watchers.take(For::Renewal, wakers);
                }
                return told(false);
            }
            Notice::RenewalFailed(fault) => {
                cell.renewal_error = Some(Box::new(fault.clone().into()));
                cell.renewals = cell.renewals.wrapping_add(1);
                cell.watchers.take(For::Renewal, wakers);
                return told(false);
            }
            // Why follows, as the loss.
            Notice::Vanished => {
                self.valid_until.store(NOT_HELD, Ordering::Release);
                return told(false);
            }
            Notice::Lost { lost, by } => {
                self.valid_until.store(NOT_HELD, Ordering::Release);
                // The guard may live on: the store forgets the hold when it is dropped.
                let over = !matches!(cell.stage, Stage::Held);
                cell.stage = Stage::Lost(Box::new(Lost::new(*lost, by.clone())));
                wakers.extend(cell.caller.take());
                cell.watchers.take(For::End, wakers);
                return told(over);
            }
            Notice::Released { confirmed } => {
                cell.stage = Stage::Released {
                    confirmed: *confirmed,
                };
            }
            Notice::Abandoned => cell.stage = Stage::Abandoned,
        }
        wakers.extend(cell.caller.take());
        told(true)
    }

    /// The holder lets go: from here on the lock is not held. Gives how long it was, if it was.
    pub(crate) fn let_go(&self, now: Tick, wakers: &mut Vec<Waker>) -> Option<Duration> {
        let mut cell = self.cell();
        self.valid_until.store(NOT_HELD, Ordering::Release);
        if !matches!(cell.stage, Stage::Held) {
            return None;
        }
        cell.stage = Stage::Ending;
        // Nobody will hear of a renewal any more.
        cell.watchers.take(For::Renewal, wakers);
        Some(now.saturating_since(cell.since))
    }

    /// Whether a release is on its way and not answered.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.cell().stage, Stage::Ending)
    }

    /// How long the request has waited, if it is not answered yet.
    pub(crate) fn waiting(&self, now: Tick) -> Option<Duration> {
        let cell = self.cell();
        matches!(cell.stage, Stage::Pending).then(|| now.saturating_since(cell.since))
    }

    /// The end of validity while the lock is held.
    pub fn valid_until(&self) -> Option<Tick> {
        match self.valid_until.load(Ordering::Acquire) {
            NOT_HELD => None,
            micros => Some(Tick::from_micros(micros - 1)),
        }
    }

    /// The fence that came with the grant.
    pub(crate) fn fence(&self) -> Option<u64> {
        Some(self.fence.load(Ordering::Acquire)).filter(|fence| *fence != NO_FENCE)
    }

    /// The answer to the request: acquired, held by somebody else, or why not.
    pub(crate) fn poll_acquired(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Holder>, Error>> {
        let _old;
        let mut cell = self.cell();
        Poll::Ready(match &cell.stage {
            Stage::Pending => {
                _old = waiters::set(&mut cell.caller, cx);
                return Poll::Pending;
            }
            Stage::Refused(holder) => Ok(Some(Holder::clone(holder))),
            Stage::Failed(error) => Err(Error::clone(error)),
            // A hold may be lost before its caller comes to look; the guard will say so.
            _ => Ok(None),
        })
    }

    /// The answer to the release: confirmed or not, or that the lock was lost before it.
    pub(crate) fn poll_released(&self, cx: &mut Context<'_>) -> Poll<Result<bool, Lost>> {
        let _old;
        let mut cell = self.cell();
        Poll::Ready(match &cell.stage {
            Stage::Released { confirmed } => Ok(*confirmed),
            Stage::Lost(lost) => Err(Lost::clone(lost)),
            Stage::Ending | Stage::Held | Stage::Pending => {
                _old = waiters::set(&mut cell.caller, cx);
                return Poll::Pending;
            }
            Stage::Refused(_) | Stage::Failed(_) | Stage::Abandoned => Ok(false),
        })
    }

    /// Whether it is held at `now`, and if not, why.
    pub(crate) fn check(&self, now: Tick) -> Result<(), Error> {
        let cell = self.cell();
        match (&cell.stage, self.valid_until()) {
            (Stage::Lost(lost), _) => Err(Error::Lost(Lost::clone(lost))),
            (Stage::Held, Some(until)) if now < until => Ok(()),
            // The clock knows it before the driver could tell.
            (Stage::Held, Some(until)) => {
                let late_by = now.saturating_since(until);
                Err(Error::Lost(Lost {
                    cause: Cause::Expired { late_by },
                    by: None,
                    stop_by: until,
                }))
            }
            // Gone or another's: more is told with the loss.
            (Stage::Held, None) => Err(Error::Lost(Lost {
                cause: Cause::Gone,
                by: None,
                stop_by: now,
            })),
            _ => Err(Error::NotHeld),
        }
    }

    /// Why it was lost, if it was.
    pub(crate) fn lost(&self) -> Option<Lost> {
        match &self.cell().stage {
            Stage::Lost(lost) => Some(Lost::clone(lost)),
            _ => None,
        }
    }

    /// Waits for the loss. `watcher` identifies the waiting future from one poll to the next.
    pub(crate) fn poll_lost(&self, watcher: &mut Option<u32>, cx: &mut Context<'_>) -> Poll<Lost> {
        let _old;
        let mut cell = self.cell();
        if let Stage::Lost(lost) = &cell.stage {
            return Poll::Ready(Lost::clone(lost));
        }
        _old = cell.watchers.watch(watcher, For::End, cx);
        Poll::Pending
    }

    /// How many renewals were answered.
    pub(crate) fn renewals(&self) -> u32 {
        self.cell().renewals
    }

    /// Waits for another answer to a renewal than the `seen` so far, or for the end of the hold.
    pub(crate) fn poll_renewed(
        &self,
        seen: u32,
        watcher: &mut Option<u32>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let _old;
        let mut cell = self.cell();
        match &cell.stage {
            Stage::Lost(lost) => Poll::Ready(Err(Error::Lost(Lost::clone(lost)))),
            Stage::Held if cell.renewals != seen => {
                Poll::Ready(cell.renewal_error.as_deref().cloned().map_or(Ok(()), Err))
            }
            Stage::Held => {
                _old = cell.watchers.watch(watcher, For::Renewal, cx);
                Poll::Pending
            }
            _ => Poll::Ready(Err(Error::NotHeld)),
        }
    }

    pub(crate) fn unwatch(&self, watcher: Option<u32>) {
        let waker = self.cell().watchers.remove(watcher);
        drop(waker);
    }

    fn set_valid_until(&self, tick: Tick) {
        let micros = tick.as_micros().saturating_add(1);
        self.valid_until.store(micros, Ordering::Release);
    }

    fn cell(&self) -> MutexGuard<'_, Cell> {
        // Nothing in here panics half-way; a poisoned cell is as good as any.
        self.cell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name.escape_ascii().to_string())
            .field("stage", &self.cell().stage)
            .finish_non_exhaustive()
    }
}
