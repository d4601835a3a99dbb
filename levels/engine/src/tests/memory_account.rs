//! Tests of memory accounting: every end of an instance credits its charge.

use super::{META, OwnedPacket, run};
use crate::{
    Call, Done, Ended, Engine, Instance, InstanceSpec, MemoryAccount, MemoryKind, Part, Ran,
    StartError,
};
use abi::Verdict;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Account with a limited number of bytes.
#[derive(Debug, Default)]
struct Has {
    left: Cell<u64>,
    taken: RefCell<HashMap<&'static str, u64>>,
}

impl Has {
    fn new(bytes: u64) -> Rc<Self> {
        Rc::new(Self { left: Cell::new(bytes), ..Self::default() })
    }

    fn of(&self, part: Part) -> u64 {
        self.taken.borrow().get(name(part)).copied().unwrap_or_default()
    }
}

const fn name(part: Part) -> &'static str {
    match part {
        Part::Memory => "memory",
        Part::Tables => "tables",
        Part::State => "state",
    }
}

impl MemoryAccount for Has {
    fn take(&self, part: Part, bytes: u64) -> bool {
        let Some(left) = self.left.get().checked_sub(bytes) else { return false };
        self.left.set(left);
        *self.taken.borrow_mut().entry(name(part)).or_default() += bytes;
        true
    }

    fn give(&self, part: Part, bytes: u64) {
        self.left.set(self.left.get() + bytes);
        *self.taken.borrow_mut().get_mut(name(part)).unwrap() -= bytes;
    }
}

fn start(body: &str, room: &Rc<Has>) -> Result<Instance<OwnedPacket>, StartError> {
    let engine = Engine::new().unwrap();
    let wasm = wat::parse_str(format!("(module {body})")).unwrap();
    let program = engine.program(&wasm, MemoryKind::Own).unwrap();
    let room = Some(Rc::clone(room) as _);
    let spec = InstanceSpec { memory_pages_max: 8, call_slices: 2, room, ..Default::default() };
    program.start(&engine, &spec)
}

/// Runs a hook to its end.
fn call(instance: Instance<OwnedPacket>, call: Call) -> (Instance<OwnedPacket>, Ended) {
    let Ran::Rest(instance, Done::Call(ended)) = Box::new(instance).call(call) else {
        panic!("nobody sets a pace")
    };
    (*instance, ended)
}

fn drop_reason(instance: &mut Instance<OwnedPacket>) -> u16 {
    match run(instance, &[0; 64]).1 {
        Ok(Verdict::Drop { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Module that grows by the number at address 0 and drops the packet with the result of
/// `memory.grow` as the reason.
const GROWS: &str = r#"(memory (export "memory") 1 6)
    (data (i32.const 0) "\01")
    (func (export "on_packet") (result i32)
      (i32.or (i32.const 1) (i32.shl (memory.grow (i32.load8_u (i32.const 0))) (i32.const 16))))"#;

#[test]
fn memory_growth_is_charged_and_refused_with_minus_one() {
    let room = Has::new(3 * 65_536);
    let mut instance = start(GROWS, &room).unwrap();
    assert_eq!(room.of(Part::Memory), 65_536, "what it begins with");
    assert_eq!((drop_reason(&mut instance), drop_reason(&mut instance)), (1, 2));
    assert_eq!(room.of(Part::Memory), 3 * 65_536);
    assert_eq!(drop_reason(&mut instance), u16::MAX, "-1: there is no more");
    assert_eq!((room.of(Part::Memory), room.left.get()), (3 * 65_536, 0));
    drop(instance);
    assert_eq!((room.of(Part::Memory), room.left.get()), (0, 3 * 65_536));
}

#[test]
fn growth_beyond_its_own_maximum_takes_nothing() {
    let room = Has::new(64 << 20);
    let mut instance = start(&GROWS.replace("\\01", "\\06"), &room).unwrap();
    assert_eq!(drop_reason(&mut instance), u16::MAX);
    assert_eq!(room.of(Part::Memory), 65_536);
}

#[test]
fn an_instance_beyond_its_memory_does_not_start_and_leaves_no_charge() {
    let room = Has::new(65_535);
    assert!(matches!(start(GROWS, &room), Err(StartError::Instantiate(_))));
    assert_eq!((room.of(Part::Memory), room.left.get()), (0, 65_535));
    let table = format!("(table 65000 funcref) {GROWS}");
    let room = Has::new(200_000);
    assert!(start(&table, &room).is_err(), "its table is too large");
    assert_eq!(room.left.get(), 200_000);
}

#[test]
fn tables_are_counted_too() {
    let room = Has::new(1 << 20);
    let body = r#"(table 10 40 funcref) (memory (export "memory") 1)
        (func (export "on_packet") (result i32) (i32.or (i32.const 1)
          (i32.shl (table.grow (ref.null func) (i32.const 20)) (i32.const 16))))"#;
    let mut instance = start(body, &room).unwrap();
    assert_eq!(drop_reason(&mut instance), 10);
    assert_eq!(room.of(Part::Tables), 30 * 8);
    assert_eq!(drop_reason(&mut instance), u16::MAX, "40 at most");
    assert_eq!(room.of(Part::Tables), 30 * 8);
    drop(instance);
    assert_eq!(room.left.get(), 1 << 20);
}

#[test]
fn state_is_handed_over_as_far_as_there_is_room() {
    let body = r#"(import "tam" "state_write" (func $write (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "state_in") (param i32) (result i32) (i32.const 0))
        (func (export "state_out") (result i32)
          (drop (call $write (i32.const 0) (i32.const 1000)))
          (call $write (i32.const 0) (i32.const 1000)))
        (func (export "on_packet") (result i32) (i32.const 0))"#;
    let room = Has::new(65_536 + 1_500);
    let state_out = Call::StateOut { now_ms: META.now_ms };
    let (_instance, ended) = call(start(body, &room).unwrap(), state_out.clone());
    let Ended::State(Err(error)) = ended else { panic!("{ended:?}") };
    assert!(error.to_string().contains("returned -3"), "{error}");
    assert_eq!(room.of(Part::State), 0, "nobody has it any more");
    let room = Has::new(65_536 + 2_000);
    let (_instance, ended) = call(start(body, &room).unwrap(), state_out);
    let Ended::State(Ok(kept)) = ended else { panic!("{ended:?}") };
    assert_eq!(kept.length(), 2_000);
    assert_eq!(room.left.get(), 2_000, "whoever has it now pays for it");
}

#[test]
fn a_module_is_told_that_little_is_left() {
    let room = Has::new(1 << 20);
    let body = r#"(memory (export "memory") 1)
        (func (export "on_memory_low") (param i32 i32)
          (i32.store (i32.const 0) (i32.sub (local.get 1) (local.get 0))))
        (func (export "on_packet") (result i32)
          (i32.or (i32.const 1) (i32.shl (i32.load (i32.const 0)) (i32.const 16))))"#;
    let low = Call::MemoryLow { used: 900, most: 1_000, now_ms: 7 };
    let (mut instance, ended) = call(start(body, &room).unwrap(), low.clone());
    assert!(matches!(ended, Ended::Timer(Ok(()))), "{ended:?}");
    assert_eq!(drop_reason(&mut instance), 100);
    // A module without the hook, or with one of an older type, is not called.
    for body in [GROWS.to_owned(), format!(r#"(func (export "on_memory_low")) {GROWS}"#)] {
        let (_, ended) = call(start(&body, &room).unwrap(), low.clone());
        assert!(matches!(ended, Ended::Timer(Ok(()))), "{ended:?}");
    }
}
