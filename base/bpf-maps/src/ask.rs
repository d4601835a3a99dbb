//! Requests of the cell to the kernel, by its TAP device (`levels/bpf/c/ask.h`).

use bytemuck::{Pod, Zeroable};

/// One end of a flow (`struct tam_end`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct End {
    /// Address, in network byte order; IPv4 fills the first four bytes.
    pub address: [u8; 16],
    /// L4 port or ICMP identifier, in network byte order; of a later fragment its identification.
    pub port_be: [u8; 2],
    /// Always 0.
    pub zero: u16,
}

/// Trailer of a frame that the cell writes to its TAP device (`struct tam_request`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Request {
    /// Number of the request, which its answer has, too.
    pub number: u32,
    /// Number of the port by which the packet is received; `u16::MAX` for the node's own device.
    pub port: u16,
    /// `ASK_*`.
    pub kind: u8,
    /// `CHANGED_*`: ends to be noted, with [`ASK_NOTE`].
    pub changed: u8,
    /// Source with which the packet leaves.
    pub source: End,
    /// Destination with which the packet arrived.
    pub destination: End,
}

/// Answer to the last request (`struct tam_answer`), in a cache line of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Answer {
    /// Number of the request in the upper half; in the lower 1 + the number of a port, or 0 for none.
    pub value: u64,
    /// Always 0.
    pub unused: [u64; 7],
}

/// [`Request::kind`]: by which port the kernel would send a packet.
pub const ASK_EGRESS: u8 = 0;
/// [`Request::kind`]: as [`ASK_EGRESS`], for a packet of which a module has changed ends.
pub const ASK_NOTE: u8 = 1;
/// [`Request::kind`]: no question, but the order to receive a frame by its arrival port's device.
pub const ASK_ARRIVE: u8 = 2;
/// [`Request::changed`]: the source, with which it leaves.
pub const CHANGED_SOURCE: u8 = 1;
/// [`Request::changed`]: the destination, which the kernel's ICMP errors quote as it arrived.
pub const CHANGED_DESTINATION: u8 = 2;
/// Ethertype in front of an IP packet that is asked about.
pub const ETHERTYPE_ASKED: u16 = 0x88b5;
