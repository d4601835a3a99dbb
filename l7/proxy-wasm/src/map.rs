//! Header maps: ordered fields with duplicates, and their serialised form in a module's memory.
//!
//! ```text
//!   u32 count │ count × (u32 name length, u32 value length) │ count × (name 0 value 0)
//! ```

use crate::limits::{HEADER_BYTES_MAX, HEADERS_MAX};
use std::fmt;

/// Bytes of a serialised length.
const WORD: usize = 4;

/// Fields of a head or of trailers. Names are case-insensitive, in their original spelling.
///
/// ```text
///   data    :path/indexhost…accept*/*        in one piece, edits after the others
///   fields  [name value, name value, …]      ranges in the data
/// ```
#[derive(Clone, Default)]
pub struct HeaderMap {
    data: Vec<u8>,
    fields: Vec<(Span, Span)>,
    /// Bytes of all names and values, without the garbage that edits have left in the data.
    bytes: usize,
}

/// Range of a name or a value in the data.
#[derive(Clone, Copy)]
struct Span {
    at: u32,
    length: u32,
}

impl PartialEq for HeaderMap {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for HeaderMap {}

impl fmt::Debug for HeaderMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes);
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// Bytes or fields are no valid map: a fault of the module's author.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The bytes end too early.
    #[error("a serialised map ends early")]
    Truncated,
    /// A name or a value has no terminating zero.
    #[error("a serialised map has no zero at the end of a name or value")]
    NoZero,
    /// Bytes follow the last field.
    #[error("a serialised map has bytes behind its last field")]
    TrailingBytes,
    /// A field has no name.
    #[error("a field has no name")]
    NoName,
    /// The map has too many fields or bytes.
    #[error("more than {HEADERS_MAX} fields or {HEADER_BYTES_MAX} bytes")]
    TooLarge,
}

