//! The codec.

use tenure_core::resp::{Limits, ProtocolError, Scanner, Value, attributes, read};

/// What a peer sends: scanned and read, also where no scanner accepted it.
pub fn decode(data: &[u8]) {
    let (found, _) = frames(data, usize::MAX, Limits::DEFAULT);
    for frame in found {
        assert!(frame.len() <= Limits::DEFAULT.frame);
        walk(read(frame), frame);
        within(frame, Limits::DEFAULT);
        assert!(attributes(frame).is_none_or(|pairs| pairs.iter().count() == pairs.len()));
        // It ends nowhere sooner.
        if frame.len() < 256 {
            for len in 0..frame.len() {
                assert_eq!(Scanner::new(Limits::DEFAULT).scan(&frame[..len]), Ok(None));
            }
        }
    }
    for start in 0..data.len().min(8) {
        let rest = &data[start..];
        let visited = walk(read(rest), rest);
        assert!(visited <= 1 + 32 * (rest.len() / 3 + 1), "{visited} values");
    }
}

/// The first two bytes say how the others are cut: the frames and the error are the same.
pub fn chunks(data: &[u8]) {
    let [piece, small, bytes @ ..] = data else {
        return;
    };
    let piece = usize::from(*piece) % 64 + 1;
    let tight = Limits {
        frame: 3 + usize::from(*small),
        depth: small % 5,
        elements: u32::from(small % 17),
        line: usize::from(small % 31),
    };
    for limits in [Limits::DEFAULT, tight] {
        let whole = frames(bytes, usize::MAX, limits);
        for frame in &whole.0 {
            within(frame, limits);
        }
        assert_eq!(frames(bytes, piece, limits), whole);
        assert_eq!(frames(bytes, 1, limits), whole);
    }
}

/// The frames found when the bytes arrive in pieces of this size, and the error at the end.
fn frames(bytes: &[u8], piece: usize, limits: Limits) -> (Vec<&[u8]>, Option<ProtocolError>) {
    let mut scanner = Scanner::new(limits);
    let mut found = Vec::new();
    let (mut start, mut arrived) = (0, 0);
    loop {
        match scanner.scan(&bytes[start..arrived]) {
            Ok(Some(len)) => {
                assert!(len > 0);
                found.push(&bytes[start..start + len]);
                start += len;
            }
            Ok(None) if arrived == bytes.len() => return (found, None),
            Ok(None) => arrived = bytes.len().min(arrived.saturating_add(piece)),
            Err(error) => {
                // It stays failed.
                assert_eq!(scanner.scan(&bytes[start..]), Err(error));
                return (found, Some(error));
            }
        }
    }
}

/// No frame is found that the limits forbid.
fn within(frame: &[u8], limits: Limits) {
    assert!(frame.len() <= limits.frame);
    let (mut depth, mut elements) = (0, 0);
    count(read(frame), 0, &mut depth, &mut elements);
    assert!(depth <= usize::from(limits.depth), "{depth} deep");
    assert!(elements <= limits.elements as usize, "{elements} elements");
}

fn count(value: Value<'_>, around: usize, depth: &mut usize, elements: &mut usize) {
    let inside: Vec<Value<'_>> = match value {
        Value::Array(items) | Value::Set(items) | Value::Push(items) => items.iter().collect(),
        Value::Map(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => return,
    };
    *depth = (*depth).max(around + 1);
    *elements += inside.len();
    for value in inside {
        count(value, around + 1, depth, elements);
    }
}

/// Uses everything a value has to offer. Gives the number of values.
fn walk(value: Value<'_>, within: &[u8]) -> usize {
    assert!(format!("{value:?}").len() < 8192);
    let _ = (value.as_int(), value.is_null(), value.as_pairs());
    for bytes in [value.as_bytes(), value.error()].into_iter().flatten() {
        assert!(bytes.len() <= within.len());
    }
    match value {
        Value::Array(items) | Value::Set(items) | Value::Push(items) => {
            assert_eq!(items.iter().count(), items.len());
            1 + items.iter().map(|item| walk(item, within)).sum::<usize>()
        }
        Value::Map(pairs) => {
            assert_eq!(pairs.iter().count(), pairs.len());
            let pairs = pairs.iter();
            1 + pairs
                .map(|(key, value)| walk(key, within) + walk(value, within))
                .sum::<usize>()
        }
        _ => 1,
    }
}
