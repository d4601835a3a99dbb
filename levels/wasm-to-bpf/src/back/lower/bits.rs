//! Bit counting, for which eBPF has no instructions, and the other unary operators.

use regalloc2::VReg;

use super::super::insn::{Alu, Bits, Insn};
use super::arithmetic;
use super::builder::Builder;
use crate::ir::{UnaryOp, Value};

/// Masks for counting by halves, for 64 bits; the low half serves for 32.
const PAIRS: u64 = 0x5555_5555_5555_5555;
const QUADS: u64 = 0x3333_3333_3333_3333;
const OCTETS: u64 = 0x0f0f_0f0f_0f0f_0f0f;
const ONES: u64 = 0x0101_0101_0101_0101;

pub(super) fn unary(code: &mut Builder<'_>, op: UnaryOp, a: Value) -> VReg {
    let bits = code.bits(a);
    match op {
        UnaryOp::Extend8 => arithmetic::sign_extended(code, bits, 8, a),
        UnaryOp::Extend16 => arithmetic::sign_extended(code, bits, 16, a),
        UnaryOp::Extend32 => arithmetic::sign_extended(code, bits, 32, a),
        UnaryOp::ByteSwap => {
            let a = code.value(a);
            let width = if bits == Bits::B32 { 32 } else { 64 };
            code.one_in_place(Insn::swap_bytes(width, 0), a)
        }
        UnaryOp::ByteSwap16 => {
            let a = code.value(a);
            code.one_in_place(Insn::swap_bytes(16, 0), a)
        }
        UnaryOp::Popcnt => {
            let a = code.value(a);
            count_ones(code, bits, a)
        }
        UnaryOp::Clz => leading_zeros(code, bits, a),
        UnaryOp::Ctz => trailing_zeros(code, bits, a),
    }
}

/// Counts leading zeros: sets every bit below the highest one; the remaining zeros lead.
fn leading_zeros(code: &mut Builder<'_>, bits: Bits, a: Value) -> VReg {
    let mut x = code.value(a);
    for shift in [1, 2, 4, 8, 16, 32] {
        if shift < 32 || bits == Bits::B64 {
            let shifted = code.alu_imm(Alu::ShrU, bits, x, shift);
            x = code.alu(Alu::Or, bits, x, shifted);
        }
    }
    let inverted = code.alu_imm(Alu::Xor, bits, x, -1);
    count_ones(code, bits, inverted)
}

/// Counts trailing zeros: `!x & (x - 1)` has ones exactly where zeros trail.
fn trailing_zeros(code: &mut Builder<'_>, bits: Bits, a: Value) -> VReg {
    let x = code.value(a);
    let inverted = code.alu_imm(Alu::Xor, bits, x, -1);
    let less = code.alu_imm(Alu::Sub, bits, x, 1);
    let mask = code.alu(Alu::And, bits, inverted, less);
    count_ones(code, bits, mask)
}

fn masked(code: &mut Builder<'_>, op: Alu, bits: Bits, x: VReg, mask: u64) -> VReg {
    match bits {
        Bits::B32 => code.alu_imm(op, bits, x, mask as u32 as i32),
        Bits::B64 => {
            let mask = code.make(mask);
            code.alu(op, bits, x, mask)
        }
    }
}

fn count_ones(code: &mut Builder<'_>, bits: Bits, x: VReg) -> VReg {
    let half = code.alu_imm(Alu::ShrU, bits, x, 1);
    let half = masked(code, Alu::And, bits, half, PAIRS);
    let pairs = code.alu(Alu::Sub, bits, x, half);
    let upper = code.alu_imm(Alu::ShrU, bits, pairs, 2);
    let upper = masked(code, Alu::And, bits, upper, QUADS);
    let low = masked(code, Alu::And, bits, pairs, QUADS);
    let quads = code.alu(Alu::Add, bits, low, upper);
    let upper = code.alu_imm(Alu::ShrU, bits, quads, 4);
    let octets = code.alu(Alu::Add, bits, quads, upper);
    let octets = masked(code, Alu::And, bits, octets, OCTETS);
    let sum = masked(code, Alu::Mul, bits, octets, ONES);
    code.alu_imm(Alu::ShrU, bits, sum, if bits == Bits::B32 { 24 } else { 56 })
}
