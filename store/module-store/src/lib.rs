//! Module store: modules by digest in a directory in OCI image layout.
//!
//! ```text
//! DIR/oci-layout            {"imageLayoutVersion":"1.0.0"}
//! DIR/index.json            index ─▶ manifests, each with the name "monitor:0.1.0"
//! DIR/blobs/sha256/HEX      manifest ─▶ config, module (written in the other order)
//! DIR/.lock  DIR/.partial/  one writer at a time, and its unfinished files
//! ```
//!
//! A signature is an image of its own with the name "sha256-HEX.sig", as cosign stores it, where
//! HEX is the digest of the module's image manifest. Each layer is one signed payload.
//!
//! A module is named by the digest of its bytes. Content is verified against its digest when it is
//! read, so a damaged file is an error with its path, never another module. No network access;
//! other registry tools read the same directory.

#![forbid(unsafe_code)]

mod digest;
mod error;
mod files;
pub mod layout;
mod store;

pub use digest::{Digest, DigestError, PREFIX_LENGTH_MIN};
pub use error::StoreError;
pub use store::signatures::{self, VerifiedModule};
pub use store::{Catalogue, CatalogueEntry};
pub use store::{DOCUMENT_LENGTH_MAX, Listing, MODULE_LENGTH_MAX, Store, StoredModule};
