//! What is learnt: from the branch that leads to a block, from a condition
//! that is known to hold, and from operands about results.

use super::range::{self, Range};
use super::{Simplifier, key};
use crate::ir::{BinaryOp, BlockId, CompareOp, Edge, Op, Terminator, Type, Value};
use crate::passes::fold::{negated, ones};

/// How far a fact is followed to what it says about operands: `x + 8 < n`
/// says something of `x`.
const DEPTH_MAX: u32 = 6;

impl Simplifier<'_> {
    /// If only one edge leads here and a branch decided on it, that is known.
    pub(super) fn learn_from_way_in(&mut self, block: BlockId) {
        let [from] = self.graph.predecessors[block.0 as usize][..] else { return };
        match &self.blocks[from.0 as usize].terminator {
            Terminator::Branch(condition, taken, _) => {
                let (condition, truth) = (*condition, taken.target == block);
                self.assume(condition, truth);
            }
            Terminator::Switch(index, list, default) if default.target == block => {
                let (index, beyond) = (*index, list.len() as u64);
                self.narrow(index, Range { low: beyond, high: ones(Type::I32) }, DEPTH_MAX);
            }
            Terminator::Switch(index, list, _) => {
                let index = *index;
                if let Some(place) = list.iter().position(|edge| edge.target == block) {
                    self.narrow(index, Range::only(place as u64), DEPTH_MAX);
                }
            }
            _ => {}
        }
    }

    /// The condition is known to be zero or not, from here down.
    pub(super) fn assume(&mut self, condition: Value, truth: bool) {
        self.assume_to(condition, truth, DEPTH_MAX);
    }

    fn assume_to(&mut self, condition: Value, truth: bool, depth: u32) {
        let condition = self.aliases.find(condition);
        let ty = self.type_of(condition);
        let range = if truth { Range { low: 1, high: ones(ty) } } else { Range::only(0) };
        self.narrow(condition, range, 0);
        let Some(depth) = depth.checked_sub(1) else { return };
        match self.definition(condition).cloned() {
            Some(Op::Compare(op, a, b)) => {
                let op = if truth { op } else { negated(op) };
                self.assume_compared(op, a, b, depth);
            }
            Some(Op::Binary(BinaryOp::And, a, b)) if truth && self.are_booleans(a, b) => {
                self.assume_to(a, true, depth);
                self.assume_to(b, true, depth);
            }
            Some(Op::Binary(BinaryOp::Or, a, b)) if !truth => {
                self.assume_to(a, false, depth);
                self.assume_to(b, false, depth);
            }
            _ => {}
        }
    }

    fn are_booleans(&self, a: Value, b: Value) -> bool {
        self.range(a).high <= 1 && self.range(b).high <= 1
    }

    fn assume_compared(&mut self, op: CompareOp, a: Value, b: Value, depth: u32) {
        let (a, b) = (self.aliases.find(a), self.aliases.find(b));
        let ty = self.type_of(a);
        let (left, right) = (self.range(a), self.range(b));
        if let (CompareOp::Ne, Some(0)) = (op, right.constant()) {
            self.assume_to(a, true, depth);
        } else if let (CompareOp::Eq, Some(0)) = (op, right.constant()) {
            self.assume_to(a, false, depth);
        }
        self.narrow(a, range::where_true(op, ty, left, right), depth);
        self.narrow(b, range::where_true(op.swapped(), ty, right, left), depth);
    }

    /// The value lies in that range, and so what it was computed from.
    pub(super) fn narrow(&mut self, value: Value, to: Range, depth: u32) {
        let value = self.aliases.find(value);
        let range = self.range(value).and(to);
        if range == self.range(value) && depth < DEPTH_MAX {
            return;
        }
        if !self.is_constant(value) {
            self.set_range(value, range);
        }
        let Some(depth) = depth.checked_sub(1) else { return };
        let ty = self.type_of(value);
        match self.definition(value).cloned() {
            Some(Op::Binary(BinaryOp::Add, a, b)) => {
                if let Some(by) = self.constant(b)
                    && let Some(moved) = range.moved(ty, by.wrapping_neg())
                {
                    self.narrow(a, moved, depth);
                } else if !self.may_overflow(a, b, ty) {
                    let (left, right) = (self.range(a).low, self.range(b).low);
                    self.narrow(a, Range::up_to(range.high.saturating_sub(right)), depth);
                    self.narrow(b, Range::up_to(range.high.saturating_sub(left)), depth);
                }
            }
            Some(Op::Binary(BinaryOp::Sub, a, b)) if self.is_at_least(a, b) => {
                let high = self.range(a).high.saturating_sub(range.low);
                self.narrow(b, Range::up_to(high), depth);
            }
            Some(Op::ExtendUnsigned(a)) if range.high <= ones(Type::I32) => {
                self.narrow(a, range, depth);
            }
            Some(Op::Wrap(a)) if self.range(a).high <= ones(Type::I32) => {
                self.narrow(a, range, depth);
            }
            Some(Op::Binary(BinaryOp::Shl, a, b)) => {
                if let Some(by) = self.constant(b)
                    && by < 32
                    && self.range(a).high <= ones(ty) >> by
                {
                    self.narrow(a, Range::up_to(range.high >> by), depth);
                }
            }
            _ => {}
        }
    }

    fn may_overflow(&self, a: Value, b: Value, ty: Type) -> bool {
        let sum = self.range(a).high.checked_add(self.range(b).high);
        sum.is_none_or(|sum| sum > ones(ty))
    }

    /// What the result of an operation can be.
    pub(super) fn range_of(&self, op: &Op, ty: Type) -> Range {
        match op {
            Op::Const(number) => Range::only(*number),
            Op::Unary(op, a) => range::unary(*op, ty, self.range(*a)),
            Op::Binary(BinaryOp::Sub, a, b) if self.is_at_least(*a, *b) => {
                let (a, b) = (self.range(*a), self.range(*b));
                let low = a.low.saturating_sub(b.high);
                Range { low, high: a.high.saturating_sub(b.low).max(low) }
            }
            Op::Binary(op, a, b) => range::binary(*op, ty, self.range(*a), self.range(*b)),
            Op::Compare(..) => Range::BOOLEAN,
            Op::ExtendUnsigned(a) => self.range(*a),
            Op::ExtendSigned(a) if self.range(*a).is_positive(Type::I32) => self.range(*a),
            Op::Wrap(a) if self.range(*a).high <= ones(Type::I32) => self.range(*a),
            Op::Select(condition, b, c) => self.range_of_choice(*condition, *b, *c),
            _ => Range::full(ty),
        }
    }

    /// A choice between two values by comparing them is the smaller or the larger.
    fn range_of_choice(&self, condition: Value, b: Value, c: Value) -> Range {
        let (left, right) = (self.range(b), self.range(c));
        match self.definition(condition) {
            Some(Op::Compare(CompareOp::LtU | CompareOp::LeU, x, y)) if (*x, *y) == (b, c) => {
                Range { low: left.low.min(right.low), high: left.high.min(right.high) }
            }
            Some(Op::Compare(CompareOp::LtU | CompareOp::LeU, x, y)) if (*x, *y) == (c, b) => {
                Range { low: left.low.max(right.low), high: left.high.max(right.high) }
            }
            _ => left.union(right),
        }
    }

    /// Whether `a >= b` is known, unsigned: by a comparison that was made before.
    fn is_at_least(&self, a: Value, b: Value) -> bool {
        let known = |op: CompareOp, left: Value, right: Value, truth: u64| {
            let key = key(&Op::Compare(op, left, right), Type::I32);
            let value = key.and_then(|key| self.computed.get(&key));
            value.is_some_and(|value| self.constant(*value) == Some(truth))
        };
        self.range(a).low >= self.range(b).high
            || known(CompareOp::LtU, a, b, 0)
            || known(CompareOp::LeU, b, a, 1)
            || known(CompareOp::LtU, b, a, 1)
    }

    /// Notes what goes to the parameters of the blocks that follow.
    pub(super) fn send_ranges(&mut self, terminator: &Terminator) {
        for (number, edge) in terminator.edges().enumerate() {
            let ranges = self.sent(terminator, number, edge);
            let known = &mut self.incoming[edge.target.0 as usize];
            match known {
                Some(known) => {
                    for (known, range) in known.iter_mut().zip(ranges) {
                        *known = known.union(range);
                    }
                }
                None => *known = Some(ranges),
            }
        }
    }

    /// The ranges of an edge's arguments on the way there: a branch says something of them.
    fn sent(&mut self, terminator: &Terminator, number: usize, edge: &Edge) -> Vec<Range> {
        let condition = match terminator {
            Terminator::Branch(condition, ..) if !edge.arguments.is_empty() => Some(*condition),
            _ => None,
        };
        if let Some(condition) = condition {
            self.scopes.push(Vec::new());
            self.assume(condition, number == 0);
        }
        let ranges = edge.arguments.iter().map(|value| self.range(*value)).collect();
        if condition.is_some() {
            self.leave_scope();
        }
        ranges
    }
}
