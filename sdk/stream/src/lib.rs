//! Shared code of stream services, besides the public SDK for proxy-wasm with which they are
//! written. Knows no particular service, and uses only counters, the configuration and the log of
//! the node.
//!
//! ```text
//!   configuration ─▶ service::Root ─▶ settings ─▶ service ◀─ places: is the request for it?
//!                         │                         │
//!                         └─▶ a context per stream ─┴─▶ service::Counter
//! ```

#![forbid(unsafe_code)]

pub mod places;
// Needs the node's host functions.
#[cfg(target_arch = "wasm32")]
pub mod service;
pub mod settings;
