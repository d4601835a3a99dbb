//! Measurements, each with its baseline measured in the same run.
//!
//! ```text
//! generator ─▶ s0 ═ n0 [ node under test, or a baseline ] n1 ═ d0 ─▶ sink
//!   CPU 0      └─ source ─┘└──────────── node ───────────┘└─ destination ─┘
//! ```
//!
//! Ours and the baselines stand ready at the same time, each in a line of
//! namespaces of its own, and take turns: round by round, never all of one
//! and then all of the other. What is reported is the median of the rounds.
//!
//! How a node is started is not known here: the caller gives a [`Subject`].

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

/// A benchmark that [`run`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bench {
    /// What `tam bench` calls it.
    pub name: &'static str,
    /// What it measures, in one line.
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

/// All benchmarks.
#[must_use]
pub fn list() -> &'static [Bench] {
    &BENCHES
}

/// How much to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// End within 45 seconds: fewer cases, shorter windows.
    pub quick: bool,
    /// Rounds of each case; otherwise 2 when quick and 7 when not.
    pub rounds: Option<u32>,
}

/// Most rounds: an hour of the longest benchmark.
pub const ROUNDS_MAX: u32 = 100;

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 2 } else { 7 }).clamp(1, ROUNDS_MAX)
    }
}

/// Which service the node under test runs, for all traffic that comes in by the first port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `monitor` with its default parameters: counts, marks, forwards.
    Monitor,
    /// `nat` for the source's network, with the node's address towards the destination.
    Nat,
    /// The shortest module that drops every packet: reception alone.
    Reception,
    /// The shortest module that lets every packet pass: what a level itself costs.
    Pass,
    /// A module that works some microseconds on every packet and lets it pass.
    Work,
    /// A module that lets every packet pass, every second one at user level.
    RaiseHalf,
    /// Takes TCP connections and passes them on, with a module that wants to see nothing.
    Connections,
    /// Takes TCP connections and has a filter see each request and response of HTTP, heads and
    /// bodies, which lets all of it pass.
    PassThrough,
    /// The same, and connections to servers stay for the next client.
    PassThroughKeepingServers,
    /// `compress` with gzip alone, for TCP connections.
    Compress,
    /// `reflector` for paths below `/live/`, for TCP connections.
    Reflector,
    /// `transcode`, for TCP connections.
    Transcode,
    /// `touch` with this many passes over every byte, then forwards.
    Touch {
        /// 0 to 4.
        passes: u32,
    },
}

/// Where the node under test is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// A name for the node, unique among the nodes of this run.
    pub name: String,
    /// The network namespace, as `ip netns` names it.
    pub namespace: String,
    /// Its two ports: packets come in by the first and leave by the second.
    pub ports: [String; 2],
    /// The service, which begins at user level unless it is one of streams; none is plain forwarding.
    pub service: Option<Service>,
    /// Which packets of the first port it gets, as a match without the port; none is all.
    pub rule: Option<String>,
    /// The CPU of the cell; the generator and all interrupts have CPU 0.
    pub cell_cpu: usize,
    /// How often the ledger is written, in seconds; the node's own choice when there is none.
    pub ledger_every: Option<u64>,
    /// Mbit/s of the second port; what its driver says when there is none.
    pub rate: Option<u64>,
    /// Whether it has associations, at 10.200.0.2:7443, and lets anyone call the shortest module
    /// that drops every packet.
    pub is_called: bool,
    /// Whether its ports are for streams alone, with their front door at tc.
    pub at_tc: bool,
    /// Where it serves its API, and what it holds, to the other nodes of the run.
    pub serves: Option<SocketAddr>,
    /// Where it gets what it does not hold.
    pub repository: Option<Repository>,
}

/// What [`Subject::associate`] gives.
pub struct Associated {
    /// How long the handshake took.
    pub handshake: Duration,
    /// Makes a datagram that calls the module with so many bytes: of the association, encrypted,
    /// or one that nobody vouches for.
    pub calls: Calls,
}

/// Makes datagrams: [`Associated::calls`].
pub type Calls = Box<dyn FnMut(usize, Vouched) -> Result<Vec<u8>>>;

/// Whether somebody vouches for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vouched {
    /// The association.
    Yes,
    /// Nobody.
    No,
}

/// What a node's cell has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellUse {
    /// Packets that services handled.
    pub packets: u64,
    /// Its processor time, in nanoseconds.
    pub cpu_ns: u64,
}

/// Another node of the run, which serves what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Its name.
    pub node: String,
    /// Where it does.
    pub address: SocketAddr,
}

/// Appends another batch to a ledger: its bytes, which are on the disk.
pub type Appends = Box<dyn FnMut() -> Result<Vec<u8>>>;

