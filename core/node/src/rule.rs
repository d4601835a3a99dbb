//! Rules: which packets, how important, who pays, and where they go.
//!
//! A [`Match`] is written as text (`proto udp dst 10.0.2.0/24 dport 5001 in
//! left`, see `text`), and only that text travels through the API and files,
//! so every match that arrives has been checked. What it means to the front
//! door is decided in `classifier`.

mod apart;
mod text;

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use units::{Name, NameError, RuleId};

use crate::ethernet::{Ethertype, Mac};
use crate::flows::FlowList;
use crate::l4::{PortRange, TcpFlags};
use crate::message::shown;
use crate::prefix::{IpVersion, Prefix};
use crate::protocol::Protocol;
use crate::session;

pub use text::{MATCH_LENGTH_MAX, MatchError, MatchFault};

/// Which packets a rule is for; a field that is `None` is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Match {
    /// `in`: the port that the packet came in by.
    pub port: Option<Name>,
    /// `vlan`: the outermost tag, or that there is none.
    pub vlan: Option<VlanMatch>,
    /// `smac`: the source MAC address.
    pub source_mac: Option<Mac>,
    /// `dmac`: the destination MAC address.
    pub destination_mac: Option<Mac>,
    /// `ethertype`: what the frame carries behind its tags. A match without it is for IP only.
    pub ethertype: Option<Ethertype>,
    /// `ip`: the IP version.
    pub ip_version: Option<IpVersion>,
    /// `src`: the source address.
    pub source: Option<Prefix>,
    /// `dst`: the destination address.
    pub destination: Option<Prefix>,
    /// `proto`: the protocol after IP and its extension headers.
    pub protocol: Option<Protocol>,
    /// `sport`: the source L4 port, or a range.
    pub source_port: Option<PortRange>,
    /// `dport`: the destination L4 port, or a range.
    pub destination_port: Option<PortRange>,
    /// `flags`: the flags of TCP.
    pub tcp_flags: Option<TcpFlags>,
    /// `dscp`: the six bits of RFC 2474.
    pub dscp: Option<u8>,
    /// `fragment`: whole datagrams, first or later fragments.
    pub fragment: Option<FragmentMatch>,
}

impl Match {
    /// Checks that a match made field by field is one that its text could say.
    ///
    /// # Errors
    /// As for parsing; the position is that in the text which [`Match`] displays.
    pub fn check(&self) -> Result<(), MatchError> {
        self.to_string().parse::<Self>().map(drop)
    }

    /// Returns true when no packet can match both; false where that is not seen at once.
    #[must_use]
    pub fn is_apart(&self, other: &Self) -> bool {
        apart::are_apart(self, other)
    }
}

/// What `vlan` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VlanMatch {
    /// No tag.
    Untagged,
    /// The identifier of the outermost tag, 0 to 4094 (IEEE 802.1Q; 0 is a priority tag).
    Id(u16),
}

/// What `fragment` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FragmentMatch {
    /// A whole datagram.
    None,
    /// The first fragment, which has the L4 header.
    First,
    /// Any other fragment.
    Later,
}

/// What happens to the packets of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Plain forwarding; the rule only counts.
    Forward,
    /// Dropped, counted as `drop_rule`.
    Drop,
    /// Handled by the service of this name.
    Service(Name),
    /// Out by the port of this name, without a module, on the account of the rule's session.
    Out(Name),
}

impl Action {
    /// The service that it leads to.
    #[must_use]
    pub const fn service(&self) -> Option<&Name> {
        match self {
            Self::Service(service) => Some(service),
            Self::Forward | Self::Drop | Self::Out(_) => None,
        }
    }

    /// The port that it names.
    #[must_use]
    pub const fn port(&self) -> Option<&Name> {
        match self {
            Self::Out(port) => Some(port),
            Self::Forward | Self::Drop | Self::Service(_) => None,
        }
    }
}

