use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig, ServerConnection};

use super::*;

/// Both directions of a connection that takes and gives as little as a test wants.
#[derive(Default)]
struct Wire {
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    /// How much more the way up takes.
    room: usize,
    /// The most that moves at once.
    step: usize,
    /// What is taken stays here until somebody asks whether there is room.
    keeps: bool,
    kept: VecDeque<u8>,
    over: bool,
    broken: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    aborted: bool,
}

#[derive(Clone)]
struct Below(Arc<Mutex<Wire>>);

impl Below {
    fn new(room: usize, step: usize) -> Below {
        Below(Arc::new(Mutex::new(Wire {
            room,
            step,
            ..Wire::default()
        })))
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap()
    }
}

impl Stream for Below {
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.try_read(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.wire().reader = Some(cx.waker().clone());
                Poll::Pending
            }
            read => Poll::Ready(read),
        }
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.wire();
        let n = bytes.len().min(wire.down.len()).min(wire.step);
        if n == 0 && !wire.over {
            return Err(ErrorKind::WouldBlock.into());
        }
        for (byte, came) in bytes.iter_mut().zip(wire.down.drain(..n)) {
            *byte = came;
        }
        Ok(n)
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.wire();
        if wire.broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let n = bytes.len().min(wire.room).min(wire.step);
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        wire.room -= n;
        match wire.keeps {
            true => wire.kept.extend(&bytes[..n]),
            false => wire.up.extend(&bytes[..n]),
        }
        Ok(n)
    }

    fn is_flushed(&self) -> bool {
        self.wire().kept.is_empty()
    }

    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.wire();
        let kept = std::mem::take(&mut wire.kept);
        wire.up.extend(kept);
        if wire.room > 0 || wire.broken {
            return Poll::Ready(Ok(()));
        }
        wire.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn abort(self) {
        self.wire().aborted = true;
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Bell(Mutex<usize>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

/// The server of the other end.
struct Peer {
    tls: ServerConnection,
    below: Below,
}

impl Peer {
    /// Takes in all that has come up; what of it was said. It answers as the protocol wants it.
    fn turn(&mut self) -> Vec<u8> {
        let mut came: Vec<u8> = self.below.wire().up.drain(..).collect();
        let mut rest = &came[..];
        let mut said = Vec::new();
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest).unwrap();
            self.tls.process_new_packets().unwrap();
            let mut part = vec![0; 1 << 16];
            while let Ok(n) = self.tls.reader().read(&mut part) {
                said.extend(&part[..n]);
                if n == 0 {
                    break;
                }
            }
        }
        came.clear();
        self.send();
        said
    }

    fn say(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
        self.send();
    }

    fn send(&mut self) {
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).unwrap();
        }
        let mut wire = self.below.wire();
        wire.down.extend(bytes);
        if let Some(waker) = wire.reader.take() {
            waker.wake();
        }
    }
}

fn ends(below: &Below) -> (ClientConnection, Peer) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["h.example".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let client = ClientConnection::new(Arc::new(client), name()).unwrap();
    let tls = ServerConnection::new(Arc::new(server)).unwrap();
    let below = below.clone();
    (client, Peer { tls, below })
}

fn name() -> ServerName<'static> {
    ServerName::try_from("h.example").unwrap()
}

/// An open connection, over a wire that moves so much at once.
fn open(step: usize) -> (TlsStream<Below>, Peer, Below) {
    open_over(Below::new(usize::MAX, step))
}

