//! `SCAN`, and the patterns of `MATCH`.

use crate::keys::{Dialect, Held, Keys, NOT_A_NUMBER, Reply, SYNTAX, number};

impl Keys {
    /// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`
    ///
    /// A cursor is a place among the hashes of the keys, so that whatever is there from the first page to the last is given.
    /// `COUNT` counts keys before any is left out: a page may be empty, and not the last.
    pub(crate) fn scan(&mut self, dialect: Dialect, cursor: &[u8], options: &[Vec<u8>]) -> Reply {
        let error = |text: &str| Reply::Error(text.to_owned());
        let cursor = std::str::from_utf8(cursor).ok().map(str::parse::<u64>);
        let Some(Ok(cursor)) = cursor else {
            return error("ERR invalid cursor");
        };
        let (mut pattern, mut count, mut kind) = (None, 10_usize, None);
        for option in options.chunks(2) {
            match option {
                [name, value] if name.eq_ignore_ascii_case(b"MATCH") => pattern = Some(value),
                [name, value] if name.eq_ignore_ascii_case(b"COUNT") => match number(value) {
                    None => return error(NOT_A_NUMBER),
                    Some(n @ 1..) => count = n.try_into().unwrap_or(usize::MAX),
                    Some(_) => return error(SYNTAX),
                },
                [name, value] if name.eq_ignore_ascii_case(b"TYPE") => {
                    let value = value.to_ascii_lowercase();
                    let known = ["string", "list", "set", "zset", "hash", "stream"];
                    let known = known.iter().any(|kind| kind.as_bytes() == value);
                    if !known && matches!(dialect, Dialect::Valkey8 | Dialect::Valkey9) {
                        return error("ERR unknown type name");
                    }
                    kind = Some(value);
                }
                _ => return error(SYNTAX),
            }
        }
        let fits = |key: &[u8]| pattern.is_none_or(|pattern| matches(pattern, key));
        self.tracking.look_at(fits);
        let ahead = self.iter().map(|(key, entry)| (hash(key), key, entry));
        let mut ahead: Vec<_> = ahead.filter(|(hash, ..)| *hash >= cursor).collect();
        ahead.sort_by_key(|(hash, ..)| *hash);
        // Keys of the same hash are not parted.
        let last = ahead.get(count.saturating_sub(1)).map(|(hash, ..)| *hash);
        let more = last.filter(|last| ahead.iter().any(|(hash, ..)| hash > last));
        let page = ahead
            .into_iter()
            .take_while(|(hash, ..)| last.is_none_or(|last| *hash <= last))
            .filter(|(_, key, entry)| {
                fits(key) && kind.as_deref().is_none_or(|kind| kind == name(&entry.held))
            });
        let page = page.map(|(_, key, _)| Reply::Bulk(key.clone())).collect();
        let next = more.map_or(0, |last| last + 1);
        Reply::Many(vec![
            Reply::Bulk(next.to_string().into_bytes()),
            Reply::Many(page),
        ])
    }
}

fn name(held: &Held) -> &'static [u8] {
    match held {
        Held::Text(_) => b"string",
        Held::List(_) => b"list",
        Held::Sorted(_) => b"zset",
    }
}

/// FNV-1a, in 32 bits and never the cursor that ends a scan.
fn hash(key: &[u8]) -> u64 {
    let hash = key.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    u64::from(hash) + 1
}

/// Whether a text is as a pattern says: `*`, `?`, `[a-c]`, `[^x]`, and `\` before what stands for itself.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], text) => text.is_empty(),
        ([b'*', rest @ ..], text) => (0..=text.len()).any(|at| matches(rest, &text[at..])),
        (_, []) => false,
        ([b'?', pattern @ ..], [_, text @ ..]) => matches(pattern, text),
        ([b'[', pattern @ ..], [byte, text @ ..]) => {
            let (fits, pattern) = class(pattern, *byte);
            fits && matches(pattern, text)
        }
        ([b'\\', own, pattern @ ..] | [own, pattern @ ..], [byte, text @ ..]) => {
            own == byte && matches(pattern, text)
        }
    }
}

/// Whether a byte is in a class, and what comes behind it. One that is not closed goes to the end.
fn class(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let (not, mut pattern) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut within = false;
    loop {
        pattern = match pattern {
            [b'\\', own, rest @ ..] => {
                within |= *own == byte;
                rest
            }
            [b']', rest @ ..] => return (within != not, rest),
            [] => return (within != not, pattern),
            [from, b'-', to, rest @ ..] => {
                within |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [own, rest @ ..] => {
                within |= *own == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_what_they_say() {
        let cases: &[(&str, &str, bool)] = &[
            ("", "", true),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("[]", "a", false),
            ("\\", "\\", true),
        ];
        for (pattern, text, expected) in cases {
            let met = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(met, *expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_scan_gives_everything_that_stays_whatever_goes_and_comes() {
        let mut keys = Keys::default();
        let put = |keys: &mut Keys, key: &str| keys.put(key.as_bytes(), Held::List(1), None);
        for n in 0..50 {
            put(&mut keys, &format!("stays{n}"));
            put(&mut keys, &format!("goes{n}"));
        }
        let (mut cursor, mut seen, mut pages) = (b"0".to_vec(), Vec::new(), 0);
        loop {
            let options = [b"COUNT".to_vec(), b"3".to_vec()];
            let Reply::Many(page) = keys.scan(Dialect::Redis8, &cursor, &options) else {
                panic!("no page");
            };
            let [Reply::Bulk(next), Reply::Many(found)] = &page[..] else {
                panic!("{page:?}");
            };
            seen.extend(found.iter().map(|key| format!("{key:?}")));
            if next == b"0" {
                break;
            }
            cursor.clone_from(next);
            keys.remove(format!("goes{pages}").as_bytes());
            put(&mut keys, &format!("comes{pages}"));
            pages += 1;
        }
        for n in 0..50 {
            let key = format!("{:?}", format!("stays{n}"));
            assert_eq!(seen.iter().filter(|seen| **seen == key).count(), 1, "{key}");
        }
        assert!(pages > 10);
    }
}
