//! What ended a call below, in the engine's words.

use bpf_maps::NOT_A_VERDICT;
use engine::TrapKind;
use wasm_to_bpf::TrapCode;

/// The kind of a trap whose code a program, or the front door, has left.
#[must_use]
pub fn kind_of(code: u32) -> Option<TrapKind> {
    let kinds = [
        (TrapCode::Unreachable as u32, TrapKind::Unreachable),
        (TrapCode::OutOfBounds as u32, TrapKind::MemoryOutOfBounds),
        (TrapCode::DivisionByZero as u32, TrapKind::Arithmetic),
        (TrapCode::IntegerOverflow as u32, TrapKind::Arithmetic),
        (TrapCode::TableOutOfBounds as u32, TrapKind::IndirectCall),
        (TrapCode::NullFunction as u32, TrapKind::IndirectCall),
        (TrapCode::WrongSignature as u32, TrapKind::IndirectCall),
        (TrapCode::OutOfFuel as u32, TrapKind::TimeLimit),
        (TrapCode::OutOfTime as u32, TrapKind::TimeLimit),
        (TrapCode::BadVerdict as u32, TrapKind::NotAVerdict(None)),
        (NOT_A_VERDICT, TrapKind::NotAVerdict(None)),
        (TrapCode::Packet as u32, TrapKind::Other),
    ];
    kinds.into_iter().find(|(known, _)| *known == code).map(|(_, kind)| kind)
}
