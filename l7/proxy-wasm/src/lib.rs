//! Host for stream modules: proxy-wasm ABI v0.2.1.
//!
//! ```text
//!   Wasm bytes ─▶ check ─▶ Engine::compile ─▶ code ─▶ Engine::load_from_parent ─▶ Program
//!                          (a worker process)         (the cell)                   │ begin
//!                                                                                  ▼
//!      Call, Now ─▶ Vm::call ─▶ host functions ─▶ Stream, Shared ─▶ Outcome: answer, effects
//! ```
//!
//! The crate has no sockets, no clock and no randomness: the time comes with each call, random
//! bytes from the caller, and actions that a module requests are returned as [`Effect`]s in their
//! order. A [`Vm`] keeps the [`Stream`]s of its contexts, since a module may access any of them in
//! any callback (`proxy_set_effective_context`); between calls the caller adds received data and
//! removes data that goes on. A call runs under an [`engine::Pace`], and returns suspended when its
//! time is over. docs/reference/proxy-wasm.md has the supported functions and their results.
//!
//! HTTP parsing, connections, permissions and billing are outside this crate.
#![forbid(unsafe_code)]

pub mod abi;
mod buffer;
mod check;
mod context;
mod effect;
mod epoch;
mod host;
mod http_call;
mod limits;
mod map;
mod program;
mod restart;
mod shared;
mod spec;
mod start;
mod stream;
#[cfg(test)]
mod tests;
mod vm;

pub use buffer::edit;
pub use check::{Callbacks, CheckError, Checked, Version, check};
pub use context::ROOT;
pub use effect::{Effect, HttpRequest, LocalResponse};
pub use http_call::HttpResponse;
pub use limits::*;
pub use map::{HeaderMap, MapError};
pub use program::{Engine, Program};
pub use restart::Restart;
pub use shared::{Metric, MetricValue, Refusal, Shared, SharedUse};
pub use spec::{ForeignFunction, Now, Random, VmSpec};
pub use start::{StartFailure, Started, Starting};
pub use stream::{Protocol, Side, Stream};
pub use vm::{Answer, Call, CallError, Outcome, Ran, StartError, Suspended, Vm};
