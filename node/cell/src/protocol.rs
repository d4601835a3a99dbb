//! Messages between the daemon and a cell: [`ToCell`] and [`FromCell`], one value for each message.

mod associations;
mod sessions;
mod streams;
#[cfg(test)]
mod tests;

pub use associations::{Answer, AssociationReport, Question};
pub use sessions::{DEVIATION_BOUNDS, DEVIATIONS, SESSION_REPORTS_MAX, SessionReport, SessionSpec};
pub use streams::{CodecSpec, StreamReport, StreamSpec};

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

/// Messages from the daemon to a cell. File descriptors travel beside the message, in the order
/// that the variant names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToCell {
    /// TUN device through which the cell hands packets to the kernel's stack. Descriptor: the
    /// device.
    Kernel,
    /// Replacement for [`ToCell::Kernel`] on a machine without TUN. Descriptor: a packet socket;
    /// frames that it sends to [`KERNEL_MAC`] arrive by a device of the node.
    KernelFrames,
    /// Receives and sends on one queue of a port. Descriptor: a fresh AF_XDP socket.
    AddPort(CellPort),
    /// New MAC address, MTU or cabling of a port's device.
    ChangePort(CellPort),
    /// Closes the sockets of a port: its device is gone, or is no longer part of the node.
    RemovePort(PortId),
    /// Receives and sends by packet sockets; `Some` is the port at the other end of the bridge.
    /// Descriptors: the port's socket, and one whose frames arrive by the port for the kernel.
    AddFrames(CellPort, Option<PortId>),
    /// Keeps the frames of a packet port from the kernel for as long as the cell runs. Descriptor:
    /// the program's link, which ends with the cell.
    DivertedPort(PortId),
    /// New rules of packet ports, and their generation. Descriptor: sealed memory with the rules.
    Rules(u64),
    /// Counters for the frames of packet ports. Descriptor: memory shared with the daemon.
    Counts,
    /// Device by which packets come up from kernel level. Descriptor: a TAP device.
    Tap,
    /// Lanes of services that can leave user level. Descriptor: the front door's map.
    Lanes,
    /// Actions of rules, for packets that several rules match. Descriptor: the front door's map.
    RuleFacts,
    /// Queue credits of all sessions; comes before any session. Descriptor: the front door's map.
    QueueCredits,
    /// Accounts of port shares. Descriptor: the front door's map.
    PortShares,
    /// Means to ask by which port the kernel would send a packet, before the kernel gets the
    /// packet. Descriptors: the device of [`ToCell::Tap`], and the front door's map of answers.
    Answers,
    /// Account that a session pays for what it sends by a port; `None`: the account of all sessions
    /// without a share.
    SetPortShare(PortId, SessionId, Option<u32>),
    /// Announces that one of the next two messages comes within a millisecond: the cell polls for
    /// it instead of waiting in the kernel.
    Expect,
    /// Memory that all sessions have together.
    Memory(Bytes),
    /// Reservation of a session; sent before anything of the session runs, and when it changes.
    Session(Box<SessionSpec>),
    /// Asks for the memory in use without a reservation, and by this session. Answered by
    /// [`FromCell::MemoryOf`].
    MemoryOf(Option<SessionId>),
    /// Removes the session of this number.
    ForgetSession(SessionId),
    /// Starts a service. Descriptors: its code, in sealed memory; for a service that can leave user
    /// level also the arena that is its memory, the instance block, and the ring of its records.
    Start(Box<ServiceSpec>),
    /// Starts a service of streams. Descriptors: its code, in sealed memory; a descriptor that
    /// steers connections to the listeners as long as it is open; the listeners, for IPv4 and,
    /// where there is one, for IPv6.
    StartStreams(Box<StreamSpec>),
    /// Replaces a service of streams by another version, which takes the connections that come from
    /// now on. Descriptor: its code. Answered by [`FromCell::Replaced`] or
    /// [`FromCell::ReplaceFailed`].
    ReplaceStreams(Box<StreamSpec>),
    /// Unconnected sockets for outgoing connections: answers [`FromCell::WantsSockets`].
    Sockets {
        /// True for IPv6, false for IPv4.
        v6: bool,
    },
    /// Codecs that are available to streams.
    Codecs(CodecSpec),
    /// Start of the codec with this number, and its process id: answers [`FromCell::WantsCodec`].
    /// Descriptor: a socket connected to the codec's input and output.
    CodecStarted(u64, u32),
    /// End of a codec, or its failure to start: number, reason (empty after a regular end), and
    /// processor time used.
    CodecEnded(u64, String, Nanos),
    /// Replaces a service by another version, with its state. Descriptors: as for
    /// [`ToCell::Start`].
    Replace(Box<ServiceSpec>, StateTransfer),
    /// Confirms [`FromCell::Replaced`] or [`FromCell::RolledBack`]: later messages about the service
    /// mean the version that runs.
    VersionKnown(EntryId),
    /// Level (`bpf_maps::LEVEL_*`) at which a service's packets shall be handled, from the first
    /// packet for which that is possible.
    Target(EntryId, u32),
    /// New targets of the edges out of a service.
    Edges(EntryId, [Edge; EDGES_MAX]),
    /// Failure policy of a service: true drops the packets that it cannot handle, false forwards
    /// them plainly.
    Closed(EntryId, bool),
    /// Restarts the count of a service's packets: some were lost on their way up.
    Recount(EntryId),
    /// States that every packet of the service from before [`ToCell::Recount`] is in a ring by now,
    /// or lost.
    Settle(EntryId),
    /// Keys of an association, encoded by [`association::Traffic::to_bytes`]. Answered by
    /// [`FromCell::Associated`].
    Associate(SecretBytes),
    /// Ends an association.
    Disassociate(AssociationId),
    /// Service that active packets call: answers the cell's [`FromCell::Call`].
    CallAnswer(Question, Answer),
    /// Stops a service. Answered by [`FromCell::Stopped`] with its last report.
    Stop(EntryId),
    /// Delivers a control message to every lane of a service.
    Message(EntryId, Vec<u8>),
    /// Asks for reports on every service, every session and the cell; they end with
    /// [`FromCell::Reported`].
    Report,
    /// Asks for reports on the sessions that used something since their last report
    /// ([`FromCell::Sessions`]); they end with [`FromCell::SessionsReported`].
    ReportSessions,
    /// Starts a capture, or ends it with `None`.
    Capture(Option<CaptureSpec>),
    /// First message of a daemon that has not started this cell. It lists the services that the
    /// daemon knows; the cell removes all others. Answered by [`FromCell::Adopted`].
    Adopt(Vec<EntryId>),
}

