//! eBPF instructions over virtual registers, in blocks: the output of instruction selection and the
//! input of the register allocator. Makes no choices.

use regalloc2::{Inst, InstRange, Operand, OperandConstraint, OperandKind, OperandPos};
use regalloc2::{PReg, PRegSet, RegClass, VReg};

use super::insn::{Bits, Insn, Reg, Test};
use crate::TrapCode;
use crate::ir::{Place, Width};

/// Operation on operands, which the allocator replaces by registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Single instruction; its register fields come from these operands.
    One { insn: Insn, dst: Option<u8>, src: Option<u8> },
    /// 64-bit constant into operand 0.
    Wide(u64),
    /// Address of the instance block into operand 0.
    Block,
    /// Load of a fixed slot of the frame into operand 0.
    LoadSlot(Slot),
    /// Arguments of the function, in registers 1 and up.
    Arguments,
    /// Trap if the condition holds: operands 0 and, without an immediate, 1.
    Trap { condition: Condition, trap: Trap },
    /// Operand 0 keeps the value of operand 1 if the condition holds on the operands from `first`
    /// on, else it takes the immediate or operand 2.
    Select { condition: Condition, other: Option<i32>, first: u8 },
    /// Call of another function of the unit, by its position; a context goes first if it takes one.
    Call(u32),
    /// Call of a subprogram.
    CallHost(super::subprogram::Subprogram),
    /// Exit after a call by the trap that the callee left, if any.
    TrapAfterCall(Condition),
    /// Address of the hand-over into operand 0.
    HandOver,
    /// Bytes added in front of the packet, or removed if negative; 0 or an error in r0, the
    /// packet's ends in r2 and r3.
    MoveHead(i16),
    /// `may_goto`, the verifier's requirement for loops.
    MayGoto(Place),
    /// Read of the packet at a run-time address. Operands: result, a pointer to the end of the
    /// bytes read, `data_end`; for more than one byte also address and a temporary.
    WindowLoad { width: Width, distance: i32 },
    /// Write to the packet at a run-time address. Operands: value, and those of a read.
    WindowStore { width: Width, distance: i32 },
    /// Read that may be of packet, metadata or memory. Operands: result, address, a temporary;
    /// where the packet is likely, its ends.
    AnyLoad(AnyAccess),
    /// Write that may be to packet, metadata or memory. Operands: value, address, two temporaries,
    /// perhaps the packet's ends.
    AnyStore(AnyAccess),
    /// Pointers of the packet, checked to reach as far as the function needs; a failure is a trap.
    /// Operands: `data`, `data_end`, a temporary.
    Pointers { reach: u32, keep: bool },
    /// Trap unless operand 0 is a verdict; operand 1 is a temporary.
    CheckVerdict,
    /// Jump to the block's first successor.
    Jump,
    /// Jump to the first successor if the condition holds, else to the second.
    Branch(Condition),
    /// Return from the function, the result in r0.
    Return,
    /// Unconditional trap.
    TrapAlways(Trap),
}

/// Access whose region is decided at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnyAccess {
    pub(crate) width: Width,
    pub(crate) offset: u32,
    pub(crate) likely: super::setting::Likely,
    pub(crate) place: Place,
}

/// Fixed slot of the frame, which out-of-line code finds whatever the allocator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    /// Context from the kernel.
    Context,
    /// Address of the packet's first byte, checked.
    Data,
    /// Register saved by out-of-line code.
    Spare,
    /// Pointer for a fresh comparison.
    Pointer,
}

/// Comparison of two operands, or of one and an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) test: Test,
    pub(crate) bits: Bits,
    pub(crate) immediate: Option<i32>,
}

/// Cause and position of the end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Trap {
    pub(crate) code: TrapCode,
    pub(crate) place: Place,
}

impl Condition {
    pub(crate) const fn inverse(self) -> Self {
        Self { test: self.test.inverse(), ..self }
    }

