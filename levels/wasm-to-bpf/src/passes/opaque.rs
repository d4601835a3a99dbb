//! Hiding of numbers from the verifier. The verifier follows every path with the numbers it knows:
//! a counter with a constant start makes it unroll the loop, and flags set on joined paths make it
//! walk each combination. An unknown value makes states equal, so that it visits each block once.
//!
//! A kernel may also split a value that it knows to be -1 or 0 at a mask, into one path for each;
//! when 8,192 paths are pending, Linux 6.18.44 does so without a capacity check, and crashes. Such
//! values must be unknown to it (`signs.rs`).
//!
//! Runs last, when every edge into a loop comes from a block of its own.

use foldhash::HashSet;
use std::collections::BTreeMap;

use super::{fold, signs};
use crate::ir::{BinaryOp, CompareOp, Function, Instruction, Op, Place, Terminator, Value, Width};

/// Most instructions that the verifier may walk because of flags that are not hidden, in all
/// functions of a program: 30 ms, and a thirtieth of its limit.
const WALKED_MAX: u64 = 32_768;

/// Inserts [`Op::Opaque`] where loops are entered and where flags join, in one of `functions`
/// functions of a program.
pub(super) fn run(function: &mut Function, functions: usize) {
    let by_itself = tame(function, &[]);
    let known = tame(function, &asked(function));
    let signs = possible_signs(function);
    enter_loops(function, &known);
    masked_signs(function, &signs);
    join_flags(function, &by_itself, WALKED_MAX / functions.max(1) as u64);
}

/// Returns the values that the verifier may know to be -1 or 0, but not which of the two.
pub(crate) fn possible_signs(function: &Function) -> Vec<bool> {
    let by_itself = tame(function, &[]);
    let small = tame(function, &ordered(function, &by_itself));
    signs::signs(function, &small)
}

fn enter_loops(function: &mut Function, known: &[bool]) {
    let headers: Vec<bool> = function.blocks.iter().map(|block| block.is_loop_header).collect();
    for index in 0..function.blocks.len() {
        let Terminator::Jump(edge) = &function.blocks[index].terminator else { continue };
        let target = edge.target.0 as usize;
        if !headers[target] || target <= index {
            continue;
        }
        let arguments = edge.arguments.clone();
        let hidden: Vec<Value> =
            arguments
                .into_iter()
                .map(|value| {
                    if known[value.0 as usize] {
                        hide(function, index, value, false)
                    } else {
                        value
                    }
                })
                .collect();
        if let Terminator::Jump(edge) = &mut function.blocks[index].terminator {
            edge.arguments = hidden;
        }
    }
}

/// Hides one of two signs of which each may be the mask of the other. Where only one operand is a
/// sign, the result goes to the register of the other (`back/lower/arithmetic.rs`): the verifier
/// splits no other.
fn masked_signs(function: &mut Function, signs: &[bool]) {
    let is_sign = |value: Value| signs.get(value.0 as usize).copied().unwrap_or_default();
    for block in 0..function.blocks.len() {
        let instructions = std::mem::take(&mut function.blocks[block].instructions);
        let mut out = Vec::with_capacity(instructions.len());
        for mut instruction in instructions {
            if let Op::Binary(BinaryOp::And | BinaryOp::Or, a, b) = &mut instruction.op
                && is_sign(*a)
                && is_sign(*b)
            {
                let hidden = new_value(function, *a);
                let op = Op::Opaque(std::mem::replace(a, hidden));
                out.push(Instruction { results: vec![hidden], op, place: instruction.place });
            }
            out.push(instruction);
        }
        function.blocks[block].instructions = out;
    }
}

/// Hides values that come from joins and decide branches, except for as many joins as the verifier
/// can be left to walk each combination of.
fn join_flags(function: &mut Function, tame: &[bool], walked_max: u64) {
    let deciding = deciding(function);
    let is_flag = |Value(value): &Value| tame[*value as usize] && deciding[*value as usize];
    let mut joins = joins(function, is_flag);
    joins.sort_by_key(|join| join.ways);
    let mut walked: u64 =
        function.blocks.iter().map(|block| block.instructions.len() as u64 + 1).sum();
    joins.retain(|join| {
        walked = walked.saturating_mul(join.ways);
        walked > walked_max
    });
    let flags = joins
        .into_iter()
        .flat_map(|join| join.flags.into_iter().map(move |flag| (join.block, flag)));
    hide_joined(function, flags.collect());
}

/// Block where flags join.
struct Join {
    block: usize,
    flags: Vec<Value>,
    /// Number of different combinations of incoming constants.
    ways: u64,
}

fn joins(function: &Function, is_flag: impl Fn(&Value) -> bool) -> Vec<Join> {
    let constants = fold::constants(function);
    // Equal constants are one, whatever defines them.
    let known = |value: Value| constants.get(&value).map_or(Err(value), |&constant| Ok(constant));
    let mut incoming: BTreeMap<usize, HashSet<Vec<_>>> = BTreeMap::new();
    for edge in function.blocks.iter().flat_map(|block| block.terminator.edges()) {
        let target = edge.target.0 as usize;
        let block = &function.blocks[target];
        if block.is_loop_header {
            continue;
        }
        let pairs = block.parameters.iter().zip(&edge.arguments);
        let flags = pairs.filter(|(parameter, _)| is_flag(parameter));
        incoming.entry(target).or_default().insert(flags.map(|(_, &from)| known(from)).collect());
    }
    incoming
        .into_iter()
        .map(|(block, ways)| Join {
            block,
            flags: function.blocks[block].parameters.iter().copied().filter(&is_flag).collect(),
            ways: ways.len() as u64,
        })
        .filter(|join| !join.flags.is_empty())
        .collect()
}

