//! Usage of a node: the meters that are billed, what sessions use, and what things that are gone had
//! counted.

use crate::ledger::Billing;
use crate::sessions::Sessions;
use std::collections::BTreeMap;
use units::Name;

/// Usage of a node.
pub(crate) struct Usage {
    pub(crate) billing: Billing,
    pub(crate) sessions: Sessions,
    /// Packets and bytes that removed rules had counted, by session.
    pub(crate) closed: BTreeMap<Name, (u64, u64)>,
    /// Fuel that removed services had used, by session.
    pub(crate) fuel_closed: BTreeMap<Name, u64>,
}

impl Usage {
    /// Creates the usage of a node that starts now.
    pub(crate) fn new(billing: Billing) -> Self {
        Self {
            billing,
            sessions: Sessions::default(),
            closed: BTreeMap::new(),
            fuel_closed: BTreeMap::new(),
        }
    }

    /// Releases what a session had used that is gone: another one of its name begins from zero, and
    /// the ledger has what this one used.
    pub(crate) fn forget(&mut self, session: &Name) {
        self.closed.remove(session);
        self.fuel_closed.remove(session);
        self.sessions.forget_history(session);
    }
}
