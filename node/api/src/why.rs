//! Reasons that packets are dropped or leave the fast path, and explanations of single packets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reasons that counted since the node started, the most recent first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// True if these are all reasons; otherwise only those of the caller's own services and rules,
    /// without those of ports.
    #[serde(default = "all")]
    pub all: bool,
    /// Reasons.
    pub reasons: Vec<WhyReason>,
}

/// Returns the default for answers of nodes before this field.
const fn all() -> bool {
    true
}

/// Reason at one port or service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyReason {
    /// Name of the counter.
    pub reason: String,
    /// True if its packets were dropped; otherwise the kernel got them.
    pub dropped: bool,
    /// Packets since the node started.
    pub packets: u64,
    /// Packets of the last minute.
    pub packets_last_minute: u64,
    /// Time of the last packet, in milliseconds since 1970.
    pub last_ms: u64,
    /// Name of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Name of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Number of the rule, or of those that lead to the service.
    pub rules: Vec<u32>,
    /// Digest of the service's module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Session that pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Meaning of the reason.
    pub meaning: String,
    /// Advice on what to do; empty when there is nothing to do.
    pub advice: String,
}

/// Request for the decision on a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// Packet in the words of a match: `proto udp src 10.0.1.2 dst 10.0.2.2 dport 53 in left`.
    #[serde(default)]
    pub packet: Option<String>,
    /// Frame in hexadecimal digits, instead of `packet`.
    #[serde(default)]
    pub frame_hex: Option<String>,
    /// Port by which the frame comes in.
    #[serde(default)]
    pub port: Option<String>,
}

/// Decision on a packet. Nothing is counted and nothing is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Port by which it comes in.
    pub port: String,
    /// Frame in hexadecimal digits.
    pub frame_hex: String,
    /// Name of the outcome under which it would be counted.
    pub outcome: String,
    /// Meaning of the outcome.
    pub meaning: String,
    /// Advice on what to do; empty when there is nothing to do.
    pub advice: String,
    /// True if it would be dropped.
    pub dropped: bool,
    /// Number of its rule, as in `GET /v1/rules`; null when none matches.
    pub rule: Option<u32>,
    /// Session that pays.
    pub session: Option<String>,
    /// Service to which it would be given.
    pub service: Option<String>,
    /// Level at which that service runs now.
    pub level: Option<String>,
    /// Port by which it would leave, by the present routes.
    pub egress_port: Option<String>,
    /// MAC address of the next hop.
    pub next_hop: Option<String>,
    /// Path of the packet in sentences, in order.
    pub steps: Vec<String>,
}
