//! Requirements on a port's device, and the description of a device for the front door.

use super::kernel_settings;
use anyhow::{Context, Result, bail};
use bpf_maps::{
    PORT_ACCEPTS_OWN, PORT_NO_V6, PORT_RAW, PortConfig, RPF_LOOSE, RPF_NONE, RPF_STRICT,
    SLOW_NO_REDIRECT,
};
use netlink::{Link, Netlink, NetlinkError};
use node::{PortKind, PortSpec};
use units::PortId;

/// Largest MTU that all levels serve: five frames of packet memory, and the node's own devices, have
/// room for it.
const MTU_MAX: u32 = 9000;

/// Returns the reason for a device not being able to be a port as it is now.
pub(super) fn unfit(link: &Link, kind: PortKind) -> Option<String> {
    let device = &link.name;
    match (kind, link.mac) {
        (PortKind::Device, None) => {
            return Some(format!(
                "the device {device} has no Ethernet address; a TUN device is a port with kind = \"tun\""
            ));
        }
        (PortKind::Tun, Some(_)) => {
            return Some(format!(
                "{device} is there and is no TUN device: it has an Ethernet address"
            ));
        }
        _ => {}
    }
    (link.mtu > MTU_MAX).then(|| {
        format!(
            "{device} has an MTU of {}, a port has at most {MTU_MAX}; 'ip link set dev {device} mtu {MTU_MAX}' sets it",
            link.mtu
        )
    })
}

/// Returns true when there is no device of this name.
pub(super) fn is_missing(netlink: &Netlink, device: &str) -> bool {
    matches!(netlink.link(device), Err(NetlinkError::NoDevice { .. }))
}

/// Returns the configuration of a port for the front door, from what the kernel says of its device.
pub(super) fn describe(link: &Link, bridge: Option<PortId>, kind: PortKind) -> PortConfig {
    let (rpf, judged) = judged_there(link);
    PortConfig {
        ifindex: link.index,
        // The rest is found out when everything is looked at next; this would lose packets at once.
        slow: if bpf::takes_redirects(link.index) { 0 } else { SLOW_NO_REDIRECT },
        mac: link.mac.unwrap_or_default(),
        rpf,
        flags: if kind == PortKind::Tun { PORT_RAW | judged } else { judged },
        mtu: link.mtu,
        bridge: bridge.map_or(0, |other| u32::from(other.0) + 1),
    }
}

/// Returns how packets are judged that come in by a device, a port's or a VLAN device above it: the
/// reverse path filter, [`PORT_NO_V6`] where IPv6 is not forwarded, and [`PORT_ACCEPTS_OWN`] where packets
/// from the machine's own IPv4 addresses may come in.
pub(super) fn judged_there(link: &Link) -> (u8, u8) {
    let rpf = match kernel_settings::reverse_path_filter(&link.settings) {
        0 => RPF_NONE,
        1 => RPF_STRICT,
        _ => RPF_LOOSE,
    };
    let no_v6 = if kernel_settings::forwards_v6(&link.settings) { 0 } else { PORT_NO_V6 };
    let accepts = if kernel_settings::accepts_own(&link.settings) { PORT_ACCEPTS_OWN } else { 0 };
    (rpf, no_v6 | accepts)
}

/// Checks that the devices of all ports are here, but for those that the node makes itself, and
/// that each can be a port.
///
/// # Errors
/// The first one that is not: the node file is another network namespace's, say.
pub(crate) fn check_there(ports: &[PortSpec]) -> Result<()> {
    let netlink = Netlink::open().context("opening netlink")?;
    for port in ports {
        if port.kind == PortKind::Tun && is_missing(&netlink, &port.device) {
            continue;
        }
        let link = netlink.link(&port.device).with_context(|| format!("port '{}'", port.name))?;
        if let Some(reason) = unfit(&link, port.kind) {
            bail!("port '{}': {reason}", port.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::{MAC, link};
    use netlink::DeviceSettings;

    #[test]
    fn a_device_is_fit_by_its_kind_and_its_mtu() {
        let device = link(3, "", 0, 0);
        let tun = Link { mac: None, ..device.clone() };
        assert_eq!(unfit(&device, PortKind::Device), None);
        assert_eq!(unfit(&tun, PortKind::Tun), None);
        let reason = unfit(&tun, PortKind::Device).unwrap();
        assert!(reason.contains("kind = \"tun\""), "{reason}");
        let reason = unfit(&device, PortKind::Tun).unwrap();
        assert!(reason.contains("is no TUN device"), "{reason}");
        assert_eq!(unfit(&Link { mtu: MTU_MAX, ..device.clone() }, PortKind::Device), None);
        let reason = unfit(&Link { mtu: MTU_MAX + 1, ..device }, PortKind::Device).unwrap();
        assert!(reason.contains("mtu 9000' sets it"), "{reason}");
    }

    #[test]
    fn a_device_is_described_for_the_front_door_as_it_is_now() {
        let device = Link { mtu: 1400, ..link(3, "", 0, 0) };
        let config = describe(&device, Some(PortId(4)), PortKind::Device);
        assert_eq!((config.ifindex, config.mac, config.mtu), (3, MAC, 1400));
        assert_eq!((config.bridge, config.flags & PORT_RAW), (5, 0));
        let tun = Link { mac: None, ..device };
        let config = describe(&tun, None, PortKind::Tun);
        assert_eq!((config.mac, config.bridge, config.flags & PORT_RAW), ([0; 6], 0, PORT_RAW));
    }

    #[test]
    fn the_stricter_filter_counts_and_ipv6_that_is_off_at_the_device() {
        let with = |settings| judged_there(&Link { settings, ..link(3, "", 0, 0) });
        let strictest = DeviceSettings { v4_rp_filter: 2, ..DeviceSettings::default() };
        assert_eq!(with(strictest).0, RPF_LOOSE, "2 is the largest number, and so counts");
        let off = DeviceSettings { v6_disabled: 1, v4_accept_local: 1, ..strictest };
        assert_eq!(with(off).1, PORT_NO_V6 | PORT_ACCEPTS_OWN);
    }
}
