//! Frame builder for tests and tools, with correct lengths and checksums.
//!
//! Builds malformed frames on request (ten tags, a chain of nine extension headers, TTL 0), and
//! [`FrameBuilder::patch`] breaks correct ones. Not for the data plane: it allocates.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::checksum::{Sum, checksum};
use crate::parse::VlanTag;
use crate::protocol::{self as p, ETHERNET_LENGTH, IPV4_LENGTH};

/// Source MAC address of a frame without [`FrameBuilder::ethernet`]: locally administered (IEEE
/// 802).
pub const DEFAULT_SOURCE_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// Destination MAC address of a frame without [`FrameBuilder::ethernet`].
pub const DEFAULT_DESTINATION_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// Builder of one frame.
///
/// The order of calls matters only among VLAN tags, IPv6 extension headers and
/// patches; of two IP headers or two L4 headers the later one counts. A length
/// that its field cannot hold is written as 65,535.
///
/// ```
/// use wire::{FrameBuilder, parse_frame};
///
/// let frame = FrameBuilder::new()
///     .ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
///     .vlan(100)
///     .ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64)
///     .udp(4000, 53)
///     .payload(b"hello")
///     .build();
/// assert_eq!(parse_frame(&frame).unwrap().destination_port, 53);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBuilder {
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    tags: Vec<VlanTag>,
    ethertype: Option<u16>,
    ip: Option<Ip>,
    dscp: u8,
    ecn: u8,
    identification: u32,
    fragment: Option<FragmentField>,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    l4: Option<L4>,
    payload: Vec<u8>,
    length_min: usize,
    patches: Vec<(usize, Vec<u8>)>,
}

/// IP header of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ip {
    V4 { source: Ipv4Addr, destination: Ipv4Addr, ttl: u8 },
    V6 { source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8 },
}

/// L4 header of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum L4 {
    /// No L4 header, only a protocol number.
    Bare(u8),
    Udp {
        source: u16,
        destination: u16,
    },
    Tcp {
        source: u16,
        destination: u16,
        flags: u8,
        sequence: u32,
        acknowledgment: u32,
    },
    Echo {
        reply: bool,
        id: u16,
        sequence: u16,
    },
}

/// Fragment field, with the number of extension headers in front of its IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FragmentField {
    /// Offset in units of 8 bytes.
    offset: u16,
    more: bool,
    extensions_before: usize,
}

