//! Manifests and indexes from outside: which blob is the module, and how it is packed.
//!
//! ```text
//! index ─ what is for wasm, else all ─▶ image, index … ─▶ image ─┬─ its one layer application/wasm
//!    └ attestations are left out                                 └─ last layer tar ─ plugin.wasm
//! ```
//!
//! A module has no architecture: images that lead to the same layer are one. Nothing is fetched
//! here: [`Walk`] says which manifest it needs next.
//!
//! Sources: OCI image specification 1.1; the Wasm artifact layout of the CNCF TAG Runtime;
//! Istio's spec-compat.md for images with `plugin.wasm`; docker's documents on attestation storage
//! (moby/buildkit, docs/attestations/attestation-storage.md).

use module_store::Digest;
use module_store::layout::{Descriptor, INDEX_TYPE, MANIFEST_TYPE, MODULE_TYPE, MODULE_TYPES_OLD};
use serde::Deserialize;

use crate::limits::{ENTRIES_MAX, INDEX_DEPTH_MAX, MANIFESTS_MAX};

/// Docker's media type of a manifest; answered by registries that were pushed to by docker.
pub(crate) const DOCKER_MANIFEST_TYPE: &str =
    "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX_TYPE: &str =
    "application/vnd.docker.distribution.manifest.list.v2+json";
/// The architecture of modules in an index.
const ARCHITECTURE: &str = "wasm";
/// The system of core modules among several (Wasm artifact layout); `wasip2` are components.
const SYSTEM: &str = "wasip1";
/// What system and architecture of an entry are that is no image to run (buildkit).
const UNKNOWN: &str = "unknown";
/// The annotation of an entry that says something of another one (buildkit).
const ATTESTATION: &str = "vnd.docker.reference.type";

/// A manifest as it came, of the digest that it says.
#[derive(Clone, Debug)]
pub struct ManifestBytes {
    /// Digest of the bytes.
    pub digest: Digest,
    /// Media type that the registry says.
    pub media_type: Option<String>,
    /// The manifest.
    pub bytes: Vec<u8>,
}

/// How a layer holds a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// It is the module.
    Plain,
    /// A tar archive with the file `plugin.wasm`, compressed by gzip or not.
    Tar,
}

/// An image that holds a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleImage {
    /// What it says of its layers.
    pub config: Descriptor,
    /// The layer with the module.
    pub layer: Descriptor,
    /// How it is in it.
    pub packing: Packing,
    /// Whether it is the image's only layer, and the module itself.
    pub is_all: bool,
}

/// What a manifest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An image with a module.
    Image(Box<ModuleImage>),
    /// Several manifests, of which these may lead to one.
    Index(Vec<Descriptor>),
}

/// Why there is no module in it. Whose fault: who pushed it, or who changed it on its way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It is no JSON of this form.
    #[error("the manifest cannot be read: {0}")]
    NotADocument(String),
    /// Version 1, or one of the future.
    #[error("the manifest has schemaVersion {0}; 2 is what is read")]
    Schema(u64),
    /// It is one thing by its header and another by what it says.
    #[error("the manifest is said to be '{said}' and says that it is '{says}'")]
    TwoTypes {
        /// By the header.
        said: String,
        /// By itself.
        says: String,
    },
    /// Image and index at once (CVE-2021-41190).
    #[error("the manifest is an image and an index at once")]
    Both,
    /// Too long a list.
    #[error("the manifest has {0} entries, at most {ENTRIES_MAX} are looked at")]
    TooMany(usize),
    /// No layer is a module.
    #[error(
        "the image holds no module: it has the layers {0}; a module is one layer of type {MODULE_TYPE}, or plugin.wasm in the last one"
    )]
    NoModule(String),
    /// A layer whose compression is not read.
    #[error(
        "the last layer is packed as {0}, which is not read; build the image with gzip (docker buildx build --output type=image,compression=gzip,force-compression=true)"
    )]
    Compression(String),
    /// Nothing that an index leads to holds a module.
    #[error("the index leads to no image with a module: it has {0}")]
    NoFlavour(String),
    /// Several do, and not the same.
    #[error("the index leads to several modules: {0}; name one by its digest")]
    Flavours(String),
    /// Indexes in indexes, or more manifests than are looked at.
    #[error(
        "the index leads to more than is looked at: {MANIFESTS_MAX} manifests, {INDEX_DEPTH_MAX} indexes deep; name an image by its digest"
    )]
    TooDeep,
    /// A manifest or blob of another length than what leads to it says.
    #[error("{what} has {found} bytes, and what leads to it says {declared}")]
    Length {
        /// What.
        what: Digest,
        /// As its descriptor says.
        declared: u64,
        /// As it is.
        found: u64,
    },
    /// A module that is said to be an archive.
    #[error(
        "the layer is a module and is said to be an archive: it was pushed without a type; push it as oras push FILE:application/wasm"
    )]
    Untyped,
    /// What is packed cannot be unpacked.
    #[error("the layer cannot be unpacked: {0}")]
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

