//! Sessions: requests, reservations and use.
//!
//! Shares and sizes are text, as people write them and as a node file has them: `1ms/4ms`,
//! `25%/4ms`, `64MiB`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Request for a session. A resource that is left out is not reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Name of the session.
    pub name: String,
    /// Virtual processors, at most 8: shares of guest cores, `1ms/4ms`, or `1ms/4ms+extra` for one
    /// that also gets a part of the unused time.
    #[serde(default)]
    pub cpu: Vec<String>,
    /// Share of packet cores' time, for its services at `nic` and `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// Total memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Size of its packet queue, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Shares of ports' rates, by the port's name.
    #[serde(default)]
    pub send: BTreeMap<String, String>,
    /// Weight for resources that are not reserved or not used, 1 to 1,000; 100 if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

/// Change of a reservation. A field that is left out stays, one that is given is replaced as a
/// whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionChange {
    /// Virtual processors, as in [`SessionRequest`], like the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Vec<String>>,
    /// Share of packet cores' time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// Total memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Size of its packet queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Shares of ports' rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<BTreeMap<String, String>>,
    /// Weight for resources that are not reserved or not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Resources that are no longer reserved: `cpu`, `below`, `memory`, `queue` or `send`.
    #[serde(default)]
    pub without: Vec<String>,
}

/// Reservation of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationInfo {
    /// Virtual processors.
    pub cpu: Vec<String>,
    /// Share of packet cores' time.
    pub below: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Size of the packet queue in bytes.
    pub queue_bytes: Option<u64>,
    /// Shares of ports' rates.
    pub send: BTreeMap<String, String>,
    /// Weight for resources that are not reserved or not used.
    pub weight: u16,
}

/// Resources that a session used in some time. Values that are not measured are null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionCounts {
    /// Processor time of its turns at user level, in nanoseconds: its modules, their hooks, and the
    /// sending of their packets. The ledger's `cpu_user_ns` is the modules' calls alone.
    pub cpu_ns: Option<u64>,
    /// Fuel of its modules below user level.
    pub fuel: u64,
    /// Time that this fuel takes at the machine's speed, in nanoseconds.
    #[serde(default)]
    pub below_ns: Option<u64>,
    /// Processor time of its modules at all levels, in nanoseconds.
    #[serde(default)]
    pub all_levels_ns: Option<u64>,
    /// Packets that its rules took.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Bytes that it sent at user level. Bytes sent at `nic` and `kernel` are counted for ports of
    /// which it has a share: [`SendUse`].
    pub sent_bytes: Option<u64>,
    /// Packets dropped because its queue was full.
    pub queue_dropped: Option<u64>,
}

/// Number of virtual processors' periods by the difference between promised and received time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeriodsKept {
    /// Upper bound of the difference, in percentage points of a period; the lower bound is that of
    /// the previous entry. The last entry has no bound.
    pub points: Option<f64>,
    /// Number of periods.
    pub periods: u64,
}

/// Memory that exists because of a session, since its cell started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Bytes in use now, which `memory_bytes` of the reservation limits.
    pub used_bytes: u64,
    /// Largest number of bytes in use at a time.
    pub peak_bytes: u64,
    /// Number of times that one of its modules was refused more memory.
    pub refused: u64,
    /// Number of times that little of its memory was left.
    pub lows: u64,
    /// Bytes in use by purpose: `linear`, `tables`, `code`, `stacks`, `host`, `below`, `queue`,
    /// `state`.
    pub by_use: BTreeMap<String, u64>,
}

/// Use of a port of whose rate a session has a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendUse {
    /// Name of the port.
    pub port: String,
    /// Enforcement at `nic`: `policed`, packets beyond the share are dropped.
    pub nic: String,
    /// Enforcement at `kernel`: `queued`, packets wait in the cell for their turn.
    pub kernel: String,
    /// Enforcement at user level: `queued`, too.
    pub user: String,
    /// Bytes sent since it has the share, at all levels.
    pub sent_bytes: u64,
    /// Bytes among them sent by modules at `nic`.
    pub sent_nic_bytes: u64,
    /// Bytes among them sent by modules at `kernel`, at once or after waiting.
    pub sent_kernel_bytes: u64,
    /// Packets dropped at `nic`, because the share was used up.
    pub dropped_nic: u64,
    /// Packets dropped at `kernel`, because they had to wait and the session's queue was full.
    pub dropped_kernel: u64,
    /// Packets of modules at `kernel` that had to wait for their turn.
    pub waited_kernel: u64,
    /// Bytes sent in the last interval of measurement.
    pub window_bytes: u64,
}

