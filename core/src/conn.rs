//! One connection: handshake, requests and replies in order, pushes. No sockets.
//!
//! Bytes from the peer are read straight into [`Conn::recv_space`] and announced by
//! [`Conn::received`]; bytes for the peer are looked at with [`Conn::transmit`] and consumed by
//! [`Conn::transmitted`] as far as the transport took them. A request is *handed out* at the `now` of
//! the last look that offered its first byte before any of it was consumed: read the clock before
//! that look, never after the write.
//!
//! Replies come in the order of the requests. A request whose reply is overdue keeps its place: the
//! connection is declared dead, and [`Conn::end`] tells of each request whether it may have been
//! executed.
//!
//! ```
//! use tenure_core::conn::{Conn, ConnConfig, Incoming};
//! use tenure_core::resp::{Value, encode_to};
//! use tenure_core::time::Tick;
//!
//! let now = Tick::from_micros(0);
//! let mut conn: Conn<&str> = Conn::new(ConnConfig::default());
//! conn.open();
//! let n = conn.transmit(now).len();       // HELLO 3
//! conn.transmitted(n);
//! # fn feed(conn: &mut Conn<&'static str>, bytes: &[u8]) { conn.recv_space()[..bytes.len()].copy_from_slice(bytes); conn.received(bytes.len()); }
//! feed(&mut conn, b"%1\r\n+proto\r\n:3\r\n");
//! assert!(matches!(conn.poll(), Ok(Some(Incoming::Ready(_)))));
//!
//! conn.submit("ping", 1, tenure_core::config::REPLY_LIMIT, |out| encode_to(&[b"PING".into()], out));
//! let n = conn.transmit(now).len();
//! conn.transmitted(n);
//! feed(&mut conn, b"+PO");
//! assert!(matches!(conn.poll(), Ok(None)));
//! feed(&mut conn, b"NG\r\n");
//! let Ok(Some(Incoming::Reply(reply))) = conn.poll() else { panic!() };
//! assert_eq!((reply.tag, reply.value.as_bytes()), ("ping", Some(&b"PONG"[..])));
//! ```

mod info;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::config::REPLY_LIMIT;
use crate::error::{LinkFault, ServerError};
use crate::resp::{Arg, Limits, Scanner, Value, encode_to, read};
use crate::time::{Deadline, Reason, Tick};
use info::server_info;
pub use info::{Flavour, ServerInfo};

/// Free room offered to the transport at least.
const RECV_ROOM: usize = 4096;
/// Bytes that were sent are dropped from the transmit buffer when they are this many.
const SENT_ROOM: usize = 64 * 1024;
/// What stands for a string that is too long to be kept.
const EMPTY: &[u8] = b"$0\r\n\r\n";
/// The longest string that servers keep.
const MOST_SKIPPED: usize = 512 * 1024 * 1024;
/// How servers refuse when they have too many clients: nothing is wrong, they are full.
const FULL: &[u8] = b"ERR max number of clients";

/// How to open a connection.
#[derive(Clone, Default)]
pub struct ConnConfig {
    /// The user; `default` when only a password is given.
    pub user: Option<Box<str>>,
    /// The password. It is never printed.
    pub password: Option<Box<str>>,
    /// The database to select; 0 needs no command.
    pub database: u32,
    /// The client name shown by `CLIENT LIST`: printable, no blanks.
    pub client_name: Option<Box<str>>,
    /// What is accepted from the peer.
    pub limits: Limits,
}

impl fmt::Debug for ConnConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnConfig")
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "<hidden>"))
            .field("database", &self.database)
            .field("client_name", &self.client_name)
            .field("limits", &self.limits)
            .finish()
    }
}

/// Something that arrived.
#[derive(Debug)]
pub enum Incoming<'a, T> {
    /// The handshake is done: requests can be submitted.
    Ready(ServerInfo),
    /// A reply.
    Reply(Reply<'a, T>),
    /// The answer to [`ask_to_watch`](Conn::ask_to_watch): nothing, or the error reply.
    Watched(Option<&'a [u8]>),
    /// A push that belongs to no request.
    Push(Value<'a>),
}

/// A reply, matched to its request.
#[derive(Debug)]
pub struct Reply<'a, T> {
    /// The tag of the request.
    pub tag: T,
    /// The value; it lives in the receive area until the next poll.
    pub value: Value<'a>,
    /// When the request was handed out.
    pub handed_out: Tick,
    /// How many replies to the same request are still to come.
    pub more: u8,
}

/// A request that will get no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan<T> {
    /// The tag of the request.
    pub tag: T,
    /// Whether its first byte was handed out, so that it may have been executed.
    pub maybe_executed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed,
    Hello,
    Auth,
    SetName,
    Select,
    Ready,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    /// `None` for a request of the handshake.
    tag: Option<T>,
    /// Offsets in the whole stream of transmitted bytes.
    start: u64,
    end: u64,
    replies: u8,
    limit: Duration,
    handed_out: Option<Tick>,
}

