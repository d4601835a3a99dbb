//! Requests of the cell to the kernel, by its TAP device (`levels/bpf/c/ask.h`).

use bytemuck::{Pod, Zeroable};

/// One end of a flow (`struct tam_end`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct End {
    /// An IPv4 address fills the first four bytes.
    pub address: [u8; 16],
    /// L4 port or ICMP identifier; of a later fragment its identification.
    pub port_be: [u8; 2],
    /// Always 0.
    pub zero: u16,
}

/// The end of what the cell writes to its TAP device (`struct tam_request`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Request {
    /// Number of the request, which its answer has, too.
    pub number: u32,
    /// The port by which the packet is received; `u16::MAX`: by the node's own device.
    pub port: u16,
    /// `ASK_*`.
    pub kind: u8,
    /// `CHANGED_*`, of [`ASK_NOTE`]: which of the two are to be noted.
    pub changed: u8,
    /// The source with which a packet leaves.
    pub source: End,
    /// The destination with which it came.
    pub destination: End,
}

/// The answer to the last request (`struct tam_answer`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Answer {
    /// The request's number in the upper half; below it 1 + the number of a port, or 0.
    pub value: u64,
    /// Always 0.
    pub unused: [u64; 7],
}

/// Question by which port the kernel would send a packet.
pub const ASK_EGRESS: u8 = 0;
/// Question as [`ASK_EGRESS`], of a packet of which a module has changed ends.
pub const ASK_NOTE: u8 = 1;
/// Order to receive a frame by its arrival port's device.
pub const ASK_ARRIVE: u8 = 2;
/// The source, with which it leaves.
pub const CHANGED_SOURCE: u8 = 1;
/// The destination, which errors of the kernel's quote as it came.
pub const CHANGED_DESTINATION: u8 = 2;
/// The ethertype in front of an IP packet that is asked about.
pub const ETHERTYPE_ASKED: u16 = 0x88b5;
