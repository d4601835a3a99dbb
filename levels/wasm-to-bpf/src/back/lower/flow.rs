//! Blocks of the code: their relation to the IR's blocks, their order, and their predecessors.

use regalloc2::Block;

use crate::ir::{Edge, Function};

/// Blocks of one function.
pub(super) struct Flow {
    /// Block of the code for each of the IR's.
    blocks: Vec<Block>,
    /// Blocks in the code's order.
    order: Vec<Block>,
    /// Number of predecessors of each of the IR's blocks.
    predecessors: Vec<u32>,
}

impl Flow {
    /// Counts the predecessors in a function whose blocks become these.
    pub(super) fn new(function: &Function, blocks: Vec<Block>) -> Self {
        let mut predecessors = vec![0; function.blocks.len()];
        for edge in function.blocks.iter().flat_map(|block| block.terminator.edges()) {
            if let Some(count) = predecessors.get_mut(edge.target.0 as usize) {
                *count += 1;
            }
        }
        Self { blocks, order: Vec::new(), predecessors }
    }

    /// Returns the code's block for one of the IR's.
    pub(super) fn block(&self, number: usize) -> Block {
        self.blocks.get(number).copied().unwrap_or_else(|| Block::new(0))
    }

    /// Returns the block that an edge leads to.
    pub(super) fn target(&self, edge: &Edge) -> Block {
        self.block(edge.target.0 as usize)
    }

    /// Returns true when one of the IR's blocks has a single predecessor.
    pub(super) fn has_single_predecessor(&self, number: usize) -> bool {
        self.predecessors.get(number) == Some(&1)
    }

    /// Appends a block to the order.
    pub(super) fn open(&mut self, block: Block) {
        self.order.push(block);
    }

    /// Returns the blocks in the code's order.
    pub(super) fn order(&self) -> &[Block] {
        &self.order
    }
}
