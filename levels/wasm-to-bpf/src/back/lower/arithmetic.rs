//! Integer operators. None of them traps: the IR makes traps explicit.

use regalloc2::VReg;

use super::super::insn::{Alu, Bits, Insn, Test};
use super::super::vcode::Condition;
use super::builder::Builder;
use super::{Lower, liveness, packet};
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

pub(super) fn binary(lower: &mut Lower<'_>, op: BinaryOp, a: Value, b: Value) -> VReg {
    let bits = lower.code.bits(a);
    if let Some(alu) = alu(op) {
        return match op {
            BinaryOp::Shl | BinaryOp::ShrS | BinaryOp::ShrU => {
                shift(&mut lower.code, alu, bits, a, b)
            }
            _ => plain(lower, op, alu, bits, a, b),
        };
    }
    rotate(&mut lower.code, op == BinaryOp::Rotl, bits, a, b)
}

fn plain(lower: &mut Lower<'_>, op: BinaryOp, alu: Alu, bits: Bits, a: Value, b: Value) -> VReg {
    let (a, b) = match lower.code.constant(a) {
        Some(_) if is_commutative(op) => (b, a),
        _ => (a, b),
    };
    if matches!(op, BinaryOp::And | BinaryOp::Or) && packet::is_sign(lower, a) {
        // The mask is applied to the sign, not the sign to the mask (`passes/signs.rs`).
        let (x, y) = (lower.code.value(b), lower.code.value(a));
        return lower.code.alu(alu, bits, x, y);
    }
    let x = lower.code.value(a);
    match lower.code.immediate(b) {
        // A division by a constant zero is behind a trap, and refused by the verifier.
        Some(0) if matches!(alu, Alu::DivU | Alu::DivS | Alu::RemU | Alu::RemS) => x,
        Some(immediate) => {
            let result = lower.code.alu_imm(alu, bits, x, immediate);
            if alu == Alu::Add {
                lower.local.sums.insert(a, (result, immediate));
            }
            result
        }
        None => {
            let y = lower.code.value(b);
            lower.code.alu(alu, bits, x, y)
        }
    }
}

/// Selects a shift. eBPF takes a run-time count modulo the width, as WebAssembly does (RFC 9669
/// section 4.1).
fn shift(code: &mut Builder<'_>, alu: Alu, bits: Bits, a: Value, count: Value) -> VReg {
    let x = code.value(a);
    if let Some(count) = code.constant(count) {
        return code.alu_imm(alu, bits, x, (count as i32) & (width(bits) - 1));
    }
    let count = code.value(count);
    code.alu(alu, bits, x, count)
}

fn rotate(code: &mut Builder<'_>, left: bool, bits: Bits, a: Value, count: Value) -> VReg {
    let (there, back) = if left { (Alu::Shl, Alu::ShrU) } else { (Alu::ShrU, Alu::Shl) };
    let x = code.value(a);
    if let Some(count) = code.constant(count) {
        let count = (count as i32) & (width(bits) - 1);
        if count == 0 {
            return x;
        }
        let main = code.alu_imm(there, bits, x, count);
        let rest = code.alu_imm(back, bits, x, width(bits) - count);
        return code.alu(Alu::Or, bits, main, rest);
    }
    let count = code.value(count);
    let main = code.alu(there, bits, x, count);
    let other = code.one_in_place(Insn::neg(Bits::B32, 0), count);
    let rest = code.alu(back, bits, x, other);
    code.alu(Alu::Or, bits, main, rest)
}

/// Sign-extends the low `from` bits of `a`.
pub(super) fn sign_extended(code: &mut Builder<'_>, bits: Bits, from: i16, a: Value) -> VReg {
    let a = code.value(a);
    code.one(Insn::mov_signed(bits, from, 0, 0), a)
}

pub(super) fn low_half(code: &mut Builder<'_>, a: Value) -> VReg {
    let a = code.value(a);
    code.one(Insn::alu(Alu::Mov, Bits::B32, 0, 0), a)
}

/// Selects a comparison as a number: without a jump where two or three instructions suffice, since
/// a mispredicted jump costs more.
pub(super) fn compare(lower: &mut Lower<'_>, op: CompareOp, a: Value, b: Value) -> VReg {
    if lower.code.ty(a) == Type::I32
        && let Some(result) = compare_by_sign(&mut lower.code, op, a, b)
    {
        return result;
    }
    let (condition, operands) = comparison(lower, op, a, b);
    let one = lower.code.make(1);
    lower.code.keep_if(condition, &operands, one, Err(0))
}

