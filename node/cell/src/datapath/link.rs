//! Ethernet header of a frame as it is now: offset of the IP header, VLAN tags, and trailer.

use abi::PacketBytes;
use bpf_maps::{META_ROUTED, PacketMeta, VLAN_PRESENT, VLAN_UNKNOWN};
use wire::protocol::ETHERNET_LENGTH;
use wire::rewrite;
use xsk::Packet;

/// Bytes of a VLAN tag.
pub(crate) const TAG_LENGTH: usize = 4;

/// Returns the offset of the IP header, behind at most two VLAN tags, as the frame is now: a module
/// may have moved it.
pub(crate) fn l3_offset(head: &[u8]) -> Option<usize> {
    let mut at = ETHERNET_LENGTH - 2;
    for _ in 0..=wire::parse::VLAN_TAGS_MAX {
        match head.get(at..at + 2)? {
            [0x81, 0x00] | [0x88, 0xa8] => at += TAG_LENGTH,
            [0x08, 0x00] | [0x86, 0xdd] => return Some(at + 2),
            _ => return None,
        }
    }
    None
}

/// Returns true if a frame is tagged, as it is now, for a VLAN that its arrival port does not have.
/// The front door knows that of the outer tag; inner tags count as unknown.
pub(crate) fn is_of_unknown_vlan(head: &[u8], meta: &PacketMeta) -> bool {
    let tagged = l3_offset(head).map_or(0, |l3_offset| l3_offset - ETHERNET_LENGTH);
    let is_unknown = meta.flags & META_ROUTED == 0 && meta.egress_vlan == VLAN_UNKNOWN;
    tagged > TAG_LENGTH || (tagged > 0 && is_unknown)
}

/// Sets the VLAN tag of the frame's egress, or removes it. The MACs must have been written.
pub(crate) fn retag(packet: &mut Packet, l3_offset: usize, egress_vlan: u16) -> Option<()> {
    let tagged = l3_offset > ETHERNET_LENGTH;
    let mut macs = [0; 12];
    packet.load(0, &mut macs).ok()?;
    if egress_vlan == 0 {
        packet.resize_head(-((l3_offset - ETHERNET_LENGTH) as i32)).ok()?;
        return packet.store(0, &macs).ok();
    }
    let identifier = egress_vlan & !VLAN_PRESENT & 0x0fff;
    if tagged {
        let mut tci = [0; 2];
        packet.load(ETHERNET_LENGTH, &mut tci).ok()?;
        let kept = u16::from_be_bytes(tci) & 0xf000;
        return packet.store(ETHERNET_LENGTH, &(kept | identifier).to_be_bytes()).ok();
    }
    packet.resize_head(TAG_LENGTH as i32).ok()?;
    packet.store(0, &macs).ok()?;
    let [high, low] = identifier.to_be_bytes();
    packet.store(12, &[0x81, 0x00, high, low]).ok()
}

/// Removes the trailer behind a frame's IP packet, as `trim` in `levels/bpf/c/rewrite.h`; `None` if
/// the IP header is incomplete.
pub(crate) fn trim_behind(packet: &mut Packet, l3_offset: usize) -> Option<()> {
    let length = rewrite::length_without_trailer(packet.head(), l3_offset as u16).ok()?;
    match packet.length().checked_sub(length) {
        Some(behind @ 1..) => packet.resize_tail(-(behind as i32)).ok(),
        _ => Some(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use xsk::Umem;

    fn packet_of(bytes: &[u8]) -> Packet {
        let (umem, mut pool) = Umem::new(4).unwrap();
        let mut packet = Packet::allocate(&Rc::new(umem), &mut pool, bytes.len()).unwrap();
        packet.store(0, bytes).unwrap();
        packet
    }

    const UNTAGGED: [u8; 16] = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0, 0x45, 0];
    const TAGGED: [u8; 20] = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0xa0, 10, 8, 0, 0x45, 0];

    #[test]
    fn a_tag_is_inserted() {
        let mut packet = packet_of(&UNTAGGED);
        retag(&mut packet, 14, VLAN_PRESENT | 20).unwrap();
        assert_eq!(packet.head()[..18], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0, 20, 8, 0]);
    }

    #[test]
    fn a_tag_is_removed() {
        let mut packet = packet_of(&TAGGED);
        retag(&mut packet, 18, 0).unwrap();
        assert_eq!(packet.head(), UNTAGGED);
    }

    #[test]
    fn a_tag_is_rewritten_and_keeps_its_priority() {
        let mut packet = packet_of(&TAGGED);
        retag(&mut packet, 18, VLAN_PRESENT | 0x123).unwrap();
        assert_eq!(packet.head()[14..16], [0xa1, 0x23]);
    }

    #[test]
    fn a_tag_of_a_vlan_that_the_port_lacks_is_recognised() {
        let mut meta = PacketMeta { egress_vlan: VLAN_UNKNOWN, ..PacketMeta::default() };
        assert!(is_of_unknown_vlan(&TAGGED, &meta));
        // The module has removed the tag.
        assert!(!is_of_unknown_vlan(&UNTAGGED, &meta));
        meta.egress_vlan = 0;
        assert!(!is_of_unknown_vlan(&TAGGED, &meta), "a known VLAN, or a priority");
        let mut twice = TAGGED.to_vec();
        twice.splice(12..12, [0x88, 0xa8, 0, 10]);
        assert!(is_of_unknown_vlan(&twice, &meta), "an inner tag");
        // The tag of a route is another number.
        (meta.egress_vlan, meta.flags) = (VLAN_PRESENT | VLAN_UNKNOWN, META_ROUTED);
        assert!(!is_of_unknown_vlan(&TAGGED, &meta));
    }

    #[test]
    fn the_trailer_of_an_ip_packet_is_removed() {
        let builder = wire::FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(1, 2);
        let whole = builder.payload(&[7; 100]).build();
        // Trailers within one frame of memory, and across two.
        for trailer in [0, 1, 200, 6000] {
            let mut bytes = whole.clone();
            bytes.resize(whole.len() + trailer, 9);
            let mut packet = packet_of(&bytes);
            trim_behind(&mut packet, 14).unwrap();
            assert_eq!((packet.length(), packet.head()), (whole.len(), &whole[..]), "{trailer}");
        }
        assert_eq!(trim_behind(&mut packet_of(&whole[..30]), 14), None);
    }

    #[test]
    fn the_ip_header_is_found_behind_two_tags_and_no_more() {
        assert_eq!(l3_offset(&UNTAGGED), Some(14));
        assert_eq!(l3_offset(&TAGGED), Some(18));
        let mut three = [0; 40];
        for at in [12, 16, 20] {
            three[at] = 0x81;
        }
        assert_eq!(l3_offset(&three), None);
        assert_eq!(l3_offset(&[0; 5]), None);
    }
}
