//! Tests of references, tables that change and passive segments: the results of their operators,
//! before the passes and after them.

use super::{bytes, export, run};
use crate::interpret::Machine;
use crate::{TrapCode, unit};

/// Returns a module with a table of four elements (0: `$one`, 1: `$two`, 2: another type) and a
/// maximum of six.
fn module(parameters: &str, body: &str) -> String {
    format!(
        r#"(module (memory 1) (table $t 4 6 funcref) (table $host 2 externref)
        (type $number (func (result i32)))
        (func $one (type $number) (i32.const 1)) (func $two (type $number) (i32.const 2))
        (func $three (type $number) (i32.const 3)) (func $other (param i64))
        (elem (table $t) (i32.const 0) func $one $two $other)
        (elem $passive funcref (ref.func $three) (ref.null func) (ref.func $one))
        (data $bytes "abcdefgh") (data (i32.const 0) "xyz")
        (global $kept (mut funcref) (ref.func $two))
        (func $grown (export "grow") (param $by i32) (result i32)
            (table.grow $t (ref.func $two) (local.get $by)))
        (func (export "f") {parameters} (result i32) {body}))"#
    )
}

fn call(body: &str, arguments: &[u64]) -> Result<Vec<u64>, TrapCode> {
    run(&module("(param $i i32) (param $j i32) (param $n i32)", body), "f", arguments)
}

