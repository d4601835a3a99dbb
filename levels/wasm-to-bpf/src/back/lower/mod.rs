//! Instruction selection: one function of the IR becomes eBPF instructions
//! over virtual registers. Registers, jumps and the frame come later.

mod arithmetic;
mod bits;
mod calls;
mod control;
mod liveness;
mod memory;
mod moves;
mod packet;

pub(crate) use calls::in_registers;
pub(crate) use packet::{WINDOW_SHIFT, context_fields};

use std::collections::BTreeMap;

use regalloc2::VReg;

use super::facts::Facts;
use super::guard::Guard;
use super::insn::{Alu, Bits, Insn, Test};
use super::plan::Plan;
use super::setting::{Needs, Setting};
use super::vcode::{Op as V, VCode, defined, defined_in, used};
use crate::ir::{BlockId, Function, Instruction, Op, Place, Terminator, Type, Unit, Value, Width};
use crate::layout;
use crate::passes::graph::Graph;
use crate::passes::possible_signs;

use liveness::Uses;

/// Selects the instructions of the function at that position of the unit.
pub(crate) fn lower(unit: &Unit, plan: &Plan, position: usize) -> Option<VCode> {
    let function = unit.functions.get(position)?;
    let facts = Facts::of(function);
    let mut lower = Lower {
        unit,
        plan,
        setting: plan.setting,
        needs: plan.needs.get(position).copied()?,
        is_entry: position == 0,
        function,
        uses: Uses::new(function, &facts, false, |_| None),
        dominators: Graph::of(function).dominator,
        bases_at_end: vec![BTreeMap::new(); function.blocks.len()],
        ends_at_end: vec![BTreeMap::new(); function.blocks.len()],
        signs: possible_signs(function),
        moved: moves::moved(function, plan),
        ends_of_packet: vec![PacketEnds::default(); function.blocks.len()],
        first_ends: PacketEnds::default(),
        facts,
        registers: vec![None; function.types.len()],
        blocks: Vec::new(),
        order: Vec::new(),
        predecessors: vec![0; function.blocks.len()],
        vcode: VCode::default(),
        local: Local::default(),
        packet: None,
        place: Place::default(),
        initial_fuel: None,
        last_fuel: None,
        only_charge: None,
    };
    lower.run();
    lower.vcode.renumber(&lower.order);
    Some(lower.vcode)
}

/// The packet's pointers, in registers for the whole function.
#[derive(Clone, Copy)]
struct Pointers {
    data: VReg,
    data_end: VReg,
}

/// The packet's ends, where they are in registers.
#[derive(Clone, Copy, Default)]
struct PacketEnds {
    data: Option<VReg>,
    data_end: Option<VReg>,
}

/// What the current block has at hand, so that it is not made twice.
#[derive(Default)]
struct Local {
    /// The instance block's address.
    block: Option<VReg>,
    /// The zero that the verifier does not know.
    zero: Option<VReg>,
    /// The memory's size, if it is not constant.
    size: Option<VReg>,
    /// Arena pointers, by address and the upper part of the offset.
    bases: Bases,
    hand_over: Option<VReg>,
    packet: PacketEnds,
    /// For addresses in the window, a pointer to the end of an access there.
    ends: Ends,
    /// Sums with a constant, by what it was added to.
    sums: BTreeMap<Value, (VReg, i32)>,
}

/// Pointers that a block takes over from the one above it; beyond, it takes none, or each block of
/// a long function would hold all of those before it.
const HANDED_MAX: usize = 64;

type Bases = BTreeMap<(Base, u32), VReg>;
type Ends = BTreeMap<Value, End>;

