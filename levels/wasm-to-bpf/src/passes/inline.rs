//! Inlining. A call of eBPF costs 8 ns and preserves only four registers; a function that is called
//! once, or is small, is inlined.

use std::collections::BTreeMap;

use crate::ir::{Block, BlockId, Edge, Function, Instruction, Op, Terminator, Unit, Value};
use crate::refusal::{Reason, Refusal};

/// Most instructions of a function that is always inlined.
const SMALL: usize = 60;
/// Most instructions that inlining one function everywhere may add.
const COPIES_MAX: usize = 3_000;
/// Most instructions of a function into which more is inlined.
const CALLER_MAX: usize = 20_000;
/// Most nested calls: the kernel allows eight frames, the entry is one.
pub(super) const DEPTH_MAX: u32 = 7;
/// Deepest nesting that is flattened at all: each level is a walk over all functions.
const FLATTENED_MAX: u32 = 64;
/// Parameters that a call of eBPF passes; functions with more are inlined if possible.
const REGISTERS: usize = 5;

/// Returns the functions in an order in which callees come first.
pub(super) fn callees_first(unit: &Unit) -> Vec<usize> {
    let mut seen = vec![false; unit.functions.len()];
    let mut order = Vec::new();
    let mut path: Vec<(usize, std::vec::IntoIter<usize>)> = Vec::new();
    let enter = |function: usize, seen: &mut Vec<bool>| {
        (!std::mem::replace(&mut seen[function], true))
            .then(|| (function, callees(&unit.functions[function]).into_iter()))
    };
    path.extend(enter(0, &mut seen));
    while let Some((function, rest)) = path.last_mut() {
        match rest.next() {
            Some(next) => {
                let next = enter(next, &mut seen);
                path.extend(next);
            }
            None => {
                order.push(*function);
                path.pop();
            }
        }
    }
    order
}

/// Inlines what pays into the function at that position; `sites` has the initial number of calls of
/// each function. Returns true if anything was inlined.
pub(super) fn run(unit: &mut Unit, caller: usize, sites: &BTreeMap<usize, usize>) -> bool {
    let mut size = size(&unit.functions[caller]);
    let wanted: Vec<usize> = callees(&unit.functions[caller])
        .into_iter()
        .filter(|callee| {
            let function = &unit.functions[*callee];
            let (own, count) = (self::size(function), sites.get(callee).copied().unwrap_or(0));
            let pays = own <= SMALL || count <= 1 || own * count <= COPIES_MAX;
            let must = function.parameters.len() > REGISTERS || function.results.len() > 1;
            let fits = size + own <= CALLER_MAX;
            if (pays || must) && fits {
                size += own;
            }
            (pays || must) && fits
        })
        .collect();
    put_in_place(unit, caller, &wanted)
}

/// Inlines until no chain of calls is too deep.
pub(super) fn flatten(unit: &mut Unit) -> Result<(), Refusal> {
    loop {
        let depths = depths(unit);
        let deepest = depths.iter().copied().max().unwrap_or_default();
        if deepest <= DEPTH_MAX {
            return Ok(());
        }
        let last: Vec<usize> =
            (0..depths.len()).filter(|index| depths[*index] == DEPTH_MAX).collect();
        for caller in last {
            let wanted = callees(&unit.functions[caller]);
            let sum: usize = wanted.iter().map(|callee| size(&unit.functions[*callee])).sum();
            let function = &unit.functions[caller];
            if sum + size(function) > CALLER_MAX || deepest > FLATTENED_MAX {
                let (depth, max) = (deepest, DEPTH_MAX);
                return Err(Refusal {
                    reason: Reason::CallDepth { depth, max },
                    function: Some(function.index.0),
                    name: function.name.clone(),
                    place: None,
                });
            }
            put_in_place(unit, caller, &wanted);
        }
    }
}

