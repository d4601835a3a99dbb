//! Builder that turns a plan into namespaces, devices, addresses and routes. It only adds; the
//! caller removes everything when it fails.

use std::time::Duration;

use namespaces::netns::{NetNs, NetnsError, in_namespace};
use namespaces::sysctl;
use netlink::offload::{self, Offload, OffloadError};
use netlink::{DuplicateDetection, Netlink, Route, VethEnd};
use units::Name;

use crate::error::LabError;
use crate::plan::{LinkEnd, LinkNode, NodeKind, Plan, PlannedLink, PlannedNode};
use crate::state::no_node;

/// Time within which a new link has to report a carrier; it normally takes milliseconds.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(10);

/// Offloads switched off on every device, so that every packet is one frame as on the wire with a
/// complete checksum (design: the way of a packet). On veth a partial checksum would otherwise
/// never be completed.
const OFF_EVERYWHERE: [Offload; 5] =
    [Offload::TxChecksum, Offload::Tso, Offload::Gso, Offload::TxVlan, Offload::RxVlan];

/// Kernel parameters of every node: nothing is advertised or probed, so that a lab works from its
/// first packet on, and asymmetric routes are accepted.
const PARAMETERS: [(&str, &str); 9] = [
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv6.conf.all.disable_ipv6", "0"),
    ("net.ipv6.conf.default.disable_ipv6", "0"),
    ("net.ipv6.conf.all.accept_ra", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.dad_transmits", "0"),
];

/// Kernel parameters of routers. They are set first, since they reset some of the others.
const ROUTER_PARAMETERS: [(&str, &str); 2] =
    [("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1")];
const HOST_PARAMETERS: [(&str, &str); 2] =
    [("net.ipv4.ip_forward", "0"), ("net.ipv6.conf.all.forwarding", "0")];

/// Kernel parameters of a node in a link, which sends nothing of its own: it has no addresses, nor
/// do its devices.
const LINK_PARAMETERS: [(&str, &str); 2] =
    [("net.ipv4.ip_forward", "0"), ("net.ipv6.conf.default.disable_ipv6", "1")];
/// MTU of the clock's cable, the longest frame of `services/flakeway/src/clock.rs`.
const CLOCK_MTU: u32 = 1_500;

/// Namespace that was just made.
struct Site<'plan> {
    node: &'plan PlannedNode,
    namespace: NetNs,
    netlink: Netlink,
}

/// Builds everything. `made` gets the name of each namespace as soon as it exists.
pub(crate) fn build(
    plan: &Plan,
    made: &mut Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut sites = Vec::with_capacity(plan.nodes.len());
    for node in &plan.nodes {
        progress(&format!("{} {}", kind_name(node.kind), node.name));
        sites.push(site(node, made)?);
    }
    for link in &plan.links {
        let [first, second] = &link.ends;
        let quality = link.through.as_ref().map(|through| format!(": {}", through.quality.text()));
        progress(&format!("link {} to {}{}", first.node, second.node, quality.unwrap_or_default()));
        build_link(plan, link, &sites)?;
    }
    progress("routes");
    for site in &sites {
        for route in &site.node.routes {
            let route = Route { destination: route.destination, via: Some(route.via), index: None };
            site.netlink.add_route(&route).map_err(|source| network(site.node, source))?;
        }
    }
    Ok(())
}

fn kind_name(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Host => "host",
        NodeKind::Router => "router",
        NodeKind::Link => "link's node",
    }
}

fn site<'plan>(node: &'plan PlannedNode, made: &mut Vec<String>) -> Result<Site<'plan>, LabError> {
    let namespace = NetNs::create(&node.namespace).map_err(|error| match error {
        NetnsError::Exists { name } => LabError::NamespaceTaken { namespace: name },
        other => other.into(),
    })?;
    made.push(node.namespace.clone());
    let netlink = Netlink::open_in(&namespace).map_err(|source| network(node, source))?;
    in_namespace(&namespace, || set_parameters(node.kind))?
        .map_err(|source| LabError::Parameter { node: node.name.to_string(), source })?;
    let loopback = netlink.link("lo").and_then(|link| netlink.set_up(link.index));
    loopback.map_err(|source| network(node, source))?;
    Ok(Site { node, namespace, netlink })
}

fn set_parameters(kind: NodeKind) -> Result<(), sysctl::SysctlError> {
    let (forwarding, all): (_, &[_]) = match kind {
        NodeKind::Router => (&ROUTER_PARAMETERS, &PARAMETERS),
        NodeKind::Host => (&HOST_PARAMETERS, &PARAMETERS),
        NodeKind::Link => (&LINK_PARAMETERS, &[]),
    };
    forwarding.iter().chain(all).try_for_each(|(key, value)| sysctl::write(key, value))
}

