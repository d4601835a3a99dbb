//! Queries and requests about one network namespace; each is implemented by the module that knows
//! its messages.

use super::address::{AddressPrefix, DuplicateDetection, Neighbour, Route};
use super::link::{Link, VethEnd};
use super::slow_path::{Qdisc, RoutingRule};
use super::socket::Socket;
use super::{NetlinkError, address, link, marked, own, rate, redirect, slow_path};
use namespaces::netns::{NetNs, in_namespace};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use units::BitsPerSecond;

/// Netlink of one network namespace, the one in which it was opened: it stays there whichever
/// thread uses it. Several threads may share it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    /// Socket whose dumps the kernel filters by the request's header.
    strict: Socket,
}

impl Netlink {
    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn open() -> Result<Self, NetlinkError> {
        let open = || Ok(Self { socket: Socket::open(None, 0)?, strict: Socket::open_strict()? });
        open().map_err(|source| NetlinkError::Open { source })
    }

    /// Opens another namespace; the calling thread does not move.
    ///
    /// # Errors
    /// The namespace cannot be entered or the kernel gives no socket.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        in_namespace(namespace, Self::open)?
    }

    pub(super) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns all devices of the namespace, by index.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        link::all(&self.socket)
    }

    /// Returns the device of this name.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] when it does not exist.
    pub fn link(&self, name: &str) -> Result<Link, NetlinkError> {
        link::named(&self.socket, name)
    }

    /// Returns the device of this index.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] when it does not exist.
    pub fn link_at(&self, index: u32) -> Result<Link, NetlinkError> {
        link::at(&self.socket, index)
    }

    /// Waits until a device that was set up can send. The kernel attaches a device to its queueing
    /// discipline some time after both ends of the link are up, and until then drops sent packets
    /// without an error (`linkwatch`, Linux).
    ///
    /// # Errors
    /// [`NetlinkError::NoCarrier`] when it takes longer than `patience`.
    pub fn wait_running(&self, index: u32, patience: Duration) -> Result<(), NetlinkError> {
        link::wait_running(&self.socket, index, patience)
    }

    /// Creates a veth pair with one queue at each end; the ends are created in their namespaces
    /// directly, down.
    ///
    /// # Errors
    /// A name is taken or too long, the MTU is out of range, or the caller lacks
    /// `CAP_NET_ADMIN`.
    pub fn create_veth(&self, ends: [VethEnd<'_>; 2], mtu: u32) -> Result<(), NetlinkError> {
        link::create_veth(&self.socket, ends, mtu)
    }

    /// Creates a VLAN device (IEEE 802.1Q, tag 0x8100) above a device, with the MTU of that device,
    /// down.
    ///
    /// # Errors
    /// The name or the VLAN is taken, `vlan` is above 4094, or the kernel has no VLANs.
    pub fn create_vlan(&self, name: &str, parent: u32, vlan: u16) -> Result<(), NetlinkError> {
        link::create_vlan(&self.socket, name, parent, vlan)
    }

    /// Sets a device up.
    ///
    /// # Errors
    /// The device is gone or its driver refuses.
    pub fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        link::set_up(&self.socket, index)
    }

    /// Sets a device down.
    ///
    /// # Errors
    /// The device is gone.
    pub fn set_down(&self, index: u32) -> Result<(), NetlinkError> {
        link::set_down(&self.socket, index)
    }

    /// Switches the reception of frames that are addressed to others on or off.
    ///
    /// # Errors
    /// The device is gone or its driver refuses.
    pub fn set_promiscuous(&self, index: u32, on: bool) -> Result<(), NetlinkError> {
        link::set_promiscuous(&self.socket, index, on)
    }

    /// Sets the MAC address of a device.
    ///
    /// # Errors
    /// The address is a multicast address, or the driver wants the device down first.
    pub fn set_mac(&self, index: u32, mac: [u8; 6]) -> Result<(), NetlinkError> {
        link::set_mac(&self.socket, index, mac)
    }

    /// Sets a device's MTU, in bytes.
    ///
    /// # Errors
    /// The driver does not take it, or a loaded XDP program does not.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        link::set_mtu(&self.socket, index, mtu)
    }

    /// Sets the length of a device's transmit queue in packets; for a TAP device, of those that
    /// wait for its reader.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn set_queue_length(&self, index: u32, packets: u32) -> Result<(), NetlinkError> {
        link::set_queue_length(&self.socket, index, packets)
    }

    /// Removes a device; the peer of a veth is removed with it.
    ///
    /// # Errors
    /// The device is gone or cannot be removed.
    pub fn delete_link(&self, index: u32) -> Result<(), NetlinkError> {
        link::delete(&self.socket, index)
    }

    /// Adds an address to a device; the route to its network comes with it when the device is up.
    /// An address of 127.0.0.0/8 is of this machine alone, and nothing is sent from it.
    ///
    /// # Errors
    /// The device has it already, or IPv6 is off there.
    pub fn add_address(
        &self,
        index: u32,
        prefix: AddressPrefix,
        detection: DuplicateDetection,
    ) -> Result<(), NetlinkError> {
        address::add_address(&self.socket, index, prefix, detection)
    }

    /// Adds a route, or replaces the one with the same destination.
    ///
    /// # Errors
    /// The next router is on no link, or the device is down.
    pub fn add_route(&self, route: &Route) -> Result<(), NetlinkError> {
        address::add_route(&self.socket, route)
    }

    /// Returns all neighbours that the kernel knows, IPv4 and IPv6.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, NetlinkError> {
        address::neighbours(&self.socket)
    }

    /// Returns true if packets to an address end on this machine, broadcasts and joined groups
    /// among them.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn is_own(&self, address: IpAddr) -> Result<bool, NetlinkError> {
        own::is_own(&self.socket, address)
    }

    /// Returns the prefixes of IPv4 addresses whose packets the table `local` delivers to this
    /// machine, each with its length in bits.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn own_v4(&self) -> Result<Vec<(Ipv4Addr, u8)>, NetlinkError> {
        own::own_v4(&self.strict)
    }

    /// Limits the rate at which a device sends, in place of the queueing discipline at its root.
    ///
    /// # Errors
    /// The rate is zero, or the kernel lacks `sch_tbf`.
    pub fn set_rate(&self, index: u32, rate: BitsPerSecond) -> Result<(), NetlinkError> {
        rate::set_rate(&self.socket, index, rate)
    }

    /// Removes the kernel's queue in front of a device: it sends packets in the order in which it
    /// gets them.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn set_no_queue(&self, index: u32) -> Result<(), NetlinkError> {
        rate::set_no_queue(&self.socket, index)
    }

    /// Returns all routing rules, IPv4 and IPv6.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn rules(&self) -> Result<Vec<RoutingRule>, NetlinkError> {
        slow_path::rules(&self.socket)
    }

    /// Counts the routing rules besides the initial ones of every namespace, and ours, which affect
    /// no plainly forwarded packet.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn extra_rules(&self) -> Result<usize, NetlinkError> {
        slow_path::extra_rules(&self.socket)
    }

    /// Returns the queueing disciplines of all devices, also those inside others.
    ///
    /// # Errors
    /// The kernel's answer cannot be read.
    pub fn qdiscs(&self) -> Result<Vec<Qdisc>, NetlinkError> {
        slow_path::qdiscs(&self.socket)
    }

    /// Counts the IPsec policies of the calling thread's namespace; zero where the kernel has no
    /// IPsec.
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_policies() -> Result<usize, NetlinkError> {
        slow_path::ipsec_policies()
    }

    /// Returns true if IPsec affects forwarded packets of the calling thread's namespace: there are
    /// policies, or packets without one are dropped (`ip xfrm policy setdefault fwd block`).
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_in_use() -> Result<bool, NetlinkError> {
        slow_path::ipsec_in_use()
    }

    /// Returns [`Netlink::ipsec_in_use`] of another namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_in_use_in(namespace: &NetNs) -> Result<bool, NetlinkError> {
        in_namespace(namespace, Self::ipsec_in_use)?
    }

    /// Returns [`Netlink::ipsec_policies`] of another namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_policies_in(namespace: &NetNs) -> Result<usize, NetlinkError> {
        in_namespace(namespace, Self::ipsec_policies)?
    }

    /// Redirects all frames received by one device to the ingress of another.
    ///
    /// # Errors
    /// The caller lacks `CAP_NET_ADMIN`, or the kernel has no ingress queueing discipline, u32
    /// filter or mirred action.
    pub fn redirect_to(&self, from: u32, to: u32) -> Result<(), NetlinkError> {
        redirect::redirect(&self.socket, from, to)
    }

    /// Removes rules and routes that an interception with this port has left, however it ended.
    ///
    /// # Errors
    /// The kernel refuses; it is no error if there are none.
    pub fn end_interception(&self, port: u16) -> Result<(), NetlinkError> {
        marked::remove(&self.socket, port)
    }

    /// Removes rules and routes of interceptions whose table is gone with its socket; returns their
    /// ports.
    ///
    /// # Errors
    /// The kernel does not list them, or does not remove them.
    pub fn remove_orphaned_interceptions(&self) -> Result<Vec<u16>, NetlinkError> {
        let rules = self.rules()?;
        let ours = rules.iter().filter(|rule| rule.ours);
        marked::remove_orphans(&self.socket, ours.map(|rule| rule.table))
    }
}
