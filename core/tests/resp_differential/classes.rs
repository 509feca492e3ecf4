//! Where redis-protocol and we are known to disagree, and why. Anything else is a bug in one of the two.

use tenure_core::resp::{Limits, ProtocolError, Scanner, read};

use super::outline::Node;
use super::theirs::{self, Version};
use super::tree::Tree;

pub(crate) struct Class {
    /// As it is written in `docs/codec.md`.
    pub(crate) name: &'static str,
    /// Bytes on which the two disagree for this reason.
    pub(crate) witness: (Version, &'static [u8]),
    explains: fn(&Case) -> bool,
}

/// Both opinions on some bytes.
#[derive(Debug)]
pub(crate) struct Case {
    version: Version,
    bytes: Vec<u8>,
    pub(crate) ours: Result<Option<(usize, Tree)>, ProtocolError>,
    pub(crate) theirs: Result<Option<(usize, Tree)>, String>,
}

impl Case {
    pub(crate) fn new(version: Version, bytes: &[u8]) -> Self {
        Self {
            version,
            bytes: bytes.to_vec(),
            ours: ours(bytes),
            theirs: theirs::decode(version, bytes),
        }
    }

    pub(crate) fn agrees(&self) -> bool {
        match (&self.ours, &self.theirs) {
            (Err(_), Err(_)) => true,
            (Ok(ours), Ok(theirs)) => ours == theirs,
            _ => false,
        }
    }

    /// The first class that explains the disagreement.
    pub(crate) fn class(&self) -> Option<&'static str> {
        CLASSES
            .iter()
            .find(|class| (class.explains)(self))
            .map(|class| class.name)
    }

    /// They take, or wait for more of, what we refuse for this reason.
    fn only_we_refuse(&self, reason: impl Fn(ProtocolError) -> bool) -> bool {
        self.theirs.is_ok() && self.ours.as_ref().is_err_and(|&error| reason(error))
    }

    /// We take, or wait for more of, what they refuse, and an item like this is there.
    fn only_they_refuse(&self, item: impl Fn(&Node) -> bool) -> bool {
        self.ours.is_ok() && self.theirs.is_err() && self.has(item)
    }

    fn has(&self, item: impl Fn(&Node) -> bool) -> bool {
        Node::first(&self.bytes).is_some_and(|node| node.any(&item))
    }

    /// The line that made us refuse: the last of the shortest start we refuse.
    fn refused_line(&self) -> Option<&str> {
        let len = (0..=self.bytes.len()).find(|&len| ours(&self.bytes[..len]).is_err())?;
        let line = self.bytes[..len].strip_suffix(b"\r\n")?;
        let start = line
            .windows(2)
            .rposition(|two| two == b"\r\n")
            .map_or(0, |at| at + 2);
        std::str::from_utf8(&line[start + 1..]).ok()
    }
}

fn ours(bytes: &[u8]) -> Result<Option<(usize, Tree)>, ProtocolError> {
    let len = Scanner::new(Limits::DEFAULT).scan(bytes)?;
    Ok(len.map(|len| (len, Tree::of(read(&bytes[..len])).sorted())))
}

