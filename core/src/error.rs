//! What can go wrong, told apart: a bad configuration, an error reply, a failed request.

use core::fmt;
use core::time::Duration;

use crate::fence::{FenceFault, MAX_FENCE};
use crate::replicas::{Confirmed, Replicas, ReplicasFault};
use crate::resp::ProtocolError;

/// A configuration that cannot work. Nothing was sent.
///
/// The message names the value and the range that is allowed.
///
/// ```
/// use core::time::Duration;
/// use tenure_core::config::LeaseConfig;
///
/// let error = LeaseConfig::new(Duration::from_millis(5)).build().unwrap_err();
/// assert_eq!(error.to_string(), "a lease of 5ms is out of range: from 20ms to 30d");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The lease is shorter than 20 ms or longer than 30 days.
    Lease(Duration),
    /// The margin is under a millisecond or leaves nothing of the lease.
    Margin {
        /// What was asked for.
        margin: Duration,
        /// It must be less than this.
        lease: Duration,
    },
    /// Not zero < `renew_every` < `give_up_after` < lease - margin.
    Intervals {
        /// Time from a hand-out to the next renewal.
        renew_every: Duration,
        /// Time from the last confirmed hand-out to giving up.
        give_up_after: Duration,
        /// Lease less margin.
        validity: Duration,
    },
    /// The reply limit is zero or leaves no room for two fresh connections before the hold is given up.
    ReplyLimit {
        /// What was asked for.
        limit: Duration,
        /// The most that fits: (`give_up_after` - `renew_every`) / 3.
        most: Duration,
    },
    /// `max_hold` is shorter than one lease.
    MaxHold {
        /// What was asked for.
        max_hold: Duration,
        /// The lease.
        lease: Duration,
    },
    /// `at_least` is longer than 30 days.
    AtLeast(Duration),
    /// The name is empty or longer than 1,024 bytes.
    Name {
        /// Its length in bytes.
        len: usize,
    },
    /// The key prefix has a brace, or is longer than 256 bytes.
    Prefix {
        /// Its length in bytes.
        len: usize,
    },
    /// The floor of a fence leaves no room for one above it.
    Floor(u64),
    /// For how long who waits is taken for alive is out of range.
    WaiterLease(Duration),
    /// No place in the queue at all: a single try does not wait.
    MaxWaiters,
    /// No replica, no time for them, or so much that a lease leaves too little.
    Replicas {
        /// What was asked for.
        replicas: Replicas,
        /// The lease.
        lease: Duration,
    },
    /// The store has no replicas.
    NoReplicas,
    /// The label is longer than 128 bytes once escaped.
    Label {
        /// Its length in bytes once escaped.
        len: usize,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::config::{
            MAX_LABEL, MAX_LEASE, MAX_NAME, MAX_PREFIX, MIN_LEASE, MIN_MARGIN, MIN_WAITER_LEASE,
        };
        match *self {
            ConfigError::Lease(lease) => write!(
                f,
                "a lease of {lease:?} is out of range: from {MIN_LEASE:?} to {}d",
                days(MAX_LEASE)
            ),
            ConfigError::Margin { margin, lease } => write!(
                f,
                "a margin of {margin:?} is out of range: from {MIN_MARGIN:?} to less than the lease of {lease:?}"
            ),
            ConfigError::Intervals {
                renew_every,
                give_up_after,
                validity,
            } => write!(
                f,
                "the intervals cannot work: they must be 0 < renew_every ({renew_every:?}) < give_up_after ({give_up_after:?}) < lease - margin ({validity:?})"
            ),
            ConfigError::ReplyLimit { limit, most } => write!(
                f,
                "a reply limit of {limit:?} is out of range: more than 0 and at most {most:?}, which is (give_up_after - renew_every) / 3"
            ),
            ConfigError::MaxHold { max_hold, lease } => write!(
                f,
                "max_hold of {max_hold:?} is shorter than the lease of {lease:?}: shorten the lease, or use no_renew"
            ),
            ConfigError::AtLeast(at_least) => write!(
                f,
                "at_least of {at_least:?} is out of range: at most {}d",
                days(MAX_LEASE)
            ),
            ConfigError::Name { len } => write!(
                f,
                "a name of {len} bytes is out of range: from 1 to {MAX_NAME} bytes"
            ),
            ConfigError::Prefix { len } => write!(
                f,
                "the key prefix ({len} bytes) must have no brace and at most {MAX_PREFIX} bytes"
            ),
            ConfigError::WaiterLease(lease) => write!(
                f,
                "waiter_lease {lease:?} is out of range; use {MIN_WAITER_LEASE:?} to {}d",
                days(MAX_LEASE)
            ),
            ConfigError::MaxWaiters => {
                f.write_str("max_waiters(0) lets nobody wait; use a single try for that")
            }
            ConfigError::Floor(floor) => write!(
                f,
                "fence_from({floor}) is out of range: less than {MAX_FENCE}"
            ),
            ConfigError::Replicas { replicas, lease } => write!(
                f,
                "replicas({}, {:?}) is out of range: from 1 to 15 replicas, within 1ms to less than a quarter of the lease of {lease:?}",
                replicas.count,
                replicas.within()
            ),
            ConfigError::NoReplicas => {
                f.write_str("replicas(..) takes a server; this store has none to be confirmed by")
            }
            ConfigError::Label { len } => write!(
                f,
                "a label of {len} bytes (escaped) is out of range: at most {MAX_LABEL} bytes"
            ),
        }
    }
}

