//! Records of services below user level: lanes, hand-overs, counters, accounts and queues.
//!
//! Every struct here is one of `levels/bpf/c/tam_maps.h`, with the same name, layout and meaning;
//! the header draws each one and the protocol between its writers. Writers are the front door (in
//! the driver and at tc), the cell, which maps the records, and the daemon. Fields of a C enum are
//! integers here, since another program writes them.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{EDGES_MAX, PacketMeta};

/// `enum tam_level`: in the cell.
pub const LEVEL_USER: u32 = 0;
/// `enum tam_level`: in the driver.
pub const LEVEL_NIC: u32 = 1;
/// `enum tam_level`: in the kernel's stack, at tcx ingress.
pub const LEVEL_KERNEL: u32 = 2;

/// `enum tam_path`: to the module at `nic`, or to the cell's socket.
pub const PATH_DIRECT: u32 = 0;
/// `enum tam_path`: to tc, and from there to the module or to the cell's TAP device.
pub const PATH_TC: u32 = 1;

/// `enum tam_over`: the budget below user level is not used up.
pub const OVER_NOT: u8 = 0;
/// `enum tam_over`: the budget is used up, and packets are dropped.
pub const OVER_DROP: u8 = 1;
/// `enum tam_over`: the budget is used up, and packets go to user level.
pub const OVER_RAISE: u8 = 2;

/// Lane of an entry (`struct tam_lane`): level at which its packets meet its module's memory, and
/// counts of those on their way there.
///
/// The first cache line is read for every packet of the entry, the second one for those that go by
/// tc. No packet overtakes another when the lane moves; the header has the protocol.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Lane {
    /// Packets given to user level. Written by the front door.
    pub sent_up: u64,
    /// Packets that have left user level. Written by the cell.
    pub left: u64,
    /// `sent_up` at the beginning of `epoch_seen`. Written by the front door.
    pub epoch_start: u64,
    /// Epoch that packets carry. Written by the front door.
    pub epoch_seen: u32,
    /// Epoch that packets are to carry, modulo 256. Written by the cell.
    pub epoch: u32,
    /// `LEVEL_*` that packets go to. Written by the front door.
    pub level: u32,
    /// `LEVEL_*` that packets are to go to. Written by the cell and the daemon.
    pub target: u32,
    /// Index of the module's program, at `nic` and at `kernel`. Written by the daemon, as are the
    /// next three.
    pub program: u32,
    /// Bytes of the packet's head that the module sees.
    pub window: u16,
    /// Edges that lead to an entry: bit n of edge n.
    pub edges: u8,
    /// State of the budget below user level (`OVER_*`).
    pub over: u8,
    /// 1 + the number of the CPU that is in the lane; 0 when none is. Written by the front door.
    pub busy: u32,
    /// CPU that was in the lane last. Written by the front door.
    pub cpu: u32,
    /// Cause for which the module is not run: a trap's code, [`NOT_A_VERDICT`], or 0. Written by
    /// the front door and the daemon.
    pub trapped: u32,
    /// 1 when the module has run below user level since the cell wrote 0.
    pub ran: u32,
    /// Packets given to the stack on their way to tc. Written by the front door, as are the next
    /// six.
    pub sent_tc: u64,
    /// Packets that arrived at tc, or are lost.
    pub left_tc: u64,
    /// Packets of the `tc_epoch` before that have not arrived.
    pub tc_awaited: u64,
    /// Jiffies at the beginning of `tc_epoch`, low half.
    pub tc_began: u32,
    /// Jiffies when nothing was on its way to tc for the last time, low half.
    pub tc_drained: u32,
    /// `PATH_*` that packets take from XDP on.
    pub path: u32,
    /// Epoch that packets to tc carry, modulo 256.
    pub tc_epoch: u32,
    /// Entry at the end of each edge, or [`NEXT_DOWN`]. Written by the daemon, as are the next
    /// five.
    pub next: [u16; EDGES_MAX],
    /// Not 0 when packets are dropped while the service is down.
    pub closed: u32,
    /// Session that pays.
    pub session: u32,
    /// Not 0: packets for user level are dropped until all that were sent have left it.
    pub held: u32,
    /// Index of the entry's account, if `beyond` is not 0.
    pub account: u16,
    /// Treatment of packets while that account is empty (`OVER_*`); 0 when the entry has none.
    pub beyond: u16,
}

/// [`Lane::next`]: the service there is down, and its failure policy is closed.
pub const NEXT_DOWN: u16 = 0xffff;

/// [`Lane::trapped`]: `on_packet` returned a value that is no verdict.
pub const NOT_A_VERDICT: u32 = 0xffff_fffe;
/// [`HandOver::trapped`]: `on_packet` was not called.
pub const NOT_RUN: u32 = 0xffff_ffff;
/// [`HandOver::trapped`]: `on_packet` was not called, for the budget below user level is used up.
pub const OVER_BUDGET: u32 = 0xffff_fffd;