/// A pointer into the packet, counted from an address in the window.
#[derive(Clone, Copy)]
struct End {
    pointer: VReg,
    /// The number that was added to the address for it.
    end: i32,
    /// The part of that which was added before the sum was masked.
    first: i32,
    /// One that the packet certainly goes as far as, and what was added to the address for it.
    known: Option<(VReg, i32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    Constant,
    Register(usize),
}

struct Lower<'a> {
    unit: &'a Unit,
    plan: &'a Plan,
    setting: Setting,
    needs: Needs,
    is_entry: bool,
    function: &'a Function,
    uses: Uses,
    facts: Facts,
    dominators: Vec<BlockId>,
    /// The arena pointers at the end of each block: those that it dominates have them too.
    bases_at_end: Vec<Bases>,
    /// The same of pointers into the packet, where it does not move.
    ends_at_end: Vec<Ends>,
    /// Which values a mask must not meet.
    signs: Vec<bool>,
    /// For each block, whether the packet may have moved before it.
    moved: Vec<bool>,
    /// The packet's ends at the end of each block.
    ends_of_packet: Vec<PacketEnds>,
    /// The packet's ends when the function began.
    first_ends: PacketEnds,
    registers: Vec<Option<VReg>>,
    /// The code's block for each of the IR's.
    blocks: Vec<regalloc2::Block>,
    /// Blocks as they stand in the code.
    order: Vec<regalloc2::Block>,
    predecessors: Vec<u32>,
    vcode: VCode,
    local: Local,
    packet: Option<Pointers>,
    place: Place,
    /// The entry's first `FuelLoad`: the whole budget.
    initial_fuel: Option<Value>,
    /// What is left when the entry returns, in this block.
    last_fuel: Option<Value>,
    /// The same when the entry spends once, at its beginning, a known number:
    /// then nothing is written before the end.
    only_charge: Option<Value>,
}

impl<'a> Lower<'a> {
    fn run(&mut self) {
        let function = self.function;
        for _ in &function.blocks {
            let block = self.vcode.block();
            self.blocks.push(block);
        }
        self.count_predecessors();
        self.find_initial_fuel();
        for (number, block) in function.blocks.iter().enumerate() {
            let here = self.blocks[number];
            self.open(here);
            self.inherit(number);
            if number == 0 {
                self.enter();
                self.first_ends = self.local.packet;
            } else {
                let parameters = block.parameters.iter().map(|&value| self.define(value)).collect();
                self.vcode.blocks[here.index()].parameters = parameters;
            }
            if block.is_loop_header {
                self.vcode.blocks[here.index()].is_loop_header = true;
                self.place = block.instructions.first().map_or(self.place, |first| first.place);
                self.push(V::MayGoto(self.place), &[]);
            }
            for (at, instruction) in block.instructions.iter().enumerate() {
                self.place = instruction.place;
                if self.uses.is_alive(instruction) {
                    self.instruction(instruction, &block.instructions[at + 1..], &block.terminator);
                }
            }
            let asked = self.guard(number).map(|guard| (guard, self.asked_end(guard)));
            if let Some(bases) = self.bases_at_end.get_mut(number) {
                bases.clone_from(&self.local.bases);
            }
            if let Some(ends) = self.ends_at_end.get_mut(number) {
                ends.clone_from(&self.local.ends);
            }
            if let Some(ends) = self.ends_of_packet.get_mut(number) {
                *ends = self.local.packet;
            }
            match (asked, &block.terminator) {
                (Some(asked), Terminator::Branch(_, yes, no)) => {
                    self.branch_on_length(here, asked, yes, no);
                }
                (_, terminator) => self.terminator(here, terminator),
            }
        }
    }

    /// What the block's branch asks of the packet, if it makes it accessible.
    fn guard(&self, number: usize) -> Option<Guard> {
        self.plan.guards.get(&number).copied().filter(|_| self.is_entry)
    }

    /// Takes over the pointers of the block that dominates this one, and the packet's
    /// address where it is known to be the same.
    fn inherit(&mut self, number: usize) {
        let above = self.dominators.get(number).map_or(0, |above| above.0 as usize);
        let is_only_way = self.predecessors.get(number) == Some(&1);
        if self.moved.get(number) == Some(&false) {
            self.local.packet = self.first_ends;
        } else if is_only_way && above != number {
            self.local.packet = self.ends_of_packet.get(above).copied().unwrap_or_default();
        }
        if above == number {
            return;
        }
        if let Some(bases) = self.bases_at_end.get(above).filter(|bases| bases.len() <= HANDED_MAX)
        {
            self.local.bases.clone_from(bases);
        }
        if !self.needs.changes_packet
            && let Some(ends) = self.ends_at_end.get(above).filter(|ends| ends.len() <= HANDED_MAX)
        {
            self.local.ends.clone_from(ends);
            // The branch that leads here has shown that the packet goes as far as that.
            let guards = self.plan.guards.get(&above).filter(|_| self.is_entry);
            if let Some(guard) = guards.filter(|guard| guard.long == number)
                && let Some(end) = guard.address.and_then(|at| self.local.ends.get_mut(&at))
            {
                end.known = Some((end.pointer, end.end));
            }
        }
    }

