//! Queue credits of sessions: the bytes that may wait for each, in front of the cell and in it,
//! counted in memory shared with the front door.
//!
//! ```text
//!  front door: credit? ─ no ─▶ dropped there     the cell: try_take ─ no ─▶ dropped here
//!      │ sent += memory                                    │ done -= memory
//!      ▼                                                   ▼
//!  receive ring ─▶ on_arrival ─▶ waits for its turn, or to leave ─▶ release: done += memory
//! ```
//!
//! The difference `sent - done` is the number of bytes that wait, wherever they arrived from. Credit
//! is taken behind a full barrier: by `levels/bpf/c/credits.h` for packets that arrive by XDP and tc,
//! and here for those that arrive by packet sockets, that services send each other, and that wait
//! to leave.
//!
//! Packets that were sent up and never arrived are found by their epoch ([`QueueCredits::settle`]).

use bpf_maps::ROOM_SHARED;
use level::prefetch;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use units::{Bytes, CoarseInstant, Millis, SessionId};

/// Length of an epoch. A packet arrives within the driver's poll, so one that has not arrived for
/// this long is lost; one that arrives after all is compensated.
pub(crate) const EPOCH: Millis = Millis(1000);

/// Released bytes of the shared credit at which they are published before the turns are over:
/// packets of a dozen turns.
const UNPUBLISHED_MAX: Bytes = Bytes(16 * xsk::FRAME_LENGTH as u64);

/// Counters of a cell without a front door.
#[derive(Debug, Default)]
struct OwnCounters {
    most: AtomicU64,
    sent: [AtomicU64; 2],
    dropped: AtomicU64,
    epoch: AtomicU32,
    shared: AtomicU32,
    done: AtomicU64,
}

#[derive(Debug)]
enum Storage {
    Mapped(bpf::CreditRecord<'static>),
    Own(Box<OwnCounters>),
}

/// Credit of one session, or of all that share one.
#[derive(Debug)]
pub(crate) struct Credit {
    storage: Storage,
    most: Bytes,
    /// Bytes that arrived of those that the front door sent, by epoch.
    arrived: [u64; 2],
    /// Bytes in the cell.
    held: Bytes,
    /// Packets that the front door had dropped before this credit began.
    dropped_before: u64,
}

impl Credit {
    fn begin(storage: Storage, epoch: u32) -> Self {
        let mut credit = Self {
            storage,
            most: Bytes::ZERO,
            arrived: [0; 2],
            held: Bytes::ZERO,
            dropped_before: 0,
        };
        let counters = credit.counters();
        counters.epoch.store(epoch, Ordering::SeqCst);
        let sent = counters.sent.map(|sent| sent.load(Ordering::SeqCst));
        let dropped = counters.dropped.load(Ordering::Relaxed);
        // Packets under way belong to an earlier owner of this record.
        counters.done.store(sent[0].wrapping_add(sent[1]), Ordering::SeqCst);
        (credit.arrived, credit.dropped_before) = (sent, dropped);
        credit
    }

    #[inline]
    fn counters(&self) -> bpf::CreditRecord<'_> {
        match &self.storage {
            Storage::Mapped(counters) => *counters,
            Storage::Own(own) => bpf::CreditRecord {
                most: &own.most,
                sent: own.sent.each_ref(),
                dropped: &own.dropped,
                epoch: &own.epoch,
                shared: &own.shared,
                done: &own.done,
            },
        }
    }

    /// Returns the number of bytes that wait, packets under way included. Negative for a moment
    /// when packets arrive that had been given up.
    fn sum(&self) -> i64 {
        let counters = self.counters();
        let sent = counters.sent.map(|sent| sent.load(Ordering::SeqCst));
        let done = counters.done.load(Ordering::SeqCst);
        sent[0].wrapping_add(sent[1]).wrapping_sub(done) as i64
    }

    /// Returns the bytes that wait now.
    pub(crate) fn queued(&self) -> Bytes {
        Bytes(self.sum().max(0) as u64)
    }

    /// Returns the number of packets that the front door dropped for lack of credit.
    pub(crate) fn dropped(&self) -> u64 {
        self.counters().dropped.load(Ordering::Relaxed).saturating_sub(self.dropped_before)
    }

    /// Counts the arrival of bytes whose credit the front door took.
    #[inline]
    fn on_arrival(&mut self, memory: Bytes, epoch: usize) {
        self.arrived[epoch] = self.arrived[epoch].wrapping_add(memory.0);
        self.held += memory;
    }

