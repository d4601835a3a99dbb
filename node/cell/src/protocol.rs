//! What the daemon and a cell say to each other: one value each way a message.

mod associations;
mod sessions;
mod streams;
#[cfg(test)]
mod tests;

pub use associations::{Answer, AssociationReport, Question};
pub use sessions::{
    DEVIATION_BOUNDS, DEVIATIONS, SESSION_REPORTS_MAX, SessionFacts, SessionReport,
};
pub use streams::{CodecFacts, StreamFacts, StreamReport};

use crate::timing::CallTimes;
use abi::layout::EDGES_MAX;
use abi::{HostFunctions, KeyField, Pool, Verdict};
use association::AssociationId;
use engine::TrapKind;
use serde::{Deserialize, Serialize};
use session::memory::{Account, OutOfMemory};
use std::collections::BTreeMap;
use std::fmt;
use units::{BitsPerSecond, Bytes, Edge, EntryId, Nanos, PortId, SessionId};
use zeroize::Zeroizing;

/// From the daemon. Descriptors travel beside the message, in the order named.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToCell {
    /// The device that takes packets into the kernel's stack. Descriptor: a TUN device.
    Kernel,
    /// The same without TUN. Descriptor: a packet socket; frames to [`KERNEL_MAC`] that it sends
    /// come in by a device of the node's.
    KernelFrames,
    /// Receive and send on one queue of a port. Descriptor: a fresh AF_XDP socket.
    AddPort(PortFacts),
    /// The device of a port has another address or MTU, or is cabled otherwise.
    ChangePort(PortFacts),
    /// Let go of a port's queues: its device is gone, or serves no more.
    RemovePort(PortId),
    /// Receive and send by packet sockets; the port at the other end of the bridge. Descriptors:
    /// the port's socket, and one whose frames come in by the port for the kernel.
    AddFrames(PortFacts, Option<PortId>),
    /// Keeps the frames of a packet port from the kernel as long as the cell is there.
    /// Descriptor: what does.
    Taken(PortId),
    /// The rules of packet ports from now on, and their number. Descriptor: sealed memory.
    Rules(u64),
    /// Where to count what packet ports bring. Descriptor: memory of both.
    Counts,
    /// The device by which packets come up from kernel level. Descriptor: a TAP device.
    Up,
    /// The lanes of services that can leave user level. Descriptor: the front door's map.
    Lanes,
    /// What rules say, for packets that have several. Descriptor: the front door's map.
    RuleFacts,
    /// The map of what may wait for each session; its descriptor comes along, before any session.
    Rooms,
    /// The accounts of shares of ports. Descriptor: the front door's map.
    Lines,
    /// Where to ask by which port the kernel would send a packet, before it gets it. Descriptors: the
    /// device of [`ToCell::Up`], and the front door's map of answers.
    Answers,
    /// What a session sends by a port pays from this account, or from that of all without a share.
    Line(PortId, SessionId, Option<u32>),
    /// One of the next two comes within a millisecond: do not wait for it in the kernel.
    Expect,
    /// So much memory is there for all sessions.
    Memory(Bytes),
    /// What a session was promised: before anything of it runs, and when it changes.
    Session(Box<SessionFacts>),
    /// Say what of memory is in use, and by this session: [`FromCell::MemoryOf`].
    MemoryOf(Option<SessionId>),
    /// There is no session of this number any more.
    ForgetSession(SessionId),
    /// Run a service. Descriptors: its code, in sealed memory; of one that can leave user
    /// level the arena that is its memory, the instance block, and the ring of its records.
    Start(Box<ServiceFacts>),
    /// Run a service of streams. Descriptors: its code, in sealed memory; what has its connections
    /// come to the listeners as long as it is open; the listeners, for IPv4 and, where there is one,
    /// for IPv6.
    StartStreams(Box<StreamFacts>),
    /// Put another version in a service's place: connections that come from now on are its.
    /// Descriptor: its code. Answered by [`FromCell::Replaced`] or [`FromCell::ReplaceFailed`].
    ReplaceStreams(Box<StreamFacts>),
    /// Sockets to connect with, for IPv6 or for IPv4: [`FromCell::WantsSockets`].
    Sockets {
        /// Which of the two.
        v6: bool,
    },
    /// What codecs there are for streams.
    Codecs(CodecFacts),
    /// The codec of this number runs, as the process of that: [`FromCell::WantsCodec`]. Descriptor: a
    /// socket, at whose other end it reads and writes.
    CodecStarted(u64, u32),
    /// It has ended, or was not started, and why; nothing when it ended as it should. What it took of
    /// a processor.
    CodecEnded(u64, String, Nanos),
    /// Put another version in a service's place, with its state. Descriptors: as for
    /// [`ToCell::Start`].
    Replace(Box<ServiceFacts>, StateWay),
    /// The daemon has heard [`FromCell::Replaced`] or [`FromCell::PutBack`]: what it says of the
    /// service from now on is meant for the version that runs.
    VersionKnown(EntryId),
    /// A service's packets shall be handled at this level (`bpf_maps::LEVEL_*`) from the
    /// next one on that can be.
    Target(EntryId, u32),
    /// Where the edges out of a service lead from now on.
    Edges(EntryId, [Edge; EDGES_MAX]),
    /// Whether packets that a service cannot have are dropped from now on; else they are
    /// forwarded plainly.
    Closed(EntryId, bool),
    /// Packets of a service were lost on their way up: begin to count anew.
    Recount(EntryId),
    /// Every packet of the service from before [`ToCell::Recount`] is in a ring by now, or lost.
    Settle(EntryId),
    /// Keys of an association: [`association::Traffic::to_bytes`]. Answered by
    /// [`FromCell::Associated`].
    Associate(SecretBytes),
    /// An association has ended.
    Disassociate(AssociationId),
    /// Which service the packets call that the cell asked about.
    Called(Question, Answer),
    /// Stop a service; the answer carries its last report.
    Stop(EntryId),
    /// Give a control message to every lane of a service.
    Message(EntryId, Vec<u8>),
    /// Report on every service, every session and on the cell; ends with [`FromCell::Reported`].
    Report,
    /// Tell what sessions used that used something since they were told last:
    /// [`FromCell::Sessions`]; ends with [`FromCell::SessionsReported`].
    ReportSessions,
    /// Tell of packets, or not any more.
    Tap(Option<TapFacts>),
    /// The first word of a daemon that has not started this cell: it knows these services of
    /// those that ran, and the others are to go at once. Answered by [`FromCell::Adopted`].
    Adopt(Vec<EntryId>),
}

