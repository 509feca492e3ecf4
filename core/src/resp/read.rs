//! A borrowed walk over a frame whose end is known. Nothing is copied, nothing is built.

use super::{MAX_DEPTH, line};

/// One value of a reply, borrowing from the bytes received.
///
/// RESP2 and RESP3 differ less here than on the wire: each of the three nulls is [`Value::Null`].
///
/// ```
/// use tenure_core::resp::{read, Value};
///
/// assert!(read(b"$-1\r\n").is_null());
/// assert_eq!(read(b":42\r\n").as_int(), Some(42));
/// assert_eq!(read(b"$5\r\nhello\r\n").as_bytes(), Some(b"hello".as_slice()));
/// assert_eq!(read(b"-ERR no\r\n").error(), Some(b"ERR no".as_slice()));
/// ```
///
/// `Debug` is short whatever the peer sent, and shows no payload (see [the module](super)).
#[derive(Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `+`: a status such as `OK`.
    Simple(&'a [u8]),
    /// `-`: the command failed. The bytes are not always UTF-8, and may repeat arguments of the command.
    Error(&'a [u8]),
    /// `:`
    Int(i64),
    /// `$`: a string of any bytes.
    Bulk(&'a [u8]),
    /// `_`, and the `$-1` and `*-1` of RESP2.
    Null,
    /// `#`
    Bool(bool),
    /// `,`
    Double(f64),
    /// `(`: a sign and digits, more than 64 bits can hold.
    BigNumber(&'a [u8]),
    /// `!`: as `-`, with any bytes.
    BulkError(&'a [u8]),
    /// `=`: text together with its format.
    Verbatim {
        /// `txt`, `mkd` or another.
        format: [u8; 3],
        /// The text, without the format.
        text: &'a [u8],
    },
    /// `*`
    Array(Items<'a>),
    /// `~`
    Set(Items<'a>),
    /// `>`: at the top of a frame no reply but news from the server; inside another value a part of that.
    Push(Items<'a>),
    /// `%`
    Map(Pairs<'a>),
}

impl<'a> Value<'a> {
    /// The bytes of a string of any kind, or the digits of a big number. `None` for errors.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Simple(bytes) | Self::Bulk(bytes) | Self::BigNumber(bytes) => Some(bytes),
            Self::Verbatim { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The number of a `:`.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Self::Int(number) => Some(number),
            _ => None,
        }
    }

    /// The elements of an array, set or push.
    #[must_use]
    pub fn as_items(&self) -> Option<Items<'a>> {
        match *self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => Some(items),
            _ => None,
        }
    }

    /// The pairs of a map, or of an array of even length: RESP2 sends maps so.
    ///
    /// ```
    /// use tenure_core::resp::{read, Value};
    ///
    /// let (resp2, resp3) = (read(b"*2\r\n$5\r\nproto\r\n:2\r\n"), read(b"%1\r\n$5\r\nproto\r\n:3\r\n"));
    /// assert_eq!(resp2.as_pairs().and_then(|pairs| pairs.get(b"proto")), Some(Value::Int(2)));
    /// assert_eq!(resp3.as_pairs().and_then(|pairs| pairs.get(b"proto")), Some(Value::Int(3)));
    /// ```
    #[must_use]
    pub fn as_pairs(&self) -> Option<Pairs<'a>> {
        match *self {
            Self::Map(pairs) => Some(pairs),
            Self::Array(items) if items.count % 2 == 0 => Some(Pairs { items }),
            _ => None,
        }
    }

    /// The text of an error reply, of either kind.
    #[must_use]
    pub fn error(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Error(text) | Self::BulkError(text) => Some(text),
            _ => None,
        }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

/// Reads a frame a [`Scanner`](super::Scanner) found. Attributes in front of a value, at any level, are skipped.
///
/// ```
/// use tenure_core::resp::{read, Value};
///
/// let Value::Array(items) = read(b"*3\r\n:1\r\n_\r\n:3\r\n") else { panic!() };
/// assert!(items.iter().eq([Value::Int(1), Value::Null, Value::Int(3)]));
/// ```
///
/// It never panics. Of bytes no scanner accepted it makes something harmless: [`Value::Null`] where a value is
/// wrong, cut off, or nested deeper than [`MAX_DEPTH`]; never more elements than could stand in the bytes.
#[must_use]
pub fn read(frame: &[u8]) -> Value<'_> {
    next_value(frame, 0).map_or(Value::Null, |next| next.value)
}

/// The attributes in front of a reply, if the server sent some.
///
/// ```
/// use tenure_core::resp::{attributes, read, Value};
///
/// let frame = b"|1\r\n+ttl\r\n:3600\r\n$5\r\nhello\r\n";
/// assert_eq!(attributes(frame).and_then(|pairs| pairs.get(b"ttl")), Some(Value::Int(3600)));
/// assert_eq!(read(frame), Value::Bulk(b"hello"));
/// assert_eq!(attributes(b"+OK\r\n"), None);
/// ```
///
/// Should there be several in a row, it is the first. Those of inner values are not reachable.
#[must_use]
pub fn attributes(frame: &[u8]) -> Option<Pairs<'_>> {
    let head = head(frame)?;
    if head.kind != b'|' {
        return None;
    }
    let Body::Aggregate(count) = head.body else {
        return None;
    };
    Some(Pairs {
        items: Items::new(head.rest, count, 1),
    })
}

/// The elements of an array, set or push.
///
/// ```
/// use tenure_core::resp::{read, Value};
///
/// let items = read(b"*2\r\n:1\r\n*1\r\n:2\r\n").as_items().unwrap();
/// assert_eq!(items.len(), 2);
/// assert_eq!(items.get(0), Some(Value::Int(1)));
/// for value in items {
///     assert!(!value.is_null());
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Items<'a> {
    /// Begins with the first element, and may go on behind the last.
    bytes: &'a [u8],
    count: usize,
    /// Of the elements.
    depth: u8,
}

impl<'a> Items<'a> {
    /// An element has three bytes at least. So a count larger than that, in bytes no scanner saw, cannot make
    /// anyone count for long.
    fn new(bytes: &'a [u8], count: u64, depth: u8) -> Self {
        let possible = bytes.len() / 3;
        let count = usize::try_from(count).map_or(possible, |count| count.min(possible));
        Self {
            bytes,
            count,
            depth,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The element at `index`, found by walking there.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        self.iter().nth(index)
    }

    /// One after the other.
    #[must_use]
    pub fn iter(&self) -> ItemsIter<'a> {
        ItemsIter {
            rest: self.bytes,
            left: self.count,
            inside: 0,
            depth: self.depth,
        }
    }
}

impl PartialEq for Items<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.iter().eq(other.iter())
    }
}

