//! Decisions of a node on rules, services, sessions and routes. Sans-IO.
//!
//! [`rule`] describes the rules of operators, [`classifier`] compiles them for the front door, and
//! [`state`] is the node itself: commands and events in, effects as data out. Nothing here opens a
//! socket, reads a clock or draws a random number, so the daemon, the simulator and the tests drive
//! the same decisions.

#![forbid(unsafe_code)]

pub mod budget;
pub mod classifier;
pub mod command;
pub mod desired;
pub mod door;
pub mod ethernet;
pub mod flows;
pub mod l4;
mod message;
pub mod owner;
pub mod policy;
pub mod port;
pub mod prefix;
pub mod protocol;
pub mod refusal;
pub mod rule;
pub mod service;
pub mod session;
pub mod state;
pub mod wanted;

#[cfg(test)]
mod testing;

pub use command::{Command, Effect, Event, Notice, Outcome, ServiceStart, StatePath};
pub use owner::{CapabilityId, Owner, PrincipalId};
pub use policy::OnFailure;
pub use port::{Port, PortError, PortKind, PortMode, PortSpec, other_ends};
pub use refusal::{Refusal, RefusalClass};
pub use rule::{Action, Match, Rule, RuleSpec};
pub use service::{ASSOCIATIONS, ModuleInfo, Service, ServiceState};
pub use session::{SESSIONS_MAX, Session};
pub use state::{ASSOCIATIONS_NAME, ASSOCIATIONS_PRIORITY, Node};