/// The connection machine. See the [module](self).
#[derive(Clone)]
pub struct Conn<T> {
    config: ConnConfig,
    phase: Phase,
    info: ServerInfo,
    scanner: Scanner,
    rx: Vec<u8>,
    /// Received and not yet polled: `rx[start..end]`.
    start: usize,
    end: usize,
    /// The frame that the last poll lent out.
    lent: usize,
    /// So much is still to come of a string that is too long to be kept.
    skipping: usize,
    tx: Vec<u8>,
    /// How much of `tx` the transport has taken.
    taken: usize,
    /// The offset of `tx[0]` in the stream.
    base: u64,
    peeked: Tick,
    fifo: VecDeque<Entry<T>>,
    /// How many of `fifo` were handed out; the rest is unsent.
    started: usize,
    /// A lower bound of when the first reply is overdue.
    overdue: Option<Tick>,
    fault_text: Vec<u8>,
}

impl<T: Copy> Conn<T> {
    /// A closed connection.
    pub fn new(config: ConnConfig) -> Conn<T> {
        let scanner = Scanner::new(config.limits);
        Conn {
            config,
            phase: Phase::Closed,
            info: ServerInfo::default(),
            scanner,
            rx: Vec::new(),
            start: 0,
            end: 0,
            lent: 0,
            skipping: 0,
            tx: Vec::new(),
            taken: 0,
            base: 0,
            peeked: Tick::ZERO,
            fifo: VecDeque::new(),
            started: 0,
            overdue: None,
            fault_text: Vec::new(),
        }
    }

    // ---- getters ----

    /// Whether requests can be submitted.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether there is no connection: [`open`](Conn::open) begins one.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Bytes that the transport has not taken yet.
    pub fn unsent(&self) -> usize {
        self.tx.len() - self.taken
    }

    /// Commands without an answer, those of the handshake and those that have not left yet included.
    pub fn unanswered(&self) -> usize {
        self.fifo.len()
    }

    /// The error reply that ended the handshake, or empty.
    pub fn fault_text(&self) -> &[u8] {
        &self.fault_text
    }

    /// When [`is_overdue`](Conn::is_overdue) should be asked.
    pub fn deadline(&self) -> Deadline {
        match self.overdue {
            Some(at) => Deadline::At(at, Reason::ReplyOverdue),
            None => Deadline::Never,
        }
    }

    // ---- requests ----

    /// The transport is open: begin the handshake.
    pub fn open(&mut self) {
        self.reset();
        self.phase = Phase::Hello;
        let ConnConfig {
            user,
            password,
            client_name,
            ..
        } = self.config.clone();
        self.handshake(|out| {
            let mut args: Vec<Arg<'_>> = Vec::from(["HELLO".into(), "3".into()]);
            if let Some(password) = password.as_deref() {
                let user = user.as_deref().unwrap_or("default");
                args.extend([Arg::from("AUTH"), user.into(), password.into()]);
            }
            if let Some(name) = client_name.as_deref() {
                args.extend([Arg::from("SETNAME"), name.into()]);
            }
            encode_to(&args, out);
        });
    }

    /// Queues a request that gets `replies` replies. `encode` appends its bytes. Only when
    /// [ready](Conn::is_ready).
    ///
    /// A reply that takes longer than `limit` from the hand-out makes the connection overdue.
    pub fn submit(
        &mut self,
        tag: T,
        replies: u8,
        limit: Duration,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        self.push(Some(tag), replies, limit, encode);
    }

