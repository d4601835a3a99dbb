//! Algebraic simplification by the known facts about operands. Each rule holds modulo 2^32 or 2^64
//! as the type says.

use super::bytes::{self, Moved};
use super::range;
use super::{Simplifier, flow, loads};
use crate::ir::{BinaryOp, CompareOp, Op, Type, UnaryOp, Value, Width};
use crate::passes::fold::{self, bits, ones};

/// Replacement of an operation.
pub(super) enum Simpler {
    /// Existing value.
    Is(Value),
    /// Another operation with the same result.
    Do(Op),
}

use BinaryOp::{Add, And, DivS, DivU, Mul, Or, RemS, RemU, Rotl, Rotr, Shl, ShrS, ShrU, Sub, Xor};
use Simpler::{Do, Is};

/// Returns a simpler replacement, if there is one. Every replacement makes progress, so that
/// repeated simplification terminates.
pub(super) fn simpler(it: &mut Simplifier<'_>, op: &Op, ty: Type) -> Option<Simpler> {
    match op {
        Op::Const(_) | Op::Opaque(_) => None,
        Op::Unary(op, a) => unary(it, *op, ty, *a),
        Op::Binary(op, a, b) => binary(it, *op, ty, *a, *b),
        Op::Compare(op, a, b) => compare(it, *op, *a, *b),
        Op::ExtendUnsigned(a) => it.facts.constant(*a).map(|number| Do(Op::Const(number))),
        Op::ExtendSigned(a) if it.facts.range(*a).is_positive(Type::I32) => {
            Some(Do(Op::ExtendUnsigned(*a)))
        }
        Op::ExtendSigned(a) => {
            let number = fold::signed(Type::I32, it.facts.constant(*a)?);
            Some(Do(Op::Const(number.cast_unsigned())))
        }
        Op::Wrap(a) => wrap(it, *a),
        Op::Select(condition, a, b) => select(it, *condition, *a, *b, ty),
        _ => None,
    }
}

fn unary(it: &mut Simplifier<'_>, op: UnaryOp, ty: Type, a: Value) -> Option<Simpler> {
    if let Some(number) = it.facts.constant(a) {
        return Some(Do(Op::Const(fold::unary(op, ty, number))));
    }
    let high = it.facts.range(a).high;
    let keeps = match op {
        UnaryOp::Extend8 => high < 0x80,
        UnaryOp::Extend16 => high < 0x8000,
        UnaryOp::Extend32 => high < 0x8000_0000,
        UnaryOp::ByteSwap => {
            return match it.facts.definition(a)? {
                Op::Unary(UnaryOp::ByteSwap, inner) => Some(Is(*inner)),
                _ => None,
            };
        }
        _ => false,
    };
    keeps.then_some(Is(a))
}

fn binary(it: &mut Simplifier<'_>, op: BinaryOp, ty: Type, a: Value, b: Value) -> Option<Simpler> {
    match (it.facts.constant(a), it.facts.constant(b)) {
        (Some(x), Some(y)) => Some(Do(Op::Const(fold::binary(op, ty, x, y)?))),
        (Some(_), None) if matches!(op, Add | Mul | And | Or | Xor) => {
            Some(Do(Op::Binary(op, b, a)))
        }
        (Some(0), None) if matches!(op, Shl | ShrS | ShrU | Rotl | Rotr | DivU | RemU) => {
            Some(Is(a))
        }
        (_, Some(y)) => with_number(it, op, ty, a, b, y),
        _ if a == b => match op {
            And | Or => Some(Is(a)),
            Xor | Sub => Some(Do(Op::Const(0))),
            _ => None,
        },
        // Canonical order of commutative operands, so that equal operations have equal keys.
        _ if matches!(op, Add | Mul | And | Or | Xor) && b < a => Some(Do(Op::Binary(op, b, a))),
        _ => with_values(it, op, ty, a, b),
    }
}