/// Nobody reads 2592000 s as a month.
const fn days(limit: Duration) -> u64 {
    limit.as_secs() / 86_400
}

impl core::error::Error for ConfigError {}

/// The first word of an error reply. Only the word is looked at: texts differ between servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerError {
    /// A replica: the server will not write.
    ReadOnly,
    /// The server is loading its data.
    Loading,
    /// A script is running.
    Busy,
    /// A replica that lost its primary.
    MasterDown,
    /// Too few replicas to accept a write.
    NoReplicas,
    /// Out of memory.
    OutOfMemory,
    /// Slot migration under way.
    TryAgain,
    /// The cluster is not serving.
    ClusterDown,
    /// Persistence fails and the server refuses writes for it.
    Misconf,
    /// Wrong user or password.
    WrongPass,
    /// No password was given and one is needed.
    NoAuth,
    /// The user lacks a permission.
    NoPerm,
    /// The key lives on another node of a cluster.
    Moved,
    /// The key holds another type.
    WrongType,
    /// The script is not cached.
    NoScript,
    /// The protocol version is not spoken.
    NoProto,
    /// The server refuses connections from here.
    Denied,
    /// `ERR`, or a word that is not known.
    Other,
}

impl ServerError {
    /// Reads the first word of an error reply.
    ///
    /// ```
    /// use tenure_core::error::ServerError;
    /// assert_eq!(ServerError::of(b"READONLY You can't write against a read only replica."), ServerError::ReadOnly);
    /// assert!(ServerError::ReadOnly.waiting_may_cure());
    /// assert!(!ServerError::of(b"NOPERM no").waiting_may_cure());
    /// ```
    pub fn of(text: &[u8]) -> ServerError {
        let word = text.split(|b| *b == b' ').next().unwrap_or_default();
        match word {
            b"READONLY" => ServerError::ReadOnly,
            b"LOADING" => ServerError::Loading,
            b"BUSY" => ServerError::Busy,
            b"MASTERDOWN" => ServerError::MasterDown,
            b"NOREPLICAS" => ServerError::NoReplicas,
            b"OOM" => ServerError::OutOfMemory,
            b"TRYAGAIN" => ServerError::TryAgain,
            b"CLUSTERDOWN" => ServerError::ClusterDown,
            b"MISCONF" => ServerError::Misconf,
            b"WRONGPASS" => ServerError::WrongPass,
            b"NOAUTH" => ServerError::NoAuth,
            b"NOPERM" => ServerError::NoPerm,
            b"MOVED" | b"ASK" | b"CROSSSLOT" => ServerError::Moved,
            b"WRONGTYPE" => ServerError::WrongType,
            b"NOSCRIPT" => ServerError::NoScript,
            b"NOPROTO" => ServerError::NoProto,
            b"DENIED" => ServerError::Denied,
            _ => ServerError::Other,
        }
    }

