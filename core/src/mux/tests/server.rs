//! A server in memory with a clock of its own: as much of Redis and Valkey as a lock needs.

use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use crate::fence::{FenceFault, kept_until_ms, mint};
use crate::plan;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stored {
    Text(Vec<u8>),
    List,
}

/// What a server is and what ails it.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) keys: BTreeMap<Vec<u8>, (Stored, Option<u64>)>,
    /// The greeting: `redis`, `valkey`, or none at all.
    pub(super) greets: Option<(&'static str, &'static str)>,
    pub(super) nx_get: bool,
    pub(super) ifeq: bool,
    pub(super) delex: bool,
    pub(super) delifeq: bool,
    pub(super) may_read: bool,
    /// Answered to every command that writes, scripts excepted where they only set a TTL.
    pub(super) oom: bool,
    pub(super) read_only: bool,
    pub(super) pttl_denied: bool,
    pub(super) get_denied: bool,
    pub(super) remembers: usize,
    /// Answered to everything but the greeting.
    pub(super) ails: Option<&'static str>,
    /// The next script runs, and is answered with this.
    pub(super) script_fails: Option<&'static str>,
    pub(super) cached: BTreeSet<String>,
    /// Unix time by its clock at the start of the world, in microseconds.
    pub(super) epoch: u64,
    /// What is answered to `CLIENT TRACKING`: nothing means OK.
    pub(super) refuses_to_watch: Option<&'static str>,
    /// The connection is told of changes,
    pub(super) watches: bool,
    /// to these keys,
    pub(super) watched: BTreeSet<Vec<u8>>,
    /// by these bytes, which are still to be sent.
    pub(super) pushes: Vec<u8>,
    /// What `INFO` says of a section; an error reply where it begins so.
    pub(super) memory: &'static str,
    pub(super) persistence: &'static str,
    /// This key vanishes right after the next command of this verb.
    pub(super) vanishes_after: Option<(&'static str, &'static str)>,
    /// How many replicas keep up, which of them have it on disk, and what is answered instead.
    pub(super) replicas: u8,
    pub(super) wait_refused: Option<&'static str>,
    /// The connection has made a write: before that a server confirms whatever it is asked, and at once.
    pub(super) wrote: bool,
    /// For so long, in microseconds, the server does nothing more on this connection, and then answers.
    pub(super) blocks: u64,
    /// Every command that was executed, its arguments joined by blanks.
    pub(super) log: Vec<(u64, String)>,
}

impl Server {
    pub(super) fn redis() -> Server {
        Server {
            keys: BTreeMap::new(),
            greets: Some(("redis", "8.6.3")),
            nx_get: true,
            ifeq: true,
            delex: true,
            delifeq: false,
            may_read: true,
            oom: false,
            read_only: false,
            pttl_denied: false,
            get_denied: false,
            remembers: usize::MAX,
            ails: None,
            script_fails: None,
            cached: BTreeSet::new(),
            epoch: 1_796_000_000_000_000,
            refuses_to_watch: None,
            watches: false,
            watched: BTreeSet::new(),
            pushes: Vec::new(),
            memory: "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n",
            persistence: "aof_enabled:1\r\n",
            vanishes_after: None,
            replicas: 0,
            wait_refused: None,
            wrote: false,
            blocks: 0,
            log: Vec::new(),
        }
    }

    pub(super) fn valkey() -> Server {
        Server {
            greets: Some(("valkey", "9.1.2")),
            delex: false,
            delifeq: true,
            ..Server::redis()
        }
    }

    /// From before the compare commands, with a proxy in front that says nothing of it.
    pub(super) fn old() -> Server {
        Server {
            greets: None,
            nx_get: false,
            ifeq: false,
            delex: false,
            ..Server::redis()
        }
    }

