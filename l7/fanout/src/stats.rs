//! What has happened in a service's channels.

use reflector::{Counters, Memory};
use units::Bytes;

/// What has happened, and what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FanoutStats {
    /// Channels that are there.
    pub channels: u64,
    /// Listeners that are there.
    pub listeners: u64,
    /// All that ever joined a channel.
    pub joined: u64,
    /// Of those, who began with what the ring had, and not with the origin's first byte.
    pub joined_from_ring: u64,
    /// Of those, who are not there any more.
    pub left: u64,
    /// Requests that went to their origin alone, as their answers are not shared.
    pub alone: u64,
    /// Requests for which there was no room.
    pub refused: u64,
    /// How often a listener was behind by more than the ring, and went on near the edge.
    pub skips: u64,
    /// Listeners that were reset, as they took nothing for too long.
    pub stalled: u64,
    /// Connections to origins that were tried.
    pub origins_opened: u64,
    /// Of those, which were not reached, were reset, or answered what is not HTTP.
    pub origin_failures: u64,
    /// How often an origin was there again after it was lost.
    pub reconnects: u64,
    /// Bytes of origins' bodies.
    pub bytes_in: Bytes,
    /// Bytes that listeners took of them, titles included.
    pub bytes_out: Bytes,
    /// Bytes of origins that were given to nobody: between frames, cut off, tags.
    pub bytes_left_out: Bytes,
    /// Payload that the channels may come to keep: what new ones are refused by.
    pub payload_max: Bytes,
    /// Requests that wait for an origin's head.
    pub waiting: Bytes,
    /// Memory that is in use.
    pub memory: FanoutMemory,
}

/// Memory of all channels together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FanoutMemory {
    /// Of payload: the same whatever the number of listeners.
    pub payload: Bytes,
    /// Of what is known of the payload.
    pub index: Bytes,
    /// Of listeners, those who wait, and those who ask alone.
    pub listeners: Bytes,
    /// Of all else: channels, their connections, buffers.
    pub others: Bytes,
}

impl FanoutStats {
    /// Adds a channel's.
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
    /// Adds a channel's.
    pub(crate) fn add(&mut self, memory: Memory) {
        self.payload += memory.payload;
        self.index += memory.index;
        self.listeners += memory.listeners;
    }
}