    fn open(&mut self, block: regalloc2::Block) {
        self.vcode.begin(block);
        self.order.push(block);
        self.local = Local::default();
        self.last_fuel = self.only_charge;
    }

    fn count_predecessors(&mut self) {
        for block in &self.function.blocks {
            for edge in block.terminator.edges() {
                if let Some(count) = self.predecessors.get_mut(edge.target.0 as usize) {
                    *count += 1;
                }
            }
        }
    }

    fn find_initial_fuel(&mut self) {
        if !self.is_entry {
            return;
        }
        self.initial_fuel = self.function.blocks.first().and_then(|block| {
            block
                .instructions
                .iter()
                .take_while(|instruction| !matches!(instruction.op, Op::Call(..)))
                .find(|instruction| instruction.op == Op::FuelLoad)
                .and_then(|instruction| instruction.results.first().copied())
        });
        let mut stores = self
            .function
            .blocks
            .iter()
            .flat_map(|block| &block.instructions)
            .filter(|instruction| matches!(instruction.op, Op::FuelStore(_) | Op::Call(..)));
        let only = match (stores.next().map(|first| &first.op), stores.next()) {
            (Some(Op::FuelStore(fuel)), None) => Some(*fuel),
            _ => None,
        };
        self.only_charge = only.filter(|&fuel| self.spent(fuel).is_some());
        let is_known = self.only_charge.is_some();
        self.uses = Uses::new(self.function, &self.facts, is_known, |number| {
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
            Op::Unary(op, a) => self.unary(*op, *a),
            Op::Binary(op, a, b) => self.binary(*op, *a, *b),
            Op::Compare(op, a, b) => self.compare(*op, *a, *b),
            // An i32 is kept zero-extended.
            Op::ExtendUnsigned(a) => self.value(*a),
            Op::ExtendSigned(a) => self.sign_extended(Bits::B64, 32, *a),
            Op::Wrap(a) => self.low_half(*a),
            Op::Select(condition, a, b) => self.select(*condition, *a, *b),
            Op::Load { width, signed, access } => {
                let Some(result) = result else { return };
                self.load(*width, *signed, access, self.ty(result))
            }
            Op::Store { width, value, access } => return self.store(*width, *value, access),
            Op::GlobalGet(global) => {
                let block = self.block_address();
                self.load_field(Width::Eight, block, layout::GLOBALS + 8 * global)
            }
            Op::GlobalSet(global, value) => {
                return self.store_field_value(layout::GLOBALS + 8 * global, *value);
            }
            Op::MemorySize => self.memory_size(),
            Op::MemoryGrow(pages) => self.memory_grow(*pages),
            Op::MemoryCopy(to, from, length) => return self.memory_copy(*to, *from, *length),
            Op::MemoryFill(to, byte, length) => return self.memory_fill(*to, *byte, *length),
            Op::Call(callee, arguments) => {
                return self.call(*callee, arguments, &instruction.results);
            }
            Op::Host(host, arguments) => self.host(*host, arguments),
            Op::TrapIf(condition, code) => return self.trap_if(*condition, *code),
            Op::FuelLoad => {
                let block = self.block_address();
                let from = if result.is_some() && result == self.initial_fuel {
                    layout::FUEL_BUDGET
                } else {
                    layout::FUEL
                };
                self.load_field(Width::Eight, block, from)
            }
            Op::FuelStore(fuel) => {
                let is_last = !rest.iter().any(|next| matches!(next.op, Op::Call(..)));
                let returns = matches!(terminator, crate::ir::Terminator::Return(_));
                if self.is_entry && is_last && returns {
                    // Charged behind every trap that may still come.
                    self.last_fuel = Some(*fuel);
                } else {
                    self.store_field_value(layout::FUEL, *fuel);
                }
                return;
            }
            Op::PacketLength => {
                let hand_over = self.hand_over();
                self.load_field(Width::Four, hand_over, layout::hand_over::METADATA)
            }
            Op::Opaque(value) => self.opaque(*value),
        };
        if let Some(result) = result {
            self.set(result, made);
        }
    }

    // Values and registers.

    fn ty(&self, value: Value) -> Type {
        self.function.types.get(value.0 as usize).copied().unwrap_or(Type::I64)
    }

    fn bits(&self, value: Value) -> Bits {
        match self.ty(value) {
            Type::I32 => Bits::B32,
            Type::I64 => Bits::B64,
        }
    }

    fn constant(&self, value: Value) -> Option<u64> {
        self.facts.constant(value)
    }

    /// The constant as an immediate of operations of its type, if it fits.
    fn immediate(&self, value: Value) -> Option<i32> {
        let constant = self.constant(value)?;
        match self.ty(value) {
            Type::I32 => Some(constant as u32 as i32),
            Type::I64 => i32::try_from(constant as i64).ok(),
        }
    }

    fn definition(&self, value: Value) -> Option<&'a Op> {
        self.facts.definition(self.function, value)
    }

