//! Egress scheduling of one port: shares of its rate by earliest deadline, the surplus by weight.
//!
//! ```text
//!  enqueue ─▶ a session's queue ─▶ next: Packet ─▶ the device ─▶ sent
//!    │ full                          │
//!    ▼                               ▼ no packet may leave yet
//!  Dropped, with the packet        Wait(until), InFlight, Idle
//!
//!                  enqueue, more than `above`
//!          ┌───────┐ ─────────────────▶ ┌───────┐
//!          │ short │                    │ long  │   each crossing is reported once
//!          └───────┘ ◀───────────────── └───────┘
//!                   next, `below` or less
//! ```
//!
//! The scheduler is not the port: it holds handles of packets, sends nothing and reads no clock. It
//! paces at the configured rate, since a queue that builds up in the device is first-in, first-out
//! for all sessions. Packets are not fragmented: a session with any budget left sends one more
//! packet, and the overrun is subtracted from its next period. A session delayed by others' packets
//! keeps its deadline and its budget, ahead of later deadlines.
//!
//! **Guarantee** while all shares were admitted: a session that always has packets is never further
//! behind its share than one packet of each session with a share, plus one; and never further ahead
//! than one packet of its own.

mod pace;
mod queue;
mod sender;

use units::{BitsPerSecond, Bytes, Nanos, Packets as Count, SessionId};

use crate::admission::PORT_SHARE_MAX;
use crate::edf::{self, Edf, Params};
use crate::kind::Kind;
use crate::period::Period;
use crate::share::Share;
use crate::weight::Weight;

use pace::{PICOS, Pace, time_of};
use queue::{Packets, counted};
use sender::Sender;
pub use sender::{Crossing, Watch};

/// Longest packet of any port: the maximum of IP's 16-bit length field.
pub const PACKET_MAX: Bytes = Bytes(65_535);

/// Longest interval between two calls of [`Schedule::next`]: a packet may leave that much later
/// than other sessions' packets explain.
const POLL_INTERVAL_MAX: Nanos = Nanos::from_millis(1);

const PARAMS: Params = Params {
    work_per_nano: PICOS,
    overrun_max: Nanos::ZERO,
    capacity: PORT_SHARE_MAX.0,
    lateness_max: POLL_INTERVAL_MAX,
};

/// Transmission parameters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Line rate.
    pub rate: BitsPerSecond,
    /// Longest packet, at most [`PACKET_MAX`]. Longer packets are dropped.
    pub packet_max: Bytes,
    /// Overhead of each packet on the wire beside its bytes: 24 on Ethernet (preamble, frame check
    /// sequence and gap), 0 on a virtual link.
    pub per_packet: Bytes,
    /// Lead of [`Schedule::next`] over the wire that is tolerated: shorter waits need no timer.
    pub ahead_max: Nanos,
    /// Idle time of the wire, while packets were queued, that may be made up for by a burst of that
    /// length. 0 keeps to the rate at any moment.
    pub behind_max: Nanos,
    /// Limit of bytes handed out and not yet reported by [`Schedule::sent`]; `None` for no limit.
    pub in_flight_max: Option<Bytes>,
}

/// Configuration of a session at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Reserved share of the rate.
    pub share: Option<Share>,
    /// True if it takes part in the surplus beyond its share. Sessions without a share always do.
    pub extra: bool,
    /// Weight in the division of the surplus.
    pub weight: Weight,
    /// Limit of its queue. A packet counts for at least 64 bytes.
    pub queue: Bytes,
}

/// Result of [`Schedule::enqueue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The packet is queued.
    Queued {
        /// Set if the queue has become long by it.
        crossed: Option<Crossing>,
    },
    /// The packet was dropped and counted. Its handle is returned, since a capture may want its
    /// head.
    Dropped {
        /// Handle of the packet.
        handle: T,
        /// Reason of the drop.
        reason: DropReason,
    },
}

/// Reason why a packet is dropped at egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The session's queue is full.
    QueueFull,
    /// The session is not configured at this port.
    NotConfigured,
    /// The packet is longer than the port's longest packet.
    TooLong,
}

/// Result of [`Schedule::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Packet that leaves now.
    Packet {
        /// Handle of the packet.
        handle: T,
        /// Session that is charged.
        session: SessionId,
        /// Length of the packet.
        bytes: Bytes,
        /// Class of the time that it uses.
        kind: Kind,
        /// Set if the queue has become short by it.
        crossed: Option<Crossing>,
    },
    /// No packet may leave before this time, unless another one is enqueued.
    Wait(Nanos),
    /// No packet may leave until some are reported by [`Schedule::sent`].
    InFlight,
    /// All queues are empty.
    Idle,
}

/// Account of a session at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Current period, in time on the wire.
    pub running: Period,
    /// Previous period.
    pub last: Period,
    /// Bytes sent on its share.
    pub guaranteed: Bytes,
    /// Bytes sent from the surplus.
    pub surplus: Bytes,
    /// Packets sent in all.
    pub packets: Count,
    /// Packets dropped for a full queue or for their length.
    pub dropped: Count,
    /// Bytes of the dropped packets.
    pub dropped_bytes: Bytes,
    /// Queued bytes, where a packet counts for at least 64.
    pub queued: Bytes,
    /// Queued packets.
    pub queued_packets: Count,
    /// Budget lost at the end of periods although packets were queued, in time on the wire; happens
    /// only if the port stood still. 0 as long as reservations are kept.
    pub short: Nanos,
}

