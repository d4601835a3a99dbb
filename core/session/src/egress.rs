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
//! was too much is missing in his next period. A packet that its session's slice was there for,
//! and that had to wait for others' packets, is not lost to it: that much more is his in the next
//! periods.
//!
//! **What holds** while all shares were admitted: who always has packets is never further behind
//! his share than one packet of everybody with a share, and one more; and never further ahead than
//! one of his own.

mod pace;
mod queue;

use units::{BitsPerSecond, Bytes, Nanos, Packets as Count, SessionId};

use crate::admission::PORT_SHARE_MAX;
use crate::edf::{self, Edf, Rules};
use crate::kind::Kind;
use crate::period::Period;
use crate::share::Share;
use crate::weight::Weight;

use pace::{PICOS, Pace, time_of};
use queue::{Packets, Queue, counted};

/// Longest packet: what the length field of IP can say.
pub const PACKET_MAX: Bytes = Bytes(65_535);

/// How many slices somebody may have later, because others' packets were on the wire: where every
/// slice is little more than a packet, two periods in a row can pass like that. A port that stood
/// still for longer is not caught up with.
const CARRIED_MAX: u64 = 4;

const RULES: Rules = Rules {
    work_per_nano: PICOS,
    stop: Nanos::ZERO,
    capacity: PORT_SHARE_MAX.0,
    carried_max: CARRIED_MAX,
};

/// What a port sends, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its rate.
    pub rate: BitsPerSecond,
    /// What each packet takes on the wire beside its bytes: 24 on Ethernet (preamble, frame check
    /// sequence and gap), 0 on a virtual link.
    pub per_packet: Bytes,
    /// How far [`Schedule::next`] may be ahead of the wire: what is not waited for by a timer.
    pub ahead_max: Nanos,
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

/// When crossings are said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The queue is long when there is more in it.
    pub above: Bytes,
    /// It is short again when there is no more than that in it: less than `above`, so that a
    /// queue at the threshold does not say so for each packet.
    pub below: Bytes,
}

/// A threshold was crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// There is more in the queue than `above`.
    Above,
    /// There is no more in it than `below` again.
    Below,
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
    /// It is longer than [`PACKET_MAX`].
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
    /// Time of the wire that it was given later than in its period.
    pub late: Nanos,
}

#[derive(Clone, Debug)]
struct Sender {
    entity: u32,
    queue: Queue,
    queue_max: Bytes,
    watch: Option<Watch>,
    is_long: bool,
    guaranteed: Bytes,
    rest: Bytes,
    packets: Count,
    dropped: Count,
    dropped_bytes: Bytes,
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
        }
    }

    /// Another rate, say, from the next packet on.
    pub const fn set_port(&mut self, port: Port) {
        self.port = port;
    }

    /// Gives a session terms, or other ones: a share from its next period on, or when what it is
    /// made of is free; the rest at once. What waits beyond a shorter queue leaves as it would.
    pub fn set(&mut self, now: Nanos, session: SessionId, terms: Terms) {
        let at = usize::from(session.0);
        if at >= self.senders.len() {
            self.senders.resize_with(at + 1, || None);
        }
        let of_edf = edf::Terms { share: terms.share, extra: terms.extra };
        if let Some(sender) = &mut self.senders[at] {
            sender.queue_max = terms.queue;
            self.edf.change(now, sender.entity, of_edf, terms.weight);
        } else {
            let entity = self.edf.add(now, session, of_edf, terms.weight);
            self.senders[at] = Some(Sender::new(entity, terms.queue));
        }
    }

    /// Has crossings of a session's queue said, or not any more.
    pub fn watch(&mut self, session: SessionId, watch: Option<Watch>) {
        if let Some(sender) = sender(&mut self.senders, session) {
            sender.watch = watch;
            sender.is_long = false;
        }
    }

    /// Takes a session's terms; its packets that wait are the caller's again.
    pub fn remove(&mut self, now: Nanos, session: SessionId) -> Vec<T> {
        let Some(place) = self.senders.get_mut(usize::from(session.0)) else { return Vec::new() };
        let Some(mut sender) = place.take() else { return Vec::new() };
        self.edf.remove(now, sender.entity);
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
        let is_too_long = bytes > PACKET_MAX;
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
        if let Some(until) = self.pace.wait(now, self.port.ahead_max) {
            return Next::Wait(until);
        }
        self.edf.advance(now);
        let Some((entity, kind)) = self.edf.first() else {
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
        self.pace.add(now, time);
        self.in_flight += bytes;
        Next::Packet { handle, session, bytes, kind, crossed }
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
            late: Nanos(totals.short / PICOS),
        })
    }
}

fn sender(senders: &mut [Option<Sender>], session: SessionId) -> Option<&mut Sender> {
    senders.get_mut(usize::from(session.0))?.as_mut()
}

impl Sender {
    const fn new(entity: u32, queue_max: Bytes) -> Self {
        Self {
            entity,
            queue: Queue::new(),
            queue_max,
            watch: None,
            is_long: false,
            guaranteed: Bytes::ZERO,
            rest: Bytes::ZERO,
            packets: Count::ZERO,
            dropped: Count::ZERO,
            dropped_bytes: Bytes::ZERO,
        }
    }

    fn count(&mut self, bytes: Bytes, kind: Kind) {
        self.packets += Count(1);
        match kind {
            Kind::Guaranteed => self.guaranteed += bytes,
            Kind::Extra | Kind::BestEffort => self.rest += bytes,
        }
    }

    fn crossing(&mut self) -> Option<Crossing> {
        let watch = self.watch?;
        let queued = self.queue.counted;
        if !self.is_long && queued > watch.above {
            self.is_long = true;
            return Some(Crossing::Above);
        }
        if self.is_long && queued <= watch.below {
            self.is_long = false;
            return Some(Crossing::Below);
        }
        None
    }
}

#[cfg(test)]
mod tests;
