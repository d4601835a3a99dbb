//! Reading a module from a directory in OCI image layout by any tool: the same images, archives,
//! indexes, limits and checks as [`pull`](crate::pull()) from a registry.

use module_store::layout::Descriptor;
use module_store::{DOCUMENT_LENGTH_MAX, Digest, Store, StoreError};

use crate::error::RepositoryError;
use crate::image::{Chosen, ImageError, ManifestBytes, Walk};
use crate::limits::CONFIG_LENGTH_MAX;
use crate::pull::{EMPTY, Pulled, Signed, check, layer_length_max, own_image, signable};
use crate::unpack;

/// Reads the module that a directory has under a name or digest, or without one its only module.
///
/// # Errors
/// No module or several match, the content is no module, or a blob is missing, damaged, or of
/// another length than its descriptor says.
pub fn read(store: &Store, wanted: &str) -> Result<Pulled, RepositoryError> {
    let entries = store.entries(wanted)?;
    let mut images = images_of(store, wanted, &entries)?;
    let first = &images[0].image;
    let layer = blob(store, &first.layer, layer_length_max(first))?;
    let wasm = unpack::module(layer, first.packing)?;
    let checked = check(&wasm, &format!("{wanted} in {}", store.directory().display()))?;
    let own = own_image(&wasm, &checked.manifest);
    // Of several images of the same module, prefers the one in this store's form.
    images.sort_by_key(|image| image.manifest.digest != own);
    let (at, signatures) = signatures_of_any(store, &images)?;
    let chosen = &images[at];
    let foreign = if !chosen.image.is_all || chosen.manifest.digest == own {
        None
    } else {
        Some((chosen.manifest.bytes.clone(), config(store, &chosen.image.config)?))
    };
    let mut pulled = Pulled::of(chosen, (wasm, checked), foreign);
    if let Some(signatures) = signatures {
        pulled.take_signatures(signatures);
    }
    Ok(pulled)
}

/// Returns the images of one module that index entries lead to.
fn images_of(
    store: &Store,
    wanted: &str,
    entries: &[Descriptor],
) -> Result<Vec<Chosen>, RepositoryError> {
    // In a directory modules are told apart by names, not by digests.
    let adapt_error = |error: ImageError| match (&error, entries.len()) {
        (ImageError::SeveralModules(_) | ImageError::TooDeep, 2..) => {
            store.ambiguous(wanted, entries).into()
        }
        _ => RepositoryError::from(error),
    };
    let mut walk = Walk::of_entries(entries.to_vec()).map_err(adapt_error)?;
    while let Some(entry) = walk.needs() {
        let (digest, media_type) = (entry.digest, Some(entry.media_type.clone()));
        match store.blob(&digest, DOCUMENT_LENGTH_MAX) {
            Ok(Some(bytes)) => walk.supply(ManifestBytes { digest, media_type, bytes })?,
            // A damaged image does not prevent using the others.
            Ok(None) | Err(StoreError::Damaged { .. }) if walk.skip() => {}
            Ok(None) => return Err(missing(store, &digest)),
            Err(error) => return Err(error.into()),
        }
    }
    walk.end().map_err(adapt_error)
}

fn signatures_of_any(
    store: &Store,
    images: &[Chosen],
) -> Result<(usize, Option<Signed>), RepositoryError> {
    for (at, about) in signable(images) {
        let signatures = store.signatures(&about)?;
        if !signatures.is_empty() {
            return Ok((at, Some((about, signatures))));
        }
    }
    Ok((0, None))
}

fn config(store: &Store, config: &Descriptor) -> Result<Vec<u8>, RepositoryError> {
    // The specification allows the config to be missing.
    if config.digest == Digest::of(EMPTY) {
        return Ok(EMPTY.to_vec());
    }
    blob(store, config, CONFIG_LENGTH_MAX)
}

/// Reads a blob of the length in its descriptor.
fn blob(store: &Store, blob: &Descriptor, limit: u64) -> Result<Vec<u8>, RepositoryError> {
    let what = || format!("the blob {}", blob.digest);
    if blob.size > limit {
        return Err(RepositoryError::TooLarge { what: what(), limit });
    }
    let bytes = store.blob(&blob.digest, limit)?.ok_or_else(|| missing(store, &blob.digest))?;
    let found = bytes.len() as u64;
    if found != blob.size {
        let (what, declared) = (blob.digest, blob.size);
        return Err(ImageError::Length { what, declared, found }.into());
    }
    Ok(bytes)
}

fn missing(store: &Store, digest: &Digest) -> RepositoryError {
    let target = store.directory().display().to_string();
    RepositoryError::NotFound { target, what: format!("the blob {digest}") }
}