    pub(super) fn get(&mut self, now: u64, key: &str) -> Option<Vec<u8>> {
        self.expire(now);
        match self.keys.get(key.as_bytes()) {
            Some((Stored::Text(text), _)) => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn put(&mut self, key: &str, value: &[u8], until: Option<u64>) {
        let stored = Stored::Text(value.to_vec());
        self.keys.insert(key.as_bytes().to_vec(), (stored, until));
    }

    /// Commands in the log that contain this.
    pub(super) fn count(&self, part: &str) -> usize {
        self.log
            .iter()
            .filter(|(_, line)| line.contains(part))
            .count()
    }

    /// Its clock steps back: what expires at a time by that clock lives on the longer.
    pub(super) fn step_back(&mut self, micros: u64) {
        self.epoch -= micros;
        for (_, until) in self.keys.values_mut() {
            *until = until.map(|until| until + micros);
        }
    }

    /// Somebody else does something: whoever watches is told.
    pub(super) fn meddle(&mut self, act: impl FnOnce(&mut Server)) {
        let before = self.keys.clone();
        act(self);
        let changed = |key: &Vec<u8>| before.get(key) != self.keys.get(key);
        let told: Vec<Vec<u8>> = self
            .watched
            .iter()
            .filter(|key| changed(key))
            .cloned()
            .collect();
        for key in told {
            self.watched.remove(&key);
            self.pushes.extend(b">2\r\n$10\r\ninvalidate\r\n*1\r\n");
            self.pushes.extend(bulk(&key));
        }
    }

    /// All keys are gone.
    pub(super) fn flush(&mut self) {
        self.keys.clear();
        self.watched.clear();
        if self.watches {
            self.pushes.extend(b">2\r\n$10\r\ninvalidate\r\n_\r\n");
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.meddle(|server| {
            server.keys.remove(key.as_bytes()).expect("the key");
        });
    }

    pub(super) fn expire(&mut self, now: u64) {
        self.meddle(|server| {
            let keys = &mut server.keys;
            keys.retain(|_, (_, until)| until.is_none_or(|until| now < until));
        });
    }

    /// The reply, and the pushes that follow it.
    pub(super) fn serve(&mut self, now: u64, args: &[Vec<u8>]) -> Vec<u8> {
        self.expire(now);
        // What others have caused comes first.
        let mut bytes = core::mem::take(&mut self.pushes);
        let mut reply = Vec::new();
        self.meddle(|server| reply = server.execute(now, args));
        bytes.extend(reply);
        bytes.extend(core::mem::take(&mut self.pushes));
        if self.watches
            && matches!(&args[0][..], b"GET" | b"GETRANGE" | b"PTTL")
            && self.may_read
            && !(self.pttl_denied && args[0] == b"PTTL")
            && !(self.get_denied && args[0] == b"GET")
        {
            self.watched.insert(args[1].clone());
            while self.watched.len() > self.remembers {
                let key = self
                    .watched
                    .iter()
                    .find(|key| **key != args[1])
                    .cloned()
                    .unwrap();
                self.watched.remove(&key);
                self.pushes.extend(b">2\r\n$10\r\ninvalidate\r\n*1\r\n");
                self.pushes.extend(bulk(&key));
            }
        }
        if let Some((_, key)) = self
            .vanishes_after
            .take_if(|(verb, _)| verb.as_bytes() == args[0])
        {
            self.remove(key);
        }
        bytes
    }

    pub(super) fn execute(&mut self, now: u64, args: &[Vec<u8>]) -> Vec<u8> {
        self.expire(now);
        let line: Vec<String> = args
            .iter()
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect();
        self.log.push((now, line.join(" ")));
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        if words[0] != "HELLO" {
            if let Some(error) = self.ails {
                return error_reply(error);
            }
        }
        if words[0] == "HELLO" {
            // A connection begins.
            self.watches = false;
            self.wrote = false;
            self.watched.clear();
            self.pushes.clear();
        }
        let arg = |at: usize| args.get(at).cloned().unwrap_or_default();
        self.wrote |= matches!(words[0], "SET" | "EVAL" | "EVALSHA" | "DELEX" | "DELIFEQ");
        match words[0] {
            "WAIT" | "WAITAOF" => self.wait(&words),
            "CLIENT" => match self.refuses_to_watch {
                None => {
                    self.watches = true;
                    b"+OK\r\n".to_vec()
                }
                Some(error) => error_reply(error),
            },
            "HELLO" => match self.greets {
                None => error_reply("ERR unknown command 'HELLO'"),
                Some((server, version)) => format!(
                    "%3\r\n$6\r\nserver\r\n${}\r\n{server}\r\n$7\r\nversion\r\n${}\r\n{version}\r\n$5\r\nproto\r\n:3\r\n",
                    server.len(),
                    version.len()
                )
                .into_bytes(),
            },
            "SET" if self.read_only => error_reply("READONLY You can't write against a read only replica."),
            "PTTL" if self.pttl_denied => error_reply("NOPERM no"),
            "GET" if self.get_denied => error_reply("NOPERM no"),
            "SET" => self.set(now, &words, args),
            "GET" if !self.may_read => error_reply("NOPERM no"),
            "GET" => match self.keys.get(&arg(1)) {
                None => self.null(),
                Some((Stored::Text(text), _)) => bulk(text),
                Some(_) => error_reply("WRONGTYPE Operation against a key"),
            },
            "GETRANGE" if !self.may_read => error_reply("NOPERM no"),
            "GETRANGE" => match self.keys.get(&arg(1)) {
                None => bulk(b""),
                Some((Stored::Text(text), _)) => bulk(&text[..text.len().min(256)]),
                Some(_) => error_reply("WRONGTYPE Operation against a key"),
            },
            "SCAN" => self.scan(words[1], &arg(3), words[5]),
            "INFO" => {
                let text = match words[1] {
                    "memory" => self.memory,
                    "persistence" => self.persistence,
                    "server" => "# Server\r\nredis_version:8.6.3\r\n",
                    _ => "role:mas\x1bter\r\n",
                };
                match text.strip_prefix('-') {
                    Some(error) => error_reply(error),
                    None => bulk(text.as_bytes()),
                }
            }
            "TIME" => {
                let us = self.epoch + now;
                let text = |number: u64| format!("${}\r\n{number}\r\n", number.to_string().len());
                format!("*2\r\n{}{}", text(us / 1_000_000), text(us % 1_000_000)).into_bytes()
            }
            "PTTL" if !self.may_read => error_reply("NOPERM no"),
            "PTTL" => match self.keys.get(&arg(1)) {
                None => int(-2),
                Some((_, None)) => int(-1),
                Some((_, Some(until))) => int(((until - now) / 1000) as i64),
            },
            "DELEX" if !self.delex => error_reply("ERR unknown command 'DELEX'"),
            "DELIFEQ" if !self.delifeq => error_reply("ERR unknown command 'DELIFEQ'"),
            "DELEX" | "DELIFEQ" => {
                let value = arg(if words[0] == "DELEX" { 3 } else { 2 });
                match self.keys.get(&arg(1)) {
                    Some((Stored::List, _)) if words[0] == "DELEX" => {
                        error_reply("ERR Key should be of string type if conditions are specified")
                    }
                    Some((Stored::List, _)) => error_reply("WRONGTYPE Operation against a key"),
                    _ => int(self.delete(&arg(1), &value)),
                }
            }
            "EVALSHA" if !self.cached.contains(words[1]) => error_reply("NOSCRIPT No matching script"),
            "EVAL" | "EVALSHA" => {
                let script = [plan::RENEW, plan::ADOPT, plan::CLEAR, plan::COOL, plan::REMOVE, plan::MINT]
                    .into_iter()
                    .find(|script| words[1] == script.text || words[1] == script.sha)
                    .expect("a known script");
                self.cached.insert(script.sha.to_string());
                let reply = self.script(now, script.sha, &arg(3), &args[4..]);
                self.script_fails.take().map_or(reply, error_reply)
            }
            other => error_reply(&format!("ERR unknown command '{other}'")),
        }
    }

    fn wait(&mut self, words: &[&str]) -> Vec<u8> {
        if let Some(error) = self.wait_refused {
            return error_reply(error);
        }
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let (wanted, ms) = (number(words.len() - 2), number(words.len() - 1));
        if self.wrote && u64::from(self.replicas) < wanted {
            self.blocks = ms * 1000;
        }
        let confirmed = match self.wrote {
            true => i64::from(self.replicas),
            false => 9,
        };
        match words[0] {
            "WAIT" => int(confirmed),
            _ => format!("*2\r\n:1\r\n:{confirmed}\r\n").into_bytes(),
        }
    }

    fn set(&mut self, now: u64, words: &[&str], args: &[Vec<u8>]) -> Vec<u8> {
        let at = |word| {
            words
                .iter()
                .skip(3)
                .position(|other| *other == word)
                .map(|at| at + 3)
        };
        let ms: u64 = at("PX")
            .and_then(|at| words[at + 1].parse().ok())
            .expect("PX");
        let (nx, get, ifeq) = (at("NX").is_some(), at("GET").is_some(), at("IFEQ"));
        if (ifeq.is_some() && !self.ifeq) || (nx && get && !self.nx_get) {
            return error_reply("ERR syntax error");
        }
        if get && !self.may_read {
            return error_reply("NOPERM no");
        }
        if self.oom {
            return error_reply("OOM command not allowed when used memory > 'maxmemory'.");
        }
        let key = &args[1];
        let old = match self.keys.get(key) {
            None => None,
            Some((Stored::Text(text), _)) => Some(text.clone()),
            Some(_) if nx && !get => Some(Vec::new()),
            Some(_) => return error_reply("WRONGTYPE Operation against a key"),
        };
        let write = match ifeq {
            Some(at) => old.as_ref() == Some(&args[at + 1]),
            None => !nx || old.is_none(),
        };
        if write {
            let value = Stored::Text(args[2].clone());
            self.keys
                .insert(key.clone(), (value, Some(now + ms * 1000)));
        }
        match (get, old) {
            (true, Some(old)) => bulk(&old),
            (true, None) => self.null(),
            (false, _) if write => b"+OK\r\n".to_vec(),
            (false, _) => self.null(),
        }
    }

    /// Some keys twice, and in an order of its own.
    fn scan(&self, cursor: &str, pattern: &[u8], count: &str) -> Vec<u8> {
        let (from, count): (usize, usize) = (cursor.parse().unwrap(), count.parse().unwrap());
        let mut keys: Vec<&Vec<u8>> = self.keys.keys().collect();
        keys.sort_by_key(|key| key.iter().rev().collect::<Vec<_>>());
        let next = match from + count {
            next if next < keys.len() => next.to_string(),
            _ => "0".to_string(),
        };
        let page = keys.iter().skip(from.saturating_sub(2)).take(count + 2);
        let page: Vec<Vec<u8>> = page
            .filter(|key| matches(key, pattern))
            .map(|key| bulk(key))
            .collect();
        let mut reply = b"*2\r\n".to_vec();
        reply.extend(bulk(next.as_bytes()));
        reply.extend(format!("*{}\r\n", page.len()).into_bytes());
        reply.extend(page.concat());
        reply
    }

    pub(super) fn take_by_force(
        &mut self,
        now: u64,
        key: &[u8],
        helper: &[u8],
        by: &[u8],
        only: Option<&Vec<u8>>,
    ) -> Vec<u8> {
        let is_other = |only| match self.keys.get(key) {
            Some((Stored::Text(text), _)) => text != only,
            _ => true,
        };
        if only.is_some_and(is_other) {
            return int(0);
        }
        match self.keys.remove(key) {
            None => int(0),
            Some((Stored::List, _)) => int(2),
            Some((Stored::Text(text), _)) if !text.starts_with(b"tn1:") => int(1),
            Some((Stored::Text(text), until)) => {
                let note = [by, b".", &text].concat();
                let until = until.unwrap_or(0).max(now + 60_000_000);
                self.keys
                    .insert(helper.to_vec(), (Stored::Text(note), Some(until)));
                bulk(&text)
            }
        }
    }

    fn script(&mut self, now: u64, sha: &str, key: &[u8], argv: &[Vec<u8>]) -> Vec<u8> {
        if !self.may_read {
            return error_reply("NOPERM no");
        }
        if sha == plan::REMOVE.sha {
            return self.take_by_force(now, key, &argv[0], &argv[1], argv.get(2));
        }
        let old = match self.keys.get(key) {
            None => None,
            Some((Stored::Text(text), _)) => Some(text.clone()),
            Some(_) => return int(0),
        };
        if sha == plan::MINT.sha {
            return self.mint(now, key, old, argv);
        }
        if sha == plan::COOL.sha {
            return self.cool(now, key, old, argv);
        }
        let mine = old.as_ref() == Some(&argv[0]);
        let until = |at: usize| {
            let ms: u64 = String::from_utf8_lossy(&argv[at]).parse().expect("ms");
            Some(now + ms * 1000)
        };
        if sha == plan::CLEAR.sha {
            return int(self.delete(key, &argv[0]));
        }
        if !mine {
            return old.map_or_else(|| self.null(), |old| bulk(&old));
        }
        let value = if sha == plan::ADOPT.sha {
            &argv[2]
        } else {
            &argv[0]
        };
        let stored = Stored::Text(value.clone());
        self.keys.insert(key.to_vec(), (stored, until(1)));
        int(1)
    }

    fn mint(&mut self, now: u64, key: &[u8], old: Option<Vec<u8>>, argv: &[Vec<u8>]) -> Vec<u8> {
        let [helper, value, ms, floor, replaced @ ..] = argv else {
            panic!("{argv:?}")
        };
        if old.as_ref() != replaced.first() {
            return old.map_or_else(|| self.null(), |old| bulk(&old));
        }
        let number = |text: &[u8]| String::from_utf8_lossy(text).parse::<u64>().ok();
        let counter = match self.keys.get(helper) {
            None => None,
            Some((Stored::Text(text), _)) if number(text).is_some() => number(text),
            Some(_) => return int(-3),
        };
        let floor = number(floor).expect("a floor");
        let fence = match mint(self.epoch + now, counter, floor) {
            Ok(fence) => fence,
            Err(FenceFault::Floor) => return int(-1),
            Err(_) => return int(-2),
        };
        if self.oom {
            return error_reply("OOM command not allowed when used memory > 'maxmemory'.");
        }
        let kept = kept_until_ms(fence) * 1_000 - self.epoch;
        let counter = Stored::Text(fence.to_string().into_bytes());
        self.keys.insert(helper.clone(), (counter, Some(kept)));
        let until = now + number(ms).expect("ms") * 1_000;
        self.keys
            .insert(key.to_vec(), (Stored::Text(value.clone()), Some(until)));
        int(fence as i64)
    }

    fn cool(&mut self, now: u64, key: &[u8], old: Option<Vec<u8>>, argv: &[Vec<u8>]) -> Vec<u8> {
        let [cooling, ms, count, values @ ..] = argv else {
            panic!("{argv:?}")
        };
        let number = |text: &[u8]| {
            String::from_utf8_lossy(text)
                .parse::<u64>()
                .expect("digits")
        };
        if old.as_ref() == Some(cooling) {
            return int(1);
        }
        let Some(at) = values.iter().position(|value| Some(value) == old.as_ref()) else {
            return int(0);
        };
        if at as u64 >= number(count) {
            self.keys.remove(key);
            return int(0);
        }
        let stays = if self.oom { &values[at] } else { cooling };
        let until = now + number(ms) * 1_000;
        self.keys
            .insert(key.to_vec(), (Stored::Text(stays.clone()), Some(until)));
        int(1)
    }

    fn delete(&mut self, key: &[u8], value: &[u8]) -> i64 {
        match self.keys.get(key) {
            Some((Stored::Text(text), _)) if text == value => {
                self.keys.remove(key);
                1
            }
            _ => 0,
        }
    }

    fn null(&self) -> Vec<u8> {
        match self.greets {
            Some(_) => b"_\r\n".to_vec(),
            None => b"$-1\r\n".to_vec(),
        }
    }
}

/// As much of a glob as is needed here: `\` before a character, and one `*` at the end.
fn matches(key: &[u8], pattern: &[u8]) -> bool {
    let mut plain = Vec::new();
    let mut rest = pattern.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => plain.extend(rest.next()),
            b'*' => break,
            other => plain.push(*other),
        }
    }
    assert_eq!(rest.next(), None);
    key.starts_with(&plain)
}

pub(super) fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn int(n: i64) -> Vec<u8> {
    format!(":{n}\r\n").into_bytes()
}

fn error_reply(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

/// Takes whole commands from the front of what has arrived.
pub(super) fn take_command(arrived: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let line = |from: usize| {
        let end = arrived[from..]
            .windows(2)
            .position(|pair| pair == b"\r\n")?
            + from;
        let number = core::str::from_utf8(&arrived[from + 1..end])
            .ok()?
            .parse::<usize>()
            .ok()?;
        Some((number, end + 2))
    };
    let (count, mut at) = line(0)?;
    let mut args = Vec::new();
    for _ in 0..count {
        let (len, start) = line(at)?;
        args.push(arrived.get(start..start + len)?.to_vec());
        at = start + len + 2;
        if arrived.len() < at {
            return None;
        }
    }
    arrived.drain(..at);
    Some(args)
}
