//! Whom a node believes and what makes it that node: revocations, signatures, backups.

use crate::ErrorCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trust::TokenError;
use utoipa::ToSchema;

/// What a text is that is no token which counts.
#[must_use]
pub const fn code_of_token(problem: &TokenError) -> ErrorCode {
    match problem {
        TokenError::NotOurs => ErrorCode::Refused,
        TokenError::TooLong(_) | TokenError::TooManyBlocks(_) | TokenError::TooComplex { .. } => {
            ErrorCode::Limit
        }
        _ => ErrorCode::Usage,
    }
}

/// What shall count no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Ids of blocks of tokens, with which everything ends that was made of them; or public keys
    /// of principals or administrators.
    pub revoke: Vec<String>,
}

/// What was revoked, and what ran under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revoked {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// How many blocks and keys.
    pub revoked: u64,
    /// Services that were stopped.
    pub services: Vec<String>,
    /// Rules that were removed, beside those of these services.
    pub rules: Vec<u32>,
}

/// Everything that counts no more on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevocationList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Ids of blocks, and public keys.
    pub revoked: Vec<String>,
}

/// What a node's state directory says, for a backup of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeBackup {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The node's name.
    pub node: String,
    /// The version of `tam` that it runs.
    pub version: String,
    /// The generation of its desired state.
    pub generation: u64,
    /// The desired state.
    pub state: serde_json::Value,
    /// The digest of what its node file wanted when that was followed last, if it was.
    pub node_file: Option<String>,
    /// Capabilities under which something of it runs, by their numbers.
    pub capabilities: BTreeMap<u32, String>,
    /// Everything that was revoked.
    pub revoked: Vec<String>,
    /// The latest time that the node believed, in seconds since 1970.
    pub latest_time: u64,
    /// Where its state is, with its key and its ledger.
    pub state_directory: String,
    /// Where its modules are.
    pub store_directory: String,
}

/// Signatures of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignaturesRequest {
    /// As `tam sign` writes them beside a module (docs/guides/repository.md, "Signatures").
    pub file: String,
}

/// Signatures that the node's store has now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignaturesStored {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The module's digest.
    pub digest: String,
    /// Who of those that the node believes has signed it.
    pub signers: Vec<String>,
}
