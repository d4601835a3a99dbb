//! Nodes that know each other: a handshake that carries capabilities, and what it leaves behind,
//! keys for active packets that are accepted once. Sans-IO: datagrams, time and random bytes come
//! in as arguments, datagrams and news go out as data.
//!
//! ```text
//!            daemon: identity key, table                 cell: keys of single associations
//!  UDP ─▶ wire::kind ─┬─ handshake ─▶ Associations ─ Traffic ─▶ Opener, Sealer
//!                     │                 │  └─▶ Send, Established, Ended       ▲
//!                     │                 └─ deadlines                         │
//!                     └─ active packet ──────────────────────────────────────┘
//! ```
//!
//! [`table`] is who talks to whom, [`packet`] what an active packet is, [`window`] that each one
//! is accepted once, [`traffic`] the keys of an association on their way from the one to the
//! other. The messages are in docs/guides/associations.md.

#![forbid(unsafe_code)]

mod cookie;
mod handshake;
mod identity;
mod load;
mod noise;
pub mod packet;
mod secret;
pub mod table;
pub mod traffic;
pub mod window;
pub mod wire;

pub use load::Budget;
pub use packet::{Opened, Opener, Protection, Refused, Role, Sealer};
pub use table::{AssociationError, Associations, Config, Effect, Established, Peer, Reason};
pub use traffic::{Traffic, TrafficError};
pub use window::Window;
pub use wire::{AssociationId, Kind, WireError};

/// Fills a slice with random bytes, from a source that nobody can guess (in a simulation: from
/// a seed).
pub type Random<'r> = dyn FnMut(&mut [u8]) + 'r;
