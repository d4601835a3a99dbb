//! Protocols above IP, by name or number.

use core::fmt;
use core::str::FromStr;

use abi::manifest::Meant;
use serde::{Deserialize, Serialize};

use crate::message::shown;
use crate::prefix::IpVersion;

/// Protocol after IP and its extension headers (IANA "Assigned Internet Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Protocol(pub u8);

/// The text is neither a known protocol nor a number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no protocol; write a name or a number from 0 to 255{meant}")]
pub struct ProtocolError {
    text: String,
    meant: Meant,
}

const NAMES: [(&str, Protocol); 12] = [
    ("icmp", Protocol::ICMP),
    ("igmp", Protocol(2)),
    ("tcp", Protocol::TCP),
    ("udp", Protocol::UDP),
    ("dccp", Protocol::DCCP),
    ("gre", Protocol(47)),
    ("esp", Protocol(50)),
    ("ah", Protocol(51)),
    ("icmpv6", Protocol::ICMPV6),
    ("ospf", Protocol(89)),
    ("sctp", Protocol::SCTP),
    ("udplite", Protocol::UDPLITE),
];

impl Protocol {
    /// Internet Control Message Protocol (RFC 792).
    pub const ICMP: Self = Self(1);
    /// Transmission Control Protocol (RFC 9293).
    pub const TCP: Self = Self(6);
    /// User Datagram Protocol (RFC 768).
    pub const UDP: Self = Self(17);
    /// Datagram Congestion Control Protocol (RFC 4340).
    pub const DCCP: Self = Self(33);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// Stream Control Transmission Protocol (RFC 9260).
    pub const SCTP: Self = Self(132);
    /// UDP-Lite (RFC 3828).
    pub const UDPLITE: Self = Self(136);

    /// Returns true if the header begins with a source and a destination L4 port.
    #[must_use]
    pub const fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::DCCP | Self::SCTP | Self::UDPLITE)
    }

    /// Returns the IP version, if the protocol is defined for only one.
    #[must_use]
    pub const fn ip_version(self) -> Option<IpVersion> {
        match self {
            Self::ICMP => Some(IpVersion::V4),
            Self::ICMPV6 => Some(IpVersion::V6),
            _ => None,
        }
    }
}

impl Protocol {
    /// Returns true for a protocol's name, which a number is not.
    pub(crate) fn is_name(text: &str) -> bool {
        NAMES.iter().any(|(name, _)| *name == text)
    }
}

impl FromStr for Protocol {
    type Err = ProtocolError;

    fn from_str(text: &str) -> Result<Self, ProtocolError> {
        if let Some(&(_, protocol)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(protocol);
        }
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(Self(number)),
            _ => Err(ProtocolError {
                text: shown(text),
                meant: Meant::new(text, NAMES.map(|(name, _)| name)),
            }),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, protocol)| protocol == self) {
            Some((name, _)) => f.pad(name),
            None => self.0.fmt(f),
        }
    }
}

impl TryFrom<String> for Protocol {
    type Error = ProtocolError;
    fn try_from(text: String) -> Result<Self, ProtocolError> {
        text.parse()
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> Self {
        protocol.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_reads_back_as_it_is_shown() {
        for number in 0..=255 {
            assert_eq!(Protocol(number).to_string().parse(), Ok(Protocol(number)));
        }
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest() {
        let message = "udpp".parse::<Protocol>().unwrap_err().to_string();
        assert!(message.ends_with("did you mean 'udp'?"), "{message}");
        assert!("256".parse::<Protocol>().is_err());
        assert!("+6".parse::<Protocol>().is_err());
    }
}
