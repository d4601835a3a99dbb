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

use crate::sched::numbered::Numbered;
use bpf_maps::PORTS_MAX;
use units::{Bytes, Packets, PortId, SessionId};

/// Accounts of one port that are read in one round; more are read in turns.
const LOOKS_MAX: usize = 64;

/// Packet that an account counts as waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    line: u32,
    /// Number of the account's owner, which tells a reused account apart.
    life: u32,
    /// Set if the packet comes from a module at kernel level.
    pub(crate) is_of_kernel: bool,
}

/// State of an account.
#[derive(Debug, Default)]
struct Line {
    life: u32,
    /// Packets that arrived of those that the front door sent, by epoch.
    came: [u64; 2],
    /// Packets that wait here.
    here: u64,
    /// Set if `here` has decreased and that is not published.
    is_behind: bool,
    /// Packets and bytes sent directly from lower levels, as of the last reading.
    seen: bpf::SentBelow,
}

/// Accounts of port shares, shared with the front door.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    table: Option<bpf::Lines>,
    /// Accounts of sessions with a share, by port, then by session.
    payers: Vec<Numbered<u32>>,
    all: Numbered<Line>,
    lives: u32,
    /// Accounts with unpublished decreases.
    behind: Vec<u32>,
    /// Next session whose account is read, for each port.
    looked: Vec<usize>,
}

impl Lines {
    /// Sets the front door's table of accounts.
    pub(crate) fn pay_from(&mut self, table: bpf::Lines) {
        self.table = Some(table);
        for line in 0..PORTS_MAX as u32 {
            self.begin(line);
        }
    }

    /// Sets the account that a session pays from at a port; `None`: that of all sessions without a
    /// share.
    pub(crate) fn set_payer(&mut self, port: PortId, session: SessionId, account: Option<u32>) {
        let (port, session) = (usize::from(port.0), usize::from(session.0));
        if self.payers.len() <= port {
            self.payers.resize_with(port + 1, Numbered::default);
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
    fn begin(&mut self, line: u32) {
        let Some(table) = &self.table else { return };
        if self.all.get(line as usize).is_some() {
            return;
        }
        self.lives = self.lives.wrapping_add(1);
        let (came, seen) = (table.up(line), table.sent_below(line));
        let new = Line { life: self.lives, came, here: 0, is_behind: false, seen };
        table.set_gone(line, came[0].wrapping_add(came[1]));
        self.all.insert(line as usize, new);
    }

    /// Returns the account of a session at a port: the first ones are those of all sessions without
    /// a share.
    fn line_of(&self, port: usize, session: SessionId) -> u32 {
        let own = self.payers.get(port).and_then(|of| of.get(usize::from(session.0))).copied();
        own.unwrap_or(port as u32)
    }

    /// Counts the arrival of a packet of kernel level that the front door counted in this account
    /// and epoch.
    pub(crate) fn come(&mut self, line: u32, epoch: usize) -> Option<Counted> {
        let known = self.all.get_mut(line as usize)?;
        known.came[epoch] = known.came[epoch].wrapping_add(1);
        known.here += 1;
        Some(Counted { line, life: known.life, is_of_kernel: true })
    }

    /// Counts a packet of user level as waiting, so that others wait behind it.
    #[inline]
    pub(crate) fn wait(&mut self, port: usize, session: SessionId) -> Option<Counted> {
        if session == SessionId::SYSTEM {
            return None;
        }
        let line = self.line_of(port, session);
        let known = self.all.get_mut(line as usize)?;
        known.here += 1;
        let counted = Counted { line, life: known.life, is_of_kernel: false };
        self.publish(line);
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
            table.pay(self.line_of(port, session), bytes, beside.0, is_of_kernel);
        }
    }

    /// Counts a packet as gone. The front door learns of it by [`PortShareAccounts::publish_all`],
    /// once the device has sent it.
    #[inline]
    pub(crate) fn leave(&mut self, counted: Counted) {
        let known = self.all.get_mut(counted.line as usize);
        let Some(known) = known.filter(|known| known.life == counted.life) else { return };
        known.here = known.here.saturating_sub(1);
        if !std::mem::replace(&mut known.is_behind, true) {
            self.behind.push(counted.line);
        }
    }

    /// Publishes all decreases, once the devices have sent the packets.
    #[inline]
    pub(crate) fn publish_all(&mut self) {
        while let Some(line) = self.behind.pop() {
            if let Some(known) = self.all.get_mut(line as usize) {
                known.is_behind = false;
            }
            self.publish(line);
        }
    }

    /// Publishes how many packets wait. Those that left and are not yet sent by the device still
    /// count: `here` decreases only with [`PortShareAccounts::publish_all`].
    fn publish(&self, line: u32) {
        let (Some(table), Some(known)) = (&self.table, self.all.get(line as usize)) else { return };
        if !known.is_behind {
            let came = known.came[0].wrapping_add(known.came[1]);
            table.set_gone(line, came.wrapping_sub(known.here));
        }
    }

    /// Settles a closed epoch: packets of it that have not arrived are lost.
    pub(crate) fn settle(&mut self, epoch: usize) {
        let Some(table) = &self.table else { return };
        let mut lost = Vec::new();
        for (line, known) in self.all.iter_mut() {
            let up = table.up(line as u32)[epoch];
            if known.came[epoch] != up {
                known.came[epoch] = up;
                lost.push(line as u32);
            }
        }
        lost.into_iter().for_each(|line| self.publish(line));
    }

    /// Returns what lower levels sent directly by a port since the last reading, for some of its
    /// accounts.
    pub(crate) fn look_below(&mut self, port: usize) -> (Packets, Bytes) {
        let Some(table) = &self.table else { return Default::default() };
        let (mut packets, mut bytes) = (Packets(0), Bytes::ZERO);
        let mut look = |line: u32| {
            let Some(known) = self.all.get_mut(line as usize) else { return };
            let now = table.sent_below(line);
            packets += Packets(now.packets.wrapping_sub(known.seen.packets));
            bytes += Bytes(now.bytes.wrapping_sub(known.seen.bytes));
            known.seen = now;
        };
        look(port as u32);
        let Some(of) = self.payers.get(port) else { return (packets, bytes) };
        if self.looked.len() <= port {
            self.looked.resize(port + 1, 0);
        }
        let begin = self.looked[port];
        let next = of.iter_from(begin).take(LOOKS_MAX).map(|(session, &line)| {
            look(line);
            session + 1
        });
        // After the last account, the first again.
        self.looked[port] = match next.fold((0, 0), |(_, count), next| (next, count + 1)) {
            (next, LOOKS_MAX) => next,
            _ => 0,
        };
        (packets, bytes)
    }
}

#[cfg(test)]
mod tests;
