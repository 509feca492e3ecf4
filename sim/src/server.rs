//! A simulated server: commands are parsed through `redis-protocol`, an independent implementation, and executed.

use std::sync::Arc;

use redis_protocol::resp2;
use redis_protocol::resp2::types::OwnedFrame;
use tenure_core::plan;
use tenure_core::time::Tick;

use crate::about::{self, Settings};
use crate::clock::Clock;
use crate::keys::{Dialect, Keys, NOT_A_NUMBER, Reply, SYNTAX, number};
use crate::replicas::Replica;
use crate::tap::Command;
use crate::world::{Alarm, Counts};

/// What a server is made of and how it is at the moment.
pub(crate) struct Server {
    pub(crate) dialect: Dialect,
    pub(crate) keys: Keys,
    /// Its wall clock, by which keys expire.
    pub(crate) clock: Clock,
    pub(crate) mood: Mood,
    /// Answers nothing and accepts everything, until it is thawed.
    pub(crate) frozen: bool,
    pub(crate) down: bool,
    pub(crate) password: Option<String>,
    /// Scripts that it knows by their SHA.
    scripts: Vec<&'static plan::Script>,
    /// The next script writes and then fails.
    pub(crate) script_fails: bool,
    /// So many commands are executed twice from now on, and answered once.
    pub(crate) repeats: u32,
    /// What was executed, for checkers and traces.
    pub(crate) executed: Vec<(Tick, Arc<Command>, Reply)>,
    /// What `CONFIG GET` gives.
    pub(crate) settings: Settings,
    /// When it will look for keys that have expired, and which expiry that is for. Only while somebody is tracked.
    pub(crate) cycle: Option<(u64, Alarm)>,
    /// Tells it from the others of its world.
    pub(crate) number: u64,
    /// How often it has started again.
    pub(crate) starts: u64,
    pub(crate) started: Tick,
    pub(crate) replicas: Vec<Replica>,
}

/// How a server answers what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mood {
    /// It serves.
    #[default]
    Well,
    /// `READONLY`
    ReadOnly,
    /// `LOADING`
    Loading,
    /// `BUSY`
    Busy,
    /// `MASTERDOWN`
    MasterDown,
    /// `NOREPLICAS`
    NoReplicas,
    /// `OOM` for `SET`; scripts and deletes pass.
    OutOfMemory,
    /// `TRYAGAIN`
    TryAgain,
}

/// A command that a server has executed, or refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Executed {
    /// True time.
    pub at: Tick,
    /// Which client sent it.
    pub client: usize,
    /// On which connection.
    pub connection: usize,
    /// The words of the command.
    pub command: Vec<Vec<u8>>,
    /// What was answered, shortened.
    pub answer: String,
}

impl Server {
    pub(crate) fn new(dialect: Dialect, clock: Clock) -> Server {
        Server {
            dialect,
            keys: Keys::default(),
            clock,
            mood: Mood::Well,
            frozen: false,
            down: false,
            password: None,
            scripts: Vec::new(),
            script_fails: false,
            repeats: 0,
            executed: Vec::new(),
            settings: about::defaults(),
            cycle: None,
            number: 0,
            starts: 0,
            started: Tick::ZERO,
            replicas: Vec::new(),
        }
    }

    /// Its wall clock in milliseconds.
    pub(crate) fn now_ms(&self, now: Tick) -> u64 {
        self.clock.read(now) / 1_000
    }

