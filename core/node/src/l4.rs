//! L4 ports and TCP flags of a match.
//!
//! The front door compares bits, so a range of ports is split into prefixes of 16, 12, 8 or 4 bits.
//! Lengths in steps of four give more prefixes (at most [`PREFIXES_MAX`]) but fewer different
//! lengths. Each length is a mask, which costs time on each lookup; a prefix costs only memory.
//!
//! ```text
//! 1000-2000 = 1000 … 1007 /16 · 1008-1023 /12 · 1024-1279 1280-1535 1536-1791 /8
//!           · 1792-1807 … 1984-1999 /12 · 2000 /16
//! ```

use core::fmt;
use core::str::FromStr;

use abi::manifest::Meant;
use serde::{Deserialize, Serialize};

use crate::message::shown;

/// Range of L4 ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// The text is neither an L4 port nor a range of them. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortRangeError {
    /// The text is no number, or one that is too large.
    #[error("'{text}' is no L4 port; write a number from 0 to 65535, or a range as in 1000-2000")]
    Number {
        /// Text as given, escaped and shortened.
        text: String,
    },
    /// The last port is below the first.
    #[error("{first}-{last} has no L4 port in it; write {last}-{first}")]
    Backwards {
        /// First port as given.
        first: u16,
        /// Last port as given.
        last: u16,
    },
}

/// Limit of prefixes in one range: 15 on each side for each of three lengths, and 14 of four bits.
pub const PREFIXES_MAX: usize = 104;

/// Port number of which only the upper bits are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPrefix {
    /// First port of the prefix.
    pub(crate) value: u16,
    /// Mask of the bits that are compared.
    pub(crate) mask: u16,
}

impl PortRange {
    /// Returns the range of one port.
    #[must_use]
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Returns the range between two ports, in either order.
    #[must_use]
    pub const fn between(one: u16, other: u16) -> Self {
        if one <= other {
            Self { first: one, last: other }
        } else {
            Self { first: other, last: one }
        }
    }

    /// Returns the first port.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Returns true if the port lies in the range.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Returns true if the ranges have a port in common.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns the prefixes that make up the range, in the order of their ports.
    pub(crate) fn prefixes(self) -> Vec<PortPrefix> {
        let (mut at, end) = (u32::from(self.first), u32::from(self.last) + 1);
        let mut prefixes = Vec::new();
        while at < end {
            let fits = |size: &u32| at.is_multiple_of(*size) && at + size <= end;
            let size = [1 << 16, 1 << 12, 1 << 8, 1 << 4].into_iter().find(fits).unwrap_or(1);
            prefixes.push(PortPrefix { value: at as u16, mask: !((size - 1) as u16) });
            at += size;
        }
        prefixes
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
            let number = part.parse().ok().filter(|_| digits);
            number.ok_or_else(|| PortRangeError::Number { text: shown(text) })
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(PortRangeError::Backwards { first, last });
        }
        Ok(Self { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            self.first.fmt(f)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl TryFrom<String> for PortRange {
    type Error = PortRangeError;
    fn try_from(text: String) -> Result<Self, PortRangeError> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> Self {
        range.to_string()
    }
}

/// TCP flags (RFC 9293 section 3.1) that must be set, and that must not: `syn,!ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TcpFlags {
    compared: u8,
    set: u8,
}

/// The text does not describe TCP flags. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TcpFlagsError {
    /// The name is no TCP flag.
    #[error(
        "'{text}' is no TCP flag; write those that must be set, and with '!' those that must not, as in syn,!ack{meant}"
    )]
    Unknown {
        /// Text as given, escaped and shortened.
        text: String,
        /// Nearest name, or all names.
        meant: Meant,
    },
    /// The flag is named twice.
    #[error("the flag '{flag}' is there twice")]
    Twice {
        /// Name of the flag.
        flag: &'static str,
    },
    /// A flag before the slash is missing after it.
    #[error(
        "'{flag}' is to be set but is not looked at: behind the slash stand all flags that are, as in syn/syn,ack"
    )]
    NotLookedAt {
        /// Name of the flag.
        flag: &'static str,
    },
}

/// Names of the flags, in the order of their bits in byte 13 of the header.
const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

fn flag(text: &str) -> Result<usize, TcpFlagsError> {
    FLAGS
        .iter()
        .position(|known| *known == text)
        .ok_or_else(|| TcpFlagsError::Unknown { text: shown(text), meant: Meant::new(text, FLAGS) })
}

/// Adds the flag at this bit to `seen`, which must not have it yet.
fn once(seen: &mut u8, at: usize) -> Result<u8, TcpFlagsError> {
    let bit = 1 << at;
    if *seen & bit != 0 {
        return Err(TcpFlagsError::Twice { flag: FLAGS[at] });
    }
    *seen |= bit;
    Ok(bit)
}