/// Calls through the indices 0 to 3: each one's number, 8 for a null reference.
const ALL: &str = r#"(local $at i32) (local $sum i32)
    (block $end (loop $next
        (br_if $end (i32.ge_u (local.get $at) (table.size $t)))
        (local.set $sum (i32.mul (local.get $sum) (i32.const 10)))
        (local.set $sum (i32.add (local.get $sum) (if (result i32)
            (ref.is_null (table.get $t (local.get $at)))
            (then (i32.const 8))
            (else (call_indirect $t (type $number) (local.get $at))))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next)))
    (local.get $sum)"#;

#[test]
fn an_indirect_call_goes_to_its_table_entry_or_traps_with_the_reason() {
    let body = "(call_indirect $t (type $number) (local.get $i))";
    let results = [
        Ok(vec![1]),
        Ok(vec![2]),
        Err(TrapCode::WrongSignature),
        Err(TrapCode::NullFunction),
        Err(TrapCode::TableOutOfBounds),
    ];
    for (index, expected) in (0..).zip(results) {
        assert_eq!(call(body, &[index, 0, 0]), expected, "place {index}");
    }
    let set = format!("(table.set $t (local.get $i) (ref.func $three)) {body}");
    assert_eq!(call(&set, &[3, 0, 0]), Ok(vec![3]));
    assert_eq!(call(&set, &[4, 0, 0]), Err(TrapCode::TableOutOfBounds));
    let global = format!("(table.set $t (local.get $i) (global.get $kept)) {body}");
    assert_eq!(call(&global, &[2, 0, 0]), Ok(vec![2]));
}

/// Runs an operator with destination, source and count, and returns all elements as a number.
fn moved(operator: &str, arguments: [u64; 3]) -> Result<Vec<u64>, TrapCode> {
    let locals = "(local.get $i) (local.get $j) (local.get $n)";
    let (declared, body) = ALL.split_at(ALL.find("(block").expect("a body"));
    let fixed = "(table.set $t (i32.const 2) (ref.func $three))";
    call(&format!("{declared} {fixed} ({operator} {locals}) {body}"), &arguments)
}

#[test]
fn ranges_are_copied_as_if_at_once_or_not_at_all() {
    let copy = "table.copy $t $t";
    assert_eq!(moved(copy, [1, 0, 3]), Ok(vec![1123]));
    assert_eq!(moved(copy, [0, 1, 3]), Ok(vec![2388]));
    assert_eq!(moved(copy, [4, 4, 0]), Ok(vec![1238]));
    assert_eq!(moved(copy, [5, 0, 0]), Err(TrapCode::TableOutOfBounds));
    assert_eq!(moved(copy, [2, 0, 3]), Err(TrapCode::TableOutOfBounds));
    assert_eq!(moved(copy, [0, u32::MAX.into(), 2]), Err(TrapCode::TableOutOfBounds));
    let init = "table.init $t $passive";
    assert_eq!(moved(init, [0, 0, 3]), Ok(vec![3818]));
    assert_eq!(moved(init, [0, 1, 3]), Err(TrapCode::TableOutOfBounds));
    let dropped = "elem.drop $passive) (table.init $t $passive";
    assert_eq!(moved(dropped, [0, 0, 0]), Ok(vec![1238]));
    assert_eq!(moved(dropped, [0, 0, 1]), Err(TrapCode::TableOutOfBounds));
}

#[test]
fn tables_are_filled_and_grow_as_far_as_they_may() {
    let fill = "(table.fill $t (local.get $i) (ref.func $three) (local.get $n))";
    let (declared, all) = ALL.split_at(ALL.find("(block").expect("a body"));
    let filled = |i, n| call(&format!("{declared} {fill} {all}"), &[i, 0, n]);
    assert_eq!(filled(0, 4), Ok(vec![3333]));
    assert_eq!(filled(1, 4), Err(TrapCode::TableOutOfBounds));
    let grown = |by| {
        let set = "(table.set $t (i32.const 2) (ref.func $three))";
        let grow = "(drop (call $grown (local.get $i)))";
        call(&format!("{declared} {set} {grow} {all}"), &[by, 0, 0])
    };
    assert_eq!(grown(0), Ok(vec![1238]));
    assert_eq!(grown(2), Ok(vec![123_822]));
    assert_eq!(grown(3), Ok(vec![1238]));
    let answer = "(call $grown (local.get $i))";
    assert_eq!(call(answer, &[2, 0, 0]), Ok(vec![4]));
    assert_eq!(call(answer, &[3, 0, 0]), Ok(vec![u64::from(u32::MAX)]));
    assert_eq!(call(answer, &[u32::MAX.into(), 0, 0]), Ok(vec![u64::from(u32::MAX)]));
}

#[test]
fn each_element_that_is_moved_costs_a_unit() {
    let fuel = |count| {
        let text = module(
            "",
            &format!(
                "(table.fill $t (i32.const 0) (ref.func $one) (i32.const {count})) (i32.const 0)"
            ),
        );
        let (unit, image) = unit(&bytes(&text), &export("f")).expect("a module that compiles");
        let mut machine = Machine::new(&unit, &image);
        let before = machine.fuel;
        machine.run(&[]).expect("no trap");
        before - machine.fuel
    };
    assert_eq!([0, 1, 4].map(fuel), [5, 6, 9]);
}

#[test]
fn passive_bytes_come_into_memory_until_they_are_dropped() {
    let init = "(memory.init $bytes (local.get $i) (local.get $j) (local.get $n))";
    let all = "(i32.load (i32.const 0))";
    let loaded = |arguments: [u64; 3]| call(&format!("{init} {all}"), &arguments);
    assert_eq!(loaded([1, 2, 3]), Ok(vec![u64::from(u32::from_le_bytes(*b"xcde"))]));
    assert_eq!(loaded([0, 4, 4]), Ok(vec![u64::from(u32::from_le_bytes(*b"efgh"))]));
    assert_eq!(loaded([0, 5, 4]), Err(TrapCode::OutOfBounds));
    assert_eq!(loaded([65_534, 0, 3]), Err(TrapCode::OutOfBounds));
    assert_eq!(loaded([65_536, 8, 0]), Ok(vec![u64::from(u32::from_le_bytes(*b"xyz\0"))]));
    let dropped = |n| call(&format!("(data.drop $bytes) {init} {all}"), &[0, 0, n]);
    assert_eq!(dropped(0), Ok(vec![u64::from(u32::from_le_bytes(*b"xyz\0"))]));
    assert_eq!(dropped(1), Err(TrapCode::OutOfBounds));
}

#[test]
fn references_go_through_locals_choices_and_tables() {
    let text = module(
        "(param $host externref) (param $way i32)",
        r#"(local $kept externref)
        (table.set $host (i32.const 1) (local.get $host))
        (local.set $kept (select (result externref) (table.get $host (i32.const 1))
            (ref.null extern) (local.get $way)))
        (ref.is_null (local.get $kept))"#,
    );
    assert_eq!(run(&text, "f", &[7, 1]), Ok(vec![0]));
    assert_eq!(run(&text, "f", &[7, 0]), Ok(vec![1]));
    assert_eq!(run(&text, "f", &[0, 1]), Ok(vec![1]));
    // A table that never changes is known while compiling.
    let text = r#"(module (table 3 funcref) (elem (i32.const 1) $g) (func $g)
        (func (export "f") (param i32) (result i32)
            (ref.is_null (table.get (local.get 0)))))"#;
    assert_eq!([0, 1, 2].map(|at| run(text, "f", &[at])), [Ok(vec![1]), Ok(vec![0]), Ok(vec![1])]);
    assert_eq!(run(text, "f", &[3]), Err(TrapCode::TableOutOfBounds));
}
