//! Outcome of a call, in terms that all engines share.

use wasm_to_bpf::TrapCode;

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call returned these results; 64 bits each, an `i32` zero-extended.
    Returned(Vec<u64>),
    /// The call trapped.
    Trapped(Ending),
}

/// Reason why a call ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// The module executed `unreachable`.
    Unreachable,
    /// The access was beyond the memory.
    OutOfBounds,
    /// The divisor was zero.
    DivisionByZero,
    /// The quotient overflowed: `INT_MIN / -1`.
    IntegerOverflow,
    /// The index of `call_indirect` or of a table access was beyond the table.
    TableOutOfBounds,
    /// The element of `call_indirect` was null.
    NullFunction,
    /// The function of `call_indirect` had another type.
    WrongSignature,
    /// The call exhausted fuel, time or call depth, which each engine limits elsewhere.
    Exhausted,
}

impl Ending {
    /// Converts the trap code of the instance block.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let endings = [
            (TrapCode::Unreachable, Self::Unreachable),
            (TrapCode::OutOfBounds, Self::OutOfBounds),
            (TrapCode::DivisionByZero, Self::DivisionByZero),
            (TrapCode::IntegerOverflow, Self::IntegerOverflow),
            (TrapCode::TableOutOfBounds, Self::TableOutOfBounds),
            (TrapCode::NullFunction, Self::NullFunction),
            (TrapCode::WrongSignature, Self::WrongSignature),
            (TrapCode::OutOfFuel, Self::Exhausted),
            (TrapCode::OutOfTime, Self::Exhausted),
        ];
        endings.into_iter().find(|(trap, _)| *trap as u32 == code).map(|(_, ending)| ending)
    }

    /// Converts the message that the official test suite expects.
    #[must_use]
    pub fn from_message(message: &str) -> Option<Self> {
        let beginnings = [
            ("unreachable", Self::Unreachable),
            ("out of bounds memory access", Self::OutOfBounds),
            ("integer divide by zero", Self::DivisionByZero),
            ("integer overflow", Self::IntegerOverflow),
            ("out of bounds table access", Self::TableOutOfBounds),
            ("undefined element", Self::TableOutOfBounds),
            ("uninitialized element", Self::NullFunction),
            ("indirect call type mismatch", Self::WrongSignature),
            ("call stack exhausted", Self::Exhausted),
        ];
        beginnings.into_iter().find(|(text, _)| message.starts_with(text)).map(|(_, ending)| ending)
    }
}
