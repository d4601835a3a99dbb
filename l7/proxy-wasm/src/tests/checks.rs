//! Tests of the module check, and of loading code.

use super::{NOW, Script, engine, spec};
use crate::abi::{CALLBACKS, HOST_FUNCTIONS, Signature, WASI, WASI_FUNCTIONS, WASI_REFUSED};
use crate::{CheckError, MODULE_LENGTH_MAX, Starting, Version, check};
use std::os::fd::OwnedFd;

fn checked(body: &str) -> Result<crate::Checked, CheckError> {
    check(&wat::parse_str(format!("(module {body})")).unwrap())
}

const VERSION: &str = r#"(func (export "proxy_abi_version_0_2_1"))"#;
const MEMORY: &str = r#"(memory (export "memory") 3)"#;

#[test]
fn version_and_callbacks_are_read() {
    let body = format!(
        r#"{VERSION} {MEMORY} (func (export "proxy_on_tick") (param i32))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) i32.const 0)"#
    );
    let found = checked(&body).unwrap();
    assert_eq!((found.version, found.memory_pages), (Version::V0_2_1, 3));
    let names: Vec<_> = found.callbacks.names().collect();
    assert_eq!(names, ["proxy_on_tick", "proxy_on_request_headers"]);
    assert!(found.callbacks.has("proxy_on_tick") && !found.callbacks.has("proxy_on_log"));
    assert!(found.callbacks.is_http() && !found.callbacks.is_tcp());
    let older = format!(r#"(func (export "proxy_abi_version_0_2_0")) {MEMORY}"#);
    assert_eq!(checked(&older).unwrap().version, Version::V0_2_0);
}

#[test]
fn each_fault_is_named() {
    let cases = [
        ("", "the module exports no 'proxy_abi_version_0_2_1': it is no proxy-wasm module"),
        (
            r#"(func (export "proxy_abi_version_0_1_0"))"#,
            "the module has ABI version 0.1.0; this node runs 0.2.1 and 0.2.0",
        ),
        (VERSION, "the module exports no memory named 'memory'"),
        (
            r#"(import "env" "fork" (func))"#,
            "the module imports 'env.fork', which is no function of the ABI",
        ),
        (
            r#"(import "env" "memory" (memory 1))"#,
            "the module imports 'env.memory', which is no function of the ABI",
        ),
        (
            r#"(import "env" "proxy_log" (func (param i32 i64) (result f32)))"#,
            "the module imports 'env.proxy_log' as (i32, i64) -> (f32); \
             it is (i32, i32, i32) -> (i32)",
        ),
        (
            r#"(func (export "proxy_on_tick"))"#,
            "the module exports 'proxy_on_tick' as () -> (); it is (i32) -> ()",
        ),
        (
            r#"(global (export "proxy_on_tick") i32 (i32.const 0))"#,
            "the module exports 'proxy_on_tick' as something else; it is (i32) -> ()",
        ),
    ];
    for (body, message) in cases {
        let body = if body.is_empty() || body.contains("version") {
            body.to_owned()
        } else {
            format!("{body} {VERSION}")
        };
        assert_eq!(checked(&body).unwrap_err().to_string(), message);
    }
    let long = vec![0; MODULE_LENGTH_MAX + 1];
    assert_eq!(check(&long), Err(CheckError::TooLong { bytes: long.len() }));
    assert!(matches!(check(b"\0asm\x01\0\0\0\x01"), Err(CheckError::Invalid { .. })));
    let threads = format!("{VERSION} (memory (export \"memory\") 1 1 shared)");
    assert!(matches!(checked(&threads), Err(CheckError::Invalid { .. })));
    let exports: String =
        (0..=crate::EXPORTS_MAX).map(|n| format!(r#"(export "e{n}" (func $f))"#)).collect();
    let many = checked(&format!("{VERSION} {MEMORY} (func $f) {exports}"));
    assert!(matches!(many, Err(CheckError::TooMany { what: "exports", .. })), "{many:?}");
    let import = r#"(import "env" "proxy_done" (func (result i32)))"#;
    let many = checked(&format!("{} {VERSION} {MEMORY}", import.repeat(300)));
    assert!(matches!(many, Err(CheckError::TooMany { what: "imports", .. })), "{many:?}");
}

#[test]
fn every_function_of_the_abi_is_linked() {
    let ty = |it: Signature| {
        let types = |letters: &str| letters.replace('i', "i32 ").replace('l', "i64 ");
        format!("(param {}) (result {})", types(it.parameters), types(it.results))
    };
    let ours = HOST_FUNCTIONS.iter().map(|it| ("env", it));
    let wasi = WASI_FUNCTIONS.iter().chain(WASI_REFUSED.iter().map(|(it, _)| it));
    let imports: String = ours
        .chain(wasi.map(|it| (WASI, it)))
        .map(|(module, it)| {
            format!(r#"(import "{module}" "{}" (func {}))"#, it.name, ty(it.signature))
        })
        .collect();
    let callbacks: String = CALLBACKS
        .iter()
        .map(|it| {
            let result = if it.signature.results.is_empty() { "" } else { "i32.const 1" };
            format!(r#"(func (export "{}") {} {result})"#, it.name, ty(it.signature))
        })
        .collect();
    let body = format!("(module {imports} {MEMORY} {VERSION} {callbacks})");
    let wasm = wat::parse_str(body).unwrap();
    assert_eq!(check(&wasm).unwrap().callbacks.names().count(), CALLBACKS.len());
    Starting::new(&engine().program(&wasm).unwrap(), spec(), NOW).finish().unwrap();
}

/// Returns code in a memory file, sealed or not.
fn file(code: &[u8], is_sealed: bool) -> OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let file = memfd_create("code", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut rest = code;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest).unwrap()..];
    }
    if is_sealed {
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&file, seals).unwrap();
    }
    file
}

#[test]
fn code_is_loaded_from_sealed_memory_only() {
    let script = Script::new().on("proxy_on_vm_start", &[("proxy_done", &[])], 1);
    let wasm = wat::parse_str(script.text()).unwrap();
    let code = engine().compile(&wasm).unwrap();
    let program = engine().load_from_parent(&file(&code, true)).unwrap();
    Starting::new(&program, spec(), NOW).finish().unwrap();
    assert!(engine().load_from_parent(&file(&code, false)).is_err());
    assert!(engine().load_from_parent(&file(&wasm, true)).is_err());
    assert_eq!(engine().compatibility(), crate::Engine::new().unwrap().compatibility());
}
