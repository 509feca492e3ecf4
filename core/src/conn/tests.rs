//! Every way through the handshake, and the verdict over every request at every byte.

use core::time::Duration;
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::resp::ProtocolError;

const NOW: Tick = Tick::from_micros(1_000);
const LIMIT: Duration = Duration::from_secs(1);

fn config(
    user: Option<&str>,
    password: Option<&str>,
    database: u32,
    name: Option<&str>,
) -> ConnConfig {
    ConnConfig {
        user: user.map(Into::into),
        password: password.map(Into::into),
        database,
        client_name: name.map(Into::into),
        limits: Limits::default(),
    }
}

fn feed(conn: &mut Conn<u32>, bytes: &[u8]) {
    conn.recv_space()[..bytes.len()].copy_from_slice(bytes);
    conn.received(bytes.len());
}

/// Takes everything, as the words of the commands.
fn sent(conn: &mut Conn<u32>) -> String {
    let text = String::from_utf8_lossy(conn.transmit(NOW)).into_owned();
    conn.transmitted(text.len());
    let words = text
        .split("\r\n")
        .filter(|word| !word.is_empty() && !word.starts_with(['*', '$']));
    words.collect::<Vec<_>>().join(" ")
}

/// Answers the steps of a handshake one after the other; gives the last thing that was sent, and how it ended.
fn shake(config: ConnConfig, replies: &[&str]) -> (Vec<String>, Result<ServerInfo, LinkFault>) {
    let mut conn = Conn::new(config);
    conn.open();
    let mut steps = vec![sent(&mut conn)];
    for reply in replies {
        feed(&mut conn, reply.as_bytes());
        match conn.poll() {
            Ok(None) => steps.push(sent(&mut conn)),
            Ok(Some(Incoming::Ready(info))) => {
                assert!(conn.is_ready() && conn.unsent() == 0);
                return (steps, Ok(info));
            }
            Ok(other) => panic!("{other:?}"),
            Err(fault) => return (steps, Err(fault)),
        }
    }
    panic!("not over after {steps:?}");
}

const HELLO3: &str = "%3\r\n+server\r\n+redis\r\n+version\r\n+8.6.3\r\n+proto\r\n:3\r\n";

#[test]
fn hello_does_it_all_in_one_step() {
    let (steps, info) = shake(config(Some("u"), Some("pw"), 0, Some("me")), &[HELLO3]);
    assert_eq!(steps, ["HELLO 3 AUTH u pw SETNAME me"]);
    let info = info.unwrap();
    assert_eq!(
        (info.protocol, info.flavour, info.version),
        (3, Flavour::Redis, Some((8, 6)))
    );
    let (steps, _) = shake(config(None, Some("pw"), 0, None), &[HELLO3]);
    assert_eq!(steps, ["HELLO 3 AUTH default pw"]);
}

#[test]
fn without_hello_it_is_resp2_step_by_step() {
    for refusal in [
        "-ERR unknown command 'HELLO'\r\n",
        "-NOPROTO unsupported protocol version\r\n",
        "-NOPERM no hello\r\n",
    ] {
        let (steps, info) = shake(
            config(Some("u"), Some("pw"), 4, Some("me")),
            &[refusal, "+OK\r\n", "+OK\r\n", "+OK\r\n"],
        );
        assert_eq!(steps[1..], ["AUTH u pw", "CLIENT SETNAME me", "SELECT 4"]);
        assert_eq!(info.unwrap().protocol, 2);
        let (steps, info) = shake(config(None, Some("pw"), 0, None), &[refusal, "+OK\r\n"]);
        assert_eq!(
            (&steps[1..], info.unwrap().protocol),
            (&["AUTH pw".into()][..], 2)
        );
        let (steps, info) = shake(config(None, None, 0, None), &[refusal]);
        assert_eq!((steps.len(), info.unwrap().protocol), (1, 2));
    }
}

