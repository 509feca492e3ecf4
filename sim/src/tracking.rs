//! Client-side caching: which connection has read which key, and what it is told when the key changes.
//!
//! As real servers have it, the table is kept by key, and a connection that is gone or has turned tracking off is found
//! to be so only when one of its keys changes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

/// Who has read what, and what is to be said about it.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    /// The connections that are tracked.
    sessions: BTreeMap<usize, Session>,
    /// Who has read a key since it was last written.
    readers: BTreeMap<Vec<u8>, BTreeSet<usize>>,
    /// Keys that have expired, and when; nobody has come across them since.
    lapsed: BTreeMap<Vec<u8>, u64>,
    /// The connection whose command is being executed.
    current: Option<usize>,
    /// To be sent before the reply to that command.
    early: Vec<Push>,
    /// To be sent behind it, on the same connection.
    late: Vec<Push>,
    /// `CLIENT TRACKING` is not allowed.
    pub(crate) refused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    /// Its own writes are not told to it.
    no_loop: bool,
}

/// Something a connection is told without having asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    /// The connection.
    pub(crate) to: usize,
    /// The key that has changed; all of them without one.
    pub(crate) key: Option<Vec<u8>>,
}

impl Tracking {
    /// Whether nobody is tracked, so that nothing will have to be said.
    pub(crate) fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.early.is_empty() && self.late.is_empty()
    }

    /// `CLIENT TRACKING ON`, or again with other options. What was read before an `OFF` counts again.
    pub(crate) fn turn_on(&mut self, connection: usize, no_loop: bool) {
        self.sessions.insert(connection, Session { no_loop });
    }

    /// `CLIENT TRACKING OFF`, or the end of the connection.
    pub(crate) fn turn_off(&mut self, connection: usize) {
        self.sessions.remove(&connection);
    }

    /// A command begins. What was to come behind the reply to the last one, which nobody sent, comes now.
    pub(crate) fn begin(&mut self, connection: usize) {
        self.current = Some(connection);
        self.early.append(&mut self.late);
    }

    /// The command has ended.
    pub(crate) fn end(&mut self) {
        self.current = None;
    }

    /// The command has read a key, which may be there or not.
    pub(crate) fn remember(&mut self, key: &[u8]) {
        let Some(reader) = self.current.filter(|id| self.sessions.contains_key(id)) else {
            return;
        };
        match self.readers.get_mut(key) {
            Some(readers) => _ = readers.insert(reader),
            None => _ = self.readers.insert(key.to_vec(), BTreeSet::from([reader])),
        }
    }

    /// A key was written or deleted: whoever has read it is told, and is to read it again.
    pub(crate) fn changed(&mut self, key: &[u8]) {
        if self.readers.is_empty() {
            return;
        }
        self.lapsed.remove(key);
        for reader in self.readers.remove(key).into_iter().flatten() {
            let Some(session) = self.sessions.get(&reader) else {
                continue;
            };
            let push = Push {
                to: reader,
                key: Some(key.to_vec()),
            };
            match self.current == Some(reader) {
                true if session.no_loop => {}
                true => self.late.push(push),
                false => self.early.push(push),
            }
        }
    }

    /// A key has expired, which a server does not notice until it comes across it.
    pub(crate) fn lapse(&mut self, key: &[u8], at: u64) {
        if self.readers.contains_key(key) {
            self.lapsed.insert(key.to_vec(), at);
        }
    }

    /// The server comes across a key.
    pub(crate) fn look(&mut self, key: &[u8]) {
        if self.lapsed.contains_key(key) {
            self.changed(key);
        }
    }

    /// The server comes across every key that is as asked for.
    pub(crate) fn look_at(&mut self, wanted: impl Fn(&[u8]) -> bool) {
        let keys = self.lapsed.keys().filter(|key| wanted(key));
        let keys: Vec<_> = keys.cloned().collect();
        keys.iter().for_each(|key| self.changed(key));
    }

    /// All keys are gone. Everybody is told, also who has read none or wants to be spared its own writes; who has done
    /// it behind the reply, or before.
    pub(crate) fn flushed(&mut self, before_the_reply: bool) {
        self.readers.clear();
        self.lapsed.clear();
        for to in self.sessions.keys().copied() {
            let push = Push { to, key: None };
            match self.current == Some(to) && !before_the_reply {
                true => self.late.push(push),
                false => self.early.push(push),
            }
        }
    }

    /// Every reader is told as if its key had changed: what servers do when their table is full.
    pub(crate) fn crowd_out(&mut self) {
        let keys: Vec<_> = self.readers.keys().cloned().collect();
        keys.iter().for_each(|key| self.changed(key));
    }

    /// Nobody is tracked any more, and nobody is told.
    pub(crate) fn lose(&mut self) {
        *self = Tracking {
            refused: self.refused,
            current: self.current,
            ..Tracking::default()
        };
    }

    /// When a key that somebody has read expires or has expired, the earliest.
    pub(crate) fn due(&self, expires: impl Fn(&[u8]) -> Option<u64>) -> Option<u64> {
        if self.sessions.is_empty() {
            return None;
        }
        let ahead = self.readers.keys().filter_map(|key| expires(key));
        ahead.chain(self.lapsed.values().copied()).min()
    }

    /// What is to be sent before the reply to the last command, or without any.
    pub(crate) fn take_early(&mut self) -> Vec<Push> {
        take(&mut self.early)
    }

    /// What is to be sent behind it.
    pub(crate) fn take_late(&mut self) -> Vec<Push> {
        take(&mut self.late)
    }
}
