//! Replies as trees that own their bytes: made up by proptest, or made of what a parser read.

use proptest::collection::vec;
use proptest::prelude::*;
use tenure_core::resp::Value;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tree {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    Bool(bool),
    /// As bits, so that it can be ordered; every NaN is one.
    Double(u64),
    BigNumber(Vec<u8>),
    BulkError(Vec<u8>),
    Verbatim([u8; 3], Vec<u8>),
    Array(Vec<Tree>),
    Set(Vec<Tree>),
    Push(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
    /// A value behind attributes. Never what we read: attributes are no part of a value.
    With(Vec<(Tree, Tree)>, Box<Tree>),
    /// What only redis-protocol knows.
    Foreign,
}

impl Tree {
    /// Walks all of a value.
    pub(crate) fn of(value: Value<'_>) -> Self {
        match value {
            Value::Simple(text) => Self::Simple(text.to_vec()),
            Value::Error(text) => Self::Error(text.to_vec()),
            Value::Int(number) => Self::Int(number),
            Value::Bulk(bytes) => Self::Bulk(bytes.to_vec()),
            Value::Null => Self::Null,
            Value::Bool(truth) => Self::Bool(truth),
            Value::Double(number) => Self::double(number),
            Value::BigNumber(digits) => Self::BigNumber(digits.to_vec()),
            Value::BulkError(text) => Self::BulkError(text.to_vec()),
            Value::Verbatim { format, text } => Self::Verbatim(format, text.to_vec()),
            Value::Array(items) => Self::Array(items.iter().map(Self::of).collect()),
            Value::Set(items) => Self::Set(items.iter().map(Self::of).collect()),
            Value::Push(items) => Self::Push(items.iter().map(Self::of).collect()),
            Value::Map(pairs) => Self::Map(Self::pairs(pairs)),
        }
    }

    pub(crate) fn pairs(pairs: tenure_core::resp::Pairs<'_>) -> Vec<(Self, Self)> {
        pairs
            .iter()
            .map(|(key, value)| (Self::of(key), Self::of(value)))
            .collect()
    }

    pub(crate) fn double(number: f64) -> Self {
        Self::Double(if number.is_nan() {
            f64::NAN.to_bits()
        } else {
            number.to_bits()
        })
    }

    /// Written by the specification, in the plainest way.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => line(b'+', text, out),
            Self::Error(text) => line(b'-', text, out),
            Self::Int(number) => line(b':', number.to_string().as_bytes(), out),
            Self::Bulk(bytes) => payload(b'$', bytes, out),
            Self::Null => line(b'_', b"", out),
            Self::Bool(truth) => line(b'#', if *truth { b"t" } else { b"f" }, out),
            Self::Double(bits) => {
                let number = f64::from_bits(*bits);
                let text = if number.is_nan() {
                    "nan".to_owned()
                } else {
                    number.to_string()
                };
                line(b',', text.as_bytes(), out);
            }
            Self::BigNumber(digits) => line(b'(', digits, out),
            Self::BulkError(text) => payload(b'!', text, out),
            Self::Verbatim(format, text) => {
                payload(b'=', &[format, b":".as_slice(), text].concat(), out)
            }
            Self::Array(items) => items_out(b'*', items, out),
            Self::Set(items) => items_out(b'~', items, out),
            Self::Push(items) => items_out(b'>', items, out),
            Self::Map(pairs) => pairs_out(b'%', pairs, out),
            Self::With(attributes, value) => {
                pairs_out(b'|', attributes, out);
                value.write(out);
            }
            Self::Foreign => unreachable!("only read, never made up"),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    /// Without attributes, at any level.
    pub(crate) fn bare(self) -> Self {
        match self {
            Self::With(_, value) => value.bare(),
            other => other.map_inner(Self::bare),
        }
    }

    /// With maps and sets in one order, because redis-protocol keeps them in hash tables.
    pub(crate) fn sorted(self) -> Self {
        match self.map_inner(Self::sorted) {
            Self::Map(mut pairs) => {
                pairs.sort();
                Self::Map(pairs)
            }
            Self::Set(mut items) => {
                items.sort();
                Self::Set(items)
            }
            other => other,
        }
    }

    fn map_inner(self, f: fn(Self) -> Self) -> Self {
        let all = |items: Vec<Self>| items.into_iter().map(f).collect();
        match self {
            Self::Array(items) => Self::Array(all(items)),
            Self::Set(items) => Self::Set(all(items)),
            Self::Push(items) => Self::Push(all(items)),
            Self::Map(pairs) => Self::Map(
                pairs
                    .into_iter()
                    .map(|(key, value)| (f(key), f(value)))
                    .collect(),
            ),
            other => other,
        }
    }
}

fn line(kind: u8, content: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(content);
    out.extend_from_slice(b"\r\n");
}

fn payload(kind: u8, content: &[u8], out: &mut Vec<u8>) {
    line(kind, content.len().to_string().as_bytes(), out);
    out.extend_from_slice(content);
    out.extend_from_slice(b"\r\n");
}

fn items_out(kind: u8, items: &[Tree], out: &mut Vec<u8>) {
    line(kind, items.len().to_string().as_bytes(), out);
    items.iter().for_each(|item| item.write(out));
}

fn pairs_out(kind: u8, pairs: &[(Tree, Tree)], out: &mut Vec<u8>) {
    line(kind, pairs.len().to_string().as_bytes(), out);
    for (key, value) in pairs {
        key.write(out);
        value.write(out);
    }
}

/// Text of a line: anything but CR and LF, as UTF-8.
fn text() -> impl Strategy<Value = Vec<u8>> {
    "[^\r\n]{0,12}".prop_map(String::into_bytes)
}

/// A value without others inside. Binary where RESP allows it.
pub(crate) fn scalar() -> impl Strategy<Value = Tree> {
    let bytes = || vec(any::<u8>(), 0..24);
    prop_oneof![
        text().prop_map(Tree::Simple),
        text().prop_map(Tree::Error),
        any::<i64>().prop_map(Tree::Int),
        (-2_i64..3).prop_map(Tree::Int),
        bytes().prop_map(Tree::Bulk),
        Just(Tree::Null),
        any::<bool>().prop_map(Tree::Bool),
        any::<f64>().prop_map(Tree::double),
        "[+-]?[0-9]{1,30}".prop_map(|digits| Tree::BigNumber(digits.into_bytes())),
        bytes().prop_map(Tree::BulkError),
        (prop_oneof![Just(*b"txt"), Just(*b"mkd")], bytes())
            .prop_map(|(format, text)| Tree::Verbatim(format, text)),
    ]
}

/// What RESP2 has. Its null is written as `$-1` by those who write RESP2.
pub(crate) fn resp2() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        text().prop_map(Tree::Simple),
        text().prop_map(Tree::Error),
        any::<i64>().prop_map(Tree::Int),
        vec(any::<u8>(), 0..24).prop_map(Tree::Bulk),
        Just(Tree::Null),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| vec(inner, 0..5).prop_map(Tree::Array))
}

