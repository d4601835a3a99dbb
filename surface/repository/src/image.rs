//! Manifests and indexes from outside: which blob is the module, and how it is packed.
//!
//! ```text
//! index ─ the one image for wasm ─▶ image ─┬─ one layer application/wasm, or an older type
//!                                          └─ last layer tar or tar+gzip ─ plugin.wasm in it
//! ```
//!
//! Sources: OCI image specification 1.1; the Wasm artifact layout of the CNCF TAG Runtime;
//! Istio's spec-compat.md for images with `plugin.wasm`.

use registry::layout::{Descriptor, INDEX_TYPE, MANIFEST_TYPE, MODULE_TYPE, MODULE_TYPES_OLD};
use serde::Deserialize;

use crate::client::{DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE};
use crate::limits::ENTRIES_MAX;

/// The architecture of modules in an index.
const ARCHITECTURE: &str = "wasm";
/// The system of core modules among several (Wasm artifact layout); `wasip2` are components.
const SYSTEM: &str = "wasip1";

/// How a layer holds a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// It is the module.
    Plain,
    /// A tar archive with the file `plugin.wasm`.
    Tar,
    /// The same, compressed.
    TarGzip,
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
}

/// What a manifest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An image with a module.
    Image(ModuleImage),
    /// Several images, of which this is the one for us.
    Index(Descriptor),
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
    /// No image of an index is for wasm.
    #[error("the index has no image for wasm, but {0}; name one by its digest")]
    NoFlavour(String),
    /// Several are.
    #[error("the index has several images for wasm: {0}; name one by its digest")]
    Flavours(String),
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
    if let Some(images) = read.manifests {
        return choose(images).map(Document::Index);
    }
    match (read.config, read.layers) {
        (Some(config), Some(layers)) => module(config, layers).map(Document::Image),
        _ => Err(ImageError::NotADocument("it has neither layers nor manifests".into())),
    }
}

fn is_known(media_type: &str) -> bool {
    [MANIFEST_TYPE, INDEX_TYPE, DOCKER_MANIFEST_TYPE, DOCKER_INDEX_TYPE].contains(&media_type)
}

fn module(config: Descriptor, layers: Vec<Descriptor>) -> Result<ModuleImage, ImageError> {
    if layers.len() > ENTRIES_MAX {
        return Err(ImageError::TooMany(layers.len()));
    }
    let types: Vec<String> = layers.iter().map(|layer| shown(&layer.media_type)).collect();
    let is_only = layers.len() == 1;
    let found = layers.into_iter().next_back().and_then(|layer| {
        let packing = packing(&layer.media_type)?;
        (is_only || packing != Packing::Plain).then_some((layer, packing))
    });
    match found {
        Some((layer, packing)) => Ok(ModuleImage { config, layer, packing }),
        None if types.is_empty() => Err(ImageError::NoModule("none".into())),
        None => Err(ImageError::NoModule(types.join(", "))),
    }
}

fn packing(media_type: &str) -> Option<Packing> {
    match media_type {
        MODULE_TYPE => Some(Packing::Plain),
        older if MODULE_TYPES_OLD.contains(&older) => Some(Packing::Plain),
        "application/vnd.oci.image.layer.v1.tar" => Some(Packing::Tar),
        "application/vnd.oci.image.layer.v1.tar+gzip"
        | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Some(Packing::TarGzip),
        _ => None,
    }
}

/// The image for us: the only one for wasm, the only core module among those, or the only one.
fn choose(images: Vec<Descriptor>) -> Result<Descriptor, ImageError> {
    if images.len() > ENTRIES_MAX {
        return Err(ImageError::TooMany(images.len()));
    }
    let listed = |images: &[&Descriptor]| {
        let name = |image: &&Descriptor| {
            let platform = [image.system(), image.architecture()].map(|part| part.unwrap_or("?"));
            shown(&format!("{} ({})", image.digest, platform.join("/")))
        };
        images.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    let is_image =
        |image: &&Descriptor| [MANIFEST_TYPE, DOCKER_MANIFEST_TYPE].contains(&&*image.media_type);
    let all: Vec<&Descriptor> = images.iter().filter(is_image).collect();
    let wasm = |image: &&&Descriptor| image.architecture() == Some(ARCHITECTURE);
    let ours: Vec<&Descriptor> = all.iter().filter(wasm).copied().collect();
    let core = |image: &&&Descriptor| image.system() == Some(SYSTEM);
    let cores: Vec<&Descriptor> = ours.iter().filter(core).copied().collect();
    match (&all[..], &ours[..], &cores[..]) {
        (_, [one], _) | (_, _, [one]) => Ok((*one).clone()),
        ([one], [], _) if one.architecture().is_none() => Ok((*one).clone()),
        (_, [], _) if all.is_empty() => Err(ImageError::NoFlavour("nothing".into())),
        (_, [], _) => Err(ImageError::NoFlavour(listed(&all))),
        (_, several, _) => Err(ImageError::Flavours(listed(several))),
    }
}

/// Text of a stranger, fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
