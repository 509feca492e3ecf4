//! Many leases on one connection: [`leases`], [`plan`](crate::plan) and
//! [`conn`](crate::conn) composed, with the reconnecting.
//!
//! A driver owns a transport and a clock and does this, over and over:
//!
//! 1. read what has arrived into [`recv_space`](Mux::recv_space), say so with [`received`](Mux::received), until
//!    the transport has no more;
//! 2. call [`handle_timeout`](Mux::handle_timeout) - after the reading, so that an answer that has
//!    arrived counts before anything is given up;
//! 3. call [`poll_output`](Mux::poll_output) and do what it says until it says [`Output::Idle`]; when
//!    the transport takes no more bytes, skip to the next step;
//! 4. sleep until [`deadline`](Mux::deadline), or until the transport is readable, or writable again
//!    if bytes were left over, or a request was made.
//!
//! Read the clock freshly for every call. Requests may be made at any time, from any thread that holds
//! the lock around the machine; whoever makes one does step 3 itself, as far as the transport takes it.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::config::{LeaseConfig, Wait};
//! use tenure_core::leases::{Notice, Options, Request};
//! use tenure_core::mux::{LinkEvent, Mux, MuxConfig, Output};
//! use tenure_core::names::Names;
//! use tenure_core::time::Tick;
//!
//! let now = Tick::from_micros(0);
//! let mut config = MuxConfig::new(Names::new("lock:", "doc")?);
//! // It does not tell when a name gets free, either.
//! config.watch = false;
//! let mut mux = Mux::new(config, 1);
//! let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
//! mux.acquire(now, &Request { name: b"a", terms, wait: Wait::Forever, options: Options::default(), secret: [1; 16], since_ms: 0 })?;
//!
//! # let mut greeted = false;
//! let acquired = loop {
//!     match mux.poll_output(now) {
//!         Output::Connect => mux.handle_connected(now),
//!         Output::Disconnect => {}
//!         Output::Transmit(bytes) => {
//!             // A server of two answers.
//!             let reply: &[u8] = if bytes.starts_with(b"*2\r\n$5\r\nHELLO") { b"%1\r\n+proto\r\n:3\r\n" } else { b"_\r\n" };
//!             let n = bytes.len();
//!             mux.transmitted(now, n);
//!             mux.recv_space()[..reply.len()].copy_from_slice(reply);
//!             mux.received(now, reply.len());
//!         }
//!         Output::Link(LinkEvent::Up(info)) => assert_eq!(info.protocol, 3),
//!         Output::Lease(event) => break event,
//!         other => panic!("{other:?}"),
//!     }
//! };
//! assert!(matches!(acquired.notice, Notice::Acquired { .. }));
//! # Ok::<(), tenure_core::error::ConfigError>(())
//! ```

mod asking;
mod checks;
mod link;
#[cfg(test)]
mod tests;
mod waits;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ask::{Answer, Asks};
use crate::config::{POLL_LIMIT, REPLY_LIMIT};
use crate::conn::{Conn, ConnConfig, Incoming, Orphan, Reply, ServerInfo};
use crate::error::{ConfigError, Failure, LinkFault, ServerError};
use crate::lease::OpKind;
use crate::leases::{self, LeaseId, Leases, Request};
use crate::names::{Names, escape_text};
use crate::plan::{Call, Dialect, Partial};
use crate::resp::encode_to;
use crate::rng::Rng;
use crate::time::{Deadline, Reason, Tick};
use asking::Tag;
use checks::Checks;
pub use link::{LinkEvent, Unwatched};
use link::{take_push, tell_unwatched};
use waits::Waits;

/// While so many bytes wait for the transport, operations stay typed: they can still be withdrawn.
const ENCODE_AHEAD: usize = 16 * 1024;
/// The longest frame that is accepted: a page of the longest names fits.
const MAX_FRAME: usize = 256 * 1024;
/// The delay before a reconnect: the first bound, doubled up to the last.
const RECONNECT_FIRST: Duration = Duration::from_millis(10);
const RECONNECT_LAST: Duration = Duration::from_secs(1);
/// A dial and the handshake take no longer than this, and no longer than live holds allow.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How the machine behaves on its connection.
#[derive(Clone, Debug)]
pub struct MuxConfig {
    /// Keys and the label of values.
    pub names: Names,
    /// The handshake.
    pub conn: ConnConfig,
    /// The longest a dial and its handshake may take, 5 s.
    pub connect_limit: Duration,
    /// The longest a reply may take where no live hold asks for less, 5 s.
    pub reply_limit: Duration,
    /// The longest delay between two tries to connect, 1 s.
    pub reconnect_limit: Duration,
    /// Whether to ask the server to tell when a name gets free or a hold is lost; true. Else both are found out by asking.
    pub watch: bool,
    /// The longest delay between two attempts of a waiter that the server wakes, [`POLL_LIMIT`].
    pub poll_limit: Duration,
    /// Whether to look for what about the server endangers locks, to be told as [`LinkEvent::Risk`]; false.
    pub check: bool,
    /// Whether to grant nothing on a server that deletes locks when its memory is full, or does not let one see whether it
    /// does: it is as good as not there, and every wait ends with [`LinkFault::Unfit`]; false.
    pub strict: bool,
    /// Whether to connect only once there is a lease or a question; false. A connection that is there stays.
    pub on_demand: bool,
}

