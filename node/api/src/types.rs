//! Requests and answers of the API, as JSON. Fields are only ever added.

use crate::{CompilerStats, DemandStats, MessageStats};
use node::classifier::Reach;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Version of every document; it grows when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Description of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub name: String,
    /// Public key of the node, `ed25519/…`: its identity, with which it signs its ledger.
    #[serde(default)]
    pub node_key: String,
    /// Version of the program.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// Use of the fast path: `auto`, `always` or `never`.
    pub fast_path: String,
    /// Permission for levels below user level: `on`, or `off` and the reason.
    #[serde(default)]
    pub bpf: String,
    /// State of the ledger: `on`, or the reason that it cannot be written.
    #[serde(default)]
    pub ledger: String,
    /// Fuel per millisecond, by which sessions' time below user level is computed; null where
    /// nothing runs there.
    #[serde(default)]
    pub below_fuel_per_ms: Option<u64>,
    /// Shortest period of a reservation, in milliseconds: 100 on one core.
    #[serde(default)]
    pub period_min_ms: u64,
    /// Ports.
    pub ports: Vec<PortInfo>,
    /// Sessions.
    pub sessions: Vec<SessionInfo>,
    /// State of the cell: `starting`, `ready` or `lost`.
    pub cell: String,
    /// Process id of the cell, if there is one.
    #[serde(default)]
    pub cell_pid: Option<u32>,
    /// Associations, for callers that may see everything.
    #[serde(default)]
    pub associations: Vec<AssociationInfo>,
}

/// Association of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssociationInfo {
    /// Number at the node, 8 hexadecimal digits.
    pub id: String,
    /// Public key of the other side, `ed25519/…`.
    pub principal: String,
    /// Address and UDP port of the other side.
    pub address: String,
    /// Age in seconds.
    pub age_seconds: u64,
}

/// Answer to a handover: the daemon ends, and everything else continues for the next one to adopt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HandedOver {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// Process id of the daemon that ends.
    pub pid: u32,
}

/// Port of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortInfo {
    /// Number of the port in packet metadata and counters.
    pub id: u16,
    /// Name in rules.
    pub name: String,
    /// Network device.
    pub device: String,
    /// Index of the device.
    pub ifindex: u32,
    /// MAC address of the device.
    pub mac: String,
    /// L3 MTU in bytes.
    pub mtu: u32,
    /// Driver of the device.
    pub driver: String,
    /// Kind: `device`, with Ethernet frames, or `tun`, with IP packets.
    #[serde(default)]
    pub kind: String,
    /// Mode of reception: `native`, XDP in the driver; `generic`, XDP in the stack; `tc`, after the
    /// kernel's receive path, for streams alone; `packet`, packet sockets without XDP.
    pub mode: String,
    /// Reason that it is not a better mode, where that was tried.
    #[serde(default)]
    pub mode_reason: Option<String>,
    /// Cost of the mode, in words.
    #[serde(default)]
    pub mode_cost: String,
    /// State: `up`, or `away`: its device is gone or cannot be served, and the kernel handles
    /// packets routed to it.
    #[serde(default)]
    pub state: String,
    /// Port at the other end of its bridge.
    #[serde(default)]
    pub bridge: Option<String>,
    /// Reason that it is away.
    #[serde(default)]
    pub away_reason: Option<String>,
    /// Number of receive queues.
    pub queues: u32,
    /// Reasons that plain forwarding leaves the fast path; empty when it does not.
    pub slow_reasons: Vec<String>,
    /// Offloads that were switched off and will be restored.
    pub offloads_off: Vec<String>,
}

/// Session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionInfo {
    /// Number of the session in packet metadata.
    pub id: u16,
    /// Name of the session.
    pub name: String,
}

