//! Signatures beside modules, as cosign keeps them in a registry: for the image manifest
//! `sha256:HEX` an image of the name `sha256-HEX.sig`, in which each layer is a payload and has
//! the signature of it as an annotation (sigstore/cosign, specs/SIGNATURE_SPEC.md).

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

/// The annotation that holds a signature, in base64.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Ours beside it: who has signed. Without it every known key has to be tried.
const SIGNER: &str = "io.tamandua.signer";
/// `mediaType` of the config of an image, which cosign's signatures have.
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// The bytes of a module and who has signed them. It comes of one reading: what is run are these
/// bytes, and not whatever lies in the file by then.
#[derive(Clone, Debug)]
pub struct VerifiedModule {
    /// The digest of [`VerifiedModule::wasm`].
    pub digest: Digest,
    /// The module.
    pub wasm: Vec<u8>,
    /// Whose signature of it is good, and which do not count.
    pub verified: Verified,
}

/// The config of an image that holds signatures.
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

/// What the signatures of an image are called: a tag of a registry, a name in a store.
#[must_use]
pub fn name(image: &Digest) -> String {
    format!("sha256-{}.sig", image.hex())
}

/// The image that signatures of this name are about.
#[must_use]
pub fn image_of(name: &str) -> Option<Digest> {
    let digits = name.strip_prefix("sha256-")?.strip_suffix(".sig")?;
    format!("sha256:{digits}").parse().ok()
}

/// Whether an entry holds signatures.
pub(super) fn is_one(entry: &Descriptor) -> bool {
    entry.reference().and_then(image_of).is_some()
}

/// The documents of an image that holds signatures.
#[derive(Clone, Debug)]
pub struct SignatureImage {
    /// The payloads, which are the layers.
    pub payloads: Vec<Vec<u8>>,
    /// The config.
    pub config: Vec<u8>,
    /// The image manifest.
    pub image: Vec<u8>,
}

impl SignatureImage {
    /// Adds a signature to an image that there is, or begins one. What others wrote of theirs
    /// stays as it is. None when it is there already.
    ///
    /// # Errors
    /// Never in fact: texts become JSON.
    pub fn with(signature: &Signature, there: Option<Image>) -> serde_json::Result<Option<Self>> {
        let mut layers = there.map(|image| image.layers).unwrap_or_default();
        let layer = layer(signature);
        if layers.contains(&layer) {
            return Ok(None);
        }
        // Who signs the same image again replaces what he said.
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

/// The signature that a layer holds, without its payload; none when it holds none that is read.
#[must_use]
pub fn of_layer(layer: &Descriptor, payload: Vec<u8>) -> Option<Signature> {
    let bytes = Base64::decode_vec(layer.annotations.get(SIGNATURE)?).ok()?;
    let claimed = layer.annotations.get(SIGNER);
    let claimed = claimed.map(|signer| signer.parse()).transpose().ok()?;
    Some(Signature { payload, bytes, claimed })
}

/// The layers of an image that can be signatures, as many as are looked at.
pub fn layers(image: &Image) -> impl Iterator<Item = &Descriptor> {
    let is_payload = |layer: &&Descriptor| {
        layer.media_type == PAYLOAD_TYPE && layer.size <= PAYLOAD_LENGTH_MAX as u64
    };
    image.layers.iter().filter(is_payload).take(SIGNATURES_MAX)
}

/// Returns who has signed a module, as far as the directory knows.
pub(super) fn signers(
    directory: &Directory,
    digest: &Digest,
    known: &BTreeSet<Signer>,
) -> Result<Verified, StoreError> {
    let mut verified = Verified::default();
    for image in images_of(directory, digest)? {
        // What it was when it was read first does not count here.
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

/// Returns the images that hold a module.
pub(super) fn images_of(
    directory: &Directory,
    module: &Digest,
) -> Result<BTreeSet<Digest>, StoreError> {
    let index = directory.index()?;
    let holds = |entry: &&Descriptor| directory.known_module_of(entry) == Some(*module);
    Ok(index.manifests.iter().filter(holds).map(|entry| entry.digest).collect())
}

/// Returns the signatures of an image, none of them verified.
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

/// Keeps a signature of an image beside those that there are.
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
