//! Header fields in the order of arrival: names in their original spelling, duplicates kept.
//!
//! ```text
//!   bytes   GET / HTTP/1.1␍␊Host: a␍␊Accept:  b ␍␊␍␊ … added by edits
//!                           └┬─┘  ╵  └─┬──┘   ╵
//!   fields                 [name value, name value, …]   ranges of bytes
//! ```
//!
//! A head that was read keeps its bytes in one piece: two allocations for all fields.

use crate::grammar::{is_space, is_token, is_value, trim};
use crate::limits::{EDITED_COUNT_MAX, EDITED_LENGTH_MAX};
use std::fmt;
use std::ops::Range;

/// Bytes of `: ` and CRLF, the most that a field line has besides name and value.
const AROUND: usize = 4;

/// Ranges of one line's name and value within the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// Fields of a head, or trailers. All names and values in it are valid.
#[derive(Clone, Default)]
pub struct Headers {
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

/// An edit of fields is refused: a fault of the editor, usually a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The name is not a token.
    #[error("a field's name is not a token")]
    Name,
    /// The value has a control character, or whitespace at an end.
    #[error("a field's value has a control character, or a space at an end")]
    Value,
    /// The fields would be too many.
    #[error("there would be more than {EDITED_COUNT_MAX} fields")]
    TooMany,
    /// The fields would be too long.
    #[error("the fields would have more than {EDITED_LENGTH_MAX} bytes together")]
    TooLong,
}

