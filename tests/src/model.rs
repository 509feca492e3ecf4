//! A tiny Redis in memory, for a scripted server that answers one command wrongly and the rest rightly.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::ServerKind;
use crate::fake::{Answer, Call};

/// Strings with a TTL, and the commands of one kind of server on them. It runs no scripts: EVALSHA finds none,
/// and EVAL is a fault to be set.
pub struct Model {
    kind: ServerKind,
    keys: HashMap<Vec<u8>, Entry>,
    faults: Vec<Fault>,
}

struct Entry {
    value: Vec<u8>,
    until: Option<Instant>,
}

struct Fault {
    matches: Box<dyn Fn(&Call) -> bool + Send>,
    which: RangeInclusive<usize>,
    seen: usize,
    answer: Answer,
}

impl Model {
    /// One that knows the commands this kind of server knows.
    #[must_use]
    pub fn new(kind: ServerKind) -> Self {
        Self {
            kind,
            keys: HashMap::new(),
            faults: Vec::new(),
        }
    }

    /// The `which`-th commands that meet the condition, counted from 1, get this answer and have no effect.
    /// The first fault that fits a command is the one that counts it.
    #[must_use]
    pub fn fault(
        mut self,
        which: RangeInclusive<usize>,
        matches: impl Fn(&Call) -> bool + Send + 'static,
        answer: impl Into<Answer>,
    ) -> Self {
        self.faults.push(Fault {
            matches: Box::new(matches),
            which,
            seen: 0,
            answer: answer.into(),
        });
        self
    }

    /// A key that is there from the start.
    #[must_use]
    pub fn key(mut self, key: &str, value: &str, ttl: Option<Duration>) -> Self {
        let entry = Entry {
            value: value.into(),
            until: ttl.map(|ttl| Instant::now() + ttl),
        };
        self.keys.insert(key.into(), entry);
        self
    }

    /// The answer to a command.
    pub fn answer(&mut self, call: &Call) -> Answer {
        for fault in &mut self.faults {
            if (fault.matches)(call) {
                fault.seen += 1;
                if fault.which.contains(&fault.seen) {
                    return fault.answer.clone();
                }
                break;
            }
        }
        let now = Instant::now();
        self.keys
            .retain(|_, entry| entry.until.is_none_or(|until| until > now));
        let key = call.args.get(1);
        match (call.name().as_str(), key) {
            ("PING", _) => Answer::simple("PONG"),
            ("GET", Some(key)) => self.value(call, key),
            ("EXISTS", Some(key)) => Answer::int(self.keys.contains_key(key).into()),
            ("PTTL", Some(key)) => Answer::int(match self.keys.get(key) {
                None => -2,
                Some(Entry { until: None, .. }) => -1,
                Some(Entry {
                    until: Some(until), ..
                }) => i64::try_from((*until - now).as_millis()).unwrap_or(i64::MAX),
            }),
            ("SET", Some(key)) => self.set(call, key, now),
            ("DEL", Some(key)) => Answer::int(self.keys.remove(key).is_some().into()),
            ("DELEX", Some(key)) if self.kind == ServerKind::Redis86 && call.has("IFEQ") => {
                self.delete_if(key, call.args.get(3))
            }
            ("DELIFEQ", Some(key)) if self.kind == ServerKind::Valkey91 => {
                self.delete_if(key, call.args.get(2))
            }
            ("EVALSHA", _) => Answer::error("NOSCRIPT No matching script. Please use EVAL."),
            _ => Answer::error(&format!(
                "ERR unknown command '{}', with args beginning with: ",
                call.arg(0)
            )),
        }
    }

    fn set(&mut self, call: &Call, key: &[u8], now: Instant) -> Answer {
        const SYNTAX: &str = "ERR syntax error";
        let Some(value) = call.args.get(2) else {
            return Answer::error("ERR wrong number of arguments for 'set' command");
        };
        let (mut absent, mut present, mut get) = (false, false, false);
        let (mut equal, mut ttl): (Option<&[u8]>, Option<Duration>) = (None, None);
        let mut options = call.args[3..].iter();
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => absent = true,
                b"XX" => present = true,
                b"GET" => get = true,
                b"IFEQ" if self.kind != ServerKind::Redis70 => {
                    equal = options.next().map(Vec::as_slice);
                }
                unit @ (b"PX" | b"EX") => {
                    let number = options
                        .next()
                        .and_then(|number| String::from_utf8_lossy(number).parse::<u64>().ok());
                    match number {
                        None => {
                            return Answer::error("ERR value is not an integer or out of range");
                        }
                        Some(0) => {
                            return Answer::error("ERR invalid expire time in 'set' command");
                        }
                        Some(number) if unit == b"PX" => ttl = Some(Duration::from_millis(number)),
                        Some(number) => ttl = Some(Duration::from_secs(number)),
                    }
                }
                _ => return Answer::error(SYNTAX),
            }
        }
        let old = self.keys.get(key).map(|entry| entry.value.as_slice());
        let refused = (absent && old.is_some())
            || (present && old.is_none())
            || equal.is_some_and(|equal| old != Some(equal));
        let answer = match (get, refused) {
            (true, _) => self.value(call, key),
            (false, true) => Answer::null(call),
            (false, false) => Answer::ok(),
        };
        if !refused {
            let entry = Entry {
                value: value.clone(),
                until: ttl.map(|ttl| now + ttl),
            };
            self.keys.insert(key.to_vec(), entry);
        }
        answer
    }

    fn delete_if(&mut self, key: &[u8], value: Option<&Vec<u8>>) -> Answer {
        let equal = self.keys.get(key).map(|entry| &entry.value) == value && value.is_some();
        if equal {
            self.keys.remove(key);
        }
        Answer::int(equal.into())
    }

    fn value(&self, call: &Call, key: &[u8]) -> Answer {
        match self.keys.get(key) {
            Some(entry) => Answer::bulk(&entry.value),
            None => Answer::null(call),
        }
    }
}
