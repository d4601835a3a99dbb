//! Deduplication of short blocks with the same content and successor, mostly "this verdict, then
//! exit": one is enough, and the last one needs no jump.

use foldhash::{HashMap, HashMapExt};

use regalloc2::InstOrEdit;

use super::super::insn::{Insn, Reg};
use super::super::vcode::Op as V;
use super::blocks::{Blocks, moved};
use super::frame::Frame;

/// Longest block that is shared: beyond it a jump to the duplicate gains nothing.
const STEPS_MAX: usize = 8;

/// Step of a block, in registers.
#[derive(PartialEq, Eq, Hash)]
enum Step {
    Insn(Insn),
    Constant(Reg, u64),
    Block(Reg),
    HandOver(Reg),
    GoTo(regalloc2::Block),
    Return,
}

/// Finds duplicates. Backwards, so that blocks whose successors were merged are found, too.
pub(super) fn find(blocks: &mut Blocks<'_>, frame: &Frame) {
    let mut known: HashMap<Vec<Step>, regalloc2::Block> = HashMap::new();
    for number in (1..blocks.vcode().blocks.len()).rev() {
        let block = regalloc2::Block::new(number);
        if blocks.is_empty(block) {
            continue;
        }
        let Some(steps) = steps(blocks, frame, block) else { continue };
        let first = *known.entry(steps).or_insert(block);
        if first != block {
            blocks.set_duplicate(block, first);
        }
    }
}

/// Returns the steps of a block, if they are few and independent of its position.
fn steps(blocks: &Blocks<'_>, frame: &Frame, block: regalloc2::Block) -> Option<Vec<Step>> {
    let inside = blocks.vcode().blocks.get(block.index())?;
    if inside.is_loop_header {
        return None;
    }
    let mut steps = Vec::new();
    for item in blocks.content(block) {
        if steps.len() == STEPS_MAX {
            return None;
        }
        match item {
            InstOrEdit::Edit(edit) => steps.extend(moved(frame, edit)?.map(Step::Insn)),
            InstOrEdit::Inst(inst) => {
                let registers = blocks.registers(inst);
                let first = registers.first().copied();
                steps.push(match blocks.vcode().op(inst).0 {
                    V::One { insn, dst, src } => Step::Insn(placed(insn, dst, src, &registers)),
                    V::Wide(constant) => Step::Constant(first?, constant),
                    V::Block => Step::Block(first?),
                    V::HandOver => Step::HandOver(first?),
                    V::Jump => Step::GoTo(blocks.resolve(*inside.successors.first()?)),
                    V::Return => Step::Return,
                    _ => return None,
                });
            }
        }
    }
    Some(steps)
}

/// Returns the instruction with its operands' registers.
pub(super) fn placed(insn: Insn, dst: Option<u8>, src: Option<u8>, registers: &[Reg]) -> Insn {
    let of = |number: u8| registers.get(usize::from(number)).copied().unwrap_or_default();
    Insn { dst: dst.map_or(insn.dst, of), src: src.map_or(insn.src, of), ..insn }
}
