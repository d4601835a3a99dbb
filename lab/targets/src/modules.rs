//! Any bytes as a module, and as a manifest.
//!
//! The engine is not fuzzed: accepted modules are compiled by wasmtime, which is fuzzed in its own
//! project.

use std::collections::BTreeMap;

use abi::layout::{DATA_ADDRESS, META_ADDRESS, WINDOW_LENGTH_MAX};
use abi::{Manifest, Unverified, check as limits};

/// Bytes of a page of linear memory.
const PAGE_LENGTH: u64 = 0x1_0000;
/// Texts of which each kind of parameter accepts some and refuses others.
const VALUES: [&str; 6] = ["0", "256", "true", "10.0.0.1", "::1", "-1"];

/// Runs the check; an accepted module keeps the ABI's limits.
pub fn check(bytes: &[u8]) {
    let checked = match Unverified(bytes).check() {
        Ok(checked) => checked,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let (memory, manifest) = (checked.memory, &checked.manifest);
    assert!(memory.pages_min >= 1 && memory.pages_min <= memory.pages_max);
    assert!(memory.pages_max <= abi::layout::MEMORY_PAGES_MAX);
    assert!(manifest.window <= WINDOW_LENGTH_MAX);
    assert_eq!(checked.hooks.on_timer, manifest.timer_ms.is_some());
    assert!(checked.counters.len() as u64 <= limits::COUNTERS_MAX);
    for counter in &checked.counters {
        let end = u64::from(counter.address) + 8;
        assert_eq!(counter.address % 8, 0);
        assert!(end <= u64::from(memory.pages_min) * PAGE_LENGTH);
        assert!(end <= u64::from(META_ADDRESS) || counter.address >= DATA_ADDRESS);
    }
}

/// Parses a manifest, and any text as the value of each parameter that it declares.
pub fn manifest(bytes: &[u8]) {
    let manifest = match Manifest::parse_bytes(bytes) {
        Ok(manifest) => manifest,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(manifest.window <= WINDOW_LENGTH_MAX && !manifest.levels.is_empty());
    for value in VALUES {
        let names = manifest.parameters.keys();
        let given: BTreeMap<_, _> =
            names.map(|name| (name.to_string(), value.to_owned())).collect();
        match manifest.values(&given) {
            Ok(values) => assert_eq!(values.len(), manifest.parameters.len()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
