//! The chunk that is on its way to a listener: its size goes out in front of its data, and what
//! the kernel does not take of either is sent later.
//!
//! ```text
//!  1 f 4 CR LF │ data, 500 bytes │ CR LF
//!        ▲ sent
//! ```
//!
//! Where the data was cut from does not matter: if a listener skips in the middle of a chunk, the
//! rest of it has what is next.

/// Eight digits of a `u32`, and CRLF.
const BEFORE_LENGTH_MAX: usize = 10;

/// What is written in front of a chunk's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    bytes: [u8; BEFORE_LENGTH_MAX],
    length: usize,
}

impl Before {
    fn of(size: u32) -> Self {
        let mut before = Self::default();
        let digits = (u32::BITS - size.leading_zeros()).div_ceil(4).max(1);
        for place in (0..digits).rev() {
            before.push(b"0123456789abcdef"[(size >> (4 * place) & 15) as usize]);
        }
        before.push(b'\r');
        before.push(b'\n');
        before
    }

    const fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    /// What is left of it behind so many bytes.
    fn behind(&self, sent: usize) -> &[u8] {
        &self.bytes[sent.min(self.length)..self.length]
    }
}

/// What is written behind it.
const AFTER: &[u8] = b"\r\n";
/// What ends a body of chunks, without trailers.
pub(crate) const LAST: &[u8] = b"0\r\n\r\n";

/// A body's chunk, or none: at first, and when all of one is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Bytes of its data; 0 is no chunk.
    size: u32,
    /// Bytes of all of it that are sent.
    sent: u32,
}

/// What is to be sent around data.
#[derive(Debug)]
pub(crate) struct Around {
    before: Before,
    sent: usize,
    /// Empty while the chunk's data goes on behind this.
    pub(crate) after: &'static [u8],
}

impl Around {
    pub(crate) fn before(&self) -> &[u8] {
        self.before.behind(self.sent)
    }
}

impl Chunk {
    /// Data that has to follow before another chunk can begin; none if one can.
    pub(crate) fn left(self) -> Option<usize> {
        let before = Before::of(self.size).length;
        let data = (self.sent as usize).saturating_sub(before);
        (self.size > 0).then(|| (self.size as usize).saturating_sub(data))
    }

    /// Begins one with as much data, if none is begun. Nothing is no chunk: it would be the last.
    pub(crate) fn begin(&mut self, length: usize) {
        if self.size == 0 {
            *self = Self { size: u32::try_from(length).unwrap_or(u32::MAX), sent: 0 };
        }
    }

    /// What is sent around so much data, the next of its own.
    pub(crate) fn around(self, data: usize) -> Around {
        let before = if self.size > 0 { Before::of(self.size) } else { Before::default() };
        let sent = self.sent as usize;
        let after_sent = sent.saturating_sub(before.length + self.size as usize);
        let is_end = self.size > 0 && self.left() == Some(data);
        let after = if is_end { AFTER.get(after_sent..).unwrap_or_default() } else { b"" };
        Around { before, sent, after }
    }

    /// So many bytes of it, and of what is around its data, are sent; how many of them are data.
    pub(crate) fn sent(&mut self, bytes: usize) -> usize {
        let left = self.left().unwrap_or(0);
        // No more than a chunk, whose size is a u32, and 12 bytes around it.
        self.sent = self.sent.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        let data = left - self.left().unwrap_or(0);
        let whole = Before::of(self.size).length + self.size as usize + AFTER.len();
        if self.sent as usize >= whole {
            *self = Self::default();
        }
        data
    }

    /// What ends the body now; none if data is missing.
    pub(crate) fn end(self) -> Option<Vec<u8>> {
        match self.left() {
            None => Some(LAST.to_vec()),
            Some(0) => Some([self.around(0).after, LAST].concat()),
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
            assert_eq!(Before::of(size).behind(0), format!("{size:x}\r\n").as_bytes());
        }
    }

    fn decode(body: &[u8]) -> Vec<u8> {
        let mut decoder = ResponseDecoder::new();
        decoder.expect(RequestTraits { method: MethodClass::Other, upgrade: false });
        let mut headers = Headers::new();
        headers.add(b"Transfer-Encoding", b"chunked").unwrap();
        let head = http1::ResponseHead::new(Version::Http11, 200, b"OK", headers).unwrap();
        let mut wire = Vec::new();
        http1::Encoder::response(&head, crate::head::ASKED, Framing::Chunked, &mut wire).unwrap();
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
        /// Whatever is offered and however little of it is taken: a decoder reads the data.
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
