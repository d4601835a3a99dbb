//! Plan of a lab: its namespaces, devices, addresses and routes. Pure: the same file gives the same
//! plan everywhere, and nothing here touches the system.
//!
//! Link number N, counted from 1, has the networks `10.77.N.0/24` and `fd77:0:0:N::/64`; its first
//! end has the address 1 in both, its second end the address 2.

mod route;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::AddressPrefix;
use route::routes;
use serde::{Deserialize, Serialize};
use units::{BitsPerSecond, Name};

use crate::device::{device_name, vlan_device_name};
use crate::quality::Quality;

/// Version of the plan and of the record in `/run` as JSON.
pub const SCHEMA_VERSION: u32 = 1;

/// Prefix of every lab's namespaces.
pub(crate) const NAMESPACE_PREFIX: &str = "tam-";

const LENGTH_V4: u8 = 24;
const LENGTH_V6: u8 = 64;

/// Plan of a lab: everything is decided and nothing made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this structure.
    pub schema_version: u32,
    /// The lab's name.
    pub lab: Name,
    /// Hosts, then routers, each in the order of the file, then the nodes in links.
    pub nodes: Vec<PlannedNode>,
    /// Links in the order of the file.
    pub links: Vec<PlannedLink>,
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// Host: it sends and receives, and forwards nothing.
    Host,
    /// Router: it forwards, and runs a Tamandua node if the caller starts one.
    Router,
    /// Node in a link: a bridge of two ports that applies the link's quality.
    Link,
}

/// Node of the plan: a host, a router or a node in a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedNode {
    /// Name in the file.
    pub name: Name,
    /// Kind of the node, which decides whether it forwards.
    pub kind: NodeKind,
    /// Network namespace, `tam-LAB-NODE`.
    pub namespace: String,
    /// Routes to the networks that it is not on.
    pub routes: Vec<PlannedRoute>,
    /// Node file of a router without ports, as the topology has it.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub node: toml::Table,
}

/// Route of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRoute {
    /// Network of a link.
    pub destination: AddressPrefix,
    /// Address of the next router on a link of the node.
    pub via: IpAddr,
}

/// Link between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedLink {
    /// Number, counted from 1: the third byte of the link's addresses.
    pub number: u8,
    /// Ends of the link.
    pub ends: [LinkEnd; 2],
    /// Largest layer 3 packet, in bytes.
    pub mtu: u32,
    /// Rate at which each end sends at most; `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "rate_bits_per_second")]
    pub rate: Option<BitsPerSecond>,
    /// VLAN identifier of tagged packets; `None` for untagged ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Node in the link with its quality, if the link has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<LinkNode>,
}

/// Node in a link; its ports are [`LinkNode::PORTS`] and [`LinkNode::CLOCK`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkNode {
    /// Name of the node.
    pub node: Name,
    /// Quality that the node gives the link.
    pub quality: Quality,
}

/// End of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// Name of the node.
    pub node: Name,
    /// Device that sends and receives frames: a router's port.
    pub device: String,
    /// Device that has the addresses: the same, or the VLAN device above it.
    pub address_device: String,
    /// IPv4 address with its prefix length.
    pub v4: AddressPrefix,
    /// IPv6 address with its prefix length.
    pub v6: AddressPrefix,
}

impl Plan {
    /// Returns the node of this name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&PlannedNode> {
        self.nodes.iter().find(|node| node.name.as_str() == name)
    }

    /// Returns the routers, in the order of the file.
    pub fn routers(&self) -> impl Iterator<Item = &PlannedNode> {
        self.nodes.iter().filter(|node| node.kind == NodeKind::Router)
    }

    /// Returns the nodes that run Tamandua: routers, and nodes in links.
    pub fn with_node(&self) -> impl Iterator<Item = &PlannedNode> {
        self.nodes.iter().filter(|node| node.kind != NodeKind::Host)
    }

    /// Returns a node's ends of links, in the order of the file. A router's are its ports.
    pub fn ends_at<'plan>(
        &'plan self,
        node: &'plan str,
    ) -> impl Iterator<Item = (&'plan PlannedLink, &'plan LinkEnd)> {
        self.links.iter().flat_map(move |link| {
            let own = link.ends.iter().filter(move |end| end.node.as_str() == node);
            own.map(move |end| (link, end))
        })
    }

    /// Returns a node's first address of each family, under which it is reached.
    #[must_use]
    pub fn addresses_of(&self, node: &str) -> Option<(IpAddr, IpAddr)> {
        self.ends_at(node).next().map(|(_, end)| (end.v4.address(), end.v6.address()))
    }
}

