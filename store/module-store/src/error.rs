//! Errors of a module store.

use std::io;
use std::path::PathBuf;

use abi::manifest::Meant;

use crate::digest::{Digest, PREFIX_LENGTH_MIN};

/// Error of a module store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system returned an error. The host's fault.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation that failed.
        action: &'static str,
        /// File of the operation.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The directory contains something else. The operator's fault.
    #[error(
        "{} is no module store: it is not empty and has no 'oci-layout' of version 1.0.0; name an empty or new directory",
        path.display()
    )]
    NotAStore {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The content of a file does not match its digest. The host's fault.
    #[error(
        "{} is damaged: its bytes have the digest {found}; delete the file and push the module again",
        path.display()
    )]
    Damaged {
        /// The file; its name is the expected digest.
        path: PathBuf,
        /// Digest of the content.
        found: Digest,
    },
    /// A document is malformed. The fault of the host, or of its author.
    #[error("{} is no valid OCI document: {source}", path.display())]
    Document {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// A file or module is longer than its limit.
    #[error("{what} has {length} bytes, at most {limit} are allowed")]
    TooLarge {
        /// Description of the file or module.
        what: String,
        /// Length in bytes.
        length: u64,
        /// Limit in bytes.
        limit: u64,
    },
    /// The image contains no module. The fault of whoever pushed it.
    #[error(
        "the image {image} holds no module: it has the layers {found}; a module is one layer of type application/wasm"
    )]
    NoModule {
        /// Digest of the image manifest.
        image: Digest,
        /// Media types of its layers.
        found: String,
    },
    /// No module matches the reference.
    #[error("there is no module '{wanted}' in the store {}{meant}", store.display())]
    NotFound {
        /// Reference, as given.
        wanted: String,
        /// Directory of the store.
        store: PathBuf,
        /// Modules in the store.
        meant: Meant,
    },
    /// Several modules match the reference.
    #[error("'{wanted}' matches several modules: {found}; name one of them")]
    Ambiguous {
        /// Reference, as given.
        wanted: String,
        /// Modules that match.
        found: String,
    },
    /// The directory contains no module. The operator's fault.
    #[error("there is no module in {}", store.display())]
    Empty {
        /// Directory of the store.
        store: PathBuf,
    },
    /// The directory contains several modules, and none was named. The operator's fault.
    #[error("{0} has several modules: {found}; name one, as in oci:{0}:NAME", store.display())]
    Several {
        /// Directory of the store.
        store: PathBuf,
        /// Modules in the directory.
        found: String,
    },
    /// The reference has too few digits of a digest to be safe.
    #[error(
        "'{wanted}' is too short for a digest; write at least {PREFIX_LENGTH_MIN} of its digits"
    )]
    PrefixTooShort {
        /// Reference, as given.
        wanted: String,
    },
}

impl StoreError {
    /// Returns a function for `map_err` that adds the operation and the file.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Returns true if the error means that a reference matches nothing.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Empty { .. })
    }
}
