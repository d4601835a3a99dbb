//! Store operations: put, get, resolve, list, remove.
//!
//! A blob is written before anything that points at it and removed after it, each by an atomic
//! rename. A reader without the lock, and a crash at any moment, therefore see a consistent store.

mod cache;
mod catalogue;
mod directory;
mod entries;
pub mod signatures;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::Manifest;
use abi::manifest::Meant;
use serde::{Deserialize, Serialize};
use trust::signature::Verified;
use trust::{Signature, Signer};

use crate::digest::{ALGORITHM, Digest, PREFIX_LENGTH_MIN};
use crate::error::StoreError;
use crate::layout::{self, Descriptor, Image, MANIFEST_TYPE, REF_NAME};
use cache::Latest;
pub use catalogue::{Catalogue, CatalogueEntry};
use directory::Directory;
pub use directory::{DOCUMENT_LENGTH_MAX, MODULE_LENGTH_MAX};
use signatures::VerifiedModule;

/// Directory of modules in OCI image layout.
#[derive(Clone, Debug)]
pub struct Store {
    directory: Arc<Directory>,
    catalogue: Arc<Latest<Catalogue>>,
}

/// Entry of `tam list --modules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredModule {
    /// Digest of the module, by which it is named.
    pub digest: Digest,
    /// Name such as `monitor:0.1.0`, unless a later push took it over.
    pub reference: Option<String>,
    /// Module name in its image.
    pub name: Option<String>,
    /// Version in its image.
    pub version: Option<String>,
    /// Description in one line.
    pub description: Option<String>,
    /// Length of the module in bytes.
    pub bytes: u64,
    /// Digest of its image manifest, which other registry tools call its digest.
    pub image: Digest,
}

/// Policy for the name of a module that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// The module takes the name, also from another one.
    TakeOver,
    /// The module takes the name only if it is free.
    IfFree,
}

/// Content of a store.
#[derive(Debug, Default)]
pub struct Listing {
    /// Modules, ordered by reference and digest.
    pub modules: Vec<StoredModule>,
    /// Images that cannot be used, with the reason.
    pub refused: Vec<(Digest, StoreError)>,
}

impl Store {
    /// Opens a store; creates it if the directory is empty or does not exist.
    ///
    /// # Errors
    /// The directory contains something else, or cannot be created.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = Arc::new(Directory::open(directory.into())?);
        Ok(Self { directory, catalogue: Arc::default() })
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Stores a module that `abi::check` has accepted, under the name `name:version` of its
    /// manifest. Idempotent. A module takes over its name from another one, which remains available
    /// by its digest.
    ///
    /// # Errors
    /// The module is too large or cannot be written; the store is unchanged then.
    pub fn put(&self, wasm: &[u8], manifest: &Manifest) -> Result<Digest, StoreError> {
        let length = wasm.len() as u64;
        if length > MODULE_LENGTH_MAX {
            let what = format!("the module '{}'", manifest.name);
            return Err(StoreError::TooLarge { what, length, limit: MODULE_LENGTH_MAX });
        }
        let documents = layout::documents(wasm, manifest)
            .map_err(|source| self.directory.document_error("index.json", source))?;
        let blobs = [wasm, &documents.config, &documents.image];
        self.put_blobs(&blobs, documents.entry, Naming::TakeOver)?;
        Ok(Digest::of(wasm))
    }

    /// Stores a module with its original image manifest, byte for byte, since signatures are about
    /// that. Named as by [`Store::put`].
    ///
    /// # Errors
    /// The image does not contain this module; errors of [`Store::put`].
    pub fn put_image(
        &self,
        image: &[u8],
        config: &[u8],
        wasm: &[u8],
        manifest: &Manifest,
    ) -> Result<Digest, StoreError> {
        self.put_with_image(image, config, wasm, manifest, Naming::TakeOver)
    }

    /// Stores a module that was requested by its digest, with another tool's image manifest and
    /// config if it has them. Leaves a name that another module has.
    ///
    /// # Errors
    /// Errors of [`Store::put`] and [`Store::put_image`].
    pub fn put_keeping_names(
        &self,
        foreign: Option<(&[u8], &[u8])>,
        wasm: &[u8],
        manifest: &Manifest,
    ) -> Result<Digest, StoreError> {
        let own;
        let (image, config) = match foreign {
            Some(foreign) => foreign,
            None => {
                own = layout::documents(wasm, manifest)
                    .map_err(|source| self.directory.document_error("index.json", source))?;
                (own.image.as_slice(), own.config.as_slice())
            }
        };
        self.put_with_image(image, config, wasm, manifest, Naming::IfFree)
    }

