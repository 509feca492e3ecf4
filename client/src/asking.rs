//! Questions that belong to no lock: the slot that a store fills, and the futures that wait on it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tenure_core::ask::{AskId, Known, Question};

use crate::error::Error;
use crate::inspection::{Examination, Inspection, Listed, Removed};
use crate::store::Store;
use crate::token::OwnerToken;
use crate::waiters;

/// How many names are listed, unless another limit is set.
const LIST_LIMIT: usize = 10_000;

/// One question, shared by the store and the caller.
#[derive(Default)]
pub struct Asked(Mutex<Cell>);

#[derive(Default)]
struct Cell {
    id: Option<AskId>,
    result: Option<Result<Known, Error>>,
    caller: Option<Waker>,
}

impl Asked {
    /// The store has taken the question up.
    pub fn set_id(&self, id: AskId) {
        self.cell().id = Some(id);
    }

    /// The question in the store's table, once it is there.
    pub fn id(&self) -> Option<AskId> {
        self.cell().id
    }

    /// Tells what came of it. The store calls the wakers that it gets, once it holds no lock.
    pub fn tell(&self, result: Result<Known, Error>, wakers: &mut Vec<Waker>) {
        let mut cell = self.cell();
        cell.result = Some(result);
        wakers.extend(cell.caller.take());
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Known, Error>> {
        let _old;
        let mut cell = self.cell();
        match cell.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                _old = waiters::set(&mut cell.caller, cx);
                Poll::Pending
            }
        }
    }

    fn cell(&self) -> MutexGuard<'_, Cell> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question on its way: not put yet, then put, then neither.
struct Asking {
    store: Arc<dyn Store>,
    what: Option<What>,
    asked: Option<Arc<Asked>>,
}

enum What {
    Inspect(Box<[u8]>),
    List(Box<[u8]>, usize),
    Force(Box<[u8]>),
    Release(Box<[u8]>, OwnerToken),
    Examine,
}

impl Asking {
    fn new(store: &Arc<dyn Store>, what: What) -> Asking {
        Asking {
            store: Arc::clone(store),
            what: Some(what),
            asked: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Known, Error>> {
        if let Some(what) = self.what.take() {
            let asked = self.asked.insert(Arc::default());
            let question = match &what {
                What::Inspect(name) => Question::Inspect { name },
                What::List(start, limit) => Question::List {
                    start,
                    limit: *limit,
                },
                What::Force(name) => Question::Remove { name },
                What::Release(name, token) => Question::Release {
                    name,
                    value: token.as_str().as_bytes(),
                },
                What::Examine => Question::Examine,
            };
            self.store.ask(&question, asked);
        }
        // Without one it is polled again after it was ready, which nobody should do.
        let Some(asked) = &self.asked else {
            return Poll::Ready(Err(Error::NotHeld));
        };
        let poll = asked.poll(cx);
        if poll.is_ready() {
            self.asked = None;
        }
        poll
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(asked) = &self.asked {
            self.store.forget(asked);
        }
    }
}

/// The future of [`Locks::inspect`](crate::Locks::inspect): `Send`, `'static`, cancelled by dropping it.
#[must_use = "futures do nothing unless polled"]
pub struct Inspecting(Asking);

/// The future of [`Locks::list`](crate::Locks::list): `Send`, `'static`, cancelled by dropping it.
#[must_use = "futures do nothing unless polled"]
pub struct Listing(Asking);

/// The future of [`Locks::force_release`](crate::Locks::force_release) and
/// [`Locks::release_by_token`](crate::Locks::release_by_token): `Send`, `'static`. Dropping it before a byte has left
/// calls it back, later it does not.
#[must_use = "futures do nothing unless polled"]
pub struct Forcing(Asking);

/// The future of [`Locks::examine`](crate::Locks::examine): `Send`, `'static`, cancelled by dropping it.
#[must_use = "futures do nothing unless polled"]
pub struct Examining(Asking);

impl Inspecting {
    pub(crate) fn new(store: &Arc<dyn Store>, name: &[u8]) -> Inspecting {
        Inspecting(Asking::new(store, What::Inspect(name.into())))
    }
}

impl Listing {
    pub(crate) fn new(store: &Arc<dyn Store>, start: &[u8]) -> Listing {
        Listing(Asking::new(store, What::List(start.into(), LIST_LIMIT)))
    }

    /// At most so many names, instead of 10,000; [`Listed::more`] says whether there are others. They are kept in memory until
    /// the last is known.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let locks = tenure_tokio::memory();
    /// # let (_a, _b) = (locks.acquire("a").await?, locks.acquire("b").await?);
    /// let listed = locks.list("").limit(1).await?;
    /// assert_eq!((listed.names.len(), listed.more), (1, true));
    /// # Ok(()) }
    /// ```
    pub fn limit(mut self, most: usize) -> Listing {
        if let Some(What::List(_, limit)) = &mut self.0.what {
            *limit = most;
        }
        self
    }
}

impl Forcing {
    pub(crate) fn new(store: &Arc<dyn Store>, name: &[u8]) -> Forcing {
        Forcing(Asking::new(store, What::Force(name.into())))
    }

    pub(crate) fn by_token(store: &Arc<dyn Store>, name: &[u8], token: &OwnerToken) -> Forcing {
        Forcing(Asking::new(
            store,
            What::Release(name.into(), token.clone()),
        ))
    }
}

impl Examining {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Examining {
        Examining(Asking::new(store, What::Examine))
    }
}

impl Future for Inspecting {
    type Output = Result<Option<Inspection>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map_ok(|known| match known {
            Known::Inspected(found) => found.map(Inspection::from),
            _ => None,
        })
    }
}

impl Future for Listing {
    type Output = Result<Listed, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map_ok(|known| match known {
            Known::Listed(listed) => Listed::from(listed),
            _ => Listed::default(),
        })
    }
}

impl Future for Forcing {
    type Output = Result<Option<Removed>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map_ok(|known| match known {
            Known::Removed(removed) => removed.map(Removed::from),
            _ => None,
        })
    }
}

impl Future for Examining {
    type Output = Result<Examination, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map_ok(|known| match known {
            Known::Examined(examined) => Examination::from(examined),
            _ => Examination::default(),
        })
    }
}

macro_rules! opaque_debug {
    ($($name:ident)*) => { $(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )* };
}

opaque_debug! { Asked Inspecting Listing Forcing Examining }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_futures_go_anywhere() {
        fn goes_anywhere<T: Future + Send + Unpin + 'static>() {}
        goes_anywhere::<Inspecting>();
        goes_anywhere::<Listing>();
        goes_anywhere::<Forcing>();
        goes_anywhere::<Examining>();
    }
}