/// What is measured. The benchmark calls; the caller's code, which knows how, does.
pub trait Subject {
    /// Starts a node and returns when its ports forward, with `rules` rules none of
    /// which matches the benchmark's traffic (UDP to 10.201.0.0/16, L4 port 9).
    ///
    /// # Errors
    /// When the node does not come up; the message names its log.
    fn start(&mut self, plan: &Plan, rules: u32) -> Result<()>;

    /// Packets that the service of the node of this name has handled so far.
    ///
    /// # Errors
    /// When the node does not answer.
    fn handled(&mut self, name: &str) -> Result<u64>;

    /// Associates with the node of this name, out of another namespace, as somebody who may call
    /// the shortest module that drops every packet.
    ///
    /// # Errors
    /// When the node does not answer.
    fn associate(&mut self, name: &str, namespace: &str) -> Result<Associated>;

    /// What the cell of the node of this name has done so far.
    ///
    /// # Errors
    /// When the node does not answer.
    fn cell_use(&mut self, name: &str) -> Result<CellUse>;

    /// Moves the service of the node of this name; returns when it runs at that level.
    ///
    /// # Errors
    /// When the node refuses or fails to; the service stays where it was.
    fn move_to(&mut self, name: &str, level: Level) -> Result<()>;

    /// Deploys a module on the node of this name as `tam deploy` does, for all packets of the
    /// first port, in place of the service that runs there if there is one; returns when it runs
    /// at that level.
    ///
    /// # Errors
    /// When the node refuses it, or it runs elsewhere.
    fn deploy(&mut self, name: &str, module: Module<'_>, level: Level) -> Result<Loaded>;

    /// Has the node of this name hold a module, on its disk; its digest.
    ///
    /// # Errors
    /// When the node refuses it.
    fn store(&mut self, name: &str, module: &Path) -> Result<String>;

    /// Removes the service of the node of this name and waits until it is gone.
    ///
    /// # Errors
    /// When the node refuses, or the service does not end.
    fn remove(&mut self, name: &str) -> Result<()>;

    /// Makes a session for a victim, who has every packet of the first port that nobody else has,
    /// and one for each hostile principal, who has one source port.
    ///
    /// # Errors
    /// When the node refuses.
    fn isolate(&mut self, name: &str, isolated: &Isolated<'_>) -> Result<()>;

    /// How far a session's processor time was from its promise: for each bound in percentage
    /// points how many periods, the last without a bound.
    ///
    /// # Errors
    /// When the node does not answer.
    fn kept(&mut self, name: &str, session: &str) -> Result<Vec<(Option<f64>, u64)>>;

    /// The processor time that each session has used so far, by its name.
    ///
    /// # Errors
    /// When the node does not answer.
    fn cpu(&mut self, name: &str) -> Result<BTreeMap<String, Duration>>;

    /// Takes away what [`Subject::isolate`] made.
    ///
    /// # Errors
    /// When the node refuses.
    fn rejoin(&mut self, name: &str, hostile: u16) -> Result<()>;

    /// Makes a session, and in it a service that has the packets of one flow.
    ///
    /// # Errors
    /// When the node refuses.
    fn admit(&mut self, name: &str, party: &Party<'_>) -> Result<()>;

    /// Gives a service a message.
    ///
    /// # Errors
    /// When the node refuses, or the service does not take it.
    fn tell(&mut self, name: &str, service: &str, message: &[u8]) -> Result<()>;

    /// What a service's module counts, by name.
    ///
    /// # Errors
    /// When the node does not answer.
    fn counters(&mut self, name: &str, service: &str) -> Result<BTreeMap<String, u64>>;

    /// Promises a session this share of a port instead of those that it has.
    ///
    /// # Errors
    /// When the node refuses.
    fn promise(&mut self, name: &str, session: &str, send: (&str, &str)) -> Result<()>;

    /// Takes away what [`Subject::admit`] made; returns when the service is gone.
    ///
    /// # Errors
    /// When the node refuses.
    fn evict(&mut self, name: &str, session: &str) -> Result<()>;

    /// Has as many sessions on a node as are wanted, by one change, each with a small service that
    /// has a block of source ports, and one that drops what is left; how long it took.
    ///
    /// # Errors
    /// When the node refuses.
    fn populate(&mut self, name: &str, wanted: &Populated) -> Result<Duration>;

    /// Makes one more session with a service to which nothing comes, and removes it again; how
    /// long it took until it ran.
    ///
    /// # Errors
    /// When the node refuses.
    fn one_more(&mut self, name: &str) -> Result<Duration>;

    /// How many sessions the node of this name lists.
    ///
    /// # Errors
    /// When it does not answer.
    fn sessions(&mut self, name: &str) -> Result<usize>;

    /// What the processes of the node of this name have and have used, as the kernel says.
    ///
    /// # Errors
    /// When they are not there.
    fn processes(&mut self, name: &str) -> Result<Processes>;

    /// Opens a new ledger in a folder, for batches of so many records.
    ///
    /// # Errors
    /// When it cannot be made.
    fn ledger(&mut self, folder: &Path, records: u16) -> Result<Appends>;

    /// Has two nodes get to know each other so often, in this process and without sockets; how
    /// long each of them worked for that: the one that asks, and the one that answers.
    ///
    /// # Errors
    /// When they do not.
    fn handshakes(&mut self, count: u32) -> Result<[Duration; 2]>;

    /// Has one side of an association seal so many datagrams with a payload of so many bytes, and
    /// the other open them; how long each took for all.
    ///
    /// # Errors
    /// When one is not opened.
    fn sealing(&mut self, length: usize, count: u32) -> Result<[Duration; 2]>;

    /// Stops the node of this name and waits until it has detached.
    ///
    /// # Errors
    /// When it does not end.
    fn stop(&mut self, name: &str) -> Result<()>;

    /// Runs `touch` with `passes` passes over one packet, `repeat` times in batches, in
    /// this process and without a device.
    ///
    /// # Errors
    /// When the module is not built or traps.
    fn touch(&mut self, packet: &[u8], passes: u32, repeat: u32) -> Result<Touched>;
}

/// A victim and who is hostile beside it: [`Subject::isolate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isolated<'a> {
    /// What the victim does.
    pub victim: Work,
    /// Where; the hostile ones are at user level but for [`Hostile::Below`].
    pub level: Level,
    /// How many are hostile.
    pub hostile: u16,
    /// What they do, in turn.
    pub kinds: &'a [Hostile],
}

/// What a hostile principal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// Its module never ends.
    Endless,
    /// Its module's memory grows to its limit, and all of it is touched again and again.
    Memory,
    /// Its module makes and collects garbage all the time.
    Garbage,
    /// It is sent more packets than all others together; its module drops them.
    Flood,
    /// Its rules come and go, one after another.
    Rules,
    /// Its service is replaced by another version, again and again.
    Reloads,
    /// At `nic`, its module takes nearly all the fuel of a call.
    Below,
}

impl Hostile {
    /// All that are at user level.
    pub const ALL: [Self; 6] =
        [Self::Endless, Self::Memory, Self::Garbage, Self::Flood, Self::Rules, Self::Reloads];

