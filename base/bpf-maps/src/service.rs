//! What is kept for services below user level: lanes, hand-overs, counters.

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

/// The lane of an entry (`struct tam_lane`): the header says who writes what.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Lane {
    /// Packets given to user level.
    pub sent_up: u64,
    /// Packets that are gone from there.
    pub left: u64,
    /// `sent_up` when `epoch_seen` began.
    pub epoch_start: u64,
    /// The epoch that packets carry now.
    pub epoch_seen: u32,
    /// The one that they shall carry.
    pub epoch: u32,
    /// `LEVEL_*`: where packets go.
    pub level: u32,
    /// `LEVEL_*`: where they shall go.
    pub target: u32,
    /// The index of the module's program, at `nic` and at `kernel`.
    pub program: u32,
    /// Bytes of the packet's head that the module sees.
    pub window: u16,
    /// Bit n: edge n leads somewhere.
    pub edges: u8,
    /// `OVER_*`: it has used up its budget.
    pub over: u8,
    /// 0: nobody is in the lane, else 1 and the number of the CPU that is.
    pub busy: u32,
    /// The CPU that was in it last.
    pub cpu: u32,
    /// Not 0: the module is not run; the trap's code, or [`NOT_A_VERDICT`].
    pub trapped: u32,
    /// 1 when the module has run below since the cell made it 0.
    pub ran: u32,
    /// Packets given to the stack on their way to tc.
    pub sent_tc: u64,
    /// Packets that came there, or are lost.
    pub left_tc: u64,
    /// Packets of the `tc_epoch` before that did not come yet.
    pub tc_awaited: u64,
    /// Jiffies at which `tc_epoch` began, their low half.
    pub tc_began: u32,
    /// Jiffies at which nothing was under way to tc at last, their low half.
    pub tc_drained: u32,
    /// `PATH_*`.
    pub path: u32,
    /// The epoch that packets to tc carry.
    pub tc_epoch: u32,
    /// The entry at the end of each edge, or [`NEXT_DOWN`].
    pub next: [u16; EDGES_MAX],
    /// Not 0: while the service is down its packets are dropped.
    pub closed: u32,
    /// Who pays.
    pub session: u32,
    /// Not 0: nothing more goes up until all that did is gone.
    pub held: u32,
    /// The index of its account, if `beyond` is not 0.
    pub account: u16,
    /// `OVER_*`: what becomes of packets when that account is empty; 0: it has none.
    pub beyond: u16,
}

/// [`Lane::next`]: the service there is down, and its failure policy is closed.
pub const NEXT_DOWN: u16 = 0xffff;

/// [`Lane::trapped`]: `on_packet` returned something else than a verdict.
pub const NOT_A_VERDICT: u32 = 0xffff_fffe;
/// [`HandOver::trapped`]: `on_packet` was not called.
pub const NOT_RUN: u32 = 0xffff_ffff;
/// [`HandOver::trapped`]: it was not called, for the budget below user level is used up.
pub const OVER_BUDGET: u32 = 0xffff_fffd;

/// `enum tam_over`: the budget below user level is not used up.
pub const OVER_NOT: u8 = 0;
/// `enum tam_over`: it is, and packets are dropped.
pub const OVER_DROP: u8 = 1;
/// `enum tam_over`: it is, and packets go to user level.
pub const OVER_RAISE: u8 = 2;

/// From the front door to a module's program and back (`struct tam_hand_over`): one for each
/// entry, written by whoever is in its lane. The first 64 bytes are the metadata of the packet
/// ABI.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct HandOver {
    /// Bytes of the whole packet.
    pub packet_length: u32,
    /// Bytes of it in the window.
    pub window_length: u32,
    /// Where the IP header begins.
    pub l3_offset: u16,
    /// Where the L4 header begins, or 0xffff.
    pub l4_offset: u16,
    /// 1: with an Ethernet header.
    pub begins_with: u8,
    /// 4 or 6.
    pub ip_version: u8,
    /// After IP and its extension headers.
    pub protocol: u8,
    /// Bit 0: a fragment; bit 1: not the first.
    pub flags: u8,
    /// The arrival port.
    pub port: u16,
    /// The session that pays.
    pub session: u16,
    /// The rule that matched.
    pub rule: u32,
    /// Equal for both directions of a flow.
    pub flow_hash: u32,
    /// Always 0: an entry has one lane.
    pub lane: u32,
    /// The coarse clock.
    pub now_ms: u64,
    /// Of the previous module of the graph; zero at the first.
    pub mark: [u64; 2],
    /// `LEVEL_*`. The ABI has one byte here, the others are zero.
    pub level: u64,
    /// What `on_packet` returned, when `trapped` is 0.
    pub verdict: u32,
    /// 0, a trap's code, or [`NOT_RUN`].
    pub trapped: u32,
    /// Zero bytes added behind a short packet.
    pub padded: u32,
    /// Always 0.
    pub zero: u32,
    /// What the entry's modules have used, sum over all packets.
    pub fuel_used: u64,
    /// Of `fuel_used`: what the lane's account has paid.
    pub fuel_charged: u64,
    /// Always 0.
    pub unused: [u64; 4],
}

