//! What a history tells the checker of its requests and holds.

use std::ops::Deref;

use tenure_client::{Error, Held, Lock, LockOptions, Released, Wait};

use super::holds::Hold;
use super::{AT_ONCE, Assumption, Checker, PATIENCE};

/// A request that is on its way. Dropping it says that it was cancelled.
pub struct Ask {
    pub(super) checker: Checker,
    pub(super) id: u64,
    pub(super) answered: bool,
}

/// A guard that tells the checker what its holder does.
pub struct Guard {
    lock: Option<Lock>,
    mark: Mark,
}

/// The hold of a read view. Dropping it says that the holder lets go.
pub struct Mark {
    checker: Checker,
    hold: usize,
}

impl Ask {
    /// The options to make the request with.
    pub fn options(&self) -> LockOptions {
        let want = self.checker.lock().ledger.requests[&self.id].want;
        let mut options = LockOptions::new()
            .lease(want.lease)
            .wait(want.wait)
            .at_least(want.at_least);
        if !want.renew {
            options = options.no_renew();
        }
        if let Some(most) = want.max_hold {
            options = options.max_hold(most);
        }
        if want.fenced {
            options = options.fenced();
        }
        if let Some(waiter_lease) = want.fair {
            options = options.waiter_lease(waiter_lease);
        }
        if want.rotate {
            options = options.rotate();
        }
        if let Some(most) = want.max_waiters {
            options = options.max_waiters(most);
        }
        if let Some((count, within)) = want.replicas {
            options = options.replicas(count, within);
        }
        options
    }

    /// Its future is about to be polled for the first time. `lazy`: not every wake-up will be followed at once.
    pub fn begun(&self, lazy: bool) {
        let mut guard = self.checker.lock();
        let state = &mut *guard;
        let Some(request) = state.ledger.requests.get_mut(&self.id) else {
            return;
        };
        request.begun = Some(state.clients[&request.client].now());
        request.lazy = lazy;
        if let Some(waking) = &mut state.waking {
            waking.begun(self.id, request, self.checker.world.true_time());
        }
        let place = (request.client, request.name.clone().into_bytes());
        state.open.entry(place).or_default().begun += 1;
    }

    /// It was granted.
    pub fn acquired(self, lock: Lock) -> Guard {
        let mark = self.held(&lock.held());
        Guard {
            lock: Some(lock),
            mark,
        }
    }

    /// It was granted, and somebody else has the guard.
    pub fn held(mut self, held: &Held) -> Mark {
        self.on_time();
        self.answered = true;
        let checker = self.checker.clone();
        checker.take_in();
        let now = checker.world.true_time();
        checker.lock().ledger.granted(self.id, now);
        let fenced = checker.lock().ledger.fenced(self.id, held.fence());
        if let Err(broken) = fenced {
            checker.violation(broken);
        }
        let hold = {
            let mut guard = checker.lock();
            let state = &mut *guard;
            state.grants += 1;
            let id = self.id;
            if let Some(waking) = &mut state.waking {
                waking.over(id, checker.world.true_time());
            }
            state.holds.push(Hold::new(id, held));
            state.holds.len() - 1
        };
        checker.probe();
        Mark { checker, hold }
    }

    /// Somebody else has it.
    pub fn refused(mut self) {
        self.on_time();
        self.end();
    }

    /// It failed.
    pub fn failed(mut self, error: &Error) {
        self.on_time();
        let early = {
            let mut guard = self.checker.lock();
            let state = &mut *guard;
            let request = &state.ledger.requests[&self.id];
            let place = (request.client, request.name.clone().into_bytes());
            if matches!(error, Error::Closed | Error::Misconfigured(_)) {
                state.open.entry(place).or_default().unseen += 1;
            }
            let waited = request
                .begun
                .map(|begun| state.clients[&request.client].now().saturating_since(begun));
            match (error, request.want.wait, waited) {
                (Error::TimedOut { .. }, Wait::For(wait), Some(waited)) => waited < wait,
                (Error::TimedOut { .. }, Wait::Forever, _) => true,
                _ => false,
            }
        };
        if early {
            self.checker
                .violation(format!("S9 request {} timed out before its wait", self.id));
        }
        // A key of another type is somebody else's doing.
        let wrong = match error {
            Error::Protocol(_) => true,
            Error::Denied(_) => !self.checker.lock().may_deny,
            // So is a script that fails midway, which a take-over on an old server meets.
            Error::Misconfigured(reason) => {
                self.checker.assumes(&[Assumption::A6])
                    && !reason.to_string().contains("running script")
            }
            _ => false,
        };
        if wrong {
            self.checker
                .violation(format!("S10 request {} failed with {error}", self.id));
        }
        self.end();
    }

    fn end(&mut self) {
        self.answered = true;
        self.checker.take_in();
        let stamp = self.checker.world.stamp();
        let now = self.checker.world.true_time();
        let mut state = self.checker.lock();
        if let Some(waking) = &mut state.waking {
            waking.over(self.id, now);
        }
        state.ledger.end(self.id, stamp, now);
    }

    /// S9: an answer comes by the end of the wait, unless the process stood still or did not look.
    fn on_time(&self) {
        let late = {
            let guard = self.checker.lock();
            let request = &guard.ledger.requests[&self.id];
            let client = &guard.clients[&request.client];
            let Some(begun) = request.begun else { return };
            let limit = match request.want.wait {
                Wait::Now => PATIENCE,
                Wait::For(wait) => wait,
                Wait::Forever => return,
            };
            let waited = client.now().saturating_since(begun);
            (!request.lazy && waited > limit + AT_ONCE && !client.stood_still(waited * 2))
                .then_some((limit, waited))
        };
        if let Some((limit, waited)) = late {
            self.checker.violation(format!(
                "S9 request {} was answered after {waited:?} instead of {limit:?}",
                self.id
            ));
        }
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if !self.answered {
            self.end();
        }
    }
}

impl Guard {
    /// Releases it and waits for the answer.
    ///
    /// # Errors
    /// As [`Lock::release`].
    pub async fn release(mut self) -> Result<Released, Error> {
        self.mark.let_go(false);
        match self.lock.take() {
            Some(lock) => lock.release().await,
            None => Err(Error::Closed),
        }
    }

    /// Leaves it to its TTL.
    pub fn abandon(mut self) {
        if let Some(lock) = self.lock.take() {
            self.mark.let_go(true);
            lock.abandon();
        }
    }
}

impl Deref for Guard {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        self.lock
            .as_ref()
            .expect("the lock is there until the guard goes")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.mark.let_go(false);
    }
}

impl Mark {
    /// The holder is about to let go: from here on it is not held, and only clean-ups leave; none at all when it is abandoned.
    fn let_go(&self, abandoned: bool) {
        self.checker.take_in();
        let stamp = self.checker.world.stamp();
        let mut state = self.checker.lock();
        let Some(hold) = state.holds.get_mut(self.hold) else {
            return;
        };
        if std::mem::replace(&mut hold.let_go, true) {
            return;
        }
        let id = hold.request;
        let now = self.checker.world.true_time();
        state.ledger.let_go(id, abandoned, stamp, now);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.let_go(false);
    }
}
