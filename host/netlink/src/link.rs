//! Network devices: lists, makes, changes and removes them. Features of the hardware are the job of
//! `offload`, addresses of `address`.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NetlinkDeserializable, NetlinkHeader};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoData, InfoVeth, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVlan};
use serde::Serialize;
use units::{Bytes, Packets};

use super::NetlinkError;
use super::settings::DeviceSettings;
use super::socket::{Answer, Socket};
use namespaces::netns::NetNs;

/// Length of `struct ifinfomsg`.
const LINK_HEADER_LENGTH: usize = 16;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;

/// Network device, as the kernel described it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Interface index in its namespace.
    pub index: u32,
    /// Interface name, at most 15 bytes.
    pub name: String,
    /// Ethernet address; `None` for devices without one (TUN).
    pub mac: Option<[u8; 6]>,
    /// Largest layer 3 packet, bytes.
    pub mtu: u32,
    /// Administrative state: set up.
    pub up: bool,
    /// Promiscuous mode: receives frames that are addressed to others.
    pub promiscuous: bool,
    /// Operational state: has a carrier and can send.
    pub running: bool,
    /// `veth`, `vlan`, `bridge`, ...; `None` for hardware and loopback.
    pub kind: Option<String>,
    /// Index of the bridge, bond or VRF that the device belongs to.
    pub master: Option<u32>,
    /// Index of the device below (VLAN) or of the peer (veth).
    pub parent: Option<u32>,
    /// True if [`Link::parent`] is an index of another namespace.
    pub parent_elsewhere: bool,
    /// VLAN ID of a VLAN device.
    pub vlan: Option<u16>,
    /// Most receive queues.
    pub rx_queues: u32,
    /// Queueing discipline at the root.
    pub qdisc: Option<String>,
    /// Settings that affect forwarded packets.
    pub settings: DeviceSettings,
    /// Counters.
    pub stats: LinkStats,
}

/// Counters of a device since its creation (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// Packets received.
    pub rx_packets: Packets,
    /// Bytes received.
    pub rx_bytes: Bytes,
    /// Packets received intact and dropped for lack of buffers.
    pub rx_packets_dropped: Packets,
    /// Packets received damaged.
    pub rx_errors: Packets,
    /// Packets sent.
    pub tx_packets: Packets,
    /// Bytes sent.
    pub tx_bytes: Bytes,
    /// Packets dropped on their way out.
    pub tx_packets_dropped: Packets,
    /// Packets that the device failed to send.
    pub tx_errors: Packets,
}

/// End of a veth pair to be made.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'name> {
    /// Device name.
    pub name: &'name str,
    /// Namespace in which the device appears, without being in any other before.
    pub namespace: &'name NetNs,
}

/// Returns all devices of the namespace, by index.
pub(super) fn all(socket: &Socket) -> Result<Vec<Link>, NetlinkError> {
    let request = "list the network devices";
    let answers = socket.dump(request, RTM_GETLINK, &[0; LINK_HEADER_LENGTH])?;
    let mut links = answers
        .iter()
        .filter(|answer| answer.kind == RTM_NEWLINK)
        .map(|answer| read_link(request, answer))
        .collect::<Result<Vec<_>, _>>()?;
    links.sort_unstable_by_key(|link| link.index);
    Ok(links)
}

/// Returns the device of this name.
pub(super) fn named(socket: &Socket, name: &str) -> Result<Link, NetlinkError> {
    let message = LinkUnspec::new_with_name(name).build();
    one(socket, name, &format!("examine the network device '{name}'"), message)
}

/// Returns the device with this index.
pub(super) fn at(socket: &Socket, index: u32) -> Result<Link, NetlinkError> {
    let name = format!("number {index}");
    let message = LinkUnspec::new_with_index(index).build();
    one(socket, &name, &format!("examine the network device number {index}"), message)
}