/// Use of a session in one step of time. A sum that does not fit stays at its largest value: 71
/// minutes of processor time, 4,294,967,295 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStep {
    /// Start of the step, in milliseconds since 1970.
    pub at_ms: u64,
    /// Length of the step in milliseconds: a second, or a minute, of which the first and the last
    /// may be shorter.
    pub length_ms: u64,
    /// Processor time of its modules at user level, in nanoseconds, to the microsecond.
    pub cpu_ns: u64,
    /// Processor time of its modules below user level, in nanoseconds.
    pub below_ns: u64,
    /// Largest amount of memory in use, in bytes, to the page of 4,096.
    pub memory_bytes: u64,
    /// Packets dropped because its queue was full.
    pub queue_dropped: u64,
    /// Bytes sent at user level.
    pub sent_bytes: u64,
    /// Bytes of packets that its rules took.
    pub bytes: u64,
}

/// Use of a session over time, oldest first, up to the last full second that was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionHistory {
    /// Steps of one second, the last 60.
    pub seconds: Vec<SessionStep>,
    /// Steps of one minute, the last 60; the last one is incomplete.
    pub minutes: Vec<SessionStep>,
}

/// Use of resources by a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionUse {
    /// Bytes of linear memory that its services have now.
    pub memory_bytes: u64,
    /// Total memory, of which `memory_bytes` is a part.
    #[serde(default)]
    pub memory: Option<MemoryUse>,
    /// Bytes of packets that wait now.
    pub queue_bytes: Option<u64>,
    /// Length of the last interval of measurement, which ends now, in milliseconds; 0 if there was
    /// none.
    pub window_ms: u64,
    /// Use in that interval.
    pub window: SessionCounts,
    /// Use since the node started.
    pub total: SessionCounts,
    /// Accuracy of its promised processor time since its cell started.
    #[serde(default)]
    pub kept: Vec<PeriodsKept>,
    /// Use of each port of whose rate it has a share.
    #[serde(default)]
    pub send: Vec<SendUse>,
    /// Use over time, since the daemon started; null where it never did anything, and in lists.
    #[serde(default)]
    pub history: Option<SessionHistory>,
}

/// Session: its reservation and its use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionDetails {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Number of the session in packet metadata.
    pub id: u16,
    /// Name of the session.
    pub name: String,
    /// Public key of the owner; absent for the operator's sessions and built-in ones.
    #[serde(default)]
    pub owner: Option<String>,
    /// True if the session is built in, and cannot be changed.
    pub built_in: bool,
    /// State: `there`, or `leaving`: removed when its last service has stopped.
    pub state: String,
    /// Reservation that the node has promised.
    pub promised: ReservationInfo,
    /// Reason that it is promised less than it should be.
    #[serde(default)]
    pub short: Option<String>,
    /// Use of resources.
    pub used: SessionUse,
    /// Names of its services.
    pub services: Vec<String>,
    /// Numbers of its rules.
    pub rules: Vec<u32>,
}

/// Sessions, by number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Sessions.
    pub sessions: Vec<SessionDetails>,
    /// Capacity that is not reserved, for callers that may see everything.
    #[serde(default)]
    pub left: Option<LeftInfo>,
}

/// Capacity of a node that is not reserved. Parts are in millionths: of one core, or of a port's
/// rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftInfo {
    /// Parts of each guest core; short periods leave less.
    pub cpu_parts: Vec<u64>,
    /// Parts of all packet cores together, for `below`.
    pub below_parts: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of packet memory, for queues.
    pub queue_bytes: u64,
    /// Parts of each port whose rate is known.
    pub port_parts: BTreeMap<String, u64>,
}

/// Answer to the creation or change of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionPromised {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Name of the session.
    pub session: String,
    /// Number of the session in packet metadata.
    pub id: u16,
    /// Reservation that the node has promised.
    pub promised: ReservationInfo,
}

/// Answer to the removal of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionRemoved {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Name of the session.
    pub session: String,
    /// Services that were removed with it.
    pub services: Vec<String>,
    /// Rules that were removed with it.
    pub rules: Vec<u32>,
}
