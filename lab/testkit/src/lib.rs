//! Common parts of system tests: labs, nodes under test, raw frames, and the packet accounts of a
//! lab.
//!
//! ```text
//!  Net ──────────▶ namespaces, devices, addresses      (lab/topology)
//!   ├─ NodeUnderTest ─▶ a `tam node` in a router, its API, its log
//!   ├─ RawPort ───────▶ frames in and out of a host's device
//!   ├─ run ───────────▶ external programs inside
//!   └─ Books ─────────▶ sent = received + the sum of drop counters
//! ```
//!
//! Everything is undone on drop, also when a test panics. Nothing here asserts; a test decides what
//! a number means.
#![forbid(unsafe_code)]

mod books;
mod net;
mod node;
mod raw_port;
mod run;

pub use books::{Balance, Books, inconsistencies};
pub use net::Net;
pub use node::{NodeUnderTest, Service, leftovers, node_file, service_module, tam};
pub use raw_port::RawPort;
pub use run::{Output, Running, run};
pub use testbase::{go_filter, root_or_skip, skip, skip_this, wait_for};
