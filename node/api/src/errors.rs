//! What an error looks like on the wire, and its code.

use node::refusal::RefusalClass;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An error, of the API and of every command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDocument {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The error.
    pub error: ErrorInfo,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorInfo {
    /// Its kind; each has an exit status (docs/reference/exit-codes.md).
    pub code: ErrorCode,
    /// What happened and why.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Something failed: exit status 1.
    Failed,
    /// The command is wrong: 2.
    Usage,
    /// What it names is not there: 3.
    NotFound,
    /// A policy or signature refuses: 4.
    Refused,
    /// Over a limit: 5.
    Limit,
    /// The node cannot be reached: 6.
    Unreachable,
    /// The kernel or device cannot: 7.
    Unsupported,
    /// Partly done: 8.
    Partial,
}

impl ErrorCode {
    /// The exit status of the command that ends with it.
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

    /// The HTTP status that carries it.
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

/// What the node's own refusals are.
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
