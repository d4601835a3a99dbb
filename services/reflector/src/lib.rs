//! `reflector`: hands requests for live streams to the node, which fetches each stream once for all
//! listeners (docs/guides/reflector.md). The decision is by the request's head.
//!
//! ```text
//!  request head ─▶ Config::choose ─▶ Some(key) ─▶ the node's `tamandua_reflect`
//!                                 └▶ None: the request goes to its server
//! ```

#![cfg_attr(
    not(target_arch = "wasm32"),
    allow(dead_code, reason = "elsewhere only tests call what decides")
)]

mod choice;
mod config;
// Needs the node's host functions.
#[cfg(target_arch = "wasm32")]
mod filter;
