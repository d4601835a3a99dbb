//! Reachability: the functions that the entry can reach, and whether all of them can be compiled.
//!
//! ```text
//! entry ─calls─▶ functions ─call_indirect─▶ those of the table with that type
//! ```
//!
//! Only reachable code is judged: a formatting routine with floats that no
//! packet reaches is no reason for a refusal.

use std::collections::{BTreeMap, BTreeSet};

use wasmparser::{ExternalKind, Operator, ValType};

use super::effects::Effects;
use super::elements::{self, Target, targets};
use super::host;
use super::module::{Element, Module};
use super::operator;
use crate::layout::SLOTS_MAX;
use crate::refusal::{Reason, Refusal};
use crate::{Entry, Options};

/// Most operators of all reached functions: an eBPF program has at most 1,000,000 verified
/// instructions, and compiling ends in bounded time.
const OPERATORS_MAX: u64 = 200_000;
/// Most locals of one function; LLVM makes at most some hundreds.
const LOCALS_MAX: u64 = 10_000;
/// Most functions of a cycle that a message names.
const CYCLE_SHOWN_MAX: usize = 8;

/// Functions that the entry can reach.
pub(super) struct Reach {
    /// Indices in the module; the entry first.
    pub(super) functions: Vec<u32>,
    /// Position of each index in `functions`.
    pub(super) position: BTreeMap<u32, u32>,
    /// Initial elements of each table.
    pub(super) tables: Vec<Vec<Element>>,
    pub(super) effects: Effects,
    /// True if the entry handles packets: then the instance moves between levels.
    pub(super) is_packet: bool,
}

impl Reach {
    /// Returns true if any function writes that global.
    pub(super) fn is_written(&self, global: u32) -> bool {
        self.effects.written.get(global as usize).copied().unwrap_or(true)
    }

    /// Returns the elements that a call through that table can meet.
    pub(super) fn elements(&self, table: u32) -> Vec<Element> {
        elements::met(&self.tables, &self.effects, self.is_packet, table)
    }
}

