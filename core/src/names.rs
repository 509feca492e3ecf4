//! The names on the server: the key of a lock, and the value an attempt writes.
//!
//! `docs/wire.md` is the contract. A key is the prefix and the name with `%`, `{` and `}`
//! percent-escaped, so that helper keys can share its hash slot. A value is
//! `tn1:` mark `:` since `:` label `.` secret `.` attempt; every other value is foreign.
//!
//! ```
//! use tenure_core::names::{Names, Value};
//!
//! let names = Names::new("lock:", "web-1:4711")?;
//! let mut key = Vec::new();
//! names.key_into(b"order:{42}", &mut key)?;
//! assert_eq!(key, b"lock:order:%7B42%7D");
//!
//! let value = Value::new(names.label(), 1_700_000_000_000, &[0xab; 16], 3);
//! assert_eq!(value.label(), "web-1:4711");
//! // What is printed of a value is its label, never its secret.
//! assert_eq!(format!("{value:?}"), "Value(web-1:4711)");
//! assert_eq!(Value::label_of(value.as_bytes()), Some("web-1:4711"));
//! # Ok::<(), tenure_core::error::ConfigError>(())
//! ```

mod value;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::config::{MAX_LABEL, MAX_NAME, MAX_PREFIX};
use crate::error::ConfigError;
use value::FORMAT;
pub use value::{Mark, Value};

/// How names become keys, and the label that values carry.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: Box<str>,
    label: Box<str>,
    plain: bool,
}

impl Names {
    /// Keys with this prefix, values with this label.
    ///
    /// The label says who holds a lock, to people: anybody who can read the key sees it. Bytes that
    /// are not printable ASCII are percent-escaped.
    ///
    /// # Errors
    /// [`ConfigError::Prefix`] for a brace in the prefix or more than 256 bytes,
    /// [`ConfigError::Label`] for a label of more than 128 bytes once escaped.
    pub fn new(prefix: &str, label: &str) -> Result<Names, ConfigError> {
        if prefix.len() > MAX_PREFIX || prefix.contains(['{', '}']) {
            return Err(ConfigError::Prefix { len: prefix.len() });
        }
        let label = escape(label.as_bytes(), usize::MAX);
        if label.len() > MAX_LABEL {
            return Err(ConfigError::Label { len: label.len() });
        }
        Ok(Names {
            prefix: prefix.into(),
            label: label.into_boxed_str(),
            plain: false,
        })
    }

    /// Names are written raw behind the prefix, as other lock libraries do.
    #[must_use]
    pub fn plain_keys(mut self) -> Names {
        self.plain = true;
        self
    }

    /// The label, escaped.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Writes the key of `name` into `key`, which is cleared first.
    ///
    /// # Errors
    /// [`ConfigError::Name`] for an empty name or one of more than 1,024 bytes.
    pub fn key_into(&self, name: &[u8], key: &mut Vec<u8>) -> Result<(), ConfigError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(ConfigError::Name { len: name.len() });
        }
        key.clear();
        key.extend_from_slice(self.prefix.as_bytes());
        if self.plain {
            key.extend_from_slice(name);
            return Ok(());
        }
        for byte in name {
            match byte {
                b'%' => key.extend_from_slice(b"%25"),
                b'{' => key.extend_from_slice(b"%7B"),
                b'}' => key.extend_from_slice(b"%7D"),
                other => key.push(*other),
            }
        }
        Ok(())
    }

    /// The name whose key this is; `None` for a helper key, and for any other that no name has.
    ///
    /// ```
    /// use tenure_core::names::Names;
    ///
    /// let names = Names::new("lock:", "me")?;
    /// assert_eq!(names.name_of(b"lock:order:%7B42%7D").as_deref(), Some(&b"order:{42}"[..]));
    /// assert_eq!(names.name_of(&names.helper_key(b"lock:a", "forced")), None);
    /// # Ok::<(), tenure_core::error::ConfigError>(())
    /// ```
    pub fn name_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        let escaped = key.strip_prefix(self.prefix.as_bytes())?;
        let name = match self.plain {
            true if self.is_helper(escaped) => return None,
            true => escaped.to_vec(),
            false => unescape(escaped)?,
        };
        (1..=MAX_NAME).contains(&name.len()).then_some(name)
    }

    /// How the keys of all names begin that begin with `start`. Other keys may begin so as well: ask
    /// [`name_of`](Names::name_of).
    ///
    /// # Errors
    /// [`ConfigError::Name`] for a beginning of more than 1,024 bytes. An empty one is that of every name.
    pub fn key_start(&self, start: &[u8]) -> Result<Vec<u8>, ConfigError> {
        let mut key = self.prefix.as_bytes().to_vec();
        if !start.is_empty() {
            self.key_into(start, &mut key)?;
        }
        Ok(key)
    }

    /// Whether what follows the prefix is that of a helper key, where names are written raw.
    fn is_helper(&self, rest: &[u8]) -> bool {
        let inner = rest.strip_prefix(b"{").unwrap_or_default();
        HELPERS.iter().any(|suffix| {
            let key = inner.strip_suffix(suffix.as_bytes());
            let key = key.and_then(|key| key.strip_suffix(b"}:"));
            key.is_some_and(|key| key.starts_with(self.prefix.as_bytes()))
        })
    }

    /// A helper key of `key`: same prefix, same slot of a cluster, and no name has it for its key.
    pub fn helper_key(&self, key: &[u8], suffix: &str) -> Vec<u8> {
        let parts = [self.prefix.as_bytes(), b"{", key, b"}:", suffix.as_bytes()];
        parts.concat()
    }
}