/// From the front door's first half to its second (`struct tam_passage`): one for each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Passage {
    /// The packet's way.
    pub meta: PacketMeta,
    /// Address of the egress port.
    pub own_mac: [u8; 6],
    /// Not 0: another CPU was in the lane before.
    pub moved: u16,
    /// L3 MTU of the route; at tc the length of the IP packet as it came.
    pub mtu: u32,
    /// Bytes of the frame as it came.
    pub length: u32,
    /// The index of the module's program.
    pub program: u32,
    /// Bytes of the frame as it came to the module.
    pub bytes: u32,
    /// What the module before left; with `META_MARK` it travels along.
    pub mark: [u64; 2],
    /// The jiffy for which the time was worked out last.
    pub clock_jiffies: u64,
    /// That time, in milliseconds.
    pub clock_ms: u64,
    /// The session whose share of a port it is.
    pub payer: u32,
    /// Of a packet whose rule names a port: 0, or the outcome as which the kernel has it.
    pub kernel: u32,
}

/// What became of an entry's packets below user level, on one CPU (`struct tam_service_stats`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ServiceStats {
    /// Packets given to the module's program, or brought to its lane and not run there: the sum
    /// of all that follow but `bytes`, `handed_over` and what follows it.
    pub packets: u64,
    /// Their bytes, as they came.
    pub bytes: u64,
    /// Forwarded by their route.
    pub forwarded: u64,
    /// Left to the kernel, which routes or answers.
    pub to_kernel: u64,
    /// Sent back out of their arrival port.
    pub bounced: u64,
    /// Sent out of the port that the module named.
    pub redirected: u64,
    /// To the next entry of the graph, which counts it, too.
    pub passed_on: u64,
    /// Given to user level, by the module or from tc in its place. There they are counted again.
    pub raised: u64,
    /// Not run, or raised without a cell: gone as if there were no rule.
    pub plain: u64,
    /// Dropped by the module's verdict.
    pub drop_module: u64,
    /// Dropped because it trapped or its verdict was none.
    pub drop_trap: u64,
    /// Dropped because there is no such port to redirect to.
    pub drop_no_port: u64,
    /// Dropped because they are longer than that port takes.
    pub drop_too_long: u64,
    /// Dropped because they could not be forwarded as the module left them.
    pub drop_malformed: u64,
    /// Dropped because the module had used up its budget.
    pub drop_budget: u64,
    /// Dropped because the service, or the next one, is down and its failure policy is closed.
    pub drop_down: u64,
    /// Passed by the module, and dropped because a rule of the next stage says so.
    pub drop_rule: u64,
    /// Dropped because another CPU did not leave the lane in time.
    pub drop_lane: u64,
    /// Dropped because they went round and round between cabled ports.
    pub drop_cycle: u64,
    /// Raised, and dropped because their session's queue had no room.
    pub drop_queue: u64,
    /// Dropped because nothing was left of their session's share of the port they were to leave by.
    pub drop_share: u64,
    /// Packets that found the lane at another CPU than the last one.
    pub handed_over: u64,
    /// Of `drop_module`: their reason is in no counter.
    pub reasons_lost: u64,
    /// Bytes of the packets in `raised`, as they came.
    pub raised_bytes: u64,
    /// Bytes of the packets in `drop_budget`.
    pub drop_budget_bytes: u64,
}

/// What services may still use below user level (`struct tam_account`): the header says who writes
/// what. In parts of a unit of fuel: [`FUEL_SHIFT`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Account {
    /// Below zero: so much is owed.
    pub left: i64,
    /// The jiffy until which it is filled.
    pub ticked: u64,
    /// What each jiffy adds.
    pub per_tick: u64,
    /// What it holds at most.
    pub full: u64,
    /// Of a share of a port: bytes that left straight from `nic`, and from `kernel`,
    pub sent: [u64; 2],
    /// and how many packets they were.
    pub packets: u64,
    /// Always 0.
    pub unused: u64,
}

