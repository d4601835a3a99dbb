//! Requirements of each function of a unit beyond its own code, computed before selection: the
//! context and the packet's pointers.

use std::collections::BTreeMap;

use abi::HostFunction;

use super::facts::Facts;
use super::guard::{Guard, guards};
use super::setting::{Likely, Needs, Packet, Setting, Target, moves_packet};
use crate::ir::{Function, Op, Region, Unit};
use crate::{Entry, Options};

/// Properties of the unit as a whole.
pub(crate) struct Plan {
    pub(crate) setting: Setting,
    pub(crate) needs: Vec<Needs>,
    /// Branches of the entry that make the packet accessible, by their blocks.
    pub(crate) guards: BTreeMap<usize, Guard>,
}

impl Plan {
    /// Analyses the unit; callees are in no particular order, so needs are propagated to callers
    /// until nothing changes.
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
                setting.reach = setting.reach.max(at as u32 + width.bytes());
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
