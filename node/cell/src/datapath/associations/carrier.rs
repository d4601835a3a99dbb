//! Headers that carry an active packet: the position of its datagram, and the headers of the
//! answer.
//!
//! ```text
//! ┌──────────────┬──────┬──────────┬─────┬──────────────────────┬─────────┬─────┐
//! │ Ethernet 14  │ VLAN │ IPv4 20  │ UDP │ id, counter, digest  │ payload │ tag │
//! │              │ 0..8 │ IPv6 40  │ 8   │ 48                   │         │ 16  │
//! └──────────────┴──────┴──────────┴─────┴──────────────────────┴─────────┴─────┘
//!  0                     l3               payload_at
//! ```

use ::association::AssociationId;
use ::association::packet::{PAYLOAD_AT, Protection};
use abi::PacketBytes;
use bpf_maps::{META_FRAGMENT, META_LATER_FRAGMENT, PacketMeta};
use wire::checksum::{Sum, checksum};
use wire::protocol::UDP;
use xsk::Packet;

const UDP_LENGTH: usize = 8;
const IPV4_LENGTH: usize = 20;
const IPV6_LENGTH: usize = 40;
/// Bytes of an Ethernet header, two VLAN tags, IPv6 and UDP.
const HEADERS_MAX: usize = 14 + 2 * 4 + IPV6_LENGTH + UDP_LENGTH;
const _: () = assert!(HEADERS_MAX + PAYLOAD_AT <= abi::packet::RESIZE_ROOM, "put on in one go");
/// TTL of an answer (RFC 1700's default).
const HOPS: u8 = 64;

/// Kind of a frame.
pub(super) enum Datagram {
    /// Whole UDP datagram.
    Whole(Position),
    /// Fragment, or datagram with IP options or extension headers: the kernel reassembles it.
    Other,
    /// Frame whose UDP length is wrong.
    Malformed,
}

/// Position of a datagram in its frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    l3: usize,
    /// Offset of the UDP payload; the headers before it are in the packet's head.
    pub(super) payload_at: usize,
    is_v6: bool,
}

impl Position {
    /// Finds the datagram, and removes padding behind it.
    #[inline]
    pub(super) fn of(packet: &mut Packet, meta: &PacketMeta) -> Datagram {
        let (version, protocol) = (meta.flags >> 8 & 0xff, meta.flags >> 16 & 0xff);
        let (l3, l4) = (usize::from(meta.l3_offset), usize::from(meta.l4_offset));
        let header = if version == 6 { IPV6_LENGTH } else { IPV4_LENGTH };
        let is_plain = protocol == u32::from(UDP)
            && meta.flags & (META_FRAGMENT | META_LATER_FRAGMENT) == 0
            && l4 == l3 + header;
        let payload_at = l4 + UDP_LENGTH;
        if !is_plain || payload_at > HEADERS_MAX {
            return Datagram::Other;
        }
        let head = packet.head();
        let (Some(udp), true) =
            (head.get(l4..payload_at), head.len() >= payload_at + PAYLOAD_AT.min(8))
        else {
            return Datagram::Malformed;
        };
        let end = l4 + usize::from(u16::from_be_bytes([udp[4], udp[5]]));
        let behind = packet.length().checked_sub(end);
        match behind.filter(|_| end > payload_at) {
            Some(0) => {}
            Some(behind) if packet.trim(0, behind) => {}
            _ => return Datagram::Malformed,
        }
        Datagram::Whole(Self { l3, payload_at, is_v6: version == 6 })
    }

    /// Returns true if the UDP checksum over `datagram` is right, or is omitted over IPv4.
    #[inline]
    pub(super) fn has_right_checksum(&self, head: &[u8], datagram: &[u8]) -> bool {
        let udp = &head[self.payload_at - UDP_LENGTH..self.payload_at];
        if udp[6..] == [0, 0] {
            return !self.is_v6;
        }
        let sum = pseudo_header(&head[self.l3..], self.is_v6, UDP_LENGTH + datagram.len());
        sum.with(udp).with(datagram).checksum() == 0
    }
}

/// Headers of the packet being handled, and the fields of its active packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carrier {
    headers: [u8; HEADERS_MAX],
    position: Position,
    pub(super) association: Option<AssociationId>,
    pub(super) protection: Protection,
    pub(super) digest: [u8; 32],
}

impl Default for Carrier {
    fn default() -> Self {
        let position = Position { l3: 0, payload_at: 0, is_v6: false };
        let (association, protection) = (None, Protection::Encrypted);
        Self { headers: [0; HEADERS_MAX], position, association, protection, digest: [0; 32] }
    }
}

impl Carrier {
    /// Copies the headers of a packet.
    #[inline]
    pub(super) fn keep(&mut self, packet: &Packet, position: &Position) {
        self.position = *position;
        // `Position::of` has checked that the head contains them.
        self.headers[..position.payload_at].copy_from_slice(&packet.head()[..position.payload_at]);
    }

    /// Returns the offset of the datagram behind these headers.
    pub(super) const fn payload_at(&self) -> usize {
        self.position.payload_at
    }

    /// Returns the bytes of an IP packet beside its payload and tag.
    pub(super) const fn overhead(&self) -> usize {
        self.position.payload_at - self.position.l3 + PAYLOAD_AT
    }

    /// Returns the headers of the answer with this datagram, addresses and ports swapped.
    pub(super) fn swapped(&self, datagram: &[u8]) -> [u8; HEADERS_MAX] {
        let Position { l3, payload_at, is_v6 } = self.position;
        let mut headers = self.headers;
        let l4 = payload_at - UDP_LENGTH;
        swap(&mut headers, 0, 6, 6);
        swap(&mut headers, l4, l4 + 2, 2);
        // The caller has checked the length against the port's MTU.
        let udp_length = (UDP_LENGTH + datagram.len()) as u16;
        headers[l4 + 4..l4 + 6].copy_from_slice(&udp_length.to_be_bytes());
        headers[l4 + 6..payload_at].fill(0);
        let ip = &mut headers[l3..l4];
        if is_v6 {
            swap(ip, 8, 24, 16);
            ip[4..6].copy_from_slice(&udp_length.to_be_bytes());
            // The traffic class is kept, but for the congestion bits: the answer takes another
            // path.
            ip[1] &= !0x30;
            ip[7] = HOPS;
        } else {
            swap(ip, 12, 16, 4);
            ip[1] &= !0x03;
            ip[2..4].copy_from_slice(&(IPV4_LENGTH as u16 + udp_length).to_be_bytes());
            // Don't-fragment is set, and the identification is meaningless (RFC 6864).
            ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            ip[8] = HOPS;
            ip[10..12].fill(0);
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let sum = pseudo_header(&headers[l3..], is_v6, usize::from(udp_length));
        let sum = sum.with(&headers[l4..payload_at]).with(datagram).checksum();
        // A checksum of 0 would mean that there is none (RFC 768).
        let sum = if sum == 0 { u16::MAX } else { sum };
        headers[l4 + 6..payload_at].copy_from_slice(&sum.to_be_bytes());
        headers
    }
}

fn swap(bytes: &mut [u8], one: usize, other: usize, length: usize) {
    for at in 0..length {
        bytes.swap(one + at, other + at);
    }
}

/// Returns the sum of UDP's pseudo-header; `ip` begins with the IP header.
fn pseudo_header(ip: &[u8], is_v6: bool, length: usize) -> Sum {
    let addresses = if is_v6 { &ip[8..40] } else { &ip[12..20] };
    let length = (length as u32).to_be_bytes();
    Sum::default().with(addresses).with(&length).with(&[0, UDP])
}
