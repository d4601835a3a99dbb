//! Capture records: the Rust half of `levels/bpf/c/capture.h`.

use bytemuck::{Pod, Zeroable};

/// Most bytes of a frame that a capture keeps: all of one at MTU 1500, the headers of a longer one.
pub const SNAP_MAX: u32 = 2048;
/// [`Captured::way`]: as the frame arrived by the port.
pub const WAY_ARRIVED: u8 = 0;
/// [`Captured::way`]: as the frame leaves by the front door, or from a module at `nic`.
pub const WAY_LEFT: u8 = 1;
/// [`Captured::way`]: as the frame leaves by the stack's egress, also from a module at `kernel`.
pub const WAY_LEFT_KERNEL: u8 = 2;
/// [`Captured::way`]: dropped after a module below user level, as the module left it.
pub const WAY_ENDED: u8 = 3;
/// [`Captured::way`]: as the kernel's stack had the frame when it dropped it.
pub const WAY_STACK_DROPPED: u8 = 4;
/// [`Captured::port`]: no port, but the node's own device.
pub const CAPTURED_NO_PORT: u16 = 0xffff;
/// [`Captured::outcome`]: the front door did not see the frame.
pub const CAPTURED_NONE: u8 = 0xff;

/// Header in front of a captured frame's bytes (`struct tam_captured`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Captured {
    /// Time on the kernel's monotonic clock.
    pub time_ns: u64,
    /// Length of the frame on the wire, bytes.
    pub length: u32,
    /// Bytes of the frame that follow.
    pub captured: u32,
    /// Number of the port: the arrival port or, of a frame that leaves, the egress port; or
    /// [`CAPTURED_NO_PORT`].
    pub port: u16,
    /// `WAY_*`.
    pub way: u8,
    /// Index in [`OUTCOMES`](crate::OUTCOMES), or [`CAPTURED_NONE`].
    pub outcome: u8,
    /// `XDP_*` action of the front door.
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
    /// `LEVEL_*` of the module that handled the packet; 0 when no module below user level did.
    pub level: u8,
    /// 1 when the frame begins with its IP header; only of packets dropped by the stack.
    pub bare: u8,
    /// Rule of the packet; all ones when there is none.
    pub rule: u32,
    /// Verdict of that module.
    pub verdict: u32,
    /// [`HandOver::trapped`](crate::HandOver::trapped) of that module.
    pub trapped: u32,
    /// Kernel's number of the reason for the drop by the stack.
    pub stack_reason: u32,
}

const _: () = assert!(size_of::<Captured>() == 48);
