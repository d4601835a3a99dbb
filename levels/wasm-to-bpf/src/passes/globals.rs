//! Mutable globals, mainly the stack pointer: removes reads of known values,
//! writes that change nothing and writes that are never read.
//!
//! ```text
//! forward:   the content of each global, a value or a constant
//! backward:  whether the content is read before the next write
//! ```

use foldhash::HashMap;

use super::alias::Aliases;
use super::fold::constants;
use super::graph::predecessors;
use crate::ir::{BlockId, Function, Global, Op, Terminator, Value};

/// Most walks until the contents are stable: about as many as loops are nested. Without a result by
/// then nothing is changed.
const WALKS_MAX: u32 = 32;

/// Limit of globals times blocks: above it the analysis would take too long and too much memory.
const STATES_MAX: usize = 4_000_000;

/// Facts about all functions of the module.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) globals: &'a [Global],
    /// Global that every function restores: the stack pointer.
    pub(super) kept: Option<u32>,
    /// True for the entry of a packet: then the restored global has its initial value at the
    /// beginning, and nothing is read after a trap.
    pub(super) is_packet_entry: bool,
    /// True if no global is read after a trap.
    pub(super) traps_forget: bool,
}

/// Content of a global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Value(Value),
    Number(u64),
    Anything,
}

/// Runs over a function whose blocks are in order.
pub(super) fn run(function: &mut Function, known: Known<'_>) {
    let uses_globals = function.blocks.iter().flat_map(|block| &block.instructions);
    if !uses_globals
        .into_iter()
        .any(|found| matches!(found.op, Op::GlobalSet(..) | Op::GlobalGet(_)))
    {
        return;
    }
    if function.blocks.len().saturating_mul(known.globals.len()) > STATES_MAX {
        return;
    }
    forward(function, known);
    backward(function, known);
    forward(function, known);
}

fn forward(function: &mut Function, known: Known<'_>) {
    let numbers = constants(function);
    let predecessors_in = predecessors(&function.blocks);
    let mut ends: Vec<Option<Vec<Holds>>> = vec![None; function.blocks.len()];
    // The contents at the end of a block that was not walked yet are assumed to agree, until a walk
    // through all blocks changes nothing.
    let mut changed = true;
    let mut walks = 0;
    while changed {
        changed = false;
        walks += 1;
        if walks > WALKS_MAX {
            return;
        }
        for (index, block) in function.blocks.iter().enumerate() {
            let mut holds = begin(index, &predecessors_in[index], &ends, known);
            for instruction in &block.instructions {
                step(&instruction.op, &instruction.results, &mut holds, &numbers, known);
            }
            if ends[index].as_ref() != Some(&holds) {
                ends[index] = Some(holds);
                changed = true;
            }
        }
    }
    rewrite(function, &predecessors_in, &ends, &numbers, known);
}

/// Returns the contents of the globals at the beginning of a block.
fn begin(
    index: usize,
    predecessors_in: &[BlockId],
    ends: &[Option<Vec<Holds>>],
    known: Known<'_>,
) -> Vec<Holds> {
    if index == 0 {
        let kept = known.kept.filter(|_| known.is_packet_entry);
        let first = |(index, global): (u32, &Global)| match kept {
            Some(kept) if kept == index => Holds::Number(global.initial),
            _ => Holds::Anything,
        };
        return (0..).zip(known.globals).map(first).collect();
    }
    let mut ends = predecessors_in.iter().filter_map(|block| ends[block.0 as usize].as_ref());
    let mut holds =
        ends.next().cloned().unwrap_or_else(|| vec![Holds::Anything; known.globals.len()]);
    for other in ends {
        for (mine, other) in holds.iter_mut().zip(other) {
            if mine != other {
                *mine = Holds::Anything;
            }
        }
    }
    holds
}

