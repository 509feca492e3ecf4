//! What clients ask about a server and the keys of others: `SCAN`, `CONFIG GET`, `INFO`, `TIME`.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::rng::Rng;
use tenure_sim::FakeServer;
use tenure_tests::{Failure, Server};

use crate::{Author, Pair, Reply, each, words};

/// Both say the same where the order is the same.
#[test]
fn what_is_asked_wrongly_is_refused_alike() -> Result<(), Failure> {
    let commands: &[&[&str]] = &[
        &["SCAN"],
        &["SCAN", "x"],
        &["SCAN", "0", "COUNT", "0"],
        &["SCAN", "0", "COUNT", "-1"],
        &["SCAN", "0", "COUNT", "x"],
        &["SCAN", "0", "COUNT"],
        &["SCAN", "0", "MATCH"],
        &["SCAN", "0", "BOGUS"],
        &["SCAN", "0", "BOGUS", "1"],
        &["SCAN", "0", "TYPE", "bogus"],
        &["SCAN", "0", "TYPE", "zset"],
        &["SCAN", "0", "type", "STRING", "count", "5", "COUNT", "7"],
        &["TYPE"],
        &["TYPE", "a"],
        &["TYPE", "a", "b"],
        &["CONFIG"],
        &["CONFIG", "GET"],
        &["CONFIG", "GET", "bogus"],
        &["CONFIG", "get", "APPENDONLY"],
        &["CONFIG", "GET", "maxmemory-pol*"],
        &["INFO", "bogus"],
        &["FLUSHALL", "BOGUS"],
        &["FLUSHDB", "SYNC", "SYNC"],
        &["FLUSHDB", "SYNC"],
        &["EXISTS"],
        &["DEL"],
        &["PEXPIRE", "a"],
        &["PEXPIRE", "a", "x"],
        &["PEXPIRE", "a", "1"],
        &["TIME", "x"],
        &["RESET", "x"],
        &["CLIENT", "TRACKING"],
        &["RESET"],
    ];
    each(|server, dialect| {
        let mut pair = Pair::new(server, dialect)?;
        for protocol in ["2", "3"] {
            pair.compare(&words(&["HELLO", protocol]))?;
            pair.compare(&words(&["SET", "text", "one"]))?;
            pair.compare(&words(&["RPUSH", "list", "one"]))?;
            pair.compare(&words(&["TYPE", "text"]))?;
            pair.compare(&words(&["TYPE", "list"]))?;
            for command in commands {
                pair.compare(&words(command))?;
            }
        }
        Ok(2 * commands.len())
    })
}

impl Author {
    fn pattern(&mut self) -> Vec<u8> {
        let bits = [
            "a", "b", "c", "*", "?", "[", "]", "[ab]", "[^a]", "[a-c]", "[c-a]", "\\", "\\*", "^",
            "-",
        ];
        let many = 1 + self.below(6);
        (0..many).flat_map(|_| self.pick(&bits)).collect()
    }

    fn name(&mut self) -> Vec<u8> {
        let many = 1 + self.below(5);
        let letters = ["a", "b", "c", "*", "[", "]", "\\", "-", "^"];
        (0..many).flat_map(|_| self.pick(&letters)).collect()
    }
}

/// Every key that a scan gives from its first page to its last.
fn scan(
    mut execute: impl FnMut(&[Vec<u8>]) -> Result<Reply, Failure>,
    options: &[Vec<u8>],
) -> Result<BTreeSet<Vec<u8>>, Failure> {
    let (mut cursor, mut found) = (b"0".to_vec(), BTreeSet::new());
    loop {
        let mut command = vec![b"SCAN".to_vec(), cursor];
        command.extend_from_slice(options);
        let page = match execute(&command)? {
            Reply::Many('*', page) => page,
            other => return Err(format!("no page: {other:?}").into()),
        };
        let [Reply::Bulk(next), Reply::Many('*', keys)] = &page[..] else {
            return Err(format!("no page: {page:?}").into());
        };
        for key in keys {
            match key {
                Reply::Bulk(key) => found.insert(key.clone()),
                other => return Err(format!("no key: {other:?}").into()),
            };
        }
        if next == b"0" {
            return Ok(found);
        }
        cursor = next.clone();
    }
}

