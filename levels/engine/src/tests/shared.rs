//! Tests of instances in memory that wasmtime did not allocate.

use super::run;
use crate::{Engine, Instance, InstanceSpec, MemoryKind, StartError, TrapKind};
use abi::Verdict;
use abi::packet::OwnedPacket;
use level::{GUARD, REACH, SharedMemory};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::sync::Arc;

/// Memory laid out as an arena: pages at the beginning of reserved addresses.
#[derive(Debug)]
struct Pages {
    address: usize,
    length: usize,
}

const MAPPED: usize = (REACH + GUARD) as usize;

impl Pages {
    fn new(length: usize) -> Arc<Self> {
        let none = std::ptr::null_mut();
        // SAFETY: new addresses that the kernel chooses; the first `length` bytes of them get memory.
        let address = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let address = mmap_anonymous(none, MAPPED, ProtFlags::empty(), flags).unwrap();
            mprotect(address, length, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
            address as usize
        };
        Arc::new(Self { address, length })
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.length);
        // SAFETY: within the memory, while no module runs.
        unsafe { *(self.address as *const u8).add(at) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: what `new` mapped; whoever used it held an Arc of it.
        unsafe { munmap(self.address as *mut _, MAPPED).unwrap() };
    }
}

// SAFETY: `new` maps just that, and `drop` comes when nobody holds it.
unsafe impl SharedMemory for Pages {
    fn address(&self) -> *mut u8 {
        self.address as *mut u8
    }

    fn length(&self) -> usize {
        self.length
    }
}

/// Module whose byte 0x9000 counts packets, a global as well; the packet's first byte is an address
/// in KiB to read, and its second the number of pages to grow by.
const COUNTS: &str = r#"
  (global $seen (mut i64) (i64.const 5))
  (global $fixed i32 (i32.const 7))
  (global $flag (mut i32) (i32.const -1))
  (func (export "on_packet") (result i32)
    (i32.store8 (i32.const 0x9000) (i32.add (i32.load8_u (i32.const 0x9000)) (i32.const 1)))
    (global.set $seen (i64.add (global.get $seen) (i64.const 1)))
    (drop (memory.grow (i32.load8_u (i32.const 0x8103))))
    (drop (i32.load (i32.shl (i32.load8_u (i32.const 0x8102)) (i32.const 10))))
    (i32.or (i32.const 1) (i32.shl (i32.wrap_i64 (global.get $seen)) (i32.const 16))))"#;

fn start(
    kind: MemoryKind,
    memory: &str,
    pages: &Arc<Pages>,
) -> Result<Instance<OwnedPacket>, StartError> {
    let wasm = wat::parse_str(format!("(module {memory} {COUNTS})")).unwrap();
    let engine = Engine::new().unwrap();
    let program = engine.program(&wasm, kind).unwrap();
    let memory: Arc<dyn SharedMemory> = pages.clone();
    let spec = InstanceSpec {
        window: 64,
        memory_pages_max: 3,
        call_slices: 1000,
        memory: Some(memory),
        ..InstanceSpec::default()
    };
    program.start(&engine, &spec)
}

const PAGE: usize = 65_536;
const FIXED: &str = r#"(memory (export "memory") 1 1) (data (i32.const 0x9008) "data")"#;
const GROWING: &str = r#"(memory (export "memory") 1 3) (data (i32.const 0x9008) "data")"#;

#[test]
fn an_instance_runs_in_the_shared_memory_that_it_is_given() {
    for (kind, text) in [(MemoryKind::SharedFixed, FIXED), (MemoryKind::SharedGrowing, GROWING)] {
        let pages = Pages::new(3 * PAGE);
        let mut instance = start(kind, text, &pages).unwrap();
        assert_eq!(pages.byte(0x9008), b'd', "its data is in place");
        for count in 1..=3 {
            let verdict = run(&mut instance, &[0, 0, 0]).1;
            assert_eq!(verdict, Ok(Verdict::Drop { reason: 5 + u16::from(count) }));
            assert_eq!(pages.byte(0x9000), count);
        }
        let globals: Vec<_> = instance.globals().collect();
        assert_eq!(globals, [(0, 8), (2, 0xffff_ffff)], "the immutable one stays at home");
        instance.set_globals(|index| [Some(100), Some(0), Some(1)][index as usize]);
        assert_eq!(run(&mut instance, &[0, 0]).1, Ok(Verdict::Drop { reason: 101 }));
    }
}

#[test]
fn an_access_behind_the_memory_of_the_moment_traps() {
    for (kind, text) in [(MemoryKind::SharedFixed, FIXED), (MemoryKind::SharedGrowing, GROWING)] {
        let pages = Pages::new(PAGE * if kind == MemoryKind::SharedFixed { 1 } else { 3 });
        let mut instance = start(kind, text, &pages).unwrap();
        assert!(run(&mut instance, &[63, 0]).1.is_ok(), "{kind:?}: the last KiB");
        let verdict = run(&mut instance, &[64, 0]).1;
        assert_eq!(verdict, Err(TrapKind::MemoryOutOfBounds), "{kind:?}: the first byte behind");
    }
}

#[test]
fn a_memory_grows_as_far_as_it_was_given() {
    let pages = Pages::new(2 * PAGE);
    let mut instance = start(MemoryKind::SharedGrowing, GROWING, &pages).unwrap();
    assert!(run(&mut instance, &[65, 1]).1.is_ok(), "one page more");
    assert_eq!(instance.memory_bytes(), 2 * PAGE as u64);
    assert!(run(&mut instance, &[65, 1]).1.is_ok(), "it goes on without another page");
    assert_eq!(instance.memory_bytes(), 2 * PAGE as u64);
    assert!(instance.grow_to(PAGE as u64) && !instance.grow_to(3 * PAGE as u64));

    let mut instance = start(MemoryKind::SharedGrowing, GROWING, &Pages::new(3 * PAGE)).unwrap();
    assert!(instance.grow_to(2 * PAGE as u64 + 1), "it grew at another level");
    assert_eq!(instance.memory_bytes(), 3 * PAGE as u64);
}

#[test]
fn too_small_a_memory_and_none_are_refused() {
    let refused = start(MemoryKind::SharedFixed, FIXED, &Pages::new(4096)).err().unwrap();
    assert!(refused.to_string().contains("4096 bytes"), "{refused}");
    let wasm = wat::parse_str(format!("(module {FIXED} {COUNTS})")).unwrap();
    let engine = Engine::new().unwrap();
    let program = engine.program::<OwnedPacket>(&wasm, MemoryKind::SharedFixed).unwrap();
    let spec = InstanceSpec { memory_pages_max: 3, ..InstanceSpec::default() };
    let refused = program.start(&engine, &spec).err().unwrap();
    assert!(refused.to_string().contains("no memory"), "{refused}");
}
