//! HTTP+JSON API of the node: the types, the table of endpoints, the OpenAPI document and the
//! client.
//!
//! The daemon, the command line and the OpenAPI document share the same types, so that they cannot
//! differ. There is no private endpoint.

#![forbid(unsafe_code)]

pub mod capture;
pub mod client;
mod counts;
pub mod desired;
pub mod endpoints;
mod errors;
pub mod events;
pub mod ledger;
pub mod openapi;
mod sessions;
pub mod trust;
mod types;
pub mod why;

pub use capture::{CaptureEnded, CaptureRequest, CaptureStarted, CapturedPacket, CapturedPackets};
pub use client::{Client, ClientError};
pub use counts::{CompilerStats, DemandStats, MessageStats};
pub use desired::*;
pub use endpoints::{ENDPOINTS, Endpoint, Method, Operation};
pub use errors::*;
pub use events::{Event, EventKind, EventList};
pub use ledger::*;
pub use sessions::*;
pub use trust::*;
pub use types::*;
pub use why::{ExplainRequest, Explanation, WhyList, WhyReason};

use std::path::PathBuf;

/// Directory of the nodes' sockets and other files that exist only while they run.
pub const RUN_DIRECTORY: &str = "/run/tamandua";

/// Returns the path of the socket of a node's API.
#[must_use]
pub fn socket_of(node: &units::Name) -> PathBuf {
    PathBuf::from(RUN_DIRECTORY).join(node.as_str()).join("api.sock")
}
