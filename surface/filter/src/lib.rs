//! Services of streams: a proxy-wasm module on the connections of a rule.
#![forbid(unsafe_code)]

mod calls;
mod connection;
mod filter;
mod http;
mod limits;
mod module;
mod outgoing;
mod report;
mod runner;
mod tcp;
#[cfg(test)]
mod tests;
mod through;

pub use connection::{Addresses, Failure, Side};
pub use filter::{Filter, FilterSpec, Kind};
pub use limits::*;
pub use module::{Last, Module, Parts, Reply, Wants};
pub use report::{Counters, Event, Reports};
pub use through::Through;
