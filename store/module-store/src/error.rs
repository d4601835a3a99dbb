//! What can go wrong with a module store.

use std::io;
use std::path::PathBuf;

use abi::manifest::Meant;

use crate::digest::{Digest, PREFIX_LENGTH_MIN};

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused. The host's fault.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory with something else in it. The operator's fault.
    #[error(
        "{} is no module store: it is not empty and has no 'oci-layout' of version 1.0.0; name an empty or new directory",
        path.display()
    )]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// A file whose bytes are not those of its name. The host's fault.
    #[error(
        "{} is damaged: its bytes have the digest {found}; delete the file and push the module again",
        path.display()
    )]
    Damaged {
        /// The file; its name is the digest that was expected.
        path: PathBuf,
        /// The digest of what it holds.
        found: Digest,
    },
    /// A document that is not what its place says. The host's fault, or that of who wrote it.
    #[error("{} is no valid OCI document: {source}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A file or module beyond what is read.
    #[error("{what} has {length} bytes, at most {limit} are allowed")]
    TooLarge {
        /// What it is.
        what: String,
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// An image that holds something else. Who pushed it is at fault.
    #[error(
        "the image {image} holds no module: it has the layers {found}; a module is one layer of type application/wasm"
    )]
    NoModule {
        /// The digest of its manifest.
        image: Digest,
        /// Media types of its layers.
        found: String,
    },
    /// A reference to nothing in the store.
    #[error("there is no module '{wanted}' in the store {}{meant}", store.display())]
    NotFound {
        /// The reference as given.
        wanted: String,
        /// The store's directory.
        store: PathBuf,
        /// What there is.
        meant: Meant,
    },
    /// A reference to several modules.
    #[error("'{wanted}' is not one module: the store has {found}; write one of these")]
    Ambiguous {
        /// The reference as given.
        wanted: String,
        /// What it could be.
        found: String,
    },
    /// A directory without a module. The operator's fault.
    #[error("there is no module in {}", store.display())]
    Empty {
        /// The directory.
        store: PathBuf,
    },
    /// A directory with several modules, none of which is named. The operator's fault.
    #[error("{0} has several modules: {found}; name one, as in oci:{0}:NAME", store.display())]
    Several {
        /// The directory.
        store: PathBuf,
        /// What there is.
        found: String,
    },
    /// Too few digits of a digest to be a safe reference.
    #[error(
        "'{wanted}' is too short for a digest; write at least {PREFIX_LENGTH_MIN} of its digits"
    )]
    PrefixTooShort {
        /// The reference as given.
        wanted: String,
    },
}

impl StoreError {
    /// For `map_err`: what was tried with which file.
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// Whether it means that a reference leads to nothing.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Empty { .. })
    }
}
