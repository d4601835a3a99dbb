//! Setting that the code of all functions of a unit depends on, and the targets of their accesses.

use abi::HostFunction;
use abi::layout::{META_ADDRESS, WINDOW_ADDRESS};

use super::facts::Facts;
use crate::Flavour;
use crate::ir::{Access, Function, Region, Width};

const META_LENGTH: u32 = abi::layout::META_LENGTH as u32;
/// Offsets of the packet's lengths in the metadata: of the whole, and in the window.
pub(crate) const META_LENGTHS: [i16; 2] = [0, 4];

/// Properties of a unit, shared by its functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) flavour: Flavour,
    /// Declared window, if there is a packet.
    pub(crate) packet: Option<Packet>,
    /// Initial and largest size of the memory, bytes.
    pub(crate) memory_min: u64,
    pub(crate) memory_max: u64,
    pub(crate) globals: u32,
    /// Packet bytes that the prologue makes accessible: the end of the farthest access at a
    /// constant address; 0 where guards do.
    pub(crate) reach: u32,
    /// True when some access may be one of the packet, decided at run time.
    pub(crate) dynamic_window: bool,
    /// True when memory is copied or filled, which costs fuel by length.
    pub(crate) bulk: bool,
    /// True when events or frames are counted.
    pub(crate) emits: bool,
    /// True when the arena is used at all.
    pub(crate) has_memory: bool,
}

/// Packet properties of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) window: u32,
    pub(crate) standalone: bool,
}

/// Needs of a function, which its prologue provides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Context as the first parameter.
    pub(crate) context: bool,
    /// Pointers of the packet, loaded at the beginning.
    pub(crate) pointers: bool,
    /// `data_end` for accesses at run-time addresses.
    pub(crate) data_end: bool,
    /// Reload of the pointers, because the function, or a callee, changes the packet's length.
    pub(crate) changes_packet: bool,
    /// Slot of the frame for accesses across the packet's end.
    pub(crate) spare: bool,
}

/// Target of an access, with the known part of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Arena.
    Memory,
    /// Packet, at this constant offset.
    Packet(i16),
    /// Packet, at a run-time offset.
    PacketDynamic,
    /// Metadata of the hand-over, at this constant offset.
    Metadata(i16),
    /// Target decided at run time; names the test that comes first.
    Any(Likely),
}

/// Probable target of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likely {
    /// Memory below the metadata: the module's stack.
    Below,
    /// Packet.
    Window,
    /// Memory above the window: data and heap.
    Above,
}

impl Setting {
    /// Returns true when the entry has a packet: subprograms then take the context first.
    pub(crate) const fn has_packet(&self) -> bool {
        self.packet.is_some()
    }

    /// Returns the target of an access.
    pub(crate) fn target(
        &self,
        access: &Access,
        width: Width,
        function: &Function,
        facts: &Facts,
    ) -> Target {
        let Some(packet) = self.packet else { return Target::Memory };
        let width = width.bytes();
        let address =
            facts.constant(access.address).map(|constant| constant + u64::from(access.offset));
        let within = |start: u32, length: u32| {
            let at = address?.checked_sub(u64::from(start))?;
            (at + u64::from(width) <= u64::from(length)).then_some(at as i16)
        };
        match access.region {
            Region::Memory | Region::Behind => Target::Memory,
            // Beyond metadata and window whatever the address is.
            Region::Unknown { .. } if access.offset >= abi::layout::DATA_ADDRESS => Target::Memory,
            _ => match (within(WINDOW_ADDRESS, packet.window), within(META_ADDRESS, META_LENGTH)) {
                (Some(at), _) => Target::Packet(at),
                (_, Some(at)) => Target::Metadata(at),
                _ if address.is_some() => Target::Memory,
                _ if access.region == Region::Window
                    && width <= packet.window
                    && access.offset <= i32::MAX as u32 =>
                {
                    Target::PacketDynamic
                }
                _ => Target::Any(self.likely(access, width, packet.window, function, facts)),
            },
        }
    }

    fn likely(
        &self,
        access: &Access,
        width: u32,
        window: u32,
        function: &Function,
        facts: &Facts,
    ) -> Likely {
        if access.region == (Region::Unknown { below: true }) {
            return Likely::Below;
        }
        let origin = facts.origin(function, access.address, 0).unwrap_or(0);
        let start = origin + u64::from(access.offset);
        let is_packet = start >= u64::from(WINDOW_ADDRESS)
            && start < u64::from(WINDOW_ADDRESS) + u64::from(window)
            && width <= window;
        if is_packet { Likely::Window } else { Likely::Above }
    }
}

/// Returns true when the packet's pointers are invalid after a call: at tc after a write too.
pub(crate) fn moves_packet(host: HostFunction, flavour: Flavour) -> bool {
    match host {
        HostFunction::PacketResizeHead | HostFunction::PacketResizeTail => true,
        HostFunction::PacketStore => flavour == Flavour::Tc,
        _ => false,
    }
}