fn open_over(below: Below) -> (TlsStream<Below>, Peer, Below) {
    let (client, mut peer) = ends(&below);
    let name = name();
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut opening = pin!(TlsStream::open(below.clone(), client, &name));
    let mut polls = 0;
    loop {
        let poll = opening.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(stream) = poll {
            peer.turn();
            return (stream.unwrap(), peer, below);
        }
        let before = *bell.0.lock().unwrap();
        peer.turn();
        assert!(*bell.0.lock().unwrap() > before, "nobody wakes it");
        polls += 1;
        assert!(polls < 10);
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn both_directions_in_pieces_of_any_size() {
    for step in [1, 2, 3, 5, 16, 17, 100, 4096, 1 << 20] {
        let (mut stream, mut peer, _) = open(step);
        let sent = pattern(50_000);
        let mut written = 0;
        let mut said = Vec::new();
        while said.len() < sent.len() {
            written += stream.try_write(&sent[written..]).unwrap_or(0);
            assert!(stream.is_flushed());
            said.extend(peer.turn());
        }
        assert_eq!(said, sent);
        peer.say(&sent);
        let mut heard: Vec<u8> = Vec::new();
        let mut part = [0; 333];
        while heard.len() < sent.len() {
            let n = stream.try_read(&mut part).unwrap();
            heard.extend(&part[..n]);
        }
        assert_eq!(heard, sent);
        assert_eq!(
            stream.try_read(&mut part).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }
}

#[test]
fn one_read_gives_all_that_has_come() {
    let (mut stream, mut peer, _) = open(usize::MAX);
    for _ in 0..100 {
        peer.say(b"+OK\r\n");
    }
    let mut room = [0; 4096];
    assert_eq!(stream.try_read(&mut room).unwrap(), 500);
    assert!(stream.try_read(&mut room).is_err());
}

#[test]
fn what_was_taken_and_is_not_out_is_flushed_by_the_driver() {
    let (mut stream, mut peer, below) = open(usize::MAX);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut cx = Context::from_waker(&waker);
    below.wire().room = 10;
    assert_eq!(stream.try_write(b"hello").unwrap(), 5);
    assert!(!stream.is_flushed());
    // Nothing more is taken before that is out.
    let error = stream.try_write(b"world").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(stream.poll_write_ready(&mut cx).is_pending());
    assert!(peer.turn().is_empty());
    let writer = below.wire().writer.take().unwrap();
    below.wire().room = 5;
    writer.wake();
    assert_eq!(*bell.0.lock().unwrap(), 1);
    assert!(stream.poll_write_ready(&mut cx).is_pending());
    below.wire().room = usize::MAX;
    assert!(stream.poll_write_ready(&mut cx).is_ready());
    assert!(stream.is_flushed());
    assert_eq!(peer.turn(), b"hello");
}

#[test]
fn what_the_stream_below_keeps_is_brought_out_too() {
    let below = Below::new(usize::MAX, usize::MAX);
    below.wire().keeps = true;
    let (mut stream, mut peer, _) = open_over(below);
    assert_eq!(stream.try_write(b"hello").unwrap(), 5);
    assert!(!stream.is_flushed());
    assert!(peer.turn().is_empty());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stream.poll_write_ready(&mut cx).is_ready());
    assert!(stream.is_flushed());
    assert_eq!(peer.turn(), b"hello");
}

#[test]
fn s5_what_was_taken_counts_as_written_though_the_connection_breaks() {
    let (mut stream, _, below) = open(usize::MAX);
    below.wire().broken = true;
    // A part may have left: it is never told as if nothing had.
    assert_eq!(stream.try_write(b"hello").unwrap(), 5);
    assert!(!stream.is_flushed(), "the driver is to look");
    let mut cx = Context::from_waker(Waker::noop());
    assert!(stream.poll_write_ready(&mut cx).is_ready());
    let Poll::Ready(Err(error)) = stream.poll_read(&mut cx, &mut [0; 9]) else {
        panic!("the error is not told");
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn what_came_before_the_end_is_read_first() {
    for goodbye in [true, false] {
        let (mut stream, mut peer, below) = open(usize::MAX);
        peer.say(b"last");
        if goodbye {
            peer.tls.send_close_notify();
            peer.send();
        }
        below.wire().over = true;
        let mut room = [0; 99];
        assert_eq!(stream.try_read(&mut room).unwrap(), 4);
        match (goodbye, stream.try_read(&mut room)) {
            (true, Ok(0)) => {}
            (false, Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {}
            (_, read) => panic!("{read:?}"),
        }
    }
}

#[test]
fn what_was_tampered_with_is_an_error_and_stays_one() {
    let (mut stream, mut peer, below) = open(usize::MAX);
    peer.say(b"good");
    let good = below.wire().down.len();
    peer.say(b"bad");
    below.wire().down[good + 7] ^= 1;
    let mut room = [0; 99];
    assert_eq!(stream.try_read(&mut room).unwrap(), 4);
    let error = stream.try_read(&mut room).unwrap_err();
    assert!(error.to_string().contains("TLS failed"), "{error}");
}

#[test]
fn a_handshake_that_fails_says_why() {
    for (answer, says) in [
        (&b""[..], "is this a port for TLS?"),
        (b"-ERR unknown command\r\n", "does not speak TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak TLS"),
    ] {
        let below = Below::new(usize::MAX, usize::MAX);
        below.wire().down.extend(answer);
        below.wire().over = true;
        let (client, _) = ends(&below);
        let name = name();
        let opening = pin!(TlsStream::open(below, client, &name));
        let poll = opening.poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Err(error)) = poll else {
            panic!("it is no handshake");
        };
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn what_a_server_says_before_it_closes_is_heard_though_it_takes_no_more() {
    let below = Below::new(usize::MAX, usize::MAX);
    let (client, _) = ends(&below);
    let name = name();
    let mut opening = pin!(TlsStream::open(below.clone(), client, &name));
    let mut cx = Context::from_waker(Waker::noop());
    below.wire().room = 10;
    assert!(opening.as_mut().poll(&mut cx).is_pending());
    below.wire().broken = true;
    // A fatal alert: access denied.
    below.wire().down.extend([21, 3, 3, 0, 2, 2, 49]);
    let Poll::Ready(Err(error)) = opening.as_mut().poll(&mut cx) else {
        panic!("it goes on");
    };
    assert!(error.to_string().contains("AccessDenied"), "{error}");
}

#[test]
fn an_abort_aborts_what_is_below() {
    let (stream, _, below) = open(usize::MAX);
    stream.abort();
    let wire = below.wire();
    assert!(wire.aborted && wire.up.is_empty(), "no goodbye is sent");
}
