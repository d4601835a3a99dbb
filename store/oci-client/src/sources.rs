//! Pulls from several repositories that may have the same module, one after the other.

use std::sync::Arc;
use std::time::Duration;

use module_store::Digest;
use tokio::time::Instant;

use crate::address::{Reference, Registry};
use crate::client::{Client, Progress, Settings};
use crate::error::RepositoryError;
use crate::http::Transport;
use crate::mirrors::Mirrors;
use crate::pull::{Pulled, pull, pull_by_digest};

/// Repository with its settings.
#[derive(Clone, Debug)]
pub struct Source {
    /// Address of the registry.
    pub registry: Registry,
    /// Prefix of names in it, with a trailing slash, or empty.
    pub prefix: String,
    /// Settings of the client.
    pub settings: Settings,
}

/// Module to pull.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Module of a reference, whose registry is replaced by that of each source.
    Reference(Reference),
    /// Module of a digest, under a name.
    Module {
        /// Name in the repository.
        name: String,
        /// Digest of the module.
        digest: Digest,
    },
}

/// Pulls from the first repository that has the module, healthy ones first. The time limits of the
/// repositories add up. `begin` is the epoch of health times, the same for every call.
///
/// # Errors
/// Error of each repository, in the order in which they were asked.
pub async fn pull_from(
    transport: &Arc<dyn Transport>,
    sources: &mut Mirrors<Source>,
    wanted: &Wanted,
    begin: Instant,
    progress: Option<Progress<'_>>,
) -> Result<(Source, Pulled), Vec<RepositoryError>> {
    let mut errors = Vec::new();
    let now = || -> Duration { begin.elapsed() };
    for number in sources.order(now()) {
        let Some(source) = sources.get(number).cloned() else { continue };
        match pull_one(transport, &source, wanted, progress).await {
            Ok(pulled) => {
                sources.answered(number);
                return Ok((source, pulled));
            }
            Err(error) => {
                if error.is_not_found() {
                    sources.answered(number);
                } else {
                    sources.failed(number, now());
                }
                errors.push(error);
            }
        }
    }
    Err(errors)
}

/// Pulls from one repository.
///
/// # Errors
/// Errors of [`pull`] and [`pull_by_digest`].
pub async fn pull_one(
    transport: &Arc<dyn Transport>,
    source: &Source,
    wanted: &Wanted,
    progress: Option<Progress<'_>>,
) -> Result<Pulled, RepositoryError> {
    let client = Client::new(Arc::clone(transport), &source.registry, source.settings.clone());
    let named = |name: &str| format!("{}{name}", source.prefix);
    match wanted {
        Wanted::Reference(reference) => {
            let reference = Reference {
                registry: source.registry.clone(),
                name: named(&reference.name),
                tag_or_digest: reference.tag_or_digest.clone(),
            };
            pull(&client, &reference, progress).await
        }
        Wanted::Module { name, digest } => {
            pull_by_digest(&client, &named(name), digest, progress).await
        }
    }
}
