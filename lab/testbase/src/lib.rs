//! Helpers for the tests of every crate: counted skips, waiting for conditions, chance that repeats
//! itself, and modules that are built for WebAssembly.
//!
//! The crate depends on no other crate of the workspace, so that `make quick` runs a crate's tests
//! only when something changed that they test. Labs and nodes under test are `lab/testkit`'s.
#![forbid(unsafe_code)]

mod chance;
mod go;
mod skip;
mod wasm;

pub use chance::Chance;
pub use go::go_filter;
pub use skip::{root_or_skip, skip, skip_this};
pub use wasm::built_for_wasm;

use std::time::{Duration, Instant};

/// Interval at which a condition is evaluated again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` gives something; none when it did not within `limit`.
pub fn wait_for<T>(limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = condition() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
