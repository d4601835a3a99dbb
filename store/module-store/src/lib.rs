//! Modules by digest: a directory in OCI image layout.
//!
//! ```text
//! DIR/oci-layout            {"imageLayoutVersion":"1.0.0"}
//! DIR/index.json            what there is ─▶ manifests, each with the name "monitor:0.1.0"
//! DIR/blobs/sha256/HEX      manifest ─▶ config, module (written in the other order)
//! DIR/.lock  DIR/.partial/  one writer at a time, and what it has not finished
//! ```
//!
//! A signature is an image of its own with the name "sha256-HEX.sig", as cosign has it, where HEX
//! is the digest of the module's image manifest; each layer is one payload that somebody signed.
//!
//! A module is named by the digest of its bytes. What is read is compared with
//! its digest, so a damaged file is an error that names it, never another
//! module. It knows no network; other registry tools read the same directory.

#![forbid(unsafe_code)]

mod digest;
mod error;
mod files;
pub mod layout;
mod store;

pub use digest::{Digest, DigestError, PREFIX_LENGTH_MIN};
pub use error::StoreError;
pub use store::signatures::{self, VerifiedModule};
pub use store::{Catalogue, Held};
pub use store::{DOCUMENT_LENGTH_MAX, Listing, MODULE_LENGTH_MAX, Store, StoredModule};