fn with_values(
    it: &mut Simplifier<'_>,
    op: BinaryOp,
    ty: Type,
    a: Value,
    b: Value,
) -> Option<Simpler> {
    let positive = it.facts.range(a).is_positive(ty) && it.facts.range(b).is_positive(ty);
    match op {
        DivS if positive => Some(Do(Op::Binary(DivU, a, b))),
        RemS if positive => Some(Do(Op::Binary(RemU, a, b))),
        ShrS if it.facts.range(a).is_positive(ty) => Some(Do(Op::Binary(ShrU, a, b))),
        RemU if it.facts.range(a).high < it.facts.range(b).low => Some(Is(a)),
        Shl | ShrS | ShrU | Rotl | Rotr => {
            let count = without_mask(it, b, u64::from(bits(ty) - 1))?;
            Some(Do(Op::Binary(op, a, count)))
        }
        // (x + c) - y and (x + c) + y: the constant last.
        Add | Sub => {
            if let Some((x, c)) = sum_with_number(it, a) {
                let sum = it.compute(Op::Binary(op, x, b), ty, None);
                let c = it.number(c, ty);
                return Some(Do(Op::Binary(Add, sum, c)));
            }
            let (y, c) = sum_with_number(it, b)?;
            let sum = it.compute(Op::Binary(op, a, y), ty, None);
            let c = if op == Add { c } else { c.wrapping_neg() & ones(ty) };
            let c = it.number(c, ty);
            Some(Do(Op::Binary(Add, sum, c)))
        }
        And | Or | Xor => moved_bytes(it, &Op::Binary(op, a, b), ty, bits(ty) / 8),
        _ => None,
    }
}

/// Returns a shift count without a mask that keeps all relevant bits.
fn without_mask(it: &mut Simplifier<'_>, count: Value, bits: u64) -> Option<Value> {
    match *it.facts.definition(count)? {
        Op::Binary(And, inner, mask) if it.facts.constant(mask)? & bits == bits => Some(inner),
        Op::ExtendUnsigned(narrow) => {
            let inner = without_mask(it, narrow, bits)?;
            Some(it.compute(Op::ExtendUnsigned(inner), Type::I64, None))
        }
        _ => None,
    }
}

/// Returns the parts of `x + c`, if the value is such a sum.
fn sum_with_number(it: &Simplifier<'_>, value: Value) -> Option<(Value, u64)> {
    match it.facts.definition(value)? {
        Op::Binary(Add, x, c) if it.facts.constant(*x).is_none() => {
            Some((*x, it.facts.constant(*c)?))
        }
        _ => None,
    }
}

fn with_number(
    it: &mut Simplifier<'_>,
    op: BinaryOp,
    ty: Type,
    a: Value,
    b: Value,
    y: u64,
) -> Option<Simpler> {
    let all = ones(ty);
    let width = u64::from(bits(ty));
    match op {
        Add | Sub | Or | Xor if y == 0 => Some(Is(a)),
        Mul | And if y == 0 => Some(Is(b)),
        And if y == all => Some(Is(a)),
        Or if y == all => Some(Is(b)),
        Mul | DivU | DivS if y == 1 => Some(Is(a)),
        RemU | RemS if y == 1 => Some(Do(Op::Const(0))),
        Shl | ShrS | ShrU | Rotl | Rotr if y.is_multiple_of(width) => Some(Is(a)),
        Shl | ShrS | ShrU | Rotl | Rotr if y >= width => number_do(it, op, ty, a, y % width),
        Sub => number_do(it, Add, ty, a, y.wrapping_neg() & all),
        Rotr => number_do(it, Rotl, ty, a, width - y),
        Mul if y.is_power_of_two() => number_do(it, Shl, ty, a, u64::from(y.trailing_zeros())),
        DivU if y.is_power_of_two() => number_do(it, ShrU, ty, a, u64::from(y.trailing_zeros())),
        RemU if y.is_power_of_two() => number_do(it, And, ty, a, y - 1),
        DivS | RemS if it.facts.range(a).is_positive(ty) && y <= all >> 1 => {
            let op = if op == DivS { DivU } else { RemU };
            Some(Do(Op::Binary(op, a, b)))
        }
        ShrS if it.facts.range(a).is_positive(ty) => Some(Do(Op::Binary(ShrU, a, b))),
        RemU if it.facts.range(a).high < y => Some(Is(a)),
        DivU if it.facts.range(a).high < y => Some(Do(Op::Const(0))),
        ShrU if it.facts.range(a).high >> y == 0 => Some(Do(Op::Const(0))),
        And if masks_nothing(it, a, y) => Some(Is(a)),
        _ => chain(it, op, ty, a, y),
    }
}

fn number_do(
    it: &mut Simplifier<'_>,
    op: BinaryOp,
    ty: Type,
    a: Value,
    number: u64,
) -> Option<Simpler> {
    let number = it.number(number, ty);
    Some(Do(Op::Binary(op, a, number)))
}

/// Returns true when all possibly set bits of `a` are set in the mask.
fn masks_nothing(it: &Simplifier<'_>, a: Value, mask: u64) -> bool {
    let high = it.facts.range(a).high;
    let possible = if high == 0 { 0 } else { u64::MAX >> high.leading_zeros() };
    possible & !mask == 0
}