    /// Whether the same command may succeed later without anybody changing a setting.
    pub fn waiting_may_cure(self) -> bool {
        matches!(
            self,
            ServerError::ReadOnly
                | ServerError::Loading
                | ServerError::Busy
                | ServerError::MasterDown
                | ServerError::NoReplicas
                | ServerError::OutOfMemory
                | ServerError::TryAgain
                | ServerError::ClusterDown
                | ServerError::Misconf
        )
    }
}

/// Why a connection ended, or could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkFault {
    /// The transport could not be opened: refused, unreachable, name not found.
    Dial,
    /// The transport was not open within the connect limit.
    DialTimedOut,
    /// The peer closed the connection, or it failed.
    Closed,
    /// A reply was overdue by the reply limit.
    ReplyOverdue,
    /// The server asked to look elsewhere (it turned into a replica).
    Retired,
    /// The peer does not follow the protocol.
    Protocol(ProtocolError),
    /// A reply without a question, or a reply of the wrong shape.
    UnexpectedReply,
    /// The handshake was answered with an error.
    Handshake(ServerError),
    /// The server is not to be used for locks, as it is set.
    Unfit(Unfit),
    /// A store without a connection, such as a file, did not do what it was asked.
    Store(StoreFault),
}

/// What is wrong with a store that has no connection: a file, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreFault {
    /// Somebody else keeps it locked, longer than could be waited for. Nothing was done.
    Busy,
    /// There is no room left.
    Full,
    /// It cannot be read or written at the moment.
    Io,
    /// It may not be written.
    Denied,
    /// It is not what it should be: damaged, another program's, of another version, in the wrong place.
    Unusable,
}

/// Why a server is not to be used for locks by whoever asked for one that keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfit {
    /// When its memory is full it deletes keys, and locks are among them.
    Evicts,
    /// It does not let this user see whether it does.
    Unseen,
}

impl LinkFault {
    /// Whether another try may succeed without anybody changing a setting.
    pub fn waiting_may_cure(self) -> bool {
        match self {
            LinkFault::Protocol(_) => false,
            LinkFault::Handshake(error) => error.waiting_may_cure(),
            LinkFault::Unfit(_) => false,
            LinkFault::Store(fault) => fault.waiting_may_cure(),
            _ => true,
        }
    }
}

impl StoreFault {
    /// Whether another try may succeed without anybody changing a setting.
    pub fn waiting_may_cure(self) -> bool {
        matches!(self, StoreFault::Busy | StoreFault::Full | StoreFault::Io)
    }
}

/// Why a request failed, or a renewal did not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The server answered an error.
    Server(ServerError),
    /// No connection, or the connection was lost before the reply.
    Link(LinkFault),
    /// Replies take longer than the lease leaves: nothing useful was left of the grant.
    SlowReplies,
    /// Too many attempts of this request are still without an answer.
    TooManyUnanswered,
    /// No reply within the patience of a single try.
    NoReply,
    /// `max_hold` leaves no room for another renewal.
    MaxHold,
    /// The client is being closed.
    Closed,
    /// The command was sent and its answer did not come: it may have been carried out, and is not sent again.
    MaybeDone,
    /// No fence could be minted, so nothing was granted.
    Fence(FenceFault),
    /// The write was made, and too few replicas confirmed it in time: it does not count.
    Unconfirmed(Confirmed),
    /// The write was made, and the server cannot say what replicas have of it: it does not count.
    Replicas(ReplicasFault),
    /// So many wait already that this request is not to join them.
    QueueFull,
}

impl Failure {
    /// Whether the same request may succeed later without anybody changing a setting.
    pub fn waiting_may_cure(self) -> bool {
        match self {
            Failure::Server(error) => error.waiting_may_cure(),
            Failure::Link(fault) => fault.waiting_may_cure(),
            Failure::SlowReplies | Failure::NoReply | Failure::Unconfirmed(_) => true,
            Failure::TooManyUnanswered
            | Failure::MaxHold
            | Failure::Closed
            | Failure::MaybeDone
            | Failure::Fence(_)
            | Failure::Replicas(_)
            // Another request may find a place later; this one was not to stand in line.
            | Failure::QueueFull => false,
        }
    }
}

