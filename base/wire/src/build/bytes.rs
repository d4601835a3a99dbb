//! From what was asked of a [`FrameBuilder`] to bytes: each header, its lengths and its checksum.
//!
//! Nothing is decided here; the builder's fields say everything.

use std::net::Ipv4Addr;

use super::{FragmentField, FrameBuilder, Ip, L4};
use crate::checksum::{Sum, checksum};
use crate::protocol::{self as p, ETHERNET_LENGTH, IPV4_LENGTH};

impl FrameBuilder {
    /// Everything around the bytes `l4`.
    pub(super) fn frame(&self, l4: &[u8], fragment: Option<FragmentField>) -> Vec<u8> {
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

    /// MAC addresses, tags and ethertype.
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

    /// An IPv4 header in front of `l4_length` bytes (RFC 791 section 3.1).
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

    /// The first next-header value and the extension headers (RFC 8200 section 4).
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

    /// What the IP header names as the protocol above it; 59 when there is none.
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

    /// L4 header and payload, with the checksum.
    pub(super) fn l4_bytes(&self) -> Vec<u8> {
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

    /// The pseudo-header for `length` bytes of L4; ICMP over IPv4 has none.
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

/// A 16-bit length field; what does not fit is written as the largest value.
fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}
