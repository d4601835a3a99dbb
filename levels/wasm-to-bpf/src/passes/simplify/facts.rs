//! Facts about values: their definitions and ranges, the operations computed before, and
//! conclusions from the branch that leads to a block, from a condition that is known to hold, and
//! from operands about results.
//!
//! A fact holds in the part of the dominator tree below the block that it was learnt in: scopes are
//! entered and left with the walk.

use foldhash::{HashMap, HashMapExt};

use super::range::{self, Range};
use crate::ir::{BinaryOp, CompareOp, Function, Op, Type, Value};
use crate::passes::alias::Aliases;
use crate::passes::fold::{negated, ones};

/// Most steps from a fact to its conclusions about operands: `x + 8 < n` implies a range of `x`.
const DEPTH_MAX: u32 = 6;
/// Most such steps from a check of an address.
const CHECKED_DEPTH_MAX: u32 = 3;

/// Previous state of a fact, restored when a part of the tree is left.
enum Undo {
    Computed(Key, Option<Value>),
    Range(Value, Range),
    Checked(Value, Option<u64>),
}

/// Description of an operation's result: equal keys, equal results.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) what: (u8, u8, Type),
    pub(super) operands: [u64; 3],
    pub(super) version: u64,
}

/// Facts about the values of one function.
pub(super) struct Facts {
    types: Vec<Type>,
    aliases: Aliases,
    /// Pure operation that defines each value.
    definitions: Vec<Option<Op>>,
    ranges: Vec<Range>,
    computed: HashMap<Key, Value>,
    /// Distances beyond base addresses that the memory certainly reaches.
    checked: HashMap<Value, u64>,
    scopes: Vec<Vec<Undo>>,
}

impl Facts {
    /// Takes the types of a function's values, without any facts.
    pub(super) fn new(function: &mut Function) -> Self {
        let aliases = Aliases::none(function);
        let types = std::mem::take(&mut function.types);
        Self {
            definitions: vec![None; types.len()],
            ranges: types.iter().map(|ty| Range::full(*ty)).collect(),
            types,
            aliases,
            computed: HashMap::new(),
            checked: HashMap::new(),
            scopes: Vec::new(),
        }
    }

    /// Returns the types to the function, and substitutes all aliases.
    pub(super) fn finish(mut self, function: &mut Function) {
        function.types = self.types;
        self.aliases.apply(function);
    }

    /// Returns the replacement of a value.
    pub(super) fn find(&mut self, value: Value) -> Value {
        self.aliases.find(value)
    }

    /// Replaces `of` by `value` from now on.
    pub(super) fn set_alias(&mut self, of: Value, value: Value) {
        self.aliases.set(of, value);
    }

    /// Returns the range of a value's replacement.
    pub(super) fn range_found(&mut self, value: Value) -> Range {
        self.ranges[self.aliases.find(value).0 as usize]
    }

    /// Returns the value that was computed before.
    pub(super) fn computed(&self, key: &Key) -> Option<Value> {
        self.computed.get(key).copied()
    }

    /// Records the operation that defines a value.
    pub(super) fn define(&mut self, value: Value, op: Op) {
        self.definitions[value.0 as usize] = Some(op);
    }

    /// Records the range of a value that holds wherever it is used.
    pub(super) fn define_range(&mut self, value: Value, range: Range) {
        self.ranges[value.0 as usize] = range;
    }

    /// Returns true when the memory certainly reaches that far beyond a base address.
    pub(super) fn is_checked(&self, address: Value, end: u64) -> bool {
        self.checked.get(&address) >= Some(&end)
    }

    /// Records that the memory reaches that far beyond a base address, which is `high` at most
    /// then.
    pub(super) fn check(&mut self, address: Value, end: u64, high: Option<u64>) {
        let before = self.checked.insert(address, end);
        self.undo_later(Undo::Checked(address, before));
        if let Some(high) = high {
            self.narrow_to(address, Range::up_to(high), CHECKED_DEPTH_MAX);
        }
    }

    /// Enters a scope of the tree.
    pub(super) fn enter_scope(&mut self) {
        self.scopes.push(Vec::new());
    }

