//! Drops by the kernel's stack of what the node has left to it: the Rust half of what
//! `levels/bpf/c/stack.h` counts.

use bytemuck::{Pod, Zeroable};

/// Reasons of the kernel's `enum skb_drop_reason` that are counted apart. Linux 6.18 has 128.
pub const STACK_REASONS_MAX: usize = 256;
/// Index of all reasons beyond those, among them those of the kernel's modules.
pub const STACK_OTHER: usize = STACK_REASONS_MAX - 1;
/// Number of the node's own device, by which the cell gives to the kernel, in place of a port's.
pub const STACK_OWN: usize = crate::PORTS_MAX;
/// Arrivals that are counted apart: the ports, and [`STACK_OWN`].
pub const STACK_ARRIVALS: usize = crate::PORTS_MAX + 1;
/// Marks of packets that a program of the node's at tc drops, which counts them itself.
pub const MARK_ENDED: u32 = 0x5442 << 16;

/// Kind of a reason: its meaning for a packet, and who else counts it (`enum tam_stack_kind`).
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackKind {
    /// No drop of a packet that the kernel was given.
    Not = 0,
    /// A drop.
    Drop = 1,
    /// A drop that the device by which it came counts, too.
    AtDevice = 2,
    /// A program at tc dropped it; those of the node mark and count theirs.
    AtTc = 3,
    /// A drop, unless it was being sent: then its device counts it.
    ByDevice = 4,
    /// Netfilter dropped it; at a packet port this takes from the kernel what the cell has.
    Netfilter = 5,
    /// A drop as [`Self::ByDevice`], but of IPv6 multicast and what a socket has read it is none.
    Unspecified = 6,
    /// No socket is there for it; of an ICMP echo reply it is none.
    NoSocket = 7,
}

/// Counters of kernel drops of what came in by one port, on one CPU (`struct tam_stack_stats`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct StackStats {
    /// Buffers that its device counts as dropped, too.
    pub device: u64,
    /// Frames by reason.
    pub reasons: [u64; STACK_REASONS_MAX],
}