/// Arguments and result of a module's program (`struct tam_hand_over`): one for each entry,
/// written only by the CPU in its lane. The first 64 bytes are the metadata of the packet ABI, as
/// the module reads them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct HandOver {
    /// Bytes of the whole packet.
    pub packet_length: u32,
    /// Bytes of the packet in the window.
    pub window_length: u32,
    /// Offset of the IP header, in bytes.
    pub l3_offset: u16,
    /// Offset of the L4 header, in bytes, or 0xffff.
    pub l4_offset: u16,
    /// 1 when the packet begins with an Ethernet header.
    pub begins_with: u8,
    /// IP version: 4 or 6.
    pub ip_version: u8,
    /// Protocol number after IP and its extension headers.
    pub protocol: u8,
    /// Bit 0: a fragment; bit 1: not the first one.
    pub flags: u8,
    /// Arrival port.
    pub port: u16,
    /// Session that pays.
    pub session: u16,
    /// Rule that matched.
    pub rule: u32,
    /// Hash of the flow, equal for both directions.
    pub flow_hash: u32,
    /// Always 0: below user level an entry has one lane.
    pub lane: u32,
    /// Coarse clock, in milliseconds.
    pub now_ms: u64,
    /// Mark of the module before in the graph; zero for the first one.
    pub mark: [u64; 2],
    /// `LEVEL_*`. The ABI has one byte here, the others are zero.
    pub level: u64,
    /// Value that `on_packet` returned, when `trapped` is 0.
    pub verdict: u32,
    /// 0, a trap's code, [`NOT_RUN`] or [`OVER_BUDGET`].
    pub trapped: u32,
    /// Zero bytes added behind a short packet.
    pub padded: u32,
    /// Always 0.
    pub zero: u32,
    /// Fuel that the entry's modules have used for all packets.
    pub fuel_used: u64,
    /// Part of `fuel_used` that the lane's account has paid.
    pub fuel_charged: u64,
    /// Always 0.
    pub unused: [u64; 4],
}

/// State of the packet between the two halves of the front door (`struct tam_passage`), before and
/// behind a module's program: one for each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Passage {
    /// Route of the packet.
    pub meta: PacketMeta,
    /// MAC address of the egress port.
    pub own_mac: [u8; 6],
    /// Not 0 when another CPU was in the lane before.
    pub moved: u16,
    /// L3 MTU of the route, in bytes; at tc the length of the IP packet as it arrived.
    pub mtu: u32,
    /// Bytes of the frame as it arrived.
    pub length: u32,
    /// Index of the module's program.
    pub program: u32,
    /// Bytes of the frame as the module got it.
    pub bytes: u32,
    /// Mark of the module before; it travels with the packet if `meta` has `META_MARK`.
    pub mark: [u64; 2],
    /// Jiffy of `clock_ms`.
    pub clock_jiffies: u64,
    /// Time that was last computed, in milliseconds.
    pub clock_ms: u64,
    /// Session whose share of the egress port pays.
    pub payer: u32,
    /// Outcome as which the kernel gets a packet whose rule names a port; 0 when it does not.
    pub kernel: u32,
}

/// Counters of an entry below user level, on one CPU (`struct tam_service_stats`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ServiceStats {
    /// Packets given to the module's program, or brought to its lane and not run there: the sum
    /// of all from `forwarded` to `drop_share`.
    pub packets: u64,
    /// Bytes of `packets`, as they arrived.
    pub bytes: u64,
    /// Packets forwarded by their route.
    pub forwarded: u64,
    /// Packets left to the kernel, which routes or answers.
    pub to_kernel: u64,
    /// Packets sent back out of their arrival port.
    pub bounced: u64,
    /// Packets sent out of the port that the module named.
    pub redirected: u64,
    /// Packets given to the next entry of the graph, which counts them, too.
    pub passed_on: u64,
    /// Packets given to user level, by the module or from tc in its place. User level counts them,
    /// too.
    pub raised: u64,
    /// Packets not run, or raised without a cell, and treated as if there were no rule.
    pub plain: u64,
    /// Packets dropped by the module's verdict.
    pub drop_module: u64,
    /// Packets dropped because the module trapped, or returned no verdict.
    pub drop_trap: u64,
    /// Packets dropped because there is no such port to redirect to.
    pub drop_no_port: u64,
    /// Packets dropped because they are longer than that port takes.
    pub drop_too_long: u64,
    /// Packets dropped because they could not be forwarded as the module left them.
    pub drop_malformed: u64,
    /// Packets dropped because the module had used up its budget.
    pub drop_budget: u64,
    /// Packets dropped because the service, or the next one, is down and its failure policy is
    /// closed.
    pub drop_down: u64,
    /// Packets passed by the module, and dropped by a rule of the next stage.
    pub drop_rule: u64,
    /// Packets dropped because another CPU did not leave the lane in time.
    pub drop_lane: u64,
    /// Packets dropped because they circled between cabled ports.
    pub drop_cycle: u64,
    /// Packets raised, and dropped because their session's queue was full.
    pub drop_queue: u64,
    /// Packets dropped because their session's share of the egress port was used up.
    pub drop_share: u64,
    /// Packets that found the lane at another CPU than the last one. Not part of `packets`.
    pub handed_over: u64,
    /// Packets in `drop_module` whose reason has no counter of its own.
    pub reasons_lost: u64,
    /// Bytes of the packets in `raised`, as they arrived.
    pub raised_bytes: u64,
    /// Bytes of the packets in `drop_budget`.
    pub drop_budget_bytes: u64,
}

