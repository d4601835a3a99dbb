//! Associations between nodes: a handshake that carries capabilities, and the keys that it yields,
//! under which each active packet is accepted once. Sans-IO: datagrams, time and random bytes are
//! arguments; datagrams and events are returned as data.
//!
//! ```text
//!            daemon: identity key, table                 cell: keys of single associations
//!  UDP ─▶ wire::kind ─┬─ handshake ─▶ Associations ─ Traffic ─▶ Opener, Sealer
//!                     │                 │  └─▶ Send, Established, Ended       ▲
//!                     │                 └─ deadlines                         │
//!                     └─ active packet ──────────────────────────────────────┘
//! ```
//!
//! [`table`] has all associations and handshakes of a node, [`packet`] the format of active
//! packets, [`window`] the replay protection, and [`traffic`] the keys of an association in transit
//! from the daemon to the cell. The messages are described in docs/guides/associations.md.

#![forbid(unsafe_code)]

mod cookie;
mod flood;
mod handshake;
mod identity;
mod noise;
pub mod packet;
mod secret;
pub mod table;
pub mod traffic;
pub mod window;
pub mod wire;

pub use flood::Budget;
pub use packet::{Opened, Opener, Protection, Refused, Role, Sealer};
pub use table::{AssociationError, Associations, Config, Effect, Established, Peer, Reason};
pub use traffic::{Traffic, TrafficError};
pub use window::Window;
pub use wire::{AssociationId, Kind, WireError};

/// Source of random bytes: fills a slice from a cryptographically secure generator (in a
/// simulation: from a seed).
pub type Random<'r> = dyn FnMut(&mut [u8]) + 'r;
