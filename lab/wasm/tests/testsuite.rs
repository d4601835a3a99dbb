//! Official test suite in the kernel: no wrong result, and no more refusals than are committed.

use wasm_lab::suite::{self, Counts};

/// Committed counts. They can only improve: a change is made by hand, from the output.
const COMMITTED: &str = include_str!("../testsuite-refusals.toml");

/// Smallest percentage that runs of the assertions that need no floats, SIMD, threads or recursion.
const SHARE_MIN: f64 = 99.0;

#[test]
fn every_assertion_is_right_or_refused_as_written_down() {
    if !testbase::root_or_skip("the official test suite in the kernel") {
        return;
    }
    let tally = suite::run("").unwrap();
    let wrong = tally.wrong_ones();
    assert!(wrong.is_empty(), "{} wrong, the first:\n{}", wrong.len(), head(wrong));

    let found = tally.counts();
    println!("run: {:.2} %", found.share_run());
    let committed: Counts = toml::from_str(COMMITTED).unwrap();
    assert_eq!(
        *found,
        committed,
        "the counts changed; if less is refused, write this to lab/wasm/testsuite-refusals.toml:\n{}",
        toml::to_string(found).unwrap()
    );
    assert!(found.share_run() >= SHARE_MIN, "{:.2} % run", found.share_run());
}

fn head(wrong: &[String]) -> String {
    wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n")
}
