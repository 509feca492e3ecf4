//! redis-protocol 6.0.0 as a second opinion. It recurses without limit, so give it short inputs only.

use redis_protocol::resp2;
use redis_protocol::resp3::{self, types::Resp3Frame as _};

use super::tree::Tree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Two,
    Three,
}

/// What it makes of the bytes. Refused if any of its two ways of decoding refuses.
pub(crate) fn decode(version: Version, bytes: &[u8]) -> Result<Option<(usize, Tree)>, String> {
    assert!(
        bytes.len() < 100 * 4,
        "deeper nesting than a hundred is too much for its stack"
    );
    match version {
        Version::Two => {
            let frame = resp2::decode::decode_range(bytes).map_err(|error| error.to_string())?;
            resp2::decode::decode(bytes).map_err(|error| error.to_string())?;
            Ok(frame.map(|(frame, len)| (len, of_resp2(&frame, bytes))))
        }
        Version::Three => {
            let frame =
                resp3::decode::complete::decode_range(bytes).map_err(|error| error.to_string())?;
            resp3::decode::complete::decode(bytes).map_err(|error| error.to_string())?;
            Ok(frame.map(|(frame, len)| (len, of_resp3(&frame, bytes).sorted())))
        }
    }
}

/// A command as it writes one in RESP2, its integers as bulk strings.
pub(crate) fn encode_command(args: Vec<resp2::types::OwnedFrame>) -> Vec<u8> {
    let frame = resp2::types::OwnedFrame::Array(args);
    let mut out = vec![0; 1 << 16];
    let len = resp2::encode::encode(&mut out, &frame, true).expect("large enough");
    out.truncate(len);
    out
}

/// The tree as it writes it in RESP2.
pub(crate) fn encode_resp2(tree: &Tree) -> Vec<u8> {
    let mut out = vec![0; 1 << 16];
    let len = resp2::encode::encode(&mut out, &to_resp2(tree), false).expect("large enough");
    out.truncate(len);
    out
}

/// The tree as it writes it in RESP3, and what of the tree survived its hash tables.
pub(crate) fn encode_resp3(tree: &Tree) -> (Vec<u8>, Tree) {
    let frame = to_resp3(tree);
    let mut out = vec![0; frame.encode_len(false) + 64];
    let len = resp3::encode::complete::encode(&mut out, &frame, false).expect("large enough");
    out.truncate(len);
    (out, of_owned(&frame))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("made as text")
}

fn to_resp2(tree: &Tree) -> resp2::types::OwnedFrame {
    use resp2::types::OwnedFrame as Frame;
    match tree {
        Tree::Simple(text) => Frame::SimpleString(text.clone()),
        Tree::Error(error) => Frame::Error(text(error)),
        Tree::Int(number) => Frame::Integer(*number),
        Tree::Bulk(bytes) => Frame::BulkString(bytes.clone()),
        Tree::Null => Frame::Null,
        Tree::Array(items) => Frame::Array(items.iter().map(to_resp2).collect()),
        other => unreachable!("not RESP2: {other:?}"),
    }
}

fn to_resp3(tree: &Tree) -> resp3::types::OwnedFrame {
    use resp3::types::{OwnedFrame as Frame, VerbatimStringFormat};
    let attributes = None;
    match tree {
        Tree::Simple(text) => Frame::SimpleString {
            data: text.clone(),
            attributes,
        },
        Tree::Error(error) => Frame::SimpleError {
            data: text(error),
            attributes,
        },
        Tree::Int(number) => Frame::Number {
            data: *number,
            attributes,
        },
        Tree::Bulk(bytes) => Frame::BlobString {
            data: bytes.clone(),
            attributes,
        },
        Tree::Null => Frame::Null,
        Tree::Bool(truth) => Frame::Boolean {
            data: *truth,
            attributes,
        },
        Tree::Double(bits) => Frame::Double {
            data: f64::from_bits(*bits),
            attributes,
        },
        Tree::BigNumber(digits) => Frame::BigNumber {
            data: digits.clone(),
            attributes,
        },
        Tree::BulkError(text) => Frame::BlobError {
            data: text.clone(),
            attributes,
        },
        Tree::Verbatim(format, text) => Frame::VerbatimString {
            data: text.clone(),
            format: if format == b"txt" {
                VerbatimStringFormat::Text
            } else {
                VerbatimStringFormat::Markdown
            },
            attributes,
        },
        Tree::Array(items) => Frame::Array {
            data: items.iter().map(to_resp3).collect(),
            attributes,
        },
        Tree::Push(items) => Frame::Push {
            data: items.iter().map(to_resp3).collect(),
            attributes,
        },
        Tree::Set(items) => Frame::Set {
            data: items.iter().map(to_resp3).collect(),
            attributes,
        },
        Tree::Map(pairs) => Frame::Map {
            data: table(pairs),
            attributes,
        },
        Tree::With(pairs, value) => {
            let mut frame = to_resp3(value);
            frame
                .add_attributes(table(pairs))
                .expect("made only where allowed");
            frame
        }
        Tree::Foreign => unreachable!("only read, never made up"),
    }
}

