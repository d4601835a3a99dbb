//! Dead code elimination: removes operations without effect and unused block parameters.

use super::parameters;
use crate::ir::{Function, Value};

/// Definition of a value.
#[derive(Clone, Copy)]
enum Origin {
    Nowhere,
    Instruction(usize, usize),
    Parameter(usize, usize),
}

/// Marks the needed values, backwards from effects and results, and removes the rest.
pub(super) fn run(function: &mut Function) {
    let origins = origins(function);
    let mut needed = vec![false; function.types.len()];
    let mut work = roots(function);
    let mut incoming: Vec<Vec<(usize, usize)>> = vec![Vec::new(); function.blocks.len()];
    for (index, block) in function.blocks.iter().enumerate() {
        for (number, edge) in block.terminator.edges().enumerate() {
            incoming[edge.target.0 as usize].push((index, number));
        }
    }
    let edges: Vec<Vec<&crate::ir::Edge>> =
        function.blocks.iter().map(|block| block.terminator.edges().collect()).collect();
    while let Some(value) = work.pop() {
        if std::mem::replace(&mut needed[value.0 as usize], true) {
            continue;
        }
        match origins[value.0 as usize] {
            Origin::Nowhere => {}
            Origin::Instruction(block, index) => {
                let instruction = &function.blocks[block].instructions[index];
                instruction.op.for_each_use(|value| work.push(value));
            }
            Origin::Parameter(block, parameter) => {
                for (from, number) in &incoming[block] {
                    work.extend(edges[*from][*number].arguments.get(parameter));
                }
            }
        }
    }
    let is_dead: Vec<Vec<bool>> = function
        .blocks
        .iter()
        .map(|block| block.parameters.iter().map(|value| !needed[value.0 as usize]).collect())
        .collect();
    parameters::remove(function, |block, parameter| is_dead[block][parameter]);
    for block in &mut function.blocks {
        block.instructions.retain(|instruction| {
            !instruction.op.can_be_dropped()
                || instruction.results.iter().any(|value| needed[value.0 as usize])
        });
    }
}

fn origins(function: &Function) -> Vec<Origin> {
    let mut origins = vec![Origin::Nowhere; function.types.len()];
    for (index, block) in function.blocks.iter().enumerate() {
        for (number, value) in block.parameters.iter().enumerate() {
            origins[value.0 as usize] = Origin::Parameter(index, number);
        }
        for (number, instruction) in block.instructions.iter().enumerate() {
            for value in &instruction.results {
                origins[value.0 as usize] = Origin::Instruction(index, number);
            }
        }
    }
    origins
}

/// Returns the values used by an effect, a branch or the caller.
fn roots(function: &Function) -> Vec<Value> {
    let mut roots = Vec::new();
    for block in &function.blocks {
        for instruction in &block.instructions {
            if !instruction.op.can_be_dropped() {
                instruction.op.for_each_use(|value| roots.push(value));
            }
        }
        block.terminator.for_each_own_use(|value| roots.push(value));
    }
    roots
}
