//! Addresses at which this machine itself answers.
//!
//! An address is one of the machine's own when a device of the network namespace has it (also one
//! in a VRF, whose table an ordinary lookup does not see), or when the routing tables deliver
//! packets to it here (the table `local`; a prefix that is routed to `lo` has no device that lists
//! its addresses).

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use rtnetlink::packet_core::{NLM_F_DUMP, NlasIterator};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::NetlinkError;
use super::socket::{Answer, Socket};

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;

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

/// Returns true if an address is one of this machine's, in the calling thread's network namespace.
///
/// # Errors
/// The kernel's answer cannot be read.
pub fn is_own_address(address: IpAddr) -> io::Result<bool> {
    let socket = Socket::open(None, 0).map_err(|source| NetlinkError::Open { source });
    socket.and_then(|socket| is_own(&socket, address)).map_err(io::Error::other)
}

/// Returns true if packets to an address end on this machine, broadcasts and joined groups among
/// them.
pub(super) fn is_own(socket: &Socket, address: IpAddr) -> Result<bool, NetlinkError> {
    let request = "list the addresses";
    let answers = socket.dump(request, RTM_GETADDR, &[0; ADDRESS_HEADER_LENGTH])?;
    let has_device = answers
        .iter()
        .filter(|answer| answer.kind == RTM_NEWADDR)
        .any(|answer| local_of(&answer.payload) == Some(address));
    Ok(has_device || is_delivered_here(socket, address)?)
}

/// Returns the prefixes of IPv4 addresses whose packets the table `local` delivers to this machine,
/// each with its length in bits. The socket must be a strict one: on another the kernel would send
/// all of its routes.
pub(super) fn own_v4(strict: &Socket) -> Result<Vec<(Ipv4Addr, u8)>, NetlinkError> {
    let message = RouteNetlinkMessage::GetRoute(local_v4());
    let answers = match strict.ask("list the local addresses", &message, NLM_F_DUMP) {
        // The table does not exist until a device is up.
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

fn is_delivered_here(socket: &Socket, address: IpAddr) -> Result<bool, NetlinkError> {
    let request = format!("find the route to {address}");
    let message = RouteNetlinkMessage::GetRoute(route_to(address));
    let answers = match socket.ask(&request, &message, 0) {
        // No route, or one that refuses: unreachable, prohibit, blackhole.
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

/// Returns the address of the device's own end.
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
    // The default route has no destination attribute.
    let address = to.map_or(Some([0; 4]), |to| to.value().first_chunk().copied())?;
    Some((address.into(), header[1]))
}

/// Returns the request for the IPv4 routes of the table `local` that end here.
fn local_v4() -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RT_TABLE_LOCAL;
    message.header.kind = RouteType::Local;
    message
}

/// Returns the request for the route to an address.
fn route_to(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    (message.header.address_family, message.header.destination_prefix_length) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.attributes = vec![RouteAttribute::Destination(address.into())];
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{Message, same};

    #[test]
    fn questions_for_routes_are_these_bytes() {
        let to = |address: &str| route_to(address.parse().unwrap());
        let all = [to("192.0.2.7"), to("2001:db8::7"), local_v4()];
        same(
            &all.map(|it| Message::of(&RouteNetlinkMessage::GetRoute(it), 0)),
            &[
                (26, 0, "02200000000000000000000008000100c0000207"),
                (26, 0, "0a80000000000000000000001400010020010db8000000000000000000000007"),
                (26, 0, "02000000ff00000200000000"),
            ],
        );
    }
}
