//! Packet ABI, version 1: the contract between a module and a node.
//!
//! [`layout`] has the addresses and codes; [`host`] the host functions and hooks; [`manifest`] the
//! declarations in a module's custom section; [`check`] decides from the bytes alone whether a
//! module conforms to the ABI. docs/reference/module-abi.md is the text for module authors.

#![forbid(unsafe_code)]

pub mod check;
mod fields;
pub mod granted;
pub mod host;
pub mod layout;
pub mod manifest;
mod meant;
pub mod packet;
mod parameter;
mod pools;
pub mod streams;

pub use check::{CheckError, Checked, Unverified};
pub use granted::{HostFunctions, NotGranted};
pub use host::{HOOKS, HOST_FUNCTIONS, Hook, HostFunction, HostFunctionSpec, ValueType};
pub use layout::{Meta, NotAVerdict, Verdict};
pub use manifest::{Event, KeyField, Lanes, Level, Manifest, ManifestError, Pool};
pub use packet::PacketBytes;
pub use pools::{LaneSelector, lanes_of};