impl<'a> IntoIterator for Items<'a> {
    type Item = Value<'a>;
    type IntoIter = ItemsIter<'a>;

    fn into_iter(self) -> ItemsIter<'a> {
        self.iter()
    }
}

/// Walks [`Items`].
#[derive(Clone)]
pub struct ItemsIter<'a> {
    rest: &'a [u8],
    left: usize,
    /// Values to jump over before the next one: the content of the aggregate given last.
    inside: u64,
    depth: u8,
}

impl<'a> Iterator for ItemsIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let rest = skip(self.rest, self.inside);
        let Some(next) = rest.and_then(|rest| next_value(rest, self.depth)) else {
            self.rest = &[];
            self.inside = 0;
            return Some(Value::Null);
        };
        self.rest = next.rest;
        self.inside = next.inside;
        Some(next.value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ItemsIter<'_> {}
impl core::iter::FusedIterator for ItemsIter<'_> {}

/// The pairs of a map or of attributes, in the order they were sent. A key may appear twice.
///
/// ```
/// use tenure_core::resp::{read, Value};
///
/// let pairs = read(b"%2\r\n+a\r\n:1\r\n+b\r\n:2\r\n").as_pairs().unwrap();
/// assert_eq!(pairs.len(), 2);
/// assert_eq!(pairs.get(b"b"), Some(Value::Int(2)));
/// assert!(pairs.iter().map(|(_, value)| value).eq([Value::Int(1), Value::Int(2)]));
/// ```
#[derive(Clone, Copy, PartialEq)]
pub struct Pairs<'a> {
    items: Items<'a>,
}

impl<'a> Pairs<'a> {
    /// How many pairs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.count / 2
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of the first pair whose key is a string of these bytes, found by walking there.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Value<'a>> {
        self.iter()
            .find(|(name, _)| name.as_bytes() == Some(key))
            .map(|(_, value)| value)
    }

    /// One after the other.
    #[must_use]
    pub fn iter(&self) -> PairsIter<'a> {
        PairsIter {
            items: self.items.iter(),
        }
    }
}

