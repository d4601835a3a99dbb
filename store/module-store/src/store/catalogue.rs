//! Catalogue of the blobs that others may request, with the module that each belongs to: access to
//! a module includes access to its image and its signatures, and to nothing else.

use std::collections::BTreeMap;

use super::directory::Directory;
use super::signatures;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::layout::Descriptor;

/// Blob that may be requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// Module that it is, describes, or signs.
    pub module: Digest,
    /// Media type if it is a manifest.
    pub manifest_type: Option<String>,
}

/// Index of all blobs that may be requested, by digest and by name.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    blobs: BTreeMap<Digest, CatalogueEntry>,
    names: BTreeMap<String, Digest>,
    images: BTreeMap<Digest, Digest>,
}

impl Catalogue {
    /// Builds the catalogue of a store. Damaged images are omitted.
    pub(super) fn new(directory: &Directory) -> Result<Self, StoreError> {
        let mut catalogue = Self::default();
        let index = directory.index()?;
        let entries = &index.manifests;
        for entry in entries.iter().filter(|entry| !signatures::is_signature_image(entry)) {
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

    /// Returns a blob by its digest.
    #[must_use]
    pub fn blob(&self, digest: &Digest) -> Option<&CatalogueEntry> {
        self.blobs.get(digest)
    }

    /// Returns the image manifest of a name: `monitor:0.1.0`, `sha256-HEX.sig`.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Digest> {
        self.names.get(name)
    }

    /// Returns the image manifest of a module.
    #[must_use]
    pub fn image_of(&self, module: &Digest) -> Option<&Digest> {
        self.images.get(module)
    }

    /// Returns all names with their image manifests.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.names.iter().map(|(name, image)| (name.as_str(), image))
    }

    fn add(&mut self, entry: &Descriptor, module: Digest, blobs: Vec<Digest>) {
        if let Some(name) = entry.reference() {
            self.names.insert(name.to_owned(), entry.digest);
        }
        for blob in blobs {
            // The first owner of a blob stays: a module's own bytes are never part of another
            // module.
            self.blobs.entry(blob).or_insert(CatalogueEntry { module, manifest_type: None });
        }
        let manifest_type = Some(entry.media_type.clone());
        self.blobs.insert(entry.digest, CatalogueEntry { module, manifest_type });
    }
}
