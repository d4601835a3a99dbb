//! `compress`: codes responses as their clients accept it. It decides by heads alone; the node
//! codes the bodies (docs/guides/compress.md).
//!
//! ```text
//!   request head ─▶ Request ──────────────┐
//!                                         ├─▶ decide ─▶ Decision ─▶ edits of the head, the node's
//!   response head ─▶ Response ─ Config ───┘                         `tamandua_code_response`
//! ```

#![cfg_attr(
    not(target_arch = "wasm32"),
    allow(dead_code, reason = "elsewhere only tests call what decides")
)]

mod accept;
mod coding;
mod config;
mod decide;
mod fields;
// Needs the node's host functions.
#[cfg(target_arch = "wasm32")]
mod filter;
mod media;
mod tags;
