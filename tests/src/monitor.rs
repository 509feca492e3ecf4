//! Every command a server gets, as the server sees it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::client::Closer;
use crate::{Client, Failure, Reply};

/// Collects what `MONITOR` says until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    closer: Closer,
    thread: Option<JoinHandle<()>>,
}

/// A command a server executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Seconds since 1970 by the server's clock.
    pub at: f64,
    /// The address it came from, or `lua` for one a script called.
    pub from: String,
    /// The command and its arguments.
    pub args: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    changed: Condvar,
}

impl Monitor {
    /// Turns a connection into a monitor. Commands sent after this returns are seen.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn start(mut client: Client) -> Result<Self, Failure> {
        client.ok(&["MONITOR"])?;
        client.patience(None)?;
        let closer = client.closer()?;
        let shared = Arc::new(Shared::default());
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while let Ok(reply) = client.receive() {
                    if let Reply::Simple(line) = reply
                        && let Some(seen) = Seen::parse(&line)
                    {
                        shared.lock().push(seen);
                        shared.changed.notify_all();
                    }
                }
            }
        });
        Ok(Self {
            shared,
            closer,
            thread: Some(thread),
        })
    }

    /// Everything seen so far.
    #[must_use]
    pub fn commands(&self) -> Vec<Seen> {
        self.shared.lock().clone()
    }

    /// Everything seen so far that names this key anywhere.
    #[must_use]
    pub fn about(&self, key: &str) -> Vec<Seen> {
        let names = |seen: &&Seen| seen.args.iter().any(|arg| arg == key.as_bytes());
        self.shared.lock().iter().filter(names).cloned().collect()
    }

    /// Forgets what was seen so far.
    pub fn clear(&self) {
        self.shared.lock().clear();
    }

    /// Waits until that many commands were seen that meet the condition; whether there were.
    #[must_use]
    pub fn wait_for(
        &self,
        count: usize,
        within: Duration,
        condition: impl Fn(&Seen) -> bool,
    ) -> bool {
        let until = Instant::now() + within;
        let mut seen = self.shared.lock();
        loop {
            if seen.iter().filter(|seen| condition(seen)).count() >= count {
                return true;
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.shared.changed.wait_timeout(seen, left);
            seen = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.closer.close();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Seen {
    /// The command's name, in upper case.
    #[must_use]
    pub fn name(&self) -> String {
        self.arg(0).to_ascii_uppercase()
    }

    /// An argument, as text; empty if there is none.
    #[must_use]
    pub fn arg(&self, index: usize) -> String {
        let bytes = self.args.get(index).map_or(&[][..], Vec::as_slice);
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// `1700000000.123456 [0 127.0.0.1:5000] "SET" "k" "a\"b\x00"`
    fn parse(line: &str) -> Option<Self> {
        let (at, rest) = line.split_once(" [")?;
        let (from, rest) = rest.split_once("] ")?;
        let (_, from) = from.split_once(' ')?;
        Some(Self {
            at: at.parse().ok()?,
            from: from.to_owned(),
            args: unquote(rest.as_bytes())?,
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The quoted words of a line, with the server's escapes undone. Valkey 8.1 does not escape quotes, so a word
/// ends at a quote only when the next word or nothing follows.
fn unquote(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next()? {
                b'"' if bytes.peek().is_none_or(|&next| next == b' ') => break,
                b'\\' => word.push(match bytes.next()? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let digit = |byte: u8| char::from(byte).to_digit(16);
                        let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                        u8::try_from(high * 16 + low).ok()?
                    }
                    other => other,
                }),
                other => word.push(other),
            }
        }
        words.push(word);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = r#"1700000000.5 [0 127.0.0.1:5000] "set" "k y" "a\"\\\x00\n""#;
        let seen = Seen::parse(line).unwrap();
        assert_eq!(seen.from, "127.0.0.1:5000");
        assert_eq!(seen.name(), "SET");
        assert_eq!(seen.arg(1), "k y");
        assert_eq!(seen.args[2], b"a\"\\\0\n");
        assert_eq!(Seen::parse(r#"1.0 [0 lua] "GET" "k""#).unwrap().from, "lua");
        assert_eq!(Seen::parse(r#"1.0 [0 x] "a"b" "c""#).unwrap().args.len(), 2);
        assert_eq!(Seen::parse("OK"), None);
    }
}