pub(crate) const CLASSES: &[Class] = &[
    Class {
        name: "terminator-unchecked",
        witness: (Version::Three, b"$3\r\nfooXY"),
        explains: |case| case.only_we_refuse(|error| error == ProtocolError::BadTerminator),
    },
    Class {
        name: "no-limits",
        witness: (Version::Two, b"$1000000000\r\n"),
        explains: |case| {
            case.only_we_refuse(|error| {
                matches!(
                    error,
                    ProtocolError::FrameTooLong { .. }
                        | ProtocolError::LineTooLong { .. }
                        | ProtocolError::TooDeep { .. }
                        | ProtocolError::TooManyElements { .. }
                )
            })
        },
    },
    Class {
        name: "length-spelling",
        witness: (Version::Two, b"$+3\r\nfoo\r\n"),
        explains: |case| {
            case.only_we_refuse(|error| error == ProtocolError::BadLength)
                && case
                    .refused_line()
                    .is_some_and(|line| line.parse::<isize>().is_ok())
        },
    },
    Class {
        name: "double-spelling",
        witness: (Version::Three, b",.5\r\n"),
        explains: |case| {
            case.only_we_refuse(|error| error == ProtocolError::BadDouble)
                && case
                    .refused_line()
                    .is_some_and(|line| line.parse::<f64>().is_ok())
        },
    },
    Class {
        name: "big-number-unchecked",
        witness: (Version::Three, b"(12a\r\n"),
        explains: |case| case.only_we_refuse(|error| error == ProtocolError::BadBigNumber),
    },
    Class {
        name: "null-content",
        witness: (Version::Three, b"_x\r\n"),
        explains: |case| case.only_we_refuse(|error| error == ProtocolError::BadNull),
    },
    Class {
        name: "verbatim-unchecked",
        witness: (Version::Three, b"=5\r\ntxt-a\r\n"),
        explains: |case| case.only_we_refuse(|error| error == ProtocolError::BadVerbatim),
    },
    Class {
        name: "streamed",
        witness: (Version::Three, b";3\r\nfoo\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_we_refuse(|error| error == ProtocolError::Streamed)
        },
    },
    Class {
        name: "hello-request",
        witness: (Version::Three, b"HELLO 3\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_we_refuse(|error| {
                    matches!(
                        error,
                        ProtocolError::HttpPeer | ProtocolError::UnknownType(b'H')
                    )
                })
        },
    },
    Class {
        name: "resp3-type",
        witness: (Version::Two, b"_\r\n"),
        explains: |case| {
            case.version == Version::Two
                && case.only_they_refuse(|node| !b"+-:$*".contains(&node.kind))
        },
    },
    Class {
        name: "resp2-null",
        witness: (Version::Three, b"$-1\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_they_refuse(|node| b"$*".contains(&node.kind) && node.line == b"-1")
        },
    },
    Class {
        name: "error-utf8",
        witness: (Version::Two, b"-ERR \xff\r\n"),
        explains: |case| {
            case.only_they_refuse(|node| {
                node.kind == b'-' && std::str::from_utf8(&node.line).is_err()
            })
        },
    },
    Class {
        name: "aggregate-key",
        witness: (Version::Three, b"~1\r\n*0\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_they_refuse(|node| node.hashed().iter().any(|key| key.is_aggregate()))
        },
    },
    Class {
        name: "attributes-in-a-row",
        witness: (Version::Three, b"|0\r\n|0\r\n+OK\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_they_refuse(|node| {
                    node.value.as_ref().is_some_and(|value| value.kind == b'|')
                })
        },
    },
    Class {
        name: "attribute-of-null",
        witness: (Version::Three, b"|0\r\n_\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_they_refuse(|node| {
                    node.value.as_ref().is_some_and(|value| value.kind == b'_')
                })
        },
    },
    Class {
        name: "verbatim-format",
        witness: (Version::Three, b"=5\r\nabc:x\r\n"),
        explains: |case| {
            case.version == Version::Three
                && case.only_they_refuse(|node| {
                    node.kind == b'='
                        && !node.payload.starts_with(b"txt")
                        && !node.payload.starts_with(b"mkd")
                })
        },
    },
    Class {
        name: "duplicates-collapse",
        witness: (Version::Three, b"~2\r\n:1\r\n:1\r\n"),
        explains: |case| {
            let (Ok(Some(ours)), Ok(Some(theirs))) = (&case.ours, &case.theirs) else {
                return false;
            };
            ours.0 == theirs.0 && case.version == Version::Three && case.has(has_equal_keys)
        },
    },
];

/// Keys they take for one: equal numbers, booleans or nulls. Strings they tell apart by where they stand.
fn has_equal_keys(node: &Node) -> bool {
    let keys: Vec<String> = node
        .hashed()
        .iter()
        .filter_map(|key| scalar_key(key.bare()))
        .collect();
    keys.iter()
        .enumerate()
        .any(|(index, key)| keys[..index].contains(key))
}

fn scalar_key(node: &Node) -> Option<String> {
    let line = std::str::from_utf8(&node.line).ok()?;
    match node.kind {
        b':' => Some(format!("integer {}", line.parse::<i64>().ok()?)),
        b',' => Some(format!("double {}", line.parse::<f64>().ok()?)),
        b'#' | b'_' => Some(line.to_owned()),
        _ => None,
    }
}
