//! Completion of checksums that a sender left to its device.
//!
//! On veth, and other devices without wire, a packet whose sender offloads checksums arrives with
//! only the sum of its pseudo-header, and leaves the kernel's own path so. A module sees frames as
//! on the wire, so the sum is completed first. A packet whose right checksum happens to be that of
//! its pseudo-header is completed to the same value.

use abi::PacketBytes;
use bpf_maps::{META_FRAGMENT, PacketMeta};
use wire::checksum::Sum;
use wire::protocol::{TCP, UDP};
use xsk::Packet;

const IPV4_LENGTH: usize = 20;
const IPV6_LENGTH: usize = 40;

/// Completes the TCP or UDP checksum of a packet that has only the sum of its pseudo-header.
#[inline]
pub(crate) fn complete(packet: &mut Packet, meta: &PacketMeta) {
    let field = match (meta.flags >> 16) as u8 {
        TCP => 16,
        UDP => 6,
        _ => return,
    };
    if meta.flags & META_FRAGMENT != 0 {
        return;
    }
    let (l3, l4) = (usize::from(meta.l3_offset), usize::from(meta.l4_offset));
    let Some((pseudo, length)) = pseudo_header(packet.head(), l3, l4) else { return };
    let at = l4 + field;
    let Some(&[high, low]) = packet.head().get(at..at + 2) else { return };
    let found = u16::from_be_bytes([high, low]);
    if found == !pseudo.checksum() && found != 0 {
        fill_in(packet, l4, length, at);
    }
}

/// Returns the unfinished sum of the pseudo-header, and the length of the L4 part.
fn pseudo_header(head: &[u8], l3: usize, l4: usize) -> Option<(Sum, usize)> {
    let header = head.get(l3..)?;
    let before = l4.checked_sub(l3)?;
    let word =
        |at: usize| Some(usize::from(u16::from_be_bytes([*header.get(at)?, *header.get(at + 1)?])));
    match header.first()? >> 4 {
        4 => {
            let length = word(2)?.checked_sub(before)?;
            let source = header.get(12..16)?.try_into().ok()?;
            let destination = header.get(16..IPV4_LENGTH)?.try_into().ok()?;
            let protocol = *header.get(9)?;
            Some((Sum::pseudo_header_v4(source, destination, protocol, length as u16), length))
        }
        6 => {
            let length = (word(4)? + IPV6_LENGTH).checked_sub(before)?;
            let source = header.get(8..24)?.try_into().ok()?;
            let destination = header.get(24..IPV6_LENGTH)?.try_into().ok()?;
            // With extension headers the protocol is that of the last one; packets of offloading
            // senders have none.
            let protocol = *header.get(6)?;
            Some((Sum::pseudo_header_v6(source, destination, protocol, length as u32), length))
        }
        _ => None,
    }
}

/// Sums up the L4 part, whose field already has the pseudo-header's sum.
fn fill_in(packet: &mut Packet, l4: usize, length: usize, at: usize) {
    let mut sum = Sum::default();
    let mut piece = [0; 2048];
    let mut done = 0;
    while done < length {
        let part = &mut piece[..(length - done).min(2048)];
        if packet.load(l4 + done, part).is_err() {
            return;
        }
        sum = sum.with(part);
        done += part.len();
    }
    let checksum = match sum.checksum() {
        // In UDP zero means "none" (RFC 768), and in TCP both values mean the same.
        0 => 0xffff,
        checksum => checksum,
    };
    // The field was read before, so the store fits.
    let _ = packet.store(at, &checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use wire::FrameBuilder;
    use xsk::Umem;

    fn meta_of(frame: &[u8]) -> PacketMeta {
        let parsed = wire::parse_frame(frame).unwrap();
        PacketMeta {
            l3_offset: parsed.l3_offset,
            l4_offset: parsed.l4_offset.unwrap(),
            flags: u32::from(parsed.ip_version) << 8 | u32::from(parsed.protocol) << 16,
            ..PacketMeta::default()
        }
    }

    fn completed(frame: &[u8]) -> Vec<u8> {
        let (umem, mut pool) = Umem::new(8).unwrap();
        let mut packet = Packet::allocate(&Rc::new(umem), &mut pool, frame.len()).unwrap();
        packet.store(0, frame).unwrap();
        complete(&mut packet, &meta_of(frame));
        packet.chunks().flatten().copied().collect()
    }

    fn frames() -> Vec<Vec<u8>> {
        let payload = |length: usize| (0..length).map(|i| (i * 7) as u8).collect::<Vec<_>>();
        [0, 1, 501, 5000]
            .into_iter()
            .flat_map(|length| {
                let v4 = || FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
                let v6 = || FrameBuilder::new().ipv6([1; 16], [2; 16], 64);
                [
                    v4().udp(1000, 2000).payload(&payload(length)).build(),
                    v4().tcp(1000, 2000, 0x10).payload(&payload(length)).build(),
                    v6().udp(1000, 2000).payload(&payload(length)).build(),
                    v6().tcp(1000, 2000, 0x10).payload(&payload(length)).build(),
                ]
            })
            .collect()
    }

    #[test]
    fn a_partial_checksum_becomes_the_right_one() {
        for right in frames() {
            let meta = meta_of(&right);
            let (l3, l4) = (usize::from(meta.l3_offset), usize::from(meta.l4_offset));
            let at = l4 + if (meta.flags >> 16) as u8 == TCP { 16 } else { 6 };
            let (pseudo, _) = pseudo_header(&right, l3, l4).unwrap();
            let mut partial = right.clone();
            partial[at..at + 2].copy_from_slice(&(!pseudo.checksum()).to_be_bytes());
            assert_ne!(partial, right);
            assert_eq!(completed(&partial), right);
        }
    }

    #[test]
    fn a_right_or_wrong_checksum_stays() {
        for mut frame in frames() {
            assert_eq!(completed(&frame), frame);
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert_eq!(completed(&frame), frame);
        }
    }
}
