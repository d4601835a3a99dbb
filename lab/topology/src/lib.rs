//! Hosts, routers and links in network namespaces, from ten lines of TOML.
//!
//! ```text
//!  text ──Lab::parse──▶ Plan (names, addresses, routes: all decided, nothing made)
//!                         │ up
//!                         ▼
//!  /run/tamandua/lab/NAME.json (State) + namespaces tam-NAME-NODE
//!                         │ exec, command_in, record_pid
//!                         ▼ down, down_all
//!                       nothing
//! ```
//!
//! A lab is a real network in miniature: ARP and ND, TTLs, MTUs and queues are the kernel's. A link
//! with a delay, a loss or the like has a node of its own in it, a bridge of two ports:
//!
//! ```text
//!  client ── to-r1 ═══ left  link-1  right ═══ to-client ── r1
//!                      tick ══════════ tock        the clock's cable
//! ```
//!
//! The crate starts no node in a router or a link; the caller that starts one registers the
//! process ([`record_pid`]), so that [`down`] can end it.
#![forbid(unsafe_code)]

mod build;
mod device;
mod error;
mod file;
mod lab;
mod plan;
mod process;
mod quality;
mod read;
mod state;
mod suggest;

pub use error::{LabError, Place, PlanError};
pub use file::{LINKS_MAX, Lab, NODES_MAX};
pub use lab::{Down, Up, command_in, down, down_all, exec, up};
pub use plan::{LinkEnd, LinkNode, NodeKind, Plan, PlannedLink, PlannedNode, PlannedRoute};
pub use quality::{Millionths, Quality};
pub use state::{NodeProcess, STATE_DIRECTORY, State, list, load, record_pid};
