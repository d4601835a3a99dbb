//! Integer operators. None of them traps: the IR has seen to that.

use regalloc2::VReg;

use super::super::insn::{Alu, Bits, Insn, Test};
use super::super::vcode::{Condition, Op as V, defined_in, used};
use super::{Lower, liveness};
use crate::ir::{BinaryOp, CompareOp, Op, Type, Value};

const fn width(bits: Bits) -> i32 {
    match bits {
        Bits::B32 => 32,
        Bits::B64 => 64,
    }
}

const fn alu(op: BinaryOp) -> Option<Alu> {
    Some(match op {
        BinaryOp::Add => Alu::Add,
        BinaryOp::Sub => Alu::Sub,
        BinaryOp::Mul => Alu::Mul,
        BinaryOp::DivS => Alu::DivS,
        BinaryOp::DivU => Alu::DivU,
        BinaryOp::RemS => Alu::RemS,
        BinaryOp::RemU => Alu::RemU,
        BinaryOp::And => Alu::And,
        BinaryOp::Or => Alu::Or,
        BinaryOp::Xor => Alu::Xor,
        BinaryOp::Shl => Alu::Shl,
        BinaryOp::ShrS => Alu::ShrS,
        BinaryOp::ShrU => Alu::ShrU,
        BinaryOp::Rotl | BinaryOp::Rotr => return None,
    })
}

const fn is_commutative(op: BinaryOp) -> bool {
    matches!(op, BinaryOp::Add | BinaryOp::Mul | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor)
}

const fn test(op: CompareOp) -> Test {
    match op {
        CompareOp::Eq => Test::Eq,
        CompareOp::Ne => Test::Ne,
        CompareOp::LtS => Test::LtS,
        CompareOp::LtU => Test::LtU,
        CompareOp::GtS => Test::GtS,
        CompareOp::GtU => Test::GtU,
        CompareOp::LeS => Test::LeS,
        CompareOp::LeU => Test::LeU,
        CompareOp::GeS => Test::GeS,
        CompareOp::GeU => Test::GeU,
    }
}

