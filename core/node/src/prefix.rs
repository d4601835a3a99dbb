//! Address prefixes of a match: IPv4 or IPv6, host bits zero.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::message::shown;

/// Prefix in CIDR notation (RFC 4632, RFC 4291 section 2.3), with zero host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(IpNet);

/// Error of parsing a prefix. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The part before `/` is no address.
    #[error("'{text}' is no IPv4 or IPv6 address; write one like 10.0.2.0/24 or 2001:db8::/32")]
    Address {
        /// Text as given, escaped and shortened.
        text: String,
    },
    /// The part after `/` is no length.
    #[error("'{length}' is no prefix length for {address}; write a number from 0 to {limit}")]
    Length {
        /// Address before the slash.
        address: IpAddr,
        /// Text after the slash, escaped and shortened.
        length: String,
        /// Longest length for this address family.
        limit: u8,
    },
    /// Bits after the prefix are set, so that the network or the address may be meant.
    #[error(
        "{address}/{length} has bits set beyond its first {length}; write {network} for the network, or {address} for the one address"
    )]
    HostBits {
        /// Address as given.
        address: IpAddr,
        /// Length as given.
        length: u8,
        /// Prefix that was probably meant.
        network: Prefix,
    },
}

/// IP version of an address or a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IpVersion {
    /// IPv4.
    #[serde(rename = "4")]
    V4,
    /// IPv6.
    #[serde(rename = "6")]
    V6,
}

impl IpVersion {
    /// Returns 4 or 6, as in the first four bits of a packet.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

impl Prefix {
    /// Returns the prefix of `length` bits that contains `address`; longer lengths mean the address
    /// alone.
    #[must_use]
    pub fn containing(address: IpAddr, length: u8) -> Self {
        let limit = bits_of(address);
        IpNet::new(address, length.min(limit))
            .map_or_else(|_| Self(address.into()), |net| Self(net.trunc()))
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the number of bits that are compared.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns the IP version.
    #[must_use]
    pub const fn ip_version(&self) -> IpVersion {
        match self.0 {
            IpNet::V4(_) => IpVersion::V4,
            IpNet::V6(_) => IpVersion::V6,
        }
    }

    /// Returns true if `address` lies in the prefix; false if it is of the other IP version.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Returns the address as the front door compares it: IPv4 in the first four bytes.
    pub(crate) fn key_bytes(&self) -> [u8; 16] {
        bytes_of(self.0.addr())
    }

    /// Returns the mask of the bits that the front door compares.
    pub(crate) fn mask_bytes(&self) -> [u8; 16] {
        bytes_of(self.0.netmask())
    }
}

/// Returns the bytes of an address at the front of 16.
fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

const fn bits_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => Ipv4Addr::BITS as u8,
        IpAddr::V6(_) => Ipv6Addr::BITS as u8,
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    /// Parses `10.0.2.0/24`, `2001:db8::/32`, or an address alone.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| PrefixError::Address { text: shown(text) })?;
        let Some(length) = length else { return Ok(Self(address.into())) };
        let limit = bits_of(address);
        let parsed = Some(length)
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|&bits: &u8| bits <= limit);
        let Some(bits) = parsed else {
            return Err(PrefixError::Length { address, length: shown(length), limit });
        };
        let network = Self::containing(address, bits);
        if network.address() != address {
            return Err(PrefixError::HostBits { address, length: bits, network });
        }
        Ok(network)
    }
}

impl fmt::Display for Prefix {
    /// Writes the text that parsing reads; a whole address without its length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            self.0.addr().fmt(f)
        } else {
            self.0.fmt(f)
        }
    }
}

impl TryFrom<String> for Prefix {
    type Error = PrefixError;
    fn try_from(text: String) -> Result<Self, PrefixError> {
        text.parse()
    }
}

impl From<Prefix> for IpNet {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_refused_with_the_network_that_was_meant() {
        let message = "10.0.2.7/24".parse::<Prefix>().unwrap_err().to_string();
        assert!(message.contains("write 10.0.2.0/24 for the network"), "{message}");
        let message = "2001:db8::1/32".parse::<Prefix>().unwrap_err().to_string();
        assert!(message.contains("2001:db8::/32"), "{message}");
    }

    #[test]
    fn lengths_have_the_limit_of_their_family() {
        assert!("0.0.0.0/0".parse::<Prefix>().is_ok());
        assert!("::/128".parse::<Prefix>().is_ok());
        for bad in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "::/-1", "10.0.0.0/8/8"] {
            assert!(matches!(bad.parse::<Prefix>(), Err(PrefixError::Length { .. })), "{bad}");
        }
    }

    #[test]
    fn a_text_that_is_no_address_is_refused() {
        for bad in ["", "10.0.0", "10.0.0.256", "1::2::3", "host", "10.0.0.0 /8"] {
            assert!(matches!(bad.parse::<Prefix>(), Err(PrefixError::Address { .. })), "{bad}");
        }
    }

    #[test]
    fn a_whole_address_is_shown_without_its_length() {
        assert_eq!("10.0.0.1/32".parse::<Prefix>().unwrap().to_string(), "10.0.0.1");
        assert_eq!("10.0.0.0/31".parse::<Prefix>().unwrap().to_string(), "10.0.0.0/31");
    }

    #[test]
    fn the_key_has_ipv4_in_the_first_four_bytes() {
        let prefix: Prefix = "10.1.0.0/16".parse().unwrap();
        assert_eq!(prefix.key_bytes()[..5], [10, 1, 0, 0, 0]);
        assert_eq!(prefix.mask_bytes()[..5], [255, 255, 0, 0, 0]);
    }
}
