//! Segmentation of long TCP and UDP packets that their sender left to a device to segment.
//!
//! ```text
//! │ Ethernet, IP, L4 │ payload ……………………………………………………………… │
//!        │               │ size        │ size        │ rest │
//!        ▼               ▼
//! │ headers, each with its own lengths, identification, sequence number, flags and sums │
//! ```
//!
//! The result is that of Linux (`tcp_gso_segment`, `__udp_gso_segment`).

use crate::checksum::{Sum, checksum};
use crate::parse::{Fragment, Parsed, parse_frame};
use crate::protocol::{
    IPV4_LENGTH, IPV6_LENGTH, TCP, TCP_FIN, TCP_PSH, UDP, has_l4_ports, l4_header_length,
};

/// CWR flag, set in the first segment only (RFC 3168 section 6.1.2).
const TCP_CWR: u8 = 0x80;
/// Offsets of sequence number, flags and checksum in a TCP header (RFC 9293 section 3.1).
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const TCP_SUM: usize = 16;
/// Offsets of length and checksum in a UDP header (RFC 768).
const UDP_LENGTH: usize = 4;
const UDP_SUM: usize = 6;

/// Segments of a long packet, one after the other.
#[derive(Debug)]
pub struct Segments<'a> {
    parsed: Parsed,
    headers: &'a [u8],
    payload: &'a [u8],
    l4: usize,
    size: usize,
    next: usize,
    index: u16,
}

impl<'a> Segments<'a> {
    /// Starts the segmentation of a frame with `size` bytes of payload in each segment. Returns
    /// `None` when the packet is neither TCP nor UDP, is a fragment, or has inconsistent headers.
    #[must_use]
    pub fn of(frame: &'a [u8], size: u16) -> Option<Self> {
        let parsed = parse_frame(frame).ok().filter(|parsed| parsed.fragment == Fragment::None)?;
        let l4 = usize::from(parsed.l4_offset?);
        let length = match parsed.protocol {
            TCP => usize::from(frame.get(l4 + 12)? >> 4) * 4,
            UDP => l4_header_length(UDP)?,
            _ => return None,
        };
        debug_assert!(has_l4_ports(parsed.protocol), "both have");
        let (headers, payload) = frame.get(..parsed.ip_end())?.split_at_checked(l4 + length)?;
        let is_whole = length >= l4_header_length(parsed.protocol)?;
        let size = usize::from(size);
        (is_whole && size > 0).then_some(Self {
            parsed,
            headers,
            payload,
            l4,
            size,
            next: 0,
            index: 0,
        })
    }

    /// Replaces the contents of `into` by the next segment; returns false when there is none.
    pub fn next_into(&mut self, into: &mut Vec<u8>) -> bool {
        if self.next >= self.payload.len() && self.index > 0 {
            return false;
        }
        let end = (self.next + self.size).min(self.payload.len());
        let payload = &self.payload[self.next..end];
        into.clear();
        into.extend_from_slice(self.headers);
        into.extend_from_slice(payload);
        self.write_ip(into);
        match self.parsed.protocol {
            TCP => self.write_tcp(into, end == self.payload.len()),
            _ => self.write_udp(into),
        }
        self.next = end;
        self.index = self.index.wrapping_add(1);
        true
    }

    fn write_ip(&self, into: &mut [u8]) {
        let l3 = usize::from(self.parsed.l3_offset);
        let length = (into.len() - l3) as u16;
        if self.parsed.ip_version == 6 {
            let length = length - IPV6_LENGTH as u16;
            into[l3 + 4..l3 + 6].copy_from_slice(&length.to_be_bytes());
            return;
        }
        let header = &mut into[l3..self.l4];
        header[2..4].copy_from_slice(&length.to_be_bytes());
        let id = u16::from_be_bytes([header[4], header[5]]).wrapping_add(self.index);
        header[4..6].copy_from_slice(&id.to_be_bytes());
        header[10..12].fill(0);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        debug_assert!(header.len() >= IPV4_LENGTH, "the parser saw it");
    }

    fn write_tcp(&self, into: &mut [u8], is_last: bool) {
        let header = &mut into[self.l4..];
        let at = TCP_SEQUENCE;
        let sequence =
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let sequence = sequence.wrapping_add(self.next as u32);
        header[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            header[TCP_FLAGS] &= !(TCP_FIN | TCP_PSH);
        }
        if self.index > 0 {
            header[TCP_FLAGS] &= !TCP_CWR;
        }
        self.write_sum(into, TCP_SUM);
    }

