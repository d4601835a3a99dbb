//! Control flow graph of a function: predecessors, dominators, loops. Blocks must be in reverse
//! post-order and all reachable, as order.rs leaves them.

use crate::ir::{Block, BlockId, Function};

/// Predecessors and dominators of the blocks.
pub(crate) struct Graph {
    /// Predecessors of each block; one with several edges to it is listed several times.
    pub(super) predecessors: Vec<Vec<BlockId>>,
    /// Immediate dominator of each block; the entry's is itself.
    pub(crate) dominator: Vec<BlockId>,
}

impl Graph {
    pub(crate) fn of(function: &Function) -> Self {
        let predecessors = predecessors(&function.blocks);
        let dominator = dominators(&predecessors);
        Self { predecessors, dominator }
    }

    /// Returns the blocks that each block immediately dominates.
    pub(super) fn dominated(&self) -> Vec<Vec<BlockId>> {
        let mut children = vec![Vec::new(); self.dominator.len()];
        for (block, dominator) in self.dominator.iter().enumerate().skip(1) {
            children[dominator.0 as usize].push(id(block));
        }
        children
    }
}

/// Returns the block at that index.
pub(super) fn id(index: usize) -> BlockId {
    BlockId(u32::try_from(index).unwrap_or(u32::MAX))
}

pub(super) fn predecessors(blocks: &[Block]) -> Vec<Vec<BlockId>> {
    let mut predecessors = vec![Vec::new(); blocks.len()];
    for (index, block) in blocks.iter().enumerate() {
        for edge in block.terminator.edges() {
            predecessors[edge.target.0 as usize].push(id(index));
        }
    }
    predecessors
}

/// Computes immediate dominators after Cooper, Harvey and Kennedy, "A Simple, Fast Dominance
/// Algorithm".
fn dominators(predecessors: &[Vec<BlockId>]) -> Vec<BlockId> {
    const NONE: u32 = u32::MAX;
    let mut dominator = vec![NONE; predecessors.len()];
    if let Some(entry) = dominator.first_mut() {
        *entry = 0;
    }
    let mut changed = true;
    while changed {
        changed = false;
        for block in 1..predecessors.len() {
            let known = predecessors[block].iter().map(|block| block.0);
            let nearest = known
                .filter(|block| dominator[*block as usize] != NONE)
                .reduce(|left, right| meet(&dominator, left, right));
            if let Some(nearest) = nearest
                && dominator[block] != nearest
            {
                dominator[block] = nearest;
                changed = true;
            }
        }
    }
    dominator.into_iter().map(BlockId).collect()
}

fn meet(dominator: &[u32], mut left: u32, mut right: u32) -> u32 {
    while left != right {
        while left > right {
            left = dominator[left as usize];
        }
        while right > left {
            right = dominator[right as usize];
        }
    }
    left
}

/// Returns for each block the header of the innermost loop that contains it, not counting its own.
/// Works from inner loops to outer ones, each treated as one block afterwards, so that it is near
/// linear.
pub(super) fn enclosing_loops(blocks: &[Block]) -> Loops {
    let predecessors = predecessors(blocks);
    let mut sets = Sets((0..blocks.len()).collect());
    let mut enclosing = vec![None; blocks.len()];
    let mut is_header = vec![false; blocks.len()];
    for header in (0..blocks.len()).rev() {
        let back = predecessors[header].iter().map(|block| block.0 as usize);
        let mut work: Vec<usize> = back.filter(|block| *block >= header).collect();
        is_header[header] = !work.is_empty();
        while let Some(block) = work.pop() {
            let block = sets.find(block);
            if block == header {
                continue;
            }
            enclosing[block] = Some(id(header));
            sets.0[block] = header;
            work.extend(predecessors[block].iter().map(|block| block.0 as usize));
        }
    }
    Loops { enclosing, is_header }
}

/// Loops of a function.
pub(super) struct Loops {
    /// Result of [`enclosing_loops`], by block.
    pub(super) enclosing: Vec<Option<BlockId>>,
    /// True for the target of a back edge, by block.
    pub(super) is_header: Vec<bool>,
}

impl Loops {
    /// Returns the number of loops that contain each block; a header counts its own.
    pub(super) fn depths(&self) -> Vec<u32> {
        let mut depths = vec![0; self.enclosing.len()];
        for block in 0..depths.len() {
            let outer = self.enclosing[block].map_or(0, |header| depths[header.0 as usize]);
            depths[block] = outer + u32::from(self.is_header[block]);
        }
        depths
    }
}

/// Disjoint sets with path compression.
struct Sets(Vec<usize>);

impl Sets {
    fn find(&mut self, mut item: usize) -> usize {
        while self.0[item] != item {
            self.0[item] = self.0[self.0[item]];
            item = self.0[item];
        }
        item
    }
}