impl MuxConfig {
    /// The defaults, for a server without a password.
    pub fn new(names: Names) -> MuxConfig {
        let mut conn = ConnConfig::default();
        conn.limits.frame = MAX_FRAME;
        MuxConfig {
            names,
            conn,
            connect_limit: CONNECT_LIMIT,
            reply_limit: REPLY_LIMIT,
            reconnect_limit: RECONNECT_LAST,
            watch: true,
            poll_limit: POLL_LIMIT,
            check: false,
            strict: false,
            on_demand: false,
        }
    }
}

/// What the driver is to do next.
#[derive(Debug)]
#[must_use]
pub enum Output<'a> {
    /// Tell the caller or holder.
    Lease(leases::Event),
    /// Tell whoever asked.
    Answer(Answer),
    /// Tell whoever watches.
    Link(LinkEvent),
    /// Abort the transport, or the dial under way: abortively, so that nothing of it arrives later.
    Disconnect,
    /// Dial, then call [`Mux::handle_connected`] or [`Mux::handle_dial_failed`].
    Connect,
    /// Send as much of this as the transport takes, then call [`Mux::transmitted`].
    Transmit(&'a [u8]),
    /// Nothing to do before the deadline or the next input.
    Idle(Deadline),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Not connected; the next try is at this tick.
    Down(Tick),
    /// Dialling or shaking hands, until this tick at the latest.
    Opening(Tick),
    Up,
}

/// The composed machine. See the [module](self) for how it is driven.
///
/// A clone holds what this one holds, as a copy of the process would: two of them on one server are what
/// [rotation](crate::leases::Options::rotate) finds out.
#[derive(Clone, Debug)]
pub struct Mux {
    config: MuxConfig,
    conn: Conn<Tag>,
    leases: Leases,
    asks: Asks,
    checks: Checks,
    dialect: Dialect,
    link: Link,
    link_events: VecDeque<LinkEvent>,
    disconnect: bool,
    /// Tries to connect since the connection last did anything useful.
    failures: u32,
    /// Leave this connection: the server became a replica.
    retire: bool,
    partial: Partial,
    waits: Waits,
    again: Vec<Call>,
    /// Why the server tells nothing, if that has been told, and nothing else shown since.
    unwatched: Option<Unwatched>,
    rng: Rng,
}

impl Mux {
    /// A machine that wants to connect. `seed` feeds the jitter.
    pub fn new(config: MuxConfig, seed: u64) -> Mux {
        Mux {
            conn: Conn::new(config.conn.clone()),
            leases: Leases::new(config.names.clone(), seed)
                .with_limits(config.connect_limit, config.reply_limit)
                .with_poll_limit(config.poll_limit),
            asks: Asks::new(
                config.names.clone(),
                config.connect_limit + config.reply_limit,
            ),
            checks: Checks::default(),
            config,
            dialect: Dialect::of(&ServerInfo::default()),
            link: Link::Down(Tick::ZERO),
            link_events: VecDeque::new(),
            disconnect: false,
            failures: 0,
            retire: false,
            partial: Partial::default(),
            waits: Waits::default(),
            again: Vec::new(),
            unwatched: None,
            rng: Rng::new(seed ^ 0x6a09_e667_f3bc_c908),
        }
    }

    // ---- getters ----

    /// The leases, to be looked at.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Whether the connection is up.
    pub fn is_up(&self) -> bool {
        self.link == Link::Up
    }

    /// Commands on the connection without an answer.
    pub fn unanswered(&self) -> usize {
        self.conn.unanswered()
    }

    /// Whether it was closed and everything has been released or has expired.
    pub fn is_finished(&self) -> bool {
        self.leases.is_finished()
    }

