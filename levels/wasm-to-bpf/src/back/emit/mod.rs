//! From virtual registers to instructions: registers are assigned, blocks laid
//! one behind the other, and what is rare put out of line.

mod any;
mod entry;
mod frame;
mod head;
mod late;
mod partial;
mod traps;
mod twins;

use std::collections::BTreeMap;

use regalloc2::{Allocation, Edit, InstOrEdit, Output};

use abi::layout::verdict_code;

use super::asm::{Assembler, Callee, Code, Label};
use super::insn::{Alu, Bits, FP, Insn, R0, R1, R2, Reg, Test};
use super::lower::context_fields;
use super::plan::Plan;
use super::setting::{Needs, Setting};
use super::vcode::{Condition, Op as V, Slot, Trap, VCode};
use crate::TrapCode;
use crate::ir::{Place, Width};

use entry::EntryLabels;
use frame::Frame;
use late::Late;
use twins::placed;

/// Beyond so many operations conditional jumps are made over unconditional
/// ones: the verifier keeps at most 8,192 ways that it has not gone yet, and
/// 16 bits of distance are 32,767 instructions.
const SHORT_MAX: usize = 4_000;

/// Bits that a pass may have: of an edge, and of a new route.
const PASS_BITS: i32 =
    verdict_code::REROUTE_FLAG as i32 | (abi::layout::EDGES_MAX as i32 - 1) << 16;

/// A function's code and what is to be said about it.
pub(crate) struct Emitted {
    pub(crate) code: Code,
    /// Bytes of its frame.
    pub(crate) stack: u32,
    /// Places of the frame that hold values without a register.
    pub(crate) spills: u32,
    /// Whether it comes back to the context that it was called with.
    reads_context: bool,
    /// Each block's instructions, in the code's order, with its successors' numbers.
    pub(crate) blocks: Vec<BlockCost>,
}

/// What one block costs.
pub(crate) struct BlockCost {
    pub(crate) instructions: u32,
    /// Positions of functions of the unit that it calls.
    pub(crate) calls: Vec<u32>,
    /// Successors, as positions in the code's order.
    pub(crate) successors: Vec<usize>,
}

/// Emits the function at that position.
pub(crate) fn emit(
    plan: &Plan,
    position: usize,
    vcode: &VCode,
    output: &Output,
) -> Option<Emitted> {
    let mut long = vcode.length() > SHORT_MAX;
    let attempt = |long, keeps| Emit::new(plan, position, vcode, output, long, keeps)?.run();
    let mut emitted = attempt(long, true);
    if emitted.is_none() && !long {
        long = true;
        emitted = attempt(long, true);
    }
    match emitted {
        Some(emitted) if !emitted.reads_context => attempt(long, false),
        emitted => emitted,
    }
}

struct Emit<'a> {
    plan: &'a Plan,
    setting: Setting,
    needs: Needs,
    is_entry: bool,
    vcode: &'a VCode,
    output: &'a Output,
    frame: Frame,
    /// Whether the context is kept in the frame, ...
    keeps_context: bool,
    /// and whether that was of use.
    reads_context: bool,
    /// Set where the packet's address is kept in the frame: something reads it there.
    keeps_data: bool,
    asm: Assembler,
    /// Labels of the code's blocks, by number.
    labels: Vec<Label>,
    /// For each block another one that does the same in its place.
    twins: Vec<Option<regalloc2::Block>>,
    late: Vec<Late>,
    traps: BTreeMap<Trap, Label>,
    /// Where traps go with their place in r1 and their cause in r2.
    trap_common: Option<Label>,
    /// Where the entry goes when a function that it called has trapped.
    trapped: Option<Label>,
    /// Where the entry goes with a verdict in r0.
    epilogue: Option<Label>,
    entry: EntryLabels,
    /// Whether the end of a packet's entry is emitted.
    is_finished: bool,
}

