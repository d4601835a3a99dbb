//! What records come to.

use crate::amounts::{Amounts, Field};
use crate::record::{Account, Usage};
use std::collections::BTreeMap;
use trust::UnixTime;

/// From a time on, and before another. A record counts by when its meter was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The first second.
    pub since: UnixTime,
    /// The first second that is beyond it.
    pub until: UnixTime,
}

impl Period {
    /// All there is.
    pub const EVER: Self = Self { since: UnixTime(0), until: UnixTime(u64::MAX) };

    /// Whether a record counts.
    #[must_use]
    pub fn has(&self, usage: &Usage) -> bool {
        (self.since..self.until).contains(&usage.time)
    }
}

/// A sum has no room in 64 bits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {} of session '{}' of {} are more than 64 bits hold: ask for a shorter period",
    field.name(), account.session, account.principal
)]
pub struct Overflow {
    /// Whose.
    pub account: Box<Account>,
    /// Of what.
    pub field: Field,
}

/// What an account used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Its records.
    pub records: u64,
    /// The time of the first.
    pub first: UnixTime,
    /// The time of the last.
    pub last: UnixTime,
    /// What they come to.
    pub used: Amounts,
}

/// What each account used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals(BTreeMap<Account, Sum>);

impl Totals {
    /// Adds a record.
    ///
    /// # Errors
    /// When a sum has no room; then nothing is added.
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

    /// By account.
    pub fn iter(&self) -> impl Iterator<Item = (&Account, &Sum)> {
        self.0.iter()
    }

    /// Of one account.
    #[must_use]
    pub fn of(&self, account: &Account) -> Option<&Sum> {
        self.0.get(account)
    }
}
