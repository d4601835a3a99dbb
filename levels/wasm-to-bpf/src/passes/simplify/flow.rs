//! Terminators: resolves decided ones to jumps, and simplifies conditions.

use super::Simplifier;
use crate::ir::{BinaryOp, CompareOp, Edge, Op, Terminator, Type, Value};
use crate::passes::fold::ones;

pub(super) fn terminator(it: &mut Simplifier<'_>, mut terminator: Terminator) -> Terminator {
    terminator.for_each_use_mut(|value| *value = it.known(*value));
    match terminator {
        Terminator::Branch(condition, taken, not) => branch(it, condition, taken, not),
        Terminator::Switch(index, list, default) => match it.facts.constant(index) {
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

fn branch(it: &mut Simplifier<'_>, condition: Value, taken: Edge, not: Edge) -> Terminator {
    let (mut condition, mut taken, mut not) = (plain(it, condition), taken, not);
    while let Some(inner) = inverted(it, condition) {
        condition = plain(it, inner);
        std::mem::swap(&mut taken, &mut not);
    }
    match it.facts.constant(condition) {
        _ if taken == not => Terminator::Jump(taken),
        Some(0) => Terminator::Jump(not),
        _ if it.facts.range(condition).low > 0 => Terminator::Jump(taken),
        _ => Terminator::Branch(asked_of_packet(it, condition), taken, not),
    }
}

/// Rewrites a check for bytes in the window to one for bytes in the packet, where they are
/// certainly not beyond the window: the back end can compare with the packet's end.
fn asked_of_packet(it: &mut Simplifier<'_>, condition: Value) -> Value {
    let Some(window) = it.surroundings.window.filter(|_| {
        it.surroundings.is_entry && it.surroundings.asks_packet && it.versions.keeps_metadata()
    }) else {
        return condition;
    };
    let Some(&Op::Compare(op, a, b)) = it.facts.definition(condition) else { return condition };
    let (op, bytes, less) = match (less_than_length(it, a), less_than_length(it, b)) {
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
    let high = match it.facts.definition(bytes) {
        Some(Op::Binary(BinaryOp::Add, x, c)) if it.facts.constant(*c).is_some() => {
            it.facts.range(*x).high + it.facts.range(*c).high
        }
        _ => it.facts.range(bytes).high,
    };
    if it.facts.constant(bytes).is_some() || high + less + one_more > u64::from(window) {
        return condition;
    }
    let less = it.number(less, Type::I32);
    let bytes = it.compute(Op::Binary(BinaryOp::Add, bytes, less), Type::I32, None);
    let length = it.compute(Op::PacketLength, Type::I32, None);
    it.compute(Op::Compare(op, bytes, length), Type::I32, None)
}

/// Returns the difference between the window's length and the value, if the value is the length or
/// a difference with it that does not wrap.
fn less_than_length(it: &Simplifier<'_>, value: Value) -> Option<u64> {
    if it.lengths.contains(&value) {
        return Some(0);
    }
    let Some(Op::Binary(BinaryOp::Add, x, c)) = it.facts.definition(value) else { return None };
    let less = it.facts.constant(*c)?.wrapping_neg() & ones(Type::I32);
    (it.lengths.contains(x) && less <= it.facts.range(*x).low).then_some(less)
}

/// Rewrites a comparison for equality with the window's length, or less, of a value that is never
/// beyond it as one for order.
pub(super) fn as_order(it: &Simplifier<'_>, op: Op) -> Op {
    let Op::Compare(equality @ (CompareOp::Eq | CompareOp::Ne), a, b) = op else { return op };
    let (a, b) = if less_than_length(it, a).is_some() { (b, a) } else { (a, b) };
    if less_than_length(it, b).is_none() {
        return op;
    }
    let order = if equality == CompareOp::Eq { CompareOp::GeU } else { CompareOp::LtU };
    Op::Compare(order, a, b)
}

pub(super) fn plain(it: &mut Simplifier<'_>, condition: Value) -> Value {
    let mut condition = it.known(condition);
    while let Some(Op::Compare(CompareOp::Ne, a, b)) = it.facts.definition(condition)
        && it.facts.constant(*b) == Some(0)
        && it.facts.type_of(*a) == it.facts.type_of(condition)
    {
        let a = *a;
        condition = it.known(a);
    }
    condition
}

/// Returns the value whose truth is the opposite of the condition's.
fn inverted(it: &Simplifier<'_>, condition: Value) -> Option<Value> {
    match it.facts.definition(condition) {
        Some(Op::Compare(CompareOp::Eq, a, b))
            if it.facts.constant(*b) == Some(0)
                && it.facts.type_of(*a) == it.facts.type_of(condition) =>
        {
            // A comparison is a condition by itself; a number is compared anyway.
            matches!(it.facts.definition(*a), Some(Op::Compare(..))).then_some(*a)
        }
        _ => None,
    }
}
