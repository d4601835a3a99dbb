//! Aliases: values found to be equal to others, recorded while a pass runs and substituted at its
//! end.

use crate::ir::{Function, Value};

/// Replacement of each value.
pub(super) struct Aliases(Vec<Value>);

impl Aliases {
    pub(super) fn none(function: &Function) -> Self {
        let count = u32::try_from(function.types.len()).unwrap_or(u32::MAX);
        Self((0..count).map(Value).collect())
    }

    /// Replaces `of` by `value` from now on.
    pub(super) fn set(&mut self, of: Value, value: Value) {
        let value = self.find(value);
        if value == of {
            return;
        }
        // A value that was made later is recorded with all before it.
        let known = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0.extend((known..=of.0).map(Value));
        self.0[of.0 as usize] = value;
    }

    /// Returns the replacement of a value; one made later stands for itself.
    pub(super) fn find(&mut self, value: Value) -> Value {
        let Some(&next) = self.0.get(value.0 as usize) else { return value };
        if next == value {
            return value;
        }
        let mut root = next;
        while let Some(&next) = self.0.get(root.0 as usize)
            && next != root
        {
            root = next;
        }
        let mut at = value;
        while at != root {
            at = std::mem::replace(&mut self.0[at.0 as usize], root);
        }
        root
    }

    /// Substitutes all replacements.
    pub(super) fn apply(&mut self, function: &mut Function) {
        for block in &mut function.blocks {
            for instruction in &mut block.instructions {
                instruction.op.for_each_use_mut(|value| *value = self.find(*value));
            }
            block.terminator.for_each_use_mut(|value| *value = self.find(*value));
        }
    }
}
