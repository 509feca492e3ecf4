//! The scripts of a fair queue, as their text says: written anew and not with what the client has for them, since the one is
//! compared with the other.

use tenure_core::time::Tick;

use crate::keys::{Dialect, Held, Keys, Reply, Scores, number};
use crate::mint::Minting;
use crate::server::{Mood, Server};

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The keys of a script, and what it has done so far.
struct Run<'a> {
    server: &'a mut Server,
    keys: &'a [Vec<u8>],
    now_us: u64,
    /// It has written: then a server that is full lets it go on.
    wrote: bool,
}

type Step<T> = Result<T, Reply>;

impl Server {
    /// `TAKE`
    pub(crate) fn take(&mut self, now: Tick, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let ([key, _, _, counter], [value, ms, entry, age, floor, most @ ..]) = (keys, arguments)
        else {
            return Reply::Error("ERR the simulated server wants all of it".to_owned());
        };
        let mut run = Run::begin(self, now, keys);
        let present = match run.value(key) {
            Ok(present) => present,
            Err(_) => return Reply::Int(0),
        };
        let most = most.first().and_then(|most| number(most));
        let taken = run.take(present, (value, ms), (entry, age, most), (counter, floor));
        let wrote = run.wrote;
        let reply = taken.unwrap_or_else(|reply| reply);
        match wrote {
            true => self.after_a_write(reply),
            false => reply,
        }
    }

    /// `PASS`
    pub(crate) fn pass(&mut self, now: Tick, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let ([key, _, _], [entry, next, age, count, values @ ..]) = (keys, arguments) else {
            return Reply::Error("ERR the simulated server wants all of it".to_owned());
        };
        let mut run = Run::begin(self, now, keys);
        let present = run.value(key).unwrap_or_default();
        let of_hold = number(count).and_then(|count| usize::try_from(count).ok());
        let passed = run.pass(present, entry, (next, age), (of_hold.unwrap_or(0), values));
        let reply = passed.unwrap_or_else(|reply| reply);
        self.after_a_write(reply)
    }
}

