//! Shares of ports below user level: accounts in the kernel, and their payers.
//!
//! ```text
//!  sessions, ports' rates ─▶ terms ─▶ tam_lines ◀─ pay ─┬─ modules at nic and kernel
//!           which account ─▶ tam_line_of, the cell      └─ the cell, and what waits there
//! ```
//!
//! The first accounts are those of all sessions without a share, one for each port: they hold what
//! can still be promised of it. Packets read no account while no session has a share of their port.

use ::session::in_kernel::BucketParams;
use ::session::port_bucket;
use bpf::FrontDoor;
use bpf_maps::{LINES_MAX, PORTS_MAX, PortShare};
use cell::protocol::ToCell;
use node::{Node, Session};
use std::collections::{BTreeMap, BTreeSet};
use units::{BitsPerSecond, Name, Nanos, PortId, SessionId};

/// Accounts by payer, beside those that all without a share pay from.
pub(super) type Payers = BTreeMap<(PortId, SessionId), u32>;

/// Accounts of shares of ports.
#[derive(Debug, Default)]
pub(super) struct PortShares {
    payers: Payers,
}

/// Difference between the accounts of two moments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Payers that have lost their account or have another one, with the old account.
    gone: Vec<((PortId, SessionId), u32)>,
    /// Payers that have begun to pay from an account.
    begun: BTreeSet<(PortId, SessionId)>,
}

impl PortShares {
    /// Takes over the payers that a previous daemon has left in the front door.
    pub(super) fn adopt(&mut self, payers: Payers) {
        self.payers = payers;
    }

    /// Returns the ports with shares.
    pub(super) fn ports(&self) -> BTreeSet<PortId> {
        self.payers.keys().map(|(port, _)| *port).collect()
    }

    /// Gives each payer an account; those of before keep theirs.
    fn assign(&mut self, wanted: impl Iterator<Item = (PortId, SessionId)>) -> Changes {
        let after = payers(wanted, &self.payers);
        let before = std::mem::replace(&mut self.payers, after);
        let is_same = |one: &Payers, payer, account| one.get(payer) == Some(account);
        let gone = before.iter().filter(|(payer, account)| !is_same(&self.payers, payer, account));
        let begun = self.payers.iter().filter(|(payer, account)| !is_same(&before, payer, account));
        let gone = gone.map(|(payer, account)| (*payer, *account)).collect();
        Changes { gone, begun: begun.map(|(payer, _)| *payer).collect() }
    }

    /// Writes the accounts of port shares to the front door. Balances of existing accounts are
    /// kept. Returns the messages for cells.
    pub(super) fn settle(&mut self, front: Option<&FrontDoor>, node: &Node) -> Vec<ToCell> {
        let terms = terms(node);
        let Changes { gone, begun } = self.assign(terms.keys().copied());
        let Some(front) = front else { return Vec::new() };
        let mut reported = Vec::new();
        let mut failed = None;
        for ((port, session), account) in gone {
            failed = front.accounts().pay_for_port_share(port, session, None).err().or(failed);
            front.accounts().clear_port_share(account);
            reported.push(ToCell::SetPortShare(port, session, None));
        }
        for (&(port, session), &account) in &self.payers {
            let BucketParams { per_tick, capacity: full } = terms[&(port, session)];
            front.accounts().set_port_share(account, per_tick, full);
            if begun.contains(&(port, session)) {
                failed = front
                    .accounts()
                    .pay_for_port_share(port, session, Some(account))
                    .err()
                    .or(failed);
                reported.push(ToCell::SetPortShare(port, session, Some(account)));
            }
        }
        for (port, BucketParams { per_tick, capacity: full }) in self.terms_of_rest(node) {
            front.accounts().set_port_share(u32::from(port.0), per_tick, full);
        }
        if let Some(error) = failed {
            tracing::error!(%error, "some shares of ports are not enforced at nic and kernel");
        }
        if self.payers.len() < terms.len() {
            let missing = terms.len() - self.payers.len();
            tracing::error!(
                missing,
                "there are too few accounts for shares of ports below user level: some are not enforced"
            );
        }
        reported
    }

    /// Returns the messages that assign accounts to payers, for another cell.
    pub(super) fn messages(&self) -> impl Iterator<Item = ToCell> {
        let line =
            |(&(port, session), &account)| ToCell::SetPortShare(port, session, Some(account));
        self.payers.iter().map(line)
    }

    /// Returns the parameters of the common accounts of sessions without a share, for ports with
    /// shares.
    fn terms_of_rest(&self, node: &Node) -> Vec<(PortId, BucketParams)> {
        let left = node.left();
        let of = |id: PortId| {
            let name = &node.ports().iter().find(|port| port.id == id)?.spec.name;
            let left = left.as_ref()?.ports.get(name)?;
            Some((id, port_bucket::of_unreserved(*left, rate_of(node, name)?, tick())))
        };
        self.ports().into_iter().filter_map(of).collect()
    }

