//! Settings of the kernel that a cached route rests on, and how a change of each is noticed.
//!
//! ```text
//!  netlink tells   routes, neighbours, addresses, devices, forwarding … ─▶ Change ─┐
//!  nobody tells    hashing of paths, IPv6 MTU, disable_ipv6 …                      ├─▶ new generation:
//!                    every LOOK: read, compared with what it was ──────────────────┤   caches are empty
//!  nobody tells    netfilter, IPsec, queueing disciplines ─▶ slow reasons ─────────┘
//! ```
//!
//! docs/reference/kernel.md lists what is followed; a system test generates that list and changes each entry
//! while packets of cached flows pass. It knows no port: [`KernelSettings::watch`] names the devices.

use namespaces::sysctl;
use netlink::{DeviceSettings, Link, Netlink};
use std::collections::BTreeMap;
use tokio::time::Duration;

/// Interval at which settings are read that the kernel sends no notification of.
pub(crate) const LOOK: Duration = Duration::from_millis(400);
/// Time within which a change is followed (docs/reference/kernel.md).
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
/// Half of the time is left for a slow reading.
const _: () = assert!(2 * LOOK.as_millis() < FOLLOWED_WITHIN.as_millis());

/// Settings of the whole namespace that are read: those of `all` beside those of each device, and
/// those that no device has.
const NAMESPACE: &[&str] = &[
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    ACCEPT_LOCAL,
    "net/ipv4/conf/all/ignore_routes_with_linkdown",
    "net/ipv4/fib_multipath_hash_policy",
    "net/ipv4/fib_multipath_hash_fields",
    "net/ipv4/fib_multipath_use_neigh",
    "net/ipv4/ip_forward_use_pmtu",
    V6_FORWARDING,
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/all/ignore_routes_with_linkdown",
    "net/ipv6/fib_multipath_hash_policy",
    "net/ipv6/fib_multipath_hash_fields",
];
/// Setting that counts beside that of each device.
const ACCEPT_LOCAL: &str = "net/ipv4/conf/all/accept_local";
/// Value of `rp_filter`: the route back leads to the device itself.
const STRICT: i32 = 1;
/// Setting that counts for IPv6, whatever that of a device says (`ip6_forward`, Linux).
const V6_FORWARDING: &str = "net/ipv6/conf/all/forwarding";

/// Settings as they were last read.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelSettings {
    namespace: Vec<Option<String>>,
    devices: BTreeMap<u32, DeviceSettings>,
    /// VLAN devices above ports: the port's device, the VLAN, its device.
    vlans: Vec<(u32, u16, u32)>,
}

impl KernelSettings {
    /// Returns the VLAN devices above a port's device.
    pub(super) fn above(&self, port: u32) -> impl Iterator<Item = u32> + '_ {
        self.vlans.iter().filter(move |(below, ..)| *below == port).map(|(.., device)| *device)
    }

    /// Names the devices that packets of the node come and leave by, as they are now.
    pub(super) fn watch(&mut self, links: &[Link], vlans: Vec<(u32, u16, u32)>, ports: &[u32]) {
        let is_watched =
            |index: &u32| ports.contains(index) || vlans.iter().any(|(.., device)| device == index);
        let watched = links.iter().filter(|link| is_watched(&link.index));
        self.devices = watched.map(|link| (link.index, link.settings)).collect();
        self.vlans = vlans;
    }

    /// Reads the settings that the kernel sends no notification of. Returns true when one changed.
    pub(super) fn poll(&mut self, netlink: &Netlink) -> bool {
        let namespace = NAMESPACE.iter().map(|key| sysctl::read(key).ok()).collect();
        // The removal of a device is notified by netlink.
        self.compare(namespace, |index| Some(netlink.link_at(index).ok()?.settings))
    }

    /// Stores settings that were read, of the namespace and of watched devices. Returns true when
    /// one changed since the last time; a device of which nothing is known keeps its settings.
    fn compare(
        &mut self,
        namespace: Vec<Option<String>>,
        of_device: impl Fn(u32) -> Option<DeviceSettings>,
    ) -> bool {
        // What is read first is how the node began.
        let mut changed = !self.namespace.is_empty() && self.namespace != namespace;
        self.namespace = namespace;
        for (index, settings) in &mut self.devices {
            let Some(found) = of_device(*index) else { continue };
            changed |= *settings != found;
            *settings = found;
        }
        changed
    }
}

