//! Fuel of the entry: the values that hold the rest of the budget, and the fuel spent that they
//! imply.

use super::builder::Builder;
use crate::ir::{BinaryOp, Op, Value};

/// Fuel as the entry charges it; all empty for other functions.
#[derive(Default)]
pub(super) struct Fuel {
    /// First `FuelLoad` of the entry: the whole budget.
    initial: Option<Value>,
    /// Remaining fuel when the entry returns, in this block.
    last: Option<Value>,
    /// Remaining fuel when the entry charges once, at its beginning, a known number: then nothing
    /// is written before the end.
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

    /// Returns true when the call is accounted for on return.
    pub(super) const fn is_counted(&self) -> bool {
        self.initial.is_some()
    }

    /// Returns true for the value that is the whole budget.
    pub(super) fn is_budget(&self, value: Value) -> bool {
        self.initial == Some(value)
    }

    /// Returns true when the entry charges once, a known number.
    pub(super) const fn is_known(&self) -> bool {
        self.only_charge.is_some()
    }

    /// Returns the remaining fuel on return, where it is not stored.
    pub(super) const fn last(&self) -> Option<Value> {
        self.last
    }

    /// Begins a block.
    pub(super) const fn open(&mut self) {
        self.last = self.only_charge;
    }

    /// Records the remaining fuel on return.
    pub(super) const fn set_last(&mut self, fuel: Value) {
        self.last = Some(fuel);
    }

    /// Returns the fuel taken from the whole budget, if it is a constant.
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
