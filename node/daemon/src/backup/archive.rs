//! Archive of a backup: a tar file (POSIX ustar) of plain files, in this order.
//!
//! ```text
//! backup.json                        the state, as GET /v1/backup answers it
//! node.key.pem                       PKCS#8, encrypted with a passphrase if one was given
//! ledger/NAME.ledger …               as they lie in the state directory
//! store/oci-layout, index.json, blobs/sha256/HEX …
//! SHA256SUMS                         digests of all files above, as `sha256sum` writes them
//! ```
//!
//! Nothing else is accepted: no links, no other names, nothing beyond a limit, no file whose digest
//! is not in the last one. While an archive is read it is written again, into a hash: what differs
//! in any byte, also of headers and padding or behind the end, is damaged.

use api::NodeBackup;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use tar::{Builder, EntryType, Header};

/// Most files of one backup: some 20,000 modules with their manifests, and a ledger.
pub const ENTRIES_MAX: usize = 131_072;
/// Largest file of a backup in bytes: the limit of a ledger's segment and of a node's state.
pub const FILE_LENGTH_MAX: u64 = 256 << 20;
/// Bytes of all files together.
const LENGTH_MAX: u64 = 16 << 30;
const STATE: &str = "backup.json";
const SUMS: &str = "SHA256SUMS";

/// Cause for which a file is no backup.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read or written: a fault of the host.
    #[error("{}", unreadable(.0))]
    Io(#[from] io::Error),
    /// The archive has an entry that no backup has.
    #[error("this is no backup: '{0}' has no place in one; `tam backup` makes one")]
    Stranger(String),
    /// A part of the backup is missing.
    #[error("the backup is not whole: {0}; use another copy")]
    Incomplete(String),
    /// A file has other bytes than were written.
    #[error("the backup is damaged: '{0}' is not what was written; use another copy")]
    Damaged(String),
    /// The archive exceeds a limit.
    #[error("the backup is too large: {0}")]
    TooLarge(String),
    /// The state document cannot be parsed.
    #[error("the backup's state is not understood: {0}; was it written by a newer version of tam?")]
    State(serde_json::Error),
}

/// Returns what an error of the file or of the archive's reader means.
fn unreadable(error: &io::Error) -> String {
    if error.raw_os_error().is_some() {
        return format!("the backup cannot be read or written: {error}");
    }
    // The reader repeats the bytes that it does not understand, over several lines.
    let reason = error.to_string();
    let reason = reason.lines().next().unwrap_or_default();
    format!("this is no backup, or a damaged one: {reason}; `tam backup` makes one")
}

/// File of a backup beside its state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// Key of the node.
    Key,
    /// Segment of the ledger, by its name.
    Ledger(String),
    /// File of the module store, by its path there.
    Store(String),
}

impl Entry {
    /// Returns the path in the archive.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Key => super::KEY_FILE.to_owned(),
            Self::Ledger(name) => format!("ledger/{name}"),
            Self::Store(name) => format!("store/{name}"),
        }
    }

    /// Returns the entry of a path, if a backup has such a file.
    #[must_use]
    pub fn of(path: &str) -> Option<Self> {
        if path == super::KEY_FILE {
            return Some(Self::Key);
        }
        if let Some(name) = path.strip_prefix("ledger/") {
            let number = name.strip_suffix(".ledger")?;
            let is_number = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
            return is_number.then(|| Self::Ledger(name.to_owned()));
        }
        let name = path.strip_prefix("store/")?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_blob = name
            .strip_prefix("blobs/sha256/")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_digit));
        (is_blob || name == "oci-layout" || name == "index.json")
            .then(|| Self::Store(name.to_owned()))
    }
}

/// Contents of a backup.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// State of the node.
    pub backup: NodeBackup,
    /// All other files.
    pub files: BTreeMap<Entry, Vec<u8>>,
}

/// Backup that is being written.
pub struct Archive<W: Write> {
    builder: Builder<W>,
    sums: String,
}

