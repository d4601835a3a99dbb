//! Scanner for the I pictures of an elementary stream and their presentation times: ISO/IEC
//! 13818-2, 6.2.
//!
//! ```text
//!   B3 sequence header, B5 extensions ─ B8 group ─ 00 picture ─ B5 coding ─ 01..AF slices ─ …
//!   └─ a cut is at the first of these before an I picture
//! ```

use crate::limits::SEQUENCE_LENGTH_MAX;
use units::Nanos;

/// Position at which a codec can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Position in the stream, in bytes.
    pub at: u64,
    /// True if a sequence header is at this position; otherwise
    /// [`Feed::headers`](crate::feed::Feed::headers) have to precede it.
    pub has_headers: bool,
    /// Presentation time of the first picture after it.
    pub time: Nanos,
}

/// Bytes after a start code that are parsed.
const READ: usize = 8;
/// Bytes of a start code.
const CODE: usize = 4;

const PICTURE: u8 = 0x00;
const USER_DATA: u8 = 0xb2;
const SEQUENCE: u8 = 0xb3;
const EXTENSION: u8 = 0xb5;
const SEQUENCE_END: u8 = 0xb7;
const GROUP: u8 = 0xb8;

/// Picture rates by `frame_rate_code`, as numerator and denominator: table 6-4.
const RATES: [(u64, u64); 9] = [
    (25, 1),
    (24_000, 1_001),
    (24, 1),
    (25, 1),
    (30_000, 1_001),
    (30, 1),
    (50, 1),
    (60_000, 1_001),
    (60, 1),
];

/// Picture whose coding extension has not been read yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    reference: u64,
}

/// Incremental reader of an elementary stream.
#[derive(Debug)]
pub struct Scanner {
    /// Position up to which the stream has been read.
    at: u64,
    /// Duration of a field: half that of a frame.
    field: Nanos,
    is_progressive: bool,
    /// Position of the headers that belong to the next picture, and true if a sequence header is
    /// among them.
    header: Option<(u64, bool)>,
    /// Position of a sequence header that is incomplete.
    sequence: Option<u64>,
    headers: Vec<u8>,
    /// Presentation time of the next coded picture, if none is reordered.
    coded: Nanos,
    /// Value of `coded` at the start of the group, from which temporal references count.
    base: Nanos,
    /// Pictures of the group.
    count: u64,
    /// Picture that may turn out to be a field.
    pending: Option<Pending>,
    awaited_field: Option<u64>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            at: 0,
            field: half(0),
            is_progressive: true,
            header: None,
            sequence: None,
            headers: Vec::new(),
            coded: Nanos::ZERO,
            base: Nanos::ZERO,
            count: 0,
            pending: None,
            awaited_field: None,
        }
    }
}

/// Returns half the duration of a frame, by the code of its rate.
fn half(code: usize) -> Nanos {
    let (pictures, seconds) = RATES.get(code).copied().unwrap_or(RATES[0]);
    Nanos(seconds * 1_000_000_000 / pictures / 2)
}