    /// Takes credit if at most `most` bytes wait then.
    #[inline]
    fn try_take(&mut self, memory: Bytes, most: Bytes) -> bool {
        self.counters().done.fetch_sub(memory.0, Ordering::SeqCst);
        if self.sum() > most.0 as i64 {
            self.counters().done.fetch_add(memory.0, Ordering::SeqCst);
            return false;
        }
        self.held += memory;
        true
    }

    /// Releases credit.
    #[inline]
    fn release(&mut self, memory: Bytes) {
        self.held = self.held.saturating_sub(memory);
        self.counters().done.fetch_add(memory.0, Ordering::Release);
    }

    /// Releases the credit of packets of a closed epoch that have not arrived. Those that arrive
    /// later are missing in the epoch's next sum.
    fn settle(&mut self, epoch: usize) {
        let counters = self.counters();
        let sent = counters.sent[epoch].load(Ordering::Acquire);
        let lost = sent.wrapping_sub(self.arrived[epoch]);
        counters.done.fetch_add(lost, Ordering::Release);
        self.arrived[epoch] = sent;
    }

    fn publish(&self, is_limited: bool) {
        let most = if is_limited { self.most.0 } else { 0 };
        self.counters().most.store(most, Ordering::Release);
    }
}

/// Queue of one session.
#[derive(Debug)]
pub(crate) struct Queue {
    credit: Credit,
    /// Set if the session reserved no queue: it also counts in the credit that such sessions share.
    is_shared: bool,
}

impl Queue {
    /// Returns the bytes that wait in it now.
    pub(crate) fn queued(&self) -> Bytes {
        self.credit.queued()
    }

    /// Returns the limit in bytes.
    pub(crate) const fn most(&self) -> Bytes {
        self.credit.most
    }

    /// Returns the number of packets that the front door dropped for lack of credit.
    pub(crate) fn dropped(&self) -> u64 {
        self.credit.dropped()
    }
}

/// Shared credit, and the memory that all credits have in common with the front door.
#[derive(Debug)]
pub(crate) struct QueueCredits {
    table: Option<&'static bpf::CreditTable>,
    shared: Credit,
    /// Bytes released from the shared credit and not yet published: the front door reads that word
    /// for each packet on another processor, so each write takes a cache line from it.
    unpublished: Bytes,
    /// Number of the epoch; its lowest bit is the index under which the front door counts.
    epoch: u32,
    /// Begin of the next epoch.
    next_at: CoarseInstant,
    /// Set while sessions have claims against each other: the front door enforces limits.
    is_limited: bool,
}

fn storage_of(table: Option<&'static bpf::CreditTable>, number: usize) -> Storage {
    let mapped = table.and_then(|table| table.room(number));
    mapped.map_or_else(|| Storage::Own(Box::default()), Storage::Mapped)
}

impl QueueCredits {
    /// Creates the credits; `shared` is the limit of all queues without a reservation together.
    pub(crate) fn new(table: Option<&'static bpf::CreditTable>, shared: Bytes) -> Self {
        let mut credit = Credit::begin(storage_of(table, ROOM_SHARED), 0);
        credit.most = shared;
        Self {
            table,
            shared: credit,
            unpublished: Bytes::ZERO,
            epoch: 0,
            next_at: CoarseInstant::ZERO,
            is_limited: false,
        }
    }

    /// Prefetches the credit of a session.
    #[inline]
    pub(crate) fn load_ahead(&self, session: SessionId) {
        if let Some(credit) = self.table.and_then(|table| table.room(usize::from(session.0))) {
            prefetch::load(credit.most);
            prefetch::load(credit.done);
        }
    }

    /// Creates the queue of a session that has none yet.
    pub(crate) fn queue(&self, session: SessionId) -> Queue {
        let storage = storage_of(self.table, usize::from(session.0));
        Queue { credit: Credit::begin(storage, self.epoch), is_shared: false }
    }