impl Lower<'_> {
    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> VReg {
        let bits = self.bits(a);
        if let Some(alu) = alu(op) {
            return match op {
                BinaryOp::Shl | BinaryOp::ShrS | BinaryOp::ShrU => self.shift(alu, bits, a, b),
                _ => self.plain(op, alu, bits, a, b),
            };
        }
        self.rotate(op == BinaryOp::Rotl, bits, a, b)
    }

    fn plain(&mut self, op: BinaryOp, alu: Alu, bits: Bits, a: Value, b: Value) -> VReg {
        let (a, b) = match self.constant(a) {
            Some(_) if is_commutative(op) => (b, a),
            _ => (a, b),
        };
        if matches!(op, BinaryOp::And | BinaryOp::Or) && self.is_sign(a) {
            // The mask meets the sign, and not the sign the mask (`passes/signs.rs`).
            let (x, y) = (self.value(b), self.value(a));
            return self.alu(alu, bits, x, y);
        }
        let x = self.value(a);
        match self.immediate(b) {
            // A division by a constant zero is behind a trap, and refused by the verifier.
            Some(0) if matches!(alu, Alu::DivU | Alu::DivS | Alu::RemU | Alu::RemS) => x,
            Some(immediate) => {
                let result = self.alu_imm(alu, bits, x, immediate);
                if alu == Alu::Add {
                    self.local.sums.insert(a, (result, immediate));
                }
                result
            }
            None => {
                let y = self.value(b);
                self.alu(alu, bits, x, y)
            }
        }
    }

    /// Shifts. eBPF takes a count that only the run knows modulo the width, as WebAssembly does
    /// (RFC 9669 section 4.1).
    fn shift(&mut self, alu: Alu, bits: Bits, a: Value, count: Value) -> VReg {
        let x = self.value(a);
        if let Some(count) = self.constant(count) {
            return self.alu_imm(alu, bits, x, (count as i32) & (width(bits) - 1));
        }
        let count = self.value(count);
        self.alu(alu, bits, x, count)
    }

    fn rotate(&mut self, left: bool, bits: Bits, a: Value, count: Value) -> VReg {
        let (there, back) = if left { (Alu::Shl, Alu::ShrU) } else { (Alu::ShrU, Alu::Shl) };
        let x = self.value(a);
        if let Some(count) = self.constant(count) {
            let count = (count as i32) & (width(bits) - 1);
            if count == 0 {
                return x;
            }
            let main = self.alu_imm(there, bits, x, count);
            let rest = self.alu_imm(back, bits, x, width(bits) - count);
            return self.alu(Alu::Or, bits, main, rest);
        }
        let count = self.value(count);
        let main = self.alu(there, bits, x, count);
        let other = self.one_in_place(Insn::neg(Bits::B32, 0), count);
        let rest = self.alu(back, bits, x, other);
        self.alu(Alu::Or, bits, main, rest)
    }

    /// The low `from` bits of `a`, sign-extended.
    pub(super) fn sign_extended(&mut self, bits: Bits, from: i16, a: Value) -> VReg {
        let a = self.value(a);
        self.one(Insn::mov_signed(bits, from, 0, 0), a)
    }

    pub(super) fn low_half(&mut self, a: Value) -> VReg {
        let a = self.value(a);
        self.one(Insn::alu(Alu::Mov, Bits::B32, 0, 0), a)
    }

    /// A comparison as a number: without a jump where two or three
    /// instructions do it, since a wrongly predicted jump costs more.
    pub(super) fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> VReg {
        if self.ty(a) == Type::I32
            && let Some(result) = self.compare_by_sign(op, a, b)
        {
            return result;
        }
        let (condition, operands) = self.comparison(op, a, b);
        let one = self.make(1);
        self.keep_if(condition, &operands, one, Err(0))
    }

    /// Both are below 2^32, so the 64-bit difference has the sign of the comparison.
    fn compare_by_sign(&mut self, op: CompareOp, a: Value, b: Value) -> Option<VReg> {
        let (a, b, negated) = match op {
            CompareOp::LtU => (a, b, false),
            CompareOp::GtU => (b, a, false),
            CompareOp::GeU => (a, b, true),
            CompareOp::LeU => (b, a, true),
            CompareOp::Eq | CompareOp::Ne => return Some(self.compare_equal(op, a, b)),
            _ => return None,
        };
        let x = self.value(a);
        let difference = match self.constant(b).map(|constant| i32::try_from(constant as i64)) {
            Some(Ok(constant)) => self.alu_imm(Alu::Sub, Bits::B64, x, constant),
            _ => {
                let y = self.value(b);
                self.alu(Alu::Sub, Bits::B64, x, y)
            }
        };
        let sign = self.alu_imm(Alu::ShrU, Bits::B64, difference, 63);
        Some(if negated { self.alu_imm(Alu::Xor, Bits::B64, sign, 1) } else { sign })
    }

    /// `a ^ b` is zero, or its negative has the sign.
    fn compare_equal(&mut self, op: CompareOp, a: Value, b: Value) -> VReg {
        let (a, b) = if self.constant(a).is_some() { (b, a) } else { (a, b) };
        let x = self.value(a);
        let difference = match self.immediate(b) {
            Some(0) => x,
            Some(immediate) => self.alu_imm(Alu::Xor, Bits::B32, x, immediate),
            None => {
                let y = self.value(b);
                self.alu(Alu::Xor, Bits::B32, x, y)
            }
        };
        let signed = if op == CompareOp::Ne {
            self.one_in_place(Insn::neg(Bits::B64, 0), difference)
        } else {
            self.alu_imm(Alu::Sub, Bits::B64, difference, 1)
        };
        self.alu_imm(Alu::ShrU, Bits::B64, signed, 63)
    }

    pub(super) fn select(&mut self, condition: Value, a: Value, b: Value) -> VReg {
        let (condition, operands) = self.condition(condition);
        let small = |lower: &Self, value| {
            let constant = lower.constant(value)? as i64;
            i32::try_from(constant).ok()
        };
        match (small(self, a), small(self, b)) {
            (Some(constant), None) => {
                let b = self.value(b);
                self.keep_if(condition.inverse(), &operands, b, Err(constant))
            }
            (_, Some(constant)) => {
                let a = self.value(a);
                self.keep_if(condition, &operands, a, Err(constant))
            }
            _ => {
                let (a, b) = (self.value(a), self.value(b));
                self.keep_if(condition, &operands, a, Ok(b))
            }
        }
    }

    /// `a` if the condition holds, else the other.
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

    /// What a jump tests to find out whether the `i32` is not zero.
    pub(super) fn condition(&mut self, value: Value) -> (Condition, Vec<VReg>) {
        if !self.uses.is_needed(value)
            && let Some(&Op::Compare(op, a, b)) = self.definition(value)
        {
            let is_comparison = matches!(self.definition(a), Some(Op::Compare(..)));
            if is_comparison
                && !self.uses.is_needed(a)
                && liveness::is_zero_test(op, b, &self.facts)
            {
                let (condition, operands) = self.condition(a);
                let inverse = op == CompareOp::Eq;
                return (if inverse { condition.inverse() } else { condition }, operands);
            }
            return self.comparison(op, a, b);
        }
        let register = self.value(value);
        (Condition { test: Test::Ne, bits: Bits::B32, immediate: Some(0) }, vec![register])
    }

    fn comparison(&mut self, op: CompareOp, a: Value, b: Value) -> (Condition, Vec<VReg>) {
        let bits = self.bits(a);
        let (a, b, test) = match self.constant(a) {
            Some(_) => (b, a, test(op).swapped()),
            None => (a, b, test(op)),
        };
        if let (Test::Eq | Test::Ne, Some(immediate)) = (test, self.immediate(b))
            && let Some(found) = self.compare_sum(test, bits, a, immediate)
        {
            return found;
        }
        let x = self.value(a);
        match self.immediate(b) {
            Some(immediate) => (Condition { test, bits, immediate: Some(immediate) }, vec![x]),
            None => {
                let y = self.value(b);
                (Condition { test, bits, immediate: None }, vec![x, y])
            }
        }
    }

    /// `a == c` as `a + k == c + k` where the sum is at hand: then a loop's
    /// counter and its successor are not both needed, and share a register.
    fn compare_sum(
        &self,
        test: Test,
        bits: Bits,
        a: Value,
        immediate: i32,
    ) -> Option<(Condition, Vec<VReg>)> {
        let &(sum, added) = self.local.sums.get(&a)?;
        let immediate = match bits {
            Bits::B32 => immediate.wrapping_add(added),
            Bits::B64 => immediate.checked_add(added)?,
        };
        Some((Condition { test, bits, immediate: Some(immediate) }, vec![sum]))
    }
}
