//! What system tests share: labs, nodes under test, raw frames, and the books of a lab.
//!
//! ```text
//!  Net ──────────▶ namespaces, devices, addresses      (lab/topology)
//!   ├─ NodeUnderTest ─▶ a `tam node` in a router, its API, its log
//!   ├─ RawPort ───────▶ frames in and out of a host's device
//!   ├─ run ───────────▶ other people's programs inside
//!   └─ Books ─────────▶ sent = received + the sum of drop counters
//! ```
//!
//! Everything is undone on drop, also when a test panics. Nothing here asserts; a test
//! decides what a number means.
#![forbid(unsafe_code)]

mod books;
mod go;
mod net;
mod node;
mod raw_port;
mod run;
mod skip;

pub use books::{Balance, Books, inconsistencies};
pub use go::go_filter;
pub use net::Net;
pub use node::{NodeUnderTest, Service, leftovers, node_file, service_module, tam};
pub use raw_port::RawPort;
pub use run::{Output, Running, run};
pub use skip::{root_or_skip, skip, skip_this};

use std::time::{Duration, Instant};

/// How often a condition is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Waits until `look` gives something; none when it did not within `limit`.
pub fn wait_for<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
