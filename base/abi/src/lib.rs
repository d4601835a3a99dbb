//! The packet ABI, version 1: what a module and a node may assume of each other.
//!
//! [`layout`] has the addresses and codes; [`manifest`] what a module declares
//! in its custom section; [`check`] decides from the bytes alone whether a
//! module keeps to the ABI. docs/module-abi.md is the text for strangers.

#![forbid(unsafe_code)]

pub mod layout;
pub mod packet;

pub use layout::{Meta, NotAVerdict, Verdict};
pub use packet::PacketBytes;
