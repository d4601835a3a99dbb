//! Accounts of what services use below user level, and who pays from them.
//!
//! ```text
//!  session with `below` ───────────── an account of its own: its share
//!  system ─────────────────────────── none: the operator's services are in everybody's way
//!  the others ─┬─ nobody has `below` ─ none
//!              └─ somebody has ─────── one account, together: what can still be promised
//! ```

use std::collections::BTreeMap;

use ::session::admission::BELOW_SHARE_MAX;
use ::session::in_kernel::{BucketParams, Speed};
use units::{EntryId, Nanos, SessionId};

use super::sessions::Sessions;
use crate::budget::OverBudget;
use crate::service::Service;

/// Accounts by their numbers, which are sessions' numbers, and who pays from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// What is in them.
    pub terms: BTreeMap<SessionId, BucketParams>,
    /// By which each service pays, and what becomes of its packets when that is empty. Others
    /// pay nothing.
    pub payers: BTreeMap<EntryId, (SessionId, OverBudget)>,
}

impl Accounts {
    /// Returns the accounts of services on a machine of this speed whose kernel ticks so often.
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
