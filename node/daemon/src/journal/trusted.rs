//! What the journal keeps beside states: capabilities under which something runs, what is
//! revoked, and the latest time that was believed. It outlives every generation.
//!
//! ```text
//!   capabilities   number ─▶ JSON
//!   revoked        block or key ─▶ nothing
//!   facts          latest time, versions of modules that ran
//! ```

use super::{FACTS, Journal, JournalError, of_redb, open};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::collections::{BTreeMap, BTreeSet};

const CAPABILITIES: TableDefinition<'_, u32, &str> = TableDefinition::new("capabilities");
const REVOKED: TableDefinition<'_, &str, ()> = TableDefinition::new("revoked");
const LATEST_TIME: &str = "latest time";
const VERSIONS: &str = "versions";

/// Capabilities by their numbers, as text.
pub type CapabilityTexts = BTreeMap<u32, String>;

impl Journal {
    /// The capabilities that were written last.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn capabilities(&self) -> Result<CapabilityTexts, JournalError> {
        read_capabilities(self.opened()?).map_err(of_redb("read", &self.path))
    }

    /// Everything that was ever revoked.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn revoked(&self) -> Result<BTreeSet<String>, JournalError> {
        read_revoked(self.opened()?).map_err(of_redb("read", &self.path))
    }

    /// The latest time that was kept, in seconds since 1970.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn latest_time(&self) -> Result<u64, JournalError> {
        let text = self.fact(LATEST_TIME)?.unwrap_or_else(|| "0".to_owned());
        let wrong = |_| self.damaged(format!("its latest time is '{}'", text.escape_debug()));
        text.parse().map_err(wrong)
    }

    /// Writes down what is revoked, and the time; on disk when this returns.
    ///
    /// # Errors
    /// When it cannot be written; then the journal is as it was.
    pub fn revoke(&mut self, what: &BTreeSet<String>, time: u64) -> Result<(), JournalError> {
        self.in_transaction(|transaction| {
            let mut revoked = transaction.open_table(REVOKED)?;
            for what in what {
                revoked.insert(what.as_str(), ())?;
            }
            keep_time(transaction, time)
        })
    }

    /// The highest versions of modules that ran, as text.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn versions(&self) -> Result<Option<String>, JournalError> {
        self.fact(VERSIONS)
    }

    /// Keeps the highest versions.
    ///
    /// # Errors
    /// When they cannot be written; then the journal is as it was.
    pub fn keep_versions(&mut self, text: &str) -> Result<(), JournalError> {
        self.in_transaction(|transaction| {
            transaction.open_table(FACTS)?.insert(VERSIONS, text)?;
            Ok(())
        })
    }

    /// Keeps the latest time.
    ///
    /// # Errors
    /// When it cannot be written; then the journal is as it was.
    pub fn keep_time(&mut self, time: u64) -> Result<(), JournalError> {
        self.in_transaction(|transaction| keep_time(transaction, time))
    }

    fn in_transaction(
        &mut self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), JournalError> {
        if self.database.is_none() {
            self.database = Some(open(&self.path)?);
        }
        let written = try_write(self.opened()?, change);
        written.map_err(|error| {
            // Opened anew before the next use.
            self.database = None;
            of_redb("write", &self.path)(error)
        })
    }
}

fn try_write(
    database: &Database,
    change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    change(&transaction)?;
    Ok(transaction.commit()?)
}

fn keep_time(transaction: &WriteTransaction, time: u64) -> Result<(), redb::Error> {
    transaction.open_table(FACTS)?.insert(LATEST_TIME, time.to_string().as_str())?;
    Ok(())
}

/// Puts these in the place of all capabilities.
pub(super) fn keep_capabilities(
    transaction: &WriteTransaction,
    capabilities: &CapabilityTexts,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(CAPABILITIES)?;
    table.retain(|number, _| capabilities.contains_key(&number))?;
    for (number, text) in capabilities {
        table.insert(*number, text.as_str())?;
    }
    Ok(())
}

fn read_capabilities(database: &Database) -> Result<CapabilityTexts, redb::Error> {
    let table = match database.begin_read()?.open_table(CAPABILITIES) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        table => table?,
    };
    let mut found = BTreeMap::new();
    for entry in table.iter()? {
        let (number, text) = entry?;
        found.insert(number.value(), text.value().to_owned());
    }
    Ok(found)
}

fn read_revoked(database: &Database) -> Result<BTreeSet<String>, redb::Error> {
    let table = match database.begin_read()?.open_table(REVOKED) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeSet::new()),
        table => table?,
    };
    let mut found = BTreeSet::new();
    for entry in table.iter()? {
        found.insert(entry?.0.value().to_owned());
    }
    Ok(found)
}
