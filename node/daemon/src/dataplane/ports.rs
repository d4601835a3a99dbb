//! Ports of a node, in the order of the node file.
//!
//! Each is in service or away ([`LivePort`]); changes of a port are written to the front door.

use super::action::Actions;
use super::cables::cabled;
use super::door::Door;
use super::live_port::LivePort;
use super::mode::Mode;
use super::requirements::{SourceChecks, source_checks};
use super::{slow, undo};
use crate::events::Note;
use anyhow::Result;
use bpf::{FrontDoorError, VlanDevice};
use bpf_maps::{PORT_ACCEPTS_OWN, PortConfig};
use cell::protocol::ToCell;
use netlink::{Link, Netlink};
use node::Node;
use std::collections::{BTreeMap, BTreeSet};
use units::{Name, PortId};

/// Ports of a node.
#[derive(Debug)]
pub(super) struct Ports(Vec<LivePort>);

impl Ports {
    /// Creates the owner of ports that are there.
    pub(super) const fn new(ports: Vec<LivePort>) -> Self {
        Self(ports)
    }

    /// Attaches the front door to every port of a node; all of them or none.
    ///
    /// # Errors
    /// A port cannot be served.
    pub(super) fn bring_up(
        netlink: &Netlink,
        door: &mut Door,
        node: &Node,
        ends: &BTreeMap<PortId, PortId>,
    ) -> Result<Self> {
        let mut ports = Self(Vec::new());
        for port in node.ports() {
            let end = ends.get(&port.id).copied();
            match LivePort::attach(netlink, door, port.clone(), end) {
                Ok(port) => ports.0.push(port),
                Err(error) => {
                    ports.restore(netlink);
                    return Err(error);
                }
            }
        }
        Ok(ports)
    }

    /// Returns the ports in their order.
    pub(super) fn all(&self) -> &[LivePort] {
        &self.0
    }

    /// Returns the ports in their order.
    pub(super) fn all_mut(&mut self) -> &mut [LivePort] {
        &mut self.0
    }

    /// Returns the port of this number.
    pub(super) fn get(&self, id: PortId) -> Option<&LivePort> {
        self.0.iter().find(|port| port.id() == id)
    }

    /// Returns the numbers and configurations of ports that are served.
    pub(super) fn served(&self) -> impl Iterator<Item = (PortId, &PortConfig)> {
        let served = self.0.iter().filter(|port| !port.is_away());
        served.map(|port| (port.id(), port.config()))
    }

    /// Returns the devices of ports that are served.
    pub(super) fn devices(&self) -> Vec<u32> {
        self.served().map(|(_, config)| config.ifindex).collect()
    }

    /// Returns the VLAN devices above ports that are served.
    pub(super) fn vlans(&self, links: &[Link]) -> Vec<VlanDevice> {
        let above = |port: u32| {
            links.iter().filter(move |link| link.parent == Some(port)).filter_map(move |link| {
                let SourceChecks { rpf, flags } = source_checks(link);
                Some(VlanDevice { port, vlan: link.vlan?, device: link.index, rpf, flags })
            })
        };
        self.devices().into_iter().flat_map(above).collect()
    }

    /// Returns the ports by which packets from the machine's own addresses may come in.
    pub(super) fn accepting_own(&self) -> BTreeSet<PortId> {
        let accepts = |port: &&LivePort| port.config().flags & PORT_ACCEPTS_OWN != 0;
        self.0.iter().filter(accepts).map(LivePort::id).collect()
    }

    /// Returns the reason for services not being able to run at kernel level.
    pub(super) fn not_at_kernel(&self) -> Option<String> {
        self.0.iter().find_map(LivePort::not_at_kernel)
    }

    /// Returns the events that report ports which are not served in the best mode.
    pub(super) fn fallbacks(&self) -> impl Iterator<Item = Note> {
        self.0.iter().filter_map(LivePort::fallback)
    }

    /// Makes devices of ports that are away be tried once more. Returns true when one had been
    /// tried.
    pub(super) fn try_again(&mut self) -> bool {
        self.0.iter_mut().fold(false, |any, port| any | port.try_again())
    }

    /// Tells the front door and the cells which ports are cabled to each other.
    pub(super) fn mark_cabled(&mut self, door: &Door, links: &[Link], actions: &mut Actions) {
        let is_cabled = cabled(&self.devices(), links);
        let served = self.0.iter_mut().filter(|port| !port.is_away());
        for (port, is_cabled) in served.zip(is_cabled) {
            if !port.set_cabled(is_cabled) {
                continue;
            }
            let name = port.name();
            tracing::info!(port = %name, is_cabled, "the port's cable leads to the node itself");
            if let Err(error) = door.configure(port.id(), port.config()) {
                tracing::error!(port = %name, %error, "the front door was not updated: it goes on with the port's former settings");
            }
            actions.notify(ToCell::ChangePort(port.facts(0)));
        }
    }

    /// Tells the front door of which ports sessions have shares.
    pub(super) fn mark_shared(&mut self, door: &Door, shared: &BTreeSet<PortId>) {
        for port in &mut self.0 {
            if !port.set_shared(shared.contains(&port.id())) || port.is_away() {
                continue;
            }
            if let Err(error) = door.configure(port.id(), port.config()) {
                let name = port.name();
                tracing::error!(port = %name, %error, "the shares of a port were not given to the front door");
            }
        }
    }

