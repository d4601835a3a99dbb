//! Packet length guards. Where a module checks the packet's length itself before it touches the
//! packet, the check is emitted as a comparison with the packet's end, which is the form that the
//! verifier needs: behind it the packet is long enough, and elsewhere it is not accessed. Then
//! short packets need no padding.
//!
//! ```text
//! on_packet ─▶ window_length < 54 ─ yes ─▶ no access of the packet
//!              (data + 54 > data_end)
//!                     └ no ─▶ accesses below 54
//! ```
//!
//! The same holds where the module checks whether the packet extends beyond a run-time offset
//! ([`Op::PacketLength`]): accesses there, up to the checked length, are plain loads and stores.

use std::collections::BTreeMap;

use abi::HostFunction;

use super::facts::Facts;
use super::setting::{META_LENGTHS, Needs, Setting, Target, moves_packet};
use crate::Flavour;
use crate::ir::{
    BinaryOp, BlockId, CompareOp, Function, Instruction, Op, Terminator, Unit, Value, Width,
};
use crate::passes::graph::Graph;

/// Branch that checks whether the packet has a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Number of bytes, from the packet's beginning or from `address`.
    pub(crate) length: u32,
    /// Offset in the packet, known only at run time.
    pub(crate) address: Option<Value>,
    /// Block for packets of that length; this branch is its only predecessor.
    pub(crate) long: usize,
    /// True if the branch's first edge is the one of shorter packets.
    pub(crate) short_first: bool,
}

/// Returns branches of the entry, by their blocks, such that each access of the packet at a
/// constant address is behind one that checks for as much, and those that check for bytes at
/// run-time offsets. Empty when an access at a constant address is behind no check.
///
/// A packet at tc may be that long and not linear; at XDP the window is linear. Behind a call that
/// moves the packet only checks after the call count.
pub(crate) fn guards(
    unit: &Unit,
    setting: &Setting,
    needs: &[Needs],
) -> Option<BTreeMap<usize, Guard>> {
    let (own, callees) = needs.split_first()?;
    let is_plain = setting.flavour == Flavour::Xdp
        && !callees.iter().any(|needs| needs.pointers || needs.changes_packet)
        && unit.functions.iter().all(|function| keeps_metadata(function, setting));
    let entry = unit.functions.first().filter(|_| is_plain)?;
    let facts = Facts::of(entry);
    let graph = Graph::of(entry);
    let predecessors_in = predecessors_in(entry);
    let epochs = Epochs::of(entry, setting);
    let candidates: Vec<(usize, Guard)> = (0..entry.blocks.len())
        .filter_map(|number| Some((number, guard(entry, number, setting, &facts, &epochs)?)))
        .filter(|(_, guard)| predecessors_in.get(guard.long) == Some(&1))
        .collect();
    // Bytes added to a packet are not in its length.
    let mut used: BTreeMap<usize, Guard> = candidates
        .iter()
        .filter(|(_, guard)| guard.address.is_some() && own.pointers && own.data_end)
        .copied()
        .collect();
    for number in 0..entry.blocks.len() {
        for (epoch, end) in farthest(entry, number, setting, &facts, &epochs) {
            let &(at, guard) = candidates.iter().find(|(at, guard)| {
                guard.address.is_none()
                    && guard.length >= end
                    && epochs.ends.get(*at) == Some(&epoch)
                    && dominates(&graph, guard.long, number)
            })?;
            used.insert(at, guard);
        }
    }
    Some(used)
}

/// Parts of a function between which the packet may move. If one position dominates another and
/// both are in one epoch, the packet does not move from the first to the other.
struct Epochs {
    /// Epochs at the beginning and at the end of each block.
    begins: Vec<u32>,
    ends: Vec<u32>,
    flavour: Flavour,
}

impl Epochs {
    fn of(function: &Function, setting: &Setting) -> Self {
        let count = function.blocks.len();
        let flavour = setting.flavour;
        let mut epochs = Self { begins: vec![0; count], ends: vec![0; count], flavour };
        let mut predecessors: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (number, block) in function.blocks.iter().enumerate() {
            for edge in block.terminator.edges() {
                if let Some(before) = predecessors.get_mut(edge.target.0 as usize) {
                    before.push(number);
                }
            }
        }
        let moves = |number: usize| {
            function.blocks.get(number).map_or(0, |block| epochs.moves(&block.instructions))
        };
        let moves: Vec<u32> = (0..count).map(moves).collect();
        // An epoch begins behind each call that moves the packet, and where several meet.
        let mut next = 1;
        for number in 0..count {
            let before = predecessors.get(number).map(Vec::as_slice).unwrap_or_default();
            let from = |from: &usize| epochs.ends.get(*from).copied();
            let same = before.first().and_then(from);
            let returns = before.iter().any(|from| *from >= number);
            let begin = match same {
                None if number == 0 => 0,
                Some(same)
                    if before.iter().all(|before| from(before) == Some(same))
                        && !(returns && moves.iter().skip(number).any(|moves| *moves > 0)) =>
                {
                    same
                }
                _ => {
                    next += 1;
                    next - 1
                }
            };
            epochs.begins[number] = begin;
            let moves = moves.get(number).copied().unwrap_or(0);
            epochs.ends[number] = if moves == 0 { begin } else { next + moves - 1 };
            next += moves;
        }
        epochs
    }