    pub(super) fn definition(&self, value: Value) -> Option<&Op> {
        self.definitions.get(value.0 as usize).and_then(Option::as_ref)
    }

    pub(super) fn type_of(&self, value: Value) -> Type {
        self.types[value.0 as usize]
    }

    pub(super) fn range(&self, value: Value) -> Range {
        self.ranges[value.0 as usize]
    }

    pub(super) fn constant(&self, value: Value) -> Option<u64> {
        self.range(value).constant()
    }

    pub(super) fn is_constant(&self, value: Value) -> bool {
        matches!(self.definition(value), Some(Op::Const(_)))
    }

    /// Returns a new value.
    pub(super) fn value(&mut self, ty: Type) -> Value {
        let value = Value(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        self.types.push(ty);
        self.definitions.push(None);
        self.ranges.push(Range::full(ty));
        value
    }

    pub(super) fn remember(&mut self, key: Key, value: Value) {
        let before = self.computed.insert(key.clone(), value);
        self.undo_later(Undo::Computed(key, before));
    }

    pub(super) fn set_range(&mut self, value: Value, range: Range) {
        let before = std::mem::replace(&mut self.ranges[value.0 as usize], range);
        if before != range {
            self.undo_later(Undo::Range(value, before));
        }
    }

    fn undo_later(&mut self, undo: Undo) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(undo);
        }
    }

    /// Leaves a scope of the tree and discards the facts learnt in it.
    pub(super) fn leave_scope(&mut self) {
        for undo in self.scopes.pop().into_iter().flatten().rev() {
            match undo {
                Undo::Computed(key, Some(value)) => {
                    self.computed.insert(key, value);
                }
                Undo::Computed(key, None) => {
                    self.computed.remove(&key);
                }
                Undo::Range(value, range) => self.ranges[value.0 as usize] = range,
                Undo::Checked(value, Some(end)) => {
                    self.checked.insert(value, end);
                }
                Undo::Checked(value, None) => {
                    self.checked.remove(&value);
                }
            }
        }
    }

    /// Learns that the condition is zero or not, in this scope.
    pub(super) fn assume(&mut self, condition: Value, truth: bool) {
        self.assume_to(condition, truth, DEPTH_MAX);
    }

    fn assume_to(&mut self, condition: Value, truth: bool, depth: u32) {
        let condition = self.aliases.find(condition);
        let ty = self.type_of(condition);
        let range = if truth { Range { low: 1, high: ones(ty) } } else { Range::only(0) };
        self.narrow_to(condition, range, 0);
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
        self.narrow_to(a, range::where_true(op, ty, left, right), depth);
        self.narrow_to(b, range::where_true(op.swapped(), ty, right, left), depth);
    }

    /// Learns that the value lies in that range, with the conclusions about its operands.
    pub(super) fn narrow(&mut self, value: Value, to: Range) {
        self.narrow_to(value, to, DEPTH_MAX);
    }

    /// Learns that the value lies in that range, with conclusions up to that depth.
    pub(super) fn narrow_to(&mut self, value: Value, to: Range, depth: u32) {
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
                    self.narrow_to(a, moved, depth);
                } else if !self.may_overflow(a, b, ty) {
                    let (left, right) = (self.range(a).low, self.range(b).low);
                    self.narrow_to(a, Range::up_to(range.high.saturating_sub(right)), depth);
                    self.narrow_to(b, Range::up_to(range.high.saturating_sub(left)), depth);
                }
            }
            Some(Op::Binary(BinaryOp::Sub, a, b)) if self.is_at_least(a, b) => {
                let high = self.range(a).high.saturating_sub(range.low);
                self.narrow_to(b, Range::up_to(high), depth);
            }
            Some(Op::ExtendUnsigned(a)) if range.high <= ones(Type::I32) => {
                self.narrow_to(a, range, depth);
            }
            Some(Op::Wrap(a)) if self.range(a).high <= ones(Type::I32) => {
                self.narrow_to(a, range, depth);
            }
            Some(Op::Binary(BinaryOp::Shl, a, b)) => {
                if let Some(by) = self.constant(b)
                    && by < 32
                    && self.range(a).high <= ones(ty) >> by
                {
                    self.narrow_to(a, Range::up_to(range.high >> by), depth);
                }
            }
            _ => {}
        }
    }

    fn may_overflow(&self, a: Value, b: Value, ty: Type) -> bool {
        let sum = self.range(a).high.checked_add(self.range(b).high);
        sum.is_none_or(|sum| sum > ones(ty))
    }

    /// Returns the range of an operation's result.
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

    /// Returns the range of a select: a select between two values by comparing them is their
    /// minimum or maximum.
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

    /// Returns true when `a >= b` is known, unsigned: by a comparison that was made before.
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
}

