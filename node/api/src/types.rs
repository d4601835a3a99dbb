//! Requests and answers of the API, as JSON. Fields are only ever added.

use crate::{CompilerStats, DemandStats, MessageStats};
use node::classifier::Reach;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The version of every document; it grows when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeInfo {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The node's name.
    pub name: String,
    /// The node's public key, `ed25519/…`: who it is, and whose signature its ledger has.
    #[serde(default)]
    pub node_key: String,
    /// The version of the program.
    pub version: String,
    /// Process number of the daemon.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// `auto`, `always` or `never`.
    pub fast_path: String,
    /// Whether modules may run below user level: `on`, or `off` and why.
    #[serde(default)]
    pub bpf: String,
    /// Whether what principals use is written down: `on`, or why not.
    #[serde(default)]
    pub ledger: String,
    /// Fuel in a millisecond: what sessions' time below user level is counted with; null where
    /// nothing runs there.
    #[serde(default)]
    pub below_fuel_per_ms: Option<u64>,
    /// The shortest period in which it promises something, in milliseconds: 100 on one core.
    #[serde(default)]
    pub period_min_ms: u64,
    /// Its ports.
    pub ports: Vec<PortInfo>,
    /// Its sessions.
    pub sessions: Vec<SessionInfo>,
    /// How its cell is doing: `starting`, `ready` or `lost`.
    pub cell: String,
    /// Process number of the cell, if there is one.
    #[serde(default)]
    pub cell_pid: Option<u32>,
    /// Its associations, for those who may see everybody's things.
    #[serde(default)]
    pub associations: Vec<AssociationInfo>,
}

/// An association of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssociationInfo {
    /// Its number at the node, 8 hexadecimal digits.
    pub id: String,
    /// The public key at the other side, `ed25519/…`.
    pub principal: String,
    /// Where the other side is: address and UDP port.
    pub address: String,
    /// Since when, in seconds.
    pub age_seconds: u64,
}

/// The daemon ends, and everything goes on: another one may adopt it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HandedOver {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The node.
    pub node: String,
    /// Process number of the daemon that ends.
    pub pid: u32,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortInfo {
    /// Its number in metadata and counters.
    pub id: u16,
    /// Its name in rules.
    pub name: String,
    /// The network device.
    pub device: String,
    /// The device's index.
    pub ifindex: u32,
    /// The device's address.
    pub mac: String,
    /// L3 MTU in bytes.
    pub mtu: u32,
    /// The device's driver.
    pub driver: String,
    /// `device`, with Ethernet frames, or `tun`, with IP packets.
    #[serde(default)]
    pub kind: String,
    /// How packets come in: `native`, XDP in the driver; `generic`, XDP in the stack; `tc`, behind the
    /// kernel's receive path, for streams alone; `packet`, packet sockets without XDP.
    pub mode: String,
    /// Why it is not the mode before, where that was tried.
    #[serde(default)]
    pub mode_reason: Option<String>,
    /// What the mode costs, in words.
    #[serde(default)]
    pub mode_cost: String,
    /// `up`, or `away`: its device is gone or cannot be served, and packets routed to it are
    /// the kernel's.
    #[serde(default)]
    pub state: String,
    /// The port at the other end of its bridge.
    #[serde(default)]
    pub bridge: Option<String>,
    /// Why it is away.
    #[serde(default)]
    pub away_reason: Option<String>,
    /// Receive queues.
    pub queues: u32,
    /// Why plain forwarding leaves the fast path; empty when it does not.
    pub slow_reasons: Vec<String>,
    /// Offloads that were switched off and will be restored.
    pub offloads_off: Vec<String>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionInfo {
    /// Its number in metadata.
    pub id: u16,
    /// Its name.
    pub name: String,
}

/// Asks for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeployRequest {
    /// The service's name; the module's when there is none.
    #[serde(default)]
    pub name: Option<String>,
    /// A module of the node's store: `NAME`, `NAME:VERSION`, or a digest or a beginning of it.
    pub module: String,
    /// Parameters by name, as text.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// The session that pays; `best-effort` when there is none.
    #[serde(default)]
    pub session: Option<String>,
    /// Rules that come and go with it: match texts such as `proto udp dport 53`.
    #[serde(default)]
    pub rules: Vec<String>,
    /// Priority of these rules; higher wins.
    #[serde(default)]
    pub priority: Option<u16>,
    /// Where on the way of packets these rules are looked at, as `stage` of a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Where to run it: `nic`, `kernel` or `user`; where its module wants when there is none.
    #[serde(default)]
    pub level: Option<String>,
    /// The services after it, at most 4: what passes it by edge n goes to the nth.
    #[serde(default)]
    pub then: Vec<String>,
    /// What it may use below user level; everything when there is none.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// What becomes of its packets while it is down: `open`, forwarded plainly; `closed`, dropped;
    /// `bypass=N`, forwarded plainly, and after N traps within a minute it is not started again
    /// until it is deployed. A service that is replaced keeps its own, another one is `open`.
    #[serde(default)]
    pub on_failure: Option<String>,
    /// A service of that name that runs is replaced, with its state. Where the new version cannot
    /// take that over, `true` lets it begin empty.
    #[serde(default)]
    pub discard_state: bool,
    /// A signed module may be older than what ran here before; for administrators.
    #[serde(default)]
    pub allow_older: bool,
}

