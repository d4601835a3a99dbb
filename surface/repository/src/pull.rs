//! A module out of a repository: found, fetched, compared with its digest, unpacked, checked, with
//! its signatures.

use std::collections::BTreeSet;

use abi::{Checked, Manifest, Unverified};
use registry::layout::{self, Image};
use registry::{Digest, MODULE_LENGTH_MAX, Store, signatures};
use trust::signature::{PAYLOAD_LENGTH_MAX, Verified};
use trust::{ImageDigest, Signature, Signer};

use crate::address::{Place, Reference};
use crate::client::{Client, ManifestBytes, Progress};
use crate::error::RepositoryError;
use crate::image::{self, Document, ImageError, ModuleImage, Packing};
use crate::limits::{CONFIG_LENGTH_MAX, PACKED_LENGTH_MAX};
use crate::unpack;

/// What a reference without a tag means.
const TAG: &str = "latest";
/// The config of images that have none (image specification, "empty descriptor").
const EMPTY: &[u8] = b"{}";

/// A module as it came.
#[derive(Debug)]
pub struct Pulled {
    /// The digest of its bytes.
    pub digest: Digest,
    /// Its bytes.
    pub wasm: Vec<u8>,
    /// What it declares.
    pub checked: Checked,
    /// What the reference led to: an image manifest, or an index with one.
    pub resolved: Digest,
    /// The image manifest that its signatures are about.
    pub image: Digest,
    /// Whose word there is for it; none is verified yet.
    pub signatures: Vec<Signature>,
    /// The image manifest and its config, where they are others than ours would be.
    foreign: Option<(Vec<u8>, Vec<u8>)>,
    /// Whether the signatures go with it: those of an archive are about the archive.
    keeps_signatures: bool,
}

impl Pulled {
    /// Who has signed it.
    #[must_use]
    pub fn verified(&self, known: &BTreeSet<Signer>) -> Verified {
        trust::signature::signers(&ImageDigest(*self.image.bytes()), &self.signatures, known)
    }

    /// Whether what [`Pulled::store`] keeps can be verified again: not that of an archive, whose
    /// signatures are about the archive, nor where a whole index was signed.
    #[must_use]
    pub const fn keeps_signatures(&self) -> bool {
        self.keeps_signatures
    }

    /// The signatures that are about the image which the store makes of the module, so that they
    /// hold for its bytes alone.
    #[must_use]
    pub fn own_signatures(&self) -> &[Signature] {
        if self.foreign.is_none() && self.keeps_signatures { &self.signatures } else { &[] }
    }

    /// Puts it into a store, with its signatures.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn store(&self, store: &Store) -> Result<(), RepositoryError> {
        match &self.foreign {
            Some((image, config)) => {
                store.put_image(image, config, &self.wasm, &self.checked.manifest)?
            }
            None => store.put(&self.wasm, &self.checked.manifest)?,
        };
        self.store_signatures(store)
    }

    /// The same for one that somebody asked for by its digest: a name that another module of the
    /// store has stays that one's.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn store_beside(&self, store: &Store) -> Result<(), RepositoryError> {
        let foreign = self.foreign.as_ref();
        let foreign = foreign.map(|(image, config)| (image.as_slice(), config.as_slice()));
        store.put_beside(foreign, &self.wasm, &self.checked.manifest)?;
        self.store_signatures(store)
    }

    fn store_signatures(&self, store: &Store) -> Result<(), RepositoryError> {
        for signature in self.signatures.iter().filter(|_| self.keeps_signatures) {
            store.put_signature(&self.image, signature)?;
        }
        Ok(())
    }
}

/// Pulls what a reference names. The tag is resolved once: everything else is asked for by
/// digest.
///
/// # Errors
/// When it does not come, is something else than its digest says, or no module.
pub async fn pull(
    client: &Client,
    reference: &Reference,
    progress: Option<Progress<'_>>,
) -> Result<Pulled, RepositoryError> {
    let name = &reference.name;
    let place = reference.place.clone().unwrap_or_else(|| Place::Tag(TAG.to_owned()));
    let found = client.manifest(name, &place).await?;
    let resolved = found.digest;
    let (image, found) = image_of(client, name, found).await?;
    let limit = if found.packing == Packing::Plain { MODULE_LENGTH_MAX } else { PACKED_LENGTH_MAX };
    let layer = client.blob(name, &found.layer, limit, progress).await?;
    let wasm = unpack::module(layer, found.packing)?;
    let checked = check(&wasm, &reference.to_string())?;
    let foreign = foreign(client, name, &image, &found, &wasm, &checked.manifest).await?;
    let mut pulled = Pulled {
        digest: Digest::of(&wasm),
        wasm,
        checked,
        resolved,
        image: image.digest,
        signatures: signatures_of(client, name, &image.digest).await?,
        foreign,
        keeps_signatures: found.packing == Packing::Plain,
    };
    if pulled.signatures.is_empty() && resolved != pulled.image {
        // Whoever signed the index has signed the digest of this image in it.
        pulled.signatures = signatures_of(client, name, &resolved).await?;
        if !pulled.signatures.is_empty() {
            (pulled.image, pulled.keeps_signatures) = (resolved, false);
        }
    }
    Ok(pulled)
}

