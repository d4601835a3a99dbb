//! Intervals of unsigned numbers: the least and the greatest possible value.

use crate::ir::{BinaryOp, CompareOp, Type, UnaryOp};
use crate::passes::fold::{bits, ones};

/// Interval from `low` to `high`, both included; `low <= high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Range {
    /// Interval of a comparison's result.
    pub(super) const BOOLEAN: Self = Self { low: 0, high: 1 };

    pub(super) const fn full(ty: Type) -> Self {
        Self { low: 0, high: ones(ty) }
    }

    pub(super) const fn only(value: u64) -> Self {
        Self { low: value, high: value }
    }

    pub(super) const fn up_to(high: u64) -> Self {
        Self { low: 0, high }
    }

    /// Returns the only number of the interval, if there is just one.
    pub(super) fn constant(self) -> Option<u64> {
        (self.low == self.high).then_some(self.low)
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Returns the intersection; `self` if it is empty, since then the code does not run.
    pub(super) fn and(self, other: Self) -> Self {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        if low <= high { Self { low, high } } else { self }
    }

    /// Returns true if no number of it is negative in that type.
    pub(super) const fn is_positive(self, ty: Type) -> bool {
        self.high <= ones(ty) >> 1
    }

    /// Shifts every number by the same amount, modulo the type; returns `None` if the interval
    /// would be split.
    pub(super) fn moved(self, ty: Type, by: u64) -> Option<Self> {
        let (low, high) = (self.low.wrapping_add(by), self.high.wrapping_add(by));
        let (low, high) = (low & ones(ty), high & ones(ty));
        (low <= high && high - low == self.high - self.low).then_some(Self { low, high })
    }
}

/// Returns all ones up to the highest one of `value`.
const fn filled(value: u64) -> u64 {
    match value.leading_zeros() {
        64 => 0,
        zeros => u64::MAX >> zeros,
    }
}

/// Returns true if a mask clears nothing but lowest bits of numbers up to that one.
const fn keeps_order(mask: u64, high: u64) -> bool {
    let lowest = mask & mask.wrapping_neg();
    mask != 0 && (mask | (lowest - 1)) & filled(high) == filled(high)
}

pub(super) fn unary(op: UnaryOp, ty: Type, a: Range) -> Range {
    match op {
        UnaryOp::Clz | UnaryOp::Ctz | UnaryOp::Popcnt => Range::up_to(u64::from(bits(ty))),
        UnaryOp::Extend8 if a.high < 0x80 => a,
        UnaryOp::Extend16 if a.high < 0x8000 => a,
        UnaryOp::Extend32 if a.high < 0x8000_0000 => a,
        UnaryOp::ByteSwap16 => Range::up_to(0xffff),
        _ => Range::full(ty),
    }
}

pub(super) fn binary(op: BinaryOp, ty: Type, a: Range, b: Range) -> Range {
    let full = Range::full(ty);
    let within = |low: Option<u64>, high: Option<u64>| match (low, high) {
        (Some(low), Some(high)) if high <= ones(ty) => Range { low, high },
        _ => full,
    };
    let count = |by: Range| by.constant().map(|by| (by & u64::from(bits(ty) - 1)) as u32);
    match op {
        BinaryOp::Add => match (a.constant(), b.constant()) {
            (Some(by), _) => b.moved(ty, by).unwrap_or(full),
            (_, Some(by)) => a.moved(ty, by).unwrap_or(full),
            _ => within(a.low.checked_add(b.low), a.high.checked_add(b.high)),
        },
        BinaryOp::Sub => match b.constant() {
            Some(by) => a.moved(ty, by.wrapping_neg()).unwrap_or(full),
            None => within(a.low.checked_sub(b.high), a.high.checked_sub(b.low)),
        },
        BinaryOp::Mul => within(a.low.checked_mul(b.low), a.high.checked_mul(b.high)),
        BinaryOp::DivU => within(a.low.checked_div(b.high), a.high.checked_div(b.low.max(1))),
        BinaryOp::RemU => Range::up_to(a.high.min(b.high.saturating_sub(1))),
        BinaryOp::And => match (a.constant(), b.constant()) {
            // Only lowest bits are cleared: what was larger stays larger.
            (_, Some(mask)) if keeps_order(mask, a.high) => {
                Range { low: a.low & mask, high: a.high & mask }
            }
            (Some(mask), _) if keeps_order(mask, b.high) => {
                Range { low: b.low & mask, high: b.high & mask }
            }
            _ => Range::up_to(a.high.min(b.high)),
        },
        BinaryOp::Or => Range { low: a.low.max(b.low), high: filled(a.high | b.high) },
        BinaryOp::Xor => Range::up_to(filled(a.high | b.high)),
        BinaryOp::Shl => match count(b) {
            Some(by) if a.high <= ones(ty) >> by => Range { low: a.low << by, high: a.high << by },
            _ => full,
        },
        BinaryOp::ShrU => match count(b) {
            Some(by) => Range { low: a.low >> by, high: a.high >> by },
            None => Range::up_to(a.high),
        },
        BinaryOp::ShrS if a.is_positive(ty) => binary(BinaryOp::ShrU, ty, a, b),
        BinaryOp::RemS if a.is_positive(ty) => Range::up_to(a.high),
        _ => full,
    }
}

