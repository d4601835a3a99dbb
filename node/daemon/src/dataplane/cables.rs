//! Which ports of a node are cabled to each other: what leaves by one can come in by another.
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

use crate::daemon::Daemon;
use bpf_maps::PORT_CABLED;
use cell::protocol::ToCell;
use netlink::Link;

/// What devices share that are cabled to each other: a number of the node's namespace, or of
/// another one.
type Segment = (bool, u32);

/// The segment that a port's device is on.
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

/// Of devices by number: which are on a segment with another of them.
fn cabled(devices: &[u32], links: &[Link]) -> Vec<bool> {
    let on = |device: &u32| {
        links.iter().find(|link| link.index == *device).and_then(|link| segment(link, links))
    };
    let segments: Vec<Option<Segment>> = devices.iter().map(on).collect();
    let is_shared = |segment: &Option<Segment>| {
        segment.is_some() && segments.iter().filter(|other| *other == segment).count() > 1
    };
    segments.iter().map(is_shared).collect()
}

impl Daemon {
    /// Tells the front door and the cell which ports are cabled to each other.
    pub(crate) fn mark_cabled(&mut self, links: &[Link]) {
        let served = |index: &usize| self.plane.ports[*index].away.is_none();
        let served: Vec<usize> = (0..self.plane.ports.len()).filter(served).collect();
        let devices: Vec<u32> =
            served.iter().map(|index| self.plane.ports[*index].config.ifindex).collect();
        for (index, is_cabled) in served.into_iter().zip(cabled(&devices, links)) {
            let port = &mut self.plane.ports[index];
            if (port.config.flags & PORT_CABLED != 0) == is_cabled {
                continue;
            }
            port.config.flags ^= PORT_CABLED;
            let name = &port.port.spec.name;
            tracing::info!(port = %name, is_cabled, "the port's cable leads to the node itself");
            if let Err(error) = self.plane.front.configure(port.port.id, &port.config) {
                tracing::error!(port = %name, %error, "the front door was not told");
            }
            let facts = port.facts(0);
            self.cells.tell_all(&ToCell::ChangePort(facts), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink::LinkStats;

    fn link(index: u32, kind: &str, parent: u32, master: u32) -> Link {
        let number = |number: u32| (number != 0).then_some(number);
        Link {
            index,
            name: format!("device{index}"),
            mac: None,
            mtu: 1500,
            up: true,
            promiscuous: false,
            running: true,
            kind: (!kind.is_empty()).then(|| kind.to_owned()),
            master: number(master),
            parent: number(parent),
            parent_elsewhere: false,
            vlan: None,
            rx_queues: 1,
            qdisc: None,
            settings: netlink::DeviceSettings::default(),
            stats: LinkStats::default(),
        }
    }

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