    /// Asks the server to tell by a push when a key changes that was read on this connection: `CLIENT TRACKING ON`. Its
    /// answer is not waited for, and comes before that to anything submitted later. Once, when
    /// [ready](Conn::is_ready), and where the protocol is 3.
    pub fn ask_to_watch(&mut self) {
        self.handshake(|out| {
            encode_to(&["CLIENT".into(), "TRACKING".into(), "ON".into()], out);
        });
    }

    /// Drops the unsent request for which `is_it` holds. False if there is none, or its first byte
    /// was handed out.
    pub fn purge(&mut self, is_it: impl Fn(&T) -> bool) -> bool {
        let unsent = self.fifo.iter().skip(self.started);
        let found = unsent.enumerate().find_map(|(at, entry)| {
            let tag = entry.tag.as_ref()?;
            is_it(tag).then_some(at + self.started)
        });
        let Some(at) = found else { return false };
        let Some(entry) = self.fifo.remove(at) else {
            return false;
        };
        let len = entry.end - entry.start;
        let from = (entry.start - self.base) as usize;
        self.tx.drain(from..from + len as usize);
        for later in self.fifo.iter_mut().skip(at) {
            later.start -= len;
            later.end -= len;
        }
        true
    }

    /// Ends the connection, for whatever reason. Gives every request without a reply to `orphan`.
    pub fn end(&mut self, mut orphan: impl FnMut(Orphan<T>)) {
        self.phase = Phase::Closed;
        while let Some(entry) = self.fifo.pop_front() {
            if let Some(tag) = entry.tag {
                orphan(Orphan {
                    tag,
                    maybe_executed: entry.handed_out.is_some(),
                });
            }
        }
        let text = core::mem::take(&mut self.fault_text);
        self.reset();
        self.fault_text = text;
    }

    // ---- inputs ----

    /// Room for the transport to read into, never empty.
    pub fn recv_space(&mut self) -> &mut [u8] {
        self.settle_lent();
        if self.start > 0 {
            self.rx.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.rx.len() < self.end + RECV_ROOM {
            // Bounded: the scanner fails before more than one frame of the limit lies here.
            self.rx.resize(self.end + RECV_ROOM, 0);
        }
        &mut self.rx[self.end..]
    }

    /// `n` bytes were read into [`recv_space`](Conn::recv_space).
    pub fn received(&mut self, n: usize) {
        self.end = (self.end + n).min(self.rx.len());
    }

    /// The transport took `n` of the bytes that the last [`transmit`](Conn::transmit) offered.
    pub fn transmitted(&mut self, n: usize) {
        self.taken = (self.taken + n).min(self.tx.len());
        let position = self.base + self.taken as u64;
        while let Some(entry) = self.fifo.get_mut(self.started) {
            if entry.start >= position {
                break;
            }
            entry.handed_out = Some(self.peeked);
            let due = self.peeked + entry.limit;
            self.overdue = Some(self.overdue.map_or(due, |overdue| overdue.min(due)));
            self.started += 1;
        }
        if self.taken == self.tx.len() {
            self.base = position;
            self.tx.clear();
            self.taken = 0;
        } else if self.taken >= SENT_ROOM {
            // A transport that never takes everything must not make the buffer grow for ever.
            self.tx.drain(..self.taken);
            self.base = position;
            self.taken = 0;
        }
    }

    /// Whether a reply is overdue: then the connection is dead. Read what has arrived before you ask.
    pub fn is_overdue(&mut self, now: Tick) -> bool {
        if self.overdue.is_none_or(|at| now < at) {
            return false;
        }
        // The bound was passed; is it true of any request that is still waiting?
        let due = |entry: &Entry<T>| entry.handed_out.map(|at| at + entry.limit);
        self.overdue = self.fifo.iter().take(self.started).filter_map(due).min();
        self.overdue.is_some_and(|at| now >= at)
    }

    // ---- outputs ----

    /// The bytes to send now, or none.
    pub fn transmit(&mut self, now: Tick) -> &[u8] {
        self.peeked = now;
        &self.tx[self.taken..]
    }

    /// The next thing that arrived. Call until `None`.
    ///
    /// # Errors
    /// The peer does not follow the protocol or refused the handshake: call [`end`](Conn::end) and
    /// abort the transport.
    pub fn poll(&mut self) -> Result<Option<Incoming<'_, T>>, LinkFault> {
        loop {
            self.settle_lent();
            let bytes = &self.rx[self.start..self.end];
            if bytes.is_empty() || self.phase == Phase::Closed {
                return Ok(None);
            }
            if self.skipping == 0 {
                self.skipping = too_long(bytes, self.config.limits.frame);
            }
            if self.skipping > 0 && !self.skip() {
                return Ok(None);
            }
            let bytes = &self.rx[self.start..self.end];
            let Some(len) = self.scanner.scan(bytes).map_err(LinkFault::Protocol)? else {
                return Ok(None);
            };
            let (start, end) = (self.start, self.start + len);
            if matches!(read(&self.rx[start..end]), Value::Push(_)) {
                self.lent = len;
                return Ok(Some(Incoming::Push(read(&self.rx[start..end]))));
            }
            let was_ready = self.is_ready();
            let Some((tag, handed_out, more)) = self.match_reply(start, end)? else {
                self.lent = len;
                if was_ready {
                    return Ok(Some(Incoming::Watched(read(&self.rx[start..end]).error())));
                }
                if self.handshake_reply(start, end)? {
                    return Ok(Some(Incoming::Ready(self.info)));
                }
                continue;
            };
            self.lent = len;
            let value = read(&self.rx[start..end]);
            return Ok(Some(Incoming::Reply(Reply {
                tag,
                value,
                handed_out,
                more,
            })));
        }
    }