#[test]
fn a_name_is_a_courtesy_and_a_database_is_not() {
    let (steps, info) = shake(
        config(None, None, 4, Some("me")),
        &[
            "-ERR unknown\r\n",
            "-NOPERM no client|setname\r\n",
            "+OK\r\n",
        ],
    );
    assert_eq!(
        (steps.last().map(String::as_str), info.is_ok()),
        (Some("SELECT 4"), true)
    );
    let (_, info) = shake(
        config(None, None, 400, None),
        &[HELLO3, "-ERR DB index is out of range\r\n"],
    );
    assert_eq!(info, Err(LinkFault::Handshake(ServerError::Other)));
    assert!(!LinkFault::Handshake(ServerError::Other).waiting_may_cure());
}

#[test]
fn what_nobody_but_an_operator_cures_ends_it() {
    for (replies, error) in [
        (
            &["-WRONGPASS invalid username-password pair or user is disabled.\r\n"][..],
            ServerError::WrongPass,
        ),
        (
            &["-NOAUTH HELLO must be called with the client already authenticated\r\n"],
            ServerError::NoAuth,
        ),
        (
            &["-DENIED Redis is running in protected mode\r\n"],
            ServerError::Denied,
        ),
        (
            &["-ERR unknown command\r\n", "-WRONGPASS no\r\n"],
            ServerError::WrongPass,
        ),
        (
            &[
                "-ERR unknown command\r\n",
                "-ERR AUTH called without any password configured\r\n",
            ],
            ServerError::Other,
        ),
        (
            &[
                "-ERR unknown command\r\n",
                "+OK\r\n",
                "-NOAUTH Authentication required.\r\n",
            ],
            ServerError::NoAuth,
        ),
    ] {
        let (_, info) = shake(config(None, Some("pw"), 0, Some("me")), replies);
        assert_eq!(info, Err(LinkFault::Handshake(error)), "{replies:?}");
        assert!(!LinkFault::Handshake(error).waiting_may_cure());
    }
    let (_, info) = shake(config(None, None, 1, None), &[HELLO3, "-LOADING wait\r\n"]);
    assert!(info.unwrap_err().waiting_may_cure());
}

#[test]
fn a_full_server_is_curable_whenever_it_says_so() {
    let full = "-ERR max number of clients reached\r\n";
    let (_, info) = shake(config(None, None, 0, None), &[full]);
    assert_eq!(info, Err(LinkFault::Closed));
    // Before the greeting has left.
    let mut conn: Conn<u32> = Conn::new(ConnConfig::default());
    conn.open();
    feed(&mut conn, full.as_bytes());
    assert_eq!(conn.poll().unwrap_err(), LinkFault::Closed);
    assert_eq!(conn.fault_text(), &full.as_bytes()[1..full.len() - 2]);
    conn.open();
    feed(&mut conn, b"-DENIED Redis is running in protected mode\r\n");
    assert_eq!(
        conn.poll().unwrap_err(),
        LinkFault::Handshake(ServerError::Denied)
    );
}

#[test]
fn other_peers_are_named() {
    for (bytes, expected) in [
        (&b"\x15\x03\x01\x00\x02\x02\x46"[..], ProtocolError::TlsPeer),
        (b"HTTP/1.1 400 Bad Request\r\n", ProtocolError::HttpPeer),
        (b"220 smtp\r\n", ProtocolError::UnknownType(b'2')),
    ] {
        let mut conn: Conn<u32> = Conn::new(ConnConfig::default());
        conn.open();
        sent(&mut conn);
        feed(&mut conn, bytes);
        let fault = conn.poll().unwrap_err();
        assert_eq!(fault, LinkFault::Protocol(expected));
        assert!(!fault.waiting_may_cure());
    }
}

fn ready() -> Conn<u32> {
    let mut conn = Conn::new(ConnConfig::default());
    conn.open();
    sent(&mut conn);
    feed(&mut conn, HELLO3.as_bytes());
    assert!(matches!(conn.poll(), Ok(Some(Incoming::Ready(_)))));
    conn
}

fn submit(conn: &mut Conn<u32>, tag: u32, limit: Duration) {
    conn.submit(tag, 1, limit, |out| {
        encode_to(&["PING".into(), u64::from(tag).into()], out)
    });
}

