//! Packet entries: the regions of accesses, and the known facts about them. The interpreter panics
//! when an access lies elsewhere than its region says.

use proptest::prelude::*;

use super::{EXPIRE, bytes, packet, plain};
use crate::interpret::Machine;
use crate::ir::{Access, Op, Region, Unit};
use crate::unit;

const WINDOW: u32 = 64;

fn accesses(unit: &Unit) -> Vec<Access> {
    let blocks = unit.functions.iter().flat_map(|function| &function.blocks);
    blocks
        .flat_map(|block| &block.instructions)
        .filter_map(|instruction| match &instruction.op {
            Op::Load { access, .. } | Op::Store { access, .. } => Some(*access),
            _ => None,
        })
        .collect()
}

/// Returns the verdict on a packet with that TTL and header offset, and the counter.
fn expire(unit: &Unit, image: &crate::Image, l3: u16, window: u32, ttl: u8) -> (u64, u64) {
    let mut machine = Machine::new(unit, image);
    machine.window = Some((0x8102, 0x8102 + WINDOW));
    machine.memory[0x8004..0x8008].copy_from_slice(&window.to_le_bytes());
    machine.memory[0x8008..0x800a].copy_from_slice(&l3.to_le_bytes());
    machine.memory[0x800d] = 4;
    if u32::from(l3) + 8 < window {
        machine.memory[0x8102 + usize::from(l3) + 8] = ttl;
    }
    let verdict = machine.run(&[]).expect("no trap");
    let counter = &machine.memory[0x9000..0x9008];
    (verdict[0], u64::from_le_bytes(counter.try_into().expect("eight bytes")))
}

#[test]
fn the_example_drops_what_expires() {
    let bytes = bytes(EXPIRE);
    for (unit, image) in [plain(&bytes, &packet(WINDOW)), unit(&bytes, &packet(WINDOW)).unwrap()] {
        assert_eq!(expire(&unit, &image, 14, 34, 1), (0x7_0001, 1));
        assert_eq!(expire(&unit, &image, 14, 34, 64), (0, 0));
        assert_eq!(expire(&unit, &image, 0xffff, 34, 1), (0, 0));
        assert_eq!(expire(&unit, &image, 55, 64, 0), (0x7_0001, 1));
    }
}

#[test]
fn a_compared_offset_needs_no_other_check() {
    let (unit, _) = unit(&bytes(EXPIRE), &packet(WINDOW)).unwrap();
    let accesses = accesses(&unit);
    assert_eq!(accesses.len(), 6);
    for access in accesses {
        assert!(!access.bounds_check, "{access}");
        assert!(!matches!(access.region, Region::Unknown { .. }), "{access}");
    }
}

#[test]
fn an_offset_without_a_comparison_is_checked_at_run_time() {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "on_packet") (result i32)
            (i32.load8_u offset=0x8102 (i32.load16_u (i32.const 0x8008)))))"#;
    let (unit, _) = unit(&bytes(text), &packet(WINDOW)).unwrap();
    let accesses = accesses(&unit);
    assert_eq!(accesses[0].region, Region::Metadata);
    assert_eq!(accesses[1].region, Region::Unknown { below: false });
    assert!(accesses[1].bounds_check, "65,535 beyond 0x8102 is outside one page");
}

/// Returns a packet module with a stack, whose entry ends with `epilogue`.
fn with_stack(epilogue: &str) -> Vec<u8> {
    bytes(&format!(
        r#"(module (memory (export "memory") 1)
        (global $stack (mut i32) (i32.const 0x8000))
        (func (export "on_packet") (result i32)
            (local $frame i32)
            (global.set $stack
                (local.tee $frame (i32.sub (global.get $stack) (i32.const 16))))
            (i32.store offset=12 (local.get $frame) (call $other (local.get $frame)))
            {epilogue}
            (i32.load offset=12 (local.get $frame)))
        (func $other (param i32) (result i32)
            (i32.store offset=8 (local.get 0) (i32.const 7))
            (i32.const 9)))"#
    ))
}

fn ops(unit: &Unit) -> Vec<&Op> {
    let blocks = unit.functions.iter().flat_map(|function| &function.blocks);
    blocks.flat_map(|block| &block.instructions).map(|instruction| &instruction.op).collect()
}

