//! Tests of control flow, memory, calls, traps and fuel, each by an example.

use super::{bytes, export, plain, run};
use crate::interpret::Machine;
use crate::ir::{BinaryOp, Op, Type};
use crate::{TrapCode, compile, unit};

#[test]
fn a_loop_sums_up() {
    let text = r#"(module (func (export "sum") (param $n i32) (result i64)
        (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (local.get $sum) (i64.extend_i32_u (local.get $n))))
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (local.get $sum)))"#;
    assert_eq!(run(text, "sum", &[10]), Ok(vec![55]));
    assert_eq!(run(text, "sum", &[1]), Ok(vec![1]));
}

#[test]
fn branches_carry_values() {
    let text = r#"(module (func (export "pick") (param i32) (result i32 i32)
        (block $out (result i32 i32)
            (block $two (block $one (block $zero
                (br_table $zero $one $two (local.get 0)))
                (br $out (i32.const 10) (i32.const 11)))
                (br $out (i32.const 20) (i32.const 21)))
            (if (result i32 i32) (i32.eqz (i32.sub (local.get 0) (i32.const 2)))
                (then (i32.const 30) (i32.const 31))
                (else (i32.const 40) (i32.const 41)))
            (i32.const 1) (i32.add)
        )))"#;
    assert_eq!(run(text, "pick", &[0]), Ok(vec![10, 11]));
    assert_eq!(run(text, "pick", &[1]), Ok(vec![20, 21]));
    assert_eq!(run(text, "pick", &[2]), Ok(vec![30, 32]));
    assert_eq!(run(text, "pick", &[9]), Ok(vec![40, 42]));
}

#[test]
fn divisions_trap() {
    let text = r#"(module
        (func (export "div") (param i32 i32) (result i32)
            (i32.div_s (local.get 0) (local.get 1)))
        (func (export "rem") (param i64 i64) (result i64)
            (i64.rem_s (local.get 0) (local.get 1))))"#;
    assert_eq!(run(text, "div", &[0xffff_fff9, 2]), Ok(vec![0xffff_fffd]));
    assert_eq!(run(text, "div", &[1, 0]), Err(TrapCode::DivisionByZero));
    assert_eq!(run(text, "div", &[1 << 31, 0xffff_ffff]), Err(TrapCode::IntegerOverflow));
    assert_eq!(run(text, "rem", &[1 << 63, u64::MAX]), Ok(vec![0]));
    assert_eq!(run(text, "rem", &[1, 0]), Err(TrapCode::DivisionByZero));
}

#[test]
fn memory_traps_beyond_its_end() {
    let text = r#"(module (memory 1) (data (i32.const 65528) "\01\02\03\04\05\06\07\08")
        (func (export "load") (param i32) (result i64) (i64.load offset=8 (local.get 0)))
        (func (export "signed") (result i32) (i32.load8_s (i32.const 65535)))
        (func (export "grow") (result i32)
            (drop (memory.grow (i32.const 1)))
            (i32.store (i32.const 65536) (i32.const 5))
            (i32.add (memory.size) (i32.load (i32.const 65536)))))"#;
    assert_eq!(run(text, "load", &[65_520]), Ok(vec![0x0807_0605_0403_0201]));
    assert_eq!(run(text, "load", &[65_521]), Err(TrapCode::OutOfBounds));
    assert_eq!(run(text, "load", &[0xffff_fff8]), Err(TrapCode::OutOfBounds));
    assert_eq!(run(text, "signed", &[]), Ok(vec![8]));
    assert_eq!(run(text, "grow", &[]), Ok(vec![7]));
}

#[test]
fn indirect_calls_go_where_the_table_says() {
    let text = r#"(module
        (type $one (func (param i32) (result i32)))
        (table 5 funcref)
        (elem (i32.const 0) $double $square)
        (elem (i32.const 3) $other $double)
        (func $double (param i32) (result i32) (i32.mul (local.get 0) (i32.const 2)))
        (func $square (param i32) (result i32) (i32.mul (local.get 0) (local.get 0)))
        (func $other (param i64))
        (func (export "call") (param i32 i32) (result i32)
            (call_indirect (type $one) (local.get 1) (local.get 0))))"#;
    assert_eq!(run(text, "call", &[0, 7]), Ok(vec![14]));
    assert_eq!(run(text, "call", &[1, 7]), Ok(vec![49]));
    assert_eq!(run(text, "call", &[4, 7]), Ok(vec![14]));
    assert_eq!(run(text, "call", &[2, 7]), Err(TrapCode::NullFunction));
    assert_eq!(run(text, "call", &[3, 7]), Err(TrapCode::WrongSignature));
    assert_eq!(run(text, "call", &[5, 7]), Err(TrapCode::TableOutOfBounds));
    assert_eq!(run(text, "call", &[0xffff_ffff, 7]), Err(TrapCode::TableOutOfBounds));
}

