//! Finds the I pictures of an elementary stream, and when they are shown: ISO/IEC 13818-2, 6.2.
//!
//! ```text
//!  B3 sequence header, B5 extensions ─ B8 group ─ 00 picture ─ B5 coding ─ 01..AF slices ─ …
//!  └─ a cut begins with the first of these in front of an I picture
//! ```

use crate::limits::SEQUENCE_LENGTH_MAX;
use units::Nanos;

/// A place at which a codec can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the stream before it.
    pub at: u64,
    /// True with a sequence header; else [`Feed::headers`](crate::feed::Feed::headers) go before it.
    pub has_headers: bool,
    /// Presentation time of its first picture.
    pub time: Nanos,
}

/// Bytes behind a start code that are read of what it begins.
const READ: usize = 8;
/// Bytes of a start code.
const CODE: usize = 4;

const PICTURE: u8 = 0x00;
const USER_DATA: u8 = 0xb2;
const SEQUENCE: u8 = 0xb3;
const EXTENSION: u8 = 0xb5;
const SEQUENCE_END: u8 = 0xb7;
const GROUP: u8 = 0xb8;

/// Table 6-4: how long a picture is shown, by `frame_rate_code`, as numerator and denominator of
/// the rate.
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

/// A picture whose coding extension has not come yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    reference: u64,
}

/// Reads an elementary stream as it comes.
#[derive(Debug)]
pub struct Scanner {
    /// Everything before has been read.
    at: u64,
    /// Half the time that a frame is shown: a field's.
    field: Nanos,
    is_progressive: bool,
    /// Where the headers began that belong to the next picture, and whether a sequence header is
    /// among them.
    begun: Option<(u64, bool)>,
    /// Where a sequence header began that is not over.
    sequence: Option<u64>,
    headers: Vec<u8>,
    /// When the pictures are shown that come next, if none is reordered.
    coded: Nanos,
    /// The same when the group began from which temporal references count.
    base: Nanos,
    /// Pictures of it.
    count: u64,
    /// A picture that may yet be a field, or one whose other field is to come.
    pending: Option<Pending>,
    waits_for_field: Option<u64>,
}

impl Default for Scanner {
    fn default() -> Self {
        Self {
            at: 0,
            field: half(0),
            is_progressive: true,
            begun: None,
            sequence: None,
            headers: Vec::new(),
            coded: Nanos::ZERO,
            base: Nanos::ZERO,
            count: 0,
            pending: None,
            waits_for_field: None,
        }
    }
}

/// Of a frame's time, by its rate's code.
fn half(code: usize) -> Nanos {
    let (pictures, seconds) = RATES.get(code).copied().unwrap_or(RATES[0]);
    Nanos(seconds * 1_000_000_000 / pictures / 2)
}

impl Scanner {
    /// The last sequence header, with its extensions.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        &self.headers
    }

    /// Reads on in a stream of which these bytes lie `from` its beginning on, and tells of each
    /// place at which a codec could begin. All that has not been read has to be there.
    pub fn read(&mut self, from: u64, bytes: &[u8], mut found: impl FnMut(Cut)) {
        let Some(mut place) = usize::try_from(self.at.saturating_sub(from)).ok() else { return };
        loop {
            let Some(next) = next_code(bytes, place) else {
                // A start code may begin in the last two bytes.
                place = place.max(bytes.len().saturating_sub(2));
                break;
            };
            let Some(code) = bytes.get(next..next + CODE + READ) else {
                place = next;
                break;
            };
            place = next + CODE;
            let at = from + next as u64;
            if let Some(begun) = self.sequence
                && matches!(code[3], GROUP | PICTURE | SEQUENCE | SEQUENCE_END)
            {
                self.keep_headers(from, bytes, begun, next);
            }
            if let Some(cut) = self.handle(at, code[3], &code[CODE..]) {
                found(cut);
            }
        }
        self.at = from + place as u64;
    }

    fn keep_headers(&mut self, from: u64, bytes: &[u8], begun: u64, until: usize) {
        self.sequence = None;
        let begin = usize::try_from(begun.saturating_sub(from)).ok();
        let headers = begin.and_then(|begin| bytes.get(begin..until));
        if let Some(headers) = headers.filter(|it| it.len() <= SEQUENCE_LENGTH_MAX) {
            self.headers.clear();
            self.headers.extend_from_slice(headers);
        }
    }

    /// Where what is being read of headers begins: it has to stay.
    #[must_use]
    pub fn needs(&self) -> u64 {
        let begun = self.begun.map(|(at, _)| at);
        [Some(self.at), begun, self.sequence].into_iter().flatten().min().unwrap_or(self.at)
    }

    /// Gives up what is being read of headers, as it is too long to be any.
    pub fn forget(&mut self) {
        (self.begun, self.sequence) = (None, None);
    }

    fn handle(&mut self, at: u64, code: u8, bytes: &[u8]) -> Option<Cut> {
        if code != EXTENSION && code != USER_DATA {
            self.settle(None);
        }
        match code {
            SEQUENCE => {
                self.begun = Some((self.begun.map_or(at, |(begun, _)| begun), true));
                self.sequence = Some(at);
                self.field = half(usize::from(bytes[3] & 0x0f));
                // MPEG-1 until an extension says otherwise.
                self.is_progressive = true;
            }
            GROUP => {
                self.begun.get_or_insert((at, false));
                (self.base, self.count) = (self.coded, 0);
            }
            EXTENSION => self.extension(bytes),
            PICTURE => return self.picture(at, bytes),
            SEQUENCE_END => (self.begun, self.sequence) = (None, None),
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
                self.settle(Some(Coding { structure, is_top_first, repeats }));
            }
            _ => {}
        }
    }

    fn picture(&mut self, at: u64, bytes: &[u8]) -> Option<Cut> {
        let reference = u64::from(bytes[0]) << 2 | u64::from(bytes[1] >> 6);
        let is_intra = bytes[1] >> 3 & 7 == 1;
        let begun = self.begun.take();
        if self.waits_for_field.take() == Some(reference) {
            // The other field of the frame before.
            return None;
        }
        // References count anew in each group, else they wrap round.
        let around = self.count.saturating_sub(512);
        let shown = around + (reference + 1024 - around % 1024) % 1024;
        self.pending = Some(Pending { reference });
        let time = self.base + Nanos(shown.saturating_mul(2 * self.field.0));
        self.count += 1;
        let has_headers = begun.is_some_and(|(_, has)| has);
        if !is_intra || (self.headers.is_empty() && !has_headers) {
            return None;
        }
        let at = begun.map_or(at, |(begun, _)| begun);
        Some(Cut { at, has_headers, time })
    }

    /// A picture's extension has come, or it has none: how long it is shown is known.
    fn settle(&mut self, coding: Option<Coding>) {
        let Some(Pending { reference }) = self.pending.take() else { return };
        let mut fields = 2;
        if let Some(Coding { structure, is_top_first, repeats }) = coding {
            if structure == 1 || structure == 2 {
                self.waits_for_field = Some(reference);
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

/// What a picture's coding extension says.
struct Coding {
    /// 1 and 2 are fields, 3 is a frame.
    structure: u8,
    is_top_first: bool,
    repeats: bool,
}

/// The next start code from a place on: `00 00 01` and a byte, which need not have come.
fn next_code(bytes: &[u8], place: usize) -> Option<usize> {
    let mut at = place;
    while let Some(three) = bytes.get(at..at + 3) {
        match three[2] {
            0 => at += 1,
            1 if three[0] == 0 && three[1] == 0 => return Some(at),
            _ => at += 3,
        }
    }
    None
}
