//! Packets of an MPEG transport stream: ISO/IEC 13818-1, 2.4.3 (packets, adaptation fields) and
//! 2.4.4 (PAT, PMT).
//!
//! Tracks what a joiner needs before its first packet, the last PAT and PMT, and the packets at
//! which a decoder can begin: those of the video (of the first stream, if there is none) with the
//! random access indicator, or with the start of a unit as long as no packet sets the indicator.

use super::{Entry, Found, Frame};
use std::sync::Arc;
use units::Nanos;

/// Length of a packet in bytes.
pub(super) const PACKET_LENGTH: usize = 188;
const SYNC: u8 = 0x47;
const PAT: u16 = 0;
/// Ticks of a PCR per microsecond: 27 MHz.
const TICKS_PER_MICRO: u64 = 27;
/// Modulus of the PCR: 33 bits of 300 ticks.
const PCR_WRAP: u64 = (1 << 33) * 300;
/// Largest PCR difference that counts as time, in ticks: PCRs come at least every 100 ms (2.7.2); a
/// gap above one second is a jump of the clock.
const PCR_GAP_MAX: u64 = 27_000_000;
/// Types of video streams: table 2-34. MPEG-1, MPEG-2, MPEG-4 part 2, AVC, HEVC, VVC.
const VIDEO: [u8; 6] = [0x01, 0x02, 0x10, 0x1b, 0x24, 0x33];

pub(super) fn read(bytes: &[u8]) -> Found {
    match bytes {
        [] => Found::More,
        [SYNC, ..] => Found::Frame(Frame { length: PACKET_LENGTH, duration: Nanos::ZERO, kind: 0 }),
        _ => Found::Nothing,
    }
}

/// State of a program from its tables and clock.
#[derive(Debug, Default)]
pub(super) struct Program {
    pat: Option<[u8; PACKET_LENGTH]>,
    pmt_pid: Option<u16>,
    pmt: Option<[u8; PACKET_LENGTH]>,
    /// PID of the stream that marks where a decoder can begin.
    entry_pid: Option<u16>,
    clock: Option<(u16, u64)>,
    preface: Option<Arc<[u8]>>,
}

impl Program {
    /// Returns the last PAT and the last PMT, if there are both.
    pub(super) fn preface(&self) -> Option<Arc<[u8]>> {
        self.preface.clone()
    }

    /// Handles a discontinuity: the next PCR gives no duration.
    pub(super) fn discontinuity(&mut self) {
        self.clock = None;
    }

