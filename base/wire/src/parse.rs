//! Parser: reads the fields of a frame that rules and routes match on.
//!
//! Decides exactly as the front door does (`levels/bpf/c/front_door.bpf.c`);
//! a differential test compares the two, so a change here is a change there.
//! Reads headers up to L4 and judges no payload, no address and no L4 checksum. Unreadable data
//! after the IP header is no error but [`Hidden`], for a router needs none of it.
//!
//! ```text
//! 0            14    18    22           l4_offset        ip_end
//! ┌────────────┬ ─ ─ ┬ ─ ─ ┬────────────┬────────────────┬ ─ ─ ─ ─ ┐
//! │ Ethernet   │ tag │ tag │ IP, options│ L4 header,     │ padding │
//! │            │     │     │ extensions │ payload        │         │
//! └────────────┴ ─ ─ ┴ ─ ─ ┴────────────┴────────────────┴ ─ ─ ─ ─ ┘
//!                          └ l3_offset  └── ip_length counts from l3_offset
//! ```

mod values;

pub use values::{Ethernet, Fragment, Hidden, Outcome, Parsed, VlanTag};

use crate::protocol::{self as p, ETHERNET_LENGTH, IPV4_LENGTH, IPV6_LENGTH, VLAN_TAG_LENGTH};
use crate::sum::checksum;

/// Most VLAN tags that are parsed: one of the provider, one of the customer (IEEE 802.1ad).
pub const VLAN_TAGS_MAX: u8 = 2;
/// Most IPv6 extension headers that are parsed. RFC 8200 section 4.1 lists six in a full chain; a
/// longer one is more likely an attack than a protocol.
pub const EXTENSIONS_MAX: u8 = 8;
/// Limit of header offsets, bytes: headers that begin beyond it are not read.
pub const HEADERS_MAX: usize = 4096;

/// Offset of the flags in a TCP header (RFC 9293 section 3.1).
const TCP_FLAGS_AT: usize = 13;

/// Longest extension header in bytes: a length field of 255 counts 256 units of 8 bytes.
const EXTENSION_LENGTH_MAX: usize = 256 * 8;
const _: () = assert!(
    ETHERNET_LENGTH
        + VLAN_TAGS_MAX as usize * VLAN_TAG_LENGTH
        + IPV6_LENGTH
        + EXTENSIONS_MAX as usize * EXTENSION_LENGTH_MAX
        <= u16::MAX as usize,
    "every L4 offset fits u16"
);

/// Reads the headers of `frame`, the contiguous head of a frame that holds at
/// least all of its IP packet.
///
/// Bytes behind the IP packet are padding and ignored.
///
/// # Errors
/// An [`Outcome`] for a frame that no rule can see: not IP or too many VLAN
/// tags, which the kernel takes, or a malformed one, which is dropped.
pub fn parse_frame(frame: &[u8]) -> Result<Parsed, Outcome> {
    let mut parsed = parse_link(frame)?;
    match parsed.ethernet.ethertype {
        p::ETHERTYPE_IPV4 => parse_ipv4(frame, &mut parsed)?,
        p::ETHERTYPE_IPV6 => parse_ipv6(frame, &mut parsed)?,
        _ => return Err(Outcome::NotIp),
    }
    Ok(parsed)
}

