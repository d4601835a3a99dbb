//! Settling of what sessions were promised below user level: accounts of fuel, and of ports' rates.

use super::accounts::Accounts;
use super::action::Actions;
use super::door::Door;
use super::port_shares::PortShares;
use super::ports::Ports;
use node::Node;
use session::in_kernel::Speed;

/// Accounts of sessions, and the ports and the front door that hold to them.
pub(crate) struct Promises<'a> {
    pub(super) accounts: &'a mut Accounts,
    pub(super) shares: &'a mut PortShares,
    pub(super) ports: &'a mut Ports,
    pub(super) front: &'a Door,
    /// True when programs of modules run here.
    pub(super) is_supported: bool,
    pub(super) actions: &'a mut Actions,
}

impl Promises<'_> {
    /// Records that reservations or services changed: accounts are to be settled.
    pub(crate) const fn mark_unsettled(&mut self) {
        self.accounts.mark();
    }

    /// Writes the payers of port share accounts to the front door, if they have changed.
    pub(crate) fn settle_changed(&mut self, node: &Node) {
        if self.accounts.take_dirty() {
            self.settle_promises(node);
        }
    }

    /// Writes the payers of port share accounts to the front door, and sends them to cells.
    pub(crate) fn settle_promises(&mut self, node: &Node) {
        self.settle_accounts(node);
        self.settle_shares(node);
    }

    /// Writes the accounts of fuel and their payers to the front door.
    pub(crate) fn settle_accounts(&self, node: &Node) {
        if let (true, Ok(front)) = (self.is_supported, self.front.front()) {
            self.accounts.settle(front, node);
        }
    }

    /// Tells the front door and cells what sessions may send by ports below user level.
    pub(crate) fn settle_shares(&mut self, node: &Node) {
        let reported = self.shares.settle(self.front.front().ok(), node);
        if self.front.front().is_ok() {
            reported.into_iter().for_each(|message| self.actions.notify(message));
            self.mark_shared();
        }
    }

    /// Tells the front door of which ports sessions have shares.
    pub(super) fn mark_shared(&mut self) {
        let shared = self.shares.ports();
        if let Ok(front) = self.front.front() {
            front.set_has_shares(!shared.is_empty());
        }
        self.ports.mark_shared(self.front, &shared);
    }

    /// Goes on with a speed that was measured. Returns true when there is one.
    pub(crate) fn handle_speed(&mut self, node: &Node, speed: Result<Speed, String>) -> bool {
        let is_known = self.accounts.handle_measured(speed);
        self.settle_accounts(node);
        is_known
    }
}
