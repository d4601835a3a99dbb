//! Code that services of streams share beside the public SDK for proxy-wasm, which they are written
//! with. It knows no service and asks the node for nothing but counters, a configuration and a log.
//!
//! ```text
//!  configuration ─▶ service::Root ─▶ settings ─▶ the service ◀─ places: is this request its own?
//!                        │                          │
//!                        └─▶ a context each stream ─┴─▶ service::Counter
//! ```

#![forbid(unsafe_code)]

pub mod places;
// It has nobody to talk to elsewhere.
#[cfg(target_arch = "wasm32")]
pub mod service;
pub mod settings;