#[test]
fn a_stack_that_is_kept_is_at_known_addresses() {
    let epilogue = "(global.set $stack (i32.add (local.get $frame) (i32.const 16)))";
    let (unit, image) = unit(&with_stack(epilogue), &packet(WINDOW)).unwrap();
    assert_eq!(unit.functions.len(), 1, "the callee is inlined");
    assert_eq!(accesses(&unit).len(), 2, "what was stored is not loaded");
    for access in accesses(&unit) {
        assert_eq!((access.region, access.bounds_check), (Region::Memory, false), "{access}");
    }
    let touches = |op: &&&Op| matches!(op, Op::GlobalGet(_) | Op::GlobalSet(..));
    assert_eq!(ops(&unit).iter().filter(touches).count(), 0);
    let mut machine = Machine::new(&unit, &image);
    assert_eq!(machine.run(&[]), Ok(vec![9]));
    assert_eq!(machine.memory[0x7ff8..0x8000], [7, 0, 0, 0, 9, 0, 0, 0]);
}

#[test]
fn accesses_by_a_sinking_stack_pointer_have_an_unknown_region() {
    let cases = [
        "",
        "(global.set $stack (i32.add (local.get $frame) (i32.const 8)))",
        "(if (i32.load (i32.const 0x9000)) (then
            (global.set $stack (i32.add (local.get $frame) (i32.const 16)))))",
    ];
    for epilogue in cases {
        let (unit, image) = unit(&with_stack(epilogue), &packet(WINDOW)).unwrap();
        let below = accesses(&unit).into_iter().filter(|access| access.offset != 0);
        for access in below {
            assert_eq!(access.region, Region::Unknown { below: true }, "{access}");
        }
        let mut machine = Machine::new(&unit, &image);
        machine.window = Some((0x8102, 0x8102 + WINDOW));
        assert_eq!(machine.run(&[]), Ok(vec![9]));
        assert_ne!(machine.globals[0], 0x8000, "{epilogue}");
    }
}

#[test]
fn the_same_bytes_give_the_same_code() {
    let bytes = bytes(EXPIRE);
    let once = unit(&bytes, &packet(64)).expect("it compiles").0.to_string();
    let twice = unit(&bytes, &packet(64)).expect("it compiles").0.to_string();
    assert_eq!(once, twice);
}

/// Compiles a loop over the window with a counter and an address of its own.
fn walk(begin: i64, compare: &str, end: &str) -> (Unit, crate::Image) {
    let text = format!(
        r#"(module (memory (export "memory") 1)
        (func (export "on_packet") (result i32)
            (local $i i32) (local $at i32) (local $sum i32) (local $length i32)
            (local.set $length (i32.load (i32.const 0x8004)))
            (if (i32.eqz (local.get $length)) (then (return (i32.const 0))))
            (local.set $i (i32.const {begin}))
            (local.set $at (i32.const 0x8102))
            (loop $next
                (local.set $sum (i32.add (local.get $sum) (i32.load8_u (local.get $at))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br_if $next ({compare} (local.tee $i
                    (i32.add (local.get $i) (i32.const 1))) {end})))
            (local.get $sum)))"#
    );
    unit(&bytes(&text), &packet(WINDOW)).expect("it compiles")
}

#[test]
fn a_counted_loop_stays_in_the_window() {
    let cases = [
        (0, "i32.ne", "(i32.const 64)", 64),
        (0, "i32.lt_u", "(i32.const 64)", 64),
        (1, "i32.ne", "(i32.const 64)", 63),
        (10, "i32.lt_u", "(i32.const 64)", 54),
        (0, "i32.le_u", "(i32.const 63)", 64),
        (0, "i32.lt_s", "(i32.const 64)", 64),
        (-64, "i32.ne", "(i32.const 0)", 64),
        (-30, "i32.ne", "(i32.const 34)", 64),
        // Known only at run time, and at most the window.
        (0, "i32.ne", "(local.get $length)", 60),
        (0, "i32.lt_u", "(local.get $length)", 60),
    ];
    for (begin, compare, end, rounds) in cases {
        let (unit, image) = walk(begin, compare, end);
        let accesses = accesses(&unit);
        let accesses: Vec<_> =
            accesses.into_iter().filter(|access| access.region != Region::Metadata).collect();
        assert_eq!(accesses.len(), 2, "a short loop is written twice");
        for access in accesses {
            assert_eq!(
                (access.region, access.bounds_check),
                (Region::Window, false),
                "{begin} {compare} {end}"
            );
        }
        let headers = unit.functions[0].blocks.iter().filter(|block| block.is_loop_header);
        assert_eq!(headers.count(), 1, "{compare}");
        let mut machine = Machine::new(&unit, &image);
        machine.window = Some((0x8102, 0x8102 + WINDOW));
        machine.memory[0x8102..0x8142].fill(1);
        (machine.memory[0x8000], machine.memory[0x8004]) = (60, 60);
        assert_eq!(machine.run(&[]), Ok(vec![rounds]), "{begin} {compare} {end}");
    }
}