    /// Counts the instructions that may move the packet.
    fn moves(&self, instructions: &[Instruction]) -> u32 {
        let moves = |instruction: &&Instruction| matches!(&instruction.op, Op::Host(host, _) if moves_packet(*host, self.flavour));
        instructions.iter().filter(moves).count() as u32
    }

    /// Returns the epoch in front of an instruction of a block.
    fn at(&self, function: &Function, number: usize, at: usize) -> Option<u32> {
        let instructions = &function.blocks.get(number)?.instructions;
        let ahead = self.moves(instructions.get(at..)?);
        match self.moves(instructions.get(..at)?) {
            0 => self.begins.get(number).copied(),
            _ => Some(self.ends.get(number)? - ahead),
        }
    }
}

/// Returns true if the function never changes the metadata that the front door wrote.
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

/// Returns the end of the block's farthest access of the packet at a constant address, for each
/// epoch.
fn farthest(
    function: &Function,
    number: usize,
    setting: &Setting,
    facts: &Facts,
    epochs: &Epochs,
) -> BTreeMap<u32, u32> {
    let mut ends = BTreeMap::new();
    let block = function.blocks.get(number);
    let instructions = block.map_or(&[][..], |block| &block.instructions);
    for (at, instruction) in instructions.iter().enumerate() {
        let (Op::Load { access, width, .. } | Op::Store { access, width, .. }) = &instruction.op
        else {
            continue;
        };
        if let Target::Packet(offset) = setting.target(access, *width, function, facts)
            && let Some(epoch) = epochs.at(function, number, at)
        {
            let end: &mut u32 = ends.entry(epoch).or_default();
            *end = (*end).max(offset as u32 + width.bytes());
        }
    }
    ends
}

/// Returns the number of edges into each block.
fn predecessors_in(function: &Function) -> Vec<u32> {
    let mut predecessors_in = vec![0; function.blocks.len()];
    for edge in function.blocks.iter().flat_map(|block| block.terminator.edges()) {
        if let Some(ways) = predecessors_in.get_mut(edge.target.0 as usize) {
            *ways += 1;
        }
    }
    predecessors_in
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

/// Returns the guard of the block's branch, if it checks whether the packet has a number of bytes
/// of its window.
fn guard(
    function: &Function,
    number: usize,
    setting: &Setting,
    facts: &Facts,
    epochs: &Epochs,
) -> Option<Guard> {
    let Terminator::Branch(condition, yes, no) = &function.blocks.get(number)?.terminator else {
        return None;
    };
    let Op::Compare(op, a, b) = facts.definition(function, *condition)? else { return None };
    if let Some((op, bytes)) = asked_of_packet(function, facts, *op, [*a, *b]) {
        let (address, number) = match facts.definition(function, bytes) {
            Some(Op::Binary(BinaryOp::Add, x, c)) => {
                facts.constant(*c).map_or((bytes, 0), |number| (*x, number))
            }
            _ => (bytes, 0),
        };
        let (more, short_first) = longer(op)?;
        let length = u32::try_from(number).ok()?.checked_add(more)?;
        let BlockId(long) = if short_first { no.target } else { yes.target };
        let address = Some(address);
        return Some(Guard { length, address, long: long as usize, short_first });
    }
    let is_length = |value: Value| {
        let Some(Op::Load { access, width: Width::Four, .. }) = facts.definition(function, value)
        else {
            return false;
        };
        // The packet has that length until it moves.
        let read_in = facts.made_at(value).and_then(|(block, at)| epochs.at(function, block, at));
        let is_now = read_in.is_some() && read_in.as_ref() == epochs.ends.get(number);
        let target = setting.target(access, Width::Four, function, facts);
        is_now && matches!(target, Target::Metadata(at) if META_LENGTHS.contains(&at))
    };
    let (op, constant) = match (facts.constant(*a), facts.constant(*b)) {
        (None, Some(constant)) if is_length(*a) => (*op, constant),
        (Some(constant), None) if is_length(*b) => (op.swapped(), constant),
        _ => return None,
    };
    let constant = u32::try_from(constant).ok()?;
    let (more, short_first) = longer(op.swapped())?;
    let length = constant.checked_add(more)?;
    let BlockId(long) = if short_first { no.target } else { yes.target };
    let in_window = length <= setting.packet?.window;
    let long = long as usize;
    in_window.then_some(Guard { length, address: None, long, short_first })
}

/// Returns the number of bytes beyond `n` that a packet certainly has, or lacks, where `n op
/// length` holds, and whether it lacks them.
const fn longer(op: CompareOp) -> Option<(u32, bool)> {
    match op {
        CompareOp::LtU => Some((1, false)),
        CompareOp::LeU => Some((0, false)),
        CompareOp::GeU => Some((1, true)),
        CompareOp::GtU => Some((0, true)),
        _ => None,
    }
}

/// Returns the left operand of a comparison with the packet's length.
fn asked_of_packet(
    function: &Function,
    facts: &Facts,
    op: CompareOp,
    [a, b]: [Value; 2],
) -> Option<(CompareOp, Value)> {
    let is_length = |value| matches!(facts.definition(function, value), Some(Op::PacketLength));
    match (is_length(a), is_length(b)) {
        (false, true) => Some((op, a)),
        (true, false) => Some((op.swapped(), b)),
        _ => None,
    }
}
