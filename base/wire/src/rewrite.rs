//! Packet rewriting on forwarding: MAC addresses, TTL, DSCP.
//!
//! Used at user level after a verdict. Each function checks everything before it writes anything,
//! so a refused packet is unchanged. Checksums are updated, not recomputed: a wrong one stays
//! wrong, so that a packet damaged before this node does not look intact after it.

use crate::checksum::update_u16;
use crate::protocol::{ETHERNET_LENGTH, IPV4_LENGTH, IPV6_LENGTH};

/// The shortest Ethernet frame without its FCS, in bytes (IEEE 802.3).
pub const FRAME_LENGTH_MIN: usize = 60;

/// Reason why a packet was not rewritten: mostly a fault of the module or the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// The frame ends before the header that is to be written.
    #[error("the frame has {length} bytes, the header to be rewritten ends at {needed}")]
    Truncated {
        /// Bytes of the frame.
        length: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The header does not begin with version 4 or 6.
    #[error("the header at offset {l3_offset} says IP version {version}, expected 4 or 6")]
    IpVersion {
        /// Offset of the header in bytes.
        l3_offset: u16,
        /// Version field of the header.
        version: u8,
    },
    /// The packet may not be forwarded any further (RFC 1812 section 5.3.1).
    #[error("the TTL or hop limit is {ttl}: the packet ends here")]
    TtlExpired {
        /// TTL of the packet, 0 or 1.
        ttl: u8,
    },
    /// A DSCP has 6 bits.
    #[error("the DSCP {dscp} is above 63, the largest that 6 bits hold")]
    DscpRange {
        /// DSCP as given.
        dscp: u8,
    },
}

/// Rewrites a routed packet: writes both MAC addresses and lowers the TTL or hop limit by one.
///
/// # Errors
/// [`RewriteError::Truncated`], [`RewriteError::IpVersion`], [`RewriteError::TtlExpired`];
/// the frame is then unchanged.
pub fn route(
    frame: &mut [u8],
    l3_offset: u16,
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
) -> Result<(), RewriteError> {
    let version = ip_version(frame, l3_offset)?;
    let header = &mut frame[usize::from(l3_offset)..];
    if version == 4 {
        let old = u16::from_be_bytes([header[8], header[9]]);
        let ttl = routable(header[8])?;
        header[8] = ttl - 1;
        update_ipv4_checksum(header, old, u16::from_be_bytes([header[8], header[9]]));
    } else {
        header[7] = routable(header[7])? - 1;
    }
    frame[..6].copy_from_slice(&destination_mac);
    frame[6..12].copy_from_slice(&source_mac);
    Ok(())
}

/// Returns the length of a frame without the trailer after its IP packet, which belongs to the link
/// that the frame came by. Padding up to [`FRAME_LENGTH_MIN`] stays.
///
/// # Errors
/// [`RewriteError::Truncated`], [`RewriteError::IpVersion`].
pub fn length_without_trailer(frame: &[u8], l3_offset: u16) -> Result<usize, RewriteError> {
    let version = ip_version(frame, l3_offset)?;
    let header = &frame[usize::from(l3_offset)..];
    let length = match version {
        4 => usize::from(u16::from_be_bytes([header[2], header[3]])),
        _ => IPV6_LENGTH + usize::from(u16::from_be_bytes([header[4], header[5]])),
    };
    Ok((usize::from(l3_offset) + length).max(FRAME_LENGTH_MIN))
}

/// Swaps source and destination MAC address, as the verdict `bounce` does.
///
/// # Errors
/// [`RewriteError::Truncated`] when there is no whole Ethernet header.
pub fn swap_macs(frame: &mut [u8]) -> Result<(), RewriteError> {
    let length = frame.len();
    if length < ETHERNET_LENGTH {
        return Err(RewriteError::Truncated { length, needed: ETHERNET_LENGTH });
    }
    let (destination, source) = frame[..12].split_at_mut(6);
    destination.swap_with_slice(source);
    Ok(())
}

/// Writes the DSCP (RFC 2474) and keeps ECN (RFC 3168).
///
/// # Errors
/// [`RewriteError::DscpRange`], [`RewriteError::Truncated`],
/// [`RewriteError::IpVersion`]; the frame is then unchanged.
pub fn set_dscp(frame: &mut [u8], l3_offset: u16, dscp: u8) -> Result<(), RewriteError> {
    if dscp > 63 {
        return Err(RewriteError::DscpRange { dscp });
    }
    let version = ip_version(frame, l3_offset)?;
    let header = &mut frame[usize::from(l3_offset)..];
    let old = u16::from_be_bytes([header[0], header[1]]);
    if version == 4 {
        header[1] = (dscp << 2) | (header[1] & 0x03);
        update_ipv4_checksum(header, old, u16::from_be_bytes([header[0], header[1]]));
    } else {
        // The traffic class straddles the first two bytes: version, class, flow label.
        let new = (old & 0xf03f) | (u16::from(dscp) << 6);
        header[..2].copy_from_slice(&new.to_be_bytes());
    }
    Ok(())
}