/// Key material that only the two processes know: zeroed when dropped, never printed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretBytes(pub Zeroizing<Vec<u8>>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secret bytes", self.0.len())
    }
}

/// MAC address of the device that takes frames into the kernel's stack.
pub const KERNEL_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Transfer of a service's state to its new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateTransfer {
    /// Memory and globals are taken over as they are.
    Memory,
    /// The old version writes its state with `state_out`, the new one reads it with `state_in`.
    Hooks,
    /// The new version begins empty.
    Empty,
}

/// Bytes of a frame beyond the L3 MTU: an Ethernet header with two VLAN tags.
pub const HEADER_LENGTH_MAX: u32 = 22;

/// Port, and one queue of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellPort {
    /// Number of the port.
    pub port: PortId,
    /// Name of the port, for `port_find`.
    pub name: String,
    /// Interface index of the device.
    pub ifindex: u32,
    /// Number of the receive queue.
    pub queue: u32,
    /// MAC address of the device.
    pub mac: [u8; 6],
    /// L3 MTU in bytes.
    pub mtu: u32,
    /// Set if packets are IP packets without an Ethernet header.
    pub raw: bool,
    /// Set if what leaves by the port can arrive by a port of the same node.
    pub cabled: bool,
    /// Set if the front door runs in the driver: frames that the device receives otherwise do not
    /// pass it.
    pub in_driver: bool,
    /// Rate at which the port sends, if it is known: port shares are parts of it.
    pub rate: Option<BitsPerSecond>,
}

/// A service as a cell runs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Number to which the front door sends its packets.
    pub entry: EntryId,
    /// Name of the service.
    pub name: String,
    /// Session that pays.
    pub session: SessionId,
    /// Declared window in bytes.
    pub window: u32,
    /// Initial memory of each lane, in pages of 64 KiB.
    pub memory_pages_min: u32,
    /// Memory limit of each lane, in pages of 64 KiB.
    pub memory_pages_max: u32,
    /// Number of lanes; a flow's packets always meet the same one.
    pub lanes: u16,
    /// Pools, each for a part of the events; empty if each lane is called for all of them.
    pub pools: Vec<Pool>,
    /// Fields that tell flows from each other; empty: the hash in the metadata does.
    pub flows_by: Vec<KeyField>,
    /// Period of `on_timer`, in milliseconds.
    pub timer_ms: Option<u32>,
    /// Set if a call on a packet is so short that it need not be preemptible (`abi::check::bounded`).
    pub brief: bool,
    /// Parameters by name, each encoded as its type says.
    pub parameters: BTreeMap<String, Vec<u8>>,
    /// Texts for the numbers with which `on_start` refuses parameters.
    pub refusals: BTreeMap<u16, String>,
    /// Host functions that are linked.
    pub functions: HostFunctions,
    /// Failure policy: packets that the service cannot handle are dropped if set, else forwarded
    /// plainly.
    pub closed: bool,
    /// Memory shared with the kernel, for a service that can leave user level.
    pub shared: Option<ArenaSpec>,
    /// Bytes that the daemon keeps for the service.
    pub kept: RetainedSizes,
}

