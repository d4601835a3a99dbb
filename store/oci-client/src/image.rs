//! Selection of a module in untrusted manifests and indexes: the blob that is the module, and its
//! packing.
//!
//! ```text
//! index ─ entries for wasm, else all ─▶ image, index … ─▶ image ─┬─ its one layer application/wasm
//!    └ attestations are left out                                 └─ last layer tar ─ plugin.wasm
//! ```
//!
//! Modules have no architecture: images with the same layer count as one. No I/O here: [`Walk`]
//! names the manifest that it needs next.
//!
//! Sources: OCI image specification 1.1; the Wasm artifact layout of the CNCF TAG Runtime;
//! Istio's spec-compat.md for images with `plugin.wasm`; docker's documents on attestation storage
//! (moby/buildkit, docs/attestations/attestation-storage.md).

use module_store::Digest;
use module_store::layout::{Descriptor, INDEX_TYPE, MANIFEST_TYPE, MODULE_TYPE, MODULE_TYPES_OLD};
use serde::Deserialize;

use crate::limits::{ENTRIES_MAX, INDEX_DEPTH_MAX, MANIFESTS_MAX};

/// Media type of a docker manifest; sent by registries for images pushed by docker.
pub(crate) const DOCKER_MANIFEST_TYPE: &str =
    "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX_TYPE: &str =
    "application/vnd.docker.distribution.manifest.list.v2+json";
/// Architecture of modules in an index.
const ARCHITECTURE: &str = "wasm";
/// Operating system of core modules (Wasm artifact layout); `wasip2` are components.
const SYSTEM: &str = "wasip1";
/// Operating system and architecture of index entries that are not runnable images (buildkit).
const UNKNOWN: &str = "unknown";
/// Annotation of an index entry that describes another entry (buildkit).
const ATTESTATION: &str = "vnd.docker.reference.type";

/// Manifest as received, with a verified digest.
#[derive(Clone, Debug)]
pub struct ManifestBytes {
    /// Digest of the bytes.
    pub digest: Digest,
    /// Media type that the registry states.
    pub media_type: Option<String>,
    /// Bytes of the manifest.
    pub bytes: Vec<u8>,
}

/// Form of a module in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// The layer is the module.
    Plain,
    /// The layer is a tar archive with the file `plugin.wasm`, optionally compressed by gzip.
    Tar,
}

/// Image that contains a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleImage {
    /// Descriptor of the config.
    pub config: Descriptor,
    /// Descriptor of the layer with the module.
    pub layer: Descriptor,
    /// Form of the module in that layer.
    pub packing: Packing,
    /// True if the module is the image's only layer.
    pub is_all: bool,
}

/// Parsed manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Image with a module.
    Image(Box<ModuleImage>),
    /// Index, with the entries that may lead to a module.
    Index(Vec<Descriptor>),
}

