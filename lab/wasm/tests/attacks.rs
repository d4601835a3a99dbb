//! Modules made to exceed a limit: each ends with a typed reason or a trap, in bounded work, and a
//! program that was loaded before continues to work.

#[path = "attacks/modules.rs"]
mod modules;
#[path = "attacks/subject.rs"]
mod subject;

use modules::module;
use subject::{End, FLAVOURS, FUEL, Subject, WINDOW, Witness, privileged};
use wasm_to_bpf::TrapCode;

/// Ends of an attack near a limit, which another compiler or kernel may accept.
const RUNS_OR_REASON: [End; 5] = [
    End::Runs,
    End::TooComplex,
    End::Refused("too_large"),
    End::Refused("stack"),
    End::Refused("call_depth"),
];

/// Runs an attack at both levels: its end is one of `ends`, and if it runs it returns a verdict or
/// exhausts its fuel.
fn attack(name: &str, text: &str, ends: &[End]) {
    let mut witness = Witness::new();
    let bytes = wat::parse_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    for flavour in FLAVOURS {
        let end = match Subject::load(&bytes, flavour) {
            Ok(subject) => {
                let verdict = subject.run(&[0x5a; 100]);
                let fuel = Err(TrapCode::OutOfFuel as u32);
                assert!(verdict.is_ok() || verdict == fuel, "{name}: trap {verdict:?}");
                End::Runs
            }
            Err(end) => end,
        };
        println!("{name} at {flavour:?}: {end:?}");
        assert!(ends.contains(&end), "{name} at {flavour:?}: {end:?}, not one of {ends:?}");
        witness.works();
    }
}

#[test]
fn huge_functions_end_with_a_reason() {
    if !privileged() {
        return;
    }
    attack("20,000 operators", &modules::straight(20_000), &[End::Runs]);
    attack("190,000 operators", &modules::straight(190_000), &RUNS_OR_REASON);
    attack("300,000 operators", &modules::straight(300_000), &[End::Refused("too_large")]);
}

#[test]
fn deep_nesting_ends_with_a_reason() {
    if !privileged() {
        return;
    }
    attack("500 nested blocks", &modules::nested(500), &[End::Runs]);
    attack("15,000 nested blocks", &modules::nested(15_000), &RUNS_OR_REASON);
    attack("50 nested loops", &modules::nested_loops(50), &[End::Runs]);
    attack("5,000 nested loops", &modules::nested_loops(5_000), &RUNS_OR_REASON);
}

#[test]
fn many_branches_end_with_a_reason() {
    if !privileged() {
        return;
    }
    attack("60 branches", &modules::branches(60), &[End::Runs]);
    attack("1,000 branches", &modules::branches(1_000), &RUNS_OR_REASON);
    attack("4 flags", &modules::flags(4), &[End::Runs]);
    attack("16 flags", &modules::flags(16), &RUNS_OR_REASON);
    attack("2,000 flags", &modules::flags(2_000), &RUNS_OR_REASON);
    attack("a switch of 5,000 targets", &modules::switch(5_000), &RUNS_OR_REASON);
    attack("a switch of 30,000 targets", &modules::switch(30_000), &RUNS_OR_REASON);
}

#[test]
fn deep_calls_and_much_stack_end_with_a_reason() {
    if !privileged() {
        return;
    }
    attack("3 calls deep", &modules::chain(3), &[End::Runs]);
    attack("8 calls deep", &modules::chain(8), &RUNS_OR_REASON);
    attack("40 calls deep", &modules::chain(40), &[End::Refused("call_depth")]);
    attack("400 functions", &modules::many_functions(400), &[End::Refused("functions")]);
    attack("10 values alive", &modules::alive(10), &[End::Runs]);
    attack("400 values alive", &modules::alive(400), &[End::Refused("stack")]);
    attack("20,000 locals", &modules::alive(20_000), &[End::Refused("too_large")]);
    attack("a table of 65,536", &modules::table(65_536, 20), &RUNS_OR_REASON);
    attack("a table of 66,000", &modules::table(66_000, 20), &[End::Refused("table_size")]);
}

