//! Terminators: decided ones become jumps, conditions lose their wrapping.

use super::Simplifier;
use crate::ir::{BinaryOp, CompareOp, Edge, Op, Terminator, Type, Value};
use crate::passes::fold::ones;

impl Simplifier<'_> {
    pub(super) fn terminator(&mut self, mut terminator: Terminator) -> Terminator {
        terminator.for_each_use_mut(|value| *value = self.known(*value));
        match terminator {
            Terminator::Branch(condition, taken, not) => self.branch(condition, taken, not),
            Terminator::Switch(index, list, default) => match self.constant(index) {
                Some(number) => {
                    let number = usize::try_from(number).unwrap_or(usize::MAX);
                    Terminator::Jump(list.into_iter().nth(number).unwrap_or(default))
                }
                None if list.iter().all(|edge| *edge == default) => Terminator::Jump(default),
                None => Terminator::Switch(index, list, default),
            },
            other => other,
        }
    }

    fn branch(&mut self, condition: Value, taken: Edge, not: Edge) -> Terminator {
        let (mut condition, mut taken, mut not) = (self.condition(condition), taken, not);
        while let Some(inner) = self.inverted(condition) {
            condition = self.condition(inner);
            std::mem::swap(&mut taken, &mut not);
        }
        match self.constant(condition) {
            _ if taken == not => Terminator::Jump(taken),
            Some(0) => Terminator::Jump(not),
            _ if self.range(condition).low > 0 => Terminator::Jump(taken),
            _ => Terminator::Branch(self.asked_of_packet(condition), taken, not),
        }
    }

    /// Whether so many bytes are in the window is whether they are in the packet, where they are
    /// certainly not beyond the window: the back can put that to the packet's end.
    fn asked_of_packet(&mut self, condition: Value) -> Value {
        let Some(window) = self.surroundings.window.filter(|_| {
            self.surroundings.is_entry
                && self.surroundings.asks_packet
                && self.versions.keeps_metadata()
        }) else {
            return condition;
        };
        let Some(&Op::Compare(op, a, b)) = self.definition(condition) else { return condition };
        let (op, bytes, less) = match (self.less_than_length(a), self.less_than_length(b)) {
            (None, Some(less)) => (op, a, less),
            (Some(less), None) => (op.swapped(), b, less),
            _ => return condition,
        };
        let one_more = match op {
            CompareOp::LtU | CompareOp::GeU => 1,
            CompareOp::LeU | CompareOp::GtU => 0,
            _ => return condition,
        };
        // A sum must not wrap, or its parts are no number of bytes.
        let high = match self.definition(bytes) {
            Some(Op::Binary(BinaryOp::Add, x, c)) if self.constant(*c).is_some() => {
                self.range(*x).high + self.range(*c).high
            }
            _ => self.range(bytes).high,
        };
        if self.constant(bytes).is_some() || high + less + one_more > u64::from(window) {
            return condition;
        }
        let less = self.number(less, Type::I32);
        let bytes = self.compute(Op::Binary(BinaryOp::Add, bytes, less), Type::I32, None);
        let length = self.compute(Op::PacketLength, Type::I32, None);
        self.compute(Op::Compare(op, bytes, length), Type::I32, None)
    }

    /// Returns what the value is less than the window's length, if it is that or a difference with
    /// it that does not wrap.
    fn less_than_length(&self, value: Value) -> Option<u64> {
        if self.lengths.contains(&value) {
            return Some(0);
        }
        let Some(Op::Binary(BinaryOp::Add, x, c)) = self.definition(value) else { return None };
        let less = self.constant(*c)?.wrapping_neg() & ones(Type::I32);
        (self.lengths.contains(x) && less <= self.range(*x).low).then_some(less)
    }

    /// The comparison for equality with the window's length, or less than that, of something that
    /// is never beyond as one for order.
    pub(super) fn as_order(&self, op: Op) -> Op {
        let Op::Compare(equality @ (CompareOp::Eq | CompareOp::Ne), a, b) = op else { return op };
        let (a, b) = if self.less_than_length(a).is_some() { (b, a) } else { (a, b) };
        if self.less_than_length(b).is_none() {
            return op;
        }
        let order = if equality == CompareOp::Eq { CompareOp::GeU } else { CompareOp::LtU };
        Op::Compare(order, a, b)
    }

    pub(super) fn condition(&mut self, condition: Value) -> Value {
        let mut condition = self.known(condition);
        while let Some(Op::Compare(CompareOp::Ne, a, b)) = self.definition(condition)
            && self.constant(*b) == Some(0)
            && self.type_of(*a) == self.type_of(condition)
        {
            let a = *a;
            condition = self.known(a);
        }
        condition
    }

    /// What the condition is zero without.
    fn inverted(&self, condition: Value) -> Option<Value> {
        match self.definition(condition) {
            Some(Op::Compare(CompareOp::Eq, a, b))
                if self.constant(*b) == Some(0) && self.type_of(*a) == self.type_of(condition) =>
            {
                // A comparison is a condition by itself; a number is compared anyway.
                matches!(self.definition(*a), Some(Op::Compare(..))).then_some(*a)
            }
            _ => None,
        }
    }
}
