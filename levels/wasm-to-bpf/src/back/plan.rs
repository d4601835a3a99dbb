//! What each function of a unit needs beside its own code, found before any is
//! selected: the context and the packet's pointers.

use std::collections::BTreeMap;

use abi::HostFunction;
use abi::layout::{META_ADDRESS, WINDOW_ADDRESS};

use super::guard::{Guard, guards};
use crate::ir::{Access, BinaryOp, Function, Op, Region, Unit, Value, Width};
use crate::{Entry, Flavour, Options};

/// The same for every function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) flavour: Flavour,
    /// The declared window, if there is a packet.
    pub(crate) packet: Option<Packet>,
    /// Bytes of the memory: what it begins with, and may have.
    pub(crate) memory_min: u64,
    pub(crate) memory_max: u64,
    pub(crate) globals: u32,
    /// Packet bytes that the prologue makes accessible: the end of the
    /// farthest access at a constant address; 0 where guards do.
    pub(crate) reach: u32,
    /// Whether some access decides at run time that it is of the packet.
    pub(crate) dynamic_window: bool,
    /// Whether memory is copied or filled, which costs fuel by length.
    pub(crate) bulk: bool,
    /// Whether there are events or frames to count.
    pub(crate) emits: bool,
    /// Whether the arena is used at all.
    pub(crate) has_memory: bool,
}

/// The packet's side of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) window: u32,
    pub(crate) standalone: bool,
}

/// One function's needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Its first parameter is the context.
    pub(crate) context: bool,
    /// The packet's pointers, at the beginning.
    pub(crate) pointers: bool,
    /// `data_end` for accesses at run-time addresses.
    pub(crate) data_end: bool,
    /// It, or what it calls, changes the packet's length: pointers must be taken again.
    pub(crate) changes_packet: bool,
    /// A place in the frame for accesses over the packet's end.
    pub(crate) spare: bool,
}

/// What is known of the unit as a whole.
pub(crate) struct Plan {
    pub(crate) setting: Setting,
    pub(crate) needs: Vec<Needs>,
    /// The entry's branches that make the packet accessible, by their blocks.
    pub(crate) guards: BTreeMap<usize, Guard>,
}

/// Where an access goes, with what is known of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The arena.
    Memory,
    /// The packet, at this constant offset.
    Packet(i16),
    /// The packet, at an offset known when it runs.
    PacketDynamic,
    /// The hand-over's metadata, at this constant offset.
    Metadata(i16),
    /// Decided when it runs; which is tried first.
    Any(Likely),
}

/// Where an access probably goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likely {
    /// Below the metadata: the module's stack.
    Below,
    /// The packet.
    Window,
    /// Above the window: data and heap.
    Above,
}

/// The bytes of an access.
pub(crate) const fn bytes(width: Width) -> u32 {
    match width {
        Width::One => 1,
        Width::Two => 2,
        Width::Four => 4,
        Width::Eight => 8,
    }
}

/// What the instructions say of values, without following them.
pub(crate) struct Facts {
    constants: Vec<Option<u64>>,
    definitions: Vec<Option<(u32, u32)>>,
    /// For parameters of blocks: one of the values that come in, from above.
    incoming: Vec<Option<Value>>,
}

/// Additions and joins that are looked through for where an address comes from.
const ORIGIN_DEPTH_MAX: u32 = 8;

impl Facts {
    pub(crate) fn of(function: &Function) -> Self {
        let count = function.types.len();
        let mut facts = Self {
            constants: vec![None; count],
            definitions: vec![None; count],
            incoming: vec![None; count],
        };
        for (block, number) in function.blocks.iter().zip(0u32..) {
            for (instruction, at) in block.instructions.iter().zip(0u32..) {
                for &result in &instruction.results {
                    put(&mut facts.definitions, result, (number, at));
                    if let Op::Const(constant) = instruction.op {
                        put(&mut facts.constants, result, constant);
                    }
                }
            }
            for edge in block.terminator.edges().filter(|edge| edge.target.0 > number) {
                let target = function.blocks.get(edge.target.0 as usize);
                let parameters = target.map_or(&[][..], |target| &target.parameters);
                for (&parameter, &from) in parameters.iter().zip(&edge.arguments) {
                    put(&mut facts.incoming, parameter, from);
                }
            }
        }
        facts
    }

    /// The value, if it is known now.
    pub(crate) fn constant(&self, value: Value) -> Option<u64> {
        self.constants.get(value.0 as usize).copied().flatten()
    }

    /// The block that the value is made in, and which of its instructions makes it, unless it is a
    /// parameter.
    pub(crate) fn made_at(&self, value: Value) -> Option<(usize, usize)> {
        let (block, at) = self.definitions.get(value.0 as usize).copied().flatten()?;
        Some((block as usize, at as usize))
    }

    /// What defines it, unless it is a parameter.
    pub(crate) fn definition<'f>(&self, function: &'f Function, value: Value) -> Option<&'f Op> {
        let (block, at) = self.definitions.get(value.0 as usize).copied().flatten()?;
        let block = function.blocks.get(block as usize)?;
        block.instructions.get(at as usize).map(|instruction| &instruction.op)
    }

    /// The constant from which the address is counted, if it shows one.
    fn origin(&self, function: &Function, value: Value, depth: u32) -> Option<u64> {
        if depth > ORIGIN_DEPTH_MAX || self.constant(value).is_some() {
            return self.constant(value);
        }
        let deeper = |value: Value| self.origin(function, value, depth + 1);
        match self.definition(function, value) {
            // The larger of two is a base, the smaller a distance.
            Some(Op::Binary(BinaryOp::Add, a, b)) => deeper(*a).max(deeper(*b)),
            Some(Op::Opaque(a)) => deeper(*a),
            Some(_) => None,
            None => deeper(self.incoming.get(value.0 as usize).copied().flatten()?),
        }
    }
}

