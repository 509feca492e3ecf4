//! The keys of a simulated server, and its commands on them.

use std::collections::BTreeMap;

use crate::tracking::Tracking;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Text(Vec<u8>),
    /// Of so many elements.
    List(i64),
    Sorted(Scores),
}

/// A sorted set: members and their scores.
pub(crate) type Scores = BTreeMap<Vec<u8>, u64>;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) held: Held,
    /// In milliseconds of the server's wall clock.
    pub(crate) expires: Option<u64>,
}

/// A reply, before it is put into the version of the protocol that the connection speaks.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    Ok,
    Null,
    Int(i64),
    Bulk(Vec<u8>),
    Error(String),
    Simple(&'static str),
    /// HELLO's.
    Greeting(Box<[(&'static str, &'static str); 4]>),
    Many(Vec<Reply>),
    /// An array of twice as many in RESP2.
    Map(Vec<(String, String)>),
    /// A text for people, which RESP3 marks as such.
    Text(String),
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reply::Ok => f.write_str("OK"),
            Reply::Null => f.write_str("null"),
            Reply::Int(n) => write!(f, "{n}"),
            Reply::Bulk(bytes) => write!(f, "{:?}", bytes.escape_ascii().to_string()),
            Reply::Error(text) => write!(f, "-{text}"),
            Reply::Simple(text) => f.write_str(text),
            Reply::Greeting(pairs) => write!(f, "{pairs:?}"),
            Reply::Many(inside) => write!(f, "{inside:?}"),
            Reply::Map(pairs) => write!(f, "{pairs:?}"),
            Reply::Text(text) => write!(f, "{text:?}"),
        }
    }
}

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Which servers a simulated one behaves like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Redis 8.6: `SET .. IFEQ`, `DELEX`.
    Redis8,
    /// Valkey 9.1: `SET .. IFEQ`, `DELIFEQ`.
    Valkey9,
    /// Redis 7.0: scripts.
    Redis7,
    /// Valkey 8.1: `SET .. IFEQ`, scripts.
    Valkey8,
}

impl Dialect {
    /// Every one.
    pub const ALL: [Dialect; 4] = [
        Dialect::Redis8,
        Dialect::Valkey9,
        Dialect::Redis7,
        Dialect::Valkey8,
    ];
}

/// What is there, by key.
pub(crate) type Entries = BTreeMap<Vec<u8>, Entry>;

/// The keys, with the commands that look at the time, and who is to be told when they change.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    entries: Entries,
    pub(crate) tracking: Tracking,
    /// What has left its key since it was last asked for, once somebody asked.
    pub(crate) left: Option<Vec<Left>>,
    /// How often anything was changed, but by its time.
    pub(crate) changes: u64,
}

/// A value that its key does not have any more.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) key: Vec<u8>,
    /// Without one it was no text.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) how: How,
}

/// How a value leaves its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The key is gone.
    Freed,
    /// As `Freed`, by its time: readers are told when the server comes across it.
    Lapsed,
    /// The key has another value.
    Replaced,
}

