//! Tests of adjacent memories: each is isolated, and no access gets past its end.

use super::run;
use crate::{Engine, InstanceSpec, MemoryKind, TrapKind};
use abi::Verdict;

fn spec() -> InstanceSpec {
    InstanceSpec { memory_pages_max: 1, window: 64, call_slices: 2, ..Default::default() }
}

/// Module that writes the first byte of its packet all over its memory, and returns what the last
/// byte was before.
const FILLS: &str = r#"(module (memory (export "memory") 1)
    (func (export "on_packet") (result i32) (local $before i32)
      (local.set $before (i32.load8_u (i32.const 65535)))
      (memory.fill (i32.const 0) (i32.load8_u (i32.const 0x8102)) (i32.const 65536))
      (i32.or (i32.const 1) (i32.shl (local.get $before) (i32.const 16)))))"#;

#[test]
fn packed_memories_are_isolated_from_each_other() {
    let engine = Engine::new().unwrap();
    let program = engine.program(&wat::parse_str(FILLS).unwrap(), MemoryKind::OwnPacked).unwrap();
    let mut all: Vec<_> = (0..40).map(|_| program.start(&engine, &spec()).unwrap()).collect();
    let mut places: Vec<_> = all.iter().map(|it| it.memory().as_ptr().addr()).collect();
    places.sort_unstable();
    let gaps = places.windows(2).map(|two| two[1] - two[0]);
    assert!(gaps.clone().all(|gap| gap >= 65_536), "none is in another");
    assert!(gaps.filter(|&gap| gap < 1 << 20).count() > 30, "they are close: {places:x?}");
    for round in 0..2 {
        for (number, instance) in (1u8..).zip(&mut all) {
            let before = if round == 0 { 0 } else { u16::from(number) };
            let expected = Ok(Verdict::Drop { reason: before });
            assert_eq!(run(instance, &[number; 100]).1, expected, "{number}");
        }
    }
}

/// Module that does `access`, of that many bytes, at an offset from the address that its packet
/// begins with.
fn accesses(access: &str, offset: u64) -> Vec<u8> {
    let body = match access.split_once(".store") {
        Some((kind, _)) => format!(
            "({access} offset={offset} (local.get $at) ({kind}.const -1)) (i32.const 0x00010001)"
        ),
        None => format!("(drop ({access} offset={offset} (local.get $at))) (i32.const 0x00010001)"),
    };
    let text = format!(
        r#"(module (memory (export "memory") 1)
           (func (export "on_packet") (result i32) (local $at i32)
             (local.set $at (i32.load (i32.const 0x8102))) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn no_access_gets_past_the_end_of_a_packed_memory() {
    const LENGTH: u64 = 65_536;
    let engine = Engine::new().unwrap();
    let widths = [
        ("i32.load8_u", 1),
        ("i64.load16_s", 2),
        ("i32.load", 4),
        ("f64.load", 8),
        ("i32.store8", 1),
        ("i64.store16", 2),
        ("f32.store", 4),
        ("i64.store", 8),
    ];
    let mut neighbours = Vec::new();
    let (mut inside, mut outside) = (0, 0);
    for (access, width) in widths {
        for offset in [0, 1, 0xff8, LENGTH - 1, LENGTH, 1 << 31, u64::from(u32::MAX)] {
            let program = engine.program(&accesses(access, offset), MemoryKind::OwnPacked).unwrap();
            let begin = LENGTH.saturating_sub(offset + width);
            let near =
                (begin.saturating_sub(2)..begin + 11).filter(|at| *at < 0x8000 || *at > 0x8fff);
            let far =
                [0, LENGTH - 1, LENGTH, 2 * LENGTH, 1 << 31, u64::from(u32::MAX) - offset % 9];
            for at in near.chain(far) {
                let mut instance = program.start(&engine, &spec()).unwrap();
                let verdict = run(&mut instance, &(at as u32).to_le_bytes().repeat(16)).1;
                if at + offset + width <= LENGTH {
                    inside += 1;
                    assert_eq!(verdict, Ok(Verdict::Drop { reason: 1 }), "{access} {offset} {at}");
                } else {
                    outside += 1;
                    let expected = Err(TrapKind::MemoryOutOfBounds);
                    assert_eq!(verdict, expected, "{access} {offset} {at}");
                }
                neighbours.push(instance);
                neighbours.drain(..neighbours.len().saturating_sub(16));
            }
        }
    }
    assert!(inside > 100 && outside > 400, "{inside} {outside}");
}