/// Combines an operation with a constant and its operand, another one with a constant.
fn chain(it: &mut Simplifier<'_>, op: BinaryOp, ty: Type, a: Value, y: u64) -> Option<Simpler> {
    let all = ones(ty);
    if matches!(op, And | Or | Xor)
        && let found @ Some(_) = moved_bytes_with(it, op, ty, a, y)
    {
        return found;
    }
    let Some(&Op::Binary(inner, x, c)) = it.facts.definition(a) else { return None };
    let c = it.facts.constant(c)?;
    let width = u64::from(bits(ty));
    match (inner, op) {
        (Add, Add) => number_do(it, Add, ty, x, c.wrapping_add(y) & all),
        (Mul, Mul) => number_do(it, Mul, ty, x, c.wrapping_mul(y) & all),
        (And, And) => number_do(it, And, ty, x, c & y),
        (Or, Or) => number_do(it, Or, ty, x, c | y),
        (Xor, Xor) => number_do(it, Xor, ty, x, c ^ y),
        (Shl, Shl) | (ShrU, ShrU) if c + y >= width => Some(Do(Op::Const(0))),
        (Shl, Shl) | (ShrU, ShrU) => number_do(it, op, ty, x, c + y),
        (ShrS, ShrS) => number_do(it, ShrS, ty, x, (c + y).min(width - 1)),
        (Rotl, Rotl) => number_do(it, Rotl, ty, x, (c + y) % width),
        (Shl, ShrU) if c == y => number_do(it, And, ty, x, all >> c),
        (ShrU, Shl) if c == y => number_do(it, And, ty, x, all << c & all),
        (Or, And) if c & y == 0 => number_do(it, And, ty, x, y),
        _ => None,
    }
}

fn moved_bytes_with(
    it: &mut Simplifier<'_>,
    op: BinaryOp,
    ty: Type,
    a: Value,
    y: u64,
) -> Option<Simpler> {
    let y = it.number(y, ty);
    moved_bytes(it, &Op::Binary(op, a, y), ty, bits(ty) / 8)
}

/// Returns the replacement of the low `demanded` bytes, if they are bytes of another value or of
/// memory.
pub(super) fn moved_bytes(
    it: &mut Simplifier<'_>,
    op: &Op,
    ty: Type,
    demanded: u32,
) -> Option<Simpler> {
    match bytes::moved(it, op, ty, demanded)? {
        Moved::Swapped(source) => Some(Do(Op::Unary(UnaryOp::ByteSwap, source))),
        Moved::Swapped16(source) => Some(Do(Op::Unary(UnaryOp::ByteSwap16, source))),
        Moved::Loaded { place, width, is_swapped } => {
            let own = if width == Width::Eight { Type::I64 } else { Type::I32 };
            let mut value = loads::load_again(it, &place, width, own);
            if is_swapped {
                let swap = match width {
                    Width::Two => UnaryOp::ByteSwap16,
                    _ => UnaryOp::ByteSwap,
                };
                value = it.compute(Op::Unary(swap, value), own, None);
            }
            Some(if own == ty { Is(value) } else { Do(Op::ExtendUnsigned(value)) })
        }
    }
}

fn wrap(it: &mut Simplifier<'_>, a: Value) -> Option<Simpler> {
    if let Some(number) = it.facts.constant(a) {
        return Some(Do(Op::Const(number & ones(Type::I32))));
    }
    match it.facts.definition(a)?.clone() {
        Op::ExtendUnsigned(x) | Op::ExtendSigned(x) => Some(Is(x)),
        // The low half of these depends on the low halves only.
        Op::Binary(op @ (Add | Sub | Mul | And | Or | Xor), x, y) => {
            let (x, y) = (low_half(it, x)?, low_half(it, y)?);
            Some(Do(Op::Binary(op, x, y)))
        }
        _ => None,
    }
}

/// Returns the low 32 bits of a value, if they exist already.
fn low_half(it: &mut Simplifier<'_>, value: Value) -> Option<Value> {
    if let Some(number) = it.facts.constant(value) {
        return Some(it.number(number & ones(Type::I32), Type::I32));
    }
    match it.facts.definition(value)? {
        Op::ExtendUnsigned(x) | Op::ExtendSigned(x) => Some(*x),
        _ => None,
    }
}

