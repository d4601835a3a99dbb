//! Backup and restore: everything that makes up a node in one file, and a node recreated from it.
//!
//! ```text
//! tam backup ─ GET /v1/backup ─▶ state, capabilities, revocations ─┐
//!              state directory ─▶ the node's key, its ledger ──────┼─▶ FILE (archive.rs)
//!              store ───────────▶ modules ─────────────────────────┘
//! tam restore FILE ─▶ every digest compared ─▶ new directories, whole or not at all
//! ```

mod archive;

pub use archive::{Archive, ArchiveError, Contents, ENTRIES_MAX, Entry, FILE_LENGTH_MAX, read};

use crate::journal::{Journal, JournalError, Record};
use crate::private;
use node::desired::DesiredState;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use units::Name;

/// Name of the node's key in a state directory.
pub const KEY_FILE: &str = "node.key.pem";

/// Cause for which a backup was not restored. Nothing has been changed then.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory is in use: a fault of the operator.
    #[error("{} is there already and is not empty; move it away, or name other directories", path.display())]
    Occupied {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The file system refused: a fault of the host.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation that was tried.
        action: &'static str,
        /// Path that it was tried with.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The state document cannot be parsed: a fault of the file's author.
    #[error(
        "the state in the backup is not understood: {0}; was it written by a newer version of tam?"
    )]
    State(String),
    /// The new state cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Directories to which a backup is restored.
#[derive(Clone, Debug)]
pub struct Places {
    /// State directory of the node.
    pub state: PathBuf,
    /// Module store.
    pub store: PathBuf,
}

/// Recreates the directories of a node, completely or not at all.
///
/// # Errors
/// A directory is not empty, or cannot be written.
pub fn restore(contents: &Contents, places: &Places) -> Result<(), RestoreError> {
    let targets = [&places.state, &places.store];
    for path in targets {
        let occupied = || RestoreError::Occupied { path: path.clone() };
        match fs::read_dir(path) {
            Ok(entries) => {
                if entries.count() > 0 {
                    return Err(occupied());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("look into", path)(error)),
        }
    }
    let unready = targets.map(|path| unready(path));
    let made = make(contents, &unready[0], &unready[1]).and_then(|()| put(&unready, targets));
    if made.is_err() {
        for path in &unready {
            // Directories that were not created are not there.
            let _ = fs::remove_dir_all(path);
        }
    }
    made
}

/// Moves directories into place; undoes that on an error.
fn put(unready: &[PathBuf; 2], targets: [&PathBuf; 2]) -> Result<(), RestoreError> {
    let was_there = targets.map(|path| path.exists());
    for (at, (from, to)) in unready.iter().zip(targets).enumerate() {
        // `rename` replaces an empty directory.
        let Err(error) = fs::rename(from, to) else { continue };
        for (before, path) in targets.into_iter().enumerate().take(at) {
            // The path was moved there a moment ago. An error here is found by the next restore.
            let _ = fs::rename(path, &unready[before]);
            if was_there[before] {
                let _ = fs::create_dir(path);
            }
        }
        return Err(io_error("make", to)(error));
    }
    Ok(())
}

fn unready(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".restoring");
    path.with_file_name(name)
}

fn make(contents: &Contents, state: &Path, store: &Path) -> Result<(), RestoreError> {
    for directory in [state, store] {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error("clear", directory)(error));
            }
            _ => fs::create_dir_all(directory).map_err(io_error("make", directory))?,
        }
    }
    let backup = &contents.backup;
    let wrong = |error: serde_json::Error| RestoreError::State(error.to_string());
    let desired: DesiredState = serde_json::from_value(backup.state.clone()).map_err(wrong)?;
    let name = Name::new(&backup.node).map_err(|error| RestoreError::State(error.to_string()))?;
    let mut journal = Journal::open(state, &name)?;
    let record = Record::new(backup.generation.max(1), "restored from a backup", desired);
    journal.write(&record, backup.node_file.as_deref(), Some(&backup.capabilities))?;
    let revoked: BTreeSet<String> = backup.revoked.iter().cloned().collect();
    journal.revoke(&revoked, backup.latest_time)?;
    drop(journal);
    let ledger = state.join("ledger");
    private::directory(&ledger).map_err(io_error("make", &ledger))?;
    for (entry, bytes) in &contents.files {
        let path = match entry {
            Entry::Key => state.join(KEY_FILE),
            Entry::Ledger(name) => ledger.join(name),
            Entry::Store(name) => store.join(name),
        };
        write(&path, bytes, !matches!(entry, Entry::Store(_)))?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8], is_private: bool) -> Result<(), RestoreError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(io_error("make", directory))?;
    }
    let made = if is_private { private::create(path) } else { fs::File::create(path) };
    let mut file = made.map_err(io_error("write", path))?;
    io::Write::write_all(&mut file, bytes).map_err(io_error("write", path))?;
    file.sync_all().map_err(io_error("sync", path))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    move |source| RestoreError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