impl TcpFlags {
    /// Returns the condition that of the flags `compared` exactly those in `set` are set; `None`
    /// if `compared` is empty.
    #[must_use]
    pub fn new(compared: u8, set: u8) -> Option<Self> {
        (compared != 0).then_some(Self { compared, set: set & compared })
    }

    /// Returns the mask of the flags that are compared.
    #[must_use]
    pub const fn compared(self) -> u8 {
        self.compared
    }

    /// Returns the flags that must be set.
    #[must_use]
    pub const fn set(self) -> u8 {
        self.set
    }
}

impl FromStr for TcpFlags {
    type Err = TcpFlagsError;

    /// Parses `syn,!ack`, or the form of nftables, set flags before the slash and compared ones
    /// after it: `syn/syn,ack`.
    fn from_str(text: &str) -> Result<Self, TcpFlagsError> {
        let (mut compared, mut set) = (0, 0);
        let Some((wanted, among)) = text.split_once('/') else {
            for word in text.split(',') {
                let name = word.strip_prefix('!').unwrap_or(word);
                let bit = once(&mut compared, flag(name)?)?;
                set |= if name == word { bit } else { 0 };
            }
            return Ok(Self { compared, set });
        };
        for word in among.split(',') {
            once(&mut compared, flag(word)?)?;
        }
        for word in wanted.split(',') {
            let at = flag(word)?;
            if compared & once(&mut set, at)? == 0 {
                return Err(TcpFlagsError::NotLookedAt { flag: FLAGS[at] });
            }
        }
        Ok(Self { compared, set })
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (at, name) in FLAGS.iter().enumerate().filter(|(at, _)| self.compared >> at & 1 != 0) {
            let not = if self.set >> at & 1 == 0 { "!" } else { "" };
            write!(f, "{comma}{not}{name}")?;
            comma = ",";
        }
        Ok(())
    }
}

impl TryFrom<String> for TcpFlags {
    type Error = TcpFlagsError;
    fn try_from(text: String) -> Result<Self, TcpFlagsError> {
        text.parse()
    }
}

impl From<TcpFlags> for String {
    fn from(flags: TcpFlags) -> Self {
        flags.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prefixes_cover_the_range_and_nothing_else(one: u16, other: u16, near in 0..40u16) {
            for range in [PortRange::between(one, other), PortRange::between(one, one.saturating_add(near))] {
                let prefixes = range.prefixes();
                prop_assert!(prefixes.len() <= PREFIXES_MAX);
                let mut covered = 0;
                for PortPrefix { value, mask } in prefixes {
                    prop_assert_eq!(value & mask, value);
                    prop_assert!([0, 0xf000, 0xff00, 0xfff0, 0xffff].contains(&mask));
                    prop_assert!(range.contains(value) && range.contains(value | !mask));
                    covered += u32::from(!mask) + 1;
                }
                prop_assert_eq!(covered, u32::from(range.last - range.first) + 1);
            }
        }

        #[test]
        fn flags_read_back_as_they_are_shown(compared in 1u8.., set: u8) {
            let flags = TcpFlags::new(compared, set).unwrap();
            prop_assert_eq!(flags.to_string().parse(), Ok(flags));
        }
    }

    #[test]
    fn the_worst_range_has_the_most_prefixes() {
        assert_eq!(PortRange::between(1, 65534).prefixes().len(), PREFIXES_MAX);
        assert_eq!(PortRange::between(0, 65535).prefixes().len(), 1);
    }

    #[test]
    fn a_range_is_two_numbers_in_order() {
        assert_eq!("1000-2000".parse(), Ok(PortRange::between(1000, 2000)));
        assert_eq!("80-80".parse::<PortRange>().unwrap().to_string(), "80");
        let message = |text: &str| text.parse::<PortRange>().unwrap_err().to_string();
        assert!(message("2000-1000").ends_with("write 1000-2000"));
        for bad in ["", "-", "1-", "-1", "1-2-3", "+1", "65536", "0x50"] {
            assert!(message(bad).contains("is no L4 port"), "{bad}");
        }
    }

    #[test]
    fn flags_have_two_notations() {
        let syn = TcpFlags::new(0x12, 0x02).unwrap();
        assert_eq!("syn,!ack".parse(), Ok(syn));
        assert_eq!("!ack,syn".parse(), Ok(syn));
        assert_eq!("syn/ack,syn".parse(), Ok(syn));
        assert_eq!(syn.to_string(), "syn,!ack");
    }

    #[test]
    fn wrong_flags_are_answered_with_what_to_write() {
        let message = |text: &str| text.parse::<TcpFlags>().unwrap_err().to_string();
        assert!(message("sin").ends_with("did you mean 'syn'?"), "{}", message("sin"));
        assert!(message("syn,!syn").contains("twice"));
        assert!(message("syn/ack").contains("'syn' is to be set but is not looked at"));
        assert!(message("").contains("no TCP flag"));
        assert!(message("syn,").contains("no TCP flag"));
    }
}
