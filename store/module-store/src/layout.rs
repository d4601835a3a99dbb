//! The documents of an OCI image layout, as far as a module store needs them.
//!
//! OCI image specification 1.1 (image-layout, index, manifest, descriptor) and
//! the Wasm artifact layout of the CNCF TAG Runtime. Fields that are not ours
//! are kept as they are when `index.json` is written again.

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
/// Types under which other tools have pushed the same bytes.
pub const MODULE_TYPES_OLD: [&str; 2] = [
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.module.wasm.content.layer.v1+wasm",
];

/// The annotation of an index entry that names it (image-layout, "index.json file").
pub(crate) const REF_NAME: &str = "org.opencontainers.image.ref.name";
const TITLE: &str = "org.opencontainers.image.title";
const VERSION: &str = "org.opencontainers.image.version";
const DESCRIPTION: &str = "org.opencontainers.image.description";

/// `oci-layout`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Layout {
    pub(crate) image_layout_version: String,
}

/// `index.json`.
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

/// What points at a blob (image specification, "descriptor").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What the blob is.
    pub media_type: String,
    /// Of its bytes.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    other: serde_json::Map<String, serde_json::Value>,
}

/// An image manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    schema_version: u32,
    /// [`MANIFEST_TYPE`], or what an older tool wrote; some write none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// What it says of the layers.
    pub config: Descriptor,
    /// The content.
    pub layers: Vec<Descriptor>,
    /// What else is said of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The config of a Wasm artifact.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    architecture: &'static str,
    os: &'static str,
    layer_digests: [Digest; 1],
}

/// The blobs of one module but for its bytes, and the index entry that leads to them.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The config.
    pub config: Vec<u8>,
    /// The image manifest.
    pub image: Vec<u8>,
    /// What leads to the image manifest.
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
    /// The descriptor of these bytes.
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

    /// The architecture for which an index has it.
    #[must_use]
    pub fn architecture(&self) -> Option<&str> {
        self.other.get("platform")?.get("architecture")?.as_str()
    }

    /// The system for which an index has it.
    #[must_use]
    pub fn system(&self) -> Option<&str> {
        self.other.get("platform")?.get("os")?.as_str()
    }

    /// The name under which a store has it.
    pub(crate) fn reference(&self) -> Option<&str> {
        self.annotations.get(REF_NAME).map(String::as_str)
    }
}

impl Image {
    /// An image of these, as ours are.
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        let media_type = Some(MANIFEST_TYPE.to_owned());
        Self { schema_version: 2, media_type, config, layers, annotations: BTreeMap::new() }
    }

    /// The layer that is the module, if it is the only one.
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

/// Everything about a module that goes into the store beside its bytes; equal
/// for equal modules, so that pushing twice changes nothing, and a signature of the image is one
/// of the module.
///
/// # Errors
/// Never in fact: texts and numbers become JSON.
pub fn documents(wasm: &[u8], manifest: &Manifest) -> serde_json::Result<Documents> {
    let module = Descriptor::of(MODULE_TYPE, wasm);
    // The layout knows wasip1 (core modules) and wasip2 (components), nothing without WASI.
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

/// What the manifest says, for tools that read no Wasm; the module's own section is what counts.
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
