//! Conversion of traps of programs below user level into the engine's types.

use bpf_maps::NOT_A_VERDICT;
use engine::{Program, Trap, TrapKind};
use wasm_to_bpf::TrapCode;

/// Returns the kind of a trap from the code that a program, or the front door, wrote.
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

/// Returns the trap that a program of this module wrote into its block; `None` for an unknown code.
/// `place` is an offset in the module, or, for a value that is no verdict, that value, as at user
/// level.
#[must_use]
pub fn trap_of<P>(module: &Program<P>, code: u32, place: u32) -> Option<Trap> {
    if code == TrapCode::BadVerdict as u32 {
        return Some(Trap { kind: TrapKind::NotAVerdict(Some(place)), place: None });
    }
    let kind = kind_of(code)?;
    let has_place = !matches!(kind, TrapKind::NotAVerdict(_) | TrapKind::Other);
    let place = has_place.then(|| module.place_at(place as usize)).flatten();
    Some(Trap { kind, place })
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::layout::NotAVerdict;
    use engine::{Engine, MemoryKind};

    #[test]
    fn a_trap_below_user_level_is_reported_like_the_same_trap_in_the_sandbox() {
        let wasm = wat::parse_str(
            r#"(module (memory (export "memory") 1)
                 (func $inner unreachable)
                 (func (export "on_packet") (result i32) (call $inner) (i32.const 0)))"#,
        );
        let wasm = wasm.unwrap();
        let engine = Engine::new().unwrap();
        let program = engine.program::<abi::packet::OwnedPacket>(&wasm, MemoryKind::Own).unwrap();
        let trap_of = |code: TrapCode, place| trap_of(&program, code as u32, place).unwrap();
        // No locals, the instruction, the function's end.
        let inner = wasm.windows(3).position(|bytes| bytes == [0x00, 0x00, 0x0b]).unwrap();
        let place = inner + 1;
        let text = trap_of(TrapCode::Unreachable, place as u32).to_string();
        let expected = format!(
            "reached 'unreachable' (a panic ends so) in function inner at module offset {place:#x}"
        );
        assert_eq!(text, expected);
        let text = trap_of(TrapCode::BadVerdict, 77).to_string();
        assert_eq!(text, NotAVerdict(77).to_string());
        let front_door = super::trap_of(&program, NOT_A_VERDICT, 5).unwrap();
        assert_eq!(front_door, Trap { kind: TrapKind::NotAVerdict(None), place: None });
        assert_eq!(super::trap_of(&program, 4_000, 0), None);
    }
}
