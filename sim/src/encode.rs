//! Replies and pushes as bytes, through `redis-protocol`.

use std::fmt::Write as _;

use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame as _};
use redis_protocol::{resp2, resp3};

use crate::keys::Reply;
use crate::tracking::Push;

/// Puts a reply into bytes.
pub(crate) fn encode(reply: &Reply, resp3: bool) -> Vec<u8> {
    if resp3 {
        encode_resp3(reply)
    } else {
        encode_resp2(reply)
    }
}

fn encode_resp2(reply: &Reply) -> Vec<u8> {
    let frame = resp2_frame(reply);
    let mut out = vec![0; frame.encode_len(false)];
    let len = resp2::encode::encode(&mut out, &frame, false).unwrap_or(0);
    out.truncate(len);
    out
}

fn resp2_frame(reply: &Reply) -> OwnedFrame {
    let bulk = |text: &str| OwnedFrame::BulkString(text.as_bytes().to_vec());
    match reply {
        Reply::Ok => OwnedFrame::SimpleString(b"OK".to_vec()),
        Reply::Simple(text) => OwnedFrame::SimpleString(text.as_bytes().to_vec()),
        Reply::Null => OwnedFrame::Null,
        Reply::Int(n) => OwnedFrame::Integer(*n),
        Reply::Bulk(bytes) => OwnedFrame::BulkString(bytes.clone()),
        Reply::Error(text) => OwnedFrame::Error(text.clone()),
        Reply::Greeting(pairs) => OwnedFrame::Array(
            pairs
                .iter()
                .flat_map(|(key, value)| [bulk(key), greeting_value(value)])
                .collect(),
        ),
        Reply::Many(inside) => OwnedFrame::Array(inside.iter().map(resp2_frame).collect()),
        Reply::Map(pairs) => {
            let words = pairs.iter().flat_map(|(key, value)| [key, value]);
            OwnedFrame::Array(words.map(|word| bulk(word)).collect())
        }
        Reply::Text(text) => bulk(text),
    }
}

/// A number goes as a number.
fn greeting_value(value: &str) -> OwnedFrame {
    match value.parse() {
        Ok(number) => OwnedFrame::Integer(number),
        Err(_) => OwnedFrame::BulkString(value.as_bytes().to_vec()),
    }
}

fn encode_resp3(reply: &Reply) -> Vec<u8> {
    use resp3::types::{OwnedFrame as Frame, Resp3Frame as _};

    let bulk = |data: &[u8]| Frame::BlobString {
        data: data.to_vec(),
        attributes: None,
    };
    let simple = |text: &str| Frame::SimpleString {
        data: text.as_bytes().to_vec(),
        attributes: None,
    };
    let frame = match reply {
        // Every second reply is one of these, and there is only one way to write them.
        Reply::Ok => return b"+OK\r\n".to_vec(),
        Reply::Null => return b"_\r\n".to_vec(),
        Reply::Simple(text) => simple(text),
        Reply::Int(n) => Frame::Number {
            data: *n,
            attributes: None,
        },
        Reply::Bulk(bytes) => bulk(bytes),
        Reply::Error(text) => Frame::SimpleError {
            data: text.clone(),
            attributes: None,
        },
        Reply::Greeting(pairs) => {
            // Pair by pair: a map of that library has no order, and a run must repeat to the byte.
            let mut out = String::with_capacity(128);
            let _ = write!(out, "%{}\r\n", pairs.len());
            for (key, value) in pairs.iter() {
                let _ = write!(out, "${}\r\n{key}\r\n", key.len());
                let _ = match value.parse::<i64>() {
                    Ok(number) => write!(out, ":{number}\r\n"),
                    Err(_) => write!(out, "${}\r\n{value}\r\n", value.len()),
                };
            }
            return out.into_bytes();
        }
        Reply::Many(inside) => {
            let mut out = format!("*{}\r\n", inside.len()).into_bytes();
            inside
                .iter()
                .for_each(|reply| out.extend(encode_resp3(reply)));
            return out;
        }
        Reply::Map(pairs) => {
            let mut out = format!("%{}\r\n", pairs.len());
            for (key, value) in pairs {
                let _ = write!(out, "${}\r\n{key}\r\n", key.len());
                let _ = write!(out, "${}\r\n{value}\r\n", value.len());
            }
            return out.into_bytes();
        }
        Reply::Text(text) => Frame::VerbatimString {
            data: text.as_bytes().to_vec(),
            format: resp3::types::VerbatimStringFormat::Text,
            attributes: None,
        },
    };
    let mut out = vec![0; frame.encode_len(false)];
    let len = resp3::encode::complete::encode(&mut out, &frame, false).unwrap_or(0);
    out.truncate(len);
    out
}

/// Puts what a connection is told without asking into bytes. Only RESP3 has a form for it.
pub(crate) fn encode_push(push: &Push) -> Vec<u8> {
    use resp3::types::{OwnedFrame as Frame, Resp3Frame as _};

    let bulk = |data: &[u8]| Frame::BlobString {
        data: data.to_vec(),
        attributes: None,
    };
    let keys = match &push.key {
        Some(key) => Frame::Array {
            data: vec![bulk(key)],
            attributes: None,
        },
        None => Frame::Null,
    };
    let frame = Frame::Push {
        data: vec![bulk(b"invalidate"), keys],
        attributes: None,
    };
    let mut out = vec![0; frame.encode_len(false)];
    let len = resp3::encode::complete::encode(&mut out, &frame, false).unwrap_or(0);
    out.truncate(len);
    out
}
