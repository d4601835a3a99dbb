//! Our own host for stream modules: proxy-wasm ABI v0.2.1.
//!
//! ```text
//!  Wasm bytes ─▶ check ─▶ Engine::compile ─▶ code ─▶ Engine::load_from_parent ─▶ Program
//!                         (a worker process)         (the cell)                   │ begin
//!                                                                                 ▼
//!     Call, Now ─▶ Vm::call ─▶ host functions ─▶ Stream, Shared ─▶ Outcome: answer, effects
//! ```
//!
//! No sockets, no clock, no randomness: the time comes with each call, random bytes from the
//! caller, and what a module wants done goes out as [`Effect`]s in their order. A [`Vm`] keeps the
//! [`Stream`]s of its contexts, since a module may turn to any of them in any callback
//! (`proxy_set_effective_context`); between calls the caller puts in what has arrived and takes
//! out what goes on. A call runs under an [`engine::Pace`], and comes back suspended when its time
//! is over. What is offered, and what each function answers, is in docs/reference/proxy-wasm.md.
//!
//! Not here: bytes of HTTP, connections, who may use which module, who pays.
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