#[test]
fn fuel_is_one_for_each_operator() {
    let text = r#"(module (func (export "f") (param $n i32)
        (loop $next
            (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
        (nop)
        (drop (i32.const 1))))"#;
    let bytes = bytes(text);
    for (unit, image) in [plain(&bytes, &export("f")), unit(&bytes, &export("f")).unwrap()] {
        let mut machine = Machine::new(&unit, &image);
        machine.fuel = 1_000;
        assert_eq!(machine.run(&[10]), Ok(vec![]));
        assert_eq!(machine.fuel, 1_000 - 2 - 10 * 5);
        let mut machine = Machine::new(&unit, &image);
        machine.fuel = 20;
        assert_eq!(machine.run(&[10]), Err(TrapCode::OutOfFuel));
    }
}

#[test]
fn code_that_cannot_be_reached_is_left_out() {
    let text = r#"(module (func (export "f") (param i32) (result i32)
        (block $b (result i32)
            (br $b (i32.const 3))
            (loop (result i32) (if (result i32) (i32.const 1)
                (then (unreachable)) (else (br 1 ))) )
            (i32.add (i32.const 1)))
        (if (local.get 0) (then (return (i32.const 4)) (drop)))
        ))"#;
    assert_eq!(run(text, "f", &[0]), Ok(vec![3]));
    assert_eq!(run(text, "f", &[1]), Ok(vec![4]));
}

#[test]
fn a_loop_with_a_small_known_cost_has_no_fuel_check() {
    // 11 operators per iteration: 5,000 iterations cost less than every budget, 9,000 do not.
    let rounds = |rounds: u32, begin: &str| {
        let text = format!(
            "(module (memory 1) (func (export \"f\") (param i32) (result i32)
                (local $i i32) (local $s i32)
                (local.set $i {begin})
                (loop $next
                    (local.set $s (i32.add (local.get $s) (local.get $i)))
                    (br_if $next (i32.ne (i32.const {rounds})
                        (local.tee $i (i32.add (local.get $i) (i32.const 1))))))
                (local.get $s)))"
        );
        let sum: u32 = (0..rounds).fold(0, u32::wrapping_add);
        assert_eq!(run(&text, "f", &[0]), Ok(vec![u64::from(sum)]));
        let (unit, _) = unit(&bytes(&text), &export("f")).expect("a module that compiles");
        let instructions = unit.functions[0].blocks.iter().flat_map(|block| &block.instructions);
        instructions.filter(|found| matches!(found.op, Op::TrapIf(_, TrapCode::OutOfFuel))).count()
    };
    assert_eq!(rounds(5_000, "(i32.const 0)"), 0);
    assert_eq!(rounds(9_000, "(i32.const 0)"), 1, "it is written twice, and asked once");
    assert_eq!(rounds(5_000, "(local.get 0)"), 2, "it may begin behind the end");
}

/// Compiles a counting loop with an exit in its middle when a byte of the memory is the argument.
/// Returns the number of values that its header passes on, and whether it accumulates its cost.
fn sums_up(begin: &str, step: i32, go_on: &str) -> (usize, bool) {
    let text = format!(
        "(module (memory 1) (data (i32.const 0) \"\\01\\02\\03\\04\\05\\06\\07\\08\\09\\0a\\0b\")
          (func (export \"f\") (param $end i32) (result i32)
            (local $i i32) (local $s i32)
            (local.set $i {begin})
            (block $out
                (loop $next
                    (local.set $s (i32.add (local.get $s) (i32.const 3)))
                    (br_if $out (i32.eq (local.get $end)
                        (i32.load8_u (i32.and (local.get $i) (i32.const 15)))))
                    (br_if $next ({go_on}
                        (local.tee $i (i32.add (local.get $i) (i32.const {step}))))))
                (local.set $s (i32.add (local.get $s) (i32.const 1000))))
            (local.get $s)))"
    );
    // The cost is the same before and after the passes, at any exit.
    for end in 0..16 {
        assert!(run(&text, "f", &[end]).is_ok());
    }
    let (unit, _) = unit(&bytes(&text), &export("f")).expect("a module that compiles");
    let blocks = || unit.functions[0].blocks.iter();
    let header = blocks().find(|block| block.is_loop_header).expect("a loop");
    let inside = blocks().filter(|block| block.loop_depth > 0);
    let mut results = inside.flat_map(|block| &block.instructions).filter_map(|instruction| {
        let result = instruction.results.first()?;
        let is_sum = matches!(instruction.op, Op::Binary(BinaryOp::Sub | BinaryOp::Add, ..));
        is_sum.then(|| unit.functions[0].types[result.0 as usize])
    });
    (header.parameters.len(), results.any(|ty| ty == Type::I64))
}

