//! The value that an attempt writes.

use core::fmt;

use super::is_label;
use crate::config::MAX_LABEL;

/// What a value stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// A hold.
    Plain,
    /// A hold with a fence.
    Fenced,
    /// Nobody's hold yet: the key was passed on to this waiter, who is about to take it over.
    Waiting,
    /// Nobody's hold any more: it was released before its minimum was over.
    Cooling,
}

impl Mark {
    const ALL: [Mark; 4] = [Mark::Plain, Mark::Fenced, Mark::Waiting, Mark::Cooling];

    const fn letter(self) -> &'static str {
        match self {
            Mark::Plain => "p",
            Mark::Fenced => "f",
            Mark::Waiting => "w",
            Mark::Cooling => "c",
        }
    }
}

/// `tn1:` + mark + `:` + 20 digits + `:` + label + `.` + 32 hex digits + `.` + 10 digits.
const MAX_VALUE: usize = 4 + 2 + 20 + 1 + MAX_LABEL + 1 + 32 + 1 + 10;
pub(super) const FORMAT: &[u8] = b"tn1:";
const SECRET_HEX: usize = 32;

/// The value one attempt writes, built in place. Only its label is ever printed.
#[derive(Clone)]
pub struct Value {
    bytes: [u8; MAX_VALUE],
    len: u8,
    label: (u8, u8),
}

impl Value {
    /// The value of `attempt` of the request with this secret.
    ///
    /// `label` comes from [`Names::label`](super::Names::label); `since_ms` (Unix time) only informs.
    pub fn new(label: &str, since_ms: u64, secret: &[u8; 16], attempt: u32) -> Value {
        Value::marked(Mark::Plain, label, since_ms, secret, attempt)
    }

    /// The same, with another mark than that of a plain hold.
    ///
    /// ```
    /// use tenure_core::names::{Mark, Value};
    ///
    /// for mark in [Mark::Plain, Mark::Fenced, Mark::Waiting, Mark::Cooling] {
    ///     let value = Value::marked(mark, "me", 1_700_000_000_000, &[0xab; 16], 3);
    ///     assert_eq!(Value::mark_of(value.as_bytes()), Some(mark));
    /// }
    /// ```
    pub fn marked(
        mark: Mark,
        label: &str,
        since_ms: u64,
        secret: &[u8; 16],
        attempt: u32,
    ) -> Value {
        let mut value = Value {
            bytes: [0; MAX_VALUE],
            len: 0,
            label: (0, 0),
        };
        value.push(FORMAT);
        value.push(mark.letter().as_bytes());
        value.push(b":");
        value.push_int(since_ms);
        value.push(b":");
        let start = value.len;
        value.push(label.as_bytes());
        value.label = (start, value.len);
        let mut tail = [b'.'; SECRET_HEX + 2];
        for (pair, byte) in tail[1..=SECRET_HEX].chunks_exact_mut(2).zip(secret) {
            pair[0] = hex(byte >> 4);
            pair[1] = hex(byte & 15);
        }
        value.push(&tail);
        value.push_int(u64::from(attempt));
        value
    }

    /// The mark of a value read from a server; `None` for a foreign one.
    pub fn mark_of(value: &[u8]) -> Option<Mark> {
        Parsed::of(value).map(|parsed| parsed.mark)
    }

    /// The bytes on the server. They are the capability to release: do not show them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Who wrote it.
    pub fn label(&self) -> &str {
        let (start, end) = self.label;
        let label = &self.bytes[usize::from(start)..usize::from(end)];
        core::str::from_utf8(label).unwrap_or_default()
    }

    /// The label of a value read from a server; `None` for a foreign value, none of whose bytes
    /// should be shown.
    pub fn label_of(value: &[u8]) -> Option<&str> {
        Parsed::of(value).map(|parsed| parsed.label)
    }

