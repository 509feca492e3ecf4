//! A connection, called in any order.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::conn::{Conn, ConnConfig, Incoming};
use tenure_core::resp::encode_to;
use tenure_core::time::Tick;

use crate::Bytes;

/// A request, as the caller remembers it.
#[derive(Debug)]
struct Asked {
    tag: u32,
    replies: u8,
    /// Where its bytes lie in all that was ever offered, purged ones left out.
    len: usize,
    sent: usize,
}

/// Calls of a connection: bytes that arrive, partial writes, requests, withdrawals, ends.
pub fn conn_ops(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let first = bytes.byte();
    let config = ConnConfig {
        user: (first & 1 > 0).then(|| "me".into()),
        password: (first & 2 > 0).then(|| "secret".into()),
        database: u32::from(first >> 2 & 3),
        client_name: (first & 16 > 0).then(|| "tenure".into()),
        ..ConnConfig::default()
    };
    let mut conn: Conn<u32> = Conn::new(config);
    let mut asked: VecDeque<Asked> = VecDeque::new();
    let mut now = Tick::from_micros(1);
    let mut next = 0;
    while !bytes.is_empty() {
        match bytes.byte() % 10 {
            0 => {
                if conn.is_closed() {
                    conn.open();
                    asked.clear();
                }
            }
            1 | 2 => {
                let len = usize::from(bytes.byte() % 64);
                receive(&mut conn, bytes.slice(len));
            }
            // A sensible answer, so that one gets further than the handshake.
            3 => {
                let replies: [&[u8]; 8] = [
                    b"+OK\r\n",
                    b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n",
                    b"$-1\r\n",
                    b"-ERR unknown command\r\n",
                    b"-NOPROTO no\r\n",
                    b">2\r\n+invalidate\r\n_\r\n",
                    b":1\r\n:2\r\n:3\r\n",
                    b"-ERR max number of clients reached\r\n",
                ];
                receive(&mut conn, replies[usize::from(bytes.byte() % 8)]);
            }
            4 => {
                if conn.is_ready() {
                    next += 1;
                    let replies = bytes.byte() % 3 + 1;
                    let word = vec![b'x'; usize::from(bytes.byte())];
                    let before = conn.unsent();
                    conn.submit(next, replies, Duration::from_millis(5), |out| {
                        encode_to(&[word.as_slice().into()], out);
                    });
                    asked.push_back(Asked {
                        tag: next,
                        replies,
                        len: conn.unsent() - before,
                        sent: 0,
                    });
                }
            }
            5 | 6 => {
                let offered = conn.transmit(now).len();
                assert_eq!(offered, conn.unsent());
                let taken = match bytes.byte() {
                    255 => offered,
                    part => usize::from(part).min(offered),
                };
                conn.transmitted(taken);
                if conn.is_ready() {
                    let mut left = taken;
                    for request in &mut asked {
                        let part = left.min(request.len - request.sent);
                        request.sent += part;
                        left -= part;
                    }
                }
            }
            7 => {
                let tag = next.saturating_sub(u32::from(bytes.byte() % 4));
                let known = asked.iter().position(|request| request.tag == tag);
                let before = conn.unsent();
                let purged = conn.purge(|other| *other == tag);
                match known {
                    Some(at) if asked[at].sent == 0 => {
                        assert!(purged, "not withdrawn, though nothing had left");
                        assert_eq!(before - conn.unsent(), asked[at].len);
                        asked.remove(at);
                    }
                    _ => assert!(!purged, "withdrawn, though bytes had left"),
                }
            }
            8 => {
                now = now + Duration::from_micros(u64::from(bytes.word()));
                let due = conn.is_overdue(now);
                assert!(!due || conn.deadline().is_due(now));
                if !due {
                    assert!(!conn.deadline().is_due(now));
                }
            }
            _ => {
                if bytes.byte() < 64 {
                    end(&mut conn, &mut asked);
                }
            }
        }
        if poll(&mut conn, &mut asked, now).is_err() {
            end(&mut conn, &mut asked);
        }
    }
    end(&mut conn, &mut asked);
}

fn receive(conn: &mut Conn<u32>, bytes: &[u8]) {
    let space = conn.recv_space();
    let len = bytes.len().min(space.len());
    assert!(len > 0 || bytes.is_empty());
    space[..len].copy_from_slice(&bytes[..len]);
    conn.received(len);
}

/// Takes all that has arrived.
fn poll(conn: &mut Conn<u32>, asked: &mut VecDeque<Asked>, now: Tick) -> Result<(), ()> {
    let ready = conn.is_ready();
    loop {
        match conn.poll() {
            Ok(None) => return Ok(()),
            Ok(Some(Incoming::Ready(info))) => {
                assert!(!ready && asked.is_empty());
                let _ = format!("{info:?}");
            }
            Ok(Some(Incoming::Push(value))) => drop(format!("{value:?}")),
            Ok(Some(Incoming::Watched(refused))) => drop(format!("{refused:?}")),
            Ok(Some(Incoming::Reply(reply))) => {
                let request = asked.front_mut().expect("a reply to nothing");
                assert_eq!(reply.tag, request.tag, "out of order");
                assert_eq!(request.sent, request.len, "answered before it was sent");
                request.replies -= 1;
                assert_eq!(reply.more, request.replies);
                assert!(reply.handed_out <= now);
                if request.replies == 0 {
                    asked.pop_front();
                }
            }
            Err(fault) => {
                let _ = fault.to_string();
                return Err(());
            }
        }
    }
}

/// Every request without its replies is told of, once and in order.
fn end(conn: &mut Conn<u32>, asked: &mut VecDeque<Asked>) {
    conn.end(|orphan| {
        let request = asked.pop_front().expect("nobody asked for that");
        assert_eq!(orphan.tag, request.tag);
        assert_eq!(orphan.maybe_executed, request.sent > 0);
    });
    assert!(asked.is_empty(), "forgotten: {asked:?}");
    assert!(conn.is_closed() && conn.unsent() == 0);
}