/// Follows the calls from the entry. Collects all reasons of all functions.
pub(super) fn follow(module: &Module<'_>, options: &Options) -> Result<Reach, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let entry = entry(module, options).map_err(|reason| vec![Refusal::of_module(reason)])?;
    let tables = elements::of(module).map_err(|reason| vec![Refusal::of_module(reason)])?;
    let effects = Effects::of(module);
    let mut walk = Walk {
        module,
        tables: &tables,
        effects: &effects,
        is_packet: matches!(options.entry, Entry::Packet { .. }),
        functions: vec![entry],
        position: BTreeMap::from([(entry, 0)]),
        calls: Vec::new(),
        operators: 0,
        refusals: &mut refusals,
    };
    let mut next = 0;
    while let Some(&function) = walk.functions.get(next) {
        let calls = walk.function(function);
        walk.calls.push(calls);
        next += 1;
        if walk.operators > OPERATORS_MAX {
            break;
        }
    }
    let Walk { functions, position, calls, is_packet, .. } = walk;
    if refusals.is_empty()
        && let Some(cycle) = cycle(&calls)
    {
        let first = cycle.first().and_then(|position| functions.get(*position)).copied();
        let name = |position: &usize| {
            let index = functions.get(*position).copied().unwrap_or_default();
            module.name_of(index).unwrap_or_else(|| index.to_string())
        };
        let names = cycle.iter().take(CYCLE_SHOWN_MAX).map(name).collect();
        refusals.push(Refusal {
            reason: Reason::Recursion { cycle: names },
            function: first,
            name: first.and_then(|index| module.name_of(index)),
            place: None,
        });
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    Ok(Reach { functions, position, tables, effects, is_packet })
}

/// Returns the index of the entry, after checking its type.
fn entry(module: &Module<'_>, options: &Options) -> Result<u32, Reason> {
    let export = match &options.entry {
        Entry::Packet { .. } => "on_packet",
        Entry::Export(name) => name,
    };
    let Some(&(ExternalKind::Func, index)) = module.exports.get(export) else {
        return Err(Reason::NoEntry { export: export.into() });
    };
    let Some(ty) = module.function_types.get(index as usize) else {
        return Err(Reason::NoEntry { export: export.into() });
    };
    let is_packet = matches!(options.entry, Entry::Packet { .. });
    if is_packet && (!ty.params().is_empty() || ty.results() != [ValType::I32]) {
        let (found, expected) = (ty.to_string(), "() -> i32".into());
        return Err(Reason::EntryType { export: export.into(), found, expected });
    }
    for (what, types) in [("parameters", ty.params()), ("results", ty.results())] {
        if types.len() > SLOTS_MAX {
            let count = u32::try_from(types.len()).unwrap_or(u32::MAX);
            return Err(Reason::Signature { what: what.into(), count });
        }
    }
    Ok(index)
}

/// State of the walk through the call graph.
struct Walk<'m, 'a> {
    module: &'m Module<'a>,
    tables: &'m [Vec<Element>],
    effects: &'m Effects,
    is_packet: bool,
    functions: Vec<u32>,
    position: BTreeMap<u32, u32>,
    /// Positions of the callees of each of `functions`.
    calls: Vec<BTreeSet<u32>>,
    operators: u64,
    refusals: &'m mut Vec<Refusal>,
}

impl Walk<'_, '_> {
    /// Judges one function and records its callees.
    fn function(&mut self, function: u32) -> BTreeSet<u32> {
        let mut calls = BTreeSet::new();
        if let Err(reason) = self.signature(function) {
            self.refuse(function, None, reason);
        }
        if let Some(import) = self.module.imports.get(function as usize) {
            // Only the entry: calls of imports are judged at the call.
            let (module, import) = (import.module.into(), import.name.into());
            self.refuse(function, None, Reason::UnknownImport { module, import });
            return calls;
        }
        let module = self.module;
        let Some(body) = module.body_of(function) else { return calls };
        if let Err(reason) = locals(body) {
            self.refuse(function, None, reason);
            return calls;
        }
        let Ok(operators) = body.get_operators_reader() else { return calls };
        for item in operators.into_iter_with_offsets() {
            let Ok((operator, place)) = item else { return calls };
            self.operators += cost(&operator);
            if let Err(reason) = self.operator(&operator, &mut calls) {
                self.refuse(function, Some(place), reason);
                return calls;
            }
            if self.operators > OPERATORS_MAX {
                let (what, count) = ("operators, with all that led here,".into(), self.operators);
                let reason = Reason::TooLarge { what, count, max: OPERATORS_MAX };
                self.refuse(function, Some(place), reason);
                return calls;
            }
        }
        calls
    }

    fn signature(&self, function: u32) -> Result<(), Reason> {
        let Some(ty) = self.module.function_types.get(function as usize) else { return Ok(()) };
        let refused =
            ty.params().iter().chain(ty.results()).find_map(|ty| operator::refused_type(*ty));
        refused.map_or(Ok(()), Err)
    }

    fn operator(&mut self, op: &Operator<'_>, calls: &mut BTreeSet<u32>) -> Result<(), Reason> {
        if let Some(reason) = operator::refused(op) {
            return Err(reason);
        }
        match op {
            Operator::Call { function_index } => match self.imported(*function_index)? {
                true => Ok(()),
                false => {
                    self.call(*function_index, calls);
                    Ok(())
                }
            },
            Operator::CallIndirect { type_index, table_index } => {
                self.call_indirect(*type_index, *table_index, calls)
            }
            Operator::TableGet { table } => {
                let elements = self.tables.get(*table as usize).map_or(0, Vec::len);
                self.operators += elements as u64;
                self.unchanged(*table)
            }
            Operator::TableSize { table } => self.unchanged(*table),
            Operator::TableSet { table }
            | Operator::TableGrow { table }
            | Operator::TableFill { table }
            | Operator::TableInit { table, .. }
            | Operator::TableCopy { dst_table: table, .. } => self.unchanged(*table),
            Operator::MemoryInit { .. } if self.is_packet => {
                Err(Reason::PassiveData { operator: operator::text(op) })
            }
            Operator::GlobalGet { global_index } | Operator::GlobalSet { global_index } => {
                self.global(*global_index, op)
            }
            Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } => {
                let types = super::control::types_of(self.module, *blockty);
                types
                    .0
                    .iter()
                    .chain(&types.1)
                    .find_map(|ty| operator::refused_type(*ty))
                    .map_or(Ok(()), Err)
            }
            _ => Ok(()),
        }
    }

    /// Refuses a reference in a global that changes: it could not move between levels.
    fn global(&self, index: u32, op: &Operator<'_>) -> Result<(), Reason> {
        let Some(global) = self.module.globals.get(index as usize) else { return Ok(()) };
        if let Some(reason) = operator::refused_type(global.ty.content_type) {
            return Err(reason);
        }
        let is_written = self.effects.written.get(index as usize).copied().unwrap_or(true);
        match global.ty.content_type {
            ValType::Ref(_) if self.is_packet && is_written => {
                Err(Reason::Reference { operator: operator::text(op) })
            }
            _ => Ok(()),
        }
    }

    /// Returns true for an imported host function, false for a function of the module; refuses
    /// other imports.
    fn imported(&self, function: u32) -> Result<bool, Reason> {
        let Some(import) = self.module.imports.get(function as usize) else { return Ok(false) };
        let ty = self.module.function_types.get(function as usize);
        match ty.and_then(|ty| host::function(import, ty)) {
            Some(_) => Ok(true),
            None => {
                let (module, import) = (import.module.into(), import.name.into());
                Err(Reason::UnknownImport { module, import })
            }
        }
    }

    fn call(&mut self, function: u32, calls: &mut BTreeSet<u32>) {
        let next = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
        let position = *self.position.entry(function).or_insert(next);
        if position == next {
            self.functions.push(function);
        }
        calls.insert(position);
    }

    fn call_indirect(
        &mut self,
        ty: u32,
        table: u32,
        calls: &mut BTreeSet<u32>,
    ) -> Result<(), Reason> {
        self.unchanged(table)?;
        let elements = elements::met(self.tables, self.effects, self.is_packet, table);
        let targets = targets(self.module, &elements, ty);
        self.operators += targets.len() as u64;
        for target in targets {
            match target {
                Target::Call(function) => {
                    if !self.imported(function)? {
                        self.call(function, calls);
                    }
                }
                Target::Unknown => {
                    return Err(Reason::Reference { operator: "call_indirect".into() });
                }
                Target::Null | Target::OtherType => {}
            }
        }
        Ok(())
    }

    /// Refuses a table that changes, where that matters: it lies in the sandbox at user level, and
    /// could not move.
    fn unchanged(&self, table: u32) -> Result<(), Reason> {
        let habit = self.effects.tables.get(table as usize);
        match habit.and_then(|habit| habit.changed.as_ref()) {
            Some(operator) if self.is_packet => {
                Err(Reason::TableChanges { table, operator: operator.clone() })
            }
            _ => Ok(()),
        }
    }

    fn refuse(&mut self, function: u32, place: Option<usize>, reason: Reason) {
        self.refusals.push(Refusal {
            reason,
            function: Some(function),
            name: self.module.name_of(function),
            place: place.and_then(|place| u32::try_from(place).ok()),
        });
    }
}

