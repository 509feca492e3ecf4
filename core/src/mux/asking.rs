//! Questions on the connection of the leases.

use super::Mux;
use crate::ask::{AskId, Asks, Question};
use crate::conn::Reply;
use crate::error::ConfigError;
use crate::leases::Leases;
use crate::plan::{Call, Dialect, Info, Probe};
use crate::resp::{Value, encode_to};
use crate::time::Tick;

/// Whose a command on the connection is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    Lease(Call),
    Ask(Probe),
    Check(Info),
}

impl Mux {
    /// Puts a question; its answer is an [`Output::Answer`](super::Output::Answer), also after [`close`](Mux::close).
    ///
    /// It waits for a connection, and fails when there is no answer after connect limit and reply limit; a list, when there is
    /// no progress for so long. What only reads is asked again when its connection dies. A removal that may have been carried
    /// out is not: it fails with [`Failure::MaybeDone`](crate::error::Failure::MaybeDone).
    ///
    /// ```
    /// use tenure_core::ask::Question;
    /// use tenure_core::mux::{Mux, MuxConfig};
    /// use tenure_core::names::Names;
    /// use tenure_core::time::Tick;
    ///
    /// let mut mux = Mux::new(MuxConfig::new(Names::new("lock:", "doc")?), 1);
    /// let id = mux.ask(Tick::ZERO, &Question::List { start: b"order:", limit: 100 })?;
    /// // Nobody wants to know any more.
    /// mux.forget(id);
    /// # Ok::<(), tenure_core::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Name`]: nothing was begun.
    pub fn ask(&mut self, now: Tick, question: &Question<'_>) -> Result<AskId, ConfigError> {
        let id = self.asks.ask(now, question)?;
        if self.leases.is_closed() {
            self.close_asks();
        }
        Ok(id)
    }

    /// Nobody waits for the answer any more. A removal of which no byte has left is not carried out.
    pub fn forget(&mut self, id: AskId) {
        self.withdraw(id);
        self.asks.forget(id);
    }

    pub(super) fn close_asks(&mut self) {
        while let Some(id) = self.asks.first() {
            let unsent = self.withdraw(id);
            self.asks.handle_closed(id, unsent);
        }
    }

    pub(super) fn end_overdue_asks(&mut self, now: Tick) {
        while let Some(id) = self.asks.poll_overdue(now) {
            let unsent = self.withdraw(id);
            self.asks.handle_overdue(id, unsent);
        }
    }

    /// The next step of a question becomes bytes. False if there is none.
    pub(super) fn submit_probe(&mut self) -> bool {
        let Some(id) = self.asks.poll_step() else {
            return false;
        };
        let probe = Probe::new(&self.dialect, id);
        let held_up = self.waits.until_answered(None, self.conn.unanswered());
        let (asks, limit) = (&self.asks, self.config.reply_limit + held_up);
        let replies = probe.replies(asks);
        if self.conn.is_ready() && replies > 0 {
            self.conn.submit(Tag::Ask(probe), replies, limit, |out| {
                probe.commands(asks, |args| encode_to(args, out));
            });
        }
        true
    }

    /// Takes a step back of which not a byte has left; false if there is none.
    fn withdraw(&mut self, id: AskId) -> bool {
        let is_it = |tag: &Tag| matches!(tag, Tag::Ask(probe) if probe.id == id);
        self.conn.purge(is_it)
    }
}

/// Takes in a reply. Whoever waits here for a key that was removed, or holds it, hears of it at once.
pub(super) fn take_reply(
    reply: &Reply<'_, Probe>,
    now: Tick,
    asks: &mut Asks,
    leases: &mut Leases,
    dialect: &mut Dialect,
) {
    if matches!(reply.value, Value::Bulk(_) | Value::Int(1..)) {
        if let Some(key) = asks.key_of(reply.tag.id) {
            leases.handle_changed(now, key);
        }
    }
    Probe::handle_reply(reply, now, asks, dialect);
}
