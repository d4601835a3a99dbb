//! What shall run on a node: requests and answers of `tam apply`, `diff`, `confirm`, `rollback`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Asks for a desired state as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// The text of a node file (docs/reference/node-file.md); ports and settings may be left out.
    pub text: String,
    /// The file's name, in messages and as the cause of the generation.
    pub file: String,
    /// The modules that the text names as files, by the text's words.
    #[serde(default)]
    pub modules: BTreeMap<String, ApplyModule>,
    /// Only say what would change.
    #[serde(default)]
    pub dry_run: bool,
    /// Beside `dry_run`: modules that the text names by their digest may be fetched for that.
    #[serde(default)]
    pub fetch: bool,
    /// Take it back unless it is confirmed within so many seconds, at most a day.
    #[serde(default)]
    pub confirm_s: Option<u64>,
    /// Services whose new version cannot take over what they know may begin empty; without it
    /// that is refused, with `dry_run` too.
    #[serde(default)]
    pub discard_state: bool,
    /// Signed modules may be older than what ran here before.
    #[serde(default)]
    pub allow_older: bool,
}

/// A module that a text names as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyModule {
    /// `sha256:…` of its bytes.
    pub digest: String,
    /// Its manifest, for a module that is not in the store; only where nothing is changed.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub manifest: Option<serde_json::Value>,
    /// Beside a manifest: whether it exports `state_out` and `state_in`.
    #[serde(default)]
    pub hands_state_over: bool,
    /// Beside a manifest: a fingerprint of what its memory begins with, in hexadecimal.
    #[serde(default)]
    pub memory_image: Option<String>,
}

/// What a request did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// Always [`crate::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// True when nothing was changed, because nothing was to be.
    pub dry_run: bool,
    /// The generation of the state that the node has now.
    pub generation: u64,
    /// What was changed, or would be; nothing when the node is as it should be.
    pub changes: Vec<DesiredChange>,
    /// Rules that no packet can reach, in words.
    pub shadowed: Vec<String>,
    /// Functions that services of streams ask of the node and are not granted, in words.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// Seconds within which it must be confirmed, if it must.
    pub confirm_within_s: Option<u64>,
    /// Milliseconds that it took.
    pub took_ms: u64,
}

/// One difference between what runs and what shall run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DesiredChange {
    /// `session-added`, `session-changed`, `session-removed`, `service-added`, `service-changed`,
    /// `service-removed`, `rule-added`, `rule-removed`, `rule-order` or `bpf`.
    pub kind: String,
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// The same in words.
    pub text: String,
    /// What of the service or session changes.
    pub fields: Vec<FieldInfo>,
    /// Whether another version takes the place of the service.
    pub replaced: bool,
    /// Why the service begins empty, if it does.
    #[serde(default)]
    pub state_lost: Option<String>,
}

/// One field of a service or session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldInfo {
    /// Its name as in a node file.
    pub field: String,
    /// What it was; null where it was not set.
    pub before: Option<String>,
    /// What it shall be; null where it is no longer set.
    pub after: Option<String>,
}

/// The state is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Confirmed {
    /// Always [`crate::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Its generation.
    pub generation: u64,
}

/// Asks for an earlier state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Its generation; the one before the present one when there is none.
    #[serde(default)]
    pub generation: Option<u64>,
    /// Only say what would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// What shall run, and what was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DesiredInfo {
    /// Always [`crate::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The node.
    pub node: String,
    /// The generation of its state.
    pub generation: u64,
    /// Seconds that are left to confirm it, if it must be.
    pub confirm_within_s: Option<u64>,
    /// What is desired and not there.
    pub waiting: Vec<WaitingInfo>,
    /// The states that are kept, newest first.
    pub generations: Vec<GenerationInfo>,
}

/// Something that is desired and not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingInfo {
    /// The session, service or rule.
    pub what: String,
    /// Why it is not there.
    pub reason: String,
}

/// One state that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GenerationInfo {
    /// Its number.
    pub generation: u64,
    /// What made it.
    pub cause: String,
    /// Sessions in it.
    #[serde(default)]
    pub sessions: usize,
    /// Services in it.
    pub services: usize,
    /// Rules in it.
    pub rules: usize,
    /// Whether it waits, or waited, for a confirmation.
    pub unconfirmed: bool,
}
