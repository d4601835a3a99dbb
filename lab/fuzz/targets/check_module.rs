//! Any bytes as a module: the check answers, and what it accepts keeps the ABI's limits.
//!
//! Not the engine: what the check accepts is compiled by wasmtime, which is fuzzed where it is
//! written. `cargo +nightly fuzz run check_module --fuzz-dir lab/fuzz`

#![no_main]

use abi::layout::{DATA_ADDRESS, META_ADDRESS, WINDOW_LENGTH_MAX};
use abi::{Unverified, check};
use libfuzzer_sys::fuzz_target;

/// Bytes of a page of linear memory.
const PAGE_LENGTH: u64 = 0x1_0000;

fuzz_target!(|bytes: &[u8]| {
    let checked = match Unverified(bytes).check() {
        Ok(checked) => checked,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let (memory, manifest) = (checked.memory, &checked.manifest);
    assert!(memory.pages_min >= 1 && memory.pages_min <= memory.pages_max);
    assert!(memory.pages_max <= abi::layout::MEMORY_PAGES_MAX);
    assert!(manifest.window <= WINDOW_LENGTH_MAX);
    assert_eq!(checked.hooks.on_timer, manifest.timer_ms.is_some());
    assert!(checked.counters.len() as u64 <= check::COUNTERS_MAX);
    for counter in &checked.counters {
        let end = u64::from(counter.address) + 8;
        assert_eq!(counter.address % 8, 0);
        assert!(end <= u64::from(memory.pages_min) * PAGE_LENGTH);
        assert!(end <= u64::from(META_ADDRESS) || counter.address >= DATA_ADDRESS);
    }
});
