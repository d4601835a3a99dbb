//! Transport streams: ISO/IEC 13818-1, 2.4.3 and 2.4.4.

use crate::program::{HeaderLength, header_length};

/// Length of a packet in bytes.
const PACKET: usize = 188;
const SYNC: u8 = 0x47;
/// Consecutive packets with a sync byte that identify a transport stream.
const SYNCS: usize = 5;
/// Bytes of the longest section of a table: 2.4.4.
const SECTION_MAX: usize = 1_024;
/// Bytes of the longest header of a PES packet, with its start code and length.
const PES_HEADER_MAX: usize = 9 + 255;
/// PID of the program association table (PAT).
const ASSOCIATION_PID: u16 = 0;
/// Stream types of supported video: ISO/IEC 11172-2, and ISO/IEC 13818-2.
const VIDEO: [u8; 2] = [1, 2];
/// Stream types of video in other codings: ISO/IEC 13818-1, table 2-34, and SMPTE RP 227.
const OTHERS: [(u8, &str); 6] = [
    (0x10, "MPEG-4"),
    (0x1b, "H.264"),
    (0x24, "H.265"),
    (0x33, "H.266"),
    (0x42, "AVS"),
    (0xea, "VC-1"),
];

/// Returns true if a transport stream begins here; `None` if more bytes are needed.
pub(crate) fn is_transport(bytes: &[u8], is_all: bool) -> Option<bool> {
    let offsets = (0..SYNCS).map(|count| count * PACKET);
    let mut seen = 0;
    for offset in offsets {
        match bytes.get(offset) {
            Some(&SYNC) => seen += 1,
            Some(_) => return Some(false),
            None if is_all => return Some(seen > 1 || bytes.len() == PACKET),
            None => return None,
        }
    }
    Some(true)
}

/// Reader of a transport stream; extracts the first video stream of its first program.
#[derive(Debug, Default)]
pub(crate) struct Transport {
    map_pid: Option<u16>,
    video_pid: Option<u16>,
    /// Coding of the video, if the program has only video in other codings.
    other_coding: Option<&'static str>,
    association: Section,
    map: Section,
    /// Continuity counter of the last video packet: a packet that is sent twice counts once.
    counter: Option<u8>,
    header: Pes,
}

/// Parser state of a PES packet.
#[derive(Debug, Default)]
enum Pes {
    /// No packet has begun.
    #[default]
    None,
    /// Part of the header.
    Header(Vec<u8>),
    Payload,
}

impl Transport {
    /// Reads whole packets, and returns the number of bytes.
    pub(crate) fn read(&mut self, bytes: &[u8], video: &mut Vec<u8>) -> usize {
        let mut used = 0;
        while let Some(packet) = bytes.get(used..used + PACKET) {
            if packet[0] != SYNC {
                // Sync is lost: continue at the next possible start of a packet.
                let next = bytes[used + 1..].iter().position(|byte| *byte == SYNC);
                used = next.map_or(bytes.len(), |offset| used + 1 + offset);
                continue;
            }
            self.packet(packet, video);
            used += PACKET;
        }
        used
    }

    fn packet(&mut self, packet: &[u8], video: &mut Vec<u8>) {
        let [_, flags, low, control, ..] = *packet else { return };
        let (is_broken, is_start) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let pid = u16::from_be_bytes([flags & 0x1f, low]);
        let (is_scrambled, has_field) = (control & 0xc0 != 0, control & 0x20 != 0);
        let has_payload = control & 0x10 != 0;
        if is_broken || is_scrambled || !has_payload {
            return;
        }
        let field = if has_field { 1 + usize::from(packet[4]) } else { 0 };
        let Some(payload) = packet.get(4 + field..) else { return };
        if Some(pid) == self.video_pid {
            let counter = control & 0x0f;
            // A packet may be sent twice: 2.4.3.3.
            if self.counter.replace(counter) != Some(counter) {
                self.video(is_start, payload, video);
            }
        } else if pid == ASSOCIATION_PID {
            if let Some(section) = self.association.add(is_start, payload) {
                self.map_pid = self.map_pid.or_else(|| first_program(section));
            }
        } else if Some(pid) == self.map_pid
            && let Some(section) = self.map.add(is_start, payload)
        {
            let kinds = streams(section).unwrap_or_default();
            let first = kinds.iter().find(|(kind, _)| VIDEO.contains(kind));
            self.video_pid = self.video_pid.or(first.map(|(_, pid)| *pid));
            let name = |kind: u8| OTHERS.iter().find(|(other, _)| *other == kind);
            self.other_coding = match self.video_pid {
                Some(_) => None,
                None => kinds.iter().find_map(|(kind, _)| name(*kind)).map(|(_, name)| *name),
            };
        }
    }

