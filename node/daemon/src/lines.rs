//! Shares of ports below user level: accounts in the kernel, and who pays from which.
//!
//! ```text
//!  sessions, ports' rates ─▶ terms ─▶ tam_lines ◀─ pay ─┬─ modules at nic and kernel
//!           which account ─▶ tam_line_of, the cell      └─ the cell, and what waits there
//! ```
//!
//! The first accounts are those of all sessions without a share, one for each port: what can still
//! be promised of it. Packets look at none of this while nobody has a share of their port.

use crate::control::sessions::port_rate;
use crate::daemon::Daemon;
use ::session::below::Terms;
use ::session::line;
use bpf_maps::{LINES_MAX, PORT_SHARES, PORTS_MAX};
use cell::protocol::ToCell;
use std::collections::{BTreeMap, BTreeSet};
use units::{Nanos, PortId, SessionId};

/// Who pays from which account, beside those that all without a share pay from.
pub(crate) type Payers = BTreeMap<(PortId, SessionId), u32>;

/// Accounts that nobody pays from.
fn free_accounts(payers: &Payers) -> impl Iterator<Item = u32> {
    let used: BTreeSet<u32> = payers.values().copied().collect();
    (PORTS_MAX as u32..LINES_MAX as u32).filter(move |number| !used.contains(number))
}

/// Beside those of before, whose accounts go on.
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

impl Daemon {
    /// Says to the front door and to the cell what sessions may send below user level. What
    /// somebody has or owes he keeps.
    pub(crate) fn settle_lines(&mut self) {
        let terms = self.terms_of_lines();
        let after = payers(terms.keys().copied(), &self.lines);
        let before = std::mem::replace(&mut self.lines, after);
        let Ok(front) = self.plane.front.front() else { return };
        let mut told = Vec::new();
        let mut failed = None;
        let gone = before.iter().filter(|(payer, account)| self.lines.get(payer) != Some(account));
        for (&(port, session), &account) in gone {
            failed = front.pay_for_line(port, session, None).err().or(failed);
            front.clear_line(account);
            told.push(ToCell::Line(port, session, None));
        }
        for (&(port, session), &account) in &self.lines {
            let Terms { per_tick, full } = terms[&(port, session)];
            front.set_line(account, per_tick, full);
            if before.get(&(port, session)) != Some(&account) {
                failed = front.pay_for_line(port, session, Some(account)).err().or(failed);
                told.push(ToCell::Line(port, session, Some(account)));
            }
        }
        for (port, Terms { per_tick, full }) in self.terms_of_rest() {
            front.set_line(u32::from(port.0), per_tick, full);
        }
        if let Some(error) = failed {
            tracing::error!(%error, "not all shares of ports are held to below user level");
        }
        if self.lines.len() < terms.len() {
            let missing = terms.len() - self.lines.len();
            tracing::error!(missing, "there are not so many accounts of shares of ports");
        }
        told.iter().for_each(|message| self.cells.tell_all(message, &[]));
        self.mark_shared();
    }

    /// Another cell is to know who pays from which account.
    pub(crate) fn tell_lines(&self) {
        for (&(port, session), &account) in &self.lines {
            self.cells.tell_all(&ToCell::Line(port, session, Some(account)), &[]);
        }
    }

    /// What each share is in bytes, of ports that have a rate.
    fn terms_of_lines(&self) -> BTreeMap<(PortId, SessionId), Terms> {
        let mut terms = BTreeMap::new();
        for session in self.control.node().sessions() {
            for (name, share) in &session.reservation.send {
                let port = self.plane.ports.iter().find(|port| port.port.spec.name == *name);
                if let (Some(port), Some(rate)) = (port, port_rate(self.control.node(), name)) {
                    let of = line::share_of(*share, rate, tick());
                    terms.insert((port.port.id, session.id), of);
                }
            }
        }
        terms
    }

    /// What those without a share have together, of ports of which somebody has one.
    fn terms_of_rest(&self) -> Vec<(PortId, Terms)> {
        let shared: BTreeSet<PortId> = self.lines.keys().map(|(port, _)| *port).collect();
        let left = self.control.node().left();
        let of = |id: PortId| {
            let port = self.plane.ports.iter().find(|port| port.port.id == id)?;
            let name = &port.port.spec.name;
            let left = left.as_ref()?.ports.get(name)?;
            Some((id, line::rest_of(*left, port_rate(self.control.node(), name)?, tick())))
        };
        shared.into_iter().filter_map(of).collect()
    }

    /// Tells the front door of which ports sessions have shares.
    pub(crate) fn mark_shared(&mut self) {
        let shared: BTreeSet<PortId> = self.lines.keys().map(|(port, _)| *port).collect();
        if let Ok(front) = self.plane.front.front() {
            front.set_has_shares(!shared.is_empty());
        }
        for port in &mut self.plane.ports {
            let is_shared = shared.contains(&port.port.id);
            if (port.config.flags & PORT_SHARES != 0) == is_shared {
                continue;
            }
            port.config.flags ^= PORT_SHARES;
            if port.away.is_some() {
                continue;
            }
            if let Err(error) = self.plane.front.configure(port.port.id, &port.config) {
                let name = &port.port.spec.name;
                tracing::error!(port = %name, %error, "the front door was not told of shares");
            }
        }
    }
}

/// What the kernel fills accounts with.
fn tick() -> Nanos {
    Nanos(u64::from(bpf::front_door::tick_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_go_on_and_those_given_up_become_others() {
        let at = |port, session| (PortId(port), SessionId(session));
        let first = payers([at(0, 2), at(1, 2)].into_iter(), &Payers::new());
        assert_eq!(first, [(at(0, 2), 64), (at(1, 2), 65)].into());
        let second = payers([at(1, 2), at(1, 3)].into_iter(), &first);
        assert_eq!(second, [(at(1, 2), 65), (at(1, 3), 64)].into());
        let many = (0..20_000).map(|number| at(0, number));
        assert_eq!(payers(many, &second).len(), LINES_MAX - PORTS_MAX);
    }
}