/// Drop reason of an entry, as a key of counters (`struct tam_reason_key`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct ReasonKey {
    /// Entry whose module dropped the packet.
    pub entry: u16,
    /// Reason that the module gave.
    pub reason: u16,
}

/// Accounts that there are: one for each session of a node.
pub const ACCOUNTS_MAX: usize = 16_384;
/// Power of two of the parts of a unit of fuel, or of a byte, in which accounts count.
pub const FUEL_SHIFT: u32 = 16;
/// Jiffies for which an account is filled at most at once: beyond, the sum could overflow.
pub const FILL_MAX: u64 = 1 << 14;

/// Token bucket from which services pay for fuel below user level (`struct tam_account`), in parts
/// of a unit of fuel ([`FUEL_SHIFT`]).
///
/// Each packet in a lane takes what the packets before it used; the first one in a jiffy fills the
/// account. Modules are not run while `left` is 0 or less.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Account {
    /// Balance; a debt below zero. Front door and cell only add to it.
    pub left: i64,
    /// Jiffy until which the account is filled. Written by the front door.
    pub ticked: u64,
    /// Parts that each jiffy adds. Written by the daemon.
    pub per_tick: u64,
    /// Parts that the account holds at most. Written by the daemon.
    pub full: u64,
    /// Bytes sent without waiting: straight from `nic`, and from `kernel`. Of a [`PortShare`] only.
    pub sent: [u64; 2],
    /// Packets of `sent`.
    pub packets: u64,
    /// Always 0.
    pub unused: u64,
}

/// Number of accounts of port shares; the first ones, by the number of the port, are for all
/// sessions that have no share of it.
pub const LINES_MAX: usize = crate::PORTS_MAX + 16_384;
/// Session whose services pay for no port.
pub const SESSION_SYSTEM: u16 = 0;
/// Overhead of each frame on an Ethernet in bytes: preamble, frame check sequence and inter-frame
/// gap.
pub const ETHERNET_REST: u64 = 24;

/// Account of one session's share of a port (`struct tam_port_share`), and its packets of `kernel`
/// that wait in the cell: `up[0] + up[1] - gone` of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PortShare {
    /// Bytes that the session may still send, in parts of a byte ([`FUEL_SHIFT`]).
    pub account: Account,
    /// Packets of modules at `kernel` that went to wait in the cell, by the last bit of the epoch.
    /// Written by the front door.
    pub up: [u64; 2],
    /// Packets dropped: at `nic` as the share was used up, at `kernel` as the queue was full.
    /// Written by the front door.
    pub dropped: [u64; 2],
    /// Packets in `up` that the device has taken, less those of user level that wait. Written by
    /// the cell, as are the next two.
    pub gone: u64,
    /// Bytes of packets of modules at `kernel` that waited, and left.
    pub sent_up: u64,
    /// Bytes of packets of user level that left.
    pub sent_above: u64,
    /// Always 0.
    pub unused: u64,
}

/// Number of queue records: one for each session of a node, and [`ROOM_SHARED`].
pub const ROOMS_MAX: usize = 16_385;
/// Number of the record in which the packets of all sessions without a queue count, too.
pub const ROOM_SHARED: usize = 16_384;
/// Bytes of one frame of packet memory.
pub const FRAME_MEMORY: usize = 4096;
/// Bytes of a packet that one frame of packet memory holds.
pub const FRAME_BYTES: usize = 3840;
/// Bytes that [`QueueCredits::head`] holds: Ethernet with a tag, IPv6 and UDP.
pub const HEAD_BYTES: usize = 66;

/// [`QueueCredits::head_state`]: no module watches the queue.
pub const HEAD_NOT: u32 = 0;
/// [`QueueCredits::head_state`]: the next packet that is dropped leaves its head. 2 while a CPU
/// writes it.
pub const HEAD_WANTED: u32 = 1;
/// [`QueueCredits::head_state`]: the head is complete, and the cell may read it.
pub const HEAD_THERE: u32 = 3;