    /// In a metric's name.
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

/// Sessions by the thousand: [`Subject::populate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Populated {
    /// How many.
    pub sessions: u32,
    /// Source ports of each; the first begins at [`SOURCE_PORT_FIRST`].
    pub block: u16,
    /// Blocks of the generator's flows; those that are no session's are dropped.
    pub blocks: u32,
}

/// The processes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// The daemon's memory, in bytes.
    pub node_bytes: u64,
    /// The cell's.
    pub cell_bytes: u64,
    /// Processor time of the cell.
    pub cell_cpu: Duration,
    /// The numbers of the daemon's process and the cell's.
    pub pids: [u32; 2],
}

/// A session with one service at user level: [`Subject::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party<'a> {
    /// The session's name, and the service's.
    pub name: &'a str,
    /// One virtual processor, as `1ms/4ms`.
    pub cpu: Option<&'a str>,
    /// Bytes of packet memory for what waits for it.
    pub queue: Option<usize>,
    /// A port, and the share of it.
    pub send: Option<(&'a str, &'a str)>,
    /// Its first source port.
    pub flow: u16,
    /// How many it has.
    pub flows: u16,
    /// What its module does.
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

/// What a module does with each packet; all of them pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// As little as it can.
    #[default]
    Light,
    /// A tenth of a millisecond's work, so that it can use all the time that there is.
    Bound,
    /// It makes objects in a heap that it collects itself; how many for each packet of an even
    /// source port it is told by a message.
    Heap,
}

/// The victim's session in [`Subject::isolate`].
pub const VICTIM: &str = "victim";
/// The first source port of the generator's flows: the hostile principal with number n has the
/// one behind it by n.
pub const SOURCE_PORT_FIRST: u16 = 1024;
/// How many follow it in [`Subject::isolate`]: a power of two, more than twice the hostile ones,
/// so that the victim has more than half.
pub const FLOWS: u16 = 256;

/// What [`Subject::deploy`] deploys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module<'a> {
    /// A file, which goes to the node's store first.
    File(&'a Path),
    /// A digest in the node's store.
    Stored(&'a str),
}

/// What [`Subject::deploy`] gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The module's digest in the node's store.
    pub digest: String,
    /// From the begin until the node had stored the module.
    pub stored: Duration,
    /// From the begin until the node said that it runs.
    pub answered: Duration,
}

/// What [`Subject::touch`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The module's counter `checksum`: the sum of the last passes' hashes, wrapping.
    pub checksum: u64,
    /// Nanoseconds that all repetitions took.
    pub nanos: u64,
}

/// Runs a benchmark; `progress` gets a line now and then.
///
/// # Errors
/// When there is no such benchmark, rights are missing, or a subject does not come up.
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
