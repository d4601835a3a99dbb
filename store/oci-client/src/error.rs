//! Why nothing came of a pull or a push, and whose fault it is.

use std::time::Duration;

use module_store::{Digest, StoreError};

use crate::limits::{RATE_WINDOW, REDIRECTS_MAX, WINDOW_BYTES_MIN};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// Nobody answers. The network's fault, or the registry's.
    #[error("{target} cannot be reached: {why}")]
    Unreachable {
        /// Who.
        target: String,
        /// What the system said.
        why: String,
    },
    /// A connection that ended too soon.
    #[error("{target} broke off while it sent {what}: {why}")]
    Broken {
        /// Who.
        target: String,
        /// What.
        what: String,
        /// How.
        why: String,
    },
    /// Less than the least rate.
    #[error(
        "{target} is too slow with {what}: less than {WINDOW_BYTES_MIN} bytes in {} s",
        RATE_WINDOW.as_secs()
    )]
    TooSlow {
        /// Who.
        target: String,
        /// What.
        what: String,
    },
    /// Everything together took too long.
    #[error("it took more than {} s, which is the limit", .0.as_secs())]
    TookTooLong(Duration),
    /// An answer that is none.
    #[error("{target} answered {status} when asked for {what}{message}")]
    Status {
        /// Who.
        target: String,
        /// What.
        what: String,
        /// The status of HTTP.
        status: u16,
        /// What it said, if it said something.
        message: String,
    },
    /// It is not there, or the registry does not say so.
    #[error("{target} does not have {what}")]
    NotFound {
        /// Who.
        target: String,
        /// What.
        what: String,
    },
    /// The registry wants to know who asks, or does not like who it is.
    #[error("{target} does not let us have {what}: {why}")]
    Denied {
        /// Who.
        target: String,
        /// What.
        what: String,
        /// Why, as far as is known.
        why: String,
    },
    /// Other bytes than those of the digest. The registry's fault.
    #[error("{target} sent something else for {what}: its digest is {found}, not {wanted}")]
    OtherBytes {
        /// Who.
        target: String,
        /// What.
        what: String,
        /// The digest of what came.
        found: Digest,
        /// The digest that was asked for.
        wanted: Digest,
    },
    /// More than is taken.
    #[error("{what} is longer than {limit} bytes, which is the limit")]
    TooLarge {
        /// What.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// It has another length than its descriptor says.
    #[error("{what} is longer than the {declared} bytes that its manifest says")]
    Longer {
        /// What.
        what: String,
        /// What the descriptor says.
        declared: u64,
    },
    /// An answer that breaks the rules. The registry's fault.
    #[error("{target} sent {what} that cannot be read: {why}")]
    Malformed {
        /// Who.
        target: String,
        /// What.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// Round and round, or where nobody should be sent.
    #[error("{target} sends us on to {to}: {why}")]
    Redirected {
        /// Who.
        target: String,
        /// Where to.
        to: String,
        /// Why we do not go.
        why: String,
    },
    /// An address that a registry may not send anybody to; told as [`Self::Redirected`].
    #[error("{target} is out of reach: {why}")]
    Forbidden {
        /// Where to.
        target: String,
        /// What the address is.
        why: String,
    },
    /// An image that holds no module, or an index with none or several.
    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
    /// What came is no module. Its author's fault.
    #[error("{what} is no module: {source}")]
    NotAModule {
        /// What.
        what: String,
        /// What the check says.
        source: Box<abi::CheckError>,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Credentials that cannot be read. The operator's fault.
    #[error("{path}: {why}")]
    Credentials {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Why there are too many redirects.
pub(crate) const ROUND: &str = "more redirects than are followed";
const _: () = assert!(REDIRECTS_MAX < 10, "a request ends soon");

impl RepositoryError {
    /// Whether the same may succeed a moment later, or with another mirror's connection.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::TooSlow { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether it means that there is no such thing.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