fn put<T>(list: &mut [Option<T>], Value(value): Value, what: T) {
    if let Some(slot) = list.get_mut(value as usize) {
        *slot = Some(what);
    }
}

impl Setting {
    /// Whether the entry has a packet.
    pub(crate) const fn has_packet(&self) -> bool {
        self.packet.is_some()
    }

    /// Where this access goes.
    pub(crate) fn target(
        &self,
        access: &Access,
        width: Width,
        function: &Function,
        facts: &Facts,
    ) -> Target {
        let Some(packet) = self.packet else { return Target::Memory };
        let width = bytes(width);
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

const META_LENGTH: u32 = abi::layout::META_LENGTH as u32;
/// Where in the metadata the packet's lengths are, of the whole and in the window.
pub(crate) const META_LENGTHS: [i16; 2] = [0, 4];

impl Plan {
    /// Looks through the unit; callees come after their callers nowhere in
    /// particular, so needs are passed up until nothing changes.
    pub(crate) fn new(unit: &Unit, options: &Options) -> Self {
        let packet = match &options.entry {
            Entry::Packet { window, standalone } => {
                Some(Packet { window: *window, standalone: *standalone })
            }
            Entry::Export(_) => None,
        };
        let pages = unit.memory.map_or((0, 0), |memory| (memory.pages_min, memory.pages_max));
        let mut setting = Setting {
            flavour: options.flavour,
            packet,
            memory_min: u64::from(pages.0) << 16,
            memory_max: u64::from(pages.1) << 16,
            globals: unit.globals.len() as u32,
            reach: 0,
            dynamic_window: false,
            bulk: false,
            emits: false,
            has_memory: unit.memory.is_some(),
        };
        let mut needs: Vec<Needs> =
            unit.functions.iter().map(|function| own_needs(function, &mut setting)).collect();
        while pass_up(unit, &mut needs) {}
        let guards = guards(unit, &setting, &needs).unwrap_or_default();
        if !guards.is_empty() {
            setting.reach = 0;
        }
        Self { setting, needs, guards }
    }
}

fn own_needs(function: &Function, setting: &mut Setting) -> Needs {
    let facts = Facts::of(function);
    let mut needs = Needs::default();
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        let (access, width) = match &instruction.op {
            Op::Load { access, width, .. } | Op::Store { access, width, .. } => (access, *width),
            Op::Host(host, _) => {
                needs.context |= setting.has_packet() && takes_packet(*host);
                needs.changes_packet |=
                    setting.has_packet() && moves_packet(*host, setting.flavour);
                setting.emits |= matches!(
                    host,
                    HostFunction::Event | HostFunction::MessageSend | HostFunction::PacketSend
                );
                continue;
            }
            Op::MemoryCopy(..) | Op::MemoryFill(..) => {
                setting.bulk = true;
                needs.context |= setting.has_packet();
                setting.dynamic_window |= setting.has_packet();
                continue;
            }
            _ => continue,
        };
        setting.has_memory |= access.region == Region::Behind;
        match setting.target(access, width, function, &facts) {
            Target::Memory | Target::Metadata(_) => {}
            Target::Packet(at) => {
                needs.pointers = true;
                setting.reach = setting.reach.max(at as u32 + bytes(width));
            }
            Target::PacketDynamic => {
                (needs.pointers, needs.data_end, needs.spare) = (true, true, true);
                setting.dynamic_window = true;
            }
            Target::Any(likely) => {
                (needs.context, needs.spare) = (true, true);
                needs.pointers |= likely == Likely::Window;
                needs.data_end |= likely == Likely::Window;
                setting.dynamic_window = true;
            }
        }
    }
    needs.context |= needs.pointers;
    needs
}

const fn takes_packet(host: HostFunction) -> bool {
    !matches!(
        host,
        HostFunction::ParamLoad
            | HostFunction::PortFind
            | HostFunction::NowMs
            | HostFunction::StateWrite
            | HostFunction::StateRead
            | HostFunction::QueueWatch
    )
}

/// Whether the packet's pointers are void afterwards: at tc after a write too.
pub(crate) fn moves_packet(host: HostFunction, flavour: Flavour) -> bool {
    match host {
        HostFunction::PacketResizeHead | HostFunction::PacketResizeTail => true,
        HostFunction::PacketStore => flavour == Flavour::Tc,
        _ => false,
    }
}

fn pass_up(unit: &Unit, needs: &mut [Needs]) -> bool {
    let mut changed = false;
    for (position, function) in unit.functions.iter().enumerate() {
        for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
            let Op::Call(callee, _) = instruction.op else { continue };
            let Some(&below) = needs.get(callee as usize) else { continue };
            let Some(own) = needs.get_mut(position) else { continue };
            let before = *own;
            own.context |= below.context;
            own.changes_packet |= below.changes_packet;
            changed |= *own != before;
        }
    }
    changed
}
