//! Benchmarks, each with a baseline measured in the same run.
//!
//! ```text
//! generator ─▶ s0 ═ n0 [ node under test, or a baseline ] n1 ═ d0 ─▶ sink
//!   CPU 0      └─ source ─┘└──────────── node ───────────┘└─ destination ─┘
//! ```
//!
//! The node and the baselines are ready at the same time, each in a line of namespaces of its own,
//! and take turns: round by round, never all of one and then all of the other. Reported is the
//! median of the rounds.
//!
//! The crate does not know how a node is started: the caller passes a [`Subject`].

#![forbid(unsafe_code)]

mod arrivals;
mod auth;
mod bare;
mod classify;
mod compress;
mod device_counters;
mod forward;
mod frame;
mod generator;
mod install;
mod isolation;
mod ledger;
pub mod levels;
mod limits;
mod line;
mod load;
mod machine;
mod measure;
mod measurement;
mod move_service;
mod nat;
mod native;
mod overload;
mod plain_xsk;
mod proxy;
mod questions;
mod reflector;
pub mod report;
pub mod reproduce;
mod rounds;
mod scale;
mod sink;
mod started;
mod streams;
#[cfg(test)]
mod tests;
mod touch;
mod transcode;
mod user;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use abi::Level;
use anyhow::{Result, bail};
use measurement::Measured;

pub use measurement::{Better, GoalFor, Measurement};
pub use report::Report;

/// Prefix of the network namespaces that a benchmark makes.
pub const NAMESPACE_PREFIX: &str = "tt-bench-";

/// Benchmark that [`run`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bench {
    /// Name for `tam bench`.
    pub name: &'static str,
    /// Description in one line.
    pub what: &'static str,
}

const BENCHES: [Bench; 18] = [
    Bench {
        name: "forward",
        what: "plain forwarding: against an XDP program with FIB lookup, a fixed redirect, and the kernel",
    },
    Bench {
        name: "user",
        what: "a service at user level: against a plain AF_XDP forwarder, and reception alone",
    },
    Bench {
        name: "auth",
        what: "active packets of an association: against those that nobody vouches for, and against rules",
    },
    Bench {
        name: "touch",
        what: "a pass over every byte in the sandbox: against the same loop in native code",
    },
    Bench {
        name: "levels",
        what: "two sets of packet functions as modules at nic level: against the same C compiled to eBPF by clang",
    },
    Bench {
        name: "classify",
        what: "rule and route of a packet, by rules, masks and flows: against a plain BPF hash of a million flows",
    },
    Bench {
        name: "ledger",
        what: "records on the disk, against plain appends of the same bytes; packets with accounting, against without",
    },
    Bench {
        name: "load",
        what: "from a request to a module's first packet, cold and warm: against Cranelift alone and an XDP program of clang",
    },
    Bench {
        name: "install",
        what: "from a digest that only a neighbour holds to its first packet: against Cranelift and an XDP program of clang; handshakes, against TLS 1.3",
    },
    Bench {
        name: "isolation",
        what: "a session alone and beside 1, 10 and 100 hostile ones: its processor time in each period, its packets, how late they come",
    },
    Bench {
        name: "scale",
        what: "10, 1,000 and 10,000 sessions with a service each: their memory, the time to make them, what a packet costs",
    },
    Bench {
        name: "overload",
        what: "up to ten times what a node can carry, by level: what passes, how fast the API answers",
    },
    Bench {
        name: "move",
        what: "a service that goes round its levels under load: lost, overtaken, doubled packets, the longest pause",
    },
    Bench {
        name: "nat",
        what: "source NAT with the router's own address on slow and on fast ports, by level: against the kernel's masquerading",
    },
    Bench {
        name: "proxy",
        what: "connections that a node takes, plainly and through a filter: against HAProxy and nginx as TCP and HTTP proxies",
    },
    Bench {
        name: "compress",
        what: "responses in gzip: against nginx as a proxy with gzip, at the level whose bodies are as short",
    },
    Bench {
        name: "reflector",
        what: "2,000 listeners of a live stream: processor time, memory and the time to join, against Icecast",
    },
    Bench {
        name: "transcode",
        what: "video for small devices through a node: against ffmpeg alone, and a change of the size while it plays",
    },
];

