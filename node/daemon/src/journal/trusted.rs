//! Records of the journal beside states: capabilities under which something runs, what is
//! revoked, and the latest time that was believed. It outlives every generation.
//!
//! ```text
//!   capabilities   number ─▶ JSON
//!   revoked        block or key ─▶ nothing
//!   facts          latest time, versions of modules that ran
//! ```

use super::FACTS;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::collections::{BTreeMap, BTreeSet};

const CAPABILITIES: TableDefinition<'_, u32, &str> = TableDefinition::new("capabilities");
pub(super) const REVOKED: TableDefinition<'_, &str, ()> = TableDefinition::new("revoked");
pub(super) const LATEST_TIME: &str = "latest time";
pub(super) const VERSIONS: &str = "versions";

/// Capabilities by their numbers, as text.
pub type CapabilityTexts = BTreeMap<u32, String>;

/// Makes a change in a transaction of its own; on disk when this returns.
pub(super) fn try_write(
    database: &Database,
    change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    change(&transaction)?;
    Ok(transaction.commit()?)
}

/// Writes the latest time, in seconds since 1970.
pub(super) fn keep_time(transaction: &WriteTransaction, time: u64) -> Result<(), redb::Error> {
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

/// Reads the capabilities that were written last.
pub(super) fn read_capabilities(database: &Database) -> Result<CapabilityTexts, redb::Error> {
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

/// Reads everything that was ever revoked.
pub(super) fn read_revoked(database: &Database) -> Result<BTreeSet<String>, redb::Error> {
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
