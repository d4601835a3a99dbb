//! What of a store others may ask for, and which module it belongs to: so that who may have the
//! module may have its image and its signatures, and nobody else.

use std::collections::BTreeMap;

use super::directory::Directory;
use super::signatures;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::layout::Descriptor;

/// One blob that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The module that it is, describes, or signs.
    pub module: Digest,
    /// What it is, where it is a manifest.
    pub manifest_type: Option<String>,
}

/// Everything that can be asked for.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    blobs: BTreeMap<Digest, Held>,
    names: BTreeMap<String, Digest>,
    images: BTreeMap<Digest, Digest>,
}

impl Catalogue {
    /// Reads what can be asked for now. A damaged image is left out.
    pub(super) fn new(directory: &Directory) -> Result<Self, StoreError> {
        let mut catalogue = Self::default();
        let index = directory.index()?;
        let entries = &index.manifests;
        for entry in entries.iter().filter(|entry| !signatures::is_one(entry)) {
            let Some(module) = directory.known_module_of(entry) else { continue };
            catalogue.add(entry, module, directory.blobs_of(entry));
            catalogue.images.insert(module, entry.digest);
        }
        for entry in entries {
            let signed = entry.reference().and_then(signatures::image_of);
            let module = signed.and_then(|image| catalogue.blob(&image)).map(|held| held.module);
            if let Some(module) = module {
                catalogue.add(entry, module, directory.blobs_of(entry));
            }
        }
        Ok(catalogue)
    }

    /// A blob, by its digest.
    #[must_use]
    pub fn blob(&self, digest: &Digest) -> Option<&Held> {
        self.blobs.get(digest)
    }

    /// The image manifest of this name: `monitor:0.1.0`, `sha256-HEX.sig`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Digest> {
        self.names.get(name)
    }

    /// The image manifest of a module.
    #[must_use]
    pub fn image_of(&self, module: &Digest) -> Option<&Digest> {
        self.images.get(module)
    }

    /// All names, with the manifests that they lead to.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.names.iter().map(|(name, image)| (name.as_str(), image))
    }

    fn add(&mut self, entry: &Descriptor, module: Digest, blobs: Vec<Digest>) {
        if let Some(name) = entry.reference() {
            self.names.insert(name.to_owned(), entry.digest);
        }
        for blob in blobs {
            // A module's own bytes are never part of another's: the first word counts.
            self.blobs.entry(blob).or_insert(Held { module, manifest_type: None });
        }
        let manifest_type = Some(entry.media_type.clone());
        self.blobs.insert(entry.digest, Held { module, manifest_type });
    }
}