impl<W: Write> Archive<W> {
    /// Begins a backup with the node's state.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(to: W, backup: &NodeBackup) -> Result<Self, ArchiveError> {
        let mut archive = Self { builder: Builder::new(to), sums: String::new() };
        let state = serde_json::to_vec_pretty(backup).map_err(ArchiveError::State)?;
        archive.append(STATE, &state)?;
        Ok(archive)
    }

    /// Adds a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, entry: &Entry, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.append(&entry.path(), bytes)
    }

    /// Completes the backup with the digests of its files.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(mut self) -> Result<W, ArchiveError> {
        let sums = std::mem::take(&mut self.sums);
        self.append(SUMS, sums.as_bytes())?;
        Ok(self.builder.into_inner()?)
    }

    fn append(&mut self, path: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        let length = bytes.len() as u64;
        if length > FILE_LENGTH_MAX {
            return Err(ArchiveError::TooLarge(format!("'{path}' has {length} bytes")));
        }
        let mut header = Header::new_ustar();
        header.set_size(length);
        header.set_mode(0o600);
        header.set_entry_type(EntryType::Regular);
        self.builder.append_data(&mut header, path, bytes)?;
        self.sums += &format!("{}  {path}\n", digest(bytes));
        Ok(())
    }
}

/// Reader that hashes all bytes that pass.
struct Hashed<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(bytes)?;
        self.hash.update(&bytes[..length]);
        Ok(length)
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a whole backup.
///
/// # Errors
/// The file is no backup, incomplete, damaged, or beyond a limit.
pub fn read(from: impl Read) -> Result<Contents, ArchiveError> {
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut length = 0;
    let mut archive = tar::Archive::new(Hashed { inner: from, hash: Sha256::new() });
    let mut again = Archive { builder: Builder::new(Sha256::new()), sums: String::new() };
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let is_known = path == STATE || path == SUMS || Entry::of(&path).is_some();
        if entry.header().entry_type() != EntryType::Regular || !is_known {
            return Err(ArchiveError::Stranger(shown(&path)));
        }
        length += entry.size();
        if entry.size() > FILE_LENGTH_MAX || length > LENGTH_MAX || files.len() >= ENTRIES_MAX {
            let limits = format!(
                "at most {ENTRIES_MAX} files of {FILE_LENGTH_MAX} bytes, {LENGTH_MAX} together"
            );
            return Err(ArchiveError::TooLarge(limits));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        if bytes.len() as u64 != entry.size() {
            return Err(ArchiveError::Incomplete(format!("'{path}' is cut off")));
        }
        if path != SUMS {
            again.append(&path, &bytes)?;
        }
        if files.contains_key(SUMS) || files.insert(path.clone(), bytes).is_some() {
            return Err(ArchiveError::Stranger(shown(&path)));
        }
    }
    verify(&mut files)?;
    let mut read = archive.into_inner();
    io::copy(&mut read, &mut io::sink())?;
    if read.hash.finalize() != again.end()?.finalize() {
        return Err(ArchiveError::Damaged("a header, its padding or its end".to_owned()));
    }
    let state = files.remove(STATE).unwrap_or_default();
    let backup = serde_json::from_slice(&state).map_err(ArchiveError::State)?;
    let entry = |(path, bytes): (String, Vec<u8>)| Some((Entry::of(&path)?, bytes));
    Ok(Contents { backup, files: files.into_iter().filter_map(entry).collect() })
}

/// Checks that each file has the digest in the last one, and that the last one lists exactly these
/// files.
fn verify(files: &mut BTreeMap<String, Vec<u8>>) -> Result<(), ArchiveError> {
    let missing = |path: &str| ArchiveError::Incomplete(format!("'{path}' is missing"));
    let sums = files.remove(SUMS).ok_or_else(|| missing(SUMS))?;
    let sums = String::from_utf8(sums).map_err(|_| ArchiveError::Damaged(SUMS.to_owned()))?;
    let mut seen = 0;
    for line in sums.lines() {
        let Some((sum, path)) = line.split_once("  ") else {
            return Err(ArchiveError::Damaged(SUMS.to_owned()));
        };
        let bytes = files.get(path).ok_or_else(|| missing(&shown(path)))?;
        if digest(bytes) != sum {
            return Err(ArchiveError::Damaged(shown(path)));
        }
        seen += 1;
    }
    for needed in [STATE, super::KEY_FILE] {
        if !files.contains_key(needed) {
            return Err(missing(needed));
        }
    }
    // A repeated line would hide a file without one.
    let mut lines: Vec<&str> = sums.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    if lines.len() == seen && seen == files.len() {
        Ok(())
    } else {
        Err(ArchiveError::Damaged(SUMS.to_owned()))
    }
}

/// Returns a foreign name in a form fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(96).flat_map(char::escape_debug).collect()
}