/// Reads a manifest that is said to be of a type.
///
/// # Errors
/// When it holds no module that could be told from others.
pub fn read(bytes: &[u8], said: Option<&str>) -> Result<Document, ImageError> {
    let read: Read = serde_json::from_slice(bytes)
        .map_err(|error| ImageError::NotADocument(shown(&error.to_string())))?;
    if read.schema_version != 2 {
        return Err(ImageError::Schema(read.schema_version));
    }
    let own = read.media_type.as_deref();
    if let (Some(said), Some(says)) = (said.filter(|said| is_known(said)), own)
        && said != says
    {
        return Err(ImageError::TwoTypes { said: shown(said), says: shown(says) });
    }
    let is_index = read.manifests.is_some();
    if is_index && (read.layers.is_some() || read.config.is_some()) {
        return Err(ImageError::Both);
    }
    // What a type says and what is there have to agree, too.
    let kind = own.or(said.filter(|said| is_known(said)));
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

/// The layer that is a module, whatever lies beside it, else the last one if it is an archive.
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

/// What of an index may lead to a module: what is for wasm if something is, the core modules among
/// that, else whatever is an image or an index and no attestation; each once.
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

/// An image that a walk has led to.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Its manifest.
    pub manifest: ManifestBytes,
    /// What is in it.
    pub image: ModuleImage,
    /// The indexes that lead to it, the outermost first.
    pub indexes: Vec<Digest>,
}

/// The way from a manifest, or several, to the one image that holds a module.
#[derive(Debug)]
pub struct Walk {
    /// Manifests to look at, the next one last, each with the indexes that lead to it.
    to_do: Vec<(Descriptor, Vec<Digest>)>,
    /// How many were to be looked at so far.
    seen: usize,
    /// Images with a module, by how they are shown.
    found: Vec<(String, Chosen)>,
    /// What else there is, and why it is none; nothing when it could not be had.
    others: Vec<(String, Option<ImageError>)>,
}

impl Walk {
    /// Begins at what a reference leads to.
    ///
    /// # Errors
    /// As [`read`].
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

    /// Begins at entries of an index that itself has no digest: a directory's.
    ///
    /// # Errors
    /// When there are too many.
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

    /// The manifest that is to be given next; none when the walk has come to its end.
    #[must_use]
    pub fn needs(&self) -> Option<&Descriptor> {
        self.to_do.last().map(|(entry, _)| entry)
    }

    /// Goes on with the manifest of [`Walk::needs`].
    ///
    /// # Errors
    /// When it is none, has another length, or leads too far.
    pub fn give(&mut self, manifest: ManifestBytes) -> Result<(), ImageError> {
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

    /// Leaves out the manifest of [`Walk::needs`], which is not there: an index may be copied without
    /// all that it leads to. False, and nothing is done, when nothing else is left.
    pub fn skip(&mut self) -> bool {
        if self.found.is_empty() && self.to_do.len() < 2 {
            return false;
        }
        self.others.extend(self.to_do.pop().map(|(entry, _)| (named(&entry), None)));
        true
    }

    /// The images that were found, all of the same module; the first is the one to take.
    ///
    /// # Errors
    /// When there is none, or there are several modules.
    pub fn end(self) -> Result<Vec<Chosen>, ImageError> {
        let module =
            |(_, chosen): &(String, Chosen)| (chosen.image.layer.digest, chosen.image.packing);
        let names = |found: Vec<String>| found.join(", ");
        if self.found.is_empty() {
            let (others, mut errors): (Vec<String>, Vec<Option<ImageError>>) =
                self.others.into_iter().unzip();
            return Err(match (errors.pop().flatten(), others.len()) {
                (Some(error), 1) => error,
                (_, 0) => ImageError::NoFlavour("nothing but attestations, if anything".into()),
                _ => ImageError::NoFlavour(names(others)),
            });
        }
        if self.found.iter().any(|it| module(it) != module(&self.found[0])) {
            return Err(ImageError::Flavours(names(
                self.found.into_iter().map(|it| it.0).collect(),
            )));
        }
        Ok(self.found.into_iter().map(|it| it.1).collect())
    }
}

/// An entry as it is shown: its digest, and what it is for where that is said.
fn named(entry: &Descriptor) -> String {
    match (entry.system(), entry.architecture()) {
        (None, None) => entry.digest.to_string(),
        (system, architecture) => {
            let platform = [system, architecture].map(|part| part.unwrap_or("?"));
            shown(&format!("{} ({})", entry.digest, platform.join("/")))
        }
    }
}

/// Text of a stranger, fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
