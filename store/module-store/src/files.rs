//! Atomic file writes under a lock: a file is complete or absent, and there is one writer at a
//! time.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// Lock of a store's writer. Released on drop, and by the kernel after a crash.
#[derive(Debug)]
pub(crate) struct WriteLock {
    _file: File,
    partial: PathBuf,
}

/// Names in a store's directory that are not part of the OCI layout.
pub(crate) const OWN_NAMES: [&str; 2] = [LOCK, PARTIAL];
const LOCK: &str = ".lock";
const PARTIAL: &str = ".partial";

impl WriteLock {
    /// Waits for the lock, and removes files that a crashed writer left unfinished.
    pub(crate) fn take(store: &Path) -> Result<Self, StoreError> {
        let path = store.join(LOCK);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::io("create", &path))?;
        file.lock().map_err(StoreError::io("lock", &path))?;
        let partial = store.join(PARTIAL);
        match fs::remove_dir_all(&partial) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Io { action: "clear", path: partial, source });
            }
            _ => {}
        }
        fs::create_dir(&partial).map_err(StoreError::io("create", &partial))?;
        Ok(Self { _file: file, partial })
    }

    /// Writes a file atomically: written, synced, renamed, and its directory synced.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        self.write_all(&[(path.to_owned(), bytes)])
    }

    /// Writes several files of one directory atomically each; the directory is synced once.
    pub(crate) fn write_all(&self, files: &[(PathBuf, &[u8])]) -> Result<(), StoreError> {
        let action = "write";
        let mut written = Vec::new();
        for (path, bytes) in files {
            let mut file = tempfile::Builder::new()
                .permissions(readable_by_all())
                .tempfile_in(&self.partial)
                .map_err(StoreError::io(action, path))?;
            file.write_all(bytes).map_err(StoreError::io(action, path))?;
            written.push((path, file));
        }
        for (path, file) in &written {
            file.as_file().sync_all().map_err(StoreError::io(action, path))?;
        }
        for (path, file) in written {
            file.persist(path).map_err(|error| StoreError::io(action, path)(error.error))?;
        }
        match files.first().and_then(|(path, _)| path.parent()) {
            Some(directory) => sync_directory(directory),
            None => Ok(()),
        }
    }
}

/// Returns the mode of module files: readable by all, since modules are not secret and temporary
/// files are private by default.
fn readable_by_all() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o644)
}

pub(crate) fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    let opened = File::open(directory).map_err(StoreError::io("open", directory))?;
    opened.sync_all().map_err(StoreError::io("sync", directory))
}

/// Reads a file of at most `limit` bytes; `None` if it does not exist.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::Io { action: "open", path: path.into(), source }),
    };
    let length = file.metadata().map_err(StoreError::io("read", path))?.len();
    if length > limit {
        return Err(StoreError::TooLarge { what: path.display().to_string(), length, limit });
    }
    // One byte more, so that the end is detected without growing the buffer.
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(limit).read_to_end(&mut bytes).map_err(StoreError::io("read", path))?;
    Ok(Some(bytes))
}
