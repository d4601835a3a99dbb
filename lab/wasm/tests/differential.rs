//! Random modules in three engines: 2,000 in the ordinary run, 100,000 with `TAM_SOAK=1`.
//! `TAM_SEED=N` begins at another seed; a failure names its own.

use std::collections::BTreeMap;

use wasm_lab::random::{Engines, Verdict};

/// Seed of the first module; each further module has the next number.
const SEED: u64 = 0x7461_6d00;
/// Modules that once showed a fault of the compiler, with the seeds of their arguments.
const REGRESSIONS: [(u64, &str); 4] = [
    (31_471, include_str!("regressions/31471.wat")),
    (43_939, include_str!("regressions/43939.wat")),
    (2_877, include_str!("regressions/2877.wat")),
    (1_952_542_059, include_str!("regressions/1952542059.wat")),
];
/// Most modules of a hundred that may be refused.
const REFUSED_MAX_PERCENT: u64 = 1;

#[test]
fn modules_that_once_showed_a_fault_agree() {
    if !testbase::root_or_skip("modules that once showed a fault") {
        return;
    }
    let engines = Engines::new().unwrap();
    for (seed, text) in REGRESSIONS {
        let module = wat::parse_str(text).unwrap();
        let verdict = engines.compare_bytes(seed, module).unwrap_or_else(|fault| panic!("{fault}"));
        assert!(matches!(verdict, Verdict::Equal { .. }), "seed {seed}: {verdict:?}");
    }
}

#[test]
fn random_modules_agree_in_kernel_wasmtime_and_wasmi() {
    if !testbase::root_or_skip("random modules in the kernel") {
        return;
    }
    let modules = if std::env::var_os("TAM_SOAK").is_some() { 100_000 } else { 2_000 };
    let engines = Engines::new().unwrap();
    let mut seed = match std::env::var("TAM_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => SEED,
    };
    let (mut equal, mut calls, mut traps) = (0, 0, 0);
    let mut refused = BTreeMap::<String, u64>::new();
    let mut skipped = BTreeMap::<&str, u64>::new();
    while equal + refused.values().sum::<u64>() < modules {
        match engines.compare(seed).unwrap_or_else(|fault| panic!("{fault}")) {
            Verdict::Equal { calls: more, traps: trapped } => {
                (equal, calls, traps) = (equal + 1, calls + more, traps + trapped);
            }
            Verdict::Refused(code) => *refused.entry(code).or_default() += 1,
            Verdict::Skipped(why) => *skipped.entry(why).or_default() += 1,
        }
        seed += 1;
    }
    println!(
        "{equal} equal ({calls} calls, {traps} traps), refused {refused:?}, skipped {skipped:?}"
    );
    assert!(
        refused.values().sum::<u64>() * 100 <= modules * REFUSED_MAX_PERCENT,
        "too many of {modules} modules are refused: {refused:?}"
    );
}