/// Bytes that are nobody's but the two processes': overwritten when they go, and never shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretBytes(pub Zeroizing<Vec<u8>>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secret bytes", self.0.len())
    }
}

/// The address of the device that takes frames into the kernel's stack.
pub const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// How a new version of a service comes by the state of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateWay {
    /// It takes over memory and globals as they are.
    Memory,
    /// `state_out` of the one and `state_in` of the other.
    Hooks,
    /// It begins empty.
    Empty,
}

/// What a packet of a port has besides its MTU: an Ethernet header with two tags.
pub const HEADER_LENGTH_MAX: u32 = 22;

/// One queue of a port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortFacts {
    /// The port's number.
    pub port: PortId,
    /// Its name, for `port_find`.
    pub name: String,
    /// Its device.
    pub ifindex: u32,
    /// Its receive queue.
    pub queue: u32,
    /// The device's address.
    pub mac: [u8; 6],
    /// L3 MTU in bytes.
    pub mtu: u32,
    /// Its packets are IP packets without an Ethernet header.
    pub raw: bool,
    /// What leaves by it can come in by a port of the same node.
    pub cabled: bool,
    /// Set where its front door is in its driver: what its device receives otherwise does not meet it.
    pub in_driver: bool,
    /// How much it sends in a second, if anybody knows: shares are of it.
    pub rate: Option<BitsPerSecond>,
}

/// A service as a cell runs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceFacts {
    /// Where the front door sends its packets.
    pub entry: EntryId,
    /// Its name.
    pub name: String,
    /// The session that pays.
    pub session: SessionId,
    /// Declared window, in bytes.
    pub window: u32,
    /// With how much memory each lane begins, in pages of 64 KiB.
    pub memory_pages_min: u32,
    /// Memory limit of each lane, in pages of 64 KiB.
    pub memory_pages_max: u32,
    /// Instances; a flow's packets always meet the same one.
    pub lanes: u16,
    /// Which of them do what; none: each has everything.
    pub pools: Vec<Pool>,
    /// What flows are told from each other by; nothing: by the metadata's hash.
    pub flows_by: Vec<KeyField>,
    /// Period of `on_timer`, in milliseconds.
    pub timer_ms: Option<u32>,
    /// Whether a call on a packet is over before anybody could want to interrupt it.
    pub brief: bool,
    /// Parameters by name, encoded as their types say.
    pub parameters: BTreeMap<String, Vec<u8>>,
    /// The meanings of numbers with which `on_start` refuses.
    pub refusals: BTreeMap<u16, String>,
    /// The host functions that are linked.
    pub functions: HostFunctions,
    /// Packets that it cannot have are dropped; else they are forwarded plainly.
    pub closed: bool,
    /// Of a service that can leave user level.
    pub shared: Option<SharedFacts>,
    /// What the daemon keeps for it.
    pub kept: KeptFacts,
}