    /// The register that holds the value; a constant is made here and now.
    fn value(&mut self, value: Value) -> VReg {
        if let Some(constant) = self.constant(value) {
            return self.make(constant);
        }
        match self.registers.get(value.0 as usize).copied().flatten() {
            Some(register) => register,
            // Not defined on any way here: nothing can tell what it is.
            None => self.make(0),
        }
    }

    fn set(&mut self, value: Value, register: VReg) {
        if let Some(slot) = self.registers.get_mut(value.0 as usize) {
            *slot = Some(register);
        }
    }

    fn define(&mut self, value: Value) -> VReg {
        let register = self.vcode.register();
        self.set(value, register);
        register
    }

    fn push(&mut self, op: V, operands: &[regalloc2::Operand]) {
        self.vcode.push(op, operands, self.place);
    }

    // Single instructions. Register numbers in the templates are placeholders.

    fn make(&mut self, constant: u64) -> VReg {
        let result = self.vcode.register();
        let op = if let Ok(signed) = i32::try_from(constant as i64) {
            V::One { insn: Insn::mov_imm(Bits::B64, 0, signed), dst: Some(0), src: None }
        } else if let Ok(unsigned) = u32::try_from(constant) {
            V::One { insn: Insn::mov_imm(Bits::B32, 0, unsigned as i32), dst: Some(0), src: None }
        } else {
            V::Wide(constant)
        };
        self.push(op, &[defined(result)]);
        result
    }

    /// `a op b`
    fn alu(&mut self, op: Alu, bits: Bits, a: VReg, b: VReg) -> VReg {
        let result = self.vcode.register();
        self.push(
            V::One { insn: Insn::alu(op, bits, 0, 0), dst: Some(0), src: Some(2) },
            &[defined_in(result, 1), used(a), used(b)],
        );
        result
    }

    /// `a op immediate`
    fn alu_imm(&mut self, op: Alu, bits: Bits, a: VReg, immediate: i32) -> VReg {
        self.one_in_place(Insn::alu_imm(op, bits, 0, immediate), a)
    }

    /// An instruction that changes its only operand.
    fn one_in_place(&mut self, insn: Insn, a: VReg) -> VReg {
        let result = self.vcode.register();
        self.push(V::One { insn, dst: Some(0), src: None }, &[defined_in(result, 1), used(a)]);
        result
    }

