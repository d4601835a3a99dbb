//! Instruction selection: one function of the IR becomes eBPF instructions
//! over virtual registers. Registers, jumps and the frame come later.
//!
//! ```text
//!  Lower ─▶ arithmetic, bits, memory, packet, calls, control: selection by kind of operation
//!     ├ Builder: registers of values, single instructions
//!     ├ Flow: blocks and their order
//!     ├ Fuel: charges of the entry
//!     └ Local, Inherited: registers available in a block, and those of its dominator
//! ```

mod arithmetic;
mod bits;
mod builder;
mod calls;
mod control;
mod flow;
mod fuel;
mod liveness;
mod local;
mod memory;
mod moves;
mod packet;

pub(crate) use calls::in_registers;
pub(crate) use packet::{WINDOW_SHIFT, context_fields};

use regalloc2::VReg;

use super::facts::Facts;
use super::guard::Guard;
use super::insn::{Alu, Bits, Insn, Test};
use super::plan::Plan;
use super::setting::{Needs, Setting};
use super::vcode::{Op as V, VCode, defined, used};
use crate::ir::{Instruction, Op, Terminator, Unit, Value, Width};
use crate::layout;
use crate::passes::possible_signs;

use builder::Builder;
use flow::Flow;
use fuel::Fuel;
use liveness::Uses;
use local::{Inherited, Local};

/// Selects the instructions of the function at that position of the unit.
pub(crate) fn lower(unit: &Unit, plan: &Plan, position: usize) -> Option<VCode> {
    let function = unit.functions.get(position)?;
    let facts = Facts::of(function);
    let is_entry = position == 0;
    let uses = Uses::new(function, &facts, false, |_| None);
    let mut code = Builder::new(function, facts);
    let blocks = function.blocks.iter().map(|_| code.block()).collect();
    let mut lower = Lower {
        unit,
        plan,
        setting: plan.setting,
        needs: plan.needs.get(position).copied()?,
        is_entry,
        uses,
        signs: possible_signs(function),
        code,
        flow: Flow::new(function, blocks),
        fuel: Fuel::default(),
        inherited: Inherited::new(function, plan),
        local: Local::default(),
        packet: None,
    };
    lower.run();
    Some(lower.code.finish(lower.flow.order()))
}

/// Packet's pointers, in registers for the whole function.
#[derive(Clone, Copy)]
struct Pointers {
    data: VReg,
    data_end: VReg,
}

/// Selection of the instructions of one function.
struct Lower<'a> {
    unit: &'a Unit,
    plan: &'a Plan,
    setting: Setting,
    needs: Needs,
    is_entry: bool,
    uses: Uses,
    /// Values that must not be the operand of a mask.
    signs: Vec<bool>,
    code: Builder<'a>,
    flow: Flow,
    fuel: Fuel,
    inherited: Inherited,
    local: Local,
    packet: Option<Pointers>,
}

