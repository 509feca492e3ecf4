//! A second opinion: what we write, redis-protocol reads as the same, and the other way round; and of any
//! bytes the two think alike, or differ for a reason that has a name in `docs/codec.md`.

mod classes;
mod outline;
mod theirs;
#[allow(dead_code)] // Shared with the tests of streams.
mod tree;

use classes::{CLASSES, Case};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use redis_protocol::resp2::types::OwnedFrame;
use tenure_core::resp::{Arg, Limits, Scanner, encode, encoded_len, read};
use theirs::Version;
use tree::Tree;

/// An argument, and the bytes it stands for.
#[derive(Clone, Debug)]
enum Argument {
    Bytes(Vec<u8>),
    Parts(Vec<Vec<u8>>),
    Int(u64),
}

fn argument() -> impl Strategy<Value = Argument> {
    let bytes = || vec(any::<u8>(), 0..40);
    prop_oneof![
        bytes().prop_map(Argument::Bytes),
        vec(bytes(), 0..4).prop_map(Argument::Parts),
        any::<u64>().prop_map(Argument::Int),
        // Every count of digits as often as another.
        (0..20_u32, -1..2_i64).prop_map(|(exponent, near)| Argument::Int(
            10_u64.pow(exponent).saturating_add_signed(near)
        )),
    ]
}

impl Argument {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Parts(parts) => parts.concat(),
            Self::Int(number) => number.to_string().into_bytes(),
        }
    }
}

fn our_command(arguments: &[Argument]) -> Vec<u8> {
    let parts: Vec<Vec<&[u8]>> = arguments
        .iter()
        .map(|argument| match argument {
            Argument::Parts(parts) => parts.iter().map(Vec::as_slice).collect(),
            _ => Vec::new(),
        })
        .collect();
    let args: Vec<Arg<'_>> = arguments
        .iter()
        .zip(&parts)
        .map(|(argument, parts)| match argument {
            Argument::Bytes(bytes) => bytes.as_slice().into(),
            Argument::Parts(_) => Arg::Parts(parts),
            Argument::Int(number) => Arg::Int(*number),
        })
        .collect();
    let mut out = vec![0; encoded_len(&args)];
    assert_eq!(encode(&args, &mut out), Ok(out.len()));
    out
}

fn our_tree(bytes: &[u8]) -> Tree {
    let len = Scanner::new(Limits::DEFAULT).scan(bytes);
    assert_eq!(
        len,
        Ok(Some(bytes.len())),
        "{:?}",
        bytes.escape_ascii().to_string()
    );
    Tree::of(read(bytes))
}

/// Pieces of RESP in any order: nearer to it than random bytes come, and further from it than changed replies.
fn soup() -> impl Strategy<Value = Vec<u8>> {
    let pieces: &[&[u8]] = &[
        b"+",
        b"-",
        b":",
        b"$",
        b"*",
        b"_",
        b"#",
        b",",
        b"(",
        b"!",
        b"=",
        b"%",
        b"~",
        b">",
        b"|",
        b";",
        b".",
        b"?",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b"0",
        b"1",
        b"2",
        b"3",
        b"-1",
        b"4",
        b"00",
        b"+1",
        b"t",
        b"f",
        b"txt:",
        b"mkd:",
        b"inf",
        b"nan",
        b"1.5",
        b".5",
        b"e1",
        b"OK",
        b"\xff",
        b"HELLO 3",
        b"H",
        b"\x15",
        b"99999999999999999999",
        b"*1\r\n",
        b"%1\r\n",
        b"|1\r\n",
        b"~1\r\n",
        b">1\r\n",
        b":1\r\n",
        b"+a\r\n",
        b"_\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"$1\r\na\r\n",
        b"*0\r\n",
        b"|0\r\n",
        b"=4\r\ntxt:\r\n",
        b"#t\r\n",
        b",1\r\n",
    ];
    vec(proptest::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

/// A reply with a few bytes changed, added, lost or repeated.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = || {
        prop_oneof![
            any::<u8>(),
            proptest::sample::select(b"\r\n0123456789-+?*$%~>|_,:#(!=;.".as_slice())
        ]
    };
    let reply = prop_oneof![
        tree::any_resp3().prop_map(|tree| tree.bytes()),
        tree::resp2().prop_map(|tree| theirs::encode_resp2(&tree)),
    ];
    (reply, vec((any::<Index>(), 0..5, byte()), 0..4)).prop_map(|(mut reply, changes)| {
        for (index, change, byte) in changes {
            if reply.is_empty() {
                break;
            }
            let at = index.index(reply.len());
            match change {
                0 => reply[at] = byte,
                1 => reply.insert(at, byte),
                2 => drop(reply.remove(at)),
                3 => reply.truncate(at),
                _ => reply.extend_from_within(at..),
            }
        }
        reply.truncate(390);
        reply
    })
}

