//! Titles within a stream ("ICY", SHOUTcast and Icecast): after every `icy-metaint` bytes of
//! payload a length byte, then sixteen times as many bytes of text such as `StreamTitle='…';`,
//! padded with zeros. There is no standard; docs/guides/reflector.md describes the format.

use crate::limits::ICY_INTERVAL_MAX;
use std::sync::Arc;

/// Bytes of text for each unit of a block's length byte.
const BLOCK_UNIT: usize = 16;

/// Block of metadata as on the wire: the length byte, and the padded text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block(Arc<[u8]>);

impl Block {
    /// Creates a block with this text, truncated to the 4,080 bytes that fit.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        let text = &text[..text.len().min(usize::from(u8::MAX) * BLOCK_UNIT)];
        let units = text.len().div_ceil(BLOCK_UNIT);
        let mut block = vec![0; 1 + units * BLOCK_UNIT];
        // At most 255, as the text was cut.
        block[0] = units as u8;
        block[1..=text.len()].copy_from_slice(text);
        Self(block.into())
    }

    /// Creates a block without text, which means no change.
    #[must_use]
    pub fn empty() -> Self {
        Self(Arc::new([0]))
    }

    /// Returns the whole block.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text without padding.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        let text = self.0.get(1..).unwrap_or_default();
        let end = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        &text[..end]
    }

    /// Returns the title, if the text has one: the bytes between `StreamTitle='` and `';`. The
    /// bytes are untrusted, in any character set.
    #[must_use]
    pub fn stream_title(&self) -> Option<&[u8]> {
        const NAME: &[u8] = b"StreamTitle='";
        let text = self.text();
        let from = text.windows(NAME.len()).position(|part| part.eq_ignore_ascii_case(NAME))?;
        let rest = &text[from + NAME.len()..];
        let end = rest.windows(2).position(|part| part == b"';");
        Some(&rest[..end.unwrap_or_else(|| rest.strip_suffix(b"'").unwrap_or(rest).len())])
    }

    pub(crate) fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }
}

/// Part of a stream with metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// Payload, a slice of the input.
    Payload(&'b [u8]),
    /// Block with a text: the title from this position on.
    Title(Block),
}

#[derive(Debug)]
enum State {
    /// `left` bytes of payload precede the next block.
    Payload { left: u32 },
    /// `left` bytes of the current block are missing.
    Block { left: usize },
}

/// Separates metadata blocks from payload.
#[derive(Debug)]
pub struct Reader {
    interval: Option<u32>,
    state: State,
    block: Vec<u8>,
}

impl Reader {
    /// Creates a reader for this interval; `None`, 0, or more than [`ICY_INTERVAL_MAX`] means a
    /// stream without blocks.
    #[must_use]
    pub fn new(interval: Option<u32>) -> Self {
        let interval = interval.filter(|&interval| (1..=ICY_INTERVAL_MAX).contains(&interval));
        let left = interval.unwrap_or(0);
        Self { interval, state: State::Payload { left }, block: Vec::new() }
    }

    /// Reads from the front of the input. Returns the bytes taken, and an event for each piece of
    /// payload and each block with a text; without an event, all input is taken.
    pub fn read<'b>(&mut self, input: &'b [u8]) -> (usize, Option<Event<'b>>) {
        let Some(interval) = self.interval else {
            return (input.len(), (!input.is_empty()).then_some(Event::Payload(input)));
        };
        let mut at = 0;
        while at < input.len() {
            match &mut self.state {
                State::Payload { left: 0 } => {
                    let length = usize::from(input[at]) * BLOCK_UNIT;
                    self.block.push(input[at]);
                    self.state = State::Block { left: length };
                    at += 1;
                }
                State::Payload { left } => {
                    let rest = &input[at..];
                    let length = rest.len().min(*left as usize);
                    // At most `left`, which is a u32.
                    *left -= length as u32;
                    return (at + length, Some(Event::Payload(&rest[..length])));
                }
                State::Block { left } => {
                    let rest = &input[at..];
                    let length = rest.len().min(*left);
                    self.block.extend_from_slice(&rest[..length]);
                    *left -= length;
                    at += length;
                }
            }
            if let Some(block) = self.whole(interval) {
                return (at, Some(Event::Title(block)));
            }
        }
        (at, None)
    }

    /// Returns the block if it is complete and has a text.
    fn whole(&mut self, interval: u32) -> Option<Block> {
        if !matches!(self.state, State::Block { left: 0 }) {
            return None;
        }
        self.state = State::Payload { left: interval };
        let block = Block(self.block.as_slice().into());
        self.block.clear();
        (block.0.len() > 1).then_some(block)
    }

    /// Returns the bytes of memory held for an incomplete block.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.block.capacity()
    }
}

/// Prefix of SHOUTcast 1's status line, and its replacement.
const STATUS: (&[u8], &[u8]) = (b"ICY ", b"HTTP/1.0 ");

