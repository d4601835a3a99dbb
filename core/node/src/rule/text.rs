//! Text form of a match: words and values, in any order, each word once.
//!
//! ```text
//! match = "any" | field { " " field }
//! field = "smac" MAC | "dmac" MAC | "ethertype" TYPE | "ip" (4|6) | "vlan" (untagged|ID)
//!       | "proto" PROTOCOL | "src" PREFIX | "sport" L4-PORTS | "dst" PREFIX | "dport" L4-PORTS
//!       | "flags" FLAGS | "dscp" (0..63) | "fragment" (none|first|later) | "in" PORT
//! L4-PORTS = NUMBER [ "-" NUMBER ]         FLAGS = ["!"] FLAG { "," ["!"] FLAG } | SET "/" LOOKED-AT
//! ```

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use abi::manifest::Meant;
use units::NameError;

use super::{FragmentMatch, Match, VlanMatch};
use crate::ethernet::{Ethertype, EthertypeError, MacError};
use crate::l4::{PortRangeError, TcpFlagsError};
use crate::message::shown;
use crate::prefix::{IpVersion, Prefix, PrefixError};
use crate::protocol::{Protocol, ProtocolError};

/// Longest text of a match, in bytes: each word once with its longest value is below 300.
pub const MATCH_LENGTH_MAX: usize = 512;

/// Largest VLAN identifier; 4095 is reserved (IEEE 802.1Q table 9-2).
const VLAN_ID_MAX: u16 = 4094;
/// Largest DSCP: six bits (RFC 2474).
const DSCP_MAX: u8 = 63;

/// Error of parsing a match, with its position. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the match '{text}' is wrong at character {position}: {fault}")]
pub struct MatchError {
    /// Text of the match, escaped and shortened for messages.
    pub text: String,
    /// Position of the faulty word, in characters from 1.
    pub position: usize,
    /// Fault at that position.
    pub fault: MatchFault,
}

/// Fault at one position of a match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchFault {
    /// The text has no word.
    #[error("it is empty; write 'any' to match every packet")]
    Empty,
    /// The text has more than [`MATCH_LENGTH_MAX`] bytes.
    #[error("it has {length} bytes, at most {MATCH_LENGTH_MAX} are allowed; write several rules")]
    TooLong {
        /// Length of the text in bytes.
        length: usize,
    },
    /// The word is no field.
    #[error("'{found}' is no field of a match{meant}")]
    Word {
        /// Word as given, escaped.
        found: String,
        /// Nearest field, or all fields.
        meant: Meant,
    },
    /// A value stands where the name of its field belongs.
    #[error("'{found}' stands without its field; write {fields} before it")]
    NoField {
        /// Value as given, escaped.
        found: String,
        /// Fields that take such a value.
        fields: &'static str,
    },
    /// The word `any` is given together with fields.
    #[error("'any' stands alone; leave it out when there are other fields")]
    AnyNotAlone,
    /// The field is given twice; a rule matches one value of each.
    #[error("'{word}' is there twice; write one rule for each value")]
    Repeated {
        /// Name of the field.
        word: &'static str,
    },
    /// The text ends after a field's name.
    #[error("'{word}' has no value; write {expected} after it")]
    NoValue {
        /// Name of the field.
        word: &'static str,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// The field cannot have this value.
    #[error("'{found}' is no value of '{word}'; write {expected}")]
    Value {
        /// Name of the field.
        word: &'static str,
        /// Value as given, escaped.
        found: String,
        /// Description of a valid value.
        expected: &'static str,
    },
    /// The prefix is not valid.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The protocol is not valid.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The name of the port is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The MAC address is not valid.
    #[error(transparent)]
    Mac(#[from] MacError),
    /// The ethertype is not valid.
    #[error(transparent)]
    Ethertype(#[from] EthertypeError),
    /// The L4 port or range is not valid.
    #[error(transparent)]
    L4Port(#[from] PortRangeError),
    /// The TCP flags are not valid.
    #[error(transparent)]
    TcpFlags(#[from] TcpFlagsError),
    /// The match has TCP flags without `proto tcp`.
    #[error("'flags' needs 'proto tcp', which alone has them")]
    FlagsWithoutTcp,
    /// The match has a field of IP, and an ethertype that is not IP.
    #[error(
        "'{word}' is a field of IP, but 'ethertype {ethertype}' is not: no packet matches both"
    )]
    NotIp {
        /// Name of the field.
        word: &'static str,
        /// Ethertype of the match.
        ethertype: Ethertype,
    },
    /// The match has L4 ports without a protocol that has them.
    #[error(
        "'{word}' needs 'proto' with a protocol that has L4 ports: tcp, udp, sctp, udplite or dccp"
    )]
    PortsWithoutProtocol {
        /// Name of the field: `sport` or `dport`.
        word: &'static str,
    },
    /// The match includes L4 port 0, which fragments without their first one also show.
    #[error(
        "L4 port 0 is also what a later fragment without its first one shows; add 'fragment none' or 'fragment first'"
    )]
    PortZero,
    /// The fields are of different IP versions: no packet could match.
    #[error("'{word}' is of IPv{found}, but '{other}' is of IPv{expected}: no packet matches both")]
    Family {
        /// Name of the later field.
        word: &'static str,
        /// IP version of the later field.
        found: IpVersion,
        /// Name of the field that it contradicts.
        other: &'static str,
        /// IP version of that field.
        expected: IpVersion,
    },
}

