//! Cables between ports of one node: what leaves by one port can come in by another.
//!
//! ```text
//!   a ═══ b            the two ends of a veth
//!   a ═══ x ┐
//!   b ═══ y ┴ bridge   far ends in one bridge, or one port is the bridge
//!   a ┐
//!   b ┴ device         macvlans above one device
//! ```
//!
//! Known is what the kernel says of devices of the node's own namespace. A cable between two
//! network cards, or by way of another namespace or machine, is not seen.

use netlink::Link;

/// Link that cabled devices share: true for one of another namespace, and its number there.
type Segment = (bool, u32);

/// Returns the segment that a port's device is on.
fn segment(link: &Link, links: &[Link]) -> Option<Segment> {
    let elsewhere = link.parent_elsewhere;
    match link.kind.as_deref()? {
        "bridge" => Some((false, link.index)),
        "macvlan" | "macvtap" => Some((elsewhere, link.parent?)),
        "veth" if !elsewhere => {
            let peer = links.iter().find(|other| Some(other.index) == link.parent)?;
            Some((false, peer.master.unwrap_or(link.index.min(peer.index))))
        }
        _ => None,
    }
}

/// Returns which of some devices, by number, are on a segment with another of them.
pub(super) fn cabled(devices: &[u32], links: &[Link]) -> Vec<bool> {
    let on = |device: &u32| {
        links.iter().find(|link| link.index == *device).and_then(|link| segment(link, links))
    };
    let segments: Vec<Option<Segment>> = devices.iter().map(on).collect();
    let is_shared = |segment: &Option<Segment>| {
        segment.is_some() && segments.iter().filter(|other| *other == segment).count() > 1
    };
    segments.iter().map(is_shared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::link;

    #[test]
    fn ports_of_one_cable_bridge_or_device_are_cabled_and_others_are_not() {
        let mut links = vec![
            link(1, "", 0, 0),
            link(2, "veth", 3, 0),
            link(3, "veth", 2, 0),
            link(4, "veth", 5, 0),
            link(5, "veth", 4, 8),
            link(6, "veth", 7, 0),
            link(7, "veth", 6, 8),
            link(8, "bridge", 0, 0),
            link(9, "macvlan", 1, 0),
            link(10, "macvlan", 1, 0),
            link(11, "vlan", 1, 0),
            // Its peer has the number 3 in another namespace.
            link(12, "veth", 3, 0),
        ];
        links.last_mut().unwrap().parent_elsewhere = true;
        let pairs: [(&[u32], bool); 9] = [
            (&[2, 3], true),
            (&[4, 6], true),
            (&[4, 8], true),
            (&[9, 10], true),
            (&[1, 9], false),
            (&[2, 4], false),
            (&[9, 11], false),
            (&[3, 12], false),
            (&[1, 99], false),
        ];
        for (devices, expected) in pairs {
            assert_eq!(cabled(devices, &links), [expected; 2], "{devices:?}");
        }
        assert_eq!(cabled(&[1, 2, 3, 4], &links), [false, true, true, false]);
    }
}
