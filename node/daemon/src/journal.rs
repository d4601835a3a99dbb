//! Journal of a node's desired states, on disk, for its next start.
//!
//! ```text
//! STATE/state.redb
//!   states   generation ─▶ SHA-256 ‖ JSON of the whole desired state
//!   heads    generation ─▶ JSON: what made it, and whether it waits for a confirmation
//!   facts    format, node, node file, latest time, versions
//!   capabilities, revoked   (trusted.rs)
//! ```
//!
//! A record is one transaction, on disk before the caller is answered (redb). The newest
//! generation is authoritative; older ones are kept for rollbacks. Data that cannot be read causes
//! an error with advice, never an empty state. This module does not interpret states, and reads no
//! clock.

mod trusted;

use crate::private;
use node::desired::DesiredState;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use units::Name;

pub use trusted::CapabilityTexts;

/// Generations that are kept: a day of an operator's changes.
pub const GENERATIONS_MAX: usize = 64;
/// Bytes of all states that are kept; a dozen of the largest possible. The newest one, and one to
/// which it may be rolled back, are always kept.
const BYTES_MAX: u64 = 32 << 20;
/// Page cache of the file in bytes: a node writes rarely, and reads when it starts.
const CACHE_BYTES: usize = 4 << 20;
/// Version of the file format; a node refuses a newer one.
const FORMAT: u32 = 1;
/// Bytes of a SHA-256 digest.
const DIGEST_LENGTH: usize = 32;

const STATES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("states");
const HEADS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("heads");
const FACTS: TableDefinition<'_, &str, &str> = TableDefinition::new("facts");

/// Journal of one node.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Database; `None` after an error: it is reopened before the next use.
    database: Option<Database>,
}

/// Head of a generation: everything beside its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Text of the change that made it.
    pub cause: String,
    /// Generation to return to if nobody confirms this one.
    #[serde(default)]
    pub unconfirmed_over: Option<u64>,
    /// Number of sessions.
    #[serde(default)]
    pub sessions: usize,
    /// Number of services.
    pub services: usize,
    /// Number of rules.
    pub rules: usize,
    /// Length of its state in bytes.
    #[serde(default)]
    bytes: u64,
}

/// Generation of the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the generation; numbers only grow.
    pub generation: u64,
    /// Head of the generation.
    pub head: Head,
    /// State that shall run.
    pub state: DesiredState,
}

impl Record {
    /// Creates a generation with this number.
    #[must_use]
    pub fn new(generation: u64, cause: &str, state: DesiredState) -> Self {
        let (sessions, services) = (state.sessions.len(), state.services.len());
        let (rules, cause) = (state.rules.len(), cause.to_owned());
        let head = Head { cause, unconfirmed_over: None, sessions, services, rules, bytes: 0 };
        Self { generation, head, state }
    }
}

/// Cause for which the journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused: a fault of the host.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation that was tried.
        action: &'static str,
        /// File that it was tried with.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file has bytes that no node wrote: a fault of the host.
    #[error(
        "the state of the node in {} is damaged: {reason}; restore it from a copy, or move it away (mv {0} {0}.damaged): the node then begins with what its node file says",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// The file was written by a later version: a fault of the operator.
    #[error("{} was written by a newer version of tam (form {found}, this one knows {FORMAT}); run that version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Format version of the file.
        found: String,
    },
    /// Two nodes use one directory: a fault of the operator.
    #[error("{} is the state of node '{node}'; give each node a directory of its own with state = \"DIRECTORY\" in its node file", path.display())]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// Name of the other node.
        node: String,
    },
    /// Another process has the file open: a fault of the operator.
    #[error("{} is in use by another process; give each node a directory of its own with state = \"DIRECTORY\" in its node file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The generation does not exist: a fault of the operator.
    #[error(
        "there is no generation {wanted} of this node's state; `tam rollback --list` shows those that are kept"
    )]
    NoGeneration {
        /// Number that was requested.
        wanted: u64,
    },
}

impl Journal {
    /// Opens the journal of a node, and creates one if there is none.
    ///
    /// # Errors
    /// The journal cannot be read or written, is damaged, or belongs to another node.
    pub fn open(directory: &Path, node: &Name) -> Result<Self, JournalError> {
        std::fs::create_dir_all(directory).map_err(io("make the directory", directory))?;
        let path = directory.join("state.redb");
        let journal = match path.try_exists().map_err(io("look for", &path))? {
            true => {
                private::take(&path).map_err(io("protect", &path))?;
                Self { database: Some(open(&path)?), path }
            }
            false => Self::create(path, node)?,
        };
        journal.check_facts(node)?;
        Ok(journal)
    }