/// The suffix of the helper key that says who removed a value by force.
pub const FORCED: &str = "forced";
/// The suffix of the helper key that counts fences.
pub const FENCE: &str = "fence";
/// The suffix of the helper key that has those who wait for their turn, by when they came.
pub const QUEUE: &str = "queue";
/// The suffix of the helper key that has until when each of them is taken for alive.
pub const ALIVE: &str = "alive";
const HELPERS: [&str; 4] = [FORCED, FENCE, QUEUE, ALIVE];

/// A glob pattern for the keys that begin so.
///
/// ```
/// assert_eq!(tenure_core::names::glob(b"lock:a*"), br"lock:a\**");
/// ```
pub fn glob(start: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(start.len() + 1);
    for byte in start {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

/// Who removed this value by force, if that is what the helper key says: `label.value`.
pub fn forced_by<'a>(helper: &'a [u8], value: &[u8]) -> Option<&'a str> {
    let label = helper.strip_suffix(value)?.strip_suffix(b".")?;
    let label = core::str::from_utf8(label).ok()?;
    is_label(label).then_some(label)
}

/// Bytes as printable ASCII: everything else, and `%` itself, percent-escaped; cut after `most` bytes.
///
/// What was read from a server or handed in goes through here before it is printed.
///
/// ```
/// use tenure_core::names::escape;
/// assert_eq!(escape(b"a b\x1b[31m%", 100), "a%20b%1B[31m%25");
/// assert_eq!(escape(b"abcdef", 3), "abc...");
/// ```
pub fn escape(bytes: &[u8], most: usize) -> String {
    escape_with(bytes, most, is_shown)
}

/// The text of an error reply, for people: as [`escape`], but blanks stay.
///
/// Servers repeat the arguments of a command they do not know, and a value or a password is among them:
/// the text ends where they begin.
///
/// ```
/// use tenure_core::names::escape_text;
/// let reply = b"ERR unknown command 'AUTH', with args beginning with: 'hunter2'";
/// assert_eq!(escape_text(reply, 200), "ERR unknown command 'AUTH',...");
/// ```
pub fn escape_text(text: &[u8], most: usize) -> String {
    let secret = [&b" with args"[..], FORMAT]
        .iter()
        .filter_map(|mark| text.windows(mark.len()).position(|part| part == *mark))
        .min();
    let safe = &text[..secret.unwrap_or(text.len())];
    let mut shown = escape_with(safe, most, |b| b == b' ' || b == b'%' || is_shown(b));
    if safe.len() < text.len() && safe.len() <= most {
        shown.push_str("...");
    }
    shown
}

