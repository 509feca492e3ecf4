//! Streams: replies arrive in pieces of any size, broken in any way, and nothing depends on how.

#[allow(dead_code)] // Not all of it is of use here.
#[path = "resp_differential/tree.rs"]
mod tree;

use proptest::collection::vec;
use proptest::prelude::*;
use tenure_core::resp::{Limits, ProtocolError, Scanner, Value, attributes, read};
use tree::Tree;

/// The frames found when `bytes` arrives in pieces of these sizes, over and over, and the error at the end.
fn frames(bytes: &[u8], pieces: &[usize], limits: Limits) -> (Vec<Vec<u8>>, Option<ProtocolError>) {
    let mut scanner = Scanner::new(limits);
    let mut found = Vec::new();
    let (mut start, mut arrived) = (0, 0);
    for piece in pieces.iter().cycle() {
        loop {
            match scanner.scan(&bytes[start..arrived]) {
                Ok(Some(len)) => {
                    found.push(bytes[start..start + len].to_vec());
                    start += len;
                }
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
        if arrived == bytes.len() {
            break;
        }
        arrived = bytes.len().min(arrived + piece);
    }
    (found, None)
}

/// Uses everything a value has to offer.
fn walk(value: Value<'_>, depth: usize) -> usize {
    assert!(depth <= 32, "a walk is never deeper than the deepest limit");
    assert!(
        format!("{value:?}").len() < 8192,
        "what is printed stays short"
    );
    let _ = (
        value.as_bytes(),
        value.as_int(),
        value.error(),
        value.is_null(),
        value.as_items(),
    );
    match value {
        Value::Array(items) | Value::Set(items) | Value::Push(items) => {
            assert_eq!(items.iter().count(), items.len());
            items
                .iter()
                .map(|item| walk(item, depth + 1))
                .sum::<usize>()
                + 1
        }
        Value::Map(pairs) => {
            assert_eq!(pairs.iter().count(), pairs.len());
            pairs
                .iter()
                .map(|(key, value)| walk(key, depth + 1) + walk(value, depth + 1))
                .sum::<usize>()
                + 1
        }
        _ => 1,
    }
}

/// Bytes that look like RESP for a while.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let bytes = b"\r\n\r\n\r\n0123456789-*$%~>|_,:#(!=;.?+tfH\x15\xff";
    vec(proptest::sample::select(bytes.as_slice()), 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each reply of a stream is found where it ends and read as what it was, whatever the pieces.
    #[test]
    fn any_split_gives_the_same_frames(trees in vec(tree::any_resp3(), 1..5), pieces in vec(1..40_usize, 1..8)) {
        let written: Vec<Vec<u8>> = trees.iter().map(Tree::bytes).collect();
        let (found, error) = frames(&written.concat(), &pieces, Limits::DEFAULT);
        prop_assert_eq!(error, None);
        prop_assert_eq!(&found, &written);
        for (frame, tree) in found.iter().zip(trees) {
            let sent = match &tree {
                Tree::With(pairs, _) => Some(pairs.iter().cloned().map(|(key, value)| (key.bare(), value.bare())).collect()),
                _ => None,
            };
            prop_assert_eq!(attributes(frame).map(Tree::pairs), sent);
            prop_assert_eq!(Tree::of(read(frame)), tree.bare());
        }
    }

    /// A value equals itself and, in most cases, no other: the comparison walks as the trees do.
    #[test]
    fn values_are_equal_when_their_trees_are(one in tree::any_resp3(), other in tree::any_resp3()) {
        let (one_bytes, other_bytes) = (one.bytes(), other.bytes());
        let has_nan = one_bytes.windows(4).any(|four| four == b",nan");
        prop_assert!(read(&one_bytes) == read(&one_bytes) || has_nan);
        if read(&one_bytes) == read(&other_bytes) {
            prop_assert_eq!(one.bare(), other.bare());
        }
    }

    /// No reply is complete before its last byte.
    #[test]
    fn no_shorter_start_is_a_frame(tree in tree::any_resp3()) {
        let bytes = tree.bytes();
        for len in 0..bytes.len() {
            prop_assert_eq!(Scanner::new(Limits::DEFAULT).scan(&bytes[..len]), Ok(None));
        }
    }

    /// The error is the same too, and so is what was read before it.
    #[test]
    fn any_split_gives_the_same_error(bytes in nearly(), pieces in vec(1..10_usize, 1..8), frame in 3..60_usize, line in 0..20_usize) {
        for limits in [Limits::DEFAULT, Limits { frame, depth: 2, elements: 9, line }] {
            let whole = frames(&bytes, &[bytes.len().max(1)], limits);
            prop_assert_eq!(&frames(&bytes, &[1], limits), &whole);
            prop_assert_eq!(&frames(&bytes, &pieces, limits), &whole);
        }
    }

    /// Nothing panics or runs away, with limits of any size, on any bytes, also on those no scanner accepted.
    #[test]
    fn no_bytes_do_harm(
        bytes in prop_oneof![vec(any::<u8>(), 0..300), nearly()],
        limits in prop_oneof![
            Just(Limits::DEFAULT),
            (any::<usize>(), any::<u8>(), any::<u32>(), any::<usize>())
                .prop_map(|(frame, depth, elements, line)| Limits { frame, depth, elements, line }),
            (0..9_usize, 0..3_u8, 0..4_u32, 0..4_usize)
                .prop_map(|(frame, depth, elements, line)| Limits { frame, depth, elements, line }),
        ],
    ) {
        for start in 0..bytes.len().min(40) {
            let rest = &bytes[start..];
            let visited = walk(read(rest), 0);
            prop_assert!(visited <= 1 + 32 * (rest.len() / 3 + 1), "{} values in {} bytes", visited, rest.len());
            prop_assert!(attributes(rest).is_none_or(|pairs| pairs.iter().count() == pairs.len()));
        }
        for frame in frames(&bytes, &[1], limits).0 {
            prop_assert!(frame.len() <= limits.frame);
            walk(read(&frame), 0);
        }
    }

    /// Forgetting the rules of the call does no harm either: fewer bytes than before, or others.
    #[test]
    fn no_order_of_calls_does_harm(calls in vec(nearly(), 1..12)) {
        let mut scanner = Scanner::new(Limits::DEFAULT);
        for bytes in &calls {
            if let Ok(Some(len)) = scanner.scan(bytes) {
                walk(read(bytes.get(..len).unwrap_or(bytes)), 0);
            }
        }
    }
}

/// A frame only has to reach the scanner: a long reply in one-byte pieces within limits raised for it.
#[test]
fn a_reply_of_a_megabyte_byte_by_byte() {
    let mut reply = b"*60000\r\n".to_vec();
    for number in 0..60_000_u32 {
        reply.extend_from_slice(format!("$10\r\n{number:010}\r\n").as_bytes());
    }
    assert!(reply.len() > 1_000_000);
    let limits = Limits {
        frame: 2 << 20,
        elements: 60_000,
        ..Limits::DEFAULT
    };
    let (found, error) = frames(&reply, &[1], limits);
    assert_eq!((found.len(), error), (1, None));
    let items = read(&found[0]).as_items().unwrap();
    assert_eq!(items.len(), 60_000);
    assert_eq!(items.get(59_999), Some(Value::Bulk(b"0000059999")));
}

/// Reading needs no limit either: nested as deep as it likes, it is walked to the deepest limit and no further.
#[test]
fn ten_megabytes_of_nesting_do_not_overflow_the_stack() {
    let nested: Vec<u8> = b"*1\r\n".iter().copied().cycle().take(10 << 20).collect();
    assert_eq!(
        frames(&nested, &[1460], Limits::DEFAULT),
        (vec![], Some(ProtocolError::TooDeep { limit: 8 }))
    );
    assert_eq!(walk(read(&nested), 0), 33);
    assert_eq!(attributes(&nested), None);
    let in_attributes: Vec<u8> = b"|1\r\n".iter().copied().cycle().take(10 << 20).collect();
    assert_eq!(
        frames(&in_attributes, &[1460], Limits::DEFAULT).1,
        Some(ProtocolError::TooDeep { limit: 8 })
    );
    assert_eq!(read(&in_attributes), Value::Null);
}
