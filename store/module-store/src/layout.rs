//! Documents of an OCI image layout, as far as a module store needs them.
//!
//! Sources: OCI image specification 1.1 (image-layout, index, manifest, descriptor), and the Wasm
//! artifact layout of the CNCF TAG Runtime. Unknown fields of `index.json` are preserved when it is
//! rewritten.

use std::collections::BTreeMap;

use abi::Manifest;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

pub(crate) const LAYOUT_VERSION: &str = "1.0.0";
/// `mediaType` of an index.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// `mediaType` of an image manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// `mediaType` of the config of a Wasm artifact.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// `mediaType` of a module.
pub const MODULE_TYPE: &str = "application/wasm";
/// Media types under which other tools have pushed modules.
pub const MODULE_TYPES_OLD: [&str; 2] = [
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.module.wasm.content.layer.v1+wasm",
];

/// Annotation of an index entry that names it (image-layout, "index.json file").
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
const TITLE: &str = "org.opencontainers.image.title";
const VERSION: &str = "org.opencontainers.image.version";
const DESCRIPTION: &str = "org.opencontainers.image.description";

/// File `oci-layout`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Layout {
    pub(crate) image_layout_version: String,
}

/// File `index.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) manifests: Vec<Descriptor>,
    #[serde(flatten)]
    other: serde_json::Map<String, serde_json::Value>,
}

/// Descriptor of a blob (image specification, "descriptor").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the blob.
    pub media_type: String,
    /// Digest of the blob.
    pub digest: Digest,
    /// Length of the blob in bytes.
    pub size: u64,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    other: serde_json::Map<String, serde_json::Value>,
}

/// Image manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    schema_version: u32,
    /// [`MANIFEST_TYPE`], or the type that an older tool wrote; some write none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Descriptor of the config.
    pub config: Descriptor,
    /// Descriptors of the layers, which are the content.
    pub layers: Vec<Descriptor>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Config of a Wasm artifact.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    architecture: &'static str,
    os: &'static str,
    layer_digests: [Digest; 1],
}

/// Documents of one module: its blobs except the module itself, and its index entry.
#[derive(Clone, Debug)]
pub struct Documents {
    /// Config blob.
    pub config: Vec<u8>,
    /// Image manifest blob.
    pub image: Vec<u8>,
    /// Index entry that points at the image manifest.
    pub entry: Descriptor,
}

impl Index {
    pub(crate) fn empty() -> Self {
        Self {
            schema_version: 2,
            media_type: Some(INDEX_TYPE.to_owned()),
            manifests: Vec::new(),
            other: serde_json::Map::new(),
        }
    }
}

impl Descriptor {
    /// Makes the descriptor of a blob.
    #[must_use]
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            annotations: BTreeMap::new(),
            other: serde_json::Map::new(),
        }
    }

    /// Returns the architecture that an index states for this entry.
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        self.other.get("platform")?.get("architecture")?.as_str()
    }

    /// Returns the operating system that an index states for this entry.
    #[must_use]
    pub fn system(&self) -> Option<&str> {
        self.other.get("platform")?.get("os")?.as_str()
    }

    /// Returns the name of this entry in a store.
    pub(crate) fn reference(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

impl Image {
    /// Makes an image manifest of this store's form.
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        let media_type = Some(MANIFEST_TYPE.to_owned());
        Self { schema_version: 2, media_type, config, layers, annotations: BTreeMap::new() }
    }

    /// Returns the layer that is the module, if it is the only layer.
    #[must_use]
    pub fn module(&self) -> Option<&Descriptor> {
        let is_module = |layer: &&Descriptor| {
            let media_type = layer.media_type.as_str();
            media_type == MODULE_TYPE || MODULE_TYPES_OLD.contains(&media_type)
        };
        match &self.layers[..] {
            [layer] => Some(layer).filter(is_module),
            _ => None,
        }
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.annotations.get(VERSION).map(String::as_str)
    }

    pub(crate) fn title(&self) -> Option<&str> {
        self.annotations.get(TITLE).map(String::as_str)
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.annotations.get(DESCRIPTION).map(String::as_str)
    }
}

/// Makes the documents of a module. Deterministic: equal modules have equal documents, so that
/// pushing twice changes nothing, and a signature of the image is one of the module.
///
/// # Errors
/// Never in practice: strings and numbers always serialize.
pub fn documents(wasm: &[u8], manifest: &Manifest) -> serde_json::Result<Documents> {
    let module = Descriptor::of(MODULE_TYPE, wasm);
    // Artifact layout values: wasip1 (core modules) and wasip2 (components); there is none for
    // modules without WASI.
    let config = Config { architecture: "wasm", os: "wasip1", layer_digests: [module.digest] };
    let config = serde_json::to_vec(&config)?;
    let mut image = Image::new(Descriptor::of(CONFIG_TYPE, &config), vec![module]);
    image.annotations = annotations(manifest);
    let image = serde_json::to_vec(&image)?;
    let mut entry = Descriptor::of(MANIFEST_TYPE, &image);
    entry.annotations = annotations(manifest);
    let reference = format!("{}:{}", manifest.name, manifest.version);
    entry.annotations.insert(REF_NAME.to_owned(), reference);
    Ok(Documents { config, image, entry })
}

/// Returns the manifest as annotations, for tools that do not read Wasm. The module's own section
/// is authoritative.
fn annotations(manifest: &Manifest) -> BTreeMap<String, String> {
    let levels: Vec<&str> = manifest.levels.iter().map(|level| level.name()).collect();
    let mut annotations: BTreeMap<String, String> = [
        (TITLE, manifest.name.to_string()),
        (VERSION, manifest.version.clone()),
        ("io.tamandua.abi", manifest.abi.to_string()),
        ("io.tamandua.state-version", manifest.state_version.to_string()),
        ("io.tamandua.lanes", manifest.lanes.to_string()),
        ("io.tamandua.levels", levels.join(",")),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    if !manifest.description.is_empty() {
        annotations.insert(DESCRIPTION.to_owned(), manifest.description.clone());
    }
    annotations
}
