//! Devices that a node makes for itself: by one the cell hands packets to the kernel, by the other
//! packets come up to the cell from modules at kernel level.

use super::kernel_settings;
use anyhow::{Context, Result};
use netlink::{AddressPrefix, DuplicateDetection, Netlink};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use units::Name;

/// MTU of the node's own devices: above every port's, with metadata in front.
pub(crate) const DEVICE_MTU: u32 = 9216;

/// Letters of a node's name that fit into a device's name, behind a prefix of four.
const NODE_IN_DEVICE: usize = 11;
/// Characters of a digest in a device's name, which distinguishes nodes whose longer names begin
/// alike.
const DIGEST_IN_DEVICE: usize = 5;

/// Returns the name of a device of the node's own.
pub(crate) fn device_name(prefix: &str, node: &Name) -> String {
    let node = node.as_str();
    if node.len() <= NODE_IN_DEVICE {
        return format!("{prefix}-{node}");
    }
    let digest = module_store::Digest::of(node.as_bytes()).hex();
    let head = &node[..NODE_IN_DEVICE - DIGEST_IN_DEVICE];
    format!("{prefix}-{head}{}", &digest[..DIGEST_IN_DEVICE])
}

/// Prefix of the device by which packets go from the cell to the kernel.
pub(crate) const KERNEL_DEVICE: &str = "tam";

/// Returns the index of the TAP device that [`up_device`] makes.
pub(crate) fn up_index(netlink: &Netlink, node: &Name) -> Result<u32> {
    Ok(netlink.link(&device_name("tup", node))?.index)
}

/// Returns the index of the TUN device that [`kernel_device`] makes.
pub(crate) fn kernel_index(netlink: &Netlink, node: &Name) -> Result<u32> {
    Ok(netlink.link(&device_name(KERNEL_DEVICE, node))?.index)
}

/// Time within which a previous holder of a device of the node's, a daemon that hands over or its
/// cell, has ended.
const DEVICE_FREE_WITHIN: Duration = Duration::from_secs(5);

/// Creates a device of the node, once no process holds one of that name.
fn own_device(name: &str, kind: sockets::tun::Kind) -> io::Result<OwnedFd> {
    let begun = Instant::now();
    loop {
        match sockets::tun::create(name, kind) {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && begun.elapsed() < DEVICE_FREE_WITHIN =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            made => return made,
        }
    }
}

/// Makes the device through which the cell hands packets to the kernel; returns the cell's end.
pub(crate) fn kernel_device(netlink: &Netlink, node: &Name) -> Result<OwnedFd> {
    let device = device_name(KERNEL_DEVICE, node);
    let fd = own_device(&device, sockets::tun::Kind::Packets)
        .with_context(|| format!("making the TUN device {device}"))?;
    let index = netlink.link(&device)?.index;
    takes_foreign_sources(netlink, &device, index)?;
    netlink.set_mtu(index, DEVICE_MTU)?;
    netlink.set_up(index)?;
    Ok(fd)
}

/// Address of the device by which packets go from the cell to the kernel: a loopback address from
/// which nothing is sent. Without one, a loose reverse path filter drops packets whose route back
/// is by another device (`__fib_validate_source`, Linux).
const KERNEL_DEVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 84, 65, 77);

/// Prepares a device by which packets come in from foreign sources.
pub(crate) fn takes_foreign_sources(netlink: &Netlink, device: &str, index: u32) -> Result<()> {
    kernel_settings::set_if_there(&format!("net/ipv6/conf/{device}/addr_gen_mode"), "1");
    let address = AddressPrefix::new(KERNEL_DEVICE_ADDRESS.into(), 32);
    let address = address.context("adding an address to the node's device")?;
    if let Err(error) = netlink.add_address(index, address, DuplicateDetection::Skip) {
        tracing::warn!(device, %error, "rp_filter of the device could not be set: the kernel may drop packets that the node gives to it");
    }
    kernel_settings::let_in_sources(device);
    Ok(())
}

/// Makes the device by which packets come up to the cell from modules at kernel level; returns its
/// index, and the end that the cell reads.
pub(crate) fn up_device(netlink: &Netlink, node: &Name) -> Result<(u32, OwnedFd)> {
    let device = device_name("tup", node);
    let fd = own_device(&device, sockets::tun::Kind::Frames)
        .with_context(|| format!("making the TAP device {device}"))?;
    // The kernel says nothing of its own there.
    kernel_settings::set_if_there(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1");
    let link = netlink.link(&device)?;
    netlink.set_mtu(link.index, DEVICE_MTU)?;
    netlink.set_no_queue(link.index)?;
    // It is one of the rings that hold what waits for sessions.
    netlink.set_queue_length(link.index, cell::PacketMemory::WAITING_MAX)?;
    netlink.set_up(link.index)?;
    Ok((link.index, fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_fit_and_tell_nodes_apart() {
        let name = |text: &str| device_name("tam", &text.parse().unwrap());
        assert_eq!(name("edge"), "tam-edge");
        assert_eq!(name("elevenchars"), "tam-elevenchars");
        let (first, second) = (name("edge-router-1"), name("edge-router-2"));
        assert!(first.starts_with("tam-edge-r") && first != second, "{first} {second}");
        // IFNAMSIZ, with the zero at the end.
        assert_eq!((first.len(), second.len()), (15, 15));
    }
}