    /// Whether there is any use for a connection.
    fn is_wanted(&self) -> bool {
        let idle = self.config.on_demand && self.leases.is_empty() && self.asks.is_empty();
        !(idle || self.is_finished())
    }

    /// Whether the next output may be a rotation: [`stir`](Mux::stir) before it is polled.
    pub fn wants_stirring(&self) -> bool {
        self.link == Link::Up && self.leases.wants_stirring()
    }

    /// When to call [`handle_timeout`](Mux::handle_timeout), whatever output is left.
    pub fn deadline(&self) -> Deadline {
        let link = match self.link {
            Link::Down(_) if !self.is_wanted() => Deadline::Never,
            Link::Down(at) | Link::Opening(at) => Deadline::At(at, Reason::Reconnect),
            Link::Up => self.conn.deadline(),
        };
        link.or_earlier(self.leases.timer())
            .or_earlier(self.asks.timer())
    }

    // ---- requests ----

    /// Asks for a lock. After [`close`](Mux::close) the request fails, which is told as any other end.
    ///
    /// # Errors
    /// [`ConfigError::Name`]: nothing was begun.
    pub fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Result<LeaseId, ConfigError> {
        self.leases.acquire(now, request)
    }

    /// Renew as soon as possible.
    pub fn renew_now(&mut self, now: Tick, id: LeaseId) {
        self.leases.renew_now(now, id);
        // It may be too late for any: then the loss is found here.
        self.purge(now);
    }

    /// Release; the answer is an event.
    pub fn release(&mut self, now: Tick, id: LeaseId) {
        self.leases.release(now, id);
        self.purge(now);
    }

    /// Stop renewing and leave the key to its TTL.
    pub fn abandon(&mut self, now: Tick, id: LeaseId) {
        self.leases.abandon(now, id);
        self.purge(now);
    }

    /// Nobody waits for this lease any more.
    pub fn drop_guard(&mut self, now: Tick, id: LeaseId) {
        self.leases.drop_guard(now, id);
        self.purge(now);
    }

    /// The same of a request whose lock was never handed to anybody: see [`Leases::cancel`].
    pub fn cancel(&mut self, now: Tick, id: LeaseId) {
        self.leases.cancel(now, id);
        self.purge(now);
    }

    /// Every request and question fails, every hold is told, and what is left to clear goes on until
    /// [`is_finished`](Mux::is_finished).
    pub fn close(&mut self, now: Tick) {
        self.leases.close(now);
        self.purge(now);
        self.close_asks();
    }

    // ---- inputs ----

    /// The transport is open.
    pub fn handle_connected(&mut self, _now: Tick) {
        if matches!(self.link, Link::Opening(_)) && self.conn.is_closed() {
            self.conn.open();
        }
    }

    /// The dial failed; `why` is for people, and may be empty.
    pub fn handle_dial_failed(&mut self, now: Tick, why: &str) {
        if matches!(self.link, Link::Opening(_)) {
            self.fault_for(now, LinkFault::Dial, false, why.as_bytes());
        }
    }

    /// The peer closed the connection, or reading or writing failed.
    pub fn handle_disconnected(&mut self, now: Tick) {
        if !matches!(self.link, Link::Down(_)) {
            self.fault(now, LinkFault::Closed, true);
        }
    }

    /// Room to read into.
    pub fn recv_space(&mut self) -> &mut [u8] {
        self.conn.recv_space()
    }

    /// `n` bytes were read into [`recv_space`](Mux::recv_space). `now` is read after the reading.
    pub fn received(&mut self, now: Tick, n: usize) {
        self.conn.received(n);
        let mut fault = self.take_replies(now);
        // Before the connection may be given up: then they get their outcome like every other request.
        let mut again = core::mem::take(&mut self.again);
        again.drain(..).for_each(|call| self.submit(call));
        self.again = again;
        self.purge(now);
        let mut why = Vec::new();
        if fault.is_none() {
            if let Some((unfit, text)) = self.checks.take_unfit() {
                (fault, why) = (Some(unfit), text);
            }
        }
        if core::mem::take(&mut self.retire) {
            fault = fault.or(Some(LinkFault::Retired));
        }
        if let Some(fault) = fault {
            self.fault_for(now, fault, true, &why);
        }
    }

    /// The transport took `n` of the bytes that the last [`Output::Transmit`] offered. Say so before any
    /// other call: a request may withdraw bytes of which none has left.
    pub fn transmitted(&mut self, _now: Tick, n: usize) {
        self.conn.transmitted(n);
    }

