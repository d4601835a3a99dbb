//! Transfer of modules from and to OCI registries, directories in OCI layout, and other nodes.
//!
//! ```text
//! Reference ─▶ Client ─▶ pull: manifest ─▶ image ─▶ layer ─▶ module, checked ─▶ store
//!                │                └─ signatures, by their tag
//!                ├─▶ push: blobs, image, signatures
//!                └─ Http: deadlines, least rate, redirects, retries ─▶ Transport
//! Router ◀─ serve: a store's modules, with access control
//! ```
//!
//! Repositories are untrusted: an operation has bounded time and memory, and returns only bytes of
//! the requested digest, or of the digest that a tag was resolved to once. Independent of nodes and
//! of the command line.

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

pub use address::{Reference, Registry, TagOrDigest};
pub use auth::{Credentials, Token};
pub use client::{Client, Encryption, Settings};
pub use error::RepositoryError;
pub use http::Connections;
pub use mirrors::Mirrors;
pub use network::Network;
pub use peer::{IsOwn, Peer};
pub use pull::{Pulled, pull, pull_by_digest};
pub use push::push;
pub use serve::{Access, AccessDenied, HOPS, router};
pub use sources::{Source, Wanted, pull_from, pull_one};