/// Fields, in the order in which a match is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    Smac,
    Dmac,
    Ethertype,
    Ip,
    Vlan,
    Proto,
    Src,
    Sport,
    Dst,
    Dport,
    Flags,
    Dscp,
    Fragment,
    In,
}

impl Word {
    const ALL: [(Self, &'static str, &'static str); 14] = [
        (Self::Smac, "smac", "a MAC address"),
        (Self::Dmac, "dmac", "a MAC address"),
        (Self::Ethertype, "ethertype", "a name such as 'arp', or a number such as 0x88cc"),
        (Self::Ip, "ip", "4 or 6"),
        (Self::Vlan, "vlan", "'untagged' or an identifier from 0 to 4094"),
        (Self::Proto, "proto", "a protocol"),
        (Self::Src, "src", "an address or prefix"),
        (Self::Sport, "sport", "an L4 port, or a range as in 1000-2000"),
        (Self::Dst, "dst", "an address or prefix"),
        (Self::Dport, "dport", "an L4 port, or a range as in 1000-2000"),
        (Self::Flags, "flags", "TCP flags as in syn,!ack"),
        (Self::Dscp, "dscp", "a number from 0 to 63"),
        (Self::Fragment, "fragment", "'none', 'first' or 'later'"),
        (Self::In, "in", "the name of a port"),
    ];

    const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    const fn expected(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    fn parse(text: &str) -> Result<Self, MatchFault> {
        let known = Self::ALL.iter().find(|(_, name, _)| *name == text);
        known.map(|&(word, ..)| word).ok_or_else(|| {
            let fields = if Protocol::is_name(text) {
                Some("'proto'")
            } else {
                text.parse::<Prefix>().is_ok().then_some("'src' or 'dst'")
            };
            match fields {
                Some(fields) => MatchFault::NoField { found: shown(text), fields },
                None => MatchFault::Word {
                    found: shown(text),
                    meant: Meant::new(text, Self::ALL.map(|(_, name, _)| name)),
                },
            }
        })
    }

    fn wrong(self, value: &str) -> MatchFault {
        MatchFault::Value { word: self.name(), found: shown(value), expected: self.expected() }
    }

    /// Parses a decimal number up to `limit`, without sign.
    fn number<T: FromStr + PartialOrd>(self, value: &str, limit: T) -> Result<T, MatchFault> {
        let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        let number = value.parse().ok().filter(|number| digits && *number <= limit);
        number.ok_or_else(|| self.wrong(value))
    }
}

/// Position of each field in a text.
type Positions = BTreeMap<Word, usize>;

impl FromStr for Match {
    type Err = MatchError;