/// What a service may use below user level in a second; what is left out has no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Fuel of its calls.
    #[serde(default)]
    pub fuel: Option<u64>,
    /// Packets that its program is given.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Their bytes.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// What becomes of packets beyond it: `drop`, or `raise` to user level, which is also meant
    /// when nothing is said.
    #[serde(default)]
    pub over: Option<String>,
}

/// Asks a service to run at another level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// `nic`, `kernel` or `user`.
    pub level: String,
}

/// A service runs at another level now, with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Its name.
    pub service: String,
    /// Where it was.
    pub from: String,
    /// Where it is.
    pub level: String,
    /// Microseconds from request to arrival.
    pub took_us: u64,
}

/// Lets modules run as BPF programs, or takes every service to user level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BpfRequest {
    /// Whether they may.
    pub enabled: bool,
}

/// The switch is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BpfSet {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// As it is now.
    pub enabled: bool,
    /// The services that move.
    pub moving: Vec<String>,
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceInfo {
    /// Its name.
    pub name: String,
    /// Its module's digest.
    pub digest: String,
    /// Its module's name.
    pub module: String,
    /// Its module's version.
    pub version: String,
    /// One line about it.
    pub description: String,
    /// The session that pays.
    pub session: String,
    /// Whose it is, by his public key; nobody's but the operator's when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Where it runs: `nic`, `kernel`, `user` or `cluster`.
    pub level: String,
    /// Why there.
    pub level_reason: String,
    /// `starting`, `running`, `failed`, `bypassed` or `stopping`.
    pub state: String,
    /// Why it failed or is bypassed.
    pub reason: Option<String>,
    /// How often it was started again as a whole.
    pub restarts: u32,
    /// Its number in the cell.
    pub entry: u16,
    /// Instances; a flow's packets always meet the same one.
    pub lanes: u16,
    /// Every parameter with its value, defaults included.
    pub parameters: BTreeMap<String, String>,
    /// The rules that lead to it.
    pub rules: Vec<u32>,
    /// The services after it, by the number of the edge that leads there.
    #[serde(default)]
    pub then: BTreeMap<u16, String>,
    /// What it may use below user level, if that is limited.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// What becomes of its packets while it is down: `open`, `closed` or `bypass=N`.
    #[serde(default)]
    pub on_failure: String,
    /// What it did since it started.
    pub stats: ServiceStats,
}

