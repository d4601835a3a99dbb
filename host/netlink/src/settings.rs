//! Settings of a device that decide what becomes of a packet that comes in or leaves by it
//! (`net.ipv4.conf.DEVICE`, `net.ipv6.conf.DEVICE`), as the kernel describes them with the
//! device: one answer has all of both families.

use serde::Serialize;

use super::attribute::Attribute;

/// `IFLA_INET_CONF` and `IFLA_INET6_CONF` (include/uapi/linux/if_link.h): settings in the order of
/// their numbers, as many as the kernel has.
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;

/// Settings of one device, of those that forwarding rests on; all zero where the device has no
/// part of that family (Documentation/networking/ip-sysctl.rst).
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
    /// Reads them out of what the kernel says of each family (`IFLA_AF_SPEC`).
    pub(super) fn of(families: &Attribute<'_>) -> Self {
        let mut settings = Self::default();
        for family in families.nested() {
            for part in family.nested() {
                match (i32::from(family.kind), part.kind) {
                    (libc::AF_INET, IFLA_INET_CONF) => settings.take_v4(part.value),
                    (libc::AF_INET6, IFLA_INET6_CONF) => settings.take_v6(part.value),
                    _ => {}
                }
            }
        }
        settings
    }

    /// Takes those of IPv4: `IPV4_DEVCONF_*` of include/uapi/linux/ip.h, which begin with 1.
    fn take_v4(&mut self, conf: &[u8]) {
        self.v4_forwarding = setting(conf, 0);
        self.v4_rp_filter = setting(conf, 7);
        self.v4_accept_local = setting(conf, 22);
        self.v4_ignore_linkdown = setting(conf, 28);
        self.v4_broadcast_forwarding = setting(conf, 31);
    }

    /// Takes those of IPv6: `DEVCONF_*` of include/uapi/linux/ipv6.h, which begin with 0.
    fn take_v6(&mut self, conf: &[u8]) {
        self.v6_forwarding = setting(conf, 0);
        self.v6_mtu = setting(conf, 2);
        self.v6_disabled = setting(conf, 26);
        self.v6_ignore_linkdown = setting(conf, 39);
        self.v6_segment_routing = setting(conf, 44);
        self.v6_force_forwarding = setting(conf, 59);
    }
}

/// Returns the setting at a place, 0 where the kernel has none there.
fn setting(conf: &[u8], at: usize) -> i32 {
    let bytes = conf.get(at * size_of::<i32>()..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::{attribute, attributes};

    #[test]
    fn settings_stand_at_their_numbers_and_a_kernel_may_have_fewer() {
        let conf = |count: i32| (100..100 + count).flat_map(i32::to_ne_bytes).collect::<Vec<_>>();
        let v4 = attribute(IFLA_INET_CONF, &conf(33));
        let v6 = [attribute(1, &[0; 4]), attribute(IFLA_INET6_CONF, &conf(59))].concat();
        let families = [
            attribute(libc::AF_INET as u16, &v4),
            attribute(libc::AF_INET6 as u16, &v6),
            attribute(libc::AF_BRIDGE as u16, &v4),
        ];
        let whole = attribute(26, &families.concat());
        let found = DeviceSettings::of(&attributes(&whole).next().unwrap());
        let expected = DeviceSettings {
            v4_forwarding: 100,
            v4_rp_filter: 107,
            v4_accept_local: 122,
            v4_ignore_linkdown: 128,
            v4_broadcast_forwarding: 131,
            v6_forwarding: 100,
            v6_force_forwarding: 0,
            v6_disabled: 126,
            v6_mtu: 102,
            v6_ignore_linkdown: 139,
            v6_segment_routing: 144,
        };
        assert_eq!(found, expected);
    }
}
