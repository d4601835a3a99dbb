//! Accounts of port shares, which modules below user level also pay from: what packets of the cell
//! cost, and how many wait here, so that the front door queues others behind them.
//!
//! ```text
//!  front door: up += 1 ─▶ TAP device ─▶ on_arrival ─┐
//!                            enqueued here ─────────┴▶ waits ─▶ release ─▶ sent by the device: published
//! ```
//!
//! Packets that were sent up and never arrived are found as with queue credits: packets carry the
//! lowest bit of an epoch's number, and those missing a second after its end are lost
//! ([`PortShareAccounts::settle`]).

use crate::sched::slot_map::SlotMap;
use bpf_maps::PORTS_MAX;
use units::{Bytes, Packets, PortId, SessionId};

/// Accounts of one port that are read in one round; more are read in turns.
const READS_MAX: usize = 64;

/// Packet that an account counts as waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    account: u32,
    /// Number of the account's owner, which tells a reused account apart.
    life: u32,
    /// Set if the packet comes from a module at kernel level.
    pub(crate) is_of_kernel: bool,
}

/// State of an account.
#[derive(Debug, Default)]
struct Account {
    life: u32,
    /// Packets that arrived of those that the front door sent, by epoch.
    arrived: [u64; 2],
    /// Packets that wait here.
    here: u64,
    /// Set if `here` has decreased and that is not published.
    is_unpublished: bool,
    /// Packets and bytes sent directly from lower levels, as of the last reading.
    seen: bpf::SentBelow,
}

/// Accounts of port shares, shared with the front door.
#[derive(Debug, Default)]
pub(crate) struct PortShareAccounts {
    table: Option<bpf::PortShares>,
    /// Accounts of sessions with a share, by port, then by session.
    payers: Vec<SlotMap<u32>>,
    all: SlotMap<Account>,
    lives: u32,
    /// Accounts with unpublished decreases.
    unpublished: Vec<u32>,
    /// Next session whose account is read, for each port.
    next_read: Vec<usize>,
}

impl PortShareAccounts {
    /// Sets the front door's table of accounts.
    pub(crate) fn pay_from(&mut self, table: bpf::PortShares) {
        self.table = Some(table);
        for account in 0..PORTS_MAX as u32 {
            self.begin(account);
        }
    }

    /// Sets the account that a session pays from at a port; `None`: that of all sessions without a
    /// share.
    pub(crate) fn set_payer(&mut self, port: PortId, session: SessionId, account: Option<u32>) {
        let (port, session) = (usize::from(port.0), usize::from(session.0));
        if self.payers.len() <= port {
            self.payers.resize_with(port + 1, SlotMap::default);
        }
        let before = match account {
            Some(account) => self.payers[port].insert(session, account),
            None => self.payers[port].remove(session),
        };
        if let Some(before) = before.filter(|before| Some(*before) != account) {
            self.all.remove(before as usize);
        }
        if let Some(account) = account {
            self.begin(account);
        }
    }

    /// Begins to track an account, unless it is tracked already. Packets under way belong to an
    /// earlier owner.
    fn begin(&mut self, account: u32) {
        let Some(table) = &self.table else { return };
        if self.all.get(account as usize).is_some() {
            return;
        }
        self.lives = self.lives.wrapping_add(1);
        let (arrived, seen) = (table.up(account), table.sent_below(account));
        let new = Account { life: self.lives, arrived, here: 0, is_unpublished: false, seen };
        table.set_gone(account, arrived[0].wrapping_add(arrived[1]));
        self.all.insert(account as usize, new);
    }

    /// Returns the account of a session at a port: the first ones are those of all sessions without
    /// a share.
    fn account_of(&self, port: usize, session: SessionId) -> u32 {
        let own = self.payers.get(port).and_then(|of| of.get(usize::from(session.0))).copied();
        own.unwrap_or(port as u32)
    }

    /// Counts the arrival of a packet of kernel level that the front door counted in this account
    /// and epoch.
    pub(crate) fn on_arrival(&mut self, account: u32, epoch: usize) -> Option<Counted> {
        let known = self.all.get_mut(account as usize)?;
        known.arrived[epoch] = known.arrived[epoch].wrapping_add(1);
        known.here += 1;
        Some(Counted { account, life: known.life, is_of_kernel: true })
    }

