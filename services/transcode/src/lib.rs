//! `transcode`: sends a small device the pictures of an MPEG-2 stream, at the size, rate, palette
//! and byte rate that the device chooses, and can change while it plays (docs/guides/transcode.md). The
//! node decodes and scales; the module sets the parameters, and packs pictures for the device's
//! display.
//!
//! ```text
//!  request ──▶ Asked ─▶ Choice ─────────┐ the node's `tamandua_transcode`
//!  response ─▶ is_video ────────────────┴───────────────────┐
//!                                                           ▼
//!  device ◀─ frames ◀─ Playing (Packer, ByteRate) ◀─ pictures of the body
//!  device ─ control ─▶ Playing::change
//! ```

#![deny(unsafe_code)]

pub mod answer;
pub mod choice;
pub mod config;
pub mod cube;
pub mod dither;
// Needs the node's host functions.
#[cfg(target_arch = "wasm32")]
mod filter;
pub mod frame;
pub mod limits;
pub mod media;
pub mod pack;
pub mod palette;
pub mod picture;
pub mod playing;
#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "the SDK has no random bytes (ADR 0011)")]
mod random;
pub mod rate;
pub mod request;

/// Page that acts as a device: a canvas and its controls.
pub const VIEWER: &str = include_str!("../viewer/index.html");
