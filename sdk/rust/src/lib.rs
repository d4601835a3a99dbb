//! Write packet services for Tamandua, an active network node.
//!
//! A service is a library crate that says which function handles a packet, with
//! a file `module.toml` beside its `Cargo.toml` that declares what it is:
//!
//! ```
//! use tam::{Packet, Verdict};
//!
//! tam::counters! {
//!     /// Packets that were too old.
//!     static EXPIRED = "expired";
//! }
//!
//! fn on_packet(packet: &mut Packet<'_>) -> Verdict {
//!     match packet.ipv4() {
//!         Some(ip) if ip.ttl() < 2 => {
//!             EXPIRED.add(1);
//!             Verdict::Drop { reason: 1 }
//!         }
//!         _ => Verdict::PASS,
//!     }
//! }
//! # fn main() {}
//! ```
//!
//! and, once, `tam::module! { on_packet: on_packet }`.
//!
//! Built for `wasm32-unknown-unknown` the crate uses no standard library and no
//! allocator; with its feature `std` a service has both. Built natively it has the standard library and
//! [`testing`], so that `cargo test` runs a service over bytes without a node.
//! What the node promises is in docs/reference/module-abi.md.

#![cfg_attr(all(target_arch = "wasm32", not(feature = "std")), no_std)]

pub mod bytes;
pub mod checksum;
mod counter;
pub mod hash;
mod host;
pub mod icmp;
mod ip;
pub mod layout;
mod macros;
mod packet;
mod plain;
pub mod prefix;
pub mod protocol;
mod state;
pub mod table;
pub mod track;
mod verdict;

#[cfg(not(target_arch = "wasm32"))]
pub mod link;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

pub use counter::Counter;
pub use host::{
    BY_ROUTE, HostError, Parameter, Queue, Text, event, message, now_ms, parameter, port,
    queue_watch, send,
};
pub use ip::{Ipv4, Ipv6};
pub use packet::{Level, Packet};
pub use plain::Plain;
pub use state::State;
pub use verdict::Verdict;

/// Functions for the expansion of macros; not for direct use.
#[doc(hidden)]
pub mod expansion {
    #[cfg(target_arch = "wasm32")]
    pub use crate::packet::{run_on_message, run_on_packet, run_on_queue};

    pub use crate::state::{hand_over, take_over};

    /// Returns the result of `on_start`: 0, or the code of a refusal.
    pub fn start_result(result: Result<(), u16>) -> i32 {
        match result {
            Ok(()) => 0,
            // A refusal must not be 0, which means success.
            Err(code) => i32::from(code).max(1),
        }
    }

    /// Returns the result of `on_message`: 0, or the negative code of a refusal.
    pub fn message_result(result: Result<(), u16>) -> i32 {
        match result {
            Ok(()) => 0,
            Err(code) => -i32::from(code).max(1),
        }
    }
}

/// A panic is a trap: the node drops the packet, counts it and restarts the instance.
#[cfg(all(target_arch = "wasm32", not(feature = "std")))]
#[panic_handler]
fn trap(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