/// What a service did since it started. `packets` is the sum of `forwarded`,
/// `to_kernel`, `bounced`, `redirected`, `passed_on`, `consumed`, `plain` and all of `dropped`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceStats {
    /// Packets given to it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sent on by their route.
    pub forwarded: u64,
    /// Handed to the kernel's stack, which routes or answers them.
    pub to_kernel: u64,
    /// Sent back to where they came from.
    pub bounced: u64,
    /// Sent out of a port that the module named.
    pub redirected: u64,
    /// Given to the next service of the graph, which counts them, too.
    #[serde(default)]
    pub passed_on: u64,
    /// Payloads of active packets that it passed: they end there.
    #[serde(default)]
    pub consumed: u64,
    /// Not given to the module, because it had trapped or its cell was gone: as if there were
    /// no rule.
    #[serde(default)]
    pub plain: u64,
    /// Dropped packets by reason: `module.N` or `module.NAME` for the module's
    /// own, `trap`, `down`, `raise`, `budget`, `lane`, `redirect_cycle`,
    /// `no_port`, `egress_full`, `malformed`, `kernel`.
    pub dropped: BTreeMap<String, u64>,
    /// Frames of the module's own making that were sent.
    pub sent: u64,
    /// Such frames that found no room.
    pub sent_dropped: u64,
    /// Traps by kind.
    pub traps: BTreeMap<String, u64>,
    /// The last trap, in words.
    pub last_trap: Option<String>,
    /// Bytes of linear memory.
    pub memory_bytes: u64,
    /// Instances that run now.
    pub lanes_running: u16,
    /// The module's own counters.
    pub counters: BTreeMap<String, u64>,
    /// The part of it below user level.
    #[serde(default)]
    pub below: BelowStats,
    /// How long calls took at user level.
    #[serde(default)]
    pub call_times: CallTimes,
    /// Of a service of streams, what became of its connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamStats>,
}

/// What became of the connections of a service of streams: each is in one of the outcomes, or is
/// open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamStats {
    /// Connections that came.
    pub accepted: u64,
    /// Of them, open now.
    pub open: u64,
    /// That both ends ended.
    pub ended: u64,
    /// That one end reset, or the service, at both.
    pub reset: u64,
    /// Whose server could not be reached: the client was reset.
    pub unreachable: u64,
    /// Of all, those that the server sees with another port than the client's.
    pub other_port: u64,
    /// Requests whose head was read; none where the service sees TCP.
    #[serde(default)]
    pub requests: u64,
    /// Bytes sent to servers.
    pub bytes_up: u64,
    /// Bytes sent to clients.
    pub bytes_down: u64,
    /// Processor time, in nanoseconds.
    pub cpu_ns: u64,
}

/// How long calls of a module took at user level. Only some are timed: a look at the clock for
/// each would cost as much as a small module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallTimes {
    /// One call of so many is timed, the first of a service among them.
    pub timed_of: u64,
    /// Their times together, in nanoseconds.
    pub sum_ns: u64,
    /// Timed calls by their time, shortest first.
    pub buckets: Vec<TimeBucket>,
}

/// Calls that took about as long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimeBucket {
    /// At most so many nanoseconds, and more than the bucket before; null: longer than all.
    pub le_ns: Option<u64>,
    /// Calls.
    pub calls: u64,
}

/// What a service did below user level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BelowStats {
    /// Packets given to its program there.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that it raised to user level, where they are counted again.
    pub raised: u64,
    /// Packets that came on another CPU than the one before.
    pub handed_over: u64,
    /// Events, and frames of its own making, for which the way to the cell had no room.
    pub records_lost: u64,
    /// Fuel that its calls used.
    pub fuel: u64,
}

/// What a deployment did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deployed {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The service as it runs.
    pub service: ServiceInfo,
    /// Milliseconds from request to first packet.
    pub took_ms: u64,
    /// Its rules that no packet can reach, each with the better rule.
    pub shadowed: Vec<(u32, u32)>,
    /// What it asks of the node and is not granted, in words.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// The version whose place it took.
    pub replaced: Option<Replaced>,
}

/// The version of a service that was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replaced {
    /// Its module.
    pub digest: String,
    /// Whether the new version took over what it knew.
    pub state_kept: bool,
    /// Microseconds that packets waited in their ring meanwhile.
    pub paused_us: u64,
}

/// All services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceList {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// By name.
    pub services: Vec<ServiceInfo>,
}

/// What a removal did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The service that is gone, as it was.
    pub service: String,
    /// The rules that went with it.
    pub rules: Vec<u32>,
}

/// Asks for rules: all or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RulesRequest {
    /// The rules.
    pub rules: Vec<RuleRequest>,
}

