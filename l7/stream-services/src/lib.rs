//! Stream services: a proxy-wasm module on the TCP connections of a rule, or on the HTTP/1.1
//! requests and responses on them.
//!
//! ```text
//!  tcp_intercept::Streams ◀─ Application ─▶ Filter ─┬─▶ Tcp, Http ── calls ──▶ Runner ─▶ proxy_wasm::Vm
//!     sockets         bytes, ends            │   each connection ◀ reply, effects ┘
//!                                            ├─▶ Calls: HTTP calls of the module
//!                                            └─▶ fanout::Fanout: shared streams
//! ```
//!
//! Connections are state machines: bytes in, bytes out, calls to the module in between. One call
//! runs at a time; when its turn is over it is suspended, and connections that want to make another
//! call wait, and are not read meanwhile. The module's log and its state are reported as events.
//! docs/guides/filters.md describes the data that a module gets, and the effect of its edits;
//! docs/reference/stream-functions.md the functions of the node that it may call.
//!
//! Bodies of responses are coded after the module, at its request (`coder`), or are video that it
//! gets as pictures (`transcoder`), by codecs that the owner starts ([`Codecs`]).
//!
//! Permissions, the choice of connections, and scheduling are outside this crate.
#![forbid(unsafe_code)]

mod calls;
mod codecs;
mod coder;
mod connection;
mod filter;
mod foreign_calls;
mod harness;
mod http;
mod idle_servers;
mod limits;
mod meter;
mod module;
mod outgoing;
mod report;
mod runner;
mod tcp;
#[cfg(test)]
mod tests;
mod transcoder;
mod wait_queue;

pub use codecs::{CodecEvent, Codecs, Refusal, Share};
pub use connection::{Failure, Side};
pub use filter::{Capabilities, Filter, FilterSpec, Kind};
pub use foreign_calls::{REFLECT, TRANSCODE};
pub use harness::Harness;
pub use limits::*;
pub use report::{Counters, Event, Reports};