#[test]
fn a_reply_without_a_question_ends_it() {
    let mut conn = ready();
    feed(&mut conn, b"+OK\r\n");
    assert_eq!(conn.poll().unwrap_err(), LinkFault::UnexpectedReply);
    // Nor is there an answer to half a question.
    let mut conn = ready();
    submit(&mut conn, 1, LIMIT);
    let half = conn.transmit(NOW).len() / 2;
    conn.transmitted(half);
    feed(&mut conn, b"+OK\r\n");
    assert_eq!(conn.poll().unwrap_err(), LinkFault::UnexpectedReply);
    // An error before a close says why.
    let mut conn = ready();
    feed(&mut conn, b"-ERR idle for too long\r\n");
    assert_eq!(conn.poll().unwrap_err(), LinkFault::Closed);
    let mut conn = ready();
    submit(&mut conn, 1, LIMIT);
    sent(&mut conn);
    feed(
        &mut conn,
        b"-ERR Protocol error: invalid multibulk length\r\n",
    );
    assert_eq!(conn.poll().unwrap_err(), LinkFault::UnexpectedReply);
}

#[test]
fn pushes_belong_to_no_request() {
    let mut conn = ready();
    submit(&mut conn, 1, LIMIT);
    sent(&mut conn);
    feed(&mut conn, b">2\r\n+invalidate\r\n*1\r\n+k\r\n+PONG\r\n");
    assert!(matches!(conn.poll(), Ok(Some(Incoming::Push(_)))));
    assert!(matches!(
        conn.poll(),
        Ok(Some(Incoming::Reply(Reply { tag: 1, .. })))
    ));
}

#[test]
fn unsent_or_maybe_executed_is_exact_at_every_byte() {
    let mut conn = ready();
    (0..4).for_each(|tag| submit(&mut conn, tag, LIMIT));
    let all = conn.transmit(NOW).len();
    let one = all / 4;
    for taken in 0..=all {
        for piece in [1, 3, one, all] {
            let mut conn = ready();
            (0..4).for_each(|tag| submit(&mut conn, tag, LIMIT));
            let mut left = taken;
            while left > 0 {
                let n = piece.min(left);
                assert!(conn.transmit(NOW).len() >= n);
                conn.transmitted(n);
                left -= n;
            }
            // Some of them can still be withdrawn: those of which nothing has left.
            let begun = taken.div_ceil(one) as u32;
            let mut copy = vec![];
            for tag in (0..4).rev() {
                if tag == 3 {
                    assert_eq!(conn.purge(|other| *other == tag), tag >= begun, "{taken}");
                }
            }
            conn.end(|orphan| copy.push((orphan.tag, orphan.maybe_executed)));
            let kept = if begun < 4 { 3 } else { 4 };
            let expected: Vec<_> = (0..kept).map(|tag| (tag, tag < begun)).collect();
            assert_eq!(copy, expected, "{taken} in pieces of {piece}");
            assert!(conn.is_closed());
        }
    }
}

#[test]
fn a_hand_out_is_the_last_look_before_the_first_byte_was_taken() {
    let at = Tick::from_micros;
    let mut conn = ready();
    submit(&mut conn, 1, LIMIT);
    let one = conn.transmit(at(2_000)).len();
    let _ = conn.transmit(at(3_000));
    conn.transmitted(one - 1);
    submit(&mut conn, 2, LIMIT);
    // The rest of the first, and all but nothing of the second.
    let _ = conn.transmit(at(4_000));
    conn.transmitted(1);
    let _ = conn.transmit(at(5_000));
    conn.transmitted(1);
    let _ = conn.transmit(at(6_000));
    conn.transmitted(one - 1);
    feed(&mut conn, b"+PONG\r\n+PONG\r\n");
    for expected in [(1, at(3_000)), (2, at(5_000))] {
        let Ok(Some(Incoming::Reply(reply))) = conn.poll() else {
            panic!()
        };
        assert_eq!((reply.tag, reply.handed_out), expected);
    }
}

