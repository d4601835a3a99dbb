//! Chunk in transit to a listener: its size is sent before its data, and the parts that the kernel
//! does not accept are sent later.
//!
//! ```text
//!   1 f 4 CR LF │ data, 500 bytes │ CR LF
//!         ▲ sent
//! ```
//!
//! The chunk only counts bytes: if a listener skips in the middle of a chunk, the chunk continues
//! with the data at the new position.

/// Eight digits of a `u32`, and CRLF.
const BEFORE_LENGTH_MAX: usize = 10;

/// Size line of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SizeLine {
    bytes: [u8; BEFORE_LENGTH_MAX],
    length: usize,
}

impl SizeLine {
    fn of(size: u32) -> Self {
        let mut before = Self::default();
        let digits = (u32::BITS - size.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            before.push(b"0123456789abcdef"[(size >> (4 * digit) & 15) as usize]);
        }
        before.push(b'\r');
        before.push(b'\n');
        before
    }

    const fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    /// Returns the rest after `sent` bytes.
    fn after(&self, sent: usize) -> &[u8] {
        &self.bytes[sent.min(self.length)..self.length]
    }
}

/// Terminator of a chunk's data.
const DATA_END: &[u8] = b"\r\n";
/// Last chunk of a body, without trailers.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Chunk in transit, or none: at first, and after all of one is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Bytes of its data; 0 means no chunk.
    size: u32,
    /// Bytes sent, delimiters included.
    sent: u32,
}

/// Delimiters to send with a part of a chunk's data.
#[derive(Debug)]
pub(crate) struct Delimiters {
    before: SizeLine,
    sent: usize,
    /// Terminator; empty while more data of the chunk follows.
    pub(crate) after: &'static [u8],
}

impl Delimiters {
    pub(crate) fn before(&self) -> &[u8] {
        self.before.after(self.sent)
    }
}

impl Chunk {
    /// Returns the data bytes missing from the current chunk, or `None` if another one can begin.
    pub(crate) fn left(self) -> Option<usize> {
        let before = SizeLine::of(self.size).length;
        let data = (self.sent as usize).saturating_sub(before);
        (self.size > 0).then(|| (self.size as usize).saturating_sub(data))
    }

    /// Begins a chunk of `length` data bytes, unless one is in transit. An empty chunk is not
    /// begun: it would be the last one.
    pub(crate) fn begin(&mut self, length: usize) {
        if self.size == 0 {
            *self = Self { size: u32::try_from(length).unwrap_or(u32::MAX), sent: 0 };
        }
    }

    /// Returns the delimiters to send with the next `data` bytes of the chunk.
    pub(crate) fn around(self, data: usize) -> Delimiters {
        let before = if self.size > 0 { SizeLine::of(self.size) } else { SizeLine::default() };
        let sent = self.sent as usize;
        let after_sent = sent.saturating_sub(before.length + self.size as usize);
        let is_end = self.size > 0 && self.left() == Some(data);
        let after = if is_end { DATA_END.get(after_sent..).unwrap_or_default() } else { b"" };
        Delimiters { before, sent, after }
    }

    /// Handles that `bytes` were sent, delimiters included; returns how many of them are data.
    pub(crate) fn sent(&mut self, bytes: usize) -> usize {
        let left = self.left().unwrap_or(0);
        // At most a chunk, whose size is a u32, and 12 bytes of delimiters.
        self.sent = self.sent.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        let data = left - self.left().unwrap_or(0);
        let whole = SizeLine::of(self.size).length + self.size as usize + DATA_END.len();
        if self.sent as usize >= whole {
            *self = Self::default();
        }
        data
    }

    /// Returns the bytes that end the body now, or `None` if data of a chunk is missing.
    pub(crate) fn end(self) -> Option<Vec<u8>> {
        match self.left() {
            None => Some(LAST_CHUNK.to_vec()),
            Some(0) => Some([self.around(0).after, LAST_CHUNK].concat()),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http1::{
        Framing, Headers, MethodClass, RequestTraits, ResponseDecoder, ResponseEvent, Version,
    };
    use proptest::prelude::*;

    #[test]
    fn a_size_is_hexadecimal() {
        for size in [1, 9, 10, 15, 16, 255, 256, 4_095, 65_536, u32::MAX] {
            assert_eq!(SizeLine::of(size).after(0), format!("{size:x}\r\n").as_bytes());
        }
    }

    fn decode(body: &[u8]) -> Vec<u8> {
        let mut decoder = ResponseDecoder::new();
        decoder.expect(RequestTraits { method: MethodClass::Other, upgrade: false });
        let mut headers = Headers::new();
        headers.add(b"Transfer-Encoding", b"chunked").unwrap();
        let head = http1::ResponseHead::new(Version::Http11, 200, b"OK", headers).unwrap();
        let mut wire = Vec::new();
        http1::Encoder::response(&head, crate::head::GET_TRAITS, Framing::Chunked, &mut wire)
            .unwrap();
        wire.extend_from_slice(body);
        let (mut rest, mut data) = (wire.as_slice(), Vec::new());
        loop {
            let step = decoder.decode(rest).unwrap();
            rest = &rest[step.consumed..];
            match step.event {
                Some(ResponseEvent::Head(..)) => {}
                Some(ResponseEvent::Body(bytes)) => data.extend_from_slice(bytes),
                Some(ResponseEvent::End) => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(rest.is_empty());
        data
    }

    proptest! {
        /// Decoders read the data, whatever is offered and however little of it is taken.
        #[test]
        fn chunks_are_whole_however_they_are_sent(
            offers in proptest::collection::vec((1_usize..600, 1_usize..700), 1..60),
        ) {
            let (mut chunk, mut wire, mut position) = (Chunk::default(), Vec::new(), 0_usize);
            let data = |from: usize, length: usize| -> Vec<u8> {
                (from..from + length).map(|at| at as u8).collect()
            };
            let mut offer = |chunk: &mut Chunk, length: usize, taken: usize| {
                let length = chunk.left().unwrap_or(length).min(length);
                chunk.begin(length);
                let around = chunk.around(length);
                let all = [around.before(), &data(position, length), around.after].concat();
                let part = &all[..taken.min(all.len())];
                wire.extend_from_slice(part);
                position += chunk.sent(part.len());
            };
            for (length, taken) in offers {
                offer(&mut chunk, length, taken);
            }
            while let Some(left) = chunk.left().filter(|&left| left > 0) {
                prop_assert_eq!(chunk.end(), None);
                offer(&mut chunk, left, 7);
            }
            wire.extend(chunk.end().unwrap());
            prop_assert_eq!(decode(&wire), data(0, position));
        }
    }
}