/// Compares by the sign of the 64-bit difference: both operands are below 2^32.
fn compare_by_sign(code: &mut Builder<'_>, op: CompareOp, a: Value, b: Value) -> Option<VReg> {
    let (a, b, negated) = match op {
        CompareOp::LtU => (a, b, false),
        CompareOp::GtU => (b, a, false),
        CompareOp::GeU => (a, b, true),
        CompareOp::LeU => (b, a, true),
        CompareOp::Eq | CompareOp::Ne => return Some(compare_equal(code, op, a, b)),
        _ => return None,
    };
    let x = code.value(a);
    let difference = match code.constant(b).map(|constant| i32::try_from(constant as i64)) {
        Some(Ok(constant)) => code.alu_imm(Alu::Sub, Bits::B64, x, constant),
        _ => {
            let y = code.value(b);
            code.alu(Alu::Sub, Bits::B64, x, y)
        }
    };
    let sign = code.alu_imm(Alu::ShrU, Bits::B64, difference, 63);
    Some(if negated { code.alu_imm(Alu::Xor, Bits::B64, sign, 1) } else { sign })
}

/// Compares for equality: `a ^ b` is zero, or its negative has the sign bit.
fn compare_equal(code: &mut Builder<'_>, op: CompareOp, a: Value, b: Value) -> VReg {
    let (a, b) = if code.constant(a).is_some() { (b, a) } else { (a, b) };
    let x = code.value(a);
    let difference = match code.immediate(b) {
        Some(0) => x,
        Some(immediate) => code.alu_imm(Alu::Xor, Bits::B32, x, immediate),
        None => {
            let y = code.value(b);
            code.alu(Alu::Xor, Bits::B32, x, y)
        }
    };
    let signed = if op == CompareOp::Ne {
        code.one_in_place(Insn::neg(Bits::B64, 0), difference)
    } else {
        code.alu_imm(Alu::Sub, Bits::B64, difference, 1)
    };
    code.alu_imm(Alu::ShrU, Bits::B64, signed, 63)
}

pub(super) fn select(lower: &mut Lower<'_>, condition: Value, a: Value, b: Value) -> VReg {
    let (condition, operands) = tested(lower, condition);
    let small = |lower: &Lower<'_>, value| {
        let constant = lower.code.constant(value)? as i64;
        i32::try_from(constant).ok()
    };
    match (small(lower, a), small(lower, b)) {
        (Some(constant), None) => {
            let b = lower.code.value(b);
            lower.code.keep_if(condition.inverse(), &operands, b, Err(constant))
        }
        (_, Some(constant)) => {
            let a = lower.code.value(a);
            lower.code.keep_if(condition, &operands, a, Err(constant))
        }
        _ => {
            let (a, b) = (lower.code.value(a), lower.code.value(b));
            lower.code.keep_if(condition, &operands, a, Ok(b))
        }
    }
}

/// Returns the condition of a jump that tests whether the `i32` is not zero.
pub(super) fn tested(lower: &mut Lower<'_>, value: Value) -> (Condition, Vec<VReg>) {
    if !lower.uses.is_needed(value)
        && let Some(&Op::Compare(op, a, b)) = lower.code.definition(value)
    {
        let is_comparison = matches!(lower.code.definition(a), Some(Op::Compare(..)));
        if is_comparison
            && !lower.uses.is_needed(a)
            && liveness::is_zero_test(op, b, lower.code.facts())
        {
            let (condition, operands) = tested(lower, a);
            let inverse = op == CompareOp::Eq;
            return (if inverse { condition.inverse() } else { condition }, operands);
        }
        return comparison(lower, op, a, b);
    }
    let register = lower.code.value(value);
    (Condition { test: Test::Ne, bits: Bits::B32, immediate: Some(0) }, vec![register])
}

fn comparison(lower: &mut Lower<'_>, op: CompareOp, a: Value, b: Value) -> (Condition, Vec<VReg>) {
    let bits = lower.code.bits(a);
    let (a, b, test) = match lower.code.constant(a) {
        Some(_) => (b, a, test(op).swapped()),
        None => (a, b, test(op)),
    };
    if let (Test::Eq | Test::Ne, Some(immediate)) = (test, lower.code.immediate(b))
        && let Some(found) = compare_sum(lower, test, bits, a, immediate)
    {
        return found;
    }
    let x = lower.code.value(a);
    match lower.code.immediate(b) {
        Some(immediate) => (Condition { test, bits, immediate: Some(immediate) }, vec![x]),
        None => {
            let y = lower.code.value(b);
            (Condition { test, bits, immediate: None }, vec![x, y])
        }
    }
}

/// Compares `a == c` as `a + k == c + k` where the sum is available: then a loop's counter and its
/// successor are not both live, and share a register.
fn compare_sum(
    lower: &Lower<'_>,
    test: Test,
    bits: Bits,
    a: Value,
    immediate: i32,
) -> Option<(Condition, Vec<VReg>)> {
    let &(sum, added) = lower.local.sums.get(&a)?;
    let immediate = match bits {
        Bits::B32 => immediate.wrapping_add(added),
        Bits::B64 => immediate.checked_add(added)?,
    };
    Some((Condition { test, bits, immediate: Some(immediate) }, vec![sum]))
}