fn build_link(plan: &Plan, link: &PlannedLink, sites: &[Site<'_>]) -> Result<(), LabError> {
    let [one, other] = &link.ends;
    let first = CableEnd { site: site_of(plan, &one.node, sites)?, device: &one.device };
    let second = CableEnd { site: site_of(plan, &other.node, sites)?, device: &other.device };
    let mut inner = Vec::new();
    match &link.through {
        None => cable([first, second], link.mtu)?,
        Some(through) => {
            let site = site_of(plan, &through.node, sites)?;
            let [left, right] = LinkNode::PORTS.map(|device| CableEnd { site, device });
            let [tick, tock] = LinkNode::CLOCK.map(|device| CableEnd { site, device });
            cable([left, first], link.mtu)?;
            cable([right, second], link.mtu)?;
            cable([tick, tock], CLOCK_MTU)?;
            inner.extend([left, right, tick, tock]);
        }
    }
    for CableEnd { site, device } in &inner {
        let netlink = &site.netlink;
        let up = netlink.link(device).and_then(|found| netlink.set_up(found.index));
        up.map_err(|source| network(site.node, source))?;
    }
    let ends = [(first, one), (second, other)];
    for (CableEnd { site, .. }, end) in ends {
        build_end(link, end, &site.netlink).map_err(|source| network(site.node, source))?;
    }
    // With both ends up: only then does veth tell the other end that it can redirect here.
    for CableEnd { site, device } in inner.iter().chain([&first, &second]) {
        set_gro(site, device)?;
        wait_running(&[device], site)?;
    }
    for (CableEnd { site, .. }, end) in ends {
        wait_running(&[&end.address_device], site)?;
    }
    Ok(())
}

/// End of a cable: a device in a site.
#[derive(Clone, Copy)]
struct CableEnd<'site> {
    site: &'site Site<'site>,
    device: &'site str,
}

/// Connects two devices by a veth pair that is down and has the offloads of [`OFF_EVERYWHERE`] off.
fn cable(ends: [CableEnd<'_>; 2], mtu: u32) -> Result<(), LabError> {
    let pair =
        ends.map(|CableEnd { site, device }| VethEnd { name: device, namespace: &site.namespace });
    let [CableEnd { site, .. }, _] = ends;
    let made = site.netlink.create_veth(pair, mtu);
    made.map_err(|source| network(site.node, source))?;
    for CableEnd { site, device } in ends {
        offloads(site, || offload::disable(device, &OFF_EVERYWHERE).map(drop))?;
    }
    Ok(())
}

fn site_of<'site>(
    plan: &Plan,
    name: &Name,
    sites: &'site [Site<'site>],
) -> Result<&'site Site<'site>, LabError> {
    sites.iter().find(|site| site.node.name == *name).ok_or_else(|| {
        // A plan that was not made by `Lab::parse`.
        let names: Vec<&str> = sites.iter().map(|site| site.node.name.as_str()).collect();
        no_node(plan.lab.as_str(), name.as_str(), names)
    })
}

/// Sets GRO, which on veth switches the receiving side to NAPI with the ring into which the other
/// end's XDP redirect puts its frames. A host needs it on, as it has no XDP program of its own, and
/// merges only what it receives itself. A router must see each frame alone; its ring comes with its
/// node's XDP program.
fn set_gro(site: &Site<'_>, device: &str) -> Result<(), LabError> {
    offloads(site, || match site.node.kind {
        NodeKind::Host => offload::enable(device, &[Offload::Gro]).map(drop),
        NodeKind::Router | NodeKind::Link => offload::disable(device, &[Offload::Gro]).map(drop),
    })
}

/// Changes offloads inside a namespace. The previous settings are not kept: the device is deleted
/// with the lab.
fn offloads(
    site: &Site<'_>,
    change: impl FnOnce() -> Result<(), OffloadError> + Send,
) -> Result<(), LabError> {
    in_namespace(&site.namespace, change)?
        .map_err(|source| LabError::Offload { node: site.node.name.to_string(), source })
}

fn build_end(
    link: &PlannedLink,
    end: &LinkEnd,
    netlink: &Netlink,
) -> Result<(), netlink::NetlinkError> {
    let device = netlink.link(&end.device)?.index;
    let mut address_device = device;
    if let Some(vlan) = link.vlan {
        netlink.create_vlan(&end.address_device, device, vlan)?;
        address_device = netlink.link(&end.address_device)?.index;
    }
    if let Some(rate) = link.rate {
        netlink.set_rate(device, rate)?;
    }
    netlink.set_up(device)?;
    if address_device != device {
        netlink.set_up(address_device)?;
    }
    for address in [end.v4, end.v6] {
        netlink.add_address(address_device, address, DuplicateDetection::Skip)?;
    }
    Ok(())
}

/// Waits until the devices can send, since users of a lab may send as soon as it is up.
fn wait_running(devices: &[&str], site: &Site<'_>) -> Result<(), LabError> {
    for device in devices {
        let found = site.netlink.link(device);
        let runs = found.and_then(|it| site.netlink.wait_running(it.index, CARRIER_TIMEOUT));
        runs.map_err(|source| network(site.node, source))?;
    }
    Ok(())
}

fn network(node: &PlannedNode, source: netlink::NetlinkError) -> LabError {
    LabError::Network { node: node.name.to_string(), source }
}
