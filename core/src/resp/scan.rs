//! Where does the first frame end? Answered resumably, within limits, and without keeping any bytes.

use super::{ProtocolError, line};

/// The deepest nesting a [`Scanner`] can be configured for. A higher [`Limits::depth`] counts as this.
pub const MAX_DEPTH: u8 = 32;

/// What a peer may send in one frame. A frame of exactly a limit passes; one over is an error.
///
/// The defaults are far above any reply to a lock command. The largest legitimate one is that of `HELLO` on a
/// server with many modules: nested four deep, some kilobytes.
///
/// ```
/// use tenure_core::resp::Limits;
///
/// let limits = Limits { frame: 1024, ..Limits::DEFAULT };
/// assert_eq!(limits.depth, 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a whole frame, its attributes included. Default 64 KiB.
    pub frame: usize,
    /// Aggregates inside each other: `+OK` has none, `*0` one, `*1 *0` two. Default 8, at most [`MAX_DEPTH`].
    pub depth: u8,
    /// Elements of all aggregates of a frame together; a pair counts as two. Default 1024.
    pub elements: u32,
    /// Bytes of a line, without the type byte and CR LF. Default 4 KiB.
    pub line: usize,
}

impl Limits {
    /// The defaults, for use in constants.
    pub const DEFAULT: Self = Self {
        frame: 64 * 1024,
        depth: 8,
        elements: 1024,
        line: 4 * 1024,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Finds the end of one frame after another, however the bytes arrive.
///
/// Feed it the bytes from the start of a frame on, and more of the same as they come. It goes on where it was,
/// so the work is the same in one piece and byte by byte. After `Some(len)` it is ready for the frame that starts at `len`.
///
/// ```
/// use tenure_core::resp::{Limits, Scanner};
///
/// let mut scanner = Scanner::new(Limits::default());
/// let mut buffer = Vec::new();
/// let mut frames = Vec::new();
/// for byte in *b"$5\r\nhello\r\n*2\r\n:1\r\n_\r\n" {
///     buffer.push(byte);
///     if let Some(len) = scanner.scan(&buffer)? {
///         frames.push(buffer.drain(..len).collect::<Vec<u8>>());
///     }
/// }
/// assert_eq!(frames, [b"$5\r\nhello\r\n".to_vec(), b"*2\r\n:1\r\n_\r\n".to_vec()]);
/// # Ok::<(), tenure_core::resp::ProtocolError>(())
/// ```
///
/// An announced length is judged before its bytes arrive:
///
/// ```
/// # use tenure_core::resp::{Limits, ProtocolError, Scanner};
/// let mut scanner = Scanner::new(Limits::default());
/// assert_eq!(scanner.scan(b"$1000000000\r\n"), Err(ProtocolError::FrameTooLong { limit: 65536 }));
/// ```
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: Limits,
    failed: Option<ProtocolError>,
    /// Nothing complete has been received yet, so the peer may turn out not to speak RESP at all.
    first: bool,
    want: Want,
    /// The type byte of the item being read.
    kind: u8,
    /// Where its line starts, and, once that has been read, its payload.
    start: usize,
    /// Everything before this has been gone over.
    at: usize,
    elements: u32,
    /// Open aggregates.
    depth: u8,
    /// How many values are still owed: at 0 the frame itself, above that one entry per open aggregate.
    owed: [u32; MAX_DEPTH as usize + 1],
    #[cfg(test)]
    looked_at: usize,
}

/// What has to arrive at `at`.
#[derive(Clone, Copy, Debug)]
enum Want {
    Type,
    /// The rest of a line, up to its CR.
    Line,
    LineFeed,
    /// The CR behind a payload.
    PayloadEnd,
    PayloadLineFeed,
}

/// What a complete line turned out to be.
enum Item {
    Value,
    Payload(u64),
    Aggregate(u64),
    Attribute(u64),
}

impl Scanner {
    /// A scanner at the start of a connection.
    #[must_use]
    pub const fn new(mut limits: Limits) -> Self {
        if limits.depth > MAX_DEPTH {
            limits.depth = MAX_DEPTH;
        }
        let mut owed = [0; MAX_DEPTH as usize + 1];
        owed[0] = 1;
        Self {
            limits,
            failed: None,
            first: true,
            want: Want::Type,
            kind: 0,
            start: 0,
            at: 0,
            elements: 0,
            depth: 0,
            owed,
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// Looks for the end of the frame at the start of `bytes`.
    ///
    /// `bytes` holds everything received of this frame so far, and may hold more than it: between two calls
    /// it only grows, until a frame was found and the caller goes on behind it.
    /// `Some(len)` says that `bytes[..len]` is a complete frame for [`read`](super::read); `None`, that more bytes
    /// have to arrive.
    ///
    /// # Errors
    ///
    /// What is wrong with the bytes. It is final: every later call answers the same, until
    /// [`reset`](Self::reset).
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.at == 0 {
            if let Some(len) = self.brief(bytes) {
                self.first = false;
                return Ok(Some(len));
            }
        }
        let outcome = self.advance(bytes);
        match outcome {
            Ok(None) => {}
            Ok(Some(_)) => self.next_frame(),
            Err(error) => self.failed = Some(error),
        }
        outcome
    }

    /// Forgets everything but the limits: for the next connection.
    ///
    /// ```
    /// use tenure_core::resp::{Limits, ProtocolError, Scanner};
    ///
    /// let mut scanner = Scanner::new(Limits::default());
    /// assert_eq!(scanner.scan(b"?"), Err(ProtocolError::UnknownType(b'?')));
    /// assert_eq!(scanner.scan(b"+OK\r\n"), Err(ProtocolError::UnknownType(b'?')));
    /// scanner.reset();
    /// assert_eq!(scanner.scan(b"+OK\r\n"), Ok(Some(5)));
    /// ```
    pub fn reset(&mut self) {
        *self = Self::new(self.limits);
    }

    fn next_frame(&mut self) {
        self.first = false;
        self.want = Want::Type;
        self.at = 0;
        self.elements = 0;
        self.owed[0] = 1;
    }

    /// The length of a frame that is most replies to a lock command: one status, number, null or string, all of
    /// it there. Only a shorter way to the same answer: whatever is not plainly that, or is wrong, `advance`
    /// judges from the start. So at most `BRIEF` bytes are looked at once more.
    #[inline]
    fn brief(&mut self, bytes: &[u8]) -> Option<usize> {
        const BRIEF: usize = 32;
        let window = bytes.get(..BRIEF).unwrap_or(bytes);
        self.count_work(window.len());
        let line_end = window
            .iter()
            .position(|&byte| byte == b'\r' || byte == b'\n')?;
        if bytes.get(line_end..line_end + 2)? != b"\r\n" {
            return None;
        }
        let (&kind, line) = window.get(..line_end)?.split_first()?;
        let end = line_end + 2;
        let end = match kind {
            b'+' => end,
            b'_' if line.is_empty() => end,
            b':' if line::integer(line).is_some() => end,
            b'$' if line == b"-1" => end,
            b'$' => {
                let payload_end = end.checked_add(usize::try_from(line::length(line)?).ok()?)?;
                let (_, behind) = bytes.split_at_checked(payload_end)?;
                if !behind.starts_with(b"\r\n") {
                    return None;
                }
                payload_end + 2
            }
            _ => return None,
        };
        (end <= self.limits.frame && line.len() <= self.limits.line).then_some(end)
    }

    /// Each round takes one thing wanted, and returns where it has not arrived yet.
    fn advance(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        loop {
            match self.want {
                Want::Type => {
                    let Some(kind) = self.take(bytes) else {
                        return Ok(None);
                    };
                    self.check_type(kind)?;
                    // The shortest item is a type byte and CR LF.
                    if self.limits.frame.saturating_sub(self.at) < 2 {
                        return Err(self.frame_too_long());
                    }
                    self.kind = kind;
                    self.start = self.at;
                    self.want = Want::Line;
                }
                Want::Line => {
                    if !self.find_line_end(bytes)? {
                        return Ok(None);
                    }
                    self.want = Want::LineFeed;
                }
                Want::LineFeed => {
                    let Some(byte) = self.take(bytes) else {
                        return Ok(None);
                    };
                    if byte != b'\n' {
                        return Err(ProtocolError::BadTerminator);
                    }
                    let line = bytes.get(self.start..self.at - 2).unwrap_or_default();
                    self.count_work(line.len());
                    match self.item(line)? {
                        Item::Value => {
                            if self.finish_value() {
                                return Ok(Some(self.at));
                            }
                        }
                        Item::Payload(len) => self.expect_payload(len)?,
                        Item::Aggregate(count) => {
                            self.owed[usize::from(self.depth)] -= 1;
                            self.open(count)?;
                            if self.close_finished() {
                                return Ok(Some(self.at));
                            }
                        }
                        Item::Attribute(count) => {
                            // Its value is still to come, so it is not taken off what is owed.
                            self.open(count)?;
                            self.close_finished();
                        }
                    }
                }
                Want::PayloadEnd => {
                    let Some(byte) = self.take(bytes) else {
                        return Ok(None);
                    };
                    if byte != b'\r' {
                        return Err(ProtocolError::BadTerminator);
                    }
                    self.want = Want::PayloadLineFeed;
                }
                Want::PayloadLineFeed => {
                    let Some(byte) = self.take(bytes) else {
                        return Ok(None);
                    };
                    if byte != b'\n' {
                        return Err(ProtocolError::BadTerminator);
                    }
                    if self.kind == b'=' && bytes.get(self.start + 3) != Some(&b':') {
                        return Err(ProtocolError::BadVerbatim);
                    }
                    if self.finish_value() {
                        return Ok(Some(self.at));
                    }
                }
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Option<u8> {
        let byte = *bytes.get(self.at)?;
        self.at += 1;
        self.count_work(1);
        Some(byte)
    }

    fn check_type(&self, kind: u8) -> Result<(), ProtocolError> {
        let error = match kind {
            b'+' | b'-' | b':' | b'$' | b'*' | b'_' | b'#' | b',' | b'(' | b'!' | b'=' | b'%'
            | b'~' | b'>' | b'|' => {
                return Ok(());
            }
            b';' | b'.' => ProtocolError::Streamed,
            // Only the very first byte tells of another protocol; later it is a stream gone wrong.
            0x15 | 0x16 if self.first && self.at == 1 => ProtocolError::TlsPeer,
            b'H' if self.first && self.at == 1 => ProtocolError::HttpPeer,
            other => ProtocolError::UnknownType(other),
        };
        Err(error)
    }

    /// Goes on to behind the CR of the line. Never looks further than where the limits allow one to stand, so
    /// that an error does not depend on how the bytes were cut.
    fn find_line_end(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        let last = self
            .start
            .saturating_add(self.limits.line)
            .min(self.limits.frame - 2);
        let arrived = bytes.get(self.at..).unwrap_or_default();
        let window = arrived.get(..last + 1 - self.at).unwrap_or(arrived);
        match window
            .iter()
            .position(|&byte| byte == b'\r' || byte == b'\n')
        {
            Some(found) if window[found] == b'\r' => {
                self.count_work(found + 1);
                self.at += found + 1;
                Ok(true)
            }
            Some(_) => Err(ProtocolError::BadTerminator),
            None => {
                self.count_work(window.len());
                self.at += window.len();
                if self.at <= last {
                    Ok(false)
                } else if last - self.start == self.limits.line {
                    Err(ProtocolError::LineTooLong {
                        limit: self.limits.line,
                    })
                } else {
                    Err(self.frame_too_long())
                }
            }
        }
    }

    fn item(&self, line: &[u8]) -> Result<Item, ProtocolError> {
        let judge = |valid: bool, error| if valid { Ok(Item::Value) } else { Err(error) };
        match self.kind {
            b'+' | b'-' => Ok(Item::Value),
            b':' => judge(line::integer(line).is_some(), ProtocolError::BadInteger),
            b'_' => judge(line.is_empty(), ProtocolError::BadNull),
            b'#' => judge(matches!(line, b"t" | b"f"), ProtocolError::BadBool),
            b',' => judge(line::is_double(line), ProtocolError::BadDouble),
            b'(' => judge(line::is_big_number(line), ProtocolError::BadBigNumber),
            b'$' | b'*' if line == b"-1" => Ok(Item::Value),
            kind => {
                let Some(count) = line::length(line) else {
                    return Err(if line == b"?" {
                        ProtocolError::Streamed
                    } else {
                        ProtocolError::BadLength
                    });
                };
                match kind {
                    b'=' if count < 4 => Err(ProtocolError::BadVerbatim),
                    b'$' | b'!' | b'=' => Ok(Item::Payload(count)),
                    b'%' => Ok(Item::Aggregate(count.saturating_mul(2))),
                    b'|' => Ok(Item::Attribute(count.saturating_mul(2))),
                    _ => Ok(Item::Aggregate(count)),
                }
            }
        }
    }

    fn expect_payload(&mut self, len: u64) -> Result<(), ProtocolError> {
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len))
            .filter(|&end| end <= self.limits.frame.saturating_sub(2));
        let Some(end) = end else {
            return Err(self.frame_too_long());
        };
        self.start = self.at;
        self.at = end;
        self.want = Want::PayloadEnd;
        Ok(())
    }

    fn open(&mut self, count: u64) -> Result<(), ProtocolError> {
        if self.depth >= self.limits.depth {
            return Err(ProtocolError::TooDeep {
                limit: self.limits.depth,
            });
        }
        let left = self.limits.elements - self.elements;
        let count = u32::try_from(count)
            .ok()
            .filter(|&count| count <= left)
            .ok_or(ProtocolError::TooManyElements {
                limit: self.limits.elements,
            })?;
        self.elements += count;
        self.depth += 1;
        self.owed[usize::from(self.depth)] = count;
        Ok(())
    }

    /// Takes one value off what is owed. True when that was the last of the frame.
    fn finish_value(&mut self) -> bool {
        self.owed[usize::from(self.depth)] -= 1;
        self.close_finished()
    }

    fn close_finished(&mut self) -> bool {
        self.want = Want::Type;
        while self.depth > 0 && self.owed[usize::from(self.depth)] == 0 {
            self.depth -= 1;
        }
        self.depth == 0 && self.owed[0] == 0
    }

    fn frame_too_long(&self) -> ProtocolError {
        ProtocolError::FrameTooLong {
            limit: self.limits.frame,
        }
    }

    #[cfg(test)]
    fn count_work(&mut self, bytes: usize) {
        self.looked_at += bytes;
    }

    #[cfg(not(test))]
    #[inline(always)]
    #[allow(clippy::unused_self)]
    fn count_work(&mut self, _bytes: usize) {}
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    const WIDE: Limits = Limits {
        frame: 1 << 30,
        depth: 32,
        elements: u32::MAX,
        line: 1 << 30,
    };

    /// Feeds `bytes` in pieces, and says how the scan ended and how many bytes it looked at in all.
    fn feed(
        bytes: &[u8],
        piece: usize,
        limits: Limits,
    ) -> (Result<Option<usize>, ProtocolError>, usize) {
        let mut scanner = Scanner::new(limits);
        let mut arrived = 0;
        loop {
            arrived = bytes.len().min(arrived + piece);
            let outcome = scanner.scan(&bytes[..arrived]);
            if outcome != Ok(None) || arrived == bytes.len() {
                return (outcome, scanner.looked_at);
            }
        }
    }

    /// Once to find the end of its line and once to understand it, whatever the pieces: never a third time. But
    /// for a first look at the start.
    #[test]
    fn a_large_reply_costs_the_same_in_one_piece_and_byte_by_byte() {
        let mut reply = b"*90000\r\n".to_vec();
        for _ in 0..30_000 {
            reply.extend_from_slice(b"$16\r\n0123456789abcdef\r\n:12345\r\n+OK\r\n");
        }
        assert!(reply.len() > 1_000_000);
        let (outcome, whole) = feed(&reply, reply.len(), WIDE);
        assert_eq!(outcome, Ok(Some(reply.len())));
        assert!(whole < 2 * reply.len());
        for piece in [1, 2, 7, 1460] {
            let (outcome, pieces) = feed(&reply, piece, WIDE);
            assert_eq!(outcome, Ok(Some(reply.len())));
            assert!(
                pieces <= whole,
                "{pieces} in pieces of {piece}, {whole} in one"
            );
        }
    }

    /// The payload is jumped over: only its frame is looked at.
    #[test]
    fn a_payload_is_never_looked_at() {
        let mut reply = b"$1000000\r\n".to_vec();
        reply.resize(reply.len() + 1_000_000, b'x');
        reply.extend_from_slice(b"\r\n");
        for piece in [1, 4096, reply.len()] {
            let (outcome, looked_at) = feed(&reply, piece, WIDE);
            assert_eq!(outcome, Ok(Some(reply.len())));
            assert!(looked_at < 60, "{looked_at} bytes in pieces of {piece}");
        }
    }

    #[test]
    fn an_endless_line_is_gone_over_once_and_only_up_to_the_limit() {
        let line = [b"+".as_slice(), &[b'x'; 1_000_000]].concat();
        for piece in [1, 1460, line.len()] {
            let (outcome, looked_at) = feed(&line, piece, Limits::DEFAULT);
            assert_eq!(outcome, Err(ProtocolError::LineTooLong { limit: 4096 }));
            assert!(
                (4098..4098 + 33).contains(&looked_at),
                "{looked_at} in pieces of {piece}"
            );
        }
        let (outcome, looked_at) = feed(&line, 1, WIDE);
        assert_eq!((outcome, looked_at), (Ok(None), line.len() + 1));
    }

    /// Ten megabytes of `*1`: refused at the limit, and the scanner has the size it always has.
    #[test]
    fn deep_nesting_is_refused_after_a_few_bytes() {
        let nested: Vec<u8> = b"*1\r\n".iter().copied().cycle().take(10 << 20).collect();
        for piece in [1, nested.len()] {
            let (outcome, looked_at) = feed(&nested, piece, Limits::DEFAULT);
            assert_eq!(outcome, Err(ProtocolError::TooDeep { limit: 8 }));
            assert!(looked_at <= 32 + 9 * 5, "{looked_at}");
            let (outcome, looked_at) = feed(&nested, piece, WIDE);
            assert_eq!(outcome, Err(ProtocolError::TooDeep { limit: 32 }));
            assert!(looked_at <= 32 + 33 * 5, "{looked_at}");
        }
        assert!(size_of::<Scanner>() <= 256);
    }
}
