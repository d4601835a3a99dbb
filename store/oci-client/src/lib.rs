//! Modules from and to other machines: any OCI registry, any directory in OCI layout, another
//! node.
//!
//! ```text
//! Reference ─▶ Client ─▶ pull: manifest ─▶ image ─▶ layer ─▶ module, checked ─▶ store
//!                │                └─ signatures, by their tag
//!                ├─▶ push: blobs, image, signatures
//!                └─ Http: deadlines, least rate, redirects, retries ─▶ Transport
//! Router ◀─ serve: what a store holds, to whoever may have it
//! ```
//!
//! A repository is not trusted: it costs a bounded time and memory, and whatever it says, what
//! comes out are bytes of the digest that was asked for, or that a tag was resolved to once. It
//! knows neither nodes nor the command line.

#![forbid(unsafe_code)]

pub mod address;
pub mod auth;
pub mod client;
pub mod directory;
pub mod error;
pub mod http;
pub mod image;
pub mod limits;
mod location;
pub mod mirrors;
pub mod network;
pub mod peer;
pub mod pull;
pub mod push;
pub mod serve;
pub mod sources;
pub mod unpack;

pub use address::{Place, Reference, Registry};
pub use auth::{Credentials, Token};
pub use client::{Client, Encryption, Settings};
pub use error::RepositoryError;
pub use http::Connections;
pub use mirrors::Mirrors;
pub use network::Network;
pub use peer::{IsOwn, Peer};
pub use pull::{Pulled, pull, pull_by_digest};
pub use push::push;
pub use serve::{Access, HOPS, NotYours, router};
pub use sources::{Source, Wanted, pull_from, pull_one};
