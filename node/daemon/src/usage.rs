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
    closed: BTreeMap<Name, (u64, u64)>,
    /// Fuel that removed services had used, by session.
    fuel_closed: BTreeMap<Name, u64>,
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

    /// Takes over what a previous daemon counted of things that are gone.
    pub(crate) fn adopt(
        &mut self,
        closed: BTreeMap<Name, (u64, u64)>,
        fuel_closed: BTreeMap<Name, u64>,
    ) {
        (self.closed, self.fuel_closed) = (closed, fuel_closed);
    }

    /// Returns the packets and bytes that removed rules had counted, by session.
    pub(crate) const fn counted(&self) -> &BTreeMap<Name, (u64, u64)> {
        &self.closed
    }

    /// Returns the fuel that removed services had used, by session.
    pub(crate) const fn fuel(&self) -> &BTreeMap<Name, u64> {
        &self.fuel_closed
    }

    /// Adds the packets and bytes that a removed rule had counted for a session.
    pub(crate) fn add_counted(&mut self, session: Name, (packets, bytes): (u64, u64)) {
        let sum = self.closed.entry(session).or_default();
        *sum = (sum.0 + packets, sum.1 + bytes);
    }

    /// Adds the fuel that a removed service had used in a session.
    pub(crate) fn add_fuel(&mut self, session: Name, fuel: u64) {
        *self.fuel_closed.entry(session).or_default() += fuel;
    }

    /// Releases what a session had used that is gone: another one of its name begins from zero, and
    /// the ledger has what this one used.
    pub(crate) fn forget(&mut self, session: &Name) {
        self.closed.remove(session);
        self.fuel_closed.remove(session);
        self.sessions.forget_history(session);
    }
}