#[test]
fn an_overdue_reply_is_found_whatever_the_limits_around_it() {
    let ms = Duration::from_millis;
    let mut conn = ready();
    for (tag, limit) in [(1, ms(500)), (2, ms(100)), (3, ms(900))] {
        submit(&mut conn, tag, limit);
    }
    assert_eq!(conn.deadline(), Deadline::Never);
    sent(&mut conn);
    assert_eq!(conn.deadline().at(NOW), Some(NOW + ms(100)));
    assert!(!conn.is_overdue(NOW + ms(99)));
    assert!(conn.clone_overdue(NOW + ms(100)));
    // The first two are answered: the bound is stale, and is found to be.
    feed(&mut conn, b"+1\r\n+2\r\n");
    while let Ok(Some(_)) = conn.poll() {}
    assert!(!conn.is_overdue(NOW + ms(100)));
    assert_eq!(conn.deadline().at(NOW), Some(NOW + ms(900)));
    assert!(conn.is_overdue(NOW + ms(900)));
    feed(&mut conn, b"+3\r\n");
    while let Ok(Some(_)) = conn.poll() {}
    assert_eq!(conn.deadline(), Deadline::Never);
}

impl Conn<u32> {
    /// Whether it is overdue, asked twice: asking changes nothing.
    fn clone_overdue(&mut self, now: Tick) -> bool {
        let first = self.is_overdue(now);
        assert_eq!(first, self.is_overdue(now));
        first
    }
}

#[test]
fn s10_nothing_printed_holds_a_secret() {
    let mut conn: Conn<u32> = Conn::new(config(Some("u"), Some("hunter2"), 0, None));
    conn.open();
    let shown = format!("{conn:?} {:?}", config(Some("u"), Some("hunter2"), 0, None));
    // Neither as text nor as the numbers of its bytes.
    assert!(
        !shown.contains("hunter2") && !shown.contains("104, 117"),
        "{shown}"
    );
}

#[test]
fn a_transport_that_never_takes_everything_does_not_make_the_buffer_grow() {
    let mut conn = ready();
    submit(&mut conn, 0, LIMIT);
    for tag in 1..50_000 {
        submit(&mut conn, tag, LIMIT);
        let n = conn.transmit(NOW).len() - 5;
        conn.transmitted(n);
        feed(&mut conn, b"+PONG\r\n");
        let Ok(Some(Incoming::Reply(reply))) = conn.poll() else {
            panic!("{tag}")
        };
        assert_eq!(reply.tag, tag - 1);
    }
    assert!(conn.tx.capacity() < 4 * SENT_ROOM, "{}", conn.tx.capacity());
}

#[test]
fn a_peer_whose_frames_never_end_with_a_read_is_understood_and_does_not_make_the_buffer_grow() {
    let mut conn = ready();
    submit(&mut conn, 0, LIMIT);
    sent(&mut conn);
    feed(&mut conn, b"+PO");
    for tag in 1..10_000 {
        assert!(matches!(conn.poll(), Ok(None)));
        submit(&mut conn, tag, LIMIT);
        sent(&mut conn);
        feed(&mut conn, b"NG\r\n+PO");
        let Ok(Some(Incoming::Reply(reply))) = conn.poll() else {
            panic!("{tag}")
        };
        assert_eq!(
            (reply.tag, reply.value.as_bytes()),
            (tag - 1, Some(&b"PONG"[..]))
        );
    }
    assert!(conn.rx.capacity() < 4 * RECV_ROOM, "{}", conn.rx.capacity());
}

#[test]
fn what_arrives_after_the_end_belongs_to_nobody() {
    let mut conn = ready();
    submit(&mut conn, 1, LIMIT);
    sent(&mut conn);
    conn.end(|_| ());
    // The transport had read it already.
    feed(&mut conn, b"+PONG\r\n");
    assert!(matches!(conn.poll(), Ok(None)));
    // Nor does it belong to the next connection.
    conn.open();
    sent(&mut conn);
    feed(&mut conn, HELLO3.as_bytes());
    assert!(matches!(conn.poll(), Ok(Some(Incoming::Ready(_)))));
}

