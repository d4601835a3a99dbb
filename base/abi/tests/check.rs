//! Tests of each reason for rejecting a module, and of one module that uses everything.

use abi::check::{Kind, Limited, MemoryLimits};
use abi::{CheckError, Checked, HOST_FUNCTIONS, Level, Unverified};

const GOOD: &str = include_str!("../../../vectors/abi/good.wat");
const MANIFEST: &str = r#"abi = 1\nname = \"m\"\nversion = \"0.1.0\"\nwindow = 64\n"#;

fn check(wat: &str) -> Result<Checked, CheckError> {
    Unverified(&wat::parse_str(wat).expect("the test's own text")).check()
}

/// Checks a module of version 1 whose other parts are `rest`.
fn with(rest: &str) -> Result<Checked, CheckError> {
    with_manifest("", rest)
}

/// Checks a module with further lines in its manifest.
fn with_manifest(more: &str, rest: &str) -> Result<Checked, CheckError> {
    check(&format!(
        r#"(module {rest} (@custom "tamandua" "{MANIFEST}{}"))"#,
        more.replace('"', "\\\"").replace('\n', "\\n")
    ))
}

/// Smallest module body (`on_packet` and a memory), for tests of other parts.
const BODY: &str =
    r#"(memory (export "memory") 1) (func (export "on_packet") (result i32) (i32.const 0))"#;

#[test]
fn a_module_that_uses_everything_is_taken() {
    let checked = check(GOOD).unwrap();
    assert_eq!(checked.imports.len(), HOST_FUNCTIONS.len());
    assert_eq!(checked.memory, MemoryLimits { pages_min: 1, pages_max: 4 });
    assert_eq!(checked.counters.len(), 1);
    assert_eq!(checked.counters[0].name.as_str(), "packets");
    assert_eq!(checked.counters[0].address, 0x9000);
    let hooks = checked.hooks;
    assert!(hooks.on_start && hooks.on_timer && hooks.on_message);
    assert!(hooks.on_memory_low && hooks.on_queue && hooks.state);
    assert_eq!(checked.manifest.levels, [Level::Nic, Level::User]);
    assert_eq!(checked.manifest.reasons[&7], "too short");
}