#[test]
fn the_fuel_of_a_counted_loop_is_charged_once_after_it() {
    let cases = [
        ("(i32.const 0)", 1, "i32.ne (i32.const 9)"),
        ("(i32.const 2)", 3, "i32.ne (i32.const 11)"),
        ("(i32.const 0)", 7, "i32.gt_u (i32.const 80)"),
        ("(i32.const 9)", -1, "i32.ne (i32.const 0)"),
        ("(i32.const -29)", 1, "i32.ne (i32.const -20)"),
        ("(i32.const -40)", 4, "i32.ne (i32.const -20)"),
        ("(i32.and (local.get $end) (i32.const 3))", 1, "i32.gt_u (i32.const 9)"),
    ];
    for (begin, step, go_on) in cases {
        assert_eq!(sums_up(begin, step, go_on), (2, false), "{begin} by {step} while {go_on}");
    }
    // It may iterate too often for an unchecked budget.
    let (_, adds) = sums_up("(i32.const 0)", 1, "i32.ne (i32.const 200000)");
    assert!(adds, "each round is asked for its fuel");
}

/// Compiles a function that sets that many flags in sequence and then tests them; returns the
/// number that the passes hide from the verifier.
fn hidden_flags(flags: u32) -> usize {
    let set = |flag: u32| {
        format!(
            "(if (i32.load8_u (i32.const {flag})) (then
                (i32.store8 (i32.const {}) (i32.const 1))
                (local.set $x (i32.add (local.get $x) (i32.const 1)))))",
            100 + flag
        )
    };
    let body: String = (0..flags).map(set).collect();
    let text = format!(
        "(module (memory 1) (func (export \"f\") (result i32) (local $x i32)
            {body}
            (if (i32.eq (local.get $x) (i32.const 2)) (then (return (i32.const 7))))
            (local.get $x)))"
    );
    let (unit, _) = unit(&bytes(&text), &export("f")).expect("a module that compiles");
    let blocks = unit.functions.iter().flat_map(|function| &function.blocks);
    let operations = blocks.flat_map(|block| &block.instructions);
    operations.filter(|instruction| matches!(instruction.op, Op::Opaque(_))).count()
}

#[test]
fn as_many_flags_are_left_to_the_verifier_as_it_can_walk() {
    assert_eq!(hidden_flags(4), 0);
    // More than 2^12 paths through hundreds of instructions are too many.
    for flags in [24, 60] {
        let left = flags as usize - hidden_flags(flags);
        assert!((1..=12).contains(&left), "{left} of {flags} flags are left");
    }
}

#[test]
fn a_loop_counter_that_begins_as_a_sign_is_made_opaque_before_its_loop() {
    let text = r#"(module (func (export "f") (param i32) (result i32) (local $i i32) (local $s i32)
        (local.set $i (i32.or (i32.shr_s (local.get 0) (i32.const 31)) (i32.const 1)))
        (loop $next
            (local.set $s (i32.add (i32.mul (local.get $s) (i32.const 3)) (local.get $i)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $next (i32.lt_s (local.get $i) (i32.const 3))))
        (local.get $s)))"#;
    assert_eq!(run(text, "f", &[0]), Ok(vec![5]));
    let (unit, _) = unit(&bytes(text), &export("f")).expect("a module that compiles");
    let instructions = unit.functions[0].blocks.iter().flat_map(|block| &block.instructions);
    let hidden = instructions.filter(|found| matches!(found.op, Op::Opaque(_))).count();
    assert_eq!(hidden, 2, "the counter and the sum");
}

