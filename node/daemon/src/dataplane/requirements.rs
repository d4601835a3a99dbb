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