    /// Creates a journal under a temporary name, and renames it once it has its node, so that an
    /// empty file is recognised as damaged.
    fn create(path: PathBuf, node: &Name) -> Result<Self, JournalError> {
        let new = path.with_extension("new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io("remove", &new)(error));
            }
            _ => {}
        }
        private::create(&new).map_err(io("make", &new))?;
        let failed = |source: redb::Error| of_redb("make", &new)(source);
        let database = builder().create(&new).map_err(|error| failed(error.into()))?;
        init(&database, node).map_err(failed)?;
        drop(database);
        std::fs::rename(&new, &path).map_err(io("rename", &new))?;
        if let Some(directory) = path.parent() {
            let opened = std::fs::File::open(directory).map_err(io("open", directory))?;
            opened.sync_all().map_err(io("sync", directory))?;
        }
        Ok(Self { database: Some(open(&path)?), path })
    }

    /// Creates the journal of a node in memory.
    #[cfg(test)]
    pub(crate) fn in_memory(node: &Name) -> Self {
        let backend = redb::backends::InMemoryBackend::new();
        let database = builder().create_with_backend(backend).expect("memory takes everything");
        init(&database, node).expect("memory takes everything");
        Self { database: Some(database), path: PathBuf::from("memory") }
    }

    fn check_facts(&self, node: &Name) -> Result<(), JournalError> {
        let fact = |key| {
            let found = self.fact(key)?;
            let reason = || format!("it does not say its {key}");
            found.ok_or_else(|| JournalError::Damaged { path: self.path.clone(), reason: reason() })
        };
        let found = fact("format")?;
        if found != FORMAT.to_string() {
            return Err(JournalError::Newer { path: self.path.clone(), found });
        }
        let found = fact("node")?;
        if found != node.as_str() {
            return Err(JournalError::OtherNode { path: self.path.clone(), node: found });
        }
        Ok(())
    }

    /// Returns the newest generation; `None` in a new journal.
    ///
    /// # Errors
    /// The generation cannot be read or is damaged.
    pub fn newest(&self) -> Result<Option<Record>, JournalError> {
        let database = self.opened()?;
        let newest = read_newest(database).map_err(of_redb("read", &self.path))?;
        newest.map(|generation| self.read(generation)).transpose()
    }

    /// Returns one generation.
    ///
    /// # Errors
    /// The generation does not exist, cannot be read or is damaged.
    pub fn read(&self, generation: u64) -> Result<Record, JournalError> {
        let found = read_record(self.opened()?, generation);
        let damaged = |reason: String| JournalError::Damaged {
            path: self.path.clone(),
            reason: format!("generation {generation}: {reason}"),
        };
        let (head, state) = match found.map_err(of_redb("read", &self.path))? {
            (Some(head), Some(state)) => (head, state),
            (None, None) => return Err(JournalError::NoGeneration { wanted: generation }),
            _ => return Err(damaged("half of it is missing".to_owned())),
        };
        let head = serde_json::from_slice(&head).map_err(|e| damaged(e.to_string()))?;
        let Some((digest, json)) = state.split_at_checked(DIGEST_LENGTH) else {
            return Err(damaged("it is cut off".to_owned()));
        };
        if Sha256::digest(json).as_slice() != digest {
            return Err(damaged("its bytes are not those that were written".to_owned()));
        }
        let state = serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
        Ok(Record { generation, head, state })
    }

    /// Returns the heads of the generations that are kept, newest first.
    ///
    /// # Errors
    /// The heads cannot be read.
    pub fn list(&self) -> Result<Vec<(u64, Head)>, JournalError> {
        let heads = read_heads(self.opened()?).map_err(of_redb("read", &self.path))?;
        let mut list = Vec::new();
        for (generation, head) in heads.into_iter().rev() {
            let head = serde_json::from_slice(&head).map_err(|error| JournalError::Damaged {
                path: self.path.clone(),
                reason: format!("generation {generation}: {error}"),
            })?;
            list.push((generation, head));
        }
        Ok(list)
    }

    /// Returns the digest of the node file's desired state when it was last followed.
    ///
    /// # Errors
    /// The digest cannot be read.
    pub fn node_file(&self) -> Result<Option<String>, JournalError> {
        self.fact("node file")
    }

    fn fact(&self, key: &str) -> Result<Option<String>, JournalError> {
        read_fact(self.opened()?, key).map_err(of_redb("read", &self.path))
    }

    /// Writes a generation, replacing all from its number on; it is on disk when this returns.
    /// `node_file` is the digest of the node file's desired state, if that was followed now;
    /// `capabilities` are those of its owners, if they have changed.
    ///
    /// # Errors
    /// The generation cannot be written; the journal is then unchanged.
    pub fn write(
        &mut self,
        record: &Record,
        node_file: Option<&str>,
        capabilities: Option<&CapabilityTexts>,
    ) -> Result<(), JournalError> {
        if self.database.is_none() {
            self.database = Some(open(&self.path)?);
        }
        let written = write(self.opened()?, record, node_file, capabilities);
        written.map_err(|error| {
            self.recover(record.generation);
            of_redb("write", &self.path)(error)
        })
    }

    /// Reopens the file after an error, and removes a record that reached the disk all the same, as
    /// its caller was answered otherwise.
    fn recover(&mut self, generation: u64) {
        self.database = None;
        if let Ok(database) = open(&self.path) {
            // An error here occurs again with the next record, and is reported then.
            if truncate(&database, generation).is_ok() {
                self.database = Some(database);
            }
        }
    }

    /// Returns the error for data that was not written by a node.
    pub(crate) fn damaged(&self, reason: String) -> JournalError {
        JournalError::Damaged { path: self.path.clone(), reason }
    }

    fn opened(&self) -> Result<&Database, JournalError> {
        self.database.as_ref().ok_or_else(|| JournalError::Io {
            action: "use",
            path: self.path.clone(),
            source: io::Error::other("it could not be opened again after an error"),
        })
    }

    /// Returns the capabilities that were written last.
    ///
    /// # Errors
    /// The capabilities cannot be read.
    pub fn capabilities(&self) -> Result<CapabilityTexts, JournalError> {
        trusted::read_capabilities(self.opened()?).map_err(of_redb("read", &self.path))
    }

    /// Returns all revocation ids.
    ///
    /// # Errors
    /// The revocations cannot be read.
    pub fn revoked(&self) -> Result<BTreeSet<String>, JournalError> {
        trusted::read_revoked(self.opened()?).map_err(of_redb("read", &self.path))
    }

    /// Returns the latest recorded time, in seconds since 1970.
    ///
    /// # Errors
    /// The time cannot be read.
    pub fn latest_time(&self) -> Result<u64, JournalError> {
        let text = self.fact(trusted::LATEST_TIME)?.unwrap_or_else(|| "0".to_owned());
        let wrong = |_| self.damaged(format!("its latest time is '{}'", text.escape_debug()));
        text.parse().map_err(wrong)
    }

    /// Records revocations, and the time; on disk when this returns.
    ///
    /// # Errors
    /// The revocations cannot be written; the journal is then unchanged.
    pub fn revoke(&mut self, what: &BTreeSet<String>, time: u64) -> Result<(), JournalError> {
        self.in_transaction(|transaction| {
            let mut revoked = transaction.open_table(trusted::REVOKED)?;
            for what in what {
                revoked.insert(what.as_str(), ())?;
            }
            trusted::keep_time(transaction, time)
        })
    }

    /// Returns the highest versions of modules that ran, as text.
    ///
    /// # Errors
    /// The versions cannot be read.
    pub fn versions(&self) -> Result<Option<String>, JournalError> {
        self.fact(trusted::VERSIONS)
    }

    /// Records the highest versions.
    ///
    /// # Errors
    /// The versions cannot be written; the journal is then unchanged.
    pub fn keep_versions(&mut self, text: &str) -> Result<(), JournalError> {
        self.in_transaction(|transaction| {
            transaction.open_table(FACTS)?.insert(trusted::VERSIONS, text)?;
            Ok(())
        })
    }

    /// Records the latest time.
    ///
    /// # Errors
    /// The time cannot be written; the journal is then unchanged.
    pub fn keep_time(&mut self, time: u64) -> Result<(), JournalError> {
        self.in_transaction(|transaction| trusted::keep_time(transaction, time))
    }

    fn in_transaction(
        &mut self,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), JournalError> {
        if self.database.is_none() {
            self.database = Some(open(&self.path)?);
        }
        let written = trusted::try_write(self.opened()?, change);
        written.map_err(|error| {
            // The file is reopened before the next use.
            self.database = None;
            of_redb("write", &self.path)(error)
        })
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

fn open(path: &Path) -> Result<Database, JournalError> {
    if std::fs::metadata(path).map_err(io("open", path))?.len() == 0 {
        let reason = "it is empty".to_owned();
        return Err(JournalError::Damaged { path: path.to_owned(), reason });
    }
    builder().open(path).map_err(|error| of_redb("open", path)(error.into()))
}

fn init(database: &Database, node: &Name) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut facts = transaction.open_table(FACTS)?;
        facts.insert("format", FORMAT.to_string().as_str())?;
        facts.insert("node", node.as_str())?;
        transaction.open_table(HEADS)?;
        transaction.open_table(STATES)?;
    }
    Ok(transaction.commit()?)
}