impl ServiceFacts {
    /// For which kind of memory its code was made.
    #[must_use]
    pub const fn kind(&self) -> engine::MemoryKind {
        match self.shared {
            Some(shared) => shared.kind(),
            None => {
                let (min, max) = (self.memory_pages_min, self.memory_pages_max);
                engine::MemoryKind::own(min, max, self.brief)
            }
        }
    }
}

/// Bytes that the daemon keeps for a service, and its session pays for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFacts {
    /// Of machine code.
    pub code: u32,
    /// Of the module as it came.
    pub module: u32,
}

/// Memory that a service shares with programs in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFacts {
    /// Where the arena belongs in every process.
    pub address: u64,
    /// Its pages of 4 KiB, to be populated.
    pub arena_pages: u64,
    /// The kernel's number of the arena, which no other map has as long as it is mapped.
    pub number: u32,
    /// Another instance had it before: memory and ring are to be emptied.
    pub used: bool,
    /// Whether the linear memory begins smaller than it may become.
    pub grows: bool,
    /// Globals of the module, which the instance block has room for.
    pub globals: u32,
    /// Bytes of the ring in which programs leave events and frames.
    pub ring_length: u32,
}

/// Pages of an arena that is kept, and emptied, for the same module to begin anew: 1 MiB, which
/// takes a tenth of a millisecond.
pub const SPARE_PAGES_MAX: u64 = 256;

impl SharedFacts {
    /// For which kind of memory the code was made.
    #[must_use]
    pub const fn kind(self) -> engine::MemoryKind {
        if self.grows { engine::MemoryKind::SharedGrowing } else { engine::MemoryKind::SharedFixed }
    }
}

/// From the cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromCell {
    /// The queue of the port is bound: its packets may come.
    PortReady(PortId, u32),
    /// The queue of the port cannot be used.
    PortFailed(PortId, u32, String),
    /// Every lane of the service started.
    Started(EntryId),
    /// The service did not start.
    StartFailed(EntryId, Failure),
    /// There are to be so many more unconnected sockets, for IPv4 and for IPv6.
    WantsSockets([u16; 2]),
    /// Request for a codec of this number, with its parameters (`mpeg2::TranscodeParams`).
    WantsCodec(u64, String),
    /// The codec of this number is of no use any more.
    CodecUnwanted(u64),
    /// The new version runs; packets waited for it for so many microseconds:
    /// [`ToCell::Replace`].
    Replaced(EntryId, u64),
    /// It does not, and the old one goes on.
    ReplaceFailed(EntryId, Failure),
    /// The new version has been watched, and the one before is let go.
    Kept(EntryId),
    /// The new version trapped at once, and the one before is back.
    PutBack(EntryId, String),
    /// The service has its new level: [`ToCell::Target`].
    Targeted(EntryId),
    /// It has not: a program stays in its lane.
    TargetFailed(EntryId),
    /// Packets carry the new count from now on: [`ToCell::Recount`].
    Recounting(EntryId),
    /// The count is right: [`ToCell::Settle`].
    Settled(EntryId),
    /// The service is gone; its last report.
    Stopped(EntryId, Box<ServiceReport>),
    /// An instance trapped and was replaced: its lane, how, and how often that has happened
    /// since the service was started.
    Trapped(EntryId, u32, String, u64),
    /// A module told the event stream something.
    Event(EntryId, u32, Vec<u8>),
    /// What the module of a service of streams says in its log, without control characters.
    Said(EntryId, String),
    /// What each lane answered to a control message; `None` where there is no hook.
    Answered(EntryId, Vec<Option<i32>>),
    /// The keys of an association are in place, or, with the reason, are none.
    Associated(AssociationId),
    /// Packets call a module that the cell knows no service of: [`ToCell::Called`].
    Calls(Question),
    /// One service.
    Service(EntryId, Box<ServiceReport>),
    /// What sessions used, at most [`SESSION_REPORTS_MAX`] a message.
    Sessions(Vec<SessionReport>),
    /// Ends a report on sessions only: [`ToCell::ReportSessions`]. One that goes on at that time
    /// ends with [`FromCell::Reported`] instead.
    SessionsReported,
    /// What sessions use that reserved no memory, and what one session has: [`ToCell::MemoryOf`].
    MemoryOf(Bytes, Option<(SessionId, Box<Account>)>),
    /// The cell itself; ends a report.
    Reported(Box<CellReport>),
    /// A packet that a capture asked for.
    Tapped(Box<Tapped>),
    /// What there is: [`ToCell::Adopt`].
    Adopted(Adopted),
    /// Something that a daemon before gave the cell. Its descriptor.
    Given(Given),
}