    // ---- helpers ----

    /// Drops what has come of a string that is too long, and puts an empty one in its place once all of it has: nothing of ours
    /// is so long, and whose it is makes no difference.
    fn skip(&mut self) -> bool {
        let have = self.end - self.start;
        let dropped = have.min(self.skipping - EMPTY.len());
        self.start += dropped;
        self.skipping -= dropped;
        if self.skipping > EMPTY.len() || have - dropped < EMPTY.len() {
            return false;
        }
        self.rx[self.start..self.start + EMPTY.len()].copy_from_slice(EMPTY);
        self.scanner.reset();
        self.skipping = 0;
        true
    }

    /// The request that this reply belongs to; `None` for one of the handshake.
    fn match_reply(
        &mut self,
        start: usize,
        end: usize,
    ) -> Result<Option<(T, Tick, u8)>, LinkFault> {
        let error = read(&self.rx[start..end]).error();
        let position = self.base + self.taken as u64;
        // A reply to a question that was not put, or not to its end: of several commands the first may be answered before the
        // last has left.
        let unasked = self.fifo.front().is_none_or(|entry| {
            entry.start >= position || (entry.end > position && entry.replies <= 1)
        });
        if unasked || error.is_some_and(|text| text.starts_with(b"ERR Protocol error")) {
            self.fault_text = without_password(&self.config, error.unwrap_or_default());
            return Err(match error {
                // Servers that refuse a client say why before they close.
                Some(text) if unasked && self.phase != Phase::Ready && !text.starts_with(FULL) => {
                    LinkFault::Handshake(ServerError::of(text))
                }
                Some(_) if unasked => LinkFault::Closed,
                _ => LinkFault::UnexpectedReply,
            });
        }
        let Some(entry) = self.fifo.front_mut() else {
            return Err(LinkFault::UnexpectedReply);
        };
        entry.replies = entry.replies.saturating_sub(1);
        let matched = (
            entry.tag,
            entry.handed_out.unwrap_or(self.peeked),
            entry.replies,
        );
        if entry.replies == 0 {
            self.fifo.pop_front();
            self.started -= 1;
            if self.started == 0 {
                self.overdue = None;
            }
        }
        let (tag, handed_out, more) = matched;
        Ok(tag.map(|tag| (tag, handed_out, more)))
    }

    /// One step of the handshake; strictly one request in flight. True when it is done.
    fn handshake_reply(&mut self, start: usize, end: usize) -> Result<bool, LinkFault> {
        let reply = read(&self.rx[start..end]);
        let error = reply
            .error()
            .map(|text| (ServerError::of(text), text.to_vec()));
        let phase = self.phase;
        match (phase, error) {
            (Phase::Hello, None) => {
                self.info = server_info(&reply);
                self.select()
            }
            // HELLO is unknown, not permitted, or the protocol version is not spoken: RESP2.
            (
                Phase::Hello,
                Some((ServerError::NoPerm | ServerError::NoProto | ServerError::Other, text)),
            ) if !text.starts_with(FULL) => {
                self.info = ServerInfo {
                    protocol: 2,
                    ..ServerInfo::default()
                };
                self.auth()
            }
            (Phase::Auth, None) => self.set_name(),
            (Phase::SetName, None) => self.select(),
            // A name is a courtesy; a user without the permission does without.
            (Phase::SetName, Some((error, _))) if error != ServerError::NoAuth => self.select(),
            (Phase::Select, None) => {
                self.phase = Phase::Ready;
                Ok(true)
            }
            (_, Some((error, text))) => {
                let full = text.starts_with(FULL);
                self.fault_text = without_password(&self.config, &text);
                Err(if full {
                    LinkFault::Closed
                } else {
                    LinkFault::Handshake(error)
                })
            }
            (Phase::Closed | Phase::Ready, None) => Err(LinkFault::UnexpectedReply),
        }
    }

