//! Counting bits, for which eBPF has no instructions, and the other operators
//! of one operand.

use regalloc2::VReg;

use super::super::insn::{Alu, Bits, Insn};
use super::Lower;
use crate::ir::{UnaryOp, Value};

/// Masks of the counting by halves, for 64 bits; the low half serves for 32.
const PAIRS: u64 = 0x5555_5555_5555_5555;
const QUADS: u64 = 0x3333_3333_3333_3333;
const OCTETS: u64 = 0x0f0f_0f0f_0f0f_0f0f;
const ONES: u64 = 0x0101_0101_0101_0101;

impl Lower<'_> {
    pub(super) fn unary(&mut self, op: UnaryOp, a: Value) -> VReg {
        let bits = self.bits(a);
        match op {
            UnaryOp::Extend8 => self.sign_extended(bits, 8, a),
            UnaryOp::Extend16 => self.sign_extended(bits, 16, a),
            UnaryOp::Extend32 => self.sign_extended(bits, 32, a),
            UnaryOp::ByteSwap => {
                let a = self.value(a);
                let width = if bits == Bits::B32 { 32 } else { 64 };
                self.one_in_place(Insn::swap_bytes(width, 0), a)
            }
            UnaryOp::ByteSwap16 => {
                let a = self.value(a);
                self.one_in_place(Insn::swap_bytes(16, 0), a)
            }
            UnaryOp::Popcnt => {
                let a = self.value(a);
                self.count_ones(bits, a)
            }
            UnaryOp::Clz => self.leading_zeros(bits, a),
            UnaryOp::Ctz => self.trailing_zeros(bits, a),
        }
    }

    /// Sets every bit below the highest one; the zeros left are those that lead.
    fn leading_zeros(&mut self, bits: Bits, a: Value) -> VReg {
        let mut x = self.value(a);
        for shift in [1, 2, 4, 8, 16, 32] {
            if shift < 32 || bits == Bits::B64 {
                let shifted = self.alu_imm(Alu::ShrU, bits, x, shift);
                x = self.alu(Alu::Or, bits, x, shifted);
            }
        }
        let inverted = self.alu_imm(Alu::Xor, bits, x, -1);
        self.count_ones(bits, inverted)
    }

    /// `!x & (x - 1)` has ones exactly where zeros trail.
    fn trailing_zeros(&mut self, bits: Bits, a: Value) -> VReg {
        let x = self.value(a);
        let inverted = self.alu_imm(Alu::Xor, bits, x, -1);
        let less = self.alu_imm(Alu::Sub, bits, x, 1);
        let mask = self.alu(Alu::And, bits, inverted, less);
        self.count_ones(bits, mask)
    }

    fn masked(&mut self, op: Alu, bits: Bits, x: VReg, mask: u64) -> VReg {
        match bits {
            Bits::B32 => self.alu_imm(op, bits, x, mask as u32 as i32),
            Bits::B64 => {
                let mask = self.make(mask);
                self.alu(op, bits, x, mask)
            }
        }
    }

    fn count_ones(&mut self, bits: Bits, x: VReg) -> VReg {
        let half = self.alu_imm(Alu::ShrU, bits, x, 1);
        let half = self.masked(Alu::And, bits, half, PAIRS);
        let pairs = self.alu(Alu::Sub, bits, x, half);
        let upper = self.alu_imm(Alu::ShrU, bits, pairs, 2);
        let upper = self.masked(Alu::And, bits, upper, QUADS);
        let lower = self.masked(Alu::And, bits, pairs, QUADS);
        let quads = self.alu(Alu::Add, bits, lower, upper);
        let upper = self.alu_imm(Alu::ShrU, bits, quads, 4);
        let octets = self.alu(Alu::Add, bits, quads, upper);
        let octets = self.masked(Alu::And, bits, octets, OCTETS);
        let sum = self.masked(Alu::Mul, bits, octets, ONES);
        self.alu_imm(Alu::ShrU, bits, sum, if bits == Bits::B32 { 24 } else { 56 })
    }
}
