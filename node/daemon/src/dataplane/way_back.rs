//! Ways by which a cell hands frames to the kernel without a TUN device: veth pairs of the node's.
//!
//! A frame of a packet port goes back by a pair of its own, so that the kernel sees it on the port's
//! device; other packets come in by one pair of the node.

use super::{devices, kernel_settings};
use anyhow::{Context, Result};
use cell::protocol::KERNEL_MAC;
use namespaces::netns::NetNs;
use netlink::{Link, Netlink, VethEnd};
use sockets::frame_socket::{FrameSocket, TAKEN_MARK};
use std::time::Duration;
use units::Name;

/// Time within which a veth pair is ready to send.
const PAIR_READY_WITHIN: Duration = Duration::from_secs(5);
/// MTU of a pair: any frame fits through it.
const PAIR_MTU: u32 = 65_535;

/// Returns the names of the devices by which frames go back: the cell's end, and the one that they
/// come in by.
fn pair_names(port_index: u32) -> [String; 2] {
    ["tpa", "tpb"].map(|end| format!("{end}-{port_index}"))
}

/// Returns the frames that were lost on the way back of a packet port's device.
pub(super) fn lost(port: u32, links: &[Link]) -> u64 {
    let [ours, _] = pair_names(port);
    let pair = links.iter().find(|link| link.name == ours);
    pair.map_or(0, |link| link.stats.tx_packets_dropped.0)
}

/// Opens the cell's end of the way back of a packet port's device.
pub(super) fn open(netlink: &Netlink, port: u32) -> Result<FrameSocket> {
    let [ours, _] = pair_names(port);
    let ours = netlink.link(&ours)?.index;
    FrameSocket::open_marked(ours, TAKEN_MARK).context("opening the path back into the kernel")
}

/// Makes the way back into the kernel for a device. Returns the name of the device to be removed.
pub(super) fn make(netlink: &Netlink, port: u32, mac: [u8; 6]) -> Result<String> {
    let [ours, theirs] = pair_names(port);
    let namespace = NetNs::current()?;
    // One that a node which died has left would lead to a device that is gone.
    if let Ok(left) = netlink.link(&ours) {
        netlink.delete_link(left.index)?;
    }
    let ends = [&*ours, &*theirs].map(|name| VethEnd { name, namespace: &namespace });
    netlink.create_veth(ends, PAIR_MTU)?;
    let made = connect(netlink, [&ours, &theirs], port, mac);
    made.inspect_err(|_| {
        // The first failure is the one that is reported.
        let _ = netlink.link(&ours).and_then(|link| netlink.delete_link(link.index));
    })?;
    Ok(ours)
}

fn connect(netlink: &Netlink, names: [&String; 2], port: u32, mac: [u8; 6]) -> Result<()> {
    for name in names {
        // The kernel says nothing of its own there.
        kernel_settings::set_if_there(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    let [ours, theirs] = [netlink.link(names[0])?.index, netlink.link(names[1])?.index];
    // Frames for the port are for this end, too.
    netlink.set_mac(theirs, mac)?;
    netlink.redirect_to(theirs, port)?;
    netlink.set_up(theirs)?;
    netlink.set_up(ours)?;
    Ok(netlink.wait_running(ours, PAIR_READY_WITHIN)?)
}

/// Returns the names of the devices by which packets come in that have no port: the cell's end, and
/// the kernel's.
fn entry_names(node: &Name) -> [String; 2] {
    ["tpi", "tam"].map(|prefix| devices::device_name(prefix, node))
}

/// Makes the device by which the cell gives packets to the kernel where there need be no TUN
/// devices. Returns the cell's socket to it.
pub(super) fn make_entry(netlink: &Netlink, node: &Name) -> Result<FrameSocket> {
    remove_entry(netlink, node);
    let names = entry_names(node);
    let namespace = NetNs::current()?;
    let ends = [&*names[0], &*names[1]].map(|name| VethEnd { name, namespace: &namespace });
    netlink.create_veth(ends, devices::DEVICE_MTU)?;
    let [ours, theirs] = [netlink.link(&names[0])?.index, netlink.link(&names[1])?.index];
    kernel_settings::set_if_there(&format!("net/ipv6/conf/{}/disable_ipv6", names[0]), "1");
    devices::takes_foreign_sources(netlink, &names[1], theirs)?;
    netlink.set_mac(theirs, KERNEL_MAC)?;
    netlink.set_up(theirs)?;
    netlink.set_up(ours)?;
    netlink.wait_running(ours, PAIR_READY_WITHIN)?;
    FrameSocket::open(ours).context("opening the path back into the kernel")
}

/// Removes that device. Returns true when there was one.
pub(crate) fn remove_entry(netlink: &Netlink, node: &Name) -> bool {
    let [ours, _] = entry_names(node);
    netlink.link(&ours).and_then(|link| netlink.delete_link(link.index)).is_ok()
}

/// Gives the way back the address of the port's device.
pub(super) fn readdress(netlink: &Netlink, port: u32, mac: [u8; 6]) -> Result<()> {
    let [_, theirs] = pair_names(port);
    Ok(netlink.set_mac(netlink.link(&theirs)?.index, mac)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_of_pairs_are_unique_by_port_and_node() {
        assert_eq!(pair_names(12), ["tpa-12", "tpb-12"]);
        let edge: Name = "edge".parse().unwrap();
        assert_eq!(entry_names(&edge), ["tpi-edge", "tam-edge"]);
        assert_eq!(entry_names(&edge)[1], devices::device_name(devices::KERNEL_DEVICE, &edge));
    }
}
