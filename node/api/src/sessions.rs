//! Sessions: what is asked for, what they were promised, and what they use.
//!
//! Shares and sizes are text, as people write them and as a node file has them: `1ms/4ms`,
//! `25%/4ms`, `64MiB`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Asks for a session. What is left out is not reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Its name.
    pub name: String,
    /// Virtual processors, at most 8: shares of guest cores, `1ms/4ms`, or `1ms/4ms+extra` for one
    /// that gets a part of what nobody uses, too.
    #[serde(default)]
    pub cpu: Vec<String>,
    /// Time of packet cores for its services at `nic` and `kernel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// Memory, all of it in one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Packets that wait for it, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Shares of ports' rates, by the port's name.
    #[serde(default)]
    pub send: BTreeMap<String, String>,
    /// Its part of what nobody reserved or uses, 1 to 1,000; 100 when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

/// Promises a session something else. What is left out stays, what is named is replaced as a
/// whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionChange {
    /// As in [`SessionRequest`]; so the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Vec<String>>,
    /// Time of packet cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<String>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Packets that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Shares of ports' rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<BTreeMap<String, String>>,
    /// Its part of what nobody reserved or uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// What is taken away: `cpu`, `below`, `memory`, `queue` or `send`.
    #[serde(default)]
    pub without: Vec<String>,
}

/// What a session was promised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationInfo {
    /// Its virtual processors.
    pub cpu: Vec<String>,
    /// Time of packet cores.
    pub below: Option<String>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of packets that may wait.
    pub queue_bytes: Option<u64>,
    /// Shares of ports' rates.
    pub send: BTreeMap<String, String>,
    /// Its part of what nobody reserved or uses.
    pub weight: u16,
}

/// What a session used in some time. What is not measured is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionCounts {
    /// Processor time of its turns at user level, in nanoseconds: its modules, their hooks, and
    /// what it takes to send their packets. The ledger's `cpu_user_ns` is the modules' calls alone.
    pub cpu_ns: Option<u64>,
    /// Fuel of its modules below user level.
    pub fuel: u64,
    /// The time that it takes at this machine's speed, in nanoseconds.
    #[serde(default)]
    pub below_ns: Option<u64>,
    /// Processor time of its modules at all levels, in nanoseconds.
    #[serde(default)]
    pub all_levels_ns: Option<u64>,
    /// Packets that its rules took.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that it sent at user level. What left at `nic` and `kernel` is counted where it has a
    /// share of a port: [`SendUse`].
    pub sent_bytes: Option<u64>,
    /// Packets for which its queue had no room.
    pub queue_dropped: Option<u64>,
}

/// Periods of virtual processors in which what they were given was about so far from what they
/// were promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PeriodsKept {
    /// At most so many percentage points of a period, and more than in the entry before; the last
    /// entry has no bound.
    pub points: Option<f64>,
    /// How many.
    pub periods: u64,
}

/// The memory of a session, all that is there because of it, since its cell started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Bytes that it uses now: what is held against `memory_bytes` of what it was promised.
    pub used_bytes: u64,
    /// The most bytes that it used at a time.
    pub peak_bytes: u64,
    /// How often one of its modules was refused more.
    pub refused: u64,
    /// How often little of it was left.
    pub lows: u64,
    /// What it uses, by what for: `linear`, `tables`, `code`, `stacks`, `host`, `below`, `queue`,
    /// `state`.
    pub by_use: BTreeMap<String, u64>,
}

/// What a session sent by a port of whose rate it has a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendUse {
    /// The port.
    pub port: String,
    /// How the share is kept at `nic`: `policed`, what is beyond it is dropped.
    pub nic: String,
    /// How at `kernel`: `queued`, packets wait for their turn, in the cell.
    pub kernel: String,
    /// How at user level: `queued`, too.
    pub user: String,
    /// Bytes that it sent since it has the share, at all levels.
    pub sent_bytes: u64,
    /// Of them, those of modules at `nic`.
    pub sent_nic_bytes: u64,
    /// Of them, those of modules at `kernel`, at once or after they had waited.
    pub sent_kernel_bytes: u64,
    /// Packets that were dropped at `nic`, because nothing was left of the share.
    pub dropped_nic: u64,
    /// Packets that were dropped at `kernel`: they had to wait, and the session's queue was full.
    pub dropped_kernel: u64,
    /// Packets of modules at `kernel` that went to wait for their turn.
    pub waited_kernel: u64,
    /// Bytes that it sent in the last look.
    pub window_bytes: u64,
}