impl Keys {
    /// Keys whose time has come are not there any more. Who has read them is told when the server comes across them, or
    /// by [`sweep`](Keys::sweep).
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let (tracking, left) = (&mut self.tracking, &mut self.left);
        self.entries.retain(|key, entry| match entry.expires {
            Some(at) if at <= now_ms => {
                tracking.lapse(key, at);
                note_left(left, key, &entry.held, How::Lapsed);
                false
            }
            _ => true,
        });
    }

    /// The server looks for keys that have expired.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        self.expire(now_ms);
        self.tracking.look_at(|_| true);
    }

    /// When a sweep will have something to say.
    pub(crate) fn due(&self) -> Option<u64> {
        self.tracking.due(|key| self.expires(key))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
        self.entries.iter()
    }

    pub(crate) fn put(&mut self, key: &[u8], held: Held, expires: Option<u64>) {
        if let Some(old) = self.entries.get(key).filter(|old| old.held != held) {
            note_left(&mut self.left, key, &old.held, How::Replaced);
        }
        self.entries.insert(key.to_vec(), Entry { held, expires });
        self.changes += 1;
        self.tracking.changed(key);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.tracking.look(key);
        let Some(old) = self.entries.remove(key) else {
            return false;
        };
        note_left(&mut self.left, key, &old.held, How::Freed);
        self.changes += 1;
        self.tracking.changed(key);
        true
    }

    /// `DEL key..`
    pub(crate) fn delete(&mut self, keys: &[Vec<u8>]) -> Reply {
        let deleted = keys.iter().filter(|key| self.remove(key)).count();
        Reply::Int(deleted as i64)
    }

    /// All are gone, and everybody who is tracked is told; who has done it before the reply or behind it.
    pub(crate) fn flush(&mut self, before_the_reply: bool) {
        for (key, old) in std::mem::take(&mut self.entries) {
            note_left(&mut self.left, &key, &old.held, How::Freed);
        }
        self.changes += 1;
        self.tracking.flushed(before_the_reply);
    }

    /// The server is another process now, with these keys: it knows nobody who could be told.
    pub(crate) fn restart(&mut self, entries: Entries) {
        self.entries = entries;
        self.changes += 1;
        self.tracking.lose();
    }

    pub(crate) fn wrong_type() -> Reply {
        Reply::Error(WRONG_TYPE.to_owned())
    }

    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// A value, or why it cannot be one.
    pub(crate) fn text(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, Reply> {
        match self.entries.get(key).map(|entry| &entry.held) {
            None => Ok(None),
            Some(Held::Text(value)) => Ok(Some(value)),
            Some(Held::List(_) | Held::Sorted(_)) => Err(Keys::wrong_type()),
        }
    }

    pub(crate) fn expires(&self, key: &[u8]) -> Option<u64> {
        self.entries.get(key)?.expires
    }

    /// A command that only reads has named a key: found or not, of the right type or not, it is remembered.
    pub(crate) fn note_read(&mut self, key: &[u8]) {
        self.tracking.look(key);
        self.tracking.remember(key);
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Reply {
        self.note_read(key);
        match self.text(key) {
            Ok(Some(value)) => Reply::Bulk(value.clone()),
            Ok(None) => Reply::Null,
            Err(error) => error,
        }
    }

    /// The bytes from `start` to `end`, both included; negative ones count from the end.
    pub(crate) fn get_range(&mut self, key: &[u8], start: &[u8], end: &[u8]) -> Reply {
        let (Some(start), Some(end)) = (number(start), number(end)) else {
            return Reply::Error(NOT_A_NUMBER.to_owned());
        };
        self.note_read(key);
        let value = match self.text(key) {
            Ok(value) => value.cloned().unwrap_or_default(),
            Err(error) => return error,
        };
        let len = value.len() as i64;
        let place = |at: i64| {
            if at < 0 {
                at.saturating_add(len).max(0)
            } else {
                at
            }
        };
        let both_before = start < 0 && end < 0 && start > end;
        let (from, to) = (place(start), place(end).min(len - 1));
        if both_before || from > to {
            return Reply::Bulk(Vec::new());
        }
        Reply::Bulk(value[from as usize..=to as usize].to_vec())
    }

    pub(crate) fn pttl(&mut self, key: &[u8], now_ms: u64) -> Reply {
        self.note_read(key);
        Reply::Int(match self.entries.get(key) {
            None => -2,
            Some(Entry { expires: None, .. }) => -1,
            Some(Entry {
                expires: Some(at), ..
            }) => at.saturating_sub(now_ms) as i64,
        })
    }

    /// `EXISTS key..`: one that is named twice counts twice.
    pub(crate) fn exists(&mut self, keys: &[Vec<u8>]) -> Reply {
        keys.iter().for_each(|key| self.note_read(key));
        let there = keys.iter().filter(|key| self.entries.contains_key(*key));
        Reply::Int(there.count() as i64)
    }

    /// `TYPE key`
    pub(crate) fn kind(&mut self, key: &[u8]) -> Reply {
        self.note_read(key);
        Reply::Simple(match self.entries.get(key).map(|entry| &entry.held) {
            None => "none",
            Some(Held::Text(_)) => "string",
            Some(Held::List(_)) => "list",
            Some(Held::Sorted(_)) => "zset",
        })
    }

    /// `RPUSH key element..`
    pub(crate) fn push(&mut self, key: &[u8], elements: usize) -> Reply {
        self.tracking.look(key);
        let entry = self.entries.entry(key.to_vec()).or_insert(Entry {
            held: Held::List(0),
            expires: None,
        });
        match &mut entry.held {
            Held::List(len) => {
                *len += elements as i64;
                let len = *len;
                self.tracking.changed(key);
                Reply::Int(len)
            }
            Held::Text(_) | Held::Sorted(_) => Keys::wrong_type(),
        }
    }

    /// `PEXPIRE key ms`
    pub(crate) fn expire_in(&mut self, key: &[u8], ms: &[u8], now_ms: u64) -> Reply {
        let Some(ms) = number(ms) else {
            return Reply::Error(NOT_A_NUMBER.to_owned());
        };
        let Some(at) = (now_ms as i64).checked_add(ms) else {
            return Reply::Error("ERR invalid expire time in 'pexpire' command".to_owned());
        };
        self.tracking.look(key);
        let Some(entry) = self.entries.get_mut(key) else {
            return Reply::Int(0);
        };
        let at = at.max(0) as u64;
        if at <= now_ms {
            // A time that has passed deletes.
            self.remove(key);
        } else {
            entry.expires = Some(at);
            self.changes += 1;
            self.tracking.changed(key);
        }
        Reply::Int(1)
    }

    /// `SET key value [NX] [GET] [IFEQ old] [PX ms | EX s]`
    pub(crate) fn set(&mut self, dialect: Dialect, args: &[Vec<u8>], now_ms: u64) -> Reply {
        let [key, value, options @ ..] = args else {
            return Reply::Error("ERR wrong number of arguments for 'set' command".to_owned());
        };
        let options = match SetOptions::read(dialect, options, now_ms) {
            Ok(options) => options,
            Err(error) => return error,
        };
        self.tracking.look(key);
        let exists = self.entries.contains_key(key);
        let old = match self.text(key) {
            Ok(old) => old.cloned(),
            // Without GET and IFEQ nothing looks at the type.
            Err(error) if options.get || (options.equal.is_some() && !options.absent) => {
                return error;
            }
            Err(_) => None,
        };
        let writes = match &options.equal {
            Some(expected) => old.as_ref() == Some(expected),
            None => true,
        } && !(options.absent && exists);
        if writes {
            self.put(key, Held::Text(value.clone()), options.expires);
        }
        match (options.get, old) {
            (true, Some(old)) => Reply::Bulk(old),
            (true, None) => Reply::Null,
            (false, _) if writes => Reply::Ok,
            (false, _) => Reply::Null,
        }
    }

    /// Compare and delete.
    pub(crate) fn delete_if(&mut self, key: &[u8], expected: &[u8]) -> Result<bool, Reply> {
        self.tracking.look(key);
        let equal = self.text(key)?.is_some_and(|value| value == expected);
        Ok(equal && self.remove(key))
    }
}

fn note_left(left: &mut Option<Vec<Left>>, key: &[u8], held: &Held, how: How) {
    let Some(left) = left else { return };
    let value = match held {
        Held::Text(value) => Some(value.clone()),
        Held::List(_) | Held::Sorted(_) => None,
    };
    left.push(Left {
        key: key.to_vec(),
        value,
        how,
    });
}

#[derive(Default)]
struct SetOptions {
    absent: bool,
    get: bool,
    equal: Option<Vec<u8>>,
    expires: Option<u64>,
}

impl SetOptions {
    fn read(dialect: Dialect, words: &[Vec<u8>], now_ms: u64) -> Result<SetOptions, Reply> {
        let error = |text: &str| Err(Reply::Error(text.to_owned()));
        let mut options = SetOptions::default();
        let mut ttl: Option<(i64, &Vec<u8>)> = None;
        let mut words = words.iter();
        // All words come before any value is looked at.
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                // Redis minds the two together in one order only; then both conditions have to be met.
                b"NX" if options.equal.is_none() || dialect == Dialect::Redis8 => {
                    options.absent = true;
                }
                b"GET" => options.get = true,
                b"IFEQ"
                    if !options.absent
                        && match dialect {
                            Dialect::Redis7 => false,
                            Dialect::Redis8 => true,
                            Dialect::Valkey8 | Dialect::Valkey9 => options.equal.is_none(),
                        } =>
                {
                    match words.next() {
                        Some(old) => options.equal = Some(old.clone()),
                        None => return error(SYNTAX),
                    }
                }
                word @ (b"PX" | b"EX") => {
                    let unit = if word == b"PX" { 1 } else { 1_000 };
                    match (ttl, words.next()) {
                        // The same one may come again, and counts.
                        (None, Some(value)) => ttl = Some((unit, value)),
                        (Some((before, _)), Some(value)) if before == unit => {
                            ttl = Some((unit, value));
                        }
                        _ => return error(SYNTAX),
                    }
                }
                _ => return error(SYNTAX),
            }
        }
        if let Some((unit, value)) = ttl {
            let Some(value) = number(value) else {
                return error(NOT_A_NUMBER);
            };
            let at = value
                .checked_mul(unit)
                .filter(|ms| *ms > 0)
                .and_then(|ms| ms.checked_add(now_ms as i64));
            match at {
                Some(at) => options.expires = Some(at as u64),
                None => return error("ERR invalid expire time in 'set' command"),
            }
        }
        Ok(options)
    }
}

/// An integer as servers read one: no plus, no blanks, no zeros in front.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    let text = std::str::from_utf8(text).ok().filter(|_| plain)?;
    text.parse().ok()
}
