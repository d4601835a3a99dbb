//! Any bytes as a manifest, and any text as the value of each parameter that it declares.
//!
//! `cargo +nightly fuzz run parse_manifest --fuzz-dir lab/fuzz`

#![no_main]

use std::collections::BTreeMap;

use abi::Manifest;
use abi::layout::WINDOW_LENGTH_MAX;
use libfuzzer_sys::fuzz_target;

/// Texts that some parameter takes and another refuses.
const VALUES: [&str; 6] = ["0", "256", "true", "10.0.0.1", "::1", "-1"];

fuzz_target!(|bytes: &[u8]| {
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
});
