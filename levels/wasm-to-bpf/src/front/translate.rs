//! One function from WebAssembly's stack machine to SSA form. Control flow is
//! in control.rs, calls in calls.rs, tables in tables.rs, what an operator
//! computes in numeric.rs; here are the stack, memory, globals, traps and fuel.

use wasmparser::{FunctionBody, Operator, ValType};

use super::behind::Behind;
use super::control::{Again, Frame};
use super::module::Module;
use super::numeric::{self, MemoryOperator, Numeric};
use super::operator;
use super::reach::Reach;
use super::ssa::{Ssa, TooMany, VALUES_MAX, Variable};
use super::twice;
use crate::TrapCode;
use crate::ir::{
    Access, BinaryOp, CompareOp, Function, FunctionIndex, Op, Place, Region, Terminator, Type,
    Value,
};
use crate::refusal::{Reason, Refusal};

/// Translates the function at that place of the reached ones.
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
        ssa: Ssa::new(&parameters),
        stack: Vec::new(),
        frames: Vec::new(),
        locals: Locals::new(&parameters, body),
        live: true,
        region,
    };
    translator.body(body, &results).map_err(refusal)?;
    let (blocks, types) = translator.ssa.finish().map_err(|TooMany| refusal(Stop::TooLarge))?;
    let name = module.name_of(index);
    let index = FunctionIndex(index);
    Ok(Function { index, name, parameters, results, types, blocks, can_trap: true })
}

/// Why a translation ends early.
pub(super) enum Stop {
    /// An operator that reach.rs should have refused, at that byte.
    Operator(Reason, usize),
    /// More values than are compiled.
    TooLarge,
    /// Not what the validator saw.
    Malformed,
}

impl Stop {
    fn place(&self) -> Option<u32> {
        match self {
            Self::Operator(_, place) => u32::try_from(*place).ok(),
            Self::TooLarge | Self::Malformed => None,
        }
    }

    fn reason(self) -> Reason {
        match self {
            Self::Operator(reason, _) => reason,
            Self::TooLarge => {
                let max = VALUES_MAX as u64;
                Reason::TooLarge { what: "values".into(), count: max + 1, max }
            }
            Self::Malformed => Reason::Invalid { message: "the code of a function".into() },
        }
    }
}

/// A function on its way into SSA form.
pub(super) struct Translator<'m, 'a> {
    pub(super) module: &'m Module<'a>,
    pub(super) reach: &'m Reach,
    pub(super) behind: &'m Behind,
    pub(super) ssa: Ssa,
    pub(super) stack: Vec<Value>,
    pub(super) frames: Vec<Frame>,
    locals: Locals,
    /// Whether the code that follows can be reached.
    pub(super) live: bool,
    /// What is known of an access at first.
    pub(super) region: Region,
}

