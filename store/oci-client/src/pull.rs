//! Pulling a module from a repository: resolve, fetch, verify the digest, unpack, check, with its
//! signatures.

use std::collections::BTreeSet;

use abi::{Checked, Manifest, Unverified};
use module_store::layout::{self, Descriptor, Documents, Image, MANIFEST_TYPE};
use module_store::{Digest, MODULE_LENGTH_MAX, Store, signatures};
use trust::signature::{PAYLOAD_LENGTH_MAX, Verified};
use trust::{ImageDigest, Signature, Signer};

use crate::address::{Reference, TagOrDigest};
use crate::client::{Client, Progress};
use crate::error::RepositoryError;
use crate::image::{Chosen, ImageError, ManifestBytes, ModuleImage, Packing, Walk};
use crate::limits::{CONFIG_LENGTH_MAX, PACKED_LENGTH_MAX};
use crate::unpack;

/// Tag of a reference without one.
const TAG: &str = "latest";
/// Config of images without one (image specification, "empty descriptor").
pub(crate) const EMPTY: &[u8] = b"{}";

/// Pulled module.
#[derive(Debug)]
pub struct Pulled {
    /// Digest of the module.
    pub digest: Digest,
    /// Bytes of the module.
    pub wasm: Vec<u8>,
    /// Result of the module's check, with its manifest.
    pub checked: Checked,
    /// Digest that the reference was resolved to: an image manifest, or an index.
    pub resolved: Digest,
    /// Image manifest that the signatures are about.
    pub image: Digest,
    /// Signatures, unverified.
    pub signatures: Vec<Signature>,
    /// Image manifest and config, if they differ from those that the store would make.
    foreign: Option<(Vec<u8>, Vec<u8>)>,
    /// True if signatures remain valid in the store. Those of an archive are about the archive.
    keeps_signatures: bool,
}

impl Pulled {
    /// Verifies the signatures and returns the signers.
    #[must_use]
    pub fn verified(&self, known: &BTreeSet<Signer>) -> Verified {
        trust::signature::signers(&ImageDigest(*self.image.bytes()), &self.signatures, known)
    }

    /// Returns true if signatures can be verified again in the store: not for an archive, whose
    /// signatures are about the archive, nor if only an index was signed.
    #[must_use]
    pub const fn keeps_signatures(&self) -> bool {
        self.keeps_signatures
    }

    /// Returns the signatures that are about the image which the store makes of the module, so that
    /// they are valid for its bytes alone.
    #[must_use]
    pub fn own_signatures(&self) -> &[Signature] {
        if self.foreign.is_none() && self.keeps_signatures { &self.signatures } else { &[] }
    }

    /// Puts the module into a store, with its signatures.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn store(&self, store: &Store) -> Result<(), RepositoryError> {
        match &self.foreign {
            Some((image, config)) => {
                store.put_image(image, config, &self.wasm, &self.checked.manifest)?
            }
            None => store.put(&self.wasm, &self.checked.manifest)?,
        };
        self.store_signatures(store)
    }

    /// Puts a module that was requested by its digest into a store, with its signatures. Leaves a
    /// name that another module of the store has.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn store_keeping_names(&self, store: &Store) -> Result<(), RepositoryError> {
        let foreign = self.foreign.as_ref();
        let foreign = foreign.map(|(image, config)| (image.as_slice(), config.as_slice()));
        store.put_keeping_names(foreign, &self.wasm, &self.checked.manifest)?;
        self.store_signatures(store)
    }

    /// Returns the documents of its image for pushing, with the signatures that are valid for it.
    #[must_use]
    pub fn documents(&self) -> (Documents, &[Signature]) {
        let mut documents = own_documents(&self.wasm, &self.checked.manifest);
        if let Some((image, config)) = &self.foreign {
            documents.entry = Descriptor::of(MANIFEST_TYPE, image);
            (documents.image, documents.config) = (image.clone(), config.clone());
        }
        let is_kept = self.keeps_signatures && documents.entry.digest == self.image;
        (documents, if is_kept { &self.signatures } else { &[] })
    }

    /// Makes a pulled module of a chosen image, without signatures. `foreign` is its manifest and
    /// config, if the store would make others.
    pub(crate) fn of(
        chosen: &Chosen,
        (wasm, checked): (Vec<u8>, Checked),
        foreign: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let image = chosen.manifest.digest;
        Self {
            digest: Digest::of(&wasm),
            wasm,
            checked,
            resolved: chosen.indexes.first().copied().unwrap_or(image),
            image,
            signatures: Vec::new(),
            foreign,
            keeps_signatures: chosen.image.is_all,
        }
    }

    /// Adds the signatures of its image, or of an index that leads to it: a signature of an index
    /// covers the digest of the image in it.
    pub(crate) fn take_signatures(&mut self, (about, signatures): Signed) {
        self.keeps_signatures &= about == self.image;
        (self.image, self.signatures) = (about, signatures);
    }

    fn store_signatures(&self, store: &Store) -> Result<(), RepositoryError> {
        for signature in self.signatures.iter().filter(|_| self.keeps_signatures) {
            store.put_signature(&self.image, signature)?;
        }
        Ok(())
    }
}