/// Returns the IP version at `l3_offset`, if the frame holds the fixed part of that version's
/// header.
fn ip_version(frame: &[u8], l3_offset: u16) -> Result<u8, RewriteError> {
    let start = usize::from(l3_offset).max(ETHERNET_LENGTH);
    let truncated = |needed| RewriteError::Truncated { length: frame.len(), needed };
    let header = frame.get(usize::from(l3_offset)..).unwrap_or_default();
    let version = header.first().ok_or_else(|| truncated(start + IPV4_LENGTH))? >> 4;
    let needed = match version {
        4 => start + IPV4_LENGTH,
        6 => start + IPV6_LENGTH,
        _ => return Err(RewriteError::IpVersion { l3_offset, version }),
    };
    if frame.len() < needed { Err(truncated(needed)) } else { Ok(version) }
}

/// Returns the TTL, if it may be lowered.
const fn routable(ttl: u8) -> Result<u8, RewriteError> {
    if ttl > 1 { Ok(ttl) } else { Err(RewriteError::TtlExpired { ttl }) }
}

/// Updates an IPv4 header's checksum for one changed word.
fn update_ipv4_checksum(header: &mut [u8], old: u16, new: u16) {
    let before = u16::from_be_bytes([header[10], header[11]]);
    header[10..12].copy_from_slice(&update_u16(before, old, new).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::FrameBuilder;
    use crate::checksum::verify_l4;
    use crate::parse::{Outcome, parse_frame};

    const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

    fn both_versions(ttl: u8) -> [Vec<u8>; 2] {
        let start = || FrameBuilder::new().vlan(7).udp(1, 2).payload(b"ab").dscp(5).ecn(2);
        [start().ipv4([1; 4], [2; 4], ttl).build(), start().ipv6([1; 16], [2; 16], ttl).build()]
    }

    #[test]
    fn routing_takes_one_off_the_ttl_and_keeps_every_checksum() {
        for mut frame in both_versions(2) {
            let before = parse_frame(&frame).unwrap();
            route(&mut frame, before.l3_offset, MAC_A, MAC_B).unwrap();
            let after = parse_frame(&frame).unwrap();
            assert_eq!(
                (after.ethernet.source, after.ethernet.destination, after.ttl),
                (MAC_A, MAC_B, 1)
            );
            assert!(verify_l4(&frame, &after));
        }
    }

    #[test]
    fn a_packet_at_its_last_hop_is_refused_and_unchanged() {
        for ttl in [0, 1] {
            for mut frame in both_versions(ttl) {
                let before = frame.clone();
                let answer = route(&mut frame, 18, MAC_A, MAC_B);
                assert_eq!(answer, Err(RewriteError::TtlExpired { ttl }));
                assert_eq!(frame, before);
            }
        }
    }

    #[test]
    fn marking_keeps_ecn_and_everything_else() {
        for frame in both_versions(9) {
            for dscp in 0..=63 {
                let mut marked = frame.clone();
                set_dscp(&mut marked, 18, dscp).unwrap();
                let parsed = parse_frame(&marked).unwrap();
                assert_eq!((parsed.dscp, parsed.ecn), (dscp, 2));
                set_dscp(&mut marked, 18, 5).unwrap();
                assert_eq!(marked, frame);
            }
        }
        let refused = set_dscp(&mut [], 14, 64);
        assert_eq!(refused, Err(RewriteError::DscpRange { dscp: 64 }));
    }

    #[test]
    fn the_trailer_of_an_ip_packet_does_not_count_for_its_length() {
        for mut frame in both_versions(9) {
            let whole = frame.len();
            frame.resize(whole + 400, 7);
            assert_eq!(length_without_trailer(&frame, 18), Ok(whole.max(FRAME_LENGTH_MIN)));
            let truncated = length_without_trailer(&frame[..18 + 19], 18);
            assert!(matches!(truncated, Err(RewriteError::Truncated { .. })));
        }
        assert_eq!(FRAME_LENGTH_MIN, 60);
    }

    #[test]
    fn a_wrong_checksum_stays_wrong() {
        let [mut frame, _] = both_versions(9);
        frame[18 + 10] ^= 0x40;
        route(&mut frame, 18, MAC_A, MAC_B).unwrap();
        set_dscp(&mut frame, 18, 1).unwrap();
        assert_eq!(parse_frame(&frame), Err(Outcome::Checksum));
    }

    #[test]
    fn a_short_frame_or_a_wild_offset_is_refused() {
        for frame in both_versions(9) {
            for length in 0..18 + 20 {
                let mut short = frame[..length].to_vec();
                assert!(matches!(
                    route(&mut short, 18, MAC_A, MAC_B),
                    Err(RewriteError::Truncated { .. })
                ));
                assert_eq!(short, frame[..length]);
            }
            let mut frame = frame;
            assert!(route(&mut frame, u16::MAX, MAC_A, MAC_B).is_err());
            assert!(set_dscp(&mut frame, 0, 1).is_err());
        }
    }

    #[test]
    fn swapping_twice_changes_nothing() {
        let frame = FrameBuilder::new().ethernet(MAC_A, MAC_B).ipv4([1; 4], [2; 4], 9).build();
        let mut swapped = frame.clone();
        swap_macs(&mut swapped).unwrap();
        assert_eq!((&swapped[..6], &swapped[6..12]), (&MAC_A[..], &MAC_B[..]));
        swap_macs(&mut swapped).unwrap();
        assert_eq!(swapped, frame);
        assert!(swap_macs(&mut swapped[..13]).is_err());
    }
}
