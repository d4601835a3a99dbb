//! Layer 3: addresses and routes that are added, neighbours that are listed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::attribute::{address as address_attribute, attribute, attributes, ne32};
use super::own::{AF_INET, AF_INET6, IFA_ADDRESS, IFA_LOCAL, RTA_DST, RTM_NEWADDR, RTM_NEWROUTE};
use super::socket::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use super::{Netlink, NetlinkError};

/// include/uapi/linux/if_addr.h.
const IFA_BROADCAST: u16 = 4;
const IFA_F_NODAD: u8 = 0x02;

/// include/uapi/linux/rtnetlink.h.
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_HOST: u8 = 254;
const RTN_UNICAST: u8 = 1;

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

/// Why a text is no address with a prefix length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no address with a prefix length; write 10.0.0.1/24 or fd00::1/64")]
pub struct AddressPrefixError {
    text: String,
}

impl AddressPrefix {
    /// Of an address and a prefix length; none when the length is above 32 or 128 bits.
    #[must_use]
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let length_max = if address.is_ipv4() { 32 } else { 128 };
        (length <= length_max).then_some(Self { address, length })
    }

    /// The address.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The length of the prefix, bits.
    #[must_use]
    pub fn length(self) -> u8 {
        self.length
    }

    /// The network: the address with its host part zero.
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

/// Whether an IPv6 address is probed for before it is used (RFC 4862, section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateDetection {
    /// As the device's parameters say; the address is unusable for a second or two.
    Usual,
    /// Not at all: usable at once.
    Skip,
}

/// A route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to; the zero address with length 0 is the default route.
    pub destination: AddressPrefix,
    /// The next router, of the destination's family or, for IPv4, of either; none on link.
    pub via: Option<IpAddr>,
    /// The device; none lets the kernel find it from [`Route::via`].
    pub index: Option<u32>,
}

/// A neighbour's address on the link, as the kernel knows it (ARP, RFC 826; ND, RFC 4861).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// On which device.
    pub index: u32,
    /// Whose.
    pub address: IpAddr,
    /// The Ethernet address, once known.
    pub mac: Option<[u8; 6]>,
    /// How sure the kernel is.
    pub state: NeighbourState,
}

/// How sure the kernel is of a neighbour (`NUD_*`, RFC 4861 section 7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NeighbourState {
    /// Asked, not answered yet.
    Incomplete,
    /// Confirmed lately.
    Reachable,
    /// Confirmed once; usable, asked again on use.
    Stale,
    /// Used since; asked again soon.
    Delay,
    /// Being asked again.
    Probe,
    /// Asked in vain.
    Failed,
    /// Needs no asking (loopback, multicast).
    NoArp,
    /// Set by hand.
    Permanent,
    /// Nothing known, or a state of a newer kernel.
    Unknown,
}

impl NeighbourState {
    /// Whether the kernel sends to it without asking first.
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

impl Netlink {
    /// Gives a device an address; the route to its network comes with it when the device is up.
    /// One of 127.0.0.0/8 is of this machine alone, and nothing is sent from it.
    ///
    /// # Errors
    /// When the device has it already, or IPv6 is off there.
    pub fn add_address(
        &self,
        index: u32,
        prefix: AddressPrefix,
        detection: DuplicateDetection,
    ) -> Result<(), NetlinkError> {
        let request = format!("add the address {prefix} to the network device number {index}");
        let message = new_address(index, prefix, detection);
        self.channel.ask(request, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &message).map(drop)
    }

    /// Adds a route, or replaces the one with the same destination.
    ///
    /// # Errors
    /// When the next router is on no link, or the device is down.
    pub fn add_route(&self, route: &Route) -> Result<(), NetlinkError> {
        let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        let request = format!("add the route to {}{via}", route.destination);
        let message = new_route(route).map_err(|problem| NetlinkError::Malformed {
            request: request.clone(),
            problem: problem.to_owned(),
        })?;
        self.channel.ask(&request, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &message).map(drop)
    }

    /// All neighbours that the kernel knows, IPv4 and IPv6.
    ///
    /// # Errors
    /// When the kernel's answer cannot be read.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, NetlinkError> {
        let request = "list the neighbours";
        let answers = self.channel.dump(request, RTM_GETNEIGH, &[0; NEIGHBOUR_HEADER_LENGTH])?;
        let neighbours = answers
            .iter()
            .filter(|answer| answer.kind == RTM_NEWNEIGH)
            // Entries of a bridge's forwarding table have no address: no neighbours.
            .filter_map(|answer| read_neighbour(&answer.payload))
            .collect();
        Ok(neighbours)
    }
}