/// Returns the known limit of iterations of a loop whose counter has that start, step and end, and
/// the actual number.
fn rounds(begin: i64, step: i64, end: i64) -> (Option<u64>, u64) {
    rounds_of("i32", begin, step, end)
}

fn rounds_of(ty: &str, begin: i64, step: i64, end: i64) -> (Option<u64>, u64) {
    let text = format!(
        r#"(module (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (local $i {ty}) (local $rounds i32)
            (local.set $i ({ty}.const {begin}))
            (loop $next
                (i32.store (i32.const 0x9000)
                    (local.tee $rounds (i32.add (local.get $rounds) (i32.const 1))))
                (br_if $next ({ty}.ne ({ty}.const {end})
                    (local.tee $i ({ty}.add (local.get $i) ({ty}.const {step}))))))
            (local.get $rounds)))"#
    );
    let (unit, image) = unit(&bytes(&text), &packet(WINDOW)).expect("it compiles");
    let headers = unit.functions[0].blocks.iter().filter(|block| block.is_loop_header);
    let most = headers.map(|header| header.rounds_max).min().flatten();
    let result = Machine::new(&unit, &image).run(&[]).expect("it ends");
    (most, result[0])
}

#[test]
fn a_counter_that_goes_past_zero_counts_rounds() {
    // A short loop is unrolled by two.
    assert_eq!(rounds(0, -1, -8), (Some(3), 8));
    assert_eq!(rounds(0, -1, -9), (Some(4), 9));
    assert_eq!(rounds(3, -2, -5), (Some(1), 4));
    assert_eq!(rounds(-3, 1, 5), (Some(3), 8));
    assert_eq!(rounds(-6, 3, 6), (Some(1), 4));
    assert_eq!(rounds(1, -1, 0), (None, 1), "no loop is left");
}

#[test]
fn a_counter_of_any_width_goes_round_as_often_as_it_is_written() {
    for ty in ["i32", "i64"] {
        for begin in -3..=3 {
            for step in [-65_537, -5, -2, -1, 1, 2, 5, 65_537] {
                for rounds in [1, 2, 3, 8, 14] {
                    let (_, counted) = rounds_of(ty, begin, step, begin + step * rounds);
                    assert_eq!(counted, rounds as u64, "{ty} from {begin} by {step}");
                }
            }
        }
    }
}

#[test]
fn a_loop_that_may_leave_the_window_is_checked_at_run_time() {
    let cases = [
        // One beyond the window; past the number; around all 32 bits.
        (-1, "i32.ne", "(i32.const 64)"),
        (65, "i32.ne", "(i32.const 64)"),
        (0, "i32.ge_u", "(i32.const 64)"),
        (0, "i32.le_u", "(i32.const 64)"),
        (-65, "i32.ne", "(i32.const 0)"),
        // The counter begins behind the number, or may.
        (1, "i32.ne", "(i32.const 0)"),
        (1, "i32.ne", "(local.get $length)"),
        (0, "i32.ne", "(i32.add (local.get $length) (i32.const 1))"),
        // Below zero there are many numbers.
        (-70, "i32.lt_s", "(i32.const 0)"),
    ];
    for (begin, compare, end) in cases {
        let (unit, _) = walk(begin, compare, end);
        let accesses = accesses(&unit);
        for access in accesses.into_iter().filter(|access| access.region != Region::Metadata) {
            assert_ne!(access.region, Region::Window, "{begin} {compare} {end}");
        }
    }
}

