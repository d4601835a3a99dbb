//! Directory in OCI image layout: its index, its images, its blobs.
//!
//! Content is verified against its digest when it is read; writers take the lock first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cache::{Images, Latest, Stamp};
use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::{self, OWN_NAMES, WriteLock};
use crate::layout::{Descriptor, Image, Index, LAYOUT_VERSION, Layout, MANIFEST_TYPE};

/// Largest module in bytes: limit of `abi::check`.
pub const MODULE_LENGTH_MAX: u64 = abi::layout::MODULE_LENGTH_MAX as u64;
/// Largest image manifest in bytes: the least that registries have to accept (OCI distribution
/// spec).
pub const DOCUMENT_LENGTH_MAX: u64 = 4 << 20;
/// Largest `index.json` in bytes: some 20,000 modules.
const INDEX_LENGTH_MAX: u64 = 16 << 20;

/// Directory in OCI image layout.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    known_index: Latest<Index>,
    images: Images,
}

impl Directory {
    /// Opens a directory; creates the layout if it is empty or does not exist.
    pub(super) fn open(path: PathBuf) -> Result<Self, StoreError> {
        let directory = Self { path, known_index: Latest::default(), images: Images::default() };
        // Existing stores are readable without write permission.
        if !directory.has_layout()? {
            directory.create()?;
        }
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the writer's lock.
    pub(super) fn lock(&self) -> Result<WriteLock, StoreError> {
        WriteLock::take(&self.path)
    }

    fn has_layout(&self) -> Result<bool, StoreError> {
        let path = self.path.join("oci-layout");
        let Some(bytes) = files::read(&path, DOCUMENT_LENGTH_MAX)? else { return Ok(false) };
        let layout: Layout = serde_json::from_slice(&bytes)
            .map_err(|source| StoreError::Document { path, source })?;
        if layout.image_layout_version != LAYOUT_VERSION {
            return Err(StoreError::NotAStore { path: self.path.clone() });
        }
        Ok(true)
    }

    fn create(&self) -> Result<(), StoreError> {
        let directory = &self.path;
        fs::create_dir_all(directory).map_err(StoreError::io("create", directory))?;
        for item in fs::read_dir(directory).map_err(StoreError::io("read", directory))? {
            let name = item.map_err(StoreError::io("read", directory))?.file_name();
            // Another process that creates the same store may have got this far already.
            let ours = ["blobs", "index.json", "oci-layout"].iter().chain(&OWN_NAMES);
            if !ours.into_iter().any(|ours| *ours == name) {
                return Err(StoreError::NotAStore { path: directory.clone() });
            }
        }
        let lock = WriteLock::take(directory)?;
        let blobs = directory.join("blobs").join("sha256");
        fs::create_dir_all(&blobs).map_err(StoreError::io("create", &blobs))?;
        if !directory.join("index.json").exists() {
            self.write_index(&lock, Index::empty())?;
        }
        // Written last: a directory with this file is a complete store.
        let layout = Layout { image_layout_version: LAYOUT_VERSION.to_owned() };
        let layout = serde_json::to_vec(&layout)
            .map_err(|source| self.document_error("oci-layout", source))?;
        lock.write(&directory.join("oci-layout"), &layout)
    }

    pub(super) fn index(&self) -> Result<Arc<Index>, StoreError> {
        // Stamp of before reading: a change in between is read the next time.
        let stamp = self.stamp().ok();
        if let Some(known) = stamp.and_then(|stamp| self.known_index.of(&stamp)) {
            return Ok(known);
        }
        let path = self.path.join("index.json");
        let Some(bytes) = files::read(&path, INDEX_LENGTH_MAX)? else {
            return Ok(Arc::new(Index::empty()));
        };
        let index = serde_json::from_slice(&bytes);
        let index = Arc::new(index.map_err(|source| StoreError::Document { path, source })?);
        if let Some(stamp) = stamp {
            self.known_index.put(stamp, &index);
        }
        Ok(index)
    }

    /// Reads the index for a change; the holder of the lock writes it back.
    pub(super) fn index_to_change(&self) -> Result<Index, StoreError> {
        self.index().map(Arc::unwrap_or_clone)
    }

    pub(super) fn write_index(&self, lock: &WriteLock, index: Index) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec_pretty(&index)
            .map_err(|source| self.document_error("index.json", source))?;
        lock.write(&self.path.join("index.json"), &bytes)?;
        // No other writer while the lock is held.
        if let Ok(stamp) = self.stamp() {
            self.known_index.put(stamp, &Arc::new(index));
        }
        Ok(())
    }

    /// Returns a stamp of `index.json` that changes with the file.
    pub(super) fn stamp(&self) -> Result<Stamp, StoreError> {
        use std::os::unix::fs::MetadataExt;
        let path = self.path.join("index.json");
        let metadata = fs::metadata(&path).map_err(StoreError::io("read", &path))?;
        Ok((metadata.modified().ok(), metadata.len(), metadata.ino()))
    }

    /// Reads the image manifest of a digest from disk.
    pub(super) fn image(&self, digest: &Digest) -> Result<Arc<Image>, StoreError> {
        let path = self.blob_path(digest);
        let bytes = self
            .read_blob(digest, DOCUMENT_LENGTH_MAX)?
            .ok_or_else(|| StoreError::io("open", &path)(std::io::ErrorKind::NotFound.into()))?;
        let image = serde_json::from_slice(&bytes);
        let image = Arc::new(image.map_err(|source| StoreError::Document { path, source })?);
        self.images.put(*digest, &image);
        Ok(image)
    }

    /// Returns the image manifest of a digest, cached after the first read.
    fn known_image(&self, digest: &Digest) -> Result<Arc<Image>, StoreError> {
        self.images.get(digest).map_or_else(|| self.image(digest), Ok)
    }

    /// Returns the module that an index entry points at, if it points at one.
    pub(super) fn known_module_of(&self, entry: &Descriptor) -> Option<Digest> {
        let is_manifest = entry.media_type == MANIFEST_TYPE;
        let image = is_manifest.then(|| self.known_image(&entry.digest).ok())??;
        image.module().map(|module| module.digest)
    }

    /// Returns the blobs that an index entry needs, as far as its manifest can be read.
    pub(super) fn blobs_of(&self, entry: &Descriptor) -> Vec<Digest> {
        let mut blobs = vec![entry.digest];
        if let Ok(image) = self.known_image(&entry.digest) {
            blobs.push(image.config.digest);
            blobs.extend(image.layers.iter().map(|layer| layer.digest));
        }
        blobs
    }

    pub(super) fn read_blob(
        &self,
        digest: &Digest,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.blob_path(digest);
        let Some(bytes) = files::read(&path, limit)? else { return Ok(None) };
        let found = Digest::of(&bytes);
        if found == *digest { Ok(Some(bytes)) } else { Err(StoreError::Damaged { path, found }) }
    }

    pub(super) fn write_blobs(&self, lock: &WriteLock, blobs: &[&[u8]]) -> Result<(), StoreError> {
        let missing = blobs.iter().filter_map(|bytes| {
            let digest = Digest::of(bytes);
            let there = self.read_blob(&digest, MODULE_LENGTH_MAX);
            // Pushing again replaces a damaged blob.
            (!matches!(there, Ok(Some(_)))).then(|| (self.blob_path(&digest), *bytes))
        });
        lock.write_all(&missing.collect::<Vec<_>>())
    }

    pub(super) fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.path.join("blobs").join("sha256").join(digest.hex())
    }

    pub(super) fn document_error(&self, name: &str, source: serde_json::Error) -> StoreError {
        StoreError::Document { path: self.path.join(name), source }
    }
}
