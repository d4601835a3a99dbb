//! Signatures beside modules, as cosign stores them in a registry: for the image manifest
//! `sha256:HEX` an image of the name `sha256-HEX.sig`, in which each layer is a payload with its
//! signature as an annotation (sigstore/cosign, specs/SIGNATURE_SPEC.md).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use serde::Serialize;
use trust::signature::{PAYLOAD_LENGTH_MAX, PAYLOAD_TYPE, SIGNATURES_MAX, Verified};
use trust::{ImageDigest, Signature, Signer};

use super::directory::Directory;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::layout::{Descriptor, Image, MANIFEST_TYPE, REF_NAME};

/// Annotation with a signature, in base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Annotation of Tamandua that names the signer. Without it every known key has to be tried.
const SIGNER: &str = "io.tamandua.signer";
/// Media type of an image config, which cosign uses for signatures.
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// Module with its verified signers, from a single read of the file: the bytes that run are the
/// bytes that were verified.
#[derive(Clone, Debug)]
pub struct VerifiedModule {
    /// Digest of [`VerifiedModule::wasm`].
    pub digest: Digest,
    /// Bytes of the module.
    pub wasm: Vec<u8>,
    /// Result of verifying its signatures.
    pub verified: Verified,
}

/// Config of an image that contains signatures.
#[derive(Serialize)]
struct Config {
    architecture: &'static str,
    os: &'static str,
    rootfs: RootFs,
    config: BTreeMap<(), ()>,
}

#[derive(Serialize)]
struct RootFs {
    r#type: &'static str,
    diff_ids: Vec<Digest>,
}

/// Returns the name of the signatures of an image: a tag in a registry, a name in a store.
#[must_use]
pub fn name(image: &Digest) -> String {
    format!("sha256-{}.sig", image.hex())
}

/// Returns the image that signatures of this name are about.
#[must_use]
pub fn image_of(name: &str) -> Option<Digest> {
    let digits = name.strip_prefix("sha256-")?.strip_suffix(".sig")?;
    format!("sha256:{digits}").parse().ok()
}

/// Returns true if an entry is an image of signatures.
pub(super) fn is_signature_image(entry: &Descriptor) -> bool {
    entry.reference().and_then(image_of).is_some()
}

/// Documents of an image of signatures.
#[derive(Clone, Debug)]
pub struct SignatureImage {
    /// Payloads, which are the layers.
    pub payloads: Vec<Vec<u8>>,
    /// Config blob.
    pub config: Vec<u8>,
    /// Image manifest blob.
    pub image: Vec<u8>,
}

impl SignatureImage {
    /// Adds a signature to an existing image of signatures, or makes a new one. Layers of others
    /// are preserved. Returns `None` if the signature is present already.
    ///
    /// # Errors
    /// Never in practice: strings always serialize.
    pub fn with(signature: &Signature, there: Option<Image>) -> serde_json::Result<Option<Self>> {
        let mut layers = there.map(|image| image.layers).unwrap_or_default();
        let layer = layer(signature);
        if layers.contains(&layer) {
            return Ok(None);
        }
        // A signer's new signature of the same image replaces its old one.
        let by = signature.claimed.map(|signer| signer.to_string());
        layers.retain(|other| by.is_none() || other.annotations.get(SIGNER) != by.as_ref());
        layers.push(layer);
        let config = Config {
            architecture: "",
            os: "",
            rootfs: RootFs {
                r#type: "layers",
                diff_ids: layers.iter().map(|layer| layer.digest).collect(),
            },
            config: BTreeMap::new(),
        };
        let config = serde_json::to_vec(&config)?;
        let image = Image::new(Descriptor::of(CONFIG_TYPE, &config), layers);
        let image = serde_json::to_vec(&image)?;
        Ok(Some(Self { payloads: vec![signature.payload.clone()], config, image }))
    }
}

fn layer(signature: &Signature) -> Descriptor {
    let mut layer = Descriptor::of(PAYLOAD_TYPE, &signature.payload);
    let text = Base64::encode_string(&signature.bytes);
    layer.annotations.insert(SIGNATURE.to_owned(), text);
    if let Some(signer) = &signature.claimed {
        layer.annotations.insert(SIGNER.to_owned(), signer.to_string());
    }
    layer
}

