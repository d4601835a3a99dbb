//! Requests to the kernel about one network namespace; each is delegated to the module that knows
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

/// Netlink handle of the network namespace in which it was opened, whichever thread uses it.
/// Several threads may share it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    /// Socket for dumps of which the kernel sends only what the request's header asks for.
    strict: Socket,
}

impl Netlink {
    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// When the kernel gives no socket.
    pub fn open() -> Result<Self, NetlinkError> {
        let open = || Ok(Self { socket: Socket::open(None, 0)?, strict: Socket::open_strict()? });
        open().map_err(|source| NetlinkError::Open { source })
    }

    /// Opens another namespace; the calling thread does not move.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the kernel gives no socket.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        in_namespace(namespace, Self::open)?
    }

    pub(super) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns all devices of the namespace, by index.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        link::all(&self.socket)
    }

    /// Returns the device of this name.
    ///
    /// # Errors
    /// [`NetlinkError::NoDevice`] when there is none.
    pub fn link(&self, name: &str) -> Result<Link, NetlinkError> {
        link::named(&self.socket, name)
    }

    /// Returns the device with this index.
    ///
    /// # Errors [`NetlinkError::NoDevice`] when there is none.
    pub fn link_at(&self, index: u32) -> Result<Link, NetlinkError> {
        link::at(&self.socket, index)
    }

    /// Waits until a device that was set up can send. The kernel connects a device to its
    /// queueing discipline some time after both ends of the link are up, and until then drops
    /// what is sent without an error (`linkwatch`, Linux).
    ///
    /// # Errors
    /// [`NetlinkError::NoCarrier`] when it takes longer than `patience`.
    pub fn wait_running(&self, index: u32, patience: Duration) -> Result<(), NetlinkError> {
        link::wait_running(&self.socket, index, patience)
    }

    /// Makes a veth pair with one queue at each end; the ends appear in their namespaces at once,
    /// down, and in no other.
    ///
    /// # Errors When a name is taken or too long, the MTU is out of range, or the caller lacks
    /// `CAP_NET_ADMIN`.
    pub fn create_veth(&self, ends: [VethEnd<'_>; 2], mtu: u32) -> Result<(), NetlinkError> {
        link::create_veth(&self.socket, ends, mtu)
    }

    /// Makes a VLAN device (IEEE 802.1Q, tag 0x8100) on top of a device, down, with the MTU of that
    /// device.
    ///
    /// # Errors When the name or the VLAN is taken, `vlan` is above 4094, or the kernel has no
    /// VLANs.
    pub fn create_vlan(&self, name: &str, parent: u32, vlan: u16) -> Result<(), NetlinkError> {
        link::create_vlan(&self.socket, name, parent, vlan)
    }

    /// Sets a device up.
    ///
    /// # Errors
    /// When the device is gone or its driver refuses.
    pub fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        link::set_up(&self.socket, index)
    }

    /// Sets a device down.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn set_down(&self, index: u32) -> Result<(), NetlinkError> {
        link::set_down(&self.socket, index)
    }

    /// Switches a device's promiscuous mode.
    ///
    /// # Errors When the device is gone or its driver refuses.
    pub fn set_promiscuous(&self, index: u32, on: bool) -> Result<(), NetlinkError> {
        link::set_promiscuous(&self.socket, index, on)
    }

    /// Gives a device an Ethernet address.
    ///
    /// # Errors When it is a multicast address or the driver wants the device down first.
    pub fn set_mac(&self, index: u32, mac: [u8; 6]) -> Result<(), NetlinkError> {
        link::set_mac(&self.socket, index, mac)
    }

    /// Sets a device's MTU, bytes.
    ///
    /// # Errors When the driver or a loaded XDP program does not support it.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        link::set_mtu(&self.socket, index, mtu)
    }

    /// Sets the number of packets that a device queues for its consumer: the reader of a TAP
    /// device.
    ///
    /// # Errors When there is no such device.
    pub fn set_queue_length(&self, index: u32, packets: u32) -> Result<(), NetlinkError> {
        link::set_queue_length(&self.socket, index, packets)
    }

    /// Removes a device; the peer of a veth goes with it.
    ///
    /// # Errors
    /// When it is gone or is no device that can be removed.
    pub fn delete_link(&self, index: u32) -> Result<(), NetlinkError> {
        link::delete(&self.socket, index)
    }

    /// Gives a device an address; the kernel adds the route to its network when the device is up.
    /// An address of 127.0.0.0/8 belongs to this machine alone, and nothing is sent from it.
    ///
    /// # Errors When the device has it already, or IPv6 is off there.
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
    /// When the next router is on no link, or the device is down.
    pub fn add_route(&self, route: &Route) -> Result<(), NetlinkError> {
        address::add_route(&self.socket, route)
    }

    /// Returns all neighbours that the kernel knows, IPv4 and IPv6.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, NetlinkError> {
        address::neighbours(&self.socket)
    }

    /// Returns whether packets to an address end on this machine, broadcasts and joined groups
    /// among them.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn is_own(&self, address: IpAddr) -> Result<bool, NetlinkError> {
        own::is_own(&self.socket, address)
    }

    /// Returns the prefixes of IPv4 addresses whose packets the table `local` delivers to this
    /// machine, each with its length in bits.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn own_v4(&self) -> Result<Vec<(Ipv4Addr, u8)>, NetlinkError> {
        own::own_v4(&self.strict)
    }

    /// Limits the rate at which a device sends, replacing the queueing discipline at its root.
    ///
    /// # Errors When the rate is zero, or the kernel lacks `sch_tbf`.
    pub fn set_rate(&self, index: u32, rate: BitsPerSecond) -> Result<(), NetlinkError> {
        rate::set_rate(&self.socket, index, rate)
    }

    /// Removes a device's queueing discipline: packets leave in the order in which they are given
    /// to the device.
    ///
    /// # Errors When there is no such device.
    pub fn set_no_queue(&self, index: u32) -> Result<(), NetlinkError> {
        rate::set_no_queue(&self.socket, index)
    }

    /// Returns all routing rules, IPv4 and IPv6.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn rules(&self) -> Result<Vec<RoutingRule>, NetlinkError> {
        slow_path::rules(&self.socket)
    }

    /// Counts the routing rules beyond those of a new namespace and those of this program, which
    /// affect no plainly forwarded packet.
    ///
    /// # Errors When the kernel's answer cannot be read.
    pub fn extra_rules(&self) -> Result<usize, NetlinkError> {
        slow_path::extra_rules(&self.socket)
    }

    /// Returns all queueing disciplines of all devices, nested ones included.
    ///
    /// # Errors When the kernel's answer cannot be read.
    pub fn qdiscs(&self) -> Result<Vec<Qdisc>, NetlinkError> {
        slow_path::qdiscs(&self.socket)
    }

    /// Counts the IPsec policies of the calling thread's namespace; zero where the kernel has no
    /// IPsec.
    ///
    /// # Errors
    /// When the caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_policies() -> Result<usize, NetlinkError> {
        slow_path::ipsec_policies()
    }

    /// Returns true when IPsec affects forwarded packets of the calling thread's namespace: there
    /// are policies, or packets without a policy are dropped (`ip xfrm policy setdefault fwd
    /// block`).
    ///
    /// # Errors When the caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_in_use() -> Result<bool, NetlinkError> {
        slow_path::ipsec_in_use()
    }

    /// Does [`Netlink::ipsec_in_use`] in another namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_in_use_in(namespace: &NetNs) -> Result<bool, NetlinkError> {
        in_namespace(namespace, Self::ipsec_in_use)?
    }

    /// Does [`Netlink::ipsec_policies`] in another namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the caller lacks `CAP_NET_ADMIN`.
    pub fn ipsec_policies_in(namespace: &NetNs) -> Result<usize, NetlinkError> {
        in_namespace(namespace, Self::ipsec_policies)?
    }

    /// Redirects all frames that arrive by one device to the ingress of another.
    ///
    /// # Errors When the caller lacks `CAP_NET_ADMIN`, or the kernel has no ingress queueing
    /// discipline, u32 filter or mirred action.
    pub fn redirect_to(&self, from: u32, to: u32) -> Result<(), NetlinkError> {
        redirect::redirect(&self.socket, from, to)
    }

    /// Removes the rules and routes of an interception with this port, however it ended.
    ///
    /// # Errors When the kernel refuses; missing ones are no error.
    pub fn end_interception(&self, port: u16) -> Result<(), NetlinkError> {
        marked::remove(&self.socket, port)
    }

    /// Removes the rules and routes of interceptions whose table is gone with its owner; returns
    /// their ports.
    ///
    /// # Errors When the kernel cannot list or remove them.
    pub fn end_left_interceptions(&self) -> Result<Vec<u16>, NetlinkError> {
        let rules = self.rules()?;
        let ours = rules.iter().filter(|rule| rule.ours);
        marked::remove_left(&self.socket, ours.map(|rule| rule.table))
    }
}