/// The name that was escaped to this; `None` if no name is.
fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((byte, behind)) = rest.split_first() {
        let (plain, behind) = match (byte, behind) {
            (b'%', [b'2', b'5', behind @ ..]) => (b'%', behind),
            (b'%', [b'7', b'B', behind @ ..]) => (b'{', behind),
            (b'%', [b'7', b'D', behind @ ..]) => (b'}', behind),
            (b'%' | b'{' | b'}', _) => return None,
            (other, behind) => (*other, behind),
        };
        name.push(plain);
        rest = behind;
    }
    Some(name)
}

fn escape_with(bytes: &[u8], most: usize, shown: impl Fn(u8) -> bool) -> String {
    let (bytes, cut) = match bytes.get(..most) {
        Some(head) if head.len() < bytes.len() => (head, true),
        _ => (bytes, false),
    };
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if shown(*byte) {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    if cut {
        out.push_str("...");
    }
    out
}

/// A label cut to what [`Names::new`] accepts: for labels made from a host name.
pub fn fitting_label(label: &str) -> String {
    let mut label = label.to_owned();
    while escape(label.as_bytes(), usize::MAX).len() > MAX_LABEL {
        label.pop();
    }
    label
}

fn is_label(label: &str) -> bool {
    label.len() <= MAX_LABEL && label.bytes().all(|b| b == b'%' || is_shown(b))
}

fn is_shown(byte: u8) -> bool {
    (0x21..=0x7e).contains(&byte) && byte != b'%'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_share_a_key() {
        let names = Names::new("lock:", "me").unwrap();
        let mut keys = std::collections::BTreeSet::new();
        let (mut key, all) = (
            Vec::new(),
            ["a", "{a}", "%7Ba%7D", "a}", "}a", "a%", "a%25"],
        );
        for name in all {
            names.key_into(name.as_bytes(), &mut key).unwrap();
            assert!(!key.iter().any(|b| matches!(b, b'{' | b'}')));
            keys.insert(key.clone());
        }
        assert_eq!(keys.len(), all.len());
    }

    #[test]
    fn a_key_gives_its_name_back_and_nothing_else_is_a_name() {
        let names = Names::new("lock:", "me").unwrap();
        let mut key = Vec::new();
        for name in ["a", "{a}", "%7Ba%7D", "a*?[x]\\", "\0\u{ff}"] {
            names.key_into(name.as_bytes(), &mut key).unwrap();
            assert_eq!(names.name_of(&key).as_deref(), Some(name.as_bytes()));
            assert_eq!(names.name_of(&names.helper_key(&key, "forced")), None);
        }
        for other in [
            "lock:", "lock:a%", "lock:a%2", "lock:%7b", "lock:{a", "other:a",
        ] {
            assert_eq!(names.name_of(other.as_bytes()), None, "{other}");
        }
        let long = [&b"lock:"[..], &[b'x'; MAX_NAME + 1]].concat();
        assert_eq!(names.name_of(&long), None);
        let plain = Names::new("lock:", "me").unwrap().plain_keys();
        assert_eq!(plain.name_of(b"lock:{a}%"), Some(b"{a}%".to_vec()));
        assert_eq!(plain.name_of(b"lock:{lock:a}:forced"), None);
    }

    #[test]
    fn a_pattern_means_what_it_says() {
        let names = Names::new("a*b:", "me").unwrap();
        let pattern = |start: &[u8]| names.key_start(start).map(|start| glob(&start));
        assert_eq!(pattern(b"").unwrap(), br"a\*b:*");
        assert_eq!(pattern(br"[x]?\{").unwrap(), br"a\*b:\[x\]\?\\%7B*");
        assert!(pattern(&[b'x'; MAX_NAME + 1]).is_err());
    }

    #[test]
    fn bad_names_prefixes_and_labels_are_refused() {
        let names = Names::new("lock:", "me").unwrap();
        let mut key = Vec::new();
        assert_eq!(
            names.key_into(b"", &mut key),
            Err(ConfigError::Name { len: 0 })
        );
        assert!(names.key_into(&[b'x'; MAX_NAME], &mut key).is_ok());
        let long = [b'x'; MAX_NAME + 1];
        assert_eq!(
            names.key_into(&long, &mut key),
            Err(ConfigError::Name { len: MAX_NAME + 1 })
        );
        assert!(Names::new("lock{", "me").is_err());
        assert!(Names::new("lock:", &"l".repeat(MAX_LABEL + 1)).is_err());
    }
}
