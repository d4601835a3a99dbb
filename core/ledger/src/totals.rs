//! Sums of records by account.

use crate::amounts::{Amounts, Field};
use crate::record::{Account, Usage};
use std::collections::BTreeMap;
use trust::UnixTime;

/// Period of billing, from `since` to before `until`. A record counts by the time of its reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// First second of the period.
    pub since: UnixTime,
    /// First second after the period.
    pub until: UnixTime,
}

impl Period {
    /// All time.
    pub const EVER: Self = Self { since: UnixTime(0), until: UnixTime(u64::MAX) };

    /// Returns true if the record is in the period.
    #[must_use]
    pub fn has(&self, usage: &Usage) -> bool {
        (self.since..self.until).contains(&usage.time)
    }
}

/// Error of a sum that exceeds 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {} of session '{}' of {} are more than 64 bits hold: ask for a shorter period",
    field.name(), account.session, account.principal
)]
pub struct Overflow {
    /// Account of the sum.
    pub account: Box<Account>,
    /// Field of the sum.
    pub field: Field,
}

/// Sum of an account's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Number of records.
    pub records: u64,
    /// Time of the first record.
    pub first: UnixTime,
    /// Time of the last record.
    pub last: UnixTime,
    /// Sum of the billed amounts.
    pub used: Amounts,
}

/// Sums by account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals(BTreeMap<Account, Sum>);

impl Totals {
    /// Adds a record.
    ///
    /// # Errors
    /// A sum exceeds 64 bits; then nothing is added.
    pub fn add(&mut self, usage: &Usage) -> Result<(), Overflow> {
        let (account, time) = (&usage.account, usage.time);
        let new = Sum { records: 0, first: time, last: time, used: Amounts::NONE };
        let sum = self.0.entry(account.clone()).or_insert(new);
        let overflow = |field| Overflow { account: Box::new(account.clone()), field };
        sum.used = sum.used.plus(&usage.used).map_err(overflow)?;
        sum.records += 1;
        sum.last = time;
        Ok(())
    }

    /// Returns the accounts with their sums.
    pub fn iter(&self) -> impl Iterator<Item = (&Account, &Sum)> {
        self.0.iter()
    }

    /// Returns the sum of one account.
    #[must_use]
    pub fn of(&self, account: &Account) -> Option<&Sum> {
        self.0.get(account)
    }
}