    pub(crate) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Takes the first whole command out of `bytes`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        // Nearly all commands are plain, and most of the time of a history went into reading them.
        plain_command(bytes).or_else(|| Server::parse_any(bytes))
    }

    /// The same, by `redis-protocol`.
    fn parse_any(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        let (frame, len) = resp2::decode::decode(bytes).ok()??;
        let OwnedFrame::Array(words) = frame else {
            return None;
        };
        let words = words.into_iter().map(|word| match word {
            OwnedFrame::BulkString(bytes) => bytes,
            _ => Vec::new(),
        });
        Some((words.collect(), len))
    }

    /// Executes a command that has arrived, as often as it is to be, and gives the reply.
    pub(crate) fn answer(
        &mut self,
        now: Tick,
        command: &Arc<Command>,
        resp3: &mut bool,
        counts: &mut Counts,
        mut seen: impl FnMut(&Arc<Command>, &Reply),
    ) -> Reply {
        let repeats = self.repeats > 0;
        self.repeats = self.repeats.saturating_sub(1);
        counts.repeated += u64::from(repeats);
        let failing = self.script_fails;
        let (id, words) = (command.connection, &command.words);
        let mut reply = self.execute(now, id, words, resp3);
        seen(command, &reply);
        if repeats {
            reply = self.execute(now, id, words, resp3);
            seen(command, &reply);
        }
        counts.failed_scripts += u64::from(failing && !self.script_fails);
        reply
    }

    /// Executes a command that has come on a connection and gives the reply. What connections are to be told beside it is
    /// with the keys.
    pub(crate) fn execute(
        &mut self,
        now: Tick,
        connection: usize,
        words: &[Vec<u8>],
        resp3: &mut bool,
    ) -> Reply {
        self.keys.tracking.begin(connection);
        let reply = self.perform(now, connection, words, resp3);
        self.keys.tracking.end();
        reply
    }

    fn perform(
        &mut self,
        now: Tick,
        connection: usize,
        words: &[Vec<u8>],
        resp3: &mut bool,
    ) -> Reply {
        let now_ms = self.now_ms(now);
        self.keys.expire(now_ms);
        let name = words
            .first()
            .map(|word| word.to_ascii_uppercase())
            .unwrap_or_default();
        if let Some(error) = self.refusal(&name) {
            return Reply::Error(error.to_owned());
        }
        let args = words.get(1..).unwrap_or_default();
        match (name.as_slice(), args) {
            (b"HELLO", args) => self.hello(args, resp3),
            (b"AUTH", [.., password]) => {
                let right = self
                    .password
                    .as_deref()
                    .is_none_or(|own| own.as_bytes() == password.as_slice());
                if right {
                    Reply::Ok
                } else {
                    Reply::Error("WRONGPASS invalid username-password pair".to_owned())
                }
            }
            (b"CLIENT", [what, options @ ..]) if what.eq_ignore_ascii_case(b"TRACKING") => {
                self.tracking(connection, options)
            }
            (b"SELECT" | b"CLIENT", _) => Reply::Ok,
            (b"RESET", []) => {
                *resp3 = false;
                self.keys.tracking.turn_off(connection);
                Reply::Simple("RESET")
            }
            (b"PING", []) => Reply::Simple("PONG"),
            (b"RPUSH", [key, elements @ ..]) if !elements.is_empty() => {
                self.keys.push(key, elements.len())
            }
            (b"SET", args) => self.keys.set(self.dialect, args, now_ms),
            (b"GET", [key]) => self.keys.get(key),
            (b"GETRANGE", [key, start, end]) => self.keys.get_range(key, start, end),
            (b"PTTL", [key]) => self.keys.pttl(key, now_ms),
            (b"EXISTS", keys) if !keys.is_empty() => self.keys.exists(keys),
            (b"TYPE", [key]) => self.keys.kind(key),
            (b"PEXPIRE", [key, ms]) => self.keys.expire_in(key, ms, now_ms),
            (b"SCAN", [cursor, options @ ..]) => self.keys.scan(self.dialect, cursor, options),
            (b"FLUSHALL" | b"FLUSHDB", options) => self.flush(options),
            (b"WAIT" | b"WAITAOF", args) => self.wait_at_once(&name, args, now),
            (b"TIME", []) => self.time(now),
            (b"INFO", sections) => self.info(sections, now),
            (b"CONFIG", [what, names @ ..])
                if what.eq_ignore_ascii_case(b"GET") && !names.is_empty() =>
            {
                self.config_get(names)
            }
            (b"DEL", keys) if !keys.is_empty() => self.keys.delete(keys),
            (b"DELEX", keys @ [_]) if self.dialect == Dialect::Redis8 => self.keys.delete(keys),
            (b"DELEX", [key, ifeq, value])
                if self.dialect == Dialect::Redis8 && ifeq.eq_ignore_ascii_case(b"IFEQ") =>
            {
                match self.keys.delete_if(key, value) {
                    Ok(deleted) => Reply::Int(i64::from(deleted)),
                    Err(_) => Reply::Error(
                        "ERR Key should be of string type if conditions are specified".to_owned(),
                    ),
                }
            }
            (b"DELIFEQ", [key, value]) if self.dialect == Dialect::Valkey9 => self
                .keys
                .delete_if(key, value)
                .map_or_else(|error| error, |deleted| Reply::Int(i64::from(deleted))),
            (b"EVALSHA", [sha, count, rest @ ..]) => self.evalsha(sha, count, rest, now),
            (b"EVAL", [text, count, rest @ ..]) => self.eval(text, count, rest, now),
            (b"SCRIPT", [what]) if what.eq_ignore_ascii_case(b"FLUSH") => {
                self.forget_scripts();
                Reply::Ok
            }
            _ => Reply::Error(format!(
                "ERR unknown command '{}', with args beginning with: ",
                String::from_utf8_lossy(&name)
            )),
        }
    }

    fn refusal(&self, name: &[u8]) -> Option<&'static str> {
        let talks = matches!(name, b"HELLO" | b"AUTH" | b"SELECT" | b"CLIENT" | b"RESET");
        // About itself it answers while it has no data to give, but not from within a script.
        let asks = matches!(name, b"INFO" | b"CONFIG" | b"TIME");
        let reads = matches!(
            name,
            b"PING" | b"GET" | b"GETRANGE" | b"PTTL" | b"EXISTS" | b"TYPE" | b"SCAN"
        );
        let writes = !(talks || asks || reads);
        match self.mood {
            Mood::ReadOnly if writes => {
                Some("READONLY You can't write against a read only replica.")
            }
            Mood::Loading if !talks && !asks => {
                Some("LOADING Redis is loading the dataset in memory")
            }
            Mood::Busy if !talks => Some("BUSY Redis is busy running a script."),
            Mood::MasterDown if !talks && !asks => Some("MASTERDOWN Link with MASTER is down."),
            Mood::NoReplicas if writes => Some("NOREPLICAS Not enough good replicas to write."),
            Mood::TryAgain if writes => {
                Some("TRYAGAIN Multiple keys request during rehashing of slot")
            }
            Mood::OutOfMemory if name == b"SET" => {
                Some("OOM command not allowed when used memory > 'maxmemory'.")
            }
            _ => None,
        }
    }

    /// `CLIENT TRACKING ON|OFF [NOLOOP]`
    fn tracking(&mut self, connection: usize, options: &[Vec<u8>]) -> Reply {
        let tracking = &mut self.keys.tracking;
        let error = |text: &str| Reply::Error(text.to_owned());
        let Some((switch, options)) = options.split_first() else {
            return error("ERR wrong number of arguments for 'client|tracking' command");
        };
        if tracking.refused {
            return error(
                "NOPERM User default has no permissions to run the 'client|tracking' command",
            );
        }
        let mut no_loop = false;
        for option in options {
            match option.to_ascii_uppercase().as_slice() {
                b"NOLOOP" => no_loop = true,
                b"BCAST" | b"OPTIN" | b"OPTOUT" | b"PREFIX" | b"REDIRECT" => {
                    return error("ERR the simulated server does not know this way of tracking");
                }
                _ => return error(SYNTAX),
            }
        }
        match switch.to_ascii_uppercase().as_slice() {
            b"ON" => tracking.turn_on(connection, no_loop),
            b"OFF" => tracking.turn_off(connection),
            _ => return error(SYNTAX),
        }
        Reply::Ok
    }

    /// `FLUSHALL [ASYNC|SYNC]`, and the same for the one database there is.
    fn flush(&mut self, options: &[Vec<u8>]) -> Reply {
        let in_background = match options {
            [] => false,
            [word] if word.eq_ignore_ascii_case(b"SYNC") => false,
            [word] if word.eq_ignore_ascii_case(b"ASYNC") => true,
            _ => return Reply::Error(SYNTAX.to_owned()),
        };
        // Redis 8 answers when another thread is done, and has told everybody by then.
        self.keys
            .flush(self.dialect == Dialect::Redis8 && !in_background);
        Reply::Ok
    }

    fn hello(&mut self, args: &[Vec<u8>], resp3: &mut bool) -> Reply {
        let protocol = match args.first().map(|version| number(version)) {
            None if *resp3 => 3,
            None => 2,
            Some(Some(version @ 2..=3)) => version,
            Some(Some(_)) => {
                return Reply::Error("NOPROTO unsupported protocol version".to_owned());
            }
            Some(None) => {
                return Reply::Error(
                    "ERR Protocol version is not an integer or out of range".to_owned(),
                );
            }
        };
        let given = args
            .iter()
            .position(|word| word.eq_ignore_ascii_case(b"AUTH"))
            .and_then(|at| args.get(at + 2));
        match (&self.password, given) {
            (Some(_), None) => {
                return Reply::Error(
                    "NOAUTH HELLO must be called with the client authenticated".to_owned(),
                );
            }
            (Some(own), Some(given)) if own.as_bytes() != given.as_slice() => {
                return Reply::Error("WRONGPASS invalid username-password pair".to_owned());
            }
            _ => {}
        }
        *resp3 = protocol == 3;
        let server = match self.dialect {
            Dialect::Redis7 | Dialect::Redis8 => "redis",
            Dialect::Valkey8 | Dialect::Valkey9 => "valkey",
        };
        Reply::Greeting(Box::new([
            ("server", server),
            ("version", self.version()),
            ("proto", if *resp3 { "3" } else { "2" }),
            ("mode", "standalone"),
        ]))
    }

    pub(crate) fn version(&self) -> &'static str {
        match self.dialect {
            Dialect::Redis8 => "8.6.3",
            Dialect::Valkey9 => "9.1.2",
            Dialect::Redis7 => "7.0.15",
            Dialect::Valkey8 => "8.1.1",
        }
    }

    fn evalsha(&mut self, sha: &[u8], count: &[u8], rest: &[Vec<u8>], now: Tick) -> Reply {
        let mut known = self.scripts.iter().copied();
        let script = known.find(|script| script.sha.as_bytes().eq_ignore_ascii_case(sha));
        match (keys_and_arguments(count, rest), script) {
            (Err(error), _) if sha.len() == 40 => error,
            (Ok((keys, arguments)), Some(script)) => self.script(script, keys, arguments, now),
            _ => Reply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned()),
        }
    }

    fn eval(&mut self, text: &[u8], count: &[u8], rest: &[Vec<u8>], now: Tick) -> Reply {
        let (keys, arguments) = match keys_and_arguments(count, rest) {
            Ok(parts) => parts,
            Err(error) => return error,
        };
        let known = [
            &plan::RENEW,
            &plan::ADOPT,
            &plan::CLEAR,
            &plan::COOL,
            &plan::REMOVE,
            &plan::MINT,
            &plan::TAKE,
            &plan::PASS,
        ];
        let script = known
            .into_iter()
            .find(|script| script.text.as_bytes() == text);
        let Some(script) = script else {
            return Reply::Error(
                "ERR the simulated server knows only the scripts of this library".to_owned(),
            );
        };
        if !self.scripts.iter().any(|known| known.sha == script.sha) {
            self.scripts.push(script);
        }
        self.script(script, keys, arguments, now)
    }

    /// The scripts of the library, by what their text says.
    fn script(
        &mut self,
        script: &plan::Script,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        now: Tick,
    ) -> Reply {
        let now_ms = self.now_ms(now);
        let nil = || Reply::Error("ERR Lua redis lib command arguments must be strings".to_owned());
        let Some(key) = keys.first() else {
            return nil();
        };
        if script.sha == plan::REMOVE.sha {
            let reply = self.remove(key, keys.get(1), arguments, now_ms);
            return self.after_a_write(reply);
        }
        if script.sha == plan::MINT.sha {
            return self.mint(now, keys, arguments);
        }
        if script.sha == plan::TAKE.sha {
            return self.take(now, keys, arguments);
        }
        if script.sha == plan::PASS.sha {
            return self.pass(now, keys, arguments);
        }
        if script.sha == plan::COOL.sha {
            return self.cool(now, key, arguments);
        }
        let clears = script.sha == plan::CLEAR.sha;
        // Each begins with a GET, which is remembered as any other.
        self.keys.note_read(key);
        let Ok(present) = self.keys.text(key) else {
            return Reply::Int(0);
        };
        match (present, arguments.first()) {
            (Some(value), Some(expected)) if value == expected => {}
            _ if clears => return Reply::Int(0),
            (None, _) => return Reply::Null,
            (Some(value), _) => return Reply::Bulk(value.clone()),
        }
        let reply = if clears {
            self.keys.delete(&keys[..1])
        } else if script.sha == plan::RENEW.sha {
            match arguments.get(1) {
                Some(ms) => self.keys.expire_in(key, ms, now_ms),
                None => nil(),
            }
        } else if let [_, ms, value, ..] = arguments {
            let set = [key.clone(), value.clone(), b"PX".to_vec(), ms.clone()];
            match self.keys.set(self.dialect, &set, now_ms) {
                Reply::Ok => Reply::Int(1),
                other => other,
            }
        } else {
            nil()
        };
        self.after_a_write(reply)
    }

    pub(crate) fn after_a_write(&mut self, reply: Reply) -> Reply {
        if std::mem::take(&mut self.script_fails) {
            // Scripts do not roll back.
            return Reply::Error("ERR Error running script: a fault after the write".to_owned());
        }
        reply
    }

    /// Deletes whatever is there, and leaves a note of who did it if it was a lock.
    fn remove(
        &mut self,
        key: &[u8],
        helper: Option<&Vec<u8>>,
        arguments: &[Vec<u8>],
        now_ms: u64,
    ) -> Reply {
        self.keys.note_read(key);
        let value = match self.keys.text(key) {
            Ok(None) => return Reply::Int(0),
            Ok(Some(value)) => Some(value.clone()),
            Err(_) => None,
        };
        let only = arguments.get(1);
        if only.is_some() && only != value.as_ref() {
            return Reply::Int(0);
        }
        let Reply::Int(ttl) = self.keys.pttl(key, now_ms) else {
            return Reply::Int(0);
        };
        self.keys.delete(&[key.to_vec()]);
        let Some(value) = value else {
            return Reply::Int(2);
        };
        if !value.starts_with(b"tn1:") || value.len() > 256 {
            return Reply::Int(1);
        }
        let Some(by) = arguments.first() else {
            return Reply::Error("ERR attempt to concatenate a nil value".to_owned());
        };
        if let Some(helper) = helper {
            let note = [by, &b"."[..], &value].concat();
            let ms = ttl.clamp(60_000, 2_592_000_000).to_string().into_bytes();
            let set = [helper.clone(), note, b"PX".to_vec(), ms];
            self.keys.set(self.dialect, &set, now_ms);
        }
        Reply::Bulk(value)
    }
}