impl Scanner {
    /// Returns the last sequence header, with its extensions.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        &self.headers
    }

    /// Reads bytes that begin at position `from`, and calls `found` for each position at which a
    /// codec could begin. All bytes not read before must be included.
    pub fn read(&mut self, from: u64, bytes: &[u8], mut found: impl FnMut(Cut)) {
        let Some(mut offset) = usize::try_from(self.at.saturating_sub(from)).ok() else { return };
        loop {
            let Some(next) = next_code(bytes, offset) else {
                // A start code may begin in the last two bytes.
                offset = offset.max(bytes.len().saturating_sub(2));
                break;
            };
            let Some(code) = bytes.get(next..next + CODE + READ) else {
                offset = next;
                break;
            };
            offset = next + CODE;
            let at = from + next as u64;
            if let Some(header) = self.sequence
                && matches!(code[3], GROUP | PICTURE | SEQUENCE | SEQUENCE_END)
            {
                self.keep_headers(from, bytes, header, next);
            }
            if let Some(cut) = self.handle(at, code[3], &code[CODE..]) {
                found(cut);
            }
        }
        self.at = from + offset as u64;
    }

    fn keep_headers(&mut self, from: u64, bytes: &[u8], header: u64, until: usize) {
        self.sequence = None;
        let begin = usize::try_from(header.saturating_sub(from)).ok();
        let headers = begin.and_then(|begin| bytes.get(begin..until));
        if let Some(headers) = headers.filter(|it| it.len() <= SEQUENCE_LENGTH_MAX) {
            self.headers.clear();
            self.headers.extend_from_slice(headers);
        }
    }

    /// Returns the first position that is still needed, because of incomplete headers.
    #[must_use]
    pub fn needed_from(&self) -> u64 {
        let header = self.header.map(|(at, _)| at);
        [Some(self.at), header, self.sequence].into_iter().flatten().min().unwrap_or(self.at)
    }

    /// Abandons incomplete headers, as they are too long to be valid.
    pub fn forget(&mut self) {
        (self.header, self.sequence) = (None, None);
    }

    fn handle(&mut self, at: u64, code: u8, bytes: &[u8]) -> Option<Cut> {
        if code != EXTENSION && code != USER_DATA {
            self.end_if_done(None);
        }
        match code {
            SEQUENCE => {
                self.header = Some((self.header.map_or(at, |(header, _)| header), true));
                self.sequence = Some(at);
                self.field = half(usize::from(bytes[3] & 0x0f));
                // MPEG-1 until an extension follows.
                self.is_progressive = true;
            }
            GROUP => {
                self.header.get_or_insert((at, false));
                (self.base, self.count) = (self.coded, 0);
            }
            EXTENSION => self.extension(bytes),
            PICTURE => return self.picture(at, bytes),
            SEQUENCE_END => (self.header, self.sequence) = (None, None),
            _ => {}
        }
        None
    }

    fn extension(&mut self, bytes: &[u8]) {
        match bytes[0] >> 4 {
            // 6.2.2.3.
            1 => self.is_progressive = bytes[1] & 0x08 != 0,
            // 6.2.3.1.
            8 => {
                let structure = bytes[2] & 3;
                let (is_top_first, repeats) = (bytes[3] & 0x80 != 0, bytes[3] & 0x02 != 0);
                self.end_if_done(Some(Coding { structure, is_top_first, repeats }));
            }
            _ => {}
        }
    }

    fn picture(&mut self, at: u64, bytes: &[u8]) -> Option<Cut> {
        let reference = u64::from(bytes[0]) << 2 | u64::from(bytes[1] >> 6);
        let is_intra = bytes[1] >> 3 & 7 == 1;
        let header = self.header.take();
        if self.awaited_field.take() == Some(reference) {
            // Second field of the frame before.
            return None;
        }
        // Temporal references restart in each group; without groups they wrap around.
        let around = self.count.saturating_sub(512);
        let shown = around + (reference + 1024 - around % 1024) % 1024;
        self.pending = Some(Pending { reference });
        let time = self.base + Nanos(shown.saturating_mul(2 * self.field.0));
        self.count += 1;
        let has_headers = header.is_some_and(|(_, has)| has);
        if !is_intra || (self.headers.is_empty() && !has_headers) {
            return None;
        }
        let at = header.map_or(at, |(header, _)| header);
        Some(Cut { at, has_headers, time })
    }

    /// Handles a picture's coding extension, or its absence: the duration is known now.
    fn end_if_done(&mut self, coding: Option<Coding>) {
        let Some(Pending { reference }) = self.pending.take() else { return };
        let mut fields = 2;
        if let Some(Coding { structure, is_top_first, repeats }) = coding {
            if structure == 1 || structure == 2 {
                self.awaited_field = Some(reference);
            } else if repeats {
                // 6.3.10, repeat_first_field.
                fields = match (self.is_progressive, is_top_first) {
                    (false, _) => 3,
                    (true, false) => 4,
                    (true, true) => 6,
                };
            }
        }
        self.coded += Nanos(fields * self.field.0);
    }
}

/// Content of a picture coding extension.
struct Coding {
    /// 1 and 2 are fields, 3 is a frame.
    structure: u8,
    is_top_first: bool,
    repeats: bool,
}

/// Returns the next start code from a position on: `00 00 01` and a byte, which may be missing yet.
fn next_code(bytes: &[u8], offset: usize) -> Option<usize> {
    let mut at = offset;
    while let Some(three) = bytes.get(at..at + 3) {
        match three[2] {
            0 => at += 1,
            1 if three[0] == 0 && three[1] == 0 => return Some(at),
            _ => at += 3,
        }
    }
    None
}