/// Returns the most calls on a path from the entry to each function; 0 for one that is not called
/// any more.
fn depths(unit: &Unit) -> Vec<u32> {
    let mut depths = vec![0; unit.functions.len()];
    for function in callees_first(unit).into_iter().rev() {
        for callee in callees(&unit.functions[function]) {
            depths[callee] = depths[callee].max(depths[function] + 1);
        }
    }
    depths
}

/// Removes the functions that are not called any more.
pub(super) fn drop_unused(unit: &mut Unit) {
    let mut used = callees_first(unit);
    used.sort_unstable();
    let places: BTreeMap<usize, u32> = used.iter().copied().zip(0..).collect();
    let mut index = 0;
    unit.functions.retain(|_| {
        index += 1;
        places.contains_key(&(index - 1))
    });
    for function in &mut unit.functions {
        for block in &mut function.blocks {
            for instruction in &mut block.instructions {
                if let Op::Call(callee, _) = &mut instruction.op
                    && let Some(place) = places.get(&(*callee as usize))
                {
                    *callee = *place;
                }
            }
        }
    }
}

/// Returns the number of instructions and blocks of a function.
pub(super) fn size(function: &Function) -> usize {
    function.blocks.iter().map(|block| block.instructions.len() + 1).sum()
}

/// Returns the functions that a function calls, each once.
pub(super) fn callees(function: &Function) -> Vec<usize> {
    let mut callees: Vec<usize> = calls(function).collect();
    callees.sort_unstable();
    callees.dedup();
    callees
}

fn calls(function: &Function) -> impl Iterator<Item = usize> {
    let instructions = function.blocks.iter().flat_map(|block| &block.instructions);
    instructions.filter_map(|instruction| match instruction.op {
        Op::Call(callee, _) => Some(callee as usize),
        _ => None,
    })
}

/// Counts the calls of each function.
pub(super) fn call_sites(unit: &Unit) -> BTreeMap<usize, usize> {
    let mut sites = BTreeMap::new();
    for function in callees_first(unit) {
        for callee in calls(&unit.functions[function]) {
            *sites.entry(callee).or_default() += 1;
        }
    }
    sites
}

/// Replaces every call of those functions in the caller.
fn put_in_place(unit: &mut Unit, caller: usize, callees: &[usize]) -> bool {
    if callees.is_empty() {
        return false;
    }
    let copies: BTreeMap<usize, Function> =
        callees.iter().map(|callee| (*callee, unit.functions[*callee].clone())).collect();
    let function = &mut unit.functions[caller];
    let mut now = size(function);
    let mut index = 0;
    while index < function.blocks.len() {
        // The last call first: then only the instructions behind it are split off, and a block of
        // many calls is copied once and not at each of them.
        for at in (0..function.blocks[index].instructions.len()).rev() {
            if let Op::Call(callee, _) = function.blocks[index].instructions[at].op
                && let Some(copy) = copies.get(&(callee as usize))
                && now + size(copy) <= 2 * CALLER_MAX
            {
                now += size(copy);
                splice(function, index, at, copy);
            }
        }
        function.blocks[index].instructions.shrink_to_fit();
        index += 1;
    }
    true
}

/// Splits a block at a call and inserts the callee's blocks between the halves.
fn splice(caller: &mut Function, block: usize, at: usize, callee: &Function) {
    let shift = u32::try_from(caller.types.len()).unwrap_or(u32::MAX);
    let first = u32::try_from(caller.blocks.len()).unwrap_or(u32::MAX);
    let rest = BlockId(first + u32::try_from(callee.blocks.len()).unwrap_or(u32::MAX));
    caller.types.extend(&callee.types);
    let here = &mut caller.blocks[block];
    let after = here.instructions.split_off(at + 1);
    let Some(Instruction { results, op: Op::Call(_, arguments), .. }) = here.instructions.pop()
    else {
        return;
    };
    let entry = Terminator::Jump(Edge { target: BlockId(first), arguments });
    let terminator = std::mem::replace(&mut here.terminator, entry);
    let (is_loop_header, loop_depth) = (false, here.loop_depth);
    for block in &callee.blocks {
        caller.blocks.push(moved(block, shift, first, rest));
    }
    caller.blocks.push(Block {
        parameters: results,
        instructions: after,
        terminator,
        is_loop_header,
        loop_depth,
        rounds_max: None,
    });
}