/// Request to deploy a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeployRequest {
    /// Name of the service; the module's name if left out.
    #[serde(default)]
    pub name: Option<String>,
    /// Module of the node's store: `NAME`, `NAME:VERSION`, or a digest or a beginning of it.
    pub module: String,
    /// Parameters by name, as text.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Session that pays; `best-effort` if left out.
    #[serde(default)]
    pub session: Option<String>,
    /// Rules that are added and removed with the service: match texts such as `proto udp dport 53`.
    #[serde(default)]
    pub rules: Vec<String>,
    /// Priority of these rules; higher wins.
    #[serde(default)]
    pub priority: Option<u16>,
    /// Stage of these rules, as `stage` of a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Level to run at: `nic`, `kernel` or `user`; the module's choice if left out.
    #[serde(default)]
    pub level: Option<String>,
    /// Services that follow in the graph, at most 4: packets that pass by edge n go to the nth.
    #[serde(default)]
    pub then: Vec<String>,
    /// Budget below user level; unlimited if left out.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// Failure policy, which applies to its packets while it is down: `open`, forwarded plainly;
    /// `closed`, dropped; `bypass=N`, forwarded plainly, and after N traps within a minute it is
    /// not started again until it is deployed. If left out, a service that is replaced keeps its
    /// own, and a new one is `open`.
    #[serde(default)]
    pub on_failure: Option<String>,
    /// Allows a new version to begin empty where it cannot take over the state of the running
    /// service of that name. A running service is replaced with its state.
    #[serde(default)]
    pub discard_state: bool,
    /// Allows a signed module that is older than what ran here before; for administrators.
    #[serde(default)]
    pub allow_older: bool,
}

/// Budget of a service below user level, per second; a limit that is left out does not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Fuel of its calls.
    #[serde(default)]
    pub fuel: Option<u64>,
    /// Packets given to its program.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Bytes of these packets.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Treatment of packets beyond the budget: `drop`, or `raise` to user level, which is the
    /// default.
    #[serde(default)]
    pub over: Option<String>,
}

/// Request to move a service to another level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Level: `nic`, `kernel` or `user`.
    pub level: String,
}

/// Answer to a move: the service runs at another level now, with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the service.
    pub service: String,
    /// Level before the move.
    pub from: String,
    /// Level after the move.
    pub level: String,
    /// Microseconds from the request to the end of the move.
    pub took_us: u64,
}

/// Request to allow modules to run as BPF programs, or to move every service to user level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BpfRequest {
    /// True to allow it.
    pub enabled: bool,
}

/// Answer to a request for the switch for BPF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BpfSet {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Present state of the switch.
    pub enabled: bool,
    /// Services that move.
    pub moving: Vec<String>,
}

/// Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceInfo {
    /// Name of the service.
    pub name: String,
    /// Digest of the module.
    pub digest: String,
    /// Name of the module.
    pub module: String,
    /// Version of the module.
    pub version: String,
    /// Description in one line.
    pub description: String,
    /// Session that pays.
    pub session: String,
    /// Public key of the owner; absent for the operator's services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Level at which it runs: `nic`, `kernel`, `user` or `cluster`.
    pub level: String,
    /// Reason that it runs at that level.
    pub level_reason: String,
    /// State: `starting`, `running`, `failed`, `bypassed` or `stopping`.
    pub state: String,
    /// Reason that it failed or is bypassed.
    pub reason: Option<String>,
    /// Number of restarts of the whole service.
    pub restarts: u32,
    /// Entry of the service in the cell.
    pub entry: u16,
    /// Number of instances; a flow's packets always meet the same one.
    pub lanes: u16,
    /// Values of all parameters, defaults included.
    pub parameters: BTreeMap<String, String>,
    /// Rules that lead to it.
    pub rules: Vec<u32>,
    /// Services that follow in the graph, by the number of the edge that leads there.
    #[serde(default)]
    pub then: BTreeMap<u16, String>,
    /// Budget below user level, if it has one.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// Failure policy: `open`, `closed` or `bypass=N`.
    #[serde(default)]
    pub on_failure: String,
    /// Counters since it started.
    pub stats: ServiceStats,
}