/// Why a service, or a version of one, does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// In words.
    pub reason: String,
    /// Its session has not the memory for it.
    pub is_short: bool,
}

impl Failure {
    /// Returns an error as the daemon is told of it.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let is_short = error.chain().any(|cause| cause.is::<OutOfMemory>());
        Self { reason: error.to_string(), is_short }
    }
}

/// What a capture wants of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapFacts {
    /// Bytes that are kept of each packet.
    pub snap: u32,
    /// What comes by packet ports, as it came.
    pub arriving: bool,
    /// Only what is dropped.
    pub dropped_only: bool,
}

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    /// Where it came in, by a packet port; its outcome, as a place in `bpf_maps::OUTCOMES`.
    Came(u16),
    /// Where it leaves.
    #[default]
    Leaving,
    /// Where its module dropped it.
    Ended,
}

/// A packet that came by a packet port, left the cell, or that a module dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tapped {
    /// The kernel's monotonic clock, in nanoseconds.
    pub time_ns: u64,
    /// Where it leaves; where it came in when it was dropped.
    pub port: PortId,
    /// The service that had it last; none of a frame that a module made.
    pub entry: Option<EntryId>,
    /// The rule that it came by; none of a frame that a module made.
    pub rule: Option<u32>,
    /// Who pays.
    pub session: u16,
    /// What the module said: `pass`, `drop 7`, `trap unreachable` …
    pub verdict: String,
    /// At which of its stations.
    pub seen: Seen,
    /// Its bytes.
    pub length: u32,
    /// The first of them.
    pub bytes: Vec<u8>,
}

impl Tapped {
    /// What a module said, in words: [`Tapped::verdict`].
    #[must_use]
    pub fn words(verdict: Result<Verdict, TrapKind>) -> String {
        match verdict {
            Ok(Verdict::Pass { .. }) => "pass".to_owned(),
            Ok(Verdict::Bounce) => "bounce".to_owned(),
            Ok(Verdict::Redirect { .. }) => "redirect".to_owned(),
            Ok(Verdict::Raise) => "raise".to_owned(),
            Ok(Verdict::Drop { reason }) => format!("drop {reason}"),
            Err(trap) => format!("trap {}", trap.name()),
        }
    }
}

/// What a cell has when another daemon takes it over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Adopted {
    /// [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// What runs, and `bpf_maps::LEVEL_*` of those that can leave user level.
    pub services: Vec<(EntryId, Option<u32>)>,
    /// Messages that follow, each a [`FromCell::Given`].
    pub given: u32,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Given {
    /// The AF_XDP socket of a port's queue.
    Socket(PortId, u32),
    /// The TUN device into the kernel's stack.
    Kernel,
    /// The TAP device of packets from kernel level.
    Up,
}

/// Of these messages. To be raised with each change: a daemon adopts only a cell that it
/// understands.
pub const PROTOCOL_VERSION: u32 = 17;

/// What a service did since it started. Every packet in is in exactly one of
/// the outcomes that follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Packets given to the service.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sent on by their route after `pass`.
    pub forwarded: u64,
    /// Handed to the kernel's stack after `pass`, because only it can route them.
    pub to_kernel: u64,
    /// Sent back by `bounce`.
    pub bounced: u64,
    /// Sent to a named port by `redirect`.
    pub redirected: u64,
    /// Given to the next service of the graph.
    pub passed_on: u64,
    /// Payloads of active packets that the service passed, and that ended there.
    pub consumed: u64,
    /// Dropped by the module, by its own reason.
    pub drop_module: BTreeMap<u16, u64>,
    /// Dropped because the instance trapped on them.
    pub drop_trap: u64,
    /// Forwarded plainly because the lane has no instance.
    pub plain: u64,
    /// Passed, and dropped because a rule of the next stage says so.
    pub drop_rule: u64,
    /// Dropped because the lane has no instance, or the next service is down, and that one's
    /// failure policy is closed.
    pub drop_down: u64,
    /// Dropped because the session's queue was full.
    pub drop_queue: u64,
    /// Dropped because `raise` leads nowhere from here.
    pub drop_raise: u64,
    /// Dropped because the port named by `redirect` is not there.
    pub drop_no_port: u64,
    /// Dropped because they went round and round between cabled ports.
    pub drop_cycle: u64,
    /// Dropped because the transmit ring of the egress port was full.
    pub drop_egress_full: u64,
    /// Dropped because the module left no IP packet that could be routed.
    pub drop_malformed: u64,
    /// Dropped because they are tagged for a VLAN that their port does not have.
    pub drop_vlan: u64,
    /// Dropped because the kernel did not take them.
    pub drop_kernel: u64,
    /// Dropped because the other end of the bridge does not take so long a frame.
    pub drop_too_long: u64,
    /// Frames of the module's own making that were sent.
    pub sent: u64,
    /// Such frames that found no room.
    pub sent_dropped: u64,
    /// Traps by kind.
    pub traps: BTreeMap<String, u64>,
    /// The last trap, in words.
    pub last_trap: Option<String>,
    /// Bytes of linear memory, all lanes.
    pub memory_bytes: u64,
    /// Instances that run now.
    pub lanes_running: u16,
    /// The module's own counters, summed over its lanes.
    pub counters: BTreeMap<String, u64>,
    /// How long its calls took.
    pub call_times: CallTimes,
    /// Of a service of streams, what became of its connections.
    pub streams: Option<StreamReport>,
}

