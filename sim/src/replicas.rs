//! The replicas of a simulated server: what they have received, and how the server waits for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Tick;

use crate::keys::{Dialect, Entries, NOT_A_NUMBER, Reply, number};
use crate::machine::{ServerHandle, Snapshot};
use crate::server::{Mood, Server};
use crate::tap::Command;
use crate::world::{Happening, Inner};

/// A replica, as its primary feeds it.
#[derive(Debug)]
pub(crate) struct Replica {
    /// How long what is written takes to be received and confirmed.
    lag: Duration,
    frozen: bool,
    /// What it has received: after which change, and the keys then.
    has: (u64, Entries),
    /// What is under way, with when it arrives; not while it is frozen.
    stream: VecDeque<(Tick, u64, Entries)>,
}

/// A connection on which the server waits for replicas, and does nothing else.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) command: Arc<Command>,
    /// The last change that was made on this connection; none, and everything is confirmed.
    written: u64,
    count: usize,
    on_disk: bool,
    until: Tick,
}

impl Wait {
    pub(crate) fn until(&self) -> Tick {
        self.until
    }

    /// The answer, if it has come to one.
    pub(crate) fn reply(&self, server: &Server, now: Tick) -> Option<Reply> {
        let confirmed = server.replicas.iter();
        let confirmed = confirmed.filter(|replica| replica.has.0 >= self.written);
        let confirmed = confirmed.count();
        let over = confirmed >= self.count || now >= self.until;
        over.then(|| match (self.on_disk, Reply::Int(confirmed as i64)) {
            (false, confirmed) => confirmed,
            (true, confirmed) => Reply::Many(vec![Reply::Int(server.appends().into()), confirmed]),
        })
    }
}

impl Server {
    /// `WAIT n ms`, `WAITAOF 0|1 n ms`: whether a command is one, and what is to be waited for.
    pub(crate) fn wait(
        &self,
        now: Tick,
        command: &Arc<Command>,
        written: u64,
    ) -> Option<Result<Wait, Reply>> {
        let (name, args) = command.words.split_first()?;
        let on_disk = name.eq_ignore_ascii_case(b"WAITAOF");
        if !(on_disk || name.eq_ignore_ascii_case(b"WAIT"))
            || (on_disk && self.dialect == Dialect::Redis7)
        {
            return None;
        }
        let wait = self.terms(on_disk, args, now).map(|(count, until)| Wait {
            command: Arc::clone(command),
            written,
            count,
            on_disk,
            until,
        });
        Some(wait.map_err(|text| Reply::Error(text.to_owned())))
    }

    /// The answer where nobody waits: the server has no replicas, or the time is over.
    pub(crate) fn wait_at_once(&self, name: &[u8], args: &[Vec<u8>], now: Tick) -> Reply {
        let words = [&[name.to_vec()], args].concat();
        let command = Arc::new(Command {
            client: 0,
            connection: 0,
            words,
            at: now,
            by_client: now,
            stamp: 0,
        });
        match self.wait(now, &command, self.keys.changes) {
            Some(Ok(wait)) => wait.reply(self, Tick::MAX).unwrap_or(Reply::Null),
            Some(Err(refused)) => refused,
            None => Reply::Error("ERR unknown command 'WAITAOF'".to_owned()),
        }
    }

    /// Whether what it has written is on its disk.
    fn appends(&self) -> bool {
        self.settings.get("appendonly").map(String::as_str) == Some("yes")
    }