/// Egress schedule of one port; `T` is a handle of a packet.
#[derive(Clone, Debug)]
pub struct Schedule<T> {
    port: Port,
    edf: Edf,
    /// Indexed by session number.
    senders: Vec<Option<Sender>>,
    waiting: Packets<T>,
    pace: Pace,
    in_flight: Bytes,
    /// Number of sessions with a share.
    shares: u64,
}

impl<T> Schedule<T> {
    /// Makes the schedule of a port without sessions.
    #[must_use]
    pub fn new(port: Port) -> Self {
        Self {
            port,
            edf: Edf::new(PARAMS),
            senders: Vec::new(),
            waiting: Packets::new(),
            pace: Pace::new(),
            in_flight: Bytes::ZERO,
            shares: 0,
        }
    }

    /// Changes the port's parameters, such as its rate, from the next packet on.
    pub fn set_port(&mut self, port: Port) {
        self.port = port;
        self.set_lateness_max();
    }

    /// Adds or changes a session. A share takes effect with the next period, or when the load that
    /// it needs is free; everything else at once. Packets beyond a shorter queue stay and leave in
    /// order.
    pub fn set(&mut self, now: Nanos, session: SessionId, config: SenderConfig) {
        let at = usize::from(session.0);
        if at >= self.senders.len() {
            self.senders.resize_with(at + 1, || None);
        }
        let entitlement = edf::Entitlement { share: config.share, extra: config.extra };
        let had_share = if let Some(sender) = &mut self.senders[at] {
            sender.queue_max = config.queue;
            self.edf.change(now, sender.entity, entitlement, config.weight);
            core::mem::replace(&mut sender.has_share, config.share.is_some())
        } else {
            let entity = self.edf.add(now, session, entitlement, config.weight);
            self.senders[at] = Some(Sender::new(entity, &config));
            false
        };
        self.shares += u64::from(config.share.is_some());
        self.shares -= u64::from(had_share);
        self.set_lateness_max();
    }

    /// Starts or stops reporting of a session's queue crossings.
    pub fn watch(&mut self, session: SessionId, watch: Option<Watch>) {
        if let Some(sender) = sender(&mut self.senders, session) {
            sender.watch(watch);
        }
    }

    /// Removes a session; returns the handles of its queued packets.
    pub fn remove(&mut self, now: Nanos, session: SessionId) -> Vec<T> {
        let Some(slot) = self.senders.get_mut(usize::from(session.0)) else { return Vec::new() };
        let Some(mut sender) = slot.take() else { return Vec::new() };
        self.edf.remove(now, sender.entity);
        self.shares -= u64::from(sender.has_share);
        self.set_lateness_max();
        let waiting = &mut self.waiting;
        core::iter::from_fn(|| Some(waiting.pop(&mut sender.queue)?.1)).collect()
    }

    /// Queues a packet of the session.
    pub fn enqueue(
        &mut self,
        now: Nanos,
        session: SessionId,
        bytes: Bytes,
        handle: T,
    ) -> Outcome<T> {
        let Some(sender) = sender(&mut self.senders, session) else {
            return Outcome::Dropped { handle, reason: DropReason::NotConfigured };
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

    /// Returns the packet to transmit now, or what to wait for.
    pub fn next(&mut self, now: Nanos) -> Next<T> {
        if self.port.in_flight_max.is_some_and(|most| self.in_flight >= most) {
            return Next::InFlight;
        }
        let Port { ahead_max, behind_max, .. } = self.port;
        if let Some(until) = self.pace.wait_until(now, ahead_max, behind_max) {
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

    /// Accounts for packets that left by the port past this schedule in the last `since`. The wire
    /// is occupied that much longer, but at most for `since`: the remainder was carried before.
    pub fn account_bypass(&mut self, packets: Count, bytes: Bytes, since: Nanos) {
        let overhead = Bytes(self.port.per_packet.0.saturating_mul(packets.0));
        let time = time_of(bytes + overhead, self.port.rate);
        self.pace.add(time.min(since.0.saturating_mul(PICOS)));
    }

    /// Reports that the device has transmitted bytes handed out earlier.
    pub const fn sent(&mut self, bytes: Bytes) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Returns a session's account; `None` if it is not configured here.
    #[must_use]
    pub fn account(&self, session: SessionId) -> Option<Account> {
        let sender = self.senders.get(usize::from(session.0))?.as_ref()?;
        let (last, running, totals) = self.edf.account(sender.entity)?;
        Some(Account {
            running,
            last,
            guaranteed: sender.guaranteed,
            surplus: sender.surplus,
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
    /// Recomputes the tolerated lateness. Each session with a share may overrun by one packet at
    /// the same time, and a packet on the wire is not preempted: lateness is bounded by their sum.
    /// A delayed session keeps its deadline within this bound; with a later one it would meet
    /// others that overrun again.
    fn set_lateness_max(&mut self) {
        let packet = time_of(self.port.packet_max + self.port.per_packet, self.port.rate);
        let packets = (self.shares + 1).saturating_mul(packet) / PICOS;
        self.edf.set_lateness_max(Nanos(packets) + self.port.ahead_max + POLL_INTERVAL_MAX);
    }
}

fn sender(senders: &mut [Option<Sender>], session: SessionId) -> Option<&mut Sender> {
    senders.get_mut(usize::from(session.0))?.as_mut()
}

#[cfg(test)]
mod tests;
