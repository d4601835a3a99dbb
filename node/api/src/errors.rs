//! Errors as JSON documents, with their codes.

use node::refusal::RefusalClass;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Error of the API or of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDocument {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Error.
    pub error: ErrorInfo,
}

/// Description of an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorInfo {
    /// Kind of the error; each has an exit status (docs/reference/exit-codes.md).
    pub code: ErrorCode,
    /// Message: what happened and why.
    pub message: String,
    /// Advice on what to do.
    pub help: Option<String>,
}

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The operation failed: exit status 1.
    Failed,
    /// The command is wrong: exit status 2.
    Usage,
    /// A named object does not exist: exit status 3.
    NotFound,
    /// A policy or signature refuses: exit status 4.
    Refused,
    /// A limit is exceeded: exit status 5.
    Limit,
    /// The node cannot be reached: exit status 6.
    Unreachable,
    /// The kernel or the device does not support it: exit status 7.
    Unsupported,
    /// The operation was done in part: exit status 8.
    Partial,
}

impl ErrorCode {
    /// Returns the exit status of a command that ends with the error.
    #[must_use]
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Refused => 4,
            Self::Limit => 5,
            Self::Unreachable => 6,
            Self::Unsupported => 7,
            Self::Partial => 8,
        }
    }

    /// Returns the HTTP status of an answer with the error.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Failed => 500,
            Self::Usage => 400,
            Self::NotFound => 404,
            Self::Refused => 403,
            Self::Limit => 429,
            Self::Unreachable => 502,
            Self::Unsupported => 501,
            Self::Partial => 500,
        }
    }
}

/// Returns the code for a class of refusals.
#[must_use]
pub const fn code_of(class: RefusalClass) -> ErrorCode {
    match class {
        RefusalClass::Invalid => ErrorCode::Usage,
        RefusalClass::NotFound => ErrorCode::NotFound,
        RefusalClass::Loses | RefusalClass::Busy => ErrorCode::Failed,
        RefusalClass::Limit => ErrorCode::Limit,
        RefusalClass::Forbidden => ErrorCode::Refused,
    }
}