    fn from_str(text: &str) -> Result<Self, MatchError> {
        parse(text).map_err(|(position, fault)| MatchError { text: shown(text), position, fault })
    }
}

/// Fault with its position.
type At = (usize, MatchFault);

fn parse(text: &str) -> Result<Match, At> {
    if text.len() > MATCH_LENGTH_MAX {
        return Err((1, MatchFault::TooLong { length: text.len() }));
    }
    let mut found = Match::default();
    let mut positions = Positions::new();
    let mut words = words(text).peekable();
    match words.peek() {
        None => return Err((1, MatchFault::Empty)),
        Some(&(at, "any")) => {
            words.next();
            return if words.peek().is_none() {
                Ok(found)
            } else {
                Err((at, MatchFault::AnyNotAlone))
            };
        }
        Some(_) => {}
    }
    while let Some((at, word)) = words.next() {
        if word == "any" {
            return Err((at, MatchFault::AnyNotAlone));
        }
        let word = Word::parse(word).map_err(|fault| (at, fault))?;
        if positions.insert(word, at).is_some() {
            return Err((at, MatchFault::Repeated { word: word.name() }));
        }
        let Some((value_at, value)) = words.next() else {
            let fault = MatchFault::NoValue { word: word.name(), expected: word.expected() };
            return Err((at, fault));
        };
        set(&mut found, word, value).map_err(|fault| (value_at, fault))?;
    }
    only_ip_has_its_fields(&found, &positions)?;
    ports_have_a_protocol(&found, &positions)?;
    flags_are_of_tcp(&found, &positions)?;
    families_agree(&found, &positions)?;
    Ok(found)
}

/// Returns the words of a text with their positions, in characters from 1.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_whitespace().map(move |word| {
        let offset = word.as_ptr() as usize - text.as_ptr() as usize;
        (text[..offset].chars().count() + 1, word)
    })
}

fn set(found: &mut Match, word: Word, value: &str) -> Result<(), MatchFault> {
    match word {
        Word::Smac => found.source_mac = Some(value.parse()?),
        Word::Dmac => found.destination_mac = Some(value.parse()?),
        Word::Ethertype => found.ethertype = Some(value.parse()?),
        Word::Flags => found.tcp_flags = Some(value.parse()?),
        Word::Ip => {
            found.ip_version = Some(match value {
                "4" => IpVersion::V4,
                "6" => IpVersion::V6,
                _ => return Err(word.wrong(value)),
            });
        }
        Word::Vlan => {
            found.vlan = Some(match value {
                "untagged" => VlanMatch::Untagged,
                _ => VlanMatch::Id(word.number(value, VLAN_ID_MAX)?),
            });
        }
        Word::Proto => found.protocol = Some(value.parse()?),
        Word::Src => found.source = Some(value.parse()?),
        Word::Sport => found.source_port = Some(value.parse()?),
        Word::Dst => found.destination = Some(value.parse()?),
        Word::Dport => found.destination_port = Some(value.parse()?),
        Word::Dscp => found.dscp = Some(word.number(value, DSCP_MAX)?),
        Word::Fragment => {
            found.fragment = Some(match value {
                "none" => FragmentMatch::None,
                "first" => FragmentMatch::First,
                "later" => FragmentMatch::Later,
                _ => return Err(word.wrong(value)),
            });
        }
        Word::In => found.port = Some(value.parse()?),
    }
    Ok(())
}