fn check(version: Version, bytes: &[u8]) -> Result<(), TestCaseError> {
    let case = Case::new(version, bytes);
    prop_assert!(
        case.agrees() || case.class().is_some(),
        "unexplained on {}: {case:?}",
        bytes.escape_ascii().to_string()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// They read our command as the arguments we were given.
    #[test]
    fn what_we_encode_they_decode(arguments in vec(argument(), 1..8)) {
        let out = our_command(&arguments);
        let (frame, len) = redis_protocol::resp2::decode::decode(&out).expect("valid").expect("complete");
        prop_assert_eq!(len, out.len());
        let expected = arguments.iter().map(|argument| OwnedFrame::BulkString(argument.bytes())).collect();
        prop_assert_eq!(frame, OwnedFrame::Array(expected));
    }

    /// The same command is the same bytes.
    #[test]
    fn commands_are_byte_for_byte_theirs(arguments in vec(argument(), 1..8)) {
        let frames = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Int(number) if i64::try_from(*number).is_ok() => OwnedFrame::Integer(*number as i64),
                other => OwnedFrame::BulkString(other.bytes()),
            })
            .collect();
        prop_assert_eq!(our_command(&arguments), theirs::encode_command(frames));
    }

    /// We read their RESP2 as the tree they were given.
    #[test]
    fn what_they_encode_in_resp2_we_read(tree in tree::resp2()) {
        prop_assert_eq!(our_tree(&theirs::encode_resp2(&tree)), tree);
    }

    /// We read their RESP3 as the tree they were given, but for the order they lose.
    #[test]
    fn what_they_encode_in_resp3_we_read(tree in tree::resp3()) {
        let (bytes, kept) = theirs::encode_resp3(&tree);
        prop_assert_eq!(our_tree(&bytes).sorted(), kept.sorted());
    }

    /// Of a valid reply cut off or changed somewhere we think alike.
    #[test]
    fn of_changed_replies_both_think_alike(bytes in mutated()) {
        check(Version::Two, &bytes)?;
        check(Version::Three, &bytes)?;
    }

    /// Of pieces of RESP in any order we think alike.
    #[test]
    fn of_soup_both_think_alike(bytes in soup()) {
        check(Version::Two, &bytes)?;
        check(Version::Three, &bytes)?;
    }

    /// Of anything at all we think alike.
    #[test]
    fn of_any_bytes_both_think_alike(bytes in vec(any::<u8>(), 0..200)) {
        check(Version::Two, &bytes)?;
        check(Version::Three, &bytes)?;
    }
}

/// A class that nothing is in, or that another hides, would be a hole in the comparison.
#[test]
fn every_class_has_a_witness_that_really_disagrees() {
    for class in CLASSES {
        let (version, bytes) = class.witness;
        let case = Case::new(version, bytes);
        assert!(!case.agrees(), "{}: {case:?}", class.name);
        assert_eq!(case.class(), Some(class.name), "{case:?}");
    }
}

#[test]
fn every_class_is_documented_with_its_witness() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/codec.md");
    let Ok(text) = std::fs::read_to_string(path) else {
        return; // The crate alone, without the repository around it.
    };
    for class in CLASSES {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{}` ", class.name)));
        let row = row.unwrap_or_else(|| panic!("{} is not in docs/codec.md", class.name));
        // A bar would end the cell of the table.
        let witness = class
            .witness
            .1
            .escape_ascii()
            .to_string()
            .replace('|', "\\|");
        assert!(
            row.contains(&format!("`{witness}`")),
            "{}: the example is not `{witness}`",
            class.name
        );
    }
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| class "))
        .skip(2);
    assert_eq!(
        rows.take_while(|line| line.starts_with('|')).count(),
        CLASSES.len(),
        "a class only documented"
    );
}