    /// Sets the limit of a queue, and whether it counts in the shared credit.
    pub(crate) fn set(&mut self, queue: &mut Queue, most: Bytes, is_shared: bool) {
        queue.credit.most = most;
        // Bytes that wait now move to the other account.
        match (queue.is_shared, is_shared) {
            (false, true) => {
                self.shared.counters().done.fetch_sub(queue.credit.held.0, Ordering::SeqCst);
                self.shared.held += queue.credit.held;
            }
            (true, false) => self.shared.release(queue.credit.held),
            _ => {}
        }
        queue.is_shared = is_shared;
        queue.credit.counters().shared.store(u32::from(is_shared), Ordering::Release);
        queue.credit.publish(self.is_limited);
    }

    /// Switches the front door's limits on or off.
    pub(crate) fn limit<'a>(
        &mut self,
        is_limited: bool,
        queues: impl Iterator<Item = &'a mut Queue>,
    ) {
        if is_limited != self.is_limited {
            self.is_limited = is_limited;
            self.shared.publish(is_limited);
            queues.for_each(|queue| queue.credit.publish(is_limited));
        }
    }

    /// Closes a queue, which gets no more packets, and releases its credit.
    pub(crate) fn close(&mut self, mut queue: Queue) {
        queue.credit.publish(false);
        let held = queue.credit.held;
        self.release(&mut queue, held);
        self.publish_released();
    }

    /// Counts the arrival of a packet for which the front door took credit.
    #[inline]
    pub(crate) fn on_arrival(&mut self, queue: &mut Queue, memory: Bytes, epoch: usize) {
        queue.credit.on_arrival(memory, epoch);
        if queue.is_shared {
            self.shared.on_arrival(memory, epoch);
        }
    }

    /// Takes credit in a queue and, if it has no reservation, in the shared credit; `beyond` is an
    /// allowance above both limits. Returns false if there is not enough.
    #[inline]
    pub(crate) fn try_take(&mut self, queue: &mut Queue, memory: Bytes, beyond: Bytes) -> bool {
        let most = queue.credit.most + beyond;
        if !queue.credit.try_take(memory, most) {
            return false;
        }
        if queue.is_shared {
            self.publish_released();
        }
        if queue.is_shared && !self.shared.try_take(memory, self.shared.most + beyond) {
            queue.credit.release(memory);
            return false;
        }
        true
    }

    /// Releases credit; the shared part is published later.
    #[inline]
    pub(crate) fn release(&mut self, queue: &mut Queue, memory: Bytes) {
        if memory == Bytes::ZERO {
            return;
        }
        queue.credit.release(memory);
        if queue.is_shared {
            self.unpublished += memory;
            if self.unpublished >= UNPUBLISHED_MAX {
                self.publish_released();
            }
        }
    }

    /// Publishes what was released from the shared credit.
    #[inline]
    pub(crate) fn publish_released(&mut self) {
        if self.unpublished > Bytes::ZERO {
            self.shared.release(std::mem::take(&mut self.unpublished));
        }
    }

    /// Sets whether the front door leaves the first bytes of packets dropped for lack of credit.
    pub(crate) fn want_heads(&self, session: SessionId, wanted: bool) {
        if let Some(table) = self.table {
            table.want_heads(usize::from(session.0), wanted);
        }
    }

    /// Takes the first bytes of such a packet, if the front door has left one.
    pub(crate) fn take_head(&self, session: SessionId) -> Option<bpf::Head> {
        self.table?.take_head(usize::from(session.0))
    }

    /// Returns true if it is time to call [`QueueCredits::settle`].
    #[inline]
    pub(crate) fn is_epoch_over(&self, now: CoarseInstant) -> bool {
        now >= self.next_at
    }

    /// Returns the index of the epoch before the running one, which the next epoch reuses.
    pub(crate) const fn closed_epoch(&self) -> usize {
        (self.epoch.wrapping_add(1) & 1) as usize
    }

    /// Ends an epoch, once its time is over: releases the credit of packets of the one before that
    /// have not arrived, and begins the next.
    pub(crate) fn settle<'a>(
        &mut self,
        now: CoarseInstant,
        queues: impl Iterator<Item = &'a mut Queue>,
    ) {
        if !self.is_epoch_over(now) {
            return;
        }
        self.publish_released();
        self.next_at = now + EPOCH;
        self.epoch = self.epoch.wrapping_add(1);
        let (epoch, bit) = (self.epoch, (self.epoch & 1) as usize);
        // The shared credit first: what the front door counts in the new epoch counts there, too.
        let credits = [&mut self.shared].into_iter().chain(queues.map(|queue| &mut queue.credit));
        for credit in credits {
            credit.settle(bit);
            credit.counters().epoch.store(epoch, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Bytes = Bytes(4096);
    const SHARED: Bytes = Bytes(6 * FRAME.0);

    /// Random numbers (xorshift).
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, most: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % most
        }
    }

    /// Models `take_credit` of `levels/bpf/c/credits.h`. Returns the epoch, or `None` without credit.
    fn front_door(credits: &QueueCredits, queue: &Queue, memory: Bytes) -> Option<usize> {
        let (own, shared) = (queue.credit.counters(), credits.shared.counters());
        let epoch = (own.epoch.load(Ordering::SeqCst) & 1) as usize;
        let put = |credit: &bpf::CreditRecord<'_>| {
            let load = |word: &AtomicU64| word.load(Ordering::SeqCst);
            credit.sent[epoch].fetch_add(memory.0, Ordering::SeqCst);
            let sent = load(credit.sent[0]).wrapping_add(load(credit.sent[1]));
            let waits = sent.wrapping_sub(load(credit.done)).wrapping_sub(load(credit.most)) as i64;
            if waits > 0 {
                credit.sent[epoch].fetch_sub(memory.0, Ordering::SeqCst);
            }
            waits <= 0
        };
        if !put(&own) {
            return None;
        }
        if own.shared.load(Ordering::SeqCst) != 0 && !put(&shared) {
            own.sent[epoch].fetch_sub(memory.0, Ordering::SeqCst);
            return None;
        }
        Some(epoch)
    }

    fn queues(credits: &mut QueueCredits, most: &[(u64, bool)]) -> Vec<Queue> {
        let mut queues: Vec<Queue> =
            (0..most.len()).map(|id| credits.queue(SessionId(id as u16))).collect();
        for (queue, &(frames, is_shared)) in queues.iter_mut().zip(most) {
            credits.set(queue, Bytes(frames * FRAME.0), is_shared);
        }
        credits.limit(true, queues.iter_mut());
        queues
    }

    #[test]
    fn one_limit_holds_for_packets_of_the_front_door_and_others() {
        let mut credits = QueueCredits::new(None, SHARED);
        let mut all = queues(&mut credits, &[(4, false)]);
        let queue = &mut all[0];
        let epoch = front_door(&credits, queue, FRAME).unwrap();
        assert!((0..3).all(|_| credits.try_take(queue, FRAME, Bytes::ZERO)));
        assert_eq!(front_door(&credits, queue, FRAME), None);
        assert!(!credits.try_take(queue, FRAME, Bytes::ZERO));
        assert!(credits.try_take(queue, FRAME, FRAME), "so much beyond it");
        credits.on_arrival(queue, FRAME, epoch);
        credits.release(queue, Bytes(5 * FRAME.0));
        assert_eq!((queue.queued(), queue.credit.held), (Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn releases_of_the_shared_credit_are_published_in_batches() {
        let mut credits = QueueCredits::new(None, SHARED);
        let mut all = queues(&mut credits, &[(8, true), (8, true)]);
        assert!((0..6).all(|_| credits.try_take(&mut all[0], FRAME, Bytes::ZERO)));
        (0..4).for_each(|_| credits.release(&mut all[0], FRAME));
        assert_eq!((all[0].queued(), credits.shared.queued()), (Bytes(2 * FRAME.0), SHARED));
        assert_eq!(front_door(&credits, &all[1], FRAME), None, "it has not heard of it");
        credits.publish_released();
        assert!(front_door(&credits, &all[1], FRAME).is_some());
        credits.release(&mut all[0], FRAME);
        assert!(credits.try_take(&mut all[1], Bytes(4 * FRAME.0), Bytes::ZERO), "the cell knows");
        assert!(UNPUBLISHED_MAX >= Bytes(2 * FRAME.0));
        credits.release(&mut all[1], UNPUBLISHED_MAX);
        assert_eq!(credits.unpublished, Bytes::ZERO, "so much is said at once");
    }

    #[test]
    fn queue_credit_of_lost_packets_is_released_after_two_epochs() {
        let mut credits = QueueCredits::new(None, SHARED);
        let mut all = queues(&mut credits, &[(4, false), (8, true)]);
        for at in [0, 1] {
            while front_door(&credits, &all[at], FRAME).is_some() {}
        }
        credits.settle(CoarseInstant::ZERO, all.iter_mut());
        credits.settle(CoarseInstant::from_millis(EPOCH.0 - 1), all.iter_mut());
        assert_eq!(all[0].queued(), Bytes(4 * FRAME.0), "they may come yet");
        credits.settle(CoarseInstant::ZERO + EPOCH, all.iter_mut());
        assert_eq!((all[0].queued(), all[1].queued()), (Bytes::ZERO, Bytes::ZERO));
        assert_eq!(credits.shared.queued(), Bytes::ZERO);
        // Two of four arrive after all: nobody took credit for them until the next settlement.
        for _ in 0..2 {
            credits.on_arrival(&mut all[0], FRAME, 0);
            credits.release(&mut all[0], FRAME);
        }
        assert_eq!(all[0].credit.sum(), -2 * FRAME.0 as i64);
        (2..4).for_each(|epoch| {
            credits.settle(CoarseInstant::from_millis(epoch * EPOCH.0), all.iter_mut())
        });
        assert_eq!(all[0].credit.sum(), 0);
    }

    #[test]
    fn limits_are_off_while_sessions_have_no_claims() {
        let mut credits = QueueCredits::new(None, SHARED);
        let mut all = queues(&mut credits, &[(4, false), (8, true)]);
        let most =
            |all: &[Queue]| [0, 1].map(|at| all[at].credit.counters().most.load(Ordering::SeqCst));
        assert_eq!(most(&all), [4 * FRAME.0, 8 * FRAME.0]);
        credits.limit(false, all.iter_mut());
        assert_eq!(
            (most(&all), credits.shared.counters().most.load(Ordering::SeqCst)),
            ([0, 0], 0)
        );
    }

    /// Packets of four sessions arrive, are lost, wait and leave, and their queues change: never
    /// more bytes wait than the limits allow, and at the end none do.
    #[test]
    fn in_any_history_queues_stay_within_their_limits_and_leak_no_credit() {
        for seed in 1..200 {
            let mut chance = Chance(seed | 0x9e37_79b9_7f4a_0000);
            let mut credits = QueueCredits::new(None, SHARED);
            let mut all = queues(&mut credits, &[(4, false), (2, false), (8, true), (5, true)]);
            // `under_way`: queue and epoch of each packet. `here`: queue of each packet in the
            // cell.
            let (mut under_way, mut here): (Vec<(usize, usize)>, Vec<usize>) = Default::default();
            let mut changed = 0;
            for step in 0..600 {
                let at = chance.below(4) as usize;
                match chance.below(20) {
                    0..6 => under_way
                        .extend(front_door(&credits, &all[at], FRAME).map(|epoch| (at, epoch))),
                    6..9 if credits.try_take(&mut all[at], FRAME, Bytes::ZERO) => here.push(at),
                    9..13 if !under_way.is_empty() => {
                        let (at, epoch) =
                            under_way.swap_remove(chance.below(under_way.len() as u64) as usize);
                        credits.on_arrival(&mut all[at], FRAME, epoch);
                        here.push(at);
                    }
                    13..18 if !here.is_empty() => {
                        let at = here.swap_remove(chance.below(here.len() as u64) as usize);
                        credits.release(&mut all[at], FRAME);
                    }
                    // Lost.
                    18 if !under_way.is_empty() => drop(under_way.pop()),
                    19 if chance.below(20) == 0 && step < 300 => {
                        let is_shared = !all[at].is_shared;
                        credits.set(&mut all[at], Bytes(4 * FRAME.0), is_shared);
                        changed = step;
                    }
                    _ => {}
                }
                // Packets that were under way when a queue changed are counted on no account, or on
                // two.
                if changed == 0 {
                    let most = [4, 2, 8, 5];
                    for (queue, most) in all.iter().zip(most) {
                        assert!(
                            queue.credit.sum() <= (most * FRAME.0) as i64,
                            "seed {seed}: {queue:?}"
                        );
                    }
                    assert!(credits.shared.sum() <= SHARED.0 as i64, "seed {seed}");
                }
            }
            for at in here.drain(..) {
                credits.release(&mut all[at], FRAME);
            }
            (0..4).for_each(|epoch| {
                credits.settle(CoarseInstant::from_millis(epoch * EPOCH.0), all.iter_mut())
            });
            let sums: Vec<i64> = all.iter().map(|queue| queue.credit.sum()).collect();
            assert_eq!((sums, credits.shared.sum()), (vec![0; 4], 0), "seed {seed}");
        }
    }
}
