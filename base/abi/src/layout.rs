//! Addresses, offsets and codes of the packet ABI, version 1.
//!
//! ```text
//! 0x0000 ┌────────────────────────────┐
//!        │ stack, grows downwards,    │  an overflow traps at address 0
//!        │ at most 32 KiB             │
//! 0x8000 ├────────────────────────────┤ META_ADDRESS
//!        │ metadata, 256 bytes        │
//! 0x8102 ├────────────────────────────┤ WINDOW_ADDRESS: an untagged frame's IP
//!        │ window, at most 2,048 bytes│ header (+14) lies on a multiple of 16
//! 0x9000 ├────────────────────────────┤ DATA_ADDRESS
//!        │ data, then heap            │
//!        └────────────────────────────┘
//! ```
//!
//! The addresses are constants so that an access whose address is known at
//! compile time is known to be packet or memory (docs/reference/module-abi.md).

/// Version of the ABI that this crate describes.
pub const ABI_VERSION: u32 = 1;
/// Custom section that holds the manifest, as TOML text.
pub const MANIFEST_SECTION: &str = "tamandua";
/// Import module of the host functions.
pub const IMPORT_MODULE: &str = "tam";

/// Address of the metadata in linear memory; the stack ends here.
pub const META_ADDRESS: u32 = 0x8000;
/// Bytes reserved for metadata; [`META_LENGTH`] of them are defined.
pub const META_RESERVED: u32 = 0x100;
/// Address of the window in linear memory.
pub const WINDOW_ADDRESS: u32 = 0x8102;
/// Largest window that a module may declare, in bytes.
pub const WINDOW_LENGTH_MAX: u32 = 2048;
/// Lowest address of a module's own data.
pub const DATA_ADDRESS: u32 = 0x9000;

const _: () = assert!(META_ADDRESS + META_RESERVED <= WINDOW_ADDRESS);
const _: () = assert!(WINDOW_ADDRESS + WINDOW_LENGTH_MAX <= DATA_ADDRESS);
const _: () =
    assert!((WINDOW_ADDRESS + 14).is_multiple_of(16), "the IP header lies on a multiple of 16");

/// Longest packet, bytes: a data unit of 65,535 bytes.
pub const PACKET_LENGTH_MAX: u32 = 65_535;
/// Largest linear memory that a module may declare or grow to, in pages of 64 KiB (16 MiB).
pub const MEMORY_PAGES_MAX: u32 = 256;
/// Most lanes of a module: the number of instances of one service in one cell.
pub const LANES_MAX: u16 = 64;
/// Most pools of a manifest: more than virtual processors could not differ.
pub const POOLS_MAX: usize = 8;
/// Most virtual processors of a session.
pub const PROCESSORS_MAX: u8 = 8;
/// Offset of the mark in the metadata.
pub const MARK_OFFSET: usize = 40;
/// Size in bytes of the mark that travels between the modules of a service's graph.
pub const MARK_LENGTH: usize = 16;
/// Largest manifest section, in bytes: read before anything is verified.
pub const MANIFEST_LENGTH_MAX: usize = 4096;
/// Longest `version`, in bytes: it becomes part of an OCI tag, which may have 128.
pub const VERSION_LENGTH_MAX: usize = 64;
/// Largest module, in bytes.
pub const MODULE_LENGTH_MAX: usize = 8 << 20;

/// [`Meta::begins_with`]: the window begins with an Ethernet header.
pub const BEGINS_WITH_ETHERNET: u8 = 1;
/// [`Meta::begins_with`]: the window begins with the payload of an active packet, without its
/// headers.
pub const BEGINS_WITH_DATA: u8 = 2;
/// Offset of a missing header.
pub const OFFSET_NONE: u16 = 0xffff;

/// Port number that sends a frame by the node's routes, as any packet that it forwards. No port has
/// this number.
pub const SEND_BY_ROUTE: u16 = 0xffff;

/// [`Meta::flags`]: the packet is an IP fragment.
pub const META_FRAGMENT: u8 = 1 << 0;
/// [`Meta::flags`]: the packet is a later fragment, without an L4 header.
pub const META_LATER_FRAGMENT: u8 = 1 << 1;

/// Length of [`Meta::packet_length`] and [`Meta::window_length`], the first fields, in bytes.
pub const META_LENGTHS_LENGTH: usize = 8;

/// Length of [`Meta`] in linear memory, bytes.
pub const META_LENGTH: usize = 64;