impl<'a> IntoIterator for Pairs<'a> {
    type Item = (Value<'a>, Value<'a>);
    type IntoIter = PairsIter<'a>;

    fn into_iter(self) -> PairsIter<'a> {
        self.iter()
    }
}

/// Walks [`Pairs`].
#[derive(Clone)]
pub struct PairsIter<'a> {
    items: ItemsIter<'a>,
}

impl<'a> Iterator for PairsIter<'a> {
    type Item = (Value<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.items.next()?, self.items.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.items.left / 2, Some(self.items.left / 2))
    }
}

impl ExactSizeIterator for PairsIter<'_> {}
impl core::iter::FusedIterator for PairsIter<'_> {}

/// The first item of some bytes: a type, then either all of its content, or a count of values that follow.
struct Head<'a> {
    kind: u8,
    body: Body<'a>,
    rest: &'a [u8],
}

enum Body<'a> {
    /// The line, or the payload of a bulk type.
    Bytes(&'a [u8]),
    Null,
    Aggregate(u64),
}

struct Next<'a> {
    value: Value<'a>,
    rest: &'a [u8],
    /// Values of which `rest` begins with, and which belong to `value`.
    inside: u64,
}

#[inline(always)] // With its callers it is one match over the type; apart, the parts travel through memory.
fn head(bytes: &[u8]) -> Option<Head<'_>> {
    let (&kind, after) = bytes.split_first()?;
    let end = after.iter().position(|&byte| byte == b'\r')?;
    let line = after.get(..end)?;
    let rest = after.get(end + 2..)?;
    let body = match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Body::Bytes(line),
        b'$' | b'*' if line == b"-1" => Body::Null,
        b'$' | b'!' | b'=' => {
            let len = usize::try_from(line::length(line)?).ok()?;
            let payload = rest.get(..len)?;
            let rest = rest.get(len.checked_add(2)?..)?;
            return Some(Head {
                kind,
                body: Body::Bytes(payload),
                rest,
            });
        }
        b'*' | b'~' | b'>' => Body::Aggregate(line::length(line)?),
        b'%' | b'|' => Body::Aggregate(line::length(line)?.checked_mul(2)?),
        _ => return None,
    };
    Some(Head { kind, body, rest })
}

/// The value at the start of `bytes`, behind its attributes. `depth` is the number of aggregates around it.
#[inline(always)]
fn next_value(mut bytes: &[u8], depth: u8) -> Option<Next<'_>> {
    loop {
        let Head { kind, body, rest } = head(bytes)?;
        let mut inside = 0;
        let value = match body {
            Body::Null => Value::Null,
            Body::Bytes(content) => scalar(kind, content)?,
            Body::Aggregate(count) if kind == b'|' => {
                bytes = skip(rest, count)?;
                continue;
            }
            Body::Aggregate(count) => {
                if depth >= MAX_DEPTH {
                    return None;
                }
                inside = count;
                let items = Items::new(rest, count, depth + 1);
                match kind {
                    b'*' => Value::Array(items),
                    b'~' => Value::Set(items),
                    b'>' => Value::Push(items),
                    _ => Value::Map(Pairs { items }),
                }
            }
        };
        return Some(Next {
            value,
            rest,
            inside,
        });
    }
}

#[inline(always)]
fn scalar(kind: u8, content: &[u8]) -> Option<Value<'_>> {
    Some(match kind {
        b'+' => Value::Simple(content),
        b'-' => Value::Error(content),
        b':' => Value::Int(line::integer(content)?),
        b'$' => Value::Bulk(content),
        b'#' => Value::Bool(content == b"t"),
        b',' => Value::Double(line::double(content)?),
        b'(' => Value::BigNumber(content),
        b'!' => Value::BulkError(content),
        b'=' => {
            let (&[a, b, c, _], text) = content.split_first_chunk::<4>()?;
            Value::Verbatim {
                format: [a, b, c],
                text,
            }
        }
        _ => Value::Null,
    })
}

/// What follows `count` values. A sum of what is still owed is enough for that: no nesting is kept, so none
/// can be too deep.
fn skip(mut bytes: &[u8], count: u64) -> Option<&[u8]> {
    let mut owed = count;
    while owed > 0 {
        let head = head(bytes)?;
        if head.kind != b'|' {
            owed -= 1;
        }
        if let Body::Aggregate(count) = head.body {
            owed = owed.checked_add(count)?;
        }
        bytes = head.rest;
    }
    Some(bytes)
}