/// Returns all benchmarks.
#[must_use]
pub fn list() -> &'static [Bench] {
    &BENCHES
}

/// Options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// True to end within 45 seconds: fewer cases, shorter windows.
    pub quick: bool,
    /// Rounds of each case; by default 2 when quick and 7 when not.
    pub rounds: Option<u32>,
}

/// Most rounds: an hour of the longest benchmark.
pub const ROUNDS_MAX: u32 = 100;

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 7 }).clamp(1, ROUNDS_MAX)
    }
}

/// Service of the node under test, for all traffic that enters by the first port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `monitor` with its default parameters: counts, marks, forwards.
    Monitor,
    /// `nat` for the source's network, with the node's address towards the destination.
    Nat,
    /// Shortest module that drops every packet: reception alone.
    Reception,
    /// Shortest module that passes every packet: the cost of a level itself.
    Pass,
    /// Module that works some microseconds on every packet and passes it.
    Work,
    /// Module that passes every packet, every second one at user level.
    RaiseHalf,
    /// Interception of TCP connections with a stream module without callbacks.
    Connections,
    /// Interception of TCP connections with a filter that is called for heads and bodies of each
    /// HTTP request and response, and changes nothing.
    PassThrough,
    /// Filter as [`Self::PassThrough`], with connections to servers kept for the next client.
    PassThroughKeepingServers,
    /// `compress` with gzip alone, for TCP connections.
    Compress,
    /// `reflector` for paths below `/live/`, for TCP connections.
    Reflector,
    /// `transcode`, for TCP connections.
    Transcode,
    /// `touch` with this many passes over every byte; then the packet is forwarded.
    Touch {
        /// Number of passes, 0 to 4.
        passes: u32,
    },
}

/// Placement and settings of the node under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the node, unique among the nodes of this run.
    pub name: String,
    /// Network namespace, as `ip netns` names it.
    pub namespace: String,
    /// Names of the two ports: packets enter by the first and leave by the second.
    pub ports: [String; 2],
    /// Service, which starts at user level unless it is a stream service; `None` for plain
    /// forwarding.
    pub service: Option<Service>,
    /// Match of the service's packets, without the first port; `None` for all packets of that port.
    pub rule: Option<String>,
    /// The CPU of the cell; the generator and all interrupts have CPU 0.
    pub cell_cpu: usize,
    /// Interval of ledger writes in seconds; `None` for the node's default.
    pub ledger_every: Option<u64>,
    /// Rate of the second port in Mbit/s; `None` for its driver's.
    pub rate: Option<u64>,
    /// True if the node has associations, at 10.200.0.2:7443, and lets anyone call the shortest
    /// module that drops every packet.
    pub is_called: bool,
    /// True if the ports are for streams alone, with their front door at tc.
    pub at_tc: bool,
    /// Address where the node serves its API and its modules to other nodes of the run.
    pub serves: Option<SocketAddr>,
    /// Node from which the node fetches modules that it lacks.
    pub repository: Option<Repository>,
}

/// Result of [`Subject::associate`].
pub struct Associated {
    /// Duration of the handshake.
    pub handshake: Duration,
    /// Source of datagrams that call the module, with a payload of the given bytes: encrypted by
    /// the association, or without authentication.
    pub calls: Calls,
}

/// Source of datagrams: [`Associated::calls`].
pub type Calls = Box<dyn FnMut(usize, Vouched) -> Result<Vec<u8>>>;

/// Authentication of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vouched {
    /// Encrypted and authenticated by the association.
    Yes,
    /// None.
    No,
}

/// Usage of a node's cell so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellUse {
    /// Packets that services handled.
    pub packets: u64,
    /// Processor time of the cell, in nanoseconds.
    pub cpu_ns: u64,
}

/// Node of the run that serves its modules to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Name of the node.
    pub node: String,
    /// Address of its API.
    pub address: SocketAddr,
}