    /// Handles a packet. Returns the time since the last PCR, and the packet's suitability as a
    /// start.
    pub(super) fn on_packet(&mut self, packet: &[u8]) -> (Nanos, Entry) {
        let Ok(packet) = <&[u8; PACKET_LENGTH]>::try_from(packet) else {
            return (Nanos::ZERO, Entry::No);
        };
        let pid = u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]);
        let starts_unit = packet[1] & 0x40 != 0;
        let (adaptation, payload) = parts(packet);
        if pid == PAT && starts_unit {
            self.on_pat(packet, payload);
        } else if Some(pid) == self.pmt_pid && starts_unit {
            self.on_pmt(packet, payload);
        }
        let flags = adaptation.first().copied().unwrap_or(0);
        let duration = pcr(adaptation).map_or(Nanos::ZERO, |pcr| self.elapsed(pid, pcr));
        let entry = match Some(pid) == self.entry_pid {
            true if flags & 0x40 != 0 => Entry::Random,
            true if starts_unit => Entry::Start,
            _ => Entry::No,
        };
        (duration, entry)
    }

    /// Returns the time since the last PCR of the same PID.
    fn elapsed(&mut self, pid: u16, pcr: u64) -> Nanos {
        let (of, last) = *self.clock.get_or_insert((pid, pcr));
        if of != pid {
            return Nanos::ZERO;
        }
        self.clock = Some((pid, pcr));
        let ticks = (pcr + PCR_WRAP - last) % PCR_WRAP;
        if ticks > PCR_GAP_MAX { Nanos::ZERO } else { Nanos(ticks * 1_000 / TICKS_PER_MICRO) }
    }

    fn on_pat(&mut self, packet: &[u8; PACKET_LENGTH], payload: &[u8]) {
        let Some(section) = section(payload, 0x00) else { return };
        // Four bytes per program; program 0 is the network information table.
        let programs = section.get(5..).unwrap_or_default().chunks_exact(4);
        let Some(program) = programs.clone().find(|program| program[..2] != [0, 0]) else { return };
        let pid = u16::from(program[2] & 0x1f) << 8 | u16::from(program[3]);
        if self.pmt_pid != Some(pid) {
            (self.pmt_pid, self.pmt, self.entry_pid) = (Some(pid), None, None);
        }
        self.pat = Some(*packet);
        self.update_preface();
    }

    fn on_pmt(&mut self, packet: &[u8; PACKET_LENGTH], payload: &[u8]) {
        let Some(section) = section(payload, 0x02) else { return };
        let Some(&[high, low]) = section.get(7..9) else { return };
        let info = usize::from(high & 0x0f) << 8 | usize::from(low);
        let mut streams = section.get(9 + info..).unwrap_or_default();
        let (mut lead, mut video) = (None, None);
        while let &[kind, high, low, info_high, info_low, ref rest @ ..] = streams {
            let pid = u16::from(high & 0x1f) << 8 | u16::from(low);
            lead = lead.or(Some(pid));
            if VIDEO.contains(&kind) {
                video = video.or(Some(pid));
            }
            let info = usize::from(info_high & 0x0f) << 8 | usize::from(info_low);
            streams = rest.get(info..).unwrap_or_default();
        }
        self.entry_pid = video.or(lead);
        self.pmt = Some(*packet);
        self.update_preface();
    }

    fn update_preface(&mut self) {
        let (Some(pat), Some(pmt)) = (&self.pat, &self.pmt) else {
            self.preface = None;
            return;
        };
        let is_same = |has: &Arc<[u8]>| has.starts_with(pat) && has.ends_with(pmt);
        if !self.preface.as_ref().is_some_and(is_same) {
            self.preface = Some([pat.as_slice(), pmt.as_slice()].concat().into());
        }
    }
}

/// Returns the adaptation field, from its flags on, and the payload.
fn parts(packet: &[u8; PACKET_LENGTH]) -> (&[u8], &[u8]) {
    let rest = &packet[4..];
    let (adaptation, payload) = if packet[3] & 0x20 == 0 {
        (&[][..], rest)
    } else {
        let length = usize::from(rest[0]).min(rest.len() - 1);
        (&rest[1..=length], &rest[length + 1..])
    };
    (adaptation, if packet[3] & 0x10 == 0 { &[] } else { payload })
}

/// Parses a program clock reference: 33 bits of 90 kHz, 6 reserved, 9 bits of 27 MHz.
fn pcr(adaptation: &[u8]) -> Option<u64> {
    let &[flags, a, b, c, d, e, f, ..] = adaptation else { return None };
    let base = u64::from(u32::from_be_bytes([a, b, c, d])) << 1 | u64::from(e >> 7);
    let extension = u64::from(e & 1) << 8 | u64::from(f);
    (flags & 0x10 != 0).then_some((base * 300 + extension) % PCR_WRAP)
}

