//! Common parts of the subprograms: their builder, the registers that they keep things in, and
//! bytes whose region is decided at run time.

use super::super::asm::{Assembler, Code, Label, field};
use super::super::insn::{Alu, Bits, FP, Insn, R0, Reg, Test};
use super::super::lower::context_fields;
use super::super::setting::Setting;
use crate::ir::Width;
use crate::layout::{self, hand_over::METADATA};
use abi::layout::{META_ADDRESS, META_LENGTH, WINDOW_ADDRESS};

/// Slot in which a subprogram keeps the context.
pub(super) const CONTEXT: i16 = -8;
/// Mask that shows the verifier that an offset in the window is small.
const WINDOW_MASK: i32 = 0xfff;

/// Subprogram under construction.
pub(super) struct Builder<'a> {
    pub(super) asm: Assembler,
    pub(super) setting: &'a Setting,
}

impl<'a> Builder<'a> {
    pub(super) fn new(setting: &'a Setting) -> Self {
        Self { asm: Assembler::new(false), setting }
    }

    /// Returns the code, with the frame size in bytes. This code has no unbound label and no
    /// distance beyond 16 bits; a test assembles all.
    pub(super) fn finish(self, stack: u32) -> (Code, u32) {
        (self.asm.finish().unwrap_or_default(), stack.next_multiple_of(16))
    }

    pub(super) fn label(&mut self) -> Label {
        self.asm.label()
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.asm.bind(label);
    }

    pub(super) fn goto(&mut self, label: Label) {
        self.asm.goto(label);
    }

    pub(super) fn mov(&mut self, to: Reg, from: Reg) {
        self.asm.push(Insn::mov(to, from));
    }

    pub(super) fn set(&mut self, to: Reg, constant: i32) {
        self.asm.push(Insn::mov_imm(Bits::B64, to, constant));
    }

    /// Emits `to = to op from`, 64 bits.
    pub(super) fn alu(&mut self, op: Alu, to: Reg, from: Reg) {
        self.asm.push(Insn::alu(op, Bits::B64, to, from));
    }

    /// Emits `to = to op constant`, 64 bits.
    pub(super) fn alu_imm(&mut self, op: Alu, to: Reg, constant: i32) {
        self.asm.push(Insn::alu_imm(op, Bits::B64, to, constant));
    }

    /// Emits `if a test constant goto label`, 64 bits.
    pub(super) fn if_imm(&mut self, a: Reg, test: Test, constant: i32, label: Label) {
        self.asm.jump(Insn::jump_imm(test, Bits::B64, a, constant), label);
    }

    /// Emits `if a test b goto label`, 64 bits.
    pub(super) fn if_reg(&mut self, a: Reg, test: Test, b: Reg, label: Label) {
        self.asm.jump(Insn::jump(test, Bits::B64, a, b), label);
    }

    pub(super) fn load(&mut self, width: Width, to: Reg, from: Reg, offset: i16) {
        self.asm.push(Insn::load(width, false, to, from, offset));
    }

    pub(super) fn store(&mut self, width: Width, to: Reg, from: Reg, offset: i16) {
        self.asm.push(Insn::store(width, to, from, offset));
    }

    pub(super) fn keep(&mut self, slot: i16, from: Reg) {
        self.store(Width::Eight, FP, from, slot);
    }

    pub(super) fn kept(&mut self, to: Reg, slot: i16) {
        self.load(Width::Eight, to, FP, slot);
    }

    pub(super) fn cast(&mut self, to: Reg, from: Reg) {
        self.asm.push(Insn::cast(to, from));
    }

    pub(super) fn helper(&mut self, number: i32) {
        self.asm.push(Insn::call_helper(number));
    }

    /// Returns from the subprogram with a constant, as an `i32`.
    pub(super) fn give(&mut self, constant: i32) {
        self.asm.push(Insn::mov_imm(Bits::B32, R0, constant));
        self.asm.push(Insn::exit());
    }

    /// Emits the address of a slot of the frame.
    pub(super) fn frame_address(&mut self, to: Reg, slot: i16) {
        self.mov(to, FP);
        self.alu_imm(Alu::Add, to, i32::from(slot));
    }

