//! Services of streams: a proxy-wasm module on the TCP connections of a rule, or on the requests
//! and responses of HTTP/1.1 on them.
//!
//! ```text
//!  tcp_intercept::Streams ◀─ Application ─▶ Filter ─┬─▶ Tcp, Http ── calls ──▶ Runner ─▶ proxy_wasm::Vm
//!     sockets         bytes, ends            │   each connection ◀ reply, effects ┘
//!                                            ├─▶ Calls: HTTP calls of the module
//!                                            └─▶ fanout::Fanout: streams that are shared
//! ```
//!
//! Connections are state machines: bytes come in, bytes go out, calls to the module in between.
//! One call runs at a time; one whose turn is over stands still, whoever wants to make another
//! waits, and who waits is not read. What the module logs and how it fares goes out as events.
//! docs/guides/filters.md says what a module sees and what becomes of what it makes.
//!
//! Bodies of responses are coded behind the module, if it asks for that (`coding`), or are video
//! that comes to it as pictures (`video`), by codecs that its owner starts ([`Codecs`]).
//!
//! Not here: who may use which module, which connections come, whose turn it is.
#![forbid(unsafe_code)]

mod calls;
mod codecs;
mod coder;
mod connection;
mod desk;
mod filter;
mod http;
mod limits;
mod meter;
mod module;
mod outgoing;
mod report;
mod runner;
mod spare;
mod tcp;
#[cfg(test)]
mod tests;
mod through;
mod transcoder;
mod turns;

pub use codecs::{Codecs, News, Refusal, Share};
pub use connection::{Failure, Side};
pub use desk::{REFLECT, TRANSCODE};
pub use filter::{Capabilities, Filter, FilterSpec, Kind};
pub use limits::*;
pub use report::{Counters, Event, Reports};
pub use through::Through;