    /// For how many replicas, and until when.
    fn terms(
        &self,
        on_disk: bool,
        args: &[Vec<u8>],
        now: Tick,
    ) -> Result<(usize, Tick), &'static str> {
        let (here, count, ms) = match (on_disk, args) {
            (false, [count, ms]) => (0, count, ms),
            (true, [here, count, ms]) => (number(here).ok_or(NOT_A_NUMBER)?, count, ms),
            (false, _) => return Err("ERR wrong number of arguments for 'wait' command"),
            (true, _) => return Err("ERR wrong number of arguments for 'waitaof' command"),
        };
        match self.mood {
            Mood::ReadOnly => return Err("ERR WAIT cannot be used with replica instances."),
            Mood::Busy => return Err("BUSY Redis is busy running a script."),
            Mood::Loading => return Err("LOADING Redis is loading the dataset in memory"),
            _ => {}
        }
        let count = number(count).ok_or(NOT_A_NUMBER)?;
        let ms = number(ms).and_then(|ms| u64::try_from(ms).ok());
        let ms = ms.ok_or("ERR timeout is negative")?;
        if here > 0 && !self.appends() {
            return Err(
                "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
            );
        }
        let until = match ms {
            0 => Tick::MAX,
            ms => now + Duration::from_millis(ms),
        };
        Ok((usize::try_from(count).unwrap_or(0), until))
    }

    /// Its replicas begin anew with what it has.
    pub(crate) fn resync(&mut self) {
        let has = (self.keys.changes, self.keys.entries().clone());
        for replica in &mut self.replicas {
            replica.has = has.clone();
            replica.stream.clear();
        }
    }
}

impl Inner {
    /// What was changed on a server is under way to its replicas.
    pub(crate) fn replicate(&mut self, server: usize) {
        for at in 0..self.servers[server].1.replicas.len() {
            let now = self.now;
            let this = &mut self.servers[server].1;
            let (changes, entries) = (this.keys.changes, this.keys.entries().clone());
            let replica = &mut this.replicas[at];
            let last = replica.stream.back().map_or(now, |(tick, ..)| *tick);
            let tick = (now + replica.lag).max(last);
            replica.stream.push_back((tick, changes, entries));
            if !replica.frozen {
                self.put(tick, Happening::Replicated { server });
            }
        }
    }

    /// Replicas take in what has come, and whoever waits for them is answered.
    pub(crate) fn replicated(&mut self, server: usize) {
        let now = self.now;
        for replica in &mut self.servers[server].1.replicas {
            let arrived = |(tick, ..): &mut (Tick, u64, Entries)| *tick <= now;
            while !replica.frozen
                && let Some((_, changes, entries)) = replica.stream.pop_front_if(arrived)
            {
                replica.has = (changes, entries);
            }
        }
        self.serve_all(server);
    }
}

impl ServerHandle {
    /// Gives it a replica that is in step. What is written is received and confirmed after `lag`. Its number, from 0.
    pub fn add_replica(&self, lag: Duration) -> usize {
        self.with(|server, _| {
            server.replicas.push(Replica {
                lag,
                frozen: false,
                has: (server.keys.changes, server.keys.entries().clone()),
                stream: VecDeque::new(),
            });
            server.replicas.len() - 1
        })
    }

    /// The replica receives nothing, and confirms nothing.
    pub fn freeze_replica(&self, replica: usize) {
        self.with(|server, _| server.replicas[replica].frozen = true);
    }

    /// The replica goes on, with what has been written meanwhile.
    pub fn thaw_replica(&self, replica: usize) {
        let mut inner = self.world.lock();
        let now = inner.now;
        let replica = &mut inner.servers[self.id].1.replicas[replica];
        replica.frozen = false;
        let at = now + replica.lag;
        for (tick, ..) in &mut replica.stream {
            *tick = at.max(*tick);
        }
        let all: Vec<Tick> = replica.stream.iter().map(|(tick, ..)| *tick).collect();
        for tick in all {
            inner.put(tick, Happening::Replicated { server: self.id });
        }
    }

    /// Every replica that receives nothing goes on.
    pub fn thaw_replicas(&self) {
        let frozen = self.with(|server, _| {
            let replicas = server.replicas.iter().enumerate();
            let frozen = replicas.filter(|(_, replica)| replica.frozen);
            frozen.map(|(at, _)| at).collect::<Vec<_>>()
        });
        frozen
            .into_iter()
            .for_each(|replica| self.thaw_replica(replica));
    }

    /// The replica follows no more: it is gone, or a primary of its own. What it has received by now, for a
    /// [`fail_over`](ServerHandle::fail_over) of this server, or of another one that is there beside it.
    pub fn take_replica(&self, replica: usize) -> Snapshot {
        self.with(|server, _| Snapshot::of(server.replicas.remove(replica).has.1))
    }
}