/// Reason why no module is found. The fault of whoever pushed the image, or changed it in transit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The manifest is not valid JSON of the expected form.
    #[error("the manifest cannot be read: {0}")]
    NotADocument(String),
    /// The schema version is not 2.
    #[error("the manifest has schemaVersion {0}; only 2 is supported")]
    Schema(u64),
    /// The media type in the header contradicts the one in the manifest.
    #[error(
        "the manifest's media type is '{in_header}' in the header and '{in_document}' in the document"
    )]
    TwoTypes {
        /// Media type in the header.
        in_header: String,
        /// Media type in the manifest.
        in_document: String,
    },
    /// The manifest is an image and an index at once (CVE-2021-41190).
    #[error("the manifest is an image and an index at once")]
    Both,
    /// The manifest has more than [`ENTRIES_MAX`] layers or entries.
    #[error("the manifest has {0} entries; at most {ENTRIES_MAX} are supported")]
    TooMany(usize),
    /// No layer is a module.
    #[error(
        "the image holds no module: it has the layers {0}; a module is one layer of type {MODULE_TYPE}, or plugin.wasm in the last one"
    )]
    NoModule(String),
    /// The compression of the layer is not supported.
    #[error(
        "the last layer is packed as {0}, which is not supported; build the image with gzip (docker buildx build --output type=image,compression=gzip,force-compression=true)"
    )]
    Compression(String),
    /// No image that the index leads to contains a module.
    #[error("the index leads to no image with a module: it has {0}")]
    NoModuleInIndex(String),
    /// Images that the index leads to contain different modules.
    #[error("the index leads to several modules: {0}; name one by its digest")]
    SeveralModules(String),
    /// Indexes are nested too deeply, or lead to too many manifests.
    #[error(
        "the index leads to too many manifests or is nested too deeply (at most {MANIFESTS_MAX} manifests, {INDEX_DEPTH_MAX} levels); name an image by its digest"
    )]
    TooDeep,
    /// A manifest or blob has another length than its descriptor says.
    #[error(
        "{what} has {found} bytes, but its descriptor says {declared}: the repository's copy is damaged, push it again"
    )]
    Length {
        /// Digest of the manifest or blob.
        what: Digest,
        /// Length in the descriptor, in bytes.
        declared: u64,
        /// Actual length in bytes.
        found: u64,
    },
    /// The layer is a module, but declared as an archive.
    #[error(
        "the layer is a module but is declared as an archive: it was pushed without a media type; push it as oras push FILE:application/wasm"
    )]
    Untyped,
    /// The archive cannot be unpacked.
    #[error("the layer cannot be unpacked: {0}; build the image and push it again")]
    Packed(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

/// Parses a manifest; `in_header` is the media type that the registry states.
///
/// # Errors
/// The manifest is malformed, or contains no unambiguous module.
pub fn read(bytes: &[u8], in_header: Option<&str>) -> Result<Document, ImageError> {
    let read: Read = serde_json::from_slice(bytes)
        .map_err(|error| ImageError::NotADocument(shown(&error.to_string())))?;
    if read.schema_version != 2 {
        return Err(ImageError::Schema(read.schema_version));
    }
    let own = read.media_type.as_deref();
    if let (Some(in_header), Some(in_document)) =
        (in_header.filter(|in_header| is_known(in_header)), own)
        && in_header != in_document
    {
        return Err(ImageError::TwoTypes {
            in_header: shown(in_header),
            in_document: shown(in_document),
        });
    }
    let is_index = read.manifests.is_some();
    if is_index && (read.layers.is_some() || read.config.is_some()) {
        return Err(ImageError::Both);
    }
    // The declared type has to match the fields that are present.
    let kind = own.or(in_header.filter(|in_header| is_known(in_header)));
    let wrong = if is_index {
        [MANIFEST_TYPE, DOCKER_MANIFEST_TYPE]
    } else {
        [INDEX_TYPE, DOCKER_INDEX_TYPE]
    };
    if kind.is_some_and(|kind| wrong.contains(&kind)) {
        return Err(ImageError::Both);
    }
    if let Some(entries) = read.manifests {
        return candidates(entries).map(Document::Index);
    }
    match (read.config, read.layers) {
        (Some(config), Some(layers)) => {
            module(config, layers).map(|image| Document::Image(Box::new(image)))
        }
        _ => Err(ImageError::NotADocument("it has neither layers nor manifests".into())),
    }
}

fn is_known(media_type: &str) -> bool {
    is_image(media_type) || is_index(media_type)
}

fn is_image(media_type: &str) -> bool {
    [MANIFEST_TYPE, DOCKER_MANIFEST_TYPE].contains(&media_type)
}

fn is_index(media_type: &str) -> bool {
    [INDEX_TYPE, DOCKER_INDEX_TYPE].contains(&media_type)
}

/// Returns the layer that is a module, with any other layers beside it, or else the last one if it
/// is an archive.
fn module(config: Descriptor, layers: Vec<Descriptor>) -> Result<ModuleImage, ImageError> {
    if layers.len() > ENTRIES_MAX {
        return Err(ImageError::TooMany(layers.len()));
    }
    let is_plain = |layer: &&Descriptor| {
        let media_type = layer.media_type.as_str();
        media_type == MODULE_TYPE || MODULE_TYPES_OLD.contains(&media_type)
    };
    let is_alone = layers.len() == 1;
    let modules: Vec<&Descriptor> = layers.iter().filter(is_plain).collect();
    if let [layer] = modules[..] {
        let layer = layer.clone();
        return Ok(ModuleImage { config, layer, packing: Packing::Plain, is_all: is_alone });
    }
    if let ([], Some(layer)) = (&modules[..], layers.last()) {
        match layer.media_type.as_str() {
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => {
                let layer = layer.clone();
                return Ok(ModuleImage { config, layer, packing: Packing::Tar, is_all: false });
            }
            other if other.ends_with("zstd") => return Err(ImageError::Compression(shown(other))),
            _ => {}
        }
    }
    let types: Vec<String> = layers.iter().map(|layer| shown(&layer.media_type)).collect();
    let types = if types.is_empty() { "none".to_owned() } else { types.join(", ") };
    Err(ImageError::NoModule(types))
}

/// Returns the index entries that may lead to a module, each once: those for wasm if there are any
/// (of these the core modules), or else all images and indexes except attestations.
fn candidates(entries: Vec<Descriptor>) -> Result<Vec<Descriptor>, ImageError> {
    if entries.len() > ENTRIES_MAX {
        return Err(ImageError::TooMany(entries.len()));
    }
    let is_attestation = |entry: &Descriptor| {
        let is_unknown = |part: Option<&str>| part == Some(UNKNOWN);
        entry.annotations.contains_key(ATTESTATION)
            || (is_unknown(entry.system()) && is_unknown(entry.architecture()))
    };
    let mut all: Vec<Descriptor> = Vec::new();
    for entry in entries {
        let is_there = all.iter().any(|other| other.digest == entry.digest);
        if is_known(&entry.media_type) && !is_attestation(&entry) && !is_there {
            all.push(entry);
        }
    }
    let narrowed = |all: &[Descriptor], is_it: &dyn Fn(&Descriptor) -> bool| {
        let some: Vec<Descriptor> = all.iter().filter(|entry| is_it(entry)).cloned().collect();
        if some.is_empty() { all.to_vec() } else { some }
    };
    let for_wasm = narrowed(&all, &|entry| entry.architecture() == Some(ARCHITECTURE));
    let is_core = |entry: &Descriptor| {
        entry.architecture() == Some(ARCHITECTURE) && entry.system() == Some(SYSTEM)
    };
    Ok(narrowed(&for_wasm, &is_core))
}

/// Image at the end of a walk.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Manifest of the image.
    pub manifest: ManifestBytes,
    /// Module in the image.
    pub image: ModuleImage,
    /// Digests of the indexes that lead to it, the outermost first.
    pub indexes: Vec<Digest>,
}