#[test]
fn an_on_memory_low_hook_without_parameters_is_accepted_and_not_called() {
    let hook = |hook: &str| with(&format!("{BODY} {hook}")).map(|it| it.hooks.on_memory_low);
    assert!(hook(r#"(func (export "on_memory_low") (param i32 i32))"#).unwrap());
    assert!(!hook(r#"(func (export "on_memory_low"))"#).unwrap());
    assert!(hook(r#"(global (export "on_memory_low") i32 (i32.const 0))"#).is_err());
}

#[test]
fn the_smallest_module_is_taken() {
    let checked = with(BODY).unwrap();
    assert_eq!(checked.memory, MemoryLimits { pages_min: 1, pages_max: 16 });
    assert!(checked.imports.is_empty() && checked.counters.is_empty());
}

#[test]
fn other_files_are_named() {
    for (bytes, name) in [
        (&b""[..], "empty"),
        (b"\x7fELF\x02\x01\x01", "ELF"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"(module)", "WebAssembly as text"),
        (b";; text\n(module)", "WebAssembly as text"),
        (b"#!/bin/sh\n", "it is text"),
        (b"\xff\xfe\x00\x00", "unknown"),
        (b"PK\x03\x04", "zip"),
    ] {
        let error = Unverified(bytes).check().unwrap_err();
        assert!(matches!(error, CheckError::NotWasm { .. }));
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_component_is_refused() {
    let bytes = wat::parse_str("(component)").unwrap();
    assert_eq!(Unverified(&bytes).check(), Err(CheckError::Component));
}

#[test]
fn too_many_bytes_are_refused_unread() {
    let mut bytes = b"\0asm\x01\0\0\0".to_vec();
    bytes.resize((8 << 20) + 1, 0);
    assert!(matches!(Unverified(&bytes).check(), Err(CheckError::TooLarge { .. })));
}

#[test]
fn invalid_webassembly_has_its_place() {
    let error = with(r#"(func (export "on_packet") (result i32))"#).unwrap_err();
    assert!(matches!(error, CheckError::Invalid { offset, .. } if offset > 8), "{error}");
    let whole = wat::parse_str(GOOD).unwrap();
    let error = Unverified(&whole[..whole.len() / 2]).check().unwrap_err();
    assert!(matches!(error, CheckError::Invalid { .. }), "{error}");
}

#[test]
fn features_that_are_left_out_are_named() {
    for (rest, name) in [
        ("(func (drop (v128.const i64x2 0 0)))", "SIMD"),
        (r#"(memory (export "memory") 1 1 shared)"#, "threads"),
        ("(func $f (return_call $f))", "tail calls"),
        (r#"(memory (export "memory") i64 1)"#, "memory64"),
        (r#"(memory (export "memory") 1) (memory 1)"#, "more than one memory"),
        ("(tag) (func (throw 0))", "exceptions"),
        ("(func (param externref))", "references to the host"),
        ("(type (struct))", "garbage collection"),
        ("(global i32 (i32.add (i32.const 1) (i32.const 2)))", "extended constant"),
    ] {
        let error = with(rest).unwrap_err();
        assert!(matches!(error, CheckError::Feature { .. }), "{rest}: {error}");
        assert!(error.to_string().contains(name), "{rest}: {error}");
    }
}

#[test]
fn what_llvm_makes_by_default_is_taken() {
    with(&format!(
        r#"{BODY} (table 4 funcref) (func $f (result i32 i32) (i32.const 1) (i32.const 2))
        (elem (i32.const 0) $f)
        (func (param f64) (result i32) (i32.trunc_sat_f64_u (local.get 0)))
        (func (param i32) (result i32) (i32.extend8_s (local.get 0)))
        (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 8)))
        (global (mut i32) (i32.const 32768))"#
    ))
    .unwrap();
}

#[test]
fn more_than_the_limits_is_refused() {
    let many = |what: Limited, text: String| {
        let error = with(&text).unwrap_err();
        assert!(
            matches!(error, CheckError::TooMany { what: found, .. } if found == what),
            "{what}: {error}"
        );
    };
    let times = |text: &str, count: u64| text.repeat(usize::try_from(count).unwrap());
    for (what, text) in [
        (Limited::Functions, "(func)"),
        (Limited::Globals, "(global i32 (i32.const 0))"),
        (Limited::Tables, "(table 0 funcref)"),
        (Limited::DataSegments, "(data \"\")"),
        (Limited::ElementSegments, "(elem func)"),
    ] {
        many(what, times(text, what.max(Kind::Packets) + 1));
    }
    many(Limited::TableElements, "(table 65537 funcref)".into());
    let import = r#"(import "tam" "now_ms" (func (result i64)))"#;
    many(Limited::Imports, times(import, Limited::Imports.max(Kind::Packets) + 1));
    let exports: String = (0..=Limited::Exports.max(Kind::Packets))
        .map(|number| format!(r#"(export "x{number}" (func $f))"#))
        .collect();
    many(Limited::Exports, format!("(func $f) {exports}"));
    let counters: String = (0..=Limited::Counters.max(Kind::Packets))
        .map(|number| {
            format!(r#"(global (export "tam_counter_c{number}") i32 (i32.const 0x9000))"#)
        })
        .collect();
    many(Limited::Counters, format!("{BODY} {counters}"));
}

#[test]
fn a_filter_has_what_its_toolchain_makes_and_no_more() {
    let version = r#"(memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1"))"#;
    let has =
        |count: usize, text: &str| check(&format!("(module {version} {})", text.repeat(count)));
    let table = |elements: u32| has(1, &format!("(table {elements} funcref)"));
    // Go 1.26 makes that many for a few lines.
    assert_eq!(has(30_000, "(data (i32.const 1024) \"go\")").unwrap().kind, Kind::Streams);
    has(20_000, "(func)").unwrap();
    table(131_072).unwrap();
    let most = |what: Limited| usize::try_from(what.max(Kind::Streams)).unwrap();
    for (what, refused) in [
        (Limited::Functions, has(most(Limited::Functions), "(func)")),
        (Limited::DataSegments, has(most(Limited::DataSegments) + 1, "(data \"\")")),
        (Limited::TableElements, table(131_073)),
    ] {
        let error = refused.unwrap_err();
        let is_it = matches!(error, CheckError::TooMany { what: found, .. } if found == what);
        assert!(is_it, "{what}: {error}");
    }
}

#[test]
fn a_module_without_manifest_is_refused() {
    assert_eq!(check(&format!("(module {BODY})")), Err(CheckError::NoManifest));
}

#[test]
fn a_fault_in_the_manifest_has_its_line() {
    let error = with_manifest("windows = 5\n", BODY).unwrap_err();
    assert!(matches!(error, CheckError::Manifest(_)));
    assert!(error.to_string().starts_with("line 5 "), "{error}");
    assert!(error.to_string().contains("did you mean 'window'"), "{error}");
}

#[test]
fn another_abi_version_is_refused_first() {
    let wat = format!(r#"(module {BODY} (@custom "tamandua" "abi = 2\nportal = 9\n"))"#);
    let error = check(&wat).unwrap_err().to_string();
    assert!(error.contains("packet ABI version 2"), "{error}");
}

#[test]
fn imports_from_elsewhere_are_refused_with_advice() {
    for (module, advice) in [
        ("wasi_snapshot_preview1", "not for WASI"),
        ("env", "the linker did not find"),
        ("other", "remove the import"),
    ] {
        let error = with(&format!(r#"(import "{module}" "f" (func))"#)).unwrap_err();
        assert!(matches!(error, CheckError::ImportModule { .. }));
        assert!(error.to_string().contains(advice), "{error}");
    }
    let error = with(r#"(import "env" "memory" (memory 1))"#).unwrap_err();
    assert!(matches!(error, CheckError::ImportModule { .. }), "{error}");
}

#[test]
fn an_unknown_host_function_is_answered_with_the_nearest() {
    let error = with(r#"(import "tam" "packet_laod" (func))"#).unwrap_err().to_string();
    assert!(error.contains("did you mean 'packet_load'"), "{error}");
}

#[test]
fn a_host_function_of_another_type_is_refused() {
    for import in [r"(func (param i32))", r"(func (result i32))", "(global i32)"] {
        let error = with(&format!(r#"(import "tam" "now_ms" {import})"#)).unwrap_err();
        assert!(matches!(error, CheckError::ImportType { .. }), "{error}");
        assert!(error.to_string().contains("it is () -> i64"), "{error}");
    }
}

#[test]
fn a_host_function_must_be_asked_for() {
    let import =
        format!(r#"(import "tam" "packet_send" (func (param i32 i32 i32) (result i32))) {BODY}"#);
    let error = with(&import).unwrap_err().to_string();
    assert!(error.contains(r#"needs = ["send"]"#), "{error}");
    assert!(with_manifest("needs = [\"send\"]\n", &import).is_ok());
}

#[test]
fn on_packet_is_required() {
    let memory = r#"(memory (export "memory") 1)"#;
    assert!(matches!(with(memory), Err(CheckError::NoOnPacket { .. })));
    let near = format!(r#"{memory} (func (export "on_paket") (result i32) (i32.const 0))"#);
    let error = with(&near).unwrap_err().to_string();
    assert!(error.contains("did you mean 'on_paket'"), "{error}");
}

#[test]
fn hooks_have_their_types() {
    let memory = r#"(memory (export "memory") 1)"#;
    for (hook, found) in [
        (r#"(func (export "on_packet"))"#, "()"),
        (r#"(func (export "on_packet") (param i32) (result i32) (i32.const 0))"#, "(i32) -> i32"),
        (r#"(global (export "on_packet") i32 (i32.const 0))"#, "no function"),
    ] {
        let error = with(&format!("{memory} {hook}")).unwrap_err();
        assert!(matches!(error, CheckError::HookType { name: "on_packet", .. }), "{error}");
        assert!(error.to_string().contains(found), "{error}");
    }
    let error = with(&format!(r#"{BODY} (func (export "on_message"))"#)).unwrap_err();
    assert!(matches!(error, CheckError::HookType { name: "on_message", .. }), "{error}");
}

#[test]
fn a_timer_needs_its_hook_and_a_hook_its_timer() {
    let hook = format!(r#"{BODY} (func (export "on_timer"))"#);
    assert!(matches!(with(&hook), Err(CheckError::Timer { .. })));
    assert!(matches!(with_manifest("timer_ms = 5\n", BODY), Err(CheckError::Timer { .. })));
    assert!(with_manifest("timer_ms = 5\n", &hook).unwrap().hooks.on_timer);
}

#[test]
fn a_start_function_is_refused() {
    let error = with(&format!("{BODY} (func $s) (start $s)")).unwrap_err();
    assert_eq!(error, CheckError::StartFunction { function: 1 });
    assert!(error.to_string().contains("on_start"), "{error}");
}

#[test]
fn the_memory_is_defined_exported_and_small_enough() {
    let function = r#"(func (export "on_packet") (result i32) (i32.const 0))"#;
    assert_eq!(with(function), Err(CheckError::NoMemory));
    for hidden in ["(memory 1)", r#"(memory (export "mem") 1)"#] {
        assert_eq!(with(&format!("{function} {hidden}")), Err(CheckError::MemoryNotExported));
    }
    for (pages, max) in [(0, 256), (257, 256), (65_536, 256)] {
        assert_eq!(
            with(&format!(r#"{function} (memory (export "memory") {pages})"#)),
            Err(CheckError::MemorySize { pages, max })
        );
    }
    let two = format!(r#"{function} (memory (export "memory") 2)"#);
    assert_eq!(
        with_manifest("memory_pages_max = 1\n", &two),
        Err(CheckError::MemorySize { pages: 2, max: 1 })
    );
}

#[test]
fn a_memory_grows_to_the_smallest_of_the_limits() {
    let function = r#"(func (export "on_packet") (result i32) (i32.const 0))"#;
    for (manifest, memory, pages_max) in [
        ("", "1", 16),
        ("", "20", 20),
        ("", "1 5", 5),
        ("", "1 65536", 256),
        ("memory_pages_max = 32\n", "1", 32),
        ("memory_pages_max = 32\n", "1 5", 5),
        ("memory_pages_max = 3\n", "1 5", 3),
    ] {
        let rest = format!(r#"{function} (memory (export "memory") {memory})"#);
        let checked = with_manifest(manifest, &rest).unwrap();
        assert_eq!(checked.memory.pages_max, pages_max, "{manifest} {memory}");
    }
}

#[test]
fn data_keeps_off_the_packet() {
    for (address, touches) in
        [(0x7ff8, false), (0x7ff9, true), (0x8000, true), (0x8fff, true), (0x9000, false)]
    {
        let result = with(&format!(r#"{BODY} (data (i32.const {address}) "12345678")"#));
        match touches {
            true => assert!(
                matches!(result, Err(CheckError::DataOverPacket { segment: 0, .. })),
                "{address:#x}"
            ),
            false => assert!(result.is_ok(), "{address:#x}"),
        }
    }
}

#[test]
fn data_lies_within_the_first_pages() {
    for address in [0xffff, -1] {
        let result = with(&format!(r#"{BODY} (data (i32.const {address}) "12")"#));
        assert!(matches!(result, Err(CheckError::DataOutside { .. })), "{address}");
    }
}

#[test]
fn a_counter_is_the_address_of_a_number() {
    for (global, reason) in [
        ("(mut i32) (i32.const 0x9000)", "mutable"),
        ("i64 (i64.const 0x9000)", "another type"),
        ("i32 (i32.const 0x9004)", "multiple of 8"),
        ("i32 (i32.const 0x10000)", "beyond"),
        ("i32 (i32.const 0x8100)", "over the packet"),
    ] {
        let rest = format!(r#"{BODY} (global (export "tam_counter_x") {global})"#);
        let error = with(&rest).unwrap_err();
        assert!(matches!(error, CheckError::Counter { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let error = with(&format!(r#"{BODY} (func (export "tam_counter_x"))"#)).unwrap_err();
    assert!(error.to_string().contains("no global"), "{error}");
    let rest = format!(r#"{BODY} (global (export "tam_counter_X y") i32 (i32.const 0x9000))"#);
    assert!(matches!(with(&rest), Err(CheckError::Counter { .. })));
}

#[test]
fn state_out_and_state_in_are_exported_both_or_neither() {
    let out = r#"(func (export "state_out") (result i32) (i32.const 0))"#;
    let taken = r#"(func (export "state_in") (param i32) (result i32) (i32.const 0))"#;
    for (there, missing) in [(out, "state_in"), (taken, "state_out")] {
        let message = with(&format!("{BODY} {there}")).unwrap_err().to_string();
        assert!(message.contains(missing) && message.contains("both, or neither"), "{message}");
    }
    assert!(with(&format!("{BODY} {out} {taken}")).unwrap().hooks.state);
}

#[test]
fn a_memory_image_is_that_of_memory_globals_and_data() {
    let image = |fields: &str| with(&format!("{BODY} {fields}")).unwrap().image;
    let plain = image("");
    assert_eq!(plain, image("(func (export \"more\"))"), "code is not in it");
    assert_ne!(plain, image("(data (i32.const 0x9000) \"a\")"));
    let (one, two) = ("(global (mut i32) (i32.const 1))", "(global (mut i32) (i32.const 2))");
    assert_ne!(image(one), image(two));
    assert_ne!(image("(data (i32.const 0x9000) \"a\")"), image("(data (i32.const 0x9001) \"a\")"));
}
