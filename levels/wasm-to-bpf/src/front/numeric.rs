//! Operators that are one operation of the IR, in a table. Divisions are here as their result;
//! their traps are in translate.rs.

use wasmparser::{MemArg, Operator};

use crate::ir::{BinaryOp, CompareOp, Type, UnaryOp, Width};

/// Effect of an operator on the top of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numeric {
    Unary(UnaryOp, Type),
    Binary(BinaryOp, Type),
    Compare(CompareOp),
    /// Comparison with zero.
    IsZero(Type),
    ExtendUnsigned,
    ExtendSigned,
    Wrap,
}

/// Load or store.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryOperator {
    pub(super) is_store: bool,
    pub(super) ty: Type,
    pub(super) width: Width,
    pub(super) signed: bool,
    pub(super) offset: u32,
}

/// Returns the operation of a numeric operator.
pub(super) fn numeric(operator: &Operator<'_>) -> Option<Numeric> {
    use BinaryOp as B;
    use CompareOp as C;
    use Numeric::{Binary, Compare, Unary};
    use Operator as O;
    use Type::{I32, I64};
    use UnaryOp as U;
    Some(match operator {
        O::I32Clz => Unary(U::Clz, I32),
        O::I32Ctz => Unary(U::Ctz, I32),
        O::I32Popcnt => Unary(U::Popcnt, I32),
        O::I32Extend8S => Unary(U::Extend8, I32),
        O::I32Extend16S => Unary(U::Extend16, I32),
        O::I64Clz => Unary(U::Clz, I64),
        O::I64Ctz => Unary(U::Ctz, I64),
        O::I64Popcnt => Unary(U::Popcnt, I64),
        O::I64Extend8S => Unary(U::Extend8, I64),
        O::I64Extend16S => Unary(U::Extend16, I64),
        O::I64Extend32S => Unary(U::Extend32, I64),
        O::I32Add => Binary(B::Add, I32),
        O::I32Sub => Binary(B::Sub, I32),
        O::I32Mul => Binary(B::Mul, I32),
        O::I32DivS => Binary(B::DivS, I32),
        O::I32DivU => Binary(B::DivU, I32),
        O::I32RemS => Binary(B::RemS, I32),
        O::I32RemU => Binary(B::RemU, I32),
        O::I32And => Binary(B::And, I32),
        O::I32Or => Binary(B::Or, I32),
        O::I32Xor => Binary(B::Xor, I32),
        O::I32Shl => Binary(B::Shl, I32),
        O::I32ShrS => Binary(B::ShrS, I32),
        O::I32ShrU => Binary(B::ShrU, I32),
        O::I32Rotl => Binary(B::Rotl, I32),
        O::I32Rotr => Binary(B::Rotr, I32),
        O::I64Add => Binary(B::Add, I64),
        O::I64Sub => Binary(B::Sub, I64),
        O::I64Mul => Binary(B::Mul, I64),
        O::I64DivS => Binary(B::DivS, I64),
        O::I64DivU => Binary(B::DivU, I64),
        O::I64RemS => Binary(B::RemS, I64),
        O::I64RemU => Binary(B::RemU, I64),
        O::I64And => Binary(B::And, I64),
        O::I64Or => Binary(B::Or, I64),
        O::I64Xor => Binary(B::Xor, I64),
        O::I64Shl => Binary(B::Shl, I64),
        O::I64ShrS => Binary(B::ShrS, I64),
        O::I64ShrU => Binary(B::ShrU, I64),
        O::I64Rotl => Binary(B::Rotl, I64),
        O::I64Rotr => Binary(B::Rotr, I64),
        O::I32Eqz => Numeric::IsZero(I32),
        O::I64Eqz => Numeric::IsZero(I64),
        O::I32Eq | O::I64Eq => Compare(C::Eq),
        O::I32Ne | O::I64Ne => Compare(C::Ne),
        O::I32LtS | O::I64LtS => Compare(C::LtS),
        O::I32LtU | O::I64LtU => Compare(C::LtU),
        O::I32GtS | O::I64GtS => Compare(C::GtS),
        O::I32GtU | O::I64GtU => Compare(C::GtU),
        O::I32LeS | O::I64LeS => Compare(C::LeS),
        O::I32LeU | O::I64LeU => Compare(C::LeU),
        O::I32GeS | O::I64GeS => Compare(C::GeS),
        O::I32GeU | O::I64GeU => Compare(C::GeU),
        O::I64ExtendI32U => Numeric::ExtendUnsigned,
        O::I64ExtendI32S => Numeric::ExtendSigned,
        O::I32WrapI64 => Numeric::Wrap,
        _ => return None,
    })
}

/// Returns the access of a load or a store.
pub(super) fn memory(operator: &Operator<'_>) -> Option<MemoryOperator> {
    use Operator as O;
    use Type::{I32, I64};
    use Width::{Eight, Four, One, Two};
    Some(match operator {
        O::I32Load { memarg } => load(I32, Four, false, memarg),
        O::I32Load8S { memarg } => load(I32, One, true, memarg),
        O::I32Load8U { memarg } => load(I32, One, false, memarg),
        O::I32Load16S { memarg } => load(I32, Two, true, memarg),
        O::I32Load16U { memarg } => load(I32, Two, false, memarg),
        O::I64Load { memarg } => load(I64, Eight, false, memarg),
        O::I64Load8S { memarg } => load(I64, One, true, memarg),
        O::I64Load8U { memarg } => load(I64, One, false, memarg),
        O::I64Load16S { memarg } => load(I64, Two, true, memarg),
        O::I64Load16U { memarg } => load(I64, Two, false, memarg),
        O::I64Load32S { memarg } => load(I64, Four, true, memarg),
        O::I64Load32U { memarg } => load(I64, Four, false, memarg),
        O::I32Store { memarg } => store(I32, Four, memarg),
        O::I32Store8 { memarg } => store(I32, One, memarg),
        O::I32Store16 { memarg } => store(I32, Two, memarg),
        O::I64Store { memarg } => store(I64, Eight, memarg),
        O::I64Store8 { memarg } => store(I64, One, memarg),
        O::I64Store16 { memarg } => store(I64, Two, memarg),
        O::I64Store32 { memarg } => store(I64, Four, memarg),
        _ => return None,
    })
}

fn load(ty: Type, width: Width, signed: bool, memarg: &MemArg) -> MemoryOperator {
    MemoryOperator { is_store: false, ty, width, signed, offset: offset(memarg) }
}

fn store(ty: Type, width: Width, memarg: &MemArg) -> MemoryOperator {
    MemoryOperator { is_store: true, ty, width, signed: false, offset: offset(memarg) }
}

/// Returns the offset; the validator accepts no larger one for a 32-bit memory.
fn offset(memarg: &MemArg) -> u32 {
    u32::try_from(memarg.offset).unwrap_or(u32::MAX)
}