#[test]
fn what_does_not_end_traps_when_its_fuel_is_spent() {
    if !privileged() {
        return;
    }
    let mut witness = Witness::new();
    for (name, body) in modules::ENDLESS {
        let bytes = wat::parse_str(module(modules::WORK, body)).unwrap();
        for flavour in FLAVOURS {
            let subject = Subject::load(&bytes, flavour).unwrap_or_else(|end| panic!("{end:?}"));
            let trap = subject.run(&[1; 100]);
            assert_eq!(trap, Err(TrapCode::OutOfFuel as u32), "{name} at {flavour:?}");
            // Both budgets, the operators' and the bulk's, and what one loop may be over.
            let used = subject.fuel_used();
            assert!((FUEL..=2 * FUEL + 65_536).contains(&used), "{name} at {flavour:?}: {used}");
            witness.works();
        }
    }
}

/// Returns a module with accesses of every width; the packet selects width and address.
fn accessor(offset: u64, pages: u32, pages_max: u32) -> String {
    const LOADS: [&str; 4] = ["i32.load8_u", "i32.load16_u", "i32.load", "i64.load"];
    const STORES: [&str; 4] = ["i32.store8", "i32.store16", "i32.store", "i64.store"];
    let address = "(i32.load (i32.const 0x8112))";
    let load = |at: usize| format!("(drop ({} offset={offset} {address}))", LOADS[at]);
    let store = |at: usize| {
        let value = if at == 3 { "(i64.const 0)" } else { "(i32.const 0)" };
        format!("({} offset={offset} {address} {value})", STORES[at])
    };
    let arms = (0..4).map(load).chain((0..4).map(store));
    let arms: String = arms.map(|arm| format!(") {arm} (return (i32.const 0))")).collect();
    let grows = if pages < pages_max { "(drop (memory.grow (i32.const 0)))" } else { "" };
    format!(
        "(module (memory (export \"memory\") {pages} {pages_max})
          (func (export \"on_packet\") (result i32) {grows}
            {} (br_table 0 1 2 3 4 5 6 7 (i32.load8_u (i32.const 0x8110))) {arms} (i32.const 4)))",
        "(block ".repeat(8)
    )
}

/// Returns addresses around the edges of memory, metadata and window.
fn edges(memory: u64) -> Vec<u32> {
    let edges = [0, 0x8000, 0x8040, 0x8102, 0x8102 + u64::from(WINDOW), 0x9000, memory, 1 << 31];
    let around = |edge: &u64| {
        let edge = *edge as u32;
        (0..=32).map(move |by: u32| edge.wrapping_add(by).wrapping_sub(16))
    };
    edges.iter().flat_map(around).collect()
}

#[test]
fn addresses_at_and_beyond_every_edge_trap_or_do_not_as_webassembly_says() {
    if !privileged() {
        return;
    }
    let mut witness = Witness::new();
    let mut accesses = 0;
    for (pages, pages_max) in [(1, 1), (1, 3), (2, 2)] {
        let memory = u64::from(pages) << 16;
        for offset in [0, 1, 7, 0x7fff, 0x8000, 0xffff_ffff] {
            let bytes = wat::parse_str(accessor(offset, pages, pages_max)).unwrap();
            for flavour in FLAVOURS {
                let subject =
                    Subject::load(&bytes, flavour).unwrap_or_else(|end| panic!("{end:?}"));
                for address in edges(memory) {
                    accesses += 8;
                    for operation in 0..8u8 {
                        let mut packet = [0; 100];
                        packet[14] = operation;
                        packet[16..20].copy_from_slice(&address.to_le_bytes());
                        let end = u64::from(address) + offset + (1 << (operation % 4));
                        let outside = Err(TrapCode::OutOfBounds as u32);
                        let expected = if end <= memory { Ok(0) } else { outside };
                        assert_eq!(
                            subject.run(&packet),
                            expected,
                            "{operation} at {address:#x} + {offset:#x} of {pages} pages, {flavour:?}"
                        );
                    }
                }
                witness.works();
            }
        }
    }
    println!("{accesses} accesses");
}
