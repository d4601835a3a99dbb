//! Tests of each refusal, by a module that causes it.

use super::{bytes, export, packet};
use crate::{Flavour, Options, Refusal, compile, unit};

fn refusals(text: &str, options: &Options) -> Vec<Refusal> {
    unit(&bytes(text), options).expect_err("a refusal")
}

/// Returns the codes of all reasons why the export `f` of a module is refused.
fn codes(text: &str) -> Vec<&'static str> {
    refusals(text, &export("f")).iter().map(Refusal::code).collect()
}

#[test]
fn bytes_that_are_no_module_are_invalid() {
    let refusals = unit(b"\0asm\x01\0\0\0\x07", &export("f")).expect_err("a refusal");
    assert_eq!(refusals[0].code(), "invalid");
    let refusals = unit(&bytes("(component)"), &export("f")).expect_err("a refusal");
    assert_eq!(refusals[0].code(), "component");
}

#[test]
fn a_float_is_refused_with_its_function_and_position() {
    let text = r#"(module (func $half (export "f") (result i32)
        (i32.trunc_f64_s (f64.mul (f64.const 3) (f64.const 0.5)))))"#;
    let refusal = refusals(text, &export("f")).remove(0);
    assert_eq!(refusal.code(), "float");
    assert!(refusal.place.is_some());
    let message = refusal.to_string();
    assert!(message.starts_with("function 'half' at byte 0x"), "{message}");
    assert!(message.contains("'f64.const' computes with floats"), "{message}");
}

#[test]
fn a_head_that_tc_cannot_take_away_is_named_with_the_levels_that_can() {
    let module = |bytes: &str| {
        super::bytes(&format!(
            r#"(module (import "tam" "packet_resize_head" (func $resize (param i32) (result i32)))
            (memory (export "memory") 1)
            (func $strip (export "on_packet") (result i32) (call $resize {bytes})))"#
        ))
    };
    let tc = Options { flavour: Flavour::Tc, ..packet(64) };
    let cases = [
        ("(i32.const -20)", "with -20, and this level"),
        ("(i32.load (i32.const 0x8102))", "with a number that only a run knows, and this level"),
    ];
    for (bytes, expected) in cases {
        let module = module(bytes);
        assert!(compile(&module, &packet(64)).is_ok(), "{bytes}");
        let refusal = compile(&module, &tc).unwrap_err().remove(0);
        assert_eq!((refusal.code(), refusal.function), ("resize_head", Some(1)), "{bytes}");
        let call = refusal.place.and_then(|place| module.get(place as usize));
        assert_eq!(call, Some(&0x10), "{bytes}");
        let message = refusal.to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("run the module at the level nic or user"), "{message}");
    }
    assert!(compile(&module("(i32.const 20)"), &tc).is_ok());
}

#[test]
fn what_the_entry_does_not_reach_refuses_nothing() {
    let text = r#"(module
        (func (export "f"))
        (func (export "g") (drop (f32.const 1)))
        (func $loop (export "h") (call $loop)))"#;
    assert!(unit(&bytes(text), &export("f")).is_ok());
}

#[test]
fn all_functions_with_a_fault_are_named() {
    let text = r#"(module
        (func (export "f") (call $a) (call $b))
        (func $a (drop (f32.const 1)))
        (func $b (drop (v128.const i64x2 1 2))))"#;
    assert_eq!(codes(text), ["float", "simd"]);
}