impl Failure {
    /// Whether the write itself was made: only its confirmation is missing.
    pub(crate) fn was_written(self) -> bool {
        matches!(self, Failure::Unconfirmed(_) | Failure::Replicas(_))
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServerError::ReadOnly => "the server is a read-only replica; use the primary",
            ServerError::Loading => "the server is loading its data",
            ServerError::Busy => "the server is busy with a script",
            ServerError::MasterDown => "the server is a replica that lost its primary",
            ServerError::NoReplicas => "the server has too few replicas to accept writes",
            ServerError::OutOfMemory => "the server is out of memory",
            ServerError::TryAgain => "the server is moving the slot of the key",
            ServerError::ClusterDown => "the cluster is not serving",
            ServerError::Misconf => "the server refuses writes because it cannot save",
            ServerError::WrongPass => "wrong user or password",
            ServerError::NoAuth => "the server wants a password; put it into the URL",
            ServerError::NoPerm => {
                "the user lacks a permission; docs/permissions.md lists the commands that are needed"
            }
            ServerError::Moved => {
                "the key lives on another node; a cluster is not supported, use a single server"
            }
            ServerError::WrongType => {
                "the key holds another type than a string; use another name or prefix"
            }
            ServerError::Denied => "the server refuses connections from here",
            ServerError::NoScript => "the server does not know the script",
            ServerError::NoProto => "the server does not speak this version of the protocol",
            ServerError::Other => "the server answered an error",
        })
    }
}

impl fmt::Display for LinkFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkFault::Dial => "no connection: refused, unreachable, or the name is not known",
            LinkFault::DialTimedOut => {
                "no connection within the connect limit; check address, port and firewall"
            }
            LinkFault::Closed => "the connection was closed before the reply",
            LinkFault::ReplyOverdue => {
                "no reply within the reply limit; the connection was given up"
            }
            LinkFault::Retired => "the server has become a replica; connecting anew",
            LinkFault::Protocol(ProtocolError::TlsPeer) => {
                "the peer speaks TLS; use the URL of its plain port"
            }
            LinkFault::Protocol(ProtocolError::HttpPeer) => {
                "the peer speaks HTTP; check address and port"
            }
            LinkFault::Protocol(_) | LinkFault::UnexpectedReply => {
                "the peer's bytes are not RESP; check address and port"
            }
            LinkFault::Handshake(error) => return error.fmt(f),
            LinkFault::Store(fault) => return fault.fmt(f),
            LinkFault::Unfit(Unfit::Evicts) => {
                "the server deletes locks when its memory is full; set its maxmemory-policy to noeviction, or maxmemory to 0"
            }
            LinkFault::Unfit(Unfit::Unseen) => {
                "the server does not let this user see whether it deletes locks when its memory is full; permit INFO"
            }
        })
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreFault::Busy => "another program keeps the store locked",
            StoreFault::Full => "the store has no room left",
            StoreFault::Io => "the store cannot be read or written",
            StoreFault::Denied => "the store may not be written",
            StoreFault::Unusable => "the store cannot be used",
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Server(error) => return error.fmt(f),
            Failure::Link(fault) => return fault.fmt(f),
            Failure::Fence(fault) => return fault.fmt(f),
            Failure::Replicas(fault) => return fault.fmt(f),
            Failure::QueueFull => "as many wait for the lock as may",
            Failure::Unconfirmed(confirmed) => {
                return write!(
                    f,
                    "{confirmed} replicas confirmed it in time; look at the replicas and their lag (INFO replication), or allow more time"
                );
            }
            Failure::SlowReplies => "replies take longer than the lease leaves; use a longer lease",
            Failure::TooManyUnanswered => "too many attempts were left without an answer",
            Failure::NoReply => "no reply in time",
            Failure::MaxHold => "max_hold leaves no room for another renewal",
            Failure::Closed => "the client was closed",
            Failure::MaybeDone => {
                "the command may have been carried out or not, its answer did not come; inspect the name before sending it again"
            }
        })
    }
}
