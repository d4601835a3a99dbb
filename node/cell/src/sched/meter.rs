//! Meter of the thread's time: for whom it runs beside the turns, and what turns have left to send.

use crate::sched::pacer::{self, Pacer};
use crate::sched::sessions::{Next, Sessions};
use units::{Nanos, SessionId};

/// Number of packets left by turns at which they are sent: entering the kernel costs as much as
/// some packets, and more would leave late. So many turns have left something at most.
const SEND_AT: u64 = 16;
/// Highest latency of the timer: what is later is not its doing.
const LATE_MAX: Nanos = Nanos(50_000);
/// The part of a slice whose end is looked at closely, at most: a sixteenth.
const CLOSE_OF: u64 = 16;
/// Safety margin over recent latency of the timer, at its 99th percentile.
const LATER: Nanos = Nanos(10_000);

/// Meter of the thread's time by session. Beside the turns the clock is read when the session
/// changes, not for each packet; behind them, when what they left is sent.
#[derive(Debug)]
pub(crate) struct Meter {
    running: Option<(SessionId, Nanos)>,
    /// Turns that have left packets to send, and how many each; and all of them.
    unsent: Vec<(Next, u64)>,
    unsent_packets: u64,
    /// Recent time that it takes to send a packet that a turn leaves.
    sending: Nanos,
    /// Recent latency of the timer.
    late: Nanos,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let unsent = Vec::with_capacity(SEND_AT as usize);
        Self { running: None, unsent, unsent_packets: 0, sending: Nanos::ZERO, late: Nanos::ZERO }
    }

    /// Accounts the thread's time to this session from now on.
    #[inline]
    pub(crate) fn run_for(&mut self, sessions: &mut Sessions, session: SessionId) {
        if self.running.is_none_or(|(running, _)| running != session) {
            let now = pacer::now();
            self.settle(sessions, now);
            self.running = Some((session, now));
        }
    }

    /// Notes that a turn has left so many packets to send.
    pub(crate) fn sent(&mut self, turn: Next, packets: u64) {
        if packets > 0 {
            self.unsent.push((turn, packets));
            self.unsent_packets += packets;
        }
    }

    /// Returns true when turns have left packets to send.
    pub(crate) const fn has_unsent(&self) -> bool {
        self.unsent_packets > 0
    }

    /// Returns true when so many are left that they are sent at once.
    pub(crate) const fn must_send(&self) -> bool {
        self.unsent_packets >= SEND_AT
    }

    /// Charges each turn's session for its part of sending all of them together, which took so
    /// long.
    pub(crate) fn settle_sent(&mut self, sessions: &mut Sessions, now: Nanos, took: Nanos) {
        let all = std::mem::take(&mut self.unsent_packets).max(1);
        self.sending = Nanos((7 * self.sending.0 + took.0 / all) / 8);
        for (turn, packets) in self.unsent.drain(..) {
            sessions.charge_sending(now, &turn, Nanos(took.0 * packets / all));
        }
    }

    /// Returns how long it will take to send a packet that a turn leaves.
    pub(crate) const fn sending(&self) -> Nanos {
        self.sending
    }

    /// Returns how long it will take to send what earlier turns of the same virtual processor have
    /// left.
    pub(crate) fn owed(&self, turn: &Next) -> Nanos {
        let processor = turn.dispatch.processor;
        let own = self.unsent.iter().filter(|(it, _)| it.dispatch.processor == processor);
        Nanos(own.map(|(_, packets)| packets * self.sending.0).sum())
    }

    /// Returns how long before the end of a slice the timer has to come, or it may come too late. A
    /// call that is looked at closely makes little progress: a short slice is not spent on that.
    pub(crate) fn ahead(&self, slice: Nanos) -> Nanos {
        Nanos((self.late.0 + LATER.0).min(slice.0 / CLOSE_OF))
    }

    /// Notes when the timer came, if it did, in a turn that began then.
    pub(crate) fn saw(&mut self, begin: Nanos, pacer: &Pacer) {
        let Some((asked, came)) = pacer.seen() else { return };
        // It was asked before the sandbox was entered.
        if asked > begin {
            let late = came.saturating_sub(asked).0.min(LATE_MAX.0);
            self.late = Nanos((7 * self.late.0 + late) / 8);
        }
    }

    /// Accounts the thread's time to nobody any more.
    pub(crate) fn stop(&mut self, sessions: &mut Sessions) {
        if self.running.is_some() {
            self.settle(sessions, pacer::now());
        }
    }

    fn settle(&mut self, sessions: &mut Sessions, now: Nanos) {
        if let Some((session, since)) = self.running.take() {
            sessions.charge_beside(session, now.saturating_sub(since));
        }
    }
}