#[test]
fn scans_find_the_same_keys() -> Result<(), Failure> {
    each(|server, dialect| {
        let mut author = Author(Rng::new(3));
        let mut pair = Pair::new(server, dialect)?;
        for _ in 0..120 {
            let command = match author.below(2) {
                0 => vec![b"SET".to_vec(), author.name(), b"one".to_vec()],
                _ => vec![b"RPUSH".to_vec(), author.name(), b"one".to_vec()],
            };
            // One that is a string already is no list; both say so.
            pair.compare(&command)?;
        }
        let mut matched = 0;
        for _ in 0..300 {
            let mut options = Vec::new();
            if author.below(8) > 0 {
                options.extend([b"MATCH".to_vec(), author.pattern()]);
            }
            if author.below(2) == 0 {
                options.extend([b"COUNT".to_vec(), author.pick(&["3", "20", "50", "1000"])]);
            }
            if author.below(3) == 0 {
                options.extend([b"TYPE".to_vec(), author.pick(&["string", "list", "hash"])]);
            }
            let real = scan(|command| pair.real.execute(command), &options)?;
            let fake = &mut pair.fake;
            let fake = scan(
                |command| Reply::read(&mut fake.execute(command).as_slice()),
                &options,
            )?;
            let options = crate::show(&options);
            if real != fake {
                return Err(format!("{options}: {real:?}, and {fake:?} simulated").into());
            }
            matched += real.len();
        }
        assert!(matched > 1_000, "patterns that match nothing show nothing");
        Ok(420)
    })
}

/// The pairs of a map, which is an array in RESP2.
fn pairs(reply: Reply) -> BTreeMap<String, String> {
    let Reply::Many(_, words) = reply else {
        panic!("no map: {reply:?}");
    };
    let text = |word: &Reply| match word {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no text: {other:?}"),
    };
    let pairs = words.chunks_exact(2);
    pairs.map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
}

/// The lines of an INFO.
fn lines(reply: Reply) -> BTreeMap<String, String> {
    let Reply::Bulk(text) = reply else {
        panic!("no text: {reply:?}");
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn settings_and_facts_are_the_same() -> Result<(), Failure> {
    each(|server, dialect| {
        for protocol in ["2", "3"] {
            let mut pair = Pair::new(server, dialect)?;
            pair.compare(&words(&["HELLO", protocol]))?;
            for (policy, save) in [("allkeys-lru", "60 1"), ("noeviction", "")] {
                for (name, value) in [("maxmemory-policy", policy), ("save", save)] {
                    pair.real.execute(&words(&["CONFIG", "SET", name, value]))?;
                    pair.fake.configure(name, value);
                }
                let command = words(&["CONFIG", "GET", "SAVE", "append[o]nly", "maxmemory-policy"]);
                let real = pair.real.execute(&command)?;
                let fake = told(&mut pair.fake, &command)?;
                assert_eq!(std::mem::discriminant(&real), std::mem::discriminant(&fake));
                assert_eq!(pairs(real), pairs(fake));
                facts(server, &mut pair)?;
            }
        }
        Ok(8)
    })
}

fn told(fake: &mut FakeServer, command: &[Vec<u8>]) -> Result<Reply, Failure> {
    Reply::read(&mut fake.execute(command).as_slice())
}

fn facts(server: &Server, pair: &mut Pair) -> Result<(), Failure> {
    for sections in [
        &[][..],
        &["server"],
        &["Replication", "persistence"],
        &["all"],
    ] {
        let mut command = vec!["INFO"];
        command.extend(sections);
        let command = words(&command);
        let real = lines(pair.real.execute(&command)?);
        let fake = lines(told(&mut pair.fake, &command)?);
        assert!(!fake.is_empty());
        for (name, value) in fake {
            let theirs = real.get(&name).cloned();
            match name.as_str() {
                // Each has its own.
                "run_id" | "uptime_in_seconds" => {
                    let theirs = theirs.unwrap_or_default();
                    assert_eq!(theirs.is_empty(), value.is_empty(), "{name}");
                }
                _ => assert_eq!(theirs, Some(value), "{name} of {}", server.kind()),
            }
        }
    }
    let time = words(&["TIME"]);
    for reply in [pair.real.execute(&time)?, told(&mut pair.fake, &time)?] {
        let Reply::Many('*', parts) = reply else {
            panic!("no time: {reply:?}");
        };
        assert_eq!(parts.len(), 2);
        for part in parts {
            assert!(
                matches!(&part, Reply::Bulk(digits) if digits.iter().all(u8::is_ascii_digit)),
                "{part:?}"
            );
        }
    }
    Ok(())
}
