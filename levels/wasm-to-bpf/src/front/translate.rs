//! Translation of a function from WebAssembly's stack machine to SSA form. Control flow, the stack
//! and fuel are in control.rs, tables in tables.rs, the results of operators in numeric.rs; here
//! are calls, locals, memory, globals and traps.

use wasmparser::{FunctionBody, Operator, ValType};

use super::behind::Behind;
use super::control::{Builder, Stop, Unroll, type_of};
use super::elements::{Target, targets};
use super::host;
use super::module::Module;
use super::numeric::{self, MemoryOperator, Numeric};
use super::operator;
use super::reach::Reach;
use super::ssa::{TooMany, Variable};
use super::tables::Tables;
use super::unroll;
use crate::TrapCode;
use crate::ir::{
    Access, BinaryOp, CompareOp, Edge, Function, FunctionIndex, Op, Place, Region, Terminator,
    Type, Value,
};
use crate::refusal::{Reason, Refusal};

/// Translates the function at that position of the reached ones.
pub(super) fn function(
    module: &Module<'_>,
    reach: &Reach,
    behind: &Behind,
    index: u32,
    region: Region,
) -> Result<Function, Refusal> {
    let refusal = |stop: Stop| Refusal {
        place: stop.place(),
        reason: stop.reason(),
        function: Some(index),
        name: module.name_of(index),
    };
    let (Some(ty), Some(body)) = (module.function_types.get(index as usize), module.body_of(index))
    else {
        return Err(refusal(Stop::Malformed));
    };
    let types = |types: &[ValType]| types.iter().copied().map(type_of).collect::<Vec<_>>();
    let (parameters, results) = (types(ty.params()), types(ty.results()));
    let mut translator = Translator {
        module,
        reach,
        behind,
        builder: Builder::new(module, &parameters),
        locals: Locals::new(&parameters, body),
        region,
    };
    translator.body(body, &results).map_err(refusal)?;
    let (blocks, types) =
        translator.builder.ssa.finish().map_err(|TooMany| refusal(Stop::TooLarge))?;
    let name = module.name_of(index);
    let index = FunctionIndex(index);
    Ok(Function { index, name, parameters, results, types, blocks, can_trap: true })
}

/// Function being translated to SSA form.
struct Translator<'m, 'a> {
    module: &'m Module<'a>,
    reach: &'m Reach,
    behind: &'m Behind,
    builder: Builder<'m, 'a>,
    locals: Locals,
    /// Initial region of every access.
    region: Region,
}