impl ServiceSpec {
    /// Returns the kind of memory for which the code was compiled.
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

/// Bytes that the daemon keeps for a service, charged to its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedSizes {
    /// Machine code.
    pub code: u32,
    /// Module as it was uploaded.
    pub module: u32,
}

/// Memory that a service shares with programs in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaSpec {
    /// Address of the arena, the same in every process.
    pub address: u64,
    /// Size of the arena in pages of 4 KiB, which the cell populates.
    pub arena_pages: u64,
    /// Kernel's id of the arena, which no other map gets as long as it is mapped.
    pub number: u32,
    /// Set if another instance used the arena before: memory and ring must be emptied.
    pub used: bool,
    /// Set if the linear memory begins smaller than its maximum.
    pub grows: bool,
    /// Number of the module's globals, for which the instance block has space.
    pub globals: u32,
    /// Size in bytes of the ring in which programs leave events and frames.
    pub ring_length: u32,
}

/// Largest arena that is kept and emptied for the next start of the same module, in pages of 4 KiB:
/// 1 MiB, which takes a tenth of a millisecond to empty.
pub const SPARE_PAGES_MAX: u64 = 256;

impl ArenaSpec {
    /// Returns the kind of memory for which the code was compiled.
    #[must_use]
    pub const fn kind(self) -> engine::MemoryKind {
        if self.grows { engine::MemoryKind::SharedGrowing } else { engine::MemoryKind::SharedFixed }
    }
}

/// Messages from a cell to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromCell {
    /// Queue of a port that is bound: packets may arrive.
    PortReady(PortId, u32),
    /// Queue of a port that cannot be used, with the reason.
    PortFailed(PortId, u32, String),
    /// Every lane of the service started.
    Started(EntryId),
    /// The service did not start.
    StartFailed(EntryId, Failure),
    /// Request for unconnected sockets: how many for IPv4, and how many for IPv6.
    WantsSockets([u16; 2]),
    /// Request for a codec of this number, with its parameters (`mpeg2::TranscodeParams`).
    WantsCodec(u64, String),
    /// Codec, by its number, that the cell no longer uses.
    CodecUnwanted(u64),
    /// Success of [`ToCell::Replace`]: the new version runs. Packets waited for it for this many
    /// microseconds.
    Replaced(EntryId, u64),
    /// Failure of [`ToCell::Replace`]: the old version goes on.
    ReplaceFailed(EntryId, Failure),
    /// End of the new version's probation: the old one is removed.
    VersionConfirmed(EntryId),
    /// Return of the old version, with the reason: the new one trapped during its probation.
    RolledBack(EntryId, String),
    /// Success of [`ToCell::Target`]: the service runs at its new level.
    Targeted(EntryId),
    /// Failure of [`ToCell::Target`]: a program stays in its lane.
    TargetFailed(EntryId),
    /// Start of the new count: packets carry it from now on ([`ToCell::Recount`]).
    Recounting(EntryId),
    /// Completion of [`ToCell::Settle`]: the count is right.
    Settled(EntryId),
    /// Stopped service, with its last report.
    Stopped(EntryId, Box<ServiceReport>),
    /// Trap of an instance, which was replaced: service, lane, kind of trap, and number of traps
    /// since the service was started.
    Trapped(EntryId, u32, String, u64),
    /// Event that a module sent: service, number, payload.
    Event(EntryId, u32, Vec<u8>),
    /// Log line of a stream module, without control characters.
    Log(EntryId, String),
    /// Answers of the lanes to a control message; `None` for a lane whose module has no such hook.
    Answered(EntryId, Vec<Option<i32>>),
    /// Outcome of [`ToCell::Associate`]: the keys are in place, or were refused for this reason.
    Associated(AssociationId),
    /// Active packets call a module of which the cell knows no service. Answered by
    /// [`ToCell::CallAnswer`].
    Call(Question),
    /// Report on one service.
    Service(EntryId, Box<ServiceReport>),
    /// Usage of sessions, at most [`SESSION_REPORTS_MAX`] a message.
    Sessions(Vec<SessionReport>),
    /// End of a report on sessions only ([`ToCell::ReportSessions`]). If a full report is under
    /// way, [`FromCell::Reported`] ends both.
    SessionsReported,
    /// Memory used by sessions without a reservation, and the account of one session: answers
    /// [`ToCell::MemoryOf`].
    MemoryOf(Bytes, Option<(SessionId, Box<Account>)>),
    /// Report on the cell itself; the last message of a report.
    Reported(Box<CellReport>),
    /// Packet that a capture asked for.
    Captured(Box<CapturedFrame>),
    /// Inventory of the cell: answers [`ToCell::Adopt`].
    Adopted(Adopted),
    /// Resource that an earlier daemon gave to the cell. Its descriptor comes with the message.
    Returned(ReturnedFd),
}