/// Waits until a device that was set up can send. The kernel connects a device to its
/// queueing discipline some time after both ends of the link are up, and until then drops
/// what is sent without an error (`linkwatch`, Linux).
pub(super) fn wait_running(
    socket: &Socket,
    index: u32,
    patience: Duration,
) -> Result<(), NetlinkError> {
    let end = Instant::now() + patience;
    loop {
        let link = at(socket, index)?;
        if link.running {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(NetlinkError::NoCarrier { device: link.name, patience });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a veth pair with one queue at each end; the ends appear in their namespaces at
/// once, down, and in no other.
pub(super) fn create_veth(
    socket: &Socket,
    ends: [VethEnd<'_>; 2],
    mtu: u32,
) -> Result<(), NetlinkError> {
    let [first, second] = ends;
    let peer = veth_end(LinkMessageBuilder::<LinkUnspec>::new().name(second.name), second, mtu);
    let pair = veth_end(LinkVeth::new(first.name, second.name), first, mtu)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
    let request = format!("make the veth pair '{}' and '{}'", first.name, second.name);
    create(socket, request, pair.build()).map_err(|error| match error.errno() {
        Some(libc::EOPNOTSUPP) => no_kind(first.name, "veth", "veth"),
        _ => error,
    })
}

/// Makes a VLAN device (IEEE 802.1Q, tag 0x8100) on top of a device, down, with the MTU of that
/// device.
pub(super) fn create_vlan(
    socket: &Socket,
    name: &str,
    parent: u32,
    vlan: u16,
) -> Result<(), NetlinkError> {
    let request = format!("make the VLAN device '{name}' for VLAN {vlan}");
    let message = LinkVlan::new(name, parent, vlan).build();
    create(socket, request, message).map_err(|error| match error.errno() {
        Some(libc::EOPNOTSUPP) => no_kind(name, "vlan", "8021q"),
        _ => error,
    })
}

/// Sets a device up.
pub(super) fn set_up(socket: &Socket, index: u32) -> Result<(), NetlinkError> {
    set(socket, index, "set up", LinkUnspec::new_with_index(index).up())
}

/// Sets a device down.
pub(super) fn set_down(socket: &Socket, index: u32) -> Result<(), NetlinkError> {
    set(socket, index, "set down", LinkUnspec::new_with_index(index).down())
}

/// Switches a device's promiscuous mode.
pub(super) fn set_promiscuous(socket: &Socket, index: u32, on: bool) -> Result<(), NetlinkError> {
    let message = LinkUnspec::new_with_index(index).promiscuous(on);
    set(socket, index, "set the promiscuity of", message)
}

/// Gives a device an Ethernet address.
pub(super) fn set_mac(socket: &Socket, index: u32, mac: [u8; 6]) -> Result<(), NetlinkError> {
    let message = LinkUnspec::new_with_index(index).address(mac.to_vec());
    set(socket, index, "set the Ethernet address of", message)
}

/// Sets a device's MTU, bytes.
pub(super) fn set_mtu(socket: &Socket, index: u32, mtu: u32) -> Result<(), NetlinkError> {
    let what = format!("set an MTU of {mtu} on");
    set(socket, index, &what, LinkUnspec::new_with_index(index).mtu(mtu))
}

/// Sets the number of packets that a device queues for its consumer: the reader of a TAP device.
pub(super) fn set_queue_length(
    socket: &Socket,
    index: u32,
    packets: u32,
) -> Result<(), NetlinkError> {
    let message = LinkUnspec::new_with_index(index)
        .append_extra_attribute(LinkAttribute::TxQueueLen(packets));
    set(socket, index, "set the queue's length of", message)
}

/// Removes a device; the peer of a veth goes with it.
pub(super) fn delete(socket: &Socket, index: u32) -> Result<(), NetlinkError> {
    let message = LinkUnspec::new_with_index(index).build();
    let request = format!("remove the network device number {index}");
    socket.change(request, &RouteNetlinkMessage::DelLink(message), 0)
}

fn one(
    socket: &Socket,
    name: &str,
    request: &str,
    message: LinkMessage,
) -> Result<Link, NetlinkError> {
    let answers = match socket.ask(request, &RouteNetlinkMessage::GetLink(message), 0) {
        // ERANGE: longer than a device's name can be.
        Err(error) if matches!(error.errno(), Some(libc::ENODEV | libc::ERANGE)) => {
            return Err(NetlinkError::NoDevice { name: name.to_owned() });
        }
        answers => answers?,
    };
    match answers.first() {
        Some(answer) => read_link(request, answer),
        None => Err(NetlinkError::NoDevice { name: name.to_owned() }),
    }
}

fn create(socket: &Socket, request: String, message: LinkMessage) -> Result<(), NetlinkError> {
    let message = RouteNetlinkMessage::NewLink(message);
    socket.change(request, &message, NLM_F_CREATE | NLM_F_EXCL)
}

fn set(
    socket: &Socket,
    index: u32,
    what: &str,
    message: LinkMessageBuilder<LinkUnspec>,
) -> Result<(), NetlinkError> {
    let request = format!("{what} the network device number {index}");
    socket.change(request, &RouteNetlinkMessage::SetLink(message.build()), 0)
}

fn no_kind(name: &str, kind: &'static str, module: &'static str) -> NetlinkError {
    NetlinkError::NoKind { name: name.to_owned(), kind, module }
}

fn veth_end<T>(
    message: LinkMessageBuilder<T>,
    end: VethEnd<'_>,
    mtu: u32,
) -> LinkMessageBuilder<T> {
    message
        .mtu(mtu)
        .setns_by_fd(end.namespace.as_fd().as_raw_fd())
        .append_extra_attribute(LinkAttribute::NumTxQueues(1))
        .append_extra_attribute(LinkAttribute::NumRxQueues(1))
}

fn read_link(request: &str, answer: &Answer) -> Result<Link, NetlinkError> {
    let mut header = NetlinkHeader::default();
    header.message_type = answer.kind;
    match RouteNetlinkMessage::deserialize(&header, &answer.payload) {
        Ok(RouteNetlinkMessage::NewLink(message)) => Ok(link_of(message)),
        Ok(_) => Err(NetlinkError::Malformed {
            request: request.to_owned(),
            problem: format!("message type {} describes no device", answer.kind),
        }),
        Err(error) => {
            Err(NetlinkError::Malformed { request: request.to_owned(), problem: error.to_string() })
        }
    }
}

fn link_of(message: LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        promiscuous: flags.contains(LinkFlags::Promisc),
        running: flags.contains(LinkFlags::Running),
        kind: None,
        master: None,
        parent: None,
        parent_elsewhere: false,
        vlan: None,
        rx_queues: 1,
        qdisc: None,
        settings: DeviceSettings::default(),
        stats: LinkStats::default(),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac.try_into().ok(),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(index) => link.master = Some(index),
            LinkAttribute::Link(index) => link.parent = Some(index),
            LinkAttribute::LinkNetNsId(_) => link.parent_elsewhere = true,
            LinkAttribute::NumRxQueues(queues) => link.rx_queues = queues,
            LinkAttribute::Qdisc(name) => link.qdisc = Some(name),
            LinkAttribute::AfSpecUnspec(families) => link.settings = DeviceSettings::of(&families),
            LinkAttribute::Stats64(stats) => link.stats = stats_of(&stats),
            LinkAttribute::LinkInfo(infos) => infos.into_iter().for_each(|info| match info {
                LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
                LinkInfo::Data(InfoData::Vlan(infos)) => {
                    link.vlan = infos.into_iter().find_map(|info| match info {
                        InfoVlan::Id(vlan) => Some(vlan),
                        _ => None,
                    });
                }
                _ => {}
            }),
            _ => {}
        }
    }
    link
}

fn stats_of(stats: &rtnetlink::packet_route::link::Stats64) -> LinkStats {
    LinkStats {
        rx_packets: Packets(stats.rx_packets),
        rx_bytes: Bytes(stats.rx_bytes),
        rx_packets_dropped: Packets(stats.rx_dropped),
        rx_errors: Packets(stats.rx_errors),
        tx_packets: Packets(stats.tx_packets),
        tx_bytes: Bytes(stats.tx_bytes),
        tx_packets_dropped: Packets(stats.tx_dropped),
        tx_errors: Packets(stats.tx_errors),
    }
}