/// Function that appends a batch to a ledger; returns its bytes once they are on the disk.
pub type Appends = Box<dyn FnMut() -> Result<Vec<u8>>>;

/// Node under test as the benchmarks see it: they call, and the caller's implementation, which
/// knows how, acts.
pub trait Subject {
    /// Starts a node and returns when its ports forward, with `rules` rules none of which matches
    /// the benchmark's traffic (UDP to 10.201.0.0/16, L4 port 9).
    ///
    /// # Errors
    /// The node does not come up; the message names its log.
    fn start(&mut self, plan: &Plan, rules: u32) -> Result<()>;

    /// Returns the packets that the service of the node of this name has handled so far.
    ///
    /// # Errors
    /// The node does not answer.
    fn handled(&mut self, name: &str) -> Result<u64>;

    /// Associates with the node of this name, from another namespace, as a principal that may call
    /// the shortest module that drops every packet.
    ///
    /// # Errors
    /// The node does not answer.
    fn associate(&mut self, name: &str, namespace: &str) -> Result<Associated>;

    /// Returns the usage of the cell of the node of this name so far.
    ///
    /// # Errors
    /// The node does not answer.
    fn cell_use(&mut self, name: &str) -> Result<CellUse>;

    /// Moves the service of the node of this name; returns when it runs at that level.
    ///
    /// # Errors
    /// The node refuses or fails; the service stays where it was.
    fn move_to(&mut self, name: &str, level: Level) -> Result<()>;

