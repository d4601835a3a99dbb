//! `reflector`: gives requests for live streams to the node, which has each of them once for all who
//! listen (docs/guides/reflector.md). It decides by the request's head.
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
// It has nobody to talk to elsewhere.
#[cfg(target_arch = "wasm32")]
mod filter;
