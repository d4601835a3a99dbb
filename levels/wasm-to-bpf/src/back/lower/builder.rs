//! Builder of one function's code: virtual registers of values, and single instructions in order.
//! Decides nothing.

use regalloc2::{Block, VReg};

use super::super::asm::field;
use super::super::facts::Facts;
use super::super::insn::{Alu, Bits, Insn};
use super::super::vcode::{Condition, Op as V, VCode, defined, defined_in, used};
use crate::ir::{Function, Op, Place, Type, Value, Width};

/// Code over virtual registers. Register numbers in the templates of instructions are placeholders.
pub(super) struct Builder<'a> {
    function: &'a Function,
    facts: Facts,
    /// Registers of values, by number.
    registers: Vec<Option<VReg>>,
    vcode: VCode,
    /// Position in the module of the operation being selected.
    place: Place,
}

impl<'a> Builder<'a> {
    pub(super) fn new(function: &'a Function, facts: Facts) -> Self {
        let registers = vec![None; function.types.len()];
        Self { function, facts, registers, vcode: VCode::default(), place: Place::default() }
    }

    pub(super) const fn function(&self) -> &'a Function {
        self.function
    }

    pub(super) const fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) const fn place(&self) -> Place {
        self.place
    }

    pub(super) fn ty(&self, value: Value) -> Type {
        self.function.types.get(value.0 as usize).copied().unwrap_or(Type::I64)
    }

    pub(super) fn bits(&self, value: Value) -> Bits {
        match self.ty(value) {
            Type::I32 => Bits::B32,
            Type::I64 => Bits::B64,
        }
    }

    pub(super) fn constant(&self, value: Value) -> Option<u64> {
        self.facts.constant(value)
    }

    /// Returns the constant as an immediate of operations of its type, if it fits.
    pub(super) fn immediate(&self, value: Value) -> Option<i32> {
        let constant = self.constant(value)?;
        match self.ty(value) {
            Type::I32 => Some(constant as u32 as i32),
            Type::I64 => i32::try_from(constant as i64).ok(),
        }
    }

    pub(super) fn definition(&self, value: Value) -> Option<&'a Op> {
        self.facts.definition(self.function, value)
    }

    /// Sets the position in the module of the following instructions.
    pub(super) const fn set_place(&mut self, place: Place) {
        self.place = place;
    }

    /// Returns the register that holds the value; a constant is materialised here.
    pub(super) fn value(&mut self, value: Value) -> VReg {
        if let Some(constant) = self.constant(value) {
            return self.make(constant);
        }
        match self.registers.get(value.0 as usize).copied().flatten() {
            Some(register) => register,
            // Undefined on every path to here: any value will do.
            None => self.make(0),
        }
    }

    pub(super) fn set(&mut self, value: Value, register: VReg) {
        if let Some(slot) = self.registers.get_mut(value.0 as usize) {
            *slot = Some(register);
        }
    }

    pub(super) fn define(&mut self, value: Value) -> VReg {
        let register = self.vcode.register();
        self.set(value, register);
        register
    }

    /// Returns a new register.
    pub(super) fn register(&mut self) -> VReg {
        self.vcode.register()
    }

    /// Returns a new block, which begins later.
    pub(super) fn block(&mut self) -> Block {
        self.vcode.block()
    }

    /// Begins a block behind the last one.
    pub(super) fn begin(&mut self, block: Block) {
        self.vcode.begin(block);
    }

    /// Defines the parameters of a block.
    pub(super) fn define_parameters(&mut self, block: Block, parameters: &[Value]) {
        let registers = parameters.iter().map(|&value| self.define(value)).collect();
        self.vcode.blocks[block.index()].parameters = registers;
    }

    /// Marks a block as the header of a loop.
    pub(super) fn mark_loop(&mut self, block: Block) {
        self.vcode.blocks[block.index()].is_loop_header = true;
    }

    /// Ends a block with its successors and the arguments for their parameters.
    pub(super) fn end(&mut self, block: Block, successors: Vec<(Block, Vec<VReg>)>) {
        self.vcode.end(block, successors);
    }

    /// Returns the code, with its blocks in that order.
    pub(super) fn finish(mut self, order: &[Block]) -> VCode {
        self.vcode.renumber(order);
        self.vcode
    }

    pub(super) fn push(&mut self, op: V, operands: &[regalloc2::Operand]) {
        self.vcode.push(op, operands, self.place);
    }

    /// Materialises a constant.
    pub(super) fn make(&mut self, constant: u64) -> VReg {
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

    /// Adds `a op b`.
    pub(super) fn alu(&mut self, op: Alu, bits: Bits, a: VReg, b: VReg) -> VReg {
        let result = self.vcode.register();
        self.push(
            V::One { insn: Insn::alu(op, bits, 0, 0), dst: Some(0), src: Some(2) },
            &[defined_in(result, 1), used(a), used(b)],
        );
        result
    }

    /// Adds `a op immediate`.
    pub(super) fn alu_imm(&mut self, op: Alu, bits: Bits, a: VReg, immediate: i32) -> VReg {
        self.one_in_place(Insn::alu_imm(op, bits, 0, immediate), a)
    }

    /// Adds an instruction that changes its only operand.
    pub(super) fn one_in_place(&mut self, insn: Insn, a: VReg) -> VReg {
        let result = self.vcode.register();
        self.push(V::One { insn, dst: Some(0), src: None }, &[defined_in(result, 1), used(a)]);
        result
    }

    /// Adds an instruction that reads one register and writes another.
    pub(super) fn one(&mut self, insn: Insn, a: VReg) -> VReg {
        let result = self.vcode.register();
        self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[defined(result), used(a)]);
        result
    }

    /// Loads a field of the instance block, or of the record that `block` points at.
    pub(super) fn load_field(&mut self, width: Width, block: VReg, offset: u32) -> VReg {
        self.one(Insn::load(width, false, 0, 0, field(offset)), block)
    }

    /// Stores a register in an 8-byte field of the record that `block` points at.
    pub(super) fn store_field(&mut self, block: VReg, offset: u32, value: VReg) {
        let insn = Insn::store(Width::Eight, 0, 0, field(offset));
        self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[used(block), used(value)]);
    }

    /// Stores a value at a pointer and an offset.
    pub(super) fn store_to(&mut self, width: Width, value: Value, base: VReg, off: i16) {
        let immediate = self.constant(value).and_then(|constant| match width {
            Width::Eight => i32::try_from(constant as i64).ok(),
            _ => Some(constant as u32 as i32),
        });
        if let Some(immediate) = immediate {
            let insn = Insn::store_imm(width, 0, off, immediate);
            self.push(V::One { insn, dst: Some(0), src: None }, &[used(base)]);
        } else {
            let value = self.value(value);
            let insn = Insn::store(width, 0, 0, off);
            self.push(V::One { insn, dst: Some(0), src: Some(1) }, &[used(base), used(value)]);
        }
    }

    /// Selects `a` if the condition holds, else the other value.
    pub(super) fn keep_if(
        &mut self,
        condition: Condition,
        compared: &[VReg],
        a: VReg,
        other: Result<VReg, i32>,
    ) -> VReg {
        let result = self.vcode.register();
        let mut operands = vec![defined_in(result, 1), used(a)];
        operands.extend(other.iter().map(|&register| used(register)));
        let first = operands.len() as u8;
        operands.extend(compared.iter().map(|&register| used(register)));
        self.push(V::Select { condition, other: other.err(), first }, &operands);
        result
    }
}
