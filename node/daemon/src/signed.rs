//! Which modules this node runs: those that somebody it believes has signed, in versions that do
//! not go back.
//!
//! ```text
//! module, its signatures ─▶ store ─▶ signers ─ one of [trust] signers? ─▶ hold ─▶ compile, run
//!                                                └ none: refused, unless unsigned = "accept"
//! deployed, applied ─▶ the version of each signer's module of that name ─▶ state.redb
//! ```
//!
//! Every way to a module leads through `Daemon::hold`, so what it refuses runs nowhere.

use crate::config::Unsigned;
use crate::daemon::Daemon;
use crate::http::{Answer, error};
use crate::reply::Reply;
use crate::views::{failed, usage};
use api::{ErrorCode, SCHEMA_VERSION, SignaturesRequest, SignaturesStored};
use module_store::Digest;
use std::collections::BTreeSet;
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

impl Daemon {
    /// Whom the node believes has signed a module that it holds. Read from the store until there
    /// is somebody.
    pub(crate) fn signers_of(&mut self, digest: &Digest) -> Answer<BTreeSet<Signer>> {
        let known = &self.file.trust.signers;
        let held = self.modules.get(digest).map(|module| module.signers.clone());
        match held {
            Some(signers) if known.is_empty() || !signers.is_empty() => return Ok(signers),
            _ if known.is_empty() => return Ok(BTreeSet::new()),
            _ => {}
        }
        let found = self.store.signers(digest, known).map_err(failed)?.signers;
        if let Some(module) = self.modules.get_mut(digest) {
            module.signers.clone_from(&found);
        }
        Ok(found)
    }

    /// Whether a module that the node holds may run here at all.
    pub(crate) fn permit(&mut self, digest: &Digest) -> Answer<()> {
        if self.file.trust.unsigned == Unsigned::Accept || !self.signers_of(digest)?.is_empty() {
            return Ok(());
        }
        let name = self.modules.get(digest).map(|it| it.checked.manifest.name.to_string());
        Err(self.unsigned(digest, &name.unwrap_or_default()))
    }

    /// Why a module of that name may not.
    pub(crate) fn unsigned(&self, digest: &Digest, name: &str) -> api::ErrorInfo {
        let message = format!(
            "nobody whom this node believes has signed the module '{name}' ({}…)",
            digest.short()
        );
        let help = match self.file.trust.signers.is_empty() {
            true => {
                "put a key into the node file, [trust] signers = [\"ed25519/…\"] (`tam key new`), and sign with it (`tam sign`); or say there unsigned = \"accept\""
            }
            false => {
                "`tam sign MODULE.wasm --key NAME`, with a key of [trust] signers, and deploy it again"
            }
        };
        error(ErrorCode::Refused, message, Some(help))
    }

    /// Whether a module's version is not older than what its signers had here before.
    pub(crate) fn check_version(&mut self, digest: &Digest) -> Answer<()> {
        let signers = self.signers_of(digest)?;
        let module = self.modules.get(digest).filter(|_| !signers.is_empty());
        // Of modules that nobody has signed there is no history.
        let Some(module) = module else { return Ok(()) };
        let manifest = &module.checked.manifest;
        let checked =
            self.authority.versions.check(manifest.name.as_str(), &manifest.version, &signers);
        checked.map_err(|problem| not_older(&problem))
    }

    /// Modules of these digests run from now on: older ones do not come back by themselves.
    pub(crate) fn mark_versions(&mut self, digests: impl IntoIterator<Item = Digest>) {
        let mut news = false;
        for digest in digests {
            let Ok(signers) = self.signers_of(&digest) else { continue };
            let module = self.modules.get(&digest).filter(|_| !signers.is_empty());
            let Some(module) = module else { continue };
            let manifest = &module.checked.manifest;
            let (name, version) = (manifest.name.as_str(), manifest.version.as_str());
            match self.authority.versions.accept(name, version, &signers, Older::Allowed) {
                Ok(new) => news |= new,
                Err(problem) => tracing::warn!(%problem, "a version was not noted"),
            }
        }
        if !news {
            return;
        }
        let marks = self.authority.versions.to_string();
        self.in_journal(
            move |journal| journal.keep_versions(&marks),
            |kept| {
                if let Err(problem) = kept {
                    let problem = problem.message;
                    tracing::warn!(
                        problem,
                        "versions were not written down: a restart forgets them"
                    );
                }
            },
        );
    }

    /// Answers `POST /v1/modules/DIGEST/signatures`: keeps them beside the module, whoever made
    /// them, and says which count here.
    pub(crate) fn add_signatures(
        &mut self,
        wanted: &str,
        request: &SignaturesRequest,
        reply: Reply<SignaturesStored>,
    ) {
        let parsed = self
            .resolve(wanted)
            .and_then(|digest| Ok((digest, request.file.parse::<SignatureFile>().map_err(usage)?)));
        let (digest, file) = match parsed {
            Ok(parsed) => parsed,
            Err(refusal) => return reply.refuse(refusal),
        };
        let (store, known) = (self.store.clone(), self.file.trust.signers.clone());
        // The module itself may be on its way to the disk.
        let stores = std::mem::take(&mut self.desired.stores);
        let (written, awaited) = std::sync::mpsc::channel();
        self.desired.stores.push(awaited);
        tokio::task::spawn_blocking(move || {
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
            let _ = written.send(stored.clone().map(drop));
            reply.answer(stored.map(|signers| SignaturesStored {
                schema_version: SCHEMA_VERSION,
                digest: digest.to_string(),
                signers: signers.iter().map(ToString::to_string).collect(),
            }));
        });
    }
}