fn select(
    it: &mut Simplifier<'_>,
    condition: Value,
    a: Value,
    b: Value,
    ty: Type,
) -> Option<Simpler> {
    if a == b || it.facts.range(condition).low > 0 {
        return Some(Is(a));
    }
    if it.facts.constant(condition) == Some(0) {
        return Some(Is(b));
    }
    let simple = flow::plain(it, condition);
    if simple != condition {
        return Some(Do(Op::Select(simple, a, b)));
    }
    let truth = matches!(it.facts.definition(condition), Some(Op::Compare(..)));
    match (it.facts.constant(a), it.facts.constant(b)) {
        (Some(1), Some(0)) if truth && ty == Type::I32 => Some(Is(condition)),
        (Some(1), Some(0)) if truth => Some(Do(Op::ExtendUnsigned(condition))),
        (Some(0), Some(1)) if truth && ty == Type::I32 => {
            let zero = it.number(0, Type::I32);
            Some(Do(Op::Compare(CompareOp::Eq, condition, zero)))
        }
        _ => None,
    }
}

fn compare(it: &mut Simplifier<'_>, op: CompareOp, a: Value, b: Value) -> Option<Simpler> {
    use CompareOp::{Eq, GeS, GeU, GtS, GtU, LeS, LeU, LtS, LtU, Ne};
    let ty = it.facts.type_of(a);
    if let Some(truth) = range::compare(op, ty, it.facts.range(a), it.facts.range(b)) {
        return Some(Do(Op::Const(u64::from(truth))));
    }
    if a == b {
        let truth = matches!(op, Eq | LeS | LeU | GeS | GeU);
        return Some(Do(Op::Const(u64::from(truth))));
    }
    let Some(y) = it.facts.constant(b) else {
        // A constant to the right; else canonical order.
        let turn = it.facts.constant(a).is_some()
            || matches!(op, GtS | GtU | GeS | GeU)
            || matches!(op, Eq | Ne) && b < a;
        return turn.then(|| Do(Op::Compare(op.swapped(), b, a)));
    };
    let with = |op: CompareOp, value: Value| Some(Do(Op::Compare(op, a, value)));
    match op {
        LeU if y < ones(ty) => with(LtU, it.number(y + 1, ty)),
        GeU if y > 0 => with(GtU, it.number(y - 1, ty)),
        LeS if y != ones(ty) >> 1 => with(LtS, it.number(y.wrapping_add(1) & ones(ty), ty)),
        GeS if y != (ones(ty) >> 1) + 1 => with(GtS, it.number(y.wrapping_sub(1) & ones(ty), ty)),
        LtU if y == 1 => with(Eq, it.number(0, ty)),
        GtU if y == 0 => with(Ne, b),
        _ => compare_inside(it, op, a, y),
    }
}

/// Simplifies a comparison of a computed value with a constant.
fn compare_inside(it: &mut Simplifier<'_>, op: CompareOp, a: Value, y: u64) -> Option<Simpler> {
    use CompareOp::{Eq, GtU, LtU, Ne};
    let ty = it.facts.type_of(a);
    let inner = it.facts.definition(a)?.clone();
    match (inner, op) {
        (Op::Compare(inner, x, z), Ne) if y == 0 => Some(Do(Op::Compare(inner, x, z))),
        (Op::Compare(inner, x, z), Eq) if y == 0 => {
            Some(Do(Op::Compare(fold::negated(inner), x, z)))
        }
        (Op::ExtendUnsigned(x), Eq | Ne | LtU | GtU) if y <= ones(Type::I32) => {
            let y = it.number(y, Type::I32);
            Some(Do(Op::Compare(op, x, y)))
        }
        (Op::Binary(Add, x, c), Eq | Ne) => {
            let c = it.facts.constant(c)?;
            let y = it.number(y.wrapping_sub(c) & ones(ty), ty);
            Some(Do(Op::Compare(op, x, y)))
        }
        (Op::Binary(Sub | Xor, x, z), Eq | Ne) if y == 0 => Some(Do(Op::Compare(op, x, z))),
        (Op::Unary(UnaryOp::ByteSwap, x), Eq | Ne) => {
            let y = it.number(fold::unary(UnaryOp::ByteSwap, ty, y), ty);
            Some(Do(Op::Compare(op, x, y)))
        }
        (Op::Unary(UnaryOp::ByteSwap16, x), Eq | Ne)
            if y <= 0xffff && it.facts.range(x).high <= 0xffff =>
        {
            let y = it.number(fold::unary(UnaryOp::ByteSwap16, ty, y), ty);
            Some(Do(Op::Compare(op, x, y)))
        }
        _ => None,
    }
}
