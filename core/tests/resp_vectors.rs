//! Fixed examples: what servers really sent, every limit at it and one over, every error, every printed form.

use tenure_core::resp::{
    Arg, BufferTooSmall, Items, Limits, MAX_DEPTH, ProtocolError, Scanner, Value, encode,
    encoded_len, read,
};

fn scan(bytes: &[u8], limits: Limits) -> Result<Option<usize>, ProtocolError> {
    Scanner::new(limits).scan(bytes)
}

/// The value of bytes that are exactly one frame.
fn value(bytes: &[u8]) -> Value<'_> {
    assert_eq!(
        scan(bytes, Limits::DEFAULT),
        Ok(Some(bytes.len())),
        "{}",
        bytes.escape_ascii()
    );
    read(bytes)
}

fn items(bytes: &[u8]) -> Items<'_> {
    value(bytes).as_items().expect("an array, set or push")
}

// What servers sent, RESP2.

#[test]
fn a_missing_key_a_false_script_and_a_timeout_are_null_in_resp2() {
    assert_eq!(value(b"$-1\r\n"), Value::Null);
    assert_eq!(value(b"*-1\r\n"), Value::Null);
}

#[test]
fn a_ping_while_subscribed_in_resp2_is_an_array() {
    assert!(
        items(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n")
            .iter()
            .eq([Value::Bulk(b"pong"), Value::Bulk(b"")])
    );
}

// What servers sent, RESP3.

#[test]
fn the_null_of_resp3_alone_and_inside_a_script_reply() {
    assert_eq!(value(b"_\r\n"), Value::Null);
    assert!(items(b"*3\r\n:1\r\n_\r\n:3\r\n").iter().eq([
        Value::Int(1),
        Value::Null,
        Value::Int(3)
    ]));
}

#[test]
fn a_double() {
    assert_eq!(value(b",3.5\r\n"), Value::Double(3.5));
    assert_eq!(value(b",inf\r\n"), Value::Double(f64::INFINITY));
    assert_eq!(value(b",-1e5\r\n"), Value::Double(-1e5));
    assert!(matches!(value(b",nan\r\n"), Value::Double(number) if number.is_nan()));
}

#[test]
fn errors_of_scripts_and_of_the_server() {
    for text in [
        "MYERR x",
        "ERR NOCODE",
        "NOPROTO unsupported protocol version",
        "ERR Protocol error: invalid bulk length",
    ] {
        let reply = format!("-{text}\r\n");
        assert_eq!(value(reply.as_bytes()).error(), Some(text.as_bytes()));
        assert_eq!(
            value(reply.as_bytes()).as_bytes(),
            None,
            "an error is not taken for a string"
        );
    }
    assert_eq!(
        value(b"-ERR \xff\r\n").error(),
        Some(b"ERR \xff".as_slice()),
        "not always UTF-8"
    );
    assert_eq!(
        value(b"!5\r\nERR\r\n\r\n").error(),
        Some(b"ERR\r\n".as_slice())
    );
}

#[test]
fn the_reply_to_hello_is_nested_four_deep() {
    let hello = b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n8.6.3\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n\
        $4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*1\r\n%4\r\n$4\r\nname\r\n\
        $9\r\nvectorset\r\n$3\r\nver\r\n:1\r\n$4\r\npath\r\n$0\r\n\r\n$4\r\nargs\r\n*0\r\n";
    let pairs = value(hello).as_pairs().unwrap();
    assert_eq!(pairs.len(), 7);
    assert_eq!(pairs.get(b"proto"), Some(Value::Int(3)));
    assert_eq!(
        pairs.get(b"version").and_then(|version| version.as_bytes()),
        Some(b"8.6.3".as_slice())
    );
    let module = pairs
        .get(b"modules")
        .and_then(|modules| modules.as_items())
        .and_then(|items| items.get(0))
        .unwrap();
    assert!(
        module
            .as_pairs()
            .unwrap()
            .get(b"args")
            .unwrap()
            .as_items()
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        scan(
            hello,
            Limits {
                depth: 4,
                ..Limits::DEFAULT
            }
        ),
        Ok(Some(hello.len()))
    );
    assert_eq!(
        scan(
            hello,
            Limits {
                depth: 3,
                ..Limits::DEFAULT
            }
        ),
        Err(ProtocolError::TooDeep { limit: 3 })
    );
}

#[test]
fn pushes_come_around_replies_and_inside_one() {
    let stream = b"+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$6\r\nlock:a\r\n:1\r\n";
    let mut scanner = Scanner::new(Limits::DEFAULT);
    let (mut at, mut kinds) = (0, Vec::new());
    while let Some(len) = scanner.scan(&stream[at..]).unwrap() {
        kinds.push(matches!(read(&stream[at..at + len]), Value::Push(_)));
        at += len;
    }
    assert_eq!((at, kinds), (stream.len(), vec![false, true, false]));

    // MULTI, SUBSCRIBE, GET, EXEC: this one is part of the reply.
    let exec = items(b"*2\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n_\r\n");
    assert!(matches!(exec.get(0), Some(Value::Push(push)) if push.len() == 3));
    assert_eq!(exec.get(1), Some(Value::Null));
}

#[test]
fn every_other_type() {
    assert_eq!(value(b"#t\r\n"), Value::Bool(true));
    assert_eq!(value(b"#f\r\n"), Value::Bool(false));
    assert_eq!(
        value(b"(-123456789012345678901234567890\r\n"),
        Value::BigNumber(b"-123456789012345678901234567890")
    );
    assert_eq!(
        value(b"=8\r\ntxt:a\r\nb\r\n"),
        Value::Verbatim {
            format: *b"txt",
            text: b"a\r\nb"
        }
    );
    assert_eq!(value(b"=4\r\nabc:\r\n").as_bytes(), Some(b"".as_slice()));
    assert!(matches!(value(b"~2\r\n+a\r\n+b\r\n"), Value::Set(items) if items.len() == 2));
    assert_eq!(value(b":-9223372036854775808\r\n").as_int(), Some(i64::MIN));
    assert_eq!(value(b"+\r\n"), Value::Simple(b""));
    assert_eq!(value(b"*0\r\n"), value(b"*0\r\n"));
    assert_ne!(value(b"*0\r\n"), value(b"~0\r\n"), "an array is no set");
}

#[test]
fn attributes_are_skipped_at_every_level() {
    let reply = b"|1\r\n+a\r\n*0\r\n*2\r\n|1\r\n+b\r\n|0\r\n:9\r\n:1\r\n|0\r\n|0\r\n:2\r\n";
    assert!(items(reply).iter().eq([Value::Int(1), Value::Int(2)]));
    assert_eq!(
        scan(b"|1\r\n+a\r\n:1\r\n", Limits::DEFAULT),
        Ok(None),
        "the value is still to come"
    );
    assert_eq!(scan(b"*1\r\n|0\r\n", Limits::DEFAULT), Ok(None));
}

// Limits: at them, and one over.

#[test]
fn the_frame_limit() {
    let limits = |frame| Limits {
        frame,
        ..Limits::DEFAULT
    };
    let frames: [&[u8]; 6] = [
        b"+OK\r\n",
        b"_\r\n",
        b"$3\r\nfoo\r\n",
        b"*2\r\n:1\r\n:2\r\n",
        b"|0\r\n=5\r\ntxt:a\r\n",
        b"*1\r\n$0\r\n\r\n",
    ];
    for frame in frames {
        assert_eq!(
            scan(frame, limits(frame.len())),
            Ok(Some(frame.len())),
            "{}",
            frame.escape_ascii()
        );
        let limit = frame.len() - 1;
        assert_eq!(
            scan(frame, limits(limit)),
            Err(ProtocolError::FrameTooLong { limit }),
            "{}",
            frame.escape_ascii()
        );
    }
    assert_eq!(
        scan(b"$65528\r\n", Limits::DEFAULT),
        Err(ProtocolError::FrameTooLong { limit: 65536 })
    );
    assert_eq!(
        scan(b"$65526\r\n", Limits::DEFAULT),
        Ok(None),
        "8 + 65526 + 2 is the limit"
    );
}

#[test]
fn the_line_limit() {
    let limits = Limits {
        line: 5,
        ..Limits::DEFAULT
    };
    assert_eq!(scan(b"+12345\r\n", limits), Ok(Some(8)));
    assert_eq!(
        scan(b"+123456\r\n", limits),
        Err(ProtocolError::LineTooLong { limit: 5 })
    );
    assert_eq!(
        scan(b"+123456", limits),
        Err(ProtocolError::LineTooLong { limit: 5 }),
        "before it ends"
    );
}

#[test]
fn the_depth_limit() {
    for kind in ["*1\r\n", "~1\r\n", ">1\r\n", "%1\r\n+k\r\n", "|1\r\n+k\r\n"] {
        let reply = |depth| [kind.repeat(depth), "_\r\n".repeat(depth + 1)].concat();
        let at = |depth, limit| {
            scan(
                reply(depth).as_bytes(),
                Limits {
                    depth: limit,
                    ..Limits::DEFAULT
                },
            )
        };
        assert!(matches!(at(8, 8), Ok(Some(_))), "{kind:?}");
        assert_eq!(
            at(9, 8),
            Err(ProtocolError::TooDeep { limit: 8 }),
            "{kind:?}"
        );
        assert!(matches!(at(32, 255), Ok(Some(_))), "{kind:?}");
        assert_eq!(
            at(33, 255),
            Err(ProtocolError::TooDeep { limit: MAX_DEPTH }),
            "{kind:?}"
        );
    }
    assert_eq!(
        scan(
            b"*0\r\n",
            Limits {
                depth: 0,
                ..Limits::DEFAULT
            }
        ),
        Err(ProtocolError::TooDeep { limit: 0 })
    );
    assert_eq!(
        scan(
            b"+OK\r\n",
            Limits {
                depth: 0,
                ..Limits::DEFAULT
            }
        ),
        Ok(Some(5))
    );
    // Beside each other is not inside each other.
    assert_eq!(
        scan(
            b"*2\r\n*0\r\n*0\r\n",
            Limits {
                depth: 2,
                ..Limits::DEFAULT
            }
        ),
        Ok(Some(12))
    );
}

#[test]
fn the_element_limit_is_of_the_whole_frame() {
    let limits = Limits {
        elements: 4,
        ..Limits::DEFAULT
    };
    let over = Err(ProtocolError::TooManyElements { limit: 4 });
    assert!(matches!(
        scan(b"*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n", limits),
        Ok(Some(_))
    ));
    assert_eq!(scan(b"*5\r\n", limits), over);
    assert!(matches!(
        scan(b"%2\r\n:1\r\n:2\r\n:3\r\n:4\r\n", limits),
        Ok(Some(_))
    ));
    assert_eq!(scan(b"%3\r\n", limits), over);
    assert_eq!(scan(b"*1\r\n*4\r\n", limits), over);
    assert_eq!(scan(b"|1\r\n:1\r\n:2\r\n*3\r\n", limits), over);
    // It starts anew with each frame.
    let mut scanner = Scanner::new(limits);
    for _ in 0..3 {
        assert!(matches!(
            scanner.scan(b"*3\r\n:1\r\n:2\r\n:3\r\n"),
            Ok(Some(_))
        ));
    }
}

/// A gigabyte, and more than any counter holds: refused when announced, before anything of it has come.
#[test]
fn an_announced_length_is_judged_at_once() {
    for length in [
        "1000000000",
        "9223372036854775807",
        "18446744073709551615",
        "99999999999999999999999999",
    ] {
        for kind in ["$", "!", "="] {
            let reply = format!("{kind}{length}\r\n");
            assert_eq!(
                scan(reply.as_bytes(), Limits::DEFAULT),
                Err(ProtocolError::FrameTooLong { limit: 65536 })
            );
        }
        for kind in ["*", "~", ">", "%", "|"] {
            let reply = format!("{kind}{length}\r\n");
            assert_eq!(
                scan(reply.as_bytes(), Limits::DEFAULT),
                Err(ProtocolError::TooManyElements { limit: 1024 })
            );
        }
    }
}

// Errors.

#[test]
fn every_error_has_bytes_that_reach_it() {
    use ProtocolError::*;
    let cases: &[(&[u8], ProtocolError)] = &[
        (b"$+3\r\n", BadLength),
        (b"$03\r\n", BadLength),
        (b"$-2\r\n", BadLength),
        (b"$\r\n", BadLength),
        (b"*1a\r\n", BadLength),
        (b"%-1\r\n", BadLength),
        (b"=-1\r\n", BadLength),
        (b">-1\r\n", BadLength),
        (b":\r\n", BadInteger),
        (b":1.5\r\n", BadInteger),
        (b":9223372036854775808\r\n", BadInteger),
        (b"$3\r\nfooXY", BadTerminator),
        (b"$3\r\nfoo\rY", BadTerminator),
        (b"$3\r\nfoo\n", BadTerminator),
        (b"+a\rb\r\n", BadTerminator),
        (b"+a\nb\r\n", BadTerminator),
        (b"+a\n", BadTerminator),
        (b"_\r\r\n", BadTerminator),
        (b"?", UnknownType(b'?')),
        (b"\x00", UnknownType(0)),
        (b"*1\r\nH", UnknownType(b'H')),
        (b"*1\r\n\x15", UnknownType(0x15)),
        (b"+OK\r\nH", UnknownType(b'H')),
        (b"$?\r\n", Streamed),
        (b"*?\r\n", Streamed),
        (b"%?\r\n", Streamed),
        (b";", Streamed),
        (b".", Streamed),
        (b"\x15\x03\x03\x00\x02\x02\x46", TlsPeer),
        (b"\x16", TlsPeer),
        (b"HTTP/1.1 400 Bad Request\r\n", HttpPeer),
        (b"#x\r\n", BadBool),
        (b"#\r\n", BadBool),
        (b",1.\r\n", BadDouble),
        (b"(1.5\r\n", BadBigNumber),
        (b"_x\r\n", BadNull),
        (b"=3\r\n", BadVerbatim),
        (b"=5\r\ntxtaa\r\n", BadVerbatim),
    ];
    for &(bytes, error) in cases {
        let mut scanner = Scanner::new(Limits::DEFAULT);
        let mut start = 0;
        let found = loop {
            match scanner.scan(&bytes[start..]) {
                Ok(Some(len)) => start += len,
                other => break other,
            }
        };
        assert_eq!(found, Err(error), "{}", bytes.escape_ascii());
        assert_eq!(scanner.scan(b"+OK\r\n"), Err(error), "it stays failed");
        scanner.reset();
        assert_eq!(scanner.scan(b"+OK\r\n"), Ok(Some(5)));
    }
}

#[test]
fn errors_say_what_is_wrong() {
    assert_eq!(
        ProtocolError::FrameTooLong { limit: 7 }.to_string(),
        "a reply is longer than the limit of 7 bytes"
    );
    assert_eq!(
        ProtocolError::UnknownType(0).to_string(),
        "a reply starts with byte 0x00, which is no RESP type"
    );
    assert_eq!(
        BufferTooSmall { needed: 14 }.to_string(),
        "the command needs 14 bytes"
    );
    let _: &dyn core::error::Error = &ProtocolError::BadNull;
    assert!(size_of::<ProtocolError>() <= 16 && size_of::<Value<'_>>() <= 40);
}

// Commands.

#[test]
fn a_lock_command_in_bytes() {
    let prefixed = [b"lock:".as_slice(), b"a"];
    let args = [
        "SET".into(),
        Arg::Parts(&prefixed),
        (&b"value"[..]).into(),
        b"NX".into(),
        "GET".into(),
        "PX".into(),
        30_000.into(),
    ];
    let expected = b"*7\r\n$3\r\nSET\r\n$6\r\nlock:a\r\n$5\r\nvalue\r\n$2\r\nNX\r\n$3\r\nGET\r\n$2\r\nPX\r\n$5\r\n30000\r\n";
    let mut out = [0xAA; 128];
    assert_eq!(encode(&args, &mut out), Ok(expected.len()));
    assert_eq!(&out[..expected.len()], expected);
    assert!(
        out[expected.len()..].iter().all(|&byte| byte == 0xAA),
        "nothing behind it is touched"
    );
    assert_eq!(encoded_len(&args), expected.len());
}

#[test]
fn a_buffer_of_the_size_suffices_and_one_byte_less_stays_as_it_was() {
    let args = ["GET".into(), "a".into(), Arg::Int(u64::MAX)];
    let needed = encoded_len(&args);
    assert_eq!(encode(&args, &mut vec![0; needed]), Ok(needed));
    let mut small = vec![0xAA; needed - 1];
    assert_eq!(encode(&args, &mut small), Err(BufferTooSmall { needed }));
    assert!(small.iter().all(|&byte| byte == 0xAA));
}

#[cfg(feature = "alloc")]
#[test]
fn appending_keeps_what_is_there_and_grows_once() {
    let mut out = b"before".to_vec();
    tenure_core::resp::encode_to(&["PING".into()], &mut out);
    assert_eq!(out, b"before*1\r\n$4\r\nPING\r\n");
}

/// The parts may be one slice many times over, so their sum can be larger than any memory.
#[test]
fn a_command_larger_than_any_memory_is_an_error() {
    let huge = vec![0_u8; 1 << 20];
    let parts = vec![huge.as_slice(); 1 << 20];
    let args = vec![Arg::Parts(&parts); 4];
    assert!(
        matches!(encode(&args, &mut [0; 64]), Err(BufferTooSmall { needed }) if needed > 1 << 40)
    );
}

// Bytes no scanner accepted.

#[test]
fn a_count_without_elements_behind_it_costs_nothing() {
    let items = read(b"*999999999\r\n:1\r\n+").as_items().unwrap();
    assert_eq!(items.len(), 1, "five bytes hold one element at most");
    assert!(items.iter().eq([Value::Int(1)]));
    let items = read(b"*9\r\n:1\r\n?????").as_items().unwrap();
    assert!(items.iter().eq([Value::Int(1), Value::Null, Value::Null]));
    assert_eq!(read(b""), Value::Null);
    assert_eq!(read(b"$5\r\nhell"), Value::Null);
}

// What is printed.

#[test]
fn debug_shows_structure_and_no_payload() {
    let shown = |bytes: &[u8]| format!("{:?}", read(bytes));
    assert_eq!(shown(b"+OK\r\n"), "Simple(\"OK\")");
    assert_eq!(shown(b"+\x1b[2J\r\n"), "Simple(\"\\x1b[2J\")", "escaped");
    assert_eq!(shown(b"$6\r\nsecret\r\n"), "Bulk(6 bytes)");
    assert_eq!(shown(b"=10\r\ntxt:secret\r\n"), "Verbatim(txt, 6 bytes)");
    assert_eq!(
        shown(b"*2\r\n:1\r\n~1\r\n_\r\n"),
        "Array[Int(1), Set[Null]]"
    );
    assert_eq!(
        shown(b"%1\r\n+a\r\n#t\r\n"),
        "Map{Simple(\"a\"): Bool(true)}"
    );
    // Servers repeat the arguments of a command they do not know.
    let unknown =
        b"-ERR unknown command 'DELIFEQ', with args beginning with: 'lock:a' 'secret'\r\n";
    assert_eq!(shown(unknown), "Error(\"ERR\", 74 bytes)");
    assert!(!format!("{:?}", [Arg::from("secret"), Arg::Parts(&[b"secret"])]).contains("secret"));
}

#[test]
fn debug_is_short_whatever_was_sent() {
    let many = [b"*1000\r\n".as_slice(), &b"+aaaa\r\n".repeat(1000)].concat();
    let shown = format!("{:?}", value(&many));
    assert!(
        shown.len() < 1000 && shown.ends_with("... 968 more]"),
        "{shown}"
    );
    let long = [b"+".as_slice(), &[0xFF; 4000], b"\r\n"].concat();
    let shown = format!("{:?}", value(&long));
    assert!(
        shown.len() < 400 && shown.contains("... 3936 more bytes"),
        "{shown}"
    );
}
