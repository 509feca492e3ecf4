//! The keys of a simulated server, and its commands on them.

use std::collections::BTreeMap;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Text(Vec<u8>),
    List,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) held: Held,
    /// In milliseconds of the server's wall clock.
    pub(crate) expires: Option<u64>,
}

/// A reply, before it is put into the version of the protocol that the connection speaks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Ok,
    Null,
    Int(i64),
    Bulk(Vec<u8>),
    Error(String),
    Simple(&'static str),
    /// HELLO's.
    Greeting(Vec<(&'static str, String)>),
}

const SYNTAX: &str = "ERR syntax error";
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
}

/// The keys, with the commands that look at the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    entries: BTreeMap<Vec<u8>, Entry>,
}

impl Keys {
    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.entries
            .retain(|_, entry| entry.expires.is_none_or(|at| at > now_ms));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, &Entry)> {
        self.entries.iter()
    }

    pub(crate) fn put(&mut self, key: &[u8], held: Held, expires: Option<u64>) {
        self.entries.insert(key.to_vec(), Entry { held, expires });
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.entries.remove(key).is_some()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// A value, or why it cannot be one.
    pub(crate) fn text(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, Reply> {
        match self.entries.get(key).map(|entry| &entry.held) {
            None => Ok(None),
            Some(Held::Text(value)) => Ok(Some(value)),
            Some(Held::List) => Err(Reply::Error(WRONG_TYPE.to_owned())),
        }
    }

    pub(crate) fn expires(&self, key: &[u8]) -> Option<u64> {
        self.entries.get(key)?.expires
    }

    pub(crate) fn get(&self, key: &[u8]) -> Reply {
        match self.text(key) {
            Ok(Some(value)) => Reply::Bulk(value.clone()),
            Ok(None) => Reply::Null,
            Err(error) => error,
        }
    }

    pub(crate) fn pttl(&self, key: &[u8], now_ms: u64) -> Reply {
        Reply::Int(match self.entries.get(key) {
            None => -2,
            Some(Entry { expires: None, .. }) => -1,
            Some(Entry {
                expires: Some(at), ..
            }) => at.saturating_sub(now_ms) as i64,
        })
    }

    /// `SET key value [NX] [GET] [IFEQ old] [PX ms | EX s]`
    pub(crate) fn set(&mut self, dialect: Dialect, args: &[Vec<u8>], now_ms: u64) -> Reply {
        let [key, value, options @ ..] = args else {
            return Reply::Error("ERR wrong number of arguments for 'set' command".to_owned());
        };
        let options = match SetOptions::read(dialect, options) {
            Ok(options) => options,
            Err(error) => return error,
        };
        let exists = self.entries.contains_key(key);
        let old = match self.text(key) {
            Ok(old) => old.cloned(),
            // Without GET and IFEQ nothing looks at the type.
            Err(error) if options.get || options.equal.is_some() => return error,
            Err(_) => None,
        };
        let writes = match &options.equal {
            Some(expected) => old.as_ref() == Some(expected),
            None => !(options.absent && exists),
        };
        if writes {
            let expires = options.ttl_ms.map(|ttl| now_ms + ttl);
            self.put(key, Held::Text(value.clone()), expires);
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
        let equal = self.text(key)?.is_some_and(|value| value == expected);
        Ok(equal && self.remove(key))
    }
}

#[derive(Default)]
struct SetOptions {
    absent: bool,
    get: bool,
    equal: Option<Vec<u8>>,
    ttl_ms: Option<u64>,
}

impl SetOptions {
    fn read(dialect: Dialect, words: &[Vec<u8>]) -> Result<SetOptions, Reply> {
        let error = |text: &str| Err(Reply::Error(text.to_owned()));
        let mut options = SetOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => options.absent = true,
                b"GET" => options.get = true,
                b"IFEQ" if dialect != Dialect::Redis7 => match words.next() {
                    Some(old) => options.equal = Some(old.clone()),
                    None => return error(SYNTAX),
                },
                unit @ (b"PX" | b"EX") => {
                    let Some(ttl) = words.next() else {
                        return error(SYNTAX);
                    };
                    let Some(ttl) = std::str::from_utf8(ttl)
                        .ok()
                        .and_then(|ttl| ttl.parse::<i64>().ok())
                    else {
                        return error("ERR value is not an integer or out of range");
                    };
                    let ms = if unit == b"PX" {
                        Some(ttl)
                    } else {
                        ttl.checked_mul(1000)
                    };
                    match ms
                        .and_then(|ms| u64::try_from(ms).ok())
                        .filter(|ms| *ms > 0 && *ms < 1 << 62)
                    {
                        Some(ms) => options.ttl_ms = Some(ms),
                        None => return error("ERR invalid expire time in 'set' command"),
                    }
                }
                _ => return error(SYNTAX),
            }
        }
        if options.absent && options.equal.is_some() {
            return error(SYNTAX);
        }
        Ok(options)
    }
}
