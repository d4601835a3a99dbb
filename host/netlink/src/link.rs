//! Network devices: what there is, and making, changing and removing them.
//! Features of the hardware are `offload`'s story, addresses `address`'s.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use serde::Serialize;
use units::{Bytes, Packets};

use super::attribute::{Attribute, attribute, attributes, ne32, text};
use super::settings::DeviceSettings;
use super::socket::{Answer, NLM_F_CREATE, NLM_F_EXCL};
use super::{Netlink, NetlinkError};
use namespaces::netns::NetNs;

/// Length of `struct ifinfomsg`.
const LINK_HEADER_LENGTH: usize = 16;

/// include/uapi/linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;

/// Attributes of include/uapi/linux/if_link.h, and of veth.h.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const VETH_INFO_PEER: u16 = 1;

/// Flags of a device (include/uapi/linux/if.h).
const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_RUNNING: u32 = libc::IFF_RUNNING as u32;
const IFF_PROMISC: u32 = libc::IFF_PROMISC as u32;

/// One network device, as the kernel described it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its Ethernet address; none for devices without (TUN).
    pub mac: Option<[u8; 6]>,
    /// Largest layer 3 packet, bytes.
    pub mtu: u32,
    /// Whether it was set up.
    pub up: bool,
    /// Whether it takes frames that are addressed to others.
    pub promiscuous: bool,
    /// Whether it has a carrier and can send.
    pub running: bool,
    /// `veth`, `vlan`, `bridge`, ...; none for hardware and loopback.
    pub kind: Option<String>,
    /// The bridge, bond or VRF above it, by index.
    pub master: Option<u32>,
    /// The device below it (VLAN) or beside it (the peer of a veth), by index.
    pub parent: Option<u32>,
    /// Whether [`Link::parent`] is a number of another namespace.
    pub parent_elsewhere: bool,
    /// The VLAN of a VLAN device.
    pub vlan: Option<u16>,
    /// Its receive queues, at most.
    pub rx_queues: u32,
    /// The queueing discipline at its root.
    pub qdisc: Option<String>,
    /// What its settings say about packets that are forwarded.
    pub settings: DeviceSettings,
    /// Its counters.
    pub stats: LinkStats,
}

/// Counters of a device since it exists (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkStats {
    /// Packets received.
    pub rx_packets: Packets,
    /// Bytes received.
    pub rx_bytes: Bytes,
    /// Packets received well and dropped for want of room.
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

/// One end of a veth pair to be made.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'name> {
    /// Its device's name.
    pub name: &'name str,
    /// The namespace in which it appears, without being in any other before.
    pub namespace: &'name NetNs,
}