    /// Stores the slow reasons that `find` returns for each port with a fast path, and writes them
    /// to the front door.
    ///
    /// # Errors
    /// The front door cannot be written to.
    pub(super) fn set_slow(
        &mut self,
        door: &Door,
        find: impl Fn(u32) -> u32,
        actions: &mut Actions,
    ) -> Result<(), FrontDoorError> {
        let has_fast_path = |port: &&mut LivePort| !port.is_away() && port.mode() != Mode::Packet;
        for port in self.0.iter_mut().filter(has_fast_path) {
            let slowed = port.set_slow(find(port.config().ifindex));
            if slowed.is_news {
                actions.note(slow::note(port.name(), port.config().slow));
            }
            if slowed.is_changed {
                door.configure(port.id(), port.config())?;
            }
        }
        Ok(())
    }

    /// Sets whether the kernel joins segments of TCP at the ports.
    pub(super) fn set_gro(&mut self, on: bool) {
        self.0.iter_mut().for_each(|port| port.set_gro(on));
    }

    /// Writes down what is to be undone should this process die.
    pub(super) fn remember(&self, node: &Name) -> Result<()> {
        undo::remember(node, self.0.iter().flat_map(LivePort::undo))
    }

    /// Gives every device back what it was like.
    pub(super) fn restore(&self, netlink: &Netlink) {
        self.0.iter().for_each(|port| port.restore_as(netlink, &port.spec().device));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::{absent, door, link, served};
    use bpf_maps::{PORT_CABLED, PORT_SHARES, SLOW_NO_REDIRECT, SLOW_QDISC};

    fn flags(ports: &Ports, flag: u8) -> Vec<bool> {
        ports.all().iter().map(|port| port.config().flags & flag != 0).collect()
    }

    #[test]
    fn cabled_ports_are_marked_and_told_once() {
        let mut ports = Ports::new(vec![served(1), absent(2), served(3)]);
        let links = [link(1, "veth", 3, 0), link(3, "veth", 1, 0)];
        let mut actions = Actions::default();
        ports.mark_cabled(&door(), &links, &mut actions);
        assert_eq!(flags(&ports, PORT_CABLED), [true, false, true]);
        let reported = actions.words();
        assert!(
            reported.len() == 2 && reported.iter().all(|it| it.contains("ChangePort")),
            "{reported:?}"
        );
        ports.mark_cabled(&door(), &links, &mut actions);
        assert_eq!(actions.words(), [""; 0]);
        ports.mark_cabled(&door(), &[], &mut actions);
        assert_eq!(flags(&ports, PORT_CABLED), [false; 3]);
        assert_eq!(actions.words().len(), 2);
    }

    #[test]
    fn a_port_with_shares_is_marked_while_it_is_away_too() {
        let mut ports = Ports::new(vec![served(1), absent(2)]);
        ports.mark_shared(&door(), &[PortId(1), PortId(2)].into());
        assert_eq!(flags(&ports, PORT_SHARES), [true, true]);
        ports.mark_shared(&door(), &[PortId(2)].into());
        assert_eq!(flags(&ports, PORT_SHARES), [false, true]);
    }

    #[test]
    fn a_slow_reason_is_reported_once_and_ends_once() {
        let mut ports = Ports::new(vec![served(1), absent(2), served(3)]);
        let mut actions = Actions::default();
        let on_first = |device| if device == 1 { SLOW_QDISC } else { 0 };
        for _ in 0..2 {
            ports.set_slow(&door(), on_first, &mut actions).unwrap();
        }
        let reported = actions.words();
        assert!(
            reported.len() == 1 && reported[0].contains("goes through the kernel"),
            "{reported:?}"
        );
        assert_eq!(ports.get(PortId(1)).unwrap().config().slow, SLOW_QDISC);
        ports.set_slow(&door(), |_| 0, &mut actions).unwrap();
        let reported = actions.words();
        assert!(reported.len() == 1 && reported[0].contains("takes the fast path"), "{reported:?}");
    }

    #[test]
    fn between_the_ends_of_a_bridge_only_what_redirects_cannot_do_is_slow() {
        let mut ports = Ports::new(vec![served(1).bridged(PortId(3)), served(3)]);
        let all = SLOW_QDISC | SLOW_NO_REDIRECT;
        ports.set_slow(&door(), |_| all, &mut Actions::default()).unwrap();
        let slow: Vec<u32> = ports.all().iter().map(|port| port.config().slow).collect();
        assert_eq!(slow, [SLOW_NO_REDIRECT, all]);
    }

    #[test]
    fn vlan_devices_are_those_above_ports_that_are_served() {
        let ports = Ports::new(vec![served(1), absent(2)]);
        let vlan =
            |index, parent, vlan| Link { vlan: Some(vlan), ..link(index, "vlan", parent, 0) };
        let links = [vlan(7, 1, 10), vlan(8, 2, 11), link(9, "macvlan", 1, 0)];
        let found = ports.vlans(&links);
        let found: Vec<_> = found.iter().map(|it| (it.port, it.vlan, it.device)).collect();
        assert_eq!(found, [(1, 10, 7)]);
        assert_eq!(ports.devices(), [1]);
    }
}
