//! The grammar of what stands on one line, shared by the scanner (which judges) and the reader (which trusts).

/// The length after `$`, `*` and the like, or `None` if it is not plain digits without a leading zero.
///
/// A number too large for 64 bits saturates: it is a well-formed length over every limit.
pub(super) fn length(digits: &[u8]) -> Option<u64> {
    if let [digit @ b'0'..=b'9'] = *digits {
        return Some(u64::from(digit - b'0'));
    }
    if digits.first().is_none_or(|&first| first == b'0') {
        return None;
    }
    let mut value = 0_u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.saturating_mul(10).saturating_add(u64::from(digit));
    }
    Some(value)
}

/// The content of a `:` line.
///
/// Leading zeros and a plus sign are allowed here, as the specification does; neither can hide another number.
pub(super) fn integer(line: &[u8]) -> Option<i64> {
    let (negative, digits) = match *line {
        [b'-', ref digits @ ..] => (true, digits),
        [b'+', ref digits @ ..] => (false, digits),
        ref digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Counted below zero, because that side reaches one further.
    let mut value = 0_i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative {
        Some(value)
    } else {
        value.checked_neg()
    }
}

/// Whether the content of a `(` line is a number of any size.
pub(super) fn is_big_number(line: &[u8]) -> bool {
    let digits = unsigned(line);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Whether the content of a `,` line is a number: `[+-]digits[.digits][(e|E)[+-]digits]`, or a name.
///
/// `-nan` is what older servers print where their C library does.
pub(super) fn is_double(line: &[u8]) -> bool {
    if matches!(line, b"inf" | b"-inf" | b"nan" | b"-nan") {
        return true;
    }
    let Some(mut rest) = after_digits(unsigned(line)) else {
        return false;
    };
    if let [b'.', fraction @ ..] = rest {
        let Some(after) = after_digits(fraction) else {
            return false;
        };
        rest = after;
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let Some(after) = after_digits(unsigned(exponent)) else {
            return false;
        };
        rest = after;
    }
    rest.is_empty()
}

/// The value of a line that [`is_double`] accepts. Out of range is infinite, as in any decimal parser.
pub(super) fn double(line: &[u8]) -> Option<f64> {
    if !is_double(line) {
        return None;
    }
    core::str::from_utf8(line).ok()?.parse().ok()
}

fn unsigned(line: &[u8]) -> &[u8] {
    match line {
        [b'+' | b'-', rest @ ..] => rest,
        rest => rest,
    }
}

/// What follows one or more digits.
fn after_digits(bytes: &[u8]) -> Option<&[u8]> {
    let digits = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if digits == 0 {
        None
    } else {
        bytes.get(digits..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_one_spelling() {
        assert_eq!(length(b"0"), Some(0));
        assert_eq!(length(b"7"), Some(7));
        assert_eq!(length(b"1024"), Some(1024));
        assert_eq!(length(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(length(b"99999999999999999999999999"), Some(u64::MAX));
        for bad in [
            "", "00", "01", "+1", "-0", "-1", "-2", " 1", "1 ", "1a", "a", "0x1", "?", "1.0",
        ] {
            assert_eq!(length(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn an_integer_reaches_both_ends_of_64_bits_and_not_one_further() {
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"+9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"-0"), Some(0));
        assert_eq!(integer(b"007"), Some(7));
        for bad in [
            "",
            "+",
            "-",
            "+-1",
            "--1",
            "1 ",
            "9223372036854775808",
            "-9223372036854775809",
            "1_0",
            "1.0",
        ] {
            assert_eq!(integer(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_double_is_decimal_or_a_known_name() {
        for good in [
            "0", "3.5", "-3.5", "+1", "1e5", "1.25E-7", "-0", "1e+999", "inf", "-inf", "nan",
            "-nan",
        ] {
            assert!(is_double(good.as_bytes()), "{good}");
            assert!(double(good.as_bytes()).is_some(), "{good}");
        }
        for bad in [
            "", ".5", "5.", "1e", "e5", "1e+", "+inf", "infinity", "NaN", "Inf", "1,5", "0x10",
            "1 ", "--1",
        ] {
            assert!(!is_double(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn a_big_number_is_digits_of_any_count() {
        assert!(is_big_number(
            b"3492890328409238509324850943850943825024385"
        ));
        assert!(is_big_number(b"-1"));
        assert!(is_big_number(b"+1"));
        for bad in ["", "-", "1.5", "1e5", "a", "--1"] {
            assert!(!is_big_number(bad.as_bytes()), "{bad}");
        }
    }
}