impl Default for FrameBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameBuilder {
    /// Starts with an empty Ethernet II frame.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            source_mac: DEFAULT_SOURCE_MAC,
            destination_mac: DEFAULT_DESTINATION_MAC,
            tags: Vec::new(),
            ethertype: None,
            ip: None,
            dscp: 0,
            ecn: 0,
            identification: 0,
            fragment: None,
            options: Vec::new(),
            extensions: Vec::new(),
            l4: None,
            payload: Vec::new(),
            length_min: 0,
            patches: Vec::new(),
        }
    }

    /// Sets the MAC addresses.
    #[must_use]
    pub const fn ethernet(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        self.source_mac = source;
        self.destination_mac = destination;
        self
    }

    /// Appends a customer tag (0x8100); `id` has 12 bits.
    #[must_use]
    pub fn vlan(self, id: u16) -> Self {
        self.vlan_tag(VlanTag { protocol: p::ETHERTYPE_VLAN, id, ..VlanTag::default() })
    }

    /// Appends a tag.
    #[must_use]
    pub fn vlan_tag(mut self, tag: VlanTag) -> Self {
        self.tags.push(tag);
        self
    }

    /// Sets the innermost ethertype, which otherwise is that of the IP header (0xffff without one).
    #[must_use]
    pub const fn ethertype(mut self, ethertype: u16) -> Self {
        self.ethertype = Some(ethertype);
        self
    }

    /// Sets an IPv4 header.
    #[must_use]
    pub fn ipv4(
        mut self,
        source: impl Into<Ipv4Addr>,
        destination: impl Into<Ipv4Addr>,
        ttl: u8,
    ) -> Self {
        self.ip = Some(Ip::V4 { source: source.into(), destination: destination.into(), ttl });
        self
    }

    /// Sets an IPv6 header.
    #[must_use]
    pub fn ipv6(
        mut self,
        source: impl Into<Ipv6Addr>,
        destination: impl Into<Ipv6Addr>,
        hop_limit: u8,
    ) -> Self {
        let (source, destination) = (source.into(), destination.into());
        self.ip = Some(Ip::V6 { source, destination, hop_limit });
        self
    }

    /// Sets the DSCP, 6 bits; higher ones are cut off.
    #[must_use]
    pub const fn dscp(mut self, dscp: u8) -> Self {
        self.dscp = dscp & 0x3f;
        self
    }

    /// Sets the ECN field, 2 bits; higher ones are cut off.
    #[must_use]
    pub const fn ecn(mut self, ecn: u8) -> Self {
        self.ecn = ecn & 0x03;
        self
    }

    /// Sets the identification; IPv4 keeps the lower 16 bits, IPv6 has it in fragments only.
    #[must_use]
    pub const fn identification(mut self, identification: u32) -> Self {
        self.identification = identification;
        self
    }

    /// Makes the packet a fragment that begins `offset` bytes into its datagram, a multiple of 8
    /// below 65,536. A fragment with an offset gets no L4 header. In IPv6 the fragment header
    /// stands after the extension headers added so far.
    ///
    /// The L4 checksum covers this fragment's payload only; [`Self::build_fragments`] makes
    /// fragments that belong together.
    #[must_use]
    pub const fn fragment(mut self, offset: u16, more: bool) -> Self {
        let extensions_before = self.extensions.len();
        self.fragment = Some(FragmentField { offset: offset / 8, more, extensions_before });
        self
    }

    /// Sets IPv4 options, padded with zeroes to a multiple of 4; at most 40 bytes are kept.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options[..options.len().min(40)].to_vec();
        self.options.resize(self.options.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an IPv6 extension header of the given kind. `body` follows its next-header and
    /// length bytes; it is padded with zeroes to a multiple of 8, and at most 2,046 bytes (1,022 of
    /// an Authentication Header) are kept.
    #[must_use]
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        let body_length_max = if kind == p::AUTHENTICATION { 1022 } else { 2046 };
        let mut body = body[..body.len().min(body_length_max)].to_vec();
        body.resize((body.len() + 2).next_multiple_of(8) - 2, 0);
        self.extensions.push((kind, body));
        self
    }

    /// Sets a UDP header.
    #[must_use]
    pub const fn udp(mut self, source: u16, destination: u16) -> Self {
        self.l4 = Some(L4::Udp { source, destination });
        self
    }

    /// Sets a TCP header without options; `flags` as in [`crate::protocol`].
    #[must_use]
    pub const fn tcp(self, source: u16, destination: u16, flags: u8) -> Self {
        self.tcp_segment(source, destination, flags, 0, 0)
    }

    /// Sets a TCP header with sequence and acknowledgment numbers.
    #[must_use]
    pub const fn tcp_segment(
        mut self,
        source: u16,
        destination: u16,
        flags: u8,
        sequence: u32,
        acknowledgment: u32,
    ) -> Self {
        self.l4 = Some(L4::Tcp { source, destination, flags, sequence, acknowledgment });
        self
    }

    /// Sets an ICMP or, in IPv6, ICMPv6 echo request.
    #[must_use]
    pub const fn icmp_echo(mut self, id: u16, sequence: u16) -> Self {
        self.l4 = Some(L4::Echo { reply: false, id, sequence });
        self
    }

    /// Sets the reply to [`Self::icmp_echo`].
    #[must_use]
    pub const fn icmp_echo_reply(mut self, id: u16, sequence: u16) -> Self {
        self.l4 = Some(L4::Echo { reply: true, id, sequence });
        self
    }

    /// Sets another protocol, without an L4 header: the payload follows the IP header.
    #[must_use]
    pub const fn protocol(mut self, protocol: u8) -> Self {
        self.l4 = Some(L4::Bare(protocol));
        self
    }

    /// Sets the payload after the last header.
    #[must_use]
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Pads with zeroes after the IP packet up to `length` bytes of frame; 60 is the shortest frame
    /// on a wire.
    #[must_use]
    pub const fn pad_to(mut self, length: usize) -> Self {
        self.length_min = length;
        self
    }

    /// Overwrites bytes at `offset` of the finished frame, without updating checksums; bytes beyond
    /// its end are ignored.
    #[must_use]
    pub fn patch(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.patches.push((offset, bytes.to_vec()));
        self
    }

    /// Returns the frame.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let later = self.fragment.is_some_and(|field| field.offset != 0);
        let l4 = if later { self.payload.clone() } else { self.l4_bytes() };
        self.frame(&l4, self.fragment)
    }

    /// Returns the datagram as fragments whose L4 bytes are at most `length_max` each (rounded down
    /// to a multiple of 8, at least 8); one that fits stays whole.
    #[must_use]
    pub fn build_fragments(&self, length_max: usize) -> Vec<Vec<u8>> {
        let l4 = self.l4_bytes();
        let step = (length_max / 8 * 8).max(8);
        if l4.len() <= step {
            return vec![self.frame(&l4, None)];
        }
        let pieces = l4.chunks(step).enumerate();
        let extensions_before =
            self.fragment.map_or(self.extensions.len(), |field| field.extensions_before);
        pieces
            .map(|(index, piece)| {
                let offset = index * step;
                let more = offset + piece.len() < l4.len();
                let offset = (offset / 8).min(0x1fff) as u16;
                self.frame(piece, Some(FragmentField { offset, more, extensions_before }))
            })
            .collect()
    }

    /// Returns a frame around the bytes `l4`.
    fn frame(&self, l4: &[u8], fragment: Option<FragmentField>) -> Vec<u8> {
        let mut frame = self.ethernet_bytes();
        match self.ip {
            None => frame.extend_from_slice(l4),
            Some(Ip::V4 { source, destination, ttl }) => {
                frame.extend(self.ipv4_header(source, destination, ttl, l4.len(), fragment));
                frame.extend_from_slice(l4);
            }
            Some(Ip::V6 { source, destination, hop_limit }) => {
                let (first, extensions) = self.extension_bytes(fragment);
                let [high, low] = length_field(extensions.len() + l4.len());
                let class = (self.dscp << 2) | self.ecn;
                frame.extend([0x60 | (class >> 4), class << 4, 0, 0, high, low, first, hop_limit]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                frame.extend(extensions);
                frame.extend_from_slice(l4);
            }
        }
        frame.resize(frame.len().max(self.length_min), 0);
        for (offset, bytes) in &self.patches {
            for (place, byte) in frame.iter_mut().skip(*offset).zip(bytes) {
                *place = *byte;
            }
        }
        frame
    }

    /// Returns MAC addresses, tags and ethertype.
    fn ethernet_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ETHERNET_LENGTH + self.payload.len());
        out.extend(self.destination_mac);
        out.extend(self.source_mac);
        for tag in &self.tags {
            let control = (u16::from(tag.priority & 0x07) << 13)
                | (u16::from(tag.drop_eligible) << 12)
                | (tag.id & 0x0fff);
            out.extend(tag.protocol.to_be_bytes());
            out.extend(control.to_be_bytes());
        }
        let of_ip = match self.ip {
            Some(Ip::V4 { .. }) => p::ETHERTYPE_IPV4,
            Some(Ip::V6 { .. }) => p::ETHERTYPE_IPV6,
            None => 0xffff,
        };
        out.extend(self.ethertype.unwrap_or(of_ip).to_be_bytes());
        out
    }

    /// Returns an IPv4 header in front of `l4_length` bytes (RFC 791 section 3.1).
    fn ipv4_header(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        ttl: u8,
        l4_length: usize,
        fragment: Option<FragmentField>,
    ) -> Vec<u8> {
        let header_length = IPV4_LENGTH + self.options.len();
        let field = fragment.map_or(0, |f| (f.offset & 0x1fff) | (u16::from(f.more) << 13));
        let mut header = vec![0x40 | (header_length / 4) as u8, (self.dscp << 2) | self.ecn];
        header.extend(length_field(header_length + l4_length));
        header.extend((self.identification as u16).to_be_bytes());
        header.extend(field.to_be_bytes());
        header.extend([ttl, self.protocol_number(), 0, 0]);
        header.extend(source.octets());
        header.extend(destination.octets());
        header.extend_from_slice(&self.options);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    /// Returns the first next-header value and the extension headers (RFC 8200 section 4).
    fn extension_bytes(&self, fragment: Option<FragmentField>) -> (u8, Vec<u8>) {
        let mut chain = self.extensions.clone();
        if let Some(field) = fragment {
            let mut body = ((field.offset << 3) | u16::from(field.more)).to_be_bytes().to_vec();
            body.extend(self.identification.to_be_bytes());
            chain.insert(field.extensions_before.min(chain.len()), (p::FRAGMENT, body));
        }
        let mut out = Vec::new();
        for (index, (kind, body)) in chain.iter().enumerate() {
            let next = chain.get(index + 1).map_or(self.protocol_number(), |(kind, _)| *kind);
            let length = body.len() + 2;
            let field = match *kind {
                p::FRAGMENT => 0,
                p::AUTHENTICATION => length / 4 - 2,
                _ => length / 8 - 1,
            };
            out.extend([next, field as u8]);
            out.extend_from_slice(body);
        }
        (chain.first().map_or(self.protocol_number(), |(kind, _)| *kind), out)
    }

    /// Returns the protocol number above IP, as the IP header has it; 59 when there is none.
    const fn protocol_number(&self) -> u8 {
        match (self.l4, self.ip) {
            (None, _) => p::NO_NEXT_HEADER,
            (Some(L4::Bare(protocol)), _) => protocol,
            (Some(L4::Udp { .. }), _) => p::UDP,
            (Some(L4::Tcp { .. }), _) => p::TCP,
            (Some(L4::Echo { .. }), Some(Ip::V6 { .. })) => p::ICMPV6,
            (Some(L4::Echo { .. }), _) => p::ICMP,
        }
    }

    /// Returns L4 header and payload, with the checksum.
    fn l4_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let checksum_at = match self.l4 {
            None | Some(L4::Bare(_)) => None,
            Some(L4::Udp { source, destination }) => {
                out.extend(source.to_be_bytes());
                out.extend(destination.to_be_bytes());
                out.extend(length_field(8 + self.payload.len()));
                out.extend([0, 0]);
                Some(6)
            }
            Some(L4::Tcp { source, destination, flags, sequence, acknowledgment }) => {
                out.extend(source.to_be_bytes());
                out.extend(destination.to_be_bytes());
                out.extend(sequence.to_be_bytes());
                out.extend(acknowledgment.to_be_bytes());
                // Data offset 5 words, a full window, no urgent data.
                out.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
                Some(16)
            }
            Some(L4::Echo { reply, id, sequence }) => {
                let kind = match (self.ip, reply) {
                    (Some(Ip::V6 { .. }), false) => 128,
                    (Some(Ip::V6 { .. }), true) => 129,
                    (_, false) => 8,
                    (_, true) => 0,
                };
                out.extend([kind, 0, 0, 0]);
                out.extend(id.to_be_bytes());
                out.extend(sequence.to_be_bytes());
                Some(2)
            }
        };
        out.extend_from_slice(&self.payload);
        if let Some(at) = checksum_at {
            let mut sum = self.pseudo_header(out.len()).with(&out).checksum();
            if sum == 0 && matches!(self.l4, Some(L4::Udp { .. })) {
                sum = 0xffff; // RFC 768: zero says that there is no checksum.
            }
            out[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        out
    }

    /// Returns the pseudo-header for `length` bytes of L4; ICMP over IPv4 has none.
    fn pseudo_header(&self, length: usize) -> Sum {
        let protocol = self.protocol_number();
        match self.ip {
            Some(Ip::V4 { source, destination, .. }) if protocol != p::ICMP => {
                let length = u16::from_be_bytes(length_field(length));
                Sum::pseudo_header_v4(source.octets(), destination.octets(), protocol, length)
            }
            Some(Ip::V6 { source, destination, .. }) => {
                let length = u32::try_from(length).unwrap_or(u32::MAX);
                Sum::pseudo_header_v6(source.octets(), destination.octets(), protocol, length)
            }
            _ => Sum::default(),
        }
    }
}

/// Returns a 16-bit length field, saturating.
fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{L4Checksum, l4_checksum};
    use crate::parse::{Fragment, parse_frame};
    use crate::protocol::{ETHERNET_LENGTH, IPV6_LENGTH};

    #[test]
    fn every_kind_of_packet_has_right_checksums_and_lengths() {
        let ips: [fn(FrameBuilder) -> FrameBuilder; 2] =
            [|b| b.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64), |b| b.ipv6([1; 16], [2; 16], 64)];
        let l4s: [fn(FrameBuilder) -> FrameBuilder; 4] = [
            |b| b.udp(5, 6),
            |b| b.tcp(5, 6, p::TCP_SYN),
            |b| b.icmp_echo(5, 6),
            |b| b.icmp_echo_reply(5, 6),
        ];
        for ip in ips {
            for l4 in l4s {
                for length in [0, 1, 2, 1459] {
                    let frame = l4(ip(FrameBuilder::new())).payload(&vec![0xa5; length]).build();
                    let parsed = parse_frame(&frame).unwrap();
                    assert_eq!(parsed.ip_end(), frame.len());
                    assert_eq!(l4_checksum(&frame, &parsed), L4Checksum::Right, "{parsed:?}");
                }
            }
        }
    }

    #[test]
    fn a_udp_checksum_that_comes_out_as_zero_is_sent_as_ones() {
        // The payload is the checksum of the same datagram with payload 0: the sum becomes -0.
        let start = FrameBuilder::new().ipv4([1; 4], [2; 4], 9).udp(1, 2);
        let without = start.clone().payload(&[0, 0]).build();
        let frame = start.payload(&without[40..42]).build();
        assert_eq!(frame[40..42], [0xff, 0xff]);
        assert_eq!(l4_checksum(&frame, &parse_frame(&frame).unwrap()), L4Checksum::Right);
    }

    #[test]
    fn fragments_put_together_are_the_datagram() {
        let payload: Vec<u8> = (0..100).collect();
        let whole = FrameBuilder::new().ipv6([1; 16], [2; 16], 9).udp(1, 2).payload(&payload);
        let fragments = whole.clone().identification(7).build_fragments(48);
        let mut together = Vec::new();
        for (index, frame) in fragments.iter().enumerate() {
            let parsed = parse_frame(frame).unwrap();
            let kind = if index == 0 { Fragment::First } else { Fragment::Later };
            assert_eq!((parsed.fragment, parsed.fragment_id), (kind, 7));
            together.extend_from_slice(&frame[ETHERNET_LENGTH + IPV6_LENGTH + 8..]);
        }
        assert_eq!(together, whole.build()[ETHERNET_LENGTH + IPV6_LENGTH..]);
    }

    #[test]
    fn a_patch_behind_the_end_writes_what_fits() {
        let frame = FrameBuilder::new().patch(13, &[7, 8]).patch(99, &[9]).build();
        assert_eq!((frame.len(), frame[13]), (14, 7));
    }
}