    fn put_with_image(
        &self,
        image: &[u8],
        config: &[u8],
        wasm: &[u8],
        manifest: &Manifest,
        naming: Naming,
    ) -> Result<Digest, StoreError> {
        let digest = Digest::of(wasm);
        let found: Image = serde_json::from_slice(image)
            .map_err(|source| self.directory.document_error("the image manifest", source))?;
        let is_its = found.module().is_some_and(|layer| layer.digest == digest)
            && found.config.digest == Digest::of(config);
        if !is_its {
            let image = Digest::of(image);
            return Err(StoreError::NoModule { image, found: "of other blobs".to_owned() });
        }
        let mut entry = Descriptor::of(MANIFEST_TYPE, image);
        let reference = format!("{}:{}", manifest.name, manifest.version);
        entry.annotations.insert(REF_NAME.to_owned(), reference);
        self.put_blobs(&[wasm, config, image], entry, naming)?;
        Ok(digest)
    }

    /// Adds a name to a module; the name no longer points at any other module.
    ///
    /// # Errors
    /// The module does not exist, or the store cannot be written.
    pub fn tag(&self, module: &Digest, reference: &str) -> Result<(), StoreError> {
        let lock = self.directory.lock()?;
        let mut index = self.directory.index_to_change()?;
        let is_it = |entry: &&Descriptor| self.directory.known_module_of(entry) == Some(*module);
        let Some(entry) = index.manifests.iter().rfind(is_it) else {
            return Err(self.not_found(&module.to_string(), &[]));
        };
        let mut named = entry.clone();
        named.annotations.insert(REF_NAME.to_owned(), reference.to_owned());
        if index.manifests.contains(&named) {
            return Ok(());
        }
        index.manifests.retain(|other| other.reference() != Some(reference));
        index.manifests.push(named);
        self.directory.write_index(&lock, index)
    }

    /// Writes the blobs of an image and its index entry.
    fn put_blobs(
        &self,
        blobs: &[&[u8]],
        mut entry: Descriptor,
        naming: Naming,
    ) -> Result<(), StoreError> {
        let lock = self.directory.lock()?;
        self.directory.write_blobs(&lock, blobs)?;
        let mut index = self.directory.index_to_change()?;
        if index.manifests.contains(&entry) {
            return Ok(());
        }
        if naming == Naming::IfFree {
            let is_it = |other: &Descriptor| other.digest == entry.digest;
            if index.manifests.iter().any(is_it) {
                return Ok(());
            }
            let is_taken = |other: &Descriptor| other.reference() == entry.reference();
            if index.manifests.iter().any(is_taken) {
                entry.annotations.remove(REF_NAME);
            }
        }
        for other in &mut index.manifests {
            if other.reference() == entry.reference() {
                other.annotations.remove(REF_NAME);
            }
        }
        // An unnamed entry is redundant beside a named one; other names stay.
        let is_idle =
            |other: &Descriptor| other.digest == entry.digest && other.reference().is_none();
        index.manifests.retain(|other| !is_idle(other));
        index.manifests.push(entry);
        self.directory.write_index(&lock, index)
    }

    /// Returns the documents of an image in the store.
    ///
    /// # Errors
    /// The image does not exist, is damaged, or contains no module.
    pub fn documents(&self, image: &Digest) -> Result<layout::Documents, StoreError> {
        let entry =
            self.directory.index()?.manifests.iter().find(|entry| entry.digest == *image).cloned();
        let entry = entry.ok_or_else(|| self.not_found(&image.to_string(), &[]))?;
        let (_, found) = self.module_of(&entry)?;
        let read = |digest: &Digest| {
            let bytes = self.directory.read_blob(digest, DOCUMENT_LENGTH_MAX)?;
            bytes.ok_or_else(|| self.not_found(&digest.to_string(), &[]))
        };
        Ok(layout::Documents { config: read(&found.config.digest)?, image: read(image)?, entry })
    }

    /// Reads a module and verifies its digest.
    ///
    /// # Errors
    /// The module does not exist, is damaged, or cannot be read.
    pub fn get(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        match self.directory.read_blob(digest, MODULE_LENGTH_MAX)? {
            Some(bytes) => Ok(bytes),
            None => Err(self.not_found(&digest.to_string(), &[])),
        }
    }