fn hide_joined(function: &mut Function, flags: Vec<(usize, Value)>) {
    let mut instead: Vec<Value> = (0..).map(Value).take(function.types.len()).collect();
    for (block, value) in flags {
        instead[value.0 as usize] = hide(function, block, value, true);
    }
    for block in &mut function.blocks {
        let replace = |value: &mut Value| {
            if let Some(other) = instead.get(value.0 as usize) {
                *value = *other;
            }
        };
        for instruction in &mut block.instructions {
            if !matches!(instruction.op, Op::Opaque(_)) {
                instruction.op.for_each_use_mut(replace);
            }
        }
        block.terminator.for_each_use_mut(replace);
    }
}

fn hide(function: &mut Function, block: usize, value: Value, first: bool) -> Value {
    let hidden = new_value(function, value);
    let instructions = &mut function.blocks[block].instructions;
    let at = if first { 0 } else { instructions.len() };
    let place = instructions.last().map_or(Place::default(), |last| last.place);
    let instruction = Instruction { results: vec![hidden], op: Op::Opaque(value), place };
    instructions.insert(at, instruction);
    hidden
}

/// Makes another value of the same type.
fn new_value(function: &mut Function, like: Value) -> Value {
    let new = Value(u32::try_from(function.types.len()).unwrap_or(u32::MAX));
    function.types.push(function.types[like.0 as usize]);
    new
}

/// Returns the values that the verifier may know, as a number or as a small range, on some path,
/// starting from those in `asked`. Parameters of headers are excluded: they are hidden on entry.
fn tame(function: &Function, asked: &[bool]) -> Vec<bool> {
    let mut tame = asked.to_vec();
    tame.resize(function.types.len(), false);
    // Without the back edges one walk in order sees every value before its uses.
    for block in &function.blocks {
        for instruction in &block.instructions {
            if let [result] = instruction.results[..] {
                tame[result.0 as usize] |= is_tame(&instruction.op, |value| tame[value.0 as usize]);
            }
        }
        for edge in block.terminator.edges() {
            let target = &function.blocks[edge.target.0 as usize];
            if target.is_loop_header {
                continue;
            }
            for (parameter, argument) in target.parameters.iter().zip(&edge.arguments) {
                tame[parameter.0 as usize] |= tame[argument.0 as usize];
            }
        }
    }
    tame
}

/// Returns the values found to be above or below those that the verifier knows: from there it knows
/// a range of them.
fn ordered(function: &Function, tame: &[bool]) -> Vec<bool> {
    let mut ordered = vec![false; function.types.len()];
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        if let Op::Compare(op, a, b) = instruction.op
            && !matches!(op, CompareOp::Eq | CompareOp::Ne)
        {
            ordered[a.0 as usize] |= tame[b.0 as usize];
            ordered[b.0 as usize] |= tame[a.0 as usize];
        }
    }
    ordered
}

/// Returns the values that are compared with another: on one path from there the verifier knows
/// them, as a number or a range.
fn asked(function: &Function) -> Vec<bool> {
    let mut asked = vec![false; function.types.len()];
    for instruction in function.blocks.iter().flat_map(|block| &block.instructions) {
        if let Op::Compare(_, a, b) = instruction.op {
            asked[a.0 as usize] = true;
            asked[b.0 as usize] = true;
        }
    }
    for block in &function.blocks {
        if let Terminator::Branch(value, ..) | Terminator::Switch(value, ..) = &block.terminator {
            asked[value.0 as usize] = true;
        }
    }
    asked
}

fn is_tame(op: &Op, tame: impl Fn(Value) -> bool) -> bool {
    match op {
        Op::Const(_) | Op::Compare(..) | Op::Unary(..) | Op::MemorySize => true,
        Op::Load { width, .. } => matches!(width, Width::One | Width::Two),
        // A shift by a constant. Of a sign it tracks both numbers separately at a mask.
        Op::Binary(BinaryOp::ShrS, _, b) => tame(*b),
        Op::Binary(BinaryOp::And | BinaryOp::ShrU | BinaryOp::RemU, a, b) => tame(*a) || tame(*b),
        Op::Binary(_, a, b) => tame(*a) && tame(*b),
        Op::Select(_, b, c) => tame(*b) || tame(*c),
        Op::ExtendUnsigned(a) | Op::ExtendSigned(a) | Op::Wrap(a) => tame(*a),
        _ => false,
    }
}

/// Returns the values that decide a branch, directly or through computations: from the branches
/// backwards.
fn deciding(function: &Function) -> Vec<bool> {
    let mut sources: Vec<Vec<Value>> = vec![Vec::new(); function.types.len()];
    let mut work = Vec::new();
    for block in &function.blocks {
        for instruction in &block.instructions {
            if let [result] = instruction.results[..]
                && instruction.op.is_pure()
            {
                instruction.op.for_each_use(|value| sources[result.0 as usize].push(value));
            }
            if let Op::TrapIf(value, _) = instruction.op {
                work.push(value);
            }
        }
        if let Terminator::Branch(value, ..) | Terminator::Switch(value, ..) = &block.terminator {
            work.push(*value);
        }
        for edge in block.terminator.edges() {
            let target = &function.blocks[edge.target.0 as usize];
            for (parameter, argument) in target.parameters.iter().zip(&edge.arguments) {
                sources[parameter.0 as usize].push(*argument);
            }
        }
    }
    let mut deciding = vec![false; function.types.len()];
    while let Some(value) = work.pop() {
        if !std::mem::replace(&mut deciding[value.0 as usize], true) {
            work.extend(&sources[value.0 as usize]);
        }
    }
    deciding
}