/// Longest reason of a failure in bytes, without the `…` of one that was cut. Names that a module
/// chose may be in it, and it has to fit into one message.
pub const REASON_LENGTH_MAX: usize = 8 << 10;

/// Cause for which a service, or a version of it, does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Reason in words.
    pub reason: String,
    /// Set if the session lacks the memory for it.
    pub is_short: bool,
}

impl Failure {
    /// Converts an error for the daemon.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let is_short = error.chain().any(|cause| cause.is::<OutOfMemory>());
        let mut reason = error.to_string();
        if reason.len() > REASON_LENGTH_MAX {
            reason.truncate(reason.floor_char_boundary(REASON_LENGTH_MAX));
            reason.push('…');
        }
        Self { reason, is_short }
    }
}

/// Settings of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// Number of bytes kept of each packet.
    pub snap: u32,
    /// Set to capture what packet ports receive, unchanged.
    pub arriving: bool,
    /// Set to capture only packets that are dropped.
    pub dropped_only: bool,
}

/// Point of the path at which a packet was captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CapturePoint {
    /// Arrival by a packet port, with the index of its outcome in `bpf_maps::OUTCOMES`.
    Arrival(u16),
    /// Departure from the cell.
    #[default]
    Departure,
    /// Drop by the packet's module.
    End,
}

/// Captured packet: one that arrived by a packet port, left the cell, or was dropped by a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedFrame {
    /// Time of capture by the kernel's monotonic clock, in nanoseconds.
    pub time_ns: u64,
    /// Egress port; the arrival port of a packet that was dropped.
    pub port: PortId,
    /// Last service that handled it; `None` for a frame that a module made.
    pub entry: Option<EntryId>,
    /// Rule that it matched; `None` for a frame that a module made.
    pub rule: Option<u32>,
    /// Number of the session that pays.
    pub session: u16,
    /// Decision of the module: `pass`, `drop 7`, `trap unreachable` …
    pub verdict: String,
    /// Point of the path at which it was captured.
    pub seen: CapturePoint,
    /// Length of the packet in bytes.
    pub length: u32,
    /// First bytes of the packet.
    pub bytes: Vec<u8>,
}

impl CapturedFrame {
    /// Returns the text of a module's decision, for [`CapturedFrame::verdict`].
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

/// Inventory of a cell that another daemon takes over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Adopted {
    /// [`PROTOCOL_VERSION`] of the cell.
    pub protocol: u32,
    /// Services that run, with the level (`bpf_maps::LEVEL_*`) of those that can leave user level.
    pub services: Vec<(EntryId, Option<u32>)>,
    /// Number of [`FromCell::Returned`] messages that follow.
    pub given: u32,
}

/// Kind of a descriptor that a cell gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReturnedFd {
    /// AF_XDP socket of a port's queue.
    Socket(PortId, u32),
    /// TUN device into the kernel's stack.
    Kernel,
    /// TAP device of packets from kernel level.
    Tap,
}

/// Version of these messages. It must be raised with each change: a daemon adopts only a cell of
/// the same version.
pub const PROTOCOL_VERSION: u32 = 17;