    /// What the values of rotations are made from: see [`Leases::stir`].
    pub fn stir(&mut self, fresh: Option<[u8; 16]>) {
        self.leases.stir(fresh);
    }

    /// Does what is due at `now`. Read what has arrived first.
    pub fn handle_timeout(&mut self, now: Tick) {
        match self.link {
            Link::Opening(until) if now >= until => self.fault(now, LinkFault::DialTimedOut, true),
            Link::Up if self.conn.is_overdue(now) => self.fault(now, LinkFault::ReplyOverdue, true),
            _ => {}
        }
        self.leases.handle_timeout(now);
        self.purge(now);
        self.end_overdue_asks(now);
    }

    // ---- output ----

    /// What to do next. See the [module](self) for the order.
    pub fn poll_output(&mut self, now: Tick) -> Output<'_> {
        if let Some(event) = self.leases.poll_event() {
            return Output::Lease(event);
        }
        if let Some(answer) = self.asks.poll_answer() {
            return Output::Answer(answer);
        }
        if let Some(event) = self.link_events.pop_front() {
            return Output::Link(event);
        }
        if core::mem::take(&mut self.disconnect) {
            return Output::Disconnect;
        }
        match self.link {
            Link::Down(at) if now >= at && self.is_wanted() => {
                self.link = Link::Opening(now + self.dial_limit(now));
                return Output::Connect;
            }
            Link::Up => self.encode(now),
            Link::Down(_) | Link::Opening(_) => {}
        }
        if self.conn.unsent() > 0 {
            return Output::Transmit(self.conn.transmit(now));
        }
        Output::Idle(self.deadline())
    }

    // ---- helpers ----

    /// Takes what has arrived, until there is no more or it makes no sense.
    fn take_replies(&mut self, now: Tick) -> Option<LinkFault> {
        loop {
            match self.conn.poll() {
                Ok(None) => return None,
                Ok(Some(Incoming::Ready(info))) if self.config.strict => self.vet(info),
                Ok(Some(Incoming::Ready(info))) => self.up(now, info),
                Ok(Some(Incoming::Watched(refused))) => {
                    self.dialect.set_watched(refused.is_none());
                    if let Some(text) = refused {
                        let why = Unwatched::Refused(escape_text(text, 200).into());
                        tell_unwatched(&mut self.unwatched, &mut self.link_events, why);
                    }
                }
                Ok(Some(Incoming::Push(push))) => {
                    if take_push(&push, now, &mut self.leases) {
                        self.unwatched = None;
                    }
                }
                Ok(Some(Incoming::Reply(reply))) => {
                    let error = reply.value.error().map(ServerError::of);
                    self.retire |= error == Some(ServerError::ReadOnly);
                    // Only what a replica would refuse shows that the server serves.
                    let writes = match reply.tag {
                        Tag::Lease(call) if reply.more < call.behind() => false,
                        Tag::Lease(call) => !matches!(call.op.kind, OpKind::Look { .. }),
                        Tag::Ask(_) | Tag::Check(_) => false,
                    };
                    if error.is_none() && writes && self.link == Link::Up {
                        self.failures = 0;
                    }
                    match reply.tag {
                        Tag::Lease(call) => {
                            let watching = self.dialect.is_watching();
                            self.again.extend(Call::handle_reply(
                                &with(call, &reply),
                                now,
                                &mut self.leases,
                                &mut self.dialect,
                                &mut self.partial,
                            ));
                            let why = if self.leases.take_missed() {
                                Some(Unwatched::Missed)
                            } else {
                                let ended = watching && !self.dialect.is_watching();
                                ended.then_some(Unwatched::NoPermission)
                            };
                            if let Some(why) = why {
                                self.dialect.set_watched(false);
                                tell_unwatched(&mut self.unwatched, &mut self.link_events, why);
                            }
                        }
                        Tag::Ask(probe) => asking::take_reply(
                            &with(probe, &reply),
                            now,
                            &mut self.asks,
                            &mut self.leases,
                            &mut self.dialect,
                        ),
                        Tag::Check(info) => {
                            let (events, text) = (&mut self.link_events, &reply.value);
                            if let Some(info) = self.checks.take_reply(info, text, events) {
                                self.up(now, info);
                            }
                        }
                    }
                }
                Err(fault) => return Some(fault),
            }
        }
    }

    /// Turns operations into bytes as late as possible: what is not bytes yet can be withdrawn.
    fn encode(&mut self, now: Tick) {
        while self.conn.unsent() < ENCODE_AHEAD {
            if let Some(op) = self.leases.poll_op(now) {
                self.submit(Call::new(&self.dialect, op));
            } else if !self.submit_probe() && !self.submit_check() {
                break;
            }
        }
    }

    fn submit(&mut self, call: Call) {
        let Some(lease) = self.leases.lease(call.op.id) else {
            return;
        };
        let limit = lease.reply_limit(call.op.kind).min(self.config.reply_limit);
        let unanswered = self.conn.unanswered();
        let limit = limit + self.waits.until_answered(call.wait, unanswered);
        let replies = call.replies(&self.leases);
        if self.conn.is_ready() && replies > 0 {
            self.conn.submit(Tag::Lease(call), replies, limit, |out| {
                call.commands(&self.leases, |args| encode_to(args, out));
            });
        }
    }

    /// Operations that nobody wants any more leave the transmit buffer, unless they have begun to leave.
    fn purge(&mut self, now: Tick) {
        while let Some(op) = self.leases.poll_superseded() {
            let unsent = self
                .conn
                .purge(|tag| matches!(tag, Tag::Lease(call) if call.op.id == op.id && call.op.seq == op.seq));
            if unsent {
                self.leases.handle_purged(now, op);
            }
        }
    }

    fn up(&mut self, now: Tick, info: ServerInfo) {
        self.link = Link::Up;
        self.dialect = Dialect::of(&info);
        self.link_events.push_back(LinkEvent::Up(info));
        if self.config.watch && info.protocol >= 3 {
            self.dialect.ask_to_watch();
            self.conn.ask_to_watch();
        } else if self.config.watch {
            let why = Unwatched::Protocol;
            tell_unwatched(&mut self.unwatched, &mut self.link_events, why);
        }
        self.checks.begin(self.config.check);
        self.leases.handle_link_up(now);
        self.asks.handle_link_up();
    }

    /// The connection, or the try to have one, is over.
    fn fault(&mut self, now: Tick, fault: LinkFault, abort: bool) {
        self.fault_for(now, fault, abort, &[]);
    }

    /// As `fault`; `why` stands for what the server said, if that is nothing.
    fn fault_for(&mut self, now: Tick, fault: LinkFault, abort: bool, why: &[u8]) {
        let was_up = self.link == Link::Up;
        let failure = Failure::Link(fault);
        let (leases, asks, partial) = (&mut self.leases, &mut self.asks, &mut self.partial);
        self.conn.end(|orphan: Orphan<Tag>| match orphan.tag {
            Tag::Lease(call) => {
                call.handle_no_reply(now, leases, partial, orphan.maybe_executed, failure);
            }
            Tag::Ask(probe) => probe.handle_no_reply(asks, orphan.maybe_executed, fault),
            Tag::Check(_) => {}
        });
        self.checks.end();
        self.partial = Partial::default();
        self.retire = false;
        self.disconnect |= abort;
        let text = match self.conn.fault_text() {
            [] => why,
            said => said,
        };
        if was_up {
            self.leases.handle_link_down(now);
            self.link_events.push_back(LinkEvent::Down(fault));
        } else {
            let text = (!text.is_empty()).then(|| escape_text(text, 200).into_boxed_str());
            self.link_events
                .push_back(LinkEvent::Failed { fault, text });
        }
        let text = match self.conn.fault_text() {
            [] => why,
            said => said,
        };
        self.asks.handle_link_failed(failure, text);
        if !was_up || !fault.waiting_may_cure() {
            self.leases.handle_link_failed(now, failure, text);
        }
        self.link = Link::Down(now + self.reconnect_delay());
        self.purge(now);
    }

    /// Grows with every failure, jittered, and never eats up what a live hold has left.
    fn reconnect_delay(&mut self) -> Duration {
        let bound = RECONNECT_FIRST * (1 << self.failures.min(7));
        let bound = bound
            .min(self.config.reconnect_limit)
            .min(self.leases.shortest_reply_limit() / 4);
        self.failures = self.failures.saturating_add(1);
        self.rng.up_to(bound)
    }

    fn dial_limit(&self, now: Tick) -> Duration {
        self.config.connect_limit.min(self.leases.dial_limit(now))
    }
}

/// The same reply, for what is behind its tag.
fn with<'a, T>(tag: T, reply: &Reply<'a, Tag>) -> Reply<'a, T> {
    Reply {
        tag,
        value: reply.value,
        handed_out: reply.handed_out,
        more: reply.more,
    }
}