/// Returns a section that is complete in this packet and current: the bytes after its length field,
/// without the CRC.
fn section(payload: &[u8], table: u8) -> Option<&[u8]> {
    let (pointer, rest) = payload.split_first()?;
    let rest = rest.get(usize::from(*pointer)..)?;
    let &[id, high, low, ref body @ ..] = rest else { return None };
    let length = usize::from(high & 0x0f) << 8 | usize::from(low);
    let section = body.get(..length)?;
    let is_current = section.get(2)? & 1 == 1;
    (id == table && is_current).then(|| &section[..length.saturating_sub(4)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(
        pid: u16,
        starts_unit: bool,
        adaptation: &[u8],
        payload: &[u8],
    ) -> [u8; PACKET_LENGTH] {
        let mut packet = [0xff; PACKET_LENGTH];
        let start = if starts_unit { 0x40 } else { 0 };
        packet[..3].copy_from_slice(&[SYNC, start | (pid >> 8) as u8, pid as u8]);
        let mut at = 4;
        packet[3] = 0x10;
        if !adaptation.is_empty() {
            packet[3] = 0x30;
            packet[4] = adaptation.len() as u8;
            packet[5..5 + adaptation.len()].copy_from_slice(adaptation);
            at = 5 + adaptation.len();
        }
        packet[at..at + payload.len()].copy_from_slice(payload);
        packet
    }

    /// ISO/IEC 13818-1, table 2-30: program 1 in PID 0x1000, after the network's table.
    const PAT_SECTION: [u8; 21] =
        [0, 0x00, 0xb0, 17, 0, 1, 0xc1, 0, 0, 0, 0, 0xe0, 0x10, 0, 1, 0xf0, 0x00, 1, 2, 3, 4];
    /// Table 2-33: PCR in 0x101; AAC with a descriptor in 0x102, AVC in 0x101.
    const PMT_SECTION: [u8; 29] = [
        0, 0x02, 0xb0, 25, 0, 1, 0xc1, 0, 0, 0xe1, 0x01, 0xf0, 0, 0x0f, 0xe1, 0x02, 0xf0, 2, 9, 9,
        0x1b, 0xe1, 0x01, 0xf0, 0, 1, 2, 3, 4,
    ];

    #[test]
    fn tables_lead_to_the_video_and_are_kept() {
        let (pat, pmt) =
            (packet(0, true, &[], &PAT_SECTION), packet(0x1000, true, &[], &PMT_SECTION));
        let mut program = Program::default();
        program.on_packet(&pmt);
        assert_eq!(program.preface(), None, "nobody has said that it is one");
        program.on_packet(&pat);
        assert_eq!((program.preface(), program.pmt_pid), (None, Some(0x1000)));
        program.on_packet(&pmt);
        assert_eq!(program.entry_pid, Some(0x101));
        assert_eq!(program.preface().as_deref(), Some([pat, pmt].concat().as_slice()));
        assert_eq!(program.on_packet(&packet(0x101, false, &[], &[])).1, Entry::No);
        assert_eq!(program.on_packet(&packet(0x101, true, &[], &[])).1, Entry::Start);
        assert_eq!(program.on_packet(&packet(0x101, true, &[0x40], &[])).1, Entry::Random);
        assert_eq!(program.on_packet(&packet(0x102, true, &[0x40], &[])).1, Entry::No);
    }

    #[test]
    fn a_table_that_is_cut_or_not_yet_current_is_not_read() {
        let mut program = Program::default();
        let mut next = PAT_SECTION;
        next[6] = 0xc0;
        program.on_packet(&packet(0, true, &[], &next));
        let mut long = PAT_SECTION;
        long[3] = 255;
        program.on_packet(&packet(0, true, &[], &long));
        assert_eq!(program.pmt_pid, None);
    }

    #[test]
    fn clocks_tell_the_time_also_when_they_wrap() {
        let at = |ticks: u64| {
            let (base, extension) = (ticks / 300, ticks % 300);
            let [.., a, b, c, d] = (base >> 1).to_be_bytes();
            let e = ((base & 1) << 7) as u8 | 0x7e | (extension >> 8) as u8;
            packet(0x101, false, &[0x10, a, b, c, d, e, extension as u8], &[])
        };
        let mut program = Program::default();
        assert_eq!(program.on_packet(&at(PCR_WRAP - 27_000)).0, Nanos::ZERO);
        assert_eq!(program.on_packet(&at(27_000 * 39)).0, Nanos::from_millis(40));
        assert_eq!(program.on_packet(&at(27_000 * 5_000)).0, Nanos::ZERO, "a jump is no time");
        assert_eq!(program.on_packet(&at(27_000 * 5_010 + 270)).0, Nanos(10_010_000));
    }
}
