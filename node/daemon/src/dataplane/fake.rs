//! Devices, ports and data planes for unit tests: nothing of them is in the kernel.

use super::DataPlane;
use super::cell_devices::CellDevices;
use super::door::Door;
use super::live_port::LivePort;
use super::mode::Mode;
use super::ports::Ports;
use crate::config::NodeFile;
use bpf_maps::PortConfig;
use netlink::{DeviceSettings, Link, LinkStats, Netlink};
use node::{Node, Port, PortKind, PortMode, PortSpec};
use units::PortId;

/// Address of every device here.
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Returns the door of a node without XDP.
pub(super) fn door() -> Door {
    let ports = [PortSpec { mode: PortMode::Packet, ..served(1).spec().clone() }];
    Door::open(&ports, || anyhow::bail!("no XDP here")).unwrap()
}

/// Returns a device of this kind; 0 stands for no parent, and for no master.
pub(super) fn link(index: u32, kind: &str, parent: u32, master: u32) -> Link {
    let number = |number: u32| (number != 0).then_some(number);
    Link {
        index,
        name: format!("device{index}"),
        mac: Some(MAC),
        mtu: 1500,
        up: true,
        promiscuous: false,
        running: true,
        kind: (!kind.is_empty()).then(|| kind.to_owned()),
        master: number(master),
        parent: number(parent),
        parent_elsewhere: false,
        vlan: None,
        rx_queues: 1,
        qdisc: None,
        settings: DeviceSettings::default(),
        stats: LinkStats::default(),
    }
}

/// Returns a port that is away, on the device of this number.
pub(super) fn absent(number: u16) -> LivePort {
    let spec = PortSpec {
        name: format!("p{number}").parse().unwrap(),
        device: format!("device{number}"),
        kind: PortKind::Device,
        mode: PortMode::Auto,
        rate: None,
    };
    let port = Port { id: PortId(number), spec };
    LivePort::absent(port, None, "it was never there".to_owned())
}

/// Returns a port that is served, on the device of this number.
pub(super) fn served(number: u16) -> LivePort {
    let config = PortConfig { ifindex: number.into(), mac: MAC, mtu: 1500, ..Default::default() };
    absent(number).served(config)
}

/// Returns a data plane without XDP with these ports.
pub(super) fn plane_of(file: &NodeFile, ports: Vec<LivePort>) -> DataPlane {
    let netlink = Netlink::open().unwrap();
    DataPlane::of(file, door(), netlink, Ports::new(ports), CellDevices::fake())
}

/// Returns the data plane of a node whose ports are away: a cell gets no queue.
pub(crate) fn plane(file: &NodeFile, node: &Node) -> DataPlane {
    let away = |port: &Port| LivePort::absent(port.clone(), None, "no device yet".to_owned());
    plane_of(file, node.ports().iter().map(away).collect())
}

/// Makes all ports packet ports that are served, each with an address of its own, which ends with
/// the port's number.
pub(crate) fn serve_packets(plane: &mut DataPlane) {
    for port in plane.ports.all_mut() {
        let (id, described) = (port.id(), port.described());
        let mut mac = MAC;
        mac[5] = id.0.to_be_bytes()[1];
        // An interface index beyond those of any machine.
        let ifindex = 1_000_000 + u32::from(id.0);
        let config = PortConfig { ifindex, mac, mtu: 1500, ..PortConfig::default() };
        let served = LivePort::absent(described, None, String::new()).served(config);
        port.come_back(served.in_mode(Mode::Packet));
    }
}