impl Lower<'_> {
    fn run(&mut self) {
        let function = self.code.function();
        self.find_fuel();
        for (number, block) in function.blocks.iter().enumerate() {
            let here = self.flow.block(number);
            self.open(here);
            self.inherit(number);
            if number == 0 {
                calls::enter(self);
                self.inherited.begin(self.local.packet);
            } else {
                self.code.define_parameters(here, &block.parameters);
            }
            if block.is_loop_header {
                self.code.mark_loop(here);
                if let Some(first) = block.instructions.first() {
                    self.code.set_place(first.place);
                }
                self.code.push(V::MayGoto(self.code.place()), &[]);
            }
            for (at, instruction) in block.instructions.iter().enumerate() {
                self.code.set_place(instruction.place);
                if self.uses.is_alive(instruction) {
                    self.instruction(instruction, &block.instructions[at + 1..], &block.terminator);
                }
            }
            let asked = self.guard(number).map(|guard| (guard, control::asked_end(self, guard)));
            self.inherited.leave(number, &self.local);
            match (asked, &block.terminator) {
                (Some(asked), Terminator::Branch(_, yes, no)) => {
                    control::branch_on_length(self, here, asked, yes, no);
                }
                (_, terminator) => control::terminator(self, here, terminator),
            }
        }
    }

    /// Returns the guard of the block's branch, if it makes the packet accessible.
    fn guard(&self, number: usize) -> Option<Guard> {
        self.plan.guards.get(&number).copied().filter(|_| self.is_entry)
    }

    /// Inherits the pointers of the dominator, and the packet's address where it is known to be the
    /// same.
    fn inherit(&mut self, number: usize) {
        let has_single_predecessor = self.flow.has_single_predecessor(number);
        self.inherited.enter(number, has_single_predecessor, &mut self.local);
        if !self.needs.changes_packet {
            let guard = self.guard(self.inherited.above(number));
            self.inherited.enter_packet(number, guard, &mut self.local);
        }
    }

    fn open(&mut self, block: regalloc2::Block) {
        self.code.begin(block);
        self.flow.open(block);
        self.local = Local::default();
        self.fuel.open();
    }

    /// Finds the charges of the entry, and the values that are needed then.
    fn find_fuel(&mut self) {
        if !self.is_entry {
            return;
        }
        self.fuel = Fuel::of_entry(&self.code);
        let (function, facts) = (self.code.function(), self.code.facts());
        self.uses = Uses::new(function, facts, self.fuel.is_known(), |number| {
            self.plan.guards.get(&number).copied()
        });
    }

    fn instruction(
        &mut self,
        instruction: &Instruction,
        rest: &[Instruction],
        terminator: &crate::ir::Terminator,
    ) {
        let result = instruction.results.first().copied();
        let made = match &instruction.op {
            Op::Const(_) => return,
            Op::Unary(op, a) => bits::unary(&mut self.code, *op, *a),
            Op::Binary(op, a, b) => arithmetic::binary(self, *op, *a, *b),
            Op::Compare(op, a, b) => arithmetic::compare(self, *op, *a, *b),
            // An i32 is kept zero-extended.
            Op::ExtendUnsigned(a) => self.code.value(*a),
            Op::ExtendSigned(a) => arithmetic::sign_extended(&mut self.code, Bits::B64, 32, *a),
            Op::Wrap(a) => arithmetic::low_half(&mut self.code, *a),
            Op::Select(condition, a, b) => arithmetic::select(self, *condition, *a, *b),
            Op::Load { width, signed, access } => {
                let Some(result) = result else { return };
                memory::load(self, *width, *signed, access, self.code.ty(result))
            }
            Op::Store { width, value, access } => {
                return memory::store(self, *width, *value, access);
            }
            Op::GlobalGet(global) => {
                let block = self.block_address();
                self.code.load_field(Width::Eight, block, layout::GLOBALS + 8 * global)
            }
            Op::GlobalSet(global, value) => {
                return self.store_field_value(layout::GLOBALS + 8 * global, *value);
            }
            Op::MemorySize => memory::memory_size(self),
            Op::MemoryGrow(pages) => memory::memory_grow(self, *pages),
            Op::MemoryCopy(to, from, length) => {
                return memory::memory_copy(self, *to, *from, *length);
            }
            Op::MemoryFill(to, byte, length) => {
                return memory::memory_fill(self, *to, *byte, *length);
            }
            Op::Call(callee, arguments) => {
                return calls::call(self, *callee, arguments, &instruction.results);
            }
            Op::Host(host, arguments) => calls::host(self, *host, arguments),
            Op::TrapIf(condition, code) => return self.trap_if(*condition, *code),
            Op::FuelLoad => {
                let block = self.block_address();
                let from = if result.is_some_and(|result| self.fuel.is_budget(result)) {
                    layout::FUEL_BUDGET
                } else {
                    layout::FUEL
                };
                self.code.load_field(Width::Eight, block, from)
            }
            Op::FuelStore(fuel) => {
                let is_last = !rest.iter().any(|next| matches!(next.op, Op::Call(..)));
                let returns = matches!(terminator, crate::ir::Terminator::Return(_));
                if self.is_entry && is_last && returns {
                    // Charged behind every trap that may still happen.
                    self.fuel.set_last(*fuel);
                } else {
                    self.store_field_value(layout::FUEL, *fuel);
                }
                return;
            }
            Op::PacketLength => {
                let hand_over = packet::hand_over(self);
                self.code.load_field(Width::Four, hand_over, layout::hand_over::METADATA)
            }
            Op::Opaque(value) => self.opaque(*value),
        };
        if let Some(result) = result {
            self.code.set(result, made);
        }
    }

    fn block_address(&mut self) -> VReg {
        if let Some(block) = self.local.block {
            return block;
        }
        let block = self.code.register();
        self.code.push(V::Block, &[defined(block)]);
        self.local.block = Some(block);
        block
    }

    fn store_field(&mut self, offset: u32, value: VReg) {
        let block = self.block_address();
        self.code.store_field(block, offset, value);
    }

    fn store_field_value(&mut self, offset: u32, value: Value) {
        let constant = self.code.constant(value).map(|constant| constant as i64);
        match constant.map(i32::try_from) {
            Some(Ok(immediate)) => {
                let block = self.block_address();
                let at = super::asm::field(offset);
                let insn = Insn::store_imm(Width::Eight, 0, at, immediate);
                self.code.push(V::One { insn, dst: Some(0), src: None }, &[used(block)]);
            }
            _ => {
                let value = self.code.value(value);
                self.store_field(offset, value);
            }
        }
    }

    fn opaque(&mut self, value: Value) -> VReg {
        let zero = match self.local.zero {
            Some(zero) => zero,
            None => {
                let block = self.block_address();
                let zero = self.code.load_field(Width::Eight, block, layout::OPAQUE_ZERO);
                self.local.zero = Some(zero);
                zero
            }
        };
        let bits = self.code.bits(value);
        let value = self.code.value(value);
        self.code.alu(Alu::Xor, bits, value, zero)
    }

    /// Adds the call's fuel to the account: the entry's, beside the verdict, or where there is no
    /// packet the instance's.
    fn account(&mut self) {
        let (account, at) = if self.setting.has_packet() {
            (packet::hand_over(self), layout::hand_over::FUEL_USED)
        } else {
            (self.block_address(), layout::FUEL_USED)
        };
        let sum = self.code.load_field(Width::Eight, account, at);
        let sum = if self.setting.bulk {
            let block = self.block_address();
            let bulk = self.code.load_field(Width::Eight, block, layout::BULK);
            self.code.alu(Alu::Add, Bits::B64, sum, bulk)
        } else {
            sum
        };
        let sum = match self.fuel.last().and_then(|fuel| self.fuel.spent(&self.code, fuel)) {
            Some(spent) => self.code.alu_imm(Alu::Add, Bits::B64, sum, spent),
            None => {
                let block = self.block_address();
                let budget = self.code.load_field(Width::Eight, block, layout::FUEL_BUDGET);
                let left = match self.fuel.last() {
                    Some(fuel) => self.code.value(fuel),
                    // Stored before, by the entry or its callee.
                    None => self.code.load_field(Width::Eight, block, layout::FUEL),
                };
                let used = self.code.alu(Alu::Sub, Bits::B64, budget, left);
                self.code.alu(Alu::Add, Bits::B64, sum, used)
            }
        };
        self.code.store_field(account, at, sum);
    }

    /// Discards, after a call, the registers that can be recomputed.
    fn forget(&mut self) {
        self.local = Local::default();
    }

    fn trap_if(&mut self, condition: Value, code: crate::TrapCode) {
        let (condition, operands) = arithmetic::tested(self, condition);
        self.trap_where(condition, &operands, code);
    }

    fn trap_where(
        &mut self,
        condition: super::vcode::Condition,
        operands: &[VReg],
        code: crate::TrapCode,
    ) {
        let operands: Vec<_> = operands.iter().map(|&register| used(register)).collect();
        let trap = super::vcode::Trap { code, place: self.code.place() };
        self.code.push(V::Trap { condition, trap }, &operands);
    }

    /// Emits an unconditional trap as `r >= 0`, unsigned, of any register.
    fn trap_now(&mut self, code: crate::TrapCode) {
        let any = self.code.make(0);
        let always =
            super::vcode::Condition { test: Test::GeU, bits: Bits::B32, immediate: Some(0) };
        self.trap_where(always, &[any], code);
    }
}
