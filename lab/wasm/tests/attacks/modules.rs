//! Modules made to break a limit of the compiler, the verifier or the machine.
//!
//! All are packet modules as text. Unless they say otherwise, their behaviour depends on the
//! packet, so that nothing of it is known at compile time.

use std::fmt::Write;

/// Returns a packet module of these fields and this body of `on_packet`.
pub fn module(fields: &str, body: &str) -> String {
    format!(
        "(module (memory (export \"memory\") 1) {fields}\n\
         (func (export \"on_packet\") (result i32) (local $sum i32) {body}))"
    )
}

/// Returns code that loads a byte of the packet, another for each `n` up to 64.
fn byte(n: usize) -> String {
    format!("(i32.load8_u (i32.const {}))", 0x8102 + n % 64)
}

/// Returns code that adds a value to the checksum `$sum`.
fn add(value: &str) -> String {
    format!("(local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31)) {value}))")
}

/// Returns one function with `operators` operators in sequence.
pub fn straight(operators: usize) -> String {
    // One of these is seven.
    let body: String = (0..operators / 7).map(|n| add(&byte(n))).collect();
    module("", &format!("{body} (i32.and (local.get $sum) (i32.const 1))"))
}

/// Returns nested blocks, each with a branch out of all.
pub fn nested(depth: usize) -> String {
    let mut body = "(block $out ".to_owned();
    for n in 0..depth {
        // Writing to a string cannot fail.
        let _ = write!(body, "(block (br_if 0 {}) (br_if $out {})", byte(n), byte(n + 7));
    }
    body += &")".repeat(depth + 1);
    module("", &format!("{body} (i32.const 0)"))
}

/// Returns nested loops, each repeated while a bit of a computed value is set.
pub fn nested_loops(depth: usize) -> String {
    let mut body = String::new();
    for n in 0..depth {
        let _ = write!(body, "(loop {} ", add(&byte(n)));
    }
    for n in 0..depth {
        let _ = write!(body, "(br_if 0 (i32.and (local.get $sum) (i32.const {})))", 1 << (n % 31));
        body.push(')');
    }
    module("", &format!("{body} (i32.const 0)"))
}

/// Returns branches in sequence, each leaving another value in memory.
pub fn branches(count: usize) -> String {
    let one = |n: usize| {
        let at = 0x9000 + 4 * (n % 4096);
        format!("(if {} (then (i32.store (i32.const {at}) (i32.const {n}))))", byte(n))
    };
    module("", &((0..count).map(one).collect::<String>() + "(i32.const 0)"))
}

/// Returns flags that are set in different places and all tested at the end: two paths each.
pub fn flags(count: usize) -> String {
    let locals: String = (0..count).map(|n| format!("(local $f{n} i32)")).collect();
    let set = |n: usize| format!("(if {} (then (local.set $f{n} (i32.const 1))))", byte(n));
    let ask = |n: usize| format!("(if (local.get $f{n}) (then {}))", add(&byte(n + 1)));
    let body: String = (0..count).map(set).chain((0..count).map(ask)).collect();
    module("", &format!("{locals} {body} (i32.and (local.get $sum) (i32.const 1))"))
}

/// Returns a switch with `targets` targets.
pub fn switch(targets: usize) -> String {
    let mut body = "(block $end ".to_owned();
    body += &"(block ".repeat(targets);
    let table: String = (0..targets).map(|n| format!("{n} ")).collect();
    let _ = write!(body, "(br_table {table} (i32.load16_u (i32.const 0x8102)))");
    for n in 0..targets {
        let _ = write!(body, ") (local.set $sum (i32.const {n})) (br $end)");
    }
    body.push(')');
    module("", &format!("{body} (i32.store (i32.const 0x9000) (local.get $sum)) (i32.const 0)"))
}

/// Returns functions that are too large to be inlined, each calling the next one twice.
pub fn chain(depth: usize) -> String {
    let functions = functions(depth, 100, |n| {
        let next = n + 1;
        if next == depth {
            "(local.get 0)".to_owned()
        } else {
            format!("(i32.add (call $f{next} (local.get 0)) (call $f{next} (i32.const {n})))")
        }
    });
    module(&functions, &format!("(i32.and (call $f0 {}) (i32.const 1))", byte(0)))
}

