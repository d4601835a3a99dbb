//! MAC addresses and ethertypes of a match.

use core::fmt;
use core::str::FromStr;

use abi::manifest::Meant;
use bpf_maps::ETHERTYPE_LENGTH;
use serde::{Deserialize, Serialize};

use crate::message::shown;
use crate::prefix::IpVersion;

/// A MAC address (IEEE 802), as in `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// The text is no MAC address. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is no MAC address; write six pairs of hexadecimal digits, as in 02:00:00:00:00:01"
)]
pub struct MacError {
    text: String,
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let wrong = || MacError { text: shown(text) };
        let mut bytes = [0; 6];
        let mut pairs = text.split([':', '-']);
        for byte in &mut bytes {
            let pair = pairs.next().filter(|pair| pair.len() == 2).ok_or_else(wrong)?;
            let digits = pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            let value = u8::from_str_radix(pair, 16).ok().filter(|_| digits);
            *byte = value.ok_or_else(wrong)?;
        }
        if pairs.next().is_some() { Err(wrong()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;
    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// Type of a frame's payload after its VLAN tags (IEEE 802 numbers), or `llc` for a frame whose
/// field there is a length, as in STP and IS-IS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ethertype(u16);

/// The text is no ethertype of a rule. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EthertypeError {
    /// The text is neither a name nor a number.
    #[error(
        "'{text}' is no ethertype; write a name, or four hexadecimal digits as in 0x88cc{meant}"
    )]
    Unknown {
        /// Text as given, escaped and shortened.
        text: String,
        /// Nearest name, or all names.
        meant: Meant,
    },
    /// The number is that of a VLAN tag; rules see the type after the tags.
    #[error("0x{0:04x} is a VLAN tag, and the ethertype is what comes behind the tags; use 'vlan'")]
    Tag(u16),
    /// The number is an 802.3 length.
    #[error(
        "0x{0:04x} is a length and no ethertype, which begin at 0x0600; use 'llc' for frames with a length"
    )]
    Length(u16),
}

const NAMES: [(&str, Ethertype); 11] = [
    ("ipv4", Ethertype::IPV4),
    ("ipv6", Ethertype::IPV6),
    ("arp", Ethertype(0x0806)),
    ("rarp", Ethertype(0x8035)),
    ("llc", Ethertype(ETHERTYPE_LENGTH)),
    ("lldp", Ethertype(0x88cc)),
    ("eapol", Ethertype(0x888e)),
    ("mpls", Ethertype(0x8847)),
    ("ptp", Ethertype(0x88f7)),
    ("pppoe", Ethertype(0x8864)),
    ("lacp", Ethertype(0x8809)),
];

/// Smallest number that is no length (IEEE 802.3 clause 3.2.6).
pub(crate) const ETHERTYPE_MIN: u16 = 0x0600;
/// Tags that the front door skips.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

impl Ethertype {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);

    /// Returns the number that the front door compares.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Returns the IP version, if the type is IP.
    #[must_use]
    pub const fn ip_version(self) -> Option<IpVersion> {
        match self {
            Self::IPV4 => Some(IpVersion::V4),
            Self::IPV6 => Some(IpVersion::V6),
            _ => None,
        }
    }
}

impl FromStr for Ethertype {
    type Err = EthertypeError;

    fn from_str(text: &str) -> Result<Self, EthertypeError> {
        if let Some(&(_, named)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(named);
        }
        let digits = text.strip_prefix("0x").unwrap_or_default();
        let hexadecimal = !digits.is_empty() && digits.bytes().all(|d| d.is_ascii_hexdigit());
        match u16::from_str_radix(digits, 16) {
            Ok(tag) if hexadecimal && TAGS.contains(&tag) => Err(EthertypeError::Tag(tag)),
            Ok(length) if hexadecimal && length < ETHERTYPE_MIN => {
                Err(EthertypeError::Length(length))
            }
            Ok(number) if hexadecimal => Ok(Self(number)),
            _ => Err(EthertypeError::Unknown {
                text: shown(text),
                meant: Meant::new(text, NAMES.map(|(name, _)| name)),
            }),
        }
    }
}

impl fmt::Display for Ethertype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, named)| named == self) {
            Some((name, _)) => f.pad(name),
            None => write!(f, "0x{:04x}", self.0),
        }
    }
}

impl TryFrom<String> for Ethertype {
    type Error = EthertypeError;
    fn try_from(text: String) -> Result<Self, EthertypeError> {
        text.parse()
    }
}

impl From<Ethertype> for String {
    fn from(ethertype: Ethertype) -> Self {
        ethertype.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_six_pairs() {
        let mac = Mac([2, 0, 0xff, 0x10, 0xab, 1]);
        assert_eq!(mac.to_string(), "02:00:ff:10:ab:01");
        assert_eq!("02:00:FF:10:ab:01".parse(), Ok(mac));
        assert_eq!("02-00-ff-10-ab-01".parse(), Ok(mac));
        for bad in
            ["", "02:00:ff:10:ab", "02:00:ff:10:ab:01:02", "2:0:f:1:a:1", "+2:00:ff:10:ab:01"]
        {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_ethertype_reads_back_as_it_is_shown() {
        let numbers = (ETHERTYPE_MIN..=u16::MAX).filter(|number| !TAGS.contains(number));
        for number in numbers.chain([ETHERTYPE_LENGTH]) {
            assert_eq!(Ethertype(number).to_string().parse(), Ok(Ethertype(number)));
        }
    }

    #[test]
    fn an_invalid_ethertype_is_refused_with_advice() {
        let message = |text: &str| text.parse::<Ethertype>().unwrap_err().to_string();
        assert!(message("arpp").ends_with("did you mean 'arp'?"), "{}", message("arpp"));
        assert!(message("0x8100").contains("use 'vlan'"));
        assert!(message("0x05dc").contains("use 'llc'"));
        assert!(message("0x").contains("four hexadecimal digits"));
        assert!(message("0x+806").contains("four hexadecimal digits"));
        assert!(message("2054").contains("four hexadecimal digits"));
    }
}