/// Returns the result of a comparison of such numbers, if it is always the same.
pub(super) fn compare(op: CompareOp, ty: Type, a: Range, b: Range) -> Option<bool> {
    let negative = |range: Range| range.low > ones(ty) >> 1;
    let signless = |range: Range| range.is_positive(ty) || negative(range);
    let same_sign = signless(a) && signless(b) && negative(a) == negative(b);
    let below = if a.high < b.low {
        Some(true)
    } else if a.low >= b.high {
        Some(false)
    } else {
        None
    };
    let above = if a.low > b.high {
        Some(true)
    } else if a.high <= b.low {
        Some(false)
    } else {
        None
    };
    let not = |truth: Option<bool>| truth.map(|truth| !truth);
    match op {
        CompareOp::Eq | CompareOp::Ne => {
            let apart = a.high < b.low || a.low > b.high;
            let same = a.constant().is_some() && a == b;
            (apart || same).then_some(same == (op == CompareOp::Eq))
        }
        CompareOp::LtU => below,
        CompareOp::GtU => above,
        CompareOp::LeU => not(above),
        CompareOp::GeU => not(below),
        _ if signless(a) && signless(b) && !same_sign => {
            let less = matches!(op, CompareOp::LtS | CompareOp::LeS);
            Some(negative(a) == less)
        }
        _ if !same_sign => None,
        CompareOp::LtS => below,
        CompareOp::GtS => above,
        CompareOp::LeS => not(above),
        CompareOp::GeS => not(below),
    }
}

/// Returns the range of `a` where `a op b` is true.
pub(super) fn where_true(op: CompareOp, ty: Type, a: Range, b: Range) -> Range {
    let half = ones(ty) >> 1;
    let less = |limit: u64| match limit.checked_sub(1) {
        Some(high) => a.and(Range::up_to(high)),
        None => a,
    };
    let from = |low: u64, high: u64| if low <= high { a.and(Range { low, high }) } else { a };
    match op {
        CompareOp::Eq => a.and(b),
        CompareOp::Ne => match b.constant() {
            Some(number) if number == a.low && a.low < a.high => from(a.low + 1, a.high),
            Some(number) if number == a.high && a.low < a.high => from(a.low, a.high - 1),
            _ => a,
        },
        CompareOp::LtU => less(b.high),
        CompareOp::LeU => from(0, b.high),
        CompareOp::GtU => from(b.low.saturating_add(1), ones(ty)),
        CompareOp::GeU => from(b.low, ones(ty)),
        // Above a number that is not negative there are only such numbers.
        CompareOp::GtS if b.is_positive(ty) => from(b.low + 1, half),
        CompareOp::GeS if b.is_positive(ty) => from(b.low, half),
        CompareOp::GtS if b.constant() == Some(ones(ty)) => from(0, half),
        CompareOp::LtS if a.is_positive(ty) && b.is_positive(ty) => less(b.high),
        CompareOp::LeS if a.is_positive(ty) && b.is_positive(ty) => from(0, b.high),
        _ => a,
    }
}