/// What a session used in one step of time. A sum that has no room stays at its end: 71 minutes of
/// processor time, 4,294,967,295 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStep {
    /// When it began, in milliseconds since 1970.
    pub at_ms: u64,
    /// How long it is, in milliseconds: a second, or a minute, of which the first and the last may
    /// be shorter.
    pub length_ms: u64,
    /// Processor time of its modules at user level, in nanoseconds, to the microsecond.
    pub cpu_ns: u64,
    /// The same below user level.
    pub below_ns: u64,
    /// The most bytes of memory that it had, all of it, in pages of 4,096.
    pub memory_bytes: u64,
    /// Packets for which its queue had no room.
    pub queue_dropped: u64,
    /// Bytes that it sent at user level.
    pub sent_bytes: u64,
    /// Bytes that its rules took.
    pub bytes: u64,
}

/// What a session used over time, oldest first, up to the last full second that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionHistory {
    /// The last 60 seconds, one by one.
    pub seconds: Vec<SessionStep>,
    /// The last 60 minutes, one by one; the last one goes on.
    pub minutes: Vec<SessionStep>,
}

/// What a session uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionUse {
    /// Bytes of linear memory that its services have now.
    pub memory_bytes: u64,
    /// All of its memory, of which `memory_bytes` is a part.
    #[serde(default)]
    pub memory: Option<MemoryUse>,
    /// Bytes of packets that wait now.
    pub queue_bytes: Option<u64>,
    /// Milliseconds of the last look, which ends now; 0 where there was none.
    pub window_ms: u64,
    /// What it used in that time.
    pub window: SessionCounts,
    /// What it used since the node started.
    pub total: SessionCounts,
    /// How its promised processor time was kept since its cell started.
    #[serde(default)]
    pub kept: Vec<PeriodsKept>,
    /// What it sent by each port of whose rate it has a share.
    #[serde(default)]
    pub send: Vec<SendUse>,
    /// What it used over time, since the daemon started; null where it never did anything, and in
    /// lists.
    #[serde(default)]
    pub history: Option<SessionHistory>,
}

/// A session: what it was promised beside what it uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionDetails {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Its number in metadata.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Whose it is: a public key; nobody's and the operator's have none.
    #[serde(default)]
    pub owner: Option<String>,
    /// Whether every node has it: it cannot be changed.
    pub built_in: bool,
    /// `there`, or `leaving`: it goes when its last service has stopped.
    pub state: String,
    /// What it was promised.
    pub promised: ReservationInfo,
    /// Why it was promised less than it shall be.
    #[serde(default)]
    pub short: Option<String>,
    /// What it uses.
    pub used: SessionUse,
    /// Its services.
    pub services: Vec<String>,
    /// Its rules, by number.
    pub rules: Vec<u32>,
}

/// All sessions, by number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The sessions.
    pub sessions: Vec<SessionDetails>,
    /// What can still be promised, for those who may see everybody's things.
    #[serde(default)]
    pub left: Option<LeftInfo>,
}

/// What a node can still promise. Parts are of a million: of one core, or of a port's rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftInfo {
    /// Of each guest core; short periods leave less.
    pub cpu_parts: Vec<u64>,
    /// Of all packet cores together, for `below`.
    pub below_parts: u64,
    /// Of memory.
    pub memory_bytes: u64,
    /// Of packet memory, for queues.
    pub queue_bytes: u64,
    /// Of each port whose rate is known.
    pub port_parts: BTreeMap<String, u64>,
}

/// A session was made or promised something else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionPromised {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Its name.
    pub session: String,
    /// Its number in metadata.
    pub id: u16,
    /// What it was promised.
    pub promised: ReservationInfo,
}

/// A session is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionRemoved {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Its name.
    pub session: String,
    /// The services that went with it.
    pub services: Vec<String>,
    /// The rules that went with it.
    pub rules: Vec<u32>,
}
