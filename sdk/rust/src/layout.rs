//! Addresses, offsets and codes of the packet ABI, version 1, as a module sees them.
//!
//! The same numbers as in the node's own source; a test of the node compares
//! the two. docs/reference/module-abi.md explains them.

/// Where the metadata begins in linear memory; the stack ends here.
pub const META_ADDRESS: usize = 0x8000;
/// Bytes of metadata.
pub const META_LENGTH: usize = 64;
/// Where the window begins in linear memory.
pub const WINDOW_ADDRESS: usize = 0x8102;
/// The largest window that a module may declare, in bytes.
pub const WINDOW_LENGTH_MAX: usize = 2048;
/// Where a module's own data may begin.
pub const DATA_ADDRESS: usize = 0x9000;
/// Bytes that travel with a packet between the modules of one service.
pub const MARK_LENGTH: usize = 16;
/// Longest value of a text parameter, in bytes.
pub const PARAMETER_TEXT_MAX: usize = 256;
/// The offset that says "there is no such header".
pub const OFFSET_NONE: u16 = 0xffff;

/// [`BEGINS_WITH`](offset::BEGINS_WITH): an Ethernet header.
pub const BEGINS_WITH_ETHERNET: u8 = 1;
/// [`BEGINS_WITH`](offset::BEGINS_WITH): a data unit that came in an active packet.
pub const BEGINS_WITH_DATA: u8 = 2;

/// In place of a port that a frame is sent by: where the node's routes lead.
pub const SEND_BY_ROUTE: u16 = 0xffff;

/// [`FLAGS`](offset::FLAGS): the packet is an IP fragment.
pub const META_FRAGMENT: u8 = 1 << 0;
/// [`FLAGS`](offset::FLAGS): the packet is a fragment that is not the first.
pub const META_LATER_FRAGMENT: u8 = 1 << 1;

/// Where each field of the metadata begins, counted from [`META_ADDRESS`].
pub mod offset {
    /// Bytes of the whole packet, `u32`.
    pub const PACKET_LENGTH: usize = 0;
    /// Bytes of it in the window, `u32`.
    pub const WINDOW_LENGTH: usize = 4;
    /// Where the IP header begins, `u16`.
    pub const L3_OFFSET: usize = 8;
    /// Where the L4 header begins, `u16`.
    pub const L4_OFFSET: usize = 10;
    /// What the window begins with, `u8`.
    pub const BEGINS_WITH: usize = 12;
    /// 4, 6 or 0, `u8`.
    pub const IP_VERSION: usize = 13;
    /// The protocol after IP and its extension headers, `u8`.
    pub const PROTOCOL: usize = 14;
    /// [`META_FRAGMENT`](super::META_FRAGMENT) and its like, `u8`.
    pub const FLAGS: usize = 15;
    /// The arrival port, `u16`.
    pub const PORT: usize = 16;
    /// The session that pays, `u16`.
    pub const SESSION: usize = 18;
    /// The rule that sent the packet here, `u32`.
    pub const RULE: usize = 20;
    /// A hash of the flow, equal for both directions, `u32`.
    pub const FLOW_HASH: usize = 24;
    /// The lane of this instance, `u32`.
    pub const LANE: usize = 28;
    /// The node's coarse time in milliseconds, `u64`.
    pub const NOW_MS: usize = 32;
    /// What the previous module of the service left.
    pub const MARK: usize = 40;
    /// Where the module runs now: 0 `user`, 1 `nic`, 2 `kernel`.
    pub const LEVEL: usize = 56;
}

/// The low byte of what `on_packet` returns.
pub mod verdict_code {
    /// Forward.
    pub const PASS: u32 = 0;
    /// Drop, with a reason in the high 16 bits.
    pub const DROP: u32 = 1;
    /// Out of the arrival port, MACs swapped.
    pub const BOUNCE: u32 = 2;
    /// Out of the port in the high 16 bits.
    pub const REDIRECT: u32 = 3;
    /// The next level up.
    pub const RAISE: u32 = 4;
    /// With [`PASS`]: look the route up again.
    pub const REROUTE_FLAG: u32 = 1 << 8;
}

/// What host functions return; 0 or more is success.
pub mod host_error {
    /// An offset or length lies outside the packet or the memory.
    pub const OUT_OF_RANGE: i32 = -1;
    /// There is no such parameter, port or name.
    pub const NOT_FOUND: i32 = -2;
    /// The result would pass a limit.
    pub const OVER_LIMIT: i32 = -3;
    /// The function cannot be used in this hook.
    pub const WRONG_HOOK: i32 = -4;
}

/// What happened to a queue that is watched: the first argument of `on_queue`.
pub mod queue {
    /// No more waits than the lower threshold.
    pub const SHORT: u32 = 0;
    /// More waits than the higher one.
    pub const LONG: u32 = 1;
    /// There was no room for a packet.
    pub const DROPPED: u32 = 2;
}