/// Filter before the HTTP decoder that turns `ICY 200 OK`, the status line of SHOUTcast 1, into one
/// of HTTP/1.0. All other bytes pass unchanged.
#[derive(Debug, Default)]
pub struct StatusLine {
    /// Bytes held back because they match a prefix of `ICY `.
    matched: usize,
    is_done: bool,
}

impl StatusLine {
    /// Creates a filter at the start of a connection.
    #[must_use]
    pub const fn new() -> Self {
        Self { matched: 0, is_done: false }
    }

    /// Takes bytes of the origin, and returns those for the decoder, in two slices.
    pub fn take<'b>(&mut self, input: &'b [u8]) -> (&'static [u8], &'b [u8]) {
        if self.is_done {
            return (b"", input);
        }
        let wanted = &STATUS.0[self.matched..];
        let same = wanted.iter().zip(input).take_while(|(wants, has)| wants == has).count();
        let held = &STATUS.0[..self.matched];
        if same == wanted.len() {
            self.is_done = true;
            (STATUS.1, &input[same..])
        } else if same == input.len() {
            self.matched += same;
            (b"", b"")
        } else {
            self.is_done = true;
            (held, input)
        }
    }

    /// Returns the bytes still held back when the connection ends.
    #[must_use]
    pub fn held(&self) -> &'static [u8] {
        if self.is_done { b"" } else { &STATUS.0[..self.matched] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http1::{Framing, MethodClass, RequestTraits, ResponseDecoder, ResponseEvent};

    #[test]
    fn blocks_have_a_length_byte_and_are_filled_up() {
        let block = Block::new(b"StreamTitle='It's a test';StreamUrl='';");
        assert_eq!((block.as_bytes().len(), block.as_bytes()[0]), (1 + 48, 3));
        assert_eq!(block.stream_title(), Some(&b"It's a test"[..]));
        assert_eq!(Block::new(b"").as_bytes(), [0]);
        assert_eq!(Block::empty(), Block::new(b""));
        assert_eq!(Block::new(&[b'a'; 5000]).as_bytes().len(), 1 + 4080);
        assert_eq!(Block::new(b"streamtitle='cut off").stream_title(), Some(&b"cut off"[..]));
        assert_eq!(Block::new(b"StreamTitle='x'").stream_title(), Some(&b"x"[..]));
        assert_eq!(Block::new(b"StreamUrl='x';").stream_title(), None);
    }

    #[test]
    fn an_empty_block_is_no_event() {
        let mut reader = Reader::new(Some(2));
        let title = Block::new(b"StreamTitle='a';");
        let mut wire = b"ab\0cd".to_vec();
        wire.extend_from_slice(title.as_bytes());
        wire.extend_from_slice(b"ef");
        let (mut rest, mut seen) = (wire.as_slice(), Vec::new());
        while let (taken, Some(event)) = reader.read(rest) {
            rest = &rest[taken..];
            seen.push(event);
        }
        let payload = |bytes: &'static [u8]| Event::Payload(bytes);
        assert_eq!(seen, [payload(b"ab"), payload(b"cd"), Event::Title(title), payload(b"ef")]);
    }

    #[test]
    fn an_old_servers_status_line_is_read() {
        let crlf = &b"ICY 200 OK\r\nicy-name:a\r\ncontent-type:audio/mpeg\r\n\r\n\xff\xfb"[..];
        // Some servers end their lines with LF alone.
        let lf = &b"ICY 200 OK\nicy-name:a\ncontent-type:audio/mpeg\n\n\xff\xfb"[..];
        let cuts = |wire: &'static [u8]| (0..=wire.len()).map(move |cut| (wire, cut));
        for (wire, cut) in cuts(crlf).chain(cuts(lf)) {
            let (mut line, mut bytes) = (StatusLine::new(), Vec::new());
            for part in [&wire[..cut], &wire[cut..]] {
                let (first, second) = line.take(part);
                bytes.extend_from_slice(first);
                bytes.extend_from_slice(second);
            }
            let mut decoder = ResponseDecoder::new();
            decoder.expect(RequestTraits { method: MethodClass::Other, upgrade: false });
            let step = decoder.decode(&bytes).unwrap();
            let Some(ResponseEvent::Head(head, framing)) = step.event else { panic!("no head") };
            assert_eq!((head.status(), framing), (200, Framing::UntilClose));
            assert_eq!(head.headers.get(b"Icy-Name"), Some(&b"a"[..]));
        }
    }

    #[test]
    fn other_status_lines_pass() {
        for wire in [&b"HTTP/1.1 200 OK"[..], b"ICE", b"I", b"ICYCLE 200"] {
            for cut in 0..=wire.len() {
                let (mut line, mut bytes) = (StatusLine::new(), Vec::new());
                for part in [&wire[..cut], &wire[cut..]] {
                    let (first, second) = line.take(part);
                    bytes.extend_from_slice(first);
                    bytes.extend_from_slice(second);
                }
                bytes.extend_from_slice(line.held());
                assert_eq!(bytes, wire);
            }
        }
    }
}
