//! The seam for an engine. Not async: messages go in, the outcome goes into the [`Hold`], or for a question into the
//! [`Asked`].
//!
//! May change before 1.0.

use std::sync::Arc;
use std::task::{Context, Poll};

use tenure_core::ask::Question;
use tenure_core::time::Tick;

use crate::asking::Asked;
use crate::error::Error;
use crate::hold::Hold;
use crate::options::LockOptions;
use crate::token::OwnerToken;

/// An engine that keeps leases. Every method returns at once, may be called from any thread, and needs
/// no runtime context.
pub trait Store: Send + Sync + 'static {
    /// Why nobody may wait for this store, or believe in what it holds, in this process: [`Error::Forked`].
    fn refusal(&self) -> Option<Error> {
        None
    }

    /// The store for locks that replicas have to confirm, if it is another one: it is asked in place of this one, and each of
    /// its holds is its own from then on.
    fn replicated(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// Asks for the lock that the hold names. What becomes of it is told to the hold.
    fn acquire(&self, options: &LockOptions, hold: &Arc<Hold>);

    /// Ends a request or a hold.
    ///
    /// # Errors
    /// The [`refusal`](Store::refusal), if there is one: then nothing was done.
    fn end(&self, hold: &Arc<Hold>, how: End) -> Result<(), Error>;

    /// The value of a hold, while it is held and if it stays the same to its end.
    fn token(&self, hold: &Arc<Hold>) -> Option<OwnerToken>;

    /// Renews as soon as possible; told to the hold.
    fn renew(&self, hold: &Arc<Hold>);

    /// Puts a question that belongs to no lock. What comes of it is told to `asked`.
    fn ask(&self, question: &Question<'_>, asked: &Arc<Asked>);

    /// Nobody waits for the answer any more.
    fn forget(&self, asked: &Asked);

    /// The current time, freshly read; the end of time where there is a [`refusal`](Store::refusal).
    fn now(&self) -> Tick;

    /// The current time where an earlier one is as safe, cheaply read.
    fn now_for_sending(&self) -> Tick {
        self.now()
    }

    /// Ready while the store can be reached, or why it cannot. `watcher` identifies the waiting future from one poll to
    /// the next.
    fn poll_ready(
        &self,
        watcher: &mut Option<u32>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>>;

    /// Refuses new requests, fails waiting ones, tells every hold.
    fn close(&self);

    /// Ready once everything is released or has expired after [`close`](Store::close). `watcher` as above.
    fn poll_closed(&self, watcher: &mut Option<u32>, cx: &mut Context<'_>) -> Poll<()>;

    /// A future that waited for one of these was dropped.
    fn unwatch(&self, watcher: Option<u32>);
}

/// How a request or a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// Release; the answer is told to the hold.
    Release,
    /// Stop renewing and leave the key to its TTL.
    Abandon,
    /// The guard is gone: release without an answer.
    Drop,
    /// Nobody waits for the request any more: withdraw it. If it was granted, nobody has had the lock.
    Cancel,
}