/// Compiles a loop whose offset grows by a number of the packet while it is below a limit, and that
/// stores.
fn hop(limit: &str, store: &str) -> (Unit, crate::Image) {
    let text = format!(
        r#"(module (memory (export "memory") 1)
        (func (export "on_packet") (result i32)
            (local $at i32) (local $sum i32) (local $step i32)
            (local.set $at (i32.const 20))
            (if (i32.lt_u (i32.load (i32.const 0x8004)) (i32.const 21))
                (then (return (i32.const 0))))
            (loop $next
                (local.set $step (i32.load8_u offset=0x8102 (local.get $at)))
                (local.set $sum (i32.add (local.get $sum) (local.get $step)))
                {store}
                (local.set $at (i32.add (local.get $at)
                    (i32.add (local.get $step) (i32.const 1))))
                (br_if $next (i32.lt_u (local.get $at) {limit})))
            (local.get $sum)))"#
    );
    unit(&bytes(&text), &packet(WINDOW)).expect("it compiles")
}

/// Returns true if all accesses except those of metadata and plain memory are certainly of the
/// window.
fn is_certain(unit: &Unit) -> bool {
    let others = [Region::Metadata, Region::Memory];
    let accesses = accesses(unit).into_iter().filter(|access| !others.contains(&access.region));
    let mut accesses = accesses.peekable();
    accesses.peek().is_some()
        && accesses.all(|access| access.region == Region::Window && !access.bounds_check)
}

const LENGTH: &str = "(i32.load (i32.const 0x8004))";

#[test]
fn an_offset_stays_below_the_limit_that_it_is_compared_with_each_time_round() {
    let store = "(i32.store8 offset=0x8102 (local.get $at) (i32.const 1))";
    for (limit, store) in [("(i32.const 64)", ""), ("(i32.const 64)", store), (LENGTH, "")] {
        let (unit, image) = hop(limit, store);
        assert!(is_certain(&unit), "{limit} {store}");
        let mut machine = Machine::new(&unit, &image);
        machine.window = Some((0x8102, 0x8102 + WINDOW));
        machine.memory[0x8102..0x8142].fill(2);
        (machine.memory[0x8000], machine.memory[0x8004]) = (64, 64);
        // The stores are at 20, 23, ... 62.
        assert_eq!(machine.run(&[]), Ok(vec![2 * 15]), "{limit} {store}");
    }
    assert!(!is_certain(&hop("(i32.const 65)", "").0), "one byte beyond the window");
}

#[test]
fn a_store_that_cannot_reach_the_metadata_keeps_the_known_length() {
    let cases = [
        ("(i32.store8 offset=0x8102 (local.get $at) (i32.const 1))", true),
        ("(i32.store8 (i32.load (i32.const 0x9000)) (i32.const 1))", false),
        // The metadata is in front of the window.
        (
            "(i32.store8 offset=0x8000 (i32.and (local.get $at) (i32.const 7)) (i32.const 255))",
            false,
        ),
    ];
    for (store, expected) in cases {
        assert_eq!(is_certain(&hop(LENGTH, store).0), expected, "{store}");
    }
}