    /// Deploys a module on the node of this name as `tam deploy` does, for all packets of the first
    /// port, replacing a service that runs there; returns when it runs at that level.
    ///
    /// # Errors
    /// The node refuses it, or it runs elsewhere.
    fn deploy(&mut self, name: &str, module: Module<'_>, level: Level) -> Result<Loaded>;

    /// Stores a module on the disk of the node of this name; returns its digest.
    ///
    /// # Errors
    /// The node refuses it.
    fn store(&mut self, name: &str, module: &Path) -> Result<String>;

    /// Removes the service of the node of this name and waits until it is gone.
    ///
    /// # Errors
    /// The node refuses, or the service does not end.
    fn remove(&mut self, name: &str) -> Result<()>;

    /// Creates a session for a victim, which gets every packet of the first port that no other
    /// session has, and one for each hostile principal, which gets one source port.
    ///
    /// # Errors
    /// The node refuses.
    fn isolate(&mut self, name: &str, isolated: &Isolated<'_>) -> Result<()>;

    /// Returns how far a session's processor time deviated from its reservation: for each bound in
    /// percentage points the number of periods, the last without a bound.
    ///
    /// # Errors
    /// The node does not answer.
    fn kept(&mut self, name: &str, session: &str) -> Result<Vec<(Option<f64>, u64)>>;

    /// Returns the processor time that each session has used so far, by name.
    ///
    /// # Errors
    /// The node does not answer.
    fn cpu(&mut self, name: &str) -> Result<BTreeMap<String, Duration>>;

    /// Removes what [`Subject::isolate`] created.
    ///
    /// # Errors
    /// The node refuses.
    fn rejoin(&mut self, name: &str, hostile: u16) -> Result<()>;

    /// Creates a session, and in it a service for the packets of its flows.
    ///
    /// # Errors
    /// The node refuses.
    fn admit(&mut self, name: &str, party: &Party<'_>) -> Result<()>;

    /// Sends a message to a service.
    ///
    /// # Errors
    /// The node refuses, or the service does not accept it.
    fn send_message(&mut self, name: &str, service: &str, message: &[u8]) -> Result<()>;

    /// Returns the counters of a service's module, by name.
    ///
    /// # Errors
    /// The node does not answer.
    fn counters(&mut self, name: &str, service: &str) -> Result<BTreeMap<String, u64>>;

    /// Changes a session's reservation to this share of a port.
    ///
    /// # Errors
    /// The node refuses.
    fn promise(&mut self, name: &str, session: &str, send: (&str, &str)) -> Result<()>;

    /// Removes what [`Subject::admit`] created; returns when the service is gone.
    ///
    /// # Errors
    /// The node refuses.
    fn evict(&mut self, name: &str, session: &str) -> Result<()>;

    /// Creates sessions on a node by one change, each with a small service for a block of source
    /// ports, and one session that drops the remaining packets; returns the time that it took.
    ///
    /// # Errors
    /// The node refuses.
    fn populate(&mut self, name: &str, wanted: &Populated) -> Result<Duration>;

    /// Creates one more session with a service that gets no packets, and removes it again; returns
    /// the time until the service ran.
    ///
    /// # Errors
    /// The node refuses.
    fn one_more(&mut self, name: &str) -> Result<Duration>;

    /// Returns the number of sessions that the node of this name lists.
    ///
    /// # Errors
    /// The node does not answer.
    fn sessions(&mut self, name: &str) -> Result<usize>;

    /// Returns memory and processor time of the processes of the node of this name, as the kernel
    /// counts them.
    ///
    /// # Errors
    /// The processes do not exist.
    fn processes(&mut self, name: &str) -> Result<Processes>;

    /// Opens a new ledger in a folder, for batches of `records` records.
    ///
    /// # Errors
    /// The ledger cannot be created.
    fn ledger(&mut self, folder: &Path, records: u16) -> Result<Appends>;

    /// Runs `count` handshakes between two nodes in this process and without sockets; returns the
    /// time that initiator and responder worked for them.
    ///
    /// # Errors
    /// A handshake fails.
    fn handshakes(&mut self, count: u32) -> Result<[Duration; 2]>;

    /// Seals `count` datagrams with a payload of `length` bytes on one side of an association and
    /// opens them on the other; returns the total time of each.
    ///
    /// # Errors
    /// A datagram cannot be opened.
    fn sealing(&mut self, length: usize, count: u32) -> Result<[Duration; 2]>;

    /// Stops the node of this name and waits until it has detached from its ports.
    ///
    /// # Errors
    /// The node does not end.
    fn stop(&mut self, name: &str) -> Result<()>;

    /// Runs `touch` with `passes` passes over one packet, `repeat` times in batches, in this
    /// process and without a device.
    ///
    /// # Errors
    /// The module is not built or traps.
    fn touch(&mut self, packet: &[u8], passes: u32, repeat: u32) -> Result<Touched>;
}

/// Victim and hostile sessions for [`Subject::isolate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isolated<'a> {
    /// Work of the victim's module.
    pub victim: Work,
    /// Level of the victim; hostile sessions run at user level but for [`Hostile::Below`].
    pub level: Level,
    /// Number of hostile sessions.
    pub hostile: u16,
    /// Kinds of hostile sessions, in turn.
    pub kinds: &'a [Hostile],
}

/// Behaviour of a hostile principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// Module that never returns.
    Endless,
    /// Module whose memory grows to its limit, and that touches all of it repeatedly.
    Memory,
    /// Module that makes and collects garbage all the time.
    Garbage,
    /// Module that drops its packets, which are more than those of all others together.
    Flood,
    /// Rules that are added and removed, one after another.
    Rules,
    /// Service that is replaced by another version, again and again.
    Reloads,
    /// Module at `nic` that takes nearly all the fuel of a call.
    Below,
}

impl Hostile {
    /// Kinds that run at user level.
    pub const ALL: [Self; 6] =
        [Self::Endless, Self::Memory, Self::Garbage, Self::Flood, Self::Rules, Self::Reloads];

    /// Returns the kind's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Endless => "endless",
            Self::Memory => "memory",
            Self::Garbage => "garbage",
            Self::Flood => "flood",
            Self::Rules => "rules",
            Self::Reloads => "reloads",
            Self::Below => "below",
        }
    }
}

/// Number and traffic of sessions for [`Subject::populate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Populated {
    /// Number of sessions.
    pub sessions: u32,
    /// Source ports of each session; the first begins at [`SOURCE_PORT_FIRST`].
    pub block: u16,
    /// Blocks of the generator's flows; packets of blocks without a session are dropped.
    pub blocks: u32,
}

