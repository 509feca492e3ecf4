//! The RESP codec: commands out, replies in, without allocating and without trusting the peer.
//!
//! Redis and Valkey speak RESP, version 2 until `HELLO 3` is answered and version 3 after it. This module
//! reads both at once, so nothing has to be switched when the version changes.
//!
//! Work is split in three, so that each part stays small and can be bounded on its own:
//!
//! | step | item | what it does |
//! |---|---|---|
//! | write | [`encode`] | puts one command into a buffer of the caller |
//! | find the end | [`Scanner`] | says where the first frame ends, or that bytes are missing, or that they are wrong |
//! | look inside | [`read`] | walks a complete frame, borrowing from it |
//!
//! # A round trip
//!
//! ```
//! use tenure_core::resp::{encode, read, Arg, Limits, Scanner, Value};
//!
//! // Out: integers are formatted in place, nothing is allocated.
//! let mut out = [0; 128];
//! let command = ["SET".into(), "lock:a".into(), "token".into(), "NX".into(), "PX".into(), Arg::Int(30_000)];
//! let len = encode(&command, &mut out)?;
//! assert_eq!(&out[..len], b"*6\r\n$3\r\nSET\r\n$6\r\nlock:a\r\n$5\r\ntoken\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n");
//!
//! // In: the socket gave half of the first reply, then the rest together with the second one.
//! let mut scanner = Scanner::new(Limits::default());
//! assert_eq!(scanner.scan(b"+O"), Ok(None));
//!
//! let received = b"+OK\r\n:1\r\n";
//! let first = scanner.scan(received)?.expect("the frame is complete");
//! assert_eq!(read(&received[..first]), Value::Simple(b"OK"));
//!
//! let rest = &received[first..];
//! let second = scanner.scan(rest)?.expect("the frame is complete");
//! assert_eq!(read(&rest[..second]), Value::Int(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What can be relied on
//!
//! - **Linear work.** However the bytes are cut into pieces, the scanner goes on where it was and never starts
//!   over; the payload of a bulk string is jumped over without being looked at.
//! - **Constant memory.** A [`Scanner`] has one size. A length the peer announces is compared with [`Limits`]
//!   and then only counted down; nothing is reserved for it.
//! - **Strictness.** A byte that RESP does not allow is an error at once, with its own [`ProtocolError`]. There
//!   is no way to find the next frame after a wrong one, so a scanner that failed stays failed.
//! - **No panic**, on any bytes, in any order of calls.
//! - **No secrets in `Debug`.** Payloads of bulk strings, and the arguments of commands, are shown by their
//!   length: the value of a lock is among them.
//!
//! What exactly is accepted, and where this differs from other parsers, is in `docs/codec.md`.

mod encode;
mod error;
mod line;
mod read;
mod scan;
mod show;

#[cfg(feature = "alloc")]
pub use encode::encode_to;
pub use encode::{Arg, encode, encoded_len};
pub use error::{BufferTooSmall, ProtocolError};
pub use read::{Items, ItemsIter, Pairs, PairsIter, Value, attributes, read};
pub use scan::{Limits, MAX_DEPTH, Scanner};