/// One rule to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    /// Which packets: `in PORT`, `smac MAC`, `dmac MAC`, `vlan N|untagged`, `ethertype TYPE`,
    /// `ip 4|6`, `src PREFIX`, `dst PREFIX`, `proto NAME`, `sport N[-N]`, `dport N[-N]`, `flags
    /// FLAGS`, `dscp N`, `fragment none|first|later`; `any` matches all IP packets.
    pub r#match: String,
    /// `forward`, `drop`, `service NAME` or `out PORT`.
    pub action: String,
    /// Higher wins; 100 when there is none.
    #[serde(default)]
    pub priority: Option<u16>,
    /// The session that pays; `best-effort` when there is none.
    #[serde(default)]
    pub session: Option<String>,
    /// Of these packets only those of one of these flows, one a line: `udp 10.0.0.1 4000
    /// 10.0.2.9 53` is protocol, source, L4 port, destination, L4 port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<String>,
    /// Where on the way of packets it is looked at: `in` or `out`, for rules of the session
    /// `system`, which are `in` when they say nothing; `service` for all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
}

impl RuleRequest {
    /// Of packets and what becomes of them; all else as when nothing is said.
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

/// One rule with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleInfo {
    /// Its number.
    pub id: u32,
    /// Which packets.
    pub r#match: String,
    /// How many flows its list has, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u64>,
    /// What happens to them.
    pub action: String,
    /// Higher wins.
    pub priority: u16,
    /// The session that pays.
    pub session: String,
    /// Where on the way of packets it is looked at: `in`, `service` or `out`.
    #[serde(default)]
    pub stage: String,
    /// The service that it came with, and goes with.
    pub came_with: Option<String>,
    /// Whose it is, by his public key; nobody's but the operator's when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether packets can meet it, in words.
    pub reach: String,
    /// Packets that it was the best match of.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// All rules, best first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleList {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The rules.
    pub rules: Vec<RuleInfo>,
}

/// What adding rules did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RulesAdded {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Their numbers, in the order of the request.
    pub rules: Vec<u32>,
    /// Those that no packet can reach, each with the better rule.
    pub shadowed: Vec<(u32, u32)>,
}

/// What removing a rule did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleRemoved {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The rule that is gone.
    pub rule: u32,
}

/// A module that the node holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModuleStored {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `sha256:…` of its bytes.
    pub digest: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// All modules of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModuleList {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// By name and version.
    pub modules: Vec<ModuleStored>,
}

/// A control message for a service: every lane's `on_message` gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessageRequest {
    /// The message's bytes in hexadecimal digits, at most 2,048 bytes.
    pub data_hex: String,
}

/// What became of a control message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageAnswers {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What `on_message` returned in each lane; null where the module has no
    /// such hook or trapped.
    pub answers: Vec<Option<i32>>,
}

/// Everything that a node counts. For each port, `rx_packets` is the sum of `outcomes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The node's name.
    pub node: String,
    /// By port.
    pub ports: Vec<PortStatsInfo>,
    /// By service.
    pub services: BTreeMap<String, ServiceStats>,
    /// By session: packets and bytes that rules of the session took, and fuel below user level.
    pub sessions: BTreeMap<String, SessionStats>,
    /// The cell.
    pub cell: CellStats,
    /// What came for its associations, where it has any.
    #[serde(default)]
    pub associations: Option<AssociationStats>,
    /// How often rules or routes changed since the node started.
    pub generation: u64,
    /// Modules that were named by their digest and that the node did not hold.
    #[serde(default)]
    pub demand: DemandStats,
    /// Compilations of modules.
    #[serde(default)]
    pub compilers: CompilerStats,
}

/// One port's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortStatsInfo {
    /// The port's name.
    pub port: String,
    /// Frames that came in.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames by where they ended in the front door.
    pub outcomes: BTreeMap<String, u64>,
    /// Frames whose rule and route came from the flow cache.
    pub cache_hits: u64,
    /// The session whose packets wait in the queue in front of the cell.
    pub socket_session: String,
    /// Frames for the cell that were dropped because that queue, the receive ring, was full.
    pub socket_ring_full: u64,
    /// Frames for the cell that found no free memory, or were dropped otherwise.
    pub socket_dropped: u64,
    /// Frames that the device counts as dropped on their way out.
    pub device_tx_dropped: u64,
    /// Frames that the device counts as dropped on their way in, less those that the kernel's stack
    /// dropped and the device counts, too: they are in `stack_dropped`.
    pub device_rx_dropped: u64,
    /// Frames that came in by the port, were left to the kernel's stack and dropped there, by the
    /// kernel's own reason: `stack.ip_local_source` …
    #[serde(default)]
    pub stack_dropped: BTreeMap<String, u64>,
}

