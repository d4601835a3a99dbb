//! Redundant moves between registers and the frame: the allocator stores a value again
//! that it has only read, and stores values that nobody reads any more.
//!
//! ```text
//! r1 = frame[2]                r1 = frame[2]
//! if r0 > r1 goto out   ─▶     if r0 > r1 goto out
//! frame[2] = r1
//! ```

use regalloc2::{Allocation, Edit, Function, Inst, InstPosition, OperandKind, Output, ProgPoint};

use super::vcode::VCode;

/// Most frame slots of a function whose moves are removed. With more of them the verifier may take
/// twice as long: a slot that is written less often holds older knowledge, and states are equal
/// less often (`services/touch`: 1.0 s to 1.8 s).
const SLOTS_MAX: usize = 8;

/// Removes redundant moves.
pub(crate) fn remove_redundant_moves(vcode: &VCode, output: &mut Output) {
    let slots = output.num_spillslots;
    if slots == 0 || slots > SLOTS_MAX {
        return;
    }
    let mut useless = Walk::new(vcode, output).unchanged();
    retain(output, &useless);
    useless = Walk::new(vcode, output).unread();
    retain(output, &useless);
}

fn retain(output: &mut Output, useless: &[bool]) {
    let mut useless = useless.iter();
    output.edits.retain(|_| !useless.next().copied().unwrap_or_default());
}

/// Step of a block: an instruction, or the move of that number.
#[derive(Clone, Copy)]
enum Step {
    Inst(Inst),
    Move { number: usize, from: Allocation, to: Allocation },
}

/// Code, walked block by block.
struct Walk<'a> {
    vcode: &'a VCode,
    output: &'a Output,
    blocks: Vec<Vec<Step>>,
}

impl<'a> Walk<'a> {
    fn new(vcode: &'a VCode, output: &'a Output) -> Self {
        let mut edits = output.edits.iter().enumerate().peekable();
        let mut blocks = Vec::with_capacity(vcode.num_blocks());
        for block in (0..vcode.num_blocks()).map(regalloc2::Block::new) {
            let mut steps = Vec::new();
            for inst in vcode.block_insns(block).iter() {
                for position in [InstPosition::Before, InstPosition::After] {
                    let point = ProgPoint::new(inst, position);
                    while let Some((number, (_, Edit::Move { from, to }))) =
                        edits.next_if(|(_, (at, _))| *at <= point)
                    {
                        steps.push(Step::Move { number, from: *from, to: *to });
                    }
                    if position == InstPosition::Before {
                        steps.push(Step::Inst(inst));
                    }
                }
            }
            blocks.push(steps);
        }
        Self { vcode, output, blocks }
    }

    /// Returns the moves of values that are in place already.
    fn unchanged(&self) -> Vec<bool> {
        let count = self.blocks.len();
        // For each slot the registers that hold the same value; all before a block is reached.
        let mut begins = vec![vec![u16::MAX; self.output.num_spillslots]; count];
        if let Some(entry) = begins.first_mut() {
            entry.fill(0);
        }
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for (block, steps) in self.blocks.iter().enumerate() {
                let mut state = begins[block].clone();
                for step in steps {
                    self.hold(*step, &mut state);
                }
                for next in self.vcode.block_succs(regalloc2::Block::new(block)) {
                    for (known, here) in begins[next.index()].iter_mut().zip(&state) {
                        changed |= *known & !here != 0;
                        *known &= here;
                    }
                }
            }
        }
        let mut useless = vec![false; self.output.edits.len()];
        for (state, steps) in begins.iter_mut().zip(&self.blocks) {
            for step in steps {
                if let Step::Move { number, from, to } = *step {
                    useless[number] = match (from.as_stack(), to.as_stack()) {
                        (Some(slot), None) => state[slot.index()] & bit(to) != 0,
                        (None, Some(slot)) => state[slot.index()] & bit(from) != 0,
                        _ => false,
                    };
                }
                self.hold(*step, state);
            }
        }
        useless
    }

    /// Tracks across a step which registers hold the values of slots.
    fn hold(&self, step: Step, state: &mut [u16]) {
        let Step::Move { from, to, .. } = step else {
            let Step::Inst(inst) = step else { return };
            let mut written: u16 = 0;
            let operands = self.vcode.inst_operands(inst).iter().zip(self.output.inst_allocs(inst));
            for (operand, allocation) in operands {
                if operand.kind() == OperandKind::Def {
                    written |= bit(*allocation);
                }
            }
            for register in self.vcode.inst_clobbers(inst) {
                written |= 1 << register.hw_enc();
            }
            state.iter_mut().for_each(|held| *held &= !written);
            return;
        };
        match (from.as_stack(), to.as_stack()) {
            (None, None) => {
                for held in state {
                    *held = if *held & bit(from) != 0 { *held | bit(to) } else { *held & !bit(to) };
                }
            }
            (Some(slot), None) => {
                if state[slot.index()] & bit(to) == 0 {
                    state.iter_mut().for_each(|held| *held &= !bit(to));
                    state[slot.index()] |= bit(to);
                }
            }
            (None, Some(slot)) => {
                if state[slot.index()] & bit(from) == 0 {
                    state[slot.index()] = bit(from);
                }
            }
            (Some(_), Some(slot)) => state[slot.index()] = 0,
        }
    }

    /// Returns the moves to slots that are not read afterwards.
    fn unread(&self) -> Vec<bool> {
        let count = self.blocks.len();
        let slots = self.output.num_spillslots;
        let mut read = vec![vec![false; slots]; count];
        let mut useless = vec![false; self.output.edits.len()];
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for block in (0..count).rev() {
                let mut state = vec![false; slots];
                for next in self.vcode.block_succs(regalloc2::Block::new(block)) {
                    state
                        .iter_mut()
                        .zip(&read[next.index()])
                        .for_each(|(here, next)| *here |= next);
                }
                for step in self.blocks[block].iter().rev() {
                    let Step::Move { number, from, to } = *step else { continue };
                    if let Some(slot) = to.as_stack() {
                        useless[number] = !std::mem::take(&mut state[slot.index()]);
                    }
                    if let Some(slot) = from.as_stack() {
                        state[slot.index()] = true;
                    }
                }
                changed |= read[block] != state;
                read[block] = state;
            }
        }
        useless
    }
}