    fn auth(&mut self) -> Result<bool, LinkFault> {
        let ConnConfig { user, password, .. } = self.config.clone();
        let Some(password) = password else {
            return self.set_name();
        };
        self.phase = Phase::Auth;
        self.handshake(|out| match user.as_deref() {
            Some(user) => encode_to(&["AUTH".into(), user.into(), (&*password).into()], out),
            None => encode_to(&["AUTH".into(), (&*password).into()], out),
        });
        Ok(false)
    }

    fn set_name(&mut self) -> Result<bool, LinkFault> {
        let Some(name) = self.config.client_name.clone() else {
            return self.select();
        };
        self.phase = Phase::SetName;
        self.handshake(|out| encode_to(&["CLIENT".into(), "SETNAME".into(), (&*name).into()], out));
        Ok(false)
    }

    fn select(&mut self) -> Result<bool, LinkFault> {
        let database = self.config.database;
        if database == 0 {
            self.phase = Phase::Ready;
            return Ok(true);
        }
        self.phase = Phase::Select;
        self.handshake(|out| encode_to(&["SELECT".into(), u64::from(database).into()], out));
        Ok(false)
    }

    fn handshake(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        self.push(None, 1, REPLY_LIMIT, encode);
    }

    fn push(
        &mut self,
        tag: Option<T>,
        replies: u8,
        limit: Duration,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.base + self.tx.len() as u64;
        encode(&mut self.tx);
        let end = self.base + self.tx.len() as u64;
        self.fifo.push_back(Entry {
            tag,
            start,
            end,
            replies,
            limit,
            handed_out: None,
        });
    }

    /// The frame that was lent out is done with.
    fn settle_lent(&mut self) {
        self.start += core::mem::take(&mut self.lent);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    fn reset(&mut self) {
        self.scanner.reset();
        (self.start, self.end, self.lent, self.skipping) = (0, 0, 0, 0);
        self.tx.clear();
        (self.taken, self.base, self.started) = (0, 0, 0);
        self.fifo.clear();
        self.overdue = None;
        self.info = ServerInfo::default();
        self.fault_text.clear();
    }
}

/// The length of a frame that is a string beyond the limit, or 0: for anything else, and for what nobody would send.
fn too_long(bytes: &[u8], limit: usize) -> usize {
    let Some(head) = bytes.strip_prefix(b"$") else {
        return 0;
    };
    let digits = head.iter().take(12).take_while(|b| b.is_ascii_digit());
    let digits = digits.count();
    if !head[digits..].starts_with(b"\r\n") || digits > 10 {
        return 0;
    }
    let text = core::str::from_utf8(&head[..digits]).unwrap_or_default();
    match text.parse::<usize>() {
        Ok(len) if len > limit && len <= MOST_SKIPPED => 1 + digits + 2 + len + 2,
        _ => 0,
    }
}

/// The words of an error, up to where they repeat the password: a server may quote what it was sent.
fn without_password(config: &ConnConfig, text: &[u8]) -> Vec<u8> {
    let password = config.password.as_deref().unwrap_or_default().as_bytes();
    let secret = text
        .windows(password.len().max(1))
        .position(|part| part == password);
    text[..secret.unwrap_or(text.len())].to_vec()
}

// Without the bytes: values and the password are among them.
impl<T> fmt::Debug for Conn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("phase", &self.phase)
            .field("info", &self.info)
            .field("received", &(self.end - self.start))
            .field("unsent", &(self.tx.len() - self.taken))
            .field("requests", &self.fifo.len())
            .finish_non_exhaustive()
    }
}