/// Returns a hash of the flow that is equal for both directions: it chooses the lane.
///
/// The front door computes the same. With `a0..a3` the source and `b0..b3` the
/// destination as four little-endian `u32` each, in wrapping arithmetic:
///
/// ```text
/// x  = (a0 ^ b0) ^ rotl(a1 ^ b1, 7) ^ rotl(a2 ^ b2, 14) ^ rotl(a3 ^ b3, 21)
/// x ^= source_port ^ destination_port      (their values; 0 for every fragment)
/// x ^= protocol << 24
/// x ^= x >> 16;  x *= 0x85ebca6b;  x ^= x >> 13;  x *= 0xc2b2ae35;  x ^= x >> 16
/// ```
///
/// The last line is the finalizer of MurmurHash3. The first fragment's L4 ports
/// are left out so that all fragments of a datagram meet in one lane. Where an IPv6 datagram has
/// extension headers after the fragment header only its first fragment shows the protocol
/// after those: a caller that knows the first gives its `protocol` to the later ones.
#[must_use]
pub fn flow_hash(parsed: &Parsed) -> u32 {
    let mut x = 0;
    let words = parsed.source.chunks_exact(4).zip(parsed.destination.chunks_exact(4));
    for ((a, b), turn) in words.zip([0, 7, 14, 21]) {
        let word = [a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2], a[3] ^ b[3]];
        x ^= u32::from_le_bytes(word).rotate_left(turn);
    }
    if parsed.fragment == Fragment::None {
        x ^= u32::from(parsed.source_port ^ parsed.destination_port);
    }
    x ^= u32::from(parsed.protocol) << 24;
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Reads the Ethernet header alone: MAC addresses, VLAN tags, the ethertype behind them.
///
/// # Errors
/// The header is cut off, or has too many tags.
pub fn parse_link(frame: &[u8]) -> Result<Parsed, Outcome> {
    let header: &[u8; ETHERNET_LENGTH] = chunk(frame, 0)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, type_high, type_low] = *header;
    let mut parsed = Parsed {
        ethernet: Ethernet {
            destination: [d0, d1, d2, d3, d4, d5],
            source: [s0, s1, s2, s3, s4, s5],
            ethertype: 0,
        },
        ..Parsed::default()
    };
    let mut ethertype = u16::from_be_bytes([type_high, type_low]);
    let mut offset = ETHERNET_LENGTH;
    while matches!(ethertype, p::ETHERTYPE_VLAN | p::ETHERTYPE_SERVICE_VLAN) {
        if parsed.vlan_tags == VLAN_TAGS_MAX {
            return Err(Outcome::VlanDepth);
        }
        let [control_high, control_low, next_high, next_low] = *chunk(frame, offset)?;
        parsed.vlan.get_or_insert(VlanTag {
            protocol: ethertype,
            id: u16::from_be_bytes([control_high & 0x0f, control_low]),
            priority: control_high >> 5,
            drop_eligible: control_high & 0x10 != 0,
        });
        parsed.vlan_tags += 1;
        ethertype = u16::from_be_bytes([next_high, next_low]);
        offset += VLAN_TAG_LENGTH;
    }
    parsed.l3_offset = offset as u16;
    parsed.ethernet.ethertype = ethertype;
    Ok(parsed)
}

/// Parses an IPv4 header (RFC 791 section 3.1).
fn parse_ipv4(frame: &[u8], parsed: &mut Parsed) -> Result<(), Outcome> {
    let l3 = usize::from(parsed.l3_offset);
    let header: &[u8; IPV4_LENGTH] = chunk(frame, l3)?;
    if header[0] >> 4 != 4 {
        return Err(Outcome::IpVersion);
    }
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header_length < IPV4_LENGTH {
        return Err(Outcome::HeaderLength);
    }
    let with_options = frame.get(l3..l3 + header_length).ok_or(Outcome::Truncated)?;
    let total_length = u16::from_be_bytes([header[2], header[3]]);
    if usize::from(total_length) < header_length || l3 + usize::from(total_length) > frame.len() {
        return Err(Outcome::TotalLength);
    }
    if checksum(with_options) != 0 {
        return Err(Outcome::Checksum);
    }

    parsed.ip_version = 4;
    parsed.ip_length = u32::from(total_length);
    parsed.dscp = header[1] >> 2;
    parsed.ecn = header[1] & 0x03;
    parsed.ttl = header[8];
    parsed.protocol = header[9];
    parsed.source[..4].copy_from_slice(&header[12..16]);
    parsed.destination[..4].copy_from_slice(&header[16..20]);
    parsed.has_options = header_length > IPV4_LENGTH;

    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let (offset, more) = (fragment & 0x1fff, fragment & 0x2000 != 0);
    parsed.see_fragment(offset, more, u32::from(u16::from_be_bytes([header[4], header[5]])));
    if parsed.fragment != Fragment::Later {
        parse_l4(frame, parsed, l3 + header_length);
    }
    Ok(())
}

/// Parses an IPv6 header and its extensions (RFC 8200 sections 3 and 4).
fn parse_ipv6(frame: &[u8], parsed: &mut Parsed) -> Result<(), Outcome> {
    let l3 = usize::from(parsed.l3_offset);
    let header: &[u8; IPV6_LENGTH] = chunk(frame, l3)?;
    if header[0] >> 4 != 6 {
        return Err(Outcome::IpVersion);
    }
    let payload_length = u16::from_be_bytes([header[4], header[5]]);
    let next_header = header[6];
    let end = l3 + IPV6_LENGTH + usize::from(payload_length);
    let jumbogram = payload_length == 0 && next_header == p::HOP_BY_HOP;
    if end > frame.len() || jumbogram {
        return Err(Outcome::TotalLength);
    }

    parsed.ip_version = 6;
    parsed.ip_length = IPV6_LENGTH as u32 + u32::from(payload_length);
    let traffic_class = (header[0] << 4) | (header[1] >> 4);
    parsed.dscp = traffic_class >> 2;
    parsed.ecn = traffic_class & 0x03;
    parsed.ttl = header[7];
    parsed.source.copy_from_slice(&header[8..24]);
    parsed.destination.copy_from_slice(&header[24..40]);

    if let Some(offset) = walk_extensions(&frame[..end], parsed, next_header, l3 + IPV6_LENGTH) {
        parse_l4(frame, parsed, offset);
    }
    Ok(())
}

