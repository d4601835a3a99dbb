//! `memory.copy` and `memory.fill`: 8 bytes at a time in plain memory, byte by byte where metadata
//! or the window is touched. Nothing is written if a range does not lie within the memory.

use super::super::asm::{Code, field};
use super::super::insn::{Alu, R0, R1, R2, R3, R4, R6, R7, R8, R9, Reg, Test};
use super::super::setting::Setting;
use super::shared::{Builder, CONTEXT};
use super::{OUTSIDE, SPENT};
use crate::ir::Width;
use crate::layout;

const TO: Reg = R6;
const FROM: Reg = R7;
const LEFT: Reg = R8;
/// Register with a zero that the verifier does not know.
const ZERO: Reg = R9;
/// Frame of both subprograms, bytes: the context.
const STACK: u32 = 8;
/// Multiplier that copies a byte to all eight bytes of a word.
const EIGHT_TIMES: u64 = 0x0101_0101_0101_0101;

/// Copies memory. Arguments: destination, source, length.
pub(super) fn copy(setting: &Setting) -> (Code, u32) {
    let mut b = begin(setting);
    let outside = b.label();
    b.check_range(TO, LEFT, [R1, R2], outside);
    b.check_range(FROM, LEFT, [R1, R2], outside);
    charge(&mut b);
    let (special, backward) = (b.label(), b.label());
    if setting.has_packet() {
        b.if_special(TO, LEFT, R1, special);
        b.if_special(FROM, LEFT, R1, special);
    }
    // Backward if the destination begins within the source.
    b.mov(R1, TO);
    b.alu(Alu::Sub, R1, FROM);
    b.if_reg(R1, Test::LtU, LEFT, backward);
    copy_forward(&mut b);
    b.bind(backward);
    copy_backward(&mut b);
    if setting.has_packet() {
        b.bind(special);
        copy_special(&mut b);
    }
    b.bind(outside);
    b.give(OUTSIDE);
    b.finish(STACK)
}

/// Moves arguments into the registers that calls preserve, and the context into its slot.
fn begin(setting: &Setting) -> Builder<'_> {
    let mut b = Builder::new(setting);
    let first = if setting.has_packet() {
        b.keep(CONTEXT, R1);
        R2
    } else {
        R1
    };
    for (to, number) in [TO, FROM, LEFT].into_iter().zip(0..) {
        b.mov(to, first + number);
    }
    b
}

/// Charges one unit for 8 bytes: beside the cost of operators, a call may copy and fill for as much
/// again as its budget.
fn charge(b: &mut Builder<'_>) {
    let enough = b.label();
    b.mov(R1, LEFT);
    b.alu_imm(Alu::ShrU, R1, 3);
    b.asm.block(R2, 0);
    b.load(Width::Eight, R3, R2, field(layout::BULK));
    b.alu(Alu::Add, R3, R1);
    b.store(Width::Eight, R2, R3, field(layout::BULK));
    b.load(Width::Eight, R1, R2, field(layout::FUEL_BUDGET));
    b.if_reg(R3, Test::LeU, R1, enough);
    b.give(SPENT);
    b.bind(enough);
}

/// Loops over words and then bytes; `step` emits each iteration.
fn words_then_bytes(b: &mut Builder<'_>, step: impl Fn(&mut Builder<'_>, Width, i32)) {
    for (width, size) in [(Width::Eight, 8), (Width::One, 1)] {
        let (again, done, late) = (b.label(), b.label(), b.label());
        b.unknown_zero(ZERO);
        b.bind(again);
        b.asm.may_goto(late);
        forget_ranges(b);
        b.if_imm(LEFT, Test::LtU, size, done);
        step(b, width, size);
        b.alu_imm(Alu::Sub, LEFT, size);
        b.goto(again);
        b.bind(late);
        b.give(SPENT);
        b.bind(done);
    }
    b.give(0);
}

