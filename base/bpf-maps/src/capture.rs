//! Records that the taps of a capture write: the Rust half of `levels/bpf/c/capture.h`.

use bytemuck::{Pod, Zeroable};

/// Most bytes of a frame that a tap keeps: all of one at MTU 1500, the headers of a longer one.
pub const SNAP_MAX: u32 = 2048;
/// [`Captured::way`]: as it came in by the port.
pub const WAY_ARRIVED: u8 = 0;
/// [`Captured::way`]: as it leaves by the front door, or from a module at `nic`.
pub const WAY_LEFT: u8 = 1;
/// [`Captured::way`]: as it leaves by the stack's egress, from a module at `kernel` too.
pub const WAY_LEFT_KERNEL: u8 = 2;
/// [`Captured::way`]: as a module below user level left what was dropped after it.
pub const WAY_ENDED: u8 = 3;
/// [`Captured::way`]: as the kernel's stack had it when it dropped it.
pub const WAY_STACK_DROPPED: u8 = 4;
/// [`Captured::port`]: by none, but by the node's own device.
pub const CAPTURED_NO_PORT: u16 = 0xffff;
/// [`Captured::outcome`]: the front door did not see it.
pub const CAPTURED_NONE: u8 = 0xff;

/// In front of a captured frame's bytes (`struct tam_captured`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Captured {
    /// The kernel's monotonic clock.
    pub time_ns: u64,
    /// Bytes on the wire.
    pub length: u32,
    /// Bytes that follow.
    pub captured: u32,
    /// The port's number: where it came in or, of one that leaves, where it does; or
    /// [`CAPTURED_NO_PORT`].
    pub port: u16,
    /// `WAY_*`.
    pub way: u8,
    /// Index in [`OUTCOMES`](crate::OUTCOMES), or [`CAPTURED_NONE`].
    pub outcome: u8,
    /// `XDP_*`, of what the front door saw.
    pub action: u8,
    /// 1 when the kernel took a VLAN tag out of the frame: `tci` and `tpid_be`.
    pub tagged: u8,
    /// Priority and VLAN identifier of that tag.
    pub tci: u16,
    /// Ethertype of that tag, in network byte order.
    pub tpid_be: [u8; 2],
    /// Session of the packet's rule.
    pub session: u16,
    /// Entry that the packet's rule leads to.
    pub entry: u16,
    /// `LEVEL_*` of the module that had it; 0 when none below user level had.
    pub level: u8,
    /// 1 when the frame begins with its IP header; only of what the stack dropped.
    pub bare: u8,
    /// Rule of the packet; all ones when there is none.
    pub rule: u32,
    /// Verdict of that module.
    pub verdict: u32,
    /// [`HandOver::trapped`](crate::HandOver::trapped) of that module.
    pub trapped: u32,
    /// Kernel's number of the reason for which the stack dropped it.
    pub stack_reason: u32,
}

const _: () = assert!(size_of::<Captured>() == 48);
