//! What can go wrong. Every error is a small `Copy` value that owns nothing.

use core::fmt;

/// The buffer given to [`encode`](super::encode) cannot hold the command. Nothing was written.
///
/// ```
/// use tenure_core::resp::{encode, BufferTooSmall};
///
/// let error = encode(&["PING".into()], &mut [0; 8]).unwrap_err();
/// assert_eq!(error, BufferTooSmall { needed: 14 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooSmall {
    /// The size of the whole command, not what was missing.
    pub needed: usize,
}

impl fmt::Display for BufferTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the command needs {} bytes", self.needed)
    }
}

impl core::error::Error for BufferTooSmall {}

/// The peer sent bytes that are not RESP, or more of them than [`Limits`](super::Limits) allow.
///
/// All of these end the connection: where the next frame starts cannot be known any more.
///
/// ```
/// use tenure_core::resp::{Limits, ProtocolError, Scanner};
///
/// let mut scanner = Scanner::new(Limits::default());
/// let error = scanner.scan(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
/// assert_eq!(error, ProtocolError::HttpPeer);
/// assert_eq!(error.to_string(), "the peer speaks HTTP, not RESP: is the port right?");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame is, or announces that it will be, longer than [`Limits::frame`](super::Limits::frame).
    FrameTooLong {
        /// The limit in force, in bytes.
        limit: usize,
    },
    /// A line did not end within [`Limits::line`](super::Limits::line).
    LineTooLong {
        /// The limit in force, in bytes.
        limit: usize,
    },
    /// Aggregates are nested deeper than [`Limits::depth`](super::Limits::depth).
    TooDeep {
        /// The limit in force, in levels.
        limit: u8,
    },
    /// A frame announces more elements than [`Limits::elements`](super::Limits::elements).
    TooManyElements {
        /// The limit in force.
        limit: u32,
    },
    /// A length or count is not plain decimal digits without a leading zero (nor `-1` where that is a null).
    BadLength,
    /// A `:` is not an optional sign and decimal digits, or does not fit 64 bits.
    BadInteger,
    /// Something else stands where CR LF must, or a lone CR or LF stands inside a line.
    BadTerminator,
    /// A frame starts with a byte that is no RESP type.
    UnknownType(u8),
    /// A streamed string or aggregate of RESP3. No server sends them, and they have no length to check.
    Streamed,
    /// The first byte received is that of a TLS record: the peer expects TLS, or is about to refuse without.
    TlsPeer,
    /// The first byte received is the `H` of an HTTP response.
    HttpPeer,
    /// A `#` is neither `t` nor `f`.
    BadBool,
    /// A `,` is no decimal number, `inf`, `-inf` or `nan`.
    BadDouble,
    /// A `(` is not an optional sign and decimal digits.
    BadBigNumber,
    /// A `_` is followed by something else than the end of its line.
    BadNull,
    /// A `=` is shorter than its format, or no colon follows the three bytes of the format.
    BadVerbatim,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::FrameTooLong { limit } => {
                return write!(f, "a reply is longer than the limit of {limit} bytes");
            }
            Self::LineTooLong { limit } => {
                return write!(
                    f,
                    "a line of a reply is longer than the limit of {limit} bytes"
                );
            }
            Self::TooDeep { limit } => {
                return write!(
                    f,
                    "a reply is nested deeper than the limit of {limit} levels"
                );
            }
            Self::TooManyElements { limit } => {
                return write!(f, "a reply has more elements than the limit of {limit}");
            }
            Self::UnknownType(byte) => {
                return write!(
                    f,
                    "a reply starts with byte {byte:#04x}, which is no RESP type"
                );
            }
            Self::BadLength => "a length in a reply is not a plain decimal number",
            Self::BadInteger => "an integer reply is not a 64-bit decimal number",
            Self::BadTerminator => "CR LF is missing or misplaced in a reply",
            Self::Streamed => "the peer sends streamed RESP3 types, which are not supported",
            Self::TlsPeer => "the peer speaks TLS on a connection without: is the port right?",
            Self::HttpPeer => "the peer speaks HTTP, not RESP: is the port right?",
            Self::BadBool => "a boolean reply is neither true nor false",
            Self::BadDouble => "a double in a reply is not a decimal number",
            Self::BadBigNumber => "a big number in a reply is not a decimal number",
            Self::BadNull => "a null in a reply has content",
            Self::BadVerbatim => "a verbatim string in a reply has no format",
        };
        f.write_str(text)
    }
}

impl core::error::Error for ProtocolError {}
