//! Captures: packets as they came to a node and as they left it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Asks for packets; what is left out is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Only of these ports.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Only packets of this rule.
    #[serde(default)]
    pub rule: Option<u32>,
    /// Only packets of this session's rules.
    #[serde(default)]
    pub session: Option<String>,
    /// Only packets that the node dropped.
    #[serde(default)]
    pub dropped: bool,
    /// `in`: only as they came; `out`: only as they left.
    #[serde(default)]
    pub direction: Option<String>,
    /// Bytes that are kept of each packet: at most 2,048, which is also meant when nothing is said.
    #[serde(default)]
    pub snap: Option<u32>,
}

/// A capture goes on until it is ended, or nobody asks for its packets for 10 s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureStarted {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Its number.
    pub id: u32,
    /// The ports that are tapped.
    pub ports: Vec<String>,
    /// Bytes that are kept of each packet.
    pub snap: u32,
}

/// Packets since the question before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapturedPackets {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The packets, in the order in which they were seen at each place.
    pub packets: Vec<CapturedPacket>,
    /// Packets since the capture began for which there was no room.
    pub lost: u64,
}

/// One packet at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapturedPacket {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The port.
    pub port: String,
    /// `in` as it came, or `out` as it left; `in` for what was dropped.
    pub direction: String,
    /// Who had it: `front door` (with modules at `nic`), `cell`, or `kernel` (its stack, with
    /// modules at `kernel`).
    pub seen_by: String,
    /// Bytes on the wire.
    pub length: u32,
    /// The first of them, in hexadecimal digits.
    pub bytes_hex: String,
    /// Its rule: in the cell the one that it came by, else by the rules as they are now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Who pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The service that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Where that service had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// What the module decided: `pass`, `drop` with its reason, `trap` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The outcome under which the front door counted it, or why the kernel's stack dropped it
    /// (`stack.REASON`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Whether it ends here.
    #[serde(default)]
    pub dropped: bool,
}

/// A capture is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureEnded {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The packets that nobody had asked for yet.
    pub packets: Vec<CapturedPacket>,
    /// Packets since the capture began for which there was no room.
    pub lost: u64,
}
