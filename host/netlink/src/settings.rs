//! Settings of a device that affect packets that arrive or leave by it (`net.ipv4.conf.DEVICE`,
//! `net.ipv6.conf.DEVICE`), as the kernel reports them with the device: one answer has all of both
//! families.

use rtnetlink::packet_route::link::{AfSpecInet, AfSpecInet6, AfSpecUnspec};
use serde::Serialize;

/// Settings of one device that forwarding depends on; all zero where the device has no part of that
/// family (Documentation/networking/ip-sysctl.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceSettings {
    /// `net.ipv4.conf.DEVICE.forwarding`.
    pub v4_forwarding: i32,
    /// `net.ipv4.conf.DEVICE.rp_filter`; the larger one of this and that of `all` counts.
    pub v4_rp_filter: i32,
    /// `net.ipv4.conf.DEVICE.accept_local`.
    pub v4_accept_local: i32,
    /// `net.ipv4.conf.DEVICE.ignore_routes_with_linkdown`.
    pub v4_ignore_linkdown: i32,
    /// `net.ipv4.conf.DEVICE.bc_forwarding`.
    pub v4_broadcast_forwarding: i32,
    /// `net.ipv6.conf.DEVICE.forwarding`.
    pub v6_forwarding: i32,
    /// `net.ipv6.conf.DEVICE.force_forwarding` (Linux 6.17).
    pub v6_force_forwarding: i32,
    /// `net.ipv6.conf.DEVICE.disable_ipv6`.
    pub v6_disabled: i32,
    /// `net.ipv6.conf.DEVICE.mtu`, bytes.
    pub v6_mtu: i32,
    /// `net.ipv6.conf.DEVICE.ignore_routes_with_linkdown`.
    pub v6_ignore_linkdown: i32,
    /// `net.ipv6.conf.DEVICE.seg6_enabled`.
    pub v6_segment_routing: i32,
}

impl DeviceSettings {
    /// Parses the settings from the kernel's report of each family (`IFLA_AF_SPEC`).
    pub(super) fn of(families: &[AfSpecUnspec]) -> Self {
        let mut settings = Self::default();
        for family in families {
            match family {
                AfSpecUnspec::Inet(parts) => parts.iter().for_each(|part| settings.take_v4(part)),
                AfSpecUnspec::Inet6(parts) => parts.iter().for_each(|part| settings.take_v6(part)),
                _ => {}
            }
        }
        settings
    }

    fn take_v4(&mut self, part: &AfSpecInet) {
        let AfSpecInet::DevConf(conf) = part else { return };
        self.v4_forwarding = conf.forwarding;
        self.v4_rp_filter = conf.rp_filter;
        self.v4_accept_local = conf.accept_local;
        self.v4_ignore_linkdown = conf.ignore_routes_with_linkdown;
        self.v4_broadcast_forwarding = conf.bc_forwarding;
    }

    fn take_v6(&mut self, part: &AfSpecInet6) {
        let AfSpecInet6::DevConf(conf) = part else { return };
        self.v6_forwarding = conf.forwarding;
        self.v6_force_forwarding = conf.force_forwarding;
        self.v6_disabled = conf.disable_ipv6;
        self.v6_mtu = conf.mtu6;
        self.v6_ignore_linkdown = conf.ignore_routes_with_linkdown;
        self.v6_segment_routing = conf.seg6_enabled;
    }
}
