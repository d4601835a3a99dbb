//! Statistics of a service's channels.

use reflector::{Counters, Memory};
use units::Bytes;

/// Counters and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FanoutStats {
    /// Current channels.
    pub channels: u64,
    /// Current listeners.
    pub listeners: u64,
    /// Listeners since the start.
    pub joined: u64,
    /// Listeners that began with the content of the ring, not with the origin's first byte.
    pub joined_from_ring: u64,
    /// Listeners that have left.
    pub left: u64,
    /// Requests that went to their origin on a connection of their own, as their responses are not
    /// shared.
    pub alone: u64,
    /// Requests refused because of a limit.
    pub refused: u64,
    /// Skips of a listener that was behind by more than the ring to a position near the edge.
    pub skips: u64,
    /// Listeners that were reset because they took nothing for too long.
    pub stalled: u64,
    /// Connection attempts to origins.
    pub origins_opened: u64,
    /// Connections to origins that failed, were reset, or responded with invalid HTTP.
    pub origin_failures: u64,
    /// Reconnections to an origin after a loss.
    pub reconnects: u64,
    /// Bytes of origins' bodies.
    pub bytes_in: Bytes,
    /// Bytes that listeners have taken, titles included.
    pub bytes_out: Bytes,
    /// Bytes of origins that no listener gets: between frames, of truncated frames, and tags.
    pub bytes_left_out: Bytes,
    /// Payload that the channels may keep; new channels are refused by this value.
    pub payload_max: Bytes,
    /// Memory of requests that wait for an origin's head.
    pub waiting: Bytes,
    /// Memory in use.
    pub memory: FanoutMemory,
}

/// Memory of all channels together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FanoutMemory {
    /// Payload: independent of the number of listeners.
    pub payload: Bytes,
    /// Index of the payload.
    pub index: Bytes,
    /// Listeners, waiting requests, and relays.
    pub listeners: Bytes,
    /// Everything else: channels, their connections, buffers.
    pub others: Bytes,
}

impl FanoutStats {
    /// Adds a channel's counters.
    pub(crate) fn add(&mut self, counters: Counters) {
        self.joined_from_ring += counters.joins_from_ring;
        self.skips += counters.skips;
        self.stalled += counters.dropped;
        self.reconnects += counters.reconnects;
        self.bytes_in += counters.bytes_in;
        self.bytes_out += counters.bytes_out;
        self.bytes_left_out += counters.bytes_left_out;
    }
}

impl FanoutMemory {
    /// Adds a channel's memory.
    pub(crate) fn add(&mut self, memory: Memory) {
        self.payload += memory.payload;
        self.index += memory.index;
        self.listeners += memory.listeners;
    }
}