/// Counters of a service since it started. `packets` is the sum of `forwarded`, `to_kernel`,
/// `bounced`, `redirected`, `passed_on`, `consumed`, `plain` and all of `dropped`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceStats {
    /// Packets given to the service.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets sent on by their route.
    pub forwarded: u64,
    /// Packets handed to the kernel's stack, which routes or answers them.
    pub to_kernel: u64,
    /// Packets sent back to their source.
    pub bounced: u64,
    /// Packets sent out of a port that the module named.
    pub redirected: u64,
    /// Packets given to the next service of the graph, which counts them, too.
    #[serde(default)]
    pub passed_on: u64,
    /// Payloads of active packets that the service passed: they end there.
    #[serde(default)]
    pub consumed: u64,
    /// Packets not given to the module, because it had trapped or its cell was gone: handled as if
    /// there were no rule.
    #[serde(default)]
    pub plain: u64,
    /// Dropped packets by reason: `module.N` or `module.NAME` for the module's own, `trap`, `down`,
    /// `raise`, `budget`, `lane`, `redirect_cycle`, `no_port`, `egress_full`, `malformed`,
    /// `kernel`.
    pub dropped: BTreeMap<String, u64>,
    /// Frames made by the module that were sent.
    pub sent: u64,
    /// Frames made by the module that were dropped for lack of room.
    pub sent_dropped: u64,
    /// Traps by kind.
    pub traps: BTreeMap<String, u64>,
    /// Last trap, in words.
    pub last_trap: Option<String>,
    /// Bytes of linear memory.
    pub memory_bytes: u64,
    /// Number of instances that run now.
    pub lanes_running: u16,
    /// Counters that the module itself keeps.
    pub counters: BTreeMap<String, u64>,
    /// Counters of its part below user level.
    #[serde(default)]
    pub below: BelowStats,
    /// Durations of calls at user level.
    #[serde(default)]
    pub call_times: CallTimes,
    /// Counters of connections, for a stream service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamStats>,
}

/// Counters of a stream service's connections: each has one of the outcomes, or is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections that both ends closed.
    pub ended: u64,
    /// Connections that one end reset, or the service on both sides.
    pub reset: u64,
    /// Connections whose server could not be reached: the client was reset.
    pub unreachable: u64,
    /// Connections that the server sees with another port than the client's.
    pub other_port: u64,
    /// Requests whose head was read; 0 where the service sees TCP.
    #[serde(default)]
    pub requests: u64,
    /// Bytes sent to servers.
    pub bytes_up: u64,
    /// Bytes sent to clients.
    pub bytes_down: u64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: u64,
}

/// Durations of a module's calls at user level. Only a sample is timed: reading the clock for each
/// call would cost as much as a small module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallTimes {
    /// Sampling rate: one call of this many is timed, the first of a service among them.
    pub timed_of: u64,
    /// Sum of the timed durations, in nanoseconds.
    pub sum_ns: u64,
    /// Histogram of the durations, shortest first.
    pub buckets: Vec<TimeBucket>,
}

/// Bucket of the histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimeBucket {
    /// Upper bound in nanoseconds; the lower bound is that of the previous bucket. Null in the last
    /// one, without a bound.
    pub le_ns: Option<u64>,
    /// Number of calls.
    pub calls: u64,
}

/// Counters of a service below user level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BelowStats {
    /// Packets given to its program there.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets that it raised to user level, where they are counted again.
    pub raised: u64,
    /// Packets that came on another CPU than the one before.
    pub handed_over: u64,
    /// Events and frames made by the module that were lost because the ring to the cell was full.
    pub records_lost: u64,
    /// Fuel that its calls used.
    pub fuel: u64,
}

/// Answer to a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deployed {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Service as it runs.
    pub service: ServiceInfo,
    /// Milliseconds from the request until the service takes packets.
    pub took_ms: u64,
    /// Rules of the service that no packet can reach, each with the better rule.
    pub shadowed: Vec<(u32, u32)>,
    /// Functions that the service asks of the node and is not granted, in words.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// Rules that this deployment added.
    #[serde(default)]
    pub rules_added: Vec<u32>,
    /// Rules of the version before that were removed, because the request has others.
    #[serde(default)]
    pub rules_removed: Vec<u32>,
    /// Version that it replaced.
    pub replaced: Option<Replaced>,
}

/// Previous version of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replaced {
    /// Digest of its module.
    pub digest: String,
    /// True if the new version took over its state.
    pub state_kept: bool,
    /// Microseconds that packets waited in their ring meanwhile.
    pub paused_us: u64,
}

/// Services of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceList {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Services, by name.
    pub services: Vec<ServiceInfo>,
}

/// Answer to the removal of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the removed service.
    pub service: String,
    /// Rules that were removed with it.
    pub rules: Vec<u32>,
}

/// Request to add rules: all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RulesRequest {
    /// Rules.
    pub rules: Vec<RuleRequest>,
}

