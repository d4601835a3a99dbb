//! Permissions of host functions: each function, at each level, granted and not.

use abi::packet::OwnedPacket;
use abi::{
    HOST_FUNCTIONS, HostFunction, HostFunctionSpec, HostFunctions, Level, NotGranted, ValueType,
};
use engine::{CompileError, Engine, MemoryKind};
use wasm_to_bpf::{Entry, Flavour, Options, Reason};

/// Returns a module that imports one function and calls it for each packet.
fn module_of(spec: &HostFunctionSpec) -> Vec<u8> {
    let types: Vec<String> = spec.parameters.iter().map(ToString::to_string).collect();
    let values: Vec<&str> = spec
        .parameters
        .iter()
        .map(|ty| match ty {
            ValueType::I32 => "(i32.const 0)",
            ValueType::I64 => "(i64.const 0)",
        })
        .collect();
    let text = format!(
        r#"(module
            (import "tam" "{}" (func $it (param {}) (result {})))
            (memory (export "memory") 1 1)
            (func (export "on_packet") (result i32) (drop (call $it {})) (i32.const 0)))"#,
        spec.name,
        types.join(" "),
        spec.result,
        values.join(" "),
    );
    wat::parse_str(text).unwrap()
}

/// Returns why the module is not permitted at a level; `None` where it is linked, or does not fit
/// the level for another reason.
fn refused(
    engine: &Engine,
    level: Level,
    wasm: &[u8],
    functions: HostFunctions,
) -> Option<NotGranted> {
    let flavour = match level {
        Level::Nic => Flavour::Xdp,
        Level::Kernel => Flavour::Tc,
        _ => {
            let program = engine.program_with::<OwnedPacket>(wasm, MemoryKind::Own, functions);
            return match program.err() {
                Some(CompileError::NotGranted(refused)) => Some(refused),
                None => None,
                Some(other) => panic!("{other}"),
            };
        }
    };
    let entry = Entry::Packet { window: 64, standalone: true };
    let options = Options { entry, flavour, memory_pages_max: 1, functions };
    let refusals = wasm_to_bpf::compile(wasm, &options).err().unwrap_or_default();
    let mut refusals = refusals.into_iter().map(|refusal| refusal.reason);
    match refusals.next() {
        Some(Reason::NotGranted(refused)) => Some(refused),
        None | Some(Reason::ResizeHead { .. }) => None,
        Some(other) => panic!("{other}"),
    }
}

#[test]
fn a_function_that_is_not_granted_is_linked_at_no_level_and_named_alike_at_all() {
    let engine = Engine::new().unwrap();
    for spec in HOST_FUNCTIONS {
        let (wasm, only) = (module_of(spec), HostFunctions::NONE.with(spec.function));
        let missing = NotGranted { missing: only };
        for level in [Level::Nic, Level::Kernel, Level::User] {
            let at = |functions| refused(&engine, level, &wasm, functions);
            let place = format!("{} at {level}", spec.name);
            assert_eq!(at(HostFunctions::ALL), None, "{place}");
            assert_eq!(at(only), None, "{place}");
            assert_eq!(at(HostFunctions::NONE), Some(missing.clone()), "{place}");
            let others = HostFunctions::ALL.without(spec.function);
            assert_eq!(at(others), Some(missing.clone()), "{place}");
            for other in HOST_FUNCTIONS.iter().filter(|other| other.function != spec.function) {
                let other = HostFunctions::NONE.with(other.function);
                assert_eq!(at(other), Some(missing.clone()), "{place}");
            }
        }
    }
}

#[test]
fn an_import_that_is_never_called_is_refused_too() {
    let wasm = wat::parse_str(
        r#"(module
            (import "tam" "event" (func (param i32 i32 i32) (result i32)))
            (memory (export "memory") 1 1)
            (func (export "on_packet") (result i32) (i32.const 0)))"#,
    );
    let (engine, wasm) = (Engine::new().unwrap(), wasm.unwrap());
    let missing = HostFunctions::NONE.with(HostFunction::Event);
    for level in [Level::Nic, Level::Kernel, Level::User] {
        assert_eq!(refused(&engine, level, &wasm, HostFunctions::ALL), None);
        let others = HostFunctions::ALL.without(HostFunction::Event);
        assert_eq!(refused(&engine, level, &wasm, others), Some(NotGranted { missing }), "{level}");
    }
}
