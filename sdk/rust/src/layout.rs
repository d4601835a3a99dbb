//! Addresses, offsets and codes of the packet ABI, version 1, as a module sees them.
//!
//! The numbers are those of the node's own source; a test of the node compares the two.
//! docs/reference/module-abi.md explains them.

/// Address of the metadata in linear memory, and end of the stack.
pub const META_ADDRESS: usize = 0x8000;
/// Bytes of metadata.
pub const META_LENGTH: usize = 64;
/// Address of the window in linear memory.
pub const WINDOW_ADDRESS: usize = 0x8102;
/// The largest window that a module may declare, in bytes.
pub const WINDOW_LENGTH_MAX: usize = 2048;
/// Lowest address of a module's own data.
pub const DATA_ADDRESS: usize = 0x9000;
/// Bytes that accompany a packet between the modules of one service.
pub const MARK_LENGTH: usize = 16;
/// Longest value of a text parameter, in bytes.
pub const PARAMETER_TEXT_MAX: usize = 256;
/// Offset value for a header that does not exist.
pub const OFFSET_NONE: u16 = 0xffff;

/// [`BEGINS_WITH`](offset::BEGINS_WITH): an Ethernet header.
pub const BEGINS_WITH_ETHERNET: u8 = 1;
/// [`BEGINS_WITH`](offset::BEGINS_WITH): a data unit from an active packet.
pub const BEGINS_WITH_DATA: u8 = 2;

/// Port number that sends a frame by the node's routes.
pub const SEND_BY_ROUTE: u16 = 0xffff;

/// [`FLAGS`](offset::FLAGS): the packet is an IP fragment.
pub const META_FRAGMENT: u8 = 1 << 0;
/// [`FLAGS`](offset::FLAGS): the packet is a fragment that is not the first.
pub const META_LATER_FRAGMENT: u8 = 1 << 1;

/// Offsets of the metadata's fields, from [`META_ADDRESS`].
pub mod offset {
    /// Length of the whole packet in bytes, `u32`.
    pub const PACKET_LENGTH: usize = 0;
    /// Length of its part in the window in bytes, `u32`.
    pub const WINDOW_LENGTH: usize = 4;
    /// Offset of the IP header, `u16`.
    pub const L3_OFFSET: usize = 8;
    /// Offset of the L4 header, `u16`.
    pub const L4_OFFSET: usize = 10;
    /// Kind of header at the beginning of the window, `u8`.
    pub const BEGINS_WITH: usize = 12;
    /// IP version: 4, 6 or 0, `u8`.
    pub const IP_VERSION: usize = 13;
    /// Protocol after IP and its extension headers, `u8`.
    pub const PROTOCOL: usize = 14;
    /// Flags such as [`META_FRAGMENT`](super::META_FRAGMENT), `u8`.
    pub const FLAGS: usize = 15;
    /// Arrival port, `u16`.
    pub const PORT: usize = 16;
    /// Session that pays for the packet, `u16`.
    pub const SESSION: usize = 18;
    /// Rule that sent the packet to the module, `u32`.
    pub const RULE: usize = 20;
    /// Hash of the flow, equal for both directions, `u32`.
    pub const FLOW_HASH: usize = 24;
    /// Lane of this instance, `u32`.
    pub const LANE: usize = 28;
    /// Coarse time of the node in milliseconds, `u64`.
    pub const NOW_MS: usize = 32;
    /// Mark from the previous module of the service.
    pub const MARK: usize = 40;
    /// Level at which the module runs: 0 `user`, 1 `nic`, 2 `kernel`.
    pub const LEVEL: usize = 56;
}

/// Low byte of `on_packet`'s result.
pub mod verdict_code {
    /// Forward the packet.
    pub const PASS: u32 = 0;
    /// Drop the packet, with a reason in the high 16 bits.
    pub const DROP: u32 = 1;
    /// Send it out of the arrival port, with MAC addresses swapped.
    pub const BOUNCE: u32 = 2;
    /// Send it out of the port in the high 16 bits.
    pub const REDIRECT: u32 = 3;
    /// Pass it to the same module at the next level up.
    pub const RAISE: u32 = 4;
    /// Flag with [`PASS`]: look up the route again.
    pub const REROUTE_FLAG: u32 = 1 << 8;
}

/// Negative results of host functions; 0 or more is success.
pub mod host_error {
    /// An offset or length is outside the packet or the memory.
    pub const OUT_OF_RANGE: i32 = -1;
    /// The parameter, port or name does not exist.
    pub const NOT_FOUND: i32 = -2;
    /// The result would exceed a limit.
    pub const OVER_LIMIT: i32 = -3;
    /// The function cannot be used in this hook.
    pub const WRONG_HOOK: i32 = -4;
}

/// Events of a watched queue: the first argument of `on_queue`.
pub mod queue {
    /// The queue has shrunk to the lower threshold.
    pub const SHORT: u32 = 0;
    /// The queue has grown beyond the higher threshold.
    pub const LONG: u32 = 1;
    /// The queue was full, and a packet was dropped.
    pub const DROPPED: u32 = 2;
}
