//! Several repositories that may have the same module, asked one after the other.

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

/// A repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where.
    pub registry: Registry,
    /// What comes before names there, with a slash at its end, or nothing.
    pub prefix: String,
    /// How it is spoken to.
    pub settings: Settings,
}

/// What is wanted of them.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// What a reference names; its registry is that of each source in turn.
    Reference(Reference),
    /// The module of a digest, under a name.
    Module {
        /// The name.
        name: String,
        /// The digest of its bytes.
        digest: Digest,
    },
}

/// Asks one repository after the other, those that are well first, until one has it: at most the
/// time of each, together. Time counts from `begin`, which is the same for every call.
///
/// # Errors
/// What each said, in the order in which they were asked.
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

/// Asks one repository.
///
/// # Errors
/// As [`pull`] and [`pull_by_digest`].
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
                place: reference.place.clone(),
            };
            pull(&client, &reference, progress).await
        }
        Wanted::Module { name, digest } => {
            pull_by_digest(&client, &named(name), digest, progress).await
        }
    }
}