proptest! {
    /// Requests, partial writes, withdrawals and replies in any order: what leaves is whole commands in
    /// the order of the replies.
    #[test]
    fn whole_commands_leave_in_order(steps in prop::collection::vec((0u8..4, 0usize..40), 0..80)) {
        let mut conn = ready();
        let (mut next, mut wire, mut withdrawn, mut answered) = (100u32, Vec::new(), Vec::new(), Vec::new());
        for (kind, arg) in steps {
            match kind {
                0 => {
                    submit(&mut conn, next, LIMIT);
                    next += 1;
                }
                1 => {
                    let bytes = conn.transmit(NOW);
                    let n = arg.min(bytes.len());
                    wire.extend_from_slice(&bytes[..n]);
                    conn.transmitted(n);
                }
                2 => {
                    let tag = 100 + arg as u32 % 40;
                    if conn.purge(|other| *other == tag) {
                        withdrawn.push(tag);
                    }
                }
                _ => {
                    let whole = wire.windows(4).filter(|bytes| bytes == b"PING").count();
                    let done = wire.ends_with(b"\r\n") && wire.len() >= whole * PING;
                    if answered.len() + 1 < whole + usize::from(done) && whole > answered.len() {
                        feed(&mut conn, b"+PONG\r\n");
                        let Ok(Some(Incoming::Reply(reply))) = conn.poll() else { panic!() };
                        answered.push(reply.tag);
                    }
                }
            }
        }
        let mut maybe = Vec::new();
        conn.end(|orphan| if orphan.maybe_executed { maybe.push(orphan.tag) });
        let begun: Vec<u32> = answered.into_iter().chain(maybe).collect();
        let expected: Vec<u32> = (100..next).filter(|tag| !withdrawn.contains(tag)).take(begun.len()).collect();
        prop_assert_eq!(&begun, &expected);
        let mut stream = Vec::new();
        begun.iter().for_each(|tag| encode_to(&["PING".into(), u64::from(*tag).into()], &mut stream));
        prop_assert!(stream.starts_with(&wire));
        prop_assert!(stream.len() < wire.len() + PING);
    }
}

/// The length of `PING` with three digits.
const PING: usize = 4 + 10 + 9;

#[test]
fn what_a_server_says_never_shows_the_password() {
    let mut conn: Conn<u32> = Conn::new(config(Some("app"), Some("hunter2"), 0, None));
    conn.open();
    sent(&mut conn);
    feed(&mut conn, b"-WRONGPASS what is AUTH app hunter2?\r\n");
    assert!(conn.poll().is_err());
    assert_eq!(conn.fault_text(), b"WRONGPASS what is AUTH app ");
}

#[test]
fn a_string_that_is_too_long_is_passed_over_whatever_the_chunks() {
    let long = 300_000;
    let mut bytes = std::format!("${long}\r\n").into_bytes();
    bytes.extend(std::iter::repeat_n(b'x', long));
    bytes.extend(b"\r\n+PONG\r\n");
    for chunk in [1, 2, 3, 5, 6, 7, 1_000, 4_096] {
        let mut conn = ready();
        submit(&mut conn, 1, Duration::from_secs(1));
        submit(&mut conn, 2, Duration::from_secs(1));
        let n = conn.transmit(Tick::ZERO).len();
        conn.transmitted(n);
        let (mut seen, mut most) = (std::vec::Vec::new(), 0);
        for part in bytes.chunks(chunk) {
            feed(&mut conn, part);
            while let Ok(Some(Incoming::Reply(reply))) = conn.poll() {
                seen.push(reply.value.as_bytes().unwrap().to_vec());
            }
            most = most.max(conn.recv_space().len());
        }
        assert_eq!(seen, [&b""[..], b"PONG"], "{chunk}");
        assert!(most < 64 * 1024, "{most}");
    }
}

#[test]
fn the_first_of_two_commands_may_be_answered_before_the_last_has_left() {
    let mut conn = ready();
    conn.submit(7, 2, Duration::from_secs(1), |out| {
        encode_to(&["PING".into()], out);
        encode_to(&["PING".into()], out);
    });
    let n = conn.transmit(Tick::ZERO).len();
    conn.transmitted(n / 2);
    feed(&mut conn, b"+A\r\n");
    let Ok(Some(Incoming::Reply(first))) = conn.poll() else {
        panic!("no reply");
    };
    assert_eq!((first.tag, first.more), (7, 1));
    // Not so the last.
    feed(&mut conn, b"+B\r\n");
    assert!(conn.poll().is_err());
}