/// A whole command that is an array of at most nine strings, as clients write it; whatever else it may be is for others
/// to say.
fn plain_command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (count, mut rest) = match bytes {
        [b'*', count @ b'1'..=b'9', b'\r', b'\n', rest @ ..] => (usize::from(count - b'0'), rest),
        _ => return None,
    };
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (b"$", after) = rest.split_at_checked(1)? else {
            return None;
        };
        let digits = after.iter().take(5).position(|byte| *byte == b'\r')?;
        let len = number(&after[..digits]).and_then(|len| usize::try_from(len).ok())?;
        let after = after[digits..].strip_prefix(b"\r\n")?;
        let (word, after) = after.split_at_checked(len)?;
        words.push(word.to_vec());
        rest = after.strip_prefix(b"\r\n")?;
    }
    Some((words, bytes.len() - rest.len()))
}

type Words<'a> = &'a [Vec<u8>];

/// The arguments of a script, parted by the count that stands before them.
fn keys_and_arguments<'a>(
    count: &[u8],
    rest: &'a [Vec<u8>],
) -> Result<(Words<'a>, Words<'a>), Reply> {
    let Some(count) = number(count) else {
        return Err(Reply::Error(NOT_A_NUMBER.to_owned()));
    };
    usize::try_from(count)
        .ok()
        .and_then(|count| rest.split_at_checked(count))
        .ok_or_else(|| Reply::Error("ERR Number of keys can't be what it is".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_command_is_read_as_by_the_other_parser() {
        let commands: &[&[u8]] = &[
            b"*1\r\n$4\r\nPING\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n",
            b"*2\r\n$3\r\nGET\r\n$4\r\n\r\n\r\n\r\n",
            b"*11\r\n$1\r\na\r\n",
            b"*1\r\n$01\r\na\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n:1\r\n",
            b"*0\r\n",
            b"PING\r\n",
        ];
        for command in commands {
            for end in 0..=command.len() {
                let bytes = &command[..end];
                if let Some(read) = plain_command(bytes) {
                    assert_eq!(Some(read), Server::parse_any(bytes));
                }
                for (at, other) in [b'*', b'$', b'0', b'9', b'\r', b'\n']
                    .into_iter()
                    .enumerate()
                {
                    let mut bytes = bytes.to_vec();
                    let place = (end * 7 + at) % command.len();
                    if let Some(byte) = bytes.get_mut(place) {
                        *byte = other;
                    }
                    if let Some(read) = plain_command(&bytes) {
                        assert_eq!(Some(read), Server::parse_any(&bytes), "{bytes:?}");
                    }
                }
            }
        }
        assert!(plain_command(commands[1]).is_some());
    }
}
