//! Errors of pulls and pushes, and whose fault each is.

use std::time::Duration;

use module_store::{Digest, StoreError};

use crate::limits::{RATE_WINDOW, REDIRECTS_MAX, WINDOW_BYTES_MIN};

/// Error of a pull or a push.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// No connection is possible. The network's fault, or the registry's.
    #[error("{target} cannot be reached: {why}")]
    Unreachable {
        /// Host and port of the other end.
        target: String,
        /// Error of the operating system.
        why: String,
    },
    /// The connection ended too early.
    #[error("{target} broke off while it sent {what}: {why}")]
    Broken {
        /// Host and port of the other end.
        target: String,
        /// Object that was transferred.
        what: String,
        /// Cause of the interruption.
        why: String,
    },
    /// The transfer is slower than the least rate.
    #[error(
        "{target} is too slow with {what}: less than {WINDOW_BYTES_MIN} bytes in {} s",
        RATE_WINDOW.as_secs()
    )]
    TooSlow {
        /// Host and port of the other end.
        target: String,
        /// Object that was transferred.
        what: String,
    },
    /// All requests together exceeded the time limit.
    #[error("the transfer took more than {} s, which is the limit", .0.as_secs())]
    TookTooLong(Duration),
    /// The response has an unexpected status.
    #[error("{target} answered {status} when asked for {what}{message}")]
    Status {
        /// Host and port of the other end.
        target: String,
        /// Object that was requested.
        what: String,
        /// HTTP status.
        status: u16,
        /// Message of the registry, or empty.
        message: String,
    },
    /// The object does not exist, or the registry conceals it.
    #[error("{target} does not have {what}")]
    NotFound {
        /// Host and port of the other end.
        target: String,
        /// Object that was requested.
        what: String,
    },
    /// The registry requires authentication, or refuses it.
    #[error("{target} denies access to {what}: {why}")]
    Denied {
        /// Host and port of the other end.
        target: String,
        /// Object that was requested.
        what: String,
        /// Reason, as far as it is known.
        why: String,
    },
    /// The content has another digest than requested. The registry's fault.
    #[error("{target} sent other content for {what}: its digest is {found}, not {wanted}")]
    OtherBytes {
        /// Host and port of the other end.
        target: String,
        /// Object that was requested.
        what: String,
        /// Digest of the content.
        found: Digest,
        /// Requested digest.
        wanted: Digest,
    },
    /// The object is longer than its limit.
    #[error("{what} is longer than {limit} bytes, which is the limit")]
    TooLarge {
        /// Name of the object, such as `the blob sha256:…`.
        what: String,
        /// Limit in bytes.
        limit: u64,
    },
    /// The object is longer than its descriptor says.
    #[error(
        "{what} is longer than the {declared} bytes that its manifest says: the repository's copy is damaged, push it again"
    )]
    Longer {
        /// Name of the object, such as `the blob sha256:…`.
        what: String,
        /// Length in the descriptor, in bytes.
        declared: u64,
    },
    /// The response violates the protocol. The registry's fault.
    #[error("{target} sent {what} that cannot be read: {why}")]
    Malformed {
        /// Host and port of the other end.
        target: String,
        /// Object that was requested.
        what: String,
        /// Description of the violation.
        why: String,
    },
    /// Redirects are too many, or lead to an invalid location.
    #[error("{target} redirects to {to}, which is not followed: {why}")]
    Redirected {
        /// Host that redirects.
        target: String,
        /// Location that it redirects to.
        to: String,
        /// Reason why it is not followed.
        why: String,
    },
    /// The location has an address to which a registry may not redirect; reported as
    /// [`Self::Redirected`].
    #[error("{target} is out of reach: {why}")]
    Forbidden {
        /// Host and port of the location.
        target: String,
        /// Kind of the address.
        why: String,
    },
    /// The image contains no module, or the index leads to none or several.
    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
    /// The content is not a valid module. Its author's fault.
    #[error("{what} is no module: {source}")]
    NotAModule {
        /// Name of the object, such as `the blob sha256:…`.
        what: String,
        /// Error of the check.
        source: Box<abi::CheckError>,
    },
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The credentials file cannot be read. The operator's fault.
    #[error("{path}: {why}")]
    Credentials {
        /// Path of the file.
        path: String,
        /// Reason why it cannot be read.
        why: String,
    },
}

/// Reason of a [`RepositoryError::Redirected`] after too many redirects.
pub(crate) const TOO_MANY_REDIRECTS: &str = "more redirects than are followed";
const _: () = assert!(REDIRECTS_MAX < 10, "a request ends soon");

impl RepositoryError {
    /// Returns true if a retry, or another mirror, may succeed.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::TooSlow { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Returns true if the error means that the object does not exist.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