/// Returns a callee's block with the caller's numbers.
fn moved(block: &Block, shift: u32, first: u32, rest: BlockId) -> Block {
    let mut block = block.clone();
    let value = |value: &mut Value| value.0 += shift;
    block.parameters.iter_mut().for_each(value);
    for instruction in &mut block.instructions {
        instruction.results.iter_mut().for_each(value);
        instruction.op.for_each_use_mut(value);
    }
    block.terminator.for_each_use_mut(value);
    for edge in block.terminator.edges_mut() {
        edge.target.0 += first;
    }
    if let Terminator::Return(arguments) = block.terminator {
        block.terminator = Terminator::Jump(Edge { target: rest, arguments });
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{FunctionIndex, Place};

    /// Makes a function of one block.
    fn function(index: u32, instructions: Vec<Instruction>) -> Function {
        let results = instructions.iter().flat_map(|instruction| &instruction.results).count();
        Function {
            index: FunctionIndex(index),
            name: None,
            parameters: Vec::new(),
            results: Vec::new(),
            types: vec![crate::ir::Type::I32; results],
            blocks: vec![Block {
                parameters: Vec::new(),
                instructions,
                terminator: Terminator::Return(Vec::new()),
                is_loop_header: false,
                loop_depth: 0,
                rounds_max: None,
            }],
            can_trap: false,
        }
    }

    /// Makes an entry that calls `count` other functions once, each of which computes a number.
    fn caller_of(count: u32) -> Unit {
        let instruction = |op, results| Instruction { results, op, place: Place(0) };
        let calls = (1..=count).map(|callee| instruction(Op::Call(callee, Vec::new()), Vec::new()));
        let entry = function(0, calls.collect());
        let constant = || vec![instruction(Op::Const(7), vec![Value(0)])];
        let callees = (1..=count).map(|index| function(index, constant()));
        let functions = std::iter::once(entry).chain(callees).collect();
        Unit { functions, globals: Vec::new(), memory: None }
    }

    #[test]
    fn inlining_many_calls_takes_memory_linear_in_their_number() {
        for count in [500, 1_000, 2_000, 4_000] {
            let mut unit = caller_of(count);
            let sites = call_sites(&unit);
            assert!(run(&mut unit, 0, &sites));
            let entry = &unit.functions[0];
            let instructions = entry.blocks.iter().flat_map(|block| &block.instructions);
            let constants = instructions.filter(|it| matches!(it.op, Op::Const(7))).count();
            assert_eq!(constants, count as usize, "each is in its place");
            let room: usize = entry.blocks.iter().map(|block| block.instructions.capacity()).sum();
            assert!(room <= 2 * count as usize, "{count} calls: room for {room} instructions");
        }
    }

    #[test]
    fn instructions_between_inlined_calls_keep_their_position() {
        let mut unit = caller_of(3);
        let between = Instruction { results: vec![Value(0)], op: Op::Const(9), place: Place(0) };
        unit.functions[0].types.push(crate::ir::Type::I32);
        unit.functions[0].blocks[0].instructions.insert(1, between);
        let sites = call_sites(&unit);
        assert!(run(&mut unit, 0, &sites));
        let (entry, mut numbers) = (&unit.functions[0], Vec::new());
        let mut block = &entry.blocks[0];
        loop {
            numbers.extend(block.instructions.iter().map(|it| it.op.clone()));
            let Terminator::Jump(edge) = &block.terminator else { break };
            block = &entry.blocks[edge.target.0 as usize];
        }
        assert_eq!(numbers, [7, 9, 7, 7].map(Op::Const));
    }
}
