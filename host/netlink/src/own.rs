//! Addresses at which this machine itself answers.
//!
//! An address is one of the machine's own when a device of the network namespace has it (also one
//! in a VRF, whose table an ordinary lookup does not see), or when the routing tables deliver
//! packets to it here (the table `local`; a prefix that is routed to `lo` has no device that lists
//! its addresses).

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use rtnetlink::packet_core::NlasIterator;

use super::socket::Answer;
use super::{Netlink, NetlinkError};

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

/// Length of `struct ifaddrmsg`, and its attributes (include/uapi/linux/if_addr.h). Of a
/// point-to-point device IFA_ADDRESS is the other end's address and IFA_LOCAL ours.
const ADDRESS_HEADER_LENGTH: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Length of `struct rtmsg`, its attribute and values (include/uapi/linux/rtnetlink.h).
const ROUTE_HEADER_LENGTH: usize = 12;
const RTA_DST: u16 = 1;
const RTM_TABLE_OFFSET: usize = 4;
pub(super) const RTM_TYPE_OFFSET: usize = 7;
const RT_TABLE_LOCAL: u8 = 255;
pub(super) const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_ANYCAST: u8 = 4;
const RTN_MULTICAST: u8 = 5;

const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

/// Returns whether an address is one of this machine's, in the calling thread's network namespace.
///
/// # Errors
/// When the kernel does not say.
pub fn is_own_address(address: IpAddr) -> io::Result<bool> {
    let own = Netlink::open().and_then(|netlink| netlink.is_own(address));
    own.map_err(io::Error::other)
}

impl Netlink {
    /// Returns whether packets to an address end on this machine, broadcasts and joined groups among them.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn is_own(&self, address: IpAddr) -> Result<bool, NetlinkError> {
        let request = "list the addresses";
        let answers = self.channel.dump(request, RTM_GETADDR, &[0; ADDRESS_HEADER_LENGTH])?;
        let has_device = answers
            .iter()
            .filter(|answer| answer.kind == RTM_NEWADDR)
            .any(|answer| local_of(&answer.payload) == Some(address));
        Ok(has_device || self.is_delivered_here(address)?)
    }

    /// Returns the prefixes of IPv4 addresses whose packets the table `local` delivers to this
    /// machine, each with its length in bits.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn own_v4(&self) -> Result<Vec<(Ipv4Addr, u8)>, NetlinkError> {
        let mut wanted = [0; ROUTE_HEADER_LENGTH];
        wanted[0] = AF_INET;
        wanted[RTM_TABLE_OFFSET] = RT_TABLE_LOCAL;
        wanted[RTM_TYPE_OFFSET] = RTN_LOCAL;
        // By an ordinary channel the kernel would send every route that it has.
        let answers = match self.strict.dump("list the local addresses", RTM_GETROUTE, &wanted) {
            // No device is up yet: there is no such table.
            Err(NetlinkError::Refused { source, .. })
                if source.raw_os_error() == Some(libc::ENOENT) =>
            {
                return Ok(Vec::new());
            }
            answers => answers?,
        };
        let routes = answers.iter().filter(|answer| answer.kind == RTM_NEWROUTE);
        Ok(routes.filter_map(|answer| local_prefix_of(&answer.payload)).collect())
    }

    fn is_delivered_here(&self, address: IpAddr) -> Result<bool, NetlinkError> {
        let request = format!("find the route to {address}");
        let answers = match self.channel.ask_raw(&request, RTM_GETROUTE, 0, &route_to(address)) {
            // Nothing leads there, or a route that refuses: unreachable, prohibit, blackhole.
            Err(NetlinkError::Refused { .. }) => return Ok(false),
            answers => answers?,
        };
        let is_here = |answer: &Answer| {
            let kind = answer.payload.get(RTM_TYPE_OFFSET);
            let here = [RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST, RTN_MULTICAST];
            answer.kind == RTM_NEWROUTE && kind.is_some_and(|kind| here.contains(kind))
        };
        Ok(answers.iter().any(is_here))
    }
}

/// The address of the device's own end.
fn local_of(payload: &[u8]) -> Option<IpAddr> {
    let (_, attributes) = payload.split_first_chunk::<ADDRESS_HEADER_LENGTH>()?;
    let (mut address, mut local) = (None, None);
    for attribute in NlasIterator::new(attributes).flatten() {
        let value = attribute.value();
        let read = || match value.len() {
            4 => value.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
            16 => value.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
            _ => None,
        };
        match attribute.kind() {
            IFA_ADDRESS => address = read(),
            IFA_LOCAL => local = read(),
            _ => {}
        }
    }
    local.or(address)
}

/// Returns the destination of an IPv4 route of the table `local` that ends here.
fn local_prefix_of(payload: &[u8]) -> Option<(Ipv4Addr, u8)> {
    let (header, attributes) = payload.split_first_chunk::<ROUTE_HEADER_LENGTH>()?;
    let is_local =
        header[RTM_TABLE_OFFSET] == RT_TABLE_LOCAL && header[RTM_TYPE_OFFSET] == RTN_LOCAL;
    if header[0] != AF_INET || !is_local {
        return None;
    }
    let to = NlasIterator::new(attributes).flatten().find(|attribute| attribute.kind() == RTA_DST);
    // The whole of IPv4 has no destination.
    let address = to.map_or(Some([0; 4]), |to| to.value().first_chunk().copied())?;
    Some((address.into(), header[1]))
}

/// `struct rtmsg` with the destination as its one attribute.
fn route_to(address: IpAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec()),
    };
    let mut message = vec![0; ROUTE_HEADER_LENGTH];
    message[0] = family;
    // The prefix's length, in bits.
    message[1] = bytes.len() as u8 * 8;
    let length = 4 + bytes.len() as u16;
    message.extend(length.to_ne_bytes());
    message.extend(RTA_DST.to_ne_bytes());
    message.extend(bytes);
    message
}