impl<'m, 'a> Translator<'m, 'a> {
    fn body(&mut self, body: &FunctionBody<'_>, results: &[Type]) -> Result<(), Stop> {
        let place = u32::try_from(body.range().start).unwrap_or(u32::MAX);
        self.builder.open_function(results, Place(place));
        let operators = body.get_operators_reader().map_err(|_| Stop::Malformed)?;
        let operators: Vec<(Operator<'_>, usize)> = operators
            .into_iter_with_offsets()
            .collect::<Result<_, _>>()
            .map_err(|_| Stop::Malformed)?;
        let mut at = 0;
        while let Some((operator, offset)) = operators.get(at) {
            let place = Place(u32::try_from(*offset).unwrap_or(u32::MAX));
            at += 1;
            if self.builder.ssa.is_too_large() {
                return Err(Stop::TooLarge);
            }
            match self.structure(operator, place, || unroll::again(&operators, at, place))? {
                Structure::None => {}
                Structure::Done => continue,
                Structure::Again(operator) => {
                    at = operator;
                    continue;
                }
            }
            self.builder.count();
            if self.builder.is_live() && !self.flow(operator)? && !self.simple(operator, place)? {
                let reason = operator::refused(operator).unwrap_or(Reason::Proposal {
                    operator: operator::text(operator),
                    proposal: "unknown".into(),
                });
                return Err(Stop::Operator(reason, *offset));
            }
        }
        if self.builder.is_live() {
            let results = self.builder.top(results.len())?;
            self.builder.ssa.end(Terminator::Return(results));
        }
        Ok(())
    }

    /// Handles operators that cost nothing; they count in dead code, too.
    fn structure(
        &mut self,
        operator: &Operator<'_>,
        place: Place,
        again: impl FnOnce() -> Option<Unroll>,
    ) -> Result<Structure, Stop> {
        match operator {
            Operator::Nop => {}
            Operator::Block { blockty } => self.builder.open_block(*blockty)?,
            Operator::Loop { blockty } => self.builder.open_loop(*blockty, place, again())?,
            Operator::If { blockty } => {
                self.builder.count();
                self.builder.open_if(*blockty)?;
            }
            Operator::Else => self.builder.other_way()?,
            Operator::End => {
                return Ok(self.builder.close()?.map_or(Structure::Done, Structure::Again));
            }
            _ => return Ok(Structure::None),
        }
        Ok(Structure::Done)
    }

    /// Handles branches.
    fn flow(&mut self, operator: &Operator<'_>) -> Result<bool, Stop> {
        match operator {
            Operator::Br { relative_depth } => self.builder.branch(*relative_depth)?,
            Operator::BrIf { relative_depth } => self.builder.branch_if(*relative_depth)?,
            Operator::BrTable { targets } => self.builder.branch_table(targets)?,
            Operator::Return => self.builder.leave_function()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn simple(&mut self, operator: &Operator<'_>, place: Place) -> Result<bool, Stop> {
        if let Some(numeric) = numeric::numeric(operator) {
            self.numeric(numeric, place)?;
            return Ok(true);
        }
        if let Some(memory) = numeric::memory(operator) {
            self.memory(memory, place)?;
            return Ok(true);
        }
        match operator {
            Operator::Unreachable => {
                self.builder.trap(TrapCode::Unreachable, place);
            }
            Operator::Drop => {
                self.builder.pop()?;
            }
            Operator::I32Const { value } => {
                self.builder.constant(Type::I32, u64::from(value.cast_unsigned()), place);
            }
            Operator::I64Const { value } => {
                self.builder.constant(Type::I64, value.cast_unsigned(), place);
            }
            Operator::Select | Operator::TypedSelect { .. } => {
                let (condition, other, one) =
                    (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
                let ty = self.builder.ssa.type_of(one);
                self.builder.give(Op::Select(condition, one, other), ty, place);
            }
            Operator::LocalGet { local_index } => {
                let value = self.read_local(*local_index)?;
                self.builder.push(value);
            }
            Operator::LocalSet { local_index } => {
                let value = self.builder.pop()?;
                self.builder.ssa.define(Variable(*local_index), value);
            }
            Operator::LocalTee { local_index } => {
                let value = self.builder.pop()?;
                self.builder.ssa.define(Variable(*local_index), value);
                self.builder.push(value);
            }
            Operator::GlobalGet { global_index } => self.global_get(*global_index, place)?,
            Operator::GlobalSet { global_index } => {
                let value = self.builder.pop()?;
                self.builder.ssa.push(Op::GlobalSet(*global_index, value), &[], place);
            }
            _ => return self.call_or_memory(operator, place),
        }
        Ok(true)
    }

    fn call_or_memory(&mut self, operator: &Operator<'_>, place: Place) -> Result<bool, Stop> {
        match operator {
            Operator::MemorySize { .. } => self.builder.give(Op::MemorySize, Type::I32, place),
            Operator::MemoryGrow { .. } => {
                let pages = self.builder.pop()?;
                self.builder.give(Op::MemoryGrow(pages), Type::I32, place);
            }
            Operator::MemoryCopy { .. } => {
                let (length, source, target) =
                    (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
                self.builder.ssa.push(Op::MemoryCopy(target, source, length), &[], place);
            }
            Operator::MemoryFill { .. } => {
                let (length, byte, target) =
                    (self.builder.pop()?, self.builder.pop()?, self.builder.pop()?);
                self.builder.ssa.push(Op::MemoryFill(target, byte, length), &[], place);
            }
            Operator::Call { function_index } => {
                let count = self.signature(*function_index)?.0;
                let arguments = self.builder.take(count)?;
                let results = self.call(*function_index, arguments, place)?;
                self.builder.extend(results);
            }
            Operator::CallIndirect { type_index, table_index } => {
                self.call_indirect(*type_index, *table_index, place)?;
            }
            _ => return self.tables().operator(operator, place),
        }
        Ok(true)
    }

    fn numeric(&mut self, numeric: Numeric, place: Place) -> Result<(), Stop> {
        let right = self.builder.pop()?;
        let (op, ty) = match numeric {
            Numeric::Unary(op, ty) => (Op::Unary(op, right), ty),
            Numeric::Binary(op, ty) => {
                let left = self.builder.pop()?;
                self.division_traps(op, ty, left, right, place);
                (Op::Binary(op, left, right), ty)
            }
            Numeric::Compare(op) => (Op::Compare(op, self.builder.pop()?, right), Type::I32),
            Numeric::IsZero(ty) => {
                let zero = self.builder.ssa.constant(ty, 0, place);
                (Op::Compare(CompareOp::Eq, right, zero), Type::I32)
            }
            Numeric::ExtendUnsigned => (Op::ExtendUnsigned(right), Type::I64),
            Numeric::ExtendSigned => (Op::ExtendSigned(right), Type::I64),
            Numeric::Wrap => (Op::Wrap(right), Type::I32),
        };
        self.builder.give(op, ty, place);
        Ok(())
    }

    fn division_traps(&mut self, op: BinaryOp, ty: Type, left: Value, right: Value, place: Place) {
        use BinaryOp::{DivS, DivU, RemS, RemU};
        if !matches!(op, DivS | DivU | RemS | RemU) {
            return;
        }
        let zero = self.builder.ssa.constant(ty, 0, place);
        let is_zero =
            self.builder.ssa.one(Op::Compare(CompareOp::Eq, right, zero), Type::I32, place);
        self.builder.ssa.push(Op::TrapIf(is_zero, TrapCode::DivisionByZero), &[], place);
        if op != DivS {
            return;
        }
        let (least, minus_one) = match ty {
            Type::I32 => (1 << 31, u64::from(u32::MAX)),
            Type::I64 => (1 << 63, u64::MAX),
        };
        let least = self.builder.ssa.constant(ty, least, place);
        let minus_one = self.builder.ssa.constant(ty, minus_one, place);
        let is_least =
            self.builder.ssa.one(Op::Compare(CompareOp::Eq, left, least), Type::I32, place);
        let by_minus =
            self.builder.ssa.one(Op::Compare(CompareOp::Eq, right, minus_one), Type::I32, place);
        let both =
            self.builder.ssa.one(Op::Binary(BinaryOp::And, is_least, by_minus), Type::I32, place);
        self.builder.ssa.push(Op::TrapIf(both, TrapCode::IntegerOverflow), &[], place);
    }

    fn memory(&mut self, memory: MemoryOperator, place: Place) -> Result<(), Stop> {
        let MemoryOperator { is_store, ty, width, signed, offset } = memory;
        let value = if is_store { Some(self.builder.pop()?) } else { None };
        let address = self.builder.pop()?;
        let access = Access { address, offset, region: self.region, bounds_check: true };
        match value {
            Some(value) => {
                self.builder.ssa.push(Op::Store { width, value, access }, &[], place);
            }
            None => self.builder.give(Op::Load { width, signed, access }, ty, place),
        }
        Ok(())
    }

    fn global_get(&mut self, index: u32, place: Place) -> Result<(), Stop> {
        let global = self.module.globals.get(index as usize).ok_or(Stop::Malformed)?;
        let ty = type_of(global.ty.content_type);
        if self.reach.is_written(index) {
            self.builder.give(Op::GlobalGet(index), ty, place);
        } else {
            let value = self.reach.effects.first_value(global).ok_or(Stop::Malformed)?;
            self.builder.constant(ty, value, place);
        }
        Ok(())
    }

    fn read_local(&mut self, index: u32) -> Result<Value, Stop> {
        let ty = self.locals.type_of(index).ok_or(Stop::Malformed)?;
        Ok(self.builder.ssa.read(Variable(index), ty))
    }

    /// Returns the number of parameters, and types of results.
    fn signature(&self, function: u32) -> Result<(usize, Vec<Type>), Stop> {
        let ty = self.module.function_types.get(function as usize).ok_or(Stop::Malformed)?;
        Ok((ty.params().len(), ty.results().iter().copied().map(type_of).collect()))
    }

    fn call(
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
        Ok(self.builder.ssa.push(op, &results, place))
    }

    /// Translates a call through a table as a switch: over the indices of a table that never
    /// changes, else over the loaded element. Equal targets share a block.
    fn call_indirect(&mut self, ty: u32, table: u32, place: Place) -> Result<(), Stop> {
        let index = self.builder.pop()?;
        let callee = self.module.types.get(ty as usize).and_then(Option::as_ref);
        let callee = callee.ok_or(Stop::Malformed)?;
        let results: Vec<Type> = callee.results().iter().copied().map(type_of).collect();
        let arguments = self.builder.take(callee.params().len())?;
        let (number, beyond) = match self.tables().kept(table) {
            // Every reference is at most the number of functions.
            Some(kept) => (self.tables().place_in(&kept, index, place), TrapCode::WrongSignature),
            None => (index, TrapCode::TableOutOfBounds),
        };
        let ways = targets(self.module, &self.reach.elements(table), ty);
        let ways = self.builder.switch(number, ways, Terminator::Trap(beyond, place));
        let (join, joined) = self.builder.ssa.block(&results);
        for (target, way) in ways {
            self.builder.ssa.switch_to(way);
            let terminator = match target {
                Target::Null => Terminator::Trap(TrapCode::NullFunction, place),
                Target::OtherType => Terminator::Trap(TrapCode::WrongSignature, place),
                Target::Unknown => return Err(Stop::Malformed),
                Target::Call(function) => {
                    let arguments = self.call(function, arguments.clone(), place)?;
                    Terminator::Jump(Edge { target: join, arguments })
                }
            };
            self.builder.ssa.end(terminator);
        }
        self.builder.join(join, joined);
        Ok(())
    }

    const fn tables(&mut self) -> Tables<'_, 'm, 'a> {
        Tables::new(&mut self.builder, self.reach, self.behind, self.region)
    }
}

/// Kind of an operator for the structure of the code.
enum Structure {
    /// No structural operator.
    None,
    Done,
    /// Unrolled loop: the operator with that number is read next, for the second copy.
    Again(usize),
}

/// Types of the locals, in runs as the module has them.
struct Locals {
    /// Pairs of an end and a type, ascending.
    runs: Vec<(u64, Type)>,
}

impl Locals {
    fn new(parameters: &[Type], body: &FunctionBody<'_>) -> Self {
        let mut runs: Vec<(u64, Type)> = (1..).zip(parameters.iter().copied()).collect();
        let mut end = parameters.len() as u64;
        for (count, ty) in body.get_locals_reader().into_iter().flatten().flatten() {
            end += u64::from(count);
            runs.push((end, type_of(ty)));
        }
        Self { runs }
    }

    fn type_of(&self, local: u32) -> Option<Type> {
        let run = self.runs.partition_point(|(end, _)| *end <= u64::from(local));
        self.runs.get(run).map(|(_, ty)| *ty)
    }
}
