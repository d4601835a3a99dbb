//! Packets as bytes: the one parser in Rust, checksums, rewriting and building.
//!
//! ```text
//! frame ──▶ parse ──▶ Parsed ──▶ flow_hash, l4_checksum
//!   │                    │
//!   └────── rewrite ◀────┘         build ──▶ frame
//! ```
//!
//! The crate opens no socket, keeps no state and knows no rule, route or module. Every
//! function takes the contiguous head of a frame as it is on the wire, without
//! preamble and frame check sequence, and none panics on any bytes.

#![forbid(unsafe_code)]

pub mod build;
pub mod checksum;
pub mod parse;
pub mod protocol;
pub mod rewrite;
pub mod samples;
pub mod segment;
mod sum;

pub use build::FrameBuilder;
pub use parse::{Ethernet, Fragment, Hidden, Outcome, Parsed, VlanTag, flow_hash, parse_frame};
