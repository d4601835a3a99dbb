//! Accounts for the use of time below user level, and the services that pay from them.
//!
//! ```text
//!  session with `below` ────────────────── an account of its own: its share
//!  system ──────────────────────────────── none: all packets pass the operator's services
//!  the others ─┬─ no session has `below` ─ none
//!              └─ some session has ─────── one common account: the capacity not reserved
//! ```

use std::collections::BTreeMap;

use ::session::admission::BELOW_SHARE_MAX;
use ::session::in_kernel::{BucketParams, Speed};
use units::{EntryId, Nanos, SessionId};

use super::sessions::Sessions;
use crate::budget::OverBudget;
use crate::service::Service;

/// Accounts by their numbers, which are sessions' numbers, and the services that pay from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Rate and capacity of each account.
    pub terms: BTreeMap<SessionId, BucketParams>,
    /// Account of each service, and the treatment of its packets when the account is empty.
    /// Services not listed pay nothing.
    pub payers: BTreeMap<EntryId, (SessionId, OverBudget)>,
}

impl Accounts {
    /// Returns the accounts for a machine of this speed and the tick period of its kernel.
    pub(super) fn of<'a>(
        sessions: &Sessions,
        services: impl Iterator<Item = &'a Service>,
        speed: Speed,
        tick: Nanos,
    ) -> Self {
        let mut accounts = Self::default();
        if !sessions.iter().any(|session| session.reservation.below.is_some()) {
            return accounts;
        }
        let left = sessions.left().map_or(BELOW_SHARE_MAX, |left| left.below);
        for service in services {
            let Some(session) = sessions.by_name(&service.session) else { continue };
            let (number, terms) = match session.reservation.below {
                Some(share) => (session.id, BucketParams::of_share(share, speed, tick)),
                None if session.id == SessionId::SYSTEM => continue,
                None => (SessionId::BEST_EFFORT, BucketParams::of_unreserved(left, speed, tick)),
            };
            accounts.terms.insert(number, terms);
            accounts.payers.insert(service.entry, (number, service.budget.over));
        }
        accounts
    }
}
