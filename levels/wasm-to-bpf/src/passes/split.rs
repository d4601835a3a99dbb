//! Critical edge splitting (edges from a block with several successors to one with several
//! predecessors), so that the moves of each edge have a place.

use super::graph::{id, predecessors};
use super::order;
use crate::ir::{Block, Edge, Function, Terminator};

/// Splits all critical edges. Entries of a switch with the same target and arguments share one new
/// block.
pub(super) fn run(function: &mut Function) {
    let predecessors = predecessors(&function.blocks);
    let mut new: Vec<Block> = Vec::new();
    let count = function.blocks.len();
    for index in 0..count {
        let is_switch = matches!(function.blocks[index].terminator, Terminator::Switch(..));
        if !is_switch && !matches!(function.blocks[index].terminator, Terminator::Branch(..)) {
            continue;
        }
        let loop_depth = function.blocks[index].loop_depth;
        let mut made: Vec<Edge> = Vec::new();
        for edge in function.blocks[index].terminator.edges_mut() {
            let predecessors_in = &predecessors[edge.target.0 as usize];
            let only_from_here = predecessors_in.iter().all(|from| *from == id(index));
            if edge.arguments.is_empty()
                && (predecessors_in.len() == 1 || is_switch && only_from_here)
            {
                continue;
            }
            let same = made.iter().position(|known| is_switch && known == edge);
            let target = match same {
                Some(same) => id(count + new.len() - made.len() + same),
                None => {
                    made.push(edge.clone());
                    new.push(jump(edge.clone(), loop_depth));
                    id(count + new.len() - 1)
                }
            };
            *edge = Edge { target, arguments: Vec::new() };
        }
    }
    if !new.is_empty() {
        function.blocks.extend(new);
        order::run(function);
    }
}

fn jump(edge: Edge, loop_depth: u32) -> Block {
    Block {
        parameters: Vec::new(),
        instructions: Vec::new(),
        terminator: Terminator::Jump(edge),
        is_loop_header: false,
        loop_depth,
        rounds_max: None,
    }
}