/// Why a text is no action. Whose fault: who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// None of the four.
    #[error("'{text}' is no action; use 'forward', 'drop', 'service NAME' or 'out PORT'")]
    Unknown {
        /// The text as given, escaped and shortened.
        text: String,
    },
    /// A wrong name of a service, or a port.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for Action {
    type Err = ActionError;

    fn from_str(text: &str) -> Result<Self, ActionError> {
        let mut words = text.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("forward"), None, _) => Ok(Self::Forward),
            (Some("drop"), None, _) => Ok(Self::Drop),
            (Some("service"), Some(service), None) => Ok(Self::Service(Name::new(service)?)),
            (Some("out"), Some(port), None) => Ok(Self::Out(Name::new(port)?)),
            _ => Err(ActionError::Unknown { text: shown(text) }),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward => f.pad("forward"),
            Self::Drop => f.pad("drop"),
            Self::Service(service) => write!(f, "service {service}"),
            Self::Out(port) => write!(f, "out {port}"),
        }
    }
}

/// Where on a packet's way a rule is looked at: in each stage the best one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Infrastructure, before the principals: rules of the session *system*.
    In,
    /// One principal's: rules of all other sessions.
    Service,
    /// Infrastructure, behind them: rules of the session *system* that say so.
    Out,
}

impl Stage {
    /// `STAGE_*`.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::In => bpf_maps::STAGE_IN,
            Self::Service => bpf_maps::STAGE_SERVICE,
            Self::Out => bpf_maps::STAGE_OUT,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::In => "in",
            Self::Service => "service",
            Self::Out => "out",
        })
    }
}

/// A text that is no stage. Whose fault: who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no stage; use 'in' or 'out', for rules of the session system, or 'service'")]
pub struct StageError {
    /// The text as given, escaped and shortened.
    text: String,
}

impl FromStr for Stage {
    type Err = StageError;

    fn from_str(text: &str) -> Result<Self, StageError> {
        match text {
            "in" => Ok(Self::In),
            "service" => Ok(Self::Service),
            "out" => Ok(Self::Out),
            _ => Err(StageError { text: shown(text) }),
        }
    }
}

/// The priority of a rule that names none: room above and below.
pub const PRIORITY_DEFAULT: u16 = 100;

/// A rule as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// Which packets.
    pub r#match: Match,
    /// Higher wins; among equals the rule with the lower number.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// The session that pays for its packets.
    #[serde(default = "session::best_effort")]
    pub session: Name,
    /// Where they go.
    pub action: Action,
    /// Of the packets that match, those of one of these flows; all when there is no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowList>,
    /// Where on the way of packets it is looked at; what its session says when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

const fn priority_default() -> u16 {
    PRIORITY_DEFAULT
}

impl RuleSpec {
    /// A rule of the best-effort session with the default priority.
    #[must_use]
    pub fn new(r#match: Match, action: Action) -> Self {
        Self {
            r#match,
            priority: PRIORITY_DEFAULT,
            session: session::best_effort(),
            action,
            flows: None,
            stage: None,
        }
    }

    /// Where on the way of packets it is looked at.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let is_system = self.session == session::system();
        self.stage.unwrap_or(if is_system { Stage::In } else { Stage::Service })
    }
}

/// A rule that a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its number: the index of its counters.
    pub id: RuleId,
    /// What it says.
    #[serde(flatten)]
    pub spec: RuleSpec,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_needs_only_match_and_action() {
        let spec: RuleSpec =
            serde_json::from_str(r#"{"match":"proto icmp","action":"drop"}"#).unwrap();
        assert_eq!((spec.priority, spec.session.as_str()), (100, "best-effort"));
        let spec: RuleSpec =
            serde_json::from_str(r#"{"match":"any","action":{"service":"monitor"}}"#).unwrap();
        assert_eq!(spec.action.to_string(), "service monitor");
    }

    #[test]
    fn every_action_reads_back_as_it_is_shown_and_others_are_refused() {
        for text in ["forward", "drop", "service monitor", "out right"] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        for text in ["", "reject", "drop it", "service", "service a b", "service A"] {
            assert!(text.parse::<Action>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrong_match_is_refused_where_it_is_read() {
        let error = serde_json::from_str::<RuleSpec>(r#"{"match":"dport 5","action":"drop"}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("'dport' needs"), "{error}");
        assert!(serde_json::from_str::<RuleSpec>(r#"{"match":"any","acton":"drop"}"#).is_err());
    }
}