/// Generates numbers at both ends of 32 bits.
fn edge() -> impl Strategy<Value = i32> {
    prop_oneof![-6..80_i32, 0x7ffe_i32..0x8150, Just(i32::MAX), Just(i32::MIN)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Tests loops with arbitrary counts and conditions: regions and removed checks are right, or
    /// the interpreter panics.
    #[test]
    fn random_loops_stay_within_the_computed_ranges(
        begin in edge(), other in edge(), end in edge(), end_2 in edge(),
        step in -3..9_i32, step_2 in -3..4_i32,
        compare in prop::sample::select(&["ne", "lt_u", "gt_u", "lt_s", "ge_s", "eq", "le_u"][..]),
        compare_2 in prop::sample::select(&["ne", "lt_u", "gt_u"][..]),
        asked in 0..4_usize, least in 0..9_u32, bound in 0..5_usize, stored in 0..4_usize,
        mask in prop::sample::select(&[7_u32, 0x3f, 0x7c, 0x78, 0x60][..]),
    ) {
        let byte = "(i32.load8_u (i32.const 0x8110))";
        // A number that the compiler knows, or of which it knows a range.
        let end = [
            format!("(i32.const {end})"),
            format!("(i32.add (i32.and {byte} (i32.const 7)) (i32.const {end}))"),
            format!("(i32.and {byte} (i32.const {mask}))"),
            format!("(i32.shl (i32.and {byte} (i32.const {mask})) (i32.const 2))"),
            "(i32.load (i32.const 0x8004))".to_owned(),
        ][bound].clone();
        let store = [
            "",
            "(i32.store8 (local.get $at) (local.get $sum))",
            "(i32.store8 offset=0x8102 (local.get $i) (local.get $sum))",
            "(i32.store8 offset=0x8100 (i32.and (local.get $i) (i32.const 0x3f)) (local.get $sum))
             (local.set $end (i32.load (i32.const 0x8004)))",
        ][stored];
        let what = [
            "(local.get $i)".to_owned(),
            "(i32.add (local.get $i) (i32.const 1))".to_owned(),
            "(i32.sub (local.get $i) (i32.const 1))".to_owned(),
            format!("(i32.add (local.get $i) (i32.const {step}))"),
        ][asked].clone();
        let text = format!(r#"(module (memory (export "memory") 1)
            (func (export "on_packet") (result i32)
            (local $i i32) (local $at i32) (local $sum i32) (local $left i32) (local $go i32)
            (local $end i32)
            (local.set $end {end})
            (if (i32.lt_u (local.get $end) (i32.const {least})) (then (return (i32.const 0))))
            (local.set $i (i32.const {begin}))
            (local.set $at (i32.const {other}))
            (local.set $left (i32.load (i32.const 0x9000)))
            (block $out
            (loop $next
                (local.set $sum (i32.add (local.get $sum) (i32.load8_u (local.get $at))))
                (local.set $sum (i32.add (local.get $sum)
                    (i32.load8_u offset=0x8100 (i32.and (local.get $i) (i32.const 0xffff)))))
                {store}
                (br_if $out (i32.eqz
                    (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                (local.set $go (i32.{compare} {what} (local.get $end)))
                (local.set $i (i32.add (local.get $i) (i32.const {step})))
                (if (i32.{compare_2} (local.get $at) (i32.const {end_2})) (then
                    (local.set $at (i32.add (local.get $at) (i32.const {step_2})))
                    (br_if $next (local.get $go))))))
            (local.get $sum)))"#);
        let bytes = bytes(&text);
        let both = [plain(&bytes, &packet(WINDOW)), unit(&bytes, &packet(WINDOW)).unwrap()];
        let results = both.map(|(unit, image)| {
            let mut machine = Machine::new(&unit, &image);
            machine.window = Some((0x8102, 0x8102 + WINDOW));
            machine.memory[0x9000] = 200;
            for (index, byte) in machine.memory[..0x9000].iter_mut().enumerate() {
                *byte = index as u8 ^ (index >> 8) as u8;
            }
            // Lengths as the node guarantees them.
            machine.memory[0x8000..0x8008].copy_from_slice(&[60, 0, 0, 0, 60, 0, 0, 0]);
            let result = machine.run(&[]);
            (result.is_ok().then_some(machine.fuel), result, machine.memory)
        });
        prop_assert_eq!(&results[0], &results[1]);
    }
}

/// Returns true if the program of a module with this body pads short packets.
fn pads(body: &str) -> bool {
    const XDP_ADJUST_TAIL: u64 = 65;
    const CALL: u64 = 0x85;
    let text = format!(
        r#"(module (memory (export "memory") 1)
          (func (export "on_packet") (result i32) {body}))"#
    );
    let program = crate::compile(&bytes(&text), &packet(WINDOW)).expect("a module that compiles");
    program.instructions.contains(&(CALL | XDP_ADJUST_TAIL << 32))
}

#[test]
fn a_packet_is_made_longer_unless_the_module_asks_first() {
    // The word at 4 in the metadata is the window's length, the window begins at 0x8102.
    let ask = |least: u32| {
        format!(
            "(if (i32.lt_u (i32.load (i32.const 0x8004)) (i32.const {least}))
               (then (return (i32.const 1))))"
        )
    };
    let read = |at: u32| format!("(i32.load8_u (i32.const {}))", 0x8102 + at);
    let drop_if = |value: String| format!("(i32.eq {value} (i32.const 6))");
    assert!(pads(&drop_if(read(23))), "nobody asks");
    assert!(!pads(&(ask(24) + &drop_if(read(23)))));
    assert!(pads(&(ask(23) + &drop_if(read(23)))), "a byte too few");
    let two = format!(
        "{} (if (i32.eq {} (i32.const 6)) (then {} (return (i32.eq {} (i32.const 7)))))
         (i32.const 0)",
        ask(24),
        read(23),
        ask(40),
        read(39)
    );
    assert!(!pads(&two), "each access is behind a question of its own");
    let written = "(i32.store (i32.const 0x8004) (i32.const 64))";
    assert!(pads(&format!("{written} {} {}", ask(24), drop_if(read(23)))), "not the front door's");
}

/// Counts the instructions of a module with this body that have that opcode and immediate.
fn count(body: &str, code: u64, immediate: u64) -> usize {
    let text = format!(
        r#"(module (memory (export "memory") 1)
          (func (export "on_packet") (result i32) (local $at i32) (local $sum i32) {body}))"#
    );
    let program = crate::compile(&bytes(&text), &packet(WINDOW)).expect("a module that compiles");
    let is = |word: &&u64| **word & 0xff == code && **word >> 32 == immediate;
    program.instructions.iter().filter(is).count()
}

/// `r &= 4095`, which shows the verifier that an offset in the packet is small.
const MASK: (u64, u64) = (0x57, 0xfff);

#[test]
fn accesses_of_one_address_have_one_pointer_as_long_as_they_go_forward() {
    let at = "(local.set $at (i32.and (i32.load (i32.const 0x9000)) (i32.const 31)))";
    let masks = |offsets: [u32; 3]| {
        let [a, b, c] = offsets
            .map(|offset| format!("(i32.load8_u offset={} (local.get $at))", 0x8102 + offset));
        let then = format!("(then (local.set $sum (i32.mul {b} {c})))");
        let body = format!("{at} (if (i32.eq {a} (i32.const 9)) {then}) (local.get $sum)");
        count(&body, MASK.0, MASK.1)
    };
    assert_eq!(masks([0, 1, 2]), 1);
    assert_eq!(masks([4, 4, 7]), 1);
    // A pointer found beyond the packet must not be made smaller.
    assert_eq!(masks([2, 1, 0]), 3);
    assert_eq!(masks([1, 2, 0]), 2);
}

#[test]
fn an_address_that_may_be_a_sign_is_masked_and_not_hidden() {
    let (unit, _) = hop("(i32.const 64)", "");
    let blocks = || unit.functions[0].blocks.iter();
    let hides = |op: &Op| matches!(op, Op::Opaque(_));
    let inside = blocks().filter(|block| block.loop_depth > 0);
    let inside = inside.flat_map(|block| &block.instructions);
    assert_eq!(inside.filter(|instruction| hides(&instruction.op)).count(), 0);
    let all = blocks().flat_map(|block| &block.instructions);
    assert!(all.filter(|instruction| hides(&instruction.op)).count() > 0, "on the way in");
}

/// Counts the casts of addresses to arena pointers in a loop that counts up to zero, as LLVM emits
/// it, and adds these numbers to the counter for addresses.
fn casts(numbers: [u32; 3]) -> usize {
    let [a, b, c] = numbers
        .map(|number| format!("(i32.load8_u (i32.add (local.get $at) (i32.const {number})))"));
    let body = format!(
        "(local.set $at (i32.const -96))
         (loop $next
            (local.set $sum (i32.add (local.get $sum) (i32.mul {a} (i32.mul {b} {c}))))
            (br_if $next (local.tee $at (i32.add (local.get $at) (i32.const 8)))))
         (local.get $sum)"
    );
    let cast = 0xbf | 1 << 16 | 1 << 32;
    let text = format!(
        r#"(module (memory (export "memory") 1)
          (func (export "on_packet") (result i32) (local $at i32) (local $sum i32) {body}))"#
    );
    let program = crate::compile(&bytes(&text), &packet(WINDOW)).expect("a module that compiles");
    program.instructions.iter().filter(|&&word| word & !0xff00 == cast).count()
}

