//! Switch lowering: switches with few targets become comparisons, since eBPF has no jump table and
//! `[a, d, d, d, b] else d` is two comparisons.

use std::collections::BTreeMap;

use super::graph::id;
use crate::ir::{
    BinaryOp, Block, BlockId, CompareOp, Edge, Function, Instruction, Op, Place, Terminator, Type,
    Value,
};

/// Most comparisons of one switch; above it the back end's binary search is better.
const QUESTIONS_MAX: usize = 4;

/// Consecutive numbers with one target.
struct Run {
    first: u64,
    count: u64,
    edge: Edge,
}

/// Runs over all switches.
pub(super) fn run(function: &mut Function) {
    for index in 0..function.blocks.len() {
        let Terminator::Switch(value, list, default) = &function.blocks[index].terminator else {
            continue;
        };
        // The most frequent target is the last, as the default.
        let most = most(list, default);
        let mut runs = runs(list, most);
        if most != default {
            runs.push(Run { first: 0, count: list.len() as u64, edge: most.clone() });
        }
        if runs.len() <= QUESTIONS_MAX {
            let (value, default) = (*value, default.clone());
            ask(function, index, value, runs, default);
        }
    }
}

/// Returns the most frequent edge in the list; the default in case of a tie, since numbers beyond
/// the list have it, too.
fn most<'e>(list: &'e [Edge], default: &'e Edge) -> &'e Edge {
    let mut counts: BTreeMap<BlockId, (usize, &Edge)> = BTreeMap::new();
    counts.insert(default.target, (1, default));
    for edge in list {
        counts.entry(edge.target).or_insert((0, edge)).0 += 1;
    }
    counts.into_values().max_by_key(|(count, _)| *count).map_or(default, |(_, edge)| edge)
}

/// Returns runs of consecutive numbers with one target, except those whose target is that of
/// `most`.
fn runs(list: &[Edge], most: &Edge) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (number, edge) in (0..).zip(list) {
        match runs.last_mut() {
            _ if edge == most => {}
            Some(run) if run.edge == *edge && run.first + run.count == number => run.count += 1,
            _ => runs.push(Run { first: number, count: 1, edge: edge.clone() }),
        }
    }
    runs
}

/// Emits one block for each comparison; the last one's other edge is the default.
fn ask(function: &mut Function, index: usize, value: Value, runs: Vec<Run>, default: Edge) {
    let depth = function.blocks[index].loop_depth;
    let mut here = index;
    for run in runs {
        let next = function.blocks.len();
        function.blocks.push(empty(default.clone(), depth));
        let condition = question(function, here, value, &run);
        let other = Edge { target: id(next), arguments: Vec::new() };
        function.blocks[here].terminator = Terminator::Branch(condition, run.edge, other);
        here = next;
    }
    function.blocks[here].terminator = Terminator::Jump(default);
}

fn question(function: &mut Function, block: usize, value: Value, run: &Run) -> Value {
    let place = function.blocks[block].instructions.last().map_or(Place(0), |last| last.place);
    let mut add = |op: Op| {
        let result = Value(u32::try_from(function.types.len()).unwrap_or(u32::MAX));
        function.types.push(Type::I32);
        let instruction = Instruction { results: vec![result], op, place };
        function.blocks[block].instructions.push(instruction);
        result
    };
    let first = add(Op::Const(run.first));
    if run.count == 1 {
        return add(Op::Compare(CompareOp::Eq, value, first));
    }
    let beyond = add(Op::Binary(BinaryOp::Sub, value, first));
    let count = add(Op::Const(run.count));
    add(Op::Compare(CompareOp::LtU, beyond, count))
}

fn empty(edge: Edge, loop_depth: u32) -> Block {
    Block {
        parameters: Vec::new(),
        instructions: Vec::new(),
        terminator: Terminator::Jump(edge),
        is_loop_header: false,
        loop_depth,
        rounds_max: None,
    }
}