/// Returns `count` functions, all called by one switch and again.
pub fn many_functions(count: usize) -> String {
    let functions = functions(count, 40, |_| "(local.get 0)".to_owned());
    let calls =
        |_| -> String { (0..count).map(|n| add(&format!("(call $f{n} {})", byte(n)))).collect() };
    let body: String = (0..2).map(calls).collect();
    module(&functions, &format!("{body} (i32.and (local.get $sum) (i32.const 1))"))
}

/// Returns numbered functions of `statements` statements of some seven operators, and then `last`.
fn functions(count: usize, statements: usize, last: impl Fn(usize) -> String) -> String {
    let one = |n: usize| {
        let work: String = (0..statements)
            .map(|k| {
                format!(
                    "(local.set 0 (i32.add (i32.mul (local.get 0) (i32.const {})) {}))",
                    2 * (n + k) + 3,
                    byte(k % 4)
                )
            })
            .collect();
        format!("(func $f{n} (param i32) (result i32) {work} {})", last(n))
    };
    (0..count).map(one).collect()
}

/// Returns `values` values that are all live across a call.
pub fn alive(values: usize) -> String {
    let locals: String = (0..values).map(|n| format!("(local $v{n} i32)")).collect();
    // All values differ, since equal ones would be merged.
    let value = |n: usize| format!("(i32.mul {} (i32.const {}))", byte(n), 2 * n + 3);
    let set: String = (0..values).map(|n| format!("(local.set $v{n} {})", value(n))).collect();
    let sum: String = (0..values).map(|n| add(&format!("(local.get $v{n})"))).collect();
    let call = add("(call $f0 (local.get $v0))") + &add("(call $f0 (local.get $v1))");
    let fields = functions(1, 100, |_| "(local.get 0)".to_owned());
    module(
        &fields,
        &format!("{locals} {set} {call} {sum} (i32.and (local.get $sum) (i32.const 1))"),
    )
}

/// Returns a table of `elements` elements, called through.
pub fn table(elements: usize, functions_in_it: usize) -> String {
    let functions = functions(functions_in_it, 100, |_| "(local.get 0)".to_owned());
    let list: String = (0..elements).map(|n| format!("$f{} ", n % functions_in_it)).collect();
    let fields = format!(
        "(type $t (func (param i32) (result i32))) (table {elements} funcref) (elem (i32.const 0) {list}) {functions}"
    );
    let call = format!("(call_indirect (type $t) {} (i32.load16_u (i32.const 0x8104)))", byte(0));
    module(&fields, &format!("(i32.and {call} (i32.const 1))"))
}

/// Bodies that never end.
pub const ENDLESS: [(&str, &str); 6] = [
    ("an empty loop", "(loop $l (br $l)) (i32.const 0)"),
    (
        "a loop that counts to 2^64",
        "(local $n i64) (loop $l (local.set $n (i64.add (local.get $n) (i64.const 1))) (br_if $l (i64.ne (local.get $n) (i64.const 0)))) (i32.const 0)",
    ),
    (
        "loops within loops",
        "(loop $a (loop $b (loop $c (br_if $c (i32.load8_u (i32.const 0x8102))) (br_if $b (i32.load8_u (i32.const 0x8103)))) ) (br $a)) (i32.const 0)",
    ),
    (
        "a loop over the memory",
        "(loop $l (local.set $sum (i32.and (i32.add (local.get $sum) (i32.const 4)) (i32.const 0xfffc))) (i32.store (local.get $sum) (i32.const 7)) (br $l)) (i32.const 0)",
    ),
    (
        "fills of the whole memory",
        "(loop $l (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br $l)) (i32.const 0)",
    ),
    ("a loop that calls", "(loop $l (call $work) (br $l)) (i32.const 0)"),
];

/// Function that the last of [`ENDLESS`] calls.
pub const WORK: &str = "(func $work (local $n i32) (loop $l (local.set $n (i32.add (local.get $n) (i32.const 1))) (br_if $l (i32.lt_u (local.get $n) (i32.const 100)))))";
