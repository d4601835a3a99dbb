//! Requests of the cell to the kernel, by its TAP device (`levels/bpf/c/ask.h`).

use bytemuck::{Pod, Zeroable};

/// End of a flow (`struct tam_end`).
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
    /// Number of the port that receives the packet; `u16::MAX` for the node's own device.
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
    /// Number of the request in the upper half; in the lower 1 + the number of a port, or 0 for
    /// none.
    pub value: u64,
    /// Always 0.
    pub unused: [u64; 7],
}

/// [`Request::kind`]: query of the port by which the kernel would send a packet.
pub const ASK_EGRESS: u8 = 0;
/// [`Request::kind`]: as [`ASK_EGRESS`], for a packet whose ends a module has changed.
pub const ASK_NOTE: u8 = 1;
/// [`Request::kind`]: not a query, but the command to receive a frame by its arrival port's device.
pub const ASK_ARRIVE: u8 = 2;
/// [`Request::changed`]: the source differs from the one that the packet arrived with.
pub const CHANGED_SOURCE: u8 = 1;
/// [`Request::changed`]: the destination differs from the one that the packet arrived with, which
/// the kernel's ICMP errors must quote.
pub const CHANGED_DESTINATION: u8 = 2;
/// Ethertype in front of an IP packet in a request.
pub const ETHERTYPE_ASKED: u16 = 0x88b5;
