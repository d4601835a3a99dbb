//! The store: put, get, resolve, list, remove.
//!
//! Blobs are written before what points at them and removed after it, each by
//! an atomic rename, so a reader without a lock and a crash at any moment meet
//! a store that is whole.

mod catalogue;
mod directory;
mod entries;
mod known;
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
pub use catalogue::{Catalogue, Held};
use directory::Directory;
pub use directory::{DOCUMENT_LENGTH_MAX, MODULE_LENGTH_MAX};
use known::Latest;
use signatures::VerifiedModule;

/// A directory of modules.
#[derive(Clone, Debug)]
pub struct Store {
    directory: Arc<Directory>,
    catalogue: Arc<Latest<Catalogue>>,
}

/// A module as `tam list --modules` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredModule {
    /// The digest of its bytes: its name.
    pub digest: Digest,
    /// `monitor:0.1.0`, unless a later push took the name.
    pub reference: Option<String>,
    /// Its name as its image says.
    pub name: Option<String>,
    /// Its version as its image says.
    pub version: Option<String>,
    /// One line for people.
    pub description: Option<String>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The digest of its image manifest: what other registry tools call its digest.
    pub image: Digest,
}

/// Who has the name of a module that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// It has, whoever had it before.
    TakeOver,
    /// It has unless another module does.
    IfFree,
}

/// What is in a store.
#[derive(Debug, Default)]
pub struct Listing {
    /// Modules, by reference and digest.
    pub modules: Vec<StoredModule>,
    /// Images that cannot be used, with the reason.
    pub refused: Vec<(Digest, StoreError)>,
}

impl Store {
    /// Opens a store, and makes one of a directory that is empty or not there.
    ///
    /// # Errors
    /// When the directory holds something else or cannot be made.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let directory = Arc::new(Directory::open(directory.into())?);
        Ok(Self { directory, catalogue: Arc::default() })
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Stores a module that `abi::check` has accepted, and gives it the name
    /// `name:version` of its manifest. Putting it again changes nothing; another
    /// module with that name takes it over, and the first one keeps its digest.
    ///
    /// # Errors
    /// When it is too large or cannot be written; then what was there before still is.
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

    /// Stores a module with the image manifest that it came with, byte for byte, since that is
    /// what signatures of it are about. Named like any other.
    ///
    /// # Errors
    /// When the image is not one of this module, or as [`Store::put`].
    pub fn put_image(
        &self,
        image: &[u8],
        config: &[u8],
        wasm: &[u8],
        manifest: &Manifest,
    ) -> Result<Digest, StoreError> {
        self.put_its_image(image, config, wasm, manifest, Naming::TakeOver)
    }

    /// Stores a module that somebody named by its digest, with the image manifest and config of
    /// another tool if it has some. A name that another module has stays that one's.
    ///
    /// # Errors
    /// As [`Store::put`] and [`Store::put_image`].
    pub fn put_beside(
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
        self.put_its_image(image, config, wasm, manifest, Naming::IfFree)
    }

    fn put_its_image(
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

    /// Gives a module one more name, which leads to it alone from now on.
    ///
    /// # Errors
    /// When the module is not there, or the store cannot be written.
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

    /// Writes the blobs of an image, and the entry that leads to it.
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
        // An entry without a name is not needed beside one with; other names stay.
        let is_idle =
            |other: &Descriptor| other.digest == entry.digest && other.reference().is_none();
        index.manifests.retain(|other| !is_idle(other));
        index.manifests.push(entry);
        self.directory.write_index(&lock, index)
    }

    /// The documents of an image that is in the store.
    ///
    /// # Errors
    /// When it is not there, damaged, or holds no module.
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

    /// The bytes of a module, compared with its digest.
    ///
    /// # Errors
    /// When it is not there, damaged, or cannot be read.
    pub fn get(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        match self.directory.read_blob(digest, MODULE_LENGTH_MAX)? {
            Some(bytes) => Ok(bytes),
            None => Err(self.not_found(&digest.to_string(), &[])),
        }
    }

