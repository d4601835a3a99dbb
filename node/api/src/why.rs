//! Why packets are dropped or leave the fast path, and what would become of one.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every reason that counted since the node started, what happened lately first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The node's name.
    pub node: String,
    /// True when these are all reasons; else those of the caller's own services and rules, without
    /// what belongs to ports.
    #[serde(default = "all")]
    pub all: bool,
    /// The reasons.
    pub reasons: Vec<WhyReason>,
}

/// Returns the default for answers of nodes before this field.
const fn all() -> bool {
    true
}

/// One reason at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyReason {
    /// The counter's name.
    pub reason: String,
    /// Whether its packets were dropped; else the kernel has them.
    pub dropped: bool,
    /// Packets since the node started.
    pub packets: u64,
    /// Packets of the last minute.
    pub packets_last_minute: u64,
    /// When it last counted, in milliseconds since 1970.
    pub last_ms: u64,
    /// At which port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// In which service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The rule, or those that lead to the service.
    pub rules: Vec<u32>,
    /// The service's module, by its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Who pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What the reason means.
    pub meaning: String,
    /// What to do; empty when nothing is to be done.
    pub advice: String,
}

/// Asks what would become of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// The packet in the words of a match: `proto udp src 10.0.1.2 dst 10.0.2.2 dport 53 in left`.
    #[serde(default)]
    pub packet: Option<String>,
    /// Or the whole frame, in hexadecimal digits.
    #[serde(default)]
    pub frame_hex: Option<String>,
    /// The port that the frame comes in by.
    #[serde(default)]
    pub port: Option<String>,
}

/// What would become of a packet. Nothing is counted and nothing is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The port that it comes in by.
    pub port: String,
    /// The frame that was asked about, in hexadecimal digits.
    pub frame_hex: String,
    /// The name of the outcome that it would be counted under.
    pub outcome: String,
    /// What the outcome means.
    pub meaning: String,
    /// What to do about it; empty when nothing is to be done.
    pub advice: String,
    /// Whether it would be dropped.
    pub dropped: bool,
    /// Its rule, as in `GET /v1/rules`; null when none matches.
    pub rule: Option<u32>,
    /// Who pays.
    pub session: Option<String>,
    /// The service that it would be given to.
    pub service: Option<String>,
    /// Where that service runs now.
    pub level: Option<String>,
    /// The port that it would leave by, as it is routed now.
    pub egress_port: Option<String>,
    /// The MAC address of the next hop.
    pub next_hop: Option<String>,
    /// The way in sentences, in order.
    pub steps: Vec<String>,
}
