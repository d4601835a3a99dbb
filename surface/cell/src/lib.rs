//! A cell: a worker process that runs modules and holds no key.
//!
//! ```text
//!  daemon ── ToCell, descriptors ──▶ ┌──────────────────────────────┐
//!         ◀── FromCell ───────────── │ one thread on the guest core │
//!                                    │  receive ─▶ lane ─▶ verdict  │
//!  AF_XDP sockets of each port ◀───▶ │                  │           │
//!                                    └──────────────────┼───────────┘
//!                                     TUN, for what only the kernel routes
//! ```
//!
//! [`protocol`] is what the two say to each other; [`run`] is the process. It
//! opens nothing: every socket and file comes from the daemon. It never learns
//! who a principal is, what else runs on the node, or why.

#![forbid(unsafe_code)]

pub mod below;
mod checksum;
mod compile;
mod deliver;
mod port;
pub mod protocol;
mod service;
mod shared;
mod tap;
pub mod timing;
mod up;
mod worker;

pub use compile::{Below, CompileFailure, Compiled, compile_in_worker, compile_worker};
pub use worker::run;