/// Metadata of the packet in the window, written in front of it
/// before each call; little-endian, as WebAssembly is.
///
/// ```text
///  0       4       8   10  12 13 14 15 16  18  20      24      28      32
/// ┌───────┬───────┬───┬───┬──┬──┬──┬──┬───┬───┬───────┬───────┬───────┐
/// │packet │window │l3 │l4 │be│fa│pr│fl│por│ses│ rule  │ flow  │ lane  │
/// │length │length │off│off│gi│mi│ot│ag│t  │sio│       │ hash  │       │
/// ├───────┴───────┼───┴───┴──┴──┴──┴──┼───┴───┴───────┴───────┴───────┤
/// │32 now, ms     │40 mark, 16 bytes  │56 reserved, zero              │
/// └───────────────┴───────────────────┴───────────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Length of the whole packet as on the wire, bytes.
    pub packet_length: u32,
    /// Bytes of the packet that the window holds.
    pub window_length: u32,
    /// Offset of the IP header from the window's start, or [`OFFSET_NONE`].
    pub l3_offset: u16,
    /// Offset of the L4 header from the window's start, or [`OFFSET_NONE`].
    pub l4_offset: u16,
    /// Start of the window: [`BEGINS_WITH_ETHERNET`] or [`BEGINS_WITH_DATA`].
    pub begins_with: u8,
    /// IP version, 4 or 6; 0 when the packet is not IP.
    pub ip_version: u8,
    /// Protocol number after IP and its extension headers, or 0.
    pub protocol: u8,
    /// [`META_FRAGMENT`], [`META_LATER_FRAGMENT`].
    pub flags: u8,
    /// Arrival port.
    pub port: u16,
    /// Session that pays.
    pub session: u16,
    /// Rule that sent the packet here.
    pub rule: u32,
    /// Hash of the flow, equal for both directions.
    pub flow_hash: u32,
    /// Lane that this instance serves.
    pub lane: u32,
    /// Coarse time of the node in milliseconds, in steps of 1 ms or more.
    pub now_ms: u64,
    /// Mark of the previous module of the service's graph.
    pub mark: [u8; MARK_LENGTH],
}

impl Meta {
    /// Writes the metadata to `out`, which lies at [`META_ADDRESS`].
    ///
    /// Writes word by word from registers: an array of small fields that is copied as a whole waits
    /// for each of its stores, 20 ns a packet.
    #[inline]
    pub fn write_to(&self, out: &mut [u8; META_LENGTH]) {
        let lengths = u64::from(self.packet_length) | u64::from(self.window_length) << 32;
        let headers = u64::from(self.l3_offset)
            | u64::from(self.l4_offset) << 16
            | u64::from(self.begins_with) << 32
            | u64::from(self.ip_version) << 40
            | u64::from(self.protocol) << 48
            | u64::from(self.flags) << 56;
        let origin =
            u64::from(self.port) | u64::from(self.session) << 16 | u64::from(self.rule) << 32;
        let flow = u64::from(self.flow_hash) | u64::from(self.lane) << 32;
        out[0..8].copy_from_slice(&lengths.to_le_bytes());
        out[8..16].copy_from_slice(&headers.to_le_bytes());
        out[16..24].copy_from_slice(&origin.to_le_bytes());
        out[24..32].copy_from_slice(&flow.to_le_bytes());
        out[32..40].copy_from_slice(&self.now_ms.to_le_bytes());
        out[MARK_OFFSET..56].copy_from_slice(&self.mark);
        out[56..64].fill(0);
    }
}

/// Low byte of the value that `on_packet` returns.
pub mod verdict_code {
    /// Pass by the edge of the graph in the high 16 bits; where there is none, forward.
    pub const PASS: u32 = 0;
    /// Drop, with the module's own reason in the high 16 bits.
    pub const DROP: u32 = 1;
    /// Send out of the arrival port with the MACs swapped, otherwise unchanged.
    pub const BOUNCE: u32 = 2;
    /// Send the unchanged frame out of the port in the high 16 bits.
    pub const REDIRECT: u32 = 3;
    /// Run the same module of the graph at the next level up.
    pub const RAISE: u32 = 4;
    /// Bit 8, with [`PASS`]: the module re-addressed the packet, so its route is looked up again.
    pub const REROUTE_FLAG: u32 = 1 << 8;
}

/// Most edges that lead on from one module of a graph: enough to sort packets by kind, few enough
/// to lie in one word.
pub const EDGES_MAX: usize = 4;

