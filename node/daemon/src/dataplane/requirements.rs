//! Requirements on the device of a port, and the port's configuration for the front door.
//!
//! Everything here is a function of what the kernel says of a device; nothing is changed.

use super::kernel_settings;
use anyhow::{Context, Result, bail};
use bpf_maps::{
    PORT_ACCEPTS_OWN, PORT_NO_V6, PORT_RAW, PortConfig, RPF_LOOSE, RPF_NONE, RPF_STRICT,
    SLOW_NO_REDIRECT,
};
use netlink::{Link, Netlink, NetlinkError};
use node::{PortKind, PortSpec};
use units::PortId;

/// Largest L3 MTU of a port, in bytes, that all levels support: five frames of packet memory, and
/// the node's own devices, can hold it.
pub const MTU_MAX: u32 = 9000;

/// Reason for a device not being able to be a port as it is now. All are the operator's to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error(
        "the device {device} has no Ethernet address; a TUN device is a port with kind = \"tun\""
    )]
    NoEthernetAddress { device: String },
    #[error("{device} is there and is no TUN device: it has an Ethernet address")]
    NotTun { device: String },
    #[error(
        "{device} has an MTU of {mtu}, a port has at most {MTU_MAX}; 'ip link set dev {device} mtu {MTU_MAX}' sets it"
    )]
    MtuOverLimit { device: String, mtu: u32 },
}

/// Reverse path filter and flags by which packets are judged that come in by a device, a port's or
/// a VLAN device above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceChecks {
    /// `RPF_*`, as [`PortConfig::rpf`].
    pub(super) rpf: u8,
    /// [`PORT_NO_V6`] where IPv6 is not forwarded, [`PORT_ACCEPTS_OWN`] where packets from the
    /// machine's own IPv4 addresses may come in; as [`PortConfig::flags`].
    pub(super) flags: u8,
}

/// Checks that a device can be a port of this kind.
///
/// # Errors
/// The first requirement that it does not meet.
pub(super) fn check_fit(link: &Link, kind: PortKind) -> Result<(), Unfit> {
    let device = || link.name.clone();
    match (kind, link.mac) {
        (PortKind::Device, None) => Err(Unfit::NoEthernetAddress { device: device() }),
        (PortKind::Tun, Some(_)) => Err(Unfit::NotTun { device: device() }),
        _ if link.mtu > MTU_MAX => Err(Unfit::MtuOverLimit { device: device(), mtu: link.mtu }),
        _ => Ok(()),
    }
}

/// Returns true when there is no device of this name.
pub(super) fn is_missing(netlink: &Netlink, device: &str) -> bool {
    matches!(netlink.link(device), Err(NetlinkError::NoDevice { .. }))
}

/// Returns the front door's configuration of a port with this device; `bridge` is the port at the
/// other end of its bridge.
pub(super) fn port_config(link: &Link, bridge: Option<PortId>, kind: PortKind) -> PortConfig {
    let SourceChecks { rpf, flags } = source_checks(link);
    PortConfig {
        ifindex: link.index,
        // The other slow reasons are read at the next poll of kernel settings. This one cannot
        // wait: packets redirected to such a device are lost.
        slow: if bpf::takes_redirects(link.index) { 0 } else { SLOW_NO_REDIRECT },
        mac: link.mac.unwrap_or_default(),
        rpf,
        flags: if kind == PortKind::Tun { PORT_RAW | flags } else { flags },
        mtu: link.mtu,
        bridge: bridge.map_or(0, |other| u32::from(other.0) + 1),
    }
}

/// Returns the checks that the kernel would make of packets that come in by a device.
pub(super) fn source_checks(link: &Link) -> SourceChecks {
    let rpf = match kernel_settings::reverse_path_filter(&link.settings) {
        0 => RPF_NONE,
        1 => RPF_STRICT,
        _ => RPF_LOOSE,
    };
    let no_v6 = if kernel_settings::forwards_v6(&link.settings) { 0 } else { PORT_NO_V6 };
    let accepts = if kernel_settings::accepts_own(&link.settings) { PORT_ACCEPTS_OWN } else { 0 };
    SourceChecks { rpf, flags: no_v6 | accepts }
}

/// Checks that the devices of all ports exist in this network namespace, but for TUN devices, which
/// the node makes itself, and that each can be a port.
///
/// # Errors
/// The first port whose device is missing or unfit, or netlink cannot be asked.
pub(crate) fn check_devices(ports: &[PortSpec]) -> Result<()> {
    let netlink = Netlink::open().context("opening netlink")?;
    for port in ports {
        if port.kind == PortKind::Tun && is_missing(&netlink, &port.device) {
            continue;
        }
        let link = netlink.link(&port.device).with_context(|| format!("port '{}'", port.name))?;
        if let Err(unfit) = check_fit(&link, port.kind) {
            bail!("port '{}': {unfit}", port.name);
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
        assert_eq!(check_fit(&device, PortKind::Device), Ok(()));
        assert_eq!(check_fit(&tun, PortKind::Tun), Ok(()));
        let name = device.name.clone();
        let unfit = check_fit(&tun, PortKind::Device).unwrap_err();
        assert_eq!(unfit, Unfit::NoEthernetAddress { device: name.clone() });
        assert!(unfit.to_string().ends_with("is a port with kind = \"tun\""), "{unfit}");
        let unfit = check_fit(&device, PortKind::Tun).unwrap_err();
        assert_eq!(unfit, Unfit::NotTun { device: name.clone() });
        assert_eq!(check_fit(&Link { mtu: MTU_MAX, ..device.clone() }, PortKind::Device), Ok(()));
        let long = Link { mtu: MTU_MAX + 1, ..device };
        let unfit = check_fit(&long, PortKind::Device).unwrap_err();
        assert_eq!(unfit, Unfit::MtuOverLimit { device: name, mtu: MTU_MAX + 1 });
        assert!(unfit.to_string().ends_with("mtu 9000' sets it"), "{unfit}");
    }

    #[test]
    fn a_device_is_described_for_the_front_door_as_it_is_now() {
        let device = Link { mtu: 1400, ..link(3, "", 0, 0) };
        let config = port_config(&device, Some(PortId(4)), PortKind::Device);
        assert_eq!((config.ifindex, config.mac, config.mtu), (3, MAC, 1400));
        assert_eq!((config.bridge, config.flags & PORT_RAW), (5, 0));
        let tun = Link { mac: None, ..device };
        let config = port_config(&tun, None, PortKind::Tun);
        assert_eq!((config.mac, config.bridge, config.flags & PORT_RAW), ([0; 6], 0, PORT_RAW));
    }

    #[test]
    fn the_larger_number_of_the_filter_counts_and_ipv6_that_is_off_at_the_device() {
        let with = |settings| source_checks(&Link { settings, ..link(3, "", 0, 0) });
        let loose = DeviceSettings { v4_rp_filter: 2, ..DeviceSettings::default() };
        assert_eq!(with(loose).rpf, RPF_LOOSE, "2 is the largest number, and so counts");
        let off = DeviceSettings { v6_disabled: 1, v4_accept_local: 1, ..loose };
        assert_eq!(with(off).flags, PORT_NO_V6 | PORT_ACCEPTS_OWN);
    }
}