fn ports_have_a_protocol(found: &Match, positions: &Positions) -> Result<(), At> {
    let ports = [(Word::Sport, found.source_port), (Word::Dport, found.destination_port)];
    for (word, port) in ports {
        let (Some(port), Some(&at)) = (port, positions.get(&word)) else { continue };
        if !found.protocol.is_some_and(Protocol::has_ports) {
            return Err((at, MatchFault::PortsWithoutProtocol { word: word.name() }));
        }
        let whole = matches!(found.fragment, Some(FragmentMatch::None | FragmentMatch::First));
        if port.contains(0) && !whole {
            return Err((at, MatchFault::PortZero));
        }
    }
    Ok(())
}

fn flags_are_of_tcp(found: &Match, positions: &Positions) -> Result<(), At> {
    match positions.get(&Word::Flags) {
        Some(&at) if found.protocol != Some(Protocol::TCP) => {
            Err((at, MatchFault::FlagsWithoutTcp))
        }
        _ => Ok(()),
    }
}

fn only_ip_has_its_fields(found: &Match, positions: &Positions) -> Result<(), At> {
    let Some(ethertype) = found.ethertype.filter(|given| given.ip_version().is_none()) else {
        return Ok(());
    };
    let of_any = [Word::Smac, Word::Dmac, Word::Ethertype, Word::Vlan, Word::In];
    match positions.iter().find(|(word, _)| !of_any.contains(word)) {
        Some((word, &at)) => Err((at, MatchFault::NotIp { word: word.name(), ethertype })),
        None => Ok(()),
    }
}

fn families_agree(found: &Match, positions: &Positions) -> Result<(), At> {
    let families = [
        (Word::Ethertype, found.ethertype.and_then(Ethertype::ip_version)),
        (Word::Ip, found.ip_version),
        (Word::Src, found.source.map(|prefix| prefix.ip_version())),
        (Word::Dst, found.destination.map(|prefix| prefix.ip_version())),
        (Word::Proto, found.protocol.and_then(Protocol::ip_version)),
    ];
    let mut known: Vec<(usize, Word, IpVersion)> = families
        .into_iter()
        .filter_map(|(word, family)| Some((*positions.get(&word)?, word, family?)))
        .collect();
    known.sort_unstable();
    for pair in known.windows(2) {
        let [(_, other, expected), (at, word, version)] = [pair[0], pair[1]];
        if expected != version {
            let (word, other) = (word.name(), other.name());
            return Err((at, MatchFault::Family { word, found: version, other, expected }));
        }
    }
    Ok(())
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Fields { f, first: true };
        fields.field(Word::Smac, self.source_mac)?;
        fields.field(Word::Dmac, self.destination_mac)?;
        fields.field(Word::Ethertype, self.ethertype)?;
        fields.field(Word::Ip, self.ip_version)?;
        fields.field(Word::Vlan, self.vlan)?;
        fields.field(Word::Proto, self.protocol)?;
        fields.field(Word::Src, self.source)?;
        fields.field(Word::Sport, self.source_port)?;
        fields.field(Word::Dst, self.destination)?;
        fields.field(Word::Dport, self.destination_port)?;
        fields.field(Word::Flags, self.tcp_flags)?;
        fields.field(Word::Dscp, self.dscp)?;
        fields.field(Word::Fragment, self.fragment)?;
        fields.field(Word::In, self.port.as_ref())?;
        if fields.first { f.write_str("any") } else { Ok(()) }
    }
}

/// Writer of fields, separated by spaces.
struct Fields<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    first: bool,
}

impl Fields<'_, '_> {
    fn field(&mut self, word: Word, value: Option<impl fmt::Display>) -> fmt::Result {
        let Some(value) = value else { return Ok(()) };
        let space = if self.first { "" } else { " " };
        self.first = false;
        write!(self.f, "{space}{} {value}", word.name())
    }
}

impl fmt::Display for VlanMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untagged => f.write_str("untagged"),
            Self::Id(id) => id.fmt(f),
        }
    }
}

