//! What callers have of a host.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tenure_core::ask::Question;
use tenure_core::leases::Request;
use tenure_core::time::Tick;

use super::{Beside, Machine, Shared, fill};
use crate::asking::Asked;
use crate::binding::Binding;
use crate::error::Error;
use crate::hold::Hold;
use crate::options::LockOptions;
use crate::store::{End, Store};
use crate::token::OwnerToken;
use crate::untold::Untold;
use crate::waiters::For;

/// The store that callers hold. When the last of them is gone, the driver ends.
pub(super) struct Handle<M: Machine, B: Binding> {
    pub(super) shared: Arc<Shared<M, B>>,
    pub(super) beside: Option<Beside>,
}

impl<M: Machine, B: Binding> Handle<M, B> {
    /// The lock of a copy may never be given back, and its socket is not its own: nothing is touched.
    fn is_copy(&self) -> bool {
        self.shared.binding.forked_from().is_some()
    }
}

impl<M: Machine, B: Binding> Drop for Handle<M, B> {
    fn drop(&mut self) {
        if self.is_copy() {
            return;
        }
        // No handle, no guard, no future is left: only clean-ups can be.
        self.shared.change(|state, now, _| state.close(now));
    }
}

impl<M: Machine, B: Binding> Store for Handle<M, B> {
    fn refusal(&self) -> Option<Error> {
        let process = self.shared.binding.forked_from()?;
        Some(Error::Forked { process })
    }

    fn replicated(&self) -> Option<Arc<dyn Store>> {
        self.beside.as_ref().map(Beside::store)
    }

    fn acquire(&self, options: &LockOptions, hold: &Arc<Hold>) {
        if let Some(error) = self.refusal() {
            return hold.fail(error);
        }
        let terms = match options.lease.build() {
            Ok(terms) => terms,
            Err(error) => return hold.fail(error.into()),
        };
        let mut secret = [0; 16];
        if let Err(error) = fill(&*self.shared.binding, &mut secret) {
            return hold.fail(error);
        }
        let request = Request {
            name: hold.name(),
            terms,
            options: options.options,
            wait: options.wait,
            secret,
            since_ms: self.shared.binding.unix_ms(),
        };
        let refused = self.shared.change(|state, now, _| {
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

    fn end(&self, hold: &Arc<Hold>, how: End) -> Result<(), Error> {
        if let Some(error) = self.refusal() {
            return Err(error);
        }
        let Some(id) = hold.id() else { return Ok(()) };
        let observed = self.shared.observer.is_some();
        self.shared.change(|state, now, wakers| {
            // Told of a loss already: the guard goes, which is when the clean-up may be sent.
            let how = match hold.lost() {
                Some(_) if how == End::Release => End::Drop,
                _ => how,
            };
            let waited = hold.waiting(now);
            let held = hold.let_go(now, wakers);
            let untold = matches!(how, End::Drop | End::Cancel);
            if untold && observed {
                let cancelled = waited.map(|waited| Untold::Cancelled(Arc::clone(hold), waited));
                let dropped = held.map(|held| Untold::Dropped(Arc::clone(hold), held));
                state.untold.extend(cancelled.or(dropped));
            }
            state.machine.end(now, id, how);
            // Whoever was told of the loss, or has left, is told nothing more.
            if (untold || hold.lost().is_some())
                && let Some(slot) = state.holds.get_mut(id.index())
            {
                slot.take_if(|other| Arc::ptr_eq(other, hold));
            }
            if state.gone {
                state.end_releases(now, observed, wakers);
            }
        });
        if how == End::Drop {
            self.shared.see_through();
        }
        Ok(())
    }

    fn token(&self, hold: &Arc<Hold>) -> Option<OwnerToken> {
        if self.is_copy() {
            return None;
        }
        let id = hold.id()?;
        let value = self.shared.lock().machine.leases().token(id)?;
        OwnerToken::of(value.as_bytes())
    }

    fn renew(&self, hold: &Arc<Hold>) {
        if self.is_copy() {
            return;
        }
        let Some(id) = hold.id() else { return };
        self.shared
            .change(|state, now, _| state.machine.renew_now(now, id));
    }

    fn ask(&self, question: &Question<'_>, asked: &Arc<Asked>) {
        let refused = self.refusal().or_else(|| {
            self.shared.change(|state, now, _| {
                if state.closed || state.gone {
                    return Some(Error::Closed);
                }
                match state.machine.ask(now, question) {
                    Ok(id) => {
                        asked.set_id(id);
                        state.asks.insert(id, Arc::clone(asked));
                        None
                    }
                    Err(error) => Some(error.into()),
                }
            })
        });
        if let Some(error) = refused {
            let mut wakers = Vec::new();
            asked.tell(Err(error), &mut wakers);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn forget(&self, asked: &Asked) {
        if self.is_copy() {
            return;
        }
        let Some(id) = asked.id() else { return };
        self.shared.change(|state, _, _| {
            if state.asks.remove(&id).is_some() {
                state.machine.forget(id);
            }
        });
    }

    fn now(&self) -> Tick {
        match self.is_copy() {
            true => Tick::MAX,
            false => self.shared.binding.now(),
        }
    }

    fn now_for_sending(&self) -> Tick {
        self.shared.binding.now_for_sending()
    }

    fn poll_ready(
        &self,
        watcher: &mut Option<u32>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        if let Some(error) = self.refusal() {
            return Poll::Ready(Err(error));
        }
        let _old;
        let mut state = self.shared.lock();
        match &state.ready {
            _ if state.gone || state.closed => Poll::Ready(Err(Error::Closed)),
            Some(ready) => Poll::Ready(ready.clone()),
            None => {
                _old = state.waiting.watch(watcher, For::End, cx);
                Poll::Pending
            }
        }
    }

    fn close(&self) {
        if self.is_copy() {
            return;
        }
        self.shared.change(|state, now, wakers| {
            state.close(now);
            // Those who wait to be ready never will be.
            state.waiting.take(For::End, wakers);
        });
        self.beside.iter().for_each(Beside::close);
    }

    fn poll_closed(&self, watcher: &mut Option<u32>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_copy() {
            return Poll::Ready(());
        }
        let _old;
        let mut state = self.shared.lock();
        if !(state.gone || state.is_over()) {
            _old = state.waiting.watch(watcher, For::End, cx);
            return Poll::Pending;
        }
        drop(state);
        match &self.beside {
            Some(beside) => beside.poll_closed(watcher, cx),
            None => Poll::Ready(()),
        }
    }

    fn unwatch(&self, watcher: Option<u32>) {
        if watcher.is_none() || self.is_copy() {
            return;
        }
        if self
            .beside
            .as_ref()
            .is_some_and(|beside| beside.unwatch(watcher))
        {
            return;
        }
        let waker = self.shared.lock().waiting.remove(watcher);
        drop(waker);
    }
}