/// Walks the extension headers from `offset` on, in a packet that ends where the IP packet does.
/// Returns the offset of the L4 header, if there is one and it is not hidden.
fn walk_extensions(
    packet: &[u8],
    parsed: &mut Parsed,
    mut next_header: u8,
    mut offset: usize,
) -> Option<usize> {
    let mut extensions = 0;
    while p::is_extension(next_header) {
        parsed.protocol = next_header;
        parsed.hidden = Hidden::Protocol;
        parsed.has_options |= next_header == p::HOP_BY_HOP;
        if extensions == EXTENSIONS_MAX || offset > HEADERS_MAX {
            return None;
        }
        extensions += 1;
        let header: &[u8; 8] = packet.get(offset..)?.first_chunk()?;
        let length = match next_header {
            p::FRAGMENT => 8,
            p::AUTHENTICATION => (usize::from(header[1]) + 2) * 4,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if next_header == p::FRAGMENT {
            let field = u16::from_be_bytes([header[2], header[3]]);
            let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            parsed.see_fragment(field >> 3, field & 1 != 0, id);
        }
        if offset + length > packet.len() {
            return None;
        }
        next_header = header[0];
        offset += length;
        if parsed.fragment == Fragment::Later {
            break;
        }
    }
    parsed.protocol = next_header;
    parsed.hidden = Hidden::Nothing;
    let l4 = parsed.fragment != Fragment::Later && next_header != p::NO_NEXT_HEADER;
    l4.then_some(offset)
}

/// Reads L4 ports and TCP flags of a packet that is no later fragment, as far as the packet holds
/// them.
fn parse_l4(frame: &[u8], parsed: &mut Parsed, offset: usize) {
    let needed = p::l4_header_length(parsed.protocol).unwrap_or(0);
    let header = frame.get(offset..parsed.ip_end()).unwrap_or_default();
    if header.len() >= needed {
        parsed.l4_offset = Some(offset as u16);
    }
    let header = if offset > HEADERS_MAX { &[] } else { header };
    if !p::has_l4_ports(parsed.protocol) {
        return;
    }
    let Some([source_high, source_low, high, low]) = header.first_chunk() else {
        parsed.hidden = Hidden::Ports;
        return;
    };
    parsed.source_port = u16::from_be_bytes([*source_high, *source_low]);
    parsed.destination_port = u16::from_be_bytes([*high, *low]);
    if parsed.protocol == p::TCP {
        match header.get(TCP_FLAGS_AT) {
            Some(flags) => parsed.tcp_flags = *flags,
            None => parsed.hidden = Hidden::Flags,
        }
    }
}

/// Returns the `N` bytes at `offset`, or an error when the frame is cut off.
fn chunk<const N: usize>(frame: &[u8], offset: usize) -> Result<&[u8; N], Outcome> {
    frame.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(Outcome::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::FrameBuilder;

    #[test]
    fn the_flow_hash_is_the_documented_formula() {
        let frame = FrameBuilder::new().ipv4([10, 0, 0, 1], [10, 0, 1, 2], 64).udp(1000, 2000);
        let parsed = parse_frame(&frame.build()).unwrap();
        let mut x: u32 = (0x0100_000a ^ 0x0201_000a) ^ (1000 ^ 2000) ^ (17 << 24);
        x ^= x >> 16;
        x = x.wrapping_mul(0x85eb_ca6b);
        x ^= x >> 13;
        x = x.wrapping_mul(0xc2b2_ae35);
        x ^= x >> 16;
        assert_eq!(flow_hash(&parsed), x);
    }

    #[test]
    fn both_directions_and_all_fragments_of_a_datagram_share_one_hash() {
        let (a, b) = ([10, 0, 0, 1], [10, 0, 1, 2]);
        let there = FrameBuilder::new().ipv4(a, b, 64).udp(1000, 2000).payload(&[7; 64]);
        let back = FrameBuilder::new().ipv4(b, a, 3).udp(2000, 1000);
        let hash = |frame: &[u8]| flow_hash(&parse_frame(frame).unwrap());
        assert_eq!(hash(&there.build()), hash(&back.build()));
        let fragments = there.build_fragments(16);
        assert_eq!(fragments.len(), 5);
        assert!(fragments.iter().all(|fragment| hash(fragment) == hash(&fragments[0])));
    }

    #[test]
    fn a_third_tag_goes_to_the_kernel_even_when_it_is_cut_off() {
        let frame = FrameBuilder::new().vlan(1).vlan(2).vlan(3).ipv4([1; 4], [2; 4], 9).build();
        assert_eq!(parse_frame(&frame), Err(Outcome::VlanDepth));
        assert_eq!(parse_frame(&frame[..22]), Err(Outcome::VlanDepth));
        assert_eq!(parse_frame(&frame[..21]), Err(Outcome::Truncated));
    }
}
