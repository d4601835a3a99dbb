//! Fuel of the entry: which values are what is left of it, and what that says of what was spent.

use super::builder::Builder;
use crate::ir::{BinaryOp, Op, Value};

/// Fuel as the entry charges it; all empty for other functions.
#[derive(Default)]
pub(super) struct Fuel {
    /// The entry's first `FuelLoad`: the whole budget.
    initial: Option<Value>,
    /// Value that is left when the entry returns, in this block.
    last: Option<Value>,
    /// The same when the entry spends once, at its beginning, a known number: then nothing is
    /// written before the end.
    only_charge: Option<Value>,
}

impl Fuel {
    /// Finds the budget and the charges of the entry.
    pub(super) fn of_entry(code: &Builder<'_>) -> Self {
        let blocks = &code.function().blocks;
        let initial = blocks.first().and_then(|block| {
            block
                .instructions
                .iter()
                .take_while(|instruction| !matches!(instruction.op, Op::Call(..)))
                .find(|instruction| instruction.op == Op::FuelLoad)
                .and_then(|instruction| instruction.results.first().copied())
        });
        let mut stores = blocks
            .iter()
            .flat_map(|block| &block.instructions)
            .filter(|instruction| matches!(instruction.op, Op::FuelStore(_) | Op::Call(..)));
        let only = match (stores.next().map(|first| &first.op), stores.next()) {
            (Some(Op::FuelStore(fuel)), None) => Some(*fuel),
            _ => None,
        };
        let mut fuel = Self { initial, last: None, only_charge: None };
        fuel.only_charge = only.filter(|&only| fuel.spent(code, only).is_some());
        fuel
    }

    /// Returns true when the call is to be accounted for when it returns.
    pub(super) const fn is_counted(&self) -> bool {
        self.initial.is_some()
    }

    /// Returns true for the value that is the whole budget.
    pub(super) fn is_budget(&self, value: Value) -> bool {
        self.initial == Some(value)
    }

    /// Returns true when the entry spends once, a known number.
    pub(super) const fn is_known(&self) -> bool {
        self.only_charge.is_some()
    }

    /// Returns the value that is left when the entry returns, where it is not stored.
    pub(super) const fn last(&self) -> Option<Value> {
        self.last
    }

    /// Begins a block.
    pub(super) const fn open(&mut self) {
        self.last = self.only_charge;
    }

    /// Notes the value that is left when the entry returns.
    pub(super) const fn set_last(&mut self, fuel: Value) {
        self.last = Some(fuel);
    }

    /// Returns what was taken from the whole budget, if that is known now.
    pub(super) fn spent(&self, code: &Builder<'_>, mut fuel: Value) -> Option<i32> {
        let mut spent = 0i64;
        while Some(fuel) != self.initial {
            match code.definition(fuel)? {
                Op::Binary(BinaryOp::Sub, from, by) => {
                    spent = spent.checked_add(code.constant(*by)? as i64)?;
                    fuel = *from;
                }
                Op::Binary(BinaryOp::Add, to, by) => {
                    spent = spent.checked_sub(code.constant(*by)? as i64)?;
                    fuel = *to;
                }
                _ => return None,
            }
        }
        i32::try_from(spent).ok()
    }
}
