//! Layer 3: adds addresses and routes, lists neighbours.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NlasIterator};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressHeaderFlags, AddressScope};
use rtnetlink::{AddressMessageBuilder, RouteMessageBuilder};
use serde::{Deserialize, Serialize};

use super::NetlinkError;
use super::socket::Socket;

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
/// Length of `struct ndmsg`, and its attributes (include/uapi/linux/neighbour.h).
const NEIGHBOUR_HEADER_LENGTH: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// An address with the length of its network's prefix, written `10.0.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressPrefix {
    address: IpAddr,
    length: u8,
}

/// Text that is not an address with a prefix length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no address with a prefix length; write 10.0.0.1/24 or fd00::1/64")]
pub struct AddressPrefixError {
    text: String,
}

impl AddressPrefix {
    /// Returns an address with a prefix length, or `None` when the length is above 32 or 128 bits.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let length_max = if address.is_ipv4() { 32 } else { 128 };
        (length <= length_max).then_some(Self { address, length })
    }

    /// Returns the address.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns the length of the prefix in bits.
    #[must_use]
    pub fn length(self) -> u8 {
        self.length
    }

    /// Returns the network: the address with its host part zero.
    #[must_use]
    pub fn network(self) -> Self {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
            }
        };
        Self { address, length: self.length }
    }
}

impl FromStr for AddressPrefix {
    type Err = AddressPrefixError;

    fn from_str(text: &str) -> Result<Self, AddressPrefixError> {
        text.split_once('/')
            .and_then(|(address, length)| Self::new(address.parse().ok()?, length.parse().ok()?))
            .ok_or_else(|| AddressPrefixError { text: text.chars().take(64).collect() })
    }
}

impl TryFrom<String> for AddressPrefix {
    type Error = AddressPrefixError;
    fn try_from(text: String) -> Result<Self, AddressPrefixError> {
        text.parse()
    }
}

impl From<AddressPrefix> for String {
    fn from(prefix: AddressPrefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Duplicate address detection of a new IPv6 address (RFC 4862, section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// Performed as the device's parameters say; the address is unusable for a second or two.
    Usual,
    /// Skipped: the address is usable at once.
    Skip,
}

/// Route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination; the zero address with length 0 is the default route.
    pub destination: AddressPrefix,
    /// Next router, of the destination's family or, for IPv4, of either; `None` on link.
    pub via: Option<IpAddr>,
    /// Interface index of the device; `None` lets the kernel find it from [`Route::via`].
    pub index: Option<u32>,
}

/// Neighbour's address on the link, as the kernel knows it (ARP, RFC 826; ND, RFC 4861).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// Interface index of the link.
    pub index: u32,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Ethernet address, once known.
    pub mac: Option<[u8; 6]>,
    /// State of the kernel's entry.
    pub state: NeighbourState,
}

/// State of a neighbour entry (`NUD_*`, RFC 4861 section 7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NeighbourState {
    /// Queried, not answered yet.
    Incomplete,
    /// Confirmed recently.
    Reachable,
    /// Confirmed once; usable, queried again on use.
    Stale,
    /// Used since; queried again soon.
    Delay,
    /// Being queried again.
    Probe,
    /// Queried without an answer.
    Failed,
    /// Needs no query (loopback, multicast).
    NoArp,
    /// Set by hand.
    Permanent,
    /// No state known, or a state of a newer kernel.
    Unknown,
}

impl NeighbourState {
    /// Returns true if the kernel sends to the neighbour without a query first.
    #[must_use]
    pub fn usable(self) -> bool {
        !matches!(self, Self::Incomplete | Self::Failed | Self::Unknown)
    }

    fn of(bits: u16) -> Self {
        match bits {
            0x01 => Self::Incomplete,
            0x02 => Self::Reachable,
            0x04 => Self::Stale,
            0x08 => Self::Delay,
            0x10 => Self::Probe,
            0x20 => Self::Failed,
            0x40 => Self::NoArp,
            0x80 => Self::Permanent,
            _ => Self::Unknown,
        }
    }
}

/// Gives a device an address; the kernel adds the route to its network when the device is up. An
/// address of 127.0.0.0/8 belongs to this machine alone, and nothing is sent from it.
pub(super) fn add_address(
    socket: &Socket,
    index: u32,
    prefix: AddressPrefix,
    detection: DuplicateDetection,
) -> Result<(), NetlinkError> {
    let mut message = match prefix.address {
        IpAddr::V4(address) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(address, prefix.length)
            .build(),
        IpAddr::V6(address) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(index)
            .address(address, prefix.length)
            .build(),
    };
    if prefix.address.is_ipv6() && detection == DuplicateDetection::Skip {
        message.header.flags |= AddressHeaderFlags::Nodad;
    }
    if prefix.address.is_loopback() {
        message.header.scope = AddressScope::Host;
    }
    let request = format!("add the address {prefix} to the network device number {index}");
    let message = RouteNetlinkMessage::NewAddress(message);
    socket.change(request, &message, NLM_F_CREATE | NLM_F_EXCL)
}

/// Adds a route, or replaces the one with the same destination.
pub(super) fn add_route(socket: &Socket, route: &Route) -> Result<(), NetlinkError> {
    let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
    let request = format!("add the route to {}{via}", route.destination);
    let malformed = |problem: String| NetlinkError::Malformed { request: request.clone(), problem };
    let network = route.destination.network();
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(network.address, network.length)
        .map_err(|error| malformed(error.to_string()))?;
    if let Some(via) = route.via {
        builder = builder.gateway(via).map_err(|error| malformed(error.to_string()))?;
    }
    if let Some(index) = route.index {
        builder = builder.output_interface(index);
    }
    let message = RouteNetlinkMessage::NewRoute(builder.build());
    socket.change(&request, &message, NLM_F_CREATE | NLM_F_REPLACE)
}

/// Returns all neighbours that the kernel knows, IPv4 and IPv6.
pub(super) fn neighbours(socket: &Socket) -> Result<Vec<Neighbour>, NetlinkError> {
    let request = "list the neighbours";
    let answers = socket.dump(request, RTM_GETNEIGH, &[0; NEIGHBOUR_HEADER_LENGTH])?;
    let neighbours = answers
        .iter()
        .filter(|answer| answer.kind == RTM_NEWNEIGH)
        // Entries of a bridge's forwarding table have no address and are no neighbours.
        .filter_map(|answer| read_neighbour(&answer.payload))
        .collect();
    Ok(neighbours)
}

fn read_neighbour(payload: &[u8]) -> Option<Neighbour> {
    let (header, attributes) = payload.split_first_chunk::<NEIGHBOUR_HEADER_LENGTH>()?;
    let index = u32::from_ne_bytes(*header[4..].first_chunk()?);
    let state = NeighbourState::of(u16::from_ne_bytes(*header[8..].first_chunk()?));
    let mut address = None;
    let mut mac = None;
    for attribute in NlasIterator::new(attributes).flatten() {
        let value = attribute.value();
        match attribute.kind() {
            NDA_DST => {
                address = match value.len() {
                    4 => value.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
                    16 => value.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
                    _ => None,
                };
            }
            NDA_LLADDR => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(Neighbour { index, address: address?, mac, state })
}