impl Translator<'_, '_> {
    fn body(&mut self, body: &FunctionBody<'_>, results: &[Type]) -> Result<(), Stop> {
        let place = u32::try_from(body.range().start).unwrap_or(u32::MAX);
        self.open_function(results, Place(place));
        let operators = body.get_operators_reader().map_err(|_| Stop::Malformed)?;
        let operators: Vec<(Operator<'_>, usize)> = operators
            .into_iter_with_offsets()
            .collect::<Result<_, _>>()
            .map_err(|_| Stop::Malformed)?;
        let mut at = 0;
        while let Some((operator, offset)) = operators.get(at) {
            let place = Place(u32::try_from(*offset).unwrap_or(u32::MAX));
            at += 1;
            if self.ssa.is_too_large() {
                return Err(Stop::TooLarge);
            }
            match self.structure(operator, place, || twice::again(&operators, at, place))? {
                Structure::None => {}
                Structure::Done => continue,
                Structure::Again(operator) => {
                    at = operator;
                    continue;
                }
            }
            self.count();
            if self.live && !self.flow(operator)? && !self.simple(operator, place)? {
                let reason = operator::refused(operator).unwrap_or(Reason::Proposal {
                    operator: operator::text(operator),
                    proposal: "unknown".into(),
                });
                return Err(Stop::Operator(reason, *offset));
            }
        }
        if self.live {
            let results = self.top(results.len())?;
            self.ssa.end(Terminator::Return(results));
        }
        Ok(())
    }

    /// Operators that cost nothing; they count in dead code, too.
    fn structure(
        &mut self,
        operator: &Operator<'_>,
        place: Place,
        again: impl FnOnce() -> Option<Again>,
    ) -> Result<Structure, Stop> {
        match operator {
            Operator::Nop => {}
            Operator::Block { blockty } => self.open_block(*blockty)?,
            Operator::Loop { blockty } => self.open_loop(*blockty, place, again())?,
            Operator::If { blockty } => {
                self.count();
                self.open_if(*blockty)?;
            }
            Operator::Else => self.other_way()?,
            Operator::End => {
                return Ok(self.close()?.map_or(Structure::Done, Structure::Again));
            }
            _ => return Ok(Structure::None),
        }
        Ok(Structure::Done)
    }

    /// Branches.
    fn flow(&mut self, operator: &Operator<'_>) -> Result<bool, Stop> {
        match operator {
            Operator::Br { relative_depth } => self.branch(*relative_depth)?,
            Operator::BrIf { relative_depth } => self.branch_if(*relative_depth)?,
            Operator::BrTable { targets } => self.branch_table(targets)?,
            Operator::Return => self.leave_function()?,
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
                self.ssa.end(Terminator::Trap(TrapCode::Unreachable, place));
                self.live = false;
            }
            Operator::Drop => {
                self.pop()?;
            }
            Operator::I32Const { value } => {
                self.constant(Type::I32, u64::from(value.cast_unsigned()), place);
            }
            Operator::I64Const { value } => {
                self.constant(Type::I64, value.cast_unsigned(), place);
            }
            Operator::Select | Operator::TypedSelect { .. } => {
                let (condition, other, one) = (self.pop()?, self.pop()?, self.pop()?);
                let ty = self.ssa.type_of(one);
                self.give(Op::Select(condition, one, other), ty, place);
            }
            Operator::LocalGet { local_index } => {
                let value = self.read_local(*local_index)?;
                self.stack.push(value);
            }
            Operator::LocalSet { local_index } => {
                let value = self.pop()?;
                self.ssa.define(Variable(*local_index), value);
            }
            Operator::LocalTee { local_index } => {
                let value = self.pop()?;
                self.ssa.define(Variable(*local_index), value);
                self.stack.push(value);
            }
            Operator::GlobalGet { global_index } => self.global_get(*global_index, place)?,
            Operator::GlobalSet { global_index } => {
                let value = self.pop()?;
                self.ssa.push(Op::GlobalSet(*global_index, value), &[], place);
            }
            _ => return self.call_or_memory(operator, place),
        }
        Ok(true)
    }

    fn call_or_memory(&mut self, operator: &Operator<'_>, place: Place) -> Result<bool, Stop> {
        match operator {
            Operator::MemorySize { .. } => self.give(Op::MemorySize, Type::I32, place),
            Operator::MemoryGrow { .. } => {
                let pages = self.pop()?;
                self.give(Op::MemoryGrow(pages), Type::I32, place);
            }
            Operator::MemoryCopy { .. } => {
                let (length, source, target) = (self.pop()?, self.pop()?, self.pop()?);
                self.ssa.push(Op::MemoryCopy(target, source, length), &[], place);
            }
            Operator::MemoryFill { .. } => {
                let (length, byte, target) = (self.pop()?, self.pop()?, self.pop()?);
                self.ssa.push(Op::MemoryFill(target, byte, length), &[], place);
            }
            Operator::Call { function_index } => {
                let count = self.signature(*function_index)?.0;
                let arguments = self.take(count)?;
                let results = self.call(*function_index, arguments, place)?;
                self.stack.extend(results);
            }
            Operator::CallIndirect { type_index, table_index } => {
                self.call_indirect(*type_index, *table_index, place)?;
            }
            _ => return self.reference(operator, place),
        }
        Ok(true)
    }

    fn numeric(&mut self, numeric: Numeric, place: Place) -> Result<(), Stop> {
        let right = self.pop()?;
        let (op, ty) = match numeric {
            Numeric::Unary(op, ty) => (Op::Unary(op, right), ty),
            Numeric::Binary(op, ty) => {
                let left = self.pop()?;
                self.division_traps(op, ty, left, right, place);
                (Op::Binary(op, left, right), ty)
            }
            Numeric::Compare(op) => (Op::Compare(op, self.pop()?, right), Type::I32),
            Numeric::IsZero(ty) => {
                let zero = self.ssa.constant(ty, 0, place);
                (Op::Compare(CompareOp::Eq, right, zero), Type::I32)
            }
            Numeric::ExtendUnsigned => (Op::ExtendUnsigned(right), Type::I64),
            Numeric::ExtendSigned => (Op::ExtendSigned(right), Type::I64),
            Numeric::Wrap => (Op::Wrap(right), Type::I32),
        };
        self.give(op, ty, place);
        Ok(())
    }

