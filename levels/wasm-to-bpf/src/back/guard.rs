//! Where a module asks for the packet's length itself before it touches the
//! packet, that question is put to the packet's end, and is what the verifier
//! wants to see: behind it the packet is long enough, and elsewhere nobody
//! looks. Then nothing need be added behind a short one.
//!
//! ```text
//! on_packet ─▶ window_length < 54 ─ yes ─▶ no access of the packet
//!              (data + 54 > data_end)
//!                     └ no ─▶ accesses below 54
//! ```

use std::collections::BTreeMap;

use abi::HostFunction;

use super::plan::{Facts, META_LENGTHS, Needs, Setting, Target, bytes};
use crate::Flavour;
use crate::ir::{BlockId, CompareOp, Function, Op, Terminator, Unit, Value, Width};
use crate::passes::graph::Graph;

/// A branch that asks whether the packet has so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) length: u32,
    /// Whether its first way is the one of shorter packets.
    pub(crate) short_first: bool,
}

/// Branches of the entry, by their blocks, such that each access of the packet
/// at a constant address is behind one that asks for as much. Nothing when there
/// are accesses behind none.
///
/// At tc a packet may be as long and not in one piece; at XDP the window is.
pub(crate) fn guards(
    unit: &Unit,
    setting: &Setting,
    needs: &[Needs],
) -> Option<BTreeMap<usize, Guard>> {
    let (_, callees) = needs.split_first()?;
    let is_plain = setting.flavour == Flavour::Xdp
        && setting.reach > 0
        && !needs.iter().any(|needs| needs.changes_packet)
        && !callees.iter().any(|needs| needs.pointers)
        && unit.functions.iter().all(|function| keeps_metadata(function, setting));
    let entry = unit.functions.first().filter(|_| is_plain)?;
    let facts = Facts::of(entry);
    let graph = Graph::of(entry);
    let ways_in = ways_in(entry);
    let candidates: Vec<(usize, Guard, usize)> = (0..entry.blocks.len())
        .filter_map(|number| {
            let (guard, long) = guard(entry, number, setting, &facts)?;
            (ways_in.get(long) == Some(&1)).then_some((number, guard, long))
        })
        .collect();
    let mut used = BTreeMap::new();
    for number in 0..entry.blocks.len() {
        let Some(end) = farthest(entry, number, setting, &facts) else { continue };
        let &(at, guard, _) = candidates
            .iter()
            .find(|(_, guard, long)| guard.length >= end && dominates(&graph, *long, number))?;
        used.insert(at, guard);
    }
    Some(used)
}

/// Whether the metadata is what the front door wrote as long as the function runs.
fn keeps_metadata(function: &Function, setting: &Setting) -> bool {
    let facts = Facts::of(function);
    function.blocks.iter().flat_map(|block| &block.instructions).all(|instruction| {
        match &instruction.op {
            Op::Store { access, width, .. } => !matches!(
                setting.target(access, *width, function, &facts),
                Target::Metadata(_) | Target::Any(_)
            ),
            Op::MemoryCopy(..) | Op::MemoryFill(..) => false,
            Op::Host(host, _) => *host != HostFunction::PacketLoad,
            _ => true,
        }
    })
}

/// Where the block's farthest access of the packet at a constant address ends.
fn farthest(function: &Function, number: usize, setting: &Setting, facts: &Facts) -> Option<u32> {
    let ends = function.blocks.get(number)?.instructions.iter().filter_map(|instruction| {
        let (Op::Load { access, width, .. } | Op::Store { access, width, .. }) = &instruction.op
        else {
            return None;
        };
        match setting.target(access, *width, function, facts) {
            Target::Packet(at) => Some(at as u32 + bytes(*width)),
            _ => None,
        }
    });
    ends.max()
}

/// Over how many edges each block is entered.
fn ways_in(function: &Function) -> Vec<u32> {
    let mut ways_in = vec![0; function.blocks.len()];
    for edge in function.blocks.iter().flat_map(|block| block.terminator.edges()) {
        if let Some(ways) = ways_in.get_mut(edge.target.0 as usize) {
            *ways += 1;
        }
    }
    ways_in
}

fn dominates(graph: &Graph, above: usize, mut block: usize) -> bool {
    while block != above {
        match graph.dominator.get(block) {
            Some(next) if next.0 as usize != block => block = next.0 as usize,
            _ => return false,
        }
    }
    true
}

/// What the block's branch asks, if that is whether the packet has so many bytes
/// of its window, and where longer ones go.
fn guard(
    function: &Function,
    number: usize,
    setting: &Setting,
    facts: &Facts,
) -> Option<(Guard, usize)> {
    let Terminator::Branch(condition, yes, no) = &function.blocks.get(number)?.terminator else {
        return None;
    };
    let Op::Compare(op, a, b) = facts.definition(function, *condition)? else { return None };
    let is_length = |value: Value| {
        let Some(Op::Load { access, width: Width::Four, .. }) = facts.definition(function, value)
        else {
            return false;
        };
        matches!(
            setting.target(access, Width::Four, function, facts),
            Target::Metadata(at) if META_LENGTHS.contains(&at)
        )
    };
    let (op, constant) = match (facts.constant(*a), facts.constant(*b)) {
        (None, Some(constant)) if is_length(*a) => (*op, constant),
        (Some(constant), None) if is_length(*b) => (op.swapped(), constant),
        _ => return None,
    };
    let constant = u32::try_from(constant).ok()?;
    let (length, short_first) = match op {
        CompareOp::LtU => (constant, true),
        CompareOp::LeU => (constant.checked_add(1)?, true),
        CompareOp::GeU => (constant, false),
        CompareOp::GtU => (constant.checked_add(1)?, false),
        _ => return None,
    };
    let BlockId(long) = if short_first { no.target } else { yes.target };
    let in_window = length <= setting.packet?.window;
    in_window.then_some((Guard { length, short_first }, long as usize))
}
