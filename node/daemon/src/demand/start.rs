//! Fetch of modules that a node file names by their digests, when there is no daemon yet: a service's
//! name is in its module, so nothing can be decided before it is there.

use super::fetcher::{FetchedModule, Job, fetch_now};
use crate::config::{NodeFile, Unsigned};
use anyhow::{Context, Result};
use module_store::{Digest, Store};
use node::wanted::{Fetch, Hops};
use std::path::Path;
use units::Bytes;

/// Fetches what a node file names into the store. Returns the sizes of those that had to
/// be fetched.
pub(crate) fn fetch_for_start(file: &NodeFile, config: &Path, store: &Store) -> Result<Vec<Bytes>> {
    let mut fetched = Vec::new();
    if file.repositories.is_empty() {
        return Ok(fetched);
    }
    for service in &file.wanted.services {
        let module = &service.get_ref().module;
        let Ok(digest) = module.get_ref().parse::<Digest>() else { continue };
        if store.has(&digest) {
            continue;
        }
        tracing::info!(%digest, "a module of the node file is fetched");
        let at = |problem: String| file.wanted.at(module.span(), problem);
        let job = Job { fetch: Fetch { digest, hops: Hops::MAX }, previous: None };
        let come = fetch_now(file, config, &job).map_err(|failure| {
            at(format!("the module {digest} is not held, and did not come: {}", failure.text))
        })?;
        let FetchedModule { pulled, signers, from } = come;
        if file.trust.unsigned == Unsigned::Refuse && signers.is_empty() {
            let name = &pulled.checked.manifest.name;
            return Err(at(format!(
                "the module '{name}' ({digest}) of {from} is signed by no signer that this node trusts ([trust] signers)"
            )).into());
        }
        pulled.store_keeping_names(store).context("storing a module that was fetched")?;
        fetched.push(Bytes(pulled.wasm.len() as u64));
    }
    Ok(fetched)
}