/// Returns the cost of an operator towards [`OPERATORS_MAX`].
fn cost(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::BrTable { targets } => 1 + u64::from(targets.len()),
        _ => 1,
    }
}

fn locals(body: &wasmparser::FunctionBody<'_>) -> Result<(), Reason> {
    let Ok(locals) = body.get_locals_reader() else { return Ok(()) };
    let mut sum = 0;
    for (count, ty) in locals.into_iter().flatten() {
        sum += u64::from(count);
        if let Some(reason) = operator::refused_type(ty) {
            return Err(reason);
        }
    }
    if sum > LOCALS_MAX {
        return Err(Reason::TooLarge { what: "locals".into(), count: sum, max: LOCALS_MAX });
    }
    Ok(())
}

/// Finds a cycle in a graph, if there is one: depth first, without recursion.
fn cycle(calls: &[BTreeSet<u32>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut marks = vec![Mark::New; calls.len()];
    let edges = |node: usize| calls.get(node).into_iter().flatten();
    let mut path = vec![(0, edges(0))];
    if let Some(mark) = marks.first_mut() {
        *mark = Mark::Open;
    }
    while let Some((node, rest)) = path.last_mut() {
        let Some(&next) = rest.next() else {
            marks[*node] = Mark::Done;
            path.pop();
            continue;
        };
        let next = next as usize;
        match marks.get(next) {
            Some(Mark::Open) => {
                let around = path.iter().map(|(node, _)| *node).skip_while(|node| *node != next);
                return Some(around.chain([next]).collect());
            }
            Some(Mark::New) => {
                marks[next] = Mark::Open;
                path.push((next, edges(next)));
            }
            _ => {}
        }
    }
    None
}