/// Sets what a kernel need not have.
pub(super) fn set_if_there(key: &str, value: &str) {
    if let Err(error) = sysctl::write(key, value) {
        tracing::debug!(%error, "no such setting");
    }
}

/// Lets the kernel take what a cell gives it by a device, from whatever source it came:
/// sources are judged at the ports. Where the namespace's filter is strict the device's has to be
/// loose, as the larger number counts.
pub(super) fn let_in_sources(device: &str) {
    let key = format!("net/ipv4/conf/{device}/rp_filter");
    let wanted = if of_all("net/ipv4/conf/all/rp_filter") == STRICT { "2" } else { "0" };
    match sysctl::read(&key) {
        Ok(now) if now.trim() != wanted => set_if_there(&key, wanted),
        _ => {}
    }
}

/// Returns the value of the setting of `all`; 0 when there is none.
fn of_all(key: &str) -> i32 {
    sysctl::read(key).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the reverse path filter that counts for IPv4 packets that come in by a device: the
/// stricter of the namespace's and the device's setting, as its number.
pub(super) fn reverse_path_filter(settings: &DeviceSettings) -> i32 {
    of_all("net/ipv4/conf/all/rp_filter").max(settings.v4_rp_filter)
}

/// Returns whether IPv4 packets from this machine's own addresses may come in by a device.
pub(super) fn accepts_own(settings: &DeviceSettings) -> bool {
    of_all(ACCEPT_LOCAL) != 0 || settings.v4_accept_local != 0
}

/// Returns true when the kernel forwards IPv6 packets that come in by a device.
pub(super) fn forwards_v6(settings: &DeviceSettings) -> bool {
    let forwards = of_all(V6_FORWARDING) != 0 || settings.v6_force_forwarding != 0;
    forwards && settings.v6_disabled == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::fake::link;

    fn said(word: &str) -> Vec<Option<String>> {
        vec![Some(word.to_owned()), None]
    }

    #[test]
    fn a_change_is_noticed_once_and_the_first_reading_is_none() {
        let mut settings = KernelSettings::default();
        assert!(!settings.compare(said("0"), |_| None));
        assert!(!settings.compare(said("0"), |_| None));
        assert!(settings.compare(said("1"), |_| None));
        assert!(!settings.compare(said("1"), |_| None));
        assert!(settings.compare(vec![None, None], |_| None), "one that is gone is a change, too");
    }

    #[test]
    fn settings_of_ports_and_of_vlan_devices_above_them_are_compared_and_others_are_not() {
        let mut settings = KernelSettings::default();
        let links = [link(1, "", 0, 0), link(2, "vlan", 1, 0), link(3, "", 0, 0)];
        settings.watch(&links, vec![(1, 7, 2)], &[1]);
        assert_eq!(settings.above(1).collect::<Vec<_>>(), [2]);
        assert_eq!(settings.above(2).count(), 0);
        let strict = DeviceSettings { v4_rp_filter: 1, ..DeviceSettings::default() };
        for (changed, is_watched) in [(1, true), (2, true), (3, false)] {
            let now = |index| Some(if index == changed { strict } else { Default::default() });
            let mut settings = settings.clone();
            assert_eq!(settings.compare(said("0"), now), is_watched, "device {changed}");
            assert!(!settings.compare(said("0"), now));
            assert!(!settings.compare(said("0"), |_| None), "a device that is gone is no change");
        }
    }

    #[test]
    fn ipv6_is_forwarded_where_the_kernel_does() {
        let on = DeviceSettings { v6_force_forwarding: 1, ..DeviceSettings::default() };
        assert!(forwards_v6(&on));
        assert!(!forwards_v6(&DeviceSettings { v6_disabled: 1, ..on }));
    }
}