    /// Returns the accounts of a session's shares, with their counters, by port.
    pub(super) fn port_shares_of<'a>(
        &self,
        front: &FrontDoor,
        node: &Node,
        session: &'a Session,
    ) -> Vec<(&'a Name, PortShare)> {
        let line_of = |port: &'a Name| {
            let account = *self.payers.get(&(id_of(node, port)?, session.id))?;
            Some((port, front.accounts().port_share(account)?))
        };
        session.reservation.send.keys().filter_map(line_of).collect()
    }
}

/// Returns the accounts without a payer.
fn free_accounts(payers: &Payers) -> impl Iterator<Item = u32> {
    let used: BTreeSet<u32> = payers.values().copied().collect();
    (PORTS_MAX as u32..LINES_MAX as u32).filter(move |number| !used.contains(number))
}

/// Assigns accounts to payers; existing assignments are kept.
fn payers(wanted: impl Iterator<Item = (PortId, SessionId)>, before: &Payers) -> Payers {
    let mut after = Payers::new();
    let mut new = Vec::new();
    for payer in wanted {
        match before.get(&payer) {
            Some(account) => drop(after.insert(payer, *account)),
            None => new.push(payer),
        }
    }
    if !new.is_empty() {
        let free: Vec<u32> = free_accounts(&after).take(new.len()).collect();
        after.extend(new.into_iter().zip(free));
    }
    after
}

/// Returns what each share is in bytes, of ports that have a rate.
fn terms(node: &Node) -> BTreeMap<(PortId, SessionId), BucketParams> {
    let mut terms = BTreeMap::new();
    for session in node.sessions() {
        for (name, share) in &session.reservation.send {
            if let (Some(port), Some(rate)) = (id_of(node, name), rate_of(node, name)) {
                terms.insert((port, session.id), port_bucket::of_share(*share, rate, tick()));
            }
        }
    }
    terms
}

fn id_of(node: &Node, port: &Name) -> Option<PortId> {
    node.ports().iter().find(|it| it.spec.name == *port).map(|port| port.id)
}

/// Returns the rate of a port, if the node file or its driver says it.
fn rate_of(node: &Node, port: &Name) -> Option<BitsPerSecond> {
    node.capacity()?.ports.get(port).map(|port| port.rate)
}

/// Returns the period by which the kernel fills accounts.
fn tick() -> Nanos {
    Nanos(u64::from(bpf::front_door::tick_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16, session: u16) -> (PortId, SessionId) {
        (PortId(port), SessionId(session))
    }

    #[test]
    fn port_share_accounts_are_stable_and_released_ones_are_reused() {
        let first = payers([at(0, 2), at(1, 2)].into_iter(), &Payers::new());
        assert_eq!(first, [(at(0, 2), 64), (at(1, 2), 65)].into());
        let second = payers([at(1, 2), at(1, 3)].into_iter(), &first);
        assert_eq!(second, [(at(1, 2), 65), (at(1, 3), 64)].into());
        let many = (0..20_000).map(|number| at(0, number));
        assert_eq!(payers(many, &second).len(), LINES_MAX - PORTS_MAX);
    }

    #[test]
    fn only_added_and_removed_port_shares_are_reported() {
        let mut shares = PortShares::default();
        let changes = shares.assign([at(0, 2), at(1, 2)].into_iter());
        assert_eq!(changes, Changes { gone: vec![], begun: [at(0, 2), at(1, 2)].into() });
        assert_eq!(shares.assign([at(0, 2), at(1, 2)].into_iter()), Changes::default());
        let changes = shares.assign([at(1, 2), at(1, 3)].into_iter());
        assert_eq!(changes, Changes { gone: vec![(at(0, 2), 64)], begun: [at(1, 3)].into() });
        assert_eq!(shares.ports(), [PortId(1)].into());
    }

    #[test]
    fn the_next_cell_is_sent_all_port_share_accounts() {
        let mut shares = PortShares::default();
        shares.adopt([(at(0, 2), 70), (at(3, 5), 64)].into());
        let reported: Vec<String> = shares.messages().map(|it| format!("{it:?}")).collect();
        assert_eq!(reported.len(), 2);
        assert!(
            reported[0].contains("Some(70)") && reported[1].contains("Some(64)"),
            "{reported:?}"
        );
        assert_eq!(shares.assign([at(0, 2), at(3, 5)].into_iter()), Changes::default());
    }

    #[test]
    fn a_node_without_sessions_has_no_terms() {
        let mut shares = PortShares::default();
        shares.adopt([(at(0, 2), 70)].into());
        let node = Node::new("edge".parse().unwrap(), Vec::new()).unwrap();
        assert!(shares.settle(None, &node).is_empty());
        assert!(shares.ports().is_empty() && shares.terms_of_rest(&node).is_empty());
    }
}