    fn division_traps(&mut self, op: BinaryOp, ty: Type, left: Value, right: Value, place: Place) {
        use BinaryOp::{DivS, DivU, RemS, RemU};
        if !matches!(op, DivS | DivU | RemS | RemU) {
            return;
        }
        let zero = self.ssa.constant(ty, 0, place);
        let is_zero = self.ssa.one(Op::Compare(CompareOp::Eq, right, zero), Type::I32, place);
        self.ssa.push(Op::TrapIf(is_zero, TrapCode::DivisionByZero), &[], place);
        if op != DivS {
            return;
        }
        let (least, minus_one) = match ty {
            Type::I32 => (1 << 31, u64::from(u32::MAX)),
            Type::I64 => (1 << 63, u64::MAX),
        };
        let least = self.ssa.constant(ty, least, place);
        let minus_one = self.ssa.constant(ty, minus_one, place);
        let is_least = self.ssa.one(Op::Compare(CompareOp::Eq, left, least), Type::I32, place);
        let by_minus = self.ssa.one(Op::Compare(CompareOp::Eq, right, minus_one), Type::I32, place);
        let both = self.ssa.one(Op::Binary(BinaryOp::And, is_least, by_minus), Type::I32, place);
        self.ssa.push(Op::TrapIf(both, TrapCode::IntegerOverflow), &[], place);
    }

    fn memory(&mut self, memory: MemoryOperator, place: Place) -> Result<(), Stop> {
        let MemoryOperator { is_store, ty, width, signed, offset } = memory;
        let value = if is_store { Some(self.pop()?) } else { None };
        let address = self.pop()?;
        let access = Access { address, offset, region: self.region, bounds_check: true };
        match value {
            Some(value) => {
                self.ssa.push(Op::Store { width, value, access }, &[], place);
            }
            None => self.give(Op::Load { width, signed, access }, ty, place),
        }
        Ok(())
    }

    fn global_get(&mut self, index: u32, place: Place) -> Result<(), Stop> {
        let global = self.module.globals.get(index as usize).ok_or(Stop::Malformed)?;
        let ty = type_of(global.ty.content_type);
        if self.reach.is_written(index) {
            self.give(Op::GlobalGet(index), ty, place);
        } else {
            let value = self.reach.habits.first_value(global).ok_or(Stop::Malformed)?;
            self.constant(ty, value, place);
        }
        Ok(())
    }

    /// Charges fuel: until passes/fuel.rs that is a store of the cost, a
    /// constant that is set when it is known.
    pub(super) fn charge_fuel(&mut self, place: Place) -> Value {
        let cost = self.ssa.constant(Type::I64, 0, place);
        self.ssa.push(Op::FuelStore(cost), &[], place);
        cost
    }

    fn read_local(&mut self, index: u32) -> Result<Value, Stop> {
        let ty = self.locals.type_of(index).ok_or(Stop::Malformed)?;
        Ok(self.ssa.read(Variable(index), ty))
    }

    pub(super) fn constant(&mut self, ty: Type, value: u64, place: Place) {
        let value = self.ssa.constant(ty, value, place);
        self.stack.push(value);
    }

    pub(super) fn give(&mut self, op: Op, ty: Type, place: Place) {
        let value = self.ssa.one(op, ty, place);
        self.stack.push(value);
    }

    pub(super) fn pop(&mut self) -> Result<Value, Stop> {
        self.stack.pop().ok_or(Stop::Malformed)
    }

    /// The top of the stack, which stays.
    pub(super) fn top(&self, count: usize) -> Result<Vec<Value>, Stop> {
        let begin = self.stack.len().checked_sub(count).ok_or(Stop::Malformed)?;
        Ok(self.stack.get(begin..).unwrap_or_default().to_vec())
    }

    pub(super) fn take(&mut self, count: usize) -> Result<Vec<Value>, Stop> {
        let begin = self.stack.len().checked_sub(count).ok_or(Stop::Malformed)?;
        Ok(self.stack.split_off(begin))
    }
}

/// What an operator was to the structure of the code.
enum Structure {
    /// Nothing.
    None,
    Done,
    /// The operator with that number is read next, for the second time.
    Again(usize),
}

/// Types of the locals, in runs as the module has them.
struct Locals {
    /// (end, type), rising.
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

/// The type of a value; others than integers are refused before.
pub(super) const fn type_of(ty: ValType) -> Type {
    match ty {
        ValType::I64 => Type::I64,
        _ => Type::I32,
    }
}