impl LinkNode {
    /// Devices towards the link's first end and its second, which are the node's ports.
    pub const PORTS: [&str; 2] = ["left", "right"];
    /// Devices of a cable from the node to itself, by which its service measures time.
    pub const CLOCK: [&str; 2] = ["tick", "tock"];
}

/// Node as the file describes it.
pub(crate) struct NodeSpec {
    pub(crate) name: Name,
    pub(crate) kind: NodeKind,
    pub(crate) node: toml::Table,
}

/// Link as the file describes it; its ends are indexes in the list of nodes.
pub(crate) struct LinkSpec {
    pub(crate) ends: [usize; 2],
    pub(crate) mtu: u32,
    pub(crate) vlan: Option<u16>,
    pub(crate) rate: Option<BitsPerSecond>,
    pub(crate) quality: Option<Quality>,
}

/// Makes the plan. There are at most [`crate::LINKS_MAX`] links, and their ends exist.
pub(crate) fn plan(lab: Name, nodes: Vec<NodeSpec>, links: Vec<LinkSpec>) -> Plan {
    let mut taken = vec![BTreeSet::new(); nodes.len()];
    let mut names: BTreeSet<Name> = nodes.iter().map(|node| node.name.clone()).collect();
    let planned: Vec<PlannedLink> = (1..=u8::MAX)
        .zip(&links)
        .map(|(number, link)| planned_link(number, link, &nodes, &mut taken, &mut names))
        .collect();
    let routes = routes(&nodes, &links, &planned);
    let planned_node = |(wish, routes): (NodeSpec, _)| PlannedNode {
        namespace: format!("{NAMESPACE_PREFIX}{lab}-{}", wish.name),
        name: wish.name,
        kind: wish.kind,
        routes,
        node: wish.node,
    };
    let within = planned.iter().filter_map(|link| link.through.as_ref()).map(|through| {
        let (name, kind) = (through.node.clone(), NodeKind::Link);
        (NodeSpec { name, kind, node: toml::Table::new() }, Vec::new())
    });
    let nodes = nodes.into_iter().zip(routes).chain(within).map(planned_node).collect();
    Plan { schema_version: SCHEMA_VERSION, lab, nodes, links: planned }
}

fn planned_link(
    number: u8,
    link: &LinkSpec,
    nodes: &[NodeSpec],
    taken: &mut [BTreeSet<String>],
    names: &mut BTreeSet<Name>,
) -> PlannedLink {
    let end = |at: usize| {
        let (own, peer) = (link.ends[at], link.ends[1 - at]);
        (own, peer, at as u8 + 1)
    };
    let ends = [end(0), end(1)].map(|(own, peer, host)| {
        let device = device_name(nodes[peer].name.as_str(), &mut taken[own]);
        let address_device = match link.vlan {
            Some(vlan) => vlan_device_name(&device, vlan, &mut taken[own]),
            None => device.clone(),
        };
        let (v4, v6) = addresses(number, host);
        LinkEnd { node: nodes[own].name.clone(), device, address_device, v4, v6 }
    });
    let through = link.quality.clone();
    let through = through.map(|quality| LinkNode { node: link_name(number, names), quality });
    PlannedLink { number, ends, mtu: link.mtu, rate: link.rate, vlan: link.vlan, through }
}

/// Returns a name for the node in a link that no other node has.
fn link_name(number: u8, names: &mut BTreeSet<Name>) -> Name {
    let base = format!("link-{number}");
    let further = (2_u32..).map(|count| format!("{base}-{count}"));
    let mut all = std::iter::once(base.clone())
        .chain(further)
        .map(|name| Name::new(name).expect("letters, digits and dashes, no more than 20 of them"));
    let free = all.find(|name| !names.contains(name)).expect("there are fewer nodes than numbers");
    names.insert(free.clone());
    free
}

fn addresses(link: u8, host: u8) -> (AddressPrefix, AddressPrefix) {
    let v4 = Ipv4Addr::new(10, 77, link, host);
    let v6 = Ipv6Addr::new(0xfd77, 0, 0, link.into(), 0, 0, 0, host.into());
    let within = "24 and 64 are within 32 and 128";
    (
        AddressPrefix::new(v4.into(), LENGTH_V4).expect(within),
        AddressPrefix::new(v6.into(), LENGTH_V6).expect(within),
    )
}

#[cfg(test)]
mod tests;
