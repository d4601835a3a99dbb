//! Source and destination of packets that a module changes and the kernel completes: the kernel
//! gets the source with which a packet arrived, and what it sends has the module's; its ICMP errors
//! quote the destination with which the packet arrived (`levels/bpf/c/translate.h`).
//!
//! The original ends are stored beside the packet until then ([`Packet::set_aside`]), which the
//! metadata indicate in the egress field, unused without a route.

use bpf_maps::{End, META_BRIDGED, META_ROUTED, ORIGIN_BELOW, PacketMeta};
use bytemuck::{Pod, Zeroable};
use wire::checksum::update_u16;
use wire::protocol::{DCCP, ICMP, ICMPV6, TCP, UDP, UDP_LITE};
use xsk::{ASIDE_LENGTH, Packet};

/// Value of [`PacketMeta::egress_port`] of a packet whose origin is stored beside it: no port has
/// this number.
const KEPT: u16 = u16::MAX;
/// Types of ICMP queries with an identifier: echo and timestamp, reply and request.
const ICMP_QUERIES: [u8; 4] = [0, 8, 13, 14];
/// Types of ICMPv6 queries with an identifier: echo reply and request.
const ICMPV6_QUERIES: [u8; 2] = [128, 129];

/// Source, destination and protocol of a packet as it arrived.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Origin {
    source: End,
    destination: End,
    version: u8,
    protocol: u8,
    is_later: u8,
    /// Set if its source can be changed.
    is_movable: u8,
}

/// State of a packet's source when the kernel gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Source with which the packet arrived, unchanged by its module.
    Same,
    /// Source with which the packet arrived, restored after its module had set this one.
    PutBack(End),
    /// Another source, or unknown.
    Other,
}

/// L4 checksum behind the IP header.
#[derive(Clone, Copy)]
struct Check {
    at: usize,
    covers_addresses: bool,
    /// Set if a sum of 0 means that there is none (RFC 768).
    is_optional: bool,
}

/// Source of a packet, with the offsets of its parts from the beginning of the IP header.
struct Found {
    origin: Origin,
    port_at: Option<usize>,
    check: Option<Check>,
}

/// Stores the original ends of a packet without a route, before its module sees it.
#[inline]
pub(crate) fn keep(packet: &mut Packet, meta: &mut PacketMeta) {
    if meta.flags & (META_ROUTED | META_BRIDGED) == 0 && meta.flags >> 8 & 0xff != 0 {
        keep_unrouted(packet, meta);
    }
}

#[cold]
fn keep_unrouted(packet: &mut Packet, meta: &mut PacketMeta) {
    let ip = packet.head().get(usize::from(meta.l3_offset)..);
    let Some(mut found) = ip.and_then(find) else { return };
    if meta.egress_port == ORIGIN_BELOW && found.origin.version == 4 {
        // A module below user level may have changed the source already.
        let source = &mut found.origin.source;
        source.address[..4].copy_from_slice(&meta.next_hop[..4]);
        source.port_be.copy_from_slice(&meta.next_hop[4..]);
    }
    let mut aside = [0; ASIDE_LENGTH];
    aside[..size_of::<Origin>()].copy_from_slice(bytemuck::bytes_of(&found.origin));
    if let Some(number) = packet.set_aside(&aside) {
        meta.next_hop[..4].copy_from_slice(&number.to_ne_bytes());
        meta.egress_port = KEPT;
    }
}

/// Returns the original ends of a packet, if they are stored.
fn kept(packet: &Packet, meta: &PacketMeta) -> Option<Origin> {
    let [a, b, c, d, ..] = meta.next_hop;
    if meta.flags & META_ROUTED != 0 || meta.egress_port != KEPT {
        return None;
    }
    let aside = packet.aside(u32::from_ne_bytes([a, b, c, d]))?;
    Some(bytemuck::pod_read_unaligned(&aside[..size_of::<Origin>()]))
}

