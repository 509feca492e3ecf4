//! What about the server endangers locks: looked at after each handshake, and before anything else where that decides.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::asking::Tag;
use super::{LinkEvent, Mux};
use crate::conn::ServerInfo;
use crate::error::{LinkFault, ServerError, Unfit};
use crate::plan::{Info, Risk};
use crate::resp::{Value, encode_to};

/// What is to be looked at on a connection, and what has been told.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    /// Still to be asked.
    wanted: Vec<Info>,
    /// The server that is not used before it is known whether it evicts.
    vetting: Option<ServerInfo>,
    /// It does, or does not let one see; with its words.
    unfit: Option<(LinkFault, Vec<u8>)>,
    evicts: Option<Risk>,
    forgets: Option<Risk>,
}

impl Mux {
    /// The handshake is done, and the server is not used before it has said that it is fit.
    pub(super) fn vet(&mut self, info: ServerInfo) {
        self.checks.vetting = Some(info);
        self.submit_info(Info::Memory);
    }

    /// The next thing to look at becomes bytes. False if there is none.
    pub(super) fn submit_check(&mut self) -> bool {
        let info = self.checks.wanted.pop();
        info.is_some_and(|info| {
            self.submit_info(info);
            true
        })
    }

    fn submit_info(&mut self, info: Info) {
        let limit = self.config.reply_limit;
        self.conn.submit(Tag::Check(info), 1, limit, |out| {
            encode_to(&info.command(), out);
        });
    }
}

impl Checks {
    /// The server is in use: it may be looked at, after whatever else there is to send.
    pub(super) fn begin(&mut self, wanted: bool) {
        if wanted {
            self.wanted = Vec::from([Info::Persistence, Info::Memory]);
        }
    }

    /// The connection is over.
    pub(super) fn end(&mut self) {
        self.wanted.clear();
        (self.vetting, self.unfit) = (None, None);
    }

    /// Why the server must not be used, with its words.
    pub(super) fn take_unfit(&mut self) -> Option<(LinkFault, Vec<u8>)> {
        self.unfit.take()
    }

    /// Takes in what the server says. The server, if it is fit and was waited for.
    pub(super) fn take_reply(
        &mut self,
        info: Info,
        reply: &Value<'_>,
        events: &mut VecDeque<LinkEvent>,
    ) -> Option<ServerInfo> {
        let risk = info.risk(reply);
        let vetting = self.vetting.take();
        if vetting.is_some() {
            self.unfit = unfit(reply, &risk);
        }
        // Not said, not told; and what was told counts until something else is said.
        if let Some(risk) = risk {
            let told = match info {
                Info::Memory => &mut self.evicts,
                Info::Persistence => &mut self.forgets,
            };
            if *told != risk {
                told.clone_from(&risk);
                events.extend(risk.map(LinkEvent::Risk));
            }
        }
        vetting.filter(|_| self.unfit.is_none())
    }
}

/// Why a server must not be used that says this of its memory.
fn unfit(reply: &Value<'_>, risk: &Option<Option<Risk>>) -> Option<(LinkFault, Vec<u8>)> {
    let text = reply.error();
    let error = text.map(ServerError::of);
    match risk {
        Some(None) => None,
        Some(Some(Risk::Evicts { policy })) => {
            let words = [b"maxmemory-policy ", policy.as_bytes()].concat();
            Some((LinkFault::Unfit(Unfit::Evicts), words))
        }
        Some(Some(_)) => None,
        None => {
            let passes = error.filter(|error| error.waiting_may_cure());
            let fault = passes.map_or(LinkFault::Unfit(Unfit::Unseen), LinkFault::Handshake);
            Some((fault, text.unwrap_or_default().to_vec()))
        }
    }
}
