//! Cost estimate of one packet: the longest path that takes no loop twice.

use super::emit::BlockCost;
use crate::ir::{BinaryOp, Function, Op, Unit, Value};

/// Returns the instructions of the longest path, for each function of the unit.
pub(crate) fn instructions(blocks: &[Vec<BlockCost>]) -> Vec<u32> {
    let mut costs = vec![None; blocks.len()];
    for position in 0..blocks.len() {
        let mut path = Vec::new();
        instructions_of(blocks, position, &mut costs, &mut path);
    }
    costs.into_iter().map(Option::unwrap_or_default).collect()
}

fn instructions_of(
    blocks: &[Vec<BlockCost>],
    position: usize,
    costs: &mut [Option<u32>],
    path: &mut Vec<usize>,
) -> u32 {
    if let Some(Some(known)) = costs.get(position) {
        return *known;
    }
    let Some(function) = blocks.get(position).filter(|_| !path.contains(&position)) else {
        return 0;
    };
    path.push(position);
    let own: Vec<u64> = function
        .iter()
        .map(|block| {
            let called: u64 = block
                .calls
                .iter()
                .map(|&callee| u64::from(instructions_of(blocks, callee as usize, costs, path)))
                .sum();
            u64::from(block.instructions) + called
        })
        .collect();
    path.pop();
    let cost = longest(&own, |block| function.get(block).map_or(&[], |at| &at.successors));
    let cost = u32::try_from(cost).unwrap_or(u32::MAX);
    if let Some(slot) = costs.get_mut(position) {
        *slot = Some(cost);
    }
    cost
}

/// Returns the heaviest path from block 0; only forward edges count.
fn longest<'a>(own: &[u64], successors: impl Fn(usize) -> &'a [usize]) -> u64 {
    let mut best = vec![0u64; own.len()];
    for block in (0..own.len()).rev() {
        let onward = successors(block)
            .iter()
            .filter(|&&next| next > block)
            .filter_map(|&next| best.get(next).copied())
            .max()
            .unwrap_or(0);
        let here = own.get(block).copied().unwrap_or(0);
        if let Some(slot) = best.get_mut(block) {
            *slot = onward.saturating_add(here);
        }
    }
    best.first().copied().unwrap_or(0)
}

/// Returns the fuel of the entry's longest path.
pub(crate) fn fuel(unit: &Unit) -> u64 {
    // Callees are in no particular order, but never call back.
    let mut costs = vec![None; unit.functions.len()];
    fuel_of(unit, 0, &mut costs, 0)
}

fn fuel_of(unit: &Unit, position: usize, costs: &mut [Option<u64>], depth: usize) -> u64 {
    if let Some(Some(known)) = costs.get(position) {
        return *known;
    }
    let Some(function) = unit.functions.get(position).filter(|_| depth <= unit.functions.len())
    else {
        return 0;
    };
    let spends = fuel_values(function);
    let facts = super::facts::Facts::of(function);
    let own: Vec<u64> = function
        .blocks
        .iter()
        .map(|block| {
            block
                .instructions
                .iter()
                .map(|instruction| match &instruction.op {
                    Op::Binary(BinaryOp::Sub, from, by) if is(&spends, *from) => {
                        facts.constant(*by).unwrap_or(0)
                    }
                    Op::Call(callee, _) => fuel_of(unit, *callee as usize, costs, depth + 1),
                    _ => 0,
                })
                .fold(0, u64::saturating_add)
        })
        .collect();
    let successors: Vec<Vec<usize>> = function
        .blocks
        .iter()
        .map(|block| block.terminator.edges().map(|edge| edge.target.0 as usize).collect())
        .collect();
    let cost = longest(&own, |block| successors.get(block).map_or(&[], Vec::as_slice));
    if let Some(slot) = costs.get_mut(position) {
        *slot = Some(cost);
    }
    cost
}

fn is(spends: &[bool], Value(value): Value) -> bool {
    spends.get(value as usize).copied().unwrap_or(false)
}

/// Returns the values that are fuel, by iterating until no more are found.
fn fuel_values(function: &Function) -> Vec<bool> {
    let mut fuel = vec![false; function.types.len()];
    loop {
        let mut found = Vec::new();
        for block in &function.blocks {
            for instruction in &block.instructions {
                let is_fuel = match &instruction.op {
                    Op::FuelLoad => true,
                    Op::Binary(BinaryOp::Sub, from, _) => is(&fuel, *from),
                    _ => false,
                };
                found.extend(instruction.results.iter().filter(|_| is_fuel).copied());
            }
            for edge in block.terminator.edges() {
                let parameters = function.blocks.get(edge.target.0 as usize);
                let parameters = parameters.map_or(&[][..], |block| &block.parameters);
                let pairs = edge.arguments.iter().zip(parameters);
                found.extend(pairs.filter(|(from, _)| is(&fuel, **from)).map(|(_, to)| *to));
            }
        }
        let before = fuel.iter().filter(|&&is| is).count();
        for Value(value) in found {
            if let Some(slot) = fuel.get_mut(value as usize) {
                *slot = true;
            }
        }
        if fuel.iter().filter(|&&is| is).count() == before {
            return fuel;
        }
    }
}
