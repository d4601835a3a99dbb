//! What a call came to, in words that all engines share.

use wasm_to_bpf::TrapCode;

/// The end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned; 64 bits each, an `i32` zero-extended.
    Returned(Vec<u64>),
    /// It trapped.
    Trapped(Ending),
}

/// Why a call ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// `unreachable`.
    Unreachable,
    /// An access beyond the memory.
    OutOfBounds,
    /// A division by zero.
    DivisionByZero,
    /// `INT_MIN / -1`.
    IntegerOverflow,
    /// `call_indirect` beyond the table, or an access to it.
    TableOutOfBounds,
    /// `call_indirect` of an empty place.
    NullFunction,
    /// `call_indirect` of another type.
    WrongSignature,
    /// An end that each engine has at another place: fuel, time, depth of calls.
    Exhausted,
}

impl Ending {
    /// From the number in the instance block.
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

    /// From the message that the official test suite expects.
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