/// Search from one or several manifests to the image that contains a module. Performs no I/O.
#[derive(Debug)]
pub struct Walk {
    /// Stack of manifests to examine, the next one last, each with the indexes that lead to it.
    to_do: Vec<(Descriptor, Vec<Digest>)>,
    /// Number of manifests added so far.
    seen: usize,
    /// Images with a module, by their names for messages.
    found: Vec<(String, Chosen)>,
    /// Other manifests with the reason why they are not used; no reason if they were not available.
    others: Vec<(String, Option<ImageError>)>,
}

impl Walk {
    /// Starts at the manifest of a reference.
    ///
    /// # Errors
    /// Errors of [`read`].
    pub fn from(first: ManifestBytes) -> Result<Self, ImageError> {
        let mut walk = Self { to_do: Vec::new(), seen: 0, found: Vec::new(), others: Vec::new() };
        let digest = first.digest;
        match read(&first.bytes, first.media_type.as_deref())? {
            Document::Image(image) => {
                let chosen = Chosen { manifest: first, image: *image, indexes: Vec::new() };
                walk.found.push((digest.to_string(), chosen));
            }
            Document::Index(entries) => walk.add(entries, &[digest])?,
        }
        Ok(walk)
    }

    /// Starts at entries of an index without a digest: that of a directory.
    ///
    /// # Errors
    /// The entries are too many.
    pub fn of_entries(entries: Vec<Descriptor>) -> Result<Self, ImageError> {
        let mut walk = Self { to_do: Vec::new(), seen: 0, found: Vec::new(), others: Vec::new() };
        walk.add(candidates(entries)?, &[])?;
        Ok(walk)
    }