impl<'a> Emit<'a> {
    fn new(
        plan: &'a Plan,
        position: usize,
        vcode: &'a VCode,
        output: &'a Output,
        long: bool,
        keeps_context: bool,
    ) -> Option<Self> {
        let needs = plan.needs.get(position).copied()?;
        let is_entry = position == 0;
        let has_context = needs.context || is_entry && plan.setting.has_packet();
        let mut asm = Assembler::new(long);
        let labels = vcode.blocks.iter().map(|_| asm.label()).collect();
        let entry = EntryLabels::new(&mut asm);
        Some(Self {
            plan,
            setting: plan.setting,
            needs,
            is_entry,
            vcode,
            output,
            frame: Frame::new(needs, has_context && keeps_context, output.num_spillslots),
            keeps_context,
            reads_context: false,
            keeps_data: needs.changes_packet && vcode.loads_slot(Slot::Data),
            asm,
            labels,
            twins: vec![None; vcode.blocks.len()],
            late: Vec::new(),
            traps: BTreeMap::new(),
            trap_common: None,
            trapped: None,
            epilogue: None,
            entry,
            is_finished: false,
        })
    }

    fn run(mut self) -> Option<Emitted> {
        if self.is_entry {
            self.prologue();
        } else if self.needs.context {
            self.keep_context();
        }
        self.find_twins();
        let order: Vec<_> = (0..self.vcode.blocks.len())
            .map(regalloc2::Block::new)
            .filter(|&block| self.resolve(block) == block)
            .collect();
        let position: BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(at, block)| (block.index(), at)).collect();
        let mut blocks = Vec::with_capacity(order.len());
        for (at, &block) in order.iter().enumerate() {
            let start = self.asm.here();
            let calls = self.block(block, order.get(at + 1).copied())?;
            let successors = &self.vcode.blocks.get(block.index())?.successors;
            blocks.push(BlockCost {
                instructions: self.asm.here() - start,
                calls,
                successors: successors
                    .iter()
                    .filter_map(|&next| position.get(&self.resolve(next).index()).copied())
                    .collect(),
            });
        }
        if let Some(label) = self.epilogue {
            self.entry_epilogue(label);
        }
        self.late();
        if self.is_entry && self.setting.has_packet() {
            self.padding();
        }
        self.trap_stubs();
        Some(Emitted {
            code: self.asm.finish()?,
            stack: self.frame.bytes(),
            spills: self.output.num_spillslots as u32,
            reads_context: self.reads_context,
            blocks,
        })
    }

    /// Whether nothing is left of the block but its jump.
    fn is_empty(&self, block: regalloc2::Block) -> bool {
        let vcode = self.vcode;
        let Some(inside) = vcode.blocks.get(block.index()) else { return false };
        if block.index() == 0 || inside.is_loop_header {
            return false;
        }
        let mut content = self.output.block_insts_and_edits(vcode, block);
        let first = content.next();
        matches!(first, Some(InstOrEdit::Inst(inst)) if matches!(vcode.op(inst).0, V::Jump))
            && content.next().is_none()
    }

    /// The block that control reaches, past empty ones, or its twin.
    fn resolve(&self, mut block: regalloc2::Block) -> regalloc2::Block {
        while self.is_empty(block) {
            let next = self.vcode.blocks.get(block.index());
            match next.and_then(|inside| inside.successors.first()) {
                Some(&next) => block = next,
                None => break,
            }
        }
        self.twins.get(block.index()).copied().flatten().unwrap_or(block)
    }

    fn label(&self, block: regalloc2::Block) -> Option<Label> {
        self.labels.get(self.resolve(block).index()).copied()
    }

    /// Emits one block, returns whom it calls.
    fn block(
        &mut self,
        block: regalloc2::Block,
        next: Option<regalloc2::Block>,
    ) -> Option<Vec<u32>> {
        let label = *self.labels.get(block.index())?;
        self.asm.bind(label);
        let mut calls = Vec::new();
        let (vcode, output) = (self.vcode, self.output);
        for item in output.block_insts_and_edits(vcode, block) {
            match item {
                InstOrEdit::Edit(Edit::Move { from, to }) => {
                    if let Some(insn) = self.moved(*from, *to)? {
                        self.asm.push(insn);
                    }
                }
                InstOrEdit::Inst(inst) => {
                    let (op, place) = vcode.op(inst);
                    self.asm.place(place.0);
                    let registers = self.registers(inst);
                    if let V::Call(callee) = op {
                        calls.push(callee);
                    }
                    self.op(op, place, &registers, block, next)?;
                }
            }
        }
        Some(calls)
    }

    fn registers(&self, inst: regalloc2::Inst) -> Vec<Reg> {
        let register = |allocation: &Allocation| {
            allocation.as_reg().map_or(R0, |register| register.hw_enc() as Reg)
        };
        self.output.inst_allocs(inst).iter().map(register).collect()
    }

    /// One instruction at most; not every move is one.
    fn moved(&self, from: Allocation, to: Allocation) -> Option<Option<Insn>> {
        let register = |allocation: Allocation| Some(allocation.as_reg()?.hw_enc() as Reg);
        Some(Some(match (from.as_stack(), to.as_stack()) {
            (None, None) if from == to => return Some(None),
            (None, None) => Insn::mov(register(to)?, register(from)?),
            (Some(slot), None) => {
                Insn::load(Width::Eight, false, register(to)?, FP, self.frame.spill(slot.index()))
            }
            (None, Some(slot)) => {
                Insn::store(Width::Eight, FP, register(from)?, self.frame.spill(slot.index()))
            }
            // The allocator makes no such moves.
            (Some(_), Some(_)) => return None,
        }))
    }

    fn op(
        &mut self,
        op: V,
        place: Place,
        registers: &[Reg],
        block: regalloc2::Block,
        next: Option<regalloc2::Block>,
    ) -> Option<()> {
        let reg = |number: u8| registers.get(usize::from(number)).copied().unwrap_or(R0);
        match op {
            V::One { insn, dst, src } => self.asm.push(placed(insn, dst, src, registers)),
            V::Wide(constant) => self.asm.constant(reg(0), constant),
            V::Block => self.asm.block(reg(0), 0),
            V::LoadSlot(slot) => self.load_slot(reg(0), slot),
            V::Arguments => {}
            V::Trap { condition, trap } => {
                let label = self.trap(trap);
                self.branch(condition, reg(0), reg(1), label);
            }
            V::Select { condition, other, first } => {
                let skip = self.asm.label();
                self.asm.jump(condition.jump(reg(first), reg(first + 1)), skip);
                self.asm.push(match other {
                    Some(constant) => Insn::mov_imm(Bits::B64, reg(0), constant),
                    None => Insn::mov(reg(0), reg(2)),
                });
                self.asm.bind(skip);
            }
            V::Call(callee) => {
                if self.plan.needs.get(callee as usize)?.context {
                    self.load_slot(R1, Slot::Context);
                }
                self.asm.call(Callee::Unit(callee));
            }
            V::CallHost(subprogram) => {
                if self.setting.has_packet() {
                    self.load_slot(R1, Slot::Context);
                }
                self.asm.call(Callee::Host(subprogram));
            }
            V::TrapAfterCall(condition) => {
                let label = self.trapped();
                self.branch(condition, reg(0), R0, label);
            }
            V::HandOver => self.asm.hand_over(reg(0), 0),
            V::MoveHead(by) => self.move_head(by, place),
            V::MayGoto(place) => self.may_goto(place),
            V::WindowLoad { width, distance } => self.window_load(width, distance, registers)?,
            V::WindowStore { width, distance } => self.window_store(width, distance, registers)?,
            V::AnyLoad(access) => self.any_load(access, registers)?,
            V::AnyStore(access) => self.any_store(access, registers)?,
            V::Pointers { reach, keep } => self.pointers(reach, keep, place, registers)?,
            V::CheckVerdict => self.check_verdict(reg(0), reg(1)),
            V::Jump => self.go(*self.successors(block)?.first()?, next)?,
            V::Branch(condition) => {
                let &[yes, no] = self.successors(block)? else { return None };
                self.two_ways(condition, reg(0), reg(1), [yes, no], next)?;
            }
            V::Return => self.leave(next),
            V::TrapAlways(trap) => {
                let label = self.trap(trap);
                self.asm.goto(label);
            }
        }
        Some(())
    }

    fn successors(&self, block: regalloc2::Block) -> Option<&'a [regalloc2::Block]> {
        self.vcode.blocks.get(block.index()).map(|inside| inside.successors.as_slice())
    }

    fn go(&mut self, target: regalloc2::Block, next: Option<regalloc2::Block>) -> Option<()> {
        if Some(self.resolve(target)) != next {
            let label = self.label(target)?;
            self.asm.goto(label);
        }
        Some(())
    }

    fn two_ways(
        &mut self,
        condition: Condition,
        x: Reg,
        y: Reg,
        [yes, no]: [regalloc2::Block; 2],
        next: Option<regalloc2::Block>,
    ) -> Option<()> {
        if self.resolve(yes) == self.resolve(no) {
            return self.go(yes, next);
        }
        if Some(self.resolve(yes)) == next {
            let label = self.label(no)?;
            self.branch(condition.inverse(), x, y, label);
            return Some(());
        }
        let label = self.label(yes)?;
        self.branch(condition, x, y, label);
        self.go(no, next)
    }

    fn branch(&mut self, condition: Condition, x: Reg, y: Reg, label: Label) {
        self.asm.branch(condition.jump(x, y), condition.inverse().jump(x, y), label);
    }

    fn leave(&mut self, next: Option<regalloc2::Block>) {
        if !(self.is_entry && self.setting.has_packet()) {
            return self.asm.push(Insn::exit());
        }
        let label = match self.epilogue {
            Some(label) => label,
            None => {
                let label = self.asm.label();
                self.epilogue = Some(label);
                label
            }
        };
        // The epilogue stands behind the last block.
        if next.is_some() {
            self.asm.goto(label);
        }
    }

    /// It is in r1, where a function begins.
    fn keep_context(&mut self) {
        if self.keeps_context {
            let at = self.frame.slot(Slot::Context);
            self.asm.push(Insn::store(Width::Eight, FP, R1, at));
        }
    }

    fn load_slot(&mut self, register: Reg, slot: Slot) {
        self.reads_context |= slot == Slot::Context;
        let at = self.frame.slot(slot);
        self.asm.push(Insn::load(Width::Eight, false, register, FP, at));
    }

    fn may_goto(&mut self, place: Place) {
        let trap = self.trap(Trap { code: TrapCode::OutOfTime, place });
        self.asm.may_goto(trap);
    }

    fn pointers(&mut self, reach: u32, keep: bool, place: Place, registers: &[Reg]) -> Option<()> {
        let &[data, data_end, temporary] = registers else { return None };
        let (data_at, end_at) = context_fields(self.setting.flavour);
        self.load_slot(data, Slot::Context);
        self.asm.push(Insn::load(Width::Four, false, data_end, data, end_at));
        self.asm.push(Insn::load(Width::Four, false, data, data, data_at));
        if reach > 0 {
            self.asm.push(Insn::mov(temporary, data));
            self.asm.push(Insn::alu_imm(Alu::Add, Bits::B64, temporary, reach as i32));
            let trap = self.trap(Trap { code: TrapCode::Packet, place });
            let short = Condition { test: Test::GtU, bits: Bits::B64, immediate: None };
            self.branch(short, temporary, data_end, trap);
        }
        if keep && self.keeps_data {
            let at = self.frame.slot(Slot::Data);
            self.asm.push(Insn::store(Width::Eight, FP, data, at));
        }
        Some(())
    }

    /// Drop and redirect carry any number, pass that of an edge and perhaps a new route;
    /// of bounce and raise there is one each. The trap's place is the number.
    fn check_verdict(&mut self, verdict: Reg, temporary: Reg) {
        let (good, common) = (self.asm.label(), self.trap_common());
        let is = |register, test, immediate| Insn::jump_imm(test, Bits::B32, register, immediate);
        self.asm.jump(is(verdict, Test::LeU, 4), good);
        self.asm.push(Insn::mov(temporary, verdict));
        self.asm.push(Insn::alu_imm(Alu::And, Bits::B32, temporary, !PASS_BITS));
        self.asm.jump(is(temporary, Test::Eq, 0), good);
        self.asm.push(Insn::mov(temporary, verdict));
        self.asm.push(Insn::alu_imm(Alu::And, Bits::B32, temporary, 0xffff));
        self.asm.jump(is(temporary, Test::Eq, 1), good);
        self.asm.jump(is(temporary, Test::Eq, 3), good);
        self.asm.push(Insn::mov(R1, verdict));
        self.asm.push(Insn::mov_imm(Bits::B32, R2, TrapCode::BadVerdict as i32));
        self.asm.goto(common);
        self.asm.bind(good);
    }
}