    /// Returns the jump; `x` and `y` are the registers compared.
    pub(crate) const fn jump(self, x: Reg, y: Reg) -> Insn {
        match self.immediate {
            Some(immediate) => Insn::jump_imm(self.test, self.bits, x, immediate),
            None => Insn::jump(self.test, self.bits, x, y),
        }
    }
}

/// Basic block.
#[derive(Clone, Debug, Default)]
pub(crate) struct VBlock {
    first: u32,
    end: u32,
    pub(crate) parameters: Vec<VReg>,
    pub(crate) successors: Vec<regalloc2::Block>,
    predecessors: Vec<regalloc2::Block>,
    /// Values for the parameters of each successor.
    arguments: Vec<Vec<VReg>>,
    /// True for the target of a back edge: never removed.
    pub(crate) is_loop_header: bool,
}

#[derive(Clone, Debug)]
struct VInst {
    op: Op,
    operands: (u32, u32),
    place: Place,
}

/// Function over virtual registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct VCode {
    instructions: Vec<VInst>,
    operands: Vec<Operand>,
    pub(crate) blocks: Vec<VBlock>,
    registers: usize,
}

/// Returns the physical register of that number, as the allocator names it.
pub(crate) const fn physical(register: Reg) -> PReg {
    PReg::new(register as usize, RegClass::Int)
}

/// Returns an operand read at the beginning.
pub(crate) fn used(register: VReg) -> Operand {
    Operand::reg_use(register)
}

/// Returns an operand still read when results are being written.
pub(crate) fn used_late(register: VReg) -> Operand {
    Operand::new(register, OperandConstraint::Reg, OperandKind::Use, OperandPos::Late)
}

/// Returns an operand written at the end.
pub(crate) fn defined(register: VReg) -> Operand {
    Operand::reg_def(register)
}

/// Returns an operand written while others are still read.
pub(crate) fn defined_early(register: VReg) -> Operand {
    Operand::new(register, OperandConstraint::Reg, OperandKind::Def, OperandPos::Early)
}

/// Returns an operand written to the register from which the operand of that number was read.
pub(crate) fn defined_in(register: VReg, operand: usize) -> Operand {
    Operand::reg_reuse_def(register, operand)
}

/// Returns an operand read from a fixed register.
pub(crate) fn used_in(register: VReg, fixed: Reg) -> Operand {
    Operand::reg_fixed_use(register, physical(fixed))
}

/// Returns an operand written to a fixed register.
pub(crate) fn defined_at(register: VReg, fixed: Reg) -> Operand {
    Operand::reg_fixed_def(register, physical(fixed))
}

impl VCode {
    /// Returns a new virtual register.
    pub(crate) fn register(&mut self) -> VReg {
        self.registers += 1;
        VReg::new(self.registers - 1, RegClass::Int)
    }

    /// Returns a new block; its position in the code is where [`Self::begin`] is called.
    pub(crate) fn block(&mut self) -> regalloc2::Block {
        self.blocks.push(VBlock::default());
        regalloc2::Block::new(self.blocks.len() - 1)
    }

    /// Begins a block: the following instructions belong to it.
    pub(crate) fn begin(&mut self, block: regalloc2::Block) {
        let at = self.instructions.len() as u32;
        if let Some(block) = self.blocks.get_mut(block.index()) {
            block.first = at;
        }
    }

    /// Closes the block after its last instruction.
    pub(crate) fn end(
        &mut self,
        block: regalloc2::Block,
        edges: Vec<(regalloc2::Block, Vec<VReg>)>,
    ) {
        let at = self.instructions.len() as u32;
        for (target, _) in &edges {
            if let Some(target) = self.blocks.get_mut(target.index()) {
                target.predecessors.push(block);
            }
        }
        if let Some(block) = self.blocks.get_mut(block.index()) {
            block.end = at;
            (block.successors, block.arguments) = edges.into_iter().unzip();
        }
    }

