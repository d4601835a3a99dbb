//! Captures: packets as they entered a node and as they left it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request for a capture; a field that is left out selects all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Ports to capture at; all if empty.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Number of a rule whose packets are selected.
    #[serde(default)]
    pub rule: Option<u32>,
    /// Session whose rules' packets are selected.
    #[serde(default)]
    pub session: Option<String>,
    /// Selects only packets that the node dropped.
    #[serde(default)]
    pub dropped: bool,
    /// Direction: `in` selects packets as they came, `out` as they left.
    #[serde(default)]
    pub direction: Option<String>,
    /// Number of bytes kept of each packet: at most 2,048, which is also the default.
    #[serde(default)]
    pub snap: Option<u32>,
}

/// Answer to the start of a capture. The capture runs until it is ended, or its packets have not
/// been requested for 10 s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureStarted {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Number of the capture.
    pub id: u32,
    /// Ports at which packets are captured.
    pub ports: Vec<String>,
    /// Number of bytes kept of each packet.
    pub snap: u32,
}

/// Packets captured since the previous request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapturedPackets {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Packets, for each observation point in the order in which they passed it.
    pub packets: Vec<CapturedPacket>,
    /// Number of packets since the start of the capture that did not fit the buffer.
    pub lost: u64,
}

/// Packet at one observation point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapturedPacket {
    /// Time in nanoseconds since 1970.
    pub time_ns: u64,
    /// Name of the port.
    pub port: String,
    /// Direction: `in` as it came, or `out` as it left; `in` for dropped packets.
    pub direction: String,
    /// Observation point: `front door` (with modules at `nic`), `cell`, or `kernel` (its stack,
    /// with modules at `kernel`).
    pub seen_by: String,
    /// Length on the wire, in bytes.
    pub length: u32,
    /// Captured bytes, in hexadecimal digits.
    pub bytes_hex: String,
    /// Number of the rule: in the cell the one that brought the packet, else the one that matches
    /// by the present rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Session that pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Service that handled the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Level at which that service handled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Verdict of the module: `pass`, `drop` with its reason, `trap` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Outcome under which the front door counted the packet, or the kernel's drop reason
    /// (`stack.REASON`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// True if the packet was dropped here.
    #[serde(default)]
    pub dropped: bool,
}

/// Answer to the end of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureEnded {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Remaining packets that had not been requested.
    pub packets: Vec<CapturedPacket>,
    /// Number of packets since the start of the capture that did not fit the buffer.
    pub lost: u64,
}
