//! Sources of IPv4 packets that a module changes and the kernel finishes: the kernel has the one
//! with which a packet came, and what it sends has the module's (`levels/bpf/c/translate.h`).
//!
//! Until then the first is in the metadata, whose next hop says nothing without a route.

use bpf_maps::{META_BRIDGED, META_LATER_FRAGMENT, META_ROUTED, PacketMeta};
use wire::checksum::update_u16;
use wire::protocol::{DCCP, ICMP, TCP, UDP, UDP_LITE};

/// [`PacketMeta::egress_port`] where the next hop is a source: no port has this number.
const KEPT: u16 = u16::MAX;
/// Queries of ICMP, which have an identifier: echo and timestamps, replies and requests.
const ICMP_QUERIES: [u8; 4] = [0, 8, 13, 14];

/// Address, and L4 port or ICMP identifier; of a later fragment its identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) address: [u8; 4],
    pub(crate) port: [u8; 2],
}

/// A checksum of L4 behind the IP header.
#[derive(Clone, Copy)]
struct Check {
    at: usize,
    covers_addresses: bool,
    /// A sum of 0 says that there is none (RFC 768).
    is_optional: bool,
}

/// A packet's source, and where it lies behind the beginning of its IP header.
struct Found {
    source: Source,
    port_at: Option<usize>,
    check: Option<Check>,
}

/// Keeps the source of a packet without a route in its metadata, before its module sees it.
#[inline]
pub(crate) fn keep(head: &[u8], meta: &mut PacketMeta) {
    if meta.flags & (META_ROUTED | META_BRIDGED) != 0 || meta.flags >> 8 & 0xff != 4 {
        return;
    }
    let Some(found) = head.get(usize::from(meta.l3_offset)..).and_then(find) else { return };
    let Source { address: [a, b, c, d], port: [e, f] } = found.source;
    meta.next_hop = [a, b, c, d, e, f];
    meta.egress_port = KEPT;
}

/// Returns the source with which a packet came, if it is kept.
pub(crate) fn kept(meta: &PacketMeta) -> Option<Source> {
    let [a, b, c, d, e, f] = meta.next_hop;
    let is_kept = meta.flags & META_ROUTED == 0 && meta.egress_port == KEPT;
    is_kept.then_some(Source { address: [a, b, c, d], port: [e, f] })
}