impl Headers {
    /// Creates an empty list of fields.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), fields: Vec::new() }
    }

    /// Wraps fields that were read and checked: ranges of the bytes.
    pub(crate) const fn of(bytes: Vec<u8>, fields: Vec<Field>) -> Self {
        Self { bytes, fields }
    }

    /// Returns the offset of a field's name in the bytes that were read.
    pub(crate) fn position(&self, index: usize) -> usize {
        self.fields.get(index).map_or(0, |field| field.name.start)
    }

    /// Returns the number of fields, duplicates included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns true if there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns names and values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + ExactSizeIterator {
        self.fields.iter().map(|field| self.pair(field))
    }

    /// Returns the value of the first field with this name. Case is ignored.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// Returns the values of all fields with this name, in order. Case is ignored.
    pub fn get_all<'h>(&'h self, name: &[u8]) -> impl Iterator<Item = &'h [u8]> {
        self.iter().filter(|(has, _)| has.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns true if a field has this name.
    #[must_use]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.get(name).is_some()
    }

    /// Adds a field after the others, even if one has this name.
    ///
    /// # Errors
    /// The field is not valid, or exceeds the limits of a head. Nothing is changed then.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), EditError> {
        check(name, value)?;
        self.check_room(None, name.len(), value.len())?;
        let field = self.append(name, value);
        self.fields.push(field);
        Ok(())
    }

    /// Sets the value of the first field with this name, in its place and spelling, and removes the
    /// others. Adds a field if there is none.
    ///
    /// # Errors
    /// The field is not valid, or exceeds the limits of a head. Nothing is changed then.
    pub fn replace(&mut self, name: &[u8], value: &[u8]) -> Result<(), EditError> {
        let Some(index) = self.index(name) else { return self.add(name, value) };
        self.set(index, value)?;
        let mut at = 0;
        let Self { bytes, fields } = self;
        fields.retain(|field| {
            at += 1;
            at - 1 == index || !bytes[field.name.clone()].eq_ignore_ascii_case(name)
        });
        Ok(())
    }

    /// Sets the value of the field at this index. Does nothing if there is none.
    ///
    /// # Errors
    /// The value is not valid, or exceeds the limits of a head. Nothing is changed then.
    pub fn set(&mut self, index: usize, value: &[u8]) -> Result<(), EditError> {
        let Some(field) = self.fields.get(index) else { return Ok(()) };
        let name_length = field.name.len();
        check_value(value)?;
        self.check_room(Some(index), name_length, value.len())?;
        self.compact();
        let from = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.fields[index].value = from..self.bytes.len();
        Ok(())
    }

    /// Removes all fields with this name, ignoring case, and returns their number.
    pub fn remove(&mut self, name: &[u8]) -> usize {
        let before = self.fields.len();
        self.retain(|has| !has.eq_ignore_ascii_case(name));
        before - self.fields.len()
    }

    /// Keeps the fields whose names satisfy the predicate.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&[u8]) -> bool) {
        let Self { bytes, fields } = self;
        fields.retain(|field| keeps(&bytes[field.name.clone()]));
    }

    /// Inserts a field at this index, and moves the later ones back.
    pub(crate) fn insert(
        &mut self,
        index: usize,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), EditError> {
        check(name, value)?;
        self.check_room(None, name.len(), value.len())?;
        let field = self.append(name, value);
        self.fields.insert(index.min(self.fields.len()), field);
        Ok(())
    }

    /// Returns the index of the first field with this name.
    #[must_use]
    pub fn index(&self, name: &[u8]) -> Option<usize> {
        self.iter().position(|(has, _)| has.eq_ignore_ascii_case(name))
    }

    /// Returns the bytes of all lines with their CRLF, as [`serialize`](Self::serialize) writes
    /// them.
    #[must_use]
    pub fn wire_length(&self) -> usize {
        self.fields.iter().map(|field| line_length(field.name.len(), field.value.len())).sum()
    }

    /// Writes all lines, without the empty line after them. Each is name, colon, space, and value;
    /// without a value only name and colon.
    pub fn serialize(&self, out: &mut Vec<u8>) {
        out.reserve(self.wire_length());
        for (name, value) in self.iter() {
            out.extend_from_slice(name);
            out.extend_from_slice(if value.is_empty() { b":" } else { b": " });
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn pair(&self, field: &Field) -> (&[u8], &[u8]) {
        (&self.bytes[field.name.clone()], &self.bytes[field.value.clone()])
    }

    fn append(&mut self, name: &[u8], value: &[u8]) -> Field {
        self.compact();
        let from = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let middle = from + name.len();
        Field { name: from..middle, value: middle..self.bytes.len() }
    }

    /// Checks that another line would fit, or this one in place of an old one.
    fn check_room(
        &self,
        instead_of: Option<usize>,
        name_length: usize,
        value_length: usize,
    ) -> Result<(), EditError> {
        let old = instead_of.and_then(|index| self.fields.get(index));
        if old.is_none() && self.fields.len() >= EDITED_COUNT_MAX {
            return Err(EditError::TooMany);
        }
        let old = old.map_or(0, |field| line_length(field.name.len(), field.value.len()));
        let others = self.wire_length().saturating_sub(old);
        let length = name_length.saturating_add(value_length).saturating_add(AROUND);
        if others.saturating_add(length) > EDITED_LENGTH_MAX {
            return Err(EditError::TooLong);
        }
        Ok(())
    }

    /// Drops bytes that no field refers to, once all bytes are more than twice the limit: repeated
    /// edits hold no more than that.
    fn compact(&mut self) {
        if self.bytes.len() <= 2 * EDITED_LENGTH_MAX {
            return;
        }
        let mut bytes = Vec::with_capacity(self.wire_length());
        for field in &mut self.fields {
            for range in [&mut field.name, &mut field.value] {
                let from = bytes.len();
                bytes.extend_from_slice(&self.bytes[range.clone()]);
                *range = from..bytes.len();
            }
        }
        self.bytes = bytes;
    }
}

/// Returns the bytes of a line with its CRLF.
const fn line_length(name_length: usize, value_length: usize) -> usize {
    name_length + value_length + if value_length == 0 { AROUND - 1 } else { AROUND }
}

fn check(name: &[u8], value: &[u8]) -> Result<(), EditError> {
    if !is_token(name) {
        return Err(EditError::Name);
    }
    check_value(value)
}

fn check_value(value: &[u8]) -> Result<(), EditError> {
    let ends = [value.first(), value.last()];
    if ends.into_iter().flatten().any(|&byte| is_space(byte))
        || !value.iter().all(|&byte| is_value(byte))
    {
        return Err(EditError::Value);
    }
    debug_assert_eq!(trim(value), value);
    Ok(())
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        f.debug_list().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.add(name.as_bytes(), value.as_bytes()).unwrap();
        }
        headers
    }

    fn text(headers: &Headers) -> String {
        let mut out = Vec::new();
        headers.serialize(&mut out);
        assert_eq!(out.len(), headers.wire_length());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn order_spelling_and_duplicates_stay() {
        let mut headers = headers(&[("a", "1"), ("B", "2"), ("A", "3"), ("c", "")]);
        assert_eq!(text(&headers), "a: 1\r\nB: 2\r\nA: 3\r\nc:\r\n");
        assert_eq!(headers.get(b"b"), Some(&b"2"[..]));
        assert_eq!(headers.get_all(b"A").collect::<Vec<_>>(), [b"1", b"3"]);
        headers.replace(b"A", b"4").unwrap();
        assert_eq!(text(&headers), "a: 4\r\nB: 2\r\nc:\r\n");
        headers.replace(b"D", b"5").unwrap();
        headers.insert(1, b"e", b"6").unwrap();
        assert_eq!(headers.remove(b"b"), 1);
        assert_eq!(text(&headers), "a: 4\r\ne: 6\r\nc:\r\nD: 5\r\n");
    }

    #[test]
    fn an_edit_cannot_write_a_line_of_its_own() {
        let mut headers = headers(&[("a", "1")]);
        for value in ["x\r\nb: 2", "x\n", "\0", " x", "x\t", "\x7f"] {
            assert_eq!(headers.add(b"b", value.as_bytes()), Err(EditError::Value));
            assert_eq!(headers.replace(b"a", value.as_bytes()), Err(EditError::Value));
        }
        for name in ["", "b:", "b c", "b\r\n", "\u{e9}"] {
            assert_eq!(headers.add(name.as_bytes(), b"x"), Err(EditError::Name));
        }
        assert_eq!(text(&headers), "a: 1\r\n");
    }

    #[test]
    fn edits_have_limits() {
        let mut headers = Headers::new();
        for _ in 0..EDITED_COUNT_MAX {
            headers.add(b"a", b"").unwrap();
        }
        assert_eq!(headers.add(b"a", b""), Err(EditError::TooMany));
        headers.remove(b"a");
        let value = vec![b'x'; EDITED_LENGTH_MAX - 1 - AROUND];
        headers.add(b"a", &value).unwrap();
        assert_eq!(headers.add(b"b", b""), Err(EditError::TooLong));
        assert_eq!(headers.set(0, &[&value[..], b"x"].concat()), Err(EditError::TooLong));
    }

    #[test]
    fn editing_for_ever_holds_two_limits_and_a_line() {
        let mut headers = headers(&[("keep", "this"), ("a", "")]);
        for turn in 0..100_u8 {
            headers.set(1, &vec![b'a' + turn % 26; 10_000]).unwrap();
            assert!(headers.bytes.len() <= 3 * EDITED_LENGTH_MAX);
            assert_eq!(headers.get(b"keep"), Some(&b"this"[..]));
        }
        assert_eq!(headers.get(b"a"), Some(&[b'a' + 99 % 26; 10_000][..]));
    }
}
