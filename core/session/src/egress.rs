//! Which packet leaves next by a port, and when: shares of its rate by their deadlines, then what
//! is left by weight.
//!
//! ```text
//!  enqueue ─▶ a session's queue ─▶ next: Packet ─▶ the device ─▶ sent
//!    │ full                          │
//!    ▼                               ▼ nothing that may leave yet
//!  Dropped, with the packet        Wait(until), InFlight, Idle
//!
//!                  enqueue, more than `above`
//!          ┌───────┐ ─────────────────▶ ┌───────┐
//!          │ short │                    │ long  │   each crossing is said once
//!          └───────┘ ◀───────────────── └───────┘
//!                   next, `below` or less
//! ```
//!
//! It is not the port: it holds handles of packets and no packets, sends nothing and reads no
//! clock. It keeps to the rate that it is told, since a queue that grows in a device has one order
//! for all. Packets are not cut: who has something left of his slice sends one more, and what that
//! was too much is missing in his next period. Whose slice comes late because of others' packets
//! keeps his deadline and has it yet, before the slices of later ones.
//!
//! **What holds** while all shares were admitted: who always has packets is never further behind
//! his share than one packet of everybody with a share, and one more; and never further ahead than
//! one of his own.

mod pace;
mod queue;
mod sender;

use units::{BitsPerSecond, Bytes, Nanos, Packets as Count, SessionId};

use crate::admission::PORT_SHARE_MAX;
use crate::edf::{self, Edf, Rules};
use crate::kind::Kind;
use crate::period::Period;
use crate::share::Share;
use crate::weight::Weight;

use pace::{PICOS, Pace, time_of};
use queue::{Packets, counted};
use sender::Sender;
pub use sender::{Crossing, Watch};

/// Longest packet that any port has: what the length field of IP can say.
pub const PACKET_MAX: Bytes = Bytes(65_535);

/// How much later than its due a packet may leave beyond what others' packets explain: whoever
/// asks for packets may have been away that long.
const AWAY_MAX: Nanos = Nanos::from_millis(1);

const RULES: Rules = Rules {
    work_per_nano: PICOS,
    stop: Nanos::ZERO,
    capacity: PORT_SHARE_MAX.0,
    late_max: AWAY_MAX,
};

/// What a port sends, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its rate.
    pub rate: BitsPerSecond,
    /// Its longest packet, at most [`PACKET_MAX`]. What is longer is dropped.
    pub packet_max: Bytes,
    /// What each packet takes on the wire beside its bytes: 24 on Ethernet (preamble, frame check
    /// sequence and gap), 0 on a virtual link.
    pub per_packet: Bytes,
    /// How far [`Schedule::next`] may be ahead of the wire: what is not waited for by a timer.
    pub ahead_max: Nanos,
    /// How long the wire may have stood still although packets waited, because nobody asked, and
    /// is caught up with: so much more leaves at once then. 0 keeps to the rate at any moment.
    pub behind_max: Nanos,
    /// How much may have been handed out and not been [`Schedule::sent`]; `None`: any amount.
    pub in_flight_max: Option<Bytes>,
}

/// What a session has at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What was promised of the rate.
    pub share: Option<Share>,
    /// Whether it gets a part of the rest beyond its share. Without a share it always does.
    pub extra: bool,
    /// Its part of the rest.
    pub weight: Weight,
    /// How much waits for it at most. A packet counts for at least 64 bytes.
    pub queue: Bytes,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It waits.
    Queued {
        /// Whether the queue has become long.
        crossed: Option<Crossing>,
    },
    /// It was dropped and counted, and is the caller's again: its head may be what somebody wants
    /// to see.
    Dropped {
        /// The packet.
        handle: T,
        /// Why.
        reason: DropReason,
    },
}