fn write(
    database: &Database,
    record: &Record,
    node_file: Option<&str>,
    capabilities: Option<&CapabilityTexts>,
) -> Result<(), redb::Error> {
    let unwritable = |error: serde_json::Error| redb::Error::Corrupted(error.to_string());
    let json = serde_json::to_vec(&record.state).map_err(unwritable)?;
    let bytes = [Sha256::digest(&json).as_slice(), &json].concat();
    let head = Head { bytes: bytes.len() as u64, ..record.head.clone() };
    let head_bytes = serde_json::to_vec(&head).map_err(unwritable)?;
    let transaction = database.begin_write()?;
    {
        let mut heads = transaction.open_table(HEADS)?;
        let mut states = transaction.open_table(STATES)?;
        let mut kept = Vec::new();
        for entry in heads.iter()? {
            let (generation, head) = entry?;
            // A head that cannot be read counts as large, and is removed first.
            let bytes = serde_json::from_slice::<Head>(head.value());
            kept.push((generation.value(), bytes.map_or(BYTES_MAX, |head| head.bytes)));
        }
        for generation in dropped(&kept, record, head.bytes) {
            heads.remove(generation)?;
            states.remove(generation)?;
        }
        heads.insert(record.generation, head_bytes.as_slice())?;
        states.insert(record.generation, bytes.as_slice())?;
        if let Some(digest) = node_file {
            transaction.open_table(FACTS)?.insert("node file", digest)?;
        }
        if let Some(capabilities) = capabilities {
            trusted::keep_capabilities(&transaction, capabilities)?;
        }
    }
    Ok(transaction.commit()?)
}

