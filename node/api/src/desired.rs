//! Desired state of a node: requests and answers of `tam apply`, `diff`, `confirm` and `rollback`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Request to apply a desired state as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Text of a node file (docs/reference/node-file.md); ports and settings may be left out.
    pub text: String,
    /// Name of the file, used in messages and as the cause of the generation.
    pub file: String,
    /// Modules that the text names as files, by the words of the text.
    #[serde(default)]
    pub modules: BTreeMap<String, ApplyModule>,
    /// Returns the changes without making them.
    #[serde(default)]
    pub dry_run: bool,
    /// Fetches modules that the text names by their digest, if needed; only with `dry_run`.
    #[serde(default)]
    pub fetch: bool,
    /// Number of seconds, at most a day, after which the state is taken back unless it is
    /// confirmed.
    #[serde(default)]
    pub confirm_s: Option<u64>,
    /// Allows services to begin empty if their new version cannot take over their state; without it
    /// that is refused, with `dry_run` too.
    #[serde(default)]
    pub discard_state: bool,
    /// Allows signed modules that are older than what ran here before.
    #[serde(default)]
    pub allow_older: bool,
}

/// Module that a node file names as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyModule {
    /// Digest `sha256:…` of its bytes.
    pub digest: String,
    /// Manifest of a module that is not in the store; only with `dry_run`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub manifest: Option<serde_json::Value>,
    /// True if the module exports `state_out` and `state_in`; given with a manifest.
    #[serde(default)]
    pub hands_state_over: bool,
    /// Fingerprint of the initial contents of its memory, in hexadecimal; given with a manifest.
    #[serde(default)]
    pub memory_image: Option<String>,
}

/// Changes that a request made, or would make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// Always [`crate::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// True if nothing was changed, because the request was a dry run.
    pub dry_run: bool,
    /// Generation of the node's present state.
    pub generation: u64,
    /// Changes made, or that would be made; empty if the node is in that state already.
    pub changes: Vec<DesiredChange>,
    /// Rules that no packet can reach, in words.
    pub shadowed: Vec<String>,
    /// Functions that stream services ask of the node and are not granted, in words.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// Number of seconds within which the state must be confirmed, if it must.
    pub confirm_within_s: Option<u64>,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

/// Difference between the present and the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DesiredChange {
    /// Kind: `session-added`, `session-changed`, `session-removed`, `service-added`,
    /// `service-changed`, `service-removed`, `rule-added`, `rule-removed`, `rule-order` or `bpf`.
    pub kind: String,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Name of the service.
    pub service: Option<String>,
    /// Description in words.
    pub text: String,
    /// Fields of the service or session that change.
    pub fields: Vec<FieldInfo>,
    /// True if another version replaces the service.
    pub replaced: bool,
    /// Reason that the service begins empty, if it does.
    #[serde(default)]
    pub state_lost: Option<String>,
}

/// Change of one field of a service or session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldInfo {
    /// Name of the field in a node file.
    pub field: String,
    /// Value before; null where it was not set.
    pub before: Option<String>,
    /// Value after; null where it is not set.
    pub after: Option<String>,
}

/// Answer to a confirmation: the state is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Confirmed {
    /// Always [`crate::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Generation of the state.
    pub generation: u64,
}

/// Request to return to an earlier state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Generation to return to; the previous one if left out.
    #[serde(default)]
    pub generation: Option<u64>,
    /// Returns the changes without making them.
    #[serde(default)]
    pub dry_run: bool,
}

/// Desired state of a node, and earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DesiredInfo {
    /// Always [`crate::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// Generation of the present state.
    pub generation: u64,
    /// Number of seconds left to confirm it, if it must be.
    pub confirm_within_s: Option<u64>,
    /// Parts of the desired state that do not run.
    pub waiting: Vec<WaitingInfo>,
    /// Stored states, newest first.
    pub generations: Vec<GenerationInfo>,
}

/// Part of the desired state that does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingInfo {
    /// Session, service or rule.
    pub what: String,
    /// Reason that it does not run.
    pub reason: String,
}

/// Stored state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GenerationInfo {
    /// Number of the generation.
    pub generation: u64,
    /// Cause of the state.
    pub cause: String,
    /// Number of sessions.
    #[serde(default)]
    pub sessions: usize,
    /// Number of services.
    pub services: usize,
    /// Number of rules.
    pub rules: usize,
    /// True if it waits, or waited, for a confirmation.
    pub unconfirmed: bool,
}