    fn add(&mut self, entries: Vec<Descriptor>, indexes: &[Digest]) -> Result<(), ImageError> {
        self.seen += entries.len();
        if self.seen > MANIFESTS_MAX || indexes.len() > INDEX_DEPTH_MAX {
            return Err(ImageError::TooDeep);
        }
        self.to_do.extend(entries.into_iter().rev().map(|entry| (entry, indexes.to_vec())));
        Ok(())
    }

    /// Returns the manifest to supply next; `None` at the end of the walk.
    #[must_use]
    pub fn needs(&self) -> Option<&Descriptor> {
        self.to_do.last().map(|(entry, _)| entry)
    }

    /// Continues with the manifest of [`Walk::needs`].
    ///
    /// # Errors
    /// The manifest is invalid, has another length, or leads too far.
    pub fn supply(&mut self, manifest: ManifestBytes) -> Result<(), ImageError> {
        let Some((entry, mut indexes)) = self.to_do.pop() else { return Ok(()) };
        let found = manifest.bytes.len() as u64;
        if found != entry.size {
            return Err(ImageError::Length { what: entry.digest, declared: entry.size, found });
        }
        match read(&manifest.bytes, Some(&entry.media_type)) {
            Ok(Document::Image(image)) => {
                self.found.push((named(&entry), Chosen { manifest, image: *image, indexes }));
            }
            Ok(Document::Index(entries)) => {
                indexes.push(entry.digest);
                self.add(entries, &indexes)?;
            }
            Err(error @ (ImageError::NoModule(_) | ImageError::Compression(_))) => {
                self.others.push((named(&entry), Some(error)));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Skips the manifest of [`Walk::needs`] because it is not available: an index may be copied
    /// without all its images. Returns false and does nothing if no other manifest is left.
    pub fn skip(&mut self) -> bool {
        if self.found.is_empty() && self.to_do.len() < 2 {
            return false;
        }
        self.others.extend(self.to_do.pop().map(|(entry, _)| (named(&entry), None)));
        true
    }

    /// Ends the walk; returns the images found, all of the same module, in order of preference.
    ///
    /// # Errors
    /// No image, or images of several modules were found.
    pub fn end(self) -> Result<Vec<Chosen>, ImageError> {
        let module =
            |(_, chosen): &(String, Chosen)| (chosen.image.layer.digest, chosen.image.packing);
        let names = |found: Vec<String>| found.join(", ");
        if self.found.is_empty() {
            let (others, mut errors): (Vec<String>, Vec<Option<ImageError>>) =
                self.others.into_iter().unzip();
            return Err(match (errors.pop().flatten(), others.len()) {
                (Some(error), 1) => error,
                (_, 0) => {
                    ImageError::NoModuleInIndex("nothing but attestations, if anything".into())
                }
                _ => ImageError::NoModuleInIndex(names(others)),
            });
        }
        if self.found.iter().any(|it| module(it) != module(&self.found[0])) {
            return Err(ImageError::SeveralModules(names(
                self.found.into_iter().map(|it| it.0).collect(),
            )));
        }
        Ok(self.found.into_iter().map(|it| it.1).collect())
    }
}

/// Returns an entry for messages: its digest, and its platform if it has one.
fn named(entry: &Descriptor) -> String {
    match (entry.system(), entry.architecture()) {
        (None, None) => entry.digest.to_string(),
        (system, architecture) => {
            let platform = [system, architecture].map(|part| part.unwrap_or("?"));
            shown(&format!("{} ({})", entry.digest, platform.join("/")))
        }
    }
}

/// Returns untrusted text in a form fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