/// A share of a port (`struct tam_line`): the header says who writes what. Its account is in parts
/// of a byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Line {
    /// What it may still send.
    pub account: Account,
    /// Packets of modules at `kernel` that went to wait in the cell, by the last bit of the epoch.
    pub up: [u64; 2],
    /// Packets that found nothing left at `nic`; and at `kernel` no room to wait.
    pub dropped: [u64; 2],
    /// With `up`: how many wait. Packets that have left, less those of user level that wait.
    pub gone: u64,
    /// Bytes of packets of modules at `kernel` that waited, and left.
    pub sent_up: u64,
    /// Bytes of packets of user level that left.
    pub sent_above: u64,
    /// Always 0.
    pub unused: u64,
}

/// Accounts that there are: one for each session of a node.
pub const ACCOUNTS_MAX: usize = 16_384;
/// Accounts of shares of ports that there are; the first ones, by the number of the port, are for
/// all sessions that have no share of it.
pub const LINES_MAX: usize = crate::PORTS_MAX + 16_384;
/// The number of the session whose services pay for no port.
pub const SESSION_SYSTEM: u16 = 0;
/// What goes with each packet on an Ethernet, in bytes: preamble, frame check sequence and gap.
pub const ETHERNET_REST: u64 = 24;
/// An account has 2 to this power parts of a unit of fuel.
pub const FUEL_SHIFT: u32 = 16;
/// Jiffies for which an account is filled at once.
pub const FILL_MAX: u64 = 1 << 14;

/// What may wait for a session on its way to user level and there (`struct tam_room`): the header
/// says who writes what.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Room {
    /// Bytes that may wait; 0: nothing is counted.
    pub most: u64,
    /// Bytes of packet memory that were given to user level, by the last bit of the epoch.
    pub sent: [u64; 2],
    /// Packets for which there was no room.
    pub dropped: u64,
    /// What is sent up counts in this one.
    pub epoch: u32,
    /// Not 0: what is sent up counts in [`ROOM_SHARED`], too.
    pub shared: u32,
    /// Always 0.
    pub unused: [u64; 3],
    /// Bytes that the cell is done with.
    pub done: u64,
    /// Always 0.
    pub unused_done: [u64; 7],
    /// `HEAD_*`: what becomes of the head of a packet for which there is no room.
    pub head_state: u32,
    /// Bytes of it.
    pub head_length: u16,
    /// It.
    pub head: [u8; HEAD_BYTES],
    /// Always 0.
    pub unused_end: [u8; 56],
}

impl Default for Room {
    fn default() -> Self {
        Self::zeroed()
    }
}

/// Bytes of the head of a packet that was dropped.
pub const HEAD_BYTES: usize = 66;
/// Nobody wants one.
pub const HEAD_NOT: u32 = 0;
/// The next one that is dropped leaves it.
pub const HEAD_WANTED: u32 = 1;
/// It is there, and is read.
pub const HEAD_THERE: u32 = 3;

/// Rooms that there are: one for each session of a node, and [`ROOM_SHARED`].
pub const ROOMS_MAX: usize = 16_385;
/// The room that all sessions without a queue share.
pub const ROOM_SHARED: usize = 16_384;
/// Bytes of one frame of packet memory.
pub const FRAME_MEMORY: usize = 4096;
/// Bytes of a packet that one frame of packet memory holds.
pub const FRAME_BYTES: usize = 3840;

/// A drop reason of an entry (`struct tam_reason_key`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct ReasonKey {
    /// The entry.
    pub entry: u16,
    /// The reason, as its module gives it.
    pub reason: u16,
}

const _: () = assert!(size_of::<Lane>() == 128, "two cache lines: what tc needs is in the second");
const _: () = assert!(size_of::<Account>() == 64, "a cache line: CPUs share one account only");
const _: () = assert!(size_of::<Line>() == 128, "two cache lines: the cell writes in the second");
const _: () = assert!(size_of::<HandOver>() == 128, "each begins a cache line");

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Meta;
    use abi::layout::{MARK_LENGTH, META_LENGTH};

    /// Every field its own number.
    #[test]
    fn a_hand_over_begins_with_the_metadata_of_the_abi() {
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