fn table(pairs: &[(Tree, Tree)]) -> resp3::types::OwnedAttributes {
    pairs
        .iter()
        .map(|(key, value)| (to_resp3(key), to_resp3(value)))
        .collect()
}

fn of_owned(frame: &resp3::types::OwnedFrame) -> Tree {
    use resp3::types::OwnedFrame as Frame;
    match frame {
        Frame::BlobString { data, .. } => Tree::Bulk(data.clone()),
        Frame::BlobError { data, .. } => Tree::BulkError(data.clone()),
        Frame::SimpleString { data, .. } => Tree::Simple(data.clone()),
        Frame::SimpleError { data, .. } => Tree::Error(data.clone().into_bytes()),
        Frame::Boolean { data, .. } => Tree::Bool(*data),
        Frame::Null => Tree::Null,
        Frame::Number { data, .. } => Tree::Int(*data),
        Frame::Double { data, .. } => Tree::double(*data),
        Frame::BigNumber { data, .. } => Tree::BigNumber(data.clone()),
        Frame::VerbatimString { data, format, .. } => Tree::Verbatim(short(format), data.clone()),
        Frame::Array { data, .. } => Tree::Array(data.iter().map(of_owned).collect()),
        Frame::Push { data, .. } => Tree::Push(data.iter().map(of_owned).collect()),
        Frame::Set { data, .. } => Tree::Set(data.iter().map(of_owned).collect()),
        Frame::Map { data, .. } => Tree::Map(
            data.iter()
                .map(|(key, value)| (of_owned(key), of_owned(value)))
                .collect(),
        ),
        Frame::Hello { .. } | Frame::ChunkedString(_) => Tree::Foreign,
    }
}

fn short(format: &resp3::types::VerbatimStringFormat) -> [u8; 3] {
    match format {
        resp3::types::VerbatimStringFormat::Text => *b"txt",
        resp3::types::VerbatimStringFormat::Markdown => *b"mkd",
    }
}

fn of_resp2(frame: &resp2::types::RangeFrame, bytes: &[u8]) -> Tree {
    use resp2::types::RangeFrame as Frame;
    let cut = |&(start, end): &(usize, usize)| bytes[start..end].to_vec();
    match frame {
        Frame::SimpleString(range) => Tree::Simple(cut(range)),
        Frame::Error(range) => Tree::Error(cut(range)),
        Frame::Integer(number) => Tree::Int(*number),
        Frame::BulkString(range) => Tree::Bulk(cut(range)),
        Frame::Array(items) => {
            Tree::Array(items.iter().map(|item| of_resp2(item, bytes)).collect())
        }
        Frame::Null => Tree::Null,
    }
}

fn of_resp3(frame: &resp3::types::RangeFrame, bytes: &[u8]) -> Tree {
    use resp3::types::RangeFrame as Frame;
    let cut = |&(start, end): &(usize, usize)| bytes[start..end].to_vec();
    let all = |item| of_resp3(item, bytes);
    match frame {
        Frame::BlobString { data, .. } => Tree::Bulk(cut(data)),
        Frame::BlobError { data, .. } => Tree::BulkError(cut(data)),
        Frame::SimpleString { data, .. } => Tree::Simple(cut(data)),
        Frame::SimpleError { data, .. } => Tree::Error(cut(data)),
        Frame::Boolean { data, .. } => Tree::Bool(*data),
        Frame::Null => Tree::Null,
        Frame::Number { data, .. } => Tree::Int(*data),
        Frame::Double { data, .. } => Tree::double(*data),
        Frame::BigNumber { data, .. } => Tree::BigNumber(cut(data)),
        Frame::VerbatimString { data, format, .. } => Tree::Verbatim(short(format), cut(data)),
        Frame::Array { data, .. } => Tree::Array(data.iter().map(all).collect()),
        Frame::Push { data, .. } => Tree::Push(data.iter().map(all).collect()),
        Frame::Set { data, .. } => Tree::Set(data.iter().map(all).collect()),
        Frame::Map { data, .. } => Tree::Map(
            data.iter()
                .map(|(key, value)| (all(key), all(value)))
                .collect(),
        ),
        Frame::Hello { .. } | Frame::ChunkedString(_) => Tree::Foreign,
    }
}