/// Returns the register as a bit; 0 for other allocations.
fn bit(allocation: Allocation) -> u16 {
    allocation.as_reg().map_or(0, |register| 1 << register.hw_enc())
}

#[cfg(test)]
mod tests {
    use super::super::insn::{Alu, Bits, Insn};
    use super::super::vcode::{Op, defined, defined_in, physical, used};
    use super::*;
    use crate::ir::Place;

    #[test]
    fn a_register_that_is_on_the_stack_already_is_not_spilled_again() {
        // A constant, a copy of it, and a number that is added to the copy.
        let mut vcode = VCode::default();
        let block = vcode.block();
        vcode.begin(block);
        let [one, two, three] = [(); 3].map(|()| vcode.register());
        let constant = Insn::mov_imm(Bits::B64, 0, 7);
        let place = Place::default();
        vcode.push(Op::One { insn: constant, dst: Some(0), src: None }, &[defined(one)], place);
        let copy = Insn::mov(0, 0);
        let operands = [defined(two), used(one)];
        vcode.push(Op::One { insn: copy, dst: Some(0), src: Some(1) }, &operands, place);
        let more = Insn::alu_imm(Alu::Add, Bits::B64, 0, 9);
        let operands = [defined_in(three, 1), used(two)];
        vcode.push(Op::One { insn: more, dst: Some(0), src: None }, &operands, place);
        vcode.push(Op::Return, &[], place);
        vcode.end(block, Vec::new());
        let register = |number| Allocation::reg(physical(number));
        let frame = |slot| Allocation::stack(regalloc2::SpillSlot::new(slot));
        let edit = |inst, from, to| {
            (ProgPoint::new(Inst::new(inst), InstPosition::Before), Edit::Move { from, to })
        };
        let mut output = Output {
            num_spillslots: 2,
            edits: vec![
                edit(1, register(1), frame(0)), // the slot is read later
                edit(1, frame(0), register(1)), // the value is in the register already
                edit(2, register(1), frame(0)), // the value is in the slot already
                edit(2, register(2), frame(1)), // the slot is read by nobody
                edit(3, register(2), frame(1)), // another number, and read
                edit(3, frame(0), register(2)),
                edit(3, frame(1), register(1)),
            ],
            allocs: [1, 2, 1, 2, 2].map(register).to_vec(),
            inst_alloc_offsets: vec![0, 1, 3, 5],
            ..Output::default()
        };
        let all = output.edits.clone();
        remove_redundant_moves(&vcode, &mut output);
        let left = [0, 4, 5, 6].map(|at| all[at].clone());
        assert_eq!(format!("{:?}", output.edits), format!("{left:?}"));
    }
}