/// Why a packet does not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// Its session's queue has no room for it.
    QueueFull,
    /// Its session has nothing at this port.
    NoTerms,
    /// It is longer than the port's longest packet.
    TooLong,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// This packet leaves.
    Packet {
        /// The packet.
        handle: T,
        /// Whose it is.
        session: SessionId,
        /// Its bytes.
        bytes: Bytes,
        /// On which account.
        kind: Kind,
        /// Whether its queue has become short.
        crossed: Option<Crossing>,
    },
    /// None may before this time, unless one is enqueued.
    Wait(Nanos),
    /// None may until some were [`Schedule::sent`].
    InFlight,
    /// None waits.
    Idle,
}

/// What a session was promised and given at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The period that runs, in time of the wire.
    pub running: Period,
    /// The one before.
    pub last: Period,
    /// Sent on its share.
    pub guaranteed: Bytes,
    /// Sent of what nobody reserved or uses.
    pub rest: Bytes,
    /// Sent in all.
    pub packets: Count,
    /// Dropped for want of room.
    pub dropped: Count,
    /// Their bytes.
    pub dropped_bytes: Bytes,
    /// What waits, as it counts.
    pub queued: Bytes,
    /// Packets that wait.
    pub queued_packets: Count,
    /// Time of the wire that was left of slices, although there were packets, and is gone, since
    /// the port stood still: 0 as long as promises are kept.
    pub short: Nanos,
}

/// The packets that leave by one port; `T` names a packet.
#[derive(Clone, Debug)]
pub struct Schedule<T> {
    port: Port,
    edf: Edf,
    /// By the number of the session.
    senders: Vec<Option<Sender>>,
    waiting: Packets<T>,
    pace: Pace,
    in_flight: Bytes,
    /// Sessions with a share.
    shares: u64,
}

impl<T> Schedule<T> {
    /// Of a port by which nobody sends.
    #[must_use]
    pub fn new(port: Port) -> Self {
        Self {
            port,
            edf: Edf::new(RULES),
            senders: Vec::new(),
            waiting: Packets::new(),
            pace: Pace::new(),
            in_flight: Bytes::ZERO,
            shares: 0,
        }
    }

    /// Another rate, say, from the next packet on.
    pub fn set_port(&mut self, port: Port) {
        self.port = port;
        self.set_late_max();
    }

    /// Gives a session terms, or other ones: a share from its next period on, or when what it is
    /// made of is free; the rest at once. What waits beyond a shorter queue leaves as it would.
    pub fn set(&mut self, now: Nanos, session: SessionId, terms: Terms) {
        let at = usize::from(session.0);
        if at >= self.senders.len() {
            self.senders.resize_with(at + 1, || None);
        }
        let of_edf = edf::Terms { share: terms.share, extra: terms.extra };
        let had_share = if let Some(sender) = &mut self.senders[at] {
            sender.queue_max = terms.queue;
            self.edf.change(now, sender.entity, of_edf, terms.weight);
            core::mem::replace(&mut sender.has_share, terms.share.is_some())
        } else {
            let entity = self.edf.add(now, session, of_edf, terms.weight);
            self.senders[at] = Some(Sender::new(entity, &terms));
            false
        };
        self.shares += u64::from(terms.share.is_some());
        self.shares -= u64::from(had_share);
        self.set_late_max();
    }

    /// Has crossings of a session's queue said, or not any more.
    pub fn watch(&mut self, session: SessionId, watch: Option<Watch>) {
        if let Some(sender) = sender(&mut self.senders, session) {
            sender.watch(watch);
        }
    }

    /// Takes a session's terms; its packets that wait are the caller's again.
    pub fn remove(&mut self, now: Nanos, session: SessionId) -> Vec<T> {
        let Some(place) = self.senders.get_mut(usize::from(session.0)) else { return Vec::new() };
        let Some(mut sender) = place.take() else { return Vec::new() };
        self.edf.remove(now, sender.entity);
        self.shares -= u64::from(sender.has_share);
        self.set_late_max();
        let waiting = &mut self.waiting;
        core::iter::from_fn(|| Some(waiting.pop(&mut sender.queue)?.1)).collect()
    }