    /// Counts a packet of user level as waiting, so that others wait behind it.
    #[inline]
    pub(crate) fn wait(&mut self, port: usize, session: SessionId) -> Option<Counted> {
        if session == SessionId::SYSTEM {
            return None;
        }
        let account = self.account_of(port, session);
        let known = self.all.get_mut(account as usize)?;
        known.here += 1;
        let counted = Counted { account, life: known.life, is_of_kernel: false };
        self.publish(account);
        Some(counted)
    }

    /// Pays for a packet that leaves.
    #[inline]
    pub(crate) fn pay(
        &self,
        port: usize,
        session: SessionId,
        (bytes, beside): (u64, Bytes),
        is_of_kernel: bool,
    ) {
        if let Some(table) = self.table.as_ref().filter(|_| session != SessionId::SYSTEM) {
            table.pay(self.account_of(port, session), bytes, beside.0, is_of_kernel);
        }
    }

    /// Counts a packet as gone. The front door learns of it by [`PortShareAccounts::publish_all`],
    /// once the device has sent it.
    #[inline]
    pub(crate) fn release(&mut self, counted: Counted) {
        let known = self.all.get_mut(counted.account as usize);
        let Some(known) = known.filter(|known| known.life == counted.life) else { return };
        known.here = known.here.saturating_sub(1);
        if !std::mem::replace(&mut known.is_unpublished, true) {
            self.unpublished.push(counted.account);
        }
    }

    /// Publishes all decreases, once the devices have sent the packets.
    #[inline]
    pub(crate) fn publish_all(&mut self) {
        while let Some(account) = self.unpublished.pop() {
            if let Some(known) = self.all.get_mut(account as usize) {
                known.is_unpublished = false;
            }
            self.publish(account);
        }
    }

    /// Publishes how many packets wait. Those that left and are not yet sent by the device still
    /// count: `here` decreases only with [`PortShareAccounts::publish_all`].
    fn publish(&self, account: u32) {
        let (Some(table), Some(known)) = (&self.table, self.all.get(account as usize)) else {
            return;
        };
        if !known.is_unpublished {
            let arrived = known.arrived[0].wrapping_add(known.arrived[1]);
            table.set_gone(account, arrived.wrapping_sub(known.here));
        }
    }

    /// Settles a closed epoch: packets of it that have not arrived are lost.
    pub(crate) fn settle(&mut self, epoch: usize) {
        let Some(table) = &self.table else { return };
        let mut lost = Vec::new();
        for (account, known) in self.all.iter_mut() {
            let up = table.up(account as u32)[epoch];
            if known.arrived[epoch] != up {
                known.arrived[epoch] = up;
                lost.push(account as u32);
            }
        }
        lost.into_iter().for_each(|account| self.publish(account));
    }

    /// Returns what lower levels sent directly by a port since the last reading, for some of its
    /// accounts.
    pub(crate) fn take_bypassed(&mut self, port: usize) -> (Packets, Bytes) {
        let Some(table) = &self.table else { return Default::default() };
        let (mut packets, mut bytes) = (Packets(0), Bytes::ZERO);
        let mut look = |account: u32| {
            let Some(known) = self.all.get_mut(account as usize) else { return };
            let now = table.sent_below(account);
            packets += Packets(now.packets.wrapping_sub(known.seen.packets));
            bytes += Bytes(now.bytes.wrapping_sub(known.seen.bytes));
            known.seen = now;
        };
        look(port as u32);
        let Some(of) = self.payers.get(port) else { return (packets, bytes) };
        if self.next_read.len() <= port {
            self.next_read.resize(port + 1, 0);
        }
        let begin = self.next_read[port];
        let next = of.iter_from(begin).take(READS_MAX).map(|(session, &account)| {
            look(account);
            session + 1
        });
        // After the last account, the first again.
        self.next_read[port] = match next.fold((0, 0), |(_, count), next| (next, count + 1)) {
            (next, READS_MAX) => next,
            _ => 0,
        };
        (packets, bytes)
    }
}

#[cfg(test)]
mod tests;