impl HeaderMap {
    /// Creates an empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self { data: Vec::new(), fields: Vec::new(), bytes: 0 }
    }

    /// Creates an empty map with capacity for `fields` fields with `bytes` bytes.
    #[must_use]
    pub fn with_capacity(fields: usize, bytes: usize) -> Self {
        let (fields, bytes) = (fields.min(HEADERS_MAX), bytes.min(HEADER_BYTES_MAX));
        Self { data: Vec::with_capacity(bytes), fields: Vec::with_capacity(fields), bytes: 0 }
    }

    /// Returns the number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Returns true if there are no fields.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns the bytes of all names and values.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the fields in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(name, value)| (self.part(*name), self.part(*value)))
    }

    fn part(&self, span: Span) -> &[u8] {
        let (at, length) = (span.at as usize, span.length as usize);
        // Ranges always refer to existing data.
        self.data.get(at..at + length).unwrap_or_default()
    }

    /// Appends bytes to the data.
    fn append(&mut self, part: &[u8]) -> Span {
        let at = self.data.len() as u32;
        self.data.extend_from_slice(part);
        Span { at, length: part.len() as u32 }
    }

    /// Removes the garbage of edits when it exceeds the limit of the content.
    fn compact(&mut self) {
        if self.data.len() <= 2 * HEADER_BYTES_MAX {
            return;
        }
        let mut all = Self::with_capacity(self.fields.len(), self.bytes);
        for (name, value) in self.iter() {
            let field = (all.append(name), all.append(value));
            all.fields.push(field);
        }
        (self.data, self.fields) = (all.data, all.fields);
    }

    /// Returns the first value of a name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns all values of a name joined by commas, as RFC 9110 section 5.3 allows. Not valid for
    /// `set-cookie`, whose fields must be read one by one.
    #[must_use]
    pub fn joined(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut values = self.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let mut joined = values.next()?.1.to_vec();
        for (_, value) in values {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(joined)
    }

    /// Appends a field.
    ///
    /// # Errors
    /// [`MapError::NoName`], or [`MapError::TooLarge`]; the map is unchanged.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), MapError> {
        if name.is_empty() {
            return Err(MapError::NoName);
        }
        let bytes = self.bytes + name.len() + value.len();
        if self.fields.len() >= HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            return Err(MapError::TooLarge);
        }
        self.bytes = bytes;
        self.compact();
        let field = (self.append(name), self.append(value));
        self.fields.push(field);
        Ok(())
    }

    /// Replaces all fields of a name by one, in the position of the first one, or at the end.
    ///
    /// # Errors
    /// The same as of [`HeaderMap::add`].
    pub fn replace(&mut self, name: &[u8], value: &[u8]) -> Result<(), MapError> {
        let is_named = |known: &[u8]| known.eq_ignore_ascii_case(name);
        let Some(first) = self.iter().position(|(known, _)| is_named(known)) else {
            return self.add(name, value);
        };
        let named = self.iter().filter(|(known, _)| is_named(known));
        let old: usize = named.map(|(name, value)| name.len() + value.len()).sum();
        let bytes = self.bytes - old + self.fields[first].0.length as usize + value.len();
        if bytes > HEADER_BYTES_MAX {
            return Err(MapError::TooLarge);
        }
        self.compact();
        let span = self.append(value);
        self.fields[first].1 = span;
        self.retain(|index, known| index <= first || !is_named(known));
        Ok(())
    }

    /// Removes all fields of a name.
    pub fn remove(&mut self, name: &[u8]) {
        self.retain(|_, known| !known.eq_ignore_ascii_case(name));
    }

    /// Keeps the fields whose index and name satisfy the predicate.
    fn retain(&mut self, keeps: impl Fn(usize, &[u8]) -> bool) {
        let mut fields = std::mem::take(&mut self.fields);
        let mut index = 0;
        fields.retain(|(name, _)| {
            index += 1;
            keeps(index - 1, self.part(*name))
        });
        self.bytes = fields.iter().map(|(name, value)| (name.length + value.length) as usize).sum();
        self.fields = fields;
    }

    /// Returns the number of bytes that [`HeaderMap::serialise`] returns.
    #[must_use]
    pub fn serialised_length(&self) -> usize {
        match self.len() {
            0 => 0,
            count => WORD + count * (2 * WORD + 2) + self.bytes,
        }
    }

    /// Serialises the map for a module; an empty one has no bytes.
    #[must_use]
    pub fn serialise(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.serialised_length());
        if self.is_empty() {
            return out;
        }
        let word = |length: usize| (length as u32).to_le_bytes();
        out.extend_from_slice(&word(self.len()));
        for (name, value) in self.iter() {
            out.extend_from_slice(&word(name.len()));
            out.extend_from_slice(&word(value.len()));
        }
        for part in self.iter().flat_map(|(name, value)| [name, value]) {
            out.extend_from_slice(part);
            out.push(0);
        }
        out
    }

    /// Parses a map that a module has written. No bytes, and a single zero word, are an empty one.
    ///
    /// # Errors
    /// The bytes are no valid map, for this reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, MapError> {
        if matches!(bytes, [] | [0]) {
            return Ok(Self::new());
        }
        let (count, rest) = bytes.split_first_chunk::<WORD>().ok_or(MapError::Truncated)?;
        let count = u32::from_le_bytes(*count) as usize;
        let (lengths, mut parts) =
            rest.split_at_checked(count.saturating_mul(2 * WORD)).ok_or(MapError::Truncated)?;
        if count > HEADERS_MAX {
            return Err(MapError::TooLarge);
        }
        let mut map = Self::with_capacity(count, parts.len());
        let mut next = |length: &[u8]| -> Result<&[u8], MapError> {
            let length = length.first_chunk::<WORD>().ok_or(MapError::Truncated)?;
            let length = u32::from_le_bytes(*length) as usize;
            let (part, rest) = parts.split_at_checked(length).ok_or(MapError::Truncated)?;
            let (&zero, rest) = rest.split_first().ok_or(MapError::Truncated)?;
            parts = rest;
            if zero == 0 { Ok(part) } else { Err(MapError::NoZero) }
        };
        for pair in lengths.chunks_exact(2 * WORD) {
            let (name, value) = (next(&pair[..WORD])?, next(&pair[WORD..])?);
            map.add(name, value)?;
        }
        if parts.is_empty() { Ok(map) } else { Err(MapError::TrailingBytes) }
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for HeaderMap {
    /// Collects fields; those that exceed the limits or have no name are left out. For the host's
    /// own fields.
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut map = Self::new();
        for (name, value) in fields {
            // Invalid fields are left out.
            let _ = map.add(name.as_ref(), value.as_ref());
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Example of the specification, with real lengths: `{{"a": "1"}, {"b": "22"}}`.
    #[test]
    fn the_specs_example() {
        let map = HeaderMap::from_iter([("a", "1"), ("b", "22")]);
        let bytes = b"\x02\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x02\0\0\0a\x001\0b\x0022\0";
        assert_eq!(map.serialise(), bytes);
        assert_eq!(HeaderMap::parse(bytes), Ok(map));
        assert_eq!(HeaderMap::parse(&[]), Ok(HeaderMap::new()));
        assert_eq!(HeaderMap::parse(&[0]), Ok(HeaderMap::new()));
        assert!(HeaderMap::new().serialise().is_empty());
    }

    #[test]
    fn each_parse_error_is_reported() {
        let cases: [(&[u8], MapError); 7] = [
            (&[1, 0], MapError::Truncated),
            (&[1, 0, 0, 0], MapError::Truncated),
            (b"\x01\0\0\0\x01\0\0\0\x01\0\0\0a\x001", MapError::Truncated),
            (b"\x01\0\0\0\x01\0\0\0\x01\0\0\0a\x0011", MapError::NoZero),
            (b"\x01\0\0\0\x01\0\0\0\x01\0\0\0a\x001\0\0", MapError::TrailingBytes),
            (b"\x01\0\0\0\0\0\0\0\x01\0\0\0\x001\0", MapError::NoName),
            (&[0xff; 4], MapError::Truncated),
        ];
        for (bytes, error) in cases {
            assert_eq!(HeaderMap::parse(bytes), Err(error), "{bytes:?}");
        }
        let mut many = vec![0; 1 << 16];
        many[1] = 16;
        assert_eq!(HeaderMap::parse(&many), Err(MapError::TooLarge));
    }

    #[test]
    fn duplicates_stay_and_names_are_compared_without_case() {
        let mut map = HeaderMap::from_iter([("Via", "a"), ("x", "1"), ("via", "b")]);
        assert_eq!(map.get(b"VIA"), Some(&b"a"[..]));
        assert_eq!(map.joined(b"via"), Some(b"a,b".to_vec()));
        map.replace(b"via", b"c").unwrap();
        assert_eq!(map, HeaderMap::from_iter([("Via", "c"), ("x", "1")]));
        map.remove(b"VIA");
        map.replace(b"y", b"2").unwrap();
        assert_eq!(map, HeaderMap::from_iter([("x", "1"), ("y", "2")]));
        assert_eq!((map.bytes(), map.len(), map.joined(b"via")), (4, 2, None));
    }

    #[test]
    fn a_map_has_an_end() {
        let mut map = HeaderMap::new();
        assert_eq!(map.add(b"a", &vec![0; HEADER_BYTES_MAX]), Err(MapError::TooLarge));
        assert_eq!(map.add(b"", b"1"), Err(MapError::NoName));
        assert!((0..HEADERS_MAX).all(|_| map.add(b"a", b"").is_ok()));
        assert_eq!(map.add(b"a", b""), Err(MapError::TooLarge));
        assert_eq!(map.replace(b"a", &vec![0; HEADER_BYTES_MAX]), Err(MapError::TooLarge));
        assert_eq!(map.len(), HEADERS_MAX);
    }

    fn fields() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        let name = prop::collection::vec(prop::sample::select(b"aAbB-".as_slice()), 1..3);
        prop::collection::vec((name, prop::collection::vec(any::<u8>(), 0..4)), 0..8)
    }

    proptest! {
        #[test]
        fn serialised_maps_are_parsed(fields in fields()) {
            let map = HeaderMap::from_iter(fields);
            let bytes = map.serialise();
            prop_assert_eq!(bytes.len(), map.serialised_length());
            prop_assert_eq!(HeaderMap::parse(&bytes), Ok(map));
        }

        #[test]
        fn any_bytes_are_a_map_or_an_error(bytes: Vec<u8>, count in 0_u8..4) {
            let _ = HeaderMap::parse(&bytes);
            let likely = [&[count, 0, 0, 0], bytes.as_slice()].concat();
            if let Ok(map) = HeaderMap::parse(&likely) {
                prop_assert!(map.is_empty() || map.serialise() == likely);
            }
        }

        #[test]
        fn edits_do_what_a_plain_list_does(
            fields in fields(), edits in prop::collection::vec((0..3, fields()), 0..6),
        ) {
            let mut map = HeaderMap::from_iter(fields.clone());
            let mut model = fields;
            for (edit, fields) in edits {
                for (name, value) in fields {
                    let same = |it: &(Vec<u8>, Vec<u8>)| it.0.eq_ignore_ascii_case(&name);
                    match edit {
                        0 => {
                            map.add(&name, &value).unwrap();
                            model.push((name, value));
                        }
                        1 => {
                            map.replace(&name, &value).unwrap();
                            match model.iter().position(same) {
                                None => model.push((name, value)),
                                Some(at) => {
                                    let kept = (model[at].0.clone(), value);
                                    let tail = model.split_off(at);
                                    model.push(kept);
                                    model.extend(tail.into_iter().skip(1).filter(|it| !same(it)));
                                }
                            }
                        }
                        _ => {
                            map.remove(&name);
                            model.retain(|it| !same(it));
                        }
                    }
                }
            }
            let bytes = model.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            prop_assert_eq!(map.bytes(), bytes);
            let kept: Vec<_> = map.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            prop_assert_eq!(kept, model);
        }
    }
}
