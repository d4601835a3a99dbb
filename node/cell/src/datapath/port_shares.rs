//! Accounts of shares of ports, which modules below user level pay from, too: what packets of the
//! cell cost there, and how many wait here, so that the front door has others wait behind them.
//!
//! ```text
//!  front door: up += 1 ─▶ TAP device ─▶ come ─┐
//!                            enqueued here ───┴▶ waits ─▶ leave ─▶ the device has it: published
//! ```
//!
//! What was sent up and never came is found as with rooms: packets carry an epoch's last bit, and
//! what has not come a second after its end is lost ([`Lines::settle`]).

use crate::sched::numbered::Numbered;
use bpf_maps::PORTS_MAX;
use units::{Bytes, Packets, PortId, SessionId};

/// Accounts of one port that are looked at together: with more they take turns.
const LOOKS_MAX: usize = 64;

/// A packet that an account counts as waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    line: u32,
    /// Which owner of the account it was.
    life: u32,
    /// It was with a module at kernel level.
    pub(crate) is_of_kernel: bool,
}

/// What is known of an account.
#[derive(Debug, Default)]
struct Line {
    life: u32,
    /// What has come of what the front door sent, by epoch.
    came: [u64; 2],
    /// What waits here.
    here: u64,
    /// `here` has become less, and the front door does not know.
    is_behind: bool,
    /// What had left straight from below at the last look.
    seen: bpf::SentBelow,
}

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    table: Option<bpf::Lines>,
    /// Of those with a share: by port, then by session.
    payers: Vec<Numbered<u32>>,
    all: Numbered<Line>,
    lives: u32,
    /// Those that are behind.
    behind: Vec<u32>,
    /// The next one to look at, of each port.
    looked: Vec<usize>,
}

impl Lines {
    /// What is sent pays from these accounts.
    pub(crate) fn pay_from(&mut self, table: bpf::Lines) {
        self.table = Some(table);
        for line in 0..PORTS_MAX as u32 {
            self.begin(line);
        }
    }

    /// A session pays from this account at a port, or from that of all without a share.
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

    /// Whatever is under way is not for us; what is known already goes on.
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

    /// The account of a session at a port: the first ones are those of all without a share.
    fn line_of(&self, port: usize, session: SessionId) -> u32 {
        let own = self.payers.get(port).and_then(|of| of.get(usize::from(session.0))).copied();
        own.unwrap_or(port as u32)
    }

    /// A packet of kernel level has come, which the front door has counted there, in that epoch.
    pub(crate) fn come(&mut self, line: u32, epoch: usize) -> Option<Counted> {
        let known = self.all.get_mut(line as usize)?;
        known.came[epoch] = known.came[epoch].wrapping_add(1);
        known.here += 1;
        Some(Counted { line, life: known.life, is_of_kernel: true })
    }

    /// A packet of user level waits, and others are to wait behind it.
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

    /// A packet leaves, and pays.
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

    /// It does not wait any more. The front door hears of it by [`Lines::publish_all`], once the
    /// device has it.
    #[inline]
    pub(crate) fn leave(&mut self, counted: Counted) {
        let known = self.all.get_mut(counted.line as usize);
        let Some(known) = known.filter(|known| known.life == counted.life) else { return };
        known.here = known.here.saturating_sub(1);
        if !std::mem::replace(&mut known.is_behind, true) {
            self.behind.push(counted.line);
        }
    }

    /// The devices have all that left.
    #[inline]
    pub(crate) fn publish_all(&mut self) {
        while let Some(line) = self.behind.pop() {
            if let Some(known) = self.all.get_mut(line as usize) {
                known.is_behind = false;
            }
            self.publish(line);
        }
    }

    /// Says what waits. What left and is not with its device waits yet: `here` is less only
    /// behind [`Lines::publish_all`].
    fn publish(&self, line: u32) {
        let (Some(table), Some(known)) = (&self.table, self.all.get(line as usize)) else { return };
        if !known.is_behind {
            let came = known.came[0].wrapping_add(known.came[1]);
            table.set_gone(line, came.wrapping_sub(known.here));
        }
    }

    /// What of a closed epoch has not come is lost.
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

    /// What has left by a port straight from below since the last look, of some of its accounts.
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
        // Behind the last one from the first again.
        self.looked[port] = match next.fold((0, 0), |(_, count), next| (next, count + 1)) {
            (next, LOOKS_MAX) => next,
            _ => 0,
        };
        (packets, bytes)
    }
}

#[cfg(test)]
mod tests;