impl<'a> Run<'a> {
    fn begin(server: &'a mut Server, now: Tick, keys: &'a [Vec<u8>]) -> Run<'a> {
        let now_us = server.clock.read(now);
        Run {
            server,
            keys,
            now_us,
            wrote: false,
        }
    }

    fn take(
        &mut self,
        mut present: Option<Vec<u8>>,
        (value, ms): (&[u8], &[u8]),
        (entry, age, most): (&[u8], &[u8], Option<i64>),
        (counter, floor): (&[u8], &[u8]),
    ) -> Step<Reply> {
        self.purge()?;
        let first = self.first()?;
        let ticket = self.ticket(entry, age)?;
        let passed_on = present.is_some() && present.as_deref() == passed_value(entry);
        let is_first = match &first {
            None => true,
            Some((other, before)) => other == entry || (!entry.is_empty() && ticket < *before),
        };
        if passed_on || (present.is_none() && is_first) {
            let mut fence = 1;
            if !floor.is_empty() {
                self.read(counter);
                let Minting {
                    fence: minted,
                    kept,
                } = self.server.minting(self.now_us, counter, floor)?;
                self.may_grow()?;
                let digits = minted.to_string().into_bytes();
                self.server
                    .keys
                    .put(counter, Held::Text(digits), Some(kept));
                fence = i64::try_from(minted).unwrap_or(i64::MAX);
            }
            self.set(value, ms)?;
            self.leave(entry)?;
            return Ok(Reply::Int(fence));
        }
        if present.is_none()
            && let Some((head, _)) = first
        {
            present = Some(self.pass_to(&head)?);
        }
        let full = !entry.is_empty() && self.is_full(entry, most)?;
        if !entry.is_empty() && !full {
            self.join(entry, ticket)?;
        }
        let key = &self.keys[0];
        self.read(key);
        let ttl = self.server.keys.pttl(key, self.now_us / 1_000);
        let mut reply = vec![Reply::Bulk(present.unwrap_or_default()), ttl];
        reply.extend(full.then_some(Reply::Int(1)));
        Ok(Reply::Many(reply))
    }

    fn pass(
        &mut self,
        present: Option<Vec<u8>>,
        entry: &[u8],
        (next, age): (&[u8], &[u8]),
        (of_hold, values): (usize, &[Vec<u8>]),
    ) -> Step<Reply> {
        self.purge()?;
        self.leave(entry)?;
        if !next.is_empty() {
            let ticket = self.ticket(next, age)?;
            self.join(next, ticket)?;
        }
        let Some(present) = present else {
            return Ok(Reply::Int(0));
        };
        if values.contains(&present) || Some(&*present) == passed_value(entry) {
            match self.first()? {
                Some((head, _)) => drop(self.pass_to(&head)?),
                None => {
                    self.server.keys.remove(&self.keys[0]);
                }
            }
        }
        let held = values.iter().take(of_hold).any(|value| *value == present);
        Ok(Reply::Int(i64::from(held)))
    }

    /// Who does not wait any more is taken out.
    fn purge(&mut self) -> Step<()> {
        let (queue, alive) = (&self.keys[1], &self.keys[2]);
        self.read(alive);
        let ms = self.now_us / 1_000;
        let alive = self.server.keys.scores(alive)?;
        let dead = alive.iter().filter(|(_, until)| **until <= ms);
        let mut dead: Vec<_> = dead.map(|(entry, until)| (*until, entry.clone())).collect();
        dead.sort();
        let _ = queue;
        dead.into_iter()
            .try_for_each(|(_, entry)| self.leave(&entry))
    }

    /// Who came first, and when.
    fn first(&mut self) -> Step<Option<(Vec<u8>, u64)>> {
        let queue = &self.keys[1];
        self.read(queue);
        let queue = self.server.keys.scores(queue)?;
        let first = queue
            .iter()
            .min_by_key(|(entry, ticket)| (**ticket, *entry));
        Ok(first.map(|(entry, ticket)| (entry.clone(), *ticket)))
    }

    fn ticket(&mut self, entry: &[u8], age: &[u8]) -> Step<u64> {
        let queue = &self.keys[1];
        self.read(queue);
        let was = self.server.keys.scores(queue)?.get(entry).copied();
        let age = std::str::from_utf8(age)
            .ok()
            .and_then(|age| age.parse().ok());
        let ticket = self.now_us.saturating_sub(age.unwrap_or(0));
        Ok(was.map_or(ticket, |was| was.min(ticket)))
    }

    /// Whether so many wait that this one, who does not, is not to join them.
    fn is_full(&mut self, entry: &[u8], most: Option<i64>) -> Step<bool> {
        let queue = &self.keys[1];
        self.read(queue);
        let queue = self.server.keys.scores(queue)?;
        let waiting = i64::try_from(queue.len()).unwrap_or(i64::MAX);
        Ok(!queue.contains_key(entry) && most.is_some_and(|most| waiting >= most))
    }

    fn join(&mut self, entry: &[u8], ticket: u64) -> Step<()> {
        let (queue, alive) = (&self.keys[1], &self.keys[2]);
        let until = self.now_us / 1_000 + waiter_lease(entry);
        self.may_grow()?;
        self.server.keys.add(queue, entry, ticket)?;
        self.server.keys.add(alive, entry, until)?;
        self.read(alive);
        let last = self.server.keys.scores(alive)?.values().max().copied();
        for key in [queue, alive] {
            self.server.keys.expire_at(key, last.unwrap_or(until));
        }
        Ok(())
    }

    fn leave(&mut self, entry: &[u8]) -> Step<()> {
        self.wrote = true;
        self.server.keys.take_out(&self.keys[1], entry)?;
        self.server.keys.take_out(&self.keys[2], entry)
    }

    /// The key to this waiter, who leaves the queue by it.
    fn pass_to(&mut self, entry: &[u8]) -> Step<Vec<u8>> {
        let value = passed_value(entry).unwrap_or_default().to_vec();
        self.leave(entry)?;
        let ms = waiter_lease(entry).to_string();
        self.set(&value, ms.as_bytes())?;
        Ok(value)
    }

    fn set(&mut self, value: &[u8], ms: &[u8]) -> Step<()> {
        self.may_grow()?;
        let set = [
            self.keys[0].clone(),
            value.to_vec(),
            b"PX".to_vec(),
            ms.to_vec(),
        ];
        let now_ms = self.now_us / 1_000;
        match self.server.keys.set(self.server.dialect, &set, now_ms) {
            Reply::Ok => Ok(()),
            other => Err(other),
        }
    }

    /// A server that is full refuses the first write of a script that adds to its data.
    fn may_grow(&mut self) -> Step<()> {
        if self.server.mood == Mood::OutOfMemory && !self.wrote {
            return Err(Reply::Error(OUT_OF_MEMORY.to_owned()));
        }
        self.wrote = true;
        Ok(())
    }

    fn value(&mut self, key: &[u8]) -> Step<Option<Vec<u8>>> {
        self.read(key);
        Ok(self.server.keys.text(key)?.cloned())
    }

    fn read(&mut self, key: &[u8]) {
        self.server.keys.note_read(key);
        if self.server.dialect == Dialect::Redis7 {
            // There whatever a script reads counts as all of its keys.
            let tracking = &mut self.server.keys.tracking;
            self.keys.iter().for_each(|key| tracking.remember(key));
        }
    }
}

impl Keys {
    /// A sorted set, empty if there is none.
    fn scores(&self, key: &[u8]) -> Step<Scores> {
        match self.entries().get(key).map(|entry| &entry.held) {
            None => Ok(Scores::new()),
            Some(Held::Sorted(scores)) => Ok(scores.clone()),
            Some(_) => Err(Keys::wrong_type()),
        }
    }

    /// `ZADD key score member`
    fn add(&mut self, key: &[u8], member: &[u8], score: u64) -> Step<()> {
        let expires = self.expires(key);
        let mut scores = self.scores(key)?;
        if scores.insert(member.to_vec(), score) != Some(score) {
            self.put(key, Held::Sorted(scores), expires);
        }
        Ok(())
    }

    /// `ZREM key member`
    fn take_out(&mut self, key: &[u8], member: &[u8]) -> Step<()> {
        self.tracking.look(key);
        let expires = self.expires(key);
        let mut scores = self.scores(key)?;
        if scores.remove(member).is_some() {
            match scores.is_empty() {
                true => drop(self.remove(key)),
                false => self.put(key, Held::Sorted(scores), expires),
            }
        }
        Ok(())
    }

    /// `PEXPIREAT key ms`, of a time that is still to come.
    fn expire_at(&mut self, key: &[u8], at: u64) {
        if let Some(held) = self.entries().get(key).map(|entry| entry.held.clone()) {
            self.put(key, held, Some(at));
        }
    }
}

/// The value under which the key is passed on to who has this entry.
fn passed_value(entry: &[u8]) -> Option<&[u8]> {
    let blank = entry.iter().position(|byte| *byte == b' ')?;
    Some(&entry[blank + 1..])
}

fn waiter_lease(entry: &[u8]) -> u64 {
    let digits = entry.split(|byte| *byte == b' ').next().unwrap_or_default();
    std::str::from_utf8(digits)
        .ok()
        .and_then(|it| it.parse().ok())
        .unwrap_or(0)
}