    /// Returns true if a file for a module of this digest exists; its content is verified when it
    /// is read.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.directory.blob_path(digest).is_file()
    }

    /// Lists the content. A damaged image does not prevent listing the others.
    ///
    /// # Errors
    /// `index.json` cannot be read.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        for entry in &self.directory.index()?.manifests {
            if signatures::is_signature_image(entry) {
                continue;
            }
            match self.module_of(entry) {
                Ok((module, _)) => listing.modules.push(module),
                Err(error) => listing.refused.push((entry.digest, error)),
            }
        }
        listing.modules.sort_by(|a, b| (&a.reference, a.digest).cmp(&(&b.reference, b.digest)));
        Ok(listing)
    }

    /// Resolves a reference to the digest of one module: `monitor`, `monitor:0.1.0`, `sha256:…`, or
    /// at least [`PREFIX_LENGTH_MIN`] leading digits of a digest. Names take precedence over
    /// digits.
    ///
    /// # Errors
    /// No module or several match, or the module is damaged.
    pub fn resolve(&self, wanted: &str) -> Result<Digest, StoreError> {
        let is_named = |reference: Option<&str>| {
            reference.is_some_and(|reference| {
                let name = reference.split_once(':').map(|(name, _)| name);
                reference == wanted || name == Some(wanted)
            })
        };
        let mut modules = Vec::new();
        for entry in &self.directory.index()?.manifests {
            match self.module_of(entry) {
                Ok((module, _)) => modules.push(module),
                Err(error) if is_named(entry.reference()) => return Err(error),
                Err(_) => {}
            }
        }
        let named = modules.iter().filter(|module| is_named(module.reference.as_deref()));
        if let Some(digest) = self.only_one(wanted, named)? {
            return Ok(digest);
        }
        let digits = wanted.strip_prefix(ALGORITHM).unwrap_or(wanted);
        let is_digits = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if is_digits && digits.len() >= PREFIX_LENGTH_MIN {
            let begun = modules.iter().filter(|module| module.digest.hex().starts_with(digits));
            if let Some(digest) = self.only_one(wanted, begun)? {
                return Ok(digest);
            }
        } else if wanted.starts_with(ALGORITHM) && is_digits {
            return Err(StoreError::PrefixTooShort { wanted: shown(wanted) });
        }
        Err(self.not_found(wanted, &modules))
    }

    /// Removes a module, given by its digest or that of its image, with all blobs that no other
    /// module needs. Returns the names that it had.
    ///
    /// # Errors
    /// The module does not exist, or the store cannot be written.
    pub fn remove(&self, digest: &Digest) -> Result<Vec<String>, StoreError> {
        let lock = self.directory.lock()?;
        let mut index = self.directory.index_to_change()?;
        let is_meant = |entry: &Descriptor| {
            entry.digest == *digest || self.directory.known_module_of(entry) == Some(*digest)
        };
        let (mut gone, mut kept): (Vec<_>, Vec<_>) =
            index.manifests.into_iter().partition(is_meant);
        if gone.is_empty() {
            return Err(self.not_found(&digest.to_string(), &[]));
        }
        let names: Vec<String> =
            gone.iter().filter_map(Descriptor::reference).map(str::to_owned).collect();
        let signed: BTreeSet<String> =
            gone.iter().map(|entry| signatures::name(&entry.digest)).collect();
        let is_signature =
            |entry: &mut Descriptor| entry.reference().is_some_and(|name| signed.contains(name));
        gone.extend(kept.extract_if(.., is_signature));
        let needed: BTreeSet<Digest> =
            kept.iter().flat_map(|entry| self.directory.blobs_of(entry)).collect();
        let unneeded: BTreeSet<Digest> = gone
            .iter()
            .flat_map(|entry| self.directory.blobs_of(entry))
            .filter(|blob| !needed.contains(blob) && self.directory.blob_path(blob).exists())
            .collect();
        index.manifests = kept;
        self.directory.write_index(&lock, index)?;
        for blob in unneeded {
            let path = self.directory.blob_path(&blob);
            fs::remove_file(&path).map_err(StoreError::io("remove", &path))?;
        }
        Ok(names)
    }

    fn only_one<'a>(
        &self,
        wanted: &str,
        modules: impl Iterator<Item = &'a StoredModule>,
    ) -> Result<Option<Digest>, StoreError> {
        let modules: Vec<&StoredModule> = modules.collect();
        let digests: BTreeSet<Digest> = modules.iter().map(|module| module.digest).collect();
        if digests.len() > 1 {
            let shown_names: Vec<String> = modules.iter().map(|module| module.shown()).collect();
            let wanted = shown(wanted);
            return Err(StoreError::Ambiguous { wanted, found: shown_names.join(", ") });
        }
        Ok(digests.first().copied())
    }

    fn not_found(&self, wanted: &str, modules: &[StoredModule]) -> StoreError {
        let known: Vec<String> = modules.iter().map(StoredModule::shown).collect();
        let meant = Meant::new(wanted, known.iter().map(String::as_str));
        StoreError::NotFound {
            wanted: shown(wanted),
            store: self.directory.path().to_owned(),
            meant,
        }
    }

    /// Reads the module and the image that an index entry points at.
    fn module_of(&self, entry: &Descriptor) -> Result<(StoredModule, Arc<Image>), StoreError> {
        let no_module = |found: String| StoreError::NoModule { image: entry.digest, found };
        if entry.media_type != MANIFEST_TYPE {
            return Err(no_module(format!("of {}", shown(&entry.media_type))));
        }
        let image = self.directory.image(&entry.digest)?;
        let Some(module) = image.module() else {
            let types: Vec<String> = image.layers.iter().map(|l| shown(&l.media_type)).collect();
            return Err(no_module(types.join(", ")));
        };
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let stored = StoredModule {
            digest: module.digest,
            reference: owned(entry.reference()),
            name: owned(image.title()),
            version: owned(image.version()),
            description: owned(image.description()),
            bytes: module.size,
            image: entry.digest,
        };
        Ok((stored, image))
    }

    /// Returns the index of blobs that others may request, rebuilt if the store has changed.
    /// Damaged images are omitted.
    ///
    /// # Errors
    /// `index.json` cannot be read.
    pub fn catalogue(&self) -> Result<Arc<Catalogue>, StoreError> {
        let stamp = self.directory.stamp()?;
        if let Some(known) = self.catalogue.of(&stamp) {
            return Ok(known);
        }
        let catalogue = Arc::new(Catalogue::new(&self.directory)?);
        self.catalogue.put(stamp, &catalogue);
        Ok(catalogue)
    }

    /// Reads any blob and verifies its digest; `None` if it does not exist.
    ///
    /// # Errors
    /// The blob is longer than `limit`, damaged, or cannot be read.
    pub fn blob(&self, digest: &Digest, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.directory.read_blob(digest, limit)
    }

    /// Returns the index entries that a reference matches, without those of signatures: entries of
    /// this name (`monitor:0.1.0`, `v1`), else entries whose name begins so (`monitor`), else
    /// entries whose digest or module's digest begins with these digits, at least
    /// [`PREFIX_LENGTH_MIN`]. The empty reference matches all.
    ///
    /// # Errors
    /// No entry matches.
    pub fn entries(&self, wanted: &str) -> Result<Vec<Descriptor>, StoreError> {
        match entries::find(&self.directory, wanted)? {
            Some(found) => Ok(found),
            None => Err(self.not_found(wanted, &self.list()?.modules)),
        }
    }

    /// Makes the error of a reference that matches several modules.
    #[must_use]
    pub fn ambiguous(&self, wanted: &str, entries: &[Descriptor]) -> StoreError {
        let name = |entry: &Descriptor| entry.reference().map_or(entry.digest.short(), shown);
        let found = entries.iter().map(name).collect::<Vec<_>>().join(", ");
        match wanted {
            "" => StoreError::Several { store: self.directory.path().to_owned(), found },
            _ => StoreError::Ambiguous { wanted: shown(wanted), found },
        }
    }

    /// Reads a module together with its signatures, and verifies both. Whether the signers suffice
    /// is decided by the caller.
    ///
    /// # Errors
    /// The module does not exist, or it or its signatures are damaged.
    pub fn verified(
        &self,
        digest: &Digest,
        known: &BTreeSet<Signer>,
    ) -> Result<VerifiedModule, StoreError> {
        let wasm = self.get(digest)?;
        Ok(VerifiedModule { digest: *digest, wasm, verified: self.signers(digest, known)? })
    }

    /// Verifies all signatures of a module in the store and returns its signers.
    ///
    /// # Errors
    /// The signatures are damaged.
    pub fn signers(
        &self,
        digest: &Digest,
        known: &BTreeSet<Signer>,
    ) -> Result<Verified, StoreError> {
        signatures::signers(&self.directory, digest, known)
    }

    /// Returns the images that contain this module: one, unless other tools made more of them.
    ///
    /// # Errors
    /// `index.json` cannot be read.
    pub fn images_of(&self, module: &Digest) -> Result<BTreeSet<Digest>, StoreError> {
        signatures::images_of(&self.directory, module)
    }

    /// Returns the signatures of an image, unverified.
    ///
    /// # Errors
    /// The signatures are damaged.
    pub fn signatures(&self, image: &Digest) -> Result<Vec<Signature>, StoreError> {
        signatures::signatures(&self.directory, image)
    }

    /// Adds a signature to those of an image.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn put_signature(&self, image: &Digest, signature: &Signature) -> Result<(), StoreError> {
        signatures::put(&self.directory, image, signature)
    }
}

impl StoredModule {
    /// Returns the reference for messages: the name, or else the digest.
    fn shown(&self) -> String {
        self.reference.clone().unwrap_or_else(|| self.digest.short())
    }
}

/// Returns untrusted text in a form fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(96).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