/// Memory and processor time of a node's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// Resident memory of the daemon, in bytes.
    pub node_bytes: u64,
    /// Resident memory of the cell, in bytes.
    pub cell_bytes: u64,
    /// Processor time of the cell.
    pub cell_cpu: Duration,
    /// Process numbers of the daemon and the cell.
    pub pids: [u32; 2],
}

/// Session with one service at user level, for [`Subject::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party<'a> {
    /// Name of the session and of the service.
    pub name: &'a str,
    /// Virtual processor, as `1ms/4ms`; `None` without a reservation.
    pub cpu: Option<&'a str>,
    /// Bytes of packet memory for the session's queue.
    pub queue: Option<usize>,
    /// Port, and the session's share of it.
    pub send: Option<(&'a str, &'a str)>,
    /// First source port.
    pub flow: u16,
    /// Number of source ports.
    pub flows: u16,
    /// Work of the module.
    pub work: Work,
}

impl Default for Party<'_> {
    fn default() -> Self {
        Self {
            name: "",
            cpu: None,
            queue: None,
            send: None,
            flow: SOURCE_PORT_FIRST,
            flows: 1,
            work: Work::Light,
        }
    }
}

/// Work of a module for each packet; every packet passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// Minimal work.
    #[default]
    Light,
    /// Work of a tenth of a millisecond, enough to use all the time that there is.
    Bound,
    /// Creation of objects in a heap that the module collects itself; a message sets how many for
    /// each packet of an even source port.
    Heap,
}

/// Name of the victim's session in [`Subject::isolate`].
pub const VICTIM: &str = "victim";
/// First source port of the generator's flows; hostile principal number n has this one plus n.
pub const SOURCE_PORT_FIRST: u16 = 1024;
/// Number of flows in [`Subject::isolate`]: a power of two, more than twice the hostile sessions,
/// so that the victim has more than half.
pub const FLOWS: u16 = 256;

/// Module for [`Subject::deploy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module<'a> {
    /// File, which is uploaded to the node's store first.
    File(&'a Path),
    /// Digest of a module in the node's store.
    Stored(&'a str),
}

/// Result of [`Subject::deploy`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Digest of the module in the node's store.
    pub digest: String,
    /// Time from the beginning until the node had stored the module.
    pub stored: Duration,
    /// Time from the beginning until the node reported that it runs.
    pub answered: Duration,
}

/// Result of [`Subject::touch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Counter `checksum` of the module: the sum of the last passes' hashes, wrapping.
    pub checksum: u64,
    /// Nanoseconds of all repetitions.
    pub nanos: u64,
}

/// Runs a benchmark; `progress` gets a line now and then.
///
/// # Errors
/// The benchmark does not exist, rights are missing, or a subject does not come up.
pub fn run(
    name: &str,
    options: &Options,
    subject: &mut dyn Subject,
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let driver = if matches!(name, "touch" | "levels" | "classify") { "none" } else { "veth" };
    let machine = machine::Machine::read(driver);
    let measured: Measured = match name {
        "forward" => forward::run(options, subject, progress)?.into(),
        "user" => user::run(options, subject, progress)?.into(),
        "auth" => auth::run(options, subject, progress)?,
        "touch" => touch::run(options, subject, progress)?.into(),
        "levels" => levels::run(options, progress)?.into(),
        "classify" => classify::run(options, progress)?,
        "ledger" => ledger::run(options, subject, progress)?,
        "load" => load::run(options, subject, progress)?,
        "install" => install::run(options, subject, progress)?,
        "isolation" => isolation::run(options, subject, progress)?,
        "scale" => scale::run(options, subject, progress)?,
        "overload" => overload::run(options, subject, progress)?,
        "move" => move_service::run(options, subject, progress)?,
        "nat" => nat::run(options, subject, progress)?,
        "proxy" => proxy::run(options, subject, progress)?,
        "compress" => compress::run(options, subject, progress)?,
        "reflector" => reflector::run(options, subject, progress)?,
        "transcode" => transcode::run(options, subject, progress)?,
        _ => {
            let names: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
            bail!("there is no benchmark '{name}'; there are: {}", names.join(", "));
        }
    };
    Ok(Report::new(name, measured, machine))
}