    /// When a value read from a server was asked for, in ms of Unix time: for people. `None` for a foreign value.
    ///
    /// ```
    /// use tenure_core::names::Value;
    ///
    /// let value = Value::new("me", 1_700_000_000_000, &[0xab; 16], 3);
    /// assert_eq!(Value::since_ms_of(value.as_bytes()), Some(1_700_000_000_000));
    /// assert_eq!(Value::since_ms_of(b"somebody else's"), None);
    /// ```
    pub fn since_ms_of(value: &[u8]) -> Option<u64> {
        Parsed::of(value)?.since.parse().ok()
    }

    /// The attempt in a value read from a server, if it has the form of ours.
    pub(crate) fn attempt_of(value: &[u8]) -> Option<u32> {
        Parsed::of(value).map(|parsed| parsed.attempt)
    }

    fn push(&mut self, bytes: &[u8]) {
        let start = usize::from(self.len);
        // A label longer than `Names` allows cannot come here; were it to, it is cut, not a panic.
        let room = MAX_VALUE - start;
        let bytes = &bytes[..bytes.len().min(room)];
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    fn push_int(&mut self, mut n: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", self.label())
    }
}

struct Parsed<'a> {
    mark: Mark,
    since: &'a str,
    label: &'a str,
    attempt: u32,
}

impl<'a> Parsed<'a> {
    fn of(value: &'a [u8]) -> Option<Parsed<'a>> {
        if value.len() > MAX_VALUE {
            return None;
        }
        let rest = value.strip_prefix(FORMAT)?;
        let rest = core::str::from_utf8(rest).ok()?;
        let (mark, rest) = rest.split_once(':')?;
        let mark = Mark::ALL.into_iter().find(|known| known.letter() == mark)?;
        let (since, rest) = rest.split_once(':')?;
        let (rest, attempt) = rest.rsplit_once('.')?;
        let (label, secret) = rest.rsplit_once('.')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let hex = secret.len() == SECRET_HEX && secret.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits(since) || !digits(attempt) || !hex || !is_label(label) {
            return None;
        }
        Some(Parsed {
            mark,
            since,
            label,
            attempt: attempt.parse().ok()?,
        })
    }
}

const fn hex(nibble: u8) -> u8 {
    // Without a branch, for a secret's sake and for speed.
    b"0123456789abcdef"[(nibble & 15) as usize]
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;
    use crate::names::Names;

    #[test]
    fn a_value_shows_its_label_and_nothing_else() {
        let names = Names::new("", "host:1\n%").unwrap();
        let value = Value::new(names.label(), u64::MAX, &[0x5f; 16], u32::MAX);
        assert_eq!(value.label(), "host:1%0A%25");
        assert_eq!(Value::label_of(value.as_bytes()), Some("host:1%0A%25"));
        assert_eq!(Value::attempt_of(value.as_bytes()), Some(u32::MAX));
        assert!(!format!("{value:?}").contains("5f5f"));
    }

    #[test]
    fn the_longest_value_fits() {
        let label = "l".repeat(MAX_LABEL);
        let value = Value::new(&label, u64::MAX, &[0; 16], u32::MAX);
        assert_eq!(value.as_bytes().len(), MAX_VALUE);
        assert_eq!(Value::label_of(value.as_bytes()), Some(label.as_str()));
    }

    #[test]
    fn other_values_are_foreign() {
        let hex = "0123456789abcdef0123456789abcdef";
        for foreign in [
            hex.as_bytes(),
            b"",
            b"tn1:",
            b"tn1:p:1:me.short.1",
            format!("tn1:x:1:me.{hex}.1").as_bytes(),
            format!("tn1:p::me.{hex}.1").as_bytes(),
            format!("tn1:p:1:m e.{hex}.1").as_bytes(),
            format!("tn1:p:1:me.{hex}.99999999999").as_bytes(),
        ] {
            assert_eq!(Value::label_of(foreign), None);
        }
    }
}