impl ServiceReport {
    /// Packets that ended in a drop.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drop_module.values().sum::<u64>()
            + self.drop_trap
            + self.drop_rule
            + self.drop_down
            + self.drop_queue
            + self.drop_raise
            + self.drop_no_port
            + self.drop_cycle
            + self.drop_egress_full
            + self.drop_malformed
            + self.drop_vlan
            + self.drop_kernel
            + self.drop_too_long
    }

    /// Packets whose end is known: equal to `packets`.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.forwarded
            + self.to_kernel
            + self.bounced
            + self.redirected
            + self.passed_on
            + self.consumed
            + self.plain
            + self.dropped()
    }
}

/// What the cell counts beside its services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellReport {
    /// Packets for a service that is not there; forwarded plainly or dropped.
    pub no_service: u64,
    /// Of them, dropped because they could not be forwarded.
    pub no_service_dropped: u64,
    /// Frames that need more descriptors than a packet may have: dropped.
    pub oversized: u64,
    /// Packets from kernel level, or a packet port, for which there was no frame: dropped.
    pub up_dropped: u64,
    /// Packets that waited to be sent when their egress port vanished: dropped.
    pub egress_gone: u64,
    /// Packets without the front door's metadata: dropped.
    pub no_metadata: u64,
    /// Messages from one module to another that were given to it.
    pub messages_delivered: u64,
    /// Those that were not: left out of a storm, or their receiver was gone, busy or starting.
    pub messages_dropped: u64,
    /// Messages for which there was no receiver.
    pub messages_unheard: u64,
    /// Events and trap notices that were left out of a storm.
    pub notices_dropped: u64,
    /// Packets that captures asked for and that had no room on the way to the daemon.
    pub tapped_lost: u64,
    /// What came for the node's associations.
    pub associations: AssociationReport,
    /// Bytes of memory that sessions use which reserved none.
    pub memory_rest: Bytes,
    /// Free packet frames.
    pub frames_free: u64,
    /// All packet frames.
    pub frames_total: u64,
}

impl CellReport {
    /// Adds what another cell counts.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            no_service: self.no_service + other.no_service,
            no_service_dropped: self.no_service_dropped + other.no_service_dropped,
            oversized: self.oversized + other.oversized,
            up_dropped: self.up_dropped + other.up_dropped,
            egress_gone: self.egress_gone + other.egress_gone,
            no_metadata: self.no_metadata + other.no_metadata,
            messages_delivered: self.messages_delivered + other.messages_delivered,
            messages_dropped: self.messages_dropped + other.messages_dropped,
            messages_unheard: self.messages_unheard + other.messages_unheard,
            notices_dropped: self.notices_dropped + other.notices_dropped,
            tapped_lost: self.tapped_lost + other.tapped_lost,
            associations: self.associations.plus(&other.associations),
            memory_rest: self.memory_rest + other.memory_rest,
            frames_free: self.frames_free + other.frames_free,
            frames_total: self.frames_total + other.frames_total,
        }
    }
}

/// Why bytes were no message: the two ends are of different versions.
#[derive(Debug, thiserror::Error)]
#[error("a message between daemon and cell cannot be read: {0}")]
pub struct ProtocolError(String);

/// Encodes a message.
///
/// # Errors
/// When it cannot be represented, which none of these types can cause.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ProtocolError> {
    postcard::to_stdvec(message).map_err(|error| ProtocolError(error.to_string()))
}

/// Decodes a message.
///
/// # Errors
/// When the bytes are not exactly one message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ProtocolError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(ProtocolError(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(ProtocolError(error.to_string())),
    }
}