/// What RESP3 has, with keys and members that have nothing inside: others cannot be hashed.
pub(crate) fn resp3() -> impl Strategy<Value = Tree> {
    scalar().prop_recursive(4, 24, 5, |inner| {
        let pairs = || vec((scalar(), inner.clone()), 0..3);
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Tree::Array),
            vec(inner.clone(), 0..5).prop_map(Tree::Push),
            vec(scalar(), 0..5).prop_map(Tree::Set),
            pairs().prop_map(Tree::Map),
            (pairs(), inner.clone()).prop_map(|(attributes, value)| with(attributes, value)),
        ]
    })
}

/// Everything RESP3 allows.
pub(crate) fn any_resp3() -> impl Strategy<Value = Tree> {
    resp3().prop_recursive(2, 16, 3, |inner| {
        let pairs = || vec((inner.clone(), inner.clone()), 0..3);
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Tree::Set),
            pairs().prop_map(Tree::Map),
            (pairs(), inner.clone())
                .prop_map(|(attributes, value)| Tree::With(attributes, Box::new(value))),
        ]
    })
}

/// Behind attributes, but only what redis-protocol lets have some: no null, no attributes in a row.
fn with(attributes: Vec<(Tree, Tree)>, value: Tree) -> Tree {
    match value {
        Tree::Null | Tree::With(..) => value,
        value => Tree::With(attributes, Box::new(value)),
    }
}
