//! References, tables and segments.
//!
//! A reference is a number: 0 for null, else one for each function (effects.rs), or the host's own
//! number of an object. Tables that change and passive segments lie behind the memory (behind.rs),
//! so their operators are ordinary loads, stores and loops: each element that is moved, and each
//! byte of `memory.init`, costs a unit of fuel.

use wasmparser::Operator;

use super::behind::{Behind, Segment, Size, Table};
use super::control::{Builder, Stop, plain};
use super::reach::Reach;
use crate::TrapCode;
use crate::ir::{
    Access, BinaryOp, CompareOp, Edge, Op, Place, Region, Terminator, Type, Value, Width,
};
use crate::refusal::Reason;

/// Base-2 logarithm of an element's size.
const PLACE_SHIFT: u64 = 2;
/// Base-2 logarithm of a page's size.
const PAGE_SHIFT: u64 = 16;
/// Result of a failed `table.grow`, -1.
const FAILED: u64 = u32::MAX as u64;

/// Tables and segments of a module, for the code of one function.
pub(super) struct Tables<'b, 'm, 'a> {
    builder: &'b mut Builder<'m, 'a>,
    reach: &'m Reach,
    behind: &'m Behind,
    region: Region,
}

impl<'b, 'm, 'a> Tables<'b, 'm, 'a> {
    pub(super) const fn new(
        builder: &'b mut Builder<'m, 'a>,
        reach: &'m Reach,
        behind: &'m Behind,
        region: Region,
    ) -> Self {
        Self { builder, reach, behind, region }
    }

