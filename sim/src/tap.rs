//! The tap on the wire: which commands clients handed out and servers executed, and when.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_core::time::Tick;

use crate::keys::{Left, Reply};
use crate::server::Server;

/// A command as a client handed it out.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) client: usize,
    pub(crate) connection: usize,
    pub(crate) words: Vec<Vec<u8>>,
    /// True time at which its first byte was taken.
    pub(crate) at: Tick,
    /// What the client's clock showed then.
    pub(crate) by_client: Tick,
    /// Orders it among everything else that has a stamp.
    pub(crate) stamp: u64,
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Command {
            client, connection, ..
        } = self;
        write!(f, "client {client} connection {connection}:")?;
        for word in &self.words {
            write!(f, " {}", word.escape_ascii())?;
        }
        Ok(())
    }
}

/// Something that the tap saw.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// A whole command was handed out.
    HandedOut(Arc<Command>),
    /// A server executed a command, or refused it, at this true time.
    Executed(Arc<Command>, Reply, Tick),
    /// A value left its key, at this true time; only if that is asked for.
    Left(Left, Tick),
}

/// What was written on one connection, cut into commands, and how much of it has arrived.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The bytes of a command that is not whole yet.
    tail: Vec<u8>,
    /// Stamp and times of its first byte.
    begun: Option<(u64, Tick, Tick)>,
    total: u64,
    pub(crate) arrived: u64,
    /// Whole commands that were not executed, with where they end.
    waiting: VecDeque<(u64, Arc<Command>)>,
}

impl Written {
    /// Takes in bytes that a client has written; says which commands became whole.
    pub(crate) fn write(
        &mut self,
        (client, connection): (usize, usize),
        bytes: &[u8],
        (stamp, at, by_client): (u64, Tick, Tick),
        mut whole: impl FnMut(&Arc<Command>),
    ) {
        let mut end = self.total - self.tail.len() as u64;
        self.total += bytes.len() as u64;
        self.tail.extend_from_slice(bytes);
        let mut taken = 0;
        let mut stamp = stamp;
        while taken < self.tail.len() {
            let begun = *self.begun.get_or_insert((stamp, at, by_client));
            let Some((words, len)) = Server::parse(&self.tail[taken..]) else {
                break;
            };
            self.begun = None;
            // Commands of one write keep their order.
            stamp += 1;
            taken += len;
            end += len as u64;
            let command = Arc::new(Command {
                client,
                connection,
                words,
                at: begun.1,
                by_client: begun.2,
                stamp: begun.0,
            });
            whole(&command);
            self.waiting.push_back((end, command));
        }
        self.tail.drain(..taken);
    }

    /// The next command that has arrived as a whole.
    pub(crate) fn next(&mut self) -> Option<Arc<Command>> {
        let (end, _) = self.waiting.front()?;
        if *end > self.arrived {
            return None;
        }
        self.waiting.pop_front().map(|(_, command)| command)
    }
}