    /// A packet is to leave.
    pub fn enqueue(
        &mut self,
        now: Nanos,
        session: SessionId,
        bytes: Bytes,
        handle: T,
    ) -> Outcome<T> {
        let Some(sender) = sender(&mut self.senders, session) else {
            return Outcome::Dropped { handle, reason: DropReason::NoTerms };
        };
        let is_too_long = bytes > self.port.packet_max || bytes > PACKET_MAX;
        if is_too_long || sender.queue.counted + counted(bytes) > sender.queue_max {
            sender.dropped += Count(1);
            sender.dropped_bytes += bytes;
            let reason = if is_too_long { DropReason::TooLong } else { DropReason::QueueFull };
            return Outcome::Dropped { handle, reason };
        }
        self.waiting.push(&mut sender.queue, bytes, handle);
        if sender.queue.count == 1 {
            self.edf.wake(now, sender.entity);
        }
        Outcome::Queued { crossed: sender.crossing() }
    }

    /// The packet that leaves now, if one may.
    pub fn next(&mut self, now: Nanos) -> Next<T> {
        if self.port.in_flight_max.is_some_and(|most| self.in_flight >= most) {
            return Next::InFlight;
        }
        let Port { ahead_max, behind_max, .. } = self.port;
        if let Some(until) = self.pace.wait(now, ahead_max, behind_max) {
            return Next::Wait(until);
        }
        self.edf.advance(now);
        let Some((entity, kind)) = self.edf.first() else {
            self.pace.set_busy(false);
            return self.edf.next_release().map_or(Next::Idle, Next::Wait);
        };
        let session = self.edf.session(entity);
        let Some(sender) = sender(&mut self.senders, session) else { return Next::Idle };
        let Some((bytes, handle)) = self.waiting.pop(&mut sender.queue) else {
            return Next::Idle;
        };
        sender.count(bytes, kind);
        let crossed = sender.crossing();
        let time = time_of(bytes + self.port.per_packet, self.port.rate);
        self.edf.charge(now, entity, time, kind);
        if sender.queue.is_empty() {
            self.edf.sleep(entity);
        }
        self.pace.add(time);
        self.pace.set_busy(self.edf.first().is_some());
        self.in_flight += bytes;
        Next::Packet { handle, session, bytes, kind, crossed }
    }

    /// So much has left by the port past this since the last time, which is so long ago: the wire
    /// is that much later free. What it cannot have carried in that time it has carried before.
    pub fn pass_by(&mut self, packets: Count, bytes: Bytes, since: Nanos) {
        let rest = Bytes(self.port.per_packet.0.saturating_mul(packets.0));
        let time = time_of(bytes + rest, self.port.rate);
        self.pace.add(time.min(since.0.saturating_mul(PICOS)));
    }

    /// So much of what was handed out has left the device.
    pub const fn sent(&mut self, bytes: Bytes) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// What a session was promised and given; `None` when it has nothing here.
    #[must_use]
    pub fn account(&self, session: SessionId) -> Option<Account> {
        let sender = self.senders.get(usize::from(session.0))?.as_ref()?;
        let (last, running, totals) = self.edf.account(sender.entity)?;
        Some(Account {
            running,
            last,
            guaranteed: sender.guaranteed,
            rest: sender.rest,
            packets: sender.packets,
            dropped: sender.dropped,
            dropped_bytes: sender.dropped_bytes,
            queued: sender.queue.counted,
            queued_packets: Count(sender.queue.count),
            short: Nanos(totals.short / PICOS),
        })
    }
}

impl<T> Schedule<T> {
    /// Each session with a share may send one packet too much at the same time, and one that is
    /// on the wire is not stopped. Nobody is later than all of these, and who has to wait for
    /// them keeps his deadline: with a later one he would meet others who again send too much.
    fn set_late_max(&mut self) {
        let packet = time_of(self.port.packet_max + self.port.per_packet, self.port.rate);
        let packets = (self.shares + 1).saturating_mul(packet) / PICOS;
        self.edf.set_late_max(Nanos(packets) + self.port.ahead_max + AWAY_MAX);
    }
}

fn sender(senders: &mut [Option<Sender>], session: SessionId) -> Option<&mut Sender> {
    senders.get_mut(usize::from(session.0))?.as_mut()
}

#[cfg(test)]
mod tests;
