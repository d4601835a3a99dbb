//! Meter of the thread's time: the session it is charged to outside turns, and what turns left to
//! send.

use crate::sched::pacer::{self, Pacer};
use crate::sched::sessions::{Next, Sessions};
use units::{Nanos, SessionId};

/// Number of packets left by turns at which they are sent: a system call costs as much as some
/// packets, and more would leave late. Also the largest number of turns with packets left.
const SEND_AT: u64 = 16;
/// Highest latency counted as the timer's; the rest has other causes.
const LATE_MAX: Nanos = Nanos(50_000);
/// Divisor for the part of a slice that may be polled closely: a sixteenth.
const CLOSE_OF: u64 = 16;
/// Safety margin over recent timer latency, at its 99th percentile.
const LATER: Nanos = Nanos(10_000);

/// Meter of the thread's time by session. Outside turns the clock is read when the session changes,
/// not for each packet; after turns, when their packets are sent.
#[derive(Debug)]
pub(crate) struct Meter {
    running: Option<(SessionId, Nanos)>,
    /// Turns that have left packets to send, with their number, and the sum.
    unsent: Vec<(Next, u64)>,
    unsent_packets: u64,
    /// Moving average of the time to send a packet that a turn left.
    sending: Nanos,
    /// Moving average of the timer's latency.
    late: Nanos,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let unsent = Vec::with_capacity(SEND_AT as usize);
        Self { running: None, unsent, unsent_packets: 0, sending: Nanos::ZERO, late: Nanos::ZERO }
    }

    /// Charges the thread's time to this session from now on.
    #[inline]
    pub(crate) fn run_for(&mut self, sessions: &mut Sessions, session: SessionId) {
        if self.running.is_none_or(|(running, _)| running != session) {
            let now = pacer::now();
            self.settle(sessions, now);
            self.running = Some((session, now));
        }
    }

    /// Records the number of packets that a turn has left to send.
    pub(crate) fn sent(&mut self, turn: Next, packets: u64) {
        if packets > 0 {
            self.unsent.push((turn, packets));
            self.unsent_packets += packets;
        }
    }

    /// Returns true if turns have left packets to send.
    pub(crate) const fn has_unsent(&self) -> bool {
        self.unsent_packets > 0
    }

    /// Returns true if so many packets are left that they must be sent at once.
    pub(crate) const fn must_send(&self) -> bool {
        self.unsent_packets >= SEND_AT
    }

    /// Charges each turn's session for its part of the time `took` to send the packets of all.
    pub(crate) fn settle_sent(&mut self, sessions: &mut Sessions, now: Nanos, took: Nanos) {
        let all = std::mem::take(&mut self.unsent_packets).max(1);
        self.sending = Nanos((7 * self.sending.0 + took.0 / all) / 8);
        for (turn, packets) in self.unsent.drain(..) {
            sessions.charge_sending(now, &turn, Nanos(took.0 * packets / all));
        }
    }

    /// Returns the expected time to send a packet that a turn leaves.
    pub(crate) const fn sending(&self) -> Nanos {
        self.sending
    }

    /// Returns the expected time to send what earlier turns of the same virtual processor have
    /// left.
    pub(crate) fn owed(&self, turn: &Next) -> Nanos {
        let processor = turn.dispatch.processor;
        let own = self.unsent.iter().filter(|(it, _)| it.dispatch.processor == processor);
        Nanos(own.map(|(_, packets)| packets * self.sending.0).sum())
    }

    /// Returns the time before the end of a slice at which the timer must fire, so as not to fire
    /// too late. A call that is polled closely makes little progress, so the time is bounded by a
    /// part of the slice.
    pub(crate) fn ahead(&self, slice: Nanos) -> Nanos {
        Nanos((self.late.0 + LATER.0).min(slice.0 / CLOSE_OF))
    }

    /// Measures the timer's latency, if it fired in the turn that began at `begin`.
    pub(crate) fn saw(&mut self, begin: Nanos, pacer: &Pacer) {
        let Some((asked, came)) = pacer.seen() else { return };
        // Such a turn was polled closely before the sandbox was entered.
        if asked > begin {
            let late = came.saturating_sub(asked).0.min(LATE_MAX.0);
            self.late = Nanos((7 * self.late.0 + late) / 8);
        }
    }

    /// Ends the charging of a session.
    pub(crate) fn stop(&mut self, sessions: &mut Sessions) {
        if self.running.is_some() {
            self.settle(sessions, pacer::now());
        }
    }

    fn settle(&mut self, sessions: &mut Sessions, now: Nanos) {
        if let Some((session, since)) = self.running.take() {
            sessions.charge_outside_turns(session, now.saturating_sub(since));
        }
    }
}