fn copy_forward(b: &mut Builder<'_>) {
    words_then_bytes(b, |b, width, size| {
        b.cast(R1, FROM);
        b.load(width, R2, R1, 0);
        b.cast(R1, TO);
        b.store(width, R1, R2, 0);
        b.alu_imm(Alu::Add, FROM, size);
        b.alu_imm(Alu::Add, TO, size);
    });
}

/// Copies backward. The ends are where the rest begins, so only the rest's length changes.
fn copy_backward(b: &mut Builder<'_>) {
    words_then_bytes(b, |b, width, size| {
        b.mov(R1, FROM);
        b.alu(Alu::Add, R1, LEFT);
        b.alu_imm(Alu::Sub, R1, size);
        b.cast(R1, R1);
        b.load(width, R2, R1, 0);
        b.mov(R1, TO);
        b.alu(Alu::Add, R1, LEFT);
        b.alu_imm(Alu::Sub, R1, size);
        b.cast(R1, R1);
        b.store(width, R1, R2, 0);
    });
}

/// Makes the verifier forget the ranges of the loop's numbers, which would make each iteration a
/// new state.
fn forget_ranges(b: &mut Builder<'_>) {
    for number in [TO, FROM, LEFT] {
        b.alu(Alu::Xor, number, ZERO);
    }
}

/// Copies byte by byte, upwards or downwards.
fn copy_special(b: &mut Builder<'_>) {
    let (lost, down) = (b.label(), b.label());
    b.mov(R1, TO);
    b.alu(Alu::Sub, R1, FROM);
    b.if_reg(R1, Test::LtU, LEFT, down);
    bytes(b, lost, |b| {
        one_byte(b, TO, FROM);
        b.alu_imm(Alu::Add, TO, 1);
        b.alu_imm(Alu::Add, FROM, 1);
        b.alu_imm(Alu::Sub, LEFT, 1);
    });
    b.bind(down);
    bytes(b, lost, |b| {
        b.alu_imm(Alu::Sub, LEFT, 1);
        for (at, start) in [(R3, FROM), (R4, TO)] {
            b.mov(at, start);
            b.alu(Alu::Add, at, LEFT);
        }
        one_byte(b, R4, R3);
    });
    b.bind(lost);
    b.give(SPENT);
}

fn one_byte(b: &mut Builder<'_>, to: Reg, from: Reg) {
    b.load_byte(R0, from, R1, R2);
    b.store_byte(R0, to, R1, R2);
}

/// Emits a loop that runs while bytes are left.
fn bytes(b: &mut Builder<'_>, late: super::super::asm::Label, step: impl Fn(&mut Builder<'_>)) {
    let (again, done) = (b.label(), b.label());
    b.unknown_zero(ZERO);
    b.bind(again);
    b.asm.may_goto(late);
    forget_ranges(b);
    b.if_imm(LEFT, Test::Eq, 0, done);
    step(b);
    b.goto(again);
    b.bind(done);
    b.give(0);
}

/// Fills memory. Arguments: destination, byte, length.
pub(super) fn fill(setting: &Setting) -> (Code, u32) {
    let mut b = begin(setting);
    let (outside, special) = (b.label(), b.label());
    b.check_range(TO, LEFT, [R1, R2], outside);
    charge(&mut b);
    b.alu_imm(Alu::And, FROM, 0xff);
    if setting.has_packet() {
        b.if_special(TO, LEFT, R1, special);
    }
    b.asm.constant(R1, EIGHT_TIMES);
    b.alu(Alu::Mul, FROM, R1);
    words_then_bytes(&mut b, |b, width, size| {
        b.cast(R1, TO);
        b.store(width, R1, FROM, 0);
        b.alu_imm(Alu::Add, TO, size);
    });
    if setting.has_packet() {
        b.bind(special);
        let lost = b.label();
        bytes(&mut b, lost, |b| {
            b.store_byte(FROM, TO, R1, R2);
            b.alu_imm(Alu::Add, TO, 1);
            b.alu_imm(Alu::Sub, LEFT, 1);
        });
        b.bind(lost);
        b.give(SPENT);
    }
    b.bind(outside);
    b.give(OUTSIDE);
    b.finish(STACK)
}
