//! Live streams on sockets: `reflector` decides, and this does it with the ends that a service of
//! streams has in hand.
//!
//! ```text
//!  join ─▶ Name ─▶ Station ── Origin ◀── one connection ── origin
//!                     │ Channel: the ring, once
//!                     ├─▶ Listener ── head, chunk │ slices of the ring ─▶ client
//!                     └─▶ Relay ── what is not shared ─▶ its own connection, by pipes
//! ```
//!
//! It is no application by itself: whoever is one passes on what concerns ends that are
//! [owned](Fanout::owns) here. It reads no clock, and works in portions: [`Fanout::poll_timeout`]
//! says that it is to be asked again at once when there is more. docs/reflector.md is the
//! reference.

#![forbid(unsafe_code)]

mod chunk;
mod effects;
mod fanout;
mod head;
pub mod limits;
mod listener;
mod relay;
mod serve;
mod station;
mod stats;

pub use fanout::{Fanout, Join, Key, KeyTooLong, Settings, Source};
pub use stats::{FanoutMemory, FanoutStats};