/// Decision of a module about one packet.
///
/// ```text
/// 31                    16 15        9  8  7             0
/// ┌───────────────────────┬───────────┬───┬───────────────┐
/// │ edge, reason, or port │ zero      │ R │ code          │
/// └───────────────────────┴───────────┴───┴───────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass to the next module by an edge of the graph; forward where that edge leads nowhere.
    Pass {
        /// Index of the edge, below [`EDGES_MAX`].
        edge: u8,
        /// True if the module changed the destination: the route is looked up again.
        reroute: bool,
    },
    /// Drop, with the module's own reason.
    Drop {
        /// Reason chosen and documented by the module.
        reason: u16,
    },
    /// Send out of the arrival port with the MAC addresses swapped.
    Bounce,
    /// Send the unchanged frame out of the named port.
    Redirect {
        /// Number of the port, from `port_find`.
        port: u16,
    },
    /// Run the same module of the graph at the next level up.
    Raise,
}

/// Value returned by `on_packet` that is no verdict: a trap with this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("on_packet returned {0:#010x}, which is no verdict of ABI version {ABI_VERSION}")]
pub struct NotAVerdict(pub u32);

impl Verdict {
    /// Pass to the next module; after the last one, forward by the packet's route.
    pub const PASS: Self = Self::Pass { edge: 0, reroute: false };

    /// Reads the value that `on_packet` returned.
    ///
    /// # Errors
    /// The code is unknown or a bit is set that has no meaning for it.
    pub const fn parse(value: u32) -> Result<Self, NotAVerdict> {
        const PASS_REROUTED: u32 = verdict_code::PASS | verdict_code::REROUTE_FLAG;
        let high = (value >> 16) as u16;
        match value & 0xffff {
            verdict_code::PASS if high < EDGES_MAX as u16 => {
                Ok(Self::Pass { edge: high as u8, reroute: false })
            }
            PASS_REROUTED if high < EDGES_MAX as u16 => {
                Ok(Self::Pass { edge: high as u8, reroute: true })
            }
            verdict_code::DROP => Ok(Self::Drop { reason: high }),
            verdict_code::BOUNCE if high == 0 => Ok(Self::Bounce),
            verdict_code::REDIRECT => Ok(Self::Redirect { port: high }),
            verdict_code::RAISE if high == 0 => Ok(Self::Raise),
            _ => Err(NotAVerdict(value)),
        }
    }

    /// Returns the value that `on_packet` returns for this verdict.
    #[must_use]
    pub const fn to_value(self) -> u32 {
        match self {
            Self::Pass { edge, reroute } => {
                let flag = if reroute { verdict_code::REROUTE_FLAG } else { 0 };
                verdict_code::PASS | flag | (edge as u32) << 16
            }
            Self::Drop { reason } => verdict_code::DROP | (reason as u32) << 16,
            Self::Bounce => verdict_code::BOUNCE,
            Self::Redirect { port } => verdict_code::REDIRECT | (port as u32) << 16,
            Self::Raise => verdict_code::RAISE,
        }
    }
}

/// Results of host functions; 0 or more is success.
pub mod host_error {
    /// An offset or length lies outside the packet or the module's memory.
    pub const OUT_OF_RANGE: i32 = -1;
    /// No parameter, port or name matches.
    pub const NOT_FOUND: i32 = -2;
    /// The result would exceed a limit: packet length, copies, event queue.
    pub const OVER_LIMIT: i32 = -3;
    /// The function cannot be used in this hook.
    pub const WRONG_HOOK: i32 = -4;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_survives_its_encoding() {
        let all = [
            Verdict::PASS,
            Verdict::Pass { edge: 0, reroute: true },
            Verdict::Pass { edge: 3, reroute: false },
            Verdict::Pass { edge: 1, reroute: true },
            Verdict::Drop { reason: 0 },
            Verdict::Drop { reason: 65_535 },
            Verdict::Bounce,
            Verdict::Redirect { port: 7 },
            Verdict::Raise,
        ];
        for verdict in all {
            assert_eq!(Verdict::parse(verdict.to_value()), Ok(verdict));
        }
    }

    #[test]
    fn numbers_without_meaning_are_no_verdict() {
        for value in [5, 0x101, 0x200, 0x4_0000, 0x4_0100, 0x1_0002, 0xffff_ffff] {
            assert_eq!(Verdict::parse(value), Err(NotAVerdict(value)), "{value:#x}");
        }
    }
}