/// Pulls the module of a reference. The tag is resolved once; everything else is requested by
/// digest.
///
/// # Errors
/// The module cannot be fetched, does not match its digest, or is invalid.
pub async fn pull(
    client: &Client,
    reference: &Reference,
    progress: Option<Progress<'_>>,
) -> Result<Pulled, RepositoryError> {
    let name = &reference.name;
    let tag_or_digest =
        reference.tag_or_digest.clone().unwrap_or_else(|| TagOrDigest::Tag(TAG.to_owned()));
    let found = client.manifest(name, &tag_or_digest).await?;
    let images = images_of(client, name, found).await?;
    let (at, signatures) = signatures_of_any(client, name, &images).await?;
    let chosen = &images[at];
    let limit = layer_length_max(&chosen.image);
    let layer = client.blob(name, &chosen.image.layer, limit, progress).await?;
    let wasm = unpack::module(layer, chosen.image.packing)?;
    let checked = check(&wasm, &reference.to_string())?;
    let foreign = foreign(client, name, chosen, &wasm, &checked.manifest).await?;
    let mut pulled = Pulled::of(chosen, (wasm, checked), foreign);
    if let Some(signatures) = signatures {
        pulled.take_signatures(signatures);
    }
    Ok(pulled)
}

/// Returns the signatures of the first of these images (all of one module) that has some, or else
/// of the innermost index that leads to the first image and has some.
async fn signatures_of_any(
    client: &Client,
    name: &str,
    images: &[Chosen],
) -> Result<(usize, Option<Signed>), RepositoryError> {
    for (at, about) in signable(images) {
        let signatures = signatures_of(client, name, &about).await?;
        if !signatures.is_empty() {
            return Ok((at, Some((about, signatures))));
        }
    }
    Ok((0, None))
}

/// Signed digest, with its signatures.
pub(crate) type Signed = (Digest, Vec<Signature>);

/// Returns the digests that may have been signed for images of one module, each with the index of
/// the image to take then.
pub(crate) fn signable(images: &[Chosen]) -> impl Iterator<Item = (usize, Digest)> {
    let manifests = images.iter().enumerate().map(|(at, image)| (at, image.manifest.digest));
    let indexes = images.first().into_iter().flat_map(|image| image.indexes.iter().rev());
    manifests.chain(indexes.map(|index| (0, *index)))
}

/// Pulls the module of this digest from any name of a registry, such as another node.
///
/// # Errors
/// Errors of [`pull`].
pub async fn pull_by_digest(
    client: &Client,
    name: &str,
    digest: &Digest,
    progress: Option<Progress<'_>>,
) -> Result<Pulled, RepositoryError> {
    let wasm = client.blob_of(name, digest, None, MODULE_LENGTH_MAX, progress).await?;
    let checked = check(&wasm, &digest.to_string())?;
    let image = own_image(&wasm, &checked.manifest);
    let mut pulled = Pulled {
        digest: *digest,
        signatures: signatures_of(client, name, &image).await?,
        wasm,
        checked,
        resolved: image,
        image,
        foreign: None,
        keeps_signatures: true,
    };
    if pulled.signatures.is_empty() {
        foreign_by_digest(client, name, &mut pulled).await?;
    }
    Ok(pulled)
}