impl Netlink {
    /// All devices of the namespace, by index.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let request = "list the network devices";
        let answers = self.channel.dump(request, RTM_GETLINK, &[0; LINK_HEADER_LENGTH])?;
        let mut links = answers
            .iter()
            .filter(|answer| answer.kind == RTM_NEWLINK)
            .map(|answer| read_link(request, answer))
            .collect::<Result<Vec<_>, _>>()?;
        links.sort_unstable_by_key(|link| link.index);
        Ok(links)
    }

    /// The device of this name.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] when there is none.
    pub fn link(&self, name: &str) -> Result<Link, NetlinkError> {
        let message = [header(0), text(IFLA_IFNAME, name)].concat();
        self.one_link(name, &format!("examine the network device '{name}'"), &message)
    }

    /// The device of this number.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] when there is none.
    pub fn link_at(&self, index: u32) -> Result<Link, NetlinkError> {
        let name = format!("number {index}");
        self.one_link(&name, &format!("examine the network device number {index}"), &header(index))
    }

    /// Waits until a device that was set up can send. The kernel connects a device to its
    /// queueing discipline some time after both ends of the link are up, and until then drops
    /// what is sent without an error (`linkwatch`, Linux).
    ///
    /// # Errors
    /// [`NetlinkError::NoCarrier`] when it takes longer than `patience`.
    pub fn wait_running(&self, index: u32, patience: Duration) -> Result<(), NetlinkError> {
        let end = Instant::now() + patience;
        loop {
            let link = self.link_at(index)?;
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
    ///
    /// # Errors
    /// When a name is taken or too long, the MTU is out of range, or `CAP_NET_ADMIN` lacks.
    pub fn create_veth(&self, ends: [VethEnd<'_>; 2], mtu: u32) -> Result<(), NetlinkError> {
        let [first, second] = ends;
        let request = format!("make the veth pair '{}' and '{}'", first.name, second.name);
        let [first_in, second_in] = ends.map(|end| end.namespace.as_fd().as_raw_fd());
        let message = veth((first.name, first_in), (second.name, second_in), mtu);
        self.create_link(request, &message).map_err(|error| match error.errno() {
            Some(libc::EOPNOTSUPP) => no_kind(first.name, "veth", "veth"),
            _ => error,
        })
    }

    /// Makes a VLAN device (IEEE 802.1Q, tag 0x8100) above a device; it comes with the MTU of
    /// that device, down.
    ///
    /// # Errors
    /// When the name or the VLAN is taken, `vlan` is above 4094, or the kernel has no VLANs.
    pub fn create_vlan(&self, name: &str, parent: u32, vlan: u16) -> Result<(), NetlinkError> {
        let request = format!("make the VLAN device '{name}' for VLAN {vlan}");
        self.create_link(request, &vlan_device(name, parent, vlan)).map_err(|error| {
            match error.errno() {
                Some(libc::EOPNOTSUPP) => no_kind(name, "vlan", "8021q"),
                _ => error,
            }
        })
    }

    /// Sets a device up.
    ///
    /// # Errors
    /// When the device is gone or its driver refuses.
    pub fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        self.set(index, "set up", &flagged(index, IFF_UP, true))
    }

    /// Sets a device down.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn set_down(&self, index: u32) -> Result<(), NetlinkError> {
        self.set(index, "set down", &flagged(index, IFF_UP, false))
    }

    /// Has a device take frames that are addressed to others, or not.
    ///
    /// # Errors
    /// When the device is gone or its driver refuses.
    pub fn set_promiscuous(&self, index: u32, on: bool) -> Result<(), NetlinkError> {
        self.set(index, "set the promiscuity of", &flagged(index, IFF_PROMISC, on))
    }

    /// Gives a device an Ethernet address.
    ///
    /// # Errors
    /// When it is a multicast address or the driver wants the device down first.
    pub fn set_mac(&self, index: u32, mac: [u8; 6]) -> Result<(), NetlinkError> {
        let message = [header(index), attribute(IFLA_ADDRESS, &mac)].concat();
        self.set(index, "set the Ethernet address of", &message)
    }

    /// Sets a device's MTU, bytes.
    ///
    /// # Errors
    /// When the driver does not take it, or a loaded XDP program does not.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        let what = format!("set an MTU of {mtu} on");
        self.set(index, &what, &[header(index), ne32(IFLA_MTU, mtu)].concat())
    }

    /// How many packets a device holds for whoever takes them: of a TAP device its reader.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn set_queue_length(&self, index: u32, packets: u32) -> Result<(), NetlinkError> {
        let message = [header(index), ne32(IFLA_TXQLEN, packets)].concat();
        self.set(index, "set the queue's length of", &message)
    }

    /// Removes a device; the peer of a veth goes with it.
    ///
    /// # Errors
    /// When it is gone or is no device that can be removed.
    pub fn delete_link(&self, index: u32) -> Result<(), NetlinkError> {
        let request = format!("remove the network device number {index}");
        self.channel.ask(request, RTM_DELLINK, 0, &header(index)).map(drop)
    }

    fn one_link(&self, name: &str, request: &str, message: &[u8]) -> Result<Link, NetlinkError> {
        let answers = match self.channel.ask(request, RTM_GETLINK, 0, message) {
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

    fn create_link(&self, request: String, message: &[u8]) -> Result<(), NetlinkError> {
        self.channel.ask(request, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, message).map(drop)
    }

    fn set(&self, index: u32, what: &str, message: &[u8]) -> Result<(), NetlinkError> {
        let request = format!("{what} the network device number {index}");
        self.channel.ask(request, RTM_SETLINK, 0, message).map(drop)
    }
}

fn no_kind(name: &str, kind: &'static str, module: &'static str) -> NetlinkError {
    NetlinkError::NoKind { name: name.to_owned(), kind, module }
}

/// `struct ifinfomsg` of a device whose flags stay as they are.
fn header(index: u32) -> Vec<u8> {
    header_with(index, 0, 0)
}

fn flagged(index: u32, flag: u32, on: bool) -> Vec<u8> {
    header_with(index, if on { flag } else { 0 }, flag)
}

fn header_with(index: u32, flags: u32, changed: u32) -> Vec<u8> {
    let family = 0_u32;
    [family, index, flags, changed].map(u32::to_ne_bytes).concat()
}

/// A veth pair: of each end its name, and a descriptor of its namespace.
fn veth(first: (&str, i32), second: (&str, i32), mtu: u32) -> Vec<u8> {
    let end = |(name, namespace): (&str, i32)| {
        [
            text(IFLA_IFNAME, name),
            ne32(IFLA_MTU, mtu),
            attribute(IFLA_NET_NS_FD, &namespace.to_ne_bytes()),
            ne32(IFLA_NUM_TX_QUEUES, 1),
            ne32(IFLA_NUM_RX_QUEUES, 1),
        ]
        .concat()
    };
    let peer = attribute(VETH_INFO_PEER, &[header(0), end(second)].concat());
    [header(0), end(first), info("veth", &peer)].concat()
}

fn vlan_device(name: &str, parent: u32, vlan: u16) -> Vec<u8> {
    let data = attribute(IFLA_VLAN_ID, &vlan.to_ne_bytes());
    [header(0), text(IFLA_IFNAME, name), ne32(IFLA_LINK, parent), info("vlan", &data)].concat()
}

/// What a device of a kind is made of.
fn info(kind: &str, data: &[u8]) -> Vec<u8> {
    let kind = text(IFLA_INFO_KIND, kind);
    attribute(IFLA_LINKINFO, &[kind, attribute(IFLA_INFO_DATA, data)].concat())
}

fn read_link(request: &str, answer: &Answer) -> Result<Link, NetlinkError> {
    let malformed = |problem| NetlinkError::Malformed { request: request.to_owned(), problem };
    if answer.kind != RTM_NEWLINK {
        return Err(malformed(format!("message type {} describes no device", answer.kind)));
    }
    link_of(&answer.payload).ok_or_else(|| malformed("a device's description is cut short".into()))
}

fn link_of(payload: &[u8]) -> Option<Link> {
    let (header, rest) = payload.split_first_chunk::<LINK_HEADER_LENGTH>()?;
    let word = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
    let flags = word(8)?;
    let mut link = Link {
        index: word(4)?,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: flags & IFF_UP != 0,
        promiscuous: flags & IFF_PROMISC != 0,
        running: flags & IFF_RUNNING != 0,
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
    for attribute in attributes(rest) {
        match attribute.kind {
            IFLA_IFNAME => link.name = attribute.text(),
            IFLA_ADDRESS => link.mac = attribute.value.try_into().ok(),
            IFLA_MTU => link.mtu = attribute.u32()?,
            IFLA_MASTER => link.master = attribute.u32(),
            IFLA_LINK => link.parent = attribute.u32(),
            IFLA_LINK_NETNSID => link.parent_elsewhere = true,
            IFLA_NUM_RX_QUEUES => link.rx_queues = attribute.u32()?,
            IFLA_QDISC => link.qdisc = Some(attribute.text()),
            IFLA_AF_SPEC => link.settings = DeviceSettings::of(&attribute),
            IFLA_STATS64 => link.stats = stats_of(attribute.value),
            IFLA_LINKINFO => (link.kind, link.vlan) = kind_of(&attribute),
            _ => {}
        }
    }
    Some(link)
}

/// A device's kind, and the VLAN of one of the kind `vlan`.
fn kind_of(info: &Attribute<'_>) -> (Option<String>, Option<u16>) {
    let part = |kind| info.nested().find(|part| part.kind == kind);
    let kind = part(IFLA_INFO_KIND).map(|kind| kind.text());
    let data = part(IFLA_INFO_DATA).filter(|_| kind.as_deref() == Some("vlan"));
    let id = data.and_then(|data| data.nested().find(|part| part.kind == IFLA_VLAN_ID));
    (kind, id.and_then(|id| id.u16()))
}

/// Reads `struct rtnl_link_stats64`; what the kernel does not have is 0.
fn stats_of(stats: &[u8]) -> LinkStats {
    let mut counters = stats
        .chunks_exact(8)
        .map(|bytes| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)));
    let mut next = || counters.next().unwrap_or(0);
    let (rx_packets, tx_packets) = (Packets(next()), Packets(next()));
    let (rx_bytes, tx_bytes) = (Bytes(next()), Bytes(next()));
    let (rx_errors, tx_errors) = (Packets(next()), Packets(next()));
    let (rx_packets_dropped, tx_packets_dropped) = (Packets(next()), Packets(next()));
    LinkStats {
        rx_packets,
        rx_bytes,
        rx_packets_dropped,
        rx_errors,
        tx_packets,
        tx_bytes,
        tx_packets_dropped,
        tx_errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hex;

    #[test]
    fn devices_are_made_and_changed_in_the_kernels_bytes() {
        for (message, expected) in [
            (
                veth(("left", 5), ("b", 6), 9000),
                "00000000000000000000000000000000090003006c656674000000000800040028230000\
             08001c000500000008001f00010000000800200001000000500012000900010076657468\
             00000000400002003c000100000000000000000000000000000000000600030062000000\
             080004002823000008001c000600000008001f00010000000800200001000000",
            ),
            (
                vlan_device("v100", 3, 100),
                "000000000000000000000000000000000900030076313030000000000800050003000000\
             1c00120009000100766c616e000000000c0002000600010064000000",
            ),
            (flagged(7, IFF_UP, true), "00000000070000000100000001000000"),
            (flagged(7, IFF_UP, false), "00000000070000000000000001000000"),
            (flagged(7, IFF_PROMISC, true), "00000000070000000001000000010000"),
            (header(7), "00000000070000000000000000000000"),
        ] {
            assert_eq!(hex(&message), expected);
        }
    }

    #[test]
    fn a_device_is_read_out_of_its_description() {
        let stats: Vec<u8> = (1..=25_u64).flat_map(u64::to_ne_bytes).collect();
        let description = [
            header_with(7, IFF_UP | IFF_RUNNING, 0),
            text(IFLA_IFNAME, "v100"),
            attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]),
            ne32(IFLA_MTU, 1500),
            ne32(IFLA_LINK, 3),
            ne32(IFLA_MASTER, 9),
            text(IFLA_QDISC, "noqueue"),
            ne32(IFLA_NUM_RX_QUEUES, 4),
            attribute(IFLA_STATS64, &stats),
            info("vlan", &attribute(IFLA_VLAN_ID, &100_u16.to_ne_bytes())),
            ne32(999, 0),
        ];
        let answer = Answer { kind: RTM_NEWLINK, payload: description.concat() };
        let expected = Link {
            index: 7,
            name: "v100".to_owned(),
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            up: true,
            promiscuous: false,
            running: true,
            kind: Some("vlan".to_owned()),
            master: Some(9),
            parent: Some(3),
            parent_elsewhere: false,
            vlan: Some(100),
            rx_queues: 4,
            qdisc: Some("noqueue".to_owned()),
            settings: DeviceSettings::default(),
            stats: LinkStats {
                rx_packets: Packets(1),
                rx_bytes: Bytes(3),
                rx_packets_dropped: Packets(7),
                rx_errors: Packets(5),
                tx_packets: Packets(2),
                tx_bytes: Bytes(4),
                tx_packets_dropped: Packets(8),
                tx_errors: Packets(6),
            },
        };
        assert_eq!(read_link("ask", &answer).unwrap(), expected);
        let cut = Answer { kind: RTM_NEWLINK, payload: vec![0; 15] };
        assert!(read_link("ask", &cut).is_err());
        let other = Answer { kind: RTM_GETLINK, payload: header(7) };
        assert!(read_link("ask", &other).unwrap_err().to_string().contains("type 18"));
    }
}