/// Rule to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    /// Match: `in PORT`, `smac MAC`, `dmac MAC`, `vlan N|untagged`, `ethertype TYPE`, `ip 4|6`,
    /// `src PREFIX`, `dst PREFIX`, `proto NAME`, `sport N[-N]`, `dport N[-N]`, `flags FLAGS`, `dscp
    /// N`, `fragment none|first|later`; `any` matches all IP packets.
    pub r#match: String,
    /// Action: `forward`, `drop`, `service NAME` or `out PORT`.
    pub action: String,
    /// Priority: higher wins; 100 if left out.
    #[serde(default)]
    pub priority: Option<u16>,
    /// Session that pays; `best-effort` if left out.
    #[serde(default)]
    pub session: Option<String>,
    /// Flows to which the match is restricted, one a line: `udp 10.0.0.1 4000 10.0.2.9 53` is
    /// protocol, source, L4 port, destination, L4 port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<String>,
    /// Stage at which the rule applies: `in` or `out`, for rules of the session `system`, where
    /// `in` is the default; `service` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

impl RuleRequest {
    /// Returns a rule with this match and action, and defaults for all else.
    #[must_use]
    pub fn new(r#match: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            r#match: r#match.into(),
            action: action.into(),
            priority: None,
            session: None,
            flows: None,
            stage: None,
        }
    }
}

impl From<RuleRequest> for RulesRequest {
    fn from(rule: RuleRequest) -> Self {
        Self { rules: vec![rule] }
    }
}

/// Rule with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleInfo {
    /// Number of the rule.
    pub id: u32,
    /// Match of the rule.
    pub r#match: String,
    /// Number of flows in its list, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u64>,
    /// Action on the packets.
    pub action: String,
    /// Priority: higher wins.
    pub priority: u16,
    /// Session that pays.
    pub session: String,
    /// Stage at which the rule applies: `in`, `service` or `out`.
    #[serde(default)]
    pub stage: String,
    /// Service that it was added with, and is removed with.
    pub came_with: Option<String>,
    /// Public key of the owner; absent for the operator's rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Reach in words: whether packets can meet the rule.
    pub reach: String,
    /// Packets of which it was the best match.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// Rules, best first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Rules.
    pub rules: Vec<RuleInfo>,
}

/// Answer to the addition of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesAdded {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Numbers of the rules, in the order of the request.
    pub rules: Vec<u32>,
    /// Rules among them that no packet can reach, each with the better rule.
    pub shadowed: Vec<(u32, u32)>,
}

/// Answer to the removal of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleRemoved {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Number of the removed rule.
    pub rule: u32,
}

/// Module of the node's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModuleStored {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Digest `sha256:…` of its bytes.
    pub digest: String,
    /// Name of the module.
    pub name: String,
    /// Version of the module.
    pub version: String,
    /// Size of the module in bytes.
    pub size_bytes: u64,
}

/// Modules of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModuleList {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Modules, by name and version.
    pub modules: Vec<ModuleStored>,
}

/// Control message for a service, given to `on_message` in every lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageRequest {
    /// Bytes of the message in hexadecimal digits, at most 2,048 bytes.
    pub data_hex: String,
}

/// Answers to a control message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageAnswers {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Return value of `on_message` in each lane; null where the module has no such hook or
    /// trapped.
    pub answers: Vec<Option<i32>>,
}

/// Counters of a node. For each port, `rx_packets` is the sum of `outcomes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// Counters of each port.
    pub ports: Vec<PortStatsInfo>,
    /// Counters of each service.
    pub services: BTreeMap<String, ServiceStats>,
    /// Counters of each session: packets and bytes that its rules took, and fuel below user level.
    pub sessions: BTreeMap<String, SessionStats>,
    /// Counters of the cell.
    pub cell: CellStats,
    /// Counters of associations, where the node has any.
    #[serde(default)]
    pub associations: Option<AssociationStats>,
    /// Number of changes of rules or routes since the node started.
    pub generation: u64,
    /// Counters of modules that were named by their digest and that the node did not hold.
    #[serde(default)]
    pub demand: DemandStats,
    /// Counters of compilations.
    #[serde(default)]
    pub compilers: CompilerStats,
}

/// Counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortStatsInfo {
    /// Name of the port.
    pub port: String,
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Frames by their outcome in the front door.
    pub outcomes: BTreeMap<String, u64>,
    /// Frames whose rule and route came from the flow cache.
    pub cache_hits: u64,
    /// Session whose packets wait in the queue in front of the cell.
    pub socket_session: String,
    /// Frames for the cell that were dropped because that queue, the receive ring, was full.
    pub socket_ring_full: u64,
    /// Frames for the cell that found no free memory, or were dropped for another reason.
    pub socket_dropped: u64,
    /// Frames that the device counts as dropped on transmission.
    pub device_tx_dropped: u64,
    /// Frames that the device counts as dropped on reception, without those that the kernel's stack
    /// dropped and the device counts, too: they are in `stack_dropped`.
    pub device_rx_dropped: u64,
    /// Frames received by the port, left to the kernel's stack and dropped there, by the kernel's
    /// own reason: `stack.ip_local_source` …
    #[serde(default)]
    pub stack_dropped: BTreeMap<String, u64>,
}

impl PortStatsInfo {
    /// Returns the number of frames whose outcome begins with `prefix`: `kernel_`, `drop_` …
    #[must_use]
    pub fn outcomes_of(&self, prefix: &str) -> u64 {
        self.outcomes.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
    }

    /// Returns the number of frames that the node dropped, or the kernel's stack after the node had
    /// left them to it.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let by_stack: u64 = self.stack_dropped.values().sum();
        self.outcomes_of("drop_") + self.socket_ring_full + self.socket_dropped + by_stack
    }

    /// Returns the number of frames given to services of packets or streams.
    #[must_use]
    pub fn to_services(&self) -> u64 {
        self.outcomes_of("to_") + self.outcomes_of("intercepted")
    }
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStats {
    /// Packets that its rules took.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Fuel that calls of its services used below user level.
    #[serde(default)]
    pub fuel: u64,
    /// Total memory in use now, in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Number of times that its modules were refused more memory, since its cell started.
    #[serde(default)]
    pub memory_refused: u64,
}

/// Counters of the cell, besides those of its services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellStats {
    /// Packets for a service that was gone: forwarded plainly.
    pub no_service: u64,
    /// Packets among them that were dropped because they could not be forwarded.
    pub no_service_dropped: u64,
    /// Frames dropped because they had more parts than a packet may have.
    pub oversized: u64,
    /// Packets from kernel level dropped because the ring to the cell was full.
    #[serde(default)]
    pub up_dropped: u64,
    /// Packets lost in the rings of a cell that died, without the packets that it was handling,
    /// which are at most some batches of 64.
    #[serde(default)]
    pub lost_with_cells: u64,
    /// Packets that the cell gave to the kernel's stack by the node's own device and that were
    /// dropped there, by the kernel's own reason; those that arrived by a port are counted at the
    /// port.
    #[serde(default)]
    pub stack_dropped: BTreeMap<String, u64>,
    /// Packets dropped because their egress port vanished while they waited to be sent.
    #[serde(default)]
    pub egress_gone: u64,
    /// Frames dropped because they had no metadata.
    pub no_metadata: u64,
    /// Modules' events and trap notices that were left out of a burst.
    pub notices_dropped: u64,
    /// Messages from one module to another; each counts once for each receiver.
    #[serde(default)]
    pub messages: MessageStats,
    /// Processor time of the present process, in nanoseconds.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Number of free packet frames.
    pub frames_free: u64,
    /// Number of packet frames.
    pub frames_total: u64,
}

/// Counters of a node's associations. Each frame received is a call, goes to the kernel, waits or
/// was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssociationStats {
    /// Number of associations now.
    pub live: u64,
    /// Associations made since the node started.
    pub established: u64,
    /// Handshake messages that were not answered, by reason.
    pub handshakes_refused: BTreeMap<String, u64>,
    /// Frames received.
    pub received: u64,
    /// Payloads given to services.
    pub calls: u64,
    /// Handshake messages and fragments, which are given to the kernel for the daemon.
    pub to_kernel: u64,
    /// Packets that wait for their service.
    pub waiting: u64,
    /// Dropped packets, by reason.
    pub dropped: BTreeMap<String, u64>,
}

/// Returns a rule's reach in words.
#[must_use]
pub fn reach_text(reach: &Reach) -> String {
    match reach {
        Reach::Installed => "installed".to_owned(),
        Reach::Waiting => "waiting for its service".to_owned(),
        Reach::Closed => "closed: its service is down, its packets are dropped".to_owned(),
        Reach::Shadowed { by } => {
            format!("shadowed: better rules have its packets, see rule #{by}")
        }
    }
}
