//! Rules: match, priority, session and action.
//!
//! A [`Match`] is written as text (`proto udp dst 10.0.2.0/24 dport 5001 in left`, see `text`), and
//! only that text travels through the API and files, so every match that arrives has been checked.
//! `classifier` compiles it for the front door.

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

/// Conditions on a packet; a field that is `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Match {
    /// Condition `in`: the port that the packet came in by.
    pub port: Option<Name>,
    /// Condition `vlan`: the outermost tag, or that there is none.
    pub vlan: Option<VlanMatch>,
    /// Condition `smac`: the source MAC address.
    pub source_mac: Option<Mac>,
    /// Condition `dmac`: the destination MAC address.
    pub destination_mac: Option<Mac>,
    /// Condition `ethertype`: the type of the payload after VLAN tags. A match without it is for IP
    /// only.
    pub ethertype: Option<Ethertype>,
    /// Condition `ip`: the IP version.
    pub ip_version: Option<IpVersion>,
    /// Condition `src`: the source address.
    pub source: Option<Prefix>,
    /// Condition `dst`: the destination address.
    pub destination: Option<Prefix>,
    /// Condition `proto`: the protocol after IP and its extension headers.
    pub protocol: Option<Protocol>,
    /// Condition `sport`: the source L4 port, or a range.
    pub source_port: Option<PortRange>,
    /// Condition `dport`: the destination L4 port, or a range.
    pub destination_port: Option<PortRange>,
    /// Condition `flags`: the flags of TCP.
    pub tcp_flags: Option<TcpFlags>,
    /// Condition `dscp`: the six bits of RFC 2474.
    pub dscp: Option<u8>,
    /// Condition `fragment`: whole datagrams, first or later fragments.
    pub fragment: Option<FragmentMatch>,
}

impl Match {
    /// Checks that a match made field by field has a text form.
    ///
    /// # Errors
    /// Same as for parsing; the position is that in the text which [`Match`] displays.
    pub fn check(&self) -> Result<(), MatchError> {
        self.to_string().parse::<Self>().map(drop)
    }

    /// Returns true if no packet can match both, as far as that is seen by comparing fields one by
    /// one; false otherwise.
    #[must_use]
    pub fn is_apart(&self, other: &Self) -> bool {
        apart::are_apart(self, other)
    }
}

/// Condition on the outermost VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VlanMatch {
    /// Untagged.
    Untagged,
    /// Identifier of the outermost tag, 0 to 4094 (IEEE 802.1Q; 0 is a priority tag).
    Id(u16),
}

/// Condition on fragmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FragmentMatch {
    /// Whole datagram.
    None,
    /// First fragment, which has the L4 header.
    First,
    /// Any other fragment.
    Later,
}

/// Action on the packets of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Forward plainly; the rule only counts.
    Forward,
    /// Drop, counted as `drop_rule`.
    Drop,
    /// Hand to the service of this name.
    Service(Name),
    /// Send out by the port of this name, without a module, on the account of the rule's session.
    Out(Name),
}

impl Action {
    /// Returns the service that the action leads to.
    #[must_use]
    pub const fn service(&self) -> Option<&Name> {
        match self {
            Self::Service(service) => Some(service),
            Self::Forward | Self::Drop | Self::Out(_) => None,
        }
    }

    /// Returns the port that the action names.
    #[must_use]
    pub const fn port(&self) -> Option<&Name> {
        match self {
            Self::Out(port) => Some(port),
            Self::Forward | Self::Drop | Self::Service(_) => None,
        }
    }
}

/// Error of parsing an action. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// The text is none of the four actions.
    #[error("'{text}' is no action; use 'forward', 'drop', 'service NAME' or 'out PORT'")]
    Unknown {
        /// Text as given, escaped and shortened.
        text: String,
    },
    /// The name of the service or port is not valid.
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

/// Stage of the front door at which a rule applies; the best rule of each stage counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Infrastructure, before the principals: rules of the session *system*.
    In,
    /// Principals: rules of all other sessions.
    Service,
    /// Infrastructure, after the principals: rules of the session *system* that name this stage.
    Out,
}

impl Stage {
    /// Returns the number of the stage, one of `STAGE_*`.
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

/// The text is no stage. Fault of the text's author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no stage; use 'in' or 'out', for rules of the session system, or 'service'")]
pub struct StageError {
    /// Text as given, escaped and shortened.
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

/// Priority of a rule that names none, with room for others above and below.
pub const PRIORITY_DEFAULT: u16 = 100;

/// Rule as requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// Conditions on the packet.
    pub r#match: Match,
    /// Priority: higher wins; among equals the rule with the lower number.
    #[serde(default = "priority_default")]
    pub priority: u16,
    /// Session that pays for the packets.
    #[serde(default = "session::best_effort")]
    pub session: Name,
    /// Action on the packets.
    pub action: Action,
    /// Flows to which the rule is restricted; `None` restricts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowList>,
    /// Stage at which the rule applies; `None` takes the default of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

const fn priority_default() -> u16 {
    PRIORITY_DEFAULT
}

impl RuleSpec {
    /// Returns a rule of the best-effort session with the default priority.
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

    /// Returns the stage at which the rule applies.
    #[must_use]
    pub fn stage(&self) -> Stage {
        let is_system = self.session == session::system();
        self.stage.unwrap_or(if is_system { Stage::In } else { Stage::Service })
    }
}

/// Rule of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Number, which is the index of its counters.
    pub id: RuleId,
    /// Specification of the rule.
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