fn family_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// `struct ifaddrmsg` and attributes.
fn new_address(index: u32, prefix: AddressPrefix, detection: DuplicateDetection) -> Vec<u8> {
    let AddressPrefix { address, length } = prefix;
    let skips = address.is_ipv6() && detection == DuplicateDetection::Skip;
    let flags = if skips { IFA_F_NODAD } else { 0 };
    let scope = if address.is_loopback() { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE };
    let mut message = vec![family_of(address), length, flags, scope];
    message.extend(index.to_ne_bytes());
    // No device has a group's address: the kernel refuses it.
    if !address.is_multicast() {
        message.extend(address_attribute(IFA_ADDRESS, address));
        message.extend(address_attribute(IFA_LOCAL, address));
        if let (IpAddr::V4(v4), ..31) = (address, length) {
            let broadcast = Ipv4Addr::from(u32::MAX >> length | u32::from(v4));
            message.extend(address_attribute(IFA_BROADCAST, broadcast.into()));
        }
    }
    message
}

/// `struct rtmsg` and attributes.
fn new_route(route: &Route) -> Result<Vec<u8>, &'static str> {
    let AddressPrefix { address, length } = route.destination.network();
    let (tos, source_length) = (0, 0);
    let mut message = vec![family_of(address), length, source_length, tos];
    message.extend([RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST]);
    message.extend([0; 4]);
    message.extend(address_attribute(RTA_DST, address));
    message.extend(match (address, route.via) {
        (_, None) => Vec::new(),
        (IpAddr::V4(_), Some(IpAddr::V6(via))) => {
            let family = u16::from(AF_INET6).to_ne_bytes();
            attribute(RTA_VIA, &[&family[..], &via.octets()].concat())
        }
        (IpAddr::V6(_), Some(IpAddr::V4(_))) => return Err("invalid address family Inet6"),
        (_, Some(via)) => address_attribute(RTA_GATEWAY, via),
    });
    if let Some(index) = route.index {
        message.extend(ne32(RTA_OIF, index));
    }
    Ok(message)
}

fn read_neighbour(payload: &[u8]) -> Option<Neighbour> {
    let (header, rest) = payload.split_first_chunk::<NEIGHBOUR_HEADER_LENGTH>()?;
    let index = u32::from_ne_bytes(*header[4..].first_chunk()?);
    let state = NeighbourState::of(u16::from_ne_bytes(*header[8..].first_chunk()?));
    let mut address = None;
    let mut mac = None;
    for attribute in attributes(rest) {
        match attribute.kind {
            NDA_DST => address = attribute.address(),
            NDA_LLADDR => mac = attribute.value.try_into().ok(),
            _ => {}
        }
    }
    Some(Neighbour { index, address: address?, mac, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hex;

    #[test]
    fn addresses_are_in_the_kernels_bytes() {
        use DuplicateDetection::{Skip, Usual};
        for (prefix, detection, expected) in [
            (
                "10.0.0.1/24",
                Usual,
                "0218000007000000080001000a000001080002000a000001080004000a0000ff",
            ),
            ("10.0.0.1/31", Skip, "021f000007000000080001000a000001080002000a000001"),
            (
                "10.0.0.1/0",
                Usual,
                "0200000007000000080001000a000001080002000a00000108000400ffffffff",
            ),
            ("224.0.0.1/24", Usual, "0218000007000000"),
            (
                "127.0.0.1/8",
                Usual,
                "020800fe07000000080001007f000001080002007f000001080004007fffffff",
            ),
            (
                "fd00::1/64",
                Usual,
                "0a4000000700000014000100fd00000000000000000000000000000114000200fd000000\
              000000000000000000000001",
            ),
            (
                "fd00::1/64",
                Skip,
                "0a4002000700000014000100fd00000000000000000000000000000114000200fd000000\
              000000000000000000000001",
            ),
        ] {
            let message = new_address(7, prefix.parse().unwrap(), detection);
            assert_eq!(hex(&message), expected, "{prefix} {detection:?}");
        }
    }

    #[test]
    fn routes_are_in_the_kernels_bytes() {
        for (destination, via, index, expected) in [
            (
                "10.1.2.3/16",
                Some("10.0.0.2"),
                Some(7),
                "02100000fe04000100000000080001000a010000080005000a0000020800040007000000",
            ),
            (
                "0.0.0.0/0",
                Some("10.0.0.2"),
                None,
                "02000000fe040001000000000800010000000000080005000a000002",
            ),
            (
                "10.1.0.0/16",
                None,
                Some(7),
                "02100000fe04000100000000080001000a0100000800040007000000",
            ),
            (
                "10.1.0.0/16",
                Some("fe80::1"),
                Some(7),
                "02100000fe04000100000000080001000a010000160012000a00fe800000000000000000\
              00000000000100000800040007000000",
            ),
            (
                "fd01::/48",
                Some("fd00::2"),
                Some(7),
                "0a300000fe0400010000000014000100fd01000000000000000000000000000014000500\
              fd0000000000000000000000000000020800040007000000",
            ),
        ] {
            let destination = destination.parse().unwrap();
            let via = via.map(|via: &str| via.parse().unwrap());
            let message = new_route(&Route { destination, via, index }).unwrap();
            assert_eq!(hex(&message), expected, "{destination}");
        }
        let destination = "fd01::/48".parse().unwrap();
        let via = Some([10, 0, 0, 1].into());
        assert!(new_route(&Route { destination, via, index: None }).is_err());
    }
}
