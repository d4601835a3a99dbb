//! Block order: reverse post-order, unreachable ones removed, loops known. The blocks of a loop
//! stay together and paths into a trap go to the end.

use super::graph::{enclosing_loops, id};
use crate::ir::{Block, BlockId, Function, Terminator};

/// Orders the blocks of a function.
pub(super) fn run(function: &mut Function) {
    arrange(function, |_| 0);
    let loops = enclosing_loops(&function.blocks);
    let depths = loops.depths();
    let is_trap = |block: &Block| matches!(block.terminator, Terminator::Trap(..));
    let traps: Vec<bool> = function.blocks.iter().map(is_trap).collect();
    // Blocks visited first end up last: traps, then loop exits.
    arrange(function, |block| {
        let index = block.0 as usize;
        if traps[index] { 0 } else { 1 + depths[index] }
    });
    let loops = enclosing_loops(&function.blocks);
    for (block, depth) in loops.depths().into_iter().enumerate() {
        let found = &mut function.blocks[block];
        found.loop_depth = depth;
        found.is_loop_header = loops.is_header[block];
        found.rounds_max = found.rounds_max.filter(|_| found.is_loop_header);
    }
}

/// Orders blocks by one depth-first walk, which visits the successors with the smallest number
/// first.
fn arrange(function: &mut Function, number: impl Fn(BlockId) -> u32) {
    let ways = |block: BlockId| {
        let edges = function.blocks[block.0 as usize].terminator.edges();
        let mut targets: Vec<BlockId> = edges.map(|edge| edge.target).collect();
        targets.sort_by_key(|target| number(*target));
        targets.dedup();
        targets.into_iter()
    };
    let mut seen = vec![false; function.blocks.len()];
    let mut finished = Vec::new();
    let mut path = vec![(BlockId(0), ways(BlockId(0)))];
    seen[0] = true;
    while let Some((block, rest)) = path.last_mut() {
        match rest.next() {
            Some(next) if seen[next.0 as usize] => {}
            Some(next) => {
                seen[next.0 as usize] = true;
                path.push((next, ways(next)));
            }
            None => {
                finished.push(*block);
                path.pop();
            }
        }
    }
    finished.reverse();
    renumber(function, &finished);
}

fn renumber(function: &mut Function, order: &[BlockId]) {
    let mut places = vec![None; function.blocks.len()];
    for (place, block) in order.iter().enumerate() {
        places[block.0 as usize] = Some(id(place));
    }
    let mut old: Vec<Option<Block>> = function.blocks.drain(..).map(Some).collect();
    for block in order {
        let Some(mut block) = old[block.0 as usize].take() else { continue };
        for edge in block.terminator.edges_mut() {
            if let Some(place) = places[edge.target.0 as usize] {
                edge.target = place;
            }
        }
        function.blocks.push(block);
    }
}