    /// Translates an operator on references, tables or segments; returns false for any other.
    pub(super) fn operator(&mut self, operator: &Operator<'_>, place: Place) -> Result<bool, Stop> {
        match operator {
            Operator::RefNull { .. } => self.builder.constant(Type::I32, 0, place),
            Operator::RefIsNull => {
                let reference = self.builder.pop()?;
                let none = self.builder.ssa.constant(Type::I32, 0, place);
                self.builder.give(Op::Compare(CompareOp::Eq, reference, none), Type::I32, place);
            }
            Operator::RefFunc { function_index } => {
                let function = super::module::Element::Function(*function_index);
                let number = self.reach.effects.reference(function).ok_or(Stop::Malformed)?;
                self.builder.constant(Type::I32, number.into(), place);
            }
            Operator::TableGet { table } => self.table_get(*table, place)?,
            Operator::TableSize { table } => {
                let size = match self.kept(*table) {
                    Some(kept) => kept.size,
                    None => Size::Fixed(self.static_size(*table)),
                };
                let size = self.size(size, place);
                self.builder.push(size);
            }
            Operator::TableSet { table } => {
                let (reference, index) = (self.builder.pop()?, self.builder.pop()?);
                let kept = self.kept(*table).ok_or(Stop::Malformed)?;
                let access = self.access_of(&kept, index, place);
                self.store(reference, access, Width::Four, place);
            }
            Operator::TableGrow { table } => self.table_grow(*table, place)?,
            Operator::TableFill { table } => self.table_fill(*table, place)?,
            Operator::TableCopy { dst_table, src_table } => {
                self.table_copy(*dst_table, *src_table, place)?;
            }
            Operator::TableInit { elem_index, table } => {
                self.table_init(*elem_index, *table, place)?;
            }
            Operator::MemoryInit { data_index, .. } => self.memory_init(*data_index, place)?,
            Operator::ElemDrop { elem_index } => {
                let segment = self.behind.elements.get(*elem_index as usize).copied();
                self.drop_segment(segment, place);
            }
            Operator::DataDrop { data_index } => {
                let segment = self.behind.data.get(*data_index as usize).copied();
                self.drop_segment(segment, place);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the table behind the memory, if the program can change or copy it.
    pub(super) fn kept(&self, table: u32) -> Option<Table> {
        self.behind.tables.get(table as usize).copied().flatten()
    }

    /// Loads an element of a table; traps beyond its end.
    pub(super) fn place_in(&mut self, table: &Table, index: Value, place: Place) -> Value {
        let access = self.access_of(table, index, place);
        self.load(access, Width::Four, place)
    }

    fn static_size(&self, table: u32) -> u32 {
        let size = self.reach.tables.get(table as usize).map_or(0, Vec::len);
        u32::try_from(size).unwrap_or(u32::MAX)
    }

    /// Translates `table.get` of a table that never changes: a switch over its elements.
    fn table_get(&mut self, table: u32, place: Place) -> Result<(), Stop> {
        let index = self.builder.pop()?;
        if let Some(kept) = self.kept(table) {
            let reference = self.place_in(&kept, index, place);
            self.builder.push(reference);
            return Ok(());
        }
        let elements = self.reach.tables.get(table as usize).ok_or(Stop::Malformed)?;
        let numbers = elements.iter().map(|element| self.reach.effects.reference(*element));
        let numbers: Option<Vec<u32>> = numbers.collect();
        let unknown = Reason::Reference { operator: "table.get".into() };
        let numbers = numbers.ok_or(Stop::Operator(unknown, place.0 as usize))?;
        let beyond = Terminator::Trap(TrapCode::TableOutOfBounds, place);
        let ways = self.builder.switch(index, numbers, beyond);
        let (join, joined) = self.builder.ssa.block(&[Type::I32]);
        for (number, way) in ways {
            self.builder.ssa.switch_to(way);
            let number = self.builder.ssa.constant(Type::I32, number.into(), place);
            self.builder.ssa.end(Terminator::Jump(Edge { target: join, arguments: vec![number] }));
        }
        self.builder.join(join, joined);
        Ok(())
    }

    fn table_grow(&mut self, table: u32, place: Place) -> Result<(), Stop> {
        let (more, reference) = (self.builder.pop()?, self.builder.pop()?);
        let kept = self.kept(table).ok_or(Stop::Malformed)?;
        let Size::Global(global) = kept.size else { return Err(Stop::Malformed) };
        let size = self.size(kept.size, place);
        let grown = self.end_of(size, more, place);
        let max = self.builder.ssa.constant(Type::I64, kept.max.into(), place);
        let fits = self.builder.ssa.one(Op::Compare(CompareOp::LeU, grown, max), Type::I32, place);
        let ((grow, _), (fail, _)) = (self.builder.ssa.block(&[]), self.builder.ssa.block(&[]));
        let (join, joined) = self.builder.ssa.block(&[Type::I32]);
        self.builder.ssa.end(Terminator::Branch(fits, plain(grow), plain(fail)));
        self.builder.ssa.seal(grow);
        self.builder.ssa.seal(fail);
        self.builder.ssa.switch_to(fail);
        let failed = self.builder.ssa.constant(Type::I32, FAILED, place);
        self.builder.ssa.end(Terminator::Jump(Edge { target: join, arguments: vec![failed] }));
        self.builder.ssa.switch_to(grow);
        self.fill(&kept, size, reference, more, place);
        let grown = self.builder.ssa.one(Op::Wrap(grown), Type::I32, place);
        self.builder.ssa.push(Op::GlobalSet(global, grown), &[], place);
        self.builder.ssa.end(Terminator::Jump(Edge { target: join, arguments: vec![size] }));
        self.builder.join(join, joined);
        Ok(())
    }

    fn table_fill(&mut self, table: u32, place: Place) -> Result<(), Stop> {
        let (count, reference, index) =
            (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
        let kept = self.kept(table).ok_or(Stop::Malformed)?;
        self.check(index, count, kept.size, TrapCode::TableOutOfBounds, place);
        self.fill(&kept, index, reference, count, place);
        Ok(())
    }

    fn table_copy(&mut self, to: u32, from: u32, place: Place) -> Result<(), Stop> {
        let (count, source, target) =
            (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
        let (to, from) = self.kept(to).zip(self.kept(from)).ok_or(Stop::Malformed)?;
        self.check(source, count, from.size, TrapCode::TableOutOfBounds, place);
        self.check(target, count, to.size, TrapCode::TableOutOfBounds, place);
        // Backward if the target begins behind the source: they may overlap.
        let backward =
            self.builder.ssa.one(Op::Compare(CompareOp::GtU, target, source), Type::I32, place);
        let one = self.builder.ssa.constant(Type::I32, 1, place);
        let last = self.binary(BinaryOp::Sub, count, one, place);
        let [source, target] = [source, target].map(|first| {
            let last = self.binary(BinaryOp::Add, first, last, place);
            let begin = self.builder.ssa.one(Op::Select(backward, last, first), Type::I32, place);
            self.shifted(begin, place)
        });
        let [down, up] = [(-4_i32).cast_unsigned(), 4]
            .map(|step| self.builder.ssa.constant(Type::I32, step.into(), place));
        let step = self.builder.ssa.one(Op::Select(backward, down, up), Type::I32, place);
        self.repeat([target, source], count, place, |this, [target, source]| {
            let reference = this.load(behind(source, from.at), Width::Four, place);
            this.store(reference, behind(target, to.at), Width::Four, place);
            [target, source].map(|at| this.binary(BinaryOp::Add, at, step, place))
        });
        Ok(())
    }

    fn table_init(&mut self, segment: u32, table: u32, place: Place) -> Result<(), Stop> {
        let (count, source, target) =
            (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
        let kept = self.kept(table).ok_or(Stop::Malformed)?;
        let segment = *self.behind.elements.get(segment as usize).ok_or(Stop::Malformed)?;
        self.check(source, count, segment.length, TrapCode::TableOutOfBounds, place);
        self.check(target, count, kept.size, TrapCode::TableOutOfBounds, place);
        let starts = [target, source].map(|at| self.shifted(at, place));
        let step = self.builder.ssa.constant(Type::I32, 1 << PLACE_SHIFT, place);
        self.repeat(starts, count, place, |this, [target, source]| {
            let reference = this.load(behind(source, segment.at), Width::Four, place);
            this.store(reference, behind(target, kept.at), Width::Four, place);
            [target, source].map(|at| this.binary(BinaryOp::Add, at, step, place))
        });
        Ok(())
    }

    fn memory_init(&mut self, segment: u32, place: Place) -> Result<(), Stop> {
        let (count, source, target) =
            (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
        let segment = *self.behind.data.get(segment as usize).ok_or(Stop::Malformed)?;
        self.check(source, count, segment.length, TrapCode::OutOfBounds, place);
        let pages = self.builder.ssa.one(Op::MemorySize, Type::I32, place);
        let pages = self.builder.ssa.one(Op::ExtendUnsigned(pages), Type::I64, place);
        let shift = self.builder.ssa.constant(Type::I64, PAGE_SHIFT, place);
        let size = Op::Binary(BinaryOp::Shl, pages, shift);
        let size = self.builder.ssa.one(size, Type::I64, place);
        self.check_end(target, count, size, TrapCode::OutOfBounds, place);
        let step = self.builder.ssa.constant(Type::I32, 1, place);
        let region = self.region;
        self.repeat([target, source], count, place, |this, [target, source]| {
            let byte = this.load(behind(source, segment.at), Width::One, place);
            let access = Access { address: target, offset: 0, region, bounds_check: false };
            this.store(byte, access, Width::One, place);
            [target, source].map(|at| this.binary(BinaryOp::Add, at, step, place))
        });
        Ok(())
    }

    /// Drops a segment; one that is never copied from needs no code.
    fn drop_segment(&mut self, segment: Option<Segment>, place: Place) {
        if let Some(Segment { length: Size::Global(global), .. }) = segment {
            let empty = self.builder.ssa.constant(Type::I32, 0, place);
            self.builder.ssa.push(Op::GlobalSet(global, empty), &[], place);
        }
    }

    fn fill(&mut self, table: &Table, from: Value, reference: Value, count: Value, place: Place) {
        let start = self.shifted(from, place);
        let step = self.builder.ssa.constant(Type::I32, 1 << PLACE_SHIFT, place);
        self.repeat([start], count, place, |this, [at]| {
            this.store(reference, behind(at, table.at), Width::Four, place);
            [this.binary(BinaryOp::Add, at, step, place)]
        });
    }

    /// Emits a loop of that many iterations, each with the results of the one before.
    fn repeat<const N: usize>(
        &mut self,
        starts: [Value; N],
        count: Value,
        place: Place,
        round: impl FnOnce(&mut Self, [Value; N]) -> [Value; N],
    ) {
        let (header, parameters) = self.builder.ssa.block(&vec![Type::I32; N + 1]);
        let ((again, _), (done, _)) = (self.builder.ssa.block(&[]), self.builder.ssa.block(&[]));
        let arguments = starts.into_iter().chain([count]).collect();
        self.builder.ssa.end(Terminator::Jump(Edge { target: header, arguments }));
        self.builder.ssa.switch_to(header);
        let left = parameters.last().copied().unwrap_or(count);
        self.builder.ssa.end(Terminator::Branch(left, plain(again), plain(done)));
        self.builder.ssa.seal(again);
        self.builder.ssa.switch_to(again);
        let unit = self.builder.ssa.constant(Type::I64, 1, place);
        self.builder.ssa.push(Op::FuelStore(unit), &[], place);
        let now = std::array::from_fn(|at| parameters.get(at).copied().unwrap_or(count));
        let next = round(self, now);
        let one = self.builder.ssa.constant(Type::I32, 1, place);
        let left = self.binary(BinaryOp::Sub, left, one, place);
        let arguments = next.into_iter().chain([left]).collect();
        self.builder.ssa.end(Terminator::Jump(Edge { target: header, arguments }));
        self.builder.ssa.seal(header);
        self.builder.ssa.seal(done);
        self.builder.ssa.switch_to(done);
    }

    /// Returns the access of a table element; traps beyond its end.
    fn access_of(&mut self, table: &Table, index: Value, place: Place) -> Access {
        let size = self.size(table.size, place);
        let beyond =
            self.builder.ssa.one(Op::Compare(CompareOp::GeU, index, size), Type::I32, place);
        self.builder.ssa.push(Op::TrapIf(beyond, TrapCode::TableOutOfBounds), &[], place);
        behind(self.shifted(index, place), table.at)
    }

    fn size(&mut self, size: Size, place: Place) -> Value {
        match size {
            Size::Fixed(size) => self.builder.ssa.constant(Type::I32, size.into(), place),
            Size::Global(global) => self.builder.ssa.one(Op::GlobalGet(global), Type::I32, place),
        }
    }

    /// Traps unless `count` elements from `begin` on lie within the size.
    fn check(&mut self, begin: Value, count: Value, size: Size, code: TrapCode, place: Place) {
        let size = self.size(size, place);
        let size = self.builder.ssa.one(Op::ExtendUnsigned(size), Type::I64, place);
        self.check_end(begin, count, size, code, place);
    }

    fn check_end(&mut self, begin: Value, count: Value, size: Value, code: TrapCode, place: Place) {
        let end = self.end_of(begin, count, place);
        let beyond = self.builder.ssa.one(Op::Compare(CompareOp::GtU, end, size), Type::I32, place);
        self.builder.ssa.push(Op::TrapIf(beyond, code), &[], place);
    }

    /// Returns a sum that does not wrap.
    fn end_of(&mut self, begin: Value, count: Value, place: Place) -> Value {
        let [begin, count] = [begin, count]
            .map(|number| self.builder.ssa.one(Op::ExtendUnsigned(number), Type::I64, place));
        self.builder.ssa.one(Op::Binary(BinaryOp::Add, begin, count), Type::I64, place)
    }

    /// Returns the offset in bytes of an element.
    fn shifted(&mut self, index: Value, place: Place) -> Value {
        let shift = self.builder.ssa.constant(Type::I32, PLACE_SHIFT, place);
        self.binary(BinaryOp::Shl, index, shift, place)
    }

    fn binary(&mut self, op: BinaryOp, left: Value, right: Value, place: Place) -> Value {
        self.builder.ssa.one(Op::Binary(op, left, right), Type::I32, place)
    }

    fn load(&mut self, access: Access, width: Width, place: Place) -> Value {
        self.builder.ssa.one(Op::Load { width, signed: false, access }, Type::I32, place)
    }

    fn store(&mut self, value: Value, access: Access, width: Width, place: Place) {
        self.builder.ssa.push(Op::Store { width, value, access }, &[], place);
    }
}

/// Returns the access at an offset behind the memory.
const fn behind(address: Value, at: u32) -> Access {
    Access { address, offset: at, region: Region::Behind, bounds_check: false }
}