/// Compiles a function of one expression with an `i32` parameter; returns the number of values
/// hidden in it, and of masks that go to the register of the other operand.
fn masks_in(expression: &str) -> (usize, usize) {
    let text =
        format!("(module (memory 1) (func (export \"f\") (param i32) (result i32) {expression}))");
    let (unit, _) = unit(&bytes(&text), &export("f")).expect("a module that compiles");
    let instructions = unit.functions[0].blocks.iter().flat_map(|block| &block.instructions);
    let hidden = instructions.filter(|found| matches!(found.op, Op::Opaque(_))).count();
    let program = compile(&bytes(&text), &export("f")).expect("a module that compiles");
    let by_number = |word: &&u64| matches!(**word & 0xff, 0x44 | 0x47 | 0x54 | 0x57);
    (hidden, program.instructions.iter().filter(by_number).count())
}

#[test]
fn no_mask_is_applied_to_a_value_that_may_be_known_as_minus_one_or_zero() {
    for expression in [
        "(i32.and (i32.shr_s (local.get 0) (i32.const 31)) (i32.const 40))",
        "(i32.or (i32.const 40) (i32.shr_s (local.get 0) (i32.const 31)))",
        "(i32.and (i32.sub (i32.const 0) (i32.lt_s (local.get 0) (i32.const 9))) (i32.const 6))",
        "(i32.wrap_i64 (i64.and (i64.const 40)
            (i64.extend_i32_u (i32.shr_s (local.get 0) (i32.const 31)))))",
        // A shift count needs no mask.
        "(i32.shl (local.get 0) (i32.shr_s (local.get 0) (i32.const 31)))",
        "(i32.rotl (local.get 0) (i32.lt_s (local.get 0) (i32.const 9)))",
        // Known on one path, from the comparison.
        "(if (result i32) (i32.gt_s (local.get 0) (i32.const -2))
            (then (if (result i32) (i32.lt_s (local.get 0) (i32.const 1))
                (then (i32.and (local.get 0) (i32.const 40))) (else (i32.const 2))))
            (else (i32.const 1)))",
        // The verifier links the sum to the number.
        "(if (result i32) (i32.lt_u (i32.add (local.get 0) (i32.const 1)) (i32.const 2))
            (then (i32.and (local.get 0) (i32.const 40))) (else (i32.const 1)))",
        "(i32.and (i32.shr_s (local.get 0) (i32.const 31)) (i32.load (i32.const 9)))",
        "(i32.and (i32.load (i32.const 9)) (i32.shr_s (local.get 0) (i32.const 31)))",
    ] {
        assert_eq!(masks_in(expression), (0, 0), "{expression}");
    }
    let upper = |limits: &[u32]| {
        let ask = |limit: &u32| {
            format!(
                "(if (i32.lt_u (local.get 0) (i32.const {limit})) (then (return (i32.const 3))))"
            )
        };
        let asks: String = limits.iter().map(ask).collect();
        format!(
            "(local.set 0 (i32.load8_u (local.get 0))) {asks}
            (i32.and (i32.sub (i32.const 64) (local.get 0))
                (i32.sub (local.get 0) (i32.const 91)))"
        )
    };
    // No range that it may know begins with 64 or ends with 65; with 90 and 91 it is the same.
    assert_eq!(masks_in(&upper(&[33, 58])), (0, 0));
    assert_eq!(masks_in(&upper(&[64, 33])), (0, 0));
    assert_eq!(masks_in(&upper(&[64, 91])), (1, 0));
    // Each may be the other one's mask.
    let both = "(i32.or (i32.shr_s (local.get 0) (i32.const 31))
        (i32.sub (i32.const 0) (i32.lt_s (local.get 0) (i32.const 9))))";
    assert_eq!(masks_in(both), (1, 0));
    for expression in [
        "(i32.and (i32.load8_u (local.get 0)) (i32.const 40))",
        "(i32.and (i32.load (local.get 0)) (i32.const 40))",
        "(i32.or (i32.lt_s (local.get 0) (i32.const 9)) (i32.const 4))",
        "(i32.and (i32.shr_u (i32.load (local.get 0)) (i32.const 3)) (i32.const 40))",
        "(i32.and (i32.shl (i32.load8_u (local.get 0)) (i32.const 30)) (i32.const -40))",
        "(i32.and (i32.sub (i32.load8_u (local.get 0)) (i32.load8_u (i32.const 9)))
            (i32.const 40))",
    ] {
        assert_eq!(masks_in(expression), (0, 1), "{expression}");
    }
}