    /// Emits a zero that the verifier does not know as one: the start value of a loop counter, so
    /// that the loop is not unrolled.
    pub(super) fn unknown_zero(&mut self, to: Reg) {
        self.asm.block(to, 0);
        self.load(Width::Eight, to, to, field(layout::OPAQUE_ZERO));
    }

    /// Emits the size of the memory in bytes.
    pub(super) fn memory_bytes(&mut self, to: Reg) {
        if self.setting.memory_min == self.setting.memory_max {
            self.asm.constant(to, self.setting.memory_max);
        } else {
            self.asm.block(to, 0);
            self.load(Width::Eight, to, to, field(layout::MEMORY_BYTES));
        }
    }

    /// Jumps to the label unless `[address, address + length)` is in the memory.
    pub(super) fn check_range(
        &mut self,
        address: Reg,
        length: Reg,
        [end, size]: [Reg; 2],
        outside: Label,
    ) {
        self.mov(end, address);
        self.alu(Alu::Add, end, length);
        self.memory_bytes(size);
        self.if_reg(end, Test::GtU, size, outside);
    }

    /// Jumps to the label if `[address, address + length)` touches metadata or window.
    pub(super) fn if_special(&mut self, address: Reg, length: Reg, free: Reg, label: Label) {
        let plain = self.label();
        self.if_imm(address, Test::GeU, abi::layout::DATA_ADDRESS as i32, plain);
        self.mov(free, address);
        self.alu(Alu::Add, free, length);
        self.if_imm(free, Test::GtU, META_ADDRESS as i32, label);
        self.bind(plain);
    }

    /// Loads one byte at the address in linear memory, whatever its region; `at` and `free` are
    /// overwritten. The context is in its slot.
    pub(super) fn load_byte(&mut self, to: Reg, address: Reg, at: Reg, free: Reg) {
        self.byte(address, at, free, Transfer::Load(to));
    }

    /// Stores one byte at the address in linear memory, in the same way.
    pub(super) fn store_byte(&mut self, from: Reg, address: Reg, at: Reg, free: Reg) {
        self.byte(address, at, free, Transfer::Store(from));
    }

    fn byte(&mut self, address: Reg, at: Reg, free: Reg, transfer: Transfer) {
        let done = self.label();
        let window = self.setting.packet.map_or(0, |packet| packet.window);
        self.mov(at, address);
        self.alu_imm(Alu::Sub, at, WINDOW_ADDRESS as i32);
        if window > 0 {
            let other = self.label();
            self.if_imm(at, Test::GeU, window as i32, other);
            self.packet_byte(at, free, transfer, done);
            self.bind(other);
        }
        let other = self.label();
        self.alu_imm(Alu::Add, at, (WINDOW_ADDRESS - META_ADDRESS) as i32);
        self.if_imm(at, Test::GeU, META_LENGTH as i32, other);
        self.asm.hand_over(free, METADATA);
        self.alu(Alu::Add, at, free);
        self.transfer(transfer, at, 0);
        self.goto(done);
        self.bind(other);
        self.cast(at, address);
        self.transfer(transfer, at, 0);
        self.bind(done);
    }

    fn packet_byte(&mut self, at: Reg, free: Reg, transfer: Transfer, done: Label) {
        let beyond = self.label();
        let (data, data_end) = context_fields(self.setting.flavour);
        self.alu_imm(Alu::And, at, WINDOW_MASK);
        self.kept(free, CONTEXT);
        self.load(Width::Four, free, free, data);
        self.alu(Alu::Add, at, free);
        self.kept(free, CONTEXT);
        self.load(Width::Four, free, free, data_end);
        // The verifier learns from the end of an access, not from its beginning.
        self.alu_imm(Alu::Add, at, 1);
        self.if_reg(at, Test::GtU, free, beyond);
        self.transfer(transfer, at, -1);
        self.goto(done);
        self.bind(beyond);
        if let Transfer::Load(to) = transfer {
            self.set(to, 0);
        }
        self.goto(done);
    }

    fn transfer(&mut self, transfer: Transfer, at: Reg, offset: i16) {
        match transfer {
            Transfer::Load(to) => self.load(Width::One, to, at, offset),
            Transfer::Store(from) => self.store(Width::One, at, from, offset),
        }
    }
}

#[derive(Clone, Copy)]
enum Transfer {
    Load(Reg),
    Store(Reg),
}