/// Counters of a service since it started. Every packet counted in `packets` is in exactly one of
/// the outcomes that follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Packets that the service was called for.
    pub packets: u64,
    /// Bytes of those packets.
    pub bytes: u64,
    /// Sent on by their route after `pass`.
    pub forwarded: u64,
    /// Handed to the kernel's stack after `pass`, because only it can route them.
    pub to_kernel: u64,
    /// Sent back by `bounce`.
    pub bounced: u64,
    /// Sent to a named port by `redirect`.
    pub redirected: u64,
    /// Handed to the next service of the graph.
    pub passed_on: u64,
    /// Payloads of active packets that the service passed and that ended in it.
    pub consumed: u64,
    /// Dropped by the module, by its own reason.
    pub drop_module: BTreeMap<u16, u64>,
    /// Dropped because the instance trapped on them.
    pub drop_trap: u64,
    /// Forwarded plainly because the lane had no instance.
    pub plain: u64,
    /// Passed by the module, then dropped by a rule of the next stage.
    pub drop_rule: u64,
    /// Dropped because the lane had no instance, or the next service was down, under a closed
    /// failure policy.
    pub drop_down: u64,
    /// Dropped because the session's queue was full.
    pub drop_queue: u64,
    /// Dropped because `raise` has no higher level to go to.
    pub drop_raise: u64,
    /// Dropped because the port named by `redirect` does not exist.
    pub drop_no_port: u64,
    /// Dropped because they circulated between cabled ports.
    pub drop_cycle: u64,
    /// Dropped because the transmit ring of the egress port was full.
    pub drop_egress_full: u64,
    /// Dropped because the module left no IP packet that can be routed.
    pub drop_malformed: u64,
    /// Dropped because they carry a VLAN tag that their port does not have.
    pub drop_vlan: u64,
    /// Dropped because the kernel refused them.
    pub drop_kernel: u64,
    /// Dropped because the other end of the bridge cannot take a frame of this length.
    pub drop_too_long: u64,
    /// Frames made by the module that were sent.
    pub sent: u64,
    /// Frames made by the module that were dropped for lack of space.
    pub sent_dropped: u64,
    /// Traps by kind.
    pub traps: BTreeMap<String, u64>,
    /// Text of the last trap.
    pub last_trap: Option<String>,
    /// Linear memory of all lanes, in bytes.
    pub memory_bytes: u64,
    /// Instances running now.
    pub lanes_running: u16,
    /// Counters that the module defines, summed over its lanes.
    pub counters: BTreeMap<String, u64>,
    /// Durations of its calls.
    pub call_times: CallTimes,
    /// Connections of a service of streams; `None` for a packet service.
    pub streams: Option<StreamReport>,
}

impl ServiceReport {
    /// Returns the number of packets that ended in a drop.
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

    /// Returns the number of packets with a counted outcome: equal to `packets`.
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

/// Counters of a cell that belong to no service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellReport {
    /// Packets for a service that does not exist; forwarded plainly or dropped.
    pub no_service: u64,
    /// Packets counted in `no_service` that were dropped because they could not be forwarded.
    pub no_service_dropped: u64,
    /// Frames dropped because they need more descriptors than a packet may have.
    pub oversized: u64,
    /// Packets from kernel level or a packet port, dropped because no frame memory was free.
    pub up_dropped: u64,
    /// Packets dropped because their egress port vanished while they were queued.
    pub egress_gone: u64,
    /// Packets dropped because they lack the front door's metadata.
    pub no_metadata: u64,
    /// Messages between modules that were delivered.
    pub messages_delivered: u64,
    /// Messages between modules that were dropped: rate limited, or their receiver was gone, busy
    /// or starting.
    pub messages_dropped: u64,
    /// Messages between modules for which no receiver exists.
    pub messages_unheard: u64,
    /// Events and trap notices dropped by the rate limit.
    pub notices_dropped: u64,
    /// Captured packets dropped because the socket to the daemon was full.
    pub tapped_lost: u64,
    /// Counters of the node's associations.
    pub associations: AssociationReport,
    /// Memory used by sessions that reserved none.
    pub memory_rest: Bytes,
    /// Number of free packet frames.
    pub frames_free: u64,
    /// Number of all packet frames.
    pub frames_total: u64,
}

impl CellReport {
    /// Returns the sum of this report and another cell's.
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

/// The bytes are no message: the two ends are of different versions.
#[derive(Debug, thiserror::Error)]
#[error("a message between daemon and cell cannot be read, as between two versions of tam: {0}")]
pub struct ProtocolError(String);

/// Encodes a message.
///
/// # Errors
/// The message cannot be represented, which none of these types can cause.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ProtocolError> {
    postcard::to_stdvec(message).map_err(|error| ProtocolError(error.to_string()))
}

/// Decodes a message.
///
/// # Errors
/// The bytes are not exactly one message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ProtocolError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(ProtocolError(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(ProtocolError(error.to_string())),
    }
}