impl PortStatsInfo {
    /// Frames whose outcome begins so: `kernel_`, `drop_` …
    #[must_use]
    pub fn outcomes_of(&self, prefix: &str) -> u64 {
        self.outcomes.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, n)| n).sum()
    }

    /// Frames that the node dropped, for whatever reason, or the kernel's stack of what it was left.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let by_stack: u64 = self.stack_dropped.values().sum();
        self.outcomes_of("drop_") + self.socket_ring_full + self.socket_dropped + by_stack
    }

    /// Frames that a service had: of packets, or of streams.
    #[must_use]
    pub fn to_services(&self) -> u64 {
        self.outcomes_of("to_") + self.outcomes_of("intercepted")
    }
}

/// What a session's rules took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionStats {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Fuel that calls of its services used below user level.
    #[serde(default)]
    pub fuel: u64,
    /// Bytes of memory that it uses now, all of it.
    #[serde(default)]
    pub memory_bytes: u64,
    /// How often its modules were refused more memory, since its cell started.
    #[serde(default)]
    pub memory_refused: u64,
}

/// What the cell counts beside its services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CellStats {
    /// Packets for a service that was gone: forwarded plainly.
    pub no_service: u64,
    /// Of them, dropped because they could not be forwarded.
    pub no_service_dropped: u64,
    /// Frames in more parts than a packet may have: dropped.
    pub oversized: u64,
    /// Packets from kernel level for which the way to the cell had no room: dropped.
    #[serde(default)]
    pub up_dropped: u64,
    /// Packets that lay in the rings of a cell when it died: lost. What it had in hand, at most
    /// some batches of 64, comes to that.
    #[serde(default)]
    pub lost_with_cells: u64,
    /// Packets that the cell gave to the kernel's stack by the node's own device and that were
    /// dropped there, by the kernel's own reason; those that arrived by a port are the port's.
    #[serde(default)]
    pub stack_dropped: BTreeMap<String, u64>,
    /// Packets that waited to be sent when their egress port vanished: dropped.
    #[serde(default)]
    pub egress_gone: u64,
    /// Frames without metadata: dropped.
    pub no_metadata: u64,
    /// Modules' events and trap notices that were left out of a storm.
    pub notices_dropped: u64,
    /// Messages from one module to another: each is counted here once for each receiver.
    #[serde(default)]
    pub messages: MessageStats,
    /// Processor time of the process that runs now, in nanoseconds.
    #[serde(default)]
    pub cpu_ns: u64,
    /// Free packet frames.
    pub frames_free: u64,
    /// All packet frames.
    pub frames_total: u64,
}

/// What came for a node's associations. Each frame received is a call, goes to the kernel, waits or
/// was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AssociationStats {
    /// Associations that there are.
    pub live: u64,
    /// Those that were made since the node started.
    pub established: u64,
    /// Messages of handshakes that were not answered, by reason.
    pub handshakes_refused: BTreeMap<String, u64>,
    /// Frames that came.
    pub received: u64,
    /// Payloads given to services.
    pub calls: u64,
    /// Messages of handshakes, and fragments: given to the kernel, for the daemon.
    pub to_kernel: u64,
    /// Packets that wait for their service.
    pub waiting: u64,
    /// Dropped packets, by reason.
    pub dropped: BTreeMap<String, u64>,
}

/// A rule's reach in words.
#[must_use]
pub fn reach_text(reach: &Reach) -> String {
    match reach {
        Reach::Installed => "installed".to_owned(),
        Reach::Waiting => "waiting for its service".to_owned(),
        Reach::Closed => "closed: its service is down, its packets are dropped".to_owned(),
        Reach::Shadowed { by } => format!("shadowed: better rules have its packets, see rule {by}"),
    }
}