impl fmt::Display for FragmentMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::First => "first",
            Self::Later => "later",
        })
    }
}

impl TryFrom<String> for Match {
    type Error = MatchError;
    fn try_from(text: String) -> Result<Self, MatchError> {
        text.parse()
    }
}

impl From<Match> for String {
    fn from(r#match: Match) -> Self {
        r#match.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l4::PortRange;
    use crate::testing::any_match;
    use proptest::prelude::*;

    fn fault(text: &str) -> (usize, MatchFault) {
        let error = text.parse::<Match>().unwrap_err();
        (error.position, error.fault)
    }

    #[test]
    fn the_example_of_the_manual_reads_back_as_written() {
        let text = "proto udp dst 10.0.2.0/24 dport 5001 in left";
        let parsed: Match = text.parse().unwrap();
        assert_eq!(parsed.to_string(), text);
        assert_eq!(parsed.port.unwrap().as_str(), "left");
        assert_eq!("any".parse(), Ok(Match::default()));
        assert_eq!(Match::default().to_string(), "any");
    }

    #[test]
    fn order_and_spaces_are_free() {
        let one: Match = "in left   dport 80\tproto tcp".parse().unwrap();
        assert_eq!(one, "proto tcp dport 80 in left".parse().unwrap());
    }

    #[test]
    fn an_error_in_a_match_has_its_column() {
        assert!(matches!(fault("  "), (1, MatchFault::Empty)));
        assert!(matches!(fault("proto udp prot 1"), (11, MatchFault::Word { .. })));
        assert!(matches!(fault("äö udp"), (1, MatchFault::Word { .. })));
        assert!(matches!(fault("proto ä"), (7, MatchFault::Protocol(_))));
        assert!(matches!(fault("ip 4 ip 4"), (6, MatchFault::Repeated { word: "ip" })));
        assert!(matches!(fault("ip 4 vlan"), (6, MatchFault::NoValue { word: "vlan", .. })));
        assert!(matches!(fault("vlan 4095"), (6, MatchFault::Value { .. })));
        assert!(matches!(fault("dscp 64"), (6, MatchFault::Value { .. })));
        assert!(matches!(fault("dscp +6"), (6, MatchFault::Value { .. })));
        assert!(matches!(fault("ip 5"), (4, MatchFault::Value { .. })));
        assert!(matches!(fault("dst 10.0.0.1/8"), (5, MatchFault::Prefix(_))));
        assert!(matches!(fault("in Left"), (4, MatchFault::Name(_))));
        assert!(matches!(fault("smac 1:2"), (6, MatchFault::Mac(_))));
        assert!(matches!(fault("ip 4 ethertype arpp"), (16, MatchFault::Ethertype(_))));
        assert!(matches!(fault("proto tcp dport 9-1"), (17, MatchFault::L4Port(_))));
        assert!(matches!(fault("proto tcp flags sin"), (17, MatchFault::TcpFlags(_))));
        assert!(matches!(fault("any ip 4"), (1, MatchFault::AnyNotAlone)));
        assert!(matches!(fault("ip 4 any"), (6, MatchFault::AnyNotAlone)));
        assert!(matches!(fault(&"ip 4 ".repeat(200)), (1, MatchFault::TooLong { length: 1000 })));
    }

    #[test]
    fn a_wrong_field_is_answered_with_the_nearest() {
        let message = "prot udp".parse::<Match>().unwrap_err().to_string();
        assert!(message.ends_with("did you mean 'proto'?"), "{message}");
    }

    #[test]
    fn a_value_without_its_field_is_answered_with_the_fields_that_take_it() {
        for (text, field) in [("icmp", "'proto'"), ("10.0.0.0/8", "'src' or 'dst'")] {
            let message = text.parse::<Match>().unwrap_err().to_string();
            assert!(message.contains(&format!("'{text}' stands without its field")), "{message}");
            assert!(message.contains(field), "{message}");
        }
        assert!(matches!(fault("udp dport 53"), (1, MatchFault::NoField { .. })));
    }

    #[test]
    fn l4_ports_need_a_protocol_that_has_them() {
        assert!(matches!(fault("dport 80"), (1, MatchFault::PortsWithoutProtocol { .. })));
        assert!(matches!(
            fault("proto icmp sport 80"),
            (12, MatchFault::PortsWithoutProtocol { word: "sport" })
        ));
        for name in ["tcp", "udp", "sctp", "udplite", "dccp"] {
            assert!(format!("sport 80 proto {name}").parse::<Match>().is_ok());
        }
    }

    #[test]
    fn l4_port_zero_is_not_taken_for_an_unknown_fragment() {
        assert!(matches!(fault("proto udp dport 0"), (11, MatchFault::PortZero)));
        assert!("proto udp dport 0 fragment none".parse::<Match>().is_ok());
    }

    #[test]
    fn a_range_with_port_zero_is_like_port_zero() {
        assert!(matches!(fault("proto udp dport 0-1023"), (11, MatchFault::PortZero)));
        assert!("proto udp dport 0-1023 fragment first".parse::<Match>().is_ok());
    }

    #[test]
    fn flags_need_tcp() {
        assert!(matches!(fault("flags syn"), (1, MatchFault::FlagsWithoutTcp)));
        assert!(matches!(fault("proto udp flags syn"), (11, MatchFault::FlagsWithoutTcp)));
        assert_eq!(
            "flags syn/syn,ack proto tcp".parse::<Match>().unwrap().to_string(),
            "proto tcp flags syn,!ack"
        );
    }

    #[test]
    fn only_ip_has_fields_of_ip() {
        assert!(matches!(
            fault("ethertype arp src 10.0.0.1"),
            (15, MatchFault::NotIp { word: "src", .. })
        ));
        assert!(matches!(fault("ip 4 ethertype lldp"), (1, MatchFault::NotIp { word: "ip", .. })));
        assert!(matches!(fault("ethertype ipv4 ip 6"), (16, MatchFault::Family { .. })));
        for good in ["ethertype arp in left", "ethertype llc dmac 01:80:c2:00:00:00 vlan untagged"]
        {
            assert!(good.parse::<Match>().is_ok(), "{good}");
        }
        assert!("ethertype ipv4 src 10.0.0.1".parse::<Match>().is_ok());
    }

    #[test]
    fn fields_of_two_families_contradict() {
        assert!(matches!(fault("src 10.0.0.1 dst ::1"), (14, MatchFault::Family { .. })));
        assert!(matches!(fault("dst ::1 ip 4"), (9, MatchFault::Family { word: "ip", .. })));
        assert!(matches!(fault("src ::1 proto icmp"), (9, MatchFault::Family { .. })));
        assert!("ip 6 src ::/0 proto icmpv6".parse::<Match>().is_ok());
    }

    #[test]
    fn a_match_made_by_hand_is_checked_like_its_text() {
        assert!(Match { dscp: Some(64), ..Match::default() }.check().is_err());
        assert!(
            Match { source_port: Some(PortRange::one(1)), ..Match::default() }.check().is_err()
        );
        assert!(Match::default().check().is_ok());
    }

    proptest! {
        #[test]
        fn every_match_reads_back_as_it_is_shown(made in any_match()) {
            prop_assert_eq!(made.check(), Ok(()));
            prop_assert_eq!(made.to_string().parse::<Match>(), Ok(made));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,60}", words in "((in|vlan|ip|src|dst|proto|sport|dport|dscp|smac|dmac|ethertype|flags|any) ([0-9a-z:./,!-]{0,6}) ?){0,5}") {
            for text in [text, words] {
                if let Ok(parsed) = text.parse::<Match>() {
                    prop_assert_eq!(parsed.to_string().parse::<Match>(), Ok(parsed));
                }
            }
        }
    }
}