/// Queue credits of a session for packets on their way to user level and there (`struct
/// tam_room`), in bytes of packet memory: `sent[0] + sent[1] - done` of `most` are taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct QueueCredits {
    /// Bytes that may wait; with 0 nothing is counted. Written by the cell.
    pub most: u64,
    /// Bytes given to user level, by the last bit of the epoch. Written by the front door.
    pub sent: [u64; 2],
    /// Packets dropped for lack of credit. Written by the front door.
    pub dropped: u64,
    /// Epoch in which packets count, of which the last bit chooses `sent`. Written by the cell.
    pub epoch: u32,
    /// Not 0 when packets count in [`ROOM_SHARED`], too. Written by the cell.
    pub shared: u32,
    /// Always 0.
    pub unused: [u64; 3],
    /// Bytes that the cell has released. Written by the cell, in a cache line of its own.
    pub done: u64,
    /// Always 0.
    pub unused_done: [u64; 7],
    /// `HEAD_*`: state of `head`. Written by both.
    pub head_state: u32,
    /// Bytes in `head`. Written by the front door.
    pub head_length: u16,
    /// Beginning of a packet that was dropped for lack of credit. Written by the front door.
    pub head: [u8; HEAD_BYTES],
    /// Always 0.
    pub unused_end: [u8; 56],
}

impl Default for QueueCredits {
    fn default() -> Self {
        Self::zeroed()
    }
}

/// Bytes of a cache line of all CPUs that the node runs on.
const CACHE_LINE: usize = 64;

const _: () = {
    assert!(size_of::<Lane>() == 2 * CACHE_LINE);
    assert!(offset_of!(Lane, sent_tc) == CACHE_LINE, "packets that go by tc alone read the second");
    assert!(size_of::<HandOver>() == 2 * CACHE_LINE, "each begins a cache line");
    assert!(size_of::<Account>() == CACHE_LINE, "CPUs contend for one account only");
    assert!(size_of::<PortShare>() == 2 * CACHE_LINE);
    assert!(offset_of!(PortShare, up) == CACHE_LINE, "the cell writes in the second");
    assert!(size_of::<QueueCredits>() == 4 * CACHE_LINE);
    assert!(
        offset_of!(QueueCredits, done) == CACHE_LINE,
        "the cell's line is not the front door's"
    );
    assert!(offset_of!(QueueCredits, head_state) == 2 * CACHE_LINE);
    assert!(ROOM_SHARED == ROOMS_MAX - 1 && ROOM_SHARED == ACCOUNTS_MAX, "behind all sessions");
    assert!(LINES_MAX == crate::PORTS_MAX + ACCOUNTS_MAX);
    assert!(FRAME_BYTES <= FRAME_MEMORY);
};

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Meta;
    use abi::layout::{MARK_LENGTH, META_LENGTH};

    #[test]
    fn a_hand_over_begins_with_the_metadata_of_the_abi() {
        // Every field has a number of its own, so that a misplaced one is noticed.
        let meta = Meta {
            packet_length: 0x0102_0304,
            window_length: 0x0506_0708,
            l3_offset: 0x090a,
            l4_offset: 0x0b0c,
            begins_with: 0x0d,
            ip_version: 0x0e,
            protocol: 0x0f,
            flags: 0x10,
            port: 0x1112,
            session: 0x1314,
            rule: 0x1516_1718,
            flow_hash: 0x191a_1b1c,
            lane: 0x1d1e_1f20,
            now_ms: 0x2122_2324_2526_2728,
            mark: [0x29; MARK_LENGTH],
        };
        let mut bytes = [0; size_of::<HandOver>()];
        let (metadata, rest) = bytes.split_first_chunk_mut::<META_LENGTH>().unwrap();
        meta.write_to(metadata);
        for (field, number) in [0, 4, 8, 16].into_iter().zip(1..) {
            rest[field] = number;
        }
        let expected = HandOver {
            packet_length: meta.packet_length,
            window_length: meta.window_length,
            l3_offset: meta.l3_offset,
            l4_offset: meta.l4_offset,
            begins_with: meta.begins_with,
            ip_version: meta.ip_version,
            protocol: meta.protocol,
            flags: meta.flags,
            port: meta.port,
            session: meta.session,
            rule: meta.rule,
            flow_hash: meta.flow_hash,
            lane: meta.lane,
            now_ms: meta.now_ms,
            mark: [u64::from_ne_bytes([0x29; 8]); 2],
            level: 0,
            verdict: 1,
            trapped: 2,
            padded: 3,
            zero: 0,
            fuel_used: 4,
            fuel_charged: 0,
            unused: [0; 4],
        };
        assert_eq!(bytemuck::pod_read_unaligned::<HandOver>(&bytes), expected);
    }
}
