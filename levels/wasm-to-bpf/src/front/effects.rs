//! Effects of any function of the module, reachable or not: another export may have run before.

use std::collections::BTreeSet;

use wasmparser::{Operator, ValType};

use super::module::{DefinedGlobal, Element, Module};
use super::operator;

pub(super) struct Effects {
    /// True if the memory can grow.
    pub(super) grows: bool,
    /// Globals that are written.
    pub(super) written: Vec<bool>,
    pub(super) tables: Vec<TableHabit>,
    pub(super) elements: Vec<SegmentHabit>,
    pub(super) data: Vec<SegmentHabit>,
    /// Functions that can be referenced, by their indices in the module, ascending.
    pub(super) referenced: Vec<u32>,
}

#[derive(Clone, Default)]
pub(super) struct TableHabit {
    /// Operator that changes the table.
    pub(super) changed: Option<String>,
    pub(super) grows: bool,
    /// True if the table is copied from.
    pub(super) copied: bool,
}

impl TableHabit {
    /// Returns true if the table must be kept where the program can change or copy it.
    pub(super) const fn is_kept(&self) -> bool {
        self.changed.is_some() || self.copied
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct SegmentHabit {
    /// True if the segment is copied from.
    pub(super) copied: bool,
    pub(super) dropped: bool,
}

impl Effects {
    pub(super) fn of(module: &Module<'_>) -> Self {
        let is_shown = |global: &DefinedGlobal| global.ty.mutable && global.exported;
        let mut effects = Self {
            grows: false,
            written: module.globals.iter().map(is_shown).collect(),
            tables: vec![TableHabit::default(); module.tables.len()],
            elements: vec![SegmentHabit::default(); module.elements.len()],
            data: vec![SegmentHabit::default(); module.data.len()],
            referenced: Vec::new(),
        };
        let mut referenced = BTreeSet::new();
        for body in &module.bodies {
            let Ok(operators) = body.get_operators_reader() else { continue };
            for operator in operators.into_iter().flatten() {
                effects.note(&operator);
                if let Operator::RefFunc { function_index } = operator {
                    referenced.insert(function_index);
                }
            }
        }
        let in_segments = module.elements.iter().flat_map(|segment| &segment.elements);
        let in_globals = module.globals.iter().map(|global| &global.element);
        let in_tables = module.tables.iter().map(|(_, first)| first);
        let functions = in_segments.chain(in_globals).chain(in_tables).filter_map(|element| {
            if let Element::Function(function) = element { Some(*function) } else { None }
        });
        referenced.extend(functions);
        effects.referenced = referenced.into_iter().collect();
        effects
    }

    /// Returns the number of a reference: 0 for null, else one for each function.
    pub(super) fn reference(&self, element: Element) -> Option<u32> {
        match element {
            Element::Null => Some(0),
            Element::Function(function) => {
                let position = self.referenced.binary_search(&function).ok()?;
                u32::try_from(position + 1).ok()
            }
            Element::Unknown => None,
        }
    }

    /// Returns the initial value of a global, as 64 bits.
    pub(super) fn first_value(&self, global: &DefinedGlobal) -> Option<u64> {
        match global.ty.content_type {
            ValType::Ref(_) => self.reference(global.element).map(u64::from),
            _ => global.value,
        }
    }

    /// Returns the element that each number refers to.
    pub(super) fn references(&self) -> Vec<Element> {
        let functions = self.referenced.iter().copied().map(Element::Function);
        [Element::Null].into_iter().chain(functions).collect()
    }

    fn note(&mut self, operator: &Operator<'_>) {
        match operator {
            Operator::MemoryGrow { .. } => self.grows = true,
            Operator::GlobalSet { global_index } => {
                if let Some(written) = self.written.get_mut(*global_index as usize) {
                    *written = true;
                }
            }
            Operator::MemoryInit { data_index, .. } => copied(&mut self.data, *data_index),
            Operator::DataDrop { data_index } => dropped(&mut self.data, *data_index),
            Operator::ElemDrop { elem_index } => dropped(&mut self.elements, *elem_index),
            _ => self.note_table(operator),
        }
    }

    fn note_table(&mut self, operator: &Operator<'_>) {
        let table = match operator {
            Operator::TableSet { table }
            | Operator::TableGrow { table }
            | Operator::TableFill { table } => table,
            Operator::TableInit { table, elem_index } => {
                copied(&mut self.elements, *elem_index);
                table
            }
            Operator::TableCopy { dst_table, src_table } => {
                if let Some(source) = self.tables.get_mut(*src_table as usize) {
                    source.copied = true;
                }
                dst_table
            }
            _ => return,
        };
        if let Some(table) = self.tables.get_mut(*table as usize) {
            table.changed = Some(operator::text(operator));
            table.grows |= matches!(operator, Operator::TableGrow { .. });
        }
    }
}

fn copied(segments: &mut [SegmentHabit], index: u32) {
    if let Some(segment) = segments.get_mut(index as usize) {
        segment.copied = true;
    }
}

fn dropped(segments: &mut [SegmentHabit], index: u32) {
    if let Some(segment) = segments.get_mut(index as usize) {
        segment.dropped = true;
    }
}