#[test]
fn nearby_constant_addresses_share_one_base() {
    assert_eq!(casts([0x9200, 0x9204, 0x9206]), 1);
    // Farther apart than an instruction's offset reaches; the loop is unrolled by two.
    assert_eq!(casts([0x7000, 0x9204, 0x9206]), 3);
    // The addresses begin below the rest of the number: the sum with the rest wraps.
    assert_eq!(casts([0x7000, 0x7100, 0x7200]), 6);
}

/// Compiles a module that checks whether the window extends `bytes` beyond an address before it
/// reads there, at some offsets. Returns the number of checks of the packet's length itself, and of
/// comparisons of two registers.
fn asked(at: &str, bytes_asked: i32, offsets: &[u32]) -> (usize, usize) {
    let reads: String = offsets
        .iter()
        .map(|offset| {
            let read = format!("(i32.load8_u offset={} (local.get $at))", 0x8102 + offset);
            format!("(local.set $sum (i32.add (local.get $sum) {read}))")
        })
        .collect();
    let text = format!(
        r#"(module (memory (export "memory") 1)
          (func (export "on_packet") (result i32) (local $at i32) (local $sum i32)
            (local.set $at {at})
            (if (i32.gt_u (i32.add (local.get $at) (i32.const {bytes_asked}))
                          (i32.load (i32.const 0x8004)))
                (then (return (i32.const 0))))
            {reads}
            (i32.eq (local.get $sum) (i32.const 77))))"#
    );
    let bytes = bytes(&text);
    let (unit, _) = unit(&bytes, &packet(WINDOW)).expect("a module that compiles");
    let lengths = ops(&unit).iter().filter(|op| matches!(op, Op::PacketLength)).count();
    let program = crate::compile(&bytes, &packet(WINDOW)).expect("a module that compiles");
    // `if r > r`, `if r <= r`, of 64 bits.
    let compares =
        program.instructions.iter().filter(|&word| [0x2d, 0xbd].contains(&(word & 0xff)));
    (lengths, compares.count())
}

