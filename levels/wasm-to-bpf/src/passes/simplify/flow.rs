//! Terminators: decided ones become jumps, conditions lose their wrapping.

use super::Simplifier;
use crate::ir::{CompareOp, Edge, Op, Terminator, Value};

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
            _ => Terminator::Branch(condition, taken, not),
        }
    }

    /// A simpler value that is zero where this one is: of 32 bits.
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