fn step(
    op: &Op,
    results: &[Value],
    holds: &mut [Holds],
    numbers: &HashMap<Value, u64>,
    known: Known<'_>,
) {
    match op {
        Op::GlobalSet(global, value) => holds[*global as usize] = held(*value, numbers),
        Op::GlobalGet(global) => {
            if let (Holds::Anything, [result]) = (holds[*global as usize], results) {
                holds[*global as usize] = Holds::Value(*result);
            }
        }
        Op::Call(..) => {
            for (index, holds) in (0..).zip(holds) {
                if known.kept != Some(index) {
                    *holds = Holds::Anything;
                }
            }
        }
        _ => {}
    }
}

fn held(value: Value, numbers: &HashMap<Value, u64>) -> Holds {
    numbers.get(&value).map_or(Holds::Value(value), |number| Holds::Number(*number))
}

fn rewrite(
    function: &mut Function,
    predecessors_in: &[Vec<BlockId>],
    ends: &[Option<Vec<Holds>>],
    numbers: &HashMap<Value, u64>,
    known: Known<'_>,
) {
    let mut aliases = Aliases::none(function);
    for (index, block) in function.blocks.iter_mut().enumerate() {
        let mut holds = begin(index, &predecessors_in[index], ends, known);
        block.instructions.retain_mut(|instruction| {
            let keep = match (&instruction.op, &instruction.results[..]) {
                (Op::GlobalGet(global), [result]) => match holds[*global as usize] {
                    Holds::Value(value) => {
                        aliases.set(*result, value);
                        false
                    }
                    Holds::Number(number) => {
                        instruction.op = Op::Const(number);
                        true
                    }
                    Holds::Anything => true,
                },
                (Op::GlobalSet(global, value), _) => {
                    holds[*global as usize] == Holds::Anything
                        || holds[*global as usize] != held(*value, numbers)
                }
                _ => true,
            };
            step(&instruction.op, &instruction.results, &mut holds, numbers, known);
            keep
        });
    }
    aliases.apply(function);
}

fn backward(function: &mut Function, known: Known<'_>) {
    let count = known.globals.len();
    let mut begins: Vec<Vec<bool>> = vec![vec![false; count]; function.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..function.blocks.len()).rev() {
            let mut read = read_at_end(function, index, &begins, known);
            for instruction in function.blocks[index].instructions.iter().rev() {
                unstep(&instruction.op, &mut read, known);
            }
            if begins[index] != read {
                begins[index] = read;
                changed = true;
            }
        }
    }
    for index in 0..function.blocks.len() {
        let mut read = read_at_end(function, index, &begins, known);
        let instructions = &mut function.blocks[index].instructions;
        let mut keep = vec![true; instructions.len()];
        for (keep, instruction) in keep.iter_mut().zip(instructions.iter()).rev() {
            if let Op::GlobalSet(global, _) = instruction.op {
                *keep = read[global as usize];
            }
            unstep(&instruction.op, &mut read, known);
        }
        let mut keep = keep.into_iter();
        instructions.retain(|_| keep.next().unwrap_or(true));
    }
}

/// Returns the globals that are read after a block, before they are written.
fn read_at_end(
    function: &Function,
    index: usize,
    begins: &[Vec<bool>],
    known: Known<'_>,
) -> Vec<bool> {
    let terminator = &function.blocks[index].terminator;
    let by_others = match terminator {
        Terminator::Return(_) => true,
        Terminator::Trap(..) => !known.traps_forget,
        _ => false,
    };
    let mut read = vec![by_others; known.globals.len()];
    for edge in terminator.edges() {
        for (mine, other) in read.iter_mut().zip(&begins[edge.target.0 as usize]) {
            *mine |= other;
        }
    }
    read
}

fn unstep(op: &Op, read: &mut [bool], known: Known<'_>) {
    match op {
        Op::GlobalSet(global, _) => read[*global as usize] = false,
        Op::GlobalGet(global) => read[*global as usize] = true,
        Op::Call(..) => read.fill(true),
        // A trap in between: the instance may be inspected afterwards.
        Op::TrapIf(..) | Op::MemoryCopy(..) | Op::MemoryFill(..) if !known.traps_forget => {
            read.fill(true);
        }
        Op::Load { access, .. } | Op::Store { access, .. }
            if access.bounds_check && !known.traps_forget =>
        {
            read.fill(true);
        }
        _ => {}
    }
}
