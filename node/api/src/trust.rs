//! Trust of a node: revocations, signatures, and backups of its identity.

use crate::ErrorCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trust::TokenError;
use utoipa::ToSchema;

/// Returns the error code for an invalid token.
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

/// Request to revoke tokens or keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// Ids of blocks of tokens, which invalidate all tokens derived from them; or public keys of
    /// principals or administrators.
    pub revoke: Vec<String>,
}

/// Revocations made, and what was stopped for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revoked {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Number of blocks and keys revoked.
    pub revoked: u64,
    /// Services that were stopped.
    pub services: Vec<String>,
    /// Rules that were removed, besides those of these services.
    pub rules: Vec<u32>,
}

/// Revocations on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevocationList {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Ids of blocks, and public keys.
    pub revoked: Vec<String>,
}

/// Contents of a node's state directory, for a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeBackup {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// Version of `tam` that it runs.
    pub version: String,
    /// Generation of its desired state.
    pub generation: u64,
    /// Desired state.
    pub state: serde_json::Value,
    /// Digest of the desired state of its node file when that was last applied, if it was.
    pub node_file: Option<String>,
    /// Capabilities under which something runs on the node, by their numbers.
    pub capabilities: BTreeMap<u32, String>,
    /// Revocations: ids of blocks, and public keys.
    pub revoked: Vec<String>,
    /// Latest time that the node accepted as true, in seconds since 1970.
    pub latest_time: u64,
    /// State directory, with the key and the ledger.
    pub state_directory: String,
    /// Directory of its modules.
    pub store_directory: String,
}

/// Signatures of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignaturesRequest {
    /// Contents of a signature file of `tam sign` (docs/guides/repository.md, "Signatures").
    pub file: String,
}

/// Signatures that the node's store has now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignaturesStored {
    /// Always [`SCHEMA_VERSION`](crate::SCHEMA_VERSION).
    pub schema_version: u32,
    /// Digest of the module.
    pub digest: String,
    /// Signers among those that the node trusts.
    pub signers: Vec<String>,
}
