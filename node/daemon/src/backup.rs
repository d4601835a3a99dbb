//! Backups: everything that makes a node that node, in one file, and a node made of it again.
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

/// The node's key in a state directory.
pub const KEY_FILE: &str = "node.key.pem";

/// Why a backup was not restored. What was there before still is, and nothing else.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Something else is there. The operator's fault.
    #[error("{} is there already and is not empty; move it away, or name other directories", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
    },
    /// The file system refused. The host's fault.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state in it is none. Whose fault: who wrote the file.
    #[error(
        "the state in the backup is not understood: {0}; was it written by a newer version of tam?"
    )]
    State(String),
    /// The new state cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Where a backup is restored to.
#[derive(Clone, Debug)]
pub struct Places {
    /// The node's state.
    pub state: PathBuf,
    /// Its modules.
    pub store: PathBuf,
}

/// Makes the directories of a node again, whole or not at all.
///
/// # Errors
/// When something is there already, or cannot be written.
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
            // What was not made is not there.
            let _ = fs::remove_dir_all(path);
        }
    }
    made
}

/// Puts directories in their places; on an error what was before is there again.
fn put(unready: &[PathBuf; 2], targets: [&PathBuf; 2]) -> Result<(), RestoreError> {
    let was_there = targets.map(|path| path.exists());
    for (at, (from, to)) in unready.iter().zip(targets).enumerate() {
        // An empty directory gives way to one with something in it.
        let Err(error) = fs::rename(from, to) else { continue };
        for (before, path) in targets.into_iter().enumerate().take(at) {
            // It was put there a moment ago. What fails now is found by whoever restores again.
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
