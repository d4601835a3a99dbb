//! Blocks of the code after register allocation: their content, the block that control reaches past
//! empty ones, and their labels.

use regalloc2::{Allocation, Block, Edit, Inst, InstOrEdit, Output};

use super::super::asm::{Assembler, Label};
use super::super::insn::{FP, Insn, R0, Reg};
use super::super::vcode::{Op as V, VCode};
use super::frame::Frame;
use crate::ir::Width;

/// Blocks of one function.
pub(super) struct Blocks<'a> {
    vcode: &'a VCode,
    output: &'a Output,
    /// Labels of the blocks, by number.
    labels: Vec<Label>,
    /// Duplicate of each block: another one with the same effect that replaces it.
    duplicates: Vec<Option<Block>>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(vcode: &'a VCode, output: &'a Output, asm: &mut Assembler) -> Self {
        let labels = vcode.blocks.iter().map(|_| asm.label()).collect();
        Self { vcode, output, labels, duplicates: vec![None; vcode.blocks.len()] }
    }

    pub(super) const fn vcode(&self) -> &'a VCode {
        self.vcode
    }

    /// Returns the number of values that have no register.
    pub(super) const fn spills(&self) -> usize {
        self.output.num_spillslots
    }

    /// Returns the blocks that are emitted, in order.
    pub(super) fn order(&self) -> Vec<Block> {
        let all = (0..self.vcode.blocks.len()).map(Block::new);
        all.filter(|&block| self.resolve(block) == block).collect()
    }

    /// Returns the instructions of a block, with the moves between them.
    pub(super) fn content(&self, block: Block) -> impl Iterator<Item = InstOrEdit<'a>> + use<'a> {
        self.output.block_insts_and_edits(self.vcode, block)
    }

    /// Returns true when the block contains only its jump.
    pub(super) fn is_empty(&self, block: Block) -> bool {
        let Some(inside) = self.vcode.blocks.get(block.index()) else { return false };
        if block.index() == 0 || inside.is_loop_header {
            return false;
        }
        let mut content = self.content(block);
        let first = content.next();
        matches!(first, Some(InstOrEdit::Inst(inst)) if matches!(self.vcode.op(inst).0, V::Jump))
            && content.next().is_none()
    }

    /// Returns the block that control reaches, past empty ones, or its duplicate.
    pub(super) fn resolve(&self, mut block: Block) -> Block {
        while self.is_empty(block) {
            let next = self.vcode.blocks.get(block.index());
            match next.and_then(|inside| inside.successors.first()) {
                Some(&next) => block = next,
                None => break,
            }
        }
        self.duplicates.get(block.index()).copied().flatten().unwrap_or(block)
    }

    /// Returns the label of a block itself.
    pub(super) fn own_label(&self, block: Block) -> Option<Label> {
        self.labels.get(block.index()).copied()
    }

    /// Returns the label of the block that control reaches.
    pub(super) fn label(&self, block: Block) -> Option<Label> {
        self.own_label(self.resolve(block))
    }

    pub(super) fn successors(&self, block: Block) -> Option<&'a [Block]> {
        self.vcode.blocks.get(block.index()).map(|inside| inside.successors.as_slice())
    }

    /// Returns the registers of an instruction's operands.
    pub(super) fn registers(&self, inst: Inst) -> Vec<Reg> {
        let register = |allocation: &Allocation| {
            allocation.as_reg().map_or(R0, |register| register.hw_enc() as Reg)
        };
        self.output.inst_allocs(inst).iter().map(register).collect()
    }

    /// Records another block with the same effect as the block's replacement.
    pub(super) fn set_duplicate(&mut self, block: Block, duplicate: Block) {
        if let Some(slot) = self.duplicates.get_mut(block.index()) {
            *slot = Some(duplicate);
        }
    }
}

/// Returns the instruction of a move, at most one; `None` for a move that is impossible.
pub(super) fn moved(frame: &Frame, edit: &Edit) -> Option<Option<Insn>> {
    let Edit::Move { from, to } = *edit;
    let register = |allocation: Allocation| Some(allocation.as_reg()?.hw_enc() as Reg);
    Some(Some(match (from.as_stack(), to.as_stack()) {
        (None, None) if from == to => return Some(None),
        (None, None) => Insn::mov(register(to)?, register(from)?),
        (Some(slot), None) => {
            Insn::load(Width::Eight, false, register(to)?, FP, frame.spill(slot.index()))
        }
        (None, Some(slot)) => {
            Insn::store(Width::Eight, FP, register(from)?, frame.spill(slot.index()))
        }
        // The allocator makes no such moves.
        (Some(_), Some(_)) => return None,
    }))
}