    /// An instruction that reads one register and writes another.
    fn one(&mut self, insn: Insn, a: VReg) -> VReg {
        let result = self.vcode.register();
        self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[defined(result), used(a)]);
        result
    }

    // The instance block.

    fn block_address(&mut self) -> VReg {
        if let Some(block) = self.local.block {
            return block;
        }
        let block = self.vcode.register();
        self.push(V::Block, &[defined(block)]);
        self.local.block = Some(block);
        block
    }

    fn load_field(&mut self, width: Width, block: VReg, offset: u32) -> VReg {
        self.one(Insn::load(width, false, 0, 0, super::asm::field(offset)), block)
    }

    fn store_field(&mut self, offset: u32, value: VReg) {
        let block = self.block_address();
        let insn = Insn::store(Width::Eight, 0, 0, super::asm::field(offset));
        self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[used(block), used(value)]);
    }

    fn store_field_value(&mut self, offset: u32, value: Value) {
        let constant = self.constant(value).map(|constant| constant as i64);
        match constant.map(i32::try_from) {
            Some(Ok(immediate)) => {
                let block = self.block_address();
                let at = super::asm::field(offset);
                let insn = Insn::store_imm(Width::Eight, 0, at, immediate);
                self.push(V::One { insn, dst: Some(0), src: None }, &[used(block)]);
            }
            _ => {
                let value = self.value(value);
                self.store_field(offset, value);
            }
        }
    }

    fn opaque(&mut self, value: Value) -> VReg {
        let zero = match self.local.zero {
            Some(zero) => zero,
            None => {
                let block = self.block_address();
                let zero = self.load_field(Width::Eight, block, layout::OPAQUE_ZERO);
                self.local.zero = Some(zero);
                zero
            }
        };
        let bits = self.bits(value);
        let value = self.value(value);
        self.alu(Alu::Xor, bits, value, zero)
    }

    /// Adds what the call has used to the account: the entry's, beside the verdict, or
    /// where there is no packet the instance's.
    fn account(&mut self) {
        let (account, at) = if self.setting.has_packet() {
            (self.hand_over(), layout::hand_over::FUEL_USED)
        } else {
            (self.block_address(), layout::FUEL_USED)
        };
        let sum = self.load_field(Width::Eight, account, at);
        let sum = if self.setting.bulk {
            let block = self.block_address();
            let bulk = self.load_field(Width::Eight, block, layout::BULK);
            self.alu(Alu::Add, Bits::B64, sum, bulk)
        } else {
            sum
        };
        let sum = match self.last_fuel.and_then(|fuel| self.spent(fuel)) {
            Some(spent) => self.alu_imm(Alu::Add, Bits::B64, sum, spent),
            None => {
                let block = self.block_address();
                let budget = self.load_field(Width::Eight, block, layout::FUEL_BUDGET);
                let left = match self.last_fuel {
                    Some(fuel) => self.value(fuel),
                    // Stored before, by the entry or by what it called.
                    None => self.load_field(Width::Eight, block, layout::FUEL),
                };
                let used = self.alu(Alu::Sub, Bits::B64, budget, left);
                self.alu(Alu::Add, Bits::B64, sum, used)
            }
        };
        let insn = Insn::store(Width::Eight, 0, 0, super::asm::field(at));
        self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[used(account), used(sum)]);
    }

    /// What was taken from the whole budget, if that is known now.
    fn spent(&self, mut fuel: Value) -> Option<i32> {
        let mut spent = 0i64;
        while Some(fuel) != self.initial_fuel {
            match self.definition(fuel)? {
                Op::Binary(crate::ir::BinaryOp::Sub, from, by) => {
                    spent = spent.checked_add(self.constant(*by)? as i64)?;
                    fuel = *from;
                }
                Op::Binary(crate::ir::BinaryOp::Add, to, by) => {
                    spent = spent.checked_sub(self.constant(*by)? as i64)?;
                    fuel = *to;
                }
                _ => return None,
            }
        }
        i32::try_from(spent).ok()
    }

    /// After a call nothing that could be made again is kept.
    fn forget(&mut self) {
        self.local = Local::default();
    }

    fn trap_if(&mut self, condition: Value, code: crate::TrapCode) {
        let (condition, operands) = self.condition(condition);
        self.trap_where(condition, &operands, code);
    }

    fn trap_where(
        &mut self,
        condition: super::vcode::Condition,
        operands: &[VReg],
        code: crate::TrapCode,
    ) {
        let operands: Vec<_> = operands.iter().map(|&register| used(register)).collect();
        let trap = super::vcode::Trap { code, place: self.place };
        self.push(V::Trap { condition, trap }, &operands);
    }

    /// Always: `r >= 0`, unsigned, of any register.
    fn trap_now(&mut self, code: crate::TrapCode) {
        let any = self.make(0);
        let always =
            super::vcode::Condition { test: Test::GeU, bits: Bits::B32, immediate: Some(0) };
        self.trap_where(always, &[any], code);
    }
}
