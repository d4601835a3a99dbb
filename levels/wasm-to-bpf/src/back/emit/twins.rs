//! Short blocks that do the same and go on to the same place, mostly "this
//! verdict, and out": one of them is enough, and the last one needs no jump.

use foldhash::{HashMap, HashMapExt};

use regalloc2::{Edit, InstOrEdit};

use super::super::insn::{Insn, Reg};
use super::super::vcode::Op as V;
use super::Emit;

/// Beyond that a jump to where it stands already gains nothing.
const STEPS_MAX: usize = 8;

/// What a block does, in registers.
#[derive(PartialEq, Eq, Hash)]
enum Step {
    Insn(Insn),
    Constant(Reg, u64),
    Block(Reg),
    HandOver(Reg),
    GoTo(regalloc2::Block),
    Return,
}

impl Emit<'_> {
    /// Finds them. From the end, so that blocks whose ways on have become one are found, too.
    pub(super) fn find_twins(&mut self) {
        let mut known: HashMap<Vec<Step>, regalloc2::Block> = HashMap::new();
        for number in (1..self.vcode.blocks.len()).rev() {
            let block = regalloc2::Block::new(number);
            if self.is_empty(block) {
                continue;
            }
            let Some(steps) = self.steps(block) else { continue };
            let first = *known.entry(steps).or_insert(block);
            if let Some(twin) = self.twins.get_mut(number).filter(|_| first != block) {
                *twin = Some(first);
            }
        }
    }

    /// All that it does, if that is little and the same wherever it stands.
    fn steps(&self, block: regalloc2::Block) -> Option<Vec<Step>> {
        let inside = self.vcode.blocks.get(block.index())?;
        if inside.is_loop_header {
            return None;
        }
        let mut steps = Vec::new();
        for item in self.output.block_insts_and_edits(self.vcode, block) {
            if steps.len() == STEPS_MAX {
                return None;
            }
            match item {
                InstOrEdit::Edit(Edit::Move { from, to }) => {
                    steps.extend(self.moved(*from, *to)?.map(Step::Insn));
                }
                InstOrEdit::Inst(inst) => {
                    let registers = self.registers(inst);
                    let first = registers.first().copied();
                    steps.push(match self.vcode.op(inst).0 {
                        V::One { insn, dst, src } => Step::Insn(placed(insn, dst, src, &registers)),
                        V::Wide(constant) => Step::Constant(first?, constant),
                        V::Block => Step::Block(first?),
                        V::HandOver => Step::HandOver(first?),
                        V::Jump => Step::GoTo(self.resolve(*inside.successors.first()?)),
                        V::Return => Step::Return,
                        _ => return None,
                    });
                }
            }
        }
        Some(steps)
    }
}

/// The instruction with its operands' registers.
pub(super) fn placed(insn: Insn, dst: Option<u8>, src: Option<u8>, registers: &[Reg]) -> Insn {
    let of = |number: u8| registers.get(usize::from(number)).copied().unwrap_or_default();
    Insn { dst: dst.map_or(insn.dst, of), src: src.map_or(insn.src, of), ..insn }
}
