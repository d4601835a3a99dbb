//! Versions that run here, and signatures of modules that clients add.
//!
//! ```text
//! deployed, applied ─▶ the version of each signer's module of that name ─▶ state.redb
//! ```

use super::action::Keep;
use super::modules::{Modules, Stored};
use super::state::NodeState;
use crate::answer::{Answer, error, failed, usage};
use api::{ErrorCode, SCHEMA_VERSION, SignaturesStored};
use module_store::{Digest, Store};
use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use trust::versions::Older;
use trust::{SignatureFile, Signer, VersionError};

fn not_older(problem: &VersionError) -> api::ErrorInfo {
    match problem {
        VersionError::Older { .. } => error(
            ErrorCode::Refused,
            problem.to_string(),
            Some("an administrator allows it with --allow-older"),
        ),
        VersionError::Full => error(ErrorCode::Limit, problem.to_string(), None),
        VersionError::Malformed(_) | VersionError::NotMarks(_) => usage(problem),
    }
}

/// Checks that a module's version is not older than what its signers had here before.
pub(super) fn check_version(state: &mut NodeState, digest: &Digest) -> Answer<()> {
    let signers = state.modules.signers_of(digest)?;
    let module = state.modules.get(digest).filter(|_| !signers.is_empty());
    // Unsigned modules have no version history.
    let Some(module) = module else { return Ok(()) };
    let manifest = &module.checked.manifest;
    let checked =
        state.authority.versions().check(manifest.name.as_str(), &manifest.version, &signers);
    checked.map_err(|problem| not_older(&problem))
}

/// Notes that modules of these digests run from now on: older ones do not come back by themselves.
pub(super) fn mark_versions(state: &mut NodeState, digests: impl IntoIterator<Item = Digest>) {
    let mut news = false;
    for digest in digests {
        let Ok(signers) = state.modules.signers_of(&digest) else { continue };
        let module = state.modules.get(&digest).filter(|_| !signers.is_empty());
        let Some(module) = module else { continue };
        let manifest = &module.checked.manifest;
        let (name, version) = (manifest.name.as_str(), manifest.version.as_str());
        match state.authority.versions_mut().accept(name, version, &signers, Older::Allowed) {
            Ok(new) => news |= new,
            Err(problem) => {
                tracing::warn!(%problem, "the version of a signed module was not recorded: an older one may run")
            }
        }
    }
    if news {
        state.keep(Keep::Versions(state.authority.versions().to_string()));
    }
}

/// Write of signatures beside a module, to be made beside the loop.
pub(crate) struct SignatureWrite {
    digest: Digest,
    file: SignatureFile,
    store: Store,
    known: BTreeSet<Signer>,
    /// Writes under way: the module itself may be on its way to the disk.
    stores: Vec<Stored>,
    written: Sender<Answer<()>>,
}

impl SignatureWrite {
    /// Prepares the write of a client's signatures of a module.
    ///
    /// # Errors
    /// The module does not exist, or the file is malformed.
    pub(crate) fn new(modules: &mut Modules, wanted: &str, file: &str) -> Answer<Self> {
        let digest = modules.resolve(wanted)?;
        let file = file.parse::<SignatureFile>().map_err(usage)?;
        let (store, known) = (modules.store().clone(), modules.known_signers().clone());
        let (stores, written) = modules.begin_after_stores();
        Ok(Self { digest, file, store, known, stores, written })
    }

    /// Stores the signatures, trusted or not, and returns the accepted ones of the module. Blocks.
    ///
    /// # Errors
    /// The module or a signature could not be written.
    pub(crate) fn run(self) -> Answer<SignaturesStored> {
        let Self { digest, file, store, known, stores, written } = self;
        let put = || -> Answer<BTreeSet<Signer>> {
            stores.into_iter().try_for_each(|store| store.recv().unwrap_or(Ok(())))?;
            for image in store.images_of(&digest).map_err(failed)? {
                for signature in file.signatures() {
                    store.put_signature(&image, signature).map_err(failed)?;
                }
            }
            Ok(store.signers(&digest, &known).map_err(failed)?.signers)
        };
        let stored = put();
        // Nobody may be waiting.
        let _ = written.send(stored.clone().map(drop));
        stored.map(|signers| SignaturesStored {
            schema_version: SCHEMA_VERSION,
            digest: digest.to_string(),
            signers: signers.iter().map(ToString::to_string).collect(),
        })
    }
}