/// Pulls the module of this digest from any name of a registry, another node's for instance.
///
/// # Errors
/// As [`pull`].
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

/// A module that another tool has pushed is signed by its image there, which a node knows under
/// this name.
async fn foreign_by_digest(
    client: &Client,
    name: &str,
    pulled: &mut Pulled,
) -> Result<(), RepositoryError> {
    let place = Place::Tag(module_tag(&pulled.digest));
    let found = match client.manifest(name, &place).await {
        Err(error) if error.is_not_found() => return Ok(()),
        found => found?,
    };
    let (image, found) = image_of(client, name, found).await?;
    if found.packing != Packing::Plain || found.layer.digest != pulled.digest {
        return Ok(());
    }
    let manifest = &pulled.checked.manifest;
    pulled.foreign = foreign(client, name, &image, &found, &pulled.wasm, manifest).await?;
    (pulled.resolved, pulled.image) = (image.digest, image.digest);
    pulled.signatures = signatures_of(client, name, &image.digest).await?;
    Ok(())
}

/// Under which tag a node has the image of a module.
#[must_use]
pub fn module_tag(module: &Digest) -> String {
    format!("module-{}", module.hex())
}

/// The image that a manifest is or leads to.
async fn image_of(
    client: &Client,
    name: &str,
    found: ManifestBytes,
) -> Result<(ManifestBytes, ModuleImage), RepositoryError> {
    let read = |found: &ManifestBytes| image::read(&found.bytes, found.media_type.as_deref());
    match read(&found)? {
        Document::Image(image) => Ok((found, image)),
        Document::Index(chosen) => {
            let found = client.manifest(name, &Place::Digest(chosen.digest)).await?;
            match read(&found)? {
                Document::Image(image) => Ok((found, image)),
                Document::Index(_) => {
                    let why = "an index leads to an index".to_owned();
                    Err(ImageError::NotADocument(why).into())
                }
            }
        }
    }
}

/// The image manifest and config to keep, unless the store makes the same ones.
async fn foreign(
    client: &Client,
    name: &str,
    image: &ManifestBytes,
    found: &ModuleImage,
    wasm: &[u8],
    manifest: &Manifest,
) -> Result<Option<(Vec<u8>, Vec<u8>)>, RepositoryError> {
    if found.packing != Packing::Plain || image.digest == own_image(wasm, manifest) {
        return Ok(None);
    }
    let config = if found.config.digest == Digest::of(EMPTY) {
        EMPTY.to_vec()
    } else {
        client.blob(name, &found.config, CONFIG_LENGTH_MAX, None).await?
    };
    Ok(Some((image.bytes.clone(), config)))
}

/// The digest of the image that the store makes of a module.
fn own_image(wasm: &[u8], manifest: &Manifest) -> Digest {
    let documents = layout::documents(wasm, manifest).expect("texts and numbers become JSON");
    documents.entry.digest
}

fn check(wasm: &[u8], what: &str) -> Result<Checked, RepositoryError> {
    Unverified(wasm).check().map_err(|error| RepositoryError::NotAModule {
        what: what.to_owned(),
        source: Box::new(error),
    })
}

/// The signatures of an image; none where the registry has none.
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

/// The image that holds the signatures of another.
pub(crate) async fn signature_image(
    client: &Client,
    name: &str,
    image: &Digest,
) -> Result<Option<Image>, RepositoryError> {
    let place = Place::Tag(signatures::name(image));
    let found = match client.manifest(name, &place).await {
        Err(error) if error.is_not_found() => return Ok(None),
        found => found?,
    };
    let read: Image = serde_json::from_slice(&found.bytes)
        .map_err(|error| ImageError::NotADocument(error.to_string()))?;
    Ok(Some(read))
}