/// Restores the source with which a packet arrived, whose IP header is at `l3` now. Returns the
/// state of the source, and the original destination if its module has changed that.
pub(crate) fn put_back(packet: &mut Packet, l3: usize, meta: &PacketMeta) -> (Source, Option<End>) {
    let found = kept(packet, meta).and_then(|came| Some((came, find(packet.head().get(l3..)?)?)));
    let Some((came, found)) = found else { return (Source::Other, None) };
    let now = found.origin;
    let is_of_a_kind = Origin { source: came.source, destination: came.destination, ..now } == came;
    let is_changeable = is_of_a_kind && now.is_movable != 0;
    let is_changed = is_changeable && now.destination != came.destination;
    let source = if now.version == came.version && now.source == came.source {
        Source::Same
    } else if is_changeable {
        set_source(&mut packet.head_mut()[l3..], &found, came.source);
        Source::PutBack(now.source)
    } else {
        Source::Other
    };
    (source, is_changed.then_some(came.destination))
}

/// Sets the source of a packet back to the one that its module set.
pub(crate) fn give_again(packet: &mut Packet, l3: usize, given: End) {
    if let Some(found) = packet.head().get(l3..).and_then(find) {
        set_source(&mut packet.head_mut()[l3..], &found, given);
    }
}

/// Sets the source of the packet whose IP header `ip` begins with, and updates every checksum that
/// covers it.
fn set_source(ip: &mut [u8], found: &Found, to: End) {
    let (from, is_v4) = (found.origin.source, found.origin.version == 4);
    let length = if is_v4 { 4 } else { 16 };
    let addresses =
        (0..length).step_by(2).map(|at| (word(&from.address, at), word(&to.address, at)));
    let ports = (word(&from.port_be, 0), word(&to.port_be, 0));
    if is_v4 {
        follow(ip, 10, addresses.clone());
    }
    let address_at = if is_v4 { 12 } else { 8 };
    ip[address_at..][..length].copy_from_slice(&to.address[..length]);
    if let Some(at) = found.port_at {
        ip[at..at + 2].copy_from_slice(&to.port_be);
    }
    if let Some(Check { at, covers_addresses, is_optional }) = found.check
        && !(is_optional && word(ip, at) == 0)
    {
        follow(ip, at, found.port_at.map(|_| ports).into_iter());
        if covers_addresses {
            follow(ip, at, addresses);
        }
        if is_optional && word(ip, at) == 0 {
            ip[at..at + 2].copy_from_slice(&[0xff; 2]);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Updates the checksum at `at` for changed words, as pairs of old and new.
fn follow(bytes: &mut [u8], at: usize, changes: impl Iterator<Item = (u16, u16)>) {
    let sum = changes.fold(word(bytes, at), |sum, (old, new)| update_u16(sum, old, new));
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Finds the source of an IP packet; `None` if its header is incomplete.
fn find(ip: &[u8]) -> Option<Found> {
    let version = ip.first()? >> 4;
    let (header, address_at, length, protocol) = match version {
        4 => (usize::from(ip[0] & 0x0f) * 4, 12, 4, *ip.get(9)?),
        6 => (40, 8, 16, *ip.get(6)?),
        _ => return None,
    };
    if header < 20 || ip.len() < header {
        return None;
    }
    let address = |at: usize| {
        let mut address = [0; 16];
        address[..length].copy_from_slice(&ip[at..][..length]);
        address
    };
    let is_later = version == 4 && word(ip, 6) & 0x1fff != 0;
    let l4 = if is_later { Some((Some(4), None)) } else { find_l4(ip, header, version, protocol) };
    let (port_at, check) = l4.unwrap_or_default();
    let port_be = port_at.map_or([0; 2], |at| [ip[at], ip[at + 1]]);
    let has_ports = !is_later && l4.is_some() && matches!(protocol, TCP | UDP);
    let to_port = if has_ports { [ip[header + 2], ip[header + 3]] } else { [0; 2] };
    let origin = Origin {
        source: End { address: address(address_at), port_be, zero: 0 },
        destination: End { address: address(address_at + length), port_be: to_port, zero: 0 },
        version,
        protocol,
        is_later: u8::from(is_later),
        is_movable: u8::from(l4.is_some()),
    };
    // The identification of a later fragment is part of the key, and is not changed.
    Some(Found { origin, port_at: port_at.filter(|_| !is_later), check })
}

/// Finds the L4 port, or its equivalent, and the checksum; `None` if the source cannot be changed,
/// as `read_l4` in `levels/bpf/c/translate.h`.
fn find_l4(
    ip: &[u8],
    header: usize,
    version: u8,
    protocol: u8,
) -> Option<(Option<usize>, Option<Check>)> {
    let kind = ip.get(header).copied();
    let (port, check) = match (version, protocol) {
        (_, TCP) => (Some(0), Some((16, true, false))),
        (_, UDP) => (Some(0), Some((6, true, version == 4))),
        (4, ICMP) if ICMP_QUERIES.contains(&kind?) => (Some(4), Some((2, false, false))),
        (6, ICMPV6) if ICMPV6_QUERIES.contains(&kind?) => (Some(4), Some((2, true, false))),
        (6, ICMPV6) => (None, Some((2, true, false))),
        // Their checksums cover the addresses; and IPv6 has its extension headers here.
        (4, UDP_LITE | DCCP) | (6, _) => return None,
        _ => (None, None),
    };
    let inside = |at: usize| (ip.len() >= header + at + 2).then_some(header + at);
    let check = match check {
        Some((at, covers_addresses, is_optional)) => {
            Some(Check { at: inside(at)?, covers_addresses, is_optional })
        }
        None => None,
    };
    let port_at = match port {
        Some(at) => Some(inside(at)?),
        None => None,
    };
    Some((port_at, check))
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::PacketBytes;
    use std::rc::Rc;
    use wire::{FrameBuilder, parse_frame};
    use xsk::Umem;

    const L3: usize = 14;

    fn end(address: &[u8], port: u16) -> End {
        let mut whole = [0; 16];
        whole[..address.len()].copy_from_slice(address);
        End { address: whole, port_be: port.to_be_bytes(), zero: 0 }
    }

    fn v4(last: u8, port: u16) -> End {
        end(&[10, 0, 0, last], port)
    }

    fn v6(last: u8, port: u16) -> End {
        end(&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last], port)
    }

    /// Builds a frame from an IPv4 or an IPv6 address of the tests.
    fn from(source: End) -> FrameBuilder {
        let builder = FrameBuilder::new();
        if source.address[15] == 0 {
            let address: [u8; 4] = source.address[..4].try_into().unwrap();
            return builder.ipv4(address, [203, 0, 113, 9], 64).identification(77);
        }
        builder.ipv6(source.address, [0x2001, 0xdb8, 1, 0, 0, 0, 0, 9], 64)
    }

    fn port(source: End) -> u16 {
        u16::from_be_bytes(source.port_be)
    }

    fn packet_of(bytes: &[u8]) -> Packet {
        let (umem, mut pool) = Umem::new(4).unwrap();
        let mut packet = Packet::allocate(&Rc::new(umem), &mut pool, bytes.len()).unwrap();
        packet.store(0, bytes).unwrap();
        packet
    }

    /// Returns a packet that arrived as `came`, was stored, and that its module left as `left`.
    fn kept_then(came: &[u8], left: &[u8]) -> (Packet, PacketMeta) {
        let parsed = parse_frame(came).unwrap();
        let flags = u32::from(parsed.ip_version) << 8 | u32::from(parsed.protocol) << 16;
        let l3_offset = parsed.l3_offset;
        let mut meta = PacketMeta { l3_offset, flags, ..PacketMeta::default() };
        let mut packet = packet_of(came);
        keep(&mut packet, &mut meta);
        packet.head_mut().copy_from_slice(left);
        (packet, meta)
    }

    #[test]
    fn a_source_is_restored_with_its_checksums_and_applied_again() {
        for (inside, outside) in [(v4(1, 77), v4(9, 0xf003)), (v6(1, 77), v6(9, 0xf003))] {
            let of = |source: End| {
                let payload = |builder: FrameBuilder| builder.payload(b"some").build();
                [
                    payload(from(source).udp(port(source), 9)),
                    payload(from(source).tcp(port(source), 9, 0x12)),
                    payload(from(source).icmp_echo(port(source), 1)),
                ]
            };
            for (came, left) in of(inside).into_iter().zip(of(outside)) {
                let (mut packet, meta) = kept_then(&came, &left);
                assert_eq!(put_back(&mut packet, L3, &meta), (Source::PutBack(outside), None));
                assert_eq!(packet.head(), came);
                assert_eq!(put_back(&mut packet, L3, &meta), (Source::Same, None));
                give_again(&mut packet, L3, outside);
                assert_eq!(packet.head(), left);
            }
        }
    }

    #[test]
    fn of_a_later_fragment_only_the_address_changes() {
        let (inside, outside) = (v4(1, 77), v4(9, 77));
        let later = |source: End| {
            from(source).udp(77, 9).payload(&[7; 64]).build_fragments(40).pop().unwrap()
        };
        let (mut packet, meta) = kept_then(&later(inside), &later(outside));
        assert_eq!(put_back(&mut packet, L3, &meta), (Source::PutBack(outside), None));
        assert_eq!(packet.head(), later(inside));
    }

    #[test]
    fn a_sum_of_udp_that_is_not_there_stays_so() {
        let of = |source: End| from(source).udp(port(source), 9).build();
        let (came, mut left) = (of(v4(1, 77)), of(v4(9, 78)));
        left[40..42].copy_from_slice(&[0, 0]);
        let (mut packet, meta) = kept_then(&came, &left);
        assert_eq!(put_back(&mut packet, L3, &meta), (Source::PutBack(v4(9, 78)), None));
        assert_eq!(packet.head()[40..42], [0, 0]);
    }

    #[test]
    fn a_source_that_cannot_be_restored_stays_as_its_module_left_it() {
        let options = |source: End| {
            from(source)
                .extension(wire::protocol::DESTINATION_OPTIONS, &[1, 4, 0, 0, 0, 0])
                .udp(1, 9)
        };
        let (came, left) = (options(v6(1, 0)).build(), options(v6(9, 0)).build());
        let (mut packet, meta) = kept_then(&came, &left);
        assert_eq!(put_back(&mut packet, L3, &meta), (Source::Other, None));
        assert_eq!(packet.head(), left);
        let (mut packet, meta) = kept_then(&came, &came);
        assert_eq!(put_back(&mut packet, L3, &meta), (Source::Same, None));
        // Another protocol, and the other IP version.
        let came = from(v4(1, 77)).udp(77, 9).payload(&[0; 40]).build();
        for mut left in
            [from(v4(9, 77)).tcp(77, 9, 0x12), from(v6(1, 77)).udp(77, 9)].map(|b| b.build())
        {
            left.resize(came.len(), 0);
            let (mut packet, meta) = kept_then(&came, &left);
            assert_eq!(put_back(&mut packet, L3, &meta), (Source::Other, None));
        }
    }

    #[test]
    fn a_source_changed_below_user_level_is_restored_from_the_metadata() {
        let of = |source: End| from(source).udp(port(source), 9).build();
        let (inside, outside) = (v4(1, 77), v4(9, 78));
        let parsed = parse_frame(&of(outside)).unwrap();
        let [high, low] = inside.port_be;
        let mut meta = PacketMeta {
            l3_offset: parsed.l3_offset,
            flags: 4 << 8 | u32::from(parsed.protocol) << 16,
            egress_port: ORIGIN_BELOW,
            next_hop: [10, 0, 0, 1, high, low],
            ..PacketMeta::default()
        };
        let mut packet = packet_of(&of(outside));
        keep(&mut packet, &mut meta);
        assert_eq!(put_back(&mut packet, L3, &meta), (Source::PutBack(outside), None));
        assert_eq!(packet.head(), of(inside));
    }

    #[test]
    fn a_destination_changed_by_a_module_is_reported_with_the_original() {
        let of = |last: u8, port: u16| {
            FrameBuilder::new().ipv4([203, 0, 113, 9], [10, 0, 0, last], 64).udp(9, port).build()
        };
        let (mut packet, meta) = kept_then(&of(1, 77), &of(2, 78));
        assert_eq!(put_back(&mut packet, L3, &meta), (Source::Same, Some(v4(1, 77))));
        assert_eq!(packet.head(), of(2, 78));
    }

    #[test]
    fn a_packet_with_a_route_keeps_no_origin() {
        let came = from(v4(1, 77)).udp(77, 9).build();
        let mut packet = packet_of(&came);
        let mut meta =
            PacketMeta { flags: META_ROUTED | 4 << 8, l3_offset: 14, ..PacketMeta::default() };
        keep(&mut packet, &mut meta);
        assert_eq!(kept(&packet, &meta), None);
        assert_eq!(meta.egress_port, 0);
    }
}