    /// Whether there is a file for a module of this digest; its bytes are compared when it is read.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.directory.blob_path(digest).is_file()
    }

    /// What is in the store; one damaged image does not hide the others.
    ///
    /// # Errors
    /// When `index.json` cannot be read.
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        for entry in &self.directory.index()?.manifests {
            if signatures::is_one(entry) {
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

    /// The digest of the one module that is meant by `monitor`, `monitor:0.1.0`, `sha256:…`, or
    /// at least [`PREFIX_LENGTH_MIN`] of a digest's first digits. Names come before digits.
    ///
    /// # Errors
    /// When none or several are meant, or the one that is meant is damaged.
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

    /// Removes a module, named by its own digest or that of its image, and what
    /// no other module needs. Returns the names that it had.
    ///
    /// # Errors
    /// When there is no such module, or the store cannot be written.
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

    /// The module that an index entry leads to, and its image, of what lies there now.
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

    /// Returns the modules that can be asked for now, listed anew when the store has changed. A
    /// damaged image is left out.
    ///
    /// # Errors
    /// When `index.json` cannot be read.
    pub fn catalogue(&self) -> Result<Arc<Catalogue>, StoreError> {
        let stamp = self.directory.stamp()?;
        if let Some(known) = self.catalogue.of(&stamp) {
            return Ok(known);
        }
        let catalogue = Arc::new(Catalogue::new(&self.directory)?);
        self.catalogue.put(stamp, &catalogue);
        Ok(catalogue)
    }

    /// The bytes of any blob, compared with its digest; none when it is not there.
    ///
    /// # Errors
    /// When it is longer than `limit`, damaged, or cannot be read.
    pub fn blob(&self, digest: &Digest, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.directory.read_blob(digest, limit)
    }

    /// Returns the entries that a reference may mean, those of signatures left out: of this name
    /// (`monitor:0.1.0`, `v1`), else of a name that begins so (`monitor`), else whose own digest or
    /// whose module's begins with these digits, at least [`PREFIX_LENGTH_MIN`]. All for the empty
    /// reference.
    ///
    /// # Errors
    /// When there is none.
    pub fn entries(&self, wanted: &str) -> Result<Vec<Descriptor>, StoreError> {
        match entries::find(&self.directory, wanted)? {
            Some(found) => Ok(found),
            None => Err(self.not_found(wanted, &self.list()?.modules)),
        }
    }

    /// Makes the error that a reference leads to several modules by these entries.
    #[must_use]
    pub fn ambiguous(&self, wanted: &str, entries: &[Descriptor]) -> StoreError {
        let name = |entry: &Descriptor| entry.reference().map_or(entry.digest.short(), shown);
        let found = entries.iter().map(name).collect::<Vec<_>>().join(", ");
        match wanted {
            "" => StoreError::Several { store: self.directory.path().to_owned(), found },
            _ => StoreError::Ambiguous { wanted: shown(wanted), found },
        }
    }

    /// A module with its signatures, of one reading. Whether they are enough is for the caller to
    /// say.
    ///
    /// # Errors
    /// When the module is not there or damaged, or its signatures are.
    pub fn verified(
        &self,
        digest: &Digest,
        known: &BTreeSet<Signer>,
    ) -> Result<VerifiedModule, StoreError> {
        let wasm = self.get(digest)?;
        Ok(VerifiedModule { digest: *digest, wasm, verified: self.signers(digest, known)? })
    }

    /// Returns the signers of a module, as far as the store knows them.
    ///
    /// # Errors
    /// When its signatures are damaged.
    pub fn signers(
        &self,
        digest: &Digest,
        known: &BTreeSet<Signer>,
    ) -> Result<Verified, StoreError> {
        signatures::signers(&self.directory, digest, known)
    }

    /// The images that hold this module: one, unless other tools made more of it.
    ///
    /// # Errors
    /// When `index.json` cannot be read.
    pub fn images_of(&self, module: &Digest) -> Result<BTreeSet<Digest>, StoreError> {
        signatures::images_of(&self.directory, module)
    }

    /// The signatures of an image, none of them verified.
    ///
    /// # Errors
    /// When they are damaged.
    pub fn signatures(&self, image: &Digest) -> Result<Vec<Signature>, StoreError> {
        signatures::signatures(&self.directory, image)
    }

    /// Keeps a signature of an image beside those that there are.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn put_signature(&self, image: &Digest, signature: &Signature) -> Result<(), StoreError> {
        signatures::put(&self.directory, image, signature)
    }
}

impl StoredModule {
    /// How to refer to it.
    fn shown(&self) -> String {
        self.reference.clone().unwrap_or_else(|| self.digest.short())
    }
}

/// A reference of a stranger, fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(96).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
