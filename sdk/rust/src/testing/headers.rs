//! Metadata of a test's frame: Ethernet, VLAN tags, IPv4, IPv6 and its extension headers, as far as
//! the metadata describes them.

use crate::layout::{
    MARK_LENGTH, META_FRAGMENT, META_LATER_FRAGMENT, META_LENGTH, OFFSET_NONE, offset,
};

/// Returns the metadata that a node would write for `frame`, without its lengths.
pub(super) fn meta(
    frame: &[u8],
    port: u16,
    lane: u32,
    now_ms: u64,
    mark: [u8; MARK_LENGTH],
) -> [u8; META_LENGTH] {
    let found = Found::read(frame).unwrap_or_default();
    let mut meta = [0; META_LENGTH];
    meta[offset::BEGINS_WITH] = 1;
    let at_or_none = |at: Option<usize>| {
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or(OFFSET_NONE).to_le_bytes()
    };
    meta[offset::L3_OFFSET..][..2].copy_from_slice(&at_or_none(found.l3));
    meta[offset::L4_OFFSET..][..2].copy_from_slice(&at_or_none(found.l4));
    meta[offset::IP_VERSION] = found.version;
    meta[offset::PROTOCOL] = found.protocol;
    meta[offset::FLAGS] = found.flags;
    meta[offset::PORT..][..2].copy_from_slice(&port.to_le_bytes());
    meta[offset::LANE..][..4].copy_from_slice(&lane.to_le_bytes());
    meta[offset::NOW_MS..][..8].copy_from_slice(&now_ms.to_le_bytes());
    meta[offset::MARK..][..MARK_LENGTH].copy_from_slice(&mark);
    meta
}

/// Offsets of the headers.
#[derive(Default)]
struct Found {
    l3: Option<usize>,
    l4: Option<usize>,
    version: u8,
    protocol: u8,
    flags: u8,
}

const FRAGMENT_HEADER: u8 = 44;

impl Found {
    fn read(frame: &[u8]) -> Option<Self> {
        let u16_at = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let mut l3 = 14;
        // IEEE 802.1Q and 802.1ad: each tag moves the ethertype by 4 bytes.
        while matches!(u16_at(l3 - 2)?, 0x8100 | 0x88a8) {
            l3 += 4;
        }
        match u16_at(l3 - 2)? {
            0x0800 => Self::ipv4(frame, l3),
            0x86dd => Self::ipv6(frame, l3),
            _ => None,
        }
    }

    fn ipv4(frame: &[u8], l3: usize) -> Option<Self> {
        let header = frame.get(l3..l3 + 20)?;
        let length = usize::from(header[0] & 0x0f) * 4;
        let field = u16::from_be_bytes([header[6], header[7]]);
        let flags = fragment_flags(field & 0x2000 != 0, field & 0x1fff != 0);
        let has_l4 = flags & META_LATER_FRAGMENT == 0 && frame.len() >= l3 + length;
        let l4 = has_l4.then_some(l3 + length);
        Some(Self { l3: Some(l3), l4, version: 4, protocol: header[9], flags })
    }

    fn ipv6(frame: &[u8], l3: usize) -> Option<Self> {
        let header = frame.get(l3..l3 + 40)?;
        let mut found = Self { l3: Some(l3), l4: None, version: 6, protocol: header[6], flags: 0 };
        let mut at = l3 + 40;
        // RFC 8200, section 4: hop-by-hop, routing, destination options, fragment.
        while matches!(found.protocol, 0 | 43 | 60 | FRAGMENT_HEADER) {
            let Some(extension) = frame.get(at..at + 8) else { return Some(found) };
            let mut length = (usize::from(extension[1]) + 1) * 8;
            if found.protocol == FRAGMENT_HEADER {
                let field = u16::from_be_bytes([extension[2], extension[3]]);
                found.flags = fragment_flags(field & 1 != 0, field & 0xfff8 != 0);
                length = 8;
            }
            found.protocol = extension[0];
            at += length;
        }
        let has_l4 = found.flags & META_LATER_FRAGMENT == 0 && frame.len() >= at;
        found.l4 = has_l4.then_some(at);
        Some(found)
    }
}

fn fragment_flags(more_follow: bool, is_later: bool) -> u8 {
    match (more_follow, is_later) {
        (_, true) => META_FRAGMENT | META_LATER_FRAGMENT,
        (true, false) => META_FRAGMENT,
        (false, false) => 0,
    }
}
