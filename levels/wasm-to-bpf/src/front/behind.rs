//! Data behind the memory: tables that change and passive segments.
//!
//! ```text
//! arena  0 ┌──────────────────────┐
//!          │ linear memory        │  up to its maximum
//!          ├──────────────────────┤
//!          │ a table              │  a u32 for each element, up to its maximum
//!          │ an element segment   │  a u32 for each element
//!          │ a data segment       │  its bytes
//!          └──────────────────────┘
//! ```
//!
//! A reference is a number (effects.rs). Sizes that change are globals after
//! the module's own; a dropped segment is one of length 0. Only an export that
//! runs on its own has any of this: at user level it would lie in the
//! sandbox, and an instance could not move.

use wasmparser::TableType;

use super::PAGE_LENGTH;
use super::effects::{Effects, SegmentHabit, TableHabit};
use super::module::{Element, ElementMode, Module};
use super::reach::Reach;
use crate::ir::{Global, Type};
use crate::refusal::Reason;
use crate::{Entry, Options};

/// Most elements of a table that grows and declares no smaller maximum.
const GROWN_MAX: u32 = 65_536;
/// Most elements of all tables and element segments together: 4 MiB.
const PLACES_MAX: u32 = 1 << 20;
/// Size of an element, bytes.
const PLACE_LENGTH: u32 = 4;
/// Alignment of each table and segment, bytes.
const ALIGNMENT: u64 = 8;

/// Size, constant or in a global.
#[derive(Clone, Copy)]
pub(super) enum Size {
    Fixed(u32),
    /// Global of the compiler.
    Global(u32),
}

/// Table behind the memory.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// Address of the first element.
    pub(super) at: u32,
    pub(super) size: Size,
    /// Most elements.
    pub(super) max: u32,
}

/// Segment behind the memory; one that is never copied from, or that is not passive, is empty.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// Address of the first byte.
    pub(super) at: u32,
    /// Length in elements or bytes.
    pub(super) length: Size,
}

#[derive(Default)]
pub(super) struct Behind {
    /// Tables of the module; those that never change are not here.
    pub(super) tables: Vec<Option<Table>>,
    pub(super) elements: Vec<Segment>,
    pub(super) data: Vec<Segment>,
    /// Globals that hold sizes.
    pub(super) globals: Vec<Global>,
    /// Initial bytes, as pairs of an address and its bytes.
    pub(super) image: Vec<(u32, Vec<u8>)>,
    pub(super) pages: u32,
}

/// Lays the data out behind that many pages of memory.
pub(super) fn lay_out(
    module: &Module<'_>,
    reach: &Reach,
    pages_max: u32,
    options: &Options,
) -> Result<Behind, Reason> {
    if matches!(options.entry, Entry::Packet { .. }) {
        return Ok(Behind::default());
    }
    let begin = u64::from(pages_max) * PAGE_LENGTH;
    let mut making =
        Making { effects: &reach.effects, module, begin, end: begin, made: Behind::default() };
    let tables = module.tables.iter().zip(&reach.effects.tables).zip(&reach.tables);
    for (((ty, _), habit), elements) in tables {
        let table = making.table(ty, habit, elements)?;
        making.made.tables.push(table);
    }
    for (segment, habit) in module.elements.iter().zip(&reach.effects.elements) {
        let is_passive = matches!(segment.mode, ElementMode::Passive);
        let bytes =
            if is_passive && habit.copied { making.codes(&segment.elements)? } else { vec![] };
        let segment = making.segment(bytes, PLACE_LENGTH, *habit)?;
        making.made.elements.push(segment);
    }
    for (segment, habit) in module.data.iter().zip(&reach.effects.data) {
        let is_passive = segment.offset.is_none();
        let bytes = if is_passive && habit.copied { segment.bytes.to_vec() } else { vec![] };
        let segment = making.segment(bytes, 1, *habit)?;
        making.made.data.push(segment);
    }
    let pages = (making.end - begin).div_ceil(PAGE_LENGTH);
    making.made.pages = u32::try_from(pages).unwrap_or(u32::MAX);
    Ok(making.made)
}

struct Making<'m, 'a> {
    effects: &'m Effects,
    module: &'m Module<'a>,
    begin: u64,
    end: u64,
    made: Behind,
}

impl Making<'_, '_> {
    fn table(
        &mut self,
        ty: &TableType,
        habit: &TableHabit,
        elements: &[Element],
    ) -> Result<Option<Table>, Reason> {
        if !habit.is_kept() {
            return Ok(None);
        }
        let size = u32::try_from(elements.len()).unwrap_or(u32::MAX);
        let declared = ty.maximum.and_then(|max| u32::try_from(max).ok()).unwrap_or(u32::MAX);
        let max = if habit.grows { declared.min(GROWN_MAX).max(size) } else { size };
        let bytes = self.codes(elements)?;
        let at = self.place(bytes, u64::from(max) * u64::from(PLACE_LENGTH))?;
        let size = self.size(size, habit.grows);
        Ok(Some(Table { at, size, max }))
    }

    fn segment(
        &mut self,
        bytes: Vec<u8>,
        unit: u32,
        habit: SegmentHabit,
    ) -> Result<Segment, Reason> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX) / unit;
        let (at, changes) = (bytes.len() as u64, habit.dropped && length > 0);
        let at = self.place(bytes, at)?;
        Ok(Segment { at, length: self.size(length, changes) })
    }

    /// Returns the numbers of references, as bytes.
    fn codes(&self, elements: &[Element]) -> Result<Vec<u8>, Reason> {
        let mut bytes = Vec::with_capacity(elements.len() * PLACE_LENGTH as usize);
        for element in elements {
            let unknown = || Reason::Reference { operator: "a reference out of an import".into() };
            let code = self.effects.reference(*element).ok_or_else(unknown)?;
            bytes.extend(code.to_le_bytes());
        }
        Ok(bytes)
    }

    /// Reserves `length` bytes that begin with these; returns their address.
    fn place(&mut self, bytes: Vec<u8>, length: u64) -> Result<u32, Reason> {
        let begin = self.end;
        self.end = (begin + length).next_multiple_of(ALIGNMENT);
        let max = u64::from(PLACES_MAX) * u64::from(PLACE_LENGTH);
        let data: u64 = self.module.data.iter().map(|segment| segment.bytes.len() as u64).sum();
        if self.end - self.begin > max + data {
            let elements = (self.end - self.begin) / u64::from(PLACE_LENGTH);
            return Err(Reason::TableSize { elements, max: PLACES_MAX });
        }
        // Everything is within 32 bits, the end too.
        let most = u32::MAX;
        let at = u32::try_from(begin).ok().filter(|_| self.end <= u64::from(most));
        let at = at.ok_or(Reason::MemorySize { pages: self.end / PAGE_LENGTH, max: most >> 16 })?;
        if bytes.iter().any(|byte| *byte != 0) {
            self.made.image.push((at, bytes));
        }
        Ok(at)
    }

    fn size(&mut self, size: u32, changes: bool) -> Size {
        if !changes {
            return Size::Fixed(size);
        }
        let index = self.module.globals.len() + self.made.globals.len();
        self.made.globals.push(Global { ty: Type::I32, initial: size.into(), mutable: true });
        Size::Global(u32::try_from(index).unwrap_or(u32::MAX))
    }
}