#[test]
fn a_length_check_of_the_module_is_not_repeated() {
    let at = "(i32.and (i32.load (i32.const 0x9000)) (i32.const 31))";
    assert_eq!(asked(at, 8, &[0, 3, 7]), (1, 1), "the module's question is the only one");
    let (lengths, compares) = asked(at, 8, &[0, 8]);
    assert!(lengths == 1 && compares > 1, "a byte beyond what was asked for");
    let (lengths, compares) = asked(at, 0, &[0]);
    assert!(lengths == 1 && compares > 1, "nothing was asked for");
}

#[test]
fn a_length_check_that_may_reach_beyond_the_window_is_left_unchanged() {
    // 31 + 33 is the window's length, and one more is not in it, though it may be in the packet.
    let at = "(i32.and (i32.load (i32.const 0x9000)) (i32.const 31))";
    assert_eq!(asked(at, 33, &[0]).0, 1);
    assert_eq!(asked(at, 34, &[0]).0, 0);
    // A sum that wraps is small, and the address is not; nor is a number below zero an offset.
    assert_eq!(asked("(i32.load (i32.const 0x9000))", 8, &[0]).0, 0);
    assert_eq!(asked(at, -1, &[0]).0, 0);
    let wraps = format!("(i32.sub {at} (i32.const 16))");
    assert_eq!(asked(&wraps, 8, &[16]).0, 0);
    // A module that writes metadata checks the length that it has written.
    let written = "(block (result i32) (i32.store (i32.const 0x8000) (i32.const 64))
        (i32.and (i32.load (i32.const 0x9000)) (i32.const 31)))";
    assert_eq!(asked(written, 8, &[0]).0, 0);
}

#[test]
fn a_length_that_is_loaded_again_behind_a_store_is_one() {
    let text = r#"(module (memory (export "memory") 1)
      (func (export "on_packet") (result i32) (local $at i32) (local $length i32) (local $sum i32)
        (local.set $length (i32.load (i32.const 0x8004)))
        (loop $next
            (if (i32.lt_u (local.get $at) (local.get $length)) (then
                (if (i32.load8_u offset=0x8102 (local.get $at)) (then
                    (i32.store8 offset=0x8102 (local.get $at) (i32.const 0))
                    (local.set $length (i32.load (i32.const 0x8004)))))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br_if $next (i32.lt_u (local.get $at) (i32.const 40))))))
        (local.get $sum)))"#;
    let (unit, _) = unit(&bytes(text), &packet(WINDOW)).expect("a module that compiles");
    let header = unit.functions[0].blocks.iter().find(|block| block.is_loop_header);
    assert_eq!(header.expect("a loop").parameters.len(), 1, "the offset alone");
}
