//! Algebra: what an operation is when something is known of its operands.
//! Each rule holds modulo 2^32 or 2^64 as the type says.

use super::Simplifier;
use super::bytes::{self, Moved};
use super::range;
use crate::ir::{BinaryOp, CompareOp, Op, Type, UnaryOp, Value, Width};
use crate::passes::fold::{self, bits, ones};

/// What there is in place of an operation.
pub(super) enum Simpler {
    /// This value.
    Is(Value),
    /// Another operation with the same result.
    Do(Op),
}

use BinaryOp::{Add, And, DivS, DivU, Mul, Or, RemS, RemU, Rotl, Rotr, Shl, ShrS, ShrU, Sub, Xor};
use Simpler::{Do, Is};

impl Simplifier<'_> {
    /// Something simpler, or nothing. Every answer is nearer to the end, so
    /// that asking again and again comes to one.
    pub(super) fn simpler(&mut self, op: &Op, ty: Type) -> Option<Simpler> {
        match op {
            Op::Const(_) | Op::Opaque(_) => None,
            Op::Unary(op, a) => self.unary(*op, ty, *a),
            Op::Binary(op, a, b) => self.binary(*op, ty, *a, *b),
            Op::Compare(op, a, b) => self.compare(*op, *a, *b),
            Op::ExtendUnsigned(a) => self.constant(*a).map(|number| Do(Op::Const(number))),
            Op::ExtendSigned(a) if self.range(*a).is_positive(Type::I32) => {
                Some(Do(Op::ExtendUnsigned(*a)))
            }
            Op::ExtendSigned(a) => {
                let number = fold::signed(Type::I32, self.constant(*a)?);
                Some(Do(Op::Const(number.cast_unsigned())))
            }
            Op::Wrap(a) => self.wrap(*a),
            Op::Select(condition, a, b) => self.select(*condition, *a, *b, ty),
            _ => None,
        }
    }

    fn unary(&mut self, op: UnaryOp, ty: Type, a: Value) -> Option<Simpler> {
        if let Some(number) = self.constant(a) {
            return Some(Do(Op::Const(fold::unary(op, ty, number))));
        }
        let high = self.range(a).high;
        let keeps = match op {
            UnaryOp::Extend8 => high < 0x80,
            UnaryOp::Extend16 => high < 0x8000,
            UnaryOp::Extend32 => high < 0x8000_0000,
            UnaryOp::ByteSwap => {
                return match self.definition(a)? {
                    Op::Unary(UnaryOp::ByteSwap, inner) => Some(Is(*inner)),
                    _ => None,
                };
            }
            _ => false,
        };
        keeps.then_some(Is(a))
    }

    fn binary(&mut self, op: BinaryOp, ty: Type, a: Value, b: Value) -> Option<Simpler> {
        match (self.constant(a), self.constant(b)) {
            (Some(x), Some(y)) => Some(Do(Op::Const(fold::binary(op, ty, x, y)?))),
            (Some(_), None) if matches!(op, Add | Mul | And | Or | Xor) => {
                Some(Do(Op::Binary(op, b, a)))
            }
            (Some(0), None) if matches!(op, Shl | ShrS | ShrU | Rotl | Rotr | DivU | RemU) => {
                Some(Is(a))
            }
            (_, Some(y)) => self.with_number(op, ty, a, b, y),
            _ if a == b => match op {
                And | Or => Some(Is(a)),
                Xor | Sub => Some(Do(Op::Const(0))),
                _ => None,
            },
            // One order, so that both are found to be the same.
            _ if matches!(op, Add | Mul | And | Or | Xor) && b < a => {
                Some(Do(Op::Binary(op, b, a)))
            }
            _ => self.with_values(op, ty, a, b),
        }
    }

    fn with_values(&mut self, op: BinaryOp, ty: Type, a: Value, b: Value) -> Option<Simpler> {
        let positive = self.range(a).is_positive(ty) && self.range(b).is_positive(ty);
        match op {
            DivS if positive => Some(Do(Op::Binary(DivU, a, b))),
            RemS if positive => Some(Do(Op::Binary(RemU, a, b))),
            ShrS if self.range(a).is_positive(ty) => Some(Do(Op::Binary(ShrU, a, b))),
            RemU if self.range(a).high < self.range(b).low => Some(Is(a)),
            Shl | ShrS | ShrU | Rotl | Rotr => {
                let count = self.without_mask(b, u64::from(bits(ty) - 1))?;
                Some(Do(Op::Binary(op, a, count)))
            }
            // (x + c) - y and (x + c) + y: the number last.
            Add | Sub => {
                if let Some((x, c)) = self.sum_with_number(a) {
                    let sum = self.compute(Op::Binary(op, x, b), ty, None);
                    let c = self.number(c, ty);
                    return Some(Do(Op::Binary(Add, sum, c)));
                }
                let (y, c) = self.sum_with_number(b)?;
                let sum = self.compute(Op::Binary(op, a, y), ty, None);
                let c = if op == Add { c } else { c.wrapping_neg() & ones(ty) };
                let c = self.number(c, ty);
                Some(Do(Op::Binary(Add, sum, c)))
            }
            And | Or | Xor => self.moved_bytes(&Op::Binary(op, a, b), ty, bits(ty) / 8),
            _ => None,
        }
    }

    /// A count without a mask that leaves all bits that count.
    fn without_mask(&mut self, count: Value, bits: u64) -> Option<Value> {
        match *self.definition(count)? {
            Op::Binary(And, inner, mask) if self.constant(mask)? & bits == bits => Some(inner),
            Op::ExtendUnsigned(narrow) => {
                let inner = self.without_mask(narrow, bits)?;
                Some(self.compute(Op::ExtendUnsigned(inner), Type::I64, None))
            }
            _ => None,
        }
    }

    /// `x + c`, if it is that.
    fn sum_with_number(&self, value: Value) -> Option<(Value, u64)> {
        match self.definition(value)? {
            Op::Binary(Add, x, c) if self.constant(*x).is_none() => Some((*x, self.constant(*c)?)),
            _ => None,
        }
    }

    fn with_number(
        &mut self,
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
            Shl | ShrS | ShrU | Rotl | Rotr if y >= width => self.number_do(op, ty, a, y % width),
            Sub => self.number_do(Add, ty, a, y.wrapping_neg() & all),
            Rotr => self.number_do(Rotl, ty, a, width - y),
            Mul if y.is_power_of_two() => self.number_do(Shl, ty, a, u64::from(y.trailing_zeros())),
            DivU if y.is_power_of_two() => {
                self.number_do(ShrU, ty, a, u64::from(y.trailing_zeros()))
            }
            RemU if y.is_power_of_two() => self.number_do(And, ty, a, y - 1),
            DivS | RemS if self.range(a).is_positive(ty) && y <= all >> 1 => {
                let op = if op == DivS { DivU } else { RemU };
                Some(Do(Op::Binary(op, a, b)))
            }
            ShrS if self.range(a).is_positive(ty) => Some(Do(Op::Binary(ShrU, a, b))),
            RemU if self.range(a).high < y => Some(Is(a)),
            DivU if self.range(a).high < y => Some(Do(Op::Const(0))),
            ShrU if self.range(a).high >> y == 0 => Some(Do(Op::Const(0))),
            And if self.masks_nothing(a, y) => Some(Is(a)),
            _ => self.chain(op, ty, a, y),
        }
    }

    fn number_do(&mut self, op: BinaryOp, ty: Type, a: Value, number: u64) -> Option<Simpler> {
        let number = self.number(number, ty);
        Some(Do(Op::Binary(op, a, number)))
    }

    /// Whether all that may be set of `a` is set in the mask.
    fn masks_nothing(&self, a: Value, mask: u64) -> bool {
        let high = self.range(a).high;
        let possible = if high == 0 { 0 } else { u64::MAX >> high.leading_zeros() };
        possible & !mask == 0
    }

    /// An operation with a number on one with a number.
    fn chain(&mut self, op: BinaryOp, ty: Type, a: Value, y: u64) -> Option<Simpler> {
        let all = ones(ty);
        if matches!(op, And | Or | Xor)
            && let found @ Some(_) = self.moved_bytes_with(op, ty, a, y)
        {
            return found;
        }
        let Some(&Op::Binary(inner, x, c)) = self.definition(a) else { return None };
        let c = self.constant(c)?;
        let width = u64::from(bits(ty));
        match (inner, op) {
            (Add, Add) => self.number_do(Add, ty, x, c.wrapping_add(y) & all),
            (Mul, Mul) => self.number_do(Mul, ty, x, c.wrapping_mul(y) & all),
            (And, And) => self.number_do(And, ty, x, c & y),
            (Or, Or) => self.number_do(Or, ty, x, c | y),
            (Xor, Xor) => self.number_do(Xor, ty, x, c ^ y),
            (Shl, Shl) | (ShrU, ShrU) if c + y >= width => Some(Do(Op::Const(0))),
            (Shl, Shl) | (ShrU, ShrU) => self.number_do(op, ty, x, c + y),
            (ShrS, ShrS) => self.number_do(ShrS, ty, x, (c + y).min(width - 1)),
            (Rotl, Rotl) => self.number_do(Rotl, ty, x, (c + y) % width),
            (Shl, ShrU) if c == y => self.number_do(And, ty, x, all >> c),
            (ShrU, Shl) if c == y => self.number_do(And, ty, x, all << c & all),
            (Or, And) if c & y == 0 => self.number_do(And, ty, x, y),
            _ => None,
        }
    }

    fn moved_bytes_with(&mut self, op: BinaryOp, ty: Type, a: Value, y: u64) -> Option<Simpler> {
        let y = self.number(y, ty);
        self.moved_bytes(&Op::Binary(op, a, y), ty, bits(ty) / 8)
    }

    /// What the low `demanded` bytes are, if they are bytes of another value or
    /// of memory.
    pub(super) fn moved_bytes(&mut self, op: &Op, ty: Type, demanded: u32) -> Option<Simpler> {
        match bytes::moved(self, op, ty, demanded)? {
            Moved::Swapped(source) => Some(Do(Op::Unary(UnaryOp::ByteSwap, source))),
            Moved::Swapped16(source) => Some(Do(Op::Unary(UnaryOp::ByteSwap16, source))),
            Moved::Loaded { place, width, is_swapped } => {
                let own = if width == Width::Eight { Type::I64 } else { Type::I32 };
                let mut value = self.load_again(&place, width, own);
                if is_swapped {
                    let swap = match width {
                        Width::Two => UnaryOp::ByteSwap16,
                        _ => UnaryOp::ByteSwap,
                    };
                    value = self.compute(Op::Unary(swap, value), own, None);
                }
                Some(if own == ty { Is(value) } else { Do(Op::ExtendUnsigned(value)) })
            }
        }
    }

    fn wrap(&mut self, a: Value) -> Option<Simpler> {
        if let Some(number) = self.constant(a) {
            return Some(Do(Op::Const(number & ones(Type::I32))));
        }
        match self.definition(a)?.clone() {
            Op::ExtendUnsigned(x) | Op::ExtendSigned(x) => Some(Is(x)),
            // The low half of these depends on the low halves only.
            Op::Binary(op @ (Add | Sub | Mul | And | Or | Xor), x, y) => {
                let (x, y) = (self.low_half(x)?, self.low_half(y)?);
                Some(Do(Op::Binary(op, x, y)))
            }
            _ => None,
        }
    }

    /// The low 32 bits of a value, if they are there already.
    fn low_half(&mut self, value: Value) -> Option<Value> {
        if let Some(number) = self.constant(value) {
            return Some(self.number(number & ones(Type::I32), Type::I32));
        }
        match self.definition(value)? {
            Op::ExtendUnsigned(x) | Op::ExtendSigned(x) => Some(*x),
            _ => None,
        }
    }

    fn select(&mut self, condition: Value, a: Value, b: Value, ty: Type) -> Option<Simpler> {
        if a == b || self.range(condition).low > 0 {
            return Some(Is(a));
        }
        if self.constant(condition) == Some(0) {
            return Some(Is(b));
        }
        let simple = self.condition(condition);
        if simple != condition {
            return Some(Do(Op::Select(simple, a, b)));
        }
        let truth = matches!(self.definition(condition), Some(Op::Compare(..)));
        match (self.constant(a), self.constant(b)) {
            (Some(1), Some(0)) if truth && ty == Type::I32 => Some(Is(condition)),
            (Some(1), Some(0)) if truth => Some(Do(Op::ExtendUnsigned(condition))),
            (Some(0), Some(1)) if truth && ty == Type::I32 => {
                let zero = self.number(0, Type::I32);
                Some(Do(Op::Compare(CompareOp::Eq, condition, zero)))
            }
            _ => None,
        }
    }

    fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Option<Simpler> {
        use CompareOp::{Eq, GeS, GeU, GtS, GtU, LeS, LeU, LtS, LtU, Ne};
        let ty = self.type_of(a);
        if let Some(truth) = range::compare(op, ty, self.range(a), self.range(b)) {
            return Some(Do(Op::Const(u64::from(truth))));
        }
        if a == b {
            let truth = matches!(op, Eq | LeS | LeU | GeS | GeU);
            return Some(Do(Op::Const(u64::from(truth))));
        }
        let Some(y) = self.constant(b) else {
            // A number to the right; else one order.
            let turn = self.constant(a).is_some()
                || matches!(op, GtS | GtU | GeS | GeU)
                || matches!(op, Eq | Ne) && b < a;
            return turn.then(|| Do(Op::Compare(op.swapped(), b, a)));
        };
        let with = |op: CompareOp, value: Value| Some(Do(Op::Compare(op, a, value)));
        match op {
            LeU if y < ones(ty) => with(LtU, self.number(y + 1, ty)),
            GeU if y > 0 => with(GtU, self.number(y - 1, ty)),
            LeS if y != ones(ty) >> 1 => with(LtS, self.number(y.wrapping_add(1) & ones(ty), ty)),
            GeS if y != (ones(ty) >> 1) + 1 => {
                with(GtS, self.number(y.wrapping_sub(1) & ones(ty), ty))
            }
            LtU if y == 1 => with(Eq, self.number(0, ty)),
            GtU if y == 0 => with(Ne, b),
            _ => self.compare_inside(op, a, y),
        }
    }

    /// A comparison of something computed with a number.
    fn compare_inside(&mut self, op: CompareOp, a: Value, y: u64) -> Option<Simpler> {
        use CompareOp::{Eq, GtU, LtU, Ne};
        let ty = self.type_of(a);
        let inner = self.definition(a)?.clone();
        match (inner, op) {
            (Op::Compare(inner, x, z), Ne) if y == 0 => Some(Do(Op::Compare(inner, x, z))),
            (Op::Compare(inner, x, z), Eq) if y == 0 => {
                Some(Do(Op::Compare(fold::negated(inner), x, z)))
            }
            (Op::ExtendUnsigned(x), Eq | Ne | LtU | GtU) if y <= ones(Type::I32) => {
                let y = self.number(y, Type::I32);
                Some(Do(Op::Compare(op, x, y)))
            }
            (Op::Binary(Add, x, c), Eq | Ne) => {
                let c = self.constant(c)?;
                let y = self.number(y.wrapping_sub(c) & ones(ty), ty);
                Some(Do(Op::Compare(op, x, y)))
            }
            (Op::Binary(Sub | Xor, x, z), Eq | Ne) if y == 0 => Some(Do(Op::Compare(op, x, z))),
            (Op::Unary(UnaryOp::ByteSwap, x), Eq | Ne) => {
                let y = self.number(fold::unary(UnaryOp::ByteSwap, ty, y), ty);
                Some(Do(Op::Compare(op, x, y)))
            }
            (Op::Unary(UnaryOp::ByteSwap16, x), Eq | Ne)
                if y <= 0xffff && self.range(x).high <= 0xffff =>
            {
                let y = self.number(fold::unary(UnaryOp::ByteSwap16, ty, y), ty);
                Some(Do(Op::Compare(op, x, y)))
            }
            _ => None,
        }
    }
}