#[test]
fn other_proposals_are_named() {
    let cases = [
        (
            r#"(module (memory 1 1 shared) (func (export "f") (drop (i32.atomic.load (i32.const 0)))))"#,
            &["memory", "threads"][..],
        ),
        (r#"(module (func (export "f") (return_call $g)) (func $g))"#, &["proposal"]),
        (r#"(module (type $t (func)) (func (export "f") (drop (ref.null $t))))"#, &["reference"]),
        (r#"(module (type $t (func)) (func (export "f") (local (ref null $t))))"#, &["reference"]),
        (r#"(module (memory i64 1) (func (export "f")))"#, &["memory"]),
        (r#"(module (memory 1) (memory 1) (func (export "f")))"#, &["memory"]),
    ];
    for (text, expected) in cases {
        assert_eq!(codes(text), expected, "{text}");
    }
}

#[test]
fn imports_are_host_functions_or_refused() {
    let cases = [
        (r#"(module (import "env" "memory" (memory 1)) (func (export "f")))"#, "import"),
        (
            r#"(module (import "env" "g" (func $g)) (func (export "f") (call $g)))"#,
            "unknown_import",
        ),
        (
            r#"(module (import "tam" "now_ms" (func $g (result i32))) (func (export "f") (drop (call $g))))"#,
            "unknown_import",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(codes(text), [expected], "{text}");
    }
    let unused = r#"(module (import "env" "g" (func $g)) (func (export "f")))"#;
    assert!(unit(&bytes(unused), &export("f")).is_ok());
    let host = r#"(module (import "tam" "now_ms" (func $now (result i64)))
        (func (export "f") (result i64) (call $now)))"#;
    assert!(unit(&bytes(host), &export("f")).is_ok());
}

#[test]
fn a_refused_recursion_names_its_cycle() {
    let text = r#"(module
        (func (export "f") (call $a))
        (func $a (call $b)) (func $b (call $c)) (func $c (call $a)))"#;
    let refusal = refusals(text, &export("f")).remove(0);
    assert_eq!(refusal.code(), "recursion");
    assert!(refusal.to_string().contains("(a -> b -> c -> a)"), "{refusal}");
    let through_table = r#"(module (table 1 funcref) (elem (i32.const 0) $f)
        (func $f (export "f") (call_indirect (i32.const 0))))"#;
    assert_eq!(codes(through_table), ["recursion"]);
}

#[test]
fn instance_state_that_cannot_move_between_levels_is_refused_for_packet_modules_only() {
    let module = |body: &str| {
        format!(
            r#"(module (memory 1) (table $kept 2 funcref) (table $changing 2 funcref)
            (global $reference (mut funcref) (ref.null func)) (data $d "a") (elem $e func $a)
            (elem (table $kept) (i32.const 0) func $a)
            (func $a) (func (export "change")
                (table.set $changing (i32.const 0) (ref.func $a))
                (global.set $reference (ref.func $a)) (data.drop $d) (elem.drop $e))
            (func $body {body})
            (func (export "f") (call $body))
            (func (export "on_packet") (result i32) (call $body) (i32.const 0)))"#
        )
    };
    let zeros = "(i32.const 0) (i32.const 0) (i32.const 0)";
    let cases = [
        ("(call_indirect $changing (i32.const 0))", "table_changes"),
        ("(table.set $changing (i32.const 0) (ref.null func))", "table_changes"),
        ("(drop (table.get $changing (i32.const 0)))", "table_changes"),
        ("(drop (table.size $changing))", "table_changes"),
        ("(global.set $reference (ref.null func))", "reference"),
        (&format!("(memory.init $d {zeros})"), "passive_data"),
        (&format!("(table.init $changing $e {zeros})"), "table_changes"),
        (&format!("(table.copy $changing $kept {zeros})"), "table_changes"),
    ];
    for (body, expected) in cases {
        let text = module(body);
        assert_eq!(refusals(&text, &packet(64))[0].code(), expected, "{body}");
        assert!(unit(&bytes(&text), &export("f")).is_ok(), "{body}");
    }
    let allowed = [
        "(call_indirect $kept (i32.const 0))",
        "(drop (ref.is_null (table.get $kept (i32.const 1))))",
        "(drop (select (result funcref) (ref.func $a) (ref.null func) (table.size $kept)))",
        "(elem.drop $e) (data.drop $d)",
    ];
    for body in allowed {
        let (_, image) = unit(&bytes(&module(body)), &packet(64)).expect(body);
        assert_eq!(image.pages_behind, 0, "{body}");
    }
}

#[test]
fn tables_and_segments_have_a_size_that_is_compiled() {
    let growing = |tables: usize| {
        let tables = "(table 1 funcref)".repeat(tables);
        format!(
            r#"(module {tables}
            (func (export "f") (drop (table.grow 0 (ref.null func) (i32.const 1)))
                (table.set 1 (i32.const 0) (ref.null func))))"#
        )
    };
    let (_, image) = unit(&bytes(&growing(2)), &export("f")).expect("a module that compiles");
    assert_eq!(image.pages_behind, 5, "four for the one that grows, one for the other");
    let all = "(drop (table.grow $t (ref.null func) (i32.const 1)))";
    let many: String = (0..17).map(|t| all.replace("$t", &t.to_string())).collect();
    let text = format!(r#"(module {} (func (export "f") {many}))"#, "(table 1 funcref)".repeat(17));
    assert_eq!(codes(&text), ["table_size"]);
}

#[test]
fn an_entry_must_be_there_and_of_its_type() {
    let text = r#"(module (func (export "on_packet") (param i32)))"#;
    assert_eq!(codes(text), ["no_entry"]);
    assert_eq!(refusals(text, &packet(64))[0].code(), "entry_type");
    let parameters = "(param i32)".repeat(17);
    let many = format!(r#"(module (func (export "f") {parameters}))"#);
    assert_eq!(codes(&many), ["signature"]);
}

#[test]
fn segments_and_memories_must_fit() {
    let cases = [
        (r#"(module (func $s) (start $s) (func (export "f")))"#, "start_function"),
        (r#"(module (memory 1) (data (i32.const 65535) "ab") (func (export "f")))"#, "segment"),
        (
            r#"(module (table 1 funcref) (elem (i32.const 1) $g) (func $g) (func (export "f")))"#,
            "segment",
        ),
        (r#"(module (memory 17) (func (export "f")))"#, "memory_size"),
        (r#"(module (table 70000 funcref) (func (export "f")))"#, "table_size"),
    ];
    for (text, expected) in cases {
        assert_eq!(codes(text), [expected], "{text}");
    }
}

#[test]
fn large_functions_end_in_a_reason() {
    let body = "(drop (i32.const 1))".repeat(100_001);
    let text = format!(r#"(module (func (export "f") {body}))"#);
    assert_eq!(codes(&text), ["too_large"]);
    let locals = "i32 ".repeat(10_001);
    let text = format!(r#"(module (func (export "f") (local {locals})))"#);
    assert_eq!(codes(&text), ["too_large"]);
}

#[test]
fn a_deep_chain_of_large_functions_is_flattened_or_refused() {
    // Each is called twice and too large to be copied: it stays a function.
    let body =
        "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))".repeat(900);
    let chain = |length: usize| {
        let functions: String = (0..length)
            .map(|index| {
                let next = index + 1;
                format!("(func $f{index} {body} (call $f{next}) (call $f{next}))")
            })
            .collect();
        let text = format!(
            r#"(module (memory 1) (func (export "f") (call $f0) (call $f0)) {functions} (func $f{length} {body}))"#
        );
        unit(&bytes(&text), &export("f"))
    };
    let (flat, _) = chain(6).expect("seven calls deep");
    assert_eq!(flat.functions.len(), 8);
    let (flat, _) = chain(7).expect("the eighth is inlined");
    assert_eq!(flat.functions.len(), 8);
    let refusals = chain(14).expect_err("too deep");
    assert_eq!(refusals[0].code(), "call_depth");
}

#[test]
fn a_refusal_survives_serde() {
    let refusal = refusals(r#"(module (func (export "g")))"#, &export("f")).remove(0);
    let text = toml::to_string(&refusal).expect("it can be written");
    assert_eq!(toml::from_str::<Refusal>(&text).expect("it can be read"), refusal);
}