    fn write_udp(&self, into: &mut [u8]) {
        let length = (into.len() - self.l4) as u16;
        let at = self.l4 + UDP_LENGTH;
        into[at..at + 2].copy_from_slice(&length.to_be_bytes());
        self.write_sum(into, UDP_SUM);
    }

    /// Writes the checksum of the L4 part; of UDP never 0, which would mean that there is none.
    fn write_sum(&self, into: &mut [u8], at: usize) {
        let at = self.l4 + at;
        into[at..at + 2].fill(0);
        let part = &into[self.l4..];
        let protocol = self.parsed.protocol;
        let pseudo = if self.parsed.ip_version == 6 {
            let length = part.len() as u32;
            Sum::pseudo_header_v6(self.parsed.source, self.parsed.destination, protocol, length)
        } else {
            let four = |address: [u8; 16]| [address[0], address[1], address[2], address[3]];
            let (source, destination) = (four(self.parsed.source), four(self.parsed.destination));
            Sum::pseudo_header_v4(source, destination, protocol, part.len() as u16)
        };
        let sum = match pseudo.with(part).checksum() {
            0 if protocol == UDP => u16::MAX,
            sum => sum,
        };
        into[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameBuilder;
    use crate::checksum::{L4Checksum, l4_checksum};

    fn cut(frame: &[u8], size: u16) -> Vec<(Parsed, Vec<u8>)> {
        let mut segments = Segments::of(frame, size).unwrap();
        let (mut into, mut all) = (Vec::new(), Vec::new());
        while segments.next_into(&mut into) {
            let parsed = parse_frame(&into).unwrap();
            assert_eq!(l4_checksum(&into, &parsed), L4Checksum::Right);
            all.push((parsed, into.clone()));
        }
        all
    }

    #[test]
    fn tcp_is_cut_with_its_numbers_and_flags() {
        let payload: Vec<u8> = (0..=255).cycle().take(2500).collect();
        let long = FrameBuilder::new().vlan(7).ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64);
        let long = long.tcp(1000, 80, 0).payload(&payload).build();
        let l4 = 14 + 4 + 20;
        let mut long = long;
        long[l4 + TCP_FLAGS] = TCP_FIN | TCP_PSH | TCP_CWR | 0x10;
        let pieces = cut(&long, 1000);
        let expected = [(0, 1000, TCP_CWR | 0x10), (1000, 1000, 0x10), (2000, 500, 0x19)];
        let first = u32::from_be_bytes(long[l4 + 4..l4 + 8].try_into().unwrap());
        let id = u16::from_be_bytes([long[22], long[23]]);
        assert_eq!(pieces.len(), expected.len());
        for (index, ((parsed, piece), (at, length, flags))) in
            pieces.iter().zip(expected).enumerate()
        {
            let sequence = u32::from_be_bytes(piece[l4 + 4..l4 + 8].try_into().unwrap());
            assert_eq!(sequence.wrapping_sub(first), at as u32);
            assert_eq!(parsed.tcp_flags, flags);
            assert_eq!(piece[l4 + 20..], payload[at..at + length]);
            assert_eq!(u16::from_be_bytes([piece[22], piece[23]]), id.wrapping_add(index as u16));
        }
    }

    #[test]
    fn udp_over_ipv6_is_cut_and_what_fits_is_one() {
        let long = FrameBuilder::new().ipv6([1; 16], [2; 16], 64).udp(1, 2).payload(&[9; 300]);
        let long = long.build();
        let lengths: Vec<u32> = cut(&long, 128).iter().map(|(p, _)| p.ip_length - 48).collect();
        assert_eq!(lengths, [128, 128, 44]);
        assert_eq!(cut(&long, 1400), [(parse_frame(&long).unwrap(), long.clone())]);
    }

    #[test]
    fn what_cannot_be_cut_is_not() {
        let ping = FrameBuilder::new().ipv4([1; 4], [2; 4], 64).payload(&[0; 64]).build();
        assert!(Segments::of(&ping, 100).is_none());
        let udp = FrameBuilder::new().ipv4([1; 4], [2; 4], 64).udp(1, 2).payload(&[0; 64]).build();
        assert!(Segments::of(&udp, 0).is_none());
        assert!(Segments::of(&udp[..40], 100).is_none());
    }
}
