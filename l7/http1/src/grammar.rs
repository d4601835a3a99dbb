//! Byte classes of the grammar, and parsers for the parts of fields that framing depends on.

use crate::limits::{BODY_LENGTH_MAX, LENGTH_DIGITS_MAX};

/// Returns true if the byte is a `tchar`: RFC 9110, section 5.6.2.
pub(crate) const fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// Returns true if the byte may occur in a field's value or in a reason phrase: RFC 9110, section
/// 5.5. No control character except the tab.
pub(crate) const fn is_value(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// Returns true if the byte may occur in a request target. Allows more than RFC 3986 (`|`, `"`, `{`
/// and non-ASCII letters are in use and mean nothing here), but no `#`, where recipients disagree
/// on whether the target ends.
pub(crate) const fn is_target(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0x80..) && byte != b'#'
}

/// Returns true if there is at least one byte, and all are `tchar`.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_tchar(byte))
}

/// Returns true if the byte is optional whitespace (OWS): RFC 9110, section 5.6.3.
pub(crate) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Removes OWS at both ends.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_space(*first)
    {
        bytes = rest;
    }
    trim_end(bytes)
}

/// Removes OWS at the end.
pub(crate) fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., last] = bytes
        && is_space(*last)
    {
        bytes = rest;
    }
    bytes
}

/// Returns the elements of a list of tokens, empty ones too: RFC 9110, section 5.6.1.
pub(crate) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// Parses `1*DIGIT`; `None` for values above [`BODY_LENGTH_MAX`].
pub(crate) fn length(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > LENGTH_DIGITS_MAX {
        return None;
    }
    let mut value = 0_u64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (value <= BODY_LENGTH_MAX).then_some(value)
}

/// Number in decimal, on the stack.
pub(crate) struct Decimal {
    digits: [u8; 20],
    from: usize,
}

impl Decimal {
    pub(crate) fn new(mut value: u64) -> Self {
        let mut decimal = Self { digits: [b'0'; 20], from: 20 };
        loop {
            decimal.from -= 1;
            decimal.digits[decimal.from] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return decimal;
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.from..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_digits_and_fit_a_signed_number() {
        assert_eq!(length(b"0"), Some(0));
        assert_eq!(length(b"007"), Some(7));
        assert_eq!(length(b"9223372036854775807"), Some(BODY_LENGTH_MAX));
        let wrong: [&[u8]; 9] = [
            b"",
            b"+1",
            b"-1",
            b" 1",
            b"1 ",
            b"0x1",
            b"1,1",
            b"9223372036854775808",
            b"00000000000000000001",
        ];
        for text in wrong {
            assert_eq!(length(text), None, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn decimals_are_what_the_standard_library_writes() {
        for value in [0, 1, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(Decimal::new(value).as_bytes(), value.to_string().as_bytes());
        }
    }

    #[test]
    fn only_space_and_tabulator_are_trimmed() {
        assert_eq!(trim(b" \t a b\t "), b"a b");
        assert_eq!(trim(b"\x0ba\x0c"), b"\x0ba\x0c");
        assert_eq!(trim(b" \t"), b"");
    }
}