    /// Returns the coding of the program's video, if it has video in other codings only.
    pub(crate) const fn other_coding(&self) -> Option<&'static str> {
        self.other_coding
    }

    fn video(&mut self, is_start: bool, payload: &[u8], video: &mut Vec<u8>) {
        if is_start {
            self.header = Pes::Header(Vec::new());
        }
        match &mut self.header {
            Pes::None => {}
            Pes::Payload => video.extend_from_slice(payload),
            Pes::Header(header) => {
                header.extend_from_slice(payload);
                let parsed = match header.as_slice() {
                    [0, 0, 1, 0xe0..=0xef, _, _, body @ ..] => header_length(body),
                    short if short.len() < 6 => HeaderLength::Incomplete,
                    _ => HeaderLength::Broken,
                };
                self.header = match parsed {
                    HeaderLength::Length(length) => {
                        video.extend_from_slice(header.get(6 + length..).unwrap_or_default());
                        Pes::Payload
                    }
                    HeaderLength::Incomplete if header.len() < PES_HEADER_MAX => return,
                    HeaderLength::Incomplete | HeaderLength::Broken => Pes::None,
                };
            }
        }
    }
}

/// Reassembly of a table's section from several packets.
#[derive(Debug, Default)]
struct Section {
    bytes: Vec<u8>,
    has_begun: bool,
}

impl Section {
    /// Adds a packet's payload; returns the section when it is complete.
    fn add(&mut self, is_start: bool, payload: &[u8]) -> Option<&[u8]> {
        let part = if is_start {
            let (pointer, rest) = payload.split_first()?;
            self.bytes.clear();
            self.has_begun = true;
            rest.get(usize::from(*pointer)..)?
        } else {
            payload
        };
        if !self.has_begun {
            return None;
        }
        let space = SECTION_MAX + PACKET - self.bytes.len().min(SECTION_MAX);
        self.bytes.extend_from_slice(&part[..part.len().min(space)]);
        let length = self.bytes.get(1..3)?;
        let length = 3 + (usize::from(length[0] & 0x0f) << 8 | usize::from(length[1]));
        if self.bytes.len() < length {
            self.has_begun = length <= SECTION_MAX;
            return None;
        }
        self.has_begun = false;
        self.bytes.get(..length)
    }
}

/// Bytes of a section's checksum.
const SUM: usize = 4;

/// Returns the PID of the first program's map: 2.4.4.3.
fn first_program(section: &[u8]) -> Option<u16> {
    let programs = section.get(8..section.len().checked_sub(SUM)?)?;
    let pairs = programs.chunks_exact(4).filter(|_| section[0] == 0);
    pairs
        .map(|four| {
            let number = u16::from_be_bytes([four[0], four[1]]);
            (number, u16::from_be_bytes([four[2] & 0x1f, four[3]]))
        })
        .find_map(|(number, pid)| (number != 0).then_some(pid))
}

/// Returns types and PIDs of a program's streams, in order: 2.4.4.8.
fn streams(section: &[u8]) -> Option<Vec<(u8, u16)>> {
    let [2, _, _, _, _, _, _, _, _, _, high, low, ..] = *section else { return None };
    let mut rest = section.get(12..section.len().checked_sub(SUM)?)?;
    rest = rest.get(usize::from(u16::from_be_bytes([high & 0x0f, low]))..)?;
    let mut found = Vec::new();
    while let [kind, high, low, info_high, info_low, tail @ ..] = rest {
        found.push((*kind, u16::from_be_bytes([high & 0x1f, *low])));
        let info = usize::from(u16::from_be_bytes([info_high & 0x0f, *info_low]));
        rest = tail.get(info..).unwrap_or_default();
    }
    Some(found)
}
