//! Emission: from virtual registers to instructions. Assigns registers, lays out the blocks, and
//! puts rare cases out of line.

mod any;
mod blocks;
mod duplicates;
mod entry;
mod frame;
mod head;
mod late;
mod partial;
mod traps;

use std::collections::BTreeMap;

use regalloc2::{InstOrEdit, Output};

use abi::layout::verdict_code;

use super::asm::{Assembler, Callee, Code, Label};
use super::insn::{Alu, Bits, FP, Insn, R0, R1, R2, Reg, Test};
use super::lower::context_fields;
use super::plan::Plan;
use super::setting::{Needs, Setting};
use super::vcode::{Condition, Op as V, Slot, Trap, VCode};
use crate::TrapCode;
use crate::ir::{Place, Width};

use blocks::{Blocks, moved};
use duplicates::placed;
use entry::EntryLabels;
use frame::Frame;
use late::Late;
use traps::Traps;

/// Number of operations above which conditional jumps are made over unconditional ones: the
/// verifier keeps at most 8,192 unexplored branches, and a distance of 16 bits is 32,767
/// instructions.
const SHORT_MAX: usize = 4_000;

/// Bits that a pass verdict may have: an edge, and the reroute flag.
const PASS_BITS: i32 =
    verdict_code::REROUTE_FLAG as i32 | (abi::layout::EDGES_MAX as i32 - 1) << 16;

/// Emitted code of a function, with its properties.
pub(crate) struct Emitted {
    pub(crate) code: Code,
    /// Frame size, bytes.
    pub(crate) stack: u32,
    /// Number of frame slots of values without a register.
    pub(crate) spills: u32,
    /// True if the function reads the context that it was called with.
    reads_context: bool,
    /// Instruction counts of the blocks, in the code's order, with their successors.
    pub(crate) blocks: Vec<BlockCost>,
}

/// Cost of one block.
pub(crate) struct BlockCost {
    pub(crate) instructions: u32,
    /// Positions of the functions of the unit that it calls.
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
    blocks: Blocks<'a>,
    frame: Frame,
    /// True if the context is kept in the frame.
    keeps_context: bool,
    /// True if the kept context was read.
    reads_context: bool,
    /// True if the packet's address is kept in the frame because something reads it there.
    keeps_data: bool,
    asm: Assembler,
    late: Vec<Late>,
    traps: Traps,
    /// Label of the entry's end, with a verdict in r0.
    epilogue: Option<Label>,
    entry: EntryLabels,
    /// True once the end of a packet's entry is emitted.
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
        let blocks = Blocks::new(vcode, output, &mut asm);
        let entry = EntryLabels::new(&mut asm);
        Some(Self {
            plan,
            setting: plan.setting,
            needs,
            is_entry,
            frame: Frame::new(needs, has_context && keeps_context, blocks.spills()),
            blocks,
            keeps_context,
            reads_context: false,
            keeps_data: needs.changes_packet && vcode.loads_slot(Slot::Data),
            asm,
            late: Vec::new(),
            traps: Traps::default(),
            epilogue: None,
            entry,
            is_finished: false,
        })
    }

    fn run(mut self) -> Option<Emitted> {
        if self.is_entry {
            entry::prologue(&mut self);
        } else if self.needs.context {
            self.keep_context();
        }
        duplicates::find(&mut self.blocks, &self.frame);
        let order = self.blocks.order();
        let position: BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(at, block)| (block.index(), at)).collect();
        let mut blocks = Vec::with_capacity(order.len());
        for (at, &block) in order.iter().enumerate() {
            let start = self.asm.here();
            let calls = self.block(block, order.get(at + 1).copied())?;
            let successors = self.blocks.successors(block)?;
            blocks.push(BlockCost {
                instructions: self.asm.here() - start,
                calls,
                successors: successors
                    .iter()
                    .filter_map(|&next| position.get(&self.blocks.resolve(next).index()).copied())
                    .collect(),
            });
        }
        if let Some(label) = self.epilogue {
            entry::entry_epilogue(&mut self, label);
        }
        any::late(&mut self);
        if self.is_entry && self.setting.has_packet() {
            entry::padding(&mut self);
        }
        traps::trap_stubs(&mut self);
        Some(Emitted {
            code: self.asm.finish()?,
            stack: self.frame.bytes(),
            spills: self.blocks.spills() as u32,
            reads_context: self.reads_context,
            blocks,
        })
    }

    /// Returns the label of that trap's stub.
    fn trap(&mut self, trap: Trap) -> Label {
        self.traps.stub(&mut self.asm, trap)
    }

    /// Returns the label for a trap with its position in r1 and its cause in r2.
    fn trap_common(&mut self) -> Label {
        self.traps.common(&mut self.asm)
    }

    /// Returns the label for a trap whose cause and position are already in the block.
    fn trapped(&mut self) -> Label {
        self.traps.trapped(&mut self.asm)
    }

    /// Emits one block; returns the functions that it calls.
    fn block(
        &mut self,
        block: regalloc2::Block,
        next: Option<regalloc2::Block>,
    ) -> Option<Vec<u32>> {
        let label = self.blocks.own_label(block)?;
        self.asm.bind(label);
        let mut calls = Vec::new();
        for item in self.blocks.content(block) {
            match item {
                InstOrEdit::Edit(edit) => {
                    if let Some(insn) = moved(&self.frame, edit)? {
                        self.asm.push(insn);
                    }
                }
                InstOrEdit::Inst(inst) => {
                    let (op, place) = self.blocks.vcode().op(inst);
                    self.asm.place(place.0);
                    let registers = self.blocks.registers(inst);
                    if let V::Call(callee) = op {
                        calls.push(callee);
                    }
                    self.op(op, place, &registers, block, next)?;
                }
            }
        }
        Some(calls)
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
            V::MoveHead(by) => head::move_head(self, by, place),
            V::MayGoto(place) => self.may_goto(place),
            V::WindowLoad { width, distance } => {
                any::window_load(self, width, distance, registers)?
            }
            V::WindowStore { width, distance } => {
                any::window_store(self, width, distance, registers)?
            }
            V::AnyLoad(access) => any::any_load(self, access, registers)?,
            V::AnyStore(access) => any::any_store(self, access, registers)?,
            V::Pointers { reach, keep } => self.pointers(reach, keep, place, registers)?,
            V::CheckVerdict => self.check_verdict(reg(0), reg(1)),
            V::Jump => self.go(*self.blocks.successors(block)?.first()?, next)?,
            V::Branch(condition) => {
                let &[yes, no] = self.blocks.successors(block)? else { return None };
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

    fn go(&mut self, target: regalloc2::Block, next: Option<regalloc2::Block>) -> Option<()> {
        if Some(self.blocks.resolve(target)) != next {
            let label = self.blocks.label(target)?;
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
        if self.blocks.resolve(yes) == self.blocks.resolve(no) {
            return self.go(yes, next);
        }
        if Some(self.blocks.resolve(yes)) == next {
            let label = self.blocks.label(no)?;
            self.branch(condition.inverse(), x, y, label);
            return Some(());
        }
        let label = self.blocks.label(yes)?;
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

    /// Saves the context, which is in r1 at a function's beginning.
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

    /// Traps unless the value is a verdict: drop and redirect carry any number, pass that of an
    /// edge and perhaps the reroute flag; bounce and raise have one form each. The trap's position
    /// is the number.
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
