//! Commands: an array of bulk strings, written in one pass into a buffer of the caller.

use core::fmt;

use super::BufferTooSmall;

/// One argument of a command.
///
/// Bytes and strings convert by `into()`; numbers too, and are written in decimal.
///
/// ```
/// use tenure_core::resp::{encode, Arg};
///
/// let key = [b"lock:".as_slice(), b"invoices"];
/// let mut out = [0; 64];
/// let len = encode(&["PEXPIRE".into(), Arg::Parts(&key), 1500.into()], &mut out)?;
/// assert_eq!(&out[..len], b"*3\r\n$7\r\nPEXPIRE\r\n$13\r\nlock:invoices\r\n$4\r\n1500\r\n");
/// # Ok::<(), tenure_core::resp::BufferTooSmall>(())
/// ```
///
/// `Debug` shows lengths and no bytes, because the value of a lock is an argument:
///
/// ```
/// # use tenure_core::resp::Arg;
/// assert_eq!(format!("{:?}", Arg::from("secret")), "Bytes(6 bytes)");
/// ```
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    /// One string.
    Bytes(&'a [u8]),
    /// One string, given in pieces. Saves joining a prefix and a name.
    Parts(&'a [&'a [u8]]),
    /// A number, sent as its decimal digits.
    Int(u64),
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Arg<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Int(number)
    }
}

impl fmt::Debug for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(_) => write!(f, "Bytes({} bytes)", self.len()),
            Self::Parts(parts) => write!(f, "Parts({} bytes in {})", self.len(), parts.len()),
            Self::Int(number) => write!(f, "Int({number})"),
        }
    }
}

impl Arg<'_> {
    fn len(&self) -> usize {
        match *self {
            Self::Bytes(bytes) => bytes.len(),
            // Pieces may repeat one slice, so only here a sum can pass what memory could hold.
            Self::Parts(parts) => parts
                .iter()
                .fold(0, |sum, part| sum.saturating_add(part.len())),
            Self::Int(number) => digits(number),
        }
    }
}

/// How many bytes [`encode`] writes for this command.
///
/// ```
/// use tenure_core::resp::encoded_len;
///
/// assert_eq!(encoded_len(&["PING".into()]), b"*1\r\n$4\r\nPING\r\n".len());
/// ```
#[must_use]
pub fn encoded_len(args: &[Arg<'_>]) -> usize {
    args.iter().fold(header_len(args.len()), |sum, arg| {
        let len = arg.len();
        sum.saturating_add(header_len(len))
            .saturating_add(len)
            .saturating_add(2)
    })
}

/// Writes one command at the start of `out` and returns its length. Allocates nothing.
///
/// ```
/// use tenure_core::resp::encode;
///
/// let mut out = [0; 32];
/// let len = encode(&["GET".into(), "lock:a".into()], &mut out)?;
/// assert_eq!(&out[..len], b"*2\r\n$3\r\nGET\r\n$6\r\nlock:a\r\n");
/// # Ok::<(), tenure_core::resp::BufferTooSmall>(())
/// ```
///
/// # Errors
///
/// [`BufferTooSmall`] if `out` cannot hold all of it. `out` is as it was then.
pub fn encode(args: &[Arg<'_>], out: &mut [u8]) -> Result<usize, BufferTooSmall> {
    let needed = encoded_len(args);
    let Some(out) = out.get_mut(..needed) else {
        return Err(BufferTooSmall { needed });
    };
    write_command(args, out);
    Ok(needed)
}

/// Appends one command to `out`, which grows at most once.
///
/// ```
/// use tenure_core::resp::encode_to;
///
/// let mut out = Vec::new();
/// encode_to(&["PING".into()], &mut out);
/// encode_to(&["PING".into()], &mut out);
/// assert_eq!(out, b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n");
/// ```
#[cfg(feature = "alloc")]
pub fn encode_to(args: &[Arg<'_>], out: &mut alloc::vec::Vec<u8>) {
    let start = out.len();
    out.resize(start.saturating_add(encoded_len(args)), 0);
    if let Some(tail) = out.get_mut(start..) {
        write_command(args, tail);
    }
}

/// `out` has exactly the length of the command.
fn write_command(args: &[Arg<'_>], out: &mut [u8]) {
    let mut at = put_header(out, 0, b'*', args.len());
    for arg in args {
        at = put_header(out, at, b'$', arg.len());
        match *arg {
            Arg::Bytes(bytes) => at = put(out, at, bytes),
            Arg::Parts(parts) => {
                for part in parts {
                    at = put(out, at, part);
                }
            }
            Arg::Int(number) => at = put_number(out, at, number),
        }
        at = put(out, at, b"\r\n");
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at + bytes.len();
    out[at..end].copy_from_slice(bytes);
    end
}

fn put_header(out: &mut [u8], at: usize, kind: u8, count: usize) -> usize {
    // Nearly all counts have one digit, and then the whole header has one size.
    if count < 10 {
        return put(out, at, &[kind, b'0' + count as u8, b'\r', b'\n']);
    }
    let at = put(out, at, &[kind]);
    let at = put_number(out, at, count as u64);
    put(out, at, b"\r\n")
}

fn put_number(out: &mut [u8], at: usize, mut number: u64) -> usize {
    let end = at + digits(number);
    for place in out[at..end].iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
    end
}

fn header_len(count: usize) -> usize {
    3 + digits(count as u64)
}

/// The count of decimal digits, by integer arithmetic only: a logarithm in floating point is off by one
/// just below some powers of ten.
fn digits(number: u64) -> usize {
    match number {
        0..=9 => 1,
        10..=99 => 2,
        _ => number.ilog10() as usize + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every power of ten and its neighbours: where a count of digits goes wrong if it does.
    #[test]
    fn digits_are_counted_exactly_around_every_power_of_ten() {
        let mut power = 1_u64;
        for exponent in 0..20_usize {
            assert_eq!(digits(power), exponent + 1, "{power}");
            assert_eq!(digits(power - 1), exponent.max(1), "{power} - 1");
            assert_eq!(digits(power + 1), exponent + 1, "{power} + 1");
            power = power.wrapping_mul(10);
        }
        assert_eq!(digits(u64::MAX), 20);
    }
}