/// Returns the generations to remove for a record: those with its number and above, and the oldest
/// beyond the limits.
fn dropped(kept: &[(u64, u64)], record: &Record, bytes: u64) -> Vec<u64> {
    let needed = |generation: u64| record.head.unconfirmed_over == Some(generation);
    let (mut count, mut sum) = (1, bytes);
    let mut gone = Vec::new();
    for &(generation, bytes) in kept.iter().rev() {
        let replaced = generation >= record.generation;
        if replaced
            || (!needed(generation)
                && (count >= GENERATIONS_MAX || sum.saturating_add(bytes) > BYTES_MAX))
        {
            gone.push(generation);
        } else {
            count += 1;
            sum = sum.saturating_add(bytes);
        }
    }
    gone
}

/// Removes every generation from this number on.
fn truncate(database: &Database, from: u64) -> Result<(), redb::Error> {
    if read_newest(database)?.is_none_or(|newest| newest < from) {
        return Ok(());
    }
    let transaction = database.begin_write()?;
    {
        transaction.open_table(HEADS)?.retain(|generation, _| generation < from)?;
        transaction.open_table(STATES)?.retain(|generation, _| generation < from)?;
    }
    Ok(transaction.commit()?)
}

fn read_newest(database: &Database) -> Result<Option<u64>, redb::Error> {
    let heads = database.begin_read()?.open_table(HEADS)?;
    Ok(heads.last()?.map(|(generation, _)| generation.value()))
}

type Bytes = Vec<u8>;

/// Reads head and state of a generation.
fn read_record(
    database: &Database,
    number: u64,
) -> Result<(Option<Bytes>, Option<Bytes>), redb::Error> {
    let transaction = database.begin_read()?;
    let head = transaction.open_table(HEADS)?.get(number)?.map(|head| head.value().to_vec());
    let state = transaction.open_table(STATES)?.get(number)?.map(|state| state.value().to_vec());
    Ok((head, state))
}

fn read_heads(database: &Database) -> Result<Vec<(u64, Bytes)>, redb::Error> {
    let heads = database.begin_read()?.open_table(HEADS)?;
    let mut found = Vec::new();
    for entry in heads.iter()? {
        let (generation, head) = entry?;
        found.push((generation.value(), head.value().to_vec()));
    }
    Ok(found)
}

fn read_fact(database: &Database, key: &str) -> Result<Option<String>, redb::Error> {
    let facts = database.begin_read()?.open_table(FACTS)?;
    Ok(facts.get(key)?.map(|value| value.value().to_owned()))
}

fn io(action: &'static str, path: &Path) -> impl Fn(io::Error) -> JournalError {
    move |source| JournalError::Io { action, path: path.to_owned(), source }
}

/// Converts an error of the database.
fn of_redb(action: &'static str, path: &Path) -> impl Fn(redb::Error) -> JournalError {
    move |error| {
        let path = path.to_owned();
        match error {
            redb::Error::Io(source)
                if matches!(
                    source.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                JournalError::Damaged { path, reason: source.to_string() }
            }
            redb::Error::Io(source) => JournalError::Io { action, path, source },
            redb::Error::DatabaseAlreadyOpen => JournalError::InUse { path },
            other => JournalError::Damaged { path, reason: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests;