/// Returns the key of a pure operation: operations with the same result have one key.
pub(super) fn key(op: &Op, ty: Type) -> Option<Key> {
    let operand = |value: &Value| u64::from(value.0);
    let (kind, detail, operands) = match op {
        Op::Const(number) => (0, 0, [*number, 0, 0]),
        Op::Unary(op, a) => (1, *op as u8, [operand(a), 0, 0]),
        Op::Binary(op, a, b) => (2, *op as u8, [operand(a), operand(b), 0]),
        Op::Compare(op, a, b) => (3, *op as u8, [operand(a), operand(b), 0]),
        Op::ExtendUnsigned(a) => (4, 0, [operand(a), 0, 0]),
        Op::ExtendSigned(a) => (5, 0, [operand(a), 0, 0]),
        Op::Wrap(a) => (6, 0, [operand(a), 0, 0]),
        Op::Select(a, b, c) => (7, 0, [operand(a), operand(b), operand(c)]),
        Op::PacketLength => (8, 0, [0; 3]),
        // Each hides its value at its own position.
        _ => return None,
    };
    Some(Key { what: (kind, detail, ty), operands, version: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::FunctionIndex;

    /// Makes facts about that many 32-bit values.
    fn facts(values: usize) -> Facts {
        Facts::new(&mut Function {
            index: FunctionIndex(0),
            name: None,
            parameters: Vec::new(),
            results: Vec::new(),
            types: vec![Type::I32; values],
            blocks: Vec::new(),
            can_trap: false,
        })
    }

    #[test]
    fn facts_learnt_in_a_scope_are_forgotten_after_it() {
        let (x, n, less) = (Value(0), Value(1), Value(2));
        let mut facts = facts(3);
        facts.define_range(n, Range::only(10));
        facts.define(less, Op::Compare(CompareOp::LtU, x, n));
        facts.define_range(less, Range::BOOLEAN);
        for (truth, range) in
            [(true, Range { low: 0, high: 9 }), (false, Range { low: 10, high: ones(Type::I32) })]
        {
            facts.enter_scope();
            facts.assume(less, truth);
            assert_eq!((facts.range(x), facts.constant(less)), (range, Some(u64::from(truth))));
            facts.check(x, 4, Some(20));
            assert!(facts.is_checked(x, 4) && !facts.is_checked(x, 5));
            assert!(facts.range(x).high <= 20);
            facts.leave_scope();
            assert_eq!(facts.range(x), Range::full(Type::I32));
            assert!(!facts.is_checked(x, 4));
        }
    }

    #[test]
    fn an_operation_is_remembered_as_long_as_its_scope_lasts() {
        let (x, y, sum) = (Value(0), Value(1), Value(2));
        let mut facts = facts(3);
        let key = key(&Op::Binary(BinaryOp::Add, x, y), Type::I32).unwrap();
        facts.enter_scope();
        facts.remember(key.clone(), sum);
        assert_eq!(facts.computed(&key), Some(sum));
        facts.leave_scope();
        assert_eq!(facts.computed(&key), None);
    }

    #[test]
    fn a_sum_that_is_bounded_bounds_what_is_added() {
        let (x, eight, sum) = (Value(0), Value(1), Value(2));
        let mut facts = facts(3);
        facts.define_range(eight, Range::only(8));
        facts.define_range(x, Range::up_to(1_000));
        facts.define(sum, Op::Binary(BinaryOp::Add, x, eight));
        facts.enter_scope();
        facts.narrow(sum, Range { low: 8, high: 64 });
        assert_eq!(facts.range(x), Range { low: 0, high: 56 });
    }
}