/// Fetches the image manifest of a module that another tool has pushed, since its signatures are
/// about that image. Nodes provide it under this tag.
async fn foreign_by_digest(
    client: &Client,
    name: &str,
    pulled: &mut Pulled,
) -> Result<(), RepositoryError> {
    let tag_or_digest = TagOrDigest::Tag(module_tag(&pulled.digest));
    let found = match client.manifest(name, &tag_or_digest).await {
        Err(error) if error.is_not_found() => return Ok(()),
        found => found?,
    };
    let chosen = images_of(client, name, found).await?.swap_remove(0);
    if !chosen.image.is_all || chosen.image.layer.digest != pulled.digest {
        return Ok(());
    }
    let manifest = &pulled.checked.manifest;
    pulled.foreign = foreign(client, name, &chosen, &pulled.wasm, manifest).await?;
    let image = chosen.manifest.digest;
    (pulled.resolved, pulled.image) = (image, image);
    pulled.signatures = signatures_of(client, name, &image).await?;
    Ok(())
}

/// Returns the tag under which a node provides the image of a module.
#[must_use]
pub fn module_tag(module: &Digest) -> String {
    format!("module-{}", module.hex())
}

/// Returns the images of one module that a manifest is or leads to, in order of preference.
async fn images_of(
    client: &Client,
    name: &str,
    found: ManifestBytes,
) -> Result<Vec<Chosen>, RepositoryError> {
    let mut walk = Walk::from(found)?;
    while let Some(entry) = walk.needs() {
        match client.manifest(name, &TagOrDigest::Digest(entry.digest)).await {
            Err(error) if error.is_not_found() && walk.skip() => {}
            manifest => walk.supply(manifest?)?,
        }
    }
    Ok(walk.end()?)
}

/// Returns the length limit of a module's layer.
pub(crate) const fn layer_length_max(image: &ModuleImage) -> u64 {
    match image.packing {
        Packing::Plain => MODULE_LENGTH_MAX,
        Packing::Tar => PACKED_LENGTH_MAX,
    }
}

/// Returns the image manifest and config to keep; `None` if the store makes the same ones.
async fn foreign(
    client: &Client,
    name: &str,
    chosen: &Chosen,
    wasm: &[u8],
    manifest: &Manifest,
) -> Result<Option<(Vec<u8>, Vec<u8>)>, RepositoryError> {
    if !chosen.image.is_all || chosen.manifest.digest == own_image(wasm, manifest) {
        return Ok(None);
    }
    let config = &chosen.image.config;
    let config = if config.digest == Digest::of(EMPTY) {
        EMPTY.to_vec()
    } else {
        client.blob(name, config, CONFIG_LENGTH_MAX, None).await?
    };
    Ok(Some((chosen.manifest.bytes.clone(), config)))
}

/// Returns the documents that the store makes of a module.
fn own_documents(wasm: &[u8], manifest: &Manifest) -> Documents {
    layout::documents(wasm, manifest).expect("texts and numbers become JSON")
}

/// Returns the digest of the image that the store makes of a module.
pub(crate) fn own_image(wasm: &[u8], manifest: &Manifest) -> Digest {
    own_documents(wasm, manifest).entry.digest
}

pub(crate) fn check(wasm: &[u8], what: &str) -> Result<Checked, RepositoryError> {
    Unverified(wasm).check().map_err(|error| RepositoryError::NotAModule {
        what: what.to_owned(),
        source: Box::new(error),
    })
}

/// Fetches the signatures of an image; empty if the registry has none.
pub(crate) async fn signatures_of(
    client: &Client,
    name: &str,
    image: &Digest,
) -> Result<Vec<Signature>, RepositoryError> {
    let Some(found) = signature_image(client, name, image).await? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for layer in signatures::layers(&found) {
        let payload = client.blob(name, layer, PAYLOAD_LENGTH_MAX as u64, None).await?;
        all.extend(signatures::of_layer(layer, payload));
    }
    Ok(all)
}

/// Fetches the image of signatures of another image.
pub(crate) async fn signature_image(
    client: &Client,
    name: &str,
    image: &Digest,
) -> Result<Option<Image>, RepositoryError> {
    let tag_or_digest = TagOrDigest::Tag(signatures::name(image));
    let found = match client.manifest(name, &tag_or_digest).await {
        Err(error) if error.is_not_found() => return Ok(None),
        found => found?,
    };
    let read: Image = serde_json::from_slice(&found.bytes)
        .map_err(|error| ImageError::NotADocument(error.to_string()))?;
    Ok(Some(read))
}