    /// Numbers the blocks in the code's order; the allocator relies on it.
    pub(crate) fn renumber(&mut self, order: &[regalloc2::Block]) {
        let mut numbers = vec![regalloc2::Block::new(0); self.blocks.len()];
        for (number, block) in order.iter().enumerate() {
            if let Some(slot) = numbers.get_mut(block.index()) {
                *slot = regalloc2::Block::new(number);
            }
        }
        let renumbered = |blocks: &mut Vec<regalloc2::Block>| {
            for block in blocks {
                *block = numbers.get(block.index()).copied().unwrap_or(*block);
            }
        };
        let mut old = std::mem::take(&mut self.blocks);
        for block in order {
            let Some(block) = old.get_mut(block.index()) else { continue };
            let mut block = std::mem::take(block);
            renumbered(&mut block.successors);
            renumbered(&mut block.predecessors);
            self.blocks.push(block);
        }
    }

    /// Appends an operation.
    pub(crate) fn push(&mut self, op: Op, operands: &[Operand], place: Place) {
        let first = self.operands.len() as u32;
        self.operands.extend_from_slice(operands);
        self.instructions.push(VInst { op, operands: (first, self.operands.len() as u32), place });
    }

    /// Returns the operation and its position in the module.
    pub(crate) fn op(&self, inst: Inst) -> (Op, Place) {
        let inst = &self.instructions[inst.index()];
        (inst.op, inst.place)
    }

    /// Returns whether some operation reads that slot of the frame.
    pub(crate) fn loads_slot(&self, slot: Slot) -> bool {
        let loads = |inst: &VInst| matches!(inst.op, Op::LoadSlot(read) if read == slot);
        self.instructions.iter().any(loads)
    }

    /// Returns the number of operations.
    pub(crate) fn length(&self) -> usize {
        self.instructions.len()
    }
}

impl Op {
    const fn calls(self) -> bool {
        matches!(self, Self::Call(_) | Self::CallHost(_) | Self::MoveHead(_))
    }
}

impl regalloc2::Function for VCode {
    fn num_insts(&self) -> usize {
        self.instructions.len()
    }

    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn entry_block(&self) -> regalloc2::Block {
        regalloc2::Block::new(0)
    }

    fn block_insns(&self, block: regalloc2::Block) -> InstRange {
        let block = &self.blocks[block.index()];
        InstRange::new(Inst::new(block.first as usize), Inst::new(block.end as usize))
    }

    fn block_succs(&self, block: regalloc2::Block) -> &[regalloc2::Block] {
        &self.blocks[block.index()].successors
    }

    fn block_preds(&self, block: regalloc2::Block) -> &[regalloc2::Block] {
        &self.blocks[block.index()].predecessors
    }

    fn block_params(&self, block: regalloc2::Block) -> &[VReg] {
        &self.blocks[block.index()].parameters
    }

    fn is_ret(&self, inst: Inst) -> bool {
        matches!(self.instructions[inst.index()].op, Op::Return | Op::TrapAlways(_))
    }

    fn is_branch(&self, inst: Inst) -> bool {
        matches!(self.instructions[inst.index()].op, Op::Jump | Op::Branch(_))
    }

    fn branch_blockparams(&self, block: regalloc2::Block, _: Inst, successor: usize) -> &[VReg] {
        &self.blocks[block.index()].arguments[successor]
    }

    fn inst_operands(&self, inst: Inst) -> &[Operand] {
        let (first, end) = self.instructions[inst.index()].operands;
        &self.operands[first as usize..end as usize]
    }

    /// A call preserves nothing in r0 to r5 but its result; operands fixed there are no clobbers.
    fn inst_clobbers(&self, inst: Inst) -> PRegSet {
        if !self.instructions[inst.index()].op.calls() {
            return PRegSet::empty();
        }
        let mut set = (0..=5).map(physical).collect::<PRegSet>();
        for operand in self.inst_operands(inst) {
            if let (OperandKind::Def, OperandConstraint::FixedReg(register)) =
                (operand.kind(), operand.constraint())
            {
                set.remove(register);
            }
        }
        set
    }

    fn num_vregs(&self) -> usize {
        self.registers
    }

    fn spillslot_size(&self, _: RegClass) -> usize {
        1
    }
}
