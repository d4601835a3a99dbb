//! Constant folding: constant values, and operations on them.

use foldhash::HashMap;

use crate::ir::{BinaryOp, CompareOp, Function, Op, Type, UnaryOp, Value};

/// Returns the values that are constants.
pub(in crate::passes) fn constants(function: &Function) -> HashMap<Value, u64> {
    let instructions = function.blocks.iter().flat_map(|block| &block.instructions);
    instructions
        .filter_map(|instruction| match (&instruction.op, &instruction.results[..]) {
            (Op::Const(number), [result]) => Some((*result, *number)),
            _ => None,
        })
        .collect()
}

/// Returns the width of a type in bits.
pub(in crate::passes) const fn bits(ty: Type) -> u32 {
    match ty {
        Type::I32 => 32,
        Type::I64 => 64,
    }
}

/// Returns the largest number of a type: all ones.
pub(in crate::passes) const fn ones(ty: Type) -> u64 {
    match ty {
        Type::I32 => 0xffff_ffff,
        Type::I64 => u64::MAX,
    }
}

/// Returns the number as signed.
pub(in crate::passes) const fn signed(ty: Type, value: u64) -> i64 {
    extend(value, bits(ty)).cast_signed()
}

/// Sign-extends the low bits.
const fn extend(value: u64, bits: u32) -> u64 {
    let shift = 64 - bits;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}

pub(in crate::passes) fn unary(op: UnaryOp, ty: Type, a: u64) -> u64 {
    let above = 64 - bits(ty);
    let value = match op {
        UnaryOp::Clz => u64::from(a.leading_zeros() - above),
        UnaryOp::Ctz => u64::from(a.trailing_zeros().min(bits(ty))),
        UnaryOp::Popcnt => u64::from(a.count_ones()),
        UnaryOp::Extend8 => extend(a, 8),
        UnaryOp::Extend16 => extend(a, 16),
        UnaryOp::Extend32 => extend(a, 32),
        UnaryOp::ByteSwap => a.swap_bytes() >> above,
        UnaryOp::ByteSwap16 => (a << 8 | a >> 8 & 0xff) & 0xffff,
    };
    value & ones(ty)
}

/// Folds a binary operation; returns `None` for a division that the IR excludes.
pub(in crate::passes) fn binary(op: BinaryOp, ty: Type, a: u64, b: u64) -> Option<u64> {
    let (x, y) = (signed(ty, a), signed(ty, b));
    let count = (b & u64::from(bits(ty) - 1)) as u32;
    let value = match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::DivS => x.checked_div(y)?.cast_unsigned(),
        BinaryOp::DivU => a.checked_div(b)?,
        BinaryOp::RemS if y == 0 => return None,
        BinaryOp::RemS => x.wrapping_rem(y).cast_unsigned(),
        BinaryOp::RemU => a.checked_rem(b)?,
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => a << count,
        BinaryOp::ShrS => (x >> count).cast_unsigned(),
        BinaryOp::ShrU => a >> count,
        BinaryOp::Rotl => rotate(ty, a, count),
        BinaryOp::Rotr => rotate(ty, a, (bits(ty) - count) % bits(ty)),
    };
    Some(value & ones(ty))
}

fn rotate(ty: Type, a: u64, count: u32) -> u64 {
    match ty {
        Type::I64 => a.rotate_left(count),
        Type::I32 => u64::from((a as u32).rotate_left(count)),
    }
}

pub(in crate::passes) fn compare(op: CompareOp, ty: Type, a: u64, b: u64) -> bool {
    let (x, y) = (signed(ty, a), signed(ty, b));
    match op {
        CompareOp::Eq => a == b,
        CompareOp::Ne => a != b,
        CompareOp::LtS => x < y,
        CompareOp::LtU => a < b,
        CompareOp::GtS => x > y,
        CompareOp::GtU => a > b,
        CompareOp::LeS => x <= y,
        CompareOp::LeU => a <= b,
        CompareOp::GeS => x >= y,
        CompareOp::GeU => a >= b,
    }
}

/// Returns the negated comparison.
pub(in crate::passes) const fn negated(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq => CompareOp::Ne,
        CompareOp::Ne => CompareOp::Eq,
        CompareOp::LtS => CompareOp::GeS,
        CompareOp::LtU => CompareOp::GeU,
        CompareOp::GtS => CompareOp::LeS,
        CompareOp::GtU => CompareOp::LeU,
        CompareOp::LeS => CompareOp::GtS,
        CompareOp::LeU => CompareOp::GtU,
        CompareOp::GeS => CompareOp::LtS,
        CompareOp::GeU => CompareOp::LtU,
    }
}