/// Returns the signature in a layer, without its payload; `None` if the layer has no valid
/// annotation.
#[must_use]
pub fn of_layer(layer: &Descriptor, payload: Vec<u8>) -> Option<Signature> {
    let bytes = Base64::decode_vec(layer.annotations.get(SIGNATURE)?).ok()?;
    let claimed = layer.annotations.get(SIGNER);
    let claimed = claimed.map(|signer| signer.parse()).transpose().ok()?;
    Some(Signature { payload, bytes, claimed })
}

/// Returns the layers of an image that may be signatures, up to the limit.
pub fn layers(image: &Image) -> impl Iterator<Item = &Descriptor> {
    let is_payload = |layer: &&Descriptor| {
        layer.media_type == PAYLOAD_TYPE && layer.size <= PAYLOAD_LENGTH_MAX as u64
    };
    image.layers.iter().filter(is_payload).take(SIGNATURES_MAX)
}

/// Returns the signers of a module, verified, as far as the directory has signatures.
pub(super) fn signers(
    directory: &Directory,
    digest: &Digest,
    known: &BTreeSet<Signer>,
) -> Result<Verified, StoreError> {
    let mut verified = Verified::default();
    for image in images_of(directory, digest)? {
        // Read from disk, since a cached copy says nothing about the current content.
        if directory.image(&image).is_err() {
            continue;
        }
        let signatures = signatures(directory, &image)?;
        let found = trust::signature::signers(&ImageDigest(*image.bytes()), &signatures, known);
        verified.signers.extend(found.signers);
        verified.strangers.extend(found.strangers);
        verified.refused.extend(found.refused);
    }
    Ok(verified)
}

/// Returns the images that contain a module.
pub(super) fn images_of(
    directory: &Directory,
    module: &Digest,
) -> Result<BTreeSet<Digest>, StoreError> {
    let index = directory.index()?;
    let holds = |entry: &&Descriptor| directory.known_module_of(entry) == Some(*module);
    Ok(index.manifests.iter().filter(holds).map(|entry| entry.digest).collect())
}

/// Returns the signatures of an image, unverified.
pub(super) fn signatures(
    directory: &Directory,
    image: &Digest,
) -> Result<Vec<Signature>, StoreError> {
    let mut signatures = Vec::new();
    let Some(there) = signature_image(directory, image)? else { return Ok(signatures) };
    for layer in layers(&there) {
        let Some(payload) = directory.read_blob(&layer.digest, PAYLOAD_LENGTH_MAX as u64)? else {
            continue;
        };
        signatures.extend(of_layer(layer, payload));
    }
    Ok(signatures)
}

/// Adds a signature to those of an image.
pub(super) fn put(
    directory: &Directory,
    image: &Digest,
    signature: &Signature,
) -> Result<(), StoreError> {
    let lock = directory.lock()?;
    let there = signature_image(directory, image)?;
    let made = SignatureImage::with(signature, there)
        .map_err(|source| directory.document_error("index.json", source))?;
    let Some(made) = made else { return Ok(()) };
    let mut blobs: Vec<&[u8]> = made.payloads.iter().map(Vec::as_slice).collect();
    blobs.extend([&made.config[..], &made.image]);
    directory.write_blobs(&lock, &blobs)?;
    let mut index = directory.index_to_change()?;
    let name = name(image);
    index.manifests.retain(|other| other.reference() != Some(&name));
    let mut entry = Descriptor::of(MANIFEST_TYPE, &made.image);
    entry.annotations.insert(REF_NAME.to_owned(), name);
    index.manifests.push(entry);
    directory.write_index(&lock, index)
}

fn signature_image(directory: &Directory, image: &Digest) -> Result<Option<Image>, StoreError> {
    let name = name(image);
    let index = directory.index()?;
    let entry = index.manifests.iter().find(|entry| entry.reference() == Some(&name));
    entry.map(|entry| directory.image(&entry.digest).map(Arc::unwrap_or_clone)).transpose()
}

#[cfg(test)]
mod tests;
