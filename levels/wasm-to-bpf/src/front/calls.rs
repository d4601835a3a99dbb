//! Calls: direct ones, those of host functions, and those through tables.

use std::collections::BTreeMap;

use super::control::plain;
use super::elements::{Target, targets};
use super::host;
use super::translate::{Stop, Translator, type_of};
use crate::TrapCode;
use crate::ir::{BlockId, Edge, Op, Place, Terminator, Type, Value};

impl Translator<'_, '_> {
    /// Number of parameters, and types of results.
    pub(super) fn signature(&self, function: u32) -> Result<(usize, Vec<Type>), Stop> {
        let ty = self.module.function_types.get(function as usize).ok_or(Stop::Malformed)?;
        Ok((ty.params().len(), ty.results().iter().copied().map(type_of).collect()))
    }

    pub(super) fn call(
        &mut self,
        function: u32,
        arguments: Vec<Value>,
        place: Place,
    ) -> Result<Vec<Value>, Stop> {
        let (_, results) = self.signature(function)?;
        let op = match self.module.imports.get(function as usize) {
            Some(import) => {
                let ty = self.module.function_types.get(function as usize);
                let host = ty.and_then(|ty| host::function(import, ty)).ok_or(Stop::Malformed)?;
                Op::Host(host, arguments)
            }
            None => {
                let position = self.reach.position.get(&function).ok_or(Stop::Malformed)?;
                Op::Call(*position, arguments)
            }
        };
        Ok(self.ssa.push(op, &results, place))
    }

    /// A switch: over the places of a table that never changes, else over what lies at
    /// the place. Equal ones share a block.
    pub(super) fn call_indirect(&mut self, ty: u32, table: u32, place: Place) -> Result<(), Stop> {
        let index = self.pop()?;
        let callee = self.module.types.get(ty as usize).and_then(Option::as_ref);
        let callee = callee.ok_or(Stop::Malformed)?;
        let results: Vec<Type> = callee.results().iter().copied().map(type_of).collect();
        let arguments = self.take(callee.params().len())?;
        let (number, beyond) = match self.kept(table) {
            // No reference is a larger number than there are functions.
            Some(kept) => (self.place_in(&kept, index, place), TrapCode::WrongSignature),
            None => (index, TrapCode::TableOutOfBounds),
        };
        let ways = targets(self.module, &self.reach.elements(table), ty);
        let ways = self.switch(number, ways, Terminator::Trap(beyond, place));
        let (join, joined) = self.ssa.block(&results);
        for (target, way) in ways {
            self.ssa.switch_to(way);
            let terminator = match target {
                Target::Null => Terminator::Trap(TrapCode::NullFunction, place),
                Target::OtherType => Terminator::Trap(TrapCode::WrongSignature, place),
                Target::Unknown => return Err(Stop::Malformed),
                Target::Call(function) => {
                    let arguments = self.call(function, arguments.clone(), place)?;
                    Terminator::Jump(Edge { target: join, arguments })
                }
            };
            self.ssa.end(terminator);
        }
        self.join(join, joined);
        Ok(())
    }

    /// A block for each different target; beyond the list it ends.
    pub(super) fn switch<T: Ord>(
        &mut self,
        number: Value,
        targets: Vec<T>,
        beyond: Terminator,
    ) -> BTreeMap<T, BlockId> {
        let mut ways = BTreeMap::new();
        let mut list = Vec::with_capacity(targets.len());
        for target in targets {
            let way = *ways.entry(target).or_insert_with(|| self.ssa.block(&[]).0);
            list.push(plain(way));
        }
        let (other, _) = self.ssa.block(&[]);
        self.ssa.end(Terminator::Switch(number, list, plain(other)));
        for way in ways.values().chain([&other]) {
            self.ssa.seal(*way);
        }
        self.ssa.switch_to(other);
        self.ssa.end(beyond);
        ways
    }

    /// Goes on where ways join, if any does.
    pub(super) fn join(&mut self, join: BlockId, joined: Vec<Value>) {
        self.ssa.seal(join);
        self.live = self.ssa.is_entered(join);
        self.ssa.switch_to(join);
        self.stack.extend(joined);
    }
}