/// Gives the packet whose IP header `ip` begins with another source, with every checksum that
/// covers it; returns the one before. `None` when it has that source, or is not of the kind that
/// `meta` says, and nothing is changed.
pub(crate) fn replace(ip: &mut [u8], meta: &PacketMeta, to: Source) -> Option<Source> {
    let Found { source: from, port_at, check } = find(ip)?;
    let is_later = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff != 0;
    if from == to
        || u32::from(ip[9]) != meta.flags >> 16 & 0xff
        || is_later != (meta.flags & META_LATER_FRAGMENT != 0)
    {
        return None;
    }
    let addresses = [0, 2].map(|at| (word(&from.address, at), word(&to.address, at)));
    let ports = (word(&from.port, 0), word(&to.port, 0));
    follow(ip, 10, &addresses);
    ip[12..16].copy_from_slice(&to.address);
    if let Some(at) = port_at {
        ip[at..at + 2].copy_from_slice(&to.port);
    }
    if let Some(Check { at, covers_addresses, is_optional }) = check
        && !(is_optional && word(ip, at) == 0)
    {
        follow(ip, at, &[ports]);
        if covers_addresses {
            follow(ip, at, &addresses);
        }
        if is_optional && word(ip, at) == 0 {
            ip[at..at + 2].copy_from_slice(&[0xff; 2]);
        }
    }
    Some(from)
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Has the checksum at `at` follow words that become others.
fn follow(bytes: &mut [u8], at: usize, changes: &[(u16, u16)]) {
    let sum = changes.iter().fold(word(bytes, at), |sum, &(old, new)| update_u16(sum, old, new));
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Finds the source of an IPv4 packet; `None` where it cannot be changed.
fn find(ip: &[u8]) -> Option<Found> {
    let header = usize::from(ip.first()? & 0x0f) * 4;
    if ip[0] >> 4 != 4 || header < 20 || ip.len() < header {
        return None;
    }
    let source = |port: &[u8]| {
        Some(Source { address: ip[12..16].try_into().ok()?, port: port.try_into().ok()? })
    };
    if word(ip, 6) & 0x1fff != 0 {
        return Some(Found { source: source(&ip[4..6])?, port_at: None, check: None });
    }
    let check = |at: usize, covers_addresses: bool, is_optional: bool| {
        let at = header + at;
        (ip.len() >= at + 2).then_some(Check { at, covers_addresses, is_optional })
    };
    let (port, check) = match ip[9] {
        TCP => (Some(0), Some(check(16, true, false)?)),
        UDP => (Some(0), Some(check(6, true, true)?)),
        ICMP if ICMP_QUERIES.contains(ip.get(header)?) => (Some(4), Some(check(2, false, false)?)),
        // Their checksums cover the addresses.
        UDP_LITE | DCCP => return None,
        _ => (None, None),
    };
    let port_at = port.map(|port| header + port);
    let bytes = port_at.map_or(Some(&[0; 2][..]), |at| ip.get(at..at + 2))?;
    Some(Found { source: source(bytes)?, port_at, check })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{FrameBuilder, parse_frame};

    const L3: usize = 14;
    const INSIDE: Source = Source { address: [10, 0, 0, 1], port: [0, 77] };
    const OUTSIDE: Source = Source { address: [198, 51, 100, 1], port: [0xf0, 3] };

    fn from(source: Source, ttl: u8) -> FrameBuilder {
        FrameBuilder::new().ipv4(source.address, [203, 0, 113, 9], ttl).identification(77)
    }

    fn meta_of(frame: &[u8]) -> PacketMeta {
        let parsed = parse_frame(frame).unwrap();
        let flags = u32::from(parsed.ip_version) << 8 | u32::from(parsed.protocol) << 16;
        let later = parsed.fragment == wire::Fragment::Later;
        let flags = flags | if later { META_LATER_FRAGMENT } else { 0 };
        PacketMeta { l3_offset: parsed.l3_offset, flags, ..PacketMeta::default() }
    }

    #[test]
    fn a_source_is_kept_and_put_back_with_its_checksums() {
        let port = |source: Source| u16::from_be_bytes(source.port);
        let of = |source: Source| {
            [
                from(source, 64).udp(port(source), 9).payload(b"some").build(),
                from(source, 64).tcp(port(source), 9, 0x12).payload(b"some").build(),
            ]
        };
        for (came, left) in of(INSIDE).into_iter().zip(of(OUTSIDE)) {
            let mut meta = meta_of(&came);
            keep(&came, &mut meta);
            assert_eq!(kept(&meta), Some(INSIDE));
            let mut frame = left.clone();
            assert_eq!(replace(&mut frame[L3..], &meta, INSIDE), Some(OUTSIDE));
            assert_eq!(frame, came);
            assert_eq!(replace(&mut frame[L3..], &meta, INSIDE), None, "it has that source");
            assert_eq!(replace(&mut frame[L3..], &meta, OUTSIDE), Some(INSIDE));
            assert_eq!(frame, left);
        }
    }

    #[test]
    fn of_a_later_fragment_only_the_address_changes() {
        let whole = from(INSIDE, 64).udp(77, 9).payload(&[7; 64]);
        let came = whole.build_fragments(40).pop().unwrap();
        let mut meta = meta_of(&came);
        keep(&came, &mut meta);
        let mut frame = came.clone();
        let to = Source { port: INSIDE.port, ..OUTSIDE };
        assert_eq!(replace(&mut frame[L3..], &meta, to), Some(INSIDE));
        assert_eq!((&frame[26..30], &frame[34..]), (&OUTSIDE.address[..], &came[34..]));
        assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
    }

    #[test]
    fn a_sum_of_udp_that_is_not_there_stays_so() {
        let mut frame = from(INSIDE, 64).udp(77, 9).payload(b"some").build();
        frame[40..42].copy_from_slice(&[0, 0]);
        let meta = meta_of(&frame);
        assert_eq!(replace(&mut frame[L3..], &meta, OUTSIDE), Some(INSIDE));
        assert_eq!(frame[40..42], [0, 0]);
    }

    #[test]
    fn nothing_is_kept_of_what_has_a_route_or_is_not_of_one_kind_any_more() {
        let came = from(INSIDE, 64).udp(77, 9).build();
        let mut routed =
            PacketMeta { flags: META_ROUTED | 4 << 8, l3_offset: 14, ..meta_of(&came) };
        keep(&came, &mut routed);
        assert_eq!(kept(&routed), None);
        // Its module has put it into another packet.
        let meta = PacketMeta { flags: 4 << 8 | 47 << 16, ..meta_of(&came) };
        assert_eq!(replace(&mut came.clone()[L3..], &meta, OUTSIDE), None);
    }
}
