//! Counters of packets that the node left to the kernel's stack and the stack dropped: the Rust
//! half of `levels/bpf/c/stack.h`.

use bytemuck::{Pod, Zeroable};

/// Most reasons of the kernel's `enum skb_drop_reason` with a counter of their own. Linux 6.18 has
/// 128.
pub const STACK_REASONS_MAX: usize = 256;
/// Index of all further reasons, among them those of the kernel's modules.
pub const STACK_OTHER: usize = STACK_REASONS_MAX - 1;
/// Index of the node's own device, by which the cell gives packets to the kernel, in place of a
/// port's number.
pub const STACK_OWN: usize = crate::PORTS_MAX;
/// Number of arrival devices that are counted apart: the ports, and [`STACK_OWN`].
pub const STACK_ARRIVALS: usize = crate::PORTS_MAX + 1;
/// Marks of packets that a program of the node drops at tc, which counts them itself.
pub const MARK_ENDED: u32 = 0x5442 << 16;

/// Kind of a reason: its meaning for a packet, and other counters of it (`enum tam_stack_kind`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackKind {
    /// Not a drop of a packet that the kernel was given.
    Not = 0,
    /// A drop.
    Drop = 1,
    /// A drop that the arrival device counts, too.
    AtDevice = 2,
    /// A drop by a program at tc; programs of the node mark and count theirs.
    AtTc = 3,
    /// A drop, unless the packet was being sent: then its device counts it.
    ByDevice = 4,
    /// A drop by netfilter; at a packet port netfilter also takes from the kernel the frames that
    /// the cell has.
    Netfilter = 5,
    /// A drop as [`Self::ByDevice`], except for IPv6 multicast and data that a socket has read.
    Unspecified = 6,
    /// A drop for lack of a socket, except for an ICMP echo reply.
    NoSocket = 7,
}

/// Counters of kernel drops of what came in by one port, on one CPU (`struct tam_stack_stats`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct StackStats {
    /// Buffers that the arrival device counts as dropped, too.
    pub device: u64,
    /// Frames by reason.
    pub reasons: [u64; STACK_REASONS_MAX],
}
